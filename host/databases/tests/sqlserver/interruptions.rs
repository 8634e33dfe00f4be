//! Callers that go away, calls that do not end, and connections that break.

use std::time::Duration;

use sprag_databases::{
    sqlserver::{Options, SqlServerStore},
    test_server::tds::Trouble,
};
use sprag_store::{Error, Store, Written, conformance::sample::record};

use crate::support::{ask, fake, open, options, shop, success, until};

/// The trait's rule, and P5: what has begun ends, here while it waits for another transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_caller_goes_away_is_done() {
    let (store, fake) = fake().await;
    let client = fake.database().client().await;
    client.batch_execute(r#"BEGIN; LOCK TABLE nimbus."InboxMessages" IN EXCLUSIVE MODE"#).await.unwrap();
    let caller = tokio::spawn({
        let store = store.clone();
        async move { store.write(&shop(), record(&["m"])).await }
    });
    let waiting = "SELECT 1 FROM pg_locks WHERE NOT granted";
    until("the write waits", async || !client.query(waiting, &[]).await.unwrap().is_empty()).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    client.batch_execute("ROLLBACK").await.unwrap();
    until("it is recorded", async || ask(&store, "m").await.unwrap().own_recorded).await;
}

/// A31: a connection whose call did not end in time is not lent again, and the next call gets its own answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_an_open_call_is_not_lent_again() {
    let (other, fake) = fake().await;
    other.write(&shop(), record(&["there"])).await.unwrap();
    let times = Duration::from_millis(150);
    let options = Options {
        pool_size: 1,
        statement_timeout: times,
        connect_timeout: Duration::from_secs(2),
        ..options(&fake.url())
    };
    let store = open(options).await;
    fake.plan("LEFT JOIN", 0, Trouble::Silence);
    let connections = fake.connections();
    let result = ask(&store, "there").await;
    assert!(matches!(&result, Err(Error::Unavailable(text)) if text.contains("in time")), "{result:?}");
    assert!(!ask(&store, "m").await.unwrap().own_recorded, "not the first call's answer");
    assert!(ask(&store, "there").await.unwrap().own_recorded);
    assert_eq!(fake.connections() - connections, 1, "the first one was closed");
}

/// What another transaction holds for too long is told by its number (1222), and nothing of the write is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_lock_has_an_end() {
    let (_, fake) = fake().await;
    let options = Options { statement_timeout: Duration::from_millis(150), ..options(&fake.url()) };
    let store = open(options).await;
    let client = fake.database().client().await;
    client.batch_execute(r#"BEGIN; LOCK TABLE nimbus."InboxMessages" IN EXCLUSIVE MODE"#).await.unwrap();
    let result = store.write(&shop(), success("m")).await;
    assert!(matches!(&result, Err(Error::Unavailable(text)) if text.contains("1222")), "{result:?}");
    client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(ask(&store, "m").await.unwrap(), sprag_store::Answer::default());
    assert_eq!(store.write(&shop(), success("m")).await.unwrap(), Written::Done);
}

/// A31 in the middle of an answer, and before one: the call is unavailable, the next one is whole. Nothing was committed.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_is_no_answer() {
    let (store, fake) = fake().await;
    for (round, trouble) in [Trouble::HalfAnAnswer, Trouble::HangUp].into_iter().enumerate() {
        for (n, statement) in ["BEGIN TRAN", "[decision]", "[InboxMessages]", "[outbox]"].into_iter().enumerate() {
            let id = format!("m-{round}-{n}");
            fake.plan(statement, 0, trouble);
            let result = store.write(&shop(), success(&id)).await;
            assert!(
                matches!(&result, Err(Error::Unavailable(text)) if text.contains("lost")),
                "{statement} {trouble:?}: {result:?}"
            );
            assert!(!ask(&store, &id).await.unwrap().own_recorded, "{statement} {trouble:?}");
            assert_eq!(store.write(&shop(), success(&id)).await.unwrap(), Written::Done);
        }
        fake.plan("LEFT JOIN", 0, trouble);
        assert!(matches!(ask(&store, "x").await, Err(Error::Unavailable(_))));
    }
}

/// P5: a COMMIT without an answer is transient, whether it took place or not; the delivery that comes again finds out.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_without_an_answer_is_not_done() {
    let (store, fake) = fake().await;
    for (id, trouble, then) in
        [("taken", Trouble::HalfAnAnswer, Written::AlreadyDecided), ("lost", Trouble::HangUp, Written::Done)]
    {
        fake.plan("COMMIT", 0, trouble);
        let result = store.write(&shop(), success(id)).await;
        assert!(matches!(result, Err(Error::Unavailable(_))), "{id}: {result:?}");
        assert_eq!(store.write(&shop(), success(id)).await.unwrap(), then, "{id}");
    }
}

/// A32: callers that gave up while they waited for a connection take none with them.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_callers_that_go_away_cost_no_connection() {
    let (_, fake) = fake().await;
    let store = open(Options { pool_size: 1, ..options(&fake.url()) }).await;
    let connections = fake.connections();
    for _ in 0..50 {
        let calls: Vec<_> = (0..4)
            .map(|n| {
                let store = store.clone();
                tokio::spawn(async move { store.state_get(&shop(), &format!("m-{n}")).await })
            })
            .collect();
        tokio::task::yield_now().await;
        calls.iter().for_each(|call| call.abort());
    }
    assert!(!ask(&store, "m").await.unwrap().own_recorded);
    assert_eq!(fake.connections(), connections, "the one connection serves them all");
}

/// A server that is there and says nothing: bounded by our own clock, not by the server's.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("mssql://u:p@{}/d?encrypt=false", listener.local_addr().unwrap());
    let options = Options { connect_timeout: Duration::from_millis(200), ..options(&url) };
    let error = SqlServerStore::open(options).await.unwrap_err();
    assert!(error.to_string().contains("cannot be reached"), "{error}");
}
