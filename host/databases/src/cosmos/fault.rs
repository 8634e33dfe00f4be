//! Everything that can go wrong in a call, and what the caller is told. What the service says stays in the debug log.

use std::time::Duration;

use sprag_store::Error;

use super::client::Place;

#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Fault {
    /// The request is wrong.
    #[error("{0}")]
    Invalid(String),
    #[error("{}", refusal(*status, *substatus))]
    Refused { status: u16, substatus: u32 },
    /// 429 until the call's time was over (A59).
    #[error("the inbox's account has taken too many requests for {0:?} (status 429): its request units are used up")]
    Throttled(Duration),
    #[error("the inbox's account cannot be reached: {0}")]
    NoAnswer(String),
    #[error("there is no token for the inbox's account: {0}")]
    NoToken(String),
    #[error("an answer of the inbox's account cannot be read: {0}")]
    Unreadable(String),
}

fn refusal(status: u16, substatus: u32) -> String {
    let what = match status {
        401 => "the account does not take the key or the token",
        403 => "the account refuses: by its firewall, for want of rights, or because the container is full",
        404 => "the database or the container is not there",
        408 | 410 | 449 | 503 => "the account is not available at the moment",
        _ => "the account refused a request",
    };
    match substatus {
        0 => format!("the inbox: {what} (status {status})"),
        _ => format!("the inbox: {what} (status {status}/{substatus})"),
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Invalid(text) => Self::Invalid(text),
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl Fault {
    /// While the inbox is opened.
    pub(crate) fn at_opening(self, place: &Place) -> super::OpenError {
        use super::OpenError;
        let at = place.at.clone();
        match self {
            Self::Refused { status: status @ (401 | 403), .. } => OpenError::Refused { at, status },
            Self::NoToken(problem) => OpenError::NoToken { at, problem },
            other => OpenError::Unavailable(format!("{other} ({at})")),
        }
    }
}
