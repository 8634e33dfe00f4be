//! Messages and sessions as they seldom are.

mod support;

use std::time::Duration;

use bytes::Bytes;
use sprag_broker::EntitySpec;
use sprag_core::message::{IdKind, Message};
use sprag_servicebus::ServiceBus;
use sprag_transport::{Error, Settlement, Transport};

use support::{Broker, EVENTUALLY, any_port, is_lost, message, transport, with_sessions};

async fn bench() -> (Broker, tempfile::TempDir, ServiceBus) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let specs = vec![
        with_sessions("orders", 30),
        with_sessions("orders.deferred", 30),
        with_sessions("others", 30),
        with_sessions("others.deferred", 30),
        EntitySpec::queue("mails"),
    ];
    let broker = Broker::start(dir.path(), specs.clone(), any_port()).await;
    let transport = transport(broker.address(), &specs);
    (broker, dir, transport)
}

async fn through(transport: &ServiceBus, sent: Message) -> Message {
    let mails = "mails".into();
    transport.send(&mails, vec![sent]).await.expect("it is taken");
    let got = transport.receive(&mails, 1, EVENTUALLY).await.expect("receiving works").remove(0);
    transport.settle(&mails, got.lock, Settlement::Complete).await.expect("it is completed");
    (*got.message).clone()
}

/// A86: an id of many bytes and few characters; and ids of all four types, of which none is taken for another's.
#[tokio::test]
async fn ids_of_every_kind() {
    let (_broker, _dir, transport) = bench().await;
    let long = "é".repeat(128);
    assert_eq!(through(&transport, message(None, &long)).await.message_id.expect("it has one").as_str(), long);
    for (kind, text) in [
        (IdKind::String, "1"),
        (IdKind::Ulong, "1"),
        (IdKind::Uuid, "00010203-0405-0607-0809-0a0b0c0d0e0f"),
        (IdKind::Binary, "00ff"),
    ] {
        let mut sent = message(None, text);
        sent.rare_mut().message_id_kind = kind;
        let got = through(&transport, sent).await;
        let found = got.rare.as_deref().map_or(IdKind::String, |rare| rare.message_id_kind);
        assert_eq!((got.message_id.as_ref().map(|id| id.as_str()), found), (Some(text), kind));
    }
}

/// A86, A44: a session that never had a state has none, and one whose state was cleared has none again.
#[tokio::test]
async fn no_state_is_no_error() {
    let (_broker, _dir, transport) = bench().await;
    let orders = "orders".into();
    let held = transport.accept(&orders, &"brand new".into(), EVENTUALLY).await.expect("it is nobody's");
    assert_eq!(held.state().await.expect("state is read"), None);
    held.set_state(Some(Bytes::from_static(b"{}"))).await.expect("state is written");
    held.set_state(None).await.expect("state is cleared");
    assert_eq!(held.state().await.expect("state is read"), None);
}

/// A17, A08: two entities with a session of the same name, held at once: each call is about its own.
#[tokio::test]
async fn sessions_of_one_name_are_not_mixed_up() {
    let (_broker, _dir, transport) = bench().await;
    let mut held = Vec::new();
    for entity in ["orders", "others"] {
        transport.send(&entity.into(), vec![message(Some("s"), entity)]).await.expect("it is taken");
        let session = transport.accept_next(&entity.into(), EVENTUALLY).await.expect("accepting works");
        let session = session.expect("a session is offered");
        session.set_state(Some(Bytes::from(entity))).await.expect("state is written");
        held.push((entity, session));
    }
    for (entity, session) in &held {
        session.renew().await.expect("its own lock is renewed");
        assert_eq!(session.state().await.expect("state is read"), Some(Bytes::from(*entity)));
        let delivery = session.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes");
        assert_eq!(delivery.message.message_id.as_ref().map(|id| id.as_str()), Some(*entity));
    }
    // The end of one is not the other's.
    let (_, first) = held.remove(0);
    first.release(Duration::ZERO).await.expect("it is given back");
    is_lost(first.renew().await);
    held[0].1.renew().await.expect("the other one is held still");
}

/// A13: a completion that is refused is the delivery's own affair: other sessions go on, and so does this one.
#[tokio::test]
async fn a_refused_completion_stops_nothing() {
    let (_broker, _dir, transport) = bench().await;
    let orders = "orders".into();
    for id in ["a", "b"] {
        transport.send(&orders, vec![message(Some(id), id)]).await.expect("it is taken");
    }
    let accept = async || {
        transport.accept_next(&orders, EVENTUALLY).await.expect("accepting works").expect("a session is offered")
    };
    let (first, second) = (accept().await, accept().await);
    let delivery = first.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes");
    first.settle(delivery.lock, Settlement::Complete).await.expect("it is completed");
    is_lost(first.settle(delivery.lock, Settlement::Complete).await);
    let other = second.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes");
    second.settle(other.lock, Settlement::Complete).await.expect("it is completed");
    let id = first.id().to_string();
    transport.send(&orders, vec![message(Some(&id), "next")]).await.expect("it is taken");
    let next = first.receive(EVENTUALLY).await.expect("receiving works").expect("the session goes on");
    first.settle(next.lock, Settlement::Complete).await.expect("it is completed");
}

/// A75: who sends without a session is told before anything leaves, with the event's type.
#[tokio::test]
async fn a_message_without_session_is_named() {
    let (broker, _dir, transport) = bench().await;
    let mut sent = message(None, "m");
    sent.subject = Some("OrderPlaced".into());
    let refused = transport.send(&"orders".into(), vec![sent]).await;
    assert!(matches!(&refused, Err(Error::Refused(text)) if text.contains("OrderPlaced")), "{refused:?}");
    assert_eq!(broker.handle.counts().connections, 0, "nothing has left");
}
