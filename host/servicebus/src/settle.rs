//! Deliveries in hand, and how they are settled.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use sprag_core::{
    ids::SessionId,
    message::{Delivery, LockToken, Origin},
};
use sprag_transport::Settlement;
use tokio::time::Instant;

use crate::{
    config::{EntitySettings, Settle},
    fault::Fault,
    link::{Arrival, Link},
    management::Management,
};

/// Numbers for locks: the broker's are 16 bytes long. Never given twice in a process.
#[derive(Default)]
pub(crate) struct Locks(AtomicU64);

impl Locks {
    pub(crate) fn next(&self) -> LockToken {
        LockToken(self.0.fetch_add(1, Relaxed) + 1)
    }
}

/// A delivery that is not settled.
#[derive(Clone)]
pub(crate) struct Hand {
    pub(crate) arrival: Arrival,
    pub(crate) link: Arc<Link>,
    pub(crate) origin: Origin,
}

/// What is in hand, by our numbers.
#[derive(Default)]
pub(crate) struct Hands(Mutex<HashMap<LockToken, Hand>>);

impl Hands {
    pub(crate) fn put(&self, lock: LockToken, hand: Hand) {
        self.0.lock().insert(lock, hand);
    }

    pub(crate) fn get(&self, lock: LockToken) -> Option<Hand> {
        self.0.lock().get(&lock).cloned()
    }

    pub(crate) fn take(&self, lock: LockToken) -> Option<Hand> {
        self.0.lock().remove(&lock)
    }

    pub(crate) fn holds(&self, origin: Origin) -> bool {
        self.0.lock().values().any(|hand| hand.origin == origin)
    }

    pub(crate) fn forget(&self, origin: Origin) {
        self.0.lock().retain(|_, hand| hand.origin != origin);
    }

    /// Forgets what has been in hand since before a moment: its locks have lapsed.
    pub(crate) fn forget_before(&self, moment: Instant) {
        self.0.lock().retain(|_, hand| hand.arrival.at >= moment);
    }

    /// A renewal was asked for at this moment.
    pub(crate) fn renewed(&self, lock: LockToken, at: Instant) {
        if let Some(hand) = self.0.lock().get_mut(&lock) {
            hand.arrival.at = at;
        }
    }
}

pub(crate) fn delivery(arrival: Arrival, lock: LockToken, origin: Origin, settings: &EntitySettings) -> Delivery {
    let received = arrival.received;
    Delivery {
        sequence: received.sequence,
        origin,
        lock,
        // The header counts earlier ones.
        delivery_count: received.delivery_count.saturating_add(1),
        max_delivery_count: settings.max_delivery_count,
        enqueued_at: received.enqueued_at,
        // A copy says its number itself, and whoever reads it asks for the seal (P31).
        parked_as: None,
        id_assigned: received.id_assigned,
        message: Arc::new(received.message),
    }
}

/// Whether the broker knows the word for giving a message back uncounted. Azure's documents name three outcomes only, so it is found out.
static KNOWS_UNLOCKED: AtomicBool = AtomicBool::new(true);

/// Settles what is in hand. `session` is the one that holds it.
pub(crate) async fn settle(
    how: Settle,
    management: &Management,
    session: Option<&SessionId>,
    hand: &Hand,
    settlement: Settlement,
) -> Result<(), Fault> {
    let by_link = how == Settle::Link || (settlement == Settlement::Release && !KNOWS_UNLOCKED.load(Relaxed));
    if by_link {
        return hand.link.settle(hand.arrival.info.clone(), settlement).await;
    }
    match management.settle(session, [hand.arrival.lock], &settlement).await {
        Err(fault) if settlement == Settlement::Release && fault.is("com.microsoft:argument-error") => {
            KNOWS_UNLOCKED.store(false, Relaxed);
            hand.link.settle(hand.arrival.info.clone(), settlement).await
        }
        result => result,
    }
}
