//! Looking without locking (A82).

use std::time::Duration;

use sprag_core::{ids::SequenceNumber, message::Message};

use super::{Bench, entity, id_of, message, next, parked_copy, peeked_ids};
use crate::{Part, Settlement};

const PARTS: [Part; 4] = [Part::Active, Part::Scheduled, Part::Parked, Part::DeadLetters];

/// A82: empty, the last one, beyond the end: a list, never an error.
pub async fn peeking_past_the_end_is_empty(bench: &Bench) {
    let look = |part, from, max| async move {
        bench.transport.peek(&entity("plain"), part, None, SequenceNumber(from), max).await.expect("peeking works")
    };
    for part in PARTS {
        assert!(look(part, 0, 10).await.is_empty());
    }
    let numbers = bench.numbered("plain", &["1", "2", "3"]).await;
    assert_eq!(peeked_ids(&look(Part::Active, 0, 2).await), ["1", "2"]);
    assert_eq!(peeked_ids(&look(Part::Active, numbers[1].0, 10).await), ["2", "3"], "from a number on");
    assert_eq!(peeked_ids(&look(Part::Active, numbers[2].0, 10).await), ["3"]);
    for beyond in [numbers[2].0 + 1, i64::MAX] {
        assert!(look(Part::Active, beyond, 10).await.is_empty());
    }
    assert!(look(Part::Active, 0, 0).await.is_empty());
    assert_eq!(look(Part::Active, -1, 10).await.len(), 3);
}

pub async fn peeking_locks_nothing_and_sees_what_is_locked(bench: &Bench) {
    bench.send("sessions", Some("a"), &["1"]).await;
    bench.send("sessions", Some("b"), &["2"]).await;
    bench.send("sessions", Some("a"), &["3"]).await;
    assert_eq!(peeked_ids(&bench.peek("sessions", Part::Active).await), ["1", "2", "3"]);
    let session = bench.named("sessions", "a").await;
    let delivery = next(&*session).await;
    assert_eq!((id_of(&delivery), delivery.delivery_count), ("1", 1));
    assert_eq!(peeked_ids(&bench.peek("sessions", Part::Active).await), ["1", "2", "3"]);
    let of_a = bench.transport.peek(&entity("sessions"), Part::Active, Some(&"a".into()), SequenceNumber(0), 10).await;
    let of_a = of_a.expect("peeking works");
    assert_eq!(peeked_ids(&of_a), ["1", "3"]);
    assert_eq!(
        (of_a[0].sequence, of_a[0].message.clone(), of_a[0].part),
        (delivery.sequence, message(Some("a"), "1"), Part::Active)
    );
    assert_eq!((of_a[0].delivery_count, of_a[1].delivery_count), (1, 0));
}

pub async fn counts_tell_the_parts_apart(bench: &Bench) {
    let tomorrow = (bench.now)().after(Duration::from_secs(86_400));
    bench.send("sessions", Some("s"), &["1", "2", "3", "4"]).await;
    let later = Message { scheduled_for: Some(tomorrow), ..message(Some("s"), "later") };
    bench.transport.send(&entity("sessions"), vec![later]).await.expect("it is taken");
    let session = bench.offered("sessions").await;
    let dead = next(&*session).await;
    let give_up = Settlement::DeadLetter { reason: "Why".into(), description: String::new() };
    session.settle(dead.lock, give_up).await.expect("it is given up");
    let aside = next(&*session).await;
    session.park(&aside, 1, &parked_copy(&aside, 1)).await.expect("it is parked");
    // Where parking is a change of place, there is nothing left to settle.
    let _either_way = session.settle(aside.lock, Settlement::Complete).await;
    let _in_hand = next(&*session).await;
    let info = bench.transport.describe(&entity("sessions")).await.expect("it is there");
    assert_eq!(
        (info.active, info.scheduled, info.parked, info.dead_letters),
        (2, 1, 1, 1),
        "what is in hand is active"
    );
    assert_eq!(
        (info.requires_session, info.max_delivery_count, info.lock_duration),
        (true, 10, Duration::from_secs(30))
    );
    let listed = bench.transport.entities().await.expect("a listing");
    assert!(listed.contains(&info), "{listed:?}");
}
