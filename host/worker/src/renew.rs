//! Keeps locks alive while something is done under them: on monotonic time, each by its own token (cases A15, A17).

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use sprag_core::{
    ids::EntityName,
    message::{Delivery, LockToken},
};
use sprag_transport::{Error, Session, Transport};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::endpoint::Endpoint;

/// The locks that an endpoint holds. One task renews them all; a lock that is held briefly costs an entry in a map.
#[derive(Default)]
pub(crate) struct Renewals {
    held: Mutex<HashMap<u64, Entry>>,
    next: AtomicU64,
}

struct Entry {
    lock: Lock,
    renewed_at: Instant,
}

#[derive(Clone)]
enum Lock {
    Session(Arc<dyn Session>),
    Delivery(Arc<dyn Transport>, EntityName, LockToken),
}

/// Renewal goes on until this is dropped.
pub(crate) struct Renewed {
    of: Weak<Renewals>,
    number: u64,
}

impl Drop for Renewed {
    fn drop(&mut self) {
        if let Some(renewals) = self.of.upgrade() {
            renewals.held.lock().remove(&self.number);
        }
    }
}

impl Renewals {
    pub(crate) fn session(self: &Arc<Self>, session: &Arc<dyn Session>) -> Renewed {
        self.add(Lock::Session(Arc::clone(session)))
    }

    pub(crate) fn delivery(self: &Arc<Self>, endpoint: &Endpoint, delivery: &Delivery) -> Renewed {
        self.add(Lock::Delivery(Arc::clone(&endpoint.config.transport), endpoint.config.source.clone(), delivery.lock))
    }

    fn add(self: &Arc<Self>, lock: Lock) -> Renewed {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.held.lock().insert(number, Entry { lock, renewed_at: Instant::now() });
        Renewed { of: Arc::downgrade(self), number }
    }

    /// Renews for ever what is older than a third of the lock's duration.
    pub(crate) async fn keep(self: Arc<Self>, lock_duration: Duration) {
        let mut tick =
            tokio::time::interval((lock_duration / 6).clamp(Duration::from_millis(100), Duration::from_secs(10)));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let due: Vec<(u64, Lock)> = self
                .held
                .lock()
                .iter()
                .filter(|(_, entry)| entry.renewed_at.elapsed() >= lock_duration / 3)
                .map(|(number, entry)| (*number, entry.lock.clone()))
                .collect();
            for (number, lock) in due {
                self.renew(number, lock).await;
            }
        }
    }

    async fn renew(&self, number: u64, lock: Lock) {
        let began = Instant::now();
        let renewed = match &lock {
            Lock::Session(session) => session.renew().await,
            Lock::Delivery(transport, source, token) => transport.renew(source, *token).await,
        };
        match renewed {
            Ok(_) => {
                if let Some(entry) = self.held.lock().get_mut(&number) {
                    entry.renewed_at = began;
                }
            }
            // Its holder finds out at its commit, which then changes nothing; asking again and again would not bring it back (A07).
            Err(Error::LockLost) => {
                if self.held.lock().remove(&number).is_some() {
                    warn!(lock = %lock.name(), "a lock was lost while it was held: what is done under it will not be committed");
                }
            }
            Err(error) => debug!(lock = %lock.name(), %error, "a lock could not be renewed; tried again"),
        }
    }
}

impl Lock {
    fn name(&self) -> String {
        match self {
            Self::Session(session) => format!("session {}", session.id()),
            Self::Delivery(_, source, _) => format!("message of {source}"),
        }
    }
}
