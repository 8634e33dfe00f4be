//! What clients do to the broker while it is measured. Every answer is awaited and looked at.

use std::{
    collections::VecDeque,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use sprag_amqp::{
    message::{BATCH_FORMAT, Sections, write_data},
    performative::{DeliveryState, Performative, Role},
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
/// Completions that a receiver with many handlers at work waits for at a time.
pub(crate) const IN_FLIGHT: usize = 16;
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

/// Messages per second that are received and completed. Each receiver has a connection, and asks for outcomes without waiting until
/// `in_flight` of them are not answered.
pub(crate) async fn receives(folder: &Path, messages: usize, in_flight: usize) -> f64 {
    let broker = Arc::new(Broker::start(folder));
    let mut client = broker.client().await;
    let link = client.sender(QUEUE).await.expect("a link");
    let batches = messages / BATCH;
    for _ in 0..batches {
        send(&mut client, link, BATCH).await;
    }

    let ready = Arc::new(Barrier::new(RECEIVERS + 1));
    let left = Arc::new(AtomicUsize::new(batches * BATCH));
    let (all, mut ended) = watch::channel(false);
    let all = Arc::new(all);
    let mut receivers = JoinSet::new();
    for _ in 0..RECEIVERS {
        let (broker, ready, left) = (Arc::clone(&broker), Arc::clone(&ready), Arc::clone(&left));
        let (all, mut ended) = (Arc::clone(&all), ended.clone());
        receivers.spawn(async move {
            let mut client = broker.client().await;
            let link = client.receiver(QUEUE, 0).await.expect("a link");
            ready.wait().await;
            client.give(link, 0, CREDIT, false).await;
            let mut receiver =
                Receiver { client, link, in_flight, in_hand: VecDeque::new(), open: 0, received: 0, completed: 0 };
            loop {
                let completed = tokio::select! {
                    completed = receiver.step() => completed,
                    // The sender of this is held by this task.
                    _ = ended.changed() => break,
                };
                if completed > 0 && left.fetch_sub(completed, Relaxed) == completed {
                    all.send_replace(true);
                }
            }
        });
    }
    ready.wait().await;
    let begun = Instant::now();
    ended.changed().await.expect("the receivers hold the other end");
    let took = begun.elapsed();
    receivers.join_all().await;
    (batches * BATCH) as f64 / took.as_secs_f64()
}

struct Receiver {
    client: Client,
    link: u32,
    in_flight: usize,
    /// Received and not worked on.
    in_hand: VecDeque<u32>,
    /// Outcomes that are not answered.
    open: usize,
    received: u32,
    completed: u32,
}

enum Heard {
    Message(u32),
    Completed(usize),
}

impl Receiver {
    /// Hears one thing and does what follows. Answers how many messages are completed by it.
    async fn step(&mut self) -> usize {
        let heard = self.client.wanted(|said, payload| match said {
            Performative::Transfer(transfer) => {
                assert!(!transfer.more, "it fits in a frame");
                let data = Sections::find(payload.clone()).and_then(|sections| sections.data()).expect("a message");
                assert_eq!(data.iter().map(Bytes::len).sum::<usize>(), BODY);
                Some(Heard::Message(transfer.delivery_id.expect("the first frame of a delivery has its number")))
            }
            Performative::Disposition(said) => {
                assert_eq!(
                    (said.role, said.settled, &said.state),
                    (Role::Sender, true, &Some(DeliveryState::Accepted))
                );
                Some(Heard::Completed((said.last.unwrap_or(said.first) - said.first) as usize + 1))
            }
            _ => None,
        });
        let done = match heard.await {
            Heard::Message(id) => {
                self.received += 1;
                self.in_hand.push_back(id);
                0
            }
            Heard::Completed(count) => {
                self.open -= count;
                count
            }
        };
        while self.open < self.in_flight
            && let Some(id) = self.in_hand.pop_front()
        {
            self.client.dispose(id, id, DeliveryState::Accepted, false).await;
            self.open += 1;
        }
        let half = CREDIT / 2;
        let before = self.completed / half;
        self.completed += u32::try_from(done).expect("no more than there are messages");
        if self.completed / half > before {
            let held = self.received - self.completed;
            self.client.give(self.link, self.received, CREDIT - held, false).await;
        }
        done
    }
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
