//! The settings of an entity: from a client's description, and into one.
//!
//! A request states them all: what it leaves out goes to its default, as on Azure. The exceptions are the two sizes, which Azure's clients
//! know only in megabytes and kilobytes: one that is left out, or sent back as it was answered, stays what it is to the byte.
//!
//! Three kinds of settings are not the engine's. Those that would change nothing that a client can see, because the engine gives more than
//! was asked for, are kept and given back ([`KEPT`]). Those that it does not have are refused unless they say the default. Counts and times
//! are Azure's to tell, and are skipped.

use std::{collections::BTreeSet, time::Duration};

use sprag_broker::{EntityKind, EntitySpec, EntityStatus, FilterSpec};
use sprag_core::ids::EntityName;

use super::{duration, refusal::Refusal, xml::Element};

/// Kept without effect: name and default.
const KEPT: &[(&str, &str)] = &[
    ("DeadLetteringOnFilterEvaluationExceptions", "true"),
    ("DuplicateDetectionHistoryTimeWindow", DEFAULT_WINDOW),
    ("EnableBatchedOperations", "true"),
    ("EnableExpress", "false"),
    ("SupportOrdering", "true"),
];
/// Azure's, in which a message id is remembered when nothing is said.
const DEFAULT_WINDOW: &str = "PT10M";
/// Answered for an entity without a limit of its own, in megabytes: the largest that Azure has.
const NO_LIMIT: u64 = 81_920;
/// Azure's default, in megabytes.
const DEFAULT_SIZE: u64 = 1_024;
const MEGABYTE: u64 = 1024 * 1024;
/// Only ever answered.
const SKIPPED: &[&str] = &[
    "AccessedAt",
    "CorrelationFilterCount",
    "CountDetails",
    "CreatedAt",
    "EntityAvailabilityStatus",
    "MessageCount",
    "Name",
    "SizeInBytes",
    "SqlFilterCount",
    "SubscriptionCount",
    "UpdatedAt",
];

/// The kind as a request names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Queue,
    Topic,
    Subscription,
}

impl Kind {
    pub(super) fn of(spec: &EntitySpec) -> Self {
        match spec.kind {
            EntityKind::Queue => Self::Queue,
            EntityKind::Topic => Self::Topic,
            EntityKind::Subscription(_) => Self::Subscription,
        }
    }

    pub(super) fn element(self) -> &'static str {
        match self {
            Self::Queue => "QueueDescription",
            Self::Topic => "TopicDescription",
            Self::Subscription => "SubscriptionDescription",
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Queue => "queue",
            Self::Topic => "topic",
            Self::Subscription => "subscription",
        })
    }
}

/// What the description says. `now` is the entity as it is, when it is to be changed.
pub(super) fn read(
    name: EntityName,
    kind: Kind,
    description: &Element,
    now: Option<&EntitySpec>,
) -> Result<EntitySpec, Refusal> {
    let mut spec = EntitySpec::queue(name);
    spec.kind = match kind {
        Kind::Queue => EntityKind::Queue,
        Kind::Topic => EntityKind::Topic,
        Kind::Subscription => EntityKind::Subscription(FilterSpec::All),
    };
    spec.max_size = match now {
        Some(now) => now.max_size,
        None if kind == Kind::Subscription => None,
        None => Some(DEFAULT_SIZE * MEGABYTE),
    };
    spec.max_message_size = now.map_or(spec.max_message_size, |now| now.max_message_size);
    if let Some(now) = now {
        let others = now.other.iter().filter(|(name, _)| !KEPT.iter().any(|(kept, _)| kept == name));
        spec.other = others.map(|(name, value)| (name.clone(), value.clone())).collect();
    }
    let (mut detects, mut window) = (false, None);
    let mut seen = BTreeSet::new();
    for field in &description.children {
        let name = field.name.as_ref();
        let text = field.text.trim();
        if !seen.insert(name) {
            return Err(Refusal::bad(format!("{name} is there twice")));
        }
        if SKIPPED.contains(&name) || (text.is_empty() && field.children.is_empty()) {
            continue;
        }
        if !belongs(name, kind) {
            return Err(Refusal::bad(format!("{name} is no setting of a {kind}")));
        }
        match name {
            "LockDuration" => spec.lock_duration = limited(field)?,
            "RequiresSession" => spec.requires_session = flag(field)?,
            "DefaultMessageTimeToLive" => spec.default_ttl = time(field)?,
            "DeadLetteringOnMessageExpiration" => spec.dead_letter_on_expiry = flag(field)?,
            "MaxDeliveryCount" => spec.max_delivery_count = number(field)?,
            "Status" => spec.status = status(text)?,
            "ForwardTo" => spec.forward_to = Some(target(text)?),
            "ForwardDeadLetteredMessagesTo" => spec.forward_dead_letters_to = Some(target(text)?),
            // As it is: its spaces are its author's.
            "UserMetadata" => spec.user_metadata = Some(field.text.clone()),
            "EnablePartitioning" => spec.partitioned = flag(field)?,
            "RequiresDuplicateDetection" => detects = flag(field)?,
            "DuplicateDetectionHistoryTimeWindow" => window = Some(limited(field)?),
            "MaxSizeInMegabytes" => {
                let megabytes: u64 = number(field)?;
                if now.is_none_or(|now| megabytes != size(now)) {
                    spec.max_size = Some(in_bytes(field, megabytes, MEGABYTE)?);
                }
            }
            "MaxMessageSizeInKilobytes" => {
                let kilobytes: u64 = number(field)?;
                if now.is_none_or(|now| kilobytes != message_size(now)) {
                    spec.max_message_size = in_bytes(field, kilobytes, 1_024)?;
                }
            }
            // Rules are made apart from the settings: see `rules`.
            "DefaultRuleDescription" => {}
            "AutoDeleteOnIdle" if time(field)?.is_none() => {}
            "AutoDeleteOnIdle" => {
                return Err(Refusal::bad("AutoDeleteOnIdle: this broker removes no entity by itself; leave it out"));
            }
            "AuthorizationRules" => {
                let problem =
                    "AuthorizationRules: the keys of this broker are configured, not administered; leave them out";
                return Err(Refusal::bad(problem));
            }
            "IsAnonymousAccessible" | "FilteringMessagesBeforePublishing" | "EnableSubscriptionPartitioning" => {
                if flag(field)? {
                    return Err(Refusal::bad(format!("{name}: this broker does not have it; leave it out")));
                }
            }
            _ => {
                let value = flag(field)?.to_string();
                if value != default(name) {
                    spec.other.insert(name.to_owned(), value);
                }
            }
        }
    }
    match (detects, window) {
        (true, window) => spec.duplicate_detection = Some(window.unwrap_or(default_window())),
        (false, Some(window)) if window != default_window() => {
            let text = duration::write(Some(window));
            spec.other.insert("DuplicateDetectionHistoryTimeWindow".to_owned(), text);
        }
        (false, _) => {}
    }
    Ok(spec)
}

/// Whether entities of this kind have the setting.
fn belongs(name: &str, kind: Kind) -> bool {
    match name {
        "AutoDeleteOnIdle" | "DefaultMessageTimeToLive" | "EnableBatchedOperations" | "Status" | "UserMetadata" => true,
        "DeadLetteringOnMessageExpiration"
        | "ForwardDeadLetteredMessagesTo"
        | "ForwardTo"
        | "LockDuration"
        | "MaxDeliveryCount"
        | "RequiresSession" => kind != Kind::Topic,
        "AuthorizationRules"
        | "DuplicateDetectionHistoryTimeWindow"
        | "EnableExpress"
        | "EnablePartitioning"
        | "IsAnonymousAccessible"
        | "MaxMessageSizeInKilobytes"
        | "MaxSizeInMegabytes"
        | "RequiresDuplicateDetection"
        | "SupportOrdering" => kind != Kind::Subscription,
        "EnableSubscriptionPartitioning" | "FilteringMessagesBeforePublishing" => kind == Kind::Topic,
        "DeadLetteringOnFilterEvaluationExceptions" | "DefaultRuleDescription" => kind == Kind::Subscription,
        _ => false,
    }
}

fn default(name: &str) -> &'static str {
    KEPT.iter().find(|(kept, _)| *kept == name).map_or("", |(_, default)| default)
}

/// A setting that is kept, or its default.
pub(super) fn kept<'a>(spec: &'a EntitySpec, name: &str) -> &'a str {
    spec.other.get(name).map_or(default(name), String::as_str)
}

pub(super) fn window(spec: &EntitySpec) -> String {
    match spec.duplicate_detection {
        Some(window) => duration::write(Some(window)),
        None => kept(spec, "DuplicateDetectionHistoryTimeWindow").to_owned(),
    }
}

/// Rounded up: what is less than one megabyte is not none.
pub(super) fn size(spec: &EntitySpec) -> u64 {
    spec.max_size.map_or(NO_LIMIT, |bytes| bytes.div_ceil(MEGABYTE))
}

pub(super) fn message_size(spec: &EntitySpec) -> u64 {
    spec.max_message_size.div_ceil(1_024)
}

pub(super) fn status_text(status: EntityStatus) -> &'static str {
    match status {
        EntityStatus::Active => "Active",
        EntityStatus::Disabled => "Disabled",
        EntityStatus::SendDisabled => "SendDisabled",
        EntityStatus::ReceiveDisabled => "ReceiveDisabled",
    }
}

fn default_window() -> Duration {
    Duration::from_secs(600)
}

fn status(text: &str) -> Result<EntityStatus, Refusal> {
    let all = [EntityStatus::Active, EntityStatus::Disabled, EntityStatus::SendDisabled, EntityStatus::ReceiveDisabled];
    let found = all.into_iter().find(|status| status_text(*status).eq_ignore_ascii_case(text));
    found.ok_or_else(|| {
        Refusal::bad(format!("Status {text:?} is not one of Active, Disabled, SendDisabled, ReceiveDisabled"))
    })
}

fn flag(field: &Element) -> Result<bool, Refusal> {
    match field.text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        other => Err(Refusal::bad(format!("{} is {other:?}, neither true nor false", field.name))),
    }
}

fn number<T: std::str::FromStr>(field: &Element) -> Result<T, Refusal> {
    let text = field.text.trim();
    text.parse().map_err(|_| Refusal::bad(format!("{} is {text:?}, no number that it can have", field.name)))
}

fn in_bytes(field: &Element, count: u64, unit: u64) -> Result<u64, Refusal> {
    let bytes = count.checked_mul(unit).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| Refusal::bad(format!("{} is {count}, no size that it can have", field.name)))
}

fn time(field: &Element) -> Result<Option<Duration>, Refusal> {
    duration::read(&field.text).map_err(|problem| Refusal::bad(format!("{}: {problem}", field.name)))
}

fn limited(field: &Element) -> Result<Duration, Refusal> {
    time(field)?.ok_or_else(|| Refusal::bad(format!("{} cannot be for ever", field.name)))
}

/// Clients write the whole address. Its host is not compared: there is no other namespace to forward to, and this one has many names.
fn target(text: &str) -> Result<EntityName, Refusal> {
    let path = match text.split_once("://") {
        Some((_, rest)) => rest.split_once('/').map_or("", |(_, path)| path),
        None => text,
    };
    match path.trim_matches('/') {
        "" => Err(Refusal::bad(format!("{text:?} names no entity to forward to"))),
        path => Ok(path.into()),
    }
}
