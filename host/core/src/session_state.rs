//! What a session remembers between deliveries, in NimBus's JSON (spec 3, `reference` 1.7).

use serde_json::{Map, Value};

use crate::{
    ids::{EventId, MessageId},
    time::Timestamp,
};

/// Why a session waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockKind {
    Failure,
    Handoff,
}

impl BlockKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Failure => "failure",
            Self::Handoff => "handoff",
        }
    }
}

/// The one event that a session waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    pub event_id: EventId,
    /// The id under which the transport first delivered the event.
    pub source_id: Option<MessageId>,
    pub kind: BlockKind,
    /// Rises with every decision on the event and never restarts (P11).
    pub attempt: u32,
    /// The attempt at which an operator last acted: the retry policy counts from there.
    pub since_attempt: u32,
    pub since: Timestamp,
}

/// An operator gave up on everything parked below a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct SkipParked {
    pub below: u32,
    pub reason: String,
    pub by: String,
}

/// A session's state. The default is an idle session, which costs nothing: it is written as empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SessionState {
    pub block: Option<Block>,
    /// At most this many messages are parked: a count too high is harmless, one too low is not (P16).
    pub parked: u32,
    /// The parking number that the next parked message gets.
    pub next_sequence: u32,
    pub skip_parked: Option<SkipParked>,
    /// Members that are not ours, kept as they are.
    pub unknown: Map<String, Value>,
}
