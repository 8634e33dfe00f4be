//! Everything is told by SQLSTATE, whatever language the server speaks (A24).

use std::{sync::Arc, time::Duration};

use sprag_databases::{
    postgres::{OpenError, PostgresStore},
    test_server::{Server, Setup},
};
use sprag_store::{Error, Store, Written, conformance::sample::record};

use crate::support::{ask, open, options, shop, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_speaks_german() {
    // Where only C.UTF-8 is installed, gettext still follows LANGUAGE.
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let setup = Setup {
        settings: vec![pair("lc_messages", "C.UTF-8")],
        environment: vec![pair("LANGUAGE", "de"), pair("LC_ALL", "C.UTF-8")],
        ..Setup::default()
    };
    let server = Server::start(setup);
    let url = server.url("postgres");
    let store = Arc::new(open(&url).await);
    let (client, connection) =
        tokio_postgres::connect(&url.replace("prefer", "disable"), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);

    let problem = client.batch_execute("SELECT * FROM nothing").await.unwrap_err();
    let message = problem.as_db_error().unwrap().message().to_owned();
    assert!(message.contains("existiert nicht"), "the server's German is not installed: {message}");

    // 23505, met and passed over.
    store.write(&shop(), record(&["a"])).await.unwrap();
    assert_eq!(store.write(&shop(), record(&["a"])).await.unwrap(), Written::AlreadyDecided);

    // 40P01: the store's transaction is the one that is ended, and is repeated. It takes its records in the order of their keys.
    let order = "SELECT message_id FROM sprag_inbox WHERE message_id IN ('x', 'y') ORDER BY hash";
    store.write(&shop(), record(&["x", "y"])).await.unwrap();
    let rows = client.query(order, &[]).await.unwrap();
    let (first, second): (String, String) = (rows[0].get(0), rows[1].get(0));
    let copy = |id: &str| {
        format!(
            "INSERT INTO sprag_inbox SELECT hash, endpoint, message_id, recorded_at FROM held WHERE message_id = '{id}'"
        )
    };
    let free = "SET deadlock_timeout = '1h'; CREATE TEMP TABLE held AS SELECT * FROM sprag_inbox; \
         DELETE FROM sprag_inbox WHERE message_id IN ('x', 'y')";
    client.batch_execute(free).await.unwrap();
    client.batch_execute("BEGIN").await.unwrap();
    client.batch_execute(&copy(&second)).await.unwrap();
    let call = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.write(&shop(), record(&["x", "y"])).await }
    });
    let waiting = "SELECT 1 FROM pg_locks WHERE NOT granted";
    until("the store waits for us", async || !client.query(waiting, &[]).await.unwrap().is_empty()).await;
    client.batch_execute(&copy(&first)).await.unwrap();
    client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(call.await.unwrap().unwrap(), Written::Done);
    assert!(server.log().contains("Verklemmung"), "there was a deadlock: {}", server.log());

    // 42P01, 28P01, 3D000: told without a word of the server's.
    client.batch_execute("DROP TABLE sprag_final").await.unwrap();
    let error = ask(&store, "a").await.unwrap_err();
    assert!(
        matches!(&error, Error::Unavailable(text) if text.contains("42P01") && !text.contains("existiert")),
        "{error}"
    );
    let error = PostgresStore::open(options(&url.replace("hush-hush", "wrong"))).await.unwrap_err();
    assert!(matches!(&error, OpenError::Refused { state, .. } if state == "28P01"), "{error:?}");
    let error = PostgresStore::open(options(&server.url("nowhere"))).await.unwrap_err();
    assert!(matches!(error, OpenError::NoDatabase { .. }), "{error:?}");
    // The driver's own connection is closed with the client.
    drop(client);
    tokio::time::timeout(Duration::from_secs(60), async { drop(server) }).await.unwrap();
}
