//! The suites that every transport and every committer pass, over TCP against the embedded broker's AMQP face.

mod support;

use std::sync::Arc;

use sprag_store::memory::MemoryStore;
use sprag_transport::{
    conformance::{self, Bench},
    ordered::Ordered,
};

use support::{Broker, any_port, specs, transport};

async fn bench(entities: &[conformance::EntitySpec]) -> Bench {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let specs = specs(entities);
    let broker = Broker::start(dir.path(), specs.clone(), any_port()).await;
    let (store, transport) = (Arc::new(MemoryStore::new()), Arc::new(transport(broker.address(), &specs)));
    Bench {
        committer: Arc::new(Ordered::new(store.clone(), transport.clone())),
        transport,
        store,
        now: sprag_store::clock::now,
        far: true,
        keep: Box::new((broker, dir)),
    }
}

sprag_transport::transport_conformance!(bench);

/// With a connection string in `SPRAG_TEST_SERVICEBUS`, the same suite is to run against a real namespace. Every rule needs entities of its own that
/// are empty. They can be made (`topology`), and nothing here removes them again: so it says that it is skipped.
#[test]
fn a_real_namespace() {
    let Ok(text) = std::env::var("SPRAG_TEST_SERVICEBUS") else { return };
    let parsed =
        sprag_servicebus::ConnectionString::parse(&text).expect("SPRAG_TEST_SERVICEBUS is a connection string");
    eprintln!(
        "SKIPPED: the suite against {}: it would leave hundreds of entities there, which nothing here removes",
        parsed.host
    );
}

mod committer {
    use super::bench;

    sprag_transport::committer_conformance!(bench);
}
