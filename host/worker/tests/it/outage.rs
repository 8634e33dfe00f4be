//! A store or a transport that fails: nothing runs unchecked, nothing is lost, and the log stays readable. Time is paused: it jumps ahead
//! wherever everybody waits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use sprag_core::{
    effect::HistoryKind,
    outcome::Outcome,
    run::{End, UnitOfWork},
};
use sprag_store::memory::{Call, MemoryStore};
use tokio::time::sleep;
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::world::{Bench, Gate, Setup, World, event, until};

fn down() -> Option<sprag_store::Error> {
    Some(sprag_store::Error::Unavailable("the store is down".into()))
}

/// Counts lines of warning and error.
struct Lines(Arc<AtomicU64>);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// 5, 6, A52: while the store cannot be asked nothing runs and nothing is skipped; a minute of it with 20 busy sessions leaves at most a few
/// lines a second; when it is back everything runs once, in order.
#[tokio::test(start_paused = true)]
async fn without_a_check_nothing_runs() {
    let lines = Arc::new(AtomicU64::new(0));
    let _counted = tracing::subscriber::set_default(Lines(Arc::clone(&lines)));
    let world = World::start(Bench::Memory, Setup::default(), |_, _| End::Done).await;
    let store = &world.memory().store;
    world.send(vec![event("s0", "before")]).await;
    world.until_outcome("before", Outcome::Completed).await;
    store.faults().outage(down());
    let sent: Vec<_> = (0..20).flat_map(|s| (0..2).map(move |n| (format!("s{s}"), format!("E{s}-{n}")))).collect();
    world.send(sent.iter().map(|(session, id)| event(session, id)).collect()).await;
    sleep(Duration::from_secs(60)).await;
    assert!(world.count(|counters| &counters.store_errors) > 10, "it was tried all the time");
    assert_eq!(world.script.began(), ["before"], "no run without a check");
    assert_eq!(world.count(|counters| &counters.duplicates), 0, "an outage is not an answer");
    // One line a second of the endpoint, and the relay's one.
    let written = lines.load(Ordering::SeqCst);
    assert!((1..=150).contains(&written), "{written} lines in a minute");
    store.faults().outage(None);
    for (_, id) in &sent {
        world.until_outcome(id, Outcome::Completed).await;
        assert_eq!(world.script.runs_of(id), 1);
    }
    world.until_idle().await;
    world.end().await;
}

/// P22: an inbox in another store that is down stops the intake like the endpoint's own: what is in hand waits, and nothing more is taken.
#[tokio::test(start_paused = true)]
async fn an_inbox_elsewhere_that_is_down_stops_the_intake() {
    let inbox = Arc::new(MemoryStore::new());
    let setup = Setup { inbox_in: Some(Arc::clone(&inbox)), concurrency: 32, ..Setup::default() };
    let world = World::start(Bench::Memory, setup, |_, _| End::Done).await;
    inbox.faults().outage(down());
    world.send(vec![event("s", "first")]).await;
    until("the outage is known", async || world.count(|counters| &counters.store_errors) > 0).await;
    let sent: Vec<_> = (0..20).map(|n| (format!("s{n}"), format!("E{n}"))).collect();
    world.send(sent.iter().map(|(session, id)| event(session, id)).collect()).await;
    sleep(Duration::from_secs(60)).await;
    // One may have been on its way in when the outage was found.
    let received = world.count(|counters| &counters.received);
    assert!(received <= 2, "{received} were taken in a minute of outage");
    assert!(world.script.began().is_empty(), "no run without a check");
    inbox.faults().outage(None);
    for (_, id) in &sent {
        world.until_outcome(id, Outcome::Completed).await;
    }
    world.until_idle().await;
    world.end().await;
}

/// 6, P1: the store goes down in the middle of a run: its commit changes nothing, the message is not overtaken, and it runs again.
#[tokio::test(start_paused = true)]
async fn a_commit_that_the_store_refuses_is_run_again() {
    let gate = Gate::new();
    let at = gate.clone();
    let world = World::start_with(Bench::Memory, Setup::default(), move |input, number| {
        let at = at.clone();
        async move {
            if input.event_id.as_str() == "E1" && number == 1 {
                at.pass().await;
            }
            (End::Done, UnitOfWork::default())
        }
    })
    .await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_began("E1", 1).await;
    world.memory().store.faults().outage(down());
    gate.open();
    until("the commit fails", async || world.commits.failures.load(Ordering::SeqCst) > 0).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(world.script.began(), ["E1"], "not run again without a check");
    world.memory().store.faults().outage(None);
    world.until_outcomes(&["E1", "E2"], Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "E1", "E2"]);
    let runs = world.history_kinds("E1").await.into_iter().filter(|kind| *kind == HistoryKind::Run).count();
    assert_eq!(runs, 1);
    world.until_idle().await;
    world.end().await;
}

/// P22: an outage longer than the delivery limit would bear does not use deliveries up.
#[tokio::test(start_paused = true)]
async fn an_outage_burns_no_deliveries() {
    let setup = Setup { deliveries: 3, ..Setup::default() };
    let world = World::start(Bench::Memory, setup, |_, _| End::Done).await;
    let store = &world.memory().store;
    for _ in 0..10 {
        store.faults().outage(down());
        let errors = world.count(|counters| &counters.store_errors);
        world.send_events("s", &["E1"]).await;
        until("it is tried", async || world.count(|counters| &counters.store_errors) > errors).await;
        sleep(Duration::from_secs(120)).await;
        world.stop().await;
        store.faults().outage(None);
        store.faults().outage(down());
        world.go().await;
    }
    store.faults().outage(None);
    world.until_outcome("E1", Outcome::Completed).await;
    world.until_idle().await;
    assert_eq!(world.script.began(), ["E1"]);
    world.end().await;
}

/// A single write that fails, at each place: never a second outcome, never a lost message.
#[tokio::test(start_paused = true)]
async fn any_single_failed_call_of_the_store_is_survived() {
    for call in [Call::Check, Call::Write, Call::DecisionDone] {
        for nth in 1..=4 {
            let world =
                World::build(Bench::Memory, Setup::default(), |_, _| async { (End::Done, UnitOfWork::default()) })
                    .await;
            world.memory().store.faults().fail(call, nth, down().expect("an error"));
            world.go().await;
            world.send_events("s", &["E1", "E2", "E3"]).await;
            world.until_outcomes(&["E1", "E2", "E3"], Outcome::Completed).await;
            world.until_idle().await;
            let mut began = world.script.began();
            began.dedup();
            assert_eq!(began, ["E1", "E2", "E3"], "{call:?} {nth}");
            for id in ["E1", "E2", "E3"] {
                let kinds = world.history_kinds(id).await;
                assert_eq!(kinds, [HistoryKind::Run], "{call:?} {nth}: {id}");
            }
            world.end().await;
        }
    }
}

/// A07: a transport that fails is asked again after a growing pause; what it held comes when it is back.
#[tokio::test(start_paused = true)]
async fn a_transport_that_fails_is_asked_again() {
    let lines = Arc::new(AtomicU64::new(0));
    let _counted = tracing::subscriber::set_default(Lines(Arc::clone(&lines)));
    let world = World::start(Bench::Memory, Setup::default(), |_, _| End::Done).await;
    world.send_events("s", &["E1"]).await;
    world.until_outcome("E1", Outcome::Completed).await;
    world.until_idle().await;
    let transport = &world.memory().transport;
    let before = lines.load(Ordering::SeqCst);
    transport.faults().outage(Some(sprag_transport::Error::Unavailable("the broker is down".into())));
    // It waits up to 30 s in a call that it had made before.
    sleep(Duration::from_secs(600)).await;
    let written = lines.load(Ordering::SeqCst) - before;
    assert!((1..=60).contains(&written), "{written} lines in ten minutes");
    transport.faults().outage(None);
    world.send_events("s", &["E2"]).await;
    sleep(Duration::from_secs(40)).await;
    world.until_outcome("E2", Outcome::Completed).await;
    world.end().await;
}
