//! Endpoints without sessions: nothing waits for anything.

use std::sync::Arc;

use sprag_core::{
    action::{ActionKind, ActionState},
    message::Body,
    outcome::Outcome,
    run::{End, UnitOfWork},
};
use sprag_transport::Part;
use tokio::sync::Barrier;

use crate::world::{Bench, Setup, World, event, fails, on_every_bench, retries, until};

on_every_bench! {
    messages_run_side_by_side
    a_failure_is_retried_and_then_buried_with_its_body
    a_failure_without_a_policy_is_buried_at_once
    a_handoff_is_settled_by_an_action
    a_transient_end_is_delivered_again
}

fn plain() -> Setup {
    Setup { sessions: false, ..Setup::default() }
}

async fn send(world: &World, events: &[&str]) {
    world.send(events.iter().map(|id| event("", id)).collect()).await;
}

/// Spec 3: as many at once as the endpoint may, each waits at the barrier for the others.
async fn messages_run_side_by_side(bench: Bench) {
    let together = Arc::new(Barrier::new(8));
    let world = World::start_with(bench, plain(), move |_, _| {
        let together = Arc::clone(&together);
        async move {
            together.wait().await;
            (End::Done, UnitOfWork::default())
        }
    })
    .await;
    let names: Vec<String> = (0..16).map(|number| format!("E{number}")).collect();
    let events: Vec<&str> = names.iter().map(String::as_str).collect();
    send(&world, &events).await;
    world.until_outcomes(&events, Outcome::Completed).await;
    send(&world, &["E0"]).await;
    until("a duplicate", async || world.count(|counters| &counters.duplicates) == 1).await;
    world.until_idle().await;
    assert_eq!(world.script.began().len(), 16);
    world.end().await;
}

/// P26: attempts used up, the event goes to the dead letters; its body is kept, so that it can be resubmitted. Others are not held up.
async fn a_failure_is_retried_and_then_buried_with_its_body(bench: Bench) {
    let setup = Setup { retry: retries(3), ..plain() };
    let world = World::start(bench, setup, |input, number| {
        if input.event_id.as_str() == "E1" && number <= 3 {
            return fails("no");
        }
        if input.event_id.as_str() == "E1" {
            assert_eq!(input.message.body, Body::Data(b"body of E1"[..].into()));
        }
        End::Done
    })
    .await;
    send(&world, &["E1", "E2"]).await;
    world.until_outcome("E2", Outcome::Completed).await;
    world.until_outcome("E1", Outcome::DeadLettered).await;
    assert_eq!(world.script.attempts("E1"), [1, 2, 3]);
    let dead = world.peek("orders", Part::DeadLetters).await;
    assert_eq!((dead.len(), dead[0].dead_letter_reason.as_deref()), (1, Some("boom")));
    assert_eq!(dead[0].message.body, Body::Data(b"body of E1"[..].into()));
    assert!(world.row("E1").await.expect("it is known").has_message, "it is kept for a resubmission");
    world.act_and_wait(ActionKind::Resubmit, "E1").await;
    world.until_outcome("E1", Outcome::Completed).await;
    assert_eq!(world.script.attempts("E1"), [1, 2, 3, 4]);
    world.end().await;
}

/// P26.
async fn a_failure_without_a_policy_is_buried_at_once(bench: Bench) {
    let world = World::start(bench, plain(), |_, _| fails("no")).await;
    send(&world, &["E1"]).await;
    world.until_outcome("E1", Outcome::DeadLettered).await;
    world.until_idle().await;
    assert_eq!(world.peek("orders", Part::DeadLetters).await.len(), 1);
    assert_eq!(world.script.runs_of("E1"), 1);
    world.end().await;
}

/// P26: a handoff is an outcome only; it is settled by an action, which makes it final.
async fn a_handoff_is_settled_by_an_action(bench: Bench) {
    let world = World::start(bench, plain(), |_, _| End::Handoff {
        reason: "job".into(),
        external_id: None,
        expected_by: None,
    })
    .await;
    send(&world, &["E1", "E2"]).await;
    world.until_outcomes(&["E1", "E2"], Outcome::Handoff).await;
    assert!(matches!(world.act_and_wait(ActionKind::HandoffComplete, "E1").await, ActionState::Applied { .. }));
    assert!(matches!(world.act_and_wait(ActionKind::HandoffFail, "E2").await, ActionState::Applied { .. }));
    assert_eq!(world.outcome("E1").await, Some(Outcome::Completed));
    assert_eq!(world.outcome("E2").await, Some(Outcome::Failed));
    send(&world, &["E1"]).await;
    until("a duplicate", async || world.count(|counters| &counters.duplicates) == 1).await;
    assert_eq!(world.script.runs_of("E1"), 1);
    world.until_idle().await;
    world.end().await;
}

/// Spec 3: given back after a back-off, decided by its next run.
async fn a_transient_end_is_delivered_again(bench: Bench) {
    let world =
        World::start(bench, plain(), |_, number| if number < 3 { End::transient("not now") } else { End::Done }).await;
    send(&world, &["E1"]).await;
    world.until_outcome("E1", Outcome::Completed).await;
    assert_eq!(world.script.runs_of("E1"), 3);
    world.until_idle().await;
    world.end().await;
}
