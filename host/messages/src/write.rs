//! A message as it goes onto the wire.

use std::sync::Arc;

use sprag_amqp::{
    message::{self as wire, MessageId, Properties},
    value::{Map, Symbol, Value as Wire},
};
use sprag_core::message::{Body, IdKind, Message, Rare, Value};

use crate::{
    annotations,
    values::{pairs_to_wire, properties_to_wire, to_wire},
};

/// Writes what is the sender's and stays as it is: properties, application properties, body and footer.
pub fn write_bare(out: &mut Vec<u8>, message: &Message) {
    let none = Rare::default();
    let rare = message.rare.as_deref().unwrap_or(&none);
    properties(message, rare).write(out);
    wire::write_application_properties(out, &properties_to_wire(&message.properties));
    body(out, &message.body);
    wire::write_footer(out, &pairs_to_wire(&rare.footer));
}

/// The annotations that a sender writes. A broker adds its own.
pub fn sent_annotations(message: &Message) -> Map {
    let none = Rare::default();
    let rare = message.rare.as_deref().unwrap_or(&none);
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
