//! What clients do to the broker while it is measured. Every answer is awaited and looked at.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use sprag_amqp::{
    message::{BATCH_FORMAT, write_data},
    performative::DeliveryState,
};
use tokio::{
    net::TcpStream,
    sync::{Barrier, Semaphore, watch},
    task::JoinSet,
};

use super::{
    broker::{Broker, QUEUE, SESSIONS},
    support::{Client, in_session, message},
};

pub(crate) const BODY: usize = 256;
pub(crate) const SENDERS: usize = 32;
pub(crate) const BATCH: usize = 100;
pub(crate) const RECEIVERS: usize = 8;
pub(crate) const CREDIT: u32 = 100;
pub(crate) const CONNECTIONS: usize = 1_000;
pub(crate) const HELD: usize = 10_000;
const WARM_UP: Duration = Duration::from_millis(200);

fn payload(batch: usize) -> (u32, Vec<u8>) {
    let body = "x".repeat(BODY);
    if batch == 1 {
        return (0, message(&body));
    }
    let mut out = Vec::new();
    for _ in 0..batch {
        write_data(&mut out, &message(&body));
    }
    (BATCH_FORMAT, out)
}

async fn send(client: &mut Client, link: u32, batch: usize) {
    let (format, payload) = payload(batch);
    let id = client.transfer_as(format, link, &payload, false).await;
    assert_eq!(client.outcome(id).await, DeliveryState::Accepted);
}

/// Messages per second that are sent and accepted, `batch` in each transfer; each sender has a connection and one transfer at a time.
pub(crate) async fn sends(folder: &Path, batch: usize, time: Duration) -> f64 {
    let broker = Arc::new(Broker::start(folder));
    let ready = Arc::new(Barrier::new(SENDERS));
    let mut senders = JoinSet::new();
    for _ in 0..SENDERS {
        let (broker, ready) = (Arc::clone(&broker), Arc::clone(&ready));
        senders.spawn(async move {
            let mut client = broker.client().await;
            let link = client.sender(QUEUE).await.expect("a link");
            let warm = Instant::now();
            while warm.elapsed() < WARM_UP {
                send(&mut client, link, batch).await;
            }
            ready.wait().await;
            let (begun, mut sent) = (Instant::now(), 0);
            while begun.elapsed() < time {
                send(&mut client, link, batch).await;
                sent += batch;
            }
            // Dropped after the measurement of all: a client that goes costs the broker something too.
            (client, begun, Instant::now(), sent)
        });
    }
    let done = senders.join_all().await;
    let begun = done.iter().map(|(_, begun, ..)| *begun).min().expect("there are senders");
    let ended = done.iter().map(|(_, _, ended, _)| *ended).max().expect("there are senders");
    let sent: usize = done.iter().map(|(.., sent)| *sent).sum();
    sent as f64 / (ended - begun).as_secs_f64()
}

/// Messages per second that are received and completed; each receiver has a connection and settles one message at a time.
pub(crate) async fn receives(folder: &Path, messages: usize) -> f64 {
    let broker = Arc::new(Broker::start(folder));
    let mut client = broker.client().await;
    let link = client.sender(QUEUE).await.expect("a link");
    for _ in 0..messages / BATCH {
        send(&mut client, link, BATCH).await;
    }
    let messages = messages / BATCH * BATCH;

    let ready = Arc::new(Barrier::new(RECEIVERS + 1));
    let completed = Arc::new(AtomicUsize::new(0));
    let (all, ended) = watch::channel(false);
    let all = Arc::new(all);
    let mut receivers = JoinSet::new();
    for _ in 0..RECEIVERS {
        let (broker, ready, completed) = (Arc::clone(&broker), Arc::clone(&ready), Arc::clone(&completed));
        let (all, mut ended) = (Arc::clone(&all), ended.clone());
        receivers.spawn(async move {
            let mut client = broker.client().await;
            let link = client.receiver(QUEUE, 0).await.expect("a link");
            ready.wait().await;
            client.give(link, 0, CREDIT, false).await;
            let mut received = 0;
            loop {
                let got = tokio::select! {
                    got = client.receive(link) => got,
                    // The sender of this is held by this task.
                    _ = ended.changed() => break,
                };
                assert_eq!(got.body().len(), BODY);
                received += 1;
                assert_eq!(client.settle(got.id, DeliveryState::Accepted).await, DeliveryState::Accepted);
                if received % (CREDIT / 2) == 0 {
                    client.give(link, received, CREDIT, false).await;
                }
                if completed.fetch_add(1, Relaxed) + 1 == messages {
                    all.send_replace(true);
                }
            }
        });
    }
    ready.wait().await;
    let begun = Instant::now();
    let mut ended = ended;
    ended.changed().await.expect("the receivers hold the other end");
    let took = begun.elapsed();
    receivers.join_all().await;
    messages as f64 / took.as_secs_f64()
}

/// From the start of the process, in a folder with nothing in it, until a client may send.
pub(crate) async fn ready(folder: &Path) -> Duration {
    let begun = Instant::now();
    let broker = Broker::start(folder);
    let mut client = broker.client().await;
    client.sender(QUEUE).await.expect("a link");
    begun.elapsed()
}

/// What the broker's process keeps in memory: with one client, and with all that hold sessions, each with a message in hand.
pub(crate) async fn crowd(folder: &Path) -> (u64, u64) {
    let broker = Arc::new(Broker::start(folder));
    let each = HELD / CONNECTIONS;
    let mut senders = JoinSet::new();
    for sender in 0..SENDERS {
        let broker = Arc::clone(&broker);
        senders.spawn(async move {
            let mut client = broker.client().await;
            let link = client.sender(SESSIONS).await.expect("a link");
            for n in (sender..HELD).step_by(SENDERS) {
                let payload = in_session(&format!("session-{n}"), &"x".repeat(BODY));
                assert_eq!(client.send(link, &payload).await, DeliveryState::Accepted);
            }
        });
    }
    senders.join_all().await;
    let before = resident(broker.pid());
    // Not all at once: the system's queue of connections that wait to be accepted is short.
    let gate = Arc::new(Semaphore::new(50));
    let mut clients = JoinSet::new();
    for n in 0..CONNECTIONS {
        let (broker, gate) = (Arc::clone(&broker), Arc::clone(&gate));
        clients.spawn(async move {
            let _one = gate.acquire().await.expect("it is never closed");
            let mut client = broker.client().await;
            for n in n * each..(n + 1) * each {
                let of = Client::<TcpStream>::of_session(SESSIONS, Some(&format!("session-{n}")), None);
                let link = client.attach(of).await.expect("a session").0;
                client.give(link, 0, 10, false).await;
                assert_eq!(client.receive(link).await.body().len(), BODY);
            }
            client
        });
    }
    let clients = clients.join_all().await;
    let memory = resident(broker.pid());
    drop(clients);
    (before, memory)
}

/// Bytes of a process that are in memory.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("Linux says it");
    let kib: u64 = line.split_whitespace().nth(1).expect("a number follows").parse().expect("a number");
    kib << 10
}
