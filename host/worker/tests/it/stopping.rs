//! A stop lets what runs finish, a kill loses nothing, and a run whose lock was lost changes nothing.

use std::{sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use sprag_core::{
    effect::HistoryKind,
    outcome::Outcome,
    run::{End, StateWrite, UnitOfWork},
};

use crate::world::{Bench, ENDPOINT, Gate, SOURCE, Setup, World, event, fails, on_every_bench, retries, until};

on_every_bench! {
    a_stop_lets_what_runs_finish
    what_takes_longer_than_the_grace_period_is_named
    a_kill_in_the_middle_of_a_run_runs_it_again
}

/// Runs of E1 wait at the gate, up to the given one.
async fn gated(bench: Bench, setup: Setup, up_to: u32) -> (World, Gate) {
    let gate = Gate::new();
    let at = gate.clone();
    let world = World::start_with(bench, setup, move |input, number| {
        let at = at.clone();
        async move {
            if input.event_id.as_str() == "E1" && number <= up_to {
                at.pass().await;
            }
            let write = StateWrite { key: input.event_id.to_string(), value: Some(Bytes::from(number.to_string())) };
            (End::Done, UnitOfWork { writes: vec![write], ..UnitOfWork::default() })
        }
    })
    .await;
    (world, gate)
}

async fn value(world: &World, key: &str) -> Option<Bytes> {
    world.store.state_get(&ENDPOINT.into(), key).await.expect("the store answers").map(|found| found.value)
}

async fn completed_runs(world: &World, event: &str) -> usize {
    let history = world.history(event).await;
    history.iter().filter(|line| line.kind == HistoryKind::Run && line.outcome == Some(Outcome::Completed)).count()
}

/// A09, A10: told to stop in the middle of a run, the host finishes it, records it and settles it, takes nothing new, and the next host does
/// not run it again.
async fn a_stop_lets_what_runs_finish(bench: Bench) {
    let (world, gate) = gated(bench, Setup::default(), 1).await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_began("E1", 1).await;
    world.tell_stop();
    gate.open();
    assert!(world.stop().await.is_empty(), "nothing is left");
    assert_eq!(world.outcome("E1").await, Some(Outcome::Completed));
    assert!(world.is_recorded("m-E1").await);
    assert_eq!(world.script.began(), ["E1"], "nothing new is taken");
    assert!(world.sessions().await.iter().all(|session| !session.locked), "the session was given back");
    world.go().await;
    world.until_outcome("E2", Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "E2"]);
    world.until_idle().await;
    world.end().await;
}

/// A70: a handler that does not end does not hold up the exit for longer than the grace period, and is named; its message comes again.
async fn what_takes_longer_than_the_grace_period_is_named(bench: Bench) {
    let setup = Setup { lock: Duration::from_secs(1), ..Setup::default() };
    let (world, gate) = gated(bench, setup, 1).await;
    world.send_events("s", &["E1"]).await;
    world.until_began("E1", 1).await;
    let left = world.stop().await;
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!((left[0].event_id.as_str(), left[0].endpoint.as_str()), ("E1", ENDPOINT));
    assert_eq!(left[0].session.as_ref().map(|session| session.as_str()), Some("s"));
    gate.open();
    world.go().await;
    world.until_outcome("E1", Outcome::Completed).await;
    assert_eq!(completed_runs(&world, "E1").await, 1);
    assert_eq!(world.script.runs_of("E1"), 2);
    world.end().await;
}

/// P1, P23: nothing of a run that was cut off is there; it runs again, and what came behind it after it.
async fn a_kill_in_the_middle_of_a_run_runs_it_again(bench: Bench) {
    let setup = Setup { lock: Duration::from_secs(1), ..Setup::default() };
    let (world, gate) = gated(bench, setup, 1).await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_began("E1", 1).await;
    world.kill().await;
    assert_eq!(world.outcome("E1").await, None);
    gate.open();
    world.go().await;
    world.until_outcomes(&["E1", "E2"], Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "E1", "E2"]);
    assert_eq!(value(&world, "E1").await, Some(Bytes::from("2")));
    assert!(world.history_kinds("E1").await.contains(&HistoryKind::Transient), "the cut-off run is shown");
    world.end().await;
}

/// A07, A13: the session is taken away in the middle of a run, which nobody tells the host, and served again. The first run's end comes late:
/// its work is dropped, the second one's stays, and nothing goes on under the lost lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_session_was_lost_changes_nothing() {
    let (world, gate) = gated(Bench::Memory, Setup::default(), 1).await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_began("E1", 1).await;
    world.memory().transport.lose_session(&SOURCE.into(), &"s".into());
    world.until_outcomes(&["E1", "E2"], Outcome::Completed).await;
    gate.open();
    until("the first run's commit fails", async || world.commits.failures.load(Ordering::SeqCst) > 0).await;
    assert_eq!(value(&world, "E1").await, Some(Bytes::from("2")), "the second run's work stays");
    assert_eq!(world.outcome("E1").await, Some(Outcome::Completed));
    assert_eq!(world.script.began(), ["E1", "E1", "E2"]);
    world.until_idle().await;
    assert_eq!(world.raw_state("s").await, None);
    world.end().await;
}

/// The same where there is no session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_message_was_lost_changes_nothing() {
    let setup = Setup { sessions: false, ..Setup::default() };
    let (world, gate) = gated(Bench::Memory, setup, 1).await;
    world.send(vec![event("", "E1")]).await;
    world.until_began("E1", 1).await;
    world.memory().transport.lose_all();
    world.until_outcome("E1", Outcome::Completed).await;
    gate.open();
    until("the first run finds its lock lost", async || world.count(|counters| &counters.lock_lost) > 0).await;
    assert_eq!(value(&world, "E1").await, Some(Bytes::from("2")));
    assert_eq!(completed_runs(&world, "E1").await, 1);
    world.until_idle().await;
    world.end().await;
}

/// P5, P9: the second holder saw the event fail and waits for its retry; then the first one's success comes late. The retry does not run what is
/// recorded; it lets the session go on.
#[tokio::test(start_paused = true)]
async fn a_success_that_comes_after_its_session_was_lost_is_not_run_again() {
    let gate = Gate::new();
    let at = gate.clone();
    let mut setup = Setup { retry: retries(3), ..Setup::default() };
    setup.retry.as_mut().expect("a policy").schedule.base = Duration::from_secs(600);
    let world = World::start_with(Bench::Memory, setup, move |input, number| {
        let at = at.clone();
        async move {
            let end = match (input.event_id.as_str(), number) {
                ("E1", 1) => {
                    at.pass().await;
                    End::Done
                }
                ("E1", 2) => fails("no"),
                _ => End::Done,
            };
            (end, UnitOfWork::default())
        }
    })
    .await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_began("E1", 1).await;
    world.memory().transport.lose_session(&SOURCE.into(), &"s".into());
    world.until_outcome("E2", Outcome::Deferred).await;
    gate.open();
    world.until_outcome("E1", Outcome::Completed).await;
    tokio::time::sleep(Duration::from_secs(700)).await;
    world.until_outcome("E2", Outcome::Completed).await;
    world.until_idle().await;
    assert_eq!(world.script.began(), ["E1", "E1", "E2"]);
    assert_eq!(world.raw_state("s").await, None);
    world.end().await;
}
