//! One after another within a session, side by side across sessions.

use std::{collections::HashMap, sync::Arc};

use sprag_core::{
    outcome::Outcome,
    run::{End, UnitOfWork},
};
use tokio::{sync::Barrier, task::yield_now};

use crate::world::{Bench, Setup, World, event, on_every_bench, until};

on_every_bench! {
    sessions_run_side_by_side_and_each_in_order
    what_comes_while_a_session_runs_waits_its_turn
    a_transient_end_lets_nothing_overtake
}

/// A05, A08, A84: 8 sessions of 100 messages. Each session's first message waits until all 8 run, so they do run side by side; within a
/// session nothing begins before the one before it has ended, in the order of sending, under its own session.
async fn sessions_run_side_by_side_and_each_in_order(bench: Bench) {
    let together = Arc::new(Barrier::new(8));
    let world = World::start_with(bench, Setup::default(), move |input, _| {
        let together = Arc::clone(&together);
        async move {
            if input.event_id.as_str().ends_with("-0") {
                together.wait().await;
            }
            yield_now().await;
            (End::Done, UnitOfWork::default())
        }
    })
    .await;
    for number in 0..100 {
        let messages = (0..8).map(|session| event(&format!("s{session}"), &format!("s{session}-{number}")));
        world.send(messages.collect()).await;
    }
    until("all completed", async || world.count(|counters| &counters.completed) == 800).await;
    let mut sessions: HashMap<String, Vec<(String, bool)>> = HashMap::new();
    for entry in world.script.log.lock().iter() {
        assert!(entry.event.starts_with(&format!("{}-", entry.session)), "{entry:?} ran under another session");
        sessions.entry(entry.session.clone()).or_default().push((entry.event.clone(), entry.ended));
    }
    assert_eq!(sessions.len(), 8);
    for (session, entries) in sessions {
        let expected: Vec<_> =
            (0..100).flat_map(|n| [(format!("{session}-{n}"), false), (format!("{session}-{n}"), true)]).collect();
        assert_eq!(entries, expected);
    }
    world.until_idle().await;
    world.end().await;
}

/// A05: a message sent while its session runs is not taken by anybody else.
async fn what_comes_while_a_session_runs_waits_its_turn(bench: Bench) {
    let gate = crate::world::Gate::new();
    let at = gate.clone();
    let world = World::start_with(bench, Setup::default(), move |input, _| {
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
    world.until_began("E1", 1).await;
    // The other session's event is taken after E2 was there to be taken.
    world.send_events("t", &["F1"]).await;
    world.until_outcome("F1", Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "F1"]);
    gate.open();
    world.until_outcome("E2", Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "F1", "E2"]);
    world.end().await;
}

/// A02: message 4 ends transiently twice; nothing overtakes it, its attempt does not rise, and nothing blocks.
async fn a_transient_end_lets_nothing_overtake(bench: Bench) {
    let world = World::start(bench, Setup::default(), |input, number| match input.event_id.as_str() {
        "E4" if number < 3 => End::transient("not now"),
        _ => End::Done,
    })
    .await;
    world.send_events("s", &["E1", "E2", "E3", "E4", "E5", "E6"]).await;
    world.until_outcome("E6", Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "E2", "E3", "E4", "E4", "E4", "E5", "E6"]);
    assert_eq!(world.script.attempts("E4"), [1, 1, 1]);
    assert_eq!(world.count(|counters| &counters.transient), 2);
    world.until_idle().await;
    assert_eq!(world.raw_state("s").await, None);
    world.end().await;
}
