//! Handoffs: the event waits for a job elsewhere, blocks its session like a failure does, and is never recorded by its run.

use std::time::Duration;

use sprag_core::{
    action::{ActionKind, ActionState},
    outcome::{Outcome, kind},
    run::End,
    session_state::BlockKind,
};
use sprag_store::clock;
use sprag_transport::Part;

use crate::world::{Bench, Setup, World, on_every_bench, retries, until};

on_every_bench! {
    a_completed_handoff_lets_the_session_go_on
    a_failed_handoff_keeps_blocking
    a_handoff_expires_and_may_still_be_completed
    a_handoff_settled_in_time_does_not_expire
    an_expired_handoff_is_retried_only_if_the_policy_says_so
}

fn hands_off(
    event: &'static str,
    within: Option<Duration>,
) -> impl Fn(&sprag_runtime::RunInput, u32) -> End + Send + Sync + 'static {
    move |input, number| {
        if input.event_id.as_str() == event && number == 1 {
            let expected_by = within.map(|within| clock::now().after(within));
            End::Handoff { reason: "job".into(), external_id: Some("J1".into()), expected_by }
        } else {
            End::Done
        }
    }
}

const LONG: Option<Duration> = Some(Duration::from_secs(3_600));
const SHORT: Option<Duration> = Some(Duration::from_millis(50));

/// 98 to 101: the event blocks as handed off, is not recorded, and does not run when it comes again; completed, it is final and the parked run.
async fn a_completed_handoff_lets_the_session_go_on(bench: Bench) {
    let world = World::start(bench, Setup::default(), hands_off("E1", None)).await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_outcome("E2", Outcome::Deferred).await;
    let row = world.row("E1").await.expect("it is known").outcome;
    assert_eq!((row.outcome, row.reason.as_deref()), (Outcome::Handoff, Some("job (J1)")));
    assert_eq!(world.state("s").await.block.expect("it blocks").kind, BlockKind::Handoff);
    world.send_events("s", &["E1", "E3"]).await;
    world.until_outcome("E3", Outcome::Deferred).await;
    assert_eq!(world.script.began(), ["E1"], "running it again could repeat the job");
    assert!(matches!(world.act_and_wait(ActionKind::HandoffComplete, "E1").await, ActionState::Applied { .. }));
    world.until_outcomes(&["E1", "E2", "E3"], Outcome::Completed).await;
    assert!(!world.is_recorded("m-E1").await, "never recorded");
    world.send_events("s", &["E1"]).await;
    until("a duplicate", async || world.count(|counters| &counters.duplicates) == 1).await;
    world.until_idle().await;
    assert_eq!(world.script.began(), ["E1", "E2", "E3"]);
    assert_eq!(world.raw_state("s").await, None);
    world.end().await;
}

/// 102, 103: a failed handoff is a failure that blocks; it can be resubmitted.
async fn a_failed_handoff_keeps_blocking(bench: Bench) {
    let setup = Setup { retry: retries(5), ..Setup::default() };
    let world = World::start(bench, setup, hands_off("E1", LONG)).await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_outcome("E2", Outcome::Deferred).await;
    assert!(matches!(world.act_and_wait(ActionKind::HandoffFail, "E1").await, ActionState::Applied { .. }));
    let row = world.row("E1").await.expect("it is known").outcome;
    assert_eq!((row.outcome, row.error.expect("an error").kind.as_str()), (Outcome::Failed, kind::HANDOFF_FAILED));
    let block = world.state("s").await.block.expect("it blocks");
    assert_eq!(block.kind, BlockKind::Failure);
    assert!(world.peek("orders", Part::Scheduled).await.is_empty(), "neither a deadline nor a retry is left");
    assert_eq!(world.script.began(), ["E1"]);
    world.act_and_wait(ActionKind::Resubmit, "E1").await;
    world.until_outcomes(&["E1", "E2"], Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "E1", "E2"]);
    world.end().await;
}

/// 104 to 106, P14: past its deadline it fails as expired; a completion that comes late is accepted while the event still blocks.
async fn a_handoff_expires_and_may_still_be_completed(bench: Bench) {
    let world = World::start(bench, Setup::default(), hands_off("E1", SHORT)).await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_outcomes(&["E1"], Outcome::Failed).await;
    let row = world.row("E1").await.expect("it is known").outcome;
    assert_eq!(row.error.expect("an error").kind, kind::HANDOFF_EXPIRED);
    world.until_outcome("E2", Outcome::Deferred).await;
    assert!(matches!(world.act_and_wait(ActionKind::HandoffComplete, "E1").await, ActionState::Applied { .. }));
    world.until_outcomes(&["E1", "E2"], Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "E2"]);
    world.until_idle().await;
    assert_eq!(world.raw_state("s").await, None);
    world.end().await;
}

/// P11, P14: settling takes the deadline back.
async fn a_handoff_settled_in_time_does_not_expire(bench: Bench) {
    let world = World::start(bench, Setup::default(), hands_off("E1", LONG)).await;
    world.send_events("s", &["E1"]).await;
    world.until_outcome("E1", Outcome::Handoff).await;
    until("the deadline is scheduled", async || world.peek("orders", Part::Scheduled).await.len() == 1).await;
    world.act_and_wait(ActionKind::HandoffComplete, "E1").await;
    world.until_idle().await;
    assert_eq!(world.outcome("E1").await, Some(Outcome::Completed));
    world.end().await;
}

/// 107, P14: retried only where the policy names the kind.
async fn an_expired_handoff_is_retried_only_if_the_policy_says_so(bench: Bench) {
    let mut setup = Setup { retry: retries(3), ..Setup::default() };
    setup.retry.as_mut().expect("a policy").on = vec![kind::HANDOFF_EXPIRED.into()];
    let world = World::start(bench, setup, hands_off("E1", SHORT)).await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_outcomes(&["E1", "E2"], Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "E1", "E2"]);
    world.end().await;
}
