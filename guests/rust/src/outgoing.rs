//! Messages that leave if, and only if, the run succeeds.

use std::time::SystemTime;

use serde::Serialize;

use crate::bindings::sprag::handler::outgoing::{self, OutgoingMessage};
use crate::outcome::unix_millis;
use crate::{Failure, Property, PropertyValue, PublishError};

/// A message to send.
///
/// ```no_run
/// # use sprag_handler::{Failure, Outgoing};
/// # fn run() -> Result<(), Failure> {
/// Outgoing::new("payments", "PaymentRequested").property("region", "eu").json(&("o-1", 1999))?.publish()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a message leaves only if it is published or scheduled"]
pub struct Outgoing(OutgoingMessage);

impl Outgoing {
    /// A message of this event type for this queue or topic. It goes to the session of the message being handled, under an id
    /// that a second run of this message gives it again.
    pub fn new(entity: impl Into<String>, event_type: impl Into<String>) -> Outgoing {
        Outgoing(OutgoingMessage {
            entity: entity.into(),
            event_type: event_type.into(),
            message_id: None,
            session_id: None,
            correlation_id: None,
            content_type: None,
            properties: Vec::new(),
            body: Vec::new(),
        })
    }

    /// The value as JSON, with that content type.
    pub fn json(mut self, body: &impl Serialize) -> Result<Outgoing, Failure> {
        self.0.body = serde_json::to_vec(body)?;
        self.0.content_type = Some("application/json".to_owned());
        Ok(self)
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>, content_type: impl Into<String>) -> Outgoing {
        self.0.content_type = Some(content_type.into());
        self.bytes(body)
    }

    /// A body that says nothing about its type.
    pub fn bytes(mut self, body: impl Into<Vec<u8>>) -> Outgoing {
        self.0.body = body.into();
        self
    }

    pub fn message_id(mut self, id: impl Into<String>) -> Outgoing {
        self.0.message_id = Some(id.into());
        self
    }

    pub fn session(mut self, id: impl Into<String>) -> Outgoing {
        self.0.session_id = Some(id.into());
        self
    }

    pub fn correlation(mut self, id: impl Into<String>) -> Outgoing {
        self.0.correlation_id = Some(id.into());
        self
    }

    pub fn property(mut self, name: impl Into<String>, value: impl Into<PropertyValue>) -> Outgoing {
        self.0.properties.push(Property::new(name, value));
        self
    }

    /// Holds the message back until the run has succeeded. Answers its id.
    pub fn publish(self) -> Result<String, PublishError> {
        outgoing::publish(&self.0)
    }

    /// The same, to become visible at this time.
    pub fn schedule(self, at: SystemTime) -> Result<String, PublishError> {
        outgoing::schedule(&self.0, unix_millis(at))
    }
}
