//! Many clients at a time: what they cost, and that none of them waits for another.

#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{sync::Arc, time::Duration};

use rustix::process::{Resource, getrlimit, setrlimit};
use sprag_amqp::performative::DeliveryState;
use sprag_broker::EntitySpec;
use sprag_core::message::{Body, Message};
use support::{Broker, Client, message};
use tokio::{net::TcpStream, sync::Semaphore};

const CONNECTIONS: usize = 1_000;
const SESSIONS: usize = 10_000;
/// For broker and clients together, which live in this process.
const MEMORY: u64 = 400 << 20;

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// 1,000 connections that hold 10,000 sessions, each with a message in hand and waiting for more: under 400 MiB, and quiet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_with_ten_thousand_sessions() {
    allow_many_files();
    let spec = EntitySpec { lock_duration: Duration::from_secs(300), ..EntitySpec::queue("s").with_sessions() };
    let broker = Arc::new(Broker::start(vec![spec]).await);
    let target = broker.engine.target(&"s".into()).unwrap();
    let sent = (0..SESSIONS).map(|n| Message {
        session_id: Some(format!("session-{n}").into()),
        body: Body::Data(format!("body {n}").into()),
        ..Message::default()
    });
    target.send(sent.collect()).await.unwrap();

    // Not all at once: the system's queue of connections that wait to be accepted is short.
    let gate = Arc::new(Semaphore::new(50));
    let each = SESSIONS / CONNECTIONS;
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|n| {
            let (broker, gate) = (Arc::clone(&broker), Arc::clone(&gate));
            tokio::spawn(async move {
                let _one = gate.acquire().await.unwrap();
                let mut client = broker.client().await;
                let mut last = None;
                for n in n * each..(n + 1) * each {
                    let of = Client::<TcpStream>::of_session("s", Some(&format!("session-{n}")), None);
                    let link = client.attach(of).await.unwrap().0;
                    client.give(link, 0, 10, false).await;
                    let got = client.receive(link).await;
                    assert_eq!(got.body(), format!("body {n}"));
                    last = Some(got.id);
                }
                (client, last.unwrap())
            })
        })
        .collect();
    let mut open = Vec::with_capacity(CONNECTIONS);
    for client in clients {
        open.push(client.await.unwrap());
    }
    let counts = broker.handle.counts();
    assert_eq!((counts.connections, counts.links, counts.sessions), (1_000, 10_000, 10_000));
    let memory = resident();
    assert!(memory < MEMORY, "{} MiB", memory >> 20);
    println!("{} MiB with {CONNECTIONS} connections and {SESSIONS} sessions", memory >> 20);

    // They are served like the first.
    for (client, last) in open.iter_mut().step_by(100) {
        assert_eq!(client.settle(*last, DeliveryState::Accepted).await, DeliveryState::Accepted);
    }
    drop(open);
    support::until("all are gone, and their sessions are free", || {
        let counts = broker.handle.counts();
        (counts.connections, counts.links, counts.sessions) == (0, 0, 0)
    })
    .await;
}

/// A client that does not read is not sent more than its buffers hold, and holds up nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_holds_up_nobody() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let target = broker.engine.target(&"q".into()).unwrap();
    let body = Body::Data(vec![7; 100_000].into());
    for _ in 0..20 {
        let messages = (0..50).map(|_| Message { body: body.clone(), ..Message::default() });
        target.send(messages.collect()).await.unwrap();
    }
    // 100 MB wait, and this one asks for all of them without reading any.
    let mut deaf = broker.client().await;
    deaf.receiver("q", 1_000).await.unwrap();
    let mut other = broker.client().await;
    let sender = other.sender("q").await.unwrap();
    assert_eq!(other.send(sender, &message("x")).await, DeliveryState::Accepted);
    let receiver = other.receiver("q", 100).await.unwrap();
    for _ in 0..100 {
        let got = other.receive(receiver).await;
        other.dispose(got.id, got.id, DeliveryState::Accepted, true).await;
    }
    // The other one has got far less than it asked for: at least 700 are still there for somebody else.
    let more = broker.client().await;
    let mut more = more;
    let receiver = more.receiver("q", 700).await.unwrap();
    for _ in 0..700 {
        more.receive(receiver).await;
    }
}

/// Many senders on one connection and on many: each message is on the disk before it is accepted, and they share the writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_senders() {
    let broker = Arc::new(Broker::start(vec![EntitySpec::queue("q")]).await);
    let senders: Vec<_> = (0..32)
        .map(|_| {
            let broker = Arc::clone(&broker);
            tokio::spawn(async move {
                let mut client = broker.client().await;
                let link = client.sender("q").await.unwrap();
                for _ in 0..50 {
                    assert_eq!(client.send(link, &message("x")).await, DeliveryState::Accepted);
                }
            })
        })
        .collect();
    for sender in senders {
        sender.await.unwrap();
    }
    assert_eq!(broker.engine.entity(&"q".into()).unwrap().counts.active, 1_600);
}
