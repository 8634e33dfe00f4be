//! A message of the engine, as a receiver gets it.

use std::sync::Arc;

use sprag_amqp::{
    message::{self as wire, Header, MessageId, Properties},
    value::{Map, Symbol, Value as Wire},
};
use sprag_broker::client::{ClientMessage, MessageState};
use sprag_core::message::{Body, IdKind, Message, Rare, Value};

use super::{
    annotations,
    values::{pairs_to_wire, properties_to_wire, to_wire},
};

/// How a receiver comes to have a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handed {
    /// With the right to settle it, under this name.
    Locked([u8; 16]),
    /// Gone from the entity.
    Deleted,
    /// Only looked at.
    Shown,
}

/// Writes a message.
pub(crate) fn write(out: &mut Vec<u8>, delivery: &ClientMessage, handed: Handed) {
    let message = &*delivery.message;
    let none = Rare::default();
    let rare = message.rare.as_deref().unwrap_or(&none);
    let header = Header {
        durable: rare.durable.unwrap_or_default(),
        priority: rare.priority.unwrap_or(Header::default().priority),
        // What the entity makes of it counts, and is what the clients show.
        ttl: match delivery.expires_at {
            Some(at) => Some(u32::try_from(at.since(delivery.enqueued_at).as_millis()).unwrap_or(u32::MAX)),
            None => message.time_to_live.map(|ttl| u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX)),
        },
        first_acquirer: false,
        // Earlier deliveries that have failed, without this one.
        delivery_count: match handed {
            Handed::Shown => delivery.delivery_count,
            _ => delivery.delivery_count.saturating_sub(1),
        },
    };
    let mut delivery_annotations = Map::new();
    if let Handed::Locked(lock) = handed {
        delivery_annotations.set(annotations::LOCK_TOKEN, Wire::Uuid(lock));
    }
    let mut bare = Vec::with_capacity(message.body.len() + 256);
    properties(message, rare).write(&mut bare);
    wire::write_application_properties(&mut bare, &properties_to_wire(&message.properties));
    body(&mut bare, &message.body);
    wire::write_footer(&mut bare, &pairs_to_wire(&rare.footer));
    wire::write(out, Some(&header), &delivery_annotations, &message_annotations(delivery, rare, handed), &bare);
}

fn message_annotations(delivery: &ClientMessage, rare: &Rare, handed: Handed) -> Map {
    let message = &*delivery.message;
    let mut map = pairs_to_wire(&rare.annotations);
    map.set(annotations::SEQUENCE_NUMBER, Wire::Long(delivery.sequence.0));
    map.set(annotations::ENQUEUE_SEQUENCE_NUMBER, Wire::Long(delivery.enqueue_sequence.0));
    map.set(annotations::ENQUEUED_TIME, Wire::Timestamp(delivery.enqueued_at.0));
    map.set(
        annotations::MESSAGE_STATE,
        Wire::Int(match delivery.state {
            MessageState::Active => 0,
            MessageState::Deferred => 1,
            MessageState::Scheduled => 2,
        }),
    );
    if let (Some(lock), Handed::Locked(_)) = (delivery.lock, handed) {
        map.set(annotations::LOCKED_UNTIL, Wire::Timestamp(lock.until.0));
    }
    if delivery.id_assigned {
        map.set(annotations::ASSIGNED_ID, Wire::Bool(true));
    }
    if let Some(at) = message.scheduled_for {
        map.set(annotations::SCHEDULED_ENQUEUE_TIME, Wire::Timestamp(at.0));
    }
    let mut text = |name: Symbol, text: Option<&str>| {
        if let Some(text) = text {
            map.set(name, Wire::String(text.to_owned()));
        }
    };
    text(annotations::PARTITION_KEY, message.partition_key.as_deref());
    text(annotations::VIA_PARTITION_KEY, rare.via_partition_key.as_deref());
    text(annotations::DEAD_LETTER_SOURCE, rare.dead_letter_source.as_ref().map(|name| name.as_str()));
    map
}

fn properties(message: &Message, rare: &Rare) -> Properties {
    let text = |text: &Option<Arc<str>>| text.as_ref().map(|text| text.to_string());
    let symbol = |text: &Option<Arc<str>>| text.as_ref().map(|text| Symbol::from(&**text));
    Properties {
        message_id: message.message_id.as_ref().map(|id| message_id(rare.message_id_kind, id.as_str())),
        user_id: rare.user_id.clone(),
        to: text(&message.to),
        subject: text(&message.subject),
        reply_to: text(&message.reply_to),
        correlation_id: message.correlation_id.as_ref().map(|id| message_id(rare.correlation_id_kind, id)),
        content_type: symbol(&message.content_type),
        content_encoding: symbol(&rare.content_encoding),
        absolute_expiry_time: rare.absolute_expiry_time.map(|at| at.0),
        creation_time: rare.creation_time.map(|at| at.0),
        group_id: message.session_id.as_ref().map(|id| id.as_str().to_owned()),
        group_sequence: rare.group_sequence,
        reply_to_group_id: text(&message.reply_to_session_id),
    }
}

fn message_id(kind: IdKind, text: &str) -> MessageId {
    match kind.value_of(text) {
        Value::Ulong(number) => MessageId::Ulong(number),
        Value::Uuid(bytes) => MessageId::Uuid(bytes),
        Value::Binary(bytes) => MessageId::Binary(bytes),
        _ => MessageId::String(text.to_owned()),
    }
}

fn body(out: &mut Vec<u8>, body: &Body) {
    match body {
        Body::None => {}
        Body::Data(bytes) => wire::write_data(out, bytes),
        Body::Sections(parts) => parts.iter().for_each(|part| wire::write_data(out, part)),
        Body::Value(value) => wire::write_value(out, &to_wire(value)),
        Body::Lists(lists) => {
            for list in lists {
                wire::write_sequence(out, &Wire::List(list.iter().map(to_wire).collect()));
            }
        }
    }
}
