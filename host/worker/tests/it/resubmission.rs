//! An operator runs an event again: as often as needed, and under its session's order.

use std::time::Duration;

use sprag_core::{
    action::ActionKind,
    operations,
    outcome::Outcome,
    run::End,
    session_state::{Block, BlockKind, SessionState},
    time::Timestamp,
};

use crate::world::{Bench, SOURCE, Setup, World, fails, on_every_bench, retries, until};

on_every_bench! {
    an_event_can_be_resubmitted_until_it_succeeds
    a_resubmission_waits_behind_another_block
    a_failed_resubmission_is_retried_like_a_first_run
    what_is_done_cannot_be_resubmitted
    of_two_actions_one_wins
    a_repeated_request_is_answered_like_the_first
    a_completed_event_that_still_blocks_can_be_skipped
}

/// A35, A36, P11, P13: three resubmissions fail, each is accepted, the fourth succeeds; then the event is completed, its attempts have only
/// risen, and what waited behind it runs.
async fn an_event_can_be_resubmitted_until_it_succeeds(bench: Bench) {
    let world = World::start(bench, Setup::default(), |input, number| {
        if input.event_id.as_str() == "E1" && number <= 4 { fails("still no") } else { End::Done }
    })
    .await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_outcome("E2", Outcome::Deferred).await;
    for attempt in 2..=4 {
        world.act_and_wait(ActionKind::Resubmit, "E1").await;
        let row = world.row("E1").await.expect("it is known").outcome;
        assert_eq!((row.outcome, row.attempts), (Outcome::Failed, attempt));
        assert_eq!(world.state("s").await.block.expect("it blocks").attempt, attempt);
    }
    world.act_and_wait(ActionKind::Resubmit, "E1").await;
    world.until_outcomes(&["E1", "E2"], Outcome::Completed).await;
    assert_eq!(world.script.attempts("E1"), [1, 2, 3, 4, 5]);
    assert_eq!(world.script.began().last().map(String::as_str), Some("E2"));
    world.until_idle().await;
    assert_eq!(world.raw_state("s").await, None);
    // A25: the original, delivered again, is a duplicate.
    assert!(world.is_recorded("m-E1").await);
    world.end().await;
}

/// P13: an event that blocks nothing (dead-lettered) is resubmitted while another one blocks: it is parked, and runs in its turn.
async fn a_resubmission_waits_behind_another_block(bench: Bench) {
    let world = World::start(bench, Setup::default(), |input, number| match input.event_id.as_str() {
        "E1" if number == 1 => End::DeadLetter { reason: "no".into(), text: String::new() },
        "E2" => fails("no"),
        _ => End::Done,
    })
    .await;
    world.send_events("s", &["E1", "E2", "E3"]).await;
    world.until_outcome("E3", Outcome::Deferred).await;
    let action = world.act(ActionKind::Resubmit, "E1").await.expect("it is accepted");
    until("the resubmission is parked", async || world.state("s").await.parked == 2).await;
    assert_eq!(world.script.began(), ["E1", "E2"]);
    world.act_and_wait(ActionKind::Skip, "E2").await;
    world.until_outcomes(&["E3", "E1"], Outcome::Completed).await;
    world.answered(action.id).await;
    assert_eq!(world.script.began(), ["E1", "E2", "E3", "E1"]);
    world.until_idle().await;
    assert_eq!(world.raw_state("s").await, None);
    world.end().await;
}

/// P11: the policy counts from the operator's action.
async fn a_failed_resubmission_is_retried_like_a_first_run(bench: Bench) {
    let setup = Setup { retry: retries(2), ..Setup::default() };
    let world = World::start(bench, setup, |_, _| fails("no")).await;
    world.send_events("s", &["E1"]).await;
    until("both runs failed", async || world.row("E1").await.is_some_and(|row| row.outcome.attempts == 2)).await;
    world.act_and_wait(ActionKind::Resubmit, "E1").await;
    until("two more failed", async || world.row("E1").await.is_some_and(|row| row.outcome.attempts == 4)).await;
    world.until_idle_but_blocked("s").await;
    assert_eq!(world.script.attempts("E1"), [1, 2, 3, 4]);
    world.end().await;
}

/// P13: a completed event is run again only when asked for as a new one.
async fn what_is_done_cannot_be_resubmitted(bench: Bench) {
    let world = World::start(bench, Setup::default(), |_, _| End::Done).await;
    world.send_events("s", &["E1"]).await;
    world.until_outcome("E1", Outcome::Completed).await;
    for kind in [ActionKind::Resubmit, ActionKind::Skip, ActionKind::HandoffComplete] {
        let refused = world.act(kind, "E1").await;
        assert!(matches!(refused, Err(operations::Error::Conflict(_))), "{kind:?}: {refused:?}");
    }
    assert_eq!(world.script.runs_of("E1"), 1);
    world.act_again("E1").await;
    until("it ran again", async || world.script.runs_of("E1") == 2).await;
    world.until_idle().await;
    assert_eq!(world.outcome("E1").await, Some(Outcome::Completed));
    world.end().await;
}

/// P15: one open action per event.
async fn of_two_actions_one_wins(bench: Bench) {
    let world = World::start(bench, Setup::default(), |_, _| fails("no")).await;
    world.send_events("s", &["E1"]).await;
    world.until_outcome("E1", Outcome::Failed).await;
    world.stop().await;
    let skip = world.act(ActionKind::Skip, "E1").await.expect("the first is accepted");
    let refused = world.act(ActionKind::Resubmit, "E1").await;
    assert!(matches!(refused, Err(operations::Error::Conflict(_))), "{refused:?}");
    world.go().await;
    world.answered(skip.id).await;
    assert_eq!(world.outcome("E1").await, Some(Outcome::Skipped));
    assert_eq!(world.script.runs_of("E1"), 1);
    world.end().await;
}

/// A39: the same key asks for the same action, also when that has ended and the event may not be skipped any more.
async fn a_repeated_request_is_answered_like_the_first(bench: Bench) {
    let world = World::start(bench, Setup::default(), |_, _| fails("no")).await;
    world.send_events("s", &["E1"]).await;
    world.until_outcome("E1", Outcome::Failed).await;
    let first = world.act_with_key(ActionKind::Skip, "E1", "k").await.expect("it is accepted");
    world.answered(first.id).await;
    let again = world.act_with_key(ActionKind::Skip, "E1", "k").await.expect("it is the same request");
    assert_eq!(again.id, first.id);
    let other = world.act_with_key(ActionKind::Skip, "E1", "k2").await;
    assert!(matches!(other, Err(operations::Error::Conflict(_))), "{other:?}");
    world.end().await;
}

/// P9: an end that was written by a holder that had lost the session leaves the session blocked by an event that is done. A skip unblocks it.
async fn a_completed_event_that_still_blocks_can_be_skipped(bench: Bench) {
    let world = World::start(bench, Setup::default(), |_, _| End::Done).await;
    world.send_events("s", &["E1"]).await;
    world.until_outcome("E1", Outcome::Completed).await;
    world.until_idle().await;
    let block = Block {
        event_id: "E1".into(),
        source_id: Some("m-E1".into()),
        kind: BlockKind::Failure,
        attempt: 1,
        since_attempt: 1,
        since: Timestamp(1),
    };
    let stuck = SessionState { block: Some(block), ..SessionState::default() };
    let session =
        world.transport.accept(&SOURCE.into(), &"s".into(), Duration::from_secs(10)).await.expect("it is free");
    session.set_state(stuck.to_bytes().map(Into::into)).await.expect("it is held");
    session.release(Duration::ZERO).await.expect("it is held");
    world.send_events("s", &["E2"]).await;
    world.until_outcome("E2", Outcome::Deferred).await;
    world.act_and_wait(ActionKind::Skip, "E1").await;
    world.until_outcome("E2", Outcome::Completed).await;
    assert_eq!(world.outcome("E1").await, Some(Outcome::Completed), "what is final stays");
    world.end().await;
}
