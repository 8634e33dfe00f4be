//! Queues, topics and subscriptions: what may be said about them, and what they accept.

use std::{collections::HashMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use sprag_core::{
    ids::{EntityName, SessionId},
    message::Message,
};
use sprag_transport::Error;

use crate::filter::{Filter, FilterError, FilterSpec};

/// What follows an entity's name to name its dead letters.
pub const DEAD_LETTER_SUFFIX: &str = "/$DeadLetterQueue";

/// Longest message id, in bytes.
pub const MAX_MESSAGE_ID: usize = 1_024;
/// Longest session id, in characters.
pub const MAX_SESSION_ID: usize = 128;
/// Largest value of [`EntitySpec::max_message_size`].
pub const MAX_MESSAGE_SIZE: u64 = 100 * 1024 * 1024;

/// An entity, as it is declared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EntitySpec {
    pub name: EntityName,
    pub kind: EntityKind,
    pub requires_session: bool,
    /// 1 s to 5 min. Default 30 s.
    pub lock_duration: Duration,
    /// 1 to 2,000. Default 10.
    pub max_delivery_count: u32,
    /// The longest a message lives; a message's own time to live can only be shorter. Default: for ever.
    pub default_ttl: Option<Duration>,
    /// An expired message goes to the dead letters instead of away. A parked one always does. Default: away.
    pub dead_letter_on_expiry: bool,
    /// For how long a message id is remembered, 20 s to 7 d; a second message with it is dropped. Default: not at all.
    pub duplicate_detection: Option<Duration>,
    /// Body and properties, in bytes. Default 1 MiB, at most [`MAX_MESSAGE_SIZE`].
    pub max_message_size: u64,
    /// All messages together, in bytes. Default: no limit but the engine's.
    pub max_size: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntityKind {
    Queue,
    /// Keeps no message itself but scheduled ones: each of its subscriptions gets its own copy.
    Topic,
    /// Named `topic/subscription`.
    Subscription(FilterSpec),
}

/// Why a declaration was not accepted.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DeclareError {
    #[error("{entity}: {problem}")]
    Invalid { entity: EntityName, problem: String },
    #[error("{entity}: {error}")]
    Filter { entity: EntityName, error: FilterError },
    #[error("{0}")]
    Store(#[from] sprag_store::Error),
}

impl EntitySpec {
    pub fn queue(name: impl Into<EntityName>) -> Self {
        Self {
            name: name.into(),
            kind: EntityKind::Queue,
            requires_session: false,
            lock_duration: Duration::from_secs(30),
            max_delivery_count: 10,
            default_ttl: None,
            dead_letter_on_expiry: false,
            duplicate_detection: None,
            max_message_size: 1024 * 1024,
            max_size: None,
        }
    }

    pub fn topic(name: impl Into<EntityName>) -> Self {
        Self { kind: EntityKind::Topic, ..Self::queue(name) }
    }

    pub fn subscription(topic: &EntityName, name: &str, filter: FilterSpec) -> Self {
        Self { kind: EntityKind::Subscription(filter), ..Self::queue(format!("{topic}/{name}")) }
    }

    pub fn with_sessions(self) -> Self {
        Self { requires_session: true, ..self }
    }

    /// The topic of a subscription.
    pub(crate) fn topic_name(&self) -> Option<&str> {
        match self.kind {
            EntityKind::Subscription(_) => self.name.as_str().rsplit_once('/').map(|(topic, _)| topic),
            _ => None,
        }
    }

    /// The filter, compiled; or what is wrong.
    pub(crate) fn validate(&self) -> Result<Filter, DeclareError> {
        let invalid = |problem: String| Err(DeclareError::Invalid { entity: self.name.clone(), problem });
        let name = self.name.as_str();
        if name.is_empty() || name.len() > 260 || name.chars().any(char::is_control) {
            return invalid("a name has 1 to 260 bytes and no control characters".into());
        }
        if name.to_ascii_lowercase().ends_with(&DEAD_LETTER_SUFFIX.to_ascii_lowercase()) {
            return invalid(format!("{DEAD_LETTER_SUFFIX} is reserved: every entity has one"));
        }
        if !(1..=2_000).contains(&self.max_delivery_count) {
            return invalid(format!("max_delivery_count is {}; it must be 1 to 2000", self.max_delivery_count));
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&self.lock_duration) {
            return invalid(format!("lock_duration is {:?}; it must be 1 s to 5 min", self.lock_duration));
        }
        if let Some(window) = self.duplicate_detection
            && !(Duration::from_secs(20)..=Duration::from_secs(7 * 86_400)).contains(&window)
        {
            return invalid(format!("duplicate_detection is {window:?}; it must be 20 s to 7 d"));
        }
        if self.max_message_size == 0 || self.max_message_size > MAX_MESSAGE_SIZE {
            return invalid(format!("max_message_size is {}; it must be 1 byte to 100 MiB", self.max_message_size));
        }
        if self.default_ttl.is_some_and(|ttl| ttl.is_zero()) {
            return invalid("default_ttl is zero: every message would expire at once".into());
        }
        match &self.kind {
            EntityKind::Topic if self.requires_session => {
                invalid("a topic has no sessions; its subscriptions may".into())
            }
            EntityKind::Subscription(_) if self.topic_name().is_none() => {
                invalid("a subscription is named topic/subscription".into())
            }
            EntityKind::Subscription(filter) => {
                filter.compile().map_err(|error| DeclareError::Filter { entity: self.name.clone(), error })
            }
            _ => Ok(Filter::All),
        }
    }

    /// Whether the entity takes the message, looked at alone.
    pub(crate) fn accepts(&self, message: &Message, size: u64) -> Result<(), Error> {
        let refuse = |problem: String| Err(Error::Refused(format!("{}: {problem}", self.name)));
        if let Some(id) = &message.message_id {
            check_text("message id", id.as_str()).or_else(&refuse)?;
            if id.as_str().len() > MAX_MESSAGE_ID {
                return refuse(format!(
                    "the message id has {} bytes; at most {MAX_MESSAGE_ID} are taken",
                    id.as_str().len()
                ));
            }
        }
        match &message.session_id {
            Some(session) => check_session(session).or_else(&refuse)?,
            None if self.requires_session => {
                let named = message.message_id.as_ref().map(|id| format!(" (message {id})")).unwrap_or_default();
                return refuse(format!("the entity requires sessions and the message has no session id{named}"));
            }
            None => {}
        }
        if size > self.max_message_size {
            return refuse(format!("the message has {size} bytes; at most {} are taken", self.max_message_size));
        }
        Ok(())
    }
}

fn check_text(field: &str, text: &str) -> Result<(), String> {
    match text.chars().find(|c| c.is_control()) {
        Some(c) => Err(format!("the {field} has the control character U+{:04X}", u32::from(c))),
        None => Ok(()),
    }
}

pub(crate) fn check_session(session: &SessionId) -> Result<(), String> {
    check_text("session id", session.as_str())?;
    match session.as_str().chars().count() {
        len if len > MAX_SESSION_ID => {
            Err(format!("the session id has {len} characters; at most {MAX_SESSION_ID} are taken"))
        }
        _ => Ok(()),
    }
}

/// Position of an entity in the topology and in the index. Entities are only ever added.
pub(crate) type EntityIndex = usize;

/// What is declared, compiled. Replaced as a whole.
#[derive(Debug, Default)]
pub(crate) struct Topology {
    pub(crate) entities: Vec<Arc<Entity>>,
    by_name: HashMap<EntityName, EntityIndex>,
}

#[derive(Debug)]
pub(crate) struct Entity {
    /// Its number in the file.
    pub(crate) id: i64,
    pub(crate) spec: EntitySpec,
    pub(crate) filter: Filter,
    /// A topic's subscriptions.
    pub(crate) subscriptions: Vec<EntityIndex>,
}

/// An entity's messages or its dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) entity: EntityIndex,
    pub(crate) dead: bool,
}

impl Topology {
    /// With these entities, in this order: (number in the file, spec, filter).
    pub(crate) fn new(entities: Vec<(i64, EntitySpec, Filter)>) -> Self {
        let by_name: HashMap<_, _> =
            entities.iter().enumerate().map(|(n, (_, spec, _))| (spec.name.clone(), n)).collect();
        let mut subscriptions: Vec<Vec<EntityIndex>> = vec![Vec::new(); entities.len()];
        for (n, (_, spec, _)) in entities.iter().enumerate() {
            if let Some(topic) = spec.topic_name().and_then(|topic| by_name.get(topic)) {
                subscriptions[*topic].push(n);
            }
        }
        let entity = |((id, spec, filter), subscriptions)| Arc::new(Entity { id, spec, filter, subscriptions });
        Self { entities: entities.into_iter().zip(subscriptions).map(entity).collect(), by_name }
    }

    pub(crate) fn position(&self, name: &EntityName) -> Option<EntityIndex> {
        self.by_name.get(name).copied()
    }

    /// The entity or the dead letters that the name means.
    pub(crate) fn address(&self, name: &EntityName) -> Result<Address, Error> {
        if let Some(entity) = self.position(name) {
            return Ok(Address { entity, dead: false });
        }
        let text = name.as_str();
        let owner = text.len().checked_sub(DEAD_LETTER_SUFFIX.len()).and_then(|at| text.split_at_checked(at));
        owner
            .filter(|(_, suffix)| suffix.eq_ignore_ascii_case(DEAD_LETTER_SUFFIX))
            .and_then(|(owner, _)| self.by_name.get(owner))
            .map(|entity| Address { entity: *entity, dead: true })
            .ok_or_else(|| Error::NoSuchEntity(name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(spec: EntitySpec) -> String {
        spec.validate().expect_err("it is wrong").to_string()
    }

    /// Case A33: a value outside 1..2000 is refused at start.
    #[test]
    fn limits_are_checked() {
        for count in [0, 2_001] {
            assert!(problem(EntitySpec { max_delivery_count: count, ..EntitySpec::queue("q") }).contains("1 to 2000"));
        }
        for count in [1, 2_000] {
            EntitySpec { max_delivery_count: count, ..EntitySpec::queue("q") }.validate().unwrap();
        }
        assert!(
            problem(EntitySpec { lock_duration: Duration::from_millis(999), ..EntitySpec::queue("q") })
                .contains("5 min")
        );
        assert!(
            problem(EntitySpec { duplicate_detection: Some(Duration::from_secs(19)), ..EntitySpec::queue("q") })
                .contains("7 d")
        );
        assert!(
            problem(EntitySpec { max_message_size: MAX_MESSAGE_SIZE + 1, ..EntitySpec::queue("q") })
                .contains("100 MiB")
        );
        assert!(problem(EntitySpec::queue("q/$deadletterqueue")).contains("reserved"));
        assert!(problem(EntitySpec::topic("t").with_sessions()).contains("subscriptions"));
        let filter = FilterSpec::Sql("a = ".into());
        assert!(problem(EntitySpec::subscription(&"t".into(), "s", filter)).contains("at character"));
    }

    /// Cases A75 and bad ids: refused with the field's name.
    #[test]
    fn messages_are_checked() {
        let spec = EntitySpec::queue("q").with_sessions();
        let message = |id: &str, session: Option<&str>| Message {
            message_id: Some(id.into()),
            session_id: session.map(SessionId::from),
            ..Message::default()
        };
        let refused = |message| spec.accepts(&message, 1).expect_err("refused").to_string();
        assert!(refused(message("m7", None)).contains("no session id (message m7)"));
        assert!(refused(message("a\u{7}b", Some("s"))).contains("message id has the control character U+0007"));
        assert!(refused(message(&"x".repeat(1_025), Some("s"))).contains("1025 bytes"));
        assert!(refused(message("m", Some(&"é".repeat(129)))).contains("session id has 129 characters"));
        spec.accepts(&message(&"x".repeat(600), Some(&"é".repeat(128))), 1).unwrap();
        let error = spec.accepts(&message("m", Some("s")), 1024 * 1024 + 1).unwrap_err();
        assert!(error.to_string().contains("1048577 bytes"), "{error}");
    }
}
