//! Why something with the broker failed, and what that means to the one who asked.

use fe2o3_amqp::{
    link::{DetachError, LinkStateError, ReceiverAttachError, RecvError, SendError, SenderAttachError},
    session::BeginError,
};
use fe2o3_amqp_types::definitions::{self, ErrorCondition};
use sprag_core::ids::EntityName;
use sprag_transport::Error;

use crate::token::TokenError;

/// Conditions that the broker names.
pub(crate) mod condition {
    pub(crate) const NOT_FOUND: &str = "amqp:not-found";
    pub(crate) const TIMEOUT: &str = "com.microsoft:timeout";
    pub(crate) const SESSION_HELD: &str = "com.microsoft:session-cannot-be-locked";
    pub(crate) const SESSION_LOCK_LOST: &str = "com.microsoft:session-lock-lost";
    pub(crate) const MESSAGE_LOCK_LOST: &str = "com.microsoft:message-lock-lost";
    pub(crate) const MESSAGE_NOT_FOUND: &str = "com.microsoft:message-not-found";
}

#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Fault {
    /// The broker's own word.
    #[error("{text} ({condition})")]
    Broker { condition: String, text: String },
    /// The connection, the session or the link is gone. A new one may work.
    #[error("the connection is gone: {0}")]
    Gone(String),
    #[error("no answer within {0:?}")]
    Timeout(std::time::Duration),
    /// What we were to send cannot be sent.
    #[error("{0}")]
    Refused(String),
    /// There is no right to it.
    #[error("not authorized: {0}")]
    Unauthorized(String),
}

impl Fault {
    pub(crate) fn is(&self, named: &str) -> bool {
        matches!(self, Self::Broker { condition, .. } if condition == named)
    }

    pub(crate) fn is_lock_lost(&self) -> bool {
        self.is(condition::SESSION_LOCK_LOST) || self.is(condition::MESSAGE_LOCK_LOST)
    }

    /// The same, told to who used this entity.
    pub(crate) fn about(self, entity: &EntityName) -> Error {
        match &self {
            Self::Broker { condition, text } => match condition.as_str() {
                condition::NOT_FOUND => Error::NoSuchEntity(entity.clone()),
                condition::SESSION_LOCK_LOST | condition::MESSAGE_LOCK_LOST => Error::LockLost,
                "amqp:not-allowed"
                | "amqp:not-implemented"
                | "amqp:precondition-failed"
                | "amqp:decode-error"
                | "amqp:invalid-field"
                | "amqp:link:message-size-exceeded"
                | "com.microsoft:argument-error"
                | "com.microsoft:argument-out-of-range"
                | "com.microsoft:message-size-exceeded" => Error::Refused(text.clone()),
                "amqp:resource-limit-exceeded" | "com.microsoft:quota-exceeded" => Error::Full(text.clone()),
                // Also what an operator has to put right: keys, an entity that is switched off. It goes on when that is done.
                _ => Error::Unavailable(self.to_string()),
            },
            Self::Refused(text) => Error::Refused(text.clone()),
            Self::Gone(_) | Self::Timeout(_) | Self::Unauthorized(_) => Error::Unavailable(self.to_string()),
        }
    }
}

impl From<definitions::Error> for Fault {
    fn from(error: definitions::Error) -> Self {
        let condition = name_of(&error.condition);
        let text = error.description.unwrap_or_else(|| condition.clone());
        Self::Broker { condition, text }
    }
}

fn name_of(condition: &ErrorCondition) -> String {
    use fe2o3_amqp_types::primitives::Symbol;
    let symbol: Symbol = match condition {
        ErrorCondition::AmqpError(error) => error.into(),
        ErrorCondition::ConnectionError(error) => error.into(),
        ErrorCondition::SessionError(error) => error.into(),
        ErrorCondition::LinkError(error) => error.into(),
        ErrorCondition::Custom(symbol) => symbol.clone(),
    };
    symbol.to_string()
}

impl From<BeginError> for Fault {
    fn from(error: BeginError) -> Self {
        match error {
            BeginError::RemoteEndedWithError(error) => error.into(),
            other => Self::Gone(other.to_string()),
        }
    }
}

impl From<SenderAttachError> for Fault {
    fn from(error: SenderAttachError) -> Self {
        match error {
            SenderAttachError::RemoteClosedWithError(error) => error.into(),
            other => Self::Gone(other.to_string()),
        }
    }
}

impl From<ReceiverAttachError> for Fault {
    fn from(error: ReceiverAttachError) -> Self {
        match error {
            ReceiverAttachError::RemoteClosedWithError(error) => error.into(),
            other => Self::Gone(other.to_string()),
        }
    }
}

impl From<DetachError> for Fault {
    fn from(error: DetachError) -> Self {
        match error {
            DetachError::RemoteClosedWithError(error) | DetachError::RemoteDetachedWithError(error) => error.into(),
            other => Self::Gone(other.to_string()),
        }
    }
}

impl From<LinkStateError> for Fault {
    fn from(error: LinkStateError) -> Self {
        match error {
            LinkStateError::RemoteClosedWithError(error) | LinkStateError::RemoteDetachedWithError(error) => {
                error.into()
            }
            other => Self::Gone(other.to_string()),
        }
    }
}

impl From<RecvError> for Fault {
    fn from(error: RecvError) -> Self {
        match error {
            RecvError::LinkStateError(error) => error.into(),
            other => Self::Gone(other.to_string()),
        }
    }
}

impl From<SendError> for Fault {
    fn from(error: SendError) -> Self {
        match error {
            SendError::LinkStateError(error) => error.into(),
            SendError::Detached(error) => error.into(),
            SendError::MessageSizeExceeded(error) => Self::Refused(error.to_string()),
            SendError::MessageEncodeError => Self::Refused("the message cannot be encoded".to_owned()),
            other => Self::Gone(other.to_string()),
        }
    }
}

impl From<TokenError> for Fault {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Unavailable(text) => Self::Gone(text),
            TokenError::Denied(text) => Self::Unauthorized(text),
        }
    }
}
