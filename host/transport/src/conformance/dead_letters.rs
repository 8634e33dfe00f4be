//! Messages that are given up, and their way back (A33).

use std::time::Duration;

use super::{Bench, complete, entity, id_of, message, next, nothing_next, peeked_ids, release};
use crate::{Part, Settlement};

const LIMIT: &str = "MaxDeliveryCountExceeded";

/// A33: each entity counts to its own limit.
pub async fn limits_are_per_entity(bench: &Bench) {
    for (name, limit) in [("plain-two", 2), ("plain-five", 5)] {
        bench.send(name, None, &["m"]).await;
        for count in 1..=limit {
            let delivery = bench.take(name).await;
            assert_eq!((delivery.delivery_count, delivery.max_delivery_count), (count, limit), "{name}");
            assert!(bench.peek(name, Part::DeadLetters).await.is_empty());
            bench.transport.settle(&entity(name), delivery.lock, Settlement::Abandon).await.expect("it is given back");
        }
        bench.nothing_to_take(name).await;
        let dead = bench.peek(name, Part::DeadLetters).await;
        assert_eq!(dead.len(), 1, "{name}");
        assert_eq!(dead[0].dead_letter_reason.as_deref(), Some(LIMIT));
        assert_eq!(dead[0].part, Part::DeadLetters);
        assert!(dead[0].moved_at.is_some() || bench.far, "since when it is dead");
        assert_eq!(dead[0].message.body, message(None, "m").body);
    }
}

/// The limit takes one message out of a session; the next one is served. Releasing never leads there.
pub async fn a_session_goes_on_after_a_dead_letter(bench: &Bench) {
    bench.send("sessions-two", Some("s"), &["1", "2"]).await;
    let mut session = bench.offered("sessions-two").await;
    for settlement in [Settlement::Abandon, Settlement::Release, Settlement::Release, Settlement::Abandon] {
        let delivery = next(&*session).await;
        assert_eq!(id_of(&delivery), "1");
        session.settle(delivery.lock, settlement).await.expect("it is given back");
        release(&*session).await;
        session = bench.offered("sessions-two").await;
    }
    let delivery = next(&*session).await;
    assert_eq!((id_of(&delivery), delivery.delivery_count), ("2", 1));
    complete(&*session, &delivery).await;
    let dead = bench.peek("sessions-two", Part::DeadLetters).await;
    assert_eq!((peeked_ids(&dead), dead[0].dead_letter_reason.as_deref()), (vec!["1"], Some(LIMIT)));
}

/// Spec 3, step 8.
pub async fn reason_and_description_are_kept(bench: &Bench) {
    let description = "é".repeat(4_096);
    let give_up = || Settlement::DeadLetter { reason: "PermanentFailure".into(), description: description.clone() };
    bench.send("plain", None, &["1"]).await;
    let delivery = bench.take("plain").await;
    bench.transport.settle(&entity("plain"), delivery.lock, give_up()).await.expect("it is given up");
    bench.send("sessions", Some("s"), &["2"]).await;
    let session = bench.offered("sessions").await;
    let delivery = next(&*session).await;
    session.settle(delivery.lock, give_up()).await.expect("it is given up");
    nothing_next(&*session).await;
    for name in ["plain", "sessions"] {
        let dead = bench.peek(name, Part::DeadLetters).await;
        assert_eq!(dead.len(), 1, "{name}");
        assert_eq!(dead[0].dead_letter_reason.as_deref(), Some("PermanentFailure"));
        assert_eq!(dead[0].dead_letter_description.as_ref(), Some(&description));
        assert_eq!(bench.transport.describe(&entity(name)).await.expect("it is there").dead_letters, 1);
    }
}

/// Back on its entity as it was sent, its deliveries counted anew, without the dead-letter properties.
pub async fn what_is_replayed_is_as_it_was(bench: &Bench) {
    let sent = sprag_core::message::Message { session_id: None, ..bench.full_message("m") };
    bench.transport.send(&entity("plain-two"), vec![sent.clone(), message(None, "stays")]).await.expect("it is taken");
    for delivery in bench.transport.receive(&entity("plain-two"), 2, super::EVENTUALLY).await.expect("receiving works")
    {
        let give_up = Settlement::DeadLetter { reason: "Why".into(), description: "because".into() };
        bench.transport.settle(&entity("plain-two"), delivery.lock, give_up).await.expect("it is given up");
    }
    let dead = bench.peek("plain-two", Part::DeadLetters).await;
    assert_eq!(peeked_ids(&dead), ["m", "stays"]);
    let numbers = [dead[0].sequence, sprag_core::ids::SequenceNumber(i64::MAX)];
    assert_eq!(bench.transport.replay_dead_letters(&entity("plain-two"), &numbers).await.expect("an answer"), 1);
    assert_eq!(peeked_ids(&bench.peek("plain-two", Part::DeadLetters).await), ["stays"]);
    for count in 1..=2 {
        let delivery = bench.take("plain-two").await;
        assert_eq!((&*delivery.message, delivery.delivery_count), (&sent, count));
        bench
            .transport
            .settle(&entity("plain-two"), delivery.lock, Settlement::Abandon)
            .await
            .expect("it is given back");
    }
    assert_eq!(bench.peek("plain-two", Part::DeadLetters).await.len(), 2, "the limit counts anew");

    bench.send("sessions", Some("s"), &["1"]).await;
    let session = bench.offered("sessions").await;
    let delivery = next(&*session).await;
    let give_up = Settlement::DeadLetter { reason: "Why".into(), description: "because".into() };
    session.settle(delivery.lock, give_up).await.expect("it is given up");
    session.release(Duration::ZERO).await.expect("the session is released");
    bench.nothing_offered("sessions").await;
    let dead = bench.peek("sessions", Part::DeadLetters).await;
    assert_eq!(
        bench.transport.replay_dead_letters(&entity("sessions"), &[dead[0].sequence]).await.expect("an answer"),
        1
    );
    let session = bench.offered("sessions").await;
    assert_eq!(*next(&*session).await.message, message(Some("s"), "1"));
}
