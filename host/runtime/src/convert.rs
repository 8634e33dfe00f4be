//! Values between the transport's types and the contract's.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use sprag_core::{
    message::{Body, Message, MessageType, Value, property},
    time::Timestamp,
};

use crate::{bindings::sprag::handler::types as wit, input::RunInput};

/// What the borrowed message points into where the value is not a text or bytes already.
pub(crate) struct Parts<'a> {
    texts: Vec<String>,
    body: Cow<'a, [u8]>,
    sections: Vec<u64>,
}

impl<'a> Parts<'a> {
    pub(crate) fn of(message: &'a Message) -> Self {
        let texts = shown(message)
            .filter_map(|(_, value)| match value {
                Value::Uuid(bytes) => Some(uuid(bytes)),
                Value::Char(char) => Some(char.to_string()),
                Value::List(_) | Value::Map(_) | Value::Array(_) | Value::Described(_) => Some(json(value).to_string()),
                _ => None,
            })
            .collect();
        let (body, sections) = match &message.body {
            Body::None => (Cow::Borrowed(&[][..]), Vec::new()),
            Body::Data(bytes) => (Cow::Borrowed(&bytes[..]), Vec::new()),
            Body::Sections(parts) => (Cow::Owned(parts.concat()), parts.iter().map(|part| part.len() as u64).collect()),
            Body::Value(value) => (Cow::Owned(json(value).to_string().into_bytes()), Vec::new()),
            Body::Lists(lists) => {
                let lists: serde_json::Value =
                    lists.iter().map(|list| list.iter().map(json).collect::<serde_json::Value>()).collect();
                (Cow::Owned(lists.to_string().into_bytes()), Vec::new())
            }
        };
        Self { texts, body, sections }
    }
}

/// What a guest may see of the properties: not the host's own, which change between a delivery and its stand-ins.
fn shown(message: &Message) -> impl Iterator<Item = (&Arc<str>, &Value)> {
    message.properties.iter().filter(|(name, _)| !is_host_name(name))
}

fn is_host_name(name: &str) -> bool {
    name == property::MESSAGE_TYPE || property::RESERVED.contains(&name)
}

pub(crate) fn properties<'a>(message: &'a Message, parts: &'a Parts<'_>) -> Vec<wit::PropertyParam<'a>> {
    let mut texts = parts.texts.iter();
    shown(message)
        .map(|(name, value)| wit::PropertyParam {
            name,
            value: match value {
                Value::Null => wit::PropertyValueParam::Null,
                Value::Bool(it) => wit::PropertyValueParam::Boolean(*it),
                Value::Byte(it) => wit::PropertyValueParam::Integer((*it).into()),
                Value::Short(it) => wit::PropertyValueParam::Integer((*it).into()),
                Value::Int(it) => wit::PropertyValueParam::Integer((*it).into()),
                Value::Long(it) => wit::PropertyValueParam::Integer(*it),
                Value::Ubyte(it) => wit::PropertyValueParam::Unsigned((*it).into()),
                Value::Ushort(it) => wit::PropertyValueParam::Unsigned((*it).into()),
                Value::Uint(it) => wit::PropertyValueParam::Unsigned((*it).into()),
                Value::Ulong(it) => wit::PropertyValueParam::Unsigned(*it),
                Value::Float(it) => wit::PropertyValueParam::Float((*it).into()),
                Value::Double(it) => wit::PropertyValueParam::Float(*it),
                Value::Timestamp(it) => wit::PropertyValueParam::Timestamp(it.0),
                Value::Binary(it) | Value::Decimal(it) => wit::PropertyValueParam::Bytes(it),
                Value::String(it) | Value::Symbol(it) => wit::PropertyValueParam::Text(it),
                Value::Uuid(_) => wit::PropertyValueParam::Uuid(texts.next().map_or("", String::as_str)),
                Value::Char(_) | Value::List(_) | Value::Map(_) | Value::Array(_) | Value::Described(_) => {
                    wit::PropertyValueParam::Text(texts.next().map_or("", String::as_str))
                }
            },
        })
        .collect()
}

pub(crate) fn to_guest<'a>(
    input: &'a RunInput,
    parts: &'a Parts<'_>,
    properties: &'a [wit::PropertyParam<'a>],
) -> wit::Message<'a> {
    let message = &*input.message;
    wit::Message {
        message_id: input.message_id.as_ref().map(|id| id.as_str()),
        event_id: input.event_id.as_str(),
        event_type: input.event_type.as_str(),
        session_id: input.session.as_ref().map(|id| id.as_str()),
        correlation_id: message.correlation_id.as_deref(),
        content_type: message.content_type.as_deref(),
        subject: message.subject.as_deref(),
        reply_to: message.reply_to.as_deref(),
        enqueued_at: u64::try_from(input.enqueued_at.0).unwrap_or(0),
        properties,
        body: &parts.body,
        body_kind: match &message.body {
            Body::None => wit::BodyKind::None,
            Body::Data(_) => wit::BodyKind::Data,
            Body::Sections(_) => wit::BodyKind::Sections(&parts.sections),
            Body::Value(_) | Body::Lists(_) => wit::BodyKind::Value,
        },
    }
}

/// Why a guest may not set this property (P31).
pub(crate) fn refuse_property(name: &str, value: &Value) -> Option<String> {
    if name.is_empty() || name.len() > 256 || name.chars().any(char::is_control) {
        return Some("a property's name has 1 to 256 bytes and no control characters".into());
    }
    if name == property::MESSAGE_TYPE {
        let event = value.as_str() == Some(MessageType::Event.name());
        return (!event).then(|| format!("property {name} may only be {} from a handler", MessageType::Event.name()));
    }
    property::RESERVED.contains(&name).then(|| format!("property {name} is the host's own"))
}

pub(crate) fn from_guest(value: wit::PropertyValueResult) -> Result<Value, String> {
    Ok(match value {
        wit::PropertyValueResult::Null => Value::Null,
        wit::PropertyValueResult::Boolean(it) => Value::Bool(it),
        wit::PropertyValueResult::Integer(it) => Value::Long(it),
        wit::PropertyValueResult::Unsigned(it) => Value::Ulong(it),
        wit::PropertyValueResult::Float(it) => Value::Double(it),
        wit::PropertyValueResult::Text(it) => Value::string(it),
        wit::PropertyValueResult::Bytes(it) => Value::Binary(Bytes::from(it)),
        wit::PropertyValueResult::Timestamp(it) => Value::Timestamp(Timestamp(it)),
        wit::PropertyValueResult::Uuid(it) => Value::Uuid(parse_uuid(&it).ok_or_else(|| format!("{it:?} is no uuid"))?),
    })
}

fn uuid(bytes: &[u8; 16]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        write!(text, "{byte:02x}").expect("a String takes everything");
    }
    text
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let bytes = text.as_bytes();
    if bytes.len() != 36 || [8, 13, 18, 23].iter().any(|at| bytes[*at] != b'-') {
        return None;
    }
    let digits: Vec<u8> = bytes.iter().filter(|byte| **byte != b'-').copied().collect();
    let mut uuid = [0; 16];
    if digits.len() != 32 {
        return None;
    }
    for (at, pair) in digits.chunks(2).enumerate() {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        uuid[at] = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
    }
    Some(uuid)
}

/// An AMQP value as JSON. What JSON has no word for becomes text: bytes in base64, times in RFC 3339.
fn json(value: &Value) -> serde_json::Value {
    use serde_json::Value as Json;
    match value {
        Value::Null => Json::Null,
        Value::Bool(it) => (*it).into(),
        Value::Byte(it) => (*it).into(),
        Value::Ubyte(it) => (*it).into(),
        Value::Short(it) => (*it).into(),
        Value::Ushort(it) => (*it).into(),
        Value::Int(it) => (*it).into(),
        Value::Uint(it) => (*it).into(),
        Value::Long(it) => (*it).into(),
        Value::Ulong(it) => (*it).into(),
        Value::Float(it) => (*it).into(),
        Value::Double(it) => (*it).into(),
        Value::Char(it) => it.to_string().into(),
        Value::Timestamp(it) => it.to_string().into(),
        Value::Uuid(it) => uuid(it).into(),
        Value::Binary(it) | Value::Decimal(it) => base64(it).into(),
        Value::Described(it) => json(&it.1),
        Value::String(it) | Value::Symbol(it) => (**it).into(),
        Value::List(items) | Value::Array(items) => items.iter().map(json).collect(),
        Value::Map(entries) => Json::Object(
            entries
                .iter()
                .map(|(key, value)| {
                    let key = match json(key) {
                        Json::String(text) => text,
                        other => other.to_string(),
                    };
                    (key, json(value))
                })
                .collect(),
        ),
    }
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = (u32::from(three[0]) << 16)
            | (u32::from(three.get(1).copied().unwrap_or(0)) << 8)
            | u32::from(three.get(2).copied().unwrap_or(0));
        for at in 0..4 {
            if at <= three.len() {
                text.push(char::from(ALPHABET[(bits >> (18 - 6 * at)) as usize & 63]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_vectors_of_rfc_4648() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn uuids_round_trip_and_nonsense_is_refused() {
        let text = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
        assert_eq!(uuid(&parse_uuid(text).unwrap()), text);
        for wrong in [
            "",
            "6ba7b8109dad11d180b400c04fd430c8",
            "6ba7b810-9dad-11d1-80b4-00c04fd430cx",
            "------------------------------------",
        ] {
            assert_eq!(parse_uuid(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn amqp_values_as_json() {
        let value = Value::Map(vec![
            (
                Value::string("list"),
                Value::List(vec![Value::Int(-1), Value::Ulong(u64::MAX), Value::Double(f64::NAN), Value::Null]),
            ),
            (Value::Int(7), Value::Binary(Bytes::from_static(b"foo"))),
            (Value::Symbol("at".into()), Value::Timestamp(Timestamp(0))),
        ]);
        assert_eq!(
            json(&value).to_string(),
            r#"{"7":"Zm9v","at":"1970-01-01T00:00:00.000Z","list":[-1,18446744073709551615,null,null]}"#
        );
    }

    /// P31.
    #[test]
    fn reserved_properties_are_refused() {
        for name in property::RESERVED {
            assert!(refuse_property(name, &Value::string("x")).is_some_and(|text| text.contains(name)), "{name}");
        }
        for kind in MessageType::ALL {
            let refused = refuse_property(property::MESSAGE_TYPE, &Value::string(kind.name())).is_some();
            assert_eq!(refused, kind != MessageType::Event, "{}", kind.name());
        }
        assert!(refuse_property(property::MESSAGE_TYPE, &Value::Int(1)).is_some());
        assert!(refuse_property("Color", &Value::string("red")).is_none());
        assert!(refuse_property("", &Value::Null).is_some());
        assert!(refuse_property("a\nb", &Value::Null).is_some());
    }
}
