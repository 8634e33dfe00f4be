//! What a sender wrote, as a host keeps it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use sprag_amqp::{
    message::{BodyKind, MessageId, Properties, Sections},
    value::{Map, Symbol, Value as Wire},
};
use sprag_core::{
    message::{Body, IdKind, Message, Rare},
    time::Timestamp,
};

use crate::{
    Unreadable, annotations,
    values::{all_from_wire, from_wire, pairs_from_wire, properties_from_wire},
};

/// Reads one encoded message. The body shares memory with the payload.
pub fn read(payload: Bytes) -> Result<Message, Unreadable> {
    let sections = Sections::find(payload)?;
    let mut rare = Rare::default();
    let mut message = Message {
        properties: properties_from_wire(sections.application_properties()?)?,
        body: body(&sections)?,
        ..Message::default()
    };
    read_properties(sections.properties()?.unwrap_or_default(), &mut message, &mut rare);
    if let Some(header) = sections.header()? {
        message.time_to_live = header.ttl.map(|ttl| Duration::from_millis(ttl.into()));
        // What is not said and what is said to be as usual are one: clients write all fields or none.
        rare.durable = header.durable.then_some(true);
        rare.priority = (header.priority != DEFAULT_PRIORITY).then_some(header.priority);
    }
    // The header's field ends at 49 days; the SDKs write a longer life as two times.
    if let (Some(created), Some(expires)) = (rare.creation_time, rare.absolute_expiry_time)
        && message.time_to_live.is_none_or(|ttl| ttl >= Duration::from_millis(u32::MAX.into()))
        && expires > created
    {
        message.time_to_live = Some(expires.since(created));
    }
    read_annotations(sections.message_annotations()?, &mut message, &mut rare)?;
    rare.footer = pairs_from_wire(sections.footer()?)?;
    if rare != Rare::default() {
        message.rare = Some(Box::new(rare));
    }
    Ok(message)
}

const DEFAULT_PRIORITY: u8 = 4;

fn body(sections: &Sections) -> Result<Body, Unreadable> {
    Ok(match sections.body_kind() {
        None => Body::None,
        Some(BodyKind::Data) => {
            let mut parts = sections.data()?;
            match parts.len() {
                1 => Body::Data(parts.remove(0)),
                _ => Body::Sections(parts),
            }
        }
        Some(BodyKind::Value) => Body::Value(from_wire(sections.value()?.unwrap_or_default())?),
        Some(BodyKind::Sequence) => {
            let lists = sections.sequences()?.into_iter().map(|list| match list {
                Wire::List(items) => all_from_wire(items),
                _ => Err(Unreadable::WrongType("a body of sequences")),
            });
            Body::Lists(lists.collect::<Result<_, _>>()?)
        }
    })
}

fn read_properties(properties: Properties, message: &mut Message, rare: &mut Rare) {
    let text = |text: Option<String>| text.map(Arc::<str>::from);
    let symbol = |text: Option<Symbol>| text.map(|text| Arc::<str>::from(text.as_str()));
    let id = |id: Option<MessageId>| match id {
        Some(id) => from_wire(id.to_value()).ok().and_then(|value| IdKind::text_of(&value)),
        None => None,
    };
    if let Some((text, kind)) = id(properties.message_id) {
        message.message_id = Some(text.into());
        rare.message_id_kind = kind;
    }
    if let Some((text, kind)) = id(properties.correlation_id) {
        message.correlation_id = Some(text.into());
        rare.correlation_id_kind = kind;
    }
    message.session_id = properties.group_id.map(Into::into);
    message.subject = text(properties.subject);
    message.content_type = symbol(properties.content_type);
    message.to = text(properties.to);
    message.reply_to = text(properties.reply_to);
    message.reply_to_session_id = text(properties.reply_to_group_id);
    rare.user_id = properties.user_id;
    rare.content_encoding = symbol(properties.content_encoding);
    rare.absolute_expiry_time = properties.absolute_expiry_time.map(Timestamp);
    rare.creation_time = properties.creation_time.map(Timestamp);
    rare.group_sequence = properties.group_sequence;
}

fn read_annotations(mut map: Map, message: &mut Message, rare: &mut Rare) -> Result<(), Unreadable> {
    let text = |map: &mut Map, name: &Symbol| match map.remove(name.as_str()) {
        None | Some(Wire::Null) => None,
        Some(value) => value.as_str().map(Arc::<str>::from),
    };
    message.partition_key = text(&mut map, &annotations::PARTITION_KEY);
    rare.via_partition_key = text(&mut map, &annotations::VIA_PARTITION_KEY);
    match map.remove(annotations::SCHEDULED_ENQUEUE_TIME.as_str()) {
        None | Some(Wire::Null) => {}
        Some(at) => {
            let at = at.as_i64().ok_or(Unreadable::WrongType("x-opt-scheduled-enqueue-time"))?;
            message.scheduled_for = Some(Timestamp(at));
        }
    }
    map.0.retain(|(key, _)| !annotations::BROKERS.iter().any(|name| key.as_str() == Some(name.as_str())));
    rare.annotations = pairs_from_wire(map)?;
    Ok(())
}
