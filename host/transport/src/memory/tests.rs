//! The suites, and the switches that only this transport has.

use std::{sync::Arc, time::Duration};

use sprag_store::memory::MemoryStore;

use super::*;
use crate::{
    Parked,
    conformance::{Bench, EntitySpec, entity, id_of, message, next, parked},
    ordered::Ordered,
};

async fn bench(entities: &[EntitySpec]) -> Bench {
    let configs = entities.iter().map(|spec| EntityConfig {
        name: spec.name.into(),
        requires_session: spec.requires_session,
        lock_duration: spec.lock_duration,
        max_delivery_count: spec.max_delivery_count,
    });
    let (store, transport) = (Arc::new(MemoryStore::new()), Arc::new(MemoryTransport::new(configs)));
    Bench {
        committer: Arc::new(Ordered::new(store.clone(), transport.clone())),
        transport,
        store,
        now: sprag_store::clock::now,
        far: false,
        keep: Box::new(()),
    }
}

crate::transport_conformance!(bench, start_paused = true);
crate::committer_conformance!(bench, start_paused = true);

fn transport() -> MemoryTransport {
    MemoryTransport::new([EntityConfig::sessions("sessions"), EntityConfig::plain("plain")])
}

async fn session_with(transport: &MemoryTransport, ids: &[&str]) -> Arc<dyn Session> {
    let messages = ids.iter().map(|id| message(Some("s"), id)).collect();
    transport.send(&entity("sessions"), messages).await.unwrap();
    transport.accept_next(&entity("sessions"), Duration::ZERO).await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_planned_call_fails_and_changes_nothing() {
    let transport = transport();
    transport.faults().fail(Call::Send, 2, Error::Unavailable("planned".into()));
    for (id, fails) in [("1", false), ("2", true), ("3", false)] {
        assert_eq!(transport.send(&entity("plain"), vec![message(None, id)]).await.is_err(), fails, "{id}");
    }
    assert_eq!(transport.describe(&entity("plain")).await.unwrap().active, 2);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_was_taken_away_is_not_told() {
    let transport = transport();
    let session = session_with(&transport, &["1"]).await;
    let delivery = next(&*session).await;
    transport.lose_session(&entity("sessions"), &"s".into());
    assert!(session.remaining() > Duration::from_secs(20), "its holder thinks that it still holds it");
    assert!(matches!(session.settle(delivery.lock, Settlement::Complete).await, Err(Error::LockLost)));
    let second = transport.accept_next(&entity("sessions"), Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(next(&*second).await.delivery_count, 2);
    transport.lose_all();
    assert!(matches!(second.renew().await, Err(Error::LockLost)));
}

#[tokio::test(start_paused = true)]
async fn sends_can_be_refused() {
    let transport = transport();
    transport.refuse_sends(Some("the disk is full"));
    let refused = transport.send(&entity("plain"), vec![message(None, "1")]).await;
    assert!(matches!(refused, Err(Error::Full(text)) if text == "the disk is full"));
    assert!(transport.enqueue(&entity("plain"), message(None, "1")).await.is_err());
    transport.refuse_sends(None);
    transport.enqueue(&entity("plain"), message(None, "1")).await.unwrap();
    assert_eq!(transport.describe(&entity("plain")).await.unwrap().active, 1);
}

#[tokio::test(start_paused = true)]
async fn a_frozen_transport_answers_once_it_is_thawed() {
    let transport = Arc::new(transport());
    transport.freeze();
    let sending = tokio::spawn({
        let transport = Arc::clone(&transport);
        async move { transport.send(&entity("plain"), vec![message(None, "1")]).await }
    });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!sending.is_finished());
    transport.thaw();
    sending.await.unwrap().unwrap();
}

/// P17: busy is not empty, and an empty look is not proof.
#[tokio::test(start_paused = true)]
async fn looks_at_parked_messages_can_mislead() {
    let transport = transport();
    let session = session_with(&transport, &["1"]).await;
    let delivery = next(&*session).await;
    session.park(&delivery, 1, &delivery.message).await.unwrap();
    session.settle(delivery.lock, Settlement::Complete).await.unwrap();
    transport.set_certain(false);
    transport.next_looks(&[Look::Busy, Look::Empty]);
    assert!(matches!(session.receive_parked().await.unwrap(), Parked::Busy));
    assert!(matches!(session.receive_parked().await.unwrap(), Parked::Empty { certain: false }));
    assert_eq!(id_of(&parked(&*session).await), "1");
}

/// P16: parking is a copy; a crash before the completion leaves both, and both are found.
#[tokio::test(start_paused = true)]
async fn a_crash_between_parking_and_completing_leaves_both() {
    let transport = transport();
    let session = session_with(&transport, &["1"]).await;
    let delivery = next(&*session).await;
    session.park(&delivery, 1, &delivery.message).await.unwrap();
    transport.lose_all();
    let info = transport.describe(&entity("sessions")).await.unwrap();
    assert_eq!((info.active, info.parked), (1, 1));
}
