//! What a lock gives the right to, for how long, and what is left when it is gone (A06, A15).

use std::time::Duration;

use bytes::Bytes;
use sprag_core::message::LockToken;

use super::{Bench, SOON, complete, entity, id_of, next, release};
use crate::{Error, Settlement};

fn lost<T>(what: &str, result: Result<T, Error>) {
    match result {
        Err(Error::LockLost) => {}
        Err(other) => panic!("{what}: {other:?}"),
        Ok(_) => panic!("{what} worked without a lock"),
    }
}

/// A lapsed session refuses every call, changes nothing, and its message comes again, counted.
pub async fn a_lapsed_session_refuses_everything(bench: &Bench) {
    bench.send("sessions-short", Some("s"), &["1"]).await;
    let session = bench.offered("sessions-short").await;
    let delivery = next(&*session).await;
    bench.let_locks_lapse("sessions-short").await;
    assert_eq!(session.remaining(), Duration::ZERO);
    lost("complete", session.settle(delivery.lock, Settlement::Complete).await);
    lost("set_state", session.set_state(Some(Bytes::from_static(b"late"))).await);
    lost("state", session.state().await);
    lost("receive", session.receive(SOON).await);
    lost("receive_parked", session.receive_parked().await);
    lost("park", session.park(&delivery, 1, &delivery.message).await);
    lost("renew", session.renew().await);

    let second = bench.offered("sessions-short").await;
    assert_eq!(second.state().await.expect("state is read"), None);
    let again = next(&*second).await;
    assert_eq!((id_of(&again), again.delivery_count), ("1", 2));
    lost("complete", session.settle(delivery.lock, Settlement::Complete).await);
    lost("the new lock by the old holder", session.settle(again.lock, Settlement::Complete).await);
    // To give back what is lost is no error worth a word, or says what it is; either way it takes nothing from the new holder.
    let _either_way = session.release(Duration::ZERO).await;
    complete(&*second, &again).await;
}

/// A06: a lock that is renewed in time does not lapse, and nobody else gets in.
pub async fn renewing_keeps_a_session(bench: &Bench) {
    bench.send("sessions-short", Some("s"), &["1"]).await;
    let session = bench.offered("sessions-short").await;
    let delivery = next(&*session).await;
    let lock = bench.lock_duration("sessions-short").await;
    for _ in 0..2 {
        tokio::time::sleep(lock * 6 / 10).await;
        let left = session.remaining();
        assert!(left > Duration::ZERO && left < lock * 6 / 10, "{left:?} of {lock:?} is left");
        let renewed = session.renew().await.expect("the lock is renewed");
        assert!(renewed > lock * 8 / 10 && renewed <= lock, "renewed for {renewed:?}");
        assert!(session.remaining() > lock * 6 / 10);
    }
    bench.nothing_offered("sessions-short").await;
    complete(&*session, &delivery).await;
}

/// A holder that went away without a word loses the session when its lock lapses, at the latest.
pub async fn a_dropped_session_comes_back(bench: &Bench) {
    bench.send("sessions-short", Some("s"), &["1"]).await;
    let session = bench.offered("sessions-short").await;
    next(&*session).await;
    drop(session);
    let again = bench.offered("sessions-short").await;
    assert_eq!(id_of(&next(&*again).await), "1");
    release(&*again).await;
}

pub async fn a_lapsed_delivery_cannot_be_settled(bench: &Bench) {
    bench.send("plain-short", None, &["1"]).await;
    let delivery = bench.take("plain-short").await;
    bench.let_locks_lapse("plain-short").await;
    let plain = entity("plain-short");
    lost("complete", bench.transport.settle(&plain, delivery.lock, Settlement::Complete).await);
    lost("renew", bench.transport.renew(&plain, delivery.lock).await);
    let again = bench.take("plain-short").await;
    assert_eq!((id_of(&again), again.delivery_count), ("1", 2));
    lost("complete", bench.transport.settle(&plain, delivery.lock, Settlement::Complete).await);
    bench.transport.settle(&plain, again.lock, Settlement::Complete).await.expect("it is completed");
}

pub async fn renewing_keeps_a_delivery(bench: &Bench) {
    bench.send("plain-short", None, &["1"]).await;
    let delivery = bench.take("plain-short").await;
    let (plain, lock) = (entity("plain-short"), bench.lock_duration("plain-short").await);
    for _ in 0..2 {
        tokio::time::sleep(lock * 6 / 10).await;
        let renewed = bench.transport.renew(&plain, delivery.lock).await.expect("the lock is renewed");
        assert!(renewed > lock * 8 / 10 && renewed <= lock, "renewed for {renewed:?}");
    }
    bench.nothing_to_take("plain-short").await;
    bench.transport.settle(&plain, delivery.lock, Settlement::Complete).await.expect("it is completed");
}

/// A lock is used up by settling; a lock that nobody gave settles nothing (A08).
pub async fn a_lock_settles_once(bench: &Bench) {
    let plain = entity("plain");
    bench.send("plain", None, &["1", "2"]).await;
    let delivery = bench.take("plain").await;
    bench.transport.settle(&plain, delivery.lock, Settlement::Complete).await.expect("it is completed");
    for settlement in [Settlement::Complete, Settlement::Abandon] {
        lost("settling again", bench.transport.settle(&plain, delivery.lock, settlement).await);
    }
    lost("a strange lock", bench.transport.settle(&plain, LockToken(u64::MAX / 2), Settlement::Complete).await);

    bench.send("sessions", Some("a"), &["3"]).await;
    bench.send("sessions", Some("b"), &["4"]).await;
    let (a, b) = (bench.named("sessions", "a").await, bench.named("sessions", "b").await);
    let (in_a, in_b) = (next(&*a).await, next(&*b).await);
    lost("another session's lock", a.settle(in_b.lock, Settlement::Complete).await);
    complete(&*a, &in_a).await;
    lost("settling again", a.settle(in_a.lock, Settlement::Complete).await);
    complete(&*b, &in_b).await;
}
