//! The golden frames of `corpus/`: what clients really write. Each has a test here that says what it means.

use std::{fs, path::Path};

use bytes::Bytes;

use crate::{
    connection::{Accept, Config, Event, tests::client::Client},
    message::{self, MessageId, Sections},
    performative::{DeliveryState, Performative, Role, Source},
    value::{Map, Symbol, Value},
};

/// All files of a folder, by name.
pub(crate) fn folder(name: &str) -> Vec<(String, Bytes)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut files: Vec<_> = fs::read_dir(&path)
        .expect("the corpus")
        .map(|entry| {
            let path = entry.expect("readable").path();
            let name = path.file_stem().and_then(|name| name.to_str()).expect("UTF-8").to_owned();
            (name, bytes(&fs::read_to_string(&path).expect("text")))
        })
        .collect();
    files.sort();
    assert!(files.len() > 3, "the corpus is there");
    files
}

fn bytes(text: &str) -> Bytes {
    let digits: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal");
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn golden(folder_name: &str, name: &str) -> Bytes {
    let found = folder(folder_name).into_iter().find(|(of, _)| of == name);
    found.unwrap_or_else(|| panic!("corpus/{folder_name}/{name}.hex")).1
}

fn sections(name: &str) -> Sections {
    Sections::find(golden("messages", name)).expect("sound")
}

/// A connection that hears the frames, after a login.
fn opened(name: &str) -> Client {
    let mut client = Client::new(Config::default());
    client.login();
    client.write(&golden("frames", name));
    client
}

/// A connection with a message sent to a receiver on handle 0, four of them, that hears the frames about them.
fn disposed(name: &str) -> (bool, DeliveryState) {
    let mut client = Client::ready(Config::default());
    let link = client.receiver(0, 4);
    for n in 0..4_u8 {
        let payload = Bytes::from_static(b"x");
        let message = crate::connection::Outgoing { tag: Bytes::from(vec![n]), payload, format: 0, settled: false };
        client.server.deliver(link, message).expect("credit");
    }
    client.write(&golden("frames", name));
    let Event::Disposition { deliveries, settled, state } = client.event() else { panic!("{name}") };
    assert_eq!(deliveries.len(), 1);
    (settled, state.expect("a state"))
}

/// The frame that kills connections elsewhere.
#[test]
fn js_dead_letter() {
    let (settled, state) = disposed("js-dead-letter");
    let DeliveryState::Rejected(Some(error)) = state else { panic!("{state:?}") };
    assert!(!settled);
    assert_eq!(error.condition, "com.microsoft:dead-letter");
    assert_eq!(error.info.get("DeadLetterReason"), Some(&Value::from("reason")));
    assert_eq!(error.info.get("DeadLetterErrorDescription"), Some(&Value::from("why")));
}

#[test]
fn js_defer() {
    let (_, state) = disposed("js-defer");
    let DeliveryState::Modified { delivery_failed: false, undeliverable_here: true, message_annotations } = state
    else {
        panic!("{state:?}")
    };
    assert_eq!(message_annotations.len(), 1);
}

#[test]
fn python_booleans() {
    let (settled, state) = disposed("python-booleans");
    assert!(!settled);
    let message_annotations = Map::new();
    assert_eq!(
        state,
        DeliveryState::Modified { delivery_failed: true, undeliverable_here: false, message_annotations }
    );
}

#[test]
fn python_dead_letter() {
    let (_, state) = disposed("python-dead-letter");
    let DeliveryState::Rejected(Some(error)) = state else { panic!("{state:?}") };
    assert_eq!(error.info.get("DeadLetterReason"), Some(&Value::from("r")));
}

#[test]
fn js_drain_without_credit() {
    let mut client = Client::ready(Config::default());
    let link = client.receiver(0, 1);
    let payload = Bytes::from_static(b"x");
    let message = crate::connection::Outgoing { tag: Bytes::new(), payload, format: 0, settled: true };
    client.server.deliver(link, message).expect("credit");
    client.said();
    client.write(&golden("frames", "js-drain-without-credit"));
    assert_eq!(client.event(), Event::CreditChanged { link, credit: 0, drain: true });
    client.server.drained(link).expect("there");
    let Performative::Flow(flow) = client.frame() else { panic!() };
    assert_eq!((flow.delivery_count, flow.link_credit, flow.drain), (Some(1), Some(0), true));
}

fn asked(name: &str) -> (Source, Map) {
    let mut client = Client::ready(Config::default());
    client.write(&golden("frames", name));
    let Event::AttachRequested { link, attach } = client.event() else { panic!("{name}") };
    assert_eq!(attach.role, Role::Receiver);
    client.server.accept_attach(link, Accept::mirror(&attach)).expect("there");
    (attach.source.clone().expect("a source"), attach.properties.clone())
}

#[test]
fn session_filters() {
    let filter = "com.microsoft:session-filter";
    let (source, properties) = asked("js-attach-next-session");
    assert_eq!(source.filter(filter), Some(&Value::Null));
    assert_eq!(properties.get("com.microsoft:timeout").and_then(Value::as_u64), Some(5000));
    let (source, properties) = asked("python-attach-session");
    assert_eq!(source.filter(filter), Some(&Value::from("s1")));
    assert_eq!(source.address.as_deref(), Some("amqps://localhost/s"));
    assert_eq!(properties.get("com.microsoft:timeout").and_then(Value::as_u64), Some(5000));
    let (source, _) = asked("rust-attach-session");
    assert_eq!(source.filter(filter), Some(&Value::from("s1")));
    assert_eq!(source.filters.get(filter), Some(&Value::described(0x0000_0137_0000_000c, Value::from("s1"))));
}

#[test]
fn opens_and_begins() {
    for (name, idle) in [("js-open-begin", Some(60_000)), ("python-open-begin", None)] {
        let mut client = opened(name);
        let events = client.events();
        let [Event::Opened { open }, Event::SessionBegun { .. }] = events.as_slice() else {
            panic!("{name}: {events:?}")
        };
        assert_eq!(open.idle_time_out, idle);
        assert!(open.properties.get("product").is_some());
    }
}

#[test]
fn start_in_one_write() {
    let mut client = opened("start-in-one-write");
    let events = client.events();
    let [Event::Opened { .. }, Event::SessionBegun { .. }, Event::AttachRequested { link, attach }] = events.as_slice()
    else {
        panic!("{events:?}")
    };
    client.server.accept_attach(*link, Accept::mirror(attach)).expect("there");
    assert_eq!(client.event(), Event::CreditChanged { link: *link, credit: 10, drain: false });
}

fn delivered(name: &str) -> crate::connection::Delivery {
    let mut client = Client::ready(Config::default());
    client.sender(0, 10);
    client.write(&golden("frames", name));
    let Event::Delivery(delivery) = client.event() else { panic!("{name}") };
    delivery
}

#[test]
fn python_transfer_in_three() {
    assert_eq!(delivered("python-transfer-in-three").payload, golden("messages", "python-uuid-id"));
}

#[test]
fn js_batch() {
    let delivery = delivered("js-batch");
    assert_eq!(delivery.format, message::BATCH_FORMAT);
    assert_eq!(delivery.payload, golden("messages", "js-batch"));
    let batch = message::batch(delivery.payload).expect("sound");
    assert_eq!(batch.messages.len(), 2);
    assert_eq!(batch.messages[0], golden("messages", "js-string-id"));
    let second = Sections::find(batch.messages[1].clone()).expect("sound");
    let id = second.properties().expect("sound").expect("there").message_id;
    assert_eq!(id, Some(MessageId::String("id-2".to_owned())));
}

#[test]
fn message_ids() {
    let id = |name: &str| sections(name).properties().expect("sound").expect("there").message_id;
    assert_eq!(id("js-string-id"), Some(MessageId::String("id-1".to_owned())));
    assert_eq!(id("python-uuid-id"), Some(MessageId::Uuid([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16])));
    assert_eq!(id("rust-ulong-id"), Some(MessageId::Ulong(0)));
}

#[test]
fn parts_of_messages() {
    let js = sections("js-string-id");
    assert_eq!(js.header().expect("sound").expect("there").ttl, Some(60_000));
    assert_eq!(js.message_annotations().expect("sound").get("x-opt-partition-key"), Some(&Value::from("s1")));
    assert_eq!(js.properties().expect("sound").expect("there").group_id.as_deref(), Some("s1"));
    assert_eq!(js.application_properties().expect("sound").get("b"), Some(&Value::Bool(true)));
    assert_eq!(js.data().expect("sound"), [Bytes::from_static(b"{\"a\":1}")]);
    let python = sections("python-uuid-id");
    let annotations = python.message_annotations().expect("sound");
    assert_eq!(annotations.get("x-opt-scheduled-enqueue-time"), Some(&Value::Timestamp(1_700_000_000_000)));
    assert_eq!(python.application_properties().expect("sound").get("ok"), Some(&Value::Bool(true)));
    let request = sections("js-value").value().expect("sound").expect("a value");
    let tokens = request.as_map().and_then(|map| map.get("lock-tokens")).and_then(Value::as_items);
    assert_eq!(tokens, Some(&[Value::Uuid([7; 16])][..]));
    assert_eq!(Symbol::from("x"), "x");
}

/// A file that no test names would prove nothing.
#[test]
fn every_file_has_its_test() {
    let source = include_str!("corpus.rs");
    for kind in ["frames", "messages"] {
        for (name, _) in folder(kind) {
            assert!(source.contains(&format!("\"{name}\"")), "no test names corpus/{kind}/{name}.hex");
        }
    }
}
