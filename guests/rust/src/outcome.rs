//! Saying how a run ended.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{DeadLetter, Failed, Failure, Handoff, PublishError, Success, Transient};

impl Success {
    /// Nothing to do with this message. Outcome `skipped`; what the run wrote and published is dropped.
    pub fn discard(reason: impl Into<String>) -> Success {
        Success::Discard(reason.into())
    }

    /// A system outside goes on with the work and settles it later; the session waits until then.
    pub fn handoff(reason: impl Into<String>) -> Success {
        Success::Handoff(Handoff { reason: reason.into(), external_id: None, expected_by: None })
    }

    /// The id that a handed-off job has in the other system. Only a handoff has one.
    pub fn external_id(self, id: impl Into<String>) -> Success {
        match self {
            Success::Handoff(handoff) => Success::Handoff(Handoff { external_id: Some(id.into()), ..handoff }),
            other => other,
        }
    }

    /// When a handoff that nobody settled fails as `handoff-expired`. Only a handoff has a deadline.
    pub fn expected_by(self, time: SystemTime) -> Success {
        match self {
            Success::Handoff(handoff) => Success::Handoff(Handoff { expected_by: Some(unix_millis(time)), ..handoff }),
            other => other,
        }
    }
}

impl Failure {
    /// Not the event's fault: the message is put back and comes again.
    pub fn transient(text: impl Into<String>) -> Failure {
        Failure::Transient(Transient { text: text.into(), retry_after: None })
    }

    /// The event failed, with a short stable kind that retry rules can name. Its session is blocked.
    pub fn failed(kind: impl Into<String>, text: impl Into<String>) -> Failure {
        Failure::Failed(Failed { kind: kind.into(), text: text.into(), retry_after: None })
    }

    /// The message can never be handled.
    pub fn dead_letter(reason: impl Into<String>, text: impl Into<String>) -> Failure {
        Failure::DeadLetter(DeadLetter { reason: reason.into(), text: text.into() })
    }

    /// Waits at least this long before the next try. A dead letter has none.
    pub fn retry_after(self, delay: Duration) -> Failure {
        let retry_after = Some(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        match self {
            Failure::Transient(transient) => Failure::Transient(Transient { retry_after, ..transient }),
            Failure::Failed(failed) => Failure::Failed(Failed { retry_after, ..failed }),
            Failure::DeadLetter(_) => self,
        }
    }
}

/// Something that should have become JSON did not: a bug of the handler.
impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        Failure::failed("json", error.to_string())
    }
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Failure {
        match error {
            PublishError::NotAllowed(text) => Failure::failed("publish-not-allowed", text),
            PublishError::Invalid(text) => Failure::failed("publish-invalid", text),
            PublishError::TooMuch(text) => Failure::failed("publish-too-much", text),
        }
    }
}

/// Milliseconds since 1970; a time before that counts as 1970.
pub(crate) fn unix_millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
