//! Values that rules write. Nothing in them is special unless the name says so.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use sprag_core::{
    effect::{Decision, Effect, HistoryKind, HistoryLine, OutcomeGuard, OutcomeWrite, StoreWrite},
    ids::{Digest, EndpointName, EventId, MessageId, SessionId},
    message::{Body, IdKind, Message, Rare, Value},
    outcome::{Failure, Outcome},
    run::{Outgoing, StateRead, StateWrite, UnitOfWork, Version},
    session_state::SessionState,
    time::Timestamp,
};

use super::Subject;
use crate::{Answer, Question, Written};

/// A moment that outcomes count from.
pub const T0: Timestamp = Timestamp(1_790_000_000_000);

pub fn endpoint() -> EndpointName {
    "shop".into()
}

pub fn at(seconds: u64) -> Timestamp {
    T0.after(Duration::from_secs(seconds))
}

/// Every type of value, named.
pub fn every_value() -> Vec<(&'static str, Value)> {
    vec![
        ("null", Value::Null),
        ("true", Value::Bool(true)),
        ("false", Value::Bool(false)),
        ("byte", Value::Byte(i8::MIN)),
        ("ubyte", Value::Ubyte(u8::MAX)),
        ("short", Value::Short(i16::MIN)),
        ("ushort", Value::Ushort(u16::MAX)),
        ("int", Value::Int(i32::MIN)),
        ("uint", Value::Uint(u32::MAX)),
        ("long", Value::Long(i64::MIN)),
        ("ulong", Value::Ulong(u64::MAX)),
        ("float", Value::Float(1.5)),
        ("double", Value::Double(-0.1)),
        ("char", Value::Char('𝄞')),
        ("timestamp", Value::Timestamp(T0)),
        ("uuid", Value::Uuid([7; 16])),
        ("binary", Value::Binary(Bytes::from_static(&[0, 255, 128]))),
        ("empty binary", Value::Binary(Bytes::new())),
        ("string", Value::string("grün ✓")),
        ("empty string", Value::string("")),
        ("symbol", Value::Symbol("com.example:x".into())),
        ("list", Value::List(vec![Value::Int(1), Value::string("two"), Value::List(vec![])])),
        ("map", Value::Map(vec![(Value::string("a"), Value::Long(1)), (Value::Int(2), Value::Null)])),
        ("array", Value::Array(vec![Value::Uint(1), Value::Uint(2)])),
        ("decimal", Value::Decimal(Bytes::from_static(&[34, 3, 205, 21]))),
        ("described", Value::Described(Box::new((Value::Ulong(9), Value::string("x"))))),
    ]
}

/// Every kind of body, named. A body with no bytes is not a message without a body (A83).
pub fn every_body() -> Vec<(&'static str, Body)> {
    vec![
        ("none", Body::None),
        ("no bytes", Body::Data(Bytes::new())),
        ("data", Body::Data(Bytes::from_static(b"{\"n\":1}"))),
        ("not UTF-8", Body::Data(Bytes::from_static(&[0, 159, 146, 150]))),
        ("sections", Body::Sections(vec![Bytes::from_static(b"one"), Bytes::new(), Bytes::from_static(b"three")])),
        ("text value", Body::Value(Value::string("hello"))),
        ("null value", Body::Value(Value::Null)),
        ("lists", Body::Lists(vec![vec![Value::Int(1), Value::Null], vec![]])),
        ("map value", Body::Value(Value::Map(vec![(Value::string("k"), Value::Ulong(9))]))),
    ]
}

pub fn message(id: &str) -> Message {
    Message {
        message_id: Some(id.into()),
        body: Body::Data(Bytes::from(format!("body of {id}"))),
        ..Message::default()
    }
}

/// Everything that few messages carry.
fn rare() -> Rare {
    Rare {
        user_id: Some(Bytes::from_static(b"me")),
        content_encoding: Some("gzip".into()),
        creation_time: Some(at(1)),
        absolute_expiry_time: Some(at(2)),
        group_sequence: Some(u32::MAX),
        via_partition_key: Some("via".into()),
        durable: Some(true),
        priority: Some(4),
        message_id_kind: IdKind::String,
        correlation_id_kind: IdKind::Binary,
        annotations: vec![(Value::Symbol("x-mine".into()), Value::Int(1))],
        footer: vec![(Value::Symbol("sum".into()), Value::Ulong(2))],
        dead_letter_source: None,
    }
}

/// A message with everything in it.
pub fn full_message(id: &str) -> Message {
    let mut message = Message {
        message_id: Some(id.into()),
        session_id: Some("customer-1".into()),
        subject: Some("order-placed".into()),
        content_type: Some("application/json".into()),
        correlation_id: Some("correlation".into()),
        to: Some("there".into()),
        reply_to: Some("here".into()),
        reply_to_session_id: Some("reply-session".into()),
        partition_key: Some("customer-1".into()),
        time_to_live: Some(Duration::from_secs(86_400)),
        scheduled_for: None,
        properties: Default::default(),
        body: Body::Data(Bytes::from_static(b"{\"total\":12}")),
        rare: Some(Box::new(rare())),
    };
    for (name, value) in every_value() {
        message.set_property(name, value);
    }
    message
}

pub fn outcome(event: &str, outcome: Outcome) -> OutcomeWrite {
    OutcomeWrite {
        event_id: event.into(),
        message_id: Some(event.into()),
        source_id: Some(event.into()),
        session: Some("customer-1".into()),
        event_type: "order-placed".into(),
        outcome,
        guard: OutcomeGuard::Newer,
        reason: None,
        error: None,
        attempts: 1,
        handler: Some("orders".into()),
        digest: Some(Digest::of(b"component")),
        enqueued_at: T0,
        at: at(1),
        keep: None,
    }
}

/// An outcome of an event that failed with a kind and a text.
pub fn failed(event: &str, kind: &str, text: &str) -> OutcomeWrite {
    OutcomeWrite { error: Some(Failure::new(kind, text)), ..outcome(event, Outcome::Failed) }
}

/// A write of an outcome and nothing else.
pub fn only(outcome: OutcomeWrite) -> StoreWrite {
    StoreWrite { outcome: Some(outcome), ..StoreWrite::default() }
}

/// A write of inbox records and nothing else.
pub fn record(ids: &[&str]) -> StoreWrite {
    StoreWrite { record: ids.iter().map(|id| MessageId::from(*id)).collect(), ..StoreWrite::default() }
}

pub fn line(event: &str, kind: HistoryKind) -> HistoryLine {
    HistoryLine {
        event_id: event.into(),
        kind,
        at: at(1),
        message_id: Some(event.into()),
        outcome: None,
        attempt: 1,
        started_at: None,
        took: None,
        handler: None,
        digest: None,
        reason: None,
        error: None,
        by: None,
    }
}

pub fn decision(id: &str, outcome: Outcome) -> Decision {
    Decision {
        message_id: id.into(),
        outcome,
        attempt: 1,
        rest: vec![Effect::SetState(SessionState::default()), Effect::Complete],
    }
}

/// A unit of work that writes one key and publishes one message.
pub fn unit(key: &str, value: &str, outgoing: &str) -> UnitOfWork {
    UnitOfWork {
        outgoing: vec![Outgoing { entity: "payments".into(), message: message(outgoing) }],
        writes: vec![put(key, value)],
        ..UnitOfWork::default()
    }
}

pub fn put(key: &str, value: &str) -> StateWrite {
    StateWrite { key: key.into(), value: Some(Bytes::copy_from_slice(value.as_bytes())) }
}

pub fn delete(key: &str) -> StateWrite {
    StateWrite { key: key.into(), value: None }
}

pub fn saw(key: &str, version: Version) -> StateRead {
    StateRead::Key { key: key.into(), version }
}

/// A write of state and nothing else.
pub fn changes(writes: Vec<StateWrite>, reads: Vec<StateRead>) -> StoreWrite {
    StoreWrite { unit: UnitOfWork { writes, reads, ..UnitOfWork::default() }, ..StoreWrite::default() }
}

/// A write of outgoing messages and nothing else: (entity, session, id).
pub fn sends(messages: &[(&str, Option<&str>, &str)]) -> StoreWrite {
    let outgoing = messages
        .iter()
        .map(|(entity, session, id)| Outgoing {
            entity: (*entity).into(),
            message: Message { session_id: session.map(SessionId::from), ..message(id) },
        })
        .collect();
    StoreWrite { unit: UnitOfWork { outgoing, ..UnitOfWork::default() }, ..StoreWrite::default() }
}

/// Everything there is to ask about a delivery.
pub async fn ask(store: &Subject, endpoint: &EndpointName, own: &str, source: Option<&str>) -> Answer {
    let (own, source, event_id) = (MessageId::from(own), source.map(MessageId::from), EventId::from(own));
    let question = Question {
        endpoint,
        message_id: Some(&own),
        source_id: source.as_ref(),
        event_id: &event_id,
        inbox: true,
        outcome: true,
    };
    store.check(question).await.expect("a check answers")
}

pub async fn is_recorded(store: &Subject, endpoint: &EndpointName, id: &str) -> bool {
    ask(store, endpoint, id, None).await.own_recorded
}

/// Writes to the usual endpoint.
pub async fn write(store: &Subject, write: StoreWrite) -> Written {
    store.write(&endpoint(), write).await.expect("a write is taken")
}

pub async fn value(store: &Subject, key: &str) -> Option<Bytes> {
    store.state_get(&endpoint(), key).await.expect("state is read").map(|found| found.value)
}

pub fn text(value: &str) -> Option<Bytes> {
    Some(Bytes::copy_from_slice(value.as_bytes()))
}

/// Ids with characters that keys, SQL and file names have trouble with (A58).
pub fn odd_ids() -> Vec<Arc<str>> {
    let mut ids: Vec<Arc<str>> = [
        "a/b",
        "a\\b",
        "a?b",
        "a#b",
        "a%b",
        "a_b",
        "a'b",
        "a\"b",
        "a`b",
        "a;b",
        "a--b",
        "a.",
        "a ",
        " a",
        "a\tb",
        "a\nb",
        "a\u{1}b",
        "a\u{1f}b",
        "a\u{7f}b",
        "grün",
        "gru\u{308}n",
        "𝄞",
        "A",
        "a",
        "a*b",
        "a[b]",
        "a:b",
        "a|b",
        "a,b",
        "null",
        "0",
        "00",
        "1e5",
        "\u{feff}a",
    ]
    .into_iter()
    .map(Arc::from)
    .collect();
    ids.push("x".repeat(512).into());
    ids.push("𝄞".repeat(256).into());
    ids
}
