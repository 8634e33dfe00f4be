//! The suite that every store passes, on the embedded engine.

use std::sync::Arc;

use sprag_broker::{Engine, Options};
use sprag_store::inbox::{InboxBeside, InboxOf};
use tempfile::TempDir;

async fn fresh() -> (Arc<Engine>, TempDir) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let engine = Engine::open(Options::new(dir.path())).expect("an empty folder opens");
    (Arc::new(engine), dir)
}

sprag_store::store_conformance!(fresh);
sprag_store::lease_conformance!(fresh);

mod as_an_inbox {
    use super::*;

    async fn fresh() -> (Arc<InboxOf>, TempDir) {
        let (engine, dir) = super::fresh().await;
        (Arc::new(InboxOf::new(engine)), dir)
    }

    sprag_store::inbox_conformance!(fresh);
}

/// P1: the engine keeps what is to be recorded in the other place with the decision, in the file.
#[tokio::test]
async fn a_decision_holds_what_is_to_be_recorded_elsewhere() {
    use sprag_core::outcome::Outcome;
    use sprag_store::{Error, Store, conformance::sample, memory::MemoryStore};
    let (engine, dir) = fresh().await;
    let other = Arc::new(MemoryStore::new());
    let beside =
        |engine| -> Arc<dyn Store> { Arc::new(InboxBeside::new(engine, Arc::new(InboxOf::new(other.clone())))) };
    let success = sprag_core::effect::StoreWrite {
        decision: Some(sample::decision("own", Outcome::Completed)),
        ..sample::record(&["source", "own"])
    };
    other.faults().outage(Some(Error::Unavailable("planned".into())));
    beside(engine.clone()).write(&sample::endpoint(), success).await.expect_err("it cannot be recorded");
    engine.close().await;
    drop(engine);

    other.faults().outage(None);
    let engine = Arc::new(Engine::open(Options::new(dir.path())).expect("it opens again"));
    assert!(!sample::is_recorded(&(engine.clone() as Arc<dyn Store>), &sample::endpoint(), "own").await);
    let answer = sample::ask(&beside(engine), &sample::endpoint(), "own", None).await;
    assert_eq!(answer.decision, Some(sample::decision("own", Outcome::Completed)));
    let recorded = other.inbox(&Default::default(), &Default::default()).await.expect("a listing").items;
    assert_eq!(recorded.len(), 2);
}
