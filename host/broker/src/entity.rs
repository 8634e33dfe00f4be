//! Queues, topics and subscriptions: what may be said about them, and what they accept.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use sprag_core::{
    ids::{EntityName, SessionId},
    message::Message,
};
use sprag_transport::Error;

use crate::filter::{FilterError, FilterSpec, RuleSpec};
pub(crate) use crate::topology::{Address, Entity, EntityIndex, Letters, Topology};

/// What follows an entity's name to name its dead letters.
pub const DEAD_LETTER_SUFFIX: &str = "/$DeadLetterQueue";
/// What follows an entity's name to name the messages that it could not forward.
pub const TRANSFER_DEAD_LETTER_SUFFIX: &str = "/$Transfer/$DeadLetterQueue";

/// Longest message id, in bytes.
pub const MAX_MESSAGE_ID: usize = 1_024;
/// Longest session id, in characters.
pub const MAX_SESSION_ID: usize = 128;
/// How often a message is forwarded at most, from entity to entity.
pub const MAX_HOPS: u32 = 4;
/// Longest note of an administrator, in characters.
const MAX_METADATA: usize = 1_024;
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
    /// Kept for those who ask; one file has no partitions.
    #[serde(default)]
    pub partitioned: bool,
    #[serde(default)]
    pub status: EntityStatus,
    /// Messages do not stay here but go on to this queue or topic, over at most [`MAX_HOPS`] entities.
    #[serde(default)]
    pub forward_to: Option<EntityName>,
    /// The same for dead letters.
    #[serde(default)]
    pub forward_dead_letters_to: Option<EntityName>,
    /// Rules of a subscription that [`Engine::declare`](crate::Engine::declare) makes, instead of `$Default` with the filter. Of an entity that is
    /// looked at, [`Engine::rules`](crate::Engine::rules) says them all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleSpec>,
    /// A note of whoever administers the entity.
    #[serde(default)]
    pub user_metadata: Option<String>,
    /// Settings that this engine does not act on, kept for those who ask for them.
    #[serde(default)]
    pub other: BTreeMap<String, String>,
}

/// What may be done with an entity at the moment. What it holds stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntityStatus {
    #[default]
    Active,
    /// Neither sent to nor received from.
    Disabled,
    SendDisabled,
    ReceiveDisabled,
}

impl EntityStatus {
    pub fn sends(self) -> bool {
        matches!(self, Self::Active | Self::ReceiveDisabled)
    }

    pub fn receives(self) -> bool {
        matches!(self, Self::Active | Self::SendDisabled)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntityKind {
    Queue,
    /// Keeps no message itself but scheduled ones: each of its subscriptions gets its own copy.
    Topic,
    /// Named `topic/subscription`. The filter is the one of its rule `$Default`.
    Subscription(FilterSpec),
}

/// Why a declaration was not accepted.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DeclareError {
    #[error("{entity}: {problem}")]
    Invalid { entity: EntityName, problem: String },
    #[error("{0} is there already")]
    Exists(EntityName),
    #[error("there is no entity {0:?}")]
    NoSuchEntity(EntityName),
    #[error("{entity} has no rule {rule:?}")]
    NoSuchRule { entity: EntityName, rule: String },
    #[error("{entity} has a rule {rule:?} already")]
    RuleExists { entity: EntityName, rule: String },
    /// Decided when the entity was made, and never again.
    #[error("{entity}: {setting} cannot change")]
    Fixed { entity: EntityName, setting: &'static str },
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
            partitioned: false,
            status: EntityStatus::Active,
            forward_to: None,
            forward_dead_letters_to: None,
            rules: Vec::new(),
            user_metadata: None,
            other: BTreeMap::new(),
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

    /// What is wrong with it, looked at alone.
    pub(crate) fn validate(&self) -> Result<(), DeclareError> {
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
        if self.user_metadata.as_ref().is_some_and(|text| text.chars().count() > MAX_METADATA) {
            return invalid(format!("user_metadata has more than {MAX_METADATA} characters"));
        }
        for (key, target) in
            [("forward_to", &self.forward_to), ("forward_dead_letters_to", &self.forward_dead_letters_to)]
        {
            if target.is_some() && self.kind == EntityKind::Topic {
                return invalid(format!("a topic has no {key}; its subscriptions may"));
            }
            if target.as_ref().is_some_and(|target| target.as_str().eq_ignore_ascii_case(name)) {
                return invalid(format!("{key} names the entity itself"));
            }
        }
        if self.forward_to.is_some() && self.requires_session {
            return invalid("an entity that requires sessions cannot forward: forward_to".into());
        }
        match &self.kind {
            EntityKind::Queue | EntityKind::Topic if !self.rules.is_empty() => {
                invalid("it has no rules: it is no subscription".into())
            }
            EntityKind::Topic if self.requires_session => {
                invalid("a topic has no sessions; its subscriptions may".into())
            }
            EntityKind::Subscription(_) if self.topic_name().is_none() => {
                invalid("a subscription is named topic/subscription".into())
            }
            EntityKind::Subscription(filter) => {
                if *filter != FilterSpec::All && !self.rules.is_empty() {
                    return invalid("it has a filter and rules: the filter belongs in a rule".into());
                }
                for (n, rule) in self.rules.iter().enumerate() {
                    if self.rules[..n].iter().any(|other| other.name.eq_ignore_ascii_case(&rule.name)) {
                        return invalid(format!("it has two rules named {:?}", rule.name));
                    }
                    rule.validate().map_err(|error| {
                        let problem = format!("rule {:?}: {}", rule.name, error.problem);
                        DeclareError::Filter { entity: self.name.clone(), error: FilterError { problem, ..error } }
                    })?;
                }
                let compiled = filter.compile().map(drop);
                compiled.map_err(|error| DeclareError::Filter { entity: self.name.clone(), error })
            }
            _ => Ok(()),
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
