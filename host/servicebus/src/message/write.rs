//! A message of the host, as it is sent.

use sprag_amqp::{
    message::{self as wire, Header},
    value::Map,
};
use sprag_core::message::{Message, Rare, Value};

/// The encoded message.
pub(crate) fn encode(message: &Message) -> Vec<u8> {
    let none = Rare::default();
    let rare = message.rare.as_deref().unwrap_or(&none);
    let mut bare = Vec::with_capacity(message.body.len() + 256);
    sprag_messages::write_bare(&mut bare, message);
    let mut out = Vec::with_capacity(bare.len() + 128);
    wire::write(
        &mut out,
        header(message, rare).as_ref(),
        &Map::new(),
        &sprag_messages::sent_annotations(message),
        &bare,
    );
    out
}

/// Whether a value can be an application property: AMQP has simple types there only, and receivers need not understand others.
pub(crate) fn is_simple(value: &Value) -> bool {
    !matches!(value, Value::List(_) | Value::Map(_) | Value::Array(_) | Value::Described(_))
}

/// Left out where there is nothing to say.
fn header(message: &Message, rare: &Rare) -> Option<Header> {
    let usual = Header::default();
    let header = Header {
        durable: rare.durable.unwrap_or(usual.durable),
        priority: rare.priority.unwrap_or(usual.priority),
        // A longer life than the field can say is said by the two times of the properties, as the SDKs do.
        ttl: message.time_to_live.map(|ttl| u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX)),
        ..usual.clone()
    };
    (header != usual).then_some(header)
}
