//! Sends and receives while faults happen (see tests/sdk/faults.py): nothing that was accepted is lost.
//!
//! A message that was completed may come again here, and does now and then: this client sends its settlements without waiting for the
//! broker's word, so one that a cut swallowed looks as if it had gone well. How often is told. What the official SDKs completed does not come
//! again, and their soaks hold them to it.

use std::{
    collections::HashSet,
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use azservicebus::{ServiceBusReceivedMessage, ServiceBusRetryOptions};

use crate::{
    broker::{self, Client},
    scenario::{Outcome, STACK, on_one_thread},
};

/// Beyond the client's own time for an operation; what takes longer hangs. Then the client is given up whole, with its runtime.
const HANGS: Duration = Duration::from_secs(20);
const OPERATION: Duration = Duration::from_secs(5);
/// The senders wait while so many messages are under way, so that all can be received soon after the faults end.
const UNDER_WAY: usize = 3_000;
/// For a lock to lapse and a session to be given back, after the last fault.
const QUIET: Duration = Duration::from_secs(6);
const PATIENCE: Duration = Duration::from_secs(120);

/// What was handed to us may be completed although we never heard of it, so only what was never handed to us is lost.
#[derive(Default)]
struct Seen {
    accepted: HashSet<String>,
    handed: HashSet<String>,
    completed: HashSet<String>,
    again: usize,
    faults: usize,
    hangs: usize,
    stop: bool,
}

#[derive(Clone)]
struct Soak {
    seen: Arc<Mutex<Seen>>,
    until: Instant,
}

impl Soak {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stops(&self) -> bool {
        self.seen().stop
    }

    fn sends(&self) -> bool {
        Instant::now() < self.until
    }

    /// Again and again, each time with a runtime and a client of its own: after a lost connection this client makes no new sender or receiver.
    fn work(&self, goes: fn(&Self) -> bool, round: impl AsyncFn(&Self, &mut Client) -> Outcome + Send + 'static) {
        let soak = self.clone();
        let work = move || {
            while goes(&soak) {
                let ended = on_one_thread(async {
                    let options =
                        ServiceBusRetryOptions { max_retries: 0, try_timeout: OPERATION, ..Default::default() };
                    let mut client = soak.within(broker::connect(options)).await?;
                    while goes(&soak) {
                        round(&soak, &mut client).await?;
                    }
                    Ok(())
                });
                if ended.is_err() {
                    soak.seen().faults += 1;
                    thread::sleep(Duration::from_millis(100));
                }
            }
        };
        thread::Builder::new().stack_size(STACK).spawn(work).expect("a thread for each worker");
    }

    /// Whoever gives a call up gives its client up too: the error ends the round.
    async fn within<T, E: Into<crate::scenario::Failure>>(
        &self,
        call: impl Future<Output = Result<T, E>>,
    ) -> Outcome<T> {
        match tokio::time::timeout(HANGS, call).await {
            Ok(result) => result.map_err(Into::into),
            Err(_) => {
                self.seen().hangs += 1;
                Err("it hangs".into())
            }
        }
    }

    async fn send(&self, client: &mut Client, queue: &'static str, sessions: bool) -> Outcome {
        let mut sender = self.within(client.create_sender(queue, Default::default())).await?;
        while self.sends() {
            let (number, under_way) = {
                let seen = self.seen();
                (seen.accepted.len(), seen.accepted.len().saturating_sub(seen.handed.len()))
            };
            if under_way > UNDER_WAY {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            let ids: Vec<_> = (0..1 + number % 5).map(|n| format!("{queue}-{n}-{}", unique())).collect();
            let messages = ids.iter().map(|id| {
                let mut message = broker::named("x".repeat(500), id)?;
                if sessions {
                    message.set_session_id(format!("s{}", number % 5))?;
                }
                Outcome::Ok(message)
            });
            let messages = messages.collect::<Outcome<Vec<_>>>()?;
            // One whose send has failed may be there or not.
            self.within(sender.send_messages(messages)).await?;
            self.seen().accepted.extend(ids);
        }
        Ok(())
    }

    fn handed(&self, message: &ServiceBusReceivedMessage) -> Outcome<String> {
        let id = message.message_id().ok_or("a message without an id")?.into_owned();
        let mut seen = self.seen();
        seen.handed.insert(id.clone());
        if seen.completed.contains(&id) {
            seen.again += 1;
        }
        Ok(id)
    }

    async fn receive(&self, client: &mut Client) -> Outcome {
        let mut queue = self.within(client.create_receiver_for_queue("soak", Default::default())).await?;
        while !self.stops() {
            let wait = Duration::from_millis(500);
            for mut message in self.within(queue.receive_messages_with_max_wait_time(20, wait)).await? {
                let id = self.handed(&message)?;
                // Only this tells whether the lock still holds.
                self.within(queue.renew_message_lock(&mut message)).await?;
                self.within(queue.complete_message(&message)).await?;
                self.seen().completed.insert(id);
            }
        }
        Ok(())
    }

    async fn receive_session(&self, client: &mut Client) -> Outcome {
        let next = client.accept_next_session_for_queue("soak-sessions", Default::default());
        let mut held = self.within(next).await?;
        while !self.stops() {
            let wait = Duration::from_millis(300);
            let got = self.within(held.receive_messages_with_max_wait_time(20, wait)).await?;
            if got.is_empty() {
                break;
            }
            for message in &got {
                let id = self.handed(message)?;
                self.within(held.renew_session_lock()).await?;
                self.within(held.complete_message(message)).await?;
                self.seen().completed.insert(id);
            }
        }
        self.within(held.dispose()).await
    }
}

/// Two senders, and a send that failed: no number is used twice.
fn unique() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

pub(crate) fn run() -> ExitCode {
    let seconds = std::env::var("SPRAG_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(20.0);
    let soak = Soak { seen: Arc::default(), until: Instant::now() + Duration::from_secs_f64(seconds) };
    soak.work(Soak::sends, async |soak, client| soak.send(client, "soak", false).await);
    soak.work(Soak::sends, async |soak, client| soak.send(client, "soak-sessions", true).await);
    soak.work(|soak| !soak.stops(), async |soak, client| soak.receive(client).await);
    for _ in 0..2 {
        soak.work(|soak| !soak.stops(), async |soak, client| soak.receive_session(client).await);
    }
    let quiet = soak.until + QUIET;
    while Instant::now() < soak.until + PATIENCE {
        thread::sleep(Duration::from_millis(200));
        let seen = soak.seen();
        if Instant::now() > quiet && seen.accepted.is_subset(&seen.handed) {
            break;
        }
    }
    let mut seen = soak.seen();
    seen.stop = true;
    let lost: Vec<_> = seen.accepted.difference(&seen.handed).collect();
    let good = lost.is_empty() && seen.accepted.len() > 100;
    println!(
        "{} Rust under faults: {} accepted, {} completed, {} errors, {} calls that hung, {} came again, lost {:?} ({})",
        if good { "ok  " } else { "FAIL" },
        seen.accepted.len(),
        seen.completed.len(),
        seen.faults,
        seen.hangs,
        seen.again,
        &lost[..lost.len().min(5)],
        lost.len(),
    );
    ExitCode::from(u8::from(!good))
}
