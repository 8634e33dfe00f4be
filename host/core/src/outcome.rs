//! What became of an event, and every way a run can end.

use serde::{Deserialize, Serialize};

/// What became of an event at an endpoint (spec 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Pending,
    Completed,
    Failed,
    Deferred,
    Skipped,
    DeadLettered,
    Unsupported,
    Handoff,
}

impl Outcome {
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Completed,
        Self::Failed,
        Self::Deferred,
        Self::Skipped,
        Self::DeadLettered,
        Self::Unsupported,
        Self::Handoff,
    ];

    /// As written in JSON, on the command line and in the store.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Deferred => "deferred",
            Self::Skipped => "skipped",
            Self::DeadLettered => "dead-lettered",
            Self::Unsupported => "unsupported",
            Self::Handoff => "handoff",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.name() == name)
    }

    /// Nothing but an operator's resubmission changes it any more (P8).
    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Skipped | Self::DeadLettered | Self::Unsupported)
    }
}

/// The kinds of failure that have a name of their own. A guest's own kinds are texts beside these.
pub mod kind {
    /// The component returned `failed` without a kind of its own.
    pub const COMPONENT_ERROR: &str = "component-error";
    pub const TIMEOUT: &str = "timeout";
    pub const MEMORY_LIMIT: &str = "memory-limit";
    pub const OUTPUT_LIMIT: &str = "output-limit";
    pub const TRAP: &str = "trap";
    pub const STACK_OVERFLOW: &str = "stack-overflow";
    pub const BAD_RESULT: &str = "bad-result";
    pub const HOST_CAPABILITY: &str = "host-capability";
    /// The process died in the run.
    pub const HOST_ENDED: &str = "host-ended";
    /// The transport would have given the message up after this delivery (P22).
    pub const DELIVERIES_EXHAUSTED: &str = "deliveries-exhausted";
    pub const HANDOFF_EXPIRED: &str = "handoff-expired";
    pub const HANDOFF_FAILED: &str = "handoff-failed";
    pub const NO_HANDLER: &str = "no-handler";
}

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Failure {
    /// One of [`kind`], or the guest's own.
    pub kind: String,
    pub text: String,
}

impl Failure {
    pub fn new(kind: impl Into<String>, text: impl Into<String>) -> Self {
        Self { kind: kind.into(), text: text.into() }
    }
}

/// Longest text kept of an error, and longest dead-letter description, in characters (spec 3, step 8).
pub const MAX_TEXT: usize = 4_096;

/// At most [`MAX_TEXT`] characters, cut on a character and marked.
pub fn clip(text: &str) -> String {
    const MARK: &str = " … (cut)";
    if text.len() <= MAX_TEXT || text.chars().count() <= MAX_TEXT {
        return text.to_owned();
    }
    let keep = MAX_TEXT - MARK.chars().count();
    text.chars().take(keep).chain(MARK.chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_on_a_character_and_marked() {
        let text = "é".repeat(MAX_TEXT);
        assert_eq!(clip(&text), text);
        let cut = clip(&"é".repeat(MAX_TEXT + 1));
        assert_eq!(cut.chars().count(), MAX_TEXT);
        assert!(cut.ends_with("é … (cut)"));
    }

    #[test]
    fn names_round_trip() {
        for outcome in Outcome::ALL {
            assert_eq!(Outcome::from_name(outcome.name()), Some(outcome));
            assert_eq!(serde_json::to_value(outcome).expect("a name"), outcome.name());
        }
    }
}
