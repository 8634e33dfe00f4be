//! The suite for SQL of runs on PostgreSQL, and what only this database has.

use std::{sync::Arc, time::Duration};

use sprag_core::sql::{Statement, StatementError, Value};
use sprag_databases::{
    postgres::{OpenError, Options, PostgresStore},
    test_server::{Database, fresh_database},
};
use sprag_store::{Error, Sql as _, Store as _, Written, conformance::sample};

use crate::support::options;

/// A role for handlers, and their tables.
async fn prepare(database: &Database) -> String {
    let role = database.role().await;
    let sql = format!(
        "CREATE TABLE account (name text PRIMARY KEY, balance bigint NOT NULL CHECK (balance >= 0));
         INSERT INTO account VALUES ('ada', 100), ('bob', 0);
         CREATE TABLE note (id bigint PRIMARY KEY, text text, at bytea);
         GRANT ALL ON account, note TO {role};"
    );
    database.client().await.batch_execute(&sql).await.expect("roles and tables can be made");
    role
}

async fn fresh() -> (Arc<PostgresStore>, Database) {
    let database = fresh_database().await;
    let role = prepare(&database).await;
    let options = Options { sql_role: Some(role), ..options(database.url()) };
    (Arc::new(PostgresStore::open(options).await.expect("the store opens")), database)
}

sprag_store::sql_conformance!(fresh, flavor = "multi_thread");

fn statement(text: &str, parameters: Vec<Value>) -> Statement {
    let time = Duration::from_secs(10);
    Statement { text: text.to_owned(), parameters, max_rows: 1_000, max_bytes: 1 << 20, time }
}

/// Every type that has a counterpart, there and back.
#[tokio::test]
async fn types_have_their_counterparts() {
    let (store, _database) = fresh().await;
    let id = store.begin(&sample::endpoint()).await.unwrap();
    let text = "SELECT true, 1::int2, 2::int4, 3::int8, 1.5::float4, 2.5::float8, $1::numeric, $2::timestamptz, $3::timestamp, '2026-02-28'::date, \
                $4::uuid, $5::jsonb, $6::json, 'c'::char(1), NULL::int, -0.00012::numeric, 123456789012345678901234567890.5::numeric, 10000::numeric";
    let uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8".to_owned();
    let time = 1_796_000_461_007_123;
    let parameters = vec![
        Value::Decimal("-12.50".to_owned()),
        Value::Timestamp(time),
        Value::Timestamp(-1),
        Value::Uuid(uuid.clone()),
        Value::Json("{\"a\": 1}".to_owned()),
        Value::Json("[ ]".to_owned()),
    ];
    let rows = store.statement(id, statement(text, parameters)).await.unwrap();
    let decimal = |text: &str| Value::Decimal(text.to_owned());
    assert_eq!(
        rows.rows[0],
        [
            Value::Boolean(true),
            Value::Integer(1),
            Value::Integer(2),
            Value::Integer(3),
            Value::Float(1.5),
            Value::Float(2.5),
            decimal("-12.50"),
            Value::Timestamp(time),
            Value::Timestamp(-1),
            Value::Text("2026-02-28".to_owned()),
            Value::Uuid(uuid),
            Value::Json("{\"a\": 1}".to_owned()),
            Value::Json("[ ]".to_owned()),
            Value::Text("c".to_owned()),
            Value::Null,
            decimal("-0.00012"),
            decimal("123456789012345678901234567890.5"),
            decimal("10000"),
        ]
    );
    let refused = store.statement(id, statement("SELECT ARRAY[1, 2] AS many", vec![])).await;
    assert!(matches!(&refused, Err(StatementError::Refused(text)) if text.contains("many")), "{refused:?}");
    store.roll_back(id);
}

/// P37: whoever gets past the words is stopped by the rights, and by a look at who it is.
#[tokio::test]
async fn the_role_is_not_left() {
    let (store, database) = fresh().await;
    let leave = "CREATE FUNCTION leave() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RESET ROLE; RETURN 'x'; END $$";
    database.client().await.batch_execute(leave).await.unwrap();
    let id = store.begin(&sample::endpoint()).await.unwrap();
    let who = store.statement(id, statement("SELECT current_user::text", vec![])).await.unwrap();
    assert!(matches!(&who.rows[0][0], Value::Text(role) if role.ends_with("_handlers")), "{who:?}");
    for text in ["SELECT set_config('role', 'none', true)", "RESET ROLE", "DO $$ BEGIN NULL; END $$"] {
        assert!(
            matches!(store.statement(id, statement(text, vec![])).await, Err(StatementError::Refused(_))),
            "{text}"
        );
    }
    let left = store.statement(id, statement("SELECT leave()", vec![])).await;
    assert!(left.is_err(), "{left:?}");
    let after = store.statement(id, statement("SELECT count(*) FROM sprag_inbox", vec![])).await;
    assert!(after.is_err(), "{after:?}");
    store.roll_back(id);
}

/// A52: a deferred constraint that the commit breaks is the run's failure, not an outage.
#[tokio::test]
async fn a_rule_that_the_commit_breaks() {
    let (store, database) = fresh().await;
    let deferred = "ALTER TABLE note ADD CONSTRAINT named FOREIGN KEY (text) REFERENCES account (name) DEFERRABLE INITIALLY DEFERRED";
    database.client().await.batch_execute(deferred).await.unwrap();
    let id = store.begin(&sample::endpoint()).await.unwrap();
    store.statement(id, statement("INSERT INTO note (id, text) VALUES (1, 'nobody')", vec![])).await.unwrap();
    let mut write = sample::record(&["m"]);
    write.unit.transaction = Some(id);
    let written = store.write(&sample::endpoint(), write).await;
    assert!(matches!(written, Err(Error::Refused(_))), "{written:?}");
    let store: Arc<dyn sprag_store::Store> = store;
    assert!(!sample::ask(&store, &sample::endpoint(), "m", None).await.own_recorded);
}

/// P4: a deadlock of two runs ends one of them as a conflict, which is repeated.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_a_conflict() {
    let (store, _database) = fresh().await;
    let (a, b) = (store.begin(&sample::endpoint()).await.unwrap(), store.begin(&sample::endpoint()).await.unwrap());
    let touch = |id, name: &'static str| {
        let store = Arc::clone(&store);
        let text = "UPDATE account SET balance = balance + 1 WHERE name = $1";
        async move { store.statement(id, statement(text, vec![Value::Text(name.to_owned())])).await }
    };
    touch(a, "ada").await.unwrap();
    touch(b, "bob").await.unwrap();
    let (first, second) = tokio::join!(touch(a, "bob"), touch(b, "ada"));
    let lost = [(a, &first), (b, &second)].into_iter().find(|(_, result)| **result == Err(StatementError::Conflict));
    let (lost, _) = lost.unwrap_or_else(|| panic!("{first:?} {second:?}"));
    let mut write = sample::record(&["m"]);
    write.unit.transaction = Some(lost);
    let written = store.write(&sample::endpoint(), write.clone()).await;
    assert!(matches!(written, Err(Error::StateConflict)), "{written:?}");
    write.unit.transaction = Some(if lost == a { b } else { a });
    assert_eq!(store.write(&sample::endpoint(), write).await.unwrap(), Written::Done);
}

/// P4: a run that waits for another's lock until its time is over is repeated; it has not failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_waited_for_too_long_is_a_conflict() {
    let (store, _database) = fresh().await;
    let (a, b) = (store.begin(&sample::endpoint()).await.unwrap(), store.begin(&sample::endpoint()).await.unwrap());
    let touch =
        |time| Statement { time, ..statement("UPDATE account SET balance = balance + 1 WHERE name = 'ada'", vec![]) };
    store.statement(a, touch(Duration::from_secs(10))).await.unwrap();
    let waited = store.statement(b, touch(Duration::from_millis(200))).await;
    assert_eq!(waited, Err(StatementError::Conflict));
    let mut write = sample::record(&["m"]);
    write.unit.transaction = Some(b);
    assert!(matches!(store.write(&sample::endpoint(), write.clone()).await, Err(Error::StateConflict)));
    write.unit.transaction = Some(a);
    assert_eq!(store.write(&sample::endpoint(), write).await.unwrap(), Written::Done);
}

/// A role that could reach the host's tables is refused when the store is opened.
#[tokio::test]
async fn a_role_with_rights_on_the_hosts_tables_is_refused() {
    let database = fresh_database().await;
    let role = prepare(&database).await;
    let open = |role: &str| PostgresStore::open(Options { sql_role: Some(role.to_owned()), ..options(database.url()) });
    open(&role).await.expect("the role is as it must be");
    for role in ["nobody_of_that_name", "postgres"] {
        let refused = open(role).await;
        assert!(matches!(refused, Err(OpenError::Role { .. })), "{role}: {refused:?}");
    }
    database.client().await.batch_execute(&format!("GRANT SELECT ON sprag_inbox TO {role}")).await.unwrap();
    let refused = open(&role).await;
    assert!(matches!(&refused, Err(OpenError::Role { problem, .. }) if problem.contains("sprag_inbox")), "{refused:?}");
    let without = PostgresStore::open(options(database.url())).await.expect("without SQL it opens");
    assert!(without.sql().is_none());
}
