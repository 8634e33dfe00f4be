//! A message of the host, as it is sent.

use std::sync::Arc;

use sprag_amqp::{
    message::{self as wire, Header, MessageId, Properties},
    value::{Map, Symbol, Value as Wire},
};
use sprag_core::message::{Body, IdKind, Message, Rare, Value};

use super::{
    annotations,
    values::{pairs_to_wire, properties_to_wire, to_wire},
};

/// The encoded message.
pub(crate) fn encode(message: &Message) -> Vec<u8> {
    let none = Rare::default();
    let rare = message.rare.as_deref().unwrap_or(&none);
    let mut bare = Vec::with_capacity(message.body.len() + 256);
    properties(message, rare).write(&mut bare);
    wire::write_application_properties(&mut bare, &properties_to_wire(&message.properties));
    body(&mut bare, &message.body);
    wire::write_footer(&mut bare, &pairs_to_wire(&rare.footer));
    let mut out = Vec::with_capacity(bare.len() + 128);
    wire::write(&mut out, header(message, rare).as_ref(), &Map::new(), &message_annotations(message, rare), &bare);
    out
}

/// Whether a value can be an application property: AMQP has simple types there only, and receivers need not understand others.
pub(crate) fn is_simple(value: &Value) -> bool {
    !matches!(value, Value::List(_) | Value::Map(_) | Value::Array(_) | Value::Described(_))
}

/// Left out where there is nothing to say.
fn header(message: &Message, rare: &Rare) -> Option<Header> {
    let usual = Header::default();
    let header = Header {
        durable: rare.durable.unwrap_or(usual.durable),
        priority: rare.priority.unwrap_or(usual.priority),
        // A longer life than the field can say is said by the two times of the properties, as the SDKs do.
        ttl: message.time_to_live.map(|ttl| u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX)),
        ..usual.clone()
    };
    (header != usual).then_some(header)
}

fn message_annotations(message: &Message, rare: &Rare) -> Map {
    let mut map = pairs_to_wire(&rare.annotations);
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
