//! Reading a message.

use std::ops::Deref;

use serde::de::DeserializeOwned;

use crate::{BodyKind, Failure, Message, Property, PropertyValue};

/// A message whose body has been read as JSON. It stays at hand: `event.session_id`, `event.property("region")`.
#[derive(Debug, Clone)]
pub struct Event<T> {
    pub body: T,
    pub message: Message,
}

impl<T> Deref for Event<T> {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.message
    }
}

impl Message {
    /// A message as a test of a handler needs it: this type and body, event id `test`, nothing else.
    pub fn new(event_type: impl Into<String>, body: impl Into<Vec<u8>>) -> Message {
        Message {
            message_id: Some("test".to_owned()),
            event_id: "test".to_owned(),
            event_type: event_type.into(),
            session_id: None,
            correlation_id: None,
            content_type: None,
            subject: None,
            reply_to: None,
            enqueued_at: 0,
            properties: Vec::new(),
            body: body.into(),
            body_kind: BodyKind::Data,
        }
    }

    /// The body, read as JSON. A body that does not fit can never be handled: `?` sends it to the dead letters as `bad-body`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Failure::dead_letter("bad-body", format!("{}: {error}", self.event_type)))
    }

    /// The message with its body read as JSON.
    pub fn event<T: DeserializeOwned>(self) -> Result<Event<T>, Failure> {
        Ok(Event { body: self.json()?, message: self })
    }

    /// The body as text, if it is UTF-8.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.body).ok()
    }

    /// The application property of this name.
    pub fn property(&self, name: &str) -> Option<&PropertyValue> {
        self.properties.iter().find(|property| property.name == name).map(|property| &property.value)
    }

    /// The application property of this name, if it is a text.
    pub fn text_property(&self, name: &str) -> Option<&str> {
        match self.property(name) {
            Some(PropertyValue::Text(text)) => Some(text),
            _ => None,
        }
    }
}

impl Property {
    pub fn new(name: impl Into<String>, value: impl Into<PropertyValue>) -> Property {
        Property { name: name.into(), value: value.into() }
    }
}

impl From<&str> for PropertyValue {
    fn from(value: &str) -> PropertyValue {
        PropertyValue::Text(value.to_owned())
    }
}

impl From<String> for PropertyValue {
    fn from(value: String) -> PropertyValue {
        PropertyValue::Text(value)
    }
}

impl From<bool> for PropertyValue {
    fn from(value: bool) -> PropertyValue {
        PropertyValue::Boolean(value)
    }
}

impl From<i32> for PropertyValue {
    fn from(value: i32) -> PropertyValue {
        PropertyValue::Integer(value.into())
    }
}

impl From<i64> for PropertyValue {
    fn from(value: i64) -> PropertyValue {
        PropertyValue::Integer(value)
    }
}

impl From<u64> for PropertyValue {
    fn from(value: u64) -> PropertyValue {
        PropertyValue::Unsigned(value)
    }
}

impl From<f64> for PropertyValue {
    fn from(value: f64) -> PropertyValue {
        PropertyValue::Float(value)
    }
}
