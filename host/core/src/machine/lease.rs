//! What a decision does to the lease on its event (mode `lease`, spec 4).
//!
//! Endpoints without sessions have nothing that keeps two copies of an event apart. There a delivery that may lead to a run takes a lease first, on
//! the event's source id, so that the event, its retries and its resubmissions exclude each other. The decision ends the lease in its own transaction: whoever
//! has lost it meanwhile cannot commit.

use super::{Arrival, Known, Lease};
use crate::{
    effect::{Commit, Effect, LeaseEnd, LeaseEnding, OutcomeGuard, StoreWrite},
    ids::MessageId,
    message::MessageType,
    outcome::Outcome,
};

impl Arrival {
    /// The id to take a lease on before anything else is asked. None: it leads to no run, or has no id that the inbox could use.
    pub fn leased_as(&self) -> Option<&MessageId> {
        match self.kind {
            MessageType::Event | MessageType::Retry | MessageType::Resubmission => self.source_id(),
            MessageType::Skip
            | MessageType::SkipSession
            | MessageType::HandoffCompleted
            | MessageType::HandoffFailed
            | MessageType::HandoffExpired
            | MessageType::DrainTrigger => None,
        }
    }
}

/// The commit with the end of the lease in its store's transaction. One that writes nothing ends none: its lease is let go afterwards.
pub(super) fn ended_by(mut commit: Commit, arrival: &Arrival, known: &Known<'_>) -> Commit {
    let written = commit.effects.iter_mut().find_map(|effect| match effect {
        Effect::Store(write) => Some(write),
        _ => None,
    });
    if let (Some(write), Some(id)) = (written, arrival.source_id()) {
        write.lease = end(write, id, &known.lease);
    }
    commit
}

fn end(write: &StoreWrite, id: &MessageId, lease: &Lease) -> Option<LeaseEnd> {
    let decided = write.outcome.as_ref().filter(|outcome| outcome.guard != OutcomeGuard::IfAbsent);
    let hands_off = decided.is_some_and(|outcome| outcome.outcome == Outcome::Handoff);
    let owner = match lease {
        Lease::Off => return None,
        Lease::Held(owner) => Some(owner.clone()),
        // A settlement ends what the handoff left; a duplicate and a refusal do not.
        Lease::NotTaken | Lease::HandedOff if decided.is_some() && !hands_off => None,
        Lease::NotTaken | Lease::HandedOff => return None,
    };
    let how = if hands_off { LeaseEnding::HandedOff } else { LeaseEnding::Over };
    Some(LeaseEnd { id: id.clone(), owner, how })
}
