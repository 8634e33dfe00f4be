//! What the engine does beside the conformance suites: topics, limits, duplicate detection, times to live, and what survives a restart.

#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the answer")]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use sprag_broker::{Correlation, Engine, EntityKind, EntitySpec, FilterSpec, Options};
use sprag_core::{
    action::ActionKind,
    effect::{Commit, Effect, OutcomeGuard, OutcomeWrite, StoreWrite},
    ids::{EntityName, MessageId, SequenceNumber, SessionId},
    message::{Body, Delivery, Message, Value, property},
    outcome::Outcome,
    run::{Outgoing, UnitOfWork},
    time::Timestamp,
};
use sprag_store::{NewAction, Question, Retention, Store as _, query};
use sprag_transport::{Committer as _, Error, Held, Parked, Part, Peeked, Session, Settlement, Transport as _};
use tempfile::TempDir;

const SOON: Duration = Duration::from_millis(30);
const EVENTUALLY: Duration = Duration::from_secs(20);
const T0: i64 = 1_796_000_000_000;

fn open(dir: &Path) -> Engine {
    Engine::open(Options::new(dir)).expect("it opens")
}

async fn engine(specs: Vec<EntitySpec>) -> (Engine, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    engine.declare(specs).await.unwrap();
    (engine, dir)
}

/// An engine whose wall clock the test sets.
async fn timed(specs: Vec<EntitySpec>) -> (Engine, TempDir, Arc<AtomicI64>) {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Arc::new(AtomicI64::new(T0)));
    let mut options = Options::new(dir.path());
    let shown = Arc::clone(&clock);
    options.clock = Arc::new(move || Timestamp(shown.load(Relaxed)));
    let engine = Engine::open(options).unwrap();
    engine.declare(specs).await.unwrap();
    (engine, dir, clock)
}

fn name(text: &str) -> EntityName {
    text.into()
}

fn message(id: &str) -> Message {
    Message { message_id: Some(id.into()), body: Body::Data(b"{}"[..].into()), ..Message::default() }
}

fn in_session(session: &str, id: &str) -> Message {
    Message { session_id: Some(session.into()), ..message(id) }
}

async fn send(engine: &Engine, to: &str, message: Message) -> SequenceNumber {
    engine.send(&name(to), vec![message]).await.expect("it is taken")[0]
}

async fn take(engine: &Engine, from: &str) -> Delivery {
    engine.receive(&name(from), 1, EVENTUALLY).await.unwrap().pop().expect("a message comes")
}

async fn peek(engine: &Engine, from: &str, part: Part) -> Vec<Peeked> {
    engine.peek(&name(from), part, None, SequenceNumber(0), 10_000).await.unwrap()
}

fn ids(peeked: &[Peeked]) -> Vec<&str> {
    peeked.iter().map(|it| it.message.message_id.as_ref().unwrap().as_str()).collect()
}

async fn offered(engine: &Engine, from: &str) -> Arc<dyn Session> {
    engine.accept_next(&name(from), EVENTUALLY).await.unwrap().expect("a session is offered")
}

async fn next(session: &Arc<dyn Session>) -> Delivery {
    session.receive(EVENTUALLY).await.unwrap().expect("a message comes")
}

/// Waits for what the engine does by itself.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..2_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: not within ten seconds");
}

async fn until_dead(engine: &Engine, entity: &str, count: usize) -> Vec<Peeked> {
    until("dead letters", async || peek(engine, entity, Part::DeadLetters).await.len() >= count).await;
    peek(engine, entity, Part::DeadLetters).await
}

fn shop() -> Vec<EntitySpec> {
    let topic = name("shop");
    let of_gold = Correlation { properties: [("tier".to_owned(), "gold".into())].into(), ..Correlation::default() };
    vec![
        EntitySpec::topic("shop"),
        EntitySpec::subscription(&topic, "all", FilterSpec::All),
        EntitySpec::subscription(&topic, "orders", FilterSpec::Sql("EventTypeId LIKE 'Order%'".into())),
        EntitySpec::subscription(&topic, "gold", FilterSpec::Correlation(Box::new(of_gold))),
        EntitySpec::subscription(&topic, "billing", FilterSpec::All).with_sessions(),
    ]
}

/// Spec 8: each subscription whose filter lets it through gets its own copy; a session subscription without a session id in the message
/// gets it as a dead letter, and the others are not affected.
#[tokio::test]
async fn a_topic_copies_to_the_subscriptions_that_want_it() {
    let (engine, _dir) = engine(shop()).await;
    let mut order = in_session("c1", "order");
    order.set_property("EventTypeId", Value::string("OrderPlaced"));
    let mut gold = message("gold");
    gold.set_property("tier", Value::string("gold"));
    send(&engine, "shop", order.clone()).await;
    send(&engine, "shop", gold).await;
    assert_eq!(ids(&peek(&engine, "shop/all", Part::Active).await), ["order", "gold"]);
    assert_eq!(ids(&peek(&engine, "shop/orders", Part::Active).await), ["order"]);
    assert_eq!(ids(&peek(&engine, "shop/gold", Part::Active).await), ["gold"]);
    assert_eq!(ids(&peek(&engine, "shop/billing", Part::Active).await), ["order"]);
    let dead = peek(&engine, "shop/billing", Part::DeadLetters).await;
    assert_eq!((ids(&dead), dead[0].dead_letter_reason.as_deref()), (vec!["gold"], Some("Session ID is null")));

    let delivery = take(&engine, "shop/orders").await;
    assert_eq!(*delivery.message, order);
    engine.settle(&name("shop/orders"), delivery.lock, Settlement::Complete).await.unwrap();
    assert_eq!(peek(&engine, "shop/all", Part::Active).await.len(), 2, "the copies are apart");
    for (to, part) in [("shop/all", "send to its topic"), ("nowhere", "no entity")] {
        let error = engine.send(&name(to), vec![message("x")]).await.unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    let error = engine.receive(&name("shop"), 1, SOON).await.unwrap_err();
    assert!(error.to_string().contains("one of its subscriptions"), "{error}");
}

/// A scheduled message waits at the topic, can be found and cancelled there, and is copied when it comes due.
#[tokio::test]
async fn a_topic_copies_a_scheduled_message_when_it_is_due() {
    let (engine, _dir, clock) = timed(shop()).await;
    let later = |id: &str| Message { scheduled_for: Some(Timestamp(T0 + 1_000)), ..in_session("c1", id) };
    send(&engine, "shop", later("stays")).await;
    let cancelled = send(&engine, "shop", later("goes")).await;
    assert_eq!(ids(&peek(&engine, "shop", Part::Scheduled).await), ["stays", "goes"]);
    assert!(peek(&engine, "shop/all", Part::Active).await.is_empty());
    engine.cancel_scheduled(&name("shop"), cancelled).await.unwrap();
    clock.store(T0 + 1_001, Relaxed);
    send(&engine, "shop", in_session("c1", "poke")).await;
    until("the copy", async || peek(&engine, "shop/all", Part::Active).await.len() == 2).await;
    assert_eq!(peek(&engine, "shop", Part::Scheduled).await.len(), 0);
    assert_eq!(engine.describe(&name("shop")).await.unwrap().scheduled, 0);
}

/// P25, A45: within the window a second message with an id is dropped and answered with the first one's number; the host's own pass.
#[tokio::test]
async fn duplicates_are_dropped_within_the_window() {
    let spec = EntitySpec { duplicate_detection: Some(Duration::from_secs(60)), ..EntitySpec::queue("q") };
    let (engine, dir, clock) = timed(vec![spec]).await;
    let first = send(&engine, "q", message("a")).await;
    assert_eq!(send(&engine, "q", message("a")).await, first);
    let twice = engine.send(&name("q"), vec![message("b"), message("b")]).await.unwrap();
    assert_eq!(twice[0], twice[1]);
    for _ in 0..2 {
        engine.send(&name("q"), vec![Message::default()]).await.unwrap();
    }
    assert_eq!(peek(&engine, "q", Part::Active).await.len(), 4, "a message without an id is like no other");
    let delivery = take(&engine, "q").await;
    engine.settle(&name("q"), delivery.lock, Settlement::Complete).await.unwrap();
    assert_eq!(send(&engine, "q", message("a")).await, first, "also once it is consumed");
    engine.enqueue(&name("q"), message("a")).await.unwrap();
    assert_eq!(peek(&engine, "q", Part::Active).await.len(), 4, "the host's own pass");

    let later = Message { scheduled_for: Some(Timestamp(T0 + 3_600_000)), ..message("later") };
    let number = send(&engine, "q", later.clone()).await;
    assert_eq!(send(&engine, "q", later.clone()).await, number);
    engine.cancel_scheduled(&name("q"), number).await.unwrap();
    assert!(peek(&engine, "q", Part::Scheduled).await.is_empty());
    assert_ne!(send(&engine, "q", later).await, number, "what was never delivered is no duplicate");

    engine.close().await;
    drop(engine);
    let mut options = Options::new(dir.path());
    let shown = Arc::clone(&clock);
    options.clock = Arc::new(move || Timestamp(shown.load(Relaxed)));
    let engine = Engine::open(options).unwrap();
    assert_eq!(send(&engine, "q", message("b")).await, twice[0], "the window survives a restart");
    clock.store(T0 + 60_001, Relaxed);
    assert_ne!(send(&engine, "q", message("b")).await, twice[0], "the window is over");
}

/// Spec 8: expired messages go away, or to the dead letters; parked ones always to the dead letters (P24).
#[tokio::test]
async fn messages_expire() {
    let kept = EntitySpec {
        dead_letter_on_expiry: true,
        default_ttl: Some(Duration::from_secs(10)),
        ..EntitySpec::queue("kept")
    };
    let (engine, _dir, clock) =
        timed(vec![kept, EntitySpec::queue("dropped"), EntitySpec::queue("s").with_sessions()]).await;
    let short = |message: Message| Message { time_to_live: Some(Duration::from_secs(5)), ..message };
    let long = Message { time_to_live: Some(Duration::from_secs(3_600)), ..message("long") };
    for queue in ["kept", "dropped"] {
        send(&engine, queue, short(message("short"))).await;
        send(&engine, queue, long.clone()).await;
    }
    send(&engine, "s", short(in_session("1", "parked"))).await;
    send(&engine, "s", short(in_session("1", "active"))).await;
    send(&engine, "s", in_session("1", "stays")).await;
    let session = offered(&engine, "s").await;
    let delivery = next(&session).await;
    session.park(&delivery, 1, &delivery.message).await.unwrap();
    session.settle(delivery.lock, Settlement::Complete).await.unwrap();
    clock.store(T0 + 5_000, Relaxed);
    let delivery = next(&session).await;
    assert_eq!(
        delivery.message.message_id.as_ref().unwrap().as_str(),
        "stays",
        "an expired message is not handed over"
    );
    let dead = until_dead(&engine, "s", 1).await;
    assert_eq!((ids(&dead), dead[0].dead_letter_reason.as_deref()), (vec!["parked"], Some("TTLExpiredException")));
    assert!(matches!(session.receive_parked().await.unwrap(), Parked::Empty { .. }));
    assert_eq!(take(&engine, "dropped").await.message.message_id, Some("long".into()));
    assert_eq!(engine.describe(&name("dropped")).await.unwrap().dead_letters, 0);
    let dead = until_dead(&engine, "kept", 1).await;
    assert_eq!(ids(&dead), ["short"]);
    clock.store(T0 + 10_000, Relaxed);
    // The entity's time to live bounds the message's own.
    assert!(engine.receive(&name("kept"), 1, SOON).await.unwrap().is_empty());
    assert_eq!(ids(&until_dead(&engine, "kept", 2).await), ["short", "long"]);
}

/// A message that is in somebody's hands does not expire there, and does when it comes back.
#[tokio::test]
async fn a_message_in_hand_does_not_expire() {
    let (engine, _dir, clock) = timed(vec![EntitySpec::queue("q")]).await;
    let short = Message { time_to_live: Some(Duration::from_secs(5)), ..message("m") };
    send(&engine, "q", short.clone()).await;
    let delivery = take(&engine, "q").await;
    clock.store(T0 + 60_000, Relaxed);
    send(&engine, "q", message("poke")).await;
    engine.settle(&name("q"), delivery.lock, Settlement::Abandon).await.unwrap();
    assert_eq!(take(&engine, "q").await.message.message_id, Some("poke".into()));
    assert!(engine.receive(&name("q"), 1, SOON).await.unwrap().is_empty());
}

/// Case A76: the dead letters of a session entity are read by a plain receiver, with session id, reason and description.
#[tokio::test]
async fn dead_letters_are_received_as_a_queue() {
    let (engine, _dir) = engine(vec![EntitySpec::queue("s").with_sessions()]).await;
    send(&engine, "s", in_session("1", "m")).await;
    let session = offered(&engine, "s").await;
    let delivery = next(&session).await;
    let give_up = Settlement::DeadLetter { reason: "Bad".into(), description: "no such customer".into() };
    session.settle(delivery.lock, give_up).await.unwrap();
    let dead = "s/$DeadLetterQueue";
    assert_eq!(ids(&peek(&engine, dead, Part::Active).await), ["m"]);
    for count in 1..=20 {
        let delivery = take(&engine, dead).await;
        assert_eq!(delivery.delivery_count, count, "it is never given up a second time");
        assert_eq!(delivery.message.session_id, Some("1".into()));
        assert_eq!(delivery.message.text_property(property::DEAD_LETTER_REASON), Some("Bad"));
        assert_eq!(delivery.message.text_property(property::DEAD_LETTER_DESCRIPTION), Some("no such customer"));
        let settlement = if count == 20 { Settlement::Complete } else { Settlement::Abandon };
        engine.settle(&name(dead), delivery.lock, settlement).await.unwrap();
    }
    assert!(peek(&engine, dead, Part::Active).await.is_empty());
    assert_eq!(engine.describe(&name("s")).await.unwrap().dead_letters, 0);
}

/// Cases A01, A33 and A46: what waits, what is parked, what is scheduled, states and counts are there after a restart, in order; locks are void.
#[tokio::test]
async fn a_restart_keeps_everything_but_locks() {
    let specs =
        vec![EntitySpec::queue("s").with_sessions(), EntitySpec { max_delivery_count: 3, ..EntitySpec::queue("q") }];
    let (engine, dir) = engine(specs).await;
    for n in 0..4 {
        send(&engine, "s", in_session("1", &format!("m{n}"))).await;
    }
    let tomorrow = Timestamp(sprag_store::clock::now().0 + 86_400_000);
    for n in 0..3 {
        send(&engine, "s", Message { scheduled_for: Some(tomorrow), ..in_session("1", &format!("retry{n}")) }).await;
    }
    let session = offered(&engine, "s").await;
    for number in [2, 1] {
        let delivery = next(&session).await;
        session.park(&delivery, number, &delivery.message).await.unwrap();
        session.settle(delivery.lock, Settlement::Complete).await.unwrap();
    }
    session.set_state(Some(b"{\"BlockedByEventId\":\"e\"}"[..].into())).await.unwrap();
    let _in_hand = next(&session).await;
    send(&engine, "q", message("given back")).await;
    for _ in 0..2 {
        let delivery = take(&engine, "q").await;
        engine.settle(&name("q"), delivery.lock, Settlement::Abandon).await.unwrap();
    }
    let last = send(&engine, "q", message("last")).await;
    engine.close().await;
    assert!(matches!(session.state().await, Ok(_) | Err(Error::LockLost)));
    drop((session, engine));

    let engine = open(dir.path());
    let session = offered(&engine, "s").await;
    assert_eq!(session.state().await.unwrap().unwrap(), &b"{\"BlockedByEventId\":\"e\"}"[..]);
    for (id, number) in [("m1", 1), ("m0", 2)] {
        let Parked::Copy(copy) = session.receive_parked().await.unwrap() else { panic!("{id} is parked") };
        assert_eq!((copy.message.message_id.as_ref().unwrap().as_str(), copy.parked_as), (id, Some(number)));
        session.settle(copy.lock, Settlement::Complete).await.unwrap();
    }
    for id in ["m2", "m3"] {
        let delivery = next(&session).await;
        assert_eq!(delivery.message.message_id.as_ref().unwrap().as_str(), id);
        session.settle(delivery.lock, Settlement::Complete).await.unwrap();
    }
    let scheduled = peek(&engine, "s", Part::Scheduled).await;
    assert_eq!(ids(&scheduled), ["retry0", "retry1", "retry2"]);
    assert!(
        scheduled
            .iter()
            .all(|it| it.message.scheduled_for == Some(tomorrow) && it.message.session_id == Some("1".into()))
    );
    engine.cancel_scheduled(&name("s"), scheduled[1].sequence).await.unwrap();
    assert!(engine.cancel_scheduled_id(&name("s"), &"retry0".into()).await.unwrap());
    assert_eq!(ids(&peek(&engine, "s", Part::Scheduled).await), ["retry2"]);
    assert_eq!(take(&engine, "q").await.delivery_count, 3, "the count has survived");
    assert!(send(&engine, "q", message("newer")).await > last, "no number is given twice");
}

/// Case A44: ten thousand sessions that were blocked and resolved leave nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn resolved_sessions_cost_nothing() {
    let (engine, dir) = engine(vec![EntitySpec::queue("s").with_sessions()]).await;
    let tasks: Vec<_> = (0..100)
        .map(|task| {
            let engine = engine.clone();
            tokio::spawn(async move {
                for n in 0..100 {
                    let id = SessionId::from(format!("{task}-{n}"));
                    let session = engine.accept(&name("s"), &id, EVENTUALLY).await.unwrap();
                    session.set_state(Some(b"blocked"[..].into())).await.unwrap();
                    session.set_state(None).await.unwrap();
                    session.release(Duration::ZERO).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(engine.sessions(&name("s"), None, 10).await.unwrap().is_empty());
    engine.close().await;
    let connection = rusqlite::Connection::open(dir.path().join(sprag_broker::FILE)).unwrap();
    assert_eq!(connection.query_row("SELECT count(*) FROM session", [], |row| row.get::<_, i64>(0)).unwrap(), 0);
}

/// Bad input gets one clear error and nothing is lost (spec, issue "how it must behave").
#[tokio::test]
async fn bad_messages_are_refused_by_name() {
    let wide = EntitySpec { max_message_size: 20 << 20, ..EntitySpec::queue("wide") };
    let (engine, _dir) = engine(vec![EntitySpec::queue("q"), wide, EntitySpec::queue("s").with_sessions()]).await;
    let large = |id: &str| Message { body: Body::Data(vec![b'x'; 10 << 20].into()), ..message(id) };
    let long = "x".repeat(600);
    for (to, message, part) in [
        ("s", message("m"), "no session id"),
        ("q", message("a\u{1}b"), "message id has the control character U+0001"),
        ("q", message(&"x".repeat(2_000)), "2000 bytes"),
        ("q", large("m"), "at most 1048576"),
        ("s", in_session("a\nb", "m"), "session id has the control character"),
        ("s", in_session(&long, "m"), "600 characters"),
    ] {
        let error = engine.send(&name(to), vec![message]).await.unwrap_err();
        assert!(matches!(error, Error::Refused(_)) && error.to_string().contains(part), "{error}");
        assert!(error.to_string().starts_with(&format!("{to}: ")), "it names the entity: {error}");
    }
    send(&engine, "q", message(&long)).await;
    assert_eq!(take(&engine, "q").await.message.message_id, Some(MessageId::from(long)));
    send(&engine, "wide", large("m")).await;
    assert_eq!(take(&engine, "wide").await.message.body.len(), 10 << 20);
    let assigned = {
        engine.send(&name("q"), vec![Message::default()]).await.unwrap();
        take(&engine, "q").await
    };
    assert!(assigned.id_assigned && assigned.message.message_id.is_some(), "P29");
}

/// Declarations are idempotent; what would lose messages is refused.
#[tokio::test]
async fn declaring_again_changes_settings_only() {
    let (engine, dir) = engine(vec![EntitySpec::queue("q")]).await;
    send(&engine, "q", message("m")).await;
    engine.declare(vec![EntitySpec { max_delivery_count: 5, ..EntitySpec::queue("q") }]).await.unwrap();
    assert_eq!(engine.describe(&name("q")).await.unwrap().max_delivery_count, 5);
    let error = engine.declare(vec![EntitySpec::queue("q").with_sessions()]).await.unwrap_err();
    assert!(error.to_string().contains("requires_session cannot change while it holds messages (1)"), "{error}");
    let error =
        engine.declare(vec![EntitySpec { kind: EntityKind::Topic, ..EntitySpec::queue("q") }]).await.unwrap_err();
    assert!(error.to_string().contains("another kind"), "{error}");
    let orphan = EntitySpec::subscription(&name("none"), "s", FilterSpec::All);
    let error = engine.declare(vec![EntitySpec::queue("new"), orphan]).await.unwrap_err();
    assert!(error.to_string().contains("no topic \"none\""), "{error}");
    assert!(engine.describe(&name("new")).await.is_err(), "all or none");
    engine.close().await;
    drop(engine);
    let engine = open(dir.path());
    assert_eq!(engine.describe(&name("q")).await.unwrap().max_delivery_count, 5);
    let delivery = take(&engine, "q").await;
    engine.settle(&name("q"), delivery.lock, Settlement::Complete).await.unwrap();
    engine.declare(vec![EntitySpec::queue("q").with_sessions()]).await.expect("an empty entity may change");
}

fn held<'a>(source: &'a EntityName, delivery: &'a Delivery) -> Held<'a> {
    Held { source, session: None, delivery }
}

fn publishing(id: &str, to: &str, outgoing: Vec<Message>) -> Commit {
    let outgoing = outgoing.into_iter().map(|message| Outgoing { entity: to.into(), message }).collect();
    let write = StoreWrite {
        record: vec![id.into()],
        unit: UnitOfWork { outgoing, ..UnitOfWork::default() },
        ..StoreWrite::default()
    };
    Commit { endpoint: "billing".into(), effects: vec![Effect::Store(Box::new(write)), Effect::Complete] }
}

/// P33, P38: a full entity refuses senders but no settlement; what a run publishes to it waits in the outbox, in order, also once there is room.
#[tokio::test]
async fn a_full_entity_makes_outgoing_messages_wait() {
    let full = EntitySpec { max_size: Some(2_000), requires_session: true, ..EntitySpec::queue("full") };
    let (engine, _dir) = engine(vec![EntitySpec::queue("q"), full]).await;
    let filler = Message { body: Body::Data(vec![0; 1_900].into()), ..in_session("s", "filler") };
    send(&engine, "full", filler.clone()).await;
    let error = engine.send(&name("full"), vec![filler.clone()]).await.unwrap_err();
    assert!(matches!(error, Error::Full(_)) && error.to_string().contains("full is full"), "{error}");

    let q = name("q");
    send(&engine, "q", message("1")).await;
    let delivery = take(&engine, "q").await;
    let large = Message { body: Body::Data(vec![0; 500].into()), ..in_session("s", "out-1") };
    engine.commit(held(&q, &delivery), publishing("1", "full", vec![large])).await.unwrap();
    let session = offered(&engine, "full").await;
    let filler = next(&session).await;
    session.settle(filler.lock, Settlement::Complete).await.expect("what ends a message always has room");

    send(&engine, "q", message("2")).await;
    let delivery = take(&engine, "q").await;
    engine
        .commit(held(&q, &delivery), publishing("2", "full", vec![in_session("s", "out-2"), in_session("t", "out-3")]))
        .await
        .unwrap();
    assert_eq!(ids(&peek(&engine, "full", Part::Active).await), ["out-3"], "another session need not wait");
    let rows = engine.outbox_claim(&["billing".into()], 10, Duration::from_secs(60)).await.unwrap();
    assert_eq!(
        rows.iter().map(|row| row.message.message_id.as_ref().unwrap().as_str()).collect::<Vec<_>>(),
        ["out-1", "out-2"]
    );
    for row in rows {
        engine.send(&row.entity, vec![row.message]).await.unwrap();
        engine.outbox_sent(&[row.id]).await.unwrap();
    }
    send(&engine, "q", message("3")).await;
    let delivery = take(&engine, "q").await;
    engine.commit(held(&q, &delivery), publishing("3", "full", vec![in_session("s", "out-4")])).await.unwrap();
    assert_eq!(ids(&peek(&engine, "full", Part::Active).await), ["out-3", "out-1", "out-2", "out-4"]);
}

/// P38: `max_size` refuses sends before the disk is full; what is there can be handled.
#[tokio::test]
async fn max_size_refuses_sends_only() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options { max_size: Some(1 << 20), ..Options::new(dir.path()) }).unwrap();
    engine.declare(vec![EntitySpec::queue("q")]).await.unwrap();
    let large = |n: usize| Message { body: Body::Data(vec![0; 50_000].into()), ..message(&n.to_string()) };
    let mut sent = 0;
    let error = loop {
        match engine.send(&name("q"), vec![large(sent)]).await {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!((5..25).contains(&sent), "{sent}");
    assert!(matches!(error, Error::Full(_)) && error.to_string().contains("the engine is full"), "{error}");
    for n in 0..sent {
        let delivery = take(&engine, "q").await;
        assert_eq!(delivery.message.message_id, Some(n.to_string().into()));
        engine.commit(held(&name("q"), &delivery), publishing(&n.to_string(), "q", vec![])).await.unwrap();
    }
    send(&engine, "q", large(0)).await;
}

fn outcome(event: &str, outcome: Outcome) -> OutcomeWrite {
    OutcomeWrite {
        event_id: event.into(),
        message_id: Some(event.into()),
        source_id: None,
        session: Some("1".into()),
        event_type: "OrderPlaced".into(),
        outcome,
        guard: OutcomeGuard::Newer,
        reason: None,
        error: None,
        attempts: 1,
        handler: None,
        digest: None,
        enqueued_at: Timestamp(T0),
        at: Timestamp(T0),
        keep: None,
    }
}

async fn is_recorded(engine: &Engine, id: &str) -> bool {
    let (endpoint, id, event_id) = ("billing".into(), id.into(), id.into());
    let question = Question {
        endpoint: &endpoint,
        message_id: Some(&id),
        source_id: None,
        event_id: &event_id,
        inbox: true,
        outcome: false,
    };
    engine.check(question).await.unwrap().own_recorded
}

async fn inbox(engine: &Engine, limit: u32) -> Vec<String> {
    let (mut all, mut page) = (Vec::new(), query::Page { after: None, limit });
    loop {
        let part = engine.inbox(&query::InboxFilter::default(), &page).await.unwrap();
        all.extend(part.items.into_iter().map(|row| row.message_id.to_string()));
        page.after = part.next;
        if page.after.is_none() {
            return all;
        }
    }
}

/// Spec 4: a record that is kept with its event is a record like any other: found, first time stays, listed, purged by its own age, and it
/// outlives its event (P38).
#[tokio::test]
async fn records_kept_with_their_events_are_records() {
    let (engine, _dir, clock) = timed(vec![]).await;
    let endpoint = "billing".into();
    for n in 0..6 {
        clock.store(T0 + n, Relaxed);
        let id = format!("m{n}");
        // Every other one in a row of its own.
        let outcome = (n % 2 == 0).then(|| outcome(&id, Outcome::Completed));
        engine
            .write(&endpoint, StoreWrite { record: vec![id.as_str().into()], outcome, ..StoreWrite::default() })
            .await
            .unwrap();
        assert!(is_recorded(&engine, &id).await);
        // A duplicate's write does not make it younger.
        let again = StoreWrite { record: vec![id.as_str().into()], ..StoreWrite::default() };
        assert_eq!(engine.write(&endpoint, again).await.unwrap(), sprag_store::Written::AlreadyDecided);
    }
    for limit in [1, 2, 100] {
        assert_eq!(inbox(&engine, limit).await, ["m5", "m4", "m3", "m2", "m1", "m0"]);
    }
    let one = query::InboxFilter { endpoint: Some(endpoint.clone()), message_id: Some("m2".into()) };
    assert_eq!(engine.inbox(&one, &query::Page::default()).await.unwrap().items[0].recorded_at, Timestamp(T0 + 2));

    let day = Duration::from_secs(86_400);
    let keep = Retention { now: Timestamp(T0).after(31 * day), bodies: 7 * day, outcomes: 30 * day, audit: 365 * day };
    while engine.purge_tracking(&keep, 2).await.unwrap() > 0 {}
    assert!(engine.find_events("m2").await.unwrap().is_empty());
    assert!(is_recorded(&engine, "m2").await, "the record outlives its event");
    engine
        .write(
            &endpoint,
            StoreWrite {
                record: vec!["m6".into()],
                outcome: Some(outcome("m6", Outcome::Completed)),
                ..StoreWrite::default()
            },
        )
        .await
        .unwrap();
    assert_eq!(engine.purge_inbox(&endpoint, Timestamp(T0 + 4), 3).await.unwrap(), 3, "bounded");
    assert_eq!(inbox(&engine, 100).await, ["m6", "m5", "m4", "m3"], "the oldest went first");
    assert_eq!(engine.purge_inbox(&endpoint, Timestamp(T0 + 100), 100).await.unwrap(), 4);
    assert!(inbox(&engine, 100).await.is_empty() && !is_recorded(&engine, "m6").await);
    assert_eq!(engine.find_events("m6").await.unwrap().len(), 1, "the event stays");
    let again = StoreWrite {
        record: vec!["m6".into()],
        outcome: Some(outcome("m6", Outcome::Completed)),
        ..StoreWrite::default()
    };
    assert_eq!(
        engine.write(&endpoint, again).await.unwrap(),
        sprag_store::Written::Done,
        "a purged id can be recorded again"
    );
    assert!(is_recorded(&engine, "m6").await);
}

/// The host's own messages do not expire by the entity's default, and cannot be such that nobody could receive them.
#[tokio::test]
async fn the_hosts_own_messages_do_not_expire_by_default() {
    let spec = EntitySpec { default_ttl: Some(Duration::from_secs(1)), ..EntitySpec::queue("s").with_sessions() };
    let (engine, _dir, clock) = timed(vec![spec]).await;
    send(&engine, "s", in_session("1", "event")).await;
    engine.enqueue(&name("s"), in_session("1", "trigger")).await.unwrap();
    assert!(matches!(engine.enqueue(&name("s"), message("no session")).await, Err(Error::Refused(_))));
    clock.store(T0 + 60_000, Relaxed);
    let session = offered(&engine, "s").await;
    let delivery = next(&session).await;
    assert_eq!(delivery.message.message_id, Some("trigger".into()));
    let effects = vec![Effect::Enqueue(Box::new(message("no session"))), Effect::Complete];
    let source = name("s");
    let held = Held { source: &source, session: Some(&session), delivery: &delivery };
    let refused = engine.commit(held, Commit { endpoint: "billing".into(), effects }).await;
    assert!(matches!(refused, Err(sprag_transport::CommitError::Refused(_))), "{refused:?}");
    session.settle(delivery.lock, Settlement::Complete).await.expect("nothing was changed, the lock is held");
}

/// P15: the action and the message that carries it through the session's loop are there together.
#[tokio::test]
async fn an_action_puts_its_message_onto_the_source() {
    let (engine, _dir) = engine(vec![EntitySpec::queue("s").with_sessions()]).await;
    let outcome = outcome("e1", Outcome::Failed);
    engine.write(&"billing".into(), StoreWrite { outcome: Some(outcome), ..StoreWrite::default() }).await.unwrap();
    let wish = |event: &str| NewAction {
        kind: ActionKind::Skip,
        endpoint: "billing".into(),
        event_id: Some(event.into()),
        session: Some("1".into()),
        reason: Some("gone".into()),
        by: "ida".into(),
        idempotency_key: None,
        control: in_session("1", &format!("skip-{event}")),
        source: Some("s".into()),
    };
    let audit = query::AuditEntry {
        at: Timestamp(T0),
        by: "ida".into(),
        verb: "skip".into(),
        endpoint: None,
        target: "e1".into(),
        reason: None,
        count: 1,
    };
    let answers = engine.create_actions(vec![wish("e1"), wish("e2"), wish("e1")], audit).await.unwrap();
    let id = *answers[0].as_ref().unwrap();
    assert!(answers[1].is_err() && answers[2].is_err());
    let session = offered(&engine, "s").await;
    let delivery = next(&session).await;
    assert_eq!(delivery.message.property(property::ACTION_ID), Some(&Value::Long(id.0)));
    assert_eq!(engine.describe(&name("s")).await.unwrap().active, 1, "a refused action sends nothing");
}

/// A closed engine refuses and does not hang; a backup is a whole engine.
#[tokio::test]
async fn a_closed_engine_refuses_and_a_backup_opens() {
    let (engine, dir) = engine(vec![EntitySpec::queue("q")]).await;
    send(&engine, "q", message("m")).await;
    let copy = dir.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    engine.backup(&copy.join(sprag_broker::FILE)).await.unwrap();
    send(&engine, "q", message("after")).await;
    let other = engine.clone();
    engine.close().await;
    assert!(other.send(&name("q"), vec![message("x")]).await.is_err());
    assert!(other.receive(&name("q"), 1, EVENTUALLY).await.is_err());
    assert!(other.accept_next(&name("q"), SOON).await.is_err());
    drop((engine, other));
    let copied = open(&copy);
    assert_eq!(ids(&peek(&copied, "q", Part::Active).await), ["m"]);
}

/// Many waiters, few messages, sessions that come and go: everybody who can be served is served, in order, one at a time (A05, A08, A84).
#[tokio::test(flavor = "multi_thread")]
async fn fifty_sessions_side_by_side_keep_their_order() {
    let (engine, _dir) = engine(vec![EntitySpec::queue("s").with_sessions()]).await;
    let seen: Arc<parking_lot::Mutex<std::collections::BTreeMap<String, Vec<u32>>>> = Arc::default();
    let receivers: Vec<_> = (0..16)
        .map(|_| {
            let (engine, seen) = (engine.clone(), Arc::clone(&seen));
            tokio::spawn(async move {
                while let Some(session) = engine.accept_next(&name("s"), Duration::from_millis(500)).await.unwrap() {
                    while let Some(delivery) = session.receive(Duration::ZERO).await.unwrap() {
                        assert_eq!(delivery.message.session_id.as_ref(), Some(session.id()));
                        let n = delivery.message.message_id.as_ref().unwrap().as_str().parse().unwrap();
                        seen.lock().entry(session.id().to_string()).or_default().push(n);
                        session.settle(delivery.lock, Settlement::Complete).await.unwrap();
                    }
                    session.release(Duration::ZERO).await.unwrap();
                }
            })
        })
        .collect();
    let senders: Vec<_> = (0..50)
        .map(|s| {
            let engine = engine.clone();
            tokio::spawn(async move {
                for n in 0..40 {
                    send(&engine, "s", in_session(&s.to_string(), &n.to_string())).await;
                }
            })
        })
        .collect();
    for task in senders.into_iter().chain(receivers) {
        task.await.unwrap();
    }
    let seen = seen.lock().clone();
    assert_eq!(seen.len(), 50);
    assert!(seen.values().all(|numbers| *numbers == (0..40).collect::<Vec<_>>()), "{seen:?}");
    assert_eq!(engine.describe(&name("s")).await.unwrap().active, 0);
}
