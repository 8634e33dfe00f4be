//! Error conditions of the standard, by their names there. Those of Service Bus belong to the ones who speak it.

use crate::value::Symbol;

macro_rules! conditions {
    ($($name:ident = $text:literal;)*) => {
        $(pub const $name: Symbol = Symbol::from_static($text);)*
    };
}

conditions! {
    INTERNAL_ERROR = "amqp:internal-error";
    NOT_FOUND = "amqp:not-found";
    UNAUTHORIZED_ACCESS = "amqp:unauthorized-access";
    DECODE_ERROR = "amqp:decode-error";
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded";
    NOT_ALLOWED = "amqp:not-allowed";
    INVALID_FIELD = "amqp:invalid-field";
    NOT_IMPLEMENTED = "amqp:not-implemented";
    RESOURCE_LOCKED = "amqp:resource-locked";
    PRECONDITION_FAILED = "amqp:precondition-failed";
    RESOURCE_DELETED = "amqp:resource-deleted";
    ILLEGAL_STATE = "amqp:illegal-state";
    FRAME_SIZE_TOO_SMALL = "amqp:frame-size-too-small";
    CONNECTION_FORCED = "amqp:connection:forced";
    FRAMING_ERROR = "amqp:connection:framing-error";
    WINDOW_VIOLATION = "amqp:session:window-violation";
    ERRANT_LINK = "amqp:session:errant-link";
    HANDLE_IN_USE = "amqp:session:handle-in-use";
    UNATTACHED_HANDLE = "amqp:session:unattached-handle";
    DETACH_FORCED = "amqp:link:detach-forced";
    TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded";
    MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded";
    STOLEN = "amqp:link:stolen";
}
