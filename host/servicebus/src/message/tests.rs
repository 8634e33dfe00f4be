use std::time::Duration;

use sprag_core::{message::Message, time::Timestamp};
use sprag_store::conformance::sample;

use super::*;

/// Every field, every type of property and every kind of body comes back as it was (A83).
#[test]
fn what_is_encoded_is_read_back() {
    let mut full = sample::full_message("m");
    // On the wire an id has the type that its text fits, and the usual priority is no priority.
    full.correlation_id = Some("c0ffee".into());
    full.rare_mut().priority = Some(9);
    assert_eq!(read(encode(&full).into()).expect("it is a message"), full);
    for (name, body) in sample::every_body() {
        let message = Message { body, ..sample::message(name) };
        assert_eq!(read(encode(&message).into()).expect("it is a message"), message, "{name}");
    }
    let later = Message {
        scheduled_for: Some(Timestamp(12)),
        time_to_live: Some(Duration::from_secs(9)),
        ..sample::message("x")
    };
    assert_eq!(read(encode(&later).into()).expect("it is a message"), later);
}

/// AMQP knows simple types only in application properties.
#[test]
fn simple_properties() {
    let names: Vec<_> =
        sample::every_value().into_iter().filter(|(_, value)| !is_simple(value)).map(|it| it.0).collect();
    assert_eq!(names, ["list", "map", "array", "described"]);
}
