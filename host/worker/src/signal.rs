//! What the worker tells: lifecycle signals for logs and for `sprag dev`, and counters.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use sprag_core::{
    effect::{Commit, Effect, HistoryKind, OutcomeWrite},
    ids::{EndpointName, EventId, EventType, HandlerName, SessionId},
    machine::Arrival,
    outcome::{Failure, Outcome},
};
use tokio::sync::broadcast;

use crate::handlers::Handler;

/// Something happened to a message. Payloads never travel here.
#[derive(Debug, Clone)]
pub struct Signal {
    pub kind: SignalKind,
    pub endpoint: EndpointName,
    pub session: Option<SessionId>,
    pub event_id: EventId,
    pub event_type: EventType,
    pub handler: Option<HandlerName>,
    pub attempt: u32,
    /// How long the run took, when there was one.
    pub took: Option<Duration>,
}

#[derive(Debug, Clone)]
pub enum SignalKind {
    /// The event's outcome is now this.
    Outcome {
        outcome: Outcome,
        reason: Option<String>,
        error: Option<Failure>,
        retry_in: Option<Duration>,
    },
    DuplicateDetected,
    /// Given back undecided; comes again after the pause.
    PutBack {
        text: String,
        pause: Duration,
    },
}

/// Counts since the start of the process.
#[derive(Debug, Default)]
pub struct Counters {
    pub received: AtomicU64,
    pub runs: AtomicU64,
    pub completed: AtomicU64,
    pub failed: AtomicU64,
    pub parked: AtomicU64,
    pub duplicates: AtomicU64,
    /// Deliveries whose id the inbox could not use.
    pub bypasses: AtomicU64,
    pub transient: AtomicU64,
    pub state_conflicts: AtomicU64,
    pub lock_lost: AtomicU64,
    /// Deliveries put back because somebody else is at the same event (mode `lease`).
    pub in_progress: AtomicU64,
    /// Commits that were refused because somebody else had taken over the lease.
    pub lease_lost: AtomicU64,
    pub store_errors: AtomicU64,
    pub purged: AtomicU64,
    pub purge_errors: AtomicU64,
    pub outbox_sent: AtomicU64,
    pub outbox_failed: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends signals to whoever listens; costs nothing when nobody does.
#[derive(Clone)]
pub struct Signals(broadcast::Sender<Signal>);

impl Default for Signals {
    fn default() -> Self {
        Self(broadcast::channel(4_096).0)
    }
}

impl Signals {
    /// A listener that falls more than 4,096 signals behind is told how many it missed.
    pub fn subscribe(&self) -> broadcast::Receiver<Signal> {
        self.0.subscribe()
    }

    pub(crate) fn send(&self, make: impl FnOnce() -> Signal) {
        if self.0.receiver_count() > 0 {
            // An error only says that the last listener has just gone.
            let _ = self.0.send(make());
        }
    }
}

/// What there is to tell once a commit has taken place; taken from it before it moves away.
pub(crate) struct Told {
    count: Option<Count>,
    signal: Option<Signal>,
}

#[derive(Clone, Copy)]
enum Count {
    Completed,
    Failed,
    Parked,
    Duplicate,
}

impl Told {
    pub(crate) fn of(
        signals: &Signals,
        endpoint: &EndpointName,
        arrival: &Arrival,
        commit: &Commit,
        attempt: u32,
        run: Option<(&Arc<dyn Handler>, Duration)>,
    ) -> Self {
        let write = commit.effects.iter().find_map(|effect| match effect {
            Effect::Store(write) => Some(write),
            _ => None,
        });
        let Some(write) = write else { return Self { count: None, signal: None } };
        let duplicate = write.history.as_ref().is_some_and(|line| line.kind == HistoryKind::Duplicate);
        let count = match &write.outcome {
            _ if duplicate => Some(Count::Duplicate),
            Some(outcome) => Some(match outcome.outcome {
                Outcome::Failed | Outcome::DeadLettered => Count::Failed,
                Outcome::Deferred => Count::Parked,
                _ => Count::Completed,
            }),
            None => None,
        };
        let signal = (signals.0.receiver_count() > 0 && count.is_some()).then(|| Signal {
            kind: match &write.outcome {
                Some(outcome) if !duplicate => SignalKind::Outcome {
                    outcome: outcome.outcome,
                    reason: outcome.reason.clone(),
                    error: outcome.error.clone(),
                    retry_in: retry_in(commit, outcome),
                },
                _ => SignalKind::DuplicateDetected,
            },
            endpoint: endpoint.clone(),
            session: arrival.session.clone(),
            event_id: write
                .outcome
                .as_ref()
                .map_or_else(|| arrival.event_id.clone(), |outcome| outcome.event_id.clone()),
            event_type: arrival.event_type.clone(),
            handler: run.map(|(handler, _)| handler.name().clone()),
            attempt,
            took: run.map(|(_, took)| took),
        });
        Self { count, signal }
    }

    pub(crate) fn tell(self, signals: &Signals, counters: &Counters) {
        if let Some(count) = self.count {
            Counters::add(match count {
                Count::Completed => &counters.completed,
                Count::Failed => &counters.failed,
                Count::Parked => &counters.parked,
                Count::Duplicate => &counters.duplicates,
            });
        }
        if let Some(signal) = self.signal {
            signals.send(|| signal);
        }
    }
}

fn retry_in(commit: &Commit, outcome: &OutcomeWrite) -> Option<Duration> {
    commit.effects.iter().find_map(|effect| match effect {
        Effect::Enqueue(message) if outcome.outcome == Outcome::Failed => {
            message.scheduled_for.map(|due| due.since(outcome.at))
        }
        _ => None,
    })
}
