//! A message, as a transport carries it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    ids::{EventId, EventType, MessageId, SequenceNumber, SessionId},
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
    /// How many handlers a message has come through, to stop loops.
    pub const HOP_COUNT: &str = "SpragHops";
    /// HMAC over what makes a message a stand-in; without it those properties do not count (P31).
    pub const SIGNATURE: &str = "SpragSignature";
    pub const TRACEPARENT: &str = "traceparent";
    pub const TRACESTATE: &str = "tracestate";
    pub const DEAD_LETTER_REASON: &str = "DeadLetterReason";
    pub const DEAD_LETTER_DESCRIPTION: &str = "DeadLetterErrorDescription";

    /// Refused from guests and from `send`: only the host may write them (P31).
    pub const RESERVED: [&str; 10] = [
        INBOX_MESSAGE_ID,
        BLOCKED_BY_MESSAGE_ID,
        ORIGINAL_SESSION_ID,
        DEFERRAL_SEQUENCE,
        RETRY_COUNT,
        ACTION_ID,
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
}

impl Body {
    /// Size as counted against limits: the bytes of data, or an estimate for a value.
    pub fn len(&self) -> usize {
        fn value_len(value: &Value) -> usize {
            match value {
                Value::Binary(bytes) => bytes.len(),
                Value::String(text) | Value::Symbol(text) => text.len(),
                Value::List(items) => items.iter().map(value_len).sum(),
                Value::Map(entries) => entries.iter().map(|(key, value)| value_len(key) + value_len(value)).sum(),
                _ => 8,
            }
        }
        match self {
            Self::None => 0,
            Self::Data(bytes) => bytes.len(),
            Self::Sections(parts) => parts.iter().map(Bytes::len).sum(),
            Self::Value(value) => value_len(value),
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
    /// The parking number, for a delivery from [`Origin::Parked`].
    pub parked_as: Option<u32>,
    /// Set by the embedded broker on a message whose sender gave no id: the id it carries does not count (P29).
    pub id_assigned: bool,
    pub message: Arc<Message>,
}
