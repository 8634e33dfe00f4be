//! SQL of runs: what the write of a run commits, and what nothing may get around (P35, P36, P37).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use sprag_core::{
    effect::StoreWrite,
    run::UnitOfWork,
    sql::{Rows, Statement, StatementError, TransactionId, Value},
};

use super::{Subject, sample};
use crate::{Error, Written};

fn statement(text: &str, parameters: Vec<Value>) -> Statement {
    let time = Duration::from_secs(10);
    Statement { text: text.to_owned(), parameters, max_rows: 1_000, max_bytes: 1 << 20, time }
}

async fn begin(store: &Subject) -> TransactionId {
    store.sql().expect("a store with SQL").begin(&sample::endpoint()).await.expect("a transaction begins")
}

async fn run(store: &Subject, id: TransactionId, text: &str, parameters: Vec<Value>) -> Result<Rows, StatementError> {
    store.sql().expect("a store with SQL").statement(id, statement(text, parameters)).await
}

const TAKE: &str = "UPDATE account SET balance = balance - $1 WHERE name = 'ada'";
const GIVE: &str = "UPDATE account SET balance = balance + $1 WHERE name = 'bob'";

async fn transfer(store: &Subject, id: TransactionId, amount: i64) {
    for text in [TAKE, GIVE] {
        assert_eq!(run(store, id, text, vec![Value::Integer(amount)]).await.expect("it is carried out").affected, 1);
    }
}

fn with_run(id: TransactionId, write: StoreWrite) -> StoreWrite {
    let unit = UnitOfWork { transaction: Some(id), ..write.unit };
    StoreWrite { unit, ..write }
}

async fn commit(store: &Subject, id: TransactionId, message: &str) -> Result<Written, Error> {
    store.write(&sample::endpoint(), with_run(id, sample::record(&[message]))).await
}

/// What both have, as a new transaction sees it.
async fn balances(store: &Subject) -> [i64; 2] {
    let id = begin(store).await;
    let rows = run(store, id, "SELECT balance FROM account ORDER BY name", vec![]).await.expect("a query");
    store.sql().expect("a store with SQL").roll_back(id);
    let number = |row: &Vec<Value>| match row[0] {
        Value::Integer(it) => it,
        ref other => panic!("{other:?}"),
    };
    [number(&rows.rows[0]), number(&rows.rows[1])]
}

pub async fn what_a_run_did_is_there_with_its_record(store: &Subject) {
    let id = begin(store).await;
    transfer(store, id, 30).await;
    assert_eq!(commit(store, id, "m").await.expect("it commits"), Written::Done);
    assert_eq!(balances(store).await, [70, 30]);
    assert!(sample::ask(store, &sample::endpoint(), "m", None).await.own_recorded);
}

pub async fn nobody_sees_it_before(store: &Subject) {
    let id = begin(store).await;
    transfer(store, id, 30).await;
    assert!(!sample::ask(store, &sample::endpoint(), "m", None).await.own_recorded);
    let own = run(store, id, "SELECT balance FROM account WHERE name = 'bob'", vec![]).await.expect("a query");
    assert_eq!((own.columns, own.rows), (vec!["balance".to_owned()], vec![vec![Value::Integer(30)]]));
    store.sql().expect("a store with SQL").roll_back(id);
    assert_eq!(balances(store).await, [100, 0]);
}

pub async fn a_rollback_leaves_nothing(store: &Subject) {
    let id = begin(store).await;
    transfer(store, id, 1).await;
    store.sql().expect("a store with SQL").roll_back(id);
    store.sql().expect("a store with SQL").roll_back(id);
    assert_eq!(balances(store).await, [100, 0]);
    assert!(matches!(commit(store, id, "m").await, Err(Error::Refused(_))));
    assert!(!sample::ask(store, &sample::endpoint(), "m", None).await.own_recorded);
}

/// P35: an existing record drops the unit of work, SQL among it; the rest of the write is there.
pub async fn a_recorded_delivery_drops_the_statements(store: &Subject) {
    sample::write(store, sample::record(&["m"])).await;
    let id = begin(store).await;
    transfer(store, id, 30).await;
    let mut write = with_run(id, sample::record(&["m"]));
    write.unit.writes = vec![sample::put("k", "v")];
    let written = store.write(&sample::endpoint(), write).await.expect("it is written");
    assert_eq!(written, Written::AlreadyDecided);
    assert_eq!(balances(store).await, [100, 0]);
    assert_eq!(store.state_get(&sample::endpoint(), "k").await.expect("a look"), None);
}

/// Seed 002: the unique key arbitrates between two copies at once; one commits, the other is a duplicate, neither fails. On a store that has one
/// transaction at a time the second begins when the first is over.
pub async fn two_copies_at_once_apply_once(store: &Subject) {
    let copy = |store: Subject| async move {
        let id = begin(&store).await;
        transfer(&store, id, 30).await;
        commit(&store, id, "m").await.expect("no copy fails")
    };
    let (first, second) = tokio::join!(copy(Arc::clone(store)), copy(Arc::clone(store)));
    let mut ends = [first, second];
    ends.sort_by_key(|end| *end == Written::AlreadyDecided);
    assert_eq!(ends, [Written::Done, Written::AlreadyDecided]);
    assert_eq!(balances(store).await, [70, 30]);
}

/// P4.
pub async fn a_state_conflict_drops_the_statements(store: &Subject) {
    let id = begin(store).await;
    transfer(store, id, 30).await;
    let mut write = with_run(id, sample::record(&["m"]));
    write.unit.reads = vec![sample::saw("k", sprag_core::run::Version(7))];
    let written = store.write(&sample::endpoint(), write).await;
    assert!(matches!(written, Err(Error::StateConflict)), "{written:?}");
    assert_eq!(balances(store).await, [100, 0]);
    assert!(!sample::ask(store, &sample::endpoint(), "m", None).await.own_recorded);
}

pub async fn a_failed_statement_changes_nothing_and_the_run_goes_on(store: &Subject) {
    let id = begin(store).await;
    transfer(store, id, 10).await;
    for (text, parameters) in [
        // A check, a unique key, a missing table, nonsense.
        (TAKE, vec![Value::Integer(1_000)]),
        ("INSERT INTO account (name, balance) VALUES ($1, 1)", vec![Value::Text("ada".to_owned())]),
        ("INSERT INTO nowhere VALUES (1)", vec![]),
        ("SELECT FROM WHERE", vec![]),
    ] {
        let failed = run(store, id, text, parameters).await;
        assert!(matches!(failed, Err(StatementError::Failed { .. })), "{text}: {failed:?}");
    }
    assert_eq!(commit(store, id, "m").await.expect("it commits"), Written::Done);
    assert_eq!(balances(store).await, [90, 10]);
}

pub async fn values_come_back_as_they_went(store: &Subject) {
    let id = begin(store).await;
    let insert = "INSERT INTO note (id, text, at) VALUES ($1, $2, $3)";
    let odd = "it's $1 \u{1F600} \"quoted\" -- no comment";
    let bytes = Value::Bytes(Bytes::from_static(b"\0\xff\\x"));
    for (id_of_note, text, at) in [
        (1, Value::Text(odd.to_owned()), bytes.clone()),
        (i64::MAX, Value::Null, Value::Null),
        (i64::MIN, Value::Text(String::new()), Value::Bytes(Bytes::new())),
    ] {
        run(store, id, insert, vec![Value::Integer(id_of_note), text, at]).await.expect("it is inserted");
    }
    let found = run(store, id, "SELECT id, text, at FROM note ORDER BY id DESC", vec![]).await.expect("a query");
    assert_eq!(found.columns, ["id", "text", "at"]);
    assert_eq!(
        found.rows,
        [
            vec![Value::Integer(i64::MAX), Value::Null, Value::Null],
            vec![Value::Integer(1), Value::Text(odd.to_owned()), bytes],
            vec![Value::Integer(i64::MIN), Value::Text(String::new()), Value::Bytes(Bytes::new())],
        ]
    );
    let twice = run(store, id, "SELECT count(*) FROM note WHERE id = $1 OR id = $1 + 1", vec![Value::Integer(1)]).await;
    assert_eq!(twice.expect("a query").rows, [vec![Value::Integer(1)]]);
    store.sql().expect("a store with SQL").roll_back(id);
}

pub async fn results_are_bounded(store: &Subject) {
    let id = begin(store).await;
    let sql = store.sql().expect("a store with SQL");
    for n in 0..5 {
        let values = vec![Value::Integer(n), Value::Text("x".repeat(100))];
        run(store, id, "INSERT INTO note (id, text) VALUES ($1, $2)", values).await.expect("it is inserted");
    }
    let all = statement("SELECT id, text FROM note", vec![]);
    let few = sql.statement(id, Statement { max_rows: 4, ..all.clone() }).await;
    assert!(matches!(few, Err(StatementError::TooMuch(_))), "{few:?}");
    let short = sql.statement(id, Statement { max_bytes: 400, ..all.clone() }).await;
    assert!(matches!(short, Err(StatementError::TooMuch(_))), "{short:?}");
    let exact = sql.statement(id, Statement { max_rows: 5, ..all }).await.expect("as many as allowed");
    assert_eq!(exact.rows.len(), 5);
    sql.roll_back(id);
}

pub async fn parameters_are_counted(store: &Subject) {
    let id = begin(store).await;
    for parameters in [vec![], vec![Value::Integer(1), Value::Integer(2)]] {
        let failed = run(store, id, TAKE, parameters).await;
        assert!(matches!(failed, Err(StatementError::Failed { .. })), "{failed:?}");
    }
    store.sql().expect("a store with SQL").roll_back(id);
}

pub async fn the_transaction_is_not_the_handlers_to_end(store: &Subject) {
    let id = begin(store).await;
    transfer(store, id, 10).await;
    for text in ["COMMIT", "rollback", "BEGIN", "SAVEPOINT s", "/* x */ END", "RELEASE run", "ROLLBACK TO run"] {
        let refused = run(store, id, text, vec![]).await;
        assert!(matches!(refused, Err(StatementError::Refused(_))), "{text}: {refused:?}");
    }
    store.sql().expect("a store with SQL").roll_back(id);
    assert_eq!(balances(store).await, [100, 0]);
}

/// P37, for the tables that every store with SQL has under one of these names.
pub async fn the_hosts_tables_are_out_of_reach(store: &Subject) {
    sample::write(store, sample::record(&["m"])).await;
    let id = begin(store).await;
    for table in ["inbox", "sprag_inbox", "outbox", "sprag_outbox", "state", "sprag_state"] {
        for text in [
            format!("SELECT * FROM {table}"),
            format!("DELETE FROM {table}"),
            format!("WITH x AS (SELECT * FROM {table}) SELECT count(*) FROM x"),
            format!("INSERT INTO note (id) SELECT count(*) FROM {table}"),
        ] {
            let refused = run(store, id, &text, vec![]).await;
            let is_refused = matches!(refused, Err(StatementError::Refused(_) | StatementError::Failed { .. }));
            assert!(is_refused, "{text}: {refused:?}");
        }
    }
    store.sql().expect("a store with SQL").roll_back(id);
    assert!(sample::ask(store, &sample::endpoint(), "m", None).await.own_recorded);
}

pub async fn one_statement_at_a_time(store: &Subject) {
    let id = begin(store).await;
    for text in ["SELECT 1; DELETE FROM account", "DELETE FROM note; DELETE FROM account"] {
        let refused = run(store, id, text, vec![]).await;
        let is_refused = matches!(refused, Err(StatementError::Refused(_) | StatementError::Failed { .. }));
        assert!(is_refused, "{text}: {refused:?}");
    }
    commit(store, id, "m").await.expect("it commits");
    assert_eq!(balances(store).await, [100, 0]);
}

pub async fn a_run_that_only_reads(store: &Subject) {
    let id = begin(store).await;
    run(store, id, "SELECT count(*) FROM account", vec![]).await.expect("a query");
    assert_eq!(commit(store, id, "m").await.expect("it commits"), Written::Done);
    assert!(sample::ask(store, &sample::endpoint(), "m", None).await.own_recorded);
}

pub async fn a_transaction_without_statements(store: &Subject) {
    let id = begin(store).await;
    assert_eq!(commit(store, id, "m").await.expect("it commits"), Written::Done);
    assert!(sample::ask(store, &sample::endpoint(), "m", None).await.own_recorded);
    assert_eq!(balances(store).await, [100, 0]);
}

pub async fn what_is_over_stays_over(store: &Subject) {
    let id = begin(store).await;
    transfer(store, id, 1).await;
    commit(store, id, "m").await.expect("it commits");
    assert!(matches!(commit(store, id, "n").await, Err(Error::Refused(_))));
    let late = run(store, id, TAKE, vec![Value::Integer(1)]).await;
    assert!(matches!(late, Err(StatementError::Over(_))), "{late:?}");
    assert_eq!(balances(store).await, [99, 1]);
}

/// A run that is stopped in a statement: what it did is gone, and nothing stays locked (A31).
pub async fn a_dropped_caller_leaves_no_lock(store: &Subject) {
    let id = begin(store).await;
    {
        let statement = run(store, id, TAKE, vec![Value::Integer(5)]);
        let mut statement = std::pin::pin!(statement);
        // Begun, and left.
        std::future::poll_fn(|context| {
            let _ = statement.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
    }
    store.sql().expect("a store with SQL").roll_back(id);
    let next = begin(store).await;
    transfer(store, next, 10).await;
    commit(store, next, "m").await.expect("it commits");
    assert_eq!(balances(store).await, [90, 10]);
}
