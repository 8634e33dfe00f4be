//! Stores on fresh databases.

use std::{sync::Arc, time::Duration};

use sprag_core::{
    effect::{Decision, StoreWrite},
    ids::{EndpointName, EventId, MessageId},
    outcome::Outcome,
};
use sprag_databases::{
    postgres::{Options, PostgresStore},
    test_server::{Database, fresh_database},
};
use sprag_store::{Answer, Error, Question, Store, conformance::sample};

pub(crate) fn options(url: &str) -> Options {
    Options { pool_size: 8, ..Options::new(url) }
}

pub(crate) async fn open(url: &str) -> PostgresStore {
    PostgresStore::open(options(url)).await.expect("the store opens")
}

pub(crate) async fn fresh() -> (Arc<PostgresStore>, Database) {
    let database = fresh_database().await;
    (Arc::new(open(database.url()).await), database)
}

pub(crate) fn shop() -> EndpointName {
    sample::endpoint()
}

/// A success with all that belongs to it: decision, record, outcome, an outgoing message.
pub(crate) fn success(id: &str) -> StoreWrite {
    StoreWrite {
        decision: Some(Decision { rest: vec![], ..sample::decision(id, Outcome::Completed) }),
        outcome: Some(sample::outcome(id, Outcome::Completed)),
        unit: sample::sends(&[("payments", None, &format!("out-{id}"))]).unit,
        ..sample::record(&[id])
    }
}

pub(crate) async fn ask(store: &PostgresStore, id: &str) -> Result<Answer, Error> {
    let (endpoint, id, event_id) = (shop(), MessageId::from(id), EventId::from(id));
    let question = Question {
        endpoint: &endpoint,
        message_id: Some(&id),
        source_id: None,
        event_id: &event_id,
        inbox: true,
        outcome: true,
    };
    store.check(question).await
}

/// Looks again and again until it is so, for as long as a busy machine may take.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..3_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: not within half a minute");
}
