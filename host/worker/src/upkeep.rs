//! What goes on beside the messages: purging what is past its time, and noticing what the transport gave up by itself.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use sprag_core::{
    effect::{HistoryKind, HistoryLine, OutcomeGuard, OutcomeWrite, StoreWrite},
    ids::{EventId, SequenceNumber},
    outcome::{Failure, Outcome},
};
use sprag_store::{Question, Retention, Store};
use sprag_transport::{Part, Peeked};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{
    config::InboxConfig,
    endpoint::Endpoint,
    signal::Counters,
    worker::{Stop, Wait},
};

/// Rows that one purge deletes at a time.
const PURGE_BATCH: u32 = 1_000;
/// Longest that one pass of a purge goes on.
const PURGE_BUDGET: Duration = Duration::from_secs(30);
/// How often the dead letters are looked at.
const DEAD_LETTER_LOOK: Duration = Duration::from_secs(5);

/// Deletes an endpoint's expired inbox rows, for ever: at each interval in bounded batches until a short one.
pub(crate) async fn purge_inbox(endpoint: Arc<Endpoint>, config: InboxConfig, stop: Stop) {
    // Hosts that started together do not purge together (A49).
    let mut wait = config.cleanup_interval.mul_f64(0.5 + f64::from(std::process::id() % 100) / 200.0);
    while stop.pause(wait).await == Wait::Passed {
        wait = config.cleanup_interval;
        let before = endpoint.now().before(config.retention);
        let until = Instant::now() + PURGE_BUDGET;
        loop {
            match endpoint.config.store.purge_inbox(&endpoint.config.name, before, PURGE_BATCH).await {
                Ok(deleted) => {
                    endpoint.counters.purged.fetch_add(deleted.into(), Ordering::Relaxed);
                    if deleted < PURGE_BATCH || Instant::now() >= until || stop.is_set() {
                        break;
                    }
                }
                Err(error) => {
                    Counters::add(&endpoint.counters.purge_errors);
                    warn!(endpoint = %endpoint.config.name, %error, "the inbox could not be purged; tried again at the next interval");
                    break;
                }
            }
        }
    }
}

/// Deletes what tracking has kept for long enough.
pub(crate) async fn purge_tracking(store: Arc<dyn Store>, clock: fn() -> sprag_core::time::Timestamp, stop: Stop) {
    const DAY: Duration = Duration::from_secs(86_400);
    while stop.pause(Duration::from_secs(3_600)).await == Wait::Passed {
        let keep = Retention { now: clock(), bodies: 7 * DAY, outcomes: 30 * DAY, audit: 365 * DAY };
        let until = Instant::now() + PURGE_BUDGET;
        loop {
            match store.purge_tracking(&keep, PURGE_BATCH).await {
                Ok(deleted) if deleted >= PURGE_BATCH && Instant::now() < until && !stop.is_set() => {}
                Ok(_) => break,
                Err(error) => {
                    warn!(%error, "tracking could not be purged; tried again in an hour");
                    break;
                }
            }
        }
    }
}

/// Sets events to dead-lettered that the transport gave up by itself (P24): expired ones, and those past the delivery limit.
pub(crate) async fn watch_dead_letters(endpoint: Arc<Endpoint>, stop: Stop) {
    let mut from = SequenceNumber(0);
    loop {
        match look(&endpoint, &mut from).await {
            Ok(()) => {}
            Err(error) => debug!(endpoint = %endpoint.config.name, %error, "the dead letters could not be looked at"),
        }
        if stop.pause(DEAD_LETTER_LOOK).await == Wait::Stopped {
            return;
        }
    }
}

async fn look(endpoint: &Endpoint, from: &mut SequenceNumber) -> Result<(), String> {
    loop {
        let found = endpoint
            .config
            .transport
            .peek(&endpoint.config.source, Part::DeadLetters, None, *from, 200)
            .await
            .map_err(|error| error.to_string())?;
        let Some(last) = found.last() else { return Ok(()) };
        let next = SequenceNumber(last.sequence.0 + 1);
        for dead in found {
            note(endpoint, dead).await?;
        }
        *from = next;
    }
}

/// Reasons that only a transport gives.
const BROKER_REASONS: [&str; 2] = ["MaxDeliveryCountExceeded", "TTLExpiredException"];

async fn note(endpoint: &Endpoint, dead: Peeked) -> Result<(), String> {
    let reason = dead.dead_letter_reason.unwrap_or_default();
    if !BROKER_REASONS.contains(&reason.as_str()) {
        return Ok(());
    }
    let place = format!("{}#{}", endpoint.config.source, dead.sequence);
    let event_id = dead.message.event_id(|| EventId::from(place));
    let store = &endpoint.config.store;
    let question = Question {
        endpoint: &endpoint.config.name,
        message_id: dead.message.message_id.as_ref(),
        source_id: None,
        event_id: &event_id,
        inbox: false,
        outcome: true,
    };
    let stored = store.check(question).await.map_err(|error| error.to_string())?.outcome;
    if stored.as_ref().is_some_and(|stored| stored.outcome.is_final()) {
        return Ok(());
    }
    let attempts = stored.map_or(0, |stored| stored.attempts);
    let description = dead.dead_letter_description.unwrap_or_default();
    let at = endpoint.now();
    let write = StoreWrite {
        finals: dead.message.message_id.iter().cloned().collect(),
        outcome: Some(OutcomeWrite {
            event_id: event_id.clone(),
            message_id: dead.message.message_id.clone(),
            source_id: dead.message.message_id.clone(),
            session: dead.message.session_id.clone(),
            event_type: dead.message.event_type(),
            outcome: Outcome::DeadLettered,
            guard: OutcomeGuard::Newer,
            reason: Some(reason.clone()),
            error: Some(Failure::new(reason.clone(), description.clone())),
            attempts,
            handler: None,
            digest: None,
            enqueued_at: dead.enqueued_at,
            at,
            keep: Some(Box::new(dead.message.clone())),
        }),
        history: Some(HistoryLine {
            event_id,
            kind: HistoryKind::Decided,
            at,
            message_id: dead.message.message_id,
            outcome: Some(Outcome::DeadLettered),
            attempt: attempts,
            started_at: None,
            took: None,
            handler: None,
            digest: None,
            reason: Some(format!("given up by the transport: {reason}")),
            error: Some(Failure::new(reason, description)),
            by: None,
        }),
        ..Default::default()
    };
    store.write(&endpoint.config.name, write).await.map_err(|error| error.to_string())?;
    Ok(())
}
