//! What network clients need beside the transport: several in flight, deferral, peeking, sessions that come back at once.

#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the answer")]

#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use bytes::Bytes;
use sprag_broker::{
    EntitySpec,
    client::{ClientMessage, Error, MessageState, Mode, Sessions, Settle},
};
use sprag_core::{
    ids::SequenceNumber,
    message::{LockToken, Value, property},
    time::Timestamp,
};
use sprag_transport::{Part, Transport as _};
use support::*;

fn complete() -> Settle {
    Settle::Complete
}

fn abandon() -> Settle {
    Settle::Abandon { modified: vec![] }
}

fn defer() -> Settle {
    Settle::Defer { modified: vec![] }
}

fn dead_letter(reason: &str) -> Settle {
    Settle::DeadLetter { reason: Some(reason.into()), description: Some("why".into()), modified: vec![] }
}

fn ids(messages: &[ClientMessage]) -> Vec<&str> {
    messages.iter().map(|it| it.message.message_id.as_ref().unwrap().as_str()).collect()
}

fn token(message: &ClientMessage) -> LockToken {
    message.lock.expect("it is locked").token
}

/// Several in flight; each settled on its own; known and lost told apart.
#[tokio::test]
async fn several_messages_are_in_flight() {
    let (engine, _dir) = engine(vec![EntitySpec::queue("q")]).await;
    let (target, source) = (engine.target(&"Q".into()).unwrap(), engine.source(&"q".into()).unwrap());
    let sent = target.send(["1", "2", "3", "4"].map(message).into()).await.unwrap();
    let got = source.receive(3, EVENTUALLY, Mode::PeekLock).await.unwrap();
    assert_eq!(ids(&got), ["1", "2", "3"]);
    assert_eq!((got[0].sequence, got[0].enqueue_sequence, got[0].delivery_count), (sent[0], sent[0], 1));
    assert!(got[0].lock.unwrap().until > now().after(Duration::from_secs(20)));
    source.settle(token(&got[1]), complete()).await.unwrap();
    let lost = source.settle(token(&got[1]), complete()).await;
    assert!(matches!(lost, Err(Error::LockLost)), "{lost:?}");
    source.settle(token(&got[0]), abandon()).await.unwrap();
    let again = source.receive(10, EVENTUALLY, Mode::PeekLock).await.unwrap();
    assert_eq!(ids(&again), ["1", "4"], "back in its place");
    assert_eq!((again[0].delivery_count, again[1].delivery_count), (2, 1));
    source.settle(token(&again[1]), Settle::Release).await.unwrap();
    let four = source.receive(10, EVENTUALLY, Mode::PeekLock).await.unwrap();
    assert_eq!((ids(&four), four[0].delivery_count), (vec!["4"], 1), "a release does not count");
    assert!(source.receive(1, Duration::ZERO, Mode::PeekLock).await.unwrap().is_empty());

    let renewed = source.renew(&[token(&got[2]), LockToken(7), token(&four[0])]);
    assert!(renewed[0].is_ok() && renewed[2].is_ok(), "{renewed:?}");
    assert!(matches!(renewed[1], Err(Error::LockLost)), "{renewed:?}");
    let topic = engine.source(&"nowhere".into()).err().unwrap();
    assert!(matches!(topic, Error::NoSuchEntity(_)), "{topic}");
}

/// Receive-and-delete: gone from the file before it is handed over.
#[tokio::test]
async fn received_and_deleted_is_gone() {
    let (engine, dir) = engine(vec![EntitySpec::queue("q"), EntitySpec::queue("s").with_sessions()]).await;
    engine.target(&"q".into()).unwrap().send(["1", "2", "3"].map(message).into()).await.unwrap();
    engine.target(&"s".into()).unwrap().send(["1", "2", "3"].map(|id| in_session("a", id)).into()).await.unwrap();
    let got = engine.source(&"q".into()).unwrap().receive(2, EVENTUALLY, Mode::Delete).await.unwrap();
    assert_eq!(ids(&got), ["1", "2"]);
    assert!(got.iter().all(|it| it.lock.is_none()));
    let session = engine.source(&"s".into()).unwrap().accept(&"a".into(), EVENTUALLY).await.unwrap();
    assert_eq!(ids(&session.receive(2, EVENTUALLY, Mode::Delete).await.unwrap()), ["1", "2"]);
    drop(session);
    let engine = reopen(engine, &dir).await;
    for name in ["q", "s"] {
        let left = engine.source(&name.into()).unwrap().peek(SequenceNumber(0), 10, None).await.unwrap();
        assert_eq!(ids(&left), ["3"], "{name}");
    }
}

/// Deferred: not received, but by its number; peeked as deferred; back to the deferred ones when it is given back; counted; after a restart too.
#[tokio::test]
async fn deferred_messages_are_received_by_number() {
    let (engine, dir) = engine(vec![EntitySpec { max_delivery_count: 4, ..EntitySpec::queue("q") }]).await;
    let source = engine.source(&"q".into()).unwrap();
    engine.target(&"q".into()).unwrap().send(["1", "2"].map(message).into()).await.unwrap();
    let got = source.receive(2, EVENTUALLY, Mode::PeekLock).await.unwrap();
    let modified = vec![("note".into(), Value::string("later"))];
    source.settle(token(&got[0]), Settle::Defer { modified }).await.unwrap();
    source.settle(token(&got[1]), abandon()).await.unwrap();
    let (one, two) = (got[0].sequence, got[1].sequence);

    let engine = reopen(engine, &dir).await;
    let source = engine.source(&"q".into()).unwrap();
    let peeked = source.peek(SequenceNumber(0), 10, None).await.unwrap();
    assert_eq!(peeked.iter().map(|it| it.state).collect::<Vec<_>>(), [MessageState::Deferred, MessageState::Active]);
    let counts = engine.entity(&"q".into()).unwrap().counts;
    assert_eq!((counts.active, counts.deferred), (1, 1));
    for (wanted, missing) in
        [(vec![two], two), (vec![one, SequenceNumber(99)], SequenceNumber(99)), (vec![one, one], one)]
    {
        let error = source.receive_deferred(&wanted, Mode::PeekLock).await.unwrap_err();
        assert!(matches!(error, Error::MessageNotFound(it) if it == missing), "{error}");
    }
    let next = source.receive(10, EVENTUALLY, Mode::PeekLock).await.unwrap();
    assert_eq!((ids(&next), next[0].delivery_count), (vec!["2"], 2));
    let deferred = source.receive_deferred(&[one], Mode::PeekLock).await.unwrap().pop().unwrap();
    assert_eq!((deferred.state, deferred.delivery_count), (MessageState::Deferred, 2));
    assert_eq!(deferred.message.text_property("note"), Some("later"));
    assert!(source.receive_deferred(&[one], Mode::PeekLock).await.is_err(), "it is in hand");
    source.settle(token(&deferred), abandon()).await.unwrap();
    assert!(source.receive(1, Duration::ZERO, Mode::PeekLock).await.unwrap().is_empty(), "still deferred");
    let deferred = source.receive_deferred(&[one], Mode::PeekLock).await.unwrap().pop().unwrap();
    source.settle(token(&deferred), defer()).await.unwrap();
    let deferred = source.receive_deferred(&[one], Mode::PeekLock).await.unwrap().pop().unwrap();
    assert_eq!(deferred.delivery_count, 4);
    source.settle(token(&deferred), abandon()).await.unwrap();
    assert!(source.receive_deferred(&[one], Mode::PeekLock).await.is_err(), "its deliveries are used up");
    let dead = until_dead(&engine, "q", 1).await;
    assert_eq!(dead[0].dead_letter_reason.as_deref(), Some("MaxDeliveryCountExceeded"));

    source.settle(token(&next[0]), defer()).await.unwrap();
    let gone = source.receive_deferred(&[two], Mode::Delete).await.unwrap();
    assert_eq!((ids(&gone), gone[0].lock), (vec!["2"], None));
    let counts = engine.entity(&"q".into()).unwrap().counts;
    assert_eq!((counts.active, counts.deferred, counts.dead_letters), (0, 0, 1));
}

/// A deferred message lives as long as it would have lived.
#[tokio::test]
async fn deferred_messages_expire() {
    let spec = EntitySpec { dead_letter_on_expiry: true, ..EntitySpec::queue("q") };
    let (engine, _dir, clock) = timed(vec![spec, EntitySpec::queue("s").with_sessions()]).await;
    let mut short = message("short");
    short.time_to_live = Some(Duration::from_secs(10));
    engine.target(&"q".into()).unwrap().send(vec![short.clone()]).await.unwrap();
    short.session_id = Some("a".into());
    engine.target(&"s".into()).unwrap().send(vec![short]).await.unwrap();
    let source = engine.source(&"q".into()).unwrap();
    let got = source.receive(1, EVENTUALLY, Mode::PeekLock).await.unwrap();
    source.settle(token(&got[0]), defer()).await.unwrap();
    let session = engine.source(&"s".into()).unwrap().accept_next(EVENTUALLY).await.unwrap().unwrap();
    let held = session.receive(1, EVENTUALLY, Mode::PeekLock).await.unwrap();
    assert_eq!(held[0].expires_at, Some(Timestamp(T0 + 10_000)));
    session.settle(token(&held[0]), defer()).await.unwrap();
    advance(&clock, 11);
    let dead = until_dead(&engine, "q", 1).await;
    assert_eq!(dead[0].dead_letter_reason.as_deref(), Some("TTLExpiredException"));
    until("expired", async || engine.entity(&"s".into()).unwrap().counts.deferred == 0).await;
    assert!(session.receive_deferred(&[held[0].sequence], Mode::PeekLock).await.is_err());
}

/// Reason, description and further properties of a dead letter; properties of one that is given back; dead letters can be deferred.
#[tokio::test]
async fn properties_are_modified_when_settled() {
    let (engine, dir) = engine(vec![EntitySpec::queue("q")]).await;
    let source = engine.source(&"q".into()).unwrap();
    engine.target(&"q".into()).unwrap().send(["1", "2"].map(message).into()).await.unwrap();
    let got = source.receive(2, EVENTUALLY, Mode::PeekLock).await.unwrap();
    let modified = vec![("try".into(), Value::Int(1)), ("try".into(), Value::Int(2))];
    source.settle(token(&got[0]), Settle::Abandon { modified }).await.unwrap();
    let modified = vec![("by".into(), Value::string("me"))];
    let how = Settle::DeadLetter { reason: Some("broken".into()), description: None, modified };
    source.settle(token(&got[1]), how).await.unwrap();

    let engine = reopen(engine, &dir).await;
    let source = engine.source(&"q".into()).unwrap();
    let again = source.receive(2, EVENTUALLY, Mode::PeekLock).await.unwrap();
    assert_eq!((again[0].message.property("try"), again[0].delivery_count), (Some(&Value::Int(2)), 2));
    let letters = engine.source(&"q/$deadletterqueue".into()).unwrap();
    assert!(letters.is_dead_letters() && !letters.requires_session());
    let dead = letters.receive(2, EVENTUALLY, Mode::PeekLock).await.unwrap();
    assert_eq!(dead[0].message.text_property(property::DEAD_LETTER_REASON), Some("broken"));
    assert_eq!(dead[0].message.property(property::DEAD_LETTER_DESCRIPTION), None);
    assert_eq!(dead[0].message.text_property("by"), Some("me"));
    letters.settle(token(&dead[0]), defer()).await.unwrap();
    assert!(letters.receive(1, Duration::ZERO, Mode::PeekLock).await.unwrap().is_empty());

    let engine = reopen(engine, &dir).await;
    let letters = engine.source(&"q/$DeadLetterQueue".into()).unwrap();
    let peeked = letters.peek(SequenceNumber(0), 10, None).await.unwrap();
    assert_eq!((ids(&peeked), peeked[0].state), (vec!["2"], MessageState::Deferred));
    assert_eq!(peeked[0].message.text_property(property::DEAD_LETTER_REASON), Some("broken"));
    let dead = letters.receive_deferred(&[peeked[0].sequence], Mode::Delete).await.unwrap();
    assert_eq!(dead[0].message.text_property("by"), Some("me"));
    assert_eq!(engine.entity(&"q".into()).unwrap().counts.dead_letters, 0);
}

/// A lock that lapses again and again uses the deliveries up; the message ends among the dead letters.
#[tokio::test]
async fn lapsed_locks_end_in_the_dead_letters() {
    let short = |spec: EntitySpec| EntitySpec { lock_duration: Duration::from_secs(1), max_delivery_count: 2, ..spec };
    let (engine, _dir) =
        engine(vec![short(EntitySpec::queue("q")), short(EntitySpec::queue("s").with_sessions())]).await;
    engine.target(&"q".into()).unwrap().send(vec![message("m")]).await.unwrap();
    engine.target(&"s".into()).unwrap().send(vec![in_session("a", "m")]).await.unwrap();
    let (source, sessions) = (engine.source(&"q".into()).unwrap(), engine.source(&"s".into()).unwrap());
    for count in 1..=2 {
        let got = source.receive(1, EVENTUALLY, Mode::PeekLock).await.unwrap();
        assert_eq!(got[0].delivery_count, count);
        let session = sessions.accept_next(EVENTUALLY).await.unwrap().unwrap();
        let held = session.receive(1, EVENTUALLY, Mode::PeekLock).await.unwrap();
        assert_eq!(held[0].delivery_count, count);
        until("the locks lapse", async || !session.is_held() && source.renew(&[token(&got[0])])[0].is_err()).await;
        let lost = source.settle(token(&got[0]), complete()).await;
        assert!(matches!(lost, Err(Error::LockLost)), "{lost:?}");
        for lost in
            [session.settle(token(&held[0]), complete()).await, session.renew().map(drop), session.state().map(drop)]
        {
            assert!(matches!(lost, Err(Error::SessionLockLost(_))), "{lost:?}");
        }
    }
    for name in ["q", "s"] {
        let dead = until_dead(&engine, name, 1).await;
        assert_eq!(dead[0].dead_letter_reason.as_deref(), Some("MaxDeliveryCountExceeded"), "{name}");
    }
}

/// Several messages of a session in flight, in order; one that is abandoned comes again in its place; a release gives back what is in hand,
/// uncounted, and the next holder gets it at once.
#[tokio::test]
async fn a_session_has_several_in_flight_in_order() {
    let (engine, _dir) = engine(vec![EntitySpec::queue("s").with_sessions()]).await;
    let source = engine.source(&"s".into()).unwrap();
    let target = engine.target(&"s".into()).unwrap();
    target.send(["1", "2", "3", "4"].map(|id| in_session("a", id)).into()).await.unwrap();
    assert!(matches!(source.receive(1, EVENTUALLY, Mode::PeekLock).await, Err(Error::SessionRequired(_))));
    let session = source.accept_next(EVENTUALLY).await.unwrap().unwrap();
    assert_eq!(session.id().as_str(), "a");
    let got = session.receive(3, EVENTUALLY, Mode::PeekLock).await.unwrap();
    assert_eq!(ids(&got), ["1", "2", "3"]);
    assert!(got[0].lock.unwrap().until <= session.locked_until());
    session.settle(token(&got[1]), complete()).await.unwrap();
    session.settle(token(&got[0]), abandon()).await.unwrap();
    let again = session.receive(3, EVENTUALLY, Mode::PeekLock).await.unwrap();
    assert_eq!(ids(&again), ["1", "4"]);
    assert_eq!(again[0].delivery_count, 2);
    session.settle(token(&got[2]), defer()).await.unwrap();
    let deferred = session.receive_deferred(&[got[2].sequence], Mode::PeekLock).await.unwrap();
    assert_eq!((ids(&deferred), deferred[0].delivery_count), (vec!["3"], 2));
    let elsewhere = session.settle(LockToken(1), complete()).await;
    assert!(matches!(elsewhere, Err(Error::LockLost)), "{elsewhere:?}");

    assert!(matches!(source.accept(&"a".into(), Duration::ZERO).await, Err(Error::SessionHeld(_))));
    let waiting = tokio::spawn({
        let source = source.clone();
        async move { source.accept(&"a".into(), EVENTUALLY).await }
    });
    tokio::task::yield_now().await;
    session.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    let got = next.receive(10, EVENTUALLY, Mode::PeekLock).await.unwrap();
    assert_eq!((ids(&got), got[0].delivery_count, got[1].delivery_count), (vec!["1", "4"], 2, 1));
    let deferred = next.receive_deferred(&[deferred[0].sequence], Mode::PeekLock).await.unwrap();
    assert_eq!(deferred[0].delivery_count, 2);
    let lost = session.settle(token(&got[0]), complete()).await;
    assert!(matches!(lost, Err(Error::SessionLockLost(_))), "the first holder has no right any more: {lost:?}");
    assert!(matches!(session.set_state(None).await, Err(Error::SessionLockLost(_))));
    next.settle(token(&got[0]), dead_letter("broken")).await.unwrap();
    let dead = engine.source(&"s/$DeadLetterQueue".into()).unwrap();
    let dead = dead.receive(1, EVENTUALLY, Mode::PeekLock).await.unwrap();
    assert_eq!(dead[0].message.session_id, Some("a".into()));
    // Dropped, it is given back at once.
    drop(next);
    assert_eq!(source.accept_next(EVENTUALLY).await.unwrap().unwrap().id().as_str(), "a");
}

/// Futures that are dropped while they wait leave nothing behind: no lock, no session, no waiter.
#[tokio::test]
async fn dropped_futures_leak_nothing() {
    let (engine, _dir) = engine(vec![EntitySpec::queue("s").with_sessions(), EntitySpec::queue("q")]).await;
    let (source, plain) = (engine.source(&"s".into()).unwrap(), engine.source(&"q".into()).unwrap());
    for _ in 0..20 {
        let dropped = tokio::time::timeout(Duration::from_millis(1), source.accept_next(EVENTUALLY)).await;
        assert!(dropped.is_err());
        let held = source.accept(&"x".into(), Duration::ZERO).await.unwrap();
        let dropped = tokio::time::timeout(Duration::from_millis(1), source.accept(&"x".into(), EVENTUALLY)).await;
        assert!(dropped.is_err());
        let dropped = tokio::time::timeout(Duration::from_millis(1), held.receive(1, EVENTUALLY, Mode::PeekLock)).await;
        assert!(dropped.is_err());
        let dropped =
            tokio::time::timeout(Duration::from_millis(1), plain.receive(1, EVENTUALLY, Mode::PeekLock)).await;
        assert!(dropped.is_err());
    }
    assert!(source.sessions(Sessions::All, 0, 10).unwrap().is_empty());
    // Woken and dropped before it could look: the wake goes to the next one.
    let mut first = Box::pin(plain.receive(1, EVENTUALLY, Mode::PeekLock));
    let mut second = Box::pin(plain.receive(1, EVENTUALLY, Mode::PeekLock));
    assert!(futures_poll(&mut first).await.is_none() && futures_poll(&mut second).await.is_none());
    engine.target(&"q".into()).unwrap().send(vec![message("m")]).await.unwrap();
    drop(first);
    assert_eq!(ids(&second.await.unwrap()), ["m"]);
    engine.target(&"s".into()).unwrap().send(vec![in_session("x", "m")]).await.unwrap();
    assert_eq!(source.accept(&"x".into(), Duration::ZERO).await.unwrap().id().as_str(), "x");
}

/// Session state: none is none, empty is empty; listed by state, messages and time; all of it after a restart.
#[tokio::test]
async fn session_state_and_listing() {
    let (engine, dir, clock) = timed(vec![EntitySpec::queue("s").with_sessions()]).await;
    let source = engine.source(&"s".into()).unwrap();
    let target = engine.target(&"s".into()).unwrap();
    target.send(vec![in_session("b", "1"), in_session("c", "2")]).await.unwrap();
    let session = source.accept(&"a".into(), Duration::ZERO).await.unwrap();
    assert_eq!(session.state().unwrap(), None);
    session.set_state(Some(Bytes::new())).await.unwrap();
    assert_eq!(session.state().unwrap(), Some(Bytes::new()));
    session.set_state(Some(Bytes::from_static(b"one"))).await.unwrap();
    advance(&clock, 10);
    let other = source.accept(&"b".into(), Duration::ZERO).await.unwrap();
    other.set_state(Some(Bytes::from_static(b"two"))).await.unwrap();
    let names = |which, skip, max| {
        let found = source.sessions(which, skip, max).unwrap();
        found.iter().map(|id| id.as_str().to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(Sessions::All, 0, 10), "a b c");
    assert_eq!(names(Sessions::All, 1, 1), "b");
    assert_eq!(names(Sessions::WithMessages, 0, 10), "b c");
    assert_eq!(names(Sessions::UpdatedSince(Timestamp(T0)), 0, 10), "b");
    drop((session, other));
    let engine = reopen(engine, &dir).await;
    let source = engine.source(&"s".into()).unwrap();
    assert_eq!(source.sessions(Sessions::UpdatedSince(Timestamp(T0)), 0, 10).unwrap(), ["b".into()]);
    let session = source.accept(&"a".into(), Duration::ZERO).await.unwrap();
    assert_eq!(session.state().unwrap(), Some(Bytes::from_static(b"one")));
    session.set_state(None).await.unwrap();
    assert_eq!(session.state().unwrap(), None);
}

/// A peek shows everything in the order of its numbers, with its state; also what a worker has parked, and of one session only.
#[tokio::test]
async fn a_peek_shows_all_states() {
    let (engine, _dir) = engine(vec![EntitySpec::queue("s").with_sessions(), EntitySpec::queue("q")]).await;
    for (name, sessions) in [("s", true), ("q", false)] {
        let target = engine.target(&name.into()).unwrap();
        let mut later = in_session("a", "2 scheduled");
        later.scheduled_for = Some(now().after(Duration::from_secs(3_600)));
        let messages =
            vec![in_session("a", "0"), in_session("b", "1"), later, in_session("a", "3"), in_session("a", "4")];
        target.send(messages).await.unwrap();
        let source = engine.source(&name.into()).unwrap();
        if sessions {
            // The worker parks one, as it does behind a block.
            let worker = engine.accept(&name.into(), &"a".into(), Duration::ZERO).await.unwrap();
            let delivery = worker.receive(EVENTUALLY).await.unwrap().unwrap();
            worker.park(&delivery, 1, &delivery.message).await.unwrap();
            worker.settle(delivery.lock, sprag_transport::Settlement::Complete).await.unwrap();
            worker.release(Duration::ZERO).await.unwrap();
            let session = source.accept(&"a".into(), Duration::ZERO).await.unwrap();
            let got = session.receive(1, EVENTUALLY, Mode::PeekLock).await.unwrap();
            let parked = session.receive_deferred(&[delivery.sequence], Mode::PeekLock).await;
            assert!(matches!(parked, Err(Error::MessageNotFound(_))), "a parked message is the worker's: {parked:?}");
            session.settle(token(&got[0]), defer()).await.unwrap();
        } else {
            let got = source.receive(3, EVENTUALLY, Mode::PeekLock).await.unwrap();
            source.settle(token(&got[0]), defer()).await.unwrap();
            source.settle(token(&got[2]), defer()).await.unwrap();
        }
        let all = source.peek(SequenceNumber(0), 10, None).await.unwrap();
        assert_eq!(ids(&all), ["0", "1", "2 scheduled", "3", "4"], "{name}");
        use MessageState::{Active, Deferred, Scheduled};
        let states: Vec<_> = all.iter().map(|it| it.state).collect();
        assert_eq!(states, [Deferred, Active, Scheduled, Deferred, Active], "{name}");
        let of_a = source.peek(SequenceNumber(0), 10, Some(&"a".into())).await.unwrap();
        assert_eq!(ids(&of_a), ["0", "2 scheduled", "3", "4"], "{name}");
        let page = source.peek(SequenceNumber(all[0].sequence.0 + 1), 2, Some(&"a".into())).await.unwrap();
        assert_eq!(ids(&page), ["2 scheduled", "3"], "{name}");
        assert!(source.peek(SequenceNumber(all[4].sequence.0 + 1), 2, None).await.unwrap().is_empty(), "A82");
        let counts = engine.entity(&name.into()).unwrap().counts;
        assert_eq!((counts.active, counts.deferred, counts.scheduled), (2, 2, 1), "{name}");
    }
}

/// A scheduled message comes due under a new number and keeps the one under which it was accepted; also through a topic and a restart.
#[tokio::test]
async fn scheduled_messages_keep_the_number_of_their_acceptance() {
    let subscription = EntitySpec::subscription(&"t".into(), "s", sprag_broker::FilterSpec::All);
    let (engine, dir, clock) = timed(vec![EntitySpec::queue("q"), EntitySpec::topic("t"), subscription]).await;
    let mut scheduled = Vec::new();
    for name in ["q", "t"] {
        let mut later = message("later");
        later.scheduled_for = Some(Timestamp(T0 + 60_000));
        let sent = engine.target(&name.into()).unwrap().send(vec![later.clone(), later]).await.unwrap();
        engine.target(&name.into()).unwrap().cancel_scheduled(&sent[1..]).await.unwrap();
        let missing = engine.target(&name.into()).unwrap().cancel_scheduled(&sent[1..]).await;
        assert!(matches!(missing, Err(Error::MessageNotFound(it)) if it == sent[1]), "{missing:?}");
        scheduled.push(sent[0]);
    }
    let engine = reopen(engine, &dir).await;
    drop(engine);
    advance(&clock, 61);
    let engine = open_at(dir.path(), &clock);
    for (n, name) in ["q", "t/s"].into_iter().enumerate() {
        let source = engine.source(&name.into()).unwrap();
        let got = source.receive(1, EVENTUALLY, Mode::PeekLock).await.unwrap();
        assert_eq!(got[0].enqueue_sequence, scheduled[n], "{name}");
        assert!(got[0].sequence > scheduled[n], "{name}");
        let peeked = source.peek(SequenceNumber(0), 10, None).await.unwrap();
        assert_eq!(peeked[0].enqueue_sequence, scheduled[n], "{name}");
    }
}

/// 10,000 idle sessions and 1,000 waiting receivers: woken one by one, each by its own entity, without polling.
#[tokio::test(flavor = "multi_thread")]
async fn many_idle_sessions_and_waiting_receivers() {
    let specs =
        (0..10).flat_map(|n| [EntitySpec::queue(format!("q{n}")), EntitySpec::queue(format!("s{n}")).with_sessions()]);
    let (engine, _dir) = engine(specs.collect()).await;
    for n in 0..10 {
        let messages: Vec<_> = (0..1_000).map(|s| in_session(&format!("session-{s}"), "m")).collect();
        engine.target(&format!("s{n}").into()).unwrap().send(messages).await.unwrap();
    }
    let mut waiting = Vec::new();
    for n in 0..1_000 {
        let source = engine.source(&format!("q{}", n % 10).into()).unwrap();
        waiting.push(tokio::spawn(async move { source.receive(1, Duration::from_secs(60), Mode::PeekLock).await }));
    }
    let target: Vec<_> = (0..10).map(|n| engine.target(&format!("q{n}").into()).unwrap()).collect();
    for target in &target {
        target.send((0..100).map(|n| message(&format!("m{n}"))).collect()).await.unwrap();
    }
    for receiver in waiting {
        assert_eq!(receiver.await.unwrap().unwrap().len(), 1);
    }
    assert_eq!(engine.source(&"s0".into()).unwrap().sessions(Sessions::WithMessages, 0, 10_000).unwrap().len(), 1_000);
    assert_eq!(engine.peek(&"q0".into(), Part::Active, None, SequenceNumber(0), 1_000).await.unwrap().len(), 100);
}

/// Everything that a message can carry comes back as it was sent: received, peeked, received after a restart, and as a dead letter.
#[tokio::test]
async fn a_message_keeps_all_it_carries() {
    use sprag_core::message::Message;
    use sprag_store::conformance::sample;
    let (engine, dir) = engine(vec![EntitySpec::queue("q")]).await;
    let bodies = sample::every_body().into_iter().map(|(name, body)| Message { body, ..sample::full_message(name) });
    let sent: Vec<Message> = bodies.collect();
    let (target, source) = (engine.target(&"q".into()).unwrap(), engine.source(&"q".into()).unwrap());
    target.send(sent.clone()).await.unwrap();
    let same = |found: &[ClientMessage]| {
        assert_eq!(found.len(), sent.len());
        for (found, sent) in found.iter().zip(&sent) {
            assert_eq!(*found.message, *sent);
        }
    };
    same(&source.peek(SequenceNumber(0), 100, None).await.unwrap());
    same(&source.receive(100, EVENTUALLY, Mode::PeekLock).await.unwrap());
    let engine = reopen(engine, &dir).await;
    let source = engine.source(&"q".into()).unwrap();
    let got = source.receive(100, EVENTUALLY, Mode::PeekLock).await.unwrap();
    same(&got);
    source.settle(token(&got[0]), dead_letter("broken")).await.unwrap();
    let dead = engine.source(&"q/$DeadLetterQueue".into()).unwrap();
    let mut dead = Message::clone(&dead.receive(1, EVENTUALLY, Mode::PeekLock).await.unwrap()[0].message);
    dead.properties.remove(property::DEAD_LETTER_REASON);
    dead.properties.remove(property::DEAD_LETTER_DESCRIPTION);
    assert_eq!(dead, sent[0]);
}
