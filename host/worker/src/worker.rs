//! All endpoints of a host, from start to stop.

use std::{path::PathBuf, sync::Arc, time::Duration};

use sprag_core::{
    effect::{HistoryKind, HistoryLine, StoreWrite},
    ids::{EndpointName, EventId, SessionId},
    machine::Rules,
    outcome::{Failure, kind},
    seal::Seal,
    time::Timestamp,
};
use sprag_store::Store;
use sprag_transport::EntitySettings;
use tokio::{sync::watch, task::JoinSet};
use tracing::warn;

use crate::{
    config::EndpointConfig,
    endpoint::{Endpoint, InFlight, StoreState},
    flight::{EndedRun, FlightRecorder},
    handlers::Handlers,
    relay::Relay,
    renew::Renewals,
    signal::{Counters, Signals},
    upkeep,
};

/// What all endpoints share.
pub struct WorkerConfig {
    pub endpoints: Vec<EndpointConfig>,
    pub handlers: Arc<dyn Handlers>,
    /// The flight recorder's file.
    pub flight: PathBuf,
    pub seal: Seal,
    pub signals: Signals,
    pub counters: Arc<Counters>,
    /// Wall time, for what is stored.
    pub clock: fn() -> Timestamp,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the flight recorder {path} cannot be opened: {error}")]
    Flight { path: PathBuf, error: std::io::Error },
    #[error("endpoint {endpoint}: its source cannot be used: {error}")]
    Source { endpoint: EndpointName, error: sprag_transport::Error },
    #[error("endpoint {endpoint}: its inbox cannot have the mode `lease`: {why}")]
    Lease { endpoint: EndpointName, why: &'static str },
}

/// Tells everything to stop, and whether it was told.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    Passed,
    Stopped,
}

impl Stop {
    /// The sender sets it by sending true.
    pub fn new() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    pub async fn pause(&self, time: Duration) -> Wait {
        let mut stop = self.0.clone();
        tokio::select! {
            () = tokio::time::sleep(time) => Wait::Passed,
            _ = stop.wait_for(|stop| *stop) => Wait::Stopped,
        }
    }

    pub async fn wait(&self) {
        let mut stop = self.0.clone();
        // A sender that is gone can no longer say when to stop: the same as having said it.
        let _ = stop.wait_for(|stop| *stop).await;
    }
}

/// A run that was not over when the grace period was.
#[derive(Debug, Clone)]
pub struct Left {
    pub endpoint: EndpointName,
    pub event_id: EventId,
    pub session: Option<SessionId>,
    pub running_for: Duration,
}

/// The runs of a worker. Cheap to clone; empty when the worker has ended.
#[derive(Clone)]
pub struct Running(Arc<InFlight>);

impl Running {
    pub fn list(&self) -> Vec<Left> {
        let left = |run: crate::endpoint::Run| Left {
            endpoint: run.endpoint,
            event_id: run.event_id,
            session: run.session,
            running_for: run.since.elapsed(),
        };
        self.0.list().into_iter().map(left).collect()
    }
}

/// Serves all endpoints.
pub struct Worker {
    endpoints: Vec<Arc<Endpoint>>,
    in_flight: Arc<InFlight>,
    stop: Stop,
    clock: fn() -> Timestamp,
}

impl Worker {
    /// Gets ready: notes the runs that ended with the last process, and looks at every source.
    pub async fn build(config: WorkerConfig, stop: Stop) -> Result<Self, Error> {
        let WorkerConfig { endpoints, handlers, flight, seal, signals, counters, clock } = config;
        let (recorder, ended) =
            FlightRecorder::open(&flight).map_err(|error| Error::Flight { path: flight.clone(), error })?;
        for run in &ended {
            if let Some(endpoint) = endpoints.iter().find(|endpoint| endpoint.name == run.endpoint) {
                note_ended(&*endpoint.store, run, clock()).await;
            }
        }
        let recorder = Arc::new(recorder);
        let in_flight = Arc::new(InFlight::default());
        let outbox = watch::Sender::new(());
        let mut built = Vec::with_capacity(endpoints.len());
        for config in endpoints {
            let settings = settings(&config).await?;
            refuse_lease(&config, &settings)?;
            built.push(Arc::new(Endpoint {
                rules: Rules {
                    endpoint: config.name.clone(),
                    sessions: settings.requires_session,
                    inbox: config.inbox.is_some(),
                    retry: config.retry.clone(),
                    host_ended_limit: config.host_ended_limit,
                    seal: seal.clone(),
                },
                lock_duration: settings.lock_duration,
                handlers: Arc::clone(&handlers),
                recorder: Arc::clone(&recorder),
                renewals: Arc::new(Renewals::default()),
                state: Arc::new(StoreState(Arc::clone(&config.store))),
                signals: signals.clone(),
                counters: Arc::clone(&counters),
                gate: Default::default(),
                in_flight: Arc::clone(&in_flight),
                outbox: outbox.clone(),
                stop: stop.0.clone(),
                clock,
                config,
            }));
        }
        Ok(Self { endpoints: built, in_flight, stop, clock })
    }

    /// Serves until told to stop; then takes nothing new, finishes what runs, and answers with what was not over within the grace period.
    pub async fn run(self, grace: Duration) -> Vec<Left> {
        let mut loops = JoinSet::new();
        let mut upkeep = JoinSet::new();
        for endpoint in &self.endpoints {
            loops.spawn(Arc::clone(endpoint).serve());
            upkeep.spawn(Arc::clone(&endpoint.renewals).keep(endpoint.lock_duration));
            upkeep.spawn(upkeep::watch_dead_letters(Arc::clone(endpoint), self.stop.clone()));
            if let Some(inbox) = endpoint.config.inbox.clone() {
                upkeep.spawn(upkeep::purge_inbox(Arc::clone(endpoint), inbox, self.stop.clone()));
            }
        }
        for store in self.stores() {
            upkeep.spawn(upkeep::purge_tracking(store, self.clock, self.stop.clone()));
        }
        for relay in self.relays() {
            upkeep.spawn(relay.run(self.stop.clone()));
        }
        self.stop.wait().await;
        let over = async { while loops.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, over).await.is_ok() {
            return vec![];
        }
        self.running().list()
    }

    /// What runs now, for whoever cannot wait for the end of [`Worker::run`].
    pub fn running(&self) -> Running {
        Running(Arc::clone(&self.in_flight))
    }

    /// Each store once.
    fn stores(&self) -> Vec<Arc<dyn Store>> {
        let mut stores: Vec<Arc<dyn Store>> = vec![];
        for endpoint in &self.endpoints {
            if !stores.iter().any(|store| Arc::ptr_eq(store, &endpoint.config.store)) {
                stores.push(Arc::clone(&endpoint.config.store));
            }
        }
        stores
    }

    /// One for each pair of a store and the transport that its messages leave through.
    fn relays(&self) -> Vec<Relay> {
        let mut relays: Vec<Relay> = vec![];
        for endpoint in &self.endpoints {
            let crate::config::EndpointConfig { name, store, transport, .. } = &endpoint.config;
            let is_theirs =
                |relay: &&mut Relay| Arc::ptr_eq(&relay.store, store) && Arc::ptr_eq(&relay.transport, transport);
            match relays.iter_mut().find(is_theirs) {
                Some(relay) => relay.endpoints.push(name.clone()),
                None => relays.push(Relay {
                    store: Arc::clone(store),
                    transport: Arc::clone(transport),
                    endpoints: vec![name.clone()],
                    nudge: endpoint.outbox.subscribe(),
                    counters: Arc::clone(&endpoint.counters),
                    clock: self.clock,
                }),
            }
        }
        relays
    }
}

/// Leases are for sources without sessions, whose locks keep copies apart already, and for stores that have them (spec 4).
fn refuse_lease(config: &EndpointConfig, settings: &EntitySettings) -> Result<(), Error> {
    let Some(lease) = config.inbox.as_ref().and_then(|inbox| inbox.lease) else { return Ok(()) };
    let why = if settings.requires_session {
        "its source has sessions; take the mode `record`"
    } else if config.store.leases().is_none() {
        "its store has no leases"
    } else if lease.is_zero() {
        "the lease has no length"
    } else {
        return Ok(());
    };
    Err(Error::Lease { endpoint: config.name.clone(), why })
}

/// What the endpoint's entity is: what its transport says, or what it is meant to be while that is out of reach.
async fn settings(config: &EndpointConfig) -> Result<EntitySettings, Error> {
    match (config.transport.settings(&config.source).await, config.expected) {
        (Ok(settings), _) => Ok(settings),
        (Err(sprag_transport::Error::Unavailable(why)), Some(expected)) => {
            warn!(endpoint = %config.name, "the source cannot be reached yet; it is tried again until it can: {why}");
            Ok(expected)
        }
        (Err(error), _) => Err(Error::Source { endpoint: config.name.clone(), error }),
    }
}

/// The attempt is shown to the operator; the count itself stays in the recorder until the message is decided.
async fn note_ended(store: &dyn Store, run: &EndedRun, at: Timestamp) {
    let line = HistoryLine {
        event_id: run.event_id.clone(),
        kind: HistoryKind::Transient,
        at,
        message_id: run.message_id.clone(),
        outcome: None,
        attempt: run.count,
        started_at: None,
        took: None,
        handler: None,
        digest: None,
        reason: None,
        error: Some(Failure::new(kind::HOST_ENDED, "the process ended during the run")),
        by: None,
    };
    let write = StoreWrite { history: Some(line), ..Default::default() };
    if let Err(error) = store.write(&run.endpoint, write).await {
        warn!(endpoint = %run.endpoint, event = %run.event_id, %error, "a run that ended with the process could not be noted in the history");
    }
}
