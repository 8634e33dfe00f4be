//! Leases on messages in hand, for endpoints without sessions (spec 4, mode `lease`).
//!
//! A transport that hands a message out twice, a sender that sends it twice, or a host that is frozen past its lock makes two runs of one event at
//! once, and where there are no sessions nothing but the store can keep them apart. A lease is a row that says who is at an event and until when:
//!
//! - it is taken before anything else is asked about the delivery, so that there is no time between a look and a lock;
//! - it lapses by the store's clock alone (P33), and only one statement with a condition takes over what has lapsed;
//! - it ends in the transaction of the decision, if the acquisition that asks for it holds it still (`StoreWrite::lease`): its owner is a fencing token;
//! - that an event is done is no lease: that is its record in the inbox, as in mode `record`. *In progress* and *processed* are never the same answer
//!   (`reference/nimbus-barewire.md` 5.2: taking one for the other loses the message).

use std::time::Duration;

use async_trait::async_trait;
use sprag_core::ids::{EndpointName, LeaseOwner, MessageId};

use crate::Error;

/// What came of asking for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leased {
    /// It is the owner's, for the time asked for.
    Acquired,
    /// Somebody holds it for so long from now, if it is not renewed: a time and not a moment, since the host's clock may be another one.
    InProgress { left: Duration },
    /// The event was handed off, and is not settled (P26).
    HandedOff,
}

/// Rules for every implementation, checked by [`crate::lease_conformance`]:
///
/// - Of any number that ask for one id at once, one acquires it. An owner that asks again for what it holds is told so: an answer may get lost.
/// - Nobody acquires what has not lapsed, been released or ended; of those who find it lapsed, one does.
/// - Leases of different endpoints do not meet, and ids compare by bytes.
/// - A call that has begun runs to its end even if the caller stops waiting.
#[async_trait]
pub trait Leases: Send + Sync {
    /// `owner` is a new one for each acquisition. `time` above zero.
    async fn acquire(
        &self,
        endpoint: &EndpointName,
        id: &MessageId,
        owner: &LeaseOwner,
        time: Duration,
    ) -> Result<Leased, Error>;

    /// Holds it for `time` from now. False: it is no longer this owner's, and nothing was changed.
    async fn renew(
        &self,
        endpoint: &EndpointName,
        id: &MessageId,
        owner: &LeaseOwner,
        time: Duration,
    ) -> Result<bool, Error>;

    /// Lets the next in at once. No error and no effect when it is no longer this owner's, or was handed off.
    async fn release(&self, endpoint: &EndpointName, id: &MessageId, owner: &LeaseOwner) -> Result<(), Error>;
}
