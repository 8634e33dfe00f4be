//! Names of message annotations that have a meaning to the broker, as Azure Service Bus writes them.

use sprag_amqp::value::Symbol;

pub const SEQUENCE_NUMBER: Symbol = Symbol::from_static("x-opt-sequence-number");
pub const ENQUEUE_SEQUENCE_NUMBER: Symbol = Symbol::from_static("x-opt-enqueue-sequence-number");
pub const ENQUEUED_TIME: Symbol = Symbol::from_static("x-opt-enqueued-time");
pub const LOCKED_UNTIL: Symbol = Symbol::from_static("x-opt-locked-until");
pub const MESSAGE_STATE: Symbol = Symbol::from_static("x-opt-message-state");
pub const DEAD_LETTER_SOURCE: Symbol = Symbol::from_static("x-opt-deadletter-source");
pub const SCHEDULED_ENQUEUE_TIME: Symbol = Symbol::from_static("x-opt-scheduled-enqueue-time");
pub const PARTITION_KEY: Symbol = Symbol::from_static("x-opt-partition-key");
pub const VIA_PARTITION_KEY: Symbol = Symbol::from_static("x-opt-via-partition-key");
/// A delivery annotation: it names this hand-over and not the message.
pub const LOCK_TOKEN: Symbol = Symbol::from_static("x-opt-lock-token");

/// Ours: the sender gave no id, and the one that the message carries is the broker's.
pub const ASSIGNED_ID: Symbol = Symbol::from_static("x-opt-sprag-assigned-id");

/// The broker's word on a message. A sender that writes them, because it forwards what it has received, is not believed.
pub const BROKERS: [Symbol; 8] = [
    SEQUENCE_NUMBER,
    ENQUEUE_SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    LOCKED_UNTIL,
    MESSAGE_STATE,
    DEAD_LETTER_SOURCE,
    LOCK_TOKEN,
    ASSIGNED_ID,
];
