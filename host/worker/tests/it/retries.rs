//! Retries by the host itself: messages under ids of their own, which run only for the block that they belong to.

use std::time::Duration;

use sprag_core::{
    action::ActionKind,
    effect::HistoryKind,
    identity,
    ids::MessageId,
    message::{Value, property},
    outcome::Outcome,
    run::End,
};
use sprag_transport::Part;

use crate::world::{Bench, ENDPOINT, Setup, World, event, fails, on_every_bench, retries, until};

on_every_bench! {
    a_retry_that_succeeds_unblocks_and_drains
    retries_end_when_they_are_used_up
    a_stale_retry_does_nothing
    a_skip_takes_the_scheduled_retry_back
    a_retry_after_hint_is_kept
}

fn retry_id(event: &str, attempt: u32) -> MessageId {
    identity::retry_id(&ENDPOINT.into(), &format!("m-{event}"), attempt)
}

/// A25, 31, 32: a retry that succeeds lets the session go on; the event is recorded under its first id and the retry's own, so that the
/// original, delivered again, is skipped.
async fn a_retry_that_succeeds_unblocks_and_drains(bench: Bench) {
    let setup = Setup { retry: retries(3), ..Setup::default() };
    let world = World::start(bench, setup, |input, number| {
        if input.event_id.as_str() == "E1" && number == 1 { fails("no") } else { End::Done }
    })
    .await;
    world.send_events("s", &["E1", "E2", "E3"]).await;
    world.until_outcomes(&["E1", "E2", "E3"], Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "E1", "E2", "E3"]);
    assert_eq!(world.script.attempts("E1"), [1, 2]);
    assert!(world.is_recorded("m-E1").await, "the source id is recorded");
    assert!(world.is_recorded(retry_id("E1", 1).as_str()).await, "the retry's own id is recorded");
    assert_eq!(world.row("E1").await.expect("it is known").outcome.attempts, 2);
    world.until_idle().await;
    assert_eq!(world.raw_state("s").await, None);
    world.send_events("s", &["E1", "E4"]).await;
    world.until_outcome("E4", Outcome::Completed).await;
    assert_eq!(world.script.runs_of("E1"), 2);
    assert_eq!(world.history_kinds("E1").await.last(), Some(&HistoryKind::Duplicate));
    assert_eq!(world.outcome("E1").await, Some(Outcome::Completed), "a duplicate rewrites nothing");
    world.end().await;
}

/// 80: three runs in all, then the event stays failed and blocks.
async fn retries_end_when_they_are_used_up(bench: Bench) {
    let setup = Setup { retry: retries(3), ..Setup::default() };
    let world = World::start(bench, setup, |input, _| match input.event_id.as_str() {
        "E1" => fails("no"),
        _ => End::Done,
    })
    .await;
    world.send_events("s", &["E1", "E2"]).await;
    until("three runs are decided", async || world.row("E1").await.is_some_and(|row| row.outcome.attempts == 3)).await;
    world.until_outcome("E2", Outcome::Deferred).await;
    assert_eq!(world.outcome("E1").await, Some(Outcome::Failed));
    assert_eq!(world.script.attempts("E1"), [1, 2, 3]);
    assert!(world.peek("orders", Part::Scheduled).await.is_empty(), "no retry is left");
    assert_eq!(world.state("s").await.block.expect("it blocks").attempt, 3);
    assert_eq!(world.script.runs_of("E2"), 0);
    world.end().await;
}

/// P11: a retry that does not belong to the block's attempt is completed without a run, whoever sent it.
async fn a_stale_retry_does_nothing(bench: Bench) {
    let world = World::start(bench, Setup::default(), |_, _| fails("no")).await;
    world.send_events("s", &["E1"]).await;
    world.until_outcome("E1", Outcome::Failed).await;
    world.act_and_wait(ActionKind::Resubmit, "E1").await;
    assert_eq!(world.state("s").await.block.expect("it blocks").attempt, 2);
    let mut stale = event("s", "E1");
    stale.message_id = Some(retry_id("E1", 1));
    stale.set_property(property::MESSAGE_TYPE, Value::string("RetryRequest"));
    stale.set_property(property::RETRY_COUNT, Value::Int(1));
    stale.set_property(property::INBOX_MESSAGE_ID, Value::string("m-E1"));
    let mut unsigned = stale.clone();
    unsigned.message_id = Some("forged".into());
    unsigned.set_property(property::RETRY_COUNT, Value::Int(2));
    world.seal.sign(&mut stale);
    world.send(vec![stale, unsigned, event("s", "E2")]).await;
    world.until_outcome("E2", Outcome::Deferred).await;
    assert_eq!(world.script.began(), ["E1", "E1"], "neither the stale nor the forged one ran");
    let row = world.row("E1").await.expect("it is known").outcome;
    assert_eq!((row.outcome, row.attempts), (Outcome::Failed, 2));
    assert_eq!(world.state("s").await.block.expect("it still blocks").attempt, 2);
    world.end().await;
}

/// P11: resolving takes the retry back, which would find nothing to do.
async fn a_skip_takes_the_scheduled_retry_back(bench: Bench) {
    let mut setup = Setup { retry: retries(3), ..Setup::default() };
    setup.retry.as_mut().expect("a policy").schedule.base = Duration::from_secs(3_600);
    let world = World::start(bench, setup, |_, _| fails("no")).await;
    world.send_events("s", &["E1"]).await;
    world.until_outcome("E1", Outcome::Failed).await;
    until("the retry is scheduled", async || world.peek("orders", Part::Scheduled).await.len() == 1).await;
    world.act_and_wait(ActionKind::Skip, "E1").await;
    until("the retry is gone", async || world.peek("orders", Part::Scheduled).await.is_empty()).await;
    world.until_idle().await;
    assert_eq!(world.raw_state("s").await, None);
    world.end().await;
}

/// Spec 7: a handler's hint lengthens the delay.
async fn a_retry_after_hint_is_kept(bench: Bench) {
    let setup = Setup { retry: retries(3), ..Setup::default() };
    let world = World::start(bench, setup, |_, _| End::Failed {
        failure: sprag_core::outcome::Failure::new("boom", "busy"),
        retry_after: Some(Duration::from_secs(600)),
    })
    .await;
    world.send_events("s", &["E1"]).await;
    until("the retry is scheduled", async || world.peek("orders", Part::Scheduled).await.len() == 1).await;
    let scheduled = world.peek("orders", Part::Scheduled).await;
    let due = scheduled[0].message.scheduled_for.expect("it is scheduled");
    let failed_at = world.history("E1").await[0].at;
    assert_eq!(due.since(failed_at), Duration::from_secs(600));
    world.end().await;
}
