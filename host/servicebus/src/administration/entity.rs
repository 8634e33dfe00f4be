//! A queue, a topic or a subscription, as the namespace describes it.
//!
//! An update sends the whole description, so [`Entity`] keeps all of it as it was read: what is set here is changed in its place, and elements
//! that nobody here knows go back as they came. The service reads a description in a fixed order, so what is added is put where it belongs.

use std::{fmt, time::Duration};

use sprag_core::ids::EntityName;

use super::{duration, path::Path, setting::Setting, xml::Element};

pub(crate) const SERVICE_BUS: &str = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect";
pub(crate) const INSTANCE: &str = "http://www.w3.org/2001/XMLSchema-instance";

const QUEUE: &str = "QueueDescription";
const TOPIC: &str = "TopicDescription";
const SUBSCRIPTION: &str = "SubscriptionDescription";
pub(crate) const DEFAULT_RULE: &str = "DefaultRuleDescription";

/// The elements that a client may send, in the order in which the service reads them.
const ORDER_OF_QUEUE: &[&str] = &[
    "LockDuration",
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    "DuplicateDetectionHistoryTimeWindow",
    "MaxDeliveryCount",
    "EnableBatchedOperations",
    "IsAnonymousAccessible",
    "AuthorizationRules",
    "Status",
    "ForwardTo",
    "UserMetadata",
    "SupportOrdering",
    "AutoDeleteOnIdle",
    "EnablePartitioning",
    "ForwardDeadLetteredMessagesTo",
    "EnableExpress",
    "MaxMessageSizeInKilobytes",
];
const ORDER_OF_TOPIC: &[&str] = &[
    "DefaultMessageTimeToLive",
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
    "DuplicateDetectionHistoryTimeWindow",
    "EnableBatchedOperations",
    "FilteringMessagesBeforePublishing",
    "IsAnonymousAccessible",
    "AuthorizationRules",
    "Status",
    "UserMetadata",
    "SupportOrdering",
    "AutoDeleteOnIdle",
    "EnablePartitioning",
    "EnableSubscriptionPartitioning",
    "EnableExpress",
    "MaxMessageSizeInKilobytes",
];
const ORDER_OF_SUBSCRIPTION: &[&str] = &[
    "LockDuration",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    "DeadLetteringOnFilterEvaluationExceptions",
    DEFAULT_RULE,
    "MaxDeliveryCount",
    "EnableBatchedOperations",
    "Status",
    "ForwardTo",
    "UserMetadata",
    "ForwardDeadLetteredMessagesTo",
    "AutoDeleteOnIdle",
];
/// What the service tells and takes from nobody; its own clients leave these out too.
const TOLD: &[&str] = &[
    "AccessedAt",
    "CountDetails",
    "CreatedAt",
    "EntityAvailabilityStatus",
    "MessageCount",
    "SizeInBytes",
    "SkippedUpdate",
    "SubscriptionCount",
    "UpdatedAt",
];

/// What may be done with an entity at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Active,
    Disabled,
    SendDisabled,
    ReceiveDisabled,
    /// Another word of the service's: it is being made, removed or moved.
    Changing,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Disabled => "disabled",
            Self::SendDisabled => "send-disabled",
            Self::ReceiveDisabled => "receive-disabled",
            Self::Changing => "changing",
        })
    }
}

/// An entity that is there. What its kind has not is at its default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entity {
    /// What it is, which need not be what was asked for: queues and topics share their names.
    pub path: Path,
    pub requires_session: bool,
    pub lock_duration: Duration,
    pub max_delivery_count: u32,
    /// None: messages do not expire.
    pub time_to_live: Option<Duration>,
    pub dead_letter_on_expiry: bool,
    pub duplicate_detection: bool,
    pub partitioned: bool,
    pub forward_to: Option<EntityName>,
    pub forward_dead_letters_to: Option<EntityName>,
    /// None: it stays when nobody uses it.
    pub auto_delete_on_idle: Option<Duration>,
    pub dead_letter_on_filter_errors: bool,
    pub batched_operations: bool,
    pub support_ordering: bool,
    pub max_size_in_megabytes: u64,
    pub status: Status,
    /// All of it, what is above included.
    description: Element,
}

impl Entity {
    /// `topic` when it is a list of a topic's subscriptions or one of them.
    pub(crate) fn read(title: &str, topic: Option<&EntityName>, description: Element) -> Result<Self, String> {
        let path = match (description.local(), topic) {
            (QUEUE, None) => Path::queue(title),
            (TOPIC, None) => Path::topic(title),
            (SUBSCRIPTION, Some(topic)) => Path::subscription(topic.clone(), title),
            (other, _) => return Err(format!("a {other} is not what was asked for")),
        };
        let it = Reader(&description);
        Ok(Self {
            path,
            requires_session: it.flag("RequiresSession", false)?,
            lock_duration: it.time("LockDuration")?.unwrap_or(Duration::from_secs(60)),
            max_delivery_count: it.number("MaxDeliveryCount", 10)?,
            time_to_live: it.time("DefaultMessageTimeToLive")?,
            dead_letter_on_expiry: it.flag("DeadLetteringOnMessageExpiration", false)?,
            duplicate_detection: it.flag("RequiresDuplicateDetection", false)?,
            partitioned: it.flag("EnablePartitioning", false)?,
            forward_to: it.target("ForwardTo"),
            forward_dead_letters_to: it.target("ForwardDeadLetteredMessagesTo"),
            auto_delete_on_idle: it.time("AutoDeleteOnIdle")?,
            dead_letter_on_filter_errors: it.flag("DeadLetteringOnFilterEvaluationExceptions", true)?,
            batched_operations: it.flag("EnableBatchedOperations", true)?,
            support_ordering: it.flag("SupportOrdering", true)?,
            max_size_in_megabytes: it.number("MaxSizeInMegabytes", 1_024)?,
            status: match description.said("Status") {
                None | Some("Active") => Status::Active,
                Some("Disabled") => Status::Disabled,
                Some("SendDisabled") => Status::SendDisabled,
                Some("ReceiveDisabled") => Status::ReceiveDisabled,
                Some(_) => Status::Changing,
            },
            description,
        })
    }

    /// As it is after it was made so, for tests of what only looks at entities.
    #[cfg(test)]
    pub(crate) fn as_made(path: &Path, settings: &[Setting]) -> Self {
        let name = path.name();
        let (title, topic) = match path {
            Path::Subscription { topic, name } => (name.as_str(), Some(topic)),
            _ => (name.as_str(), None),
        };
        Self::read(title, topic, new(path, settings, "host")).expect("it was just written")
    }

    /// This setting with the value that the entity has.
    pub fn setting(&self, like: &Setting) -> Setting {
        match like {
            Setting::RequiresSession(_) => Setting::RequiresSession(self.requires_session),
            Setting::LockDuration(_) => Setting::LockDuration(self.lock_duration),
            Setting::MaxDeliveryCount(_) => Setting::MaxDeliveryCount(self.max_delivery_count),
            Setting::TimeToLive(_) => Setting::TimeToLive(self.time_to_live),
            Setting::DeadLetterOnExpiry(_) => Setting::DeadLetterOnExpiry(self.dead_letter_on_expiry),
            Setting::DuplicateDetection(_) => Setting::DuplicateDetection(self.duplicate_detection),
            Setting::Partitioned(_) => Setting::Partitioned(self.partitioned),
            Setting::ForwardTo(_) => Setting::ForwardTo(self.forward_to.clone()),
            Setting::AutoDeleteOnIdle(_) => Setting::AutoDeleteOnIdle(self.auto_delete_on_idle),
            Setting::DeadLetterOnFilterErrors(_) => {
                Setting::DeadLetterOnFilterErrors(self.dead_letter_on_filter_errors)
            }
            Setting::BatchedOperations(_) => Setting::BatchedOperations(self.batched_operations),
            Setting::SupportOrdering(_) => Setting::SupportOrdering(self.support_ordering),
            Setting::MaxSizeInMegabytes(_) => Setting::MaxSizeInMegabytes(self.max_size_in_megabytes),
        }
    }

    /// The description to send for a change: these settings, and everything else as it is.
    pub(crate) fn changed(&self, settings: &[Setting], host: &str) -> Element {
        let mut description = self.description.clone();
        description.children.retain(|child| !TOLD.contains(&child.local()) && child.local() != DEFAULT_RULE);
        settings.iter().for_each(|setting| put(&mut description, setting, host));
        description
    }
}

/// The description of an entity that is to be made.
pub(crate) fn new(path: &Path, settings: &[Setting], host: &str) -> Element {
    let name = match path {
        Path::Queue(_) => QUEUE,
        Path::Topic(_) => TOPIC,
        Path::Subscription { .. } => SUBSCRIPTION,
    };
    let mut description = Element::new(name).with("xmlns", SERVICE_BUS).with("xmlns:i", INSTANCE);
    settings.iter().for_each(|setting| put(&mut description, setting, host));
    description
}

fn put(description: &mut Element, setting: &Setting, host: &str) {
    let name = setting.element();
    match setting.text(host) {
        None => description.children.retain(|child| child.local() != name),
        Some(text) => place(description, Element::with_text(name, text)),
    }
}

/// Where it forwards messages to, and dead letters.
pub(crate) fn forwards(description: &Element) -> [Option<EntityName>; 2] {
    ["ForwardTo", "ForwardDeadLetteredMessagesTo"].map(|name| Reader(description).target(name))
}

/// Puts an element in place of the one of its name, or behind the last one that comes before it.
pub(crate) fn place(description: &mut Element, element: Element) {
    let element = element.within(description);
    if let Some(there) = description.children.iter_mut().find(|child| child.local() == element.local()) {
        *there = element;
        return;
    }
    let order = match description.local() {
        TOPIC => ORDER_OF_TOPIC,
        SUBSCRIPTION => ORDER_OF_SUBSCRIPTION,
        _ => ORDER_OF_QUEUE,
    };
    let rank = |name: &str| order.iter().position(|it| *it == name);
    let own = rank(element.local());
    let before = |child: &Element| rank(child.local()).is_some_and(|rank| Some(rank) < own);
    let at = description.children.iter().rposition(before).map_or(0, |at| at + 1);
    description.children.insert(at, element);
}

/// Reads single elements, leniently about what is missing and not about what is wrong.
struct Reader<'a>(&'a Element);

impl Reader<'_> {
    fn flag(&self, name: &str, default: bool) -> Result<bool, String> {
        match self.0.said(name).map(str::to_ascii_lowercase).as_deref() {
            None => Ok(default),
            Some("true" | "1") => Ok(true),
            Some("false" | "0") => Ok(false),
            Some(other) => Err(format!("{name} is {other:?}, neither true nor false")),
        }
    }

    fn number<T: std::str::FromStr>(&self, name: &str, default: T) -> Result<T, String> {
        let Some(text) = self.0.said(name) else { return Ok(default) };
        text.parse().map_err(|_| format!("{name} is {text:?}, no number that it can have"))
    }

    /// None is for ever, or not said.
    fn time(&self, name: &str) -> Result<Option<Duration>, String> {
        let Some(text) = self.0.said(name) else { return Ok(None) };
        duration::read(text).ok_or_else(|| format!("{name} is {text:?}, no duration"))
    }

    /// The service answers a whole address or a name. There is no other namespace to forward to.
    fn target(&self, name: &str) -> Option<EntityName> {
        let text = self.0.said(name)?;
        let path = match text.split_once("://") {
            Some((_, rest)) => rest.split_once('/').map_or("", |(_, path)| path),
            None => text,
        };
        Some(path.trim_matches('/')).filter(|path| !path.is_empty()).map(Into::into)
    }
}
