//! The guest conformance handler in three languages (`guests/conformance/README.md`), driven by one list of cases: a language's SDK must
//! show a message, change the world and end a run exactly as the others do.

#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the answer")]

use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value as Json, json};
use sprag_core::ids::{EndpointName, EntityName};
use sprag_core::message::{Body, Message, Value};
use sprag_core::run::{End, Outgoing, StateWrite, Version};
use sprag_core::time::Timestamp;
use sprag_runtime::{
    Destinations, Handler, HandlerConfig, RunInput, RunOutput, Runtime, RuntimeConfig, StateReader, Trace, Unavailable,
};

#[test]
fn the_handler_in_rust_behaves_as_described() {
    conforms("rust");
}

#[test]
fn the_handler_in_javascript_behaves_as_described() {
    conforms("javascript");
}

#[test]
fn the_handler_in_python_behaves_as_described() {
    conforms("python");
}

fn conforms(language: &str) {
    let guest = load(language);
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        the_message_is_shown_whole(&guest).await;
        every_kind_of_body_is_told_apart(&guest).await;
        context_and_configuration_are_answered(&guest).await;
        state_is_read_and_written(&guest).await;
        a_store_that_is_out_is_told_and_ends_as_transient(&guest).await;
        messages_leave_with_every_type_of_property(&guest).await;
        what_may_not_leave_is_named(&guest).await;
        too_large_a_body_ends_as_output_limit(&guest).await;
        every_end_arrives(&guest, language).await;
        what_is_no_command_is_dead_lettered(&guest).await;
    });
}

async fn the_message_is_shown_whole(guest: &Guest) {
    let text = |text: &str| Value::String(text.into());
    let properties = [
        ("binary", Value::Binary(Bytes::from_static(&[0, 127, 255]))),
        ("command", text(r#"{"steps": [{"op": "echo"}], "report": "reports"}"#)),
        ("double", Value::Double(1.5)),
        ("false", Value::Bool(false)),
        ("long", Value::Long(i64::MIN)),
        ("null", Value::Null),
        ("text", text("größer als \u{1F980}")),
        ("time", Value::Timestamp(Timestamp(-1))),
        ("ulong", Value::Ulong(u64::MAX)),
        (
            "uuid",
            Value::Uuid([0x6b, 0xa7, 0xb8, 0x10, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0, 0xc0, 0x4f, 0xd4, 0x30, 0xc8]),
        ),
    ];
    let mut input = guest.input(json!({}));
    input.message = Arc::new(Message {
        subject: Some("a subject".into()),
        content_type: Some("application/octet-stream".into()),
        correlation_id: Some("c-1".into()),
        reply_to: Some("answers".into()),
        properties: properties.into_iter().map(|(name, value)| (name.into(), value)).collect(),
        body: Body::Data(Bytes::from_static(&[0xff, 0x00])),
        ..(*input.message).clone()
    });
    let shown = guest.results(input).await.remove(0);
    assert_eq!(
        shown,
        json!({
            "message_id": "m-1", "event_id": "e-1", "event_type": "Conformance", "session_id": "s-1", "correlation_id": "c-1",
            "content_type": "application/octet-stream", "subject": "a subject", "reply_to": "answers",
            "enqueued_at": 1_796_000_461_007_u64,
            "properties": [
                { "name": "binary", "type": "bytes", "value": "007fff" },
                { "name": "command", "type": "text", "value": r#"{"steps": [{"op": "echo"}], "report": "reports"}"# },
                { "name": "double", "type": "float", "value": 1.5 },
                { "name": "false", "type": "boolean", "value": false },
                { "name": "long", "type": "integer", "value": "-9223372036854775808" },
                { "name": "null", "type": "null", "value": null },
                { "name": "text", "type": "text", "value": "größer als \u{1F980}" },
                { "name": "time", "type": "timestamp", "value": "-1" },
                { "name": "ulong", "type": "unsigned", "value": "18446744073709551615" },
                { "name": "uuid", "type": "uuid", "value": "6ba7b810-9dad-11d1-80b4-00c04fd430c8" },
            ],
            "body": "ff00", "body_kind": "data",
        })
    );
}

async fn every_kind_of_body_is_told_apart(guest: &Guest) {
    let part = |text: &'static str| Bytes::from_static(text.as_bytes());
    for (body, shown, kind) in [
        (Body::None, "", json!("none")),
        (Body::Data(Bytes::new()), "", json!("data")),
        (Body::Sections(vec![part("ab"), part(""), part("c")]), "616263", json!({ "sections": [2, 0, 1] })),
        (Body::Value(Value::Long(7)), "37", json!("value")),
    ] {
        let mut input = guest.input(json!({}));
        let command = Value::String(r#"{"steps": [{"op": "echo"}], "report": "reports"}"#.into());
        input.message = Arc::new(Message {
            message_id: None,
            session_id: None,
            properties: [("command".into(), command)].into_iter().collect(),
            body,
            ..Message::default()
        });
        (input.message_id, input.session) = (None, None);
        let echo = guest.results(input).await.remove(0);
        assert_eq!((echo["body"].as_str(), &echo["body_kind"]), (Some(shown), &kind));
        for absent in ["message_id", "session_id", "correlation_id", "content_type", "subject", "reply_to"] {
            assert_eq!(echo[absent], Json::Null, "{absent}");
        }
    }
}

async fn context_and_configuration_are_answered(guest: &Guest) {
    let command = json!({
        "steps": [
            { "op": "context" },
            { "op": "config-get", "key": "currency" }, { "op": "config-get", "key": "none" }, { "op": "config-all" },
            { "op": "log", "level": "debug", "text": "one" }, { "op": "log", "level": "error", "text": "two" },
        ],
        "report": "reports",
    });
    let mut input = guest.input(command);
    input.trace = Some(Trace { traceparent: "00-a-b-01".into(), tracestate: None });
    let results = guest.results(input.clone()).await;
    let remaining = results[0]["remaining"].as_u64().unwrap();
    assert!((1..=5_000).contains(&remaining), "{remaining}");
    let expected = json!({
        "endpoint": "billing", "handler": "conformance", "attempt": 3, "remaining": remaining,
        "trace": { "traceparent": "00-a-b-01", "tracestate": null },
    });
    assert_eq!(results[0], expected);
    let all = json!([["currency", "EUR"], ["limits", "{\"max\":3}"]]);
    assert_eq!(results[1..], [json!("EUR"), Json::Null, all, Json::Null, Json::Null]);

    input.trace = None;
    assert_eq!(guest.results(input).await[0]["trace"], Json::Null);
}

async fn state_is_read_and_written(guest: &Guest) {
    let command = json!({
        "steps": [
            { "op": "state-get", "key": "seed/a" },
            { "op": "state-get", "key": "gone" },
            { "op": "state-set", "key": "seed/c", "value": "3" },
            { "op": "state-get", "key": "seed/c" },
            { "op": "state-cas", "key": "seed/a", "expected": "no", "value": "9" },
            { "op": "state-cas", "key": "seed/a", "expected": "1", "value": "9" },
            { "op": "state-cas", "key": "new", "expected": null, "value": "n" },
            { "op": "state-cas", "key": "new", "expected": "n", "value": null },
            { "op": "state-delete", "key": "seed/b" },
            { "op": "state-delete", "key": "never" },
            { "op": "state-scan", "prefix": "seed/", "after": null, "limit": 10 },
            { "op": "state-scan", "prefix": "seed/", "after": "seed/a", "limit": 10 },
            { "op": "state-scan", "prefix": "seed/", "after": null, "limit": 1 },
            { "op": "state-set", "key": "", "value": "x" },
            { "op": "state-get", "key": "" },
        ],
        "report": "reports",
    });
    let output = guest.handler.run(guest.input(command)).await;
    let ok = |value: Json| json!({ "ok": value });
    assert_eq!(
        results(&output),
        [
            ok(json!("1")),
            ok(Json::Null),
            ok(Json::Null),
            ok(json!("3")),
            ok(json!(false)),
            ok(json!(true)),
            ok(json!(true)),
            ok(json!(true)),
            ok(Json::Null),
            ok(Json::Null),
            ok(json!([["seed/a", "9"], ["seed/c", "3"]])),
            ok(json!([["seed/c", "3"]])),
            ok(json!([["seed/a", "9"]])),
            json!({ "error": "invalid" }),
            json!({ "error": "invalid" }),
        ]
    );
    let mut writes = output.unit.writes.clone();
    writes.sort_by(|a, b| a.key.cmp(&b.key));
    let write = |key: &str, value: Option<&'static str>| StateWrite {
        key: key.to_owned(),
        value: value.map(|value| Bytes::from_static(value.as_bytes())),
    };
    let changed: Vec<_> = writes.into_iter().filter(|write| !["never", "new"].contains(&write.key.as_str())).collect();
    assert_eq!(changed, [write("seed/a", Some("9")), write("seed/b", None), write("seed/c", Some("3"))]);
}

/// P6: the guest is told, and cannot hide it.
async fn a_store_that_is_out_is_told_and_ends_as_transient(guest: &Guest) {
    let mut input = guest.input(json!({ "steps": [{ "op": "state-get", "key": "seed/a" }], "report": "reports" }));
    input.state = Arc::new(Out);
    let output = guest.handler.run(input).await;
    assert!(matches!(output.end, End::Transient { .. }), "{:?}", output.end);
    assert!(output.unit.outgoing.is_empty());
}

async fn messages_leave_with_every_type_of_property(guest: &Guest) {
    let properties = json!([
        { "name": "null", "type": "null", "value": null },
        { "name": "boolean", "type": "boolean", "value": true },
        { "name": "integer", "type": "integer", "value": "-9223372036854775808" },
        { "name": "unsigned", "type": "unsigned", "value": "18446744073709551615" },
        { "name": "float", "type": "float", "value": 0.25 },
        { "name": "text", "type": "text", "value": "ä" },
        { "name": "bytes", "type": "bytes", "value": "00ff" },
        { "name": "timestamp", "type": "timestamp", "value": "1796000461007" },
        { "name": "uuid", "type": "uuid", "value": "6ba7b810-9dad-11d1-80b4-00c04fd430c8" },
    ]);
    let command = json!({
        "steps": [
            {
                "op": "publish", "entity": "invoices", "event_type": "Invoice", "message_id": "i-1", "session_id": "s-2",
                "correlation_id": "c-2", "content_type": "text/plain", "properties": properties, "body": "a body",
            },
            { "op": "publish", "entity": "invoices", "event_type": "Invoice" },
            { "op": "schedule", "entity": "invoices", "event_type": "Later", "at": 1_896_000_000_001_u64 },
        ],
        "report": "reports",
    });
    let output = guest.handler.run(guest.input(command)).await;
    let results = results(&output);
    let [full, plain, later, report] = &output.unit.outgoing[..] else { panic!("{:?}", output.unit.outgoing) };

    let id = |outgoing: &Outgoing| outgoing.message.message_id.as_ref().map(|id| id.as_str().to_owned());
    assert_eq!(results, [full, plain, later].map(|outgoing| json!({ "ok": id(outgoing) })));
    assert_eq!((full.entity.as_str(), id(full).as_deref()), ("invoices", Some("i-1")));
    assert_eq!(full.message.session_id, Some("s-2".into()));
    assert_eq!(full.message.correlation_id.as_deref(), Some("c-2"));
    assert_eq!(full.message.content_type.as_deref(), Some("text/plain"));
    assert_eq!(full.message.subject.as_deref(), Some("Invoice"));
    assert_eq!(full.message.body, Body::Data(Bytes::from_static(b"a body")));
    let uuid = [0x6b, 0xa7, 0xb8, 0x10, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0, 0xc0, 0x4f, 0xd4, 0x30, 0xc8];
    for (name, value) in [
        ("null", Value::Null),
        ("boolean", Value::Bool(true)),
        ("integer", Value::Long(i64::MIN)),
        ("unsigned", Value::Ulong(u64::MAX)),
        ("float", Value::Double(0.25)),
        ("text", Value::String("ä".into())),
        ("bytes", Value::Binary(Bytes::from_static(&[0, 255]))),
        ("timestamp", Value::Timestamp(Timestamp(1_796_000_461_007))),
        ("uuid", Value::Uuid(uuid)),
    ] {
        let found = full.message.properties.get(name);
        assert_eq!(found, Some(&value), "{name}");
    }
    assert_eq!(plain.message.session_id, Some("s-1".into()), "the session of the message being handled");
    assert_eq!(later.message.scheduled_for, Some(Timestamp(1_896_000_000_001)));
    assert_eq!(report.message.content_type.as_deref(), Some("application/json"));
}

async fn what_may_not_leave_is_named(guest: &Guest) {
    let reserved = json!([{ "name": "InboxMessageId", "type": "text", "value": "x" }]);
    let step = json!({ "op": "publish", "entity": "invoices", "event_type": "A", "properties": reserved });
    let output = guest.handler.run(guest.input(json!({ "steps": [step], "report": "reports" }))).await;
    assert_eq!(results(&output), [json!({ "error": "invalid" })]);
    assert_eq!(output.unit.outgoing.len(), 1, "only the report leaves");

    // A handler that goes on after this answer still ends here: what it wanted to say would be lost.
    let step = json!({ "op": "publish", "entity": "secrets", "event_type": "A" });
    let output = guest.handler.run(guest.input(json!({ "steps": [step], "report": "reports" }))).await;
    assert!(
        matches!(&output.end, End::Failed { failure, .. } if failure.kind == "component-error"),
        "{:?}",
        output.end
    );
}

async fn too_large_a_body_ends_as_output_limit(guest: &Guest) {
    let body = "x".repeat((1 << 20) + 1);
    let command = json!({ "steps": [{ "op": "publish", "entity": "invoices", "event_type": "A", "body": body }] });
    let output = guest.handler.run(guest.input(command)).await;
    assert!(matches!(&output.end, End::Failed { failure, .. } if failure.kind == "output-limit"), "{:?}", output.end);
}

async fn every_end_arrives(guest: &Guest, language: &str) {
    let after = Some(Duration::from_millis(1500));
    let failed = |kind: &str, text: &str, retry_after| match End::failed(kind, text) {
        End::Failed { failure, .. } => End::Failed { failure, retry_after },
        other => other,
    };
    for (end, expected) in [
        (json!({ "as": "done" }), End::Done),
        (json!({ "as": "discard", "reason": "late" }), End::Discard { reason: "late".into() }),
        (
            json!({ "as": "handoff", "reason": "bank", "external_id": "job-1", "expected_by": 1_896_000_000_001_u64 }),
            End::Handoff {
                reason: "bank".into(),
                external_id: Some("job-1".into()),
                expected_by: Some(Timestamp(1_896_000_000_001)),
            },
        ),
        (
            json!({ "as": "handoff", "reason": "bank" }),
            End::Handoff { reason: "bank".into(), external_id: None, expected_by: None },
        ),
        (
            json!({ "as": "transient", "text": "down", "retry_after": 1500 }),
            End::Transient { text: "down".into(), retry_after: after },
        ),
        (json!({ "as": "transient", "text": "down" }), End::transient("down")),
        (
            json!({ "as": "failed", "kind": "card-declined", "text": "no ä", "retry_after": 1500 }),
            failed("card-declined", "no ä", after),
        ),
        (json!({ "as": "failed", "kind": "k", "text": "" }), End::failed("k", "")),
        (
            json!({ "as": "dead-letter", "reason": "bad", "text": "never" }),
            End::DeadLetter { reason: "bad".into(), text: "never".into() },
        ),
    ] {
        let output = guest.handler.run(guest.input(json!({ "end": end.clone() }))).await;
        assert_eq!(output.end, expected, "{end}");
    }

    let output = guest.handler.run(guest.input(json!({ "end": { "as": "exception", "text": "blown up" } }))).await;
    let End::Failed { failure, .. } = &output.end else { panic!("{:?}", output.end) };
    if language == "rust" {
        assert_eq!(failure.kind.as_str(), "trap");
    } else {
        assert_eq!(failure.kind.as_str(), "exception");
        assert!(failure.text.ends_with("blown up"), "{}", failure.text);
    }
}

async fn what_is_no_command_is_dead_lettered(guest: &Guest) {
    let mut not_json = guest.input(json!({}));
    let body = Body::Data(Bytes::from_static(b"\xff no json"));
    not_json.message = Arc::new(Message { body, ..(*not_json.message).clone() });
    let inputs = [
        not_json,
        guest.input(json!("a text")),
        guest.input(json!({ "steps": [{ "op": "dance" }] })),
        guest.input(json!({ "end": { "as": "well" } })),
    ];
    for input in inputs {
        let output = guest.handler.run(input).await;
        assert!(matches!(&output.end, End::DeadLetter { reason, .. } if reason == "bad-body"), "{:?}", output.end);
        assert!(output.unit.is_empty());
    }
}

struct Guest {
    handler: Arc<Handler>,
}

fn load(language: &str) -> Guest {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../guests/out/conformance-{language}.wasm"));
    let bytes =
        std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}: run `./x setup` first", file.display()));
    // The big engines of JavaScript and Python take long to compile, so their code is kept between runs of the tests.
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("conformance-code");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&cache).unwrap();
    let runtime = Runtime::new(RuntimeConfig {
        cache_dir: Some(cache),
        max_instances: 4,
        max_kept: 1,
        ..RuntimeConfig::default()
    });
    let config = HandlerConfig {
        grant: vec!["state".into()],
        config: Some(BTreeMap::from([("currency".into(), "EUR".into()), ("limits".into(), "{\"max\":3}".into())])),
        ..HandlerConfig::named("conformance")
    };
    let handler = runtime.unwrap().load(&bytes, config, |_| {}).unwrap_or_else(|error| panic!("{language}: {error}"));
    assert_eq!(handler.info().event_types.iter().map(|name| name.as_str()).collect::<Vec<_>>(), ["Conformance"]);
    Guest { handler }
}

impl Guest {
    fn input(&self, command: Json) -> RunInput {
        RunInput {
            endpoint: EndpointName::from("billing"),
            message: Arc::new(Message {
                message_id: Some("m-1".into()),
                session_id: Some("s-1".into()),
                body: Body::Data(command.to_string().into()),
                ..Message::default()
            }),
            message_id: Some("m-1".into()),
            event_id: "e-1".into(),
            event_type: "Conformance".into(),
            session: Some("s-1".into()),
            enqueued_at: Timestamp(1_796_000_461_007),
            attempt: 3,
            source: "m-0".into(),
            destinations: Arc::new(NoSecrets),
            state: Arc::new(Seed),
            sql: None,
            max_body: 4 << 20,
            trace: None,
        }
    }

    async fn results(&self, input: RunInput) -> Vec<Json> {
        results(&self.handler.run(input).await)
    }
}

/// What the run reported: the body of the message that it published last.
fn results(output: &RunOutput) -> Vec<Json> {
    assert_eq!(output.end, End::Done);
    let report = output.unit.outgoing.last().expect("a report was asked for");
    assert_eq!((report.entity.as_str(), report.message.event_type().as_str()), ("reports", "Report"));
    let Body::Data(body) = &report.message.body else { panic!("{:?}", report.message.body) };
    let report: Json = serde_json::from_slice(body).unwrap();
    report["results"].as_array().unwrap().clone()
}

struct NoSecrets;

impl Destinations for NoSecrets {
    fn check(&self, entity: &EntityName) -> Result<(), String> {
        if entity.as_str() == "secrets" { Err("this endpoint may not send to it".to_owned()) } else { Ok(()) }
    }
}

/// A state with two keys.
struct Seed;

const SEED: [(&str, &str); 2] = [("seed/a", "1"), ("seed/b", "2")];

#[async_trait]
impl StateReader for Seed {
    async fn get(&self, _: &EndpointName, key: &str) -> Result<Option<(Bytes, Version)>, Unavailable> {
        Ok(SEED
            .iter()
            .find(|(known, _)| *known == key)
            .map(|(_, value)| (Bytes::from_static(value.as_bytes()), Version(1))))
    }

    async fn scan(
        &self,
        _: &EndpointName,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<(String, Bytes, Version)>, Unavailable> {
        let entries = SEED.iter().filter(|(key, _)| key.starts_with(prefix) && after.is_none_or(|after| *key > after));
        let entries = entries.map(|(key, value)| ((*key).to_owned(), Bytes::from_static(value.as_bytes()), Version(1)));
        Ok(entries.take(limit as usize).collect())
    }
}

/// A store that cannot be reached.
struct Out;

#[async_trait]
impl StateReader for Out {
    async fn get(&self, _: &EndpointName, _: &str) -> Result<Option<(Bytes, Version)>, Unavailable> {
        Err(Unavailable("no connection".to_owned()))
    }

    async fn scan(
        &self,
        _: &EndpointName,
        _: &str,
        _: Option<&str>,
        _: u32,
    ) -> Result<Vec<(String, Bytes, Version)>, Unavailable> {
        Err(Unavailable("no connection".to_owned()))
    }
}
