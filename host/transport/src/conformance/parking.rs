//! Messages put aside behind a block (P16 to P19, A01, A04).

use sprag_core::message::{Delivery, Message, Origin, property};

use super::{
    Bench, complete, entity, id_of, message, next, nothing_next, nothing_parked, parked, parked_as, parked_copy,
    peeked_ids, release,
};
use crate::{Part, Session, Settlement};

/// Parks the session's next message and settles it, as a commit would.
async fn park_next(session: &dyn Session, sequence: u32) {
    let delivery = next(session).await;
    session.park(&delivery, sequence, &parked_copy(&delivery, sequence)).await.expect("it is parked");
    // Where parking is a change of place, there is nothing left to settle.
    match session.settle(delivery.lock, Settlement::Complete).await {
        Ok(()) | Err(crate::Error::LockLost) => {}
        Err(other) => panic!("{other:?}"),
    }
}

/// Whether a parked copy is of this message: a copy may have an id of its own if it says whose it is, and has the words of its parking beside
/// the message's.
fn is_copy_of(copy: &Message, original: &Message) -> bool {
    let same_id = copy.message_id == original.message_id
        || copy.text_property(property::INBOX_MESSAGE_ID) == original.message_id.as_ref().map(|id| id.as_str());
    same_id
        && copy.session_id == original.session_id
        && copy.body == original.body
        && original.properties.iter().all(|(name, value)| copy.properties.get(name) == Some(value))
}

fn source_of(delivery: &Delivery) -> &str {
    delivery.message.text_property(property::INBOX_MESSAGE_ID).unwrap_or_else(|| id_of(delivery))
}

pub async fn a_parked_message_is_found_again(bench: &Bench) {
    let sent = Message { session_id: Some("s".into()), ..bench.full_message("m") };
    bench.transport.send(&entity("sessions"), vec![sent.clone()]).await.expect("it is taken");
    let session = bench.offered("sessions").await;
    nothing_parked(&*session).await;
    park_next(&*session, 7).await;
    nothing_next(&*session).await;
    let copy = parked(&*session).await;
    assert_eq!((copy.origin, parked_as(&copy)), (Origin::Parked, Some(7)));
    assert!(is_copy_of(&copy.message, &sent), "{:?}", copy.message);
    let seen = bench.peek("sessions", Part::Parked).await;
    assert_eq!((seen.len(), seen[0].parked_as, seen[0].part), (1, Some(7), Part::Parked));
    assert!(seen[0].moved_at.is_some());
    session.settle(copy.lock, Settlement::Complete).await.expect("it is completed");
    nothing_parked(&*session).await;
    assert!(bench.peek("sessions", Part::Parked).await.is_empty());
}

/// Case 61: by parking number, not by when or what; and one at a time.
pub async fn parked_messages_come_in_parking_order(bench: &Bench) {
    bench.send("sessions", Some("s"), &["a", "b", "c", "d"]).await;
    let session = bench.offered("sessions").await;
    for sequence in [2, 10, 1, 9] {
        park_next(&*session, sequence).await;
    }
    let seen = bench
        .transport
        .peek(&entity("sessions"), Part::Parked, Some(&"s".into()), sprag_core::ids::SequenceNumber(0), 10)
        .await;
    assert_eq!(
        seen.expect("peeking works").iter().map(|it| it.parked_as).collect::<Vec<_>>(),
        [Some(1), Some(2), Some(9), Some(10)]
    );
    let mut order = Vec::new();
    for _ in 0..4 {
        let copy = parked(&*session).await;
        order.push(source_of(&copy).to_owned());
        session.settle(copy.lock, Settlement::Complete).await.expect("it is completed");
    }
    assert_eq!(order, ["c", "a", "d", "b"]);
}

/// A01: such a session is not offered, but listed, and served by name.
pub async fn a_session_with_nothing_but_parked_messages(bench: &Bench) {
    bench.send("sessions", Some("s"), &["1", "2"]).await;
    let session = bench.offered("sessions").await;
    park_next(&*session, 1).await;
    park_next(&*session, 2).await;
    release(&*session).await;
    bench.nothing_offered("sessions").await;
    let listed = bench.transport.sessions(&entity("sessions"), None, 10).await.expect("a listing");
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].session.as_str(), listed[0].active, listed[0].parked), ("s", 0, 2));
    assert!(listed[0].oldest_parked_at.is_some());
    let session = bench.named("sessions", "s").await;
    assert_eq!(source_of(&parked(&*session).await), "1");
    let other = bench.named("sessions", "t").await;
    nothing_parked(&*other).await;
}

/// P19: however often it is looked at and put back, a parked copy stays, in its place.
pub async fn parked_copies_burn_no_deliveries(bench: &Bench) {
    bench.send("sessions-two", Some("s"), &["1", "2"]).await;
    let session = bench.offered("sessions-two").await;
    park_next(&*session, 1).await;
    park_next(&*session, 2).await;
    for _ in 0..5 {
        let copy = parked(&*session).await;
        assert_eq!(source_of(&copy), "1");
        session.settle(copy.lock, Settlement::Release).await.expect("it is put back");
    }
    assert!(bench.peek("sessions-two", Part::DeadLetters).await.is_empty());
    assert_eq!(bench.peek("sessions-two", Part::Parked).await.len(), 2);
}

/// A drain that its process did not finish is gone on with by the next holder.
pub async fn a_parked_copy_goes_back_with_its_session(bench: &Bench) {
    bench.send("sessions-two", Some("s"), &["1", "2"]).await;
    let mut session = bench.offered("sessions-two").await;
    park_next(&*session, 1).await;
    park_next(&*session, 2).await;
    for _ in 0..4 {
        assert_eq!(source_of(&parked(&*session).await), "1");
        release(&*session).await;
        session = bench.named("sessions-two", "s").await;
    }
    let copy = parked(&*session).await;
    session.settle(copy.lock, Settlement::Complete).await.expect("it is completed");
    assert_eq!(source_of(&parked(&*session).await), "2");
}

/// P24: a parked message that is given up is seen among the dead letters.
pub async fn a_parked_copy_can_be_a_dead_letter(bench: &Bench) {
    bench.send("sessions", Some("s"), &["1"]).await;
    let session = bench.offered("sessions").await;
    park_next(&*session, 1).await;
    let copy = parked(&*session).await;
    let give_up = Settlement::DeadLetter { reason: "Why".into(), description: "because".into() };
    session.settle(copy.lock, give_up).await.expect("it is given up");
    nothing_parked(&*session).await;
    let dead = bench.peek("sessions", Part::DeadLetters).await;
    assert_eq!(dead.len(), 1);
    assert!(is_copy_of(&dead[0].message, &message(Some("s"), "1")));
    assert!(peeked_ids(&bench.peek("sessions", Part::Active).await).is_empty());
    bench.send("sessions", Some("s"), &["2"]).await;
    let delivery = next(&*session).await;
    assert_eq!(id_of(&delivery), "2");
    complete(&*session, &delivery).await;
}
