//! Messages on the wire and messages of the host.
//!
//! Start at [`encode`] (what is sent) and [`Received`] (what a receiver gets). The bytes are `sprag-amqp`'s, which reads leniently and knows every
//! type, so that nothing that a sender writes is lost. `read` and `values` do the same as their namesakes in the broker's gateway: one of the
//! two writes what the other has to understand.

mod read;
mod received;
#[cfg(test)]
mod tests;
mod values;
mod write;

pub(crate) use read::read;
pub(crate) use received::{Received, State};
pub(crate) use write::{encode, is_simple};

/// Names of annotations that have a meaning to the broker.
pub(crate) mod annotations {
    use sprag_amqp::value::Symbol;

    pub(crate) const SEQUENCE_NUMBER: Symbol = Symbol::from_static("x-opt-sequence-number");
    pub(crate) const ENQUEUE_SEQUENCE_NUMBER: Symbol = Symbol::from_static("x-opt-enqueue-sequence-number");
    pub(crate) const ENQUEUED_TIME: Symbol = Symbol::from_static("x-opt-enqueued-time");
    pub(crate) const LOCKED_UNTIL: Symbol = Symbol::from_static("x-opt-locked-until");
    pub(crate) const MESSAGE_STATE: Symbol = Symbol::from_static("x-opt-message-state");
    pub(crate) const DEAD_LETTER_SOURCE: Symbol = Symbol::from_static("x-opt-deadletter-source");
    pub(crate) const SCHEDULED_ENQUEUE_TIME: Symbol = Symbol::from_static("x-opt-scheduled-enqueue-time");
    pub(crate) const PARTITION_KEY: Symbol = Symbol::from_static("x-opt-partition-key");
    pub(crate) const VIA_PARTITION_KEY: Symbol = Symbol::from_static("x-opt-via-partition-key");
    pub(crate) const LOCK_TOKEN: Symbol = Symbol::from_static("x-opt-lock-token");
    /// Set by the embedded broker on a message to which it gave an id itself (P29).
    pub(crate) const ASSIGNED_ID: Symbol = Symbol::from_static("x-opt-sprag-assigned-id");

    /// The broker's word on a message, which is no part of what the sender wrote.
    pub(crate) const BROKERS: [Symbol; 8] = [
        SEQUENCE_NUMBER,
        ENQUEUE_SEQUENCE_NUMBER,
        ENQUEUED_TIME,
        LOCKED_UNTIL,
        MESSAGE_STATE,
        DEAD_LETTER_SOURCE,
        LOCK_TOKEN,
        ASSIGNED_ID,
    ];
}

/// Why bytes are no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("{0}")]
    Encoding(#[from] sprag_amqp::decode::DecodeError),
    #[error("0x{0:x} is no character")]
    NoCharacter(u32),
    #[error("an application property has a key that is no text")]
    NamelessProperty,
    #[error("{0} is not of its type")]
    WrongType(&'static str),
}
