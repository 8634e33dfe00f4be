//! The guest conformance handler in Rust. What it does is said in `../README.md`.

mod command;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use command::{Command, End, Step};
use serde_json::{Value, json};
use sprag_handler::state::{self, StateError};
use sprag_handler::{BodyKind, Failure, Handler, Message, Outgoing, PublishError, Success, config, context, log};

struct Conformance;

impl Handler for Conformance {
    const EVENT_TYPES: &[&str] = &["Conformance"];

    fn handle(message: Message) -> Result<Success, Failure> {
        let command: Command = match message.text_property("command") {
            Some(text) => Message::new("command", text).json()?,
            None => message.json()?,
        };
        let results = command.steps.into_iter().map(|step| run(step, &message)).collect::<Result<Vec<_>, _>>()?;
        if let Some(entity) = command.report {
            Outgoing::new(entity, "Report").json(&json!({ "results": results }))?.publish()?;
        }
        end(command.end)
    }
}

sprag_handler::export!(Conformance);

fn run(step: Step, message: &Message) -> Result<Value, Failure> {
    Ok(match step {
        Step::Echo => echo(message),
        Step::Context => json!({
            "endpoint": context::endpoint(),
            "handler": context::handler(),
            "attempt": context::attempt(),
            "remaining": context::remaining().as_millis() as u64,
            "trace": context::trace()
                .map(|trace| json!({ "traceparent": trace.traceparent, "tracestate": trace.tracestate })),
        }),
        Step::Log { level, text } => {
            match level {
                command::Level::Debug => log::debug(text),
                command::Level::Info => log::info(text),
                command::Level::Warn => log::warn(text),
                command::Level::Error => log::error(text),
            }
            Value::Null
        }
        Step::Publish(publish) => published(publish.into_outgoing()?.publish()),
        Step::Schedule { message, at } => published(message.into_outgoing()?.schedule(time(at))),
        Step::StateGet { key } => stored(state::get(&key).map(|value| json!(value.map(text)))),
        Step::StateSet { key, value } => stored(state::set(&key, value.as_bytes()).map(|()| Value::Null)),
        Step::StateDelete { key } => stored(state::delete(&key).map(|()| Value::Null)),
        Step::StateCas { key, expected, value } => {
            let expected = expected.as_deref().map(str::as_bytes);
            let value = value.as_deref().map(str::as_bytes);
            stored(state::compare_and_set(&key, expected, value).map(Value::from))
        }
        Step::StateScan { prefix, after, limit } => stored(
            state::scan_page(&prefix, after.as_deref(), limit)
                .map(|entries| entries.into_iter().map(|entry| json!([entry.key, text(entry.value)])).collect()),
        ),
        Step::ConfigGet { key } => json!(config::get(&key)),
        Step::ConfigAll => {
            let mut all = config::all();
            all.sort();
            json!(all)
        }
    })
}

fn echo(message: &Message) -> Value {
    json!({
        "message_id": message.message_id,
        "event_id": message.event_id,
        "event_type": message.event_type,
        "session_id": message.session_id,
        "correlation_id": message.correlation_id,
        "content_type": message.content_type,
        "subject": message.subject,
        "reply_to": message.reply_to,
        "enqueued_at": message.enqueued_at,
        "properties": message.properties.iter().map(command::show_property).collect::<Vec<_>>(),
        "body": command::hex(&message.body),
        "body_kind": match &message.body_kind {
            BodyKind::None => json!("none"),
            BodyKind::Data => json!("data"),
            BodyKind::Sections(lengths) => json!({ "sections": lengths }),
            BodyKind::Value => json!("value"),
        },
    })
}

fn end(end: End) -> Result<Success, Failure> {
    let delayed = |failure: Failure, millis: Option<u64>| match millis {
        Some(millis) => failure.retry_after(Duration::from_millis(millis)),
        None => failure,
    };
    match end {
        End::Done => Ok(Success::Done),
        End::Discard { reason } => Ok(Success::discard(reason)),
        End::Handoff { reason, external_id, expected_by } => {
            let mut handoff = Success::handoff(reason);
            if let Some(id) = external_id {
                handoff = handoff.external_id(id);
            }
            if let Some(millis) = expected_by {
                handoff = handoff.expected_by(time(millis));
            }
            Ok(handoff)
        }
        End::Transient { text, retry_after } => Err(delayed(Failure::transient(text), retry_after)),
        End::Failed { kind, text, retry_after } => Err(delayed(Failure::failed(kind, text), retry_after)),
        End::DeadLetter { reason, text } => Err(Failure::dead_letter(reason, text)),
        End::Exception { text } => panic!("{text}"),
    }
}

fn time(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

fn published(result: Result<String, PublishError>) -> Value {
    match result {
        Ok(id) => json!({ "ok": id }),
        Err(PublishError::NotAllowed(_)) => json!({ "error": "not-allowed" }),
        Err(PublishError::Invalid(_)) => json!({ "error": "invalid" }),
        Err(PublishError::TooMuch(_)) => json!({ "error": "too-much" }),
    }
}

fn stored(result: Result<Value, StateError>) -> Value {
    match result {
        Ok(value) => json!({ "ok": value }),
        Err(StateError::Invalid(_)) => json!({ "error": "invalid" }),
        Err(StateError::Unavailable) => json!({ "error": "unavailable" }),
    }
}
