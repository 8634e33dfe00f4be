//! Everything that a sender can write survives the way in and out again.

use bytes::Bytes;
use sprag_amqp::{
    message::{
        self as wire, Header, MessageId, Properties, Sections, write_application_properties, write_data, write_footer,
        write_sequence, write_value,
    },
    value::{Array, Map, Symbol, Value as Wire},
};
use sprag_broker::client::{ClientMessage, Lock, MessageState};
use sprag_core::{
    ids::SequenceNumber,
    message::{Body, IdKind, LockToken, Message, Value},
    time::Timestamp,
};

use super::{Handed, Unreadable, read, write};

/// One value of every type, some within each other.
fn every_value() -> Vec<Wire> {
    let described = Wire::described(7, Wire::from("inner"));
    vec![
        Wire::Null,
        Wire::Bool(true),
        Wire::Ubyte(u8::MAX),
        Wire::Ushort(u16::MAX),
        Wire::Uint(u32::MAX),
        Wire::Ulong(u64::MAX),
        Wire::Byte(i8::MIN),
        Wire::Short(i16::MIN),
        Wire::Int(i32::MIN),
        Wire::Long(i64::MIN),
        Wire::Float(1.5_f32.to_bits()),
        Wire::Double((-0.1_f64).to_bits()),
        Wire::Decimal32([1; 4]),
        Wire::Decimal64([2; 8]),
        Wire::Decimal128([3; 16]),
        Wire::Char('ß'.into()),
        Wire::Timestamp(1_796_000_000_123),
        Wire::Uuid([9; 16]),
        Wire::Binary(Bytes::from_static(&[0, 255])),
        Wire::from("text"),
        Wire::Symbol(Symbol::from_static("symbol")),
        Wire::List(vec![Wire::Int(1), described.clone()]),
        Wire::Map(Map(vec![(Wire::Int(1), Wire::Null), (Wire::from("a"), Wire::List(Vec::new()))])),
        Array::longs([1, i64::MAX]),
        Array::from_items(vec![described.clone(), Wire::described(7, Wire::from("other"))]).unwrap(),
        described,
    ]
}

fn map(pairs: impl IntoIterator<Item = (&'static str, Wire)>) -> Map {
    Map(pairs.into_iter().map(|(key, value)| (Wire::from(key), value)).collect())
}

fn full_properties() -> Properties {
    Properties {
        message_id: Some(MessageId::Uuid([5; 16])),
        user_id: Some(Bytes::from_static(b"user")),
        to: Some("to".into()),
        subject: Some("subject".into()),
        reply_to: Some("reply".into()),
        correlation_id: Some(MessageId::Ulong(77)),
        content_type: Some("application/json".into()),
        content_encoding: Some("gzip".into()),
        absolute_expiry_time: Some(1_796_000_900_000),
        creation_time: Some(1_796_000_000_000),
        group_id: Some("session".into()),
        group_sequence: Some(3),
        reply_to_group_id: Some("other session".into()),
    }
}

fn delivery(message: Message) -> ClientMessage {
    ClientMessage {
        sequence: SequenceNumber(12),
        enqueue_sequence: SequenceNumber(11),
        state: MessageState::Active,
        lock: Some(Lock { token: LockToken(3), until: Timestamp(1_796_000_030_000) }),
        delivery_count: 3,
        enqueued_at: Timestamp(1_796_000_000_000),
        expires_at: None,
        id_assigned: false,
        message: message.into(),
    }
}

/// In, and out again as a receiver gets it.
fn there_and_back(encoded: Vec<u8>) -> Sections {
    let message = read(encoded.into()).expect("readable");
    let mut out = Vec::new();
    write(&mut out, &delivery(message), Handed::Locked([8; 16]));
    Sections::find(out.into()).expect("a sound message")
}

#[test]
fn properties_and_application_properties_survive() {
    let values = every_value();
    let names: Vec<String> = (0..values.len()).map(|n| format!("p{n:02}")).collect();
    let application: Map = names.into_iter().zip(values).collect();
    let mut encoded = Vec::new();
    full_properties().write(&mut encoded);
    write_application_properties(&mut encoded, &application);
    write_data(&mut encoded, b"body");
    let back = there_and_back(encoded);
    assert_eq!(back.properties().unwrap().unwrap(), full_properties());
    assert_eq!(back.application_properties().unwrap(), application);
}

#[test]
fn ids_of_every_type_survive() {
    for id in [
        MessageId::Ulong(u64::MAX),
        MessageId::Uuid([1; 16]),
        MessageId::Binary(Bytes::from_static(&[1, 2])),
        MessageId::String("m-1".into()),
    ] {
        let properties = Properties { message_id: Some(id.clone()), correlation_id: Some(id), ..Properties::default() };
        let mut encoded = Vec::new();
        properties.write(&mut encoded);
        write_data(&mut encoded, b"");
        assert_eq!(there_and_back(encoded).properties().unwrap().unwrap(), properties);
    }
}

#[test]
fn bodies_of_every_kind_survive() {
    let mut one = Vec::new();
    write_data(&mut one, b"data");
    let mut empty = Vec::new();
    write_data(&mut empty, b"");
    let mut several = one.clone();
    write_data(&mut several, b"more");
    let mut lists = Vec::new();
    write_sequence(&mut lists, &Wire::List(every_value()));
    write_sequence(&mut lists, &Wire::List(Vec::new()));
    let mut bodies = vec![one, empty, several, lists];
    for value in every_value() {
        let mut body = Vec::new();
        write_value(&mut body, &value);
        bodies.push(body);
    }
    for body in bodies {
        assert_eq!(there_and_back(body.clone()).body(), body);
    }
}

/// A message without a body is not one with an empty body.
#[test]
fn no_body_stays_no_body() {
    let mut encoded = Vec::new();
    full_properties().write(&mut encoded);
    let message = read(encoded.clone().into()).unwrap();
    assert_eq!(message.body, Body::None);
    assert_eq!(there_and_back(encoded).body_kind(), None);
}

#[test]
fn the_senders_annotations_header_and_footer_survive() {
    let mut annotations = map([("x-opt-mine", Wire::Int(1)), ("x-opt-partition-key", Wire::from("key"))]);
    annotations.0.push((Wire::from("x-opt-via-partition-key"), Wire::from("via")));
    let mut delivery_annotations = Map::new();
    delivery_annotations.set(Symbol::from_static("x-opt-only-for-you"), Wire::Bool(true));
    let mut bare = Vec::new();
    write_data(&mut bare, b"body");
    let footer = map([("checksum", Wire::Ulong(5))]);
    write_footer(&mut bare, &footer);
    let header = Header { durable: true, priority: 9, ttl: Some(60_000), first_acquirer: true, ..Header::default() };
    let mut encoded = Vec::new();
    wire::write(&mut encoded, Some(&header), &delivery_annotations, &annotations, &bare);

    let message = read(encoded.clone().into()).unwrap();
    assert_eq!(message.partition_key.as_deref(), Some("key"));
    assert_eq!(message.time_to_live, Some(std::time::Duration::from_secs(60)));
    let back = there_and_back(encoded);
    let found = back.message_annotations().unwrap();
    assert_eq!(found.get("x-opt-mine"), Some(&Wire::Int(1)));
    assert_eq!(found.get("x-opt-partition-key"), Some(&Wire::from("key")));
    assert_eq!(found.get("x-opt-via-partition-key"), Some(&Wire::from("via")));
    assert_eq!(back.footer().unwrap(), footer);
    let header = back.header().unwrap().unwrap();
    assert_eq!((header.durable, header.priority, header.ttl), (true, 9, Some(60_000)));
    // Those were for the broker, and they are not for the receiver.
    assert_eq!(back.delivery_annotations().unwrap().get("x-opt-only-for-you"), None);
}

/// A sender that forwards what it has received does not name the broker's numbers.
#[test]
fn what_is_the_brokers_word_is_not_taken_from_a_sender() {
    let annotations = map([
        ("x-opt-sequence-number", Wire::Long(99)),
        ("x-opt-locked-until", Wire::Timestamp(1)),
        ("x-opt-deadletter-source", Wire::from("elsewhere")),
    ]);
    let mut bare = Vec::new();
    write_data(&mut bare, b"body");
    let mut encoded = Vec::new();
    wire::write(&mut encoded, None, &Map::new(), &annotations, &bare);
    let back = there_and_back(encoded).message_annotations().unwrap();
    assert_eq!(back.get("x-opt-sequence-number"), Some(&Wire::Long(12)));
    assert_eq!(back.get("x-opt-locked-until"), Some(&Wire::Timestamp(1_796_000_030_000)));
    assert_eq!(back.get("x-opt-deadletter-source"), None);
}

#[test]
fn what_a_receiver_is_told_of_a_delivery() {
    let message = Message { body: Body::Data(Bytes::from_static(b"x")), ..Message::default() };
    let told = |handed, message: &ClientMessage| {
        let mut out = Vec::new();
        write(&mut out, message, handed);
        Sections::find(out.into()).unwrap()
    };
    let mut message = delivery(message);
    message.expires_at = Some(message.enqueued_at.after(std::time::Duration::from_secs(5)));
    message.state = MessageState::Deferred;

    let locked = told(Handed::Locked([8; 16]), &message);
    assert_eq!(locked.header().unwrap().unwrap().delivery_count, 2, "earlier ones that have failed");
    assert_eq!(locked.header().unwrap().unwrap().ttl, Some(5_000));
    assert_eq!(locked.delivery_annotations().unwrap().get("x-opt-lock-token"), Some(&Wire::Uuid([8; 16])));
    let annotations = locked.message_annotations().unwrap();
    assert_eq!(annotations.get("x-opt-sequence-number"), Some(&Wire::Long(12)));
    assert_eq!(annotations.get("x-opt-enqueue-sequence-number"), Some(&Wire::Long(11)));
    assert_eq!(annotations.get("x-opt-enqueued-time"), Some(&Wire::Timestamp(1_796_000_000_000)));
    assert_eq!(annotations.get("x-opt-message-state"), Some(&Wire::Int(1)));

    let shown = told(Handed::Shown, &message);
    assert_eq!(shown.header().unwrap().unwrap().delivery_count, 3);
    assert_eq!(shown.message_annotations().unwrap().get("x-opt-locked-until"), None);
    assert!(shown.delivery_annotations().unwrap().is_empty());
}

/// The header's field ends at 49 days; the SDKs write both, and the times count then.
#[test]
fn a_life_longer_than_the_header_can_say() {
    let year = 365 * 86_400_000;
    let properties = Properties {
        creation_time: Some(1_796_000_000_000),
        absolute_expiry_time: Some(1_796_000_000_000 + year),
        ..Properties::default()
    };
    let mut bare = Vec::new();
    properties.write(&mut bare);
    let mut encoded = Vec::new();
    let header = Header { ttl: Some(u32::MAX), ..Header::default() };
    wire::write(&mut encoded, Some(&header), &Map::new(), &Map::new(), &bare);
    let ttl = read(encoded.into()).unwrap().time_to_live.unwrap();
    assert_eq!(ttl.as_millis(), u128::from(year.cast_unsigned()));
}

#[test]
fn what_is_no_message_is_refused() {
    let mut nameless = Vec::new();
    write_application_properties(&mut nameless, &Map(vec![(Wire::Int(1), Wire::Null)]));
    assert_eq!(read(nameless.into()), Err(Unreadable::NamelessProperty));
    let mut no_character = Vec::new();
    write_value(&mut no_character, &Wire::Char(0xd800));
    assert_eq!(read(no_character.into()), Err(Unreadable::NoCharacter(0xd800)));
    assert!(matches!(read(Bytes::from_static(b"nonsense")), Err(Unreadable::Encoding(_))));
}

/// What the engine made itself (a worker's message) has no types of its own to keep.
#[test]
fn messages_of_the_host_are_written_too() {
    let mut message = Message {
        message_id: Some("id".into()),
        session_id: Some("s".into()),
        body: Body::Value(Value::Array(vec![Value::Int(1), Value::string("mixed")])),
        ..Message::default()
    };
    message.rare_mut().message_id_kind = IdKind::Uuid;
    let mut out = Vec::new();
    write(&mut out, &delivery(message), Handed::Deleted);
    let back = Sections::find(out.into()).unwrap();
    assert_eq!(back.properties().unwrap().unwrap().message_id, Some(MessageId::String("id".into())));
    assert_eq!(back.value().unwrap(), Some(Wire::List(vec![Wire::Int(1), Wire::from("mixed")])));
}
