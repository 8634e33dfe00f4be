//! What opening refuses, and how it names it (A57), and who makes the tables.

use std::time::Duration;

use sprag_databases::{
    postgres::{OpenError, Options, PostgresStore, SCHEMA_VERSION, schema_sql},
    test_server::{Database, PASSWORD, fresh_database},
};
use sprag_store::{
    Store as _,
    conformance::sample::record,
    lease::Leased,
    query::{InboxFilter, Page},
};

use crate::support::{ask, options, shop};

fn strict(database: &Database) -> Options {
    Options { auto_create_table: false, ..options(database.url()) }
}

async fn refused(options: Options) -> OpenError {
    let error = PostgresStore::open(options).await.map(drop).expect_err("it is refused");
    for shown in [error.to_string(), format!("{error:?}")] {
        assert!(!shown.contains(PASSWORD) && !shown.contains("other-secret"), "no secret is shown: {shown}");
    }
    error
}

#[tokio::test]
async fn each_cause_has_its_name() {
    let database = fresh_database().await;
    let url = database.url();
    let error = refused(options(&url.replace(PASSWORD, "other-secret"))).await;
    assert!(
        matches!(&error, OpenError::Refused { user, state, .. } if user == "sprag" && state == "28P01"),
        "{error:?}"
    );
    let error = refused(options(&url.replace(database.name(), "no_such_database"))).await;
    assert!(matches!(&error, OpenError::NoDatabase { database, .. } if database == "no_such_database"), "{error:?}");

    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = refused(options(&format!("postgres://u:{PASSWORD}@{free}/d"))).await;
    assert!(matches!(&error, OpenError::Unreachable { at, .. } if *at == free.to_string()), "{error:?}");

    // Another service, which hangs up on what it does not understand.
    let other = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = other.local_addr().unwrap();
    tokio::spawn(async move { while other.accept().await.is_ok() {} });
    let error = refused(options(&format!("postgres://u:{PASSWORD}@{at}/d?sslmode=disable"))).await;
    assert!(matches!(error, OpenError::Unreachable { .. }), "{error:?}");

    let error = refused(options(&url.replace("sslmode=prefer", "sslmode=require"))).await;
    assert!(matches!(&error, OpenError::Tls { .. }), "a server without TLS: {error:?}");
    assert!(matches!(refused(Options { pool_size: 0, ..options(url) }).await, OpenError::Options(_)));
    assert!(matches!(
        refused(Options { statement_timeout: Duration::ZERO, ..options(url) }).await,
        OpenError::Options(_)
    ));
    assert!(matches!(refused(options("http://u:hush-hush@h/d")).await, OpenError::Options(_)));
}

#[tokio::test]
async fn a_store_shows_no_secret() {
    let database = fresh_database().await;
    let store = PostgresStore::open(options(database.url())).await.unwrap();
    let shown = format!("{store:?} {:?}", options(database.url()));
    assert!(!shown.contains(PASSWORD), "{shown}");
    assert!(shown.contains(database.name()), "{shown}");
}

/// Issue 4: with auto_create off nothing is made, and what is missing is said.
#[tokio::test]
async fn what_is_missing_is_said() {
    let database = fresh_database().await;
    let error = refused(strict(&database)).await;
    let OpenError::Schema(problems) = &error else { panic!("{error:?}") };
    assert!(problems.contains(&"table sprag_inbox is missing".to_owned()), "{problems:?}");
    assert!(problems.contains(&"sequence sprag_version is missing".to_owned()), "{problems:?}");

    let client = database.client().await;
    client.batch_execute(&schema_sql()).await.unwrap();
    let store = PostgresStore::open(strict(&database)).await.unwrap();
    store.write(&shop(), record(&["m"])).await.unwrap();
    assert!(ask(&store, "m").await.unwrap().own_recorded);

    client
        .batch_execute(
            "ALTER TABLE sprag_event DROP COLUMN attempts; ALTER TABLE sprag_inbox ALTER recorded_at TYPE numeric; \
             ALTER TABLE sprag_state DROP CONSTRAINT sprag_state_pkey; DROP TABLE sprag_audit; \
             ALTER TABLE sprag_outbox ALTER entity TYPE text COLLATE \"default\"",
        )
        .await
        .unwrap();
    // Also for who may make tables: those that are there are not changed behind anybody's back.
    for options in [strict(&database), options(database.url())] {
        let error = refused(options).await;
        let OpenError::Schema(problems) = &error else { panic!("{error:?}") };
        let expected = [
            "column sprag_inbox.recorded_at is of type numeric and must be bigint",
            "column sprag_event.attempts (bigint) is missing",
            "column sprag_outbox.entity must have COLLATE \"C\"",
            "table sprag_audit is missing",
            "table sprag_state has no unique key on (endpoint, key)",
        ];
        assert_eq!(problems, &expected);
    }
}

/// Tables that only look like ours are not taken over.
#[tokio::test]
async fn a_strange_table_is_not_taken_over() {
    let database = fresh_database().await;
    database.client().await.batch_execute("CREATE TABLE sprag_inbox (id integer)").await.unwrap();
    let error = refused(options(database.url())).await;
    assert!(matches!(&error, OpenError::Schema(problems) if problems[0].contains("search_path")), "{error:?}");
    let count = "SELECT count(*) FROM pg_class WHERE starts_with(relname::text, 'sprag_') AND relkind = 'r'";
    let row = database.client().await.query_one(count, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 1, "nothing was made");
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_an_older_one_needs_leave() {
    let database = fresh_database().await;
    PostgresStore::open(options(database.url())).await.unwrap();
    let client = database.client().await;
    client.execute("UPDATE sprag_schema SET version = $1", &[&(SCHEMA_VERSION + 1)]).await.unwrap();
    for options in [options(database.url()), strict(&database)] {
        let error = refused(options).await;
        assert!(matches!(error, OpenError::Newer { found, known } if found == known + 1), "{error:?}");
    }
}

/// Tables of the first version get what the second one added, and keep what they have.
#[tokio::test]
async fn an_older_schema_is_brought_forward() {
    let database = fresh_database().await;
    let client = database.client().await;
    let first = include_str!("../../src/postgres/schema_v1.sql");
    let version = "CREATE TABLE sprag_schema (one boolean PRIMARY KEY DEFAULT true CHECK (one), version integer NOT NULL); \
         INSERT INTO sprag_schema (version) VALUES (1); INSERT INTO sprag_inbox VALUES (sha256('x'), 'e', 'm', 7)";
    client.batch_execute(&format!("{first}{version}")).await.unwrap();
    let error = refused(strict(&database)).await;
    assert!(matches!(error, OpenError::Older { found: 1, known: SCHEMA_VERSION }), "{error:?}");
    let store = PostgresStore::open(options(database.url())).await.unwrap();
    let leases = store.leases().expect("the store has leases");
    let leased = leases.acquire(&shop(), &"m".into(), &"a".into(), Duration::from_secs(1)).await.unwrap();
    assert_eq!(leased, Leased::Acquired);
    let rows = store.inbox(&InboxFilter::default(), &Page::default()).await.unwrap().items;
    assert_eq!(rows.len(), 2);
}

/// Several hosts may start at once.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_migrate_at_once() {
    for _ in 0..3 {
        let database = fresh_database().await;
        let hosts: Vec<_> = (0..8)
            .map(|_| {
                let options = Options { pool_size: 2, ..options(database.url()) };
                tokio::spawn(PostgresStore::open(options))
            })
            .collect();
        for host in hosts {
            host.await.unwrap().expect("every host opens");
        }
    }
}

/// What `docs/stores.md` says about rights: the tables' owner makes them, another user works with rights on rows only.
#[tokio::test]
async fn rights_that_are_enough_and_rights_that_are_not() {
    let database = fresh_database().await;
    let client = database.client().await;
    let role = format!("{}_worker", database.name());
    client
        .batch_execute(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 'other-secret'; REVOKE CREATE ON SCHEMA public FROM public"
        ))
        .await
        .unwrap();
    let url = database.url().replace(&format!("sprag:{PASSWORD}@"), &format!("{role}:other-secret@"));
    let error = if url == database.url() { None } else { Some(refused(options(&url)).await) };
    if let Some(error) = &error {
        assert!(matches!(error, OpenError::Rights { .. }), "{error:?}");
        PostgresStore::open(options(database.url())).await.unwrap();
        let grants = format!(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}; GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}"
        );
        client.batch_execute(&grants).await.unwrap();
        let store = PostgresStore::open(options(&url)).await.unwrap();
        store.write(&shop(), crate::support::success("m")).await.unwrap();
        assert!(ask(&store, "m").await.unwrap().own_recorded);
        drop(store);
    }
    client.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
}

#[tokio::test]
async fn another_encoding_is_refused() {
    let database = fresh_database().await;
    let (client, name) = (database.client().await, format!("{}_ascii", database.name()));
    let create = format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'");
    if client.batch_execute(&format!("{create} LOCALE_PROVIDER libc")).await.is_err() {
        client.batch_execute(&create).await.unwrap();
    }
    let error = refused(options(&database.url().replace(database.name(), &name))).await;
    assert!(matches!(&error, OpenError::Encoding { found } if found == "SQL_ASCII"), "{error:?}");
    client.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.unwrap();
}

/// Done means on the disk, whatever the database's default says.
#[tokio::test]
async fn a_database_that_does_not_wait_for_its_disk_is_told_to() {
    let database = fresh_database().await;
    let client = database.client().await;
    PostgresStore::open(options(database.url())).await.unwrap();
    let watch = format!(
        "ALTER DATABASE {} SET synchronous_commit = off; \
         CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF current_setting('synchronous_commit') = 'off' THEN RAISE 'it does not wait'; END IF; RETURN NEW; END $$; \
         CREATE TRIGGER watch BEFORE INSERT ON sprag_inbox FOR EACH ROW EXECUTE FUNCTION watch()",
        database.name()
    );
    client.batch_execute(&watch).await.unwrap();
    let plain = database.client().await.execute("INSERT INTO sprag_inbox VALUES ('x', 'e', 'm', 0)", &[]).await;
    assert!(plain.is_err(), "the default is off now");
    let store = PostgresStore::open(options(database.url())).await.unwrap();
    store.write(&shop(), record(&["m"])).await.unwrap();
}
