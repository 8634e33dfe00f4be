//! The properties: thirteen fields that sender and receiver share.

use bytes::Bytes;

use crate::{
    decode::{Problem, Reader, Result},
    encode,
    performative::{descriptors, fields, fields::Fields, write},
    value::{Symbol, Value},
};

/// An id in the type that the sender chose. An answer's correlation-id has to have the type of the request's message-id: the clients use
/// ulongs, uuids and strings, and none of them finds the other's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MessageId {
    Ulong(u64),
    Uuid([u8; 16]),
    Binary(Bytes),
    String(String),
}

impl MessageId {
    fn read(fields: &mut Fields<'_, '_>, field: &'static str) -> Result<Option<Self>> {
        let Some(value) = fields.value()? else { return Ok(None) };
        Ok(Some(match value {
            Value::Uuid(bytes) => Self::Uuid(bytes),
            Value::Binary(bytes) => Self::Binary(bytes),
            Value::String(text) => Self::String(text),
            Value::Symbol(text) => Self::String(text.as_str().to_owned()),
            other => match other.as_u64() {
                Some(number) => Self::Ulong(number),
                None => return fields.fail(Problem::OutOfRange { field }),
            },
        }))
    }

    pub fn to_value(&self) -> Value {
        match self {
            Self::Ulong(number) => Value::Ulong(*number),
            Self::Uuid(bytes) => Value::Uuid(*bytes),
            Self::Binary(bytes) => Value::Binary(bytes.clone()),
            Self::String(text) => Value::String(text.clone()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Properties {
    pub message_id: Option<MessageId>,
    pub user_id: Option<Bytes>,
    pub to: Option<String>,
    pub subject: Option<String>,
    pub reply_to: Option<String>,
    pub correlation_id: Option<MessageId>,
    pub content_type: Option<Symbol>,
    pub content_encoding: Option<Symbol>,
    /// Milliseconds since 1970, UTC.
    pub absolute_expiry_time: Option<i64>,
    /// Milliseconds since 1970, UTC.
    pub creation_time: Option<i64>,
    pub group_id: Option<String>,
    pub group_sequence: Option<u32>,
    pub reply_to_group_id: Option<String>,
}

impl Properties {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        fields::list(reader, "properties", |fields| {
            Ok(Self {
                message_id: MessageId::read(fields, "message-id")?,
                user_id: fields.binary("user-id")?,
                to: fields.string("to")?,
                subject: fields.string("subject")?,
                reply_to: fields.string("reply-to")?,
                correlation_id: MessageId::read(fields, "correlation-id")?,
                content_type: fields.symbol("content-type")?,
                content_encoding: fields.symbol("content-encoding")?,
                absolute_expiry_time: fields.i64("absolute-expiry-time")?,
                creation_time: fields.i64("creation-time")?,
                group_id: fields.string("group-id")?,
                group_sequence: fields.u32("group-sequence")?,
                reply_to_group_id: fields.string("reply-to-group-id")?,
            })
        })
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        let id = |out: &mut Vec<u8>, id: Option<&MessageId>| {
            write::or_null(out, id, |out, id| match id {
                MessageId::String(text) => encode::string(out, text),
                MessageId::Binary(bytes) => encode::binary(out, bytes),
                other => encode::value(out, &other.to_value()),
            });
        };
        write::composite(out, descriptors::PROPERTIES, 13, |out| {
            id(out, self.message_id.as_ref());
            write::binary(out, self.user_id.as_deref());
            write::string(out, self.to.as_deref());
            write::string(out, self.subject.as_deref());
            write::string(out, self.reply_to.as_deref());
            id(out, self.correlation_id.as_ref());
            write::symbol(out, self.content_type.as_ref());
            write::symbol(out, self.content_encoding.as_ref());
            write::or_null(out, self.absolute_expiry_time, encode::timestamp);
            write::or_null(out, self.creation_time, encode::timestamp);
            write::string(out, self.group_id.as_deref());
            write::u32(out, self.group_sequence);
            write::string(out, self.reply_to_group_id.as_deref());
        });
    }
}
