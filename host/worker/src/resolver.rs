//! Outcomes as messages, for who keeps track of events elsewhere: NimBus's Resolver, or what reads as it does.
//!
//! A message leaves through the outbox, in the transaction of the decision that it tells of, under an id that follows from that decision: a
//! decision that is not carried out twice is not told twice, and one that is sent again has the same id. Names and forms are NimBus's
//! (its `MessageType` values, its body of two parts); what it calls `To` and `From` is written as it does.

use std::{sync::Arc, time::Duration};

use serde_json::{Value as Json, json};
use sprag_core::{
    effect::{OutcomeGuard, OutcomeWrite},
    identity,
    ids::{EndpointName, EntityName},
    machine::Arrival,
    message::{Body, Message, Value, property},
    outcome::Outcome,
    run::Outgoing,
};

/// Who outcomes are for, in NimBus's words.
const TO: &str = "Resolver";
/// What stands where a message has no message before it.
const SELF: &str = "self";

/// The message that tells of a decision. None for an outcome that is not told: a duplicate's, and one that is no end.
pub(crate) fn told(
    endpoint: &EndpointName,
    resolver: &EntityName,
    arrival: &Arrival,
    write: &OutcomeWrite,
    took: Option<Duration>,
) -> Option<Outgoing> {
    // A duplicate rewrites nothing where there is an outcome (P8), and what is told last counts there.
    if write.guard == OutcomeGuard::IfAbsent {
        return None;
    }
    let kind = match write.outcome {
        Outcome::Completed => "ResolutionResponse",
        Outcome::Failed | Outcome::DeadLettered => "ErrorResponse",
        Outcome::Deferred => "DeferralResponse",
        Outcome::Skipped => "SkipResponse",
        Outcome::Unsupported => "UnsupportedResponse",
        Outcome::Handoff => "PendingHandoffResponse",
        Outcome::Pending => return None,
    };
    let inbound = &arrival.message;
    let own = inbound.message_id.as_ref().map_or(arrival.place.as_str(), |id| id.as_str());
    let mut message = Message {
        message_id: Some(identity::outgoing_id(
            endpoint,
            own,
            &format!("{TO}/{}", write.outcome.name()),
            write.attempts,
        )),
        session_id: write.session.clone(),
        correlation_id: Some(own.into()),
        content_type: Some("application/json".into()),
        body: body(arrival, write),
        ..Message::default()
    };
    let inherited = |name: &str| inbound.text_property(name).filter(|text| !text.is_empty() && *text != SELF);
    let texts = [
        ("To", TO),
        ("From", endpoint.as_str()),
        (property::MESSAGE_TYPE, kind),
        (property::EVENT_ID, write.event_id.as_str()),
        (property::EVENT_TYPE_ID, write.event_type.as_str()),
        (property::PARENT_MESSAGE_ID, own),
        (property::ORIGINATING_MESSAGE_ID, inherited(property::ORIGINATING_MESSAGE_ID).unwrap_or(own)),
        ("OriginatingFrom", inherited("From").unwrap_or(SELF)),
    ];
    for (name, text) in texts {
        message.set_property(name, Value::string(text));
    }
    if write.outcome == Outcome::DeadLettered {
        let (kind, text) = write.error.as_ref().map_or(("", ""), |error| (error.kind.as_str(), error.text.as_str()));
        message.set_property(property::DEAD_LETTER_REASON, Value::string(write.reason.as_deref().unwrap_or(kind)));
        message.set_property(property::DEAD_LETTER_DESCRIPTION, Value::string(text));
    }
    if write.outcome == Outcome::Handoff {
        message.set_property("HandoffReason", Value::string(write.reason.as_deref().unwrap_or_default()));
    }
    message.set_property(property::RETRY_COUNT, Value::Int(i32::try_from(write.attempts).unwrap_or(i32::MAX)));
    let millis = |time: Duration| Value::Long(i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
    let took = took.unwrap_or_default();
    message.set_property("ProcessingTimeMs", millis(took));
    message.set_property("QueueTimeMs", millis(write.at.since(write.enqueued_at).saturating_sub(took)));
    for name in [property::TRACEPARENT, property::TRACESTATE] {
        if let Some(value) = inbound.property(name) {
            message.set_property(name, value.clone());
        }
    }
    Some(Outgoing { entity: resolver.clone(), message })
}

/// The event as it came, and what went wrong. A body that is not NimBus's is wrapped as it would have been.
fn body(arrival: &Arrival, write: &OutcomeWrite) -> Body {
    let text: Option<Arc<str>> = match &arrival.message.body {
        Body::Data(bytes) => std::str::from_utf8(bytes).ok().map(Into::into),
        Body::Value(value) => value.as_str().map(Into::into),
        Body::None | Body::Sections(_) | Body::Lists(_) => None,
    };
    let sent: Option<Json> = text.as_deref().and_then(|text| serde_json::from_str(text).ok());
    let content = match sent.as_ref().and_then(|sent| sent.get("EventContent")) {
        Some(content) => content.clone(),
        None => json!({ "EventTypeId": write.event_type.as_str(), "EventJson": text.as_deref() }),
    };
    let error = match (&write.error, write.outcome) {
        (Some(error), _) => json!({ "ErrorText": error.text, "ErrorType": error.kind }),
        (None, Outcome::Skipped | Outcome::Deferred) => json!({ "ErrorText": write.reason, "ErrorType": null }),
        (None, _) => Json::Null,
    };
    Body::Data(json!({ "EventContent": content, "ErrorContent": error }).to_string().into_bytes().into())
}

#[cfg(test)]
mod tests;
