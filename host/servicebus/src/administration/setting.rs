//! The settings of an entity that Sprag reads and writes. All others are kept as they are.

use std::{fmt, time::Duration};

use sprag_core::ids::EntityName;

use super::duration;

/// One setting with a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting {
    RequiresSession(bool),
    LockDuration(Duration),
    MaxDeliveryCount(u32),
    /// None: messages do not expire.
    TimeToLive(Option<Duration>),
    DeadLetterOnExpiry(bool),
    DuplicateDetection(bool),
    Partitioned(bool),
    ForwardTo(Option<EntityName>),
    /// None: the entity stays when nobody uses it.
    AutoDeleteOnIdle(Option<Duration>),
    DeadLetterOnFilterErrors(bool),
    BatchedOperations(bool),
    SupportOrdering(bool),
    MaxSizeInMegabytes(u64),
}

impl Setting {
    /// As messages and listings name it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::RequiresSession(_) => "requires_session",
            Self::LockDuration(_) => "lock_duration",
            Self::MaxDeliveryCount(_) => "max_delivery_count",
            Self::TimeToLive(_) => "ttl",
            Self::DeadLetterOnExpiry(_) => "dead_letter_on_expiry",
            Self::DuplicateDetection(_) => "duplicate_detection",
            Self::Partitioned(_) => "partitioned",
            Self::ForwardTo(_) => "forward_to",
            Self::AutoDeleteOnIdle(_) => "auto_delete_on_idle",
            Self::DeadLetterOnFilterErrors(_) => "dead_letter_on_filter_errors",
            Self::BatchedOperations(_) => "batched_operations",
            Self::SupportOrdering(_) => "support_ordering",
            Self::MaxSizeInMegabytes(_) => "max_size_in_megabytes",
        }
    }

    /// The value alone, as configuration would write it: `30s`, `true`, `never`, `none`.
    pub fn value(&self) -> String {
        match self {
            Self::RequiresSession(on)
            | Self::DeadLetterOnExpiry(on)
            | Self::DuplicateDetection(on)
            | Self::Partitioned(on)
            | Self::DeadLetterOnFilterErrors(on)
            | Self::BatchedOperations(on)
            | Self::SupportOrdering(on) => on.to_string(),
            Self::LockDuration(time) => duration::plain(*time),
            Self::MaxDeliveryCount(count) => count.to_string(),
            Self::TimeToLive(time) | Self::AutoDeleteOnIdle(time) => {
                time.map_or_else(|| "never".to_owned(), duration::plain)
            }
            Self::ForwardTo(target) => target.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string),
            Self::MaxSizeInMegabytes(size) => size.to_string(),
        }
    }

    /// Decided when the entity is made, and never again.
    pub fn is_fixed(&self) -> bool {
        matches!(self, Self::RequiresSession(_) | Self::DuplicateDetection(_) | Self::Partitioned(_))
    }

    /// Whether both say the same. Names of entities are compared without case, as the service does.
    pub fn agrees_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::ForwardTo(Some(one)), Self::ForwardTo(Some(other))) => {
                one.as_str().eq_ignore_ascii_case(other.as_str())
            }
            (one, other) => one == other,
        }
    }

    pub(crate) fn element(&self) -> &'static str {
        match self {
            Self::RequiresSession(_) => "RequiresSession",
            Self::LockDuration(_) => "LockDuration",
            Self::MaxDeliveryCount(_) => "MaxDeliveryCount",
            Self::TimeToLive(_) => "DefaultMessageTimeToLive",
            Self::DeadLetterOnExpiry(_) => "DeadLetteringOnMessageExpiration",
            Self::DuplicateDetection(_) => "RequiresDuplicateDetection",
            Self::Partitioned(_) => "EnablePartitioning",
            Self::ForwardTo(_) => "ForwardTo",
            Self::AutoDeleteOnIdle(_) => "AutoDeleteOnIdle",
            Self::DeadLetterOnFilterErrors(_) => "DeadLetteringOnFilterEvaluationExceptions",
            Self::BatchedOperations(_) => "EnableBatchedOperations",
            Self::SupportOrdering(_) => "SupportOrdering",
            Self::MaxSizeInMegabytes(_) => "MaxSizeInMegabytes",
        }
    }

    /// What stands in the element. None: the element is left out, which means for ever or nowhere; some servers take no number for that.
    pub(crate) fn text(&self, host: &str) -> Option<String> {
        match self {
            Self::LockDuration(time) => Some(duration::write(*time)),
            Self::TimeToLive(time) | Self::AutoDeleteOnIdle(time) => time.map(duration::write),
            Self::ForwardTo(target) => target.as_ref().map(|target| format!("sb://{host}/{target}")),
            other => Some(other.value()),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.value())
    }
}
