//! The suite for SQL of runs, on the embedded engine, and what only this engine does.

use std::{sync::Arc, time::Duration};

use sprag_broker::{Engine, Options};
use sprag_core::sql::{Rows, Statement, StatementError, TransactionId, Value};
use sprag_store::{Error, Sql as _, Store as _, Written, conformance::sample};
use tempfile::TempDir;

async fn statement(engine: &Engine, id: TransactionId, text: &str, time: Duration) -> Result<Rows, StatementError> {
    let statement = Statement { text: text.to_owned(), parameters: vec![], max_rows: 1_000, max_bytes: 1 << 20, time };
    engine.statement(id, statement).await
}

const LONG: Duration = Duration::from_secs(10);

async fn commit(engine: &Engine, id: TransactionId, message: &str) -> Result<Written, Error> {
    let mut write = sample::record(&[message]);
    write.unit.transaction = Some(id);
    engine.write(&sample::endpoint(), write).await
}

/// Handlers make their tables themselves here.
async fn fresh() -> (Arc<Engine>, TempDir) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let engine = Engine::open(Options::new(dir.path())).expect("an empty folder opens");
    let id = engine.begin(&sample::endpoint()).await.expect("a transaction begins");
    for text in [
        "CREATE TABLE account (name text PRIMARY KEY, balance bigint NOT NULL CHECK (balance >= 0))",
        "INSERT INTO account VALUES ('ada', 100), ('bob', 0)",
        "CREATE TABLE note (id bigint PRIMARY KEY, text text, at blob)",
        "CREATE INDEX note_text ON note (text)",
        "CREATE VIEW rich AS SELECT name FROM account WHERE balance > 50",
    ] {
        statement(&engine, id, text, LONG).await.expect("it is carried out");
    }
    commit(&engine, id, "setup").await.expect("the tables are there");
    (Arc::new(engine), dir)
}

sprag_store::sql_conformance!(fresh, flavor = "multi_thread");

/// P37: what SQLite has beside tables.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_for_handlers() {
    let (engine, _dir) = fresh().await;
    let id = engine.begin(&sample::endpoint()).await.unwrap();
    for text in [
        "PRAGMA journal_mode = DELETE",
        "PRAGMA user_version",
        "ATTACH 'x.db' AS x",
        "VACUUM",
        "CREATE TRIGGER t AFTER INSERT ON note BEGIN DELETE FROM inbox; END",
        "CREATE TRIGGER t AFTER INSERT ON inbox BEGIN DELETE FROM note; END",
        "CREATE TABLE sprag_mine (a)",
        "CREATE TEMP TABLE t (a)",
        "DROP TABLE message",
        "ALTER TABLE outbox ADD COLUMN x",
        "CREATE INDEX i ON event (at)",
        "UPDATE sqlite_sequence SET seq = 0",
        "UPDATE sqlite_schema SET sql = ''",
        "SELECT load_extension('x')",
    ] {
        let refused = statement(&engine, id, text, LONG).await;
        assert!(
            matches!(refused, Err(StatementError::Refused(_) | StatementError::Failed { .. })),
            "{text}: {refused:?}"
        );
    }
    // The host's own statements still do.
    engine.roll_back(id);
    sample::write(&(engine.clone() as Arc<dyn sprag_store::Store>), sample::record(&["m"])).await;
}

/// P36: a run that holds the writer for longer than its time is rolled back; others wait that long, and no longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_takes_too_long_is_rolled_back() {
    let (engine, _dir) = fresh().await;
    let id = engine.begin(&sample::endpoint()).await.unwrap();
    let take = "UPDATE account SET balance = balance - 1 WHERE name = 'ada'";
    statement(&engine, id, take, Duration::from_millis(50)).await.unwrap();
    // Waits behind the run.
    let other = engine.write(&sample::endpoint(), sample::record(&["other"])).await;
    assert_eq!(other.unwrap(), Written::Done);
    let late = commit(&engine, id, "m").await;
    assert!(matches!(&late, Err(Error::Refused(text)) if text.contains("sql_time")), "{late:?}");
    let id = engine.begin(&sample::endpoint()).await.unwrap();
    let rows = statement(&engine, id, "SELECT balance FROM account WHERE name = 'ada'", LONG).await.unwrap();
    assert_eq!(rows.rows, [vec![Value::Integer(100)]]);
}

/// A statement that takes too long is stopped, and takes nobody's work with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_takes_too_long_is_stopped() {
    let (engine, _dir) = fresh().await;
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)";
    let id = engine.begin(&sample::endpoint()).await.unwrap();
    let read = statement(&engine, id, &format!("{endless} SELECT count(*) FROM n"), Duration::from_millis(50)).await;
    assert!(matches!(&read, Err(StatementError::Failed { code, .. }) if code == "SQLITE_INTERRUPT"), "{read:?}");
    let write = format!("{endless} INSERT INTO note (id) SELECT i FROM n");
    let endpoint = sample::endpoint();
    let (written, other) = tokio::join!(
        statement(&engine, id, &write, Duration::from_millis(50)),
        engine.write(&endpoint, sample::record(&["other"])),
    );
    assert!(matches!(written, Err(StatementError::Over(_))), "{written:?}");
    assert_eq!(other.unwrap(), Written::Done);
    assert!(matches!(commit(&engine, id, "m").await, Err(Error::Refused(_))));
    assert_eq!(engine.stats().closed, None);
}

/// What was committed is there after the next start.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_is_on_the_disk() {
    let (engine, dir) = fresh().await;
    let id = engine.begin(&sample::endpoint()).await.unwrap();
    statement(&engine, id, "INSERT INTO note (id, text) VALUES (1, 'kept')", LONG).await.unwrap();
    commit(&engine, id, "m").await.unwrap();
    engine.close().await;
    drop(engine);
    let engine = Engine::open(Options::new(dir.path())).unwrap();
    let id = engine.begin(&sample::endpoint()).await.unwrap();
    let rows = statement(&engine, id, "SELECT text FROM note", LONG).await.unwrap();
    assert_eq!(rows.rows, [vec![Value::Text("kept".to_owned())]]);
}
