//! Looks at parked messages that are wrong or refused, as a remote broker's may be (P17). Time is paused.

use std::sync::{Arc, OnceLock};

use sprag_core::{
    action::ActionKind,
    outcome::Outcome,
    run::{End, UnitOfWork},
};
use sprag_transport::memory::{Look, MemoryTransport};

use crate::world::{Bench, Setup, World, fails};

/// E1 has failed; E2 and E3 are parked; E4 comes after the looks that are planned.
async fn drained_with(certain: bool, looks: &[Look]) -> World {
    let world = World::start(Bench::Memory, Setup::default(), |input, _| {
        if input.event_id.as_str() == "E1" { fails("no") } else { End::Done }
    })
    .await;
    world.send_events("s", &["E1", "E2", "E3"]).await;
    world.until_outcome("E3", Outcome::Deferred).await;
    world.memory().transport.set_certain(certain);
    world.memory().transport.next_looks(looks);
    world.act_and_wait(ActionKind::Skip, "E1").await;
    world.send_events("s", &["E4"]).await;
    world.until_outcomes(&["E2", "E3", "E4"], Outcome::Completed).await;
    world
}

async fn in_order(world: World) {
    assert_eq!(world.script.began(), ["E1", "E2", "E3", "E4"]);
    world.until_idle().await;
    assert_eq!(world.raw_state("s").await, None);
    world.end().await;
}

/// P17: busy is not empty: nothing newer runs, and it is tried again until they can be had.
#[tokio::test(start_paused = true)]
async fn busy_is_not_empty() {
    in_order(drained_with(true, &[Look::Busy; 5]).await).await;
    in_order(drained_with(false, &[Look::Busy; 12]).await).await;
}

/// P17: one uncertain empty look is no proof.
#[tokio::test(start_paused = true)]
async fn one_uncertain_empty_look_is_no_proof() {
    in_order(drained_with(false, &[Look::Empty]).await).await;
    in_order(drained_with(false, &[Look::Empty, Look::Busy]).await).await;
}

/// P17: an empty look counts only together with one right before it: a copy found between two wrong looks shows that they were wrong.
#[tokio::test(start_paused = true)]
async fn empty_looks_count_only_in_a_row() {
    let transport: Arc<OnceLock<Arc<MemoryTransport>>> = Arc::default();
    let wrong = Arc::clone(&transport);
    let world = World::build(Bench::Memory, Setup::default(), move |input, _| {
        let wrong = Arc::clone(&wrong);
        async move {
            let end = match input.event_id.as_str() {
                "E1" => fails("no"),
                "E2" => {
                    wrong.get().expect("it was set").next_looks(&[Look::Empty]);
                    End::Done
                }
                _ => End::Done,
            };
            (end, UnitOfWork::default())
        }
    })
    .await;
    let memory = Arc::clone(&world.memory().transport);
    assert!(transport.set(Arc::clone(&memory)).is_ok());
    memory.set_certain(false);
    world.go().await;
    world.send_events("s", &["E1", "E2", "E3"]).await;
    world.until_outcome("E3", Outcome::Deferred).await;
    memory.next_looks(&[Look::Empty]);
    world.act_and_wait(ActionKind::Skip, "E1").await;
    world.send_events("s", &["E4"]).await;
    world.until_outcomes(&["E2", "E3", "E4"], Outcome::Completed).await;
    in_order(world).await;
}

/// P16, P17: a count that is too high (a crash between the state and the copy) is cleared after two empty looks, and the session goes on.
#[tokio::test(start_paused = true)]
async fn a_count_too_high_is_cleared_after_two_looks() {
    let world = World::start(Bench::Memory, Setup::default(), |input, _| {
        if input.event_id.as_str() == "E1" { fails("no") } else { End::Done }
    })
    .await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_outcome("E2", Outcome::Deferred).await;
    world.until_released("s").await;
    let transport = &world.transport;
    let session =
        transport.accept(&"orders".into(), &"s".into(), std::time::Duration::from_secs(5)).await.expect("free");
    let mut state = world.state("s").await;
    state.parked += 2;
    session.set_state(state.to_bytes().map(Into::into)).await.expect("written");
    session.release(std::time::Duration::ZERO).await.expect("released");
    world.memory().transport.set_certain(false);
    world.act_and_wait(ActionKind::Skip, "E1").await;
    world.send_events("s", &["E3"]).await;
    world.until_outcomes(&["E2", "E3"], Outcome::Completed).await;
    world.until_idle().await;
    assert_eq!(world.script.began(), ["E1", "E2", "E3"]);
    assert_eq!(world.raw_state("s").await, None);
    world.end().await;
}
