//! Every error that a client can hear, and its names: the condition on a link, the status of an answer to a request. The one place where
//! they are chosen.

use sprag_amqp::{condition, performative::AmqpError, value::Symbol};
use sprag_broker::{DeclareError, client::Error};

use super::message::Unreadable;

/// Conditions of Azure Service Bus.
pub(crate) mod named {
    use sprag_amqp::value::Symbol;

    pub(crate) const MESSAGE_LOCK_LOST: Symbol = Symbol::from_static("com.microsoft:message-lock-lost");
    pub(crate) const SESSION_LOCK_LOST: Symbol = Symbol::from_static("com.microsoft:session-lock-lost");
    pub(crate) const SESSION_HELD: Symbol = Symbol::from_static("com.microsoft:session-cannot-be-locked");
    pub(crate) const MESSAGE_NOT_FOUND: Symbol = Symbol::from_static("com.microsoft:message-not-found");
    pub(crate) const ENTITY_DISABLED: Symbol = Symbol::from_static("com.microsoft:entity-disabled");
    pub(crate) const ENTITY_EXISTS: Symbol = Symbol::from_static("com.microsoft:entity-already-exists");
    pub(crate) const SERVER_BUSY: Symbol = Symbol::from_static("com.microsoft:server-busy");
    pub(crate) const TIMEOUT: Symbol = Symbol::from_static("com.microsoft:timeout");
    pub(crate) const ARGUMENT: Symbol = Symbol::from_static("com.microsoft:argument-error");
    pub(crate) const DEAD_LETTER: Symbol = Symbol::from_static("com.microsoft:dead-letter");
}

/// What went wrong, in all its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Of an answer to a request; HTTP's numbers.
    pub(crate) status: i32,
    pub(crate) condition: Symbol,
    pub(crate) text: String,
}

impl Failure {
    fn new(status: i32, condition: Symbol, text: impl Into<String>) -> Self {
        Self { status, condition, text: text.into() }
    }

    pub(crate) fn unauthorized(text: impl Into<String>) -> Self {
        Self::new(401, condition::UNAUTHORIZED_ACCESS, text)
    }

    /// The request itself makes no sense.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(400, named::ARGUMENT, text)
    }

    pub(crate) fn not_found(text: impl Into<String>) -> Self {
        Self::new(404, condition::NOT_FOUND, text)
    }

    pub(crate) fn not_allowed(text: impl Into<String>) -> Self {
        Self::new(400, condition::NOT_ALLOWED, text)
    }

    pub(crate) fn not_implemented(text: impl Into<String>) -> Self {
        Self::new(501, condition::NOT_IMPLEMENTED, text)
    }

    pub(crate) fn transactions() -> Self {
        Self::not_implemented("transactions are not supported by this broker")
    }

    pub(crate) fn session_lost(session: &str) -> Self {
        Self::new(410, named::SESSION_LOCK_LOST, format!("the lock of session {session:?} is not held here"))
    }

    pub(crate) fn no_session_in_time() -> Self {
        Self::new(408, named::TIMEOUT, "no session with messages came free within the time")
    }

    pub(crate) fn too_many(text: impl Into<String>) -> Self {
        Self::new(403, condition::RESOURCE_LIMIT_EXCEEDED, text)
    }

    /// Nobody has used the link for too long.
    pub(crate) fn idle(text: impl Into<String>) -> Self {
        Self::new(408, condition::DETACH_FORCED, text)
    }

    pub(crate) fn stopping() -> AmqpError {
        AmqpError::new(condition::CONNECTION_FORCED, "the broker is stopping")
    }

    /// Whether the link that it happened on is of no use any more.
    pub(crate) fn ends_link(&self) -> bool {
        self.condition == condition::NOT_FOUND
            || self.condition == named::ENTITY_DISABLED
            || self.condition == named::SESSION_LOCK_LOST
    }

    pub(crate) fn to_error(&self) -> AmqpError {
        AmqpError::new(self.condition.clone(), self.text.clone())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::NoSuchEntity(name) => Self::not_found(format!("The messaging entity '{name}' could not be found.")),
            Error::Disabled { .. } => Self::new(403, named::ENTITY_DISABLED, text),
            Error::LockLost => Self::new(410, named::MESSAGE_LOCK_LOST, text),
            Error::SessionLockLost(_) => Self::new(410, named::SESSION_LOCK_LOST, text),
            Error::SessionHeld(_) => Self::new(409, named::SESSION_HELD, text),
            Error::MessageNotFound(_) => Self::new(404, named::MESSAGE_NOT_FOUND, text),
            Error::SessionRequired(_) | Error::NoSessions(_) | Error::Refused(_) => Self::not_allowed(text),
            Error::TooLarge { .. } => Self::new(400, condition::MESSAGE_SIZE_EXCEEDED, text),
            Error::Full(_) => Self::too_many(text),
            Error::Unavailable(_) => Self::new(503, named::SERVER_BUSY, text),
        }
    }
}

impl From<DeclareError> for Failure {
    fn from(error: DeclareError) -> Self {
        let text = error.to_string();
        match error {
            DeclareError::NoSuchEntity(_) | DeclareError::NoSuchRule { .. } => Self::not_found(text),
            DeclareError::Exists(_) | DeclareError::RuleExists { .. } => Self::new(409, named::ENTITY_EXISTS, text),
            DeclareError::Invalid { .. } | DeclareError::Fixed { .. } | DeclareError::Filter { .. } => {
                Self::argument(text)
            }
            DeclareError::Store(_) => Self::new(503, named::SERVER_BUSY, text),
        }
    }
}

impl From<Unreadable> for Failure {
    fn from(error: Unreadable) -> Self {
        Self::new(400, condition::DECODE_ERROR, format!("the message cannot be read: {error}"))
    }
}

impl From<sprag_amqp::decode::DecodeError> for Failure {
    fn from(error: sprag_amqp::decode::DecodeError) -> Self {
        Unreadable::from(error).into()
    }
}
