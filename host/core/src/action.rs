//! What an operator may ask for (P13, P15).

use serde::{Deserialize, Serialize};

use crate::{
    ids::{ActionId, EndpointName, EventId, SessionId},
    message::MessageType,
    time::Timestamp,
};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActionKind {
    Resubmit,
    Skip,
    HandoffComplete,
    HandoffFail,
    SkipSession,
}

impl ActionKind {
    pub const ALL: [Self; 5] =
        [Self::Resubmit, Self::Skip, Self::HandoffComplete, Self::HandoffFail, Self::SkipSession];

    pub fn name(self) -> &'static str {
        match self {
            Self::Resubmit => "resubmit",
            Self::Skip => "skip",
            Self::HandoffComplete => "handoff-complete",
            Self::HandoffFail => "handoff-fail",
            Self::SkipSession => "skip-session",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The message that carries the action through the session's loop.
    pub fn message_type(self) -> MessageType {
        match self {
            Self::Resubmit => MessageType::Resubmission,
            Self::Skip => MessageType::Skip,
            Self::HandoffComplete => MessageType::HandoffCompleted,
            Self::HandoffFail => MessageType::HandoffFailed,
            Self::SkipSession => MessageType::SkipSession,
        }
    }
}

/// An action as the store holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct Action {
    pub id: ActionId,
    pub kind: ActionKind,
    pub endpoint: EndpointName,
    /// None for an action on a whole session.
    pub event_id: Option<EventId>,
    pub session: Option<SessionId>,
    /// The operator's words: the reason of a skip, the text of a failed handoff.
    pub reason: Option<String>,
    /// The operator.
    pub by: String,
    pub at: Timestamp,
    pub state: ActionState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActionState {
    /// Accepted; the session's loop has not come to it yet.
    Open,
    Applied {
        text: String,
        at: Timestamp,
    },
    Conflict {
        text: String,
        at: Timestamp,
    },
}
