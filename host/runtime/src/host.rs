//! What a guest can call, but for `state`: `context`, `log`, `outgoing` and `config`.
//!
//! Nothing here has an effect outside the run: messages are held back in [`Work`](crate::run_state::Work).

use std::time::Instant;

use bytes::Bytes;
use sprag_core::{
    identity::{MAX_MESSAGE_ID, outgoing_id, utf16_len},
    ids::{EntityName, MessageId, SessionId},
    message::{Body, Message, Properties, Value, property},
    run::Outgoing,
    time::Timestamp,
};

use crate::{
    bindings::sprag::handler::{
        config, context, log,
        outgoing::{self, OutgoingMessage, PublishError},
        types,
    },
    convert::{from_guest, refuse_property},
    log::Level,
    run_state::{RunState, size},
};

/// A message may come through this many handlers before the host takes it for a loop (spec 9).
const MAX_HOPS: i64 = 32;
/// Longest session, correlation and content type, in UTF-16 units: Service Bus's limit for a session id.
const MAX_SHORT: usize = 128;
const MAX_PROPERTIES: usize = 1_000;

impl types::Host for RunState {}

impl context::Host for RunState {
    fn endpoint(&mut self) -> wasmtime::Result<String> {
        Ok(self.input.endpoint.to_string())
    }

    fn handler(&mut self) -> wasmtime::Result<String> {
        Ok(self.shared.name.to_string())
    }

    fn attempt(&mut self) -> wasmtime::Result<u32> {
        Ok(self.input.attempt)
    }

    fn remaining(&mut self) -> wasmtime::Result<u64> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        Ok(u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
    }

    fn trace(&mut self) -> wasmtime::Result<Option<context::TraceContext>> {
        let carried = |name| self.input.message.text_property(name).map(str::to_owned);
        Ok(match &self.input.trace {
            Some(trace) => Some(context::TraceContext {
                traceparent: trace.traceparent.clone(),
                tracestate: trace.tracestate.clone(),
            }),
            None => carried(property::TRACEPARENT)
                .map(|traceparent| context::TraceContext { traceparent, tracestate: carried(property::TRACESTATE) }),
        })
    }
}

impl log::Host for RunState {
    fn write(&mut self, level: log::Level, text: String) -> wasmtime::Result<()> {
        let level = match level {
            log::Level::Debug => Level::Debug,
            log::Level::Info => Level::Info,
            log::Level::Warn => Level::Warn,
            log::Level::Error => Level::Error,
        };
        self.sink.line(level, &text);
        Ok(())
    }
}

impl config::Host for RunState {
    fn get(&mut self, key: String) -> wasmtime::Result<Option<String>> {
        Ok(self.shared.config.config.as_ref().and_then(|config| config.get(&key)).cloned())
    }

    fn all(&mut self) -> wasmtime::Result<Vec<(String, String)>> {
        let config = self.shared.config.config.iter().flatten();
        Ok(config.map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}

impl outgoing::Host for RunState {
    fn publish(&mut self, message: OutgoingMessage) -> wasmtime::Result<Result<String, PublishError>> {
        Ok(self.hold_back(message, None))
    }

    fn schedule(&mut self, message: OutgoingMessage, at: u64) -> wasmtime::Result<Result<String, PublishError>> {
        Ok(self.hold_back(message, Some(Timestamp(i64::try_from(at).unwrap_or(i64::MAX)))))
    }
}

impl RunState {
    fn hold_back(&mut self, message: OutgoingMessage, at: Option<Timestamp>) -> Result<String, PublishError> {
        let ordinal = self.work.ordinal;
        self.work.ordinal = ordinal.saturating_add(1);
        let bytes = self.within_limits(&message)?;
        let entity = EntityName::from(message.entity);
        let hops = self.may_send(&entity)?;
        let mut properties = Properties::new();
        for types::PropertyResult { name, value } in message.properties {
            let value = from_guest(value).map_err(PublishError::Invalid)?;
            if let Some(text) = refuse_property(&name, &value) {
                return Err(PublishError::Invalid(text));
            }
            properties.insert(name.into(), value);
        }
        let id = match message.message_id {
            Some(id) => {
                check_text("a message id", &id, MAX_MESSAGE_ID)?;
                MessageId::from(id)
            }
            None => outgoing_id(&self.input.endpoint, &self.input.source, self.shared.name.as_str(), ordinal),
        };
        for (what, text) in [
            ("a session id", &message.session_id),
            ("a correlation id", &message.correlation_id),
            ("a content type", &message.content_type),
        ] {
            if let Some(text) = text {
                check_text(what, text, MAX_SHORT)?;
            }
        }
        self.add_host_properties(&mut properties, &message.event_type, hops);
        let message = Message {
            message_id: Some(id.clone()),
            session_id: message.session_id.map(SessionId::from).or_else(|| self.input.session.clone()),
            subject: (!message.event_type.is_empty()).then(|| message.event_type.into()),
            content_type: message.content_type.map(Into::into),
            correlation_id: message.correlation_id.map(Into::into),
            scheduled_for: at,
            properties,
            body: Body::Data(Bytes::from(message.body)),
            ..Message::default()
        };
        self.work.bytes += bytes;
        self.work.outgoing.push(Outgoing { entity, message });
        Ok(id.to_string())
    }

    /// The bytes the message counts, if there is room for it.
    fn within_limits(&mut self, message: &OutgoingMessage) -> Result<usize, PublishError> {
        let limits = &self.shared.config.limits;
        let (limits_body, outgoing, outgoing_bytes) = (limits.body, limits.outgoing, limits.outgoing_bytes);
        let body = limits_body.min(self.input.max_body);
        let bytes = counted(message);
        let over = if message.body.len() > body {
            format!(
                "a body of {}, where at most {} may be sent (limits.body, and what the transport takes)",
                size(message.body.len()),
                size(body)
            )
        } else if self.work.outgoing.len() >= outgoing as usize {
            format!("more than {outgoing} outgoing messages in one run (limits.outgoing)")
        } else if message.properties.len() > MAX_PROPERTIES {
            format!("{} properties on one message, where at most {MAX_PROPERTIES} are sent", message.properties.len())
        } else if self.work.bytes.saturating_add(bytes) > outgoing_bytes {
            format!("outgoing messages and state writes of more than {} (limits.outgoing)", size(outgoing_bytes))
        } else {
            return Ok(bytes);
        };
        self.faults.output.get_or_insert_with(|| over.clone());
        Err(PublishError::TooMuch(over))
    }

    /// How many handlers the message will have come through, if it may go there at all.
    fn may_send(&mut self, entity: &EntityName) -> Result<i64, PublishError> {
        let hops = self.input.message.property(property::HOP_COUNT).and_then(Value::as_i64).unwrap_or(0).max(0) + 1;
        let refused = if hops > MAX_HOPS {
            Some(format!("the message has come through {MAX_HOPS} handlers: that looks like a loop"))
        } else {
            self.input.destinations.check(entity).err()
        };
        match refused {
            None => Ok(hops),
            Some(text) => {
                self.faults.refused.get_or_insert_with(|| text.clone());
                Err(PublishError::NotAllowed(text))
            }
        }
    }

    /// What the host writes on a guest's message: what it is, and what it came from.
    fn add_host_properties(&self, properties: &mut Properties, event_type: &str, hops: i64) {
        let origin = &self.input.message;
        if !event_type.is_empty() {
            properties.insert(property::EVENT_TYPE_ID.into(), Value::string(event_type));
        }
        properties.insert(property::HOP_COUNT.into(), Value::Long(hops));
        let mut unless_set = |name: &str, value: Option<&str>| {
            if let Some(value) = value
                && !properties.contains_key(name)
            {
                properties.insert(name.into(), Value::string(value));
            }
        };
        let parent = self.input.message_id.as_ref().map(|id| id.as_str());
        unless_set(property::PARENT_MESSAGE_ID, parent);
        // The head of the chain stays what it was; `self` is how NimBus writes that a message is its own head.
        let head = origin.text_property(property::ORIGINATING_MESSAGE_ID).filter(|id| *id != "self");
        unless_set(property::ORIGINATING_MESSAGE_ID, head.or(parent));
        let (traceparent, tracestate) = match &self.input.trace {
            Some(trace) => (Some(trace.traceparent.as_str()), trace.tracestate.as_deref()),
            None => (origin.text_property(property::TRACEPARENT), origin.text_property(property::TRACESTATE)),
        };
        unless_set(property::TRACEPARENT, traceparent);
        unless_set(property::TRACESTATE, tracestate);
    }
}

fn counted(message: &OutgoingMessage) -> usize {
    let properties: usize = message
        .properties
        .iter()
        .map(|property| {
            property.name.len()
                + match &property.value {
                    types::PropertyValueResult::Text(text) | types::PropertyValueResult::Uuid(text) => text.len(),
                    types::PropertyValueResult::Bytes(bytes) => bytes.len(),
                    _ => 8,
                }
        })
        .sum();
    let texts = [&message.message_id, &message.session_id, &message.correlation_id, &message.content_type];
    let texts: usize = texts.into_iter().flatten().map(String::len).sum();
    message.body.len() + properties + texts + message.entity.len() + 2 * message.event_type.len() + 64
}

fn check_text(what: &str, text: &str, longest: usize) -> Result<(), PublishError> {
    let problem = if text.trim().is_empty() {
        "is blank".to_owned()
    } else if text.chars().any(char::is_control) {
        "has control characters".to_owned()
    } else if utf16_len(text) > longest {
        format!("has {} UTF-16 units, where at most {longest} are allowed", utf16_len(text))
    } else {
        return Ok(());
    };
    Err(PublishError::Invalid(format!("{what} {problem}")))
}
