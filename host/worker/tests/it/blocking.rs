//! A failure blocks its session, and only that, until somebody resolves it.

use sprag_core::{
    action::{ActionKind, ActionState},
    effect::HistoryKind,
    outcome::{Outcome, kind},
    run::{End, UnitOfWork},
};
use sprag_transport::Part;

use crate::world::{Bench, Gate, Setup, World, event_of, fails, on_every_bench, until};

on_every_bench! {
    a_failure_blocks_and_later_ones_wait
    a_skip_drains_in_order_and_what_comes_meanwhile_runs_after
    a_bad_result_blocks
    a_resubmission_that_nobody_handles_keeps_the_block
    skipping_a_session_skips_what_waits_in_it
    a_parked_one_that_fails_blocks_again
    one_parked_event_is_skipped_alone
}

fn fails_on(event: &'static str) -> impl Fn(&sprag_runtime::RunInput, u32) -> End + Send + Sync + 'static {
    move |input, _| if input.event_id.as_str() == event { fails("no") } else { End::Done }
}

/// A04, A34: what comes behind a failure is parked and not run, however long it takes; other sessions go on.
async fn a_failure_blocks_and_later_ones_wait(bench: Bench) {
    let world = World::start(bench, Setup::default(), fails_on("E1")).await;
    world.send_events("s", &["E1", "E2", "E3"]).await;
    world.until_outcome("E1", Outcome::Failed).await;
    world.until_outcomes(&["E2", "E3"], Outcome::Deferred).await;
    world.send_events("t", &["F1"]).await;
    world.until_outcome("F1", Outcome::Completed).await;
    world.send_events("s", &["E4"]).await;
    world.until_outcome("E4", Outcome::Deferred).await;
    assert_eq!(world.script.began(), ["E1", "F1"]);
    let state = world.state("s").await;
    let block = state.block.expect("the session is blocked");
    assert_eq!((block.event_id.as_str(), block.attempt), ("E1", 1));
    assert_eq!((state.parked, world.peek("orders", Part::Parked).await.len()), (3, 3));
    // A host that starts later finds the same.
    world.stop().await;
    world.go().await;
    world.send_events("s", &["E5"]).await;
    world.until_outcome("E5", Outcome::Deferred).await;
    assert_eq!(world.script.began(), ["E1", "F1"]);
    world.end().await;
}

/// A04, 30: after a skip the parked ones run in the order of arrival, and before anything newer.
async fn a_skip_drains_in_order_and_what_comes_meanwhile_runs_after(bench: Bench) {
    let gate = Gate::new();
    let at = gate.clone();
    let world = World::start_with(bench, Setup::default(), move |input, _| {
        let at = at.clone();
        async move {
            let end = match input.event_id.as_str() {
                "E1" => fails("no"),
                "E2" => {
                    at.pass().await;
                    End::Done
                }
                _ => End::Done,
            };
            (end, UnitOfWork::default())
        }
    })
    .await;
    world.send_events("s", &["E1", "E2", "E3", "E4"]).await;
    world.until_outcome("E4", Outcome::Deferred).await;
    assert!(matches!(world.act_and_wait(ActionKind::Skip, "E1").await, ActionState::Applied { .. }));
    world.until_began("E2", 1).await;
    world.send_events("s", &["E5"]).await;
    gate.open();
    world.until_outcomes(&["E2", "E3", "E4", "E5"], Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "E2", "E3", "E4", "E5"]);
    let skipped = world.row("E1").await.expect("it is known").outcome;
    assert_eq!((skipped.outcome, skipped.reason.as_deref()), (Outcome::Skipped, Some("told so")));
    world.until_idle().await;
    assert_eq!(world.raw_state("s").await, None);
    // Skipped is final: the same message again is done without a run (P2).
    world.send_events("s", &["E1"]).await;
    until("a duplicate", async || world.count(|counters| &counters.duplicates) == 1).await;
    assert_eq!(world.script.runs_of("E1"), 1);
    assert_eq!(world.outcome("E1").await, Some(Outcome::Skipped));
    world.end().await;
}

/// A03: an answer that the host does not understand is a failure that blocks, never a message lost.
async fn a_bad_result_blocks(bench: Bench) {
    let world = World::start(bench, Setup::default(), |input, number| {
        if input.event_id.as_str() == "E1" && number == 1 {
            End::failed(kind::BAD_RESULT, "no such end")
        } else {
            End::Done
        }
    })
    .await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_outcome("E2", Outcome::Deferred).await;
    let row = world.row("E1").await.expect("it is known").outcome;
    assert_eq!((row.outcome, row.error.expect("an error").kind.as_str()), (Outcome::Failed, kind::BAD_RESULT));
    world.act_and_wait(ActionKind::Resubmit, "E1").await;
    world.until_outcomes(&["E1", "E2"], Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "E1", "E2"]);
    world.end().await;
}

/// P10: if nobody takes the blocker's type any more it stays failed and keeps blocking.
async fn a_resubmission_that_nobody_handles_keeps_the_block(bench: Bench) {
    let world = World::start(bench, Setup::default(), |input, number| {
        if input.event_id.as_str() == "E1" && number == 1 { fails("no") } else { End::Done }
    })
    .await;
    world.send(vec![event_of("s", "E1", "Odd"), event_of("s", "E2", "Order")]).await;
    world.until_outcome("E2", Outcome::Deferred).await;
    world.script.claim("Odd", false);
    world.act_and_wait(ActionKind::Resubmit, "E1").await;
    let row = world.row("E1").await.expect("it is known").outcome;
    assert_eq!((row.outcome, row.error.expect("an error").kind.as_str()), (Outcome::Failed, kind::NO_HANDLER));
    assert!(world.state("s").await.is_blocked_by(&"E1".into()));
    assert_eq!(world.outcome("E2").await, Some(Outcome::Deferred));
    world.script.claim("Odd", true);
    world.act_and_wait(ActionKind::Resubmit, "E1").await;
    world.until_outcomes(&["E1", "E2"], Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "E1", "E2"]);
    world.end().await;
}

/// A43: the blocker and 40 parked ones are skipped without a run, another blocked session is not touched, and a later message runs.
async fn skipping_a_session_skips_what_waits_in_it(bench: Bench) {
    let world = World::start(bench, Setup::default(), |input, _| {
        if matches!(input.event_id.as_str(), "E0" | "F0") { fails("no") } else { End::Done }
    })
    .await;
    let names: Vec<String> = (0..=40).map(|number| format!("E{number}")).collect();
    let events: Vec<&str> = names.iter().map(String::as_str).collect();
    world.send_events("s", &events).await;
    world.send_events("t", &["F0", "F1"]).await;
    world.until_outcomes(&["E40", "F1"], Outcome::Deferred).await;
    assert!(matches!(world.skip_session("s").await, ActionState::Applied { .. }));
    world.until_outcomes(&events, Outcome::Skipped).await;
    world.send_events("s", &["E41"]).await;
    world.until_outcome("E41", Outcome::Completed).await;
    let mut began = world.script.began();
    began.sort();
    assert_eq!(began, ["E0", "E41", "F0"]);
    until("the session is idle", async || world.raw_state("s").await.is_none()).await;
    let line = world.history("E7").await.pop().expect("a line");
    assert_eq!(
        (line.kind, line.by.as_deref(), line.reason.as_deref()),
        (HistoryKind::Action, Some("ada"), Some("all of it"))
    );
    assert_eq!(world.outcome("F0").await, Some(Outcome::Failed));
    assert_eq!(world.outcome("F1").await, Some(Outcome::Deferred));
    assert_eq!(world.peek("orders", Part::Parked).await.len(), 1);
    world.end().await;
}

/// P16: a parked message that fails blocks the session anew, and the rest stays parked behind it.
async fn a_parked_one_that_fails_blocks_again(bench: Bench) {
    let world = World::start(bench, Setup::default(), |input, number| {
        if matches!(input.event_id.as_str(), "E1" | "E2") && number == 1 { fails("no") } else { End::Done }
    })
    .await;
    world.send_events("s", &["E1", "E2", "E3"]).await;
    world.until_outcome("E3", Outcome::Deferred).await;
    world.act_and_wait(ActionKind::Skip, "E1").await;
    world.until_outcome("E2", Outcome::Failed).await;
    world.send_events("s", &["E4"]).await;
    world.until_outcome("E4", Outcome::Deferred).await;
    assert!(world.state("s").await.is_blocked_by(&"E2".into()));
    world.act_and_wait(ActionKind::Resubmit, "E2").await;
    world.until_outcomes(&["E2", "E3", "E4"], Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "E2", "E2", "E3", "E4"]);
    world.until_idle().await;
    assert_eq!(world.raw_state("s").await, None);
    world.end().await;
}

/// P13: a deferred event can be skipped by itself; the block stays, and the drain passes it by.
async fn one_parked_event_is_skipped_alone(bench: Bench) {
    let world = World::start(bench, Setup::default(), |input, number| {
        if input.event_id.as_str() == "E1" && number == 1 { fails("no") } else { End::Done }
    })
    .await;
    world.send_events("s", &["E1", "E2", "E3"]).await;
    world.until_outcome("E3", Outcome::Deferred).await;
    assert!(matches!(world.act_and_wait(ActionKind::Skip, "E2").await, ActionState::Applied { .. }));
    assert_eq!(world.outcome("E2").await, Some(Outcome::Skipped));
    assert!(world.state("s").await.is_blocked_by(&"E1".into()));
    world.act_and_wait(ActionKind::Resubmit, "E1").await;
    world.until_outcomes(&["E1", "E3"], Outcome::Completed).await;
    world.until_idle().await;
    assert_eq!(world.script.began(), ["E1", "E1", "E3"]);
    assert_eq!(world.outcome("E2").await, Some(Outcome::Skipped));
    world.end().await;
}
