//! Callers that go away, and calls that do not end.

use std::time::Duration;

use sprag_databases::postgres::{Options, PostgresStore};
use sprag_store::{Error, Store, Written, conformance::sample::record};

use crate::support::{ask, fresh, options, shop, until};

/// The trait's rule, and P5: what has begun ends, here while it waits for another transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_caller_goes_away_is_done() {
    let (store, database) = fresh().await;
    let client = database.client().await;
    // Another host has recorded the same and not committed: the write waits for it.
    store.write(&shop(), record(&["other"])).await.unwrap();
    client.batch_execute("BEGIN; LOCK TABLE sprag_inbox IN EXCLUSIVE MODE").await.unwrap();
    let caller = tokio::spawn({
        let store = store.clone();
        async move { store.write(&shop(), record(&["m"])).await }
    });
    let waiting = "SELECT 1 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation WHERE c.relname = 'sprag_inbox' AND NOT l.granted";
    until("the write waits", async || !client.query(waiting, &[]).await.unwrap().is_empty()).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    client.batch_execute("ROLLBACK").await.unwrap();
    until("it is recorded", async || ask(&store, "m").await.unwrap().own_recorded).await;
}

/// A31: a connection whose call did not end in time is not lent again, and the next call gets its own answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_an_open_call_is_not_lent_again() {
    let (other, database) = fresh().await;
    other.write(&shop(), record(&["there"])).await.unwrap();
    let options = Options { pool_size: 1, statement_timeout: Duration::from_millis(300), ..options(database.url()) };
    let store = PostgresStore::open(options).await.unwrap();
    let client = database.client().await;
    client.batch_execute("BEGIN; LOCK TABLE sprag_inbox IN EXCLUSIVE MODE").await.unwrap();
    let result = store.write(&shop(), record(&["m"])).await;
    assert!(matches!(&result, Err(Error::Unavailable(text)) if text.contains("57014")), "{result:?}");
    assert!(ask(&store, "there").await.unwrap().own_recorded);
    assert!(!ask(&store, "m").await.unwrap().own_recorded);
    client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(store.write(&shop(), record(&["m"])).await.unwrap(), Written::Done);
}

/// A32: callers that gave up while they waited for a connection take none with them.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_callers_that_go_away_cost_no_connection() {
    let (_, database) = fresh().await;
    let store = PostgresStore::open(Options { pool_size: 1, ..options(database.url()) }).await.unwrap();
    for _ in 0..50 {
        let calls: Vec<_> = (0..4)
            .map(|n| {
                let store = store.clone();
                tokio::spawn(async move { ask(&store, &format!("m-{n}")).await })
            })
            .collect();
        tokio::task::yield_now().await;
        calls.iter().for_each(|call| call.abort());
    }
    assert!(!ask(&store, "m").await.unwrap().own_recorded);
}

/// A server that is there and says nothing: bounded by our own clock, not by the server's.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://u:p@{}/d?sslmode=disable", listener.local_addr().unwrap());
    let options = Options { connect_timeout: Duration::from_millis(200), ..options(&url) };
    let error = PostgresStore::open(options).await.unwrap_err();
    assert!(error.to_string().contains("cannot be reached"), "{error}");
}
