//! What opening refuses, and how it names it (A57), and who makes the tables.

use std::time::Duration;

use sprag_databases::{
    sqlserver::{OpenError, Options, SCHEMA_VERSION, SqlServerStore, schema_sql},
    test_server::{
        PASSWORD,
        tds::{Fake, Trouble},
    },
};
use sprag_store::{Store as _, conformance::sample::record};

use crate::support::{ask, fake, open, options, shop};

fn strict(fake: &Fake) -> Options {
    Options { auto_create_table: false, ..options(&fake.url()) }
}

async fn refused(options: Options) -> OpenError {
    let error = SqlServerStore::open(options).await.map(drop).expect_err("it is refused");
    for shown in [error.to_string(), format!("{error:?}")] {
        assert!(!shown.contains(PASSWORD) && !shown.contains("other-secret"), "no secret is shown: {shown}");
    }
    error
}

#[tokio::test]
async fn each_cause_has_its_name() {
    let fake = Fake::start().await;
    let url = fake.url();
    let error = refused(options(&url.replace(PASSWORD, "other-secret"))).await;
    assert!(matches!(&error, OpenError::Refused { user, number: 18456, .. } if user == "sprag"), "{error:?}");
    let error = refused(options(&url.replace(fake.database().name(), "no_such_database"))).await;
    let named =
        matches!(&error, OpenError::NoDatabase { database, number: 4060, .. } if database == "no_such_database");
    assert!(named, "{error:?}");

    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = refused(options(&format!("mssql://u:{PASSWORD}@{free}/d"))).await;
    assert!(matches!(&error, OpenError::Unreachable { at, .. } if *at == free.to_string()), "{error:?}");

    // Another service: one that hangs up on what it does not understand, and one that answers in its own language.
    for words in ["", "HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let other = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = other.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut tcp, _)) = other.accept().await {
                use tokio::io::AsyncWriteExt as _;
                let _ = tcp.write_all(words.as_bytes()).await;
            }
        });
        let error = refused(options(&format!("mssql://u:{PASSWORD}@{at}/d"))).await;
        assert!(matches!(error, OpenError::Unreachable { .. }), "{error:?}");
    }

    assert!(matches!(refused(Options { pool_size: 0, ..options(&url) }).await, OpenError::Options(_)));
    let no_time = Options { statement_timeout: Duration::ZERO, ..options(&url) };
    assert!(matches!(refused(no_time).await, OpenError::Options(_)));
    assert!(matches!(refused(Options { schema: "a]b".into(), ..options(&url) }).await, OpenError::Options(_)));
}

#[tokio::test]
async fn a_store_shows_no_secret() {
    let (store, fake) = fake().await;
    let shown = format!("{store:?} {:?}", options(&fake.url()));
    assert!(!shown.contains(PASSWORD), "{shown}");
    assert!(shown.contains(fake.database().name()), "{shown}");
}

/// Issue 4: with auto_create off nothing is made, and what is missing is said.
#[tokio::test]
async fn what_is_missing_is_said() {
    let fake = Fake::start().await;
    let error = refused(strict(&fake)).await;
    let OpenError::Schema(problems) = &error else { panic!("{error:?}") };
    assert!(problems.contains(&"table nimbus.InboxMessages is missing".to_owned()), "{problems:?}");
    assert!(problems.contains(&"table sprag.outbox is missing".to_owned()), "{problems:?}");

    open(options(&fake.url())).await;
    let store = open(strict(&fake)).await;
    store.write(&shop(), record(&["m"])).await.unwrap();
    assert!(ask(&store, "m").await.unwrap().own_recorded);

    let client = fake.database().client().await;
    client
        .batch_execute(
            "ALTER TABLE sprag.event DROP COLUMN attempts; DROP TABLE sprag.audit; ALTER TABLE sprag.state DROP CONSTRAINT state_pkey; \
             UPDATE sys.declared SET data_type = 'int' WHERE table_name = 'gate' AND column_name = 'slot'; \
             UPDATE sys.declared SET length = 20 WHERE table_name = 'InboxMessages' AND column_name = 'IdentityHash'; \
             UPDATE sys.declared SET length = 256 WHERE table_name = 'InboxMessages' AND column_name = 'MessageId'; \
             UPDATE sys.declared SET collation_name = 'SQL_Latin1_General_CP1_CI_AS' WHERE table_name = 'outbox' AND column_name = 'entity'",
        )
        .await
        .unwrap();
    // Also for who may make tables: those that are there are not changed behind anybody's back.
    for options in [strict(&fake), options(&fake.url())] {
        let error = refused(options).await;
        let OpenError::Schema(problems) = &error else { panic!("{error:?}") };
        let expected = [
            "column nimbus.InboxMessages.IdentityHash is of type binary(20) and must be binary(32)",
            "column nimbus.InboxMessages.MessageId is of type nvarchar(256) and must be nvarchar(512)",
            "column sprag.event.attempts (bigint) is missing",
            "table sprag.state has no unique key on (hash)",
            "column sprag.outbox.entity must have COLLATE Latin1_General_100_BIN2",
            "table sprag.audit is missing",
            "column sprag.gate.slot is of type int and must be bigint",
        ];
        assert_eq!(problems, &expected);
    }
}

/// The statements for an administrator make what the check asks for.
#[tokio::test]
async fn tables_that_were_made_beforehand_are_enough() {
    let fake = Fake::start().await;
    let names =
        Options { schema: "own".into(), inbox_schema: "own".into(), inbox_table: "Seen".into(), ..strict(&fake) };
    let batches = schema_sql(&names).unwrap();
    for batch in &batches {
        fake.batch(batch).await;
    }
    let store = open(names).await;
    store.write(&shop(), record(&["m"])).await.unwrap();
    assert!(ask(&store, "m").await.unwrap().own_recorded);
}

/// Names that the catalogue makes up are nobody's business: a key by another name is the same key.
#[tokio::test]
async fn a_key_may_have_any_name() {
    let (store, fake) = fake().await;
    drop(store);
    let client = fake.database().client().await;
    client
        .batch_execute(
            "ALTER TABLE sprag.decision RENAME CONSTRAINT decision_pkey TO pk__decision__3213e83f; \
             ALTER TABLE nimbus.\"InboxMessages\" DROP CONSTRAINT \"InboxMessages_pkey\"; \
             CREATE UNIQUE INDEX ix ON nimbus.\"InboxMessages\" (\"IdentityHash\")",
        )
        .await
        .unwrap();
    open(strict(&fake)).await;
}

/// Tables that only look like ours are not taken over.
#[tokio::test]
async fn a_strange_table_is_not_taken_over() {
    let fake = Fake::start().await;
    let client = fake.database().client().await;
    client.batch_execute("CREATE SCHEMA sprag; CREATE TABLE sprag.gate (id integer)").await.unwrap();
    let error = refused(options(&fake.url())).await;
    assert!(matches!(&error, OpenError::Schema(problems) if problems[0].contains("another schema")), "{error:?}");
    let count =
        "SELECT count(*) FROM sys.tables t JOIN sys.schemas s USING (schema_id) WHERE s.name IN ('sprag', 'nimbus')";
    assert_eq!(client.query_one(count, &[]).await.unwrap().get::<_, i64>(0), 1, "nothing was made");
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let (store, fake) = fake().await;
    drop(store);
    let newer = format!("UPDATE sprag.schema_version SET version = {}", SCHEMA_VERSION + 1);
    fake.database().client().await.batch_execute(&newer).await.unwrap();
    for options in [options(&fake.url()), strict(&fake)] {
        let error = refused(options).await;
        assert!(matches!(error, OpenError::Newer { found, known } if found == known + 1), "{error:?}");
    }
}

/// Several hosts may start at once.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_make_the_tables_at_once() {
    for _ in 0..3 {
        let fake = Fake::start().await;
        let hosts: Vec<_> = (0..6)
            .map(|_| tokio::spawn(SqlServerStore::open(Options { pool_size: 2, ..options(&fake.url()) })))
            .collect();
        for host in hosts {
            host.await.unwrap().expect("every host opens");
        }
    }
}

/// A login that owns one database needs nothing else; one that may make nothing is told so.
#[tokio::test]
async fn rights_that_are_not_enough() {
    let fake = Fake::start().await;
    for number in [262, 2760] {
        fake.plan("CREATE SCHEMA", 0, Trouble::Error(number));
        let error = refused(options(&fake.url())).await;
        assert!(matches!(error, OpenError::Rights { number: found, .. } if found == number), "{error:?}");
    }
    open(options(&fake.url())).await;
    let elsewhere = ["master", "msdb", "tempdb", "sp_", "xp_", "sys.server", "sys.dm_"];
    for sent in fake.sent() {
        assert!(!elsewhere.iter().any(|name| sent.text.contains(name)), "{}", sent.text);
    }
}
