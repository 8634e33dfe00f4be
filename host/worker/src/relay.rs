//! The outbox relay: sends what runs left to be sent, in order per session, and shows what cannot be (spec 5, P33).
//!
//! On the embedded engine most messages never come here: they reach their queue within the run's own commit.

use std::{sync::Arc, time::Duration};

use sprag_core::ids::EndpointName;
use sprag_store::{OutboxRow, Store};
use sprag_transport::Transport;
use tokio::sync::watch;
use tracing::{error, warn};

use crate::{
    signal::Counters,
    worker::{Stop, Wait},
};

const BATCH: u32 = 100;
const POLL: Duration = Duration::from_secs(1);
/// How long a claimed row is left to one relay.
const LEASE: Duration = Duration::from_secs(30);
/// Failed tries after which a row waits for an operator.
const MAX_TRIES: u32 = 10;
/// Pause after the n-th failed try, in seconds.
const PAUSES: [u64; 6] = [1, 2, 4, 8, 16, 30];

pub(crate) struct Relay {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) transport: Arc<dyn Transport>,
    /// Those whose messages leave through this transport.
    pub(crate) endpoints: Vec<EndpointName>,
    /// A commit has left something. Else it is looked for now and then, for what another host left.
    pub(crate) nudge: watch::Receiver<()>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: fn() -> sprag_core::time::Timestamp,
}

impl Relay {
    pub(crate) async fn run(mut self, stop: Stop) {
        loop {
            let sent = match self.store.outbox_claim(&self.endpoints, BATCH, LEASE).await {
                Ok(rows) => {
                    let full = rows.len() == BATCH as usize;
                    self.send(rows).await;
                    full
                }
                Err(error) => {
                    warn!(%error, "the outbox cannot be read; tried again");
                    false
                }
            };
            if stop.is_set() || (!sent && self.pause(&stop).await == Wait::Stopped) {
                return;
            }
        }
    }

    async fn pause(&mut self, stop: &Stop) -> Wait {
        tokio::select! {
            wait = stop.pause(POLL) => wait,
            // The endpoints hold the sender for as long as there is something to relay.
            Ok(()) = self.nudge.changed() => Wait::Passed,
        }
    }

    async fn send(&self, rows: Vec<OutboxRow>) {
        for row in rows {
            let OutboxRow { id, endpoint, entity, message, tries } = row;
            match self.transport.send(&entity, vec![message]).await {
                Ok(_) => {
                    Counters::add(&self.counters.outbox_sent);
                    // Unmarked, the row is sent again after its lease under the same id: at least once, never lost.
                    if let Err(error) = self.store.outbox_sent(&[id]).await {
                        warn!(%endpoint, %entity, %error, "a sent message could not be marked; it will be sent again under the same id");
                    }
                }
                Err(error) => {
                    Counters::add(&self.counters.outbox_failed);
                    let tried = tries + 1;
                    let again_at = (tried < MAX_TRIES).then(|| {
                        let pause = PAUSES[(tries as usize).min(PAUSES.len() - 1)];
                        (self.clock)().after(Duration::from_secs(pause))
                    });
                    if again_at.is_none() {
                        error!(%endpoint, %entity, %error, tried, "a message could not be sent; it holds back its session's later ones until an operator retries or drops it");
                    }
                    if let Err(error) = self.store.outbox_failed(id, &error.to_string(), again_at).await {
                        warn!(%endpoint, %entity, %error, "a failed send could not be noted; tried again after its lease");
                    }
                }
            }
        }
    }
}
