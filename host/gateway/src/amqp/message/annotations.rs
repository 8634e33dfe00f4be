//! Names of message annotations that have a meaning to the broker, as Azure Service Bus writes them.

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
/// A delivery annotation: it names this hand-over and not the message.
pub(crate) const LOCK_TOKEN: Symbol = Symbol::from_static("x-opt-lock-token");

/// Ours: the sender gave no id, and the one that the message carries is the broker's.
pub(crate) const ASSIGNED_ID: Symbol = Symbol::from_static("x-opt-sprag-assigned-id");

/// The broker's word on a message. A sender that writes them, because it forwards what it has received, is not believed.
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
