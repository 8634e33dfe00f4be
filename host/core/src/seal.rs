//! The host's signature on messages of its own (P31): without it, what makes a message a stand-in does not count.

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::message::{Message, Value, property};

/// Signs and checks with the key of `[host] control_key`.
#[derive(Clone)]
pub struct Seal(Hmac<Sha256>);

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}

/// The properties that a signature covers, together with the message's ids.
const COVERED: [&str; 5] = [
    property::MESSAGE_TYPE,
    property::EVENT_ID,
    property::EVENT_TYPE_ID,
    property::INBOX_MESSAGE_ID,
    property::RETRY_COUNT,
];

/// What it covers of a parked copy besides: its place in the order, and what it takes along. A message without the first of these was not parked
/// by copying, and its signature does not cover them.
const COVERED_WHEN_PARKED: [&str; 3] = [property::DEFERRAL_SEQUENCE, property::PLACE, property::ACTION_ID];

impl Seal {
    pub fn new(key: &[u8]) -> Self {
        Self(Hmac::new_from_slice(key).expect("HMAC takes keys of any length"))
    }

    pub fn sign(&self, message: &mut Message) {
        let code = self.code(message).finalize().into_bytes();
        message.set_property(property::SIGNATURE, Value::Binary(bytes::Bytes::copy_from_slice(&code)));
    }

    /// In constant time.
    pub fn holds(&self, message: &Message) -> bool {
        match message.property(property::SIGNATURE) {
            Some(Value::Binary(code)) => self.code(message).verify_slice(code).is_ok(),
            _ => false,
        }
    }

    fn code(&self, message: &Message) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        let mut part = |text: Option<&str>| {
            let text = text.unwrap_or_default();
            mac.update(&(text.len() as u64).to_be_bytes());
            mac.update(text.as_bytes());
        };
        part(message.message_id.as_ref().map(AsRef::as_ref));
        part(message.session_id.as_ref().map(AsRef::as_ref));
        let parked: &[&str] = match message.property(property::DEFERRAL_SEQUENCE) {
            Some(_) => &COVERED_WHEN_PARKED,
            None => &[],
        };
        for name in COVERED.iter().chain(parked) {
            match message.property(name) {
                Some(value) => part(Some(
                    &value.as_i64().map_or_else(|| value.as_str().unwrap_or_default().to_owned(), |n| n.to_string()),
                )),
                None => part(None),
            }
        }
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_message_or_another_key_does_not_hold() {
        let seal = Seal::new(b"key");
        let mut message = Message { message_id: Some("r1".into()), session_id: Some("s".into()), ..Default::default() };
        message.set_property(property::MESSAGE_TYPE, Value::string("RetryRequest"));
        message.set_property(property::RETRY_COUNT, Value::Int(2));
        assert!(!seal.holds(&message), "not signed");
        seal.sign(&mut message);
        assert!(seal.holds(&message));
        assert!(!Seal::new(b"other").holds(&message));
        let mut forged = message.clone();
        forged.set_property(property::INBOX_MESSAGE_ID, Value::string("m1"));
        assert!(!seal.holds(&forged), "a forged InboxMessageId");
        let mut moved = message.clone();
        moved.session_id = Some("t".into());
        assert!(!seal.holds(&moved), "replayed into another session");
        let mut parked = message.clone();
        parked.set_property(property::DEFERRAL_SEQUENCE, Value::Uint(1));
        assert!(!seal.holds(&parked), "said to be a parked copy");
        seal.sign(&mut parked);
        assert!(seal.holds(&parked));
        for (name, value) in [(property::DEFERRAL_SEQUENCE, Value::Uint(2)), (property::ACTION_ID, Value::Long(1))] {
            let mut changed = parked.clone();
            changed.set_property(name, value);
            assert!(!seal.holds(&changed), "{name} of a parked copy");
        }
        parked.properties.remove(property::DEFERRAL_SEQUENCE);
        assert!(!seal.holds(&parked), "a parked copy that is said to be none");
    }
}
