//! The process dies after every single effect of a flow, one after another; the next host brings the flow to its one end (P1, P16, P20).
//!
//! On the memory bench, where effects happen one after another, and with paused time. Each flow is run once per effect that it has.

use std::{collections::BTreeSet, sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use sprag_core::{
    action::ActionKind,
    effect::HistoryKind,
    identity,
    ids::EndpointName,
    message::Message,
    outcome::Outcome,
    run::{End, Outgoing, StateRead, StateWrite, UnitOfWork, Version},
};
use sprag_runtime::RunInput;
use sprag_transport::Part;
use tokio::time::{Instant, sleep};

use crate::world::{Bench, ENDPOINT, OUT, Setup, World, fails, retries};

/// What happens to three events of one session.
#[derive(Clone, Copy)]
struct Flow {
    /// How the n-th run of an event ends.
    end: fn(&str, u32) -> End,
    retries: u32,
    /// What the operator does once E1 is like this and E3 waits.
    act: Option<(Outcome, Act)>,
    /// How the three end.
    outcomes: [Outcome; 3],
    /// Whether empty looks at parked messages are proof.
    certain: bool,
}

#[derive(Clone, Copy)]
enum Act {
    On(ActionKind),
    SkipSession,
}

const EVENTS: [&str; 3] = ["E1", "E2", "E3"];
const DONE: [Outcome; 3] = [Outcome::Completed; 3];

/// Counts in the state how often the event was done, and sends one message.
async fn work(input: &RunInput) -> UnitOfWork {
    let key = input.event_id.to_string();
    let found = input.state.get(&EndpointName::from(ENDPOINT), &key).await.expect("the store answers");
    let (count, version) = found.map_or((0, Version::default()), |(bytes, version)| {
        (std::str::from_utf8(&bytes).expect("digits").parse::<u32>().expect("a number"), version)
    });
    let id = identity::outgoing_id(&ENDPOINT.into(), &input.source, "h", 0);
    UnitOfWork {
        outgoing: vec![Outgoing {
            entity: OUT.into(),
            message: Message { message_id: Some(id), ..Message::default() },
        }],
        reads: vec![StateRead::Key { key: key.clone(), version }],
        writes: vec![StateWrite { key, value: Some(Bytes::from((count + 1).to_string())) }],
        ..UnitOfWork::default()
    }
}

impl Flow {
    /// With a crash after so many effects. False when the flow had no more effects than that.
    async fn survives(self, effects: usize) -> bool {
        let setup = Setup { retry: (self.retries > 1).then(|| retries(self.retries)).flatten(), ..Setup::default() };
        let world = World::build(Bench::Memory, setup, move |input, number| async move {
            let end = (self.end)(input.event_id.as_str(), number);
            let unit =
                if matches!(end, End::Done | End::Handoff { .. }) { work(&input).await } else { UnitOfWork::default() };
            (end, unit)
        })
        .await;
        world.memory().transport.set_certain(self.certain);
        world.memory().ordered.crash_after(Some(effects));
        world.go().await;
        world.send_events("s", &EVENTS).await;
        let (mut crashed, mut acted) = (false, false);
        let until = Instant::now() + Duration::from_secs(300);
        while !self.is_over(&world).await {
            if Instant::now() > until {
                panic!("crash after {effects}: the flow does not end: {}", world.describe().await);
            }
            if !crashed && world.commits.failures.load(Ordering::SeqCst) > 0 {
                crashed = true;
                world.kill().await;
                world.memory().ordered.crash_after(None);
                world.go().await;
            }
            if let Some((outcome, act)) = self.act
                && !acted
                && world.outcome("E1").await == Some(outcome)
                && world.outcome("E3").await == Some(Outcome::Deferred)
                && world.raw_state("s").await.is_some()
            {
                acted = true;
                match act {
                    Act::On(kind) => drop(world.act(kind, "E1").await.expect("it is accepted")),
                    Act::SkipSession => drop(world.skip_session_soon("s").await),
                }
            }
            sleep(Duration::from_millis(5)).await;
        }
        self.check(&world, effects).await;
        world.end().await;
        crashed
    }

    async fn is_over(&self, world: &World) -> bool {
        for (event, outcome) in EVENTS.into_iter().zip(self.outcomes) {
            if world.outcome(event).await != Some(outcome) {
                return false;
            }
        }
        world.is_idle().await
    }

    async fn check(&self, world: &World, effects: usize) {
        let at = format!("crash after {effects}");
        assert_eq!(world.raw_state("s").await, None, "{at}: an idle session keeps nothing");
        let began = world.script.began();
        let mut in_order = began.clone();
        in_order.sort();
        assert_eq!(began, in_order, "{at}: nothing is overtaken");
        let mut done = 0;
        for (event, outcome) in EVENTS.into_iter().zip(self.outcomes) {
            let history = world.history(event).await;
            let completed = |kind| {
                history.iter().filter(|line| line.kind == kind && line.outcome == Some(Outcome::Completed)).count()
            };
            let runs = completed(HistoryKind::Run);
            let handed_off = history.iter().any(|line| line.outcome == Some(Outcome::Handoff));
            let worked = usize::from(outcome == Outcome::Completed);
            done += worked;
            assert_eq!(runs + completed(HistoryKind::Action), worked, "{at}: {event}: {history:?}");
            assert!(!handed_off || runs == 0, "{at}: {event} is handed off once: {history:?}");
            let count = world.store.state_get(&ENDPOINT.into(), event).await.expect("it answers");
            let count = count.map(|found| found.value);
            assert_eq!(count, (worked == 1).then(|| Bytes::from("1")), "{at}: {event} is done once");
        }
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let sent = world.peek(OUT, Part::Active).await;
            let ids: BTreeSet<_> = sent.into_iter().filter_map(|peeked| peeked.message.message_id).collect();
            if ids.len() == done {
                break;
            }
            assert!(Instant::now() < until, "{at}: {} messages of {done} runs", ids.len());
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn survives_every_crash(self) {
        for certain in [true, false] {
            let flow = Self { certain, ..self };
            let mut effects = 0;
            while flow.survives(effects).await {
                effects += 1;
                assert!(effects < 200, "a flow has an end");
            }
            assert!(effects >= 8, "the flow is not trivial: {effects} effects");
        }
    }
}

fn fails_once(event: &str, number: u32) -> End {
    if event == "E1" && number == 1 { fails("no") } else { End::Done }
}

fn e1_fails(event: &str, _: u32) -> End {
    if event == "E1" { fails("no") } else { End::Done }
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_succeeds() {
    let flow = Flow { end: fails_once, retries: 5, act: None, outcomes: DONE, certain: true };
    flow.survives_every_crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_skip() {
    let outcomes = [Outcome::Skipped, Outcome::Completed, Outcome::Completed];
    let act = Some((Outcome::Failed, Act::On(ActionKind::Skip)));
    Flow { end: e1_fails, retries: 1, act, outcomes, certain: true }.survives_every_crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_resubmission() {
    let act = Some((Outcome::Failed, Act::On(ActionKind::Resubmit)));
    Flow { end: fails_once, retries: 1, act, outcomes: DONE, certain: true }.survives_every_crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_parked_message_that_fails_and_is_retried() {
    fn end(event: &str, number: u32) -> End {
        if event != "E3" && number == 1 { fails("no") } else { End::Done }
    }
    Flow { end, retries: 5, act: None, outcomes: DONE, certain: true }.survives_every_crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_handoff_that_is_completed() {
    fn end(event: &str, _: u32) -> End {
        if event == "E1" {
            End::Handoff { reason: "job".into(), external_id: None, expected_by: None }
        } else {
            End::Done
        }
    }
    let act = Some((Outcome::Handoff, Act::On(ActionKind::HandoffComplete)));
    Flow { end, retries: 1, act, outcomes: DONE, certain: true }.survives_every_crash().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_skipped() {
    let act = Some((Outcome::Failed, Act::SkipSession));
    Flow { end: e1_fails, retries: 1, act, outcomes: [Outcome::Skipped; 3], certain: true }
        .survives_every_crash()
        .await;
}

#[tokio::test(start_paused = true)]
async fn ends_that_block_nothing() {
    fn end(event: &str, _: u32) -> End {
        match event {
            "E1" => End::Discard { reason: "not ours".into() },
            "E2" => End::DeadLetter { reason: "unreadable".into(), text: String::new() },
            _ => End::Done,
        }
    }
    let outcomes = [Outcome::Skipped, Outcome::DeadLettered, Outcome::Completed];
    Flow { end, retries: 1, act: None, outcomes, certain: true }.survives_every_crash().await;
}
