//! Ids that are computed: the inbox key, and the ids of stand-ins and outgoing messages.

use sha2::{Digest as _, Sha256};

use crate::ids::{EndpointName, MessageId};

/// Longest message id the inbox takes, in UTF-16 units (spec 3, step 1).
pub const MAX_MESSAGE_ID: usize = 512;
/// Longest endpoint name, in UTF-16 units.
pub const MAX_ENDPOINT: usize = 260;

/// The inbox's key for (endpoint, message id), byte-exact (spec 4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdentityHash(pub [u8; 32]);

impl IdentityHash {
    /// SHA-256 over: decimal length of the endpoint in UTF-16 units, U+001F, endpoint, U+001F, message id, in UTF-8.
    pub fn of(endpoint: &EndpointName, message_id: &MessageId) -> Self {
        let mut hash = Sha256::new();
        hash.update(utf16_len(endpoint.as_str()).to_string());
        hash.update([0x1f]);
        hash.update(endpoint.as_str());
        hash.update([0x1f]);
        hash.update(message_id.as_str());
        Self(hash.finalize().into())
    }
}

impl std::fmt::Debug for IdentityHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

/// Why a message id cannot be a key of the inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error("the message has no id")]
    Missing,
    #[error("the message id is blank")]
    Blank,
    #[error("the message id has {0} UTF-16 units; at most {MAX_MESSAGE_ID} can be recorded")]
    TooLong(usize),
}

/// The id, if the inbox can use it.
pub fn usable(id: Option<&MessageId>) -> Result<&MessageId, Unusable> {
    let id = id.ok_or(Unusable::Missing)?;
    if id.as_str().trim().is_empty() {
        return Err(Unusable::Blank);
    }
    match utf16_len(id.as_str()) {
        len if len > MAX_MESSAGE_ID => Err(Unusable::TooLong(len)),
        _ => Ok(id),
    }
}

pub fn utf16_len(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.encode_utf16().count() }
}

/// The id of the `ordinal`-th message that `handler` sends while it handles `source` (P30): the same in every run.
pub fn outgoing_id(endpoint: &EndpointName, source: &str, handler: &str, ordinal: u32) -> MessageId {
    derived(&["outgoing", endpoint.as_str(), source, handler, &ordinal.to_string()])
}

/// The id of the retry that follows attempt `attempt` of the event whose first delivery was `source`.
pub fn retry_id(endpoint: &EndpointName, source: &str, attempt: u32) -> MessageId {
    derived(&["retry", endpoint.as_str(), source, &attempt.to_string()])
}

/// The id of the message that ends the handoff decided by attempt `attempt` of `source`.
pub fn handoff_expiry_id(endpoint: &EndpointName, source: &str, attempt: u32) -> MessageId {
    derived(&["handoff-expired", endpoint.as_str(), source, &attempt.to_string()])
}

/// Hex SHA-256 over the parts, each led by its length in bytes and a colon.
fn derived(parts: &[&str]) -> MessageId {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(format!("{}:", part.len()));
        hash.update(part);
    }
    MessageId::from(hex(&hash.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(endpoint: &str, id: &str) -> String {
        hex(&IdentityHash::of(&endpoint.into(), &id.into()).0)
    }

    /// The vectors of `reference/nimbus-barewire.md` 1.15: a table shared with NimBus depends on them.
    #[test]
    fn identity_hash_vectors() {
        for (endpoint, id, digest) in [
            ("BillingEndpoint", "m1", "45dfc57a1f0406b519d5f26feb6dcb8673488873ddce00dae7b0beea28bea6d8"),
            ("BillingEndpoint", "m1 ", "37e1d35fed803214072ffce1a5ab0c264156c84193bface44f7eb6a2c65ffddd"),
            ("billingendpoint", "m1", "8d65312ee1311951088f68a15a148385ff8c1b2b8d54dbac7e2905595d817ddb"),
            ("BillingEndpoint", "M1", "82312d0cfa4b662a2e5bef22a54237df2c33a0ca6314255e074c6126b5e26de0"),
            ("Ærø", "ordre-7", "c6a4659781703e94b23059e280ecdf39e777d0de061fbb555504ad4ad32fc6f6"),
            ("x😀", "1", "4d3fb2894b88d86469a1a506bb01d32d3a999ae70dc44dde50e504f4d2f78b60"),
            ("1", "0\u{1f}1", "21bc6b885c75cf965655d4a5159f652de9bcb10885db11345076b672c285ec7b"),
        ] {
            assert_eq!(hash(endpoint, id), digest, "{endpoint} {id:?}");
        }
    }

    /// Case A18: names chosen so that plain concatenation would collide.
    #[test]
    fn endpoints_never_share_a_key() {
        assert_ne!(hash("ab", "c"), hash("a", "bc"));
        assert_ne!(hash("Orders", "1"), hash("orders", "1"));
    }

    #[test]
    fn usable_ids() {
        let id = |text: String| MessageId::from(text);
        assert_eq!(usable(None), Err(Unusable::Missing));
        assert_eq!(usable(Some(&id(" \t".into()))), Err(Unusable::Blank));
        assert!(usable(Some(&id("x".repeat(512)))).is_ok());
        assert_eq!(usable(Some(&id("x".repeat(513)))), Err(Unusable::TooLong(513)));
        assert!(usable(Some(&id("😀".repeat(256)))).is_ok(), "a character outside the basic plane counts two");
        assert_eq!(usable(Some(&id("😀".repeat(257)))), Err(Unusable::TooLong(514)));
    }

    #[test]
    fn derived_ids_are_stable_and_apart() {
        let endpoint = EndpointName::from("billing");
        assert_eq!(outgoing_id(&endpoint, "m1", "payment", 0), outgoing_id(&endpoint, "m1", "payment", 0));
        assert_ne!(outgoing_id(&endpoint, "m1", "payment", 0), outgoing_id(&endpoint, "m1", "payment", 1));
        assert_ne!(outgoing_id(&endpoint, "m", "1payment", 0), outgoing_id(&endpoint, "m1", "payment", 0));
        assert_ne!(retry_id(&endpoint, "m1", 1), handoff_expiry_id(&endpoint, "m1", 1));
    }
}
