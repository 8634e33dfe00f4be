//! Many links at once, and links that nobody waits for any more.

mod support;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use sprag_broker::EntitySpec;
use sprag_core::{
    ids::SequenceNumber,
    message::{Delivery, Message},
};
use sprag_servicebus::ServiceBus;
use sprag_transport::{Error, Part, Session, Settlement, Transport};
use tokio::task::JoinSet;

use support::{Broker, EVENTUALLY, any_port, message, transport, until, with_sessions};

async fn bench() -> (Broker, tempfile::TempDir, ServiceBus) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mails = EntitySpec { lock_duration: Duration::from_secs(120), ..EntitySpec::queue("mails") };
    let brief = EntitySpec { lock_duration: Duration::from_secs(3), ..EntitySpec::queue("brief") };
    let specs = vec![with_sessions("orders", 120), with_sessions("orders.deferred", 120), mails, brief];
    let broker = Broker::start(dir.path(), specs.clone(), any_port()).await;
    let transport = transport(broker.address(), &specs);
    (broker, dir, transport)
}

async fn next_session(transport: &ServiceBus) -> Arc<dyn Session> {
    transport.accept_next(&"orders".into(), EVENTUALLY).await.expect("accepting works").expect("a session is offered")
}

async fn send(transport: &ServiceBus, entity: &str, messages: Vec<Message>) {
    for some in messages.chunks(100) {
        transport.send(&entity.into(), some.to_vec()).await.expect("they are taken");
    }
}

/// Takes this many at least.
async fn take(transport: &ServiceBus, entity: &str, many: usize) -> Vec<Delivery> {
    let mut taken = Vec::new();
    while taken.len() < many {
        taken.extend(transport.receive(&entity.into(), many - taken.len(), EVENTUALLY).await.expect("receiving works"));
    }
    taken
}

fn id_of(delivery: &Delivery) -> &str {
    delivery.message.message_id.as_ref().expect("it has one").as_str()
}

/// More sessions than one connection has room for: a broker allows 256 links with AMQP sessions of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_hundred_sessions_are_held() {
    const SESSIONS: usize = 600;
    let (broker, _dir, transport) = bench().await;
    let names: Vec<_> = (0..SESSIONS).map(|n| format!("s{n}")).collect();
    send(&transport, "orders", names.iter().map(|name| message(Some(name), name)).collect()).await;
    let mut accepting = JoinSet::new();
    let mut held = Vec::new();
    for n in 0..SESSIONS {
        let transport = transport.clone();
        accepting.spawn(async move { next_session(&transport).await });
        if n % 32 == 31 {
            held.extend(accepting.join_next().await.map(|session| session.expect("no panic")));
        }
    }
    while let Some(session) = accepting.join_next().await {
        held.push(session.expect("no panic"));
    }
    let ids: BTreeSet<_> = held.iter().map(|session| session.id().clone()).collect();
    assert_eq!(ids.len(), SESSIONS, "each is held once");
    assert_eq!(broker.handle.counts().sessions, SESSIONS as u64);
    let connections = transport.counts().await.connections;
    assert!((3..=10).contains(&connections), "{connections} connections");

    // Each of them works, over whatever connection it is held.
    let mut working = JoinSet::new();
    for session in held {
        working.spawn(async move {
            let name = session.id().to_string();
            let delivery = session.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes");
            assert_eq!(id_of(&delivery), name);
            session.set_state(Some(Bytes::from(name.clone()))).await.expect("state is written");
            session.renew().await.expect("the lock is renewed");
            assert_eq!(session.state().await.expect("state is read"), Some(Bytes::from(name)));
            session.settle(delivery.lock, Settlement::Complete).await.expect("it is completed");
            session.release(Duration::ZERO).await.expect("it is given back");
        });
    }
    while let Some(worked) = working.join_next().await {
        worked.expect("no panic");
    }
    until("no session is held any more", || broker.handle.counts().sessions == 0).await;
    // Room that was given back is used again.
    send(&transport, "orders", vec![message(Some("again"), "again")]).await;
    assert_eq!(next_session(&transport).await.id().as_str(), "again");
    assert_eq!(transport.counts().await.connections, connections);
}

/// A12: whoever stops waiting for a session, at whatever point, holds none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_accept_that_is_dropped_holds_nothing() {
    const ROUNDS: u64 = 60;
    let (broker, _dir, transport) = bench().await;
    let orders = "orders".into();
    send(&transport, "mails", vec![message(None, "warm")]).await;
    for round in 0..ROUNDS {
        let name = format!("s{round}");
        let sent = {
            let transport = transport.clone();
            tokio::spawn(async move { transport.send(&"orders".into(), vec![message(Some(&name), &name)]).await })
        };
        // From before the attach is sent to after the session was granted.
        tokio::select! {
            biased;
            session = transport.accept_next(&orders, EVENTUALLY) => drop(session),
            () = tokio::time::sleep(Duration::from_micros(round * 150)) => {}
        }
        sent.await.expect("no panic").expect("it is taken");
    }
    until("no session is held", || broker.handle.counts().sessions == 0).await;
    let mut seen = BTreeSet::new();
    while seen.len() < ROUNDS as usize {
        let session = next_session(&transport).await;
        let delivery = session.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes");
        assert_eq!(delivery.delivery_count, 1, "{} was never handed to anybody", id_of(&delivery));
        session.settle(delivery.lock, Settlement::Complete).await.expect("it is completed");
        assert!(seen.insert(session.id().clone()), "{} is offered once", session.id());
        session.release(Duration::ZERO).await.expect("it is given back");
    }
    assert_eq!(transport.counts().await.connections, 1, "no room was lost");
}

/// A28, A29: a delivery that stays in hand holds up none of the thousands that pass it on the same link, wherever a window ends: ours, of 1,024
/// transfers, ends twice, and 2,047 is where others stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_unsettled_delivery_starves_nobody() {
    const MANY: usize = 2_200;
    let (_broker, _dir, transport) = bench().await;
    send(&transport, "mails", (0..=MANY).map(|n| message(None, &format!("m{n}"))).collect()).await;
    let held = take(&transport, "mails", 1).await.remove(0);
    let mut seen = BTreeSet::new();
    while seen.len() < MANY {
        let got = take(&transport, "mails", 50.min(MANY - seen.len())).await;
        let mut settling = JoinSet::new();
        for delivery in got {
            assert!(seen.insert(id_of(&delivery).to_owned()), "{} comes once", id_of(&delivery));
            let transport = transport.clone();
            settling.spawn(async move { transport.settle(&"mails".into(), delivery.lock, Settlement::Complete).await });
        }
        while let Some(settled) = settling.join_next().await {
            settled.expect("no panic").expect("it is completed");
        }
    }
    transport.settle(&"mails".into(), held.lock, Settlement::Complete).await.expect("its lock still holds");
    let left = transport.peek(&"mails".into(), Part::Active, None, SequenceNumber(0), 10).await;
    assert!(left.expect("peeking works").is_empty());
}

async fn complete_all(transport: &ServiceBus, entity: &str, all: &[Delivery]) -> Vec<Result<(), Error>> {
    let mut settling = JoinSet::new();
    for (at, delivery) in all.iter().enumerate() {
        let (transport, entity, lock) = (transport.clone(), entity.into(), delivery.lock);
        settling.spawn(async move { (at, transport.settle(&entity, lock, Settlement::Complete).await) });
    }
    let mut results = settling.join_all().await;
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Completions that wait together share a request, and a lone one waits for nobody.
#[tokio::test]
async fn completions_share_requests() {
    const MANY: usize = 150;
    let (_broker, _dir, transport) = bench().await;
    send(&transport, "mails", (0..=MANY).map(|n| message(None, &format!("m{n}"))).collect()).await;
    let mut taken = take(&transport, "mails", MANY + 1).await;
    let alone = taken.split_off(MANY);
    assert_eq!(complete_all(&transport, "mails", &alone).await.len(), 1);
    assert_eq!(transport.counts().await.completion_requests, 1);
    for result in complete_all(&transport, "mails", &taken).await {
        result.expect("it is completed");
    }
    // The first one alone, then as many as a request takes.
    let requests = transport.counts().await.completion_requests - 1;
    assert!((2..=10).contains(&requests), "{requests} requests for {MANY} completions");
    let left = transport.peek(&"mails".into(), Part::Active, None, SequenceNumber(0), 10).await;
    assert!(left.expect("peeking works").is_empty());
}

/// A30: of those that share a request, each hears of its own: a lock that was lost is its owner's alone.
#[tokio::test]
async fn a_lost_lock_is_its_owners_alone() {
    let (_broker, _dir, transport) = bench().await;
    let brief = "brief".into();
    send(&transport, "brief", vec![message(None, "lost")]).await;
    let lost = take(&transport, "brief", 1).await.remove(0);
    // Lapsed when somebody else is handed the message.
    let again = take(&transport, "brief", 1).await.remove(0);
    assert_eq!((id_of(&again), again.delivery_count), ("lost", 2));
    transport.renew(&brief, again.lock).await.expect("the second holder has it");
    send(&transport, "brief", (0..20).map(|n| message(None, &format!("m{n}"))).collect()).await;
    let mut all = take(&transport, "brief", 20).await;
    all.insert(10, lost);
    let results = complete_all(&transport, "brief", &all).await;
    for (delivery, result) in all.iter().zip(results) {
        match id_of(delivery) {
            "lost" => support::is_lost(result),
            id => result.unwrap_or_else(|error| panic!("{id}: {error}")),
        }
    }
    assert!(transport.counts().await.completion_requests < 21 + 21, "some were together");
    let left = transport.peek(&brief, Part::Active, None, SequenceNumber(0), 10).await.expect("peeking works");
    assert_eq!(left.len(), 1, "what was lost is there, and nothing else: {left:?}");
    // And is still the second holder's to complete, if its lock holds until then.
    match transport.settle(&brief, again.lock, Settlement::Complete).await {
        Ok(()) | Err(Error::LockLost) => {}
        Err(other) => panic!("{other}"),
    }
}

/// A86: a message that comes in the moment in which its receiver stops waiting is not left locked for nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_too_late_is_not_stuck() {
    const MANY: usize = 100;
    let (_broker, _dir, transport) = bench().await;
    let sending = {
        let transport = transport.clone();
        tokio::spawn(async move {
            for n in 0..MANY {
                send(&transport, "mails", vec![message(None, &format!("m{n}"))]).await;
            }
        })
    };
    let mut seen = BTreeSet::new();
    let until = tokio::time::Instant::now() + 3 * EVENTUALLY;
    let (mails, wait) = ("mails".into(), Duration::from_millis(1));
    while seen.len() < MANY {
        assert!(tokio::time::Instant::now() < until, "{} of {MANY} came", seen.len());
        // One that is dropped while it waits, and one that ends by itself.
        let dropped = tokio::time::timeout(wait, transport.receive(&mails, 3, EVENTUALLY)).await;
        let got = dropped.unwrap_or(Ok(Vec::new())).expect("receiving works");
        let late = transport.receive(&mails, 3, wait).await.expect("receiving works");
        for delivery in got.into_iter().chain(late) {
            assert_eq!(delivery.delivery_count, 1, "it was given back uncounted");
            transport.settle(&"mails".into(), delivery.lock, Settlement::Complete).await.expect("it is completed");
            assert!(seen.insert(id_of(&delivery).to_owned()));
        }
    }
    sending.await.expect("no panic");
}
