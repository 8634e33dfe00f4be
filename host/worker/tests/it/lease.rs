//! Mode `lease` on endpoints without sessions (spec 4): copies of an event are kept apart, whoever dies, is frozen or comes twice.
//!
//! Another host is played by the store itself: a lease under another owner.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use sprag_core::{
    action::{ActionKind, ActionState},
    effect::{HistoryKind, LeaseEnd, LeaseEnding, StoreWrite},
    ids::{LeaseOwner, MessageId},
    outcome::{Outcome, kind},
    run::{End, StateWrite, UnitOfWork},
};
use sprag_runtime::RunInput;
use sprag_store::{
    clock,
    lease::Leased,
    memory::Call,
    query::{InboxFilter, LeaseRow, Page},
};
use sprag_transport::Part;
use tokio::time::{Instant, sleep};

use crate::world::{Bench, ENDPOINT, Gate, SOURCE, Setup, World, event, fails, on_every_bench, retries, until};

on_every_bench! {
    of_two_copies_at_once_one_runs
    a_host_that_dies_holds_its_message_until_the_lease_lapses
    who_lost_the_lease_cannot_commit
    what_another_host_finished_is_a_duplicate
    a_failed_run_lets_the_next_in
    a_long_run_keeps_its_lease
    a_handoff_is_not_run_again
    a_handoff_that_failed_or_expired_is_free
}

const LONG: Duration = Duration::from_secs(3_600);

fn leased(lease: Duration) -> Setup {
    Setup { sessions: false, lease: Some(lease), ..Setup::default() }
}

async fn send(world: &World, events: &[&str]) {
    world.send(events.iter().map(|id| event("", id)).collect()).await;
}

/// All leases, with what is leased.
async fn leases(world: &World) -> Vec<(MessageId, LeaseRow)> {
    let filter = InboxFilter { endpoint: Some(ENDPOINT.into()), message_id: None };
    let rows = world.store.inbox(&filter, &Page::default()).await.expect("the store answers").items;
    rows.into_iter().filter_map(|row| Some((row.message_id, row.lease?))).collect()
}

async fn put_back(world: &World, times: u64) {
    until("copies are put back", async || world.count(|counters| &counters.in_progress) >= times).await;
}

async fn duplicates(world: &World, times: u64) {
    until("duplicates", async || world.count(|counters| &counters.duplicates) >= times).await;
}

async fn without_leases(world: &World) {
    until("no lease is left", async || leases(world).await.is_empty()).await;
}

/// Takes the lease of an event for another host.
async fn take(world: &World, event: &str, time: Duration) -> Leased {
    let leases = world.store.leases().expect("the store has leases");
    let id = format!("m-{event}").into();
    leases.acquire(&ENDPOINT.into(), &id, &"another".into(), time).await.expect("the store answers")
}

/// Lets go of the lease of an event, in the name of whoever has it.
async fn let_go(world: &World, event: &str, owner: &LeaseOwner) {
    let leases = world.store.leases().expect("the store has leases");
    leases.release(&ENDPOINT.into(), &format!("m-{event}").into(), owner).await.expect("the store answers");
}

/// A handler that waits at the gate.
fn waits_at(gate: Gate) -> impl Fn(RunInput, u32) -> crate::world::Run + Send + Sync + 'static {
    move |_, _| {
        let gate = gate.clone();
        Box::pin(async move {
            gate.pass().await;
            (End::Done, UnitOfWork::default())
        })
    }
}

/// `reference/nimbus-barewire.md` 5.2: *in progress* is not *done*. The second copy is put back, again and again, is never acknowledged, and burns no
/// delivery; when the first has run, it is a duplicate.
async fn of_two_copies_at_once_one_runs(bench: Bench) {
    let gate = Gate::new();
    let setup = Setup { deliveries: 2, ..leased(Duration::from_millis(1_500)) };
    let world = World::start_with(bench, setup, waits_at(gate.clone())).await;
    send(&world, &["E1", "E1"]).await;
    world.until_began("E1", 1).await;
    put_back(&world, 3).await;
    assert_eq!(world.script.runs_of("E1"), 1);
    assert!(world.peek(SOURCE, Part::DeadLetters).await.is_empty());
    let held = leases(&world).await;
    assert_eq!((held.len(), held[0].0.as_str()), (1, "m-E1"));
    gate.open();
    world.until_outcome("E1", Outcome::Completed).await;
    duplicates(&world, 1).await;
    world.until_idle().await;
    assert_eq!(world.script.runs_of("E1"), 1);
    assert!(world.is_recorded("m-E1").await);
    without_leases(&world).await;
    assert!(world.peek(SOURCE, Part::DeadLetters).await.is_empty());
    world.end().await;
}

/// Seed 001: a crash before the end lets the lease lapse; then the redelivery runs.
async fn a_host_that_dies_holds_its_message_until_the_lease_lapses(bench: Bench) {
    let setup = Setup { lock: Duration::from_secs(1), ..leased(Duration::from_secs(3)) };
    let world = World::start_with(bench, setup, |_, number| async move {
        if number == 1 {
            std::future::pending::<()>().await;
        }
        (End::Done, UnitOfWork::default())
    })
    .await;
    send(&world, &["E1"]).await;
    world.until_began("E1", 1).await;
    world.kill().await;
    let held = leases(&world).await;
    assert_eq!(held.len(), 1, "it dies with its lease");
    world.go().await;
    if bench == Bench::Memory {
        // Here the lock is free at once, so the lease is what holds it back.
        put_back(&world, 1).await;
        assert_eq!(world.script.runs_of("E1"), 1);
    }
    world.until_outcome("E1", Outcome::Completed).await;
    assert!(clock::now() >= held[0].1.expires_at.expect("it lapses"), "not before the lease had lapsed");
    assert_eq!(world.script.runs_of("E1"), 2);
    world.until_idle().await;
    without_leases(&world).await;
    world.end().await;
}

/// The token fences: a host that was frozen past its lease finds it taken over, and nothing of its run takes effect.
async fn who_lost_the_lease_cannot_commit(bench: Bench) {
    let gate = Gate::new();
    let (passes, runs) = (gate.clone(), Arc::new(AtomicU32::new(0)));
    let world = World::start_with(bench, leased(LONG), move |_, _| {
        let (gate, runs) = (passes.clone(), Arc::clone(&runs));
        async move {
            let number = runs.fetch_add(1, Ordering::SeqCst) + 1;
            gate.pass().await;
            let write = StateWrite { key: "run".into(), value: Some(Bytes::from(number.to_string())) };
            (End::Done, UnitOfWork { writes: vec![write], ..UnitOfWork::default() })
        }
    })
    .await;
    send(&world, &["E1"]).await;
    world.until_began("E1", 1).await;
    let (_, first) = leases(&world).await.pop().expect("it is leased");
    let_go(&world, "E1", &first.owner).await;
    assert_eq!(take(&world, "E1", Duration::from_secs(3)).await, Leased::Acquired);
    gate.open();
    until("the commit is refused", async || world.count(|counters| &counters.lease_lost) == 1).await;
    assert_eq!(world.store.state_get(&ENDPOINT.into(), "run").await.expect("it answers"), None);
    assert!(!world.is_recorded("m-E1").await);
    assert_eq!(world.outcome("E1").await.filter(|outcome| *outcome == Outcome::Completed), None);
    // The other one dies, too.
    world.until_outcome("E1", Outcome::Completed).await;
    let kept = world.store.state_get(&ENDPOINT.into(), "run").await.expect("it answers").expect("it was written");
    assert_eq!(&kept.value[..], b"2");
    assert_eq!(world.script.runs_of("E1"), 2);
    world.until_idle().await;
    without_leases(&world).await;
    world.end().await;
}

/// A copy that meets another host's run is a duplicate when that has come to its end, and runs when it has come to none.
async fn what_another_host_finished_is_a_duplicate(bench: Bench) {
    let world = World::start(bench, leased(LONG), |_, _| End::Done).await;
    for id in ["E1", "E2"] {
        assert_eq!(take(&world, id, Duration::from_secs(3)).await, Leased::Acquired);
    }
    send(&world, &["E1", "E2"]).await;
    put_back(&world, 2).await;
    let lease = LeaseEnd { id: "m-E1".into(), owner: Some("another".into()), how: LeaseEnding::Over };
    let done = StoreWrite { record: vec!["m-E1".into()], lease: Some(lease), ..StoreWrite::default() };
    world.store.write(&ENDPOINT.into(), done).await.expect("it is held still");
    duplicates(&world, 1).await;
    world.until_outcome("E2", Outcome::Completed).await;
    assert_eq!((world.script.runs_of("E1"), world.script.runs_of("E2")), (0, 1));
    world.until_idle().await;
    without_leases(&world).await;
    world.end().await;
}

/// 5.2: the lease of a failed run does not stay until it lapses. Were it so, nothing here would come to its end within the hour: not a retry, not a
/// message put back, not a resubmission.
async fn a_failed_run_lets_the_next_in(bench: Bench) {
    let setup = Setup { retry: retries(3), ..leased(LONG) };
    let world = World::start(bench, setup, |input, number| match (input.event_id.as_str(), number) {
        ("E1", 1 | 2) => fails("no"),
        ("E2", 1 | 2) => End::transient("not now"),
        ("E3", 1..=3) => fails("never"),
        _ => End::Done,
    })
    .await;
    send(&world, &["E1", "E2", "E3"]).await;
    world.until_outcomes(&["E1", "E2"], Outcome::Completed).await;
    world.until_outcome("E3", Outcome::DeadLettered).await;
    world.until_idle().await;
    without_leases(&world).await;
    world.act_and_wait(ActionKind::Resubmit, "E3").await;
    world.until_outcome("E3", Outcome::Completed).await;
    assert_eq!(world.script.attempts("E3"), [1, 2, 3, 4]);
    assert_eq!(world.count(|counters| &counters.in_progress), 0);
    world.until_idle().await;
    without_leases(&world).await;
    world.end().await;
}

/// 5.2: a handler that takes longer than the lease does not let a second one begin.
async fn a_long_run_keeps_its_lease(bench: Bench) {
    let gate = Gate::new();
    let world = World::start_with(bench, leased(Duration::from_millis(1_500)), waits_at(gate.clone())).await;
    send(&world, &["E1"]).await;
    world.until_began("E1", 1).await;
    let (_, first) = leases(&world).await.pop().expect("it is leased");
    let lapses = first.expires_at.expect("it lapses");
    until("it is past the first lease", async || clock::now() > lapses.after(Duration::from_millis(200))).await;
    assert!(matches!(take(&world, "E1", LONG).await, Leased::InProgress { .. }));
    let (_, later) = leases(&world).await.pop().expect("it is leased still");
    assert!(later.owner == first.owner && later.expires_at > first.expires_at, "{later:?}");
    gate.open();
    world.until_outcome("E1", Outcome::Completed).await;
    world.until_idle().await;
    without_leases(&world).await;
    assert_eq!(world.script.runs_of("E1"), 1);
    world.end().await;
}

fn hands_off(expires: &'static str) -> impl Fn(&RunInput, u32) -> End + Send + Sync + 'static {
    move |input, number| {
        let within = (input.event_id.as_str() == expires).then_some(Duration::from_millis(50));
        let expected_by = within.map(|within| clock::now().after(within));
        match number {
            1 => End::Handoff { reason: "job".into(), external_id: None, expected_by },
            _ => End::Done,
        }
    }
}

/// P26: the lease keeps it as handed off, past its own time; a copy is a line in the history; the settlement ends it.
async fn a_handoff_is_not_run_again(bench: Bench) {
    let world = World::start(bench, leased(Duration::from_secs(1)), hands_off("none")).await;
    send(&world, &["E1"]).await;
    world.until_outcome("E1", Outcome::Handoff).await;
    world.until_idle().await;
    let began = Instant::now();
    until("the lease would have lapsed", async || began.elapsed() > Duration::from_millis(1_100)).await;
    send(&world, &["E1"]).await;
    duplicates(&world, 1).await;
    world.until_idle().await;
    let kept = leases(&world).await;
    assert_eq!((kept.len(), kept[0].1.expires_at), (1, None));
    let kinds = world.history_kinds("E1").await;
    assert_eq!(kinds, [HistoryKind::Run, HistoryKind::Duplicate]);
    assert_eq!(world.outcome("E1").await, Some(Outcome::Handoff), "a duplicate rewrites nothing (P8)");

    assert!(matches!(world.act_and_wait(ActionKind::HandoffComplete, "E1").await, ActionState::Applied { .. }));
    assert_eq!(world.outcome("E1").await, Some(Outcome::Completed));
    without_leases(&world).await;
    send(&world, &["E1"]).await;
    duplicates(&world, 2).await;
    assert_eq!(world.script.runs_of("E1"), 1);
    world.until_idle().await;
    without_leases(&world).await;
    world.end().await;
}

/// P26, P14: a handoff that failed, expired or was skipped keeps nobody out.
async fn a_handoff_that_failed_or_expired_is_free(bench: Bench) {
    let world = World::start(bench, leased(LONG), hands_off("E2")).await;
    send(&world, &["E1", "E2", "E3"]).await;
    world.until_outcomes(&["E1", "E3"], Outcome::Handoff).await;
    world.until_outcome("E2", Outcome::DeadLettered).await;
    let row = world.row("E2").await.expect("it is known").outcome;
    assert_eq!(row.error.expect("an error").kind, kind::HANDOFF_EXPIRED);
    assert!(matches!(world.act_and_wait(ActionKind::HandoffFail, "E1").await, ActionState::Applied { .. }));
    assert!(matches!(world.act_and_wait(ActionKind::Skip, "E3").await, ActionState::Applied { .. }));
    assert_eq!(world.outcome("E3").await, Some(Outcome::Skipped));
    without_leases(&world).await;
    for id in ["E1", "E2"] {
        world.act_and_wait(ActionKind::Resubmit, id).await;
        world.until_outcome(id, Outcome::Completed).await;
    }
    assert_eq!((world.script.runs_of("E1"), world.script.runs_of("E3")), (2, 1));
    world.until_idle().await;
    without_leases(&world).await;
    world.end().await;
}

/// Spec 4: leases are for sources without sessions, and a host does not start with them on another.
#[tokio::test]
async fn a_source_with_sessions_is_refused() {
    let setup = Setup { sessions: true, ..leased(LONG) };
    let world = World::build(Bench::Memory, setup, |_, _| async { (End::Done, UnitOfWork::default()) }).await;
    let refused = world.try_go().await.expect_err("it is refused");
    assert!(refused.contains("has sessions"), "{refused}");
}

/// A store's failure is never an answer: what cannot be leased does not run, and an answer that was lost locks nobody out.
#[tokio::test(start_paused = true)]
async fn without_a_lease_nothing_runs() {
    let world = World::build(Bench::Memory, leased(LONG), |_, _| async { (End::Done, UnitOfWork::default()) }).await;
    let faults = world.memory().store.faults();
    for nth in 1..=5 {
        faults.fail(Call::Acquire, nth, sprag_store::Error::Unavailable("down".into()));
    }
    world.go().await;
    send(&world, &["E1"]).await;
    until("it has asked four times", async || faults.calls(Call::Acquire) >= 4).await;
    assert_eq!(world.script.runs_of("E1"), 0);
    world.until_outcome("E1", Outcome::Completed).await;
    assert_eq!((world.script.runs_of("E1"), faults.calls(Call::Acquire)), (1, 6));
    without_leases(&world).await;
    world.end().await;
}

/// The process dies after every single effect of a success, a failure with its retry, and a handoff with its settlement: each event comes to its one
/// end, its work is done once, and no lease is left (P1, P5, P26).
#[tokio::test(start_paused = true)]
async fn a_crash_anywhere_leaves_no_lease() {
    let mut effects = 0;
    while survives(effects).await {
        effects += 1;
    }
    assert!(effects > 12, "the flow was cut {effects} times");
}

const FLOW: [&str; 3] = ["done", "fails", "handoff"];

/// False when the flow had no more effects than that.
async fn survives(effects: usize) -> bool {
    let setup = Setup { retry: retries(2), ..leased(Duration::from_secs(30)) };
    let world = World::build(Bench::Memory, setup, |input, number| async move {
        let end = match input.event_id.as_str() {
            "fails" if input.attempt == 1 => return (fails("no"), UnitOfWork::default()),
            "handoff" => End::Handoff { reason: "job".into(), external_id: None, expected_by: None },
            _ => End::Done,
        };
        let write = StateWrite { key: format!("{}-{number}", input.event_id), value: Some(Bytes::from_static(b"x")) };
        (end, UnitOfWork { writes: vec![write], ..UnitOfWork::default() })
    })
    .await;
    world.memory().ordered.crash_after(Some(effects));
    world.go().await;
    send(&world, &FLOW).await;
    let (mut crashed, mut acted) = (false, false);
    let until = Instant::now() + Duration::from_secs(600);
    loop {
        assert!(Instant::now() < until, "crash after {effects}: {}", world.describe().await);
        if !crashed && world.commits.failures.load(Ordering::SeqCst) > 0 {
            crashed = true;
            world.kill().await;
            world.memory().ordered.crash_after(None);
            world.go().await;
        }
        if !acted && world.outcome("handoff").await == Some(Outcome::Handoff) {
            acted = world.act(ActionKind::HandoffComplete, "handoff").await.is_ok();
        }
        let mut over = world.is_idle().await;
        for id in FLOW {
            over &= world.outcome(id).await == Some(Outcome::Completed);
        }
        if over {
            break;
        }
        sleep(Duration::from_millis(5)).await;
    }
    without_leases(&world).await;
    world.memory().ordered.crash_after(None);
    let runs = world.script.began().len();
    for id in FLOW {
        let done = world.store.state_scan(&ENDPOINT.into(), &format!("{id}-"), None, 10).await.expect("it answers");
        assert_eq!(done.len(), 1, "crash after {effects}: the work of {id} is done once: {}", world.describe().await);
        // A copy that comes late is a duplicate, or finds a decision that nobody has marked as done: neither runs.
        send(&world, &[id]).await;
    }
    world.until_idle().await;
    assert_eq!(world.script.began().len(), runs, "crash after {effects}: {}", world.describe().await);
    without_leases(&world).await;
    world.end().await;
    crashed
}
