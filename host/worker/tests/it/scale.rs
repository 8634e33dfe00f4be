//! Many messages and many sessions.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use sprag_core::run::{End, UnitOfWork};
use tokio::task::yield_now;

use crate::world::{Bench, Setup, World, event, fails, on_every_bench, retries, until_within};

const LONG: Duration = Duration::from_secs(120);

on_every_bench! {
    two_thousand_messages_four_at_a_time
    a_thousand_sessions_that_were_blocked_cost_nothing_afterwards
}

/// A26: the limit on what runs at once is kept and never closes for good.
async fn two_thousand_messages_four_at_a_time(bench: Bench) {
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, peak) = (Arc::clone(&running), Arc::clone(&most));
    let setup = Setup { concurrency: 4, ..Setup::default() };
    let world = World::start_with(bench, setup, move |_, _| {
        let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
        async move {
            peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            yield_now().await;
            now.fetch_sub(1, Ordering::SeqCst);
            (End::Done, UnitOfWork::default())
        }
    })
    .await;
    for number in 0..20 {
        let messages = (0..100).map(|session| event(&format!("s{session}"), &format!("E{session}-{number}")));
        world.send(messages.collect()).await;
    }
    until_within(LONG, "all completed", async || world.count(|counters| &counters.completed) == 2_000).await;
    assert!((2..=4).contains(&most.load(Ordering::SeqCst)), "{most:?} at once");
    world.until_idle().await;
    assert_eq!(world.script.began().len(), 2_000);
    world.end().await;
}

/// A44: a session that was blocked once leaves no state behind.
async fn a_thousand_sessions_that_were_blocked_cost_nothing_afterwards(bench: Bench) {
    // The transport in memory looks through all of its messages at each step.
    let sessions = if bench == Bench::Memory { 200 } else { 1_000 };
    let setup = Setup { concurrency: 32, retry: retries(3), ..Setup::default() };
    let world = World::start(bench, setup, |input, number| {
        if number == 1 && input.event_id.as_str().ends_with("-0") { fails("once") } else { End::Done }
    })
    .await;
    let messages =
        |number: usize| (0..sessions).map(move |s| event(&format!("s{s}"), &format!("E{s}-{number}"))).collect();
    world.send(messages(0)).await;
    world.send(messages(1)).await;
    let completed = 2 * sessions as u64;
    until_within(LONG, "all completed", async || world.count(|counters| &counters.completed) == completed).await;
    world.until_idle().await;
    assert!(world.count(|counters| &counters.failed) >= sessions as u64);
    let kept: Vec<_> = world.sessions().await.into_iter().filter(|session| session.state.is_some()).collect();
    assert!(kept.is_empty(), "{} sessions keep a state, such as {:?}", kept.len(), kept[0]);
    world.end().await;
}
