//! What is different when the broker is somewhere else and other hosts share the work.

use std::time::Duration;

use sprag_core::{
    action::ActionKind,
    ids::EntityName,
    message::{Message, Value, property},
    outcome::{Outcome, kind},
    run::{End, UnitOfWork},
};
use sprag_transport::{Error, Part, Settlement, Transport as _};

use crate::world::{Bench, SOURCE, Setup, World, event, fails, until};

/// P23: deliveries that another host took and that came to nothing, with the locks that lapsed, are counted by the broker: that host's flight
/// recorder is not here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_that_ended_with_another_host_count() {
    let setup = Setup { lock: Duration::from_secs(1), ..Setup::default() };
    let world = World::build(Bench::ServiceBus, setup, |_, _| async { (End::Done, UnitOfWork::default()) }).await;
    world.send_events("s", &["E1", "E2"]).await;
    for _ in 0..3 {
        let session = world.engine().accept(&SOURCE.into(), &"s".into(), Duration::from_secs(10)).await.expect("free");
        let delivery = session.receive(Duration::from_secs(5)).await.expect("it answers");
        assert!(delivery.is_some(), "it is there");
        until("the lock has lapsed", async || session.remaining().is_zero()).await;
    }
    world.go().await;
    world.until_outcome("E1", Outcome::Failed).await;
    let row = world.row("E1").await.expect("it is there");
    assert_eq!(row.outcome.error.expect("why").kind, kind::HOST_ENDED);
    world.until_outcome("E2", Outcome::Deferred).await;
    assert_eq!(world.script.runs_of("E1"), 0, "it is not run a fourth time");
    world.act_and_wait(ActionKind::Resubmit, "E1").await;
    world.until_outcomes(&["E1", "E2"], Outcome::Completed).await;
    world.end().await;
}

/// P23: a delivery that came to nothing for a reason that was noted is no run that ended with its host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_that_are_accounted_for_do_not_count() {
    let world = World::start(Bench::ServiceBus, Setup::default(), |input, number| {
        if input.event_id.as_str() == "E1" && number < 6 { End::transient("not now") } else { End::Done }
    })
    .await;
    world.send_events("s", &["E1"]).await;
    world.until_outcome("E1", Outcome::Completed).await;
    assert_eq!(world.script.runs_of("E1"), 6);
    world.end().await;
}

/// P17: who holds the parked messages of a session keeps them from nobody's sight but from everybody's hands: nothing newer runs meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parked_messages_in_another_hand_are_waited_for() {
    let world = World::start(Bench::ServiceBus, Setup::default(), |input, _| {
        if input.event_id.as_str() == "E1" { fails("no") } else { End::Done }
    })
    .await;
    world.send_events("s", &["E1", "E2", "E3"]).await;
    world.until_outcome("E3", Outcome::Deferred).await;
    world.until_released("s").await;
    let held =
        world.engine().accept(&"orders.deferred".into(), &"s".into(), Duration::from_secs(5)).await.expect("free");
    world.act_and_wait(ActionKind::Skip, "E1").await;
    world.send_events("s", &["E4"]).await;
    until("the drain has met the other hand", async || {
        matches!(
            world.transport.accept(&"orders".into(), &"s".into(), Duration::ZERO).await.map(drop),
            Err(Error::SessionHeld(_))
        )
    })
    .await;
    assert_eq!(world.script.began(), ["E1"], "nothing overtakes what is parked");
    held.release(Duration::ZERO).await.expect("it was held");
    world.until_outcomes(&["E2", "E3", "E4"], Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "E2", "E3", "E4"]);
    world.end().await;
}

/// P31: who may send to the endpoint's entities, and does not have the hosts' key, is not believed: neither that an event is done under another id,
/// nor that a message is a retry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_signed_is_not_believed() {
    let world = World::start(Bench::ServiceBus, Setup::default(), |_, _| End::Done).await;
    world.send_events("s", &["E1"]).await;
    world.until_outcome("E1", Outcome::Completed).await;
    let forged = |id: &str, kind: &str| {
        let mut message: Message = event("s", id);
        message.set_property(property::INBOX_MESSAGE_ID, Value::string("m-E1"));
        message.set_property(property::MESSAGE_TYPE, Value::string(kind));
        message
    };
    world
        .send(vec![forged("E2", "EventRequest"), forged("E3", "RetryRequest"), forged("E4", "ProcessDeferredRequest")])
        .await;
    world.until_outcomes(&["E2", "E3", "E4"], Outcome::Completed).await;
    assert_eq!(world.script.began(), ["E1", "E2", "E3", "E4"], "each is an event like any other");
    assert!(world.is_recorded("m-E2").await, "under its own id");
    world.end().await;
}

/// P24: what is given up beside the endpoint's queue, among the parked messages, is seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_message_that_the_broker_gave_up_is_seen() {
    let world = World::start(Bench::ServiceBus, Setup::default(), |_, _| fails("no")).await;
    world.send_events("s", &["E1", "E2"]).await;
    world.until_outcome("E2", Outcome::Deferred).await;
    let beside = EntityName::from("orders.deferred");
    let session = world.engine().accept(&beside, &"s".into(), Duration::from_secs(10)).await.expect("free");
    let copy = session.receive(Duration::from_secs(5)).await.expect("it answers").expect("it is there");
    let (reason, description) = ("MaxDeliveryCountExceeded".to_owned(), "given up".to_owned());
    session.settle(copy.lock, Settlement::DeadLetter { reason, description }).await.expect("it is held");
    session.release(Duration::ZERO).await.expect("it is held");
    world.until_outcome("E2", Outcome::DeadLettered).await;
    let dead = world.peek("orders", Part::DeadLetters).await;
    assert_eq!(dead.len(), 1, "it is listed as the endpoint's");
    world.end().await;
}
