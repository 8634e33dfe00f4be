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

mod committer {
    use super::bench;

    sprag_transport::committer_conformance!(bench);
}
