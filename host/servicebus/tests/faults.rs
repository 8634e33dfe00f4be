//! What goes wrong between a host and a broker that is not near.

mod support;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use sprag_broker::EntitySpec;
use sprag_core::ids::EntityName;
use sprag_servicebus::{Config, ServiceBus, Settle};
use sprag_transport::{Error, Part, Session, Settlement, Transport};
use tokio::time::Instant;

use support::{Broker, EVENTUALLY, any_port, config, eventually, is_lost, message, way::Way, with_sessions};

const SOON: Duration = Duration::from_millis(30);

fn specs() -> Vec<EntitySpec> {
    vec![
        with_sessions("orders", 30),
        with_sessions("orders.deferred", 30),
        with_sessions("short", 1),
        EntitySpec::queue("mails"),
        EntitySpec { lock_duration: Duration::from_secs(1), ..EntitySpec::queue("brief") },
    ]
}

struct Bench {
    broker: Broker,
    way: Way,
    transport: ServiceBus,
    _dir: tempfile::TempDir,
}

async fn bench(change: impl FnOnce(&mut Config)) -> Bench {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = Broker::start(dir.path(), specs(), any_port()).await;
    let way = Way::to(broker.address()).await;
    let mut config = config(way.address, &specs());
    config.backoff = (Duration::from_millis(20), Duration::from_millis(200));
    change(&mut config);
    let transport = ServiceBus::new(config).expect("it needs nothing");
    Bench { broker, way, transport, _dir: dir }
}

async fn session(transport: &ServiceBus) -> Arc<dyn Session> {
    transport.accept_next(&"orders".into(), EVENTUALLY).await.expect("accepting works").expect("a session is offered")
}

/// A86, A27: who holds a session over a connection that is cut learns of it at the next call, and the session comes anew.
#[tokio::test]
async fn a_session_is_lost_with_its_connection() {
    let bench = bench(|_| {}).await;
    let orders = "orders".into();
    bench.transport.send(&orders, vec![message(Some("s"), "1"), message(Some("s"), "2")]).await.expect("it is taken");
    let held = session(&bench.transport).await;
    let delivery = held.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes");
    let waiting = {
        let held = Arc::clone(&held);
        tokio::spawn(async move { held.receive(EVENTUALLY).await })
    };
    bench.way.cut();
    let begun = Instant::now();
    is_lost(waiting.await.expect("no panic"));
    assert!(begun.elapsed() < Duration::from_secs(5), "it was told after {:?}", begun.elapsed());
    is_lost(held.settle(delivery.lock, Settlement::Complete).await);
    is_lost(held.set_state(Some(Bytes::from_static(b"late"))).await);
    is_lost(held.renew().await);
    assert_eq!(held.remaining(), Duration::ZERO);
    let again = eventually(|| async {
        bench.transport.accept_next(&orders, EVENTUALLY).await?.ok_or(Error::Unavailable("none yet".into()))
    })
    .await;
    let first = again.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes");
    assert_eq!(first.message.message_id.as_ref().map(|id| id.as_str()), Some("1"), "in its place");
    again.settle(first.lock, Settlement::Complete).await.expect("it is completed");
}

/// A79, A87: sends and receives heal, each with the first call that finds the connection gone or the next.
#[tokio::test]
async fn connections_are_made_again() {
    let bench = bench(|_| {}).await;
    let mails = "mails".into();
    for round in 0..5 {
        let id = format!("m-{round}");
        eventually(|| bench.transport.send(&mails, vec![message(None, &id)])).await;
        let got = eventually(|| async {
            let got = bench.transport.receive(&mails, 1, Duration::from_secs(5)).await?;
            got.into_iter().next().ok_or(Error::Unavailable("none yet".into()))
        })
        .await;
        bench.way.cut();
        // The lock is the entity's, so it outlives the connection.
        eventually(|| bench.transport.settle(&mails, got.lock, Settlement::Complete)).await;
        assert!(bench.broker.handle.counts().connections <= 2);
    }
    let left =
        eventually(|| bench.transport.peek(&mails, Part::Active, None, sprag_core::ids::SequenceNumber(0), 100)).await;
    assert!(left.is_empty(), "{left:?}");
}

/// The broker stops and starts on the same folder: what was accepted is there, and the transport finds it again by itself.
#[tokio::test]
async fn a_broker_that_was_away_is_found_again() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = Broker::start(dir.path(), specs(), any_port()).await;
    let address = broker.address();
    let mut config = config(address, &specs());
    config.backoff = (Duration::from_millis(20), Duration::from_millis(200));
    let transport = ServiceBus::new(config).expect("it needs nothing");
    transport.send(&"orders".into(), vec![message(Some("s"), "1")]).await.expect("it is taken");
    let held = session(&transport).await;
    held.set_state(Some(Bytes::from_static(b"{}"))).await.expect("state is written");
    let accepting = {
        let transport = transport.clone();
        tokio::spawn(async move { transport.accept_next(&"orders".into(), EVENTUALLY).await.map(|it| it.is_some()) })
    };
    broker.stop().await;
    is_lost(held.state().await);
    let waited = accepting.await.expect("no panic");
    assert!(matches!(waited, Err(Error::Unavailable(_)) | Ok(false)), "{waited:?}");
    let away = transport.send(&"orders".into(), vec![message(Some("s"), "never")]).await;
    assert!(matches!(away, Err(Error::Unavailable(_))), "{away:?}");

    let _broker = Broker::start(dir.path(), specs(), address).await;
    let again = eventually(|| async {
        transport
            .accept_next(&"orders".into(), Duration::from_secs(2))
            .await?
            .ok_or(Error::Unavailable("none yet".into()))
    })
    .await;
    assert_eq!(again.state().await.expect("state is read"), Some(Bytes::from_static(b"{}")));
    let first = again.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes");
    assert_eq!(first.message.message_id.as_ref().map(|id| id.as_str()), Some("1"));
}

/// A12: a way that lets nothing through and closes nothing is noticed by the broker's silence, and calls end.
#[tokio::test]
async fn a_broken_way_is_noticed() {
    let bench = bench(|config| {
        config.idle_timeout = Duration::from_secs(1);
        config.operation_timeout = Duration::from_secs(2);
    })
    .await;
    let orders = "orders".into();
    bench.transport.send(&orders, vec![message(Some("s"), "1")]).await.expect("it is taken");
    let held = session(&bench.transport).await;
    bench.way.stop(true);
    let begun = Instant::now();
    let waited = held.receive(EVENTUALLY).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "noticed after {:?}", begun.elapsed());
    is_lost(waited);
    let begun = Instant::now();
    let accepted = bench.transport.accept_next(&orders, SOON).await.map(|it| it.is_some());
    assert!(matches!(accepted, Err(Error::Unavailable(_))), "{accepted:?}");
    assert!(begun.elapsed() < Duration::from_secs(10), "given up after {:?}", begun.elapsed());
    bench.way.stop(false);
    bench.way.cut();
    eventually(|| bench.transport.send(&orders, vec![message(Some("s"), "2")])).await;
}

/// A request that nobody waits for any more leaves nothing: the next one gets its own answer (azservicebus hands out the last one's).
#[tokio::test]
async fn a_dropped_request_is_nobodys() {
    let bench = bench(|_| {}).await;
    let orders = "orders".into();
    for id in ["a", "b"] {
        bench.transport.send(&orders, vec![message(Some(id), id)]).await.expect("it is taken");
    }
    let (a, b) = (session(&bench.transport).await, session(&bench.transport).await);
    for held in [&a, &b] {
        held.set_state(Some(Bytes::copy_from_slice(held.id().as_str().as_bytes()))).await.expect("state is written");
    }
    for _ in 0..50 {
        tokio::select! {
            biased;
            _answered = a.state() => {}
            () = tokio::task::yield_now() => {}
        }
        let state = b.state().await.expect("state is read");
        assert_eq!(state.as_deref(), Some(b.id().as_str().as_bytes()));
    }
}

/// A07, A30: a session whose lock has lapsed says so once, at every call, and the next holder is not disturbed.
#[tokio::test]
async fn a_lapsed_lock_is_seen() {
    let bench = bench(|_| {}).await;
    let short = "short".into();
    bench.transport.send(&short, vec![message(Some("s"), "1")]).await.expect("it is taken");
    let held = bench.transport.accept_next(&short, EVENTUALLY).await.expect("accepting works").expect("one is offered");
    let delivery = held.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    is_lost(held.settle(delivery.lock, Settlement::Complete).await);
    let next = bench.transport.accept_next(&short, EVENTUALLY).await.expect("accepting works").expect("one is offered");
    let again = next.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes");
    drop(held);
    next.settle(again.lock, Settlement::Complete).await.expect("it is the next one's");
}

/// `settle = "link"`: the same, as far as it can be seen.
#[tokio::test]
async fn settling_by_the_link() {
    let bench = bench(|config| config.settle = Settle::Link).await;
    let orders = "orders".into();
    bench.transport.send(&orders, vec![message(Some("s"), "1"), message(Some("s"), "2")]).await.expect("it is taken");
    let held = session(&bench.transport).await;
    for (id, settlement) in [
        ("1", Settlement::Complete),
        ("2", Settlement::DeadLetter { reason: "Why".into(), description: "because".into() }),
    ] {
        let delivery = held.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes");
        assert_eq!(delivery.message.message_id.as_ref().map(|id| id.as_str()), Some(id));
        held.settle(delivery.lock, settlement).await.expect("it is settled");
    }
    let dead = eventually(|| async {
        let dead =
            bench.transport.peek(&orders, Part::DeadLetters, None, sprag_core::ids::SequenceNumber(0), 10).await?;
        dead.into_iter().next().ok_or(Error::Unavailable("not yet".into()))
    })
    .await;
    assert_eq!(
        (dead.dead_letter_reason.as_deref(), dead.dead_letter_description.as_deref()),
        (Some("Why"), Some("because"))
    );
}

/// A30: a settlement on a link that the broker refuses is refused to the one who asked for it.
#[tokio::test]
async fn a_refusal_on_a_link_is_heard() {
    let bench = bench(|config| config.settle = Settle::Link).await;
    let brief = "brief".into();
    bench.transport.send(&brief, vec![message(None, "1")]).await.expect("it is taken");
    let take = async || bench.transport.receive(&brief, 1, EVENTUALLY).await.expect("receiving works").remove(0);
    let lost = take().await;
    // When it comes again, its first lock has lapsed.
    let again = take().await;
    assert_eq!(again.delivery_count, 2);
    is_lost(bench.transport.settle(&brief, lost.lock, Settlement::Complete).await);
    bench.transport.settle(&brief, again.lock, Settlement::Complete).await.expect("it is the second one's");
}

/// A wrong key is no reason to hang, and says what is wrong.
#[tokio::test]
async fn a_wrong_key_is_named() {
    let bench = bench(|config| {
        let key = sprag_servicebus::Credential::Key { name: "RootManageSharedAccessKey".into(), key: "guess".into() };
        config.connection.credential = key;
    })
    .await;
    let refused = bench.transport.send(&"mails".into(), vec![message(None, "1")]).await;
    assert!(matches!(&refused, Err(Error::Unavailable(text)) if text.contains("not authorized")), "{refused:?}");
}

/// A12, A79: a way that lets nothing through while something is being opened is noticed within the idle timeout, and what was asked for next works as
/// soon as the way does. Nobody tells the transport that it does.
#[tokio::test]
async fn what_was_being_opened_heals() {
    let idle = Duration::from_secs(1);
    let bench = bench(|config| {
        config.idle_timeout = idle;
        config.operation_timeout = Duration::from_secs(10);
    })
    .await;
    let orders = "orders".into();
    bench.transport.send(&orders, vec![message(Some("s"), "1")]).await.expect("it is taken");
    let held = session(&bench.transport).await;
    bench.way.stop(true);
    let begun = Instant::now();
    // A session that is waited for, one that is asked for, a request, a send: all under way when nothing comes any more.
    let named = "another".into();
    let (next, named, state, sent) = tokio::join!(
        bench.transport.accept_next(&orders, EVENTUALLY),
        bench.transport.accept(&orders, &named, Duration::ZERO),
        held.state(),
        bench.transport.send(&orders, vec![message(Some("s"), "lost")]),
    );
    let gone = |name: &str, error: Option<Error>| {
        assert!(matches!(error, Some(Error::Unavailable(_) | Error::LockLost)), "{name}: {error:?}");
    };
    gone("accept_next", next.err());
    gone("accept", named.err());
    gone("state", state.err());
    gone("send", sent.err());
    // Long before the time that an operation may take: what tells is the silence, and then nobody waits for an answer. Opening anew then takes its own.
    assert!(begun.elapsed() < Duration::from_secs(10) + 5 * idle, "given up after {:?}", begun.elapsed());
    is_lost(held.renew().await);
    bench.way.stop(false);
    let again = eventually(|| async {
        bench.transport.accept_next(&orders, Duration::from_secs(2)).await?.ok_or(Error::Unavailable("none yet".into()))
    })
    .await;
    let first = again.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes");
    assert_eq!(first.message.message_id.as_ref().map(|id| id.as_str()), Some("1"));
    assert_eq!(bench.transport.counts().await.connections, 1);
}

/// A79: a broker that is there and has nothing to say is not taken for one that is gone, and a link that was idle for longer than the idle
/// timeout hands over what comes then.
#[tokio::test]
async fn idle_is_not_gone() {
    let bench = bench(|config| config.idle_timeout = Duration::from_millis(500)).await;
    let (orders, mails) = ("orders".into(), "mails".into());
    bench.transport.send(&orders, vec![message(Some("s"), "1")]).await.expect("it is taken");
    let held = session(&bench.transport).await;
    let first = held.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes");
    let waiting = {
        let transport = bench.transport.clone();
        tokio::spawn(async move { transport.receive(&"mails".into(), 1, EVENTUALLY).await })
    };
    // Several idle timeouts: the point of the test is that this time passes.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    held.settle(first.lock, Settlement::Complete).await.expect("it is held still");
    bench.transport.send(&orders, vec![message(Some("s"), "2")]).await.expect("it is taken");
    let second = held.receive(EVENTUALLY).await.expect("receiving works").expect("the idle link hands it over");
    held.settle(second.lock, Settlement::Complete).await.expect("it is completed");
    bench.transport.send(&mails, vec![message(None, "m")]).await.expect("it is taken");
    assert_eq!(waiting.await.expect("no panic").expect("receiving works").len(), 1);
    assert_eq!(bench.broker.handle.counts().connections, 1, "one connection for all of it");
}

/// A87: cut again and again under load. What was accepted comes, no session is mixed up, and nothing is kept of the connections that were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_again_and_again_under_load() {
    const MANY: usize = 200;
    let bench = bench(|_| {}).await;
    let mails = EntityName::from("mails");
    let sending = {
        let transport = bench.transport.clone();
        let mails = mails.clone();
        tokio::spawn(async move {
            for n in 0..MANY {
                let id = format!("m{n}");
                // Not known to have been taken is sent again, so it may come twice.
                eventually(|| transport.send(&mails, vec![message(None, &id)])).await;
            }
        })
    };
    let mut seen = std::collections::BTreeSet::new();
    let mut cuts = 0;
    let until = Instant::now() + 3 * EVENTUALLY;
    while seen.len() < MANY {
        assert!(Instant::now() < until, "{} of {MANY} came, {cuts} cuts", seen.len());
        let Ok(got) = bench.transport.receive(&mails, 4, Duration::from_millis(500)).await else { continue };
        if cuts < 25 && !got.is_empty() {
            cuts += 1;
            bench.way.cut();
        }
        for delivery in got {
            eventually(|| async {
                match bench.transport.settle(&mails, delivery.lock, Settlement::Complete).await {
                    // Completed, and the answer was cut off.
                    Err(Error::LockLost) => Ok(()),
                    other => other,
                }
            })
            .await;
            seen.insert(delivery.message.message_id.clone().expect("it has one"));
        }
    }
    sending.await.expect("no panic");
    assert_eq!(cuts, 25);
    support::until("the old connections are gone", || bench.broker.handle.counts().connections <= 2).await;
}
