//! The suites that every transport and every committer pass, on the embedded engine.

use std::{sync::Arc, time::Duration};

use sprag_broker::{Engine, EntitySpec, Options};
use sprag_transport::conformance::{self, Bench};

async fn bench(entities: &[conformance::EntitySpec]) -> Bench {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut options = Options::new(dir.path());
    options.clock = Arc::new(sprag_store::clock::now);
    let engine = Engine::open(options).expect("an empty folder opens");
    let specs = entities.iter().map(|it| EntitySpec {
        requires_session: it.requires_session,
        // A lock shorter than a second is refused; rules ask for what it is.
        lock_duration: it.lock_duration.max(Duration::from_secs(1)),
        max_delivery_count: it.max_delivery_count,
        ..EntitySpec::queue(it.name)
    });
    engine.declare(specs.collect()).await.expect("the entities are taken");
    Bench {
        transport: Arc::new(engine.clone()),
        store: Arc::new(engine.clone()),
        committer: Arc::new(engine),
        now: sprag_store::clock::now,
        far: false,
        keep: Box::new(dir),
    }
}

sprag_transport::transport_conformance!(bench);

mod committer {
    use super::bench;

    sprag_transport::committer_conformance!(bench);
}
