//! Which entity is meant.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sprag_core::ids::EntityName;

/// What stands in an address as it is. Names may have slashes, and those are part of the way.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// An entity by its kind and name. Two that differ in case only are the same to the service: see [`Path::is`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Path {
    Queue(EntityName),
    Topic(EntityName),
    Subscription { topic: EntityName, name: String },
}

impl Path {
    pub fn queue(name: impl Into<EntityName>) -> Self {
        Self::Queue(name.into())
    }

    pub fn topic(name: impl Into<EntityName>) -> Self {
        Self::Topic(name.into())
    }

    pub fn subscription(topic: impl Into<EntityName>, name: impl Into<String>) -> Self {
        Self::Subscription { topic: topic.into(), name: name.into() }
    }

    /// What an endpoint's source names: a queue, or a subscription as `topic/subscription`.
    pub fn of_source(name: &EntityName) -> Self {
        match name.as_str().rsplit_once('/') {
            Some((topic, subscription)) => {
                // AMQP writes it with the word between.
                let topic = match topic.rsplit_once('/') {
                    Some((topic, word)) if word.eq_ignore_ascii_case("subscriptions") => topic,
                    _ => topic,
                };
                Self::subscription(topic, subscription)
            }
            None => Self::Queue(name.clone()),
        }
    }

    /// As the transport names it: `topic/subscription` for a subscription.
    pub fn name(&self) -> EntityName {
        match self {
            Self::Queue(name) | Self::Topic(name) => name.clone(),
            Self::Subscription { topic, name } => format!("{topic}/{name}").into(),
        }
    }

    /// `queue`, `topic` or `subscription`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Queue(_) => "queue",
            Self::Topic(_) => "topic",
            Self::Subscription { .. } => "subscription",
        }
    }

    pub fn is(&self, other: &Self) -> bool {
        self.kind() == other.kind() && self.key() == other.key()
    }

    /// The same for all that are the same to the service. A queue and a topic share their names, so it is the same for them too.
    pub(crate) fn key(&self) -> String {
        self.plain().to_lowercase()
    }

    fn plain(&self) -> String {
        match self {
            Self::Queue(name) | Self::Topic(name) => name.to_string(),
            Self::Subscription { topic, name } => format!("{topic}/Subscriptions/{name}"),
        }
    }

    /// In an address of the API.
    pub(crate) fn encoded(&self) -> String {
        encode(&self.plain())
    }
}

pub(crate) fn encode(name: &str) -> String {
    utf8_percent_encode(name, ENCODED).to_string()
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind(), self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entities_are_addressed() {
        assert_eq!(Path::queue("a b/ü").encoded(), "a%20b/%C3%BC");
        assert_eq!(Path::subscription("shop", "billing").encoded(), "shop/Subscriptions/billing");
        assert_eq!(Path::of_source(&"orders".into()), Path::queue("orders"));
        for name in ["shop/billing", "shop/Subscriptions/billing"] {
            assert_eq!(Path::of_source(&name.into()), Path::subscription("shop", "billing"), "{name}");
        }
        assert!(Path::queue("Orders").is(&Path::queue("orders")) && !Path::queue("orders").is(&Path::topic("orders")));
    }
}
