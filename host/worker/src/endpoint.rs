//! One endpoint at work: takes sessions or messages while it may, each in a task of its own.

use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use sprag_core::{
    ids::{EndpointName, EventId, MessageId, SessionId},
    machine::{Arrival, Rules},
    run::Version,
    time::Timestamp,
};
use sprag_runtime::{StateReader, Unavailable};
use sprag_store::Store;
use sprag_transport::Error;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::Instant,
};
use tracing::{error, info, warn};

use crate::{
    config::EndpointConfig,
    flight::FlightRecorder,
    handlers::Handlers,
    messages,
    renew::Renewals,
    session,
    signal::{Counters, Signals},
};

/// Longest wait for a session or a message before the loop looks around.
const ACCEPT_WAIT: Duration = Duration::from_secs(30);
/// Longest pause between tries at a transport or a store that fails.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// At most one line per endpoint and this time about the same outage (case A52).
const LOG_EVERY: Duration = Duration::from_secs(1);

/// An endpoint with all that its loops share.
pub(crate) struct Endpoint {
    pub(crate) config: EndpointConfig,
    pub(crate) rules: Rules,
    pub(crate) lock_duration: Duration,
    pub(crate) handlers: Arc<dyn Handlers>,
    pub(crate) recorder: Arc<FlightRecorder>,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) state: Arc<dyn StateReader>,
    pub(crate) signals: Signals,
    pub(crate) counters: Arc<Counters>,
    pub(crate) gate: Gate,
    pub(crate) in_flight: Arc<InFlight>,
    /// Told when a commit left something for the relays.
    pub(crate) outbox: watch::Sender<()>,
    pub(crate) stop: watch::Receiver<bool>,
    pub(crate) clock: fn() -> Timestamp,
}

impl Endpoint {
    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits so long; false when the host stops meanwhile.
    pub(crate) async fn pause(&self, time: Duration) -> bool {
        let mut stop = self.stop.clone();
        tokio::select! {
            () = tokio::time::sleep(time) => !self.is_stopping(),
            _ = stop.wait_for(|stop| *stop) => false,
        }
    }

    /// Takes work until the host stops, then waits for what runs.
    pub(crate) async fn serve(self: Arc<Self>) {
        let permits = Arc::new(Semaphore::new(self.config.concurrency));
        let mut tasks = JoinSet::new();
        let mut stop = self.stop.clone();
        let mut changes = self.handlers.changes();
        let mut pause = self.config.back_off;
        loop {
            while let Some(ended) = tasks.try_join_next() {
                report(ended);
            }
            if !self.until_ready(&mut changes).await || !self.gate.until_open(&self).await {
                break;
            }
            let permit = tokio::select! {
                permit = Arc::clone(&permits).acquire_owned() => permit.expect("the semaphore is never closed"),
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let taken = tokio::select! {
                taken = self.take(permits.available_permits() + 1) => taken,
                _ = stop.wait_for(|stop| *stop) => break,
                // A handler that went away stops the intake at once.
                _ = changes.changed() => continue,
            };
            match taken {
                Ok(Taken::Nothing) => {}
                Ok(Taken::Session(session)) => {
                    pause = self.config.back_off;
                    spawn(&mut tasks, permit, session::hold(Arc::clone(&self), session));
                }
                Ok(Taken::Messages(deliveries)) => {
                    pause = self.config.back_off;
                    let mut permit = Some(permit);
                    for delivery in deliveries {
                        let permit = match permit.take() {
                            Some(permit) => permit,
                            None => Arc::clone(&permits).acquire_owned().await.expect("the semaphore is never closed"),
                        };
                        spawn(&mut tasks, permit, messages::handle(Arc::clone(&self), delivery));
                    }
                }
                Err(error) => {
                    warn!(endpoint = %self.config.name, source = %self.config.source, %error, again_in = ?pause, "nothing can be received");
                    drop(permit);
                    if !self.pause(pause).await {
                        break;
                    }
                    pause = (pause * 2).min(MAX_PAUSE);
                }
            }
        }
        while let Some(ended) = tasks.join_next().await {
            report(ended);
        }
    }

    async fn take(&self, max: usize) -> Result<Taken, Error> {
        let EndpointConfig { transport, source, .. } = &self.config;
        if self.rules.sessions {
            let session = transport.accept_next(source, ACCEPT_WAIT).await?;
            return Ok(session.map_or(Taken::Nothing, Taken::Session));
        }
        let deliveries = transport.receive(source, max, ACCEPT_WAIT).await?;
        Ok(if deliveries.is_empty() { Taken::Nothing } else { Taken::Messages(deliveries) })
    }

    /// Nothing is taken for want of a handler (P27). False when the host stops.
    async fn until_ready(&self, changes: &mut watch::Receiver<u64>) -> bool {
        let mut told = false;
        loop {
            if self.is_stopping() {
                return false;
            }
            changes.borrow_and_update();
            if self.handlers.is_ready(&self.config.name) {
                if told {
                    info!(endpoint = %self.config.name, "its handlers are loaded: it takes messages again");
                }
                return true;
            }
            if !told {
                told = true;
                warn!(endpoint = %self.config.name, "it takes no messages until all its handlers are loaded");
            }
            let mut stop = self.stop.clone();
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return false },
                _ = stop.wait_for(|stop| *stop) => return false,
            }
        }
    }
}

enum Taken {
    Nothing,
    Session(Arc<dyn sprag_transport::Session>),
    Messages(Vec<sprag_core::message::Delivery>),
}

fn spawn(
    tasks: &mut JoinSet<()>,
    permit: tokio::sync::OwnedSemaphorePermit,
    work: impl Future<Output = ()> + Send + 'static,
) {
    tasks.spawn(async move {
        work.await;
        drop(permit);
    });
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        error!(%error, "a loop of the worker panicked; its messages come again when their locks lapse");
    }
}

/// Whether the endpoint's store can be reached. While it cannot, nothing new is taken and what is in hand waits (P22).
#[derive(Default)]
pub(crate) struct Gate {
    closed: AtomicBool,
    failures: AtomicU64,
    last_line: Mutex<Option<Instant>>,
}

impl Gate {
    pub(crate) fn works(&self) {
        if self.closed.load(Ordering::Relaxed) {
            self.closed.store(false, Ordering::Relaxed);
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Notes a failure and waits before the next try. False when the host stops meanwhile.
    pub(crate) async fn failed(
        &self,
        endpoint: &EndpointName,
        error: &(dyn std::fmt::Display + Sync),
        mut stop: watch::Receiver<bool>,
    ) -> bool {
        self.closed.store(true, Ordering::Relaxed);
        self.log(endpoint, error);
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).min(8);
        let pause = Duration::from_millis(50 << failures).min(Duration::from_secs(5));
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            _ = stop.wait_for(|stop| *stop) => false,
        }
    }

    pub(crate) fn log(&self, endpoint: &EndpointName, error: &(dyn std::fmt::Display + Sync)) {
        let mut last = self.last_line.lock();
        if last.is_none_or(|line| line.elapsed() >= LOG_EVERY) {
            *last = Some(Instant::now());
            error!(%endpoint, %error, "the store fails: nothing runs without a check, nothing is taken until it answers");
        }
    }

    /// While others in hand are finding out, nothing new is taken; without any, one try a second finds out.
    async fn until_open(&self, endpoint: &Endpoint) -> bool {
        while self.closed.load(Ordering::Relaxed) {
            if !endpoint.pause(Duration::from_secs(1)).await {
                return false;
            }
            // With an id, so that an inbox in another store is asked, too.
            let id = MessageId::from("probe");
            let probe = sprag_store::Question {
                endpoint: &endpoint.config.name,
                message_id: Some(&id),
                source_id: None,
                event_id: &EventId::from("probe"),
                inbox: endpoint.rules.inbox,
                outcome: true,
            };
            match endpoint.config.store.check(probe).await {
                Ok(_) => self.works(),
                Err(error) => self.log(&endpoint.config.name, &error),
            }
        }
        true
    }
}

/// What runs right now, for the report of a stop that took too long.
#[derive(Default)]
pub(crate) struct InFlight {
    runs: Mutex<HashMap<u64, Run>>,
    next: AtomicU64,
}

#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) endpoint: EndpointName,
    pub(crate) event_id: EventId,
    pub(crate) session: Option<SessionId>,
    pub(crate) since: Instant,
}

pub(crate) struct Shown {
    of: Arc<InFlight>,
    number: u64,
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.of.runs.lock().remove(&self.number);
    }
}

impl InFlight {
    pub(crate) fn enter(self: &Arc<Self>, endpoint: &EndpointName, arrival: &Arrival) -> Shown {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let run = Run {
            endpoint: endpoint.clone(),
            event_id: arrival.event_id.clone(),
            session: arrival.session.clone(),
            since: Instant::now(),
        };
        self.runs.lock().insert(number, run);
        Shown { of: Arc::clone(self), number }
    }

    pub(crate) fn list(&self) -> Vec<Run> {
        self.runs.lock().values().cloned().collect()
    }
}

/// An endpoint's state, read from its store.
pub(crate) struct StoreState(pub(crate) Arc<dyn Store>);

#[async_trait::async_trait]
impl StateReader for StoreState {
    async fn get(&self, endpoint: &EndpointName, key: &str) -> Result<Option<(Bytes, Version)>, Unavailable> {
        let found = self.0.state_get(endpoint, key).await.map_err(|error| Unavailable(error.to_string()))?;
        Ok(found.map(|found| (found.value, found.version)))
    }

    async fn scan(
        &self,
        endpoint: &EndpointName,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<(String, Bytes, Version)>, Unavailable> {
        let found = self.0.state_scan(endpoint, prefix, after, limit).await;
        let found = found.map_err(|error| Unavailable(error.to_string()))?;
        Ok(found.into_iter().map(|(key, found)| (key, found.value, found.version)).collect())
    }
}
