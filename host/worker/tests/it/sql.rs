//! SQL of runs in the worker: it commits with the run, once, or has no effect (mode `transaction`, P35).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use sprag_core::{
    action::ActionKind,
    outcome::{Outcome, kind},
    run::{End, UnitOfWork},
    sql::{Rows, Statement, StatementError, Value},
};
use sprag_runtime::RunInput;

use crate::world::{Bench, ENDPOINT, Setup, World, fails, until};

async fn statement(input: &RunInput, text: &str, time: Duration) -> Result<Rows, StatementError> {
    let sql = input.sql.as_ref().expect("the endpoint has SQL");
    assert_eq!(sql.database(), "embedded");
    let statement = Statement { text: text.to_owned(), parameters: vec![], max_rows: 10, max_bytes: 1_000, time };
    sql.statement(statement).await
}

const TIME: Duration = Duration::from_secs(10);

async fn count_up(input: &RunInput) {
    for text in ["CREATE TABLE IF NOT EXISTS counter_of_test (n integer)", "INSERT INTO counter_of_test VALUES (1)"] {
        statement(input, text, TIME).await.expect("it is carried out");
    }
}

/// How often `count_up` took effect.
async fn counted(world: &World) -> i64 {
    let sql = world.store.sql().expect("the engine has SQL");
    let id = sql.begin(&ENDPOINT.into()).await.expect("a transaction begins");
    let statement = Statement {
        text: "SELECT count(*) FROM counter_of_test".to_owned(),
        parameters: vec![],
        max_rows: 1,
        max_bytes: 1_000,
        time: TIME,
    };
    let rows = sql.statement(id, statement).await;
    sql.roll_back(id);
    match rows {
        Ok(rows) => match rows.rows[0][0] {
            Value::Integer(count) => count,
            ref other => panic!("{other:?}"),
        },
        Err(StatementError::Failed { .. }) => 0,
        Err(error) => panic!("{error}"),
    }
}

/// Runs that end in every other way leave nothing; the one that is done counts once, and a second copy not at all.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_run_that_is_done_takes_effect() {
    let world = World::start_with(Bench::Embedded, Setup::default(), |input, number| async move {
        count_up(&input).await;
        let end = match (input.event_id.as_str(), number) {
            ("E1", 1) => End::transient("not now"),
            ("E1", 2) => fails("no"),
            ("E2", _) => End::Discard { reason: "not ours".into() },
            _ => End::Done,
        };
        (end, UnitOfWork::default())
    })
    .await;
    world.send_events("s", &["E1"]).await;
    world.until_outcome("E1", Outcome::Failed).await;
    world.send_events("t", &["E2"]).await;
    world.until_outcome("E2", Outcome::Skipped).await;
    assert_eq!(counted(&world).await, 0);
    world.act_and_wait(ActionKind::Resubmit, "E1").await;
    world.until_outcome("E1", Outcome::Completed).await;
    assert_eq!(counted(&world).await, 1);
    world.send_events("s", &["E1"]).await;
    until("a duplicate", async || world.count(|counters| &counters.duplicates) == 1).await;
    assert_eq!(counted(&world).await, 1);
    world.end().await;
}

/// The decision counts more than who is told of it: a resolver that is not there costs the run nothing, and its SQL commits.
#[tokio::test(flavor = "multi_thread")]
async fn a_resolver_that_is_gone_costs_the_run_nothing() {
    let setup = Setup { resolver: Some("nowhere"), ..Setup::default() };
    let world = World::start_with(Bench::Embedded, setup, |input, _| async move {
        count_up(&input).await;
        (End::Done, UnitOfWork::default())
    })
    .await;
    world.send_events("s", &["E1"]).await;
    world.until_outcome("E1", Outcome::Completed).await;
    assert_eq!(counted(&world).await, 1);
    world.end().await;
}

/// P36: a run that holds the engine for longer than its time fails, and what others commit does not wait for it any longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_holds_the_engine_too_long_fails() {
    let world = World::start_with(Bench::Embedded, Setup::default(), |input, _| async move {
        if input.event_id.as_str() == "E1" {
            let text = "CREATE TABLE counter_of_test (n integer)";
            statement(&input, text, Duration::from_millis(20)).await.expect("it is carried out");
            // Until the engine has taken itself back, which the next statement hears.
            while statement(&input, "SELECT count(*) FROM counter_of_test", TIME).await.is_ok() {}
        }
        (End::Done, UnitOfWork::default())
    })
    .await;
    world.send_events("s", &["E1"]).await;
    world.send_events("t", &["E2"]).await;
    world.until_outcome("E2", Outcome::Completed).await;
    world.until_outcome("E1", Outcome::Failed).await;
    let error = world.row("E1").await.expect("it is known").outcome.error.expect("an error");
    assert_eq!(error.kind, kind::COMPONENT_ERROR, "{}", error.text);
    assert!(error.text.contains("over") || error.text.contains("sql_time"), "{}", error.text);
    assert_eq!(counted(&world).await, 0);
    world.end().await;
}

/// A run whose statements were lost with the group that they were in is repeated under the same lock (P4): the first run meets a rollback by SQLite,
/// which ends the transaction, and fails by its time; a resubmission counts once.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_rolled_back_can_be_done_again() {
    let endless = Arc::new(AtomicBool::new(true));
    let world = World::start_with(Bench::Embedded, Setup::default(), {
        move |input, _| {
            let endless = Arc::clone(&endless);
            async move {
                count_up(&input).await;
                if endless.swap(false, SeqCst) {
                    let text = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) INSERT INTO counter_of_test SELECT i FROM n";
                    let stopped = statement(&input, text, TIME).await;
                    assert!(stopped.is_err(), "{stopped:?}");
                }
                (End::Done, UnitOfWork::default())
            }
        }
    })
    .await;
    world.send_events("s", &["E1"]).await;
    world.until_outcome("E1", Outcome::Failed).await;
    assert_eq!(counted(&world).await, 0);
    world.act_and_wait(ActionKind::Resubmit, "E1").await;
    world.until_outcome("E1", Outcome::Completed).await;
    assert_eq!(counted(&world).await, 1);
    world.end().await;
}
