//! Leases on events in hand, where there are no sessions to keep two copies of one apart (spec 4, mode `lease`).
//!
//! A lease is taken before the store is asked about the delivery, renewed at a third of its time on monotonic time while the delivery is in hand, and ends with the
//! decision's own transaction; a renewal that comes too late aborts nothing, but the commit is refused. What ends without a decision lets it go.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use sprag_core::{
    ids::{EndpointName, LeaseOwner, MessageId},
    machine::{self, Arrival},
};
use sprag_store::{Store, lease::Leased};
use tokio::task::JoinHandle;
use tracing::debug;

use crate::{endpoint::Endpoint, signal::Counters};

/// How a delivery stands to the lease on its event.
pub(crate) enum Lease {
    Off,
    NotTaken,
    HandedOff,
    Held(Held),
}

/// What came of asking for one.
pub(crate) enum Taken {
    Lease(Lease),
    /// Somebody else has it for so long.
    InProgress {
        left: Duration,
    },
    /// The store cannot be reached, and the host stops.
    Stopping,
}

impl Lease {
    /// Waits while the store cannot be reached, as the check does: a failure is never an answer.
    pub(crate) async fn take(endpoint: &Endpoint, arrival: &Arrival) -> Taken {
        let Some(time) = endpoint.config.inbox.as_ref().and_then(|inbox| inbox.lease) else {
            return Taken::Lease(Self::Off);
        };
        if arrival.source_id().is_none() {
            return Taken::Lease(Self::Off);
        }
        let Some(id) = arrival.leased_as() else { return Taken::Lease(Self::NotTaken) };
        let key = Key {
            store: Arc::clone(&endpoint.config.store),
            endpoint: endpoint.config.name.clone(),
            id: id.clone(),
            owner: new_owner(),
        };
        loop {
            match key.acquire(time).await {
                Ok(leased) => {
                    endpoint.gate.works();
                    return match leased {
                        Leased::Acquired => Taken::Lease(Self::Held(Held::new(key, time))),
                        Leased::HandedOff => Taken::Lease(Self::HandedOff),
                        Leased::InProgress { left } => Taken::InProgress { left },
                    };
                }
                Err(error) => {
                    Counters::add(&endpoint.counters.store_errors);
                    if !endpoint.gate.failed(&endpoint.config.name, &error, endpoint.stop.clone()).await {
                        // A try whose answer was lost may have taken it.
                        key.release().await;
                        return Taken::Stopping;
                    }
                }
            }
        }
    }

    pub(crate) fn known(&self) -> machine::Lease {
        match self {
            Self::Off => machine::Lease::Off,
            Self::NotTaken => machine::Lease::NotTaken,
            Self::HandedOff => machine::Lease::HandedOff,
            Self::Held(held) => machine::Lease::Held(held.key.owner.clone()),
        }
    }

    /// A commit that ends it has taken place.
    pub(crate) fn has_ended(&self) {
        if let Self::Held(held) = self {
            held.ended.store(true, Ordering::Relaxed);
        }
    }

    /// The delivery is out of hand. Best effort where no decision has ended the lease: it lapses otherwise.
    pub(crate) async fn let_go(self) {
        let Self::Held(held) = self else { return };
        held.renewal.abort();
        if !held.ended.load(Ordering::Relaxed) {
            held.key.release().await;
        }
    }
}

/// Which lease, and whose.
#[derive(Clone)]
struct Key {
    store: Arc<dyn Store>,
    endpoint: EndpointName,
    id: MessageId,
    owner: LeaseOwner,
}

impl Key {
    fn leases(&self) -> Result<&dyn sprag_store::lease::Leases, sprag_store::Error> {
        // The worker does not start with a lease on a store without them.
        self.store.leases().ok_or_else(|| sprag_store::Error::Invalid("the store has no leases".to_owned()))
    }

    async fn acquire(&self, time: Duration) -> Result<Leased, sprag_store::Error> {
        self.leases()?.acquire(&self.endpoint, &self.id, &self.owner, time).await
    }

    async fn renew(&self, time: Duration) -> Result<bool, sprag_store::Error> {
        self.leases()?.renew(&self.endpoint, &self.id, &self.owner, time).await
    }

    async fn release(&self) {
        let released = match self.leases() {
            Ok(leases) => leases.release(&self.endpoint, &self.id, &self.owner).await,
            Err(error) => Err(error),
        };
        if let Err(error) = released {
            debug!(endpoint = %self.endpoint, id = %self.id, %error, "a lease could not be let go; it lapses");
        }
    }
}

/// A lease that this host has, renewed until it is let go or dropped.
pub(crate) struct Held {
    key: Key,
    ended: AtomicBool,
    renewal: JoinHandle<()>,
}

impl Held {
    fn new(key: Key, time: Duration) -> Self {
        let renewal = tokio::spawn(keep(key.clone(), time));
        Self { key, ended: AtomicBool::new(false), renewal }
    }
}

impl Drop for Held {
    /// Also where the task that holds it is aborted: a lease that nobody runs under must lapse.
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

/// Renews for as long as it is not lost. One task for each lease, so that a store that is slow with one does not let the others lapse.
async fn keep(key: Key, time: Duration) {
    let third = time / 3;
    let mut wait = third;
    loop {
        tokio::time::sleep(wait).await;
        match key.renew(time).await {
            Ok(true) => wait = third,
            Ok(false) => {
                // Or it has just ended with its decision: the commit knows which.
                debug!(endpoint = %key.endpoint, id = %key.id, "a lease is held no longer");
                return;
            }
            Err(error) => {
                wait = third / 4;
                debug!(endpoint = %key.endpoint, id = %key.id, %error, "a lease could not be renewed; tried again");
            }
        }
    }
}

/// Never used twice: the machine, the process, a number drawn at its start, and one for each acquisition. An operator reads who is at the message.
fn new_owner() -> LeaseOwner {
    static PROCESS: OnceLock<String> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let process = PROCESS.get_or_init(|| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = match host.trim() {
            "" => "host",
            name => name,
        };
        let mut drawn = [0; 8];
        if getrandom::fill(&mut drawn).is_err() {
            // The start's time tells processes apart as well, but for those of one moment.
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            drawn = now.subsec_nanos().to_le_bytes().repeat(2).try_into().unwrap_or(drawn);
        }
        format!("{host}/{}/{:016x}", std::process::id(), u64::from_le_bytes(drawn))
    });
    LeaseOwner::from(format!("{process}/{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn owners_are_never_the_same() {
        let owners: HashSet<_> = (0..1_000).map(|_| new_owner()).collect();
        assert_eq!(owners.len(), 1_000);
        assert!(owners.iter().all(|owner| owner.as_str().contains(&std::process::id().to_string())));
    }
}
