//! Entities and rules: made, changed, removed; status; forwarding; what configuration and the administration may do to each other's settings.

#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the answer")]

#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use sprag_broker::{
    Correlation, DEFAULT_RULE, DeclareError, Engine, EntityKind, EntitySpec, EntityStatus, FilterSpec, FilterValue,
    RuleSpec, SqlText,
    client::{ClientMessage, Error, Mode, Settle},
};
use sprag_core::{
    ids::{EntityName, SequenceNumber},
    message::{Message, Value, property},
    time::Timestamp,
};
use sprag_transport::{Settlement, Transport as _};
use support::*;

fn name(text: &str) -> EntityName {
    text.into()
}

fn queue(name: &str) -> EntitySpec {
    EntitySpec::queue(name)
}

fn forwarding(name: &str, to: &str) -> EntitySpec {
    EntitySpec { forward_to: Some(to.into()), ..EntitySpec::queue(name) }
}

fn subscription(topic: &str, name: &str) -> EntitySpec {
    EntitySpec::subscription(&topic.into(), name, FilterSpec::All)
}

async fn send(engine: &Engine, to: &str, message: Message) -> SequenceNumber {
    engine.target(&name(to)).unwrap().send(vec![message]).await.unwrap()[0]
}

async fn look(engine: &Engine, at: &str) -> Vec<ClientMessage> {
    engine.source(&name(at)).unwrap().peek(SequenceNumber(0), 1_000, None).await.unwrap()
}

async fn ids(engine: &Engine, at: &str) -> Vec<String> {
    let id = |it: &ClientMessage| it.message.message_id.as_ref().unwrap().to_string();
    look(engine, at).await.iter().map(id).collect()
}

async fn take(engine: &Engine, from: &str) -> ClientMessage {
    let source = engine.source(&name(from)).unwrap();
    source.receive(1, EVENTUALLY, Mode::PeekLock).await.unwrap().pop().expect("a message comes")
}

async fn settle(engine: &Engine, from: &str, message: &ClientMessage, how: Settle) {
    engine.source(&name(from)).unwrap().settle(message.lock.unwrap().token, how).await.unwrap();
}

fn dead_letter() -> Settle {
    Settle::DeadLetter { reason: Some("broken".into()), description: Some("why".into()), modified: vec![] }
}

/// Made once; described with times, counts and size; names compare without case; all of it after a restart.
#[tokio::test]
async fn entities_are_made_and_described() {
    let (engine, dir, clock) = timed(vec![]).await;
    let made = engine.create_entity(queue("Orders"), vec![]).await.unwrap();
    assert_eq!((made.created_at, made.updated_at, made.bytes), (Timestamp(T0), Timestamp(T0), 0));
    for again in ["Orders", "ORDERS"] {
        let error = engine.create_entity(queue(again), vec![]).await.unwrap_err();
        assert!(matches!(error, DeclareError::Exists(_)), "{error}");
    }
    let error = engine.create_entity(subscription("none", "s"), vec![]).await.unwrap_err();
    assert!(error.to_string().contains("no topic \"none\""), "{error}");
    engine.create_entity(EntitySpec::topic("Shop"), vec![]).await.unwrap();
    engine.create_entity(subscription("shop", "All"), vec![]).await.unwrap();
    assert_eq!(engine.entity(&name("shop")).unwrap().subscriptions, [name("shop/All")]);

    advance(&clock, 5);
    send(&engine, "oRDERS", message("1")).await;
    send(&engine, "shop", message("2")).await;
    assert_eq!(ids(&engine, "SHOP/all").await, ["2"]);
    assert_eq!(engine.describe(&name("orders")).await.unwrap().name, name("Orders"), "as it was declared");
    let mut later = message("3");
    later.scheduled_for = Some(Timestamp(T0 + 3_600_000));
    send(&engine, "orders", later).await;
    let dead = take(&engine, "orders").await;
    settle(&engine, "orders", &dead, dead_letter()).await;
    let view = engine.entity(&name("orders")).unwrap();
    assert_eq!(view.accessed_at, Timestamp(T0 + 5_000));
    assert_eq!((view.counts.active, view.counts.scheduled, view.counts.dead_letters), (0, 1, 1));
    assert!(view.bytes > 0 && view.spec.name == name("Orders"));

    engine.close().await;
    drop(engine);
    let engine = open_at(dir.path(), &clock);
    let again = engine.entity(&name("orders")).unwrap();
    assert_eq!((again.created_at, again.counts, again.bytes), (view.created_at, view.counts, view.bytes));
    let names: Vec<_> = engine.all_entities().into_iter().map(|it| it.spec.name).collect();
    assert_eq!(names, [name("Orders"), name("Shop"), name("shop/All")]);
}

/// What may change changes in place, also for what waits and for who holds something; what Azure fixes is refused.
#[tokio::test]
async fn entities_are_updated_in_place() {
    let (engine, dir, clock) = timed(vec![]).await;
    let spec = EntitySpec { duplicate_detection: Some(Duration::from_secs(60)), ..queue("q") };
    engine.create_entity(spec.clone(), vec![]).await.unwrap();
    send(&engine, "q", message("1")).await;
    advance(&clock, 5);
    let changed = EntitySpec {
        lock_duration: Duration::from_secs(60),
        max_delivery_count: 3,
        default_ttl: Some(Duration::from_secs(100)),
        dead_letter_on_expiry: true,
        duplicate_detection: Some(Duration::from_secs(120)),
        max_message_size: 2_000,
        max_size: Some(1 << 20),
        user_metadata: Some("ours".into()),
        other: [("EnableBatchedOperations".to_owned(), "true".to_owned())].into(),
        ..spec.clone()
    };
    let view = engine.update_entity(EntitySpec { name: name("Q"), ..changed.clone() }).await.unwrap();
    assert_eq!((view.spec, view.updated_at, view.created_at), (changed.clone(), Timestamp(T0 + 5_000), Timestamp(T0)));
    let got = take(&engine, "q").await;
    // Part of a millisecond may have passed.
    assert!((T0 + 64_000..=T0 + 65_000).contains(&got.lock.unwrap().until.0));
    let large = Message { body: sprag_core::message::Body::Data(vec![0; 3_000].into()), ..message("2") };
    let error = engine.target(&name("q")).unwrap().send(vec![large]).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { limit: 2_000, .. }), "{error}");

    for (wrong, setting) in [
        (EntitySpec { requires_session: true, ..changed.clone() }, "requires_session"),
        (EntitySpec { duplicate_detection: None, ..changed.clone() }, "duplicate_detection"),
        (EntitySpec { partitioned: true, ..changed.clone() }, "partitioned"),
    ] {
        let error = engine.update_entity(wrong).await.unwrap_err();
        assert!(matches!(error, DeclareError::Fixed { setting: it, .. } if it == setting), "{error}");
    }
    let error = engine.update_entity(EntitySpec { max_delivery_count: 0, ..changed.clone() }).await.unwrap_err();
    assert!(matches!(error, DeclareError::Invalid { .. }), "{error}");
    let error = engine.update_entity(queue("none")).await.unwrap_err();
    assert!(matches!(error, DeclareError::NoSuchEntity(_)), "{error}");
    engine.close().await;
    drop(engine);
    assert_eq!(open_at(dir.path(), &clock).entity(&name("q")).unwrap().spec, changed);
}

/// Configuration wins for the keys it names, and for those it named before; the rest is the administration's.
#[tokio::test]
async fn configuration_wins_for_what_it_names() {
    let configured = EntitySpec { max_delivery_count: 5, ..queue("q") };
    let orders = EntitySpec::subscription(&name("t"), "s", FilterSpec::Sql("a = 1".into()));
    let (engine, dir) = engine(vec![configured.clone(), EntitySpec::topic("t"), orders.clone()]).await;
    let by_hand = EntitySpec {
        max_delivery_count: 7,
        lock_duration: Duration::from_secs(60),
        status: EntityStatus::SendDisabled,
        user_metadata: Some("ours".into()),
        ..configured.clone()
    };
    engine.update_entity(by_hand.clone()).await.unwrap();
    engine.remove_rule(&name("t/s"), DEFAULT_RULE).await.unwrap();
    engine.add_rule(&name("t/s"), RuleSpec::new("mine", FilterSpec::Nothing)).await.unwrap();

    let engine = reopen(engine, &dir).await;
    engine.declare(vec![configured.clone(), orders]).await.unwrap();
    let spec = engine.entity(&name("q")).unwrap().spec;
    assert_eq!(spec, EntitySpec { max_delivery_count: 5, ..by_hand.clone() }, "only the named one");
    let rules: Vec<_> = engine.rules(&name("t/s")).unwrap().into_iter().map(|rule| rule.spec.name).collect();
    assert_eq!(rules, [DEFAULT_RULE, "mine"], "the filter is named, and its rule is there again");

    let longer = EntitySpec { lock_duration: Duration::from_secs(90), ..queue("Q") };
    engine.declare(vec![longer, subscription("t", "s")]).await.unwrap();
    let spec = engine.entity(&name("q")).unwrap().spec;
    let expected = EntitySpec { max_delivery_count: 10, lock_duration: Duration::from_secs(90), ..by_hand.clone() };
    assert_eq!(spec, expected, "a key that was taken out goes back to its default");
    assert_eq!(engine.rules(&name("t/s")).unwrap()[0].spec.filter, FilterSpec::All);

    engine.remove_rule(&name("t/s"), DEFAULT_RULE).await.unwrap();
    let engine = reopen(engine, &dir).await;
    engine.declare(vec![subscription("t", "s")]).await.unwrap();
    assert_eq!(engine.rules(&name("t/s")).unwrap().len(), 1, "not named, so removing it holds");
}

/// Removed with all it holds; who waits hears of it; who holds has lost it; a new one of that name begins empty.
#[tokio::test(flavor = "multi_thread")]
async fn entities_are_removed_with_all_they_hold() {
    let sessions = queue("s").with_sessions();
    let specs = vec![queue("q"), sessions.clone(), EntitySpec::topic("t"), subscription("t", "a"), queue("other")];
    let (engine, dir) = engine(specs).await;
    let mut later = message("later");
    later.scheduled_for = Some(now().after(Duration::from_secs(3_600)));
    for id in ["1", "2", "3"] {
        send(&engine, "q", message(id)).await;
        send(&engine, "t", message(id)).await;
        send(&engine, "s", in_session("x", id)).await;
    }
    send(&engine, "q", later.clone()).await;
    send(&engine, "t", later).await;
    send(&engine, "other", message("stays")).await;
    let held = take(&engine, "q").await;
    settle(&engine, "q", &held, dead_letter()).await;
    let held = take(&engine, "q").await;
    settle(&engine, "q", &held, Settle::Defer { modified: vec![] }).await;
    let held = take(&engine, "q").await;
    let (source, target) = (engine.source(&name("q")).unwrap(), engine.target(&name("q")).unwrap());
    let session = engine.source(&name("s")).unwrap().accept(&"x".into(), Duration::ZERO).await.unwrap();
    session.set_state(Some(b"state"[..].into())).await.unwrap();
    let worker = engine.accept(&name("s"), &"y".into(), Duration::ZERO).await.unwrap();
    let of_session = session.receive(3, EVENTUALLY, Mode::PeekLock).await.unwrap();
    let letters = engine.source(&name("t/a/$DeadLetterQueue")).unwrap();

    let mut waiting = Vec::new();
    for at in ["q", "t/a/$DeadLetterQueue"] {
        let source = engine.source(&name(at)).unwrap();
        waiting.push(tokio::spawn(async move { source.receive(1, EVENTUALLY, Mode::PeekLock).await.map(drop) }));
    }
    let of_s = engine.source(&name("s")).unwrap();
    let next = of_s.clone();
    waiting.push(tokio::spawn(async move { next.accept_next(EVENTUALLY).await.map(drop) }));
    waiting.push(tokio::spawn(async move { of_s.accept(&"x".into(), EVENTUALLY).await.map(drop) }));
    let more = engine.source(&name("s")).unwrap().accept(&"z".into(), Duration::ZERO).await.unwrap();
    waiting.push(tokio::spawn(async move { more.receive(1, EVENTUALLY, Mode::PeekLock).await.map(drop) }));
    let by_transport = engine.clone();
    let worker_waits = tokio::spawn(async move { by_transport.receive(&name("q"), 1, EVENTUALLY).await.map(drop) });
    // Whether or not they wait already: both ways must end.
    tokio::task::yield_now().await;
    let began = std::time::Instant::now();
    for it in ["q", "S", "t"] {
        engine.remove_entity(&name(it)).await.unwrap();
        let error = engine.remove_entity(&name(it)).await.unwrap_err();
        assert!(matches!(error, DeclareError::NoSuchEntity(_)), "{error}");
    }
    for waiter in waiting {
        let error = waiter.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::NoSuchEntity(_)), "{error}");
    }
    let error = worker_waits.await.unwrap().unwrap_err();
    assert!(matches!(error, sprag_transport::Error::NoSuchEntity(_)), "{error}");
    assert!(began.elapsed() < EVENTUALLY / 2);

    let error = target.send(vec![message("4")]).await.unwrap_err();
    assert!(matches!(error, Error::NoSuchEntity(_)), "{error}");
    for error in [
        source.settle(held.lock.unwrap().token, Settle::Complete).await.unwrap_err(),
        source.settle(held.lock.unwrap().token, Settle::Release).await.unwrap_err(),
        source.renew(&[held.lock.unwrap().token]).pop().unwrap().unwrap_err(),
    ] {
        assert!(matches!(error, Error::LockLost), "{error}");
    }
    for error in [
        session.settle(of_session[0].lock.unwrap().token, Settle::Complete).await.unwrap_err(),
        session.renew().unwrap_err(),
        session.set_state(None).await.unwrap_err(),
        letters.receive(1, Duration::ZERO, Mode::PeekLock).await.map(drop).unwrap_err(),
        source.peek(SequenceNumber(0), 1, None).await.map(drop).unwrap_err(),
    ] {
        assert!(matches!(error, Error::NoSuchEntity(_)), "{error}");
    }
    assert!(matches!(worker.renew().await, Err(sprag_transport::Error::LockLost)));
    let names: Vec<_> = engine.all_entities().into_iter().map(|it| it.spec.name).collect();
    assert_eq!(names, [name("other")]);
    assert_eq!(engine.entities().await.unwrap().len(), 1);

    engine.create_entity(queue("q"), vec![]).await.unwrap();
    engine.create_entity(sessions, vec![]).await.unwrap();
    let error = target.send(vec![message("4")]).await.unwrap_err();
    assert!(matches!(error, Error::NoSuchEntity(_)), "what was found before means the one that has gone: {error}");
    assert!(ids(&engine, "q").await.is_empty() && ids(&engine, "q/$DeadLetterQueue").await.is_empty());
    send(&engine, "q", message("new")).await;
    let engine = reopen(engine, &dir).await;
    assert_eq!(ids(&engine, "q").await, ["new"]);
    assert_eq!(ids(&engine, "other").await, ["stays"]);
    let fresh = engine.source(&name("s")).unwrap().accept(&"x".into(), Duration::ZERO).await.unwrap();
    assert_eq!(fresh.state().unwrap(), None);
    engine.close().await;
    let connection = rusqlite::Connection::open(dir.path().join(sprag_broker::FILE)).unwrap();
    let left = connection.query_row("SELECT count(*) FROM message", [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(left, 2, "nothing of what was removed is left in the file");
}

/// Sends that are on their way while their entity is removed are refused or removed, never left behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_removal_and_sends_at_the_same_time() {
    let (engine, dir) = engine(vec![]).await;
    for round in 0..20 {
        engine.create_entity(queue("q"), vec![]).await.unwrap();
        let target = engine.target(&name("q")).unwrap();
        let senders: Vec<_> = (0..8)
            .map(|n| {
                let target = target.clone();
                tokio::spawn(async move { while target.send(vec![message(&n.to_string())]).await.is_ok() {} })
            })
            .collect();
        if round % 2 == 0 {
            take(&engine, "q").await;
        }
        engine.remove_entity(&name("q")).await.unwrap();
        for sender in senders {
            sender.await.unwrap();
        }
    }
    engine.close().await;
    let connection = rusqlite::Connection::open(dir.path().join(sprag_broker::FILE)).unwrap();
    let left = connection.query_row("SELECT count(*) FROM message", [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(left, 0);
}

/// A status is refused as such, in the direction that it names; also for who waits already.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_closes_what_it_names() {
    let (engine, _dir) = engine(vec![queue("q")]).await;
    let (source, target) = (engine.source(&name("q")).unwrap(), engine.target(&name("q")).unwrap());
    let status = async |status| engine.update_entity(EntitySpec { status, ..queue("q") }).await.unwrap();
    let sends = async || match target.send(vec![message("m")]).await {
        Ok(_) => true,
        Err(Error::Disabled { .. }) => false,
        Err(other) => panic!("{other}"),
    };
    let receives = async || match source.receive(1, Duration::ZERO, Mode::Delete).await {
        Ok(_) => true,
        Err(Error::Disabled { .. }) => false,
        Err(other) => panic!("{other}"),
    };
    for (now, expected) in [
        (EntityStatus::SendDisabled, (false, true)),
        (EntityStatus::ReceiveDisabled, (true, false)),
        (EntityStatus::Disabled, (false, false)),
        (EntityStatus::Active, (true, true)),
    ] {
        status(now).await;
        assert_eq!((sends().await, receives().await), expected, "{now:?}");
    }
    // One is left, and would end the wait.
    source.receive(1, Duration::ZERO, Mode::Delete).await.unwrap();
    let waiting = tokio::spawn({
        let source = source.clone();
        async move { source.receive(1, EVENTUALLY, Mode::PeekLock).await }
    });
    tokio::task::yield_now().await;
    status(EntityStatus::Disabled).await;
    let heard = waiting.await.unwrap();
    assert!(matches!(heard, Err(Error::Disabled { .. })), "{heard:?}");
    let by_transport = engine.send(&name("q"), vec![message("m")]).await.unwrap_err();
    assert!(by_transport.to_string().contains("status"), "{by_transport}");
    let by_transport = engine.receive(&name("q"), 1, Duration::ZERO).await.unwrap_err();
    assert!(by_transport.to_string().contains("status"), "{by_transport}");
}

/// On in the same transaction: through queues, a topic and a subscription; what waits goes on when forwarding is turned on; scheduled ones
/// when they come due.
#[tokio::test]
async fn messages_are_forwarded() {
    let subscription = EntitySpec { forward_to: Some(name("end")), ..subscription("t", "s") };
    let specs = vec![queue("end"), EntitySpec::topic("t"), subscription, forwarding("b", "t"), forwarding("a", "B")];
    let (engine, _dir, clock) = timed(specs).await;
    let sent = send(&engine, "a", message("1")).await;
    assert_eq!(look(&engine, "end").await[0].sequence, sent, "there when the sender hears of it");
    assert_eq!(engine.entity(&name("a")).unwrap().counts.active, 0);
    let error = engine.source(&name("a")).unwrap().receive(1, Duration::ZERO, Mode::PeekLock).await.unwrap_err();
    assert!(error.to_string().contains("forwarded"), "{error}");

    let mut later = message("2");
    later.scheduled_for = Some(Timestamp(T0 + 60_000));
    let scheduled = send(&engine, "a", later).await;
    assert_eq!(engine.entity(&name("a")).unwrap().counts.scheduled, 1);
    advance(&clock, 61);
    until("it comes due", async || ids(&engine, "end").await.len() == 2).await;
    assert_eq!(look(&engine, "end").await[1].enqueue_sequence, scheduled);

    engine.create_entity(queue("c"), vec![]).await.unwrap();
    send(&engine, "c", message("3")).await;
    send(&engine, "c", message("4")).await;
    let held = take(&engine, "c").await;
    engine.update_entity(forwarding("c", "end")).await.unwrap();
    until("what waits goes on", async || ids(&engine, "end").await == ["1", "2", "4"]).await;
    settle(&engine, "c", &held, Settle::Abandon { modified: vec![] }).await;
    until("what is given back goes on", async || ids(&engine, "end").await == ["1", "2", "4", "3"]).await;
    let counts = engine.entity(&name("c")).unwrap();
    assert_eq!((counts.counts.active, counts.bytes), (0, 0));
}

/// A target that is not there, itself, a loop, a session entity, a topic: refused. A long way is not: what gets too far is a transfer dead
/// letter where it has got to.
#[tokio::test]
async fn ways_of_forwarding_are_checked() {
    let (engine, _dir) =
        engine(vec![queue("z"), forwarding("4", "z"), forwarding("3", "4"), forwarding("2", "3")]).await;
    engine.create_entity(forwarding("1", "2"), vec![]).await.expect("four hops are allowed");
    send(&engine, "1", message("m")).await;
    assert_eq!(ids(&engine, "z").await, ["m"]);
    engine.create_entity(forwarding("0", "1"), vec![]).await.expect("as on Azure");
    send(&engine, "0", message("too far")).await;
    assert_eq!(ids(&engine, "z").await, ["m"]);
    let far = take(&engine, "4/$Transfer/$DeadLetterQueue").await;
    assert_eq!(far.message.message_id, Some("too far".into()));
    assert_eq!(far.message.text_property(property::DEAD_LETTER_REASON), Some("MaxTransferHopCountExceeded"));
    engine.create_entity(EntitySpec::topic("t"), vec![]).await.unwrap();
    engine.create_entity(subscription("t", "s"), vec![]).await.unwrap();
    for (wrong, part) in [
        (forwarding("x", "none"), "not there"),
        (forwarding("x", "X"), "itself"),
        (forwarding("x", "t/s"), "names a subscription"),
        (forwarding("x", "z").with_sessions(), "sessions cannot forward"),
        (EntitySpec { kind: EntityKind::Topic, ..forwarding("x", "z") }, "a topic has no forward_to"),
        (EntitySpec { forward_dead_letters_to: Some(name("none")), ..queue("x") }, "not there"),
    ] {
        let error = engine.create_entity(wrong, vec![]).await.unwrap_err();
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    for (wrong, part) in [
        (EntitySpec { forward_to: Some(name("1")), ..queue("z") }, "loop"),
        (EntitySpec { forward_to: Some(name("t")), ..subscription("t", "s") }, "loop"),
    ] {
        let error = engine.update_entity(wrong).await.unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// What cannot go on stays among the transfer dead letters with the reason: the target has gone, is closed, is full, needs a session, takes no
/// message of that size. They are kept, and received, counted and settled as dead letters are.
#[tokio::test]
async fn what_cannot_be_forwarded_is_a_transfer_dead_letter() {
    let small = EntitySpec { max_size: Some(300), ..queue("small") };
    let narrow = EntitySpec { max_message_size: 100, ..queue("narrow") };
    let specs = vec![queue("gone"), queue("closed"), small, queue("sessions").with_sessions(), narrow];
    let (engine, dir) = engine(specs).await;
    for to in ["gone", "closed", "small", "sessions", "narrow"] {
        engine.create_entity(forwarding(&format!("to-{to}"), to), vec![]).await.unwrap();
    }
    engine.remove_entity(&name("gone")).await.unwrap();
    engine.update_entity(EntitySpec { status: EntityStatus::Disabled, ..queue("closed") }).await.unwrap();
    let large = |id: &str| Message { body: sprag_core::message::Body::Data(vec![0; 200].into()), ..message(id) };
    send(&engine, "to-small", large("fits")).await;
    let engine = reopen(engine, &dir).await;
    for (to, reason, problem) in [
        ("gone", "MessagingEntityNotFound", "not there"),
        ("closed", "MessagingEntityDisabled", "Disabled"),
        ("small", "QuotaExceeded", "full"),
        ("sessions", "Session ID is null", "session"),
        ("narrow", "MessageSizeExceeded", "at most 100"),
    ] {
        let from = format!("to-{to}");
        send(&engine, &from, large("m")).await;
        let letters = format!("{from}/$Transfer/$DeadLetterQueue");
        let dead = take(&engine, &letters).await;
        assert_eq!(dead.message.text_property(property::DEAD_LETTER_REASON), Some(reason), "{from}");
        let text = dead.message.text_property(property::DEAD_LETTER_DESCRIPTION).unwrap();
        assert!(text.contains(problem), "{from}: {text}");
        let counts = engine.entity(&name(&from)).unwrap().counts;
        assert_eq!((counts.active, counts.dead_letters, counts.transfer_dead_letters), (0, 0, 1), "{from}");
        assert!(ids(&engine, &format!("{from}/$DeadLetterQueue")).await.is_empty(), "{from}");
        settle(&engine, &letters, &dead, Settle::Release).await;
    }
    assert_eq!(ids(&engine, "small").await, ["fits"]);

    // Kept; given out again and again; dead-lettered again it stays; deferred, it is there by its number; completed, it is gone.
    let engine = reopen(engine, &dir).await;
    let letters = "TO-gone/$transfer/$deadletterqueue";
    for _ in 0..12 {
        let letter = take(&engine, letters).await;
        settle(&engine, letters, &letter, Settle::Abandon { modified: vec![] }).await;
    }
    let letter = take(&engine, letters).await;
    settle(&engine, letters, &letter, dead_letter()).await;
    let letter = take(&engine, letters).await;
    assert_eq!(letter.message.text_property(property::DEAD_LETTER_REASON), Some("broken"));
    settle(&engine, letters, &letter, Settle::Defer { modified: vec![] }).await;
    let engine = reopen(engine, &dir).await;
    assert_eq!(engine.entity(&name("to-gone")).unwrap().counts.transfer_dead_letters, 1);
    let source = engine.source(&name(letters)).unwrap();
    let deferred = source.receive_deferred(&[letter.sequence], Mode::PeekLock).await.unwrap();
    source.settle(deferred[0].lock.unwrap().token, Settle::Complete).await.unwrap();
    let view = engine.entity(&name("to-gone")).unwrap();
    assert_eq!((view.counts, view.bytes), (Default::default(), 0));

    // Replayed, they go on when they can by now.
    let far = look(&engine, "to-closed/$Transfer/$DeadLetterQueue").await[0].sequence;
    engine.update_entity(queue("closed")).await.unwrap();
    let replayed = engine.replay_dead_letters(&name("to-closed/$Transfer/$DeadLetterQueue"), &[far]).await.unwrap();
    assert_eq!(replayed, 1);
    until("it has gone on", async || ids(&engine, "closed").await == ["m"]).await;
    assert_eq!(engine.entity(&name("to-closed")).unwrap().counts, Default::default());

    // What waited before its entity forwarded.
    engine.create_entity(queue("late"), vec![]).await.unwrap();
    send(&engine, "late", message("waits")).await;
    engine.update_entity(forwarding("late", "sessions")).await.unwrap();
    until("it cannot go on", async || ids(&engine, "late/$Transfer/$DeadLetterQueue").await == ["waits"]).await;
    assert_eq!(engine.entity(&name("late")).unwrap().counts.transfer_dead_letters, 1);
    // A copy of a subscription.
    engine.create_entity(EntitySpec::topic("t"), vec![]).await.unwrap();
    let sub = EntitySpec { forward_to: Some(name("sessions")), ..subscription("t", "s") };
    engine.create_entity(sub, vec![]).await.unwrap();
    send(&engine, "t", message("copy")).await;
    assert_eq!(ids(&engine, "t/s/$Transfer/$DeadLetterQueue").await, ["copy"]);
}

/// Rules that configuration names are in place of `$Default`: made, changed, gone when they are named no more; those of the administration
/// stay. All of it over restarts.
#[tokio::test]
async fn configuration_names_rules() {
    let s = name("t/s");
    let rule = |name: &str, sql: &str| RuleSpec::new(name, FilterSpec::Sql(sql.into()));
    let ruled = |rules: Vec<RuleSpec>| vec![EntitySpec::topic("t"), EntitySpec { rules, ..subscription("t", "s") }];
    let names = |engine: &Engine| {
        let seen = engine.rules(&s).unwrap();
        seen.into_iter().map(|it| it.spec.name).collect::<Vec<_>>()
    };
    let (first, dir) = engine(ruled(vec![rule("a", "x = 1"), rule("b", "x = 2").with_action("SET y = 3")])).await;
    assert_eq!(names(&first), ["a", "b"]);
    let mut sent = message("m");
    sent.set_property("x", Value::Int(2));
    send(&first, "t", sent).await;
    assert_eq!(look(&first, "t/s").await[0].message.property("y"), Some(&Value::Long(3)));
    first.add_rule(&s, rule("mine", "x = 9")).await.unwrap();
    first.update_rule(&s, rule("a", "x = 8")).await.unwrap();
    assert!(first.entity(&s).unwrap().spec.rules.is_empty(), "what they are, `rules` says");

    let engine = reopen(first, &dir).await;
    engine.declare(ruled(vec![rule("A", "x = 1"), rule("c", "x = 3")])).await.unwrap();
    assert_eq!(names(&engine), ["a", "c", "mine"], "b is no more named, mine is not configuration's");
    assert_eq!(engine.rules(&s).unwrap()[0].spec.filter, FilterSpec::Sql("x = 1".into()));
    engine.add_rule(&s, RuleSpec::new(DEFAULT_RULE, FilterSpec::All)).await.unwrap();
    engine.declare(ruled(vec![rule("A", "x = 1"), rule("c", "x = 3")])).await.unwrap();
    assert_eq!(names(&engine), [DEFAULT_RULE, "a", "c", "mine"], "added by hand since");

    let engine = reopen(engine, &dir).await;
    let filtered = EntitySpec::subscription(&name("t"), "s", FilterSpec::Sql("x = 5".into()));
    engine.declare(vec![filtered.clone()]).await.unwrap();
    assert_eq!(names(&engine), [DEFAULT_RULE, "mine"]);
    assert_eq!(engine.rules(&s).unwrap()[0].spec.filter, FilterSpec::Sql("x = 5".into()));
    engine.declare(ruled(vec![rule("d", "x = 4")])).await.unwrap();
    assert_eq!(names(&engine), ["d", "mine"], "the filter is no more named");
    engine.declare(vec![subscription("t", "s")]).await.unwrap();
    assert_eq!(names(&engine), [DEFAULT_RULE, "mine"]);
    assert_eq!(engine.rules(&s).unwrap()[0].spec.filter, FilterSpec::All);

    for (wrong, part) in [
        (EntitySpec { rules: vec![rule("a", "1=1"), rule("A", "1=1")], ..filtered.clone() }, "a filter and rules"),
        (EntitySpec { rules: vec![rule("a", "1=1"), rule("A", "1=1")], ..subscription("t", "s") }, "two rules named"),
        (EntitySpec { rules: vec![rule("bad", "x = ")], ..subscription("t", "s") }, "rule \"bad\""),
        (EntitySpec { rules: vec![rule("a", "1=1")], ..queue("q") }, "no subscription"),
    ] {
        let error = engine.declare(vec![wrong]).await.unwrap_err();
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

/// Dead letters go on with reason and source, whatever made them dead; those that are there already as well; from the worker's API too.
#[tokio::test]
async fn dead_letters_are_forwarded() {
    let to_letters = |spec: EntitySpec| EntitySpec { forward_dead_letters_to: Some(name("letters")), ..spec };
    let specs = vec![queue("letters"), to_letters(EntitySpec { max_delivery_count: 1, ..queue("Q") }), queue("late")];
    let (engine, dir, clock) = timed(specs).await;
    let check = async |engine: &Engine, id: &str, source: &str, reason: &str| {
        let letter = take(engine, "letters").await;
        assert_eq!(letter.message.message_id, Some(id.into()));
        assert_eq!(letter.message.text_property(property::DEAD_LETTER_REASON), Some(reason));
        assert_eq!(letter.message.rare.as_ref().unwrap().dead_letter_source, Some(name(source)));
        settle(engine, "letters", &letter, Settle::Complete).await;
    };
    send(&engine, "q", message("1")).await;
    let got = take(&engine, "q").await;
    settle(&engine, "q", &got, dead_letter()).await;
    check(&engine, "1", "Q", "broken").await;
    send(&engine, "q", message("2")).await;
    let got = take(&engine, "q").await;
    settle(&engine, "q", &got, Settle::Abandon { modified: vec![] }).await;
    check(&engine, "2", "Q", "MaxDeliveryCountExceeded").await;
    send(&engine, "q", message("3")).await;
    let got = engine.receive(&name("q"), 1, EVENTUALLY).await.unwrap().pop().unwrap();
    let how = Settlement::DeadLetter { reason: "by the worker".into(), description: String::new() };
    engine.settle(&name("q"), got.lock, how).await.unwrap();
    check(&engine, "3", "Q", "by the worker").await;

    send(&engine, "late", message("4")).await;
    let got = take(&engine, "late").await;
    settle(&engine, "late", &got, dead_letter()).await;
    engine.update_entity(to_letters(queue("late"))).await.unwrap();
    check(&engine, "4", "late", "broken").await;
    for entity in ["q", "late", "letters"] {
        let view = engine.entity(&name(entity)).unwrap();
        assert_eq!((view.counts, view.bytes), (Default::default(), 0), "{entity}");
    }

    // What cannot go on stays a dead letter here, and is none that is tried for ever.
    engine.remove_entity(&name("letters")).await.unwrap();
    send(&engine, "q", message("5")).await;
    let got = take(&engine, "q").await;
    settle(&engine, "q", &got, dead_letter()).await;
    engine.close().await;
    drop(engine);
    let engine = open_at(dir.path(), &clock);
    // It was tried again at the start.
    until("it is back", async || ids(&engine, "q/$DeadLetterQueue").await == ["5"]).await;
    assert_eq!(engine.entity(&name("q")).unwrap().counts.dead_letters, 1);
}

/// Rules: `$Default` when none is given; added, changed, removed, listed; several with actions make several copies; after a restart too.
#[tokio::test]
async fn rules_choose_and_change_copies() {
    let (engine, dir) = engine(vec![EntitySpec::topic("t")]).await;
    let s = name("t/s");
    engine.create_entity(subscription("t", "s"), vec![]).await.unwrap();
    assert_eq!(engine.rules(&s).unwrap()[0].spec, RuleSpec::new(DEFAULT_RULE, FilterSpec::All));
    let red = SqlText {
        expression: "color = @color".into(),
        parameters: [("@color".to_owned(), FilterValue::Text("red".into()))].into(),
    };
    let red = RuleSpec::new("red", FilterSpec::SqlWith(Box::new(red)))
        .with_action("SET quantity = quantity / 2; REMOVE note");
    engine.add_rule(&s, red.clone()).await.unwrap();
    let gold = Correlation { subject: Some("gold".into()), ..Correlation::default() };
    let gold = RuleSpec::new("gold", FilterSpec::Correlation(Box::new(gold)))
        .with_action("SET sys.Label = 'was ' + sys.Label");
    engine.add_rule(&s, gold).await.unwrap();
    let error = engine.add_rule(&s, RuleSpec::new("RED", FilterSpec::All)).await.unwrap_err();
    assert!(matches!(error, DeclareError::RuleExists { .. }), "{error}");
    let error = engine.add_rule(&s, RuleSpec::new("bad", FilterSpec::Sql("a = ".into()))).await.unwrap_err();
    assert!(matches!(error, DeclareError::Filter { .. }), "{error}");
    let error = engine.add_rule(&name("t"), RuleSpec::new("r", FilterSpec::All)).await.unwrap_err();
    assert!(error.to_string().contains("no subscription"), "{error}");

    let engine = reopen(engine, &dir).await;
    let mut sent = message("m");
    sent.subject = Some("gold".into());
    sent.set_property("color", Value::string("red"));
    sent.set_property("quantity", Value::Int(10));
    sent.set_property("note", Value::Null);
    send(&engine, "t", sent.clone()).await;
    let copies = look(&engine, "t/s").await;
    let rule = |it: &ClientMessage| it.message.text_property("RuleName").map(str::to_owned);
    assert_eq!(copies.iter().map(rule).collect::<Vec<_>>(), [None, Some("gold".to_owned()), Some("red".to_owned())]);
    assert_eq!(*copies[0].message, sent);
    assert_eq!(copies[1].message.subject.as_deref(), Some("was gold"));
    assert_eq!(
        (copies[2].message.property("quantity"), copies[2].message.property("note")),
        (Some(&Value::Int(5)), None)
    );
    let got = engine.source(&s).unwrap().receive(3, EVENTUALLY, Mode::PeekLock).await.unwrap();
    assert_eq!(got[2].message, copies[2].message, "received as it was peeked");

    let changed = RuleSpec::new("Red", FilterSpec::Nothing);
    let view = engine.update_rule(&s, changed).await.unwrap();
    assert_eq!(view.spec, RuleSpec::new("red", FilterSpec::Nothing));
    engine.remove_rule(&s, "$default").await.unwrap();
    let error = engine.remove_rule(&s, DEFAULT_RULE).await.unwrap_err();
    assert!(matches!(error, DeclareError::NoSuchRule { .. }), "{error}");
    let error = engine.update_rule(&s, RuleSpec::new("none", FilterSpec::All)).await.unwrap_err();
    assert!(matches!(error, DeclareError::NoSuchRule { .. }), "{error}");
    let engine = reopen(engine, &dir).await;
    let names: Vec<_> = engine.rules(&s).unwrap().into_iter().map(|rule| rule.spec.name).collect();
    assert_eq!(names, ["gold", "red"]);
    send(&engine, "t", sent).await;
    assert_eq!(look(&engine, "t/s").await.len(), 4, "one copy, of the rule that is left");

    // Rules given at once replace `$Default`.
    engine.create_entity(subscription("t", "given"), vec![red]).await.unwrap();
    assert_eq!(engine.rules(&name("t/given")).unwrap().len(), 1);
    // An action may make of a message what the subscription does not take.
    let sessions = subscription("t", "sessions").with_sessions();
    let rule = RuleSpec::new("r", FilterSpec::All).with_action("REMOVE sys.SessionId");
    engine.create_entity(sessions, vec![rule]).await.unwrap();
    send(&engine, "t", in_session("a", "n")).await;
    let dead = look(&engine, "t/sessions/$DeadLetterQueue").await;
    assert_eq!(dead[0].message.text_property(property::DEAD_LETTER_REASON), Some("RuleActionFailed"));
}

/// A message lives as long as it says, its topic says and the subscription says: the shortest of them.
#[tokio::test]
async fn a_topic_has_a_time_to_live_as_well() {
    let seconds = |n| Some(Duration::from_secs(n));
    let topic = EntitySpec { default_ttl: seconds(60), ..EntitySpec::topic("t") };
    let short = EntitySpec { default_ttl: seconds(10), ..subscription("t", "short") };
    let long = EntitySpec { default_ttl: seconds(600), ..subscription("t", "long") };
    let (engine, _dir, _clock) = timed(vec![topic, short, long, subscription("t", "own")]).await;
    send(&engine, "t", message("1")).await;
    send(&engine, "t", Message { time_to_live: seconds(5), ..message("2") }).await;
    for (name, first) in [("short", 10), ("long", 60), ("own", 60)] {
        let expires: Vec<_> = look(&engine, &format!("t/{name}")).await.iter().map(|it| it.expires_at).collect();
        assert_eq!(expires, [Some(Timestamp(T0 + first * 1_000)), Some(Timestamp(T0 + 5_000))], "{name}");
    }
}

/// What a handler publishes to an entity that takes no messages now waits in the outbox; a commit on an entity that was removed has lost its
/// lock, and nothing of it is written.
#[tokio::test]
async fn commits_meet_closed_and_removed_entities() {
    use sprag_core::{
        effect::{Commit, Effect, StoreWrite},
        run::{Outgoing, UnitOfWork},
    };
    use sprag_store::Store as _;
    use sprag_transport::{CommitError, Committer as _, Held};
    let closed = EntitySpec { status: EntityStatus::SendDisabled, ..queue("closed") };
    let (engine, _dir) = engine(vec![queue("q"), queue("open"), closed]).await;
    let publishing = |id: &str, to: &str| {
        let outgoing = vec![Outgoing { entity: to.into(), message: message(id) }];
        let unit = UnitOfWork { outgoing, ..UnitOfWork::default() };
        let write = StoreWrite { record: vec![id.into()], unit, ..StoreWrite::default() };
        Commit { endpoint: "billing".into(), effects: vec![Effect::Store(Box::new(write)), Effect::Complete] }
    };
    let q = name("q");
    for id in ["1", "2"] {
        send(&engine, "q", message(id)).await;
    }
    let got = engine.receive(&q, 2, EVENTUALLY).await.unwrap();
    let held = |n: usize| Held { source: &q, session: None, delivery: &got[n] };
    engine.commit(held(0), publishing("1", "closed")).await.unwrap();
    assert!(ids(&engine, "closed").await.is_empty());
    assert_eq!(engine.outbox_claim(&["billing".into()], 10, Duration::from_secs(60)).await.unwrap().len(), 1);
    engine.remove_entity(&q).await.unwrap();
    let lost = engine.commit(held(1), publishing("2", "open")).await;
    assert!(matches!(lost, Err(CommitError::LockLost)), "{lost:?}");
    engine.create_entity(queue("q"), vec![]).await.unwrap();
    let lost = engine.commit(held(1), publishing("2", "open")).await;
    assert!(matches!(lost, Err(CommitError::LockLost)), "{lost:?}");
    assert!(ids(&engine, "open").await.is_empty());
}
