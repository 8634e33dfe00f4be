use bytes::Bytes;

use super::*;
use crate::value::Symbol;

fn sample() -> (Properties, Vec<u8>) {
    let properties = Properties {
        message_id: Some(MessageId::Ulong(7)),
        correlation_id: Some(MessageId::Uuid([9; 16])),
        user_id: Some(Bytes::from_static(b"me")),
        to: Some("to".to_owned()),
        subject: Some("subject".to_owned()),
        reply_to: Some("reply".to_owned()),
        content_type: Some(Symbol::from_static("text/plain")),
        content_encoding: Some(Symbol::from_static("utf-8")),
        absolute_expiry_time: Some(1),
        creation_time: Some(-2),
        group_id: Some("session".to_owned()),
        group_sequence: Some(3),
        reply_to_group_id: Some("other".to_owned()),
    };
    let mut bare = Vec::new();
    properties.write(&mut bare);
    write_application_properties(&mut bare, &[("key".to_owned(), Value::Int(1))].into_iter().collect());
    write_data(&mut bare, b"one");
    write_data(&mut bare, &[7; 300]);
    (properties, bare)
}

#[test]
fn the_bare_message_stays_the_bytes_that_it_was() {
    let (properties, bare) = sample();
    let header = Header { durable: true, ttl: Some(1000), delivery_count: 2, ..Header::default() };
    let annotations: Map = [(Symbol::from_static("x-opt-sequence-number"), Value::Long(5))].into_iter().collect();
    let mut message = Vec::new();
    write(&mut message, Some(&header), &Map::new(), &annotations, &bare);

    let sections = Sections::find(Bytes::from(message)).expect("sound");
    assert_eq!(sections.bare(), bare);
    assert_eq!(sections.header().expect("sound"), Some(header));
    assert_eq!(sections.delivery_annotations().expect("sound"), Map::new());
    assert_eq!(sections.message_annotations().expect("sound"), annotations);
    assert_eq!(sections.properties().expect("sound"), Some(properties));
    assert_eq!(sections.application_properties().expect("sound").get("key"), Some(&Value::Int(1)));
    assert_eq!(sections.body_kind(), Some(BodyKind::Data));
    assert_eq!(sections.data().expect("sound"), [Bytes::from_static(b"one"), Bytes::from(vec![7; 300])]);

    let mut again = Vec::new();
    write(&mut again, None, &Map::new(), &Map::new(), &sections.bare());
    assert_eq!(again, bare, "rebuilt without what the broker adds");
}

/// JavaScript refuses to settle a message without a message-id.
#[test]
fn a_message_without_properties_gets_some() {
    let mut message = Vec::new();
    Header::default().write(&mut message);
    write_value(&mut message, &Value::Null);
    let sections = Sections::find(Bytes::from(message)).expect("sound");
    assert_eq!(sections.properties().expect("sound"), None);
    let with = Properties { message_id: Some(MessageId::String("given".to_owned())), ..Properties::default() };
    let bare = Sections::find(Bytes::from(sections.bare_with(&with))).expect("sound");
    assert_eq!(bare.properties().expect("sound"), Some(with));
    assert_eq!(bare.value().expect("sound"), Some(Value::Null));

    let replaced = Properties { message_id: Some(MessageId::Ulong(1)), ..Properties::default() };
    let bare = Sections::find(Bytes::from(bare.bare_with(&replaced))).expect("sound");
    assert_eq!(bare.properties().expect("sound"), Some(replaced), "there is one properties section only");
}

/// A86: integer 1 and text "1" are not the same id, and none of the four types is lost.
#[test]
fn ids_keep_their_type() {
    let ids = [
        MessageId::Ulong(1),
        MessageId::Ulong(u64::MAX),
        MessageId::String("1".to_owned()),
        MessageId::Uuid([1; 16]),
        MessageId::Binary(Bytes::from_static(b"1")),
    ];
    for id in ids {
        let mut out = Vec::new();
        Properties { message_id: Some(id.clone()), correlation_id: Some(id.clone()), ..Properties::default() }
            .write(&mut out);
        let read = Sections::find(Bytes::from(out)).expect("sound").properties().expect("sound").expect("there");
        assert_eq!((read.message_id, read.correlation_id), (Some(id.clone()), Some(id)));
    }
}

#[test]
fn a_batch_is_its_messages() {
    let (_, one) = sample();
    let mut two = Vec::new();
    write_value(&mut two, &Value::from("two"));
    let mut batched = Vec::new();
    write_data(&mut batched, &one);
    write_data(&mut batched, &two);
    let batch = batch(Bytes::from(batched)).expect("sound");
    assert_eq!(batch.messages, [Bytes::from(one), Bytes::from(two)]);
}

#[test]
fn an_empty_batch_is_refused() {
    let mut value = Vec::new();
    write_value(&mut value, &Value::Null);
    assert!(batch(Bytes::from(value)).is_err());
    let mut empty = Vec::new();
    write_data(&mut empty, b"");
    assert!(batch(Bytes::from(empty)).is_err());
    assert!(batch(Bytes::new()).is_err());
}

/// The JavaScript SDK's rhea writes it so.
#[test]
fn a_footer_before_the_body_is_a_footer() {
    let mut message = Vec::new();
    Properties::default().write(&mut message);
    let start = message.len();
    write_footer(&mut message, &[("foot".to_owned(), Value::Int(1))].into_iter().collect());
    let body = message.len();
    write_value(&mut message, &Value::Int(2));
    let sections = Sections::find(Bytes::from(message.clone())).expect("readable");
    assert_eq!(sections.value().expect("readable"), Some(Value::Int(2)));
    assert_eq!(sections.footer().expect("readable").get("foot"), Some(&Value::Int(1)));
    assert_eq!(
        (sections.raw_footer(), sections.body()),
        (message[start..body].to_vec().into(), message[body..].to_vec().into())
    );
    // Not in front of the properties, nor within the body, nor twice.
    let (footer, mut data, mut properties) = (&message[start..body], Vec::new(), Vec::new());
    write_data(&mut data, b"x");
    Properties::default().write(&mut properties);
    for parts in [[footer, &properties, &data], [&data, footer, &data], [footer, footer, &data]] {
        assert!(Sections::find(Bytes::from(parts.concat())).is_err());
    }
}

#[test]
fn sections_out_of_order_are_refused() {
    let mut value = Vec::new();
    write_value(&mut value, &Value::Null);
    let mut data = Vec::new();
    write_data(&mut data, b"x");
    let mut header = Vec::new();
    Header::default().write(&mut header);
    for (first, second) in [(&value, &header), (&header, &header), (&value, &value), (&data, &value), (&value, &data)] {
        let message = [first.as_slice(), second.as_slice()].concat();
        let error = Sections::find(Bytes::from(message)).expect_err("out of order");
        assert!(matches!(error.problem, Problem::SectionOrder(_)), "{error}");
        assert_eq!(error.at, first.len(), "the error names the second one's place");
    }
    let unknown = [0x00, 0x53, 0x24, 0x45];
    assert!(Sections::find(Bytes::copy_from_slice(&unknown)).is_err());
}

/// A83: a body of no bytes and no body are both messages.
#[test]
fn an_empty_body_is_a_message() {
    let mut message = Vec::new();
    write_data(&mut message, b"");
    let sections = Sections::find(Bytes::from(message)).expect("sound");
    assert_eq!(sections.data().expect("sound"), [Bytes::new()]);
    let mut message = Vec::new();
    Properties::default().write(&mut message);
    let sections = Sections::find(Bytes::from(message)).expect("sound");
    assert_eq!((sections.body_kind(), sections.body()), (None, Bytes::new()));
}

#[test]
fn a_truncated_message_is_an_error() {
    let (_, bare) = sample();
    let mut sound = 0;
    for len in 0..bare.len() {
        let cut = Bytes::copy_from_slice(&bare[..len]);
        match Sections::find(cut) {
            // A cut between two sections leaves a message.
            Ok(_) => sound += 1,
            Err(error) => assert!(error.at <= len, "{error}"),
        }
    }
    assert_eq!(sound, 3, "behind properties, application properties, and the first data section");
}
