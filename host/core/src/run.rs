//! What a handler's run asks for and what it leaves behind, as values.

use std::time::Duration;

use bytes::Bytes;

use crate::{ids::EntityName, message::Message, outcome::Failure, sql::TransactionId, time::Timestamp};

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    Done,
    Discard {
        reason: String,
    },
    Handoff {
        reason: String,
        external_id: Option<String>,
        expected_by: Option<Timestamp>,
    },
    /// Not the event's fault: the delivery comes again. A store's or transport's failure ends here too (P6).
    Transient {
        text: String,
        retry_after: Option<Duration>,
    },
    Failed {
        failure: Failure,
        retry_after: Option<Duration>,
    },
    DeadLetter {
        reason: String,
        text: String,
    },
}

impl End {
    pub fn failed(kind: &str, text: impl Into<String>) -> Self {
        Self::Failed { failure: Failure::new(kind, text), retry_after: None }
    }

    pub fn transient(text: impl Into<String>) -> Self {
        Self::Transient { text: text.into(), retry_after: None }
    }
}

/// All that one run wants to change. Commits with its decision or is dropped (P3).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UnitOfWork {
    /// In the order in which the handler published them. Each has a message id.
    pub outgoing: Vec<Outgoing>,
    /// The last write of each key.
    pub writes: Vec<StateWrite>,
    /// What the run read; the commit checks that it still holds (P4).
    pub reads: Vec<StateRead>,
    /// The transaction in which the run's SQL was carried out. The write that this unit is part of commits it, or rolls it back where the unit is
    /// dropped.
    pub transaction: Option<TransactionId>,
}

impl UnitOfWork {
    pub fn is_empty(&self) -> bool {
        self.outgoing.is_empty() && self.writes.is_empty() && self.reads.is_empty() && self.transaction.is_none()
    }
}

/// A message that leaves if the run succeeds.
#[derive(Debug, Clone, PartialEq)]
pub struct Outgoing {
    pub entity: EntityName,
    /// `scheduled_for` is set for one that is to become visible later.
    pub message: Message,
}

/// A change to the endpoint's key-value state.
#[derive(Debug, Clone, PartialEq)]
pub struct StateWrite {
    pub key: String,
    /// None deletes the key.
    pub value: Option<Bytes>,
}

/// The version of a key-value pair: rises with every write in the store, never used twice. Zero: not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version(pub i64);

/// Something a run read from the endpoint's state, as it was.
#[derive(Debug, Clone, PartialEq)]
pub enum StateRead {
    Key {
        key: String,
        version: Version,
    },
    /// A scan: the keys it found, with their versions. It holds when the same scan would find the same.
    Scan {
        prefix: String,
        after: Option<String>,
        limit: u32,
        found: Vec<(String, Version)>,
    },
}
