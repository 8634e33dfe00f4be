//! Ends that let a session go on, and deliveries that nobody may run.

use std::{sync::atomic::Ordering, time::Duration};

use sprag_core::{
    action::ActionKind,
    outcome::{Outcome, kind},
    run::{End, UnitOfWork},
};
use sprag_transport::Part;

use crate::world::{Bench, Gate, Setup, World, event_of, on_every_bench, retries, until};

on_every_bench! {
    a_discard_skips_and_blocks_nothing
    a_dead_letter_blocks_nothing_and_can_be_resubmitted
    a_type_that_nobody_takes_blocks_nothing
    an_endpoint_that_is_not_ready_takes_nothing
    a_handler_that_goes_away_loses_nothing
    the_last_permitted_delivery_fails_and_blocks
    runs_that_end_with_the_process_are_counted
}

/// P2, P10: a discarded event is skipped, with its reason; it is final.
async fn a_discard_skips_and_blocks_nothing(bench: Bench) {
    let world = World::start(bench, Setup::default(), |input, _| match input.event_id.as_str() {
        "E1" => End::Discard { reason: "not ours".into() },
        _ => End::Done,
    })
    .await;
    world.send_events("s", &["E1", "E2", "E1"]).await;
    world.until_outcome("E2", Outcome::Completed).await;
    until("a duplicate", async || world.count(|counters| &counters.duplicates) == 1).await;
    let row = world.row("E1").await.expect("it is known").outcome;
    assert_eq!((row.outcome, row.reason.as_deref()), (Outcome::Skipped, Some("not ours")));
    assert_eq!(world.script.began(), ["E1", "E2"]);
    world.until_idle().await;
    assert_eq!(world.raw_state("s").await, None);
    world.end().await;
}

/// P10, P13: a dead letter goes to the transport's dead letters, the session goes on, and the event can be run again from there.
async fn a_dead_letter_blocks_nothing_and_can_be_resubmitted(bench: Bench) {
    let world = World::start(bench, Setup::default(), |input, number| match input.event_id.as_str() {
        "E1" if number == 1 => End::DeadLetter { reason: "unreadable".into(), text: "byte 7".into() },
        _ => End::Done,
    })
    .await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_outcome("E2", Outcome::Completed).await;
    assert_eq!(world.outcome("E1").await, Some(Outcome::DeadLettered));
    let dead = world.peek("orders", Part::DeadLetters).await;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].dead_letter_reason.as_deref(), Some("unreadable"));
    assert_eq!(dead[0].dead_letter_description.as_deref(), Some("byte 7"));
    world.act_and_wait(ActionKind::Resubmit, "E1").await;
    world.until_outcome("E1", Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "E2", "E1"]);
    assert_eq!(world.script.attempts("E1"), [1, 2]);
    world.end().await;
}

/// P27: a type that no configured handler claims is unsupported, which blocks nothing; once there is a handler it can be resubmitted.
async fn a_type_that_nobody_takes_blocks_nothing(bench: Bench) {
    let world = World::build(bench, Setup::default(), |_, _| async { (End::Done, UnitOfWork::default()) }).await;
    world.script.claim("Odd", false);
    world.go().await;
    world.send(vec![event_of("s", "E1", "Odd"), event_of("s", "E2", "Order")]).await;
    world.until_outcome("E2", Outcome::Completed).await;
    assert_eq!(world.outcome("E1").await, Some(Outcome::Unsupported));
    world.script.claim("Odd", true);
    world.act_and_wait(ActionKind::Resubmit, "E1").await;
    world.until_outcome("E1", Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E2", "E1"]);
    world.until_idle().await;
    assert_eq!(world.raw_state("s").await, None);
    world.end().await;
}

/// P27: without its handlers an endpoint takes nothing: no delivery is counted, nothing is decided.
async fn an_endpoint_that_is_not_ready_takes_nothing(bench: Bench) {
    let setup = Setup { ready: false, ..Setup::default() };
    let world = World::start(bench, setup, |_, _| End::Done).await;
    world.send_events("s", &["E1"]).await;
    until("the endpoint asks", async || world.script.refusals.load(Ordering::SeqCst) > 0).await;
    // A change that leaves it unready: it has looked again when it asks again.
    let before = world.script.refusals.load(Ordering::SeqCst);
    world.script.set_ready(false);
    until("the endpoint asks again", async || world.script.refusals.load(Ordering::SeqCst) > before).await;
    let waiting = world.peek("orders", Part::Active).await;
    assert_eq!((waiting.len(), waiting[0].delivery_count), (1, 0));
    assert_eq!(world.outcome("E1").await, None);
    world.script.set_ready(true);
    world.until_outcome("E1", Outcome::Completed).await;
    world.end().await;
}

/// P27: a handler that goes away while a session is served: what runs ends, what comes next waits and is not lost, and no delivery is burnt.
async fn a_handler_that_goes_away_loses_nothing(bench: Bench) {
    let gate = Gate::new();
    let at = gate.clone();
    let world = World::start_with(bench, Setup::default(), move |_, _| {
        let at = at.clone();
        async move {
            at.pass().await;
            (End::Done, UnitOfWork::default())
        }
    })
    .await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_began("E1", 1).await;
    world.script.set_ready(false);
    gate.open();
    world.until_outcome("E1", Outcome::Completed).await;
    until("E2 is given back", async || world.sessions().await.iter().all(|session| !session.locked)).await;
    let waiting = world.peek("orders", Part::Active).await;
    assert_eq!((waiting.len(), waiting[0].delivery_count), (1, 0), "given back as if it had not been handed over");
    world.script.set_ready(true);
    world.until_outcome("E2", Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "E2"]);
    world.end().await;
}

/// P22: given back once more, the broker would bury the message; it fails as `deliveries-exhausted` instead, and blocks.
async fn the_last_permitted_delivery_fails_and_blocks(bench: Bench) {
    let setup = Setup { deliveries: 3, ..Setup::default() };
    let world = World::start(bench, setup, |input, _| match input.event_id.as_str() {
        "E1" => End::transient("the database is down"),
        _ => End::Done,
    })
    .await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_outcome("E2", Outcome::Deferred).await;
    let row = world.row("E1").await.expect("it is known").outcome;
    let error = row.error.expect("an error");
    assert_eq!((row.outcome, error.kind.as_str()), (Outcome::Failed, kind::DELIVERIES_EXHAUSTED));
    assert!(error.text.contains("the database is down"), "{}", error.text);
    assert_eq!(world.script.began(), ["E1", "E1", "E1"]);
    assert!(world.peek("orders", Part::DeadLetters).await.is_empty());
    world.end().await;
}

/// P23: an event during whose runs the process ended three times fails as `host-ended` instead of a fourth run, is not retried by itself,
/// and blocks its own session only.
async fn runs_that_end_with_the_process_are_counted(bench: Bench) {
    let never = Gate::new();
    let at = never.clone();
    let setup = Setup { lock: Duration::from_secs(1), retry: retries(5), ..Setup::default() };
    let world = World::build(bench, setup, move |input, _| {
        let at = at.clone();
        async move {
            if input.event_id.as_str() == "E1" {
                at.pass().await;
            }
            (End::Done, UnitOfWork::default())
        }
    })
    .await;
    world.send_events("s", &["E1", "E2"]).await;
    for run in 1..=3 {
        world.go().await;
        world.until_began("E1", run).await;
        world.kill().await;
    }
    world.send_events("t", &["F1"]).await;
    world.go().await;
    world.until_outcome("F1", Outcome::Completed).await;
    world.until_outcome("E2", Outcome::Deferred).await;
    let row = world.row("E1").await.expect("it is known").outcome;
    assert_eq!((row.outcome, row.error.expect("an error").kind.as_str()), (Outcome::Failed, kind::HOST_ENDED));
    assert_eq!(world.script.runs_of("E1"), 3);
    // An operator may try again; the count was of the deliveries before.
    never.open();
    world.act_and_wait(ActionKind::Resubmit, "E1").await;
    world.until_outcomes(&["E1", "E2"], Outcome::Completed).await;
    world.end().await;
}
