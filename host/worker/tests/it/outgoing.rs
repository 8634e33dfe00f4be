//! What runs send and write: once per event, whatever came between.

use bytes::Bytes;
use sprag_core::{
    action::ActionKind,
    identity,
    ids::{EndpointName, MessageId},
    message::{Message, Value, property},
    outcome::{Outcome, kind},
    run::{End, Outgoing, StateRead, StateWrite, UnitOfWork, Version},
};
use sprag_runtime::RunInput;
use sprag_transport::Part;

use crate::world::{Bench, ENDPOINT, OUT, Setup, World, event, fails, on_every_bench, retries, until};

on_every_bench! {
    messages_of_a_run_arrive_once_under_derived_ids
    a_message_that_goes_in_a_circle_fails
    a_message_to_nowhere_fails_its_run
    a_counter_that_all_sessions_share_counts_all
    outcomes_are_told_to_the_resolver
}

/// What a run of this event sends, under the id that the runtime would give it.
fn outgoing(input: &RunInput, ordinal: u32) -> Outgoing {
    let id = identity::outgoing_id(&ENDPOINT.into(), &input.source, "h", ordinal);
    Outgoing { entity: OUT.into(), message: Message { message_id: Some(id), ..Message::default() } }
}

fn expected(event: &str, ordinal: u32) -> MessageId {
    identity::outgoing_id(&ENDPOINT.into(), &format!("m-{event}"), "h", ordinal)
}

/// A20, P3, P30: runs that end as failed, transient or discarded send nothing; the run that is done sends each message once, under the id that
/// every run of the event derives; a redelivery and a resubmission of another event add none.
async fn messages_of_a_run_arrive_once_under_derived_ids(bench: Bench) {
    let setup = Setup { retry: retries(2), ..Setup::default() };
    let world = World::start_with(bench, setup, |input, number| async move {
        let unit = UnitOfWork { outgoing: vec![outgoing(&input, 0), outgoing(&input, 1)], ..UnitOfWork::default() };
        let end = match (input.event_id.as_str(), number) {
            ("E1", 1) => End::transient("not now"),
            ("E1", 2 | 3) => fails("no"),
            ("E2", _) => End::Discard { reason: "not ours".into() },
            _ => End::Done,
        };
        (end, unit)
    })
    .await;
    world.send_events("s", &["E1", "E2", "E3"]).await;
    until("the retry has failed", async || world.row("E1").await.is_some_and(|row| row.outcome.attempts == 2)).await;
    world.until_outcome("E3", Outcome::Deferred).await;
    assert!(world.peek(OUT, Part::Active).await.is_empty(), "failed runs send nothing");
    world.act_and_wait(ActionKind::Resubmit, "E1").await;
    world.send_events("s", &["E1", "E2", "E3"]).await;
    until("three duplicates", async || world.count(|counters| &counters.duplicates) == 3).await;
    until("four messages", async || world.peek(OUT, Part::Active).await.len() >= 4).await;
    world.until_idle().await;
    let sent = world.peek(OUT, Part::Active).await;
    let ids: Vec<_> = sent.iter().filter_map(|peeked| peeked.message.message_id.clone()).collect();
    assert_eq!(ids, [expected("E1", 0), expected("E1", 1), expected("E3", 0), expected("E3", 1)]);
    for peeked in &sent {
        assert_eq!(peeked.message.property(property::HOP_COUNT), Some(&Value::Long(1)));
    }
    assert_eq!(world.outcome("E2").await, Some(Outcome::Skipped));
    world.end().await;
}

/// Spec 9: a message that has come through 32 handlers sends nothing more.
async fn a_message_that_goes_in_a_circle_fails(bench: Bench) {
    let world = World::start_with(bench, Setup::default(), |input, _| async move {
        (End::Done, UnitOfWork { outgoing: vec![outgoing(&input, 0)], ..UnitOfWork::default() })
    })
    .await;
    for (id, hops) in [("E31", 31), ("E32", 32)] {
        let mut message = event(id, id);
        message.set_property(property::HOP_COUNT, Value::Long(hops));
        world.send(vec![message]).await;
    }
    world.until_outcome("E31", Outcome::Completed).await;
    world.until_outcome("E32", Outcome::Failed).await;
    let error = world.row("E32").await.expect("it is known").outcome.error.expect("an error");
    assert!(error.text.contains("circle"), "{}", error.text);
    until("one message", async || !world.peek(OUT, Part::Active).await.is_empty()).await;
    let sent = world.peek(OUT, Part::Active).await;
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].message.property(property::HOP_COUNT), Some(&Value::Long(32)));
    world.end().await;
}

/// Spec 5: where no entity takes the message, nothing of the run takes place, and it fails.
async fn a_message_to_nowhere_fails_its_run(bench: Bench) {
    let world = World::start_with(bench, Setup::default(), |input, number| async move {
        let mut outgoing = outgoing(&input, 0);
        if number == 1 {
            outgoing.entity = "nowhere".into();
        }
        let write = StateWrite { key: "k".into(), value: Some(Bytes::from(number.to_string())) };
        (End::Done, UnitOfWork { outgoing: vec![outgoing], writes: vec![write], ..UnitOfWork::default() })
    })
    .await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_outcome("E2", Outcome::Deferred).await;
    let error = world.row("E1").await.expect("it is known").outcome.error.expect("an error");
    assert_eq!(error.kind, kind::COMPONENT_ERROR);
    assert!(error.text.contains("nowhere"), "{}", error.text);
    assert_eq!(world.store.state_get(&ENDPOINT.into(), "k").await.expect("it answers"), None);
    assert!(!world.is_recorded("m-E1").await);
    world.act_and_wait(ActionKind::Resubmit, "E1").await;
    world.until_outcome("E1", Outcome::Completed).await;
    world.end().await;
}

/// P4: 16 sessions count up one key. Conflicting runs are repeated under the same lock; nothing is lost and nothing counted twice.
async fn a_counter_that_all_sessions_share_counts_all(bench: Bench) {
    let setup = Setup { concurrency: 16, deliveries: 1_000, ..Setup::default() };
    let world = World::start_with(bench, setup, |input, _| async move {
        let endpoint = EndpointName::from(ENDPOINT);
        let Ok(found) = input.state.get(&endpoint, "count").await else {
            return (End::transient("the state cannot be read"), UnitOfWork::default());
        };
        let (count, version) = match found {
            Some((bytes, version)) => {
                (std::str::from_utf8(&bytes).expect("digits").parse::<u32>().expect("a number"), version)
            }
            None => (0, Version::default()),
        };
        tokio::task::yield_now().await;
        let unit = UnitOfWork {
            reads: vec![StateRead::Key { key: "count".into(), version }],
            writes: vec![StateWrite { key: "count".into(), value: Some(Bytes::from((count + 1).to_string())) }],
            ..UnitOfWork::default()
        };
        (End::Done, unit)
    })
    .await;
    for number in 0..10 {
        let messages = (0..16).map(|session| event(&format!("s{session}"), &format!("E{session}-{number}")));
        world.send(messages.collect()).await;
    }
    until("all completed", async || world.count(|counters| &counters.completed) == 160).await;
    world.until_idle().await;
    let found = world.store.state_get(&ENDPOINT.into(), "count").await.expect("it answers").expect("it is there");
    assert_eq!(found.value, Bytes::from("160"));
    world.end().await;
}

/// Issue 3, `resolver`: every decision is told once, under an id that follows from it, in the order of its session.
async fn outcomes_are_told_to_the_resolver(bench: Bench) {
    let setup = Setup { resolver: Some(OUT), ..Setup::default() };
    let world = World::start(bench, setup, |input, _| match input.event_id.as_str() {
        "E1" => fails("no"),
        _ => End::Done,
    })
    .await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_outcome("E2", Outcome::Deferred).await;
    world.act_and_wait(ActionKind::Skip, "E1").await;
    world.until_outcomes(&["E2"], Outcome::Completed).await;
    world.send_events("s", &["E2"]).await;
    until("the duplicate is seen", async || world.count(|counters| &counters.duplicates) == 1).await;
    world.until_idle().await;
    until("all is told", async || world.peek(OUT, Part::Active).await.len() == 4).await;
    let told: Vec<_> = world
        .peek(OUT, Part::Active)
        .await
        .into_iter()
        .map(|peeked| {
            let text = |name: &str| peeked.message.text_property(name).unwrap_or_default().to_owned();
            assert_eq!((text("To"), text("From")), ("Resolver".to_owned(), ENDPOINT.to_owned()));
            assert_eq!(peeked.message.session_id, Some("s".into()));
            (text("EventId"), text("MessageType"))
        })
        .collect();
    let expected =
        [("E1", "ErrorResponse"), ("E2", "DeferralResponse"), ("E1", "SkipResponse"), ("E2", "ResolutionResponse")];
    assert_eq!(told, expected.map(|(event, kind)| (event.to_owned(), kind.to_owned())));
    world.end().await;
}
