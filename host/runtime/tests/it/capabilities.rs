//! `context`, `config`, `log`, `outgoing` and WASI, from the guest's side.

use std::sync::Arc;

use bytes::Bytes;
use sprag_core::{
    identity::outgoing_id,
    message::{Body, Message, Value},
    outcome::kind,
    run::End,
    time::Timestamp,
};
use sprag_runtime::{Folder, HandlerConfig, Limits, RunInput, Trace};

use crate::support::*;

fn with(message: Message, body: &str) -> RunInput {
    let mut message = message;
    message.body = Body::Data(Bytes::copy_from_slice(body.as_bytes()));
    RunInput { message: Arc::new(message), ..input(body) }
}

#[tokio::test]
async fn context_and_config() {
    let probe = probe();
    let text = said(&probe, input("context")).await;
    assert!(text.starts_with("endpoint=billing handler=probe attempt=3 remaining="), "{text}");
    assert!(text.ends_with("trace=None"), "{text}");
    let left: u64 = text.split("remaining=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!((1..=5_000).contains(&left), "{left}");
    let trace = Some(Trace { traceparent: "00-ab-cd-01".into(), tracestate: Some("x=y".into()) });
    let text = said(&probe, RunInput { trace, ..input("context") }).await;
    assert!(text.ends_with(r#"trace=Some(("00-ab-cd-01", Some("x=y")))"#), "{text}");
    let mut message = Message::default();
    message.set_property("traceparent", Value::string("00-11-22-01"));
    let text = said(&probe, with(message, "context")).await;
    assert!(text.ends_with(r#"trace=Some(("00-11-22-01", None))"#), "{text}");

    assert_eq!(said(&probe, input("config currency")).await, "EUR");
    assert_eq!(said(&probe, input("config nothing")).await, "(none)");
    assert_eq!(said(&probe, input("config-all")).await, r#"[("currency", "EUR"), ("limits", "{\"max\":3}")]"#);
}

#[tokio::test]
async fn the_message_as_the_handler_sees_it() {
    let message = Message {
        correlation_id: Some("c".into()),
        content_type: Some("text/plain".into()),
        subject: Some("s".into()),
        reply_to: Some("r".into()),
        ..Message::default()
    };
    let text = said(&probe(), with(message, "message")).await;
    assert_eq!(
        text,
        r#"id=Some("m-1") event=e-1 type=probe session=Some("s-1") correlation=Some("c") content=Some("text/plain") subject=Some("s") reply=Some("r") enqueued=1796000461007 kind=BodyKind::Data"#
    );
}

#[tokio::test]
async fn every_kind_of_property_and_none_of_the_hosts_own() {
    let mut message = Message::default();
    for (name, value) in [
        ("a", Value::Null),
        ("b", Value::Bool(true)),
        ("c", Value::Byte(-1)),
        ("d", Value::Ubyte(255)),
        ("e", Value::Long(i64::MIN)),
        ("f", Value::Ulong(u64::MAX)),
        ("g", Value::Float(0.5)),
        ("h", Value::Char('é')),
        ("i", Value::Timestamp(Timestamp(7))),
        (
            "j",
            Value::Uuid([0x6b, 0xa7, 0xb8, 0x10, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0, 0xc0, 0x4f, 0xd4, 0x30, 0xc8]),
        ),
        ("k", Value::Binary(Bytes::from_static(&[1, 2]))),
        ("l", Value::Symbol("sym".into())),
        ("m", Value::List(vec![Value::Int(1)])),
        ("n", Value::Uuid([0; 16])),
        ("InboxMessageId", Value::string("secret")),
        ("SpragSignature", Value::string("secret")),
        ("MessageType", Value::string("RetryRequest")),
    ] {
        message.set_property(name, value);
    }
    let text = said(&probe(), with(message, "properties")).await;
    assert_eq!(
        text,
        "a=null; b=bool true; c=int -1; d=uint 255; e=int -9223372036854775808; f=uint 18446744073709551615; g=float 0.5; \
         h=text é; i=time 7; j=uuid 6ba7b810-9dad-11d1-80b4-00c04fd430c8; k=bytes [1, 2]; l=text sym; m=text [1]; \
         n=uuid 00000000-0000-0000-0000-000000000000"
    );
}

#[tokio::test]
async fn every_kind_of_body() {
    let probe = probe();
    for (body, seen) in [
        (Body::None, "BodyKind::None "),
        (Body::Data(Bytes::from_static(b"")), "BodyKind::Data "),
        (
            Body::Sections(vec![Bytes::from_static(b"ab"), Bytes::new(), Bytes::from_static(b"c")]),
            "BodyKind::Sections([2, 0, 1]) abc",
        ),
        (Body::Value(Value::List(vec![Value::string("x"), Value::Int(1)])), r#"BodyKind::Value ["x",1]"#),
    ] {
        let message = Message { body: body.clone(), ..Message::default() };
        assert_eq!(said(&probe, RunInput { message: Arc::new(message), ..input("") }).await, seen, "{body:?}");
    }
}

#[tokio::test]
async fn outgoing_messages_are_held_back_with_derived_ids() {
    let probe = probe();
    let output = run(&probe, "publish-done out out").await;
    assert_eq!(output.end, End::Done);
    let ids: Vec<_> = output.unit.outgoing.iter().map(|it| it.message.message_id.clone().unwrap()).collect();
    let endpoint = "billing".into();
    assert_eq!(ids, [outgoing_id(&endpoint, "m-0", "probe", 0), outgoing_id(&endpoint, "m-0", "probe", 1)]);
    let first = &output.unit.outgoing[0];
    assert_eq!(first.entity.as_str(), "out");
    assert_eq!(first.message.session_id.as_ref().unwrap().as_str(), "s-1");
    assert_eq!(first.message.subject.as_deref(), Some("probe.sent"));
    assert_eq!(first.message.text_property("EventTypeId"), Some("probe.sent"));
    assert_eq!(first.message.text_property("ParentMessageId"), Some("m-1"));
    assert_eq!(first.message.property("SpragHops"), Some(&Value::Long(1)));
    assert_eq!(first.message.body, Body::Data(Bytes::from_static(b"hello")));
    // A second run sends the same ids.
    assert_eq!(run(&probe, "publish-done out out").await.unit, output.unit);

    let output = run(&probe, "schedule").await;
    assert_eq!(output.unit.outgoing[0].message.scheduled_for, Some(Timestamp(4_102_444_800_000)));
}

#[tokio::test]
async fn what_the_handler_sets_itself_stays() {
    let mut message = Message::default();
    message.set_property("Color", Value::string("red"));
    message.set_property("InboxMessageId", Value::string("not passed on"));
    message.set_property("OriginatingMessageId", Value::string("head"));
    let output = probe().run(with(message, "publish-full")).await;
    let sent = &output.unit.outgoing[0].message;
    assert_eq!(sent.message_id.as_ref().unwrap().as_str(), "mine");
    assert_eq!(sent.session_id.as_ref().unwrap().as_str(), "other");
    assert_eq!(sent.correlation_id.as_deref(), Some("c"));
    assert_eq!(sent.content_type.as_deref(), Some("text/plain"));
    assert_eq!(sent.text_property("Color"), Some("red"));
    assert_eq!(sent.text_property("OriginatingMessageId"), Some("head"));
    assert_eq!(sent.property("InboxMessageId"), None);
}

/// P31.
#[tokio::test]
async fn the_hosts_own_properties_are_refused() {
    let probe = probe();
    for name in sprag_core::message::property::RESERVED {
        let (kind, text) = failure(run(&probe, &format!("publish-property {name}=x")).await.end);
        assert!(kind == "invalid" && text.contains(name), "{kind} {text}");
    }
    assert_eq!(failure(run(&probe, "publish-property MessageType=RetryRequest").await.end).0, "invalid");
    assert_eq!(run(&probe, "publish-property MessageType=EventRequest").await.end, End::Done);
    assert_eq!(run(&probe, "publish-property EventId=e-9").await.end, End::Done);
}

#[tokio::test]
async fn bad_ids_are_refused() {
    let probe = probe();
    let long = "x".repeat(600);
    for id in ["", " ", "a\u{7}b", long.as_str()] {
        assert_eq!(failure(run(&probe, &format!("publish-id {id}")).await.end).0, "invalid", "{id:?}");
    }
    assert_eq!(run(&probe, &format!("publish-id {}", "x".repeat(512))).await.end, End::Done);
}

/// Spec 9: a publish to an unknown entity fails the run, even if the guest keeps quiet about it.
#[tokio::test]
async fn an_unknown_entity_fails_the_run() {
    let probe = probe();
    let only_out = |body| RunInput { destinations: Arc::new(OnlyOut), ..input(body) };
    let (kind, text) = failure(probe.run(only_out("publish-hide nowhere")).await.end);
    assert!(kind == kind::COMPONENT_ERROR && text.contains("nowhere"), "{kind} {text}");
    assert_eq!(failure(probe.run(only_out("publish nowhere")).await.end).0, "not-allowed");
    assert_eq!(probe.run(only_out("publish-hide out")).await.end, End::Done);
}

#[tokio::test]
async fn a_loop_is_stopped() {
    let probe = probe();
    let hops = |hops| {
        let mut message = Message::default();
        message.set_property("SpragHops", Value::Long(hops));
        with(message, "publish-hide out")
    };
    let output = probe.run(hops(31)).await;
    assert_eq!(output.unit.outgoing[0].message.property("SpragHops"), Some(&Value::Long(32)));
    let (kind, text) = failure(probe.run(hops(32)).await.end);
    assert!(kind == kind::COMPONENT_ERROR && text.contains("loop"), "{text}");
}

/// The transport's own limit counts where it is smaller.
#[tokio::test]
async fn the_transports_body_limit_counts() {
    let (kind, text) = failure(probe().run(RunInput { max_body: 4, ..input("publish-hide out") }).await.end);
    assert!(kind == kind::OUTPUT_LIMIT && text.contains("4 bytes"), "{text}");
}

#[tokio::test]
async fn log_lines_carry_the_ids_and_are_limited() {
    let log = log();
    let probe = probe();
    run(&probe, "log hello from the guest").await;
    let lines = log.lines_with("hello from the guest");
    assert_eq!(lines.len(), 1);
    for what in
        ["WARN", "handler=probe", "endpoint=billing", "event_id=e-1", "message_id=m-1", "session=s-1", "attempt=3"]
    {
        assert!(lines[0].contains(what), "{what}: {}", lines[0]);
    }
    let output = run(&probe, "log-flood 100000").await;
    assert_eq!(output.end, End::Done);
    assert_eq!(output.log_dropped, 100_000 - 65);
    assert_eq!(log.lines_with("xxxxxxxxxx").len(), 65);
    assert_eq!(log.lines_with("dropped=99935").len(), 1);

    let wasi = wasi();
    run(&wasi, "stdout one line and no end").await;
    assert_eq!(log.lines_with("one line and no end").len(), 1);
    let output = run(&wasi, "flood").await;
    assert!(output.end == End::Done && output.log_dropped > 0, "{output:?}");
}

#[tokio::test]
async fn wasi_gives_clocks_and_random_and_nothing_else() {
    let wasi = wasi();
    let seconds: u64 = said(&wasi, input("time")).await.parse().unwrap();
    assert!(seconds > 1_700_000_000);
    assert_ne!(said(&wasi, input("random")).await, said(&wasi, input("random")).await);
    assert_eq!(said(&wasi, input("environment")).await, "0 variables, 0 arguments, 0 folders");
    let text = said(&wasi, input("connect")).await;
    assert!(text.starts_with("no "), "{text}");
    assert_eq!(failure(run(&wasi, "read x").await.end).0, "no-folder");
}

#[tokio::test]
async fn folders_are_read_only_or_read_write_and_closed_around() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("in.txt"), "inside").unwrap();
    std::fs::write(root.path().join("secret.txt"), "outside").unwrap();
    std::os::unix::fs::symlink("../secret.txt", data.join("link.txt")).unwrap();
    let with = |write| {
        let folder = Folder { path: data.clone(), guest: "/data".into(), write };
        load(&runtime(), "wasi", HandlerConfig { folders: vec![folder], ..HandlerConfig::named("wasi") })
    };
    let read_only = with(false);
    assert_eq!(said(&read_only, input("read in.txt")).await, "inside");
    for (body, what) in [
        ("write in.txt", "write"),
        ("write new.txt", "create"),
        ("read ../secret.txt", "climb"),
        ("read link.txt", "follow a link out"),
    ] {
        assert_eq!(failure(run(&read_only, body).await.end).0, "file", "must not {what}");
    }
    assert!(!data.join("new.txt").exists());
    let read_write = with(true);
    assert_eq!(run(&read_write, "write new.txt").await.end, End::Done);
    assert_eq!(std::fs::read(data.join("new.txt")).unwrap(), b"written");
    assert_eq!(failure(run(&read_write, "write ../secret.txt").await.end).0, "file");
    assert_eq!(std::fs::read(root.path().join("secret.txt")).unwrap(), b"outside");
}

#[tokio::test]
async fn a_limit_of_its_own_for_the_stack() {
    let runtime = runtime();
    for stack in [128 << 10, 4 << 20] {
        let limits = Limits { stack, ..Limits::default() };
        let probe = load(&runtime, "probe", HandlerConfig { limits, ..config("probe") });
        let (kind, text) = failure(run(&probe, "recurse-lightly").await.end);
        assert_eq!(kind, kind::STACK_OVERFLOW, "{text}");
        // Ten thousand frames fit into the larger one only.
        let end = run(&probe, "recurse-lightly 10000").await.end;
        assert_eq!(matches!(end, End::Discard { .. }), stack > 1 << 20, "{stack}: {end:?}");
    }
}
