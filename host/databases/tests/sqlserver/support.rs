//! Stores on a server of the tests' own, which is a fake (`sprag_databases::test_server::tds`), or on that of `SPRAG_TEST_SQLSERVER`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use sprag_core::{
    effect::{Decision, StoreWrite},
    ids::{EndpointName, EventId, MessageId},
    outcome::Outcome,
};
use sprag_databases::{
    sqlserver::{Options, SqlServerStore},
    test_server::tds::Fake,
};
use sprag_store::{Answer, Error, Question, Store, conformance::sample};

pub(crate) fn options(url: &str) -> Options {
    Options { pool_size: 8, ..Options::new(url) }
}

pub(crate) async fn open(options: Options) -> SqlServerStore {
    SqlServerStore::open(options).await.expect("the store opens")
}

pub(crate) async fn fake() -> (Arc<SqlServerStore>, Fake) {
    let fake = Fake::start().await;
    (Arc::new(open(options(&fake.url())).await), fake)
}

/// On the real server if there is one. Its tables are in schemas of their own, which stay behind there.
pub(crate) async fn fresh() -> (Arc<SqlServerStore>, Option<Fake>) {
    let Ok(url) = std::env::var("SPRAG_TEST_SQLSERVER") else {
        let (store, fake) = fake().await;
        return (store, Some(fake));
    };
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_millis();
    let schema = format!("sprag_test_{now}_{}_{number}", std::process::id());
    let options = Options { inbox_schema: schema.clone(), schema, ..options(&url) };
    (Arc::new(open(options).await), None)
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

pub(crate) async fn ask(store: &SqlServerStore, id: &str) -> Result<Answer, Error> {
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
