//! A message, as a transport carries it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    ids::{EntityName, EventId, EventType, MessageId, SequenceNumber, SessionId},
    time::Timestamp,
};

/// Names of application properties that have a meaning to the host. They are NimBus's, so that both understand each other.
pub mod property {
    pub const MESSAGE_TYPE: &str = "MessageType";
    pub const EVENT_ID: &str = "EventId";
    pub const EVENT_TYPE_ID: &str = "EventTypeId";
    /// The source id of the event that a stand-in completes.
    pub const INBOX_MESSAGE_ID: &str = "InboxMessageId";
    pub const BLOCKED_BY_MESSAGE_ID: &str = "BlockedByMessageId";
    pub const ORIGINAL_SESSION_ID: &str = "OriginalSessionId";
    pub const DEFERRAL_SEQUENCE: &str = "DeferralSequence";
    pub const RETRY_COUNT: &str = "RetryCount";
    pub const PARENT_MESSAGE_ID: &str = "ParentMessageId";
    pub const ORIGINATING_MESSAGE_ID: &str = "OriginatingMessageId";
    /// The operator's action that a control message stands for.
    pub const ACTION_ID: &str = "SpragActionId";
    /// Where the message of a parked copy first came, for ids of what has none.
    pub const PLACE: &str = "SpragPlace";
    /// How many handlers a message has come through, to stop loops.
    pub const HOP_COUNT: &str = "SpragHops";
    /// HMAC over what makes a message a stand-in; without it those properties do not count (P31).
    pub const SIGNATURE: &str = "SpragSignature";
    pub const TRACEPARENT: &str = "traceparent";
    pub const TRACESTATE: &str = "tracestate";
    pub const DEAD_LETTER_REASON: &str = "DeadLetterReason";
    pub const DEAD_LETTER_DESCRIPTION: &str = "DeadLetterErrorDescription";

    /// Refused from guests and from `send`: only the host may write them (P31).
    pub const RESERVED: [&str; 11] = [
        INBOX_MESSAGE_ID,
        BLOCKED_BY_MESSAGE_ID,
        ORIGINAL_SESSION_ID,
        DEFERRAL_SEQUENCE,
        RETRY_COUNT,
        ACTION_ID,
        PLACE,
        HOP_COUNT,
        SIGNATURE,
        DEAD_LETTER_REASON,
        DEAD_LETTER_DESCRIPTION,
    ];
}

/// A value of an application property or of an AMQP value body, with its AMQP type.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Byte(i8),
    Ubyte(u8),
    Short(i16),
    Ushort(u16),
    Int(i32),
    Uint(u32),
    Long(i64),
    Ulong(u64),
    Float(f32),
    Double(f64),
    Char(char),
    Timestamp(Timestamp),
    Uuid([u8; 16]),
    Binary(Bytes),
    String(Arc<str>),
    Symbol(Arc<str>),
    List(Vec<Value>),
    Map(Vec<(Value, Value)>),
    /// Items of one type.
    Array(Vec<Value>),
    /// A decimal of 4, 8 or 16 bytes, as it came: nothing here calculates with it.
    Decimal(Bytes),
    /// A value behind its descriptor.
    Described(Box<(Value, Value)>),
}

impl Value {
    pub fn string(text: impl Into<Arc<str>>) -> Self {
        Self::String(text.into())
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) | Self::Symbol(text) => Some(text),
            _ => None,
        }
    }

    /// Any of the integer types, or a text that holds a decimal number.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Byte(n) => Some((*n).into()),
            Self::Ubyte(n) => Some((*n).into()),
            Self::Short(n) => Some((*n).into()),
            Self::Ushort(n) => Some((*n).into()),
            Self::Int(n) => Some((*n).into()),
            Self::Uint(n) => Some((*n).into()),
            Self::Long(n) => Some(*n),
            Self::Ulong(n) => i64::try_from(*n).ok(),
            Self::String(text) => text.parse().ok(),
            _ => None,
        }
    }
}

/// An AMQP body as it came. A body with no bytes is not a message without a body.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Body {
    /// No body section at all.
    #[default]
    None,
    /// One data section, the usual case.
    Data(Bytes),
    /// Several data sections.
    Sections(Vec<Bytes>),
    Value(Value),
    /// Sequence sections, each a list.
    Lists(Vec<Vec<Value>>),
}

impl Body {
    /// Size as counted against limits: the bytes of data, or an estimate for a value.
    pub fn len(&self) -> usize {
        fn value_len(value: &Value) -> usize {
            match value {
                Value::Binary(bytes) | Value::Decimal(bytes) => bytes.len(),
                Value::String(text) | Value::Symbol(text) => text.len(),
                Value::List(items) | Value::Array(items) => items.iter().map(value_len).sum(),
                Value::Described(described) => value_len(&described.0) + value_len(&described.1),
                Value::Map(entries) => entries.iter().map(|(key, value)| value_len(key) + value_len(value)).sum(),
                _ => 8,
            }
        }
        match self {
            Self::None => 0,
            Self::Data(bytes) => bytes.len(),
            Self::Sections(parts) => parts.iter().map(Bytes::len).sum(),
            Self::Value(value) => value_len(value),
            Self::Lists(lists) => lists.iter().flatten().map(value_len).sum(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

pub type Properties = BTreeMap<Arc<str>, Value>;

/// What a sender hands to an entity.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Message {
    /// None when the sender gave none.
    pub message_id: Option<MessageId>,
    pub session_id: Option<SessionId>,
    pub subject: Option<Arc<str>>,
    pub content_type: Option<Arc<str>>,
    pub correlation_id: Option<Arc<str>>,
    pub to: Option<Arc<str>>,
    pub reply_to: Option<Arc<str>>,
    pub reply_to_session_id: Option<Arc<str>>,
    pub partition_key: Option<Arc<str>>,
    pub time_to_live: Option<Duration>,
    /// Not visible to receivers before this time.
    pub scheduled_for: Option<Timestamp>,
    pub properties: Properties,
    pub body: Body,
    /// What few messages carry. None, not an empty one, for a message that carries none of it.
    pub rare: Option<Box<Rare>>,
}

/// What an AMQP message can carry beside the usual, kept for whoever receives it. Behind a pointer, so that the usual message does not pay
/// for it. The host itself reads none of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rare {
    pub user_id: Option<Bytes>,
    pub content_encoding: Option<Arc<str>>,
    pub creation_time: Option<Timestamp>,
    pub absolute_expiry_time: Option<Timestamp>,
    pub group_sequence: Option<u32>,
    pub via_partition_key: Option<Arc<str>>,
    /// Of the header, where the sender wrote them.
    pub durable: Option<bool>,
    pub priority: Option<u8>,
    /// Of which type the message id and the correlation id are on the wire; here they are texts.
    pub message_id_kind: IdKind,
    pub correlation_id_kind: IdKind,
    /// The sender's own message annotations.
    pub annotations: Vec<(Value, Value)>,
    pub footer: Vec<(Value, Value)>,
    /// For a dead letter that was forwarded: the entity on which it died.
    pub dead_letter_source: Option<EntityName>,
}

/// The AMQP type of an id. The engine compares and stores texts; whoever writes the id onto the wire again gives it its type back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum IdKind {
    #[default]
    String,
    /// Its text is the number.
    Ulong,
    /// Its text has hyphens and small letters.
    Uuid,
    /// Its text is the bytes in small hexadecimal digits.
    Binary,
}

impl IdKind {
    /// The text of an id and its type. None: no id has this type.
    pub fn text_of(value: &Value) -> Option<(String, Self)> {
        Some(match value {
            Value::String(text) | Value::Symbol(text) => (text.to_string(), Self::String),
            Value::Ulong(n) => (n.to_string(), Self::Ulong),
            Value::Uuid(bytes) => (uuid_text(bytes), Self::Uuid),
            Value::Binary(bytes) => (hex(bytes), Self::Binary),
            _ => return None,
        })
    }

    /// The id as it was. A text that does not fit the type (somebody has changed it since) stays a text.
    pub fn value_of(self, text: &str) -> Value {
        let typed = match self {
            Self::String => None,
            Self::Ulong => text.parse().ok().map(Value::Ulong),
            Self::Uuid => uuid_of(text).map(Value::Uuid),
            Self::Binary => unhex(text).map(|bytes| Value::Binary(bytes.into())),
        };
        typed.unwrap_or_else(|| Value::string(text))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok().filter(|p| p.len() == 2)?, 16).ok()).collect()
}

/// A UUID with hyphens and small letters.
pub fn uuid_text(bytes: &[u8; 16]) -> String {
    let all = hex(bytes);
    format!("{}-{}-{}-{}-{}", &all[..8], &all[8..12], &all[12..16], &all[16..20], &all[20..])
}

/// The UUID that such a text names.
pub fn uuid_of(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    unhex(&digits)?.try_into().ok()
}

/// What a message asks an endpoint for. The names travel as property `MessageType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageType {
    /// A business event: `EventRequest`, or no such property.
    Event,
    /// `RetryRequest`: an automatic retry of the event that blocks its session.
    Retry,
    /// `ResubmissionRequest`: an operator asks to run the event again.
    Resubmission,
    /// `SkipRequest`: an operator gives up on an event.
    Skip,
    /// `HandoffCompletedRequest`.
    HandoffCompleted,
    /// `HandoffFailedRequest`.
    HandoffFailed,
    /// `HandoffExpired`: a handoff's deadline has come (P14).
    HandoffExpired,
    /// `SkipSessionRequest`: an operator gives up on a whole session.
    SkipSession,
    /// `ProcessDeferredRequest`: drain what is parked in this session (P20).
    DrainTrigger,
}

impl MessageType {
    pub const ALL: [Self; 9] = [
        Self::Event,
        Self::Retry,
        Self::Resubmission,
        Self::Skip,
        Self::HandoffCompleted,
        Self::HandoffFailed,
        Self::HandoffExpired,
        Self::SkipSession,
        Self::DrainTrigger,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Event => "EventRequest",
            Self::Retry => "RetryRequest",
            Self::Resubmission => "ResubmissionRequest",
            Self::Skip => "SkipRequest",
            Self::HandoffCompleted => "HandoffCompletedRequest",
            Self::HandoffFailed => "HandoffFailedRequest",
            Self::HandoffExpired => "HandoffExpired",
            Self::SkipSession => "SkipSessionRequest",
            Self::DrainTrigger => "ProcessDeferredRequest",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl Message {
    pub fn property(&self, name: &str) -> Option<&Value> {
        self.properties.get(name)
    }

    pub fn text_property(&self, name: &str) -> Option<&str> {
        self.property(name).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    /// The rare parts, to be written to.
    pub fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    pub fn set_property(&mut self, name: &str, value: Value) {
        self.properties.insert(name.into(), value);
    }

    /// The property `EventTypeId`, else the subject, else a CloudEvents type. Empty when there is none of them.
    pub fn event_type(&self) -> EventType {
        let text = self
            .text_property(property::EVENT_TYPE_ID)
            .or(self.subject.as_deref().filter(|text| !text.is_empty()))
            .or_else(|| {
                ["cloudEvents:type", "cloudEvents_type", "ce-type"]
                    .into_iter()
                    .find_map(|name| self.text_property(name))
            })
            .unwrap_or_default();
        EventType::from(text)
    }

    /// The property `EventId`, else the message id, else `<entity>#<sequence>` as given (P29).
    pub fn event_id(&self, otherwise: impl FnOnce() -> EventId) -> EventId {
        self.text_property(property::EVENT_ID)
            .map(EventId::from)
            .or_else(|| {
                self.message_id
                    .as_ref()
                    .filter(|id| !id.as_str().trim().is_empty())
                    .map(|id| EventId::from(id.as_str()))
            })
            .unwrap_or_else(otherwise)
    }

    /// What the message asks for. An unknown name is none of ours and counts as an event.
    pub fn message_type(&self) -> MessageType {
        self.text_property(property::MESSAGE_TYPE).and_then(MessageType::from_name).unwrap_or(MessageType::Event)
    }
}

/// Where in an endpoint's source a delivery came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The queue or subscription itself.
    Main,
    /// What is parked behind a block.
    Parked,
}

/// The right to settle one delivery. Meaningless once its lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockToken(pub u64);

/// One hand-over of a message, locked until it is settled.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub sequence: SequenceNumber,
    pub origin: Origin,
    pub lock: LockToken,
    /// How many times the entity has handed the message over, this time included.
    pub delivery_count: u32,
    /// Past this count the entity dead-letters the message by itself.
    pub max_delivery_count: u32,
    pub enqueued_at: Timestamp,
    /// The parking number, where the transport itself knows it: parked is a place there. None where it stands in the message, whose word needs the
    /// hosts' seal (P31).
    pub parked_as: Option<u32>,
    /// Set by the embedded broker on a message whose sender gave no id: the id it carries does not count (P29).
    pub id_assigned: bool,
    pub message: Arc<Message>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids of every type come back as they were (`message-id` of AMQP has four types).
    #[test]
    fn ids_keep_their_type() {
        let uuid = Value::Uuid(std::array::from_fn(|n| n as u8));
        for (value, text) in [
            (Value::string("m-1"), "m-1"),
            (Value::Ulong(u64::MAX), "18446744073709551615"),
            (uuid, "00010203-0405-0607-0809-0a0b0c0d0e0f"),
            (Value::Binary(Bytes::from_static(&[0, 255])), "00ff"),
        ] {
            let (found, kind) = IdKind::text_of(&value).expect("an id");
            assert_eq!(found, text);
            assert_eq!(kind.value_of(&found), value);
        }
        assert_eq!(IdKind::Uuid.value_of("no uuid"), Value::string("no uuid"));
        assert_eq!(IdKind::text_of(&Value::Null), None);
    }
}
