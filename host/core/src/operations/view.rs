//! What operators see. Each type is a JSON shape that stays (spec 9): unknown is null and never absent, times are RFC 3339.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Part, time::Time};
use crate::{
    action::{self, ActionKind},
    effect::HistoryLine,
    ids::{ActionId, EndpointName, EntityName, EventId, EventType, HandlerName, MessageId, SequenceNumber, SessionId},
    message::{Body, Message, Value},
    outcome::{Failure, Outcome},
};

/// A part of a listing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listing<T> {
    pub items: Vec<T>,
    /// Give it back as `after` for what follows. Null: that was all.
    pub next: Option<String>,
}

impl<T> Listing<T> {
    pub fn whole(items: Vec<T>) -> Self {
        Self { items, next: None }
    }
}

/// One event at one endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub event_id: EventId,
    pub message_id: Option<MessageId>,
    pub endpoint: EndpointName,
    pub session: Option<SessionId>,
    pub event_type: EventType,
    pub outcome: Outcome,
    pub reason: Option<String>,
    pub error: Option<Failure>,
    pub attempts: u32,
    pub handler: Option<HandlerName>,
    pub digest: Option<String>,
    pub enqueued_at: Time,
    pub updated_at: Time,
}

/// An event with everything that is known about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventDetail {
    #[serde(flatten)]
    pub event: Event,
    /// The id under which the transport first delivered it.
    pub source_id: Option<MessageId>,
    pub duplicates: u32,
    /// The key of its group of failures, when it failed.
    pub group: Option<String>,
    /// The action on it that is not applied yet.
    pub open_action: Option<ActionId>,
    /// Oldest first.
    pub history: Vec<History>,
    /// Null when the message is not kept any more.
    pub message: Option<MessageView>,
}

/// One line of an event's history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct History {
    pub kind: String,
    pub at: Time,
    pub message_id: Option<MessageId>,
    pub outcome: Option<Outcome>,
    pub attempt: u32,
    pub started_at: Option<Time>,
    pub took_ms: Option<u64>,
    pub handler: Option<HandlerName>,
    pub digest: Option<String>,
    pub reason: Option<String>,
    pub error: Option<Failure>,
    pub by: Option<String>,
}

impl From<HistoryLine> for History {
    fn from(line: HistoryLine) -> Self {
        Self {
            kind: line.kind.name().to_owned(),
            at: line.at.into(),
            message_id: line.message_id,
            outcome: line.outcome,
            attempt: line.attempt,
            started_at: line.started_at.map(Time),
            took_ms: line.took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
            handler: line.handler,
            digest: line.digest.map(|digest| digest.to_string()),
            reason: line.reason,
            error: line.error,
            by: line.by,
        }
    }
}

/// A message as an operator reads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MessageView {
    pub message_id: Option<MessageId>,
    pub session: Option<SessionId>,
    pub subject: Option<String>,
    pub content_type: Option<String>,
    pub correlation_id: Option<String>,
    pub reply_to: Option<String>,
    pub headers: BTreeMap<String, serde_json::Value>,
    /// The body as text; null when it has none or is not UTF-8.
    pub body: Option<String>,
    pub body_base64: Option<String>,
    pub body_bytes: u64,
}

impl From<&Message> for MessageView {
    fn from(message: &Message) -> Self {
        let text = |text: &Option<std::sync::Arc<str>>| text.as_deref().map(str::to_owned);
        let (body, body_base64) = match &message.body {
            Body::None => (None, None),
            Body::Data(bytes) => body_texts(bytes),
            Body::Sections(parts) => body_texts(&parts.concat()),
            Body::Value(Value::Binary(bytes)) => body_texts(bytes),
            Body::Value(value) => match value.as_str() {
                Some(text) => (Some(text.to_owned()), None),
                None => (Some(value_json(value).to_string()), None),
            },
            Body::Lists(lists) => {
                let lists = lists.iter().map(|list| list.iter().map(value_json).collect()).collect();
                (Some(serde_json::Value::Array(lists).to_string()), None)
            }
        };
        Self {
            message_id: message.message_id.clone(),
            session: message.session_id.clone(),
            subject: text(&message.subject),
            content_type: text(&message.content_type),
            correlation_id: text(&message.correlation_id),
            reply_to: text(&message.reply_to),
            headers: message.properties.iter().map(|(name, value)| (name.to_string(), value_json(value))).collect(),
            body,
            body_base64,
            body_bytes: message.body.len() as u64,
        }
    }
}

fn body_texts(bytes: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(base64(bytes))),
    }
}

/// A property's value in JSON. Bytes are base64; what JSON has no type for is its text.
pub fn value_json(value: &Value) -> serde_json::Value {
    use serde_json::Value as Json;
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => (*value).into(),
        Value::Byte(n) => (*n).into(),
        Value::Ubyte(n) => (*n).into(),
        Value::Short(n) => (*n).into(),
        Value::Ushort(n) => (*n).into(),
        Value::Int(n) => (*n).into(),
        Value::Uint(n) => (*n).into(),
        Value::Long(n) => (*n).into(),
        Value::Ulong(n) => (*n).into(),
        Value::Float(n) => f64::from(*n).into(),
        Value::Double(n) => (*n).into(),
        Value::Char(c) => c.to_string().into(),
        Value::Timestamp(at) => at.to_string().into(),
        Value::Uuid(bytes) => uuid(bytes).into(),
        Value::Binary(bytes) | Value::Decimal(bytes) => base64(bytes).into(),
        Value::Described(described) => value_json(&described.1),
        Value::String(text) | Value::Symbol(text) => text.as_ref().into(),
        Value::List(items) | Value::Array(items) => Json::Array(items.iter().map(value_json).collect()),
        Value::Map(entries) => Json::Object(
            entries
                .iter()
                .map(|(key, value)| {
                    (key.as_str().map_or_else(|| value_json(key).to_string(), str::to_owned), value_json(value))
                })
                .collect(),
        ),
    }
}

fn uuid(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// RFC 4648, with padding.
pub fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = u32::from(chunk[0]) << 16
            | u32::from(*chunk.get(1).unwrap_or(&0)) << 8
            | u32::from(*chunk.get(2).unwrap_or(&0));
        for place in 0..4 {
            if place <= chunk.len() {
                text.push(char::from(BASE64[(word >> (18 - 6 * place)) as usize & 63]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// None when it is not base64.
pub fn base64_decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=').as_bytes();
    if text.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for chunk in text.chunks(4) {
        let mut word = 0_u32;
        for place in 0..4 {
            let digit = match chunk.get(place) {
                Some(byte) => BASE64.iter().position(|candidate| candidate == byte)?,
                None => 0,
            };
            word = word << 6 | u32::try_from(digit).expect("below 64");
        }
        bytes.extend_from_slice(&word.to_be_bytes()[1..chunk.len()]);
    }
    Some(bytes)
}

/// Failures that failed in the same way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    pub key: String,
    pub endpoint: EndpointName,
    pub event_type: EventType,
    pub kind: String,
    pub first_line: String,
    pub count: u64,
    pub oldest_at: Time,
    pub newest_at: Time,
}

/// A session that has messages, a block or something parked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionLine {
    pub endpoint: EndpointName,
    pub session: SessionId,
    pub blocked_by: Option<BlockedBy>,
    pub parked: u64,
    pub oldest_parked_at: Option<Time>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlockedBy {
    pub event_id: EventId,
    /// `failure` or `handoff`.
    pub kind: String,
    pub since: Time,
}

/// A message that waits behind its session's block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParkedMessage {
    pub endpoint: EndpointName,
    pub session: Option<SessionId>,
    /// Its place in the line: the lowest runs first.
    pub position: Option<u32>,
    pub event_id: EventId,
    pub message_id: Option<MessageId>,
    pub event_type: EventType,
    pub sequence_number: SequenceNumber,
    pub enqueued_at: Time,
    pub parked_at: Option<Time>,
}

/// A message that becomes visible later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScheduledMessage {
    pub entity: EntityName,
    /// The endpoint whose source it is; null for an entity that no endpoint reads.
    pub endpoint: Option<EndpointName>,
    pub sequence_number: SequenceNumber,
    /// `event`, `retry`, `handoff-deadline`, or another kind of the host's own.
    pub kind: String,
    pub event_id: EventId,
    pub message_id: Option<MessageId>,
    pub event_type: EventType,
    pub session: Option<SessionId>,
    /// The attempt that failed, for a retry.
    pub attempt: Option<u32>,
    pub due_at: Option<Time>,
    pub enqueued_at: Time,
}

/// A message that was given up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    pub entity: EntityName,
    pub endpoint: Option<EndpointName>,
    pub sequence_number: SequenceNumber,
    pub event_id: EventId,
    pub message_id: Option<MessageId>,
    pub event_type: EventType,
    pub session: Option<SessionId>,
    pub reason: Option<String>,
    pub description: Option<String>,
    pub delivery_count: u32,
    pub enqueued_at: Time,
    pub dead_at: Option<Time>,
}

/// A message that was looked at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeekedMessage {
    pub entity: EntityName,
    pub part: Part,
    pub sequence_number: SequenceNumber,
    pub enqueued_at: Time,
    pub due_at: Option<Time>,
    pub delivery_count: u32,
    #[serde(flatten)]
    pub message: MessageView,
}

/// A record of the inbox, or a lease on a message in hand.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InboxLine {
    pub endpoint: EndpointName,
    pub message_id: MessageId,
    /// When the record was written, or the lease taken.
    pub recorded_at: Time,
    /// `processed`, or `in-progress` for a lease.
    pub state: String,
    /// When the lease lapses unless it is renewed; null for a record, and for what was handed off, which waits for its settlement.
    pub expires_at: Option<Time>,
    /// Who took the lease: host, process and a number of its own.
    pub owner: Option<String>,
}

/// A component and who uses it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Handler {
    pub name: HandlerName,
    pub file: Option<String>,
    /// The version that serves; null when none does.
    pub digest: Option<String>,
    pub event_types: Vec<String>,
    pub endpoints: Vec<EndpointName>,
    /// `serving`, `loading`, `refused` or `missing`.
    pub state: String,
    /// Why the newest file was refused; an older version may serve on.
    pub error: Option<String>,
    pub loaded_at: Option<Time>,
    pub isolation: Option<String>,
    pub grants: Vec<String>,
}

/// A subscriber and what waits for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Endpoint {
    pub endpoint: EndpointName,
    pub source: EntityName,
    /// `running`, `paused` or `stopped`.
    pub state: String,
    /// Why it is not running.
    pub reasons: Vec<String>,
    pub requires_session: bool,
    pub concurrency: u32,
    pub handlers: Vec<HandlerName>,
    /// The mode; null without an inbox.
    pub inbox: Option<String>,
    pub active: u64,
    pub scheduled: u64,
    pub parked: u64,
    pub dead_letters: u64,
}

/// What an operator did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditLine {
    pub id: i64,
    pub at: Time,
    pub by: String,
    pub verb: String,
    pub endpoint: Option<EndpointName>,
    pub target: String,
    pub reason: Option<String>,
    pub count: u64,
    /// How its actions stand: `{"open": n, "applied": n, "conflict": n}`.
    pub actions: ActionCounts,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionCounts {
    pub open: u64,
    pub applied: u64,
    pub conflict: u64,
}

/// A message of a handler that has not left yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutboxLine {
    pub id: i64,
    pub endpoint: EndpointName,
    pub entity: EntityName,
    pub message_id: Option<MessageId>,
    pub event_id: Option<EventId>,
    pub session: Option<SessionId>,
    pub created_at: Time,
    pub tries: u32,
    pub error: Option<String>,
    /// It is not tried again until an operator says so.
    pub poison: bool,
}

/// What became of a message that was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    pub message_id: Option<MessageId>,
    pub sequence_number: Option<SequenceNumber>,
}

/// An operator's action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Action {
    pub id: ActionId,
    pub kind: ActionKind,
    pub endpoint: EndpointName,
    pub event_id: Option<EventId>,
    pub session: Option<SessionId>,
    pub reason: Option<String>,
    pub by: String,
    pub at: Time,
    /// `open`, `applied` or `conflict`.
    pub state: String,
    pub text: Option<String>,
    pub ended_at: Option<Time>,
}

impl Action {
    pub fn is_open(&self) -> bool {
        self.state == "open"
    }
}

impl From<action::Action> for Action {
    fn from(action: action::Action) -> Self {
        use action::ActionState::{Applied, Conflict, Open};
        let (state, text, ended_at) = match action.state {
            Open => ("open", None, None),
            Applied { text, at } => ("applied", Some(text), Some(at.into())),
            Conflict { text, at } => ("conflict", Some(text), Some(at.into())),
        };
        Self {
            id: action.id,
            kind: action.kind,
            endpoint: action.endpoint,
            event_id: action.event_id,
            session: action.session,
            reason: action.reason,
            by: action.by,
            at: action.at.into(),
            state: state.to_owned(),
            text,
            ended_at,
        }
    }
}

/// What an action on a group did, or would do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupResult {
    pub group: String,
    pub kind: ActionKind,
    pub dry_run: bool,
    /// Failures after this time were left alone.
    pub cut_off: Time,
    pub count: u64,
    pub accepted: u64,
    pub refused: Vec<Refused>,
    /// The events, when it was a dry run.
    pub events: Vec<EventId>,
    pub actions: Vec<ActionId>,
}

/// An event of a group that was left alone, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub event_id: EventId,
    pub text: String,
}

/// What skipping a session takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionSkip {
    pub endpoint: EndpointName,
    pub session: SessionId,
    pub dry_run: bool,
    pub cut_off: Time,
    pub blocked_by: Option<EventId>,
    pub parked: u64,
    pub queued: u64,
    /// Null for a dry run.
    pub action: Option<ActionId>,
}

/// Whether the host can do its work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    pub ready: bool,
    pub checks: Vec<HealthCheck>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthCheck {
    /// `transport`, `store`, `handlers` or `endpoint <name>`.
    pub name: String,
    pub ok: bool,
    pub reason: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of RFC 4648, section 10.
    #[test]
    fn base64_vectors() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
            assert_eq!(base64_decode(text).as_deref(), Some(bytes.as_bytes()));
        }
        assert_eq!(base64_decode("Zm9v!"), None);
        assert_eq!(base64_decode("Z"), None);
    }

    #[test]
    fn a_body_that_is_not_text_is_base64() {
        let message = Message { body: Body::Data(vec![0xff, 0x00].into()), ..Message::default() };
        let view = MessageView::from(&message);
        assert_eq!((view.body, view.body_base64.as_deref(), view.body_bytes), (None, Some("/wA="), 2));
    }
}
