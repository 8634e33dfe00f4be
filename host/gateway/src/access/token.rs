//! Reads a shared access signature.
//!
//! All official clients sign the text that they then send as `sr`, percent-encoded and as it is in the token, so it is never encoded anew
//! here. How they encode differs: Python with `quote_plus` (a space is `+`), JavaScript with `encodeURIComponent`, and its administration
//! client in lower case throughout, `%3a` included, with the query of the request in it and without encoding the key's name. Python encodes
//! the key's name twice. Order of the fields differs too.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, Mac};
use percent_encoding::percent_decode_str;
use sha2::Sha256;
use sprag_core::time::Timestamp;

use super::{Denied, normalized};

const PREFIX: &str = "SharedAccessSignature ";
/// Azure's own take up to some hundred bytes; this is against being made to work for nothing.
const MAX_LENGTH: usize = 4_096;

pub(super) struct Token {
    /// Of the resource, [`normalized`].
    pub(super) path: String,
    pub(super) key_name: String,
    pub(super) expires_at: Timestamp,
    signed: String,
    signature: Vec<u8>,
}

impl Token {
    pub(super) fn read(text: &str, host: Option<&str>) -> Result<Self, Denied> {
        let malformed = |problem| Err(Denied::Malformed(problem));
        if text.len() > MAX_LENGTH {
            return malformed("it is too long");
        }
        let text = text.trim();
        let Some((prefix, fields)) = text.split_at_checked(PREFIX.len()) else {
            return malformed("it is no shared access signature");
        };
        if !prefix.eq_ignore_ascii_case(PREFIX) {
            return malformed("it is no shared access signature");
        }
        let (mut resource, mut signature, mut expiry, mut key_name) = (None, None, None, None);
        for field in fields.trim().split('&') {
            let Some((name, value)) = field.split_once('=') else { return malformed("a field has no value") };
            let place = match name.trim() {
                "sr" => &mut resource,
                "sig" => &mut signature,
                "se" => &mut expiry,
                "skn" => &mut key_name,
                _ => continue,
            };
            if place.replace(value).is_some() {
                return malformed("a field is there twice");
            }
        }
        let (Some(resource), Some(signature), Some(expiry), Some(key_name)) = (resource, signature, expiry, key_name)
        else {
            return malformed("one of sr, sig, se and skn is missing");
        };
        let Ok(seconds) = expiry.parse::<u64>() else { return malformed("se is no number of seconds") };
        let expires_at = Timestamp(i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000));
        // Base64 has no spaces, so a plus is a plus here, however it was encoded.
        let signature = percent_decode_str(signature).collect::<Vec<u8>>();
        let Ok(signature) = STANDARD.decode(signature) else { return malformed("sig is not base64") };
        let Some(path) = decoded(resource).as_deref().and_then(|it| path_of(it, host)) else {
            return malformed("sr is no address");
        };
        let Some(key_name) = decoded(key_name) else { return malformed("skn is not UTF-8") };
        Ok(Self { path, key_name, expires_at, signed: format!("{resource}\n{expiry}"), signature })
    }

    pub(super) fn names(&self, key: &str) -> bool {
        self.key_name == key || decoded(&self.key_name).is_some_and(|name| name == key)
    }

    pub(super) fn is_signed_with(&self, secret: &[u8]) -> bool {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key of any length will do");
        mac.update(self.signed.as_bytes());
        mac.verify_slice(&self.signature).is_ok()
    }
}

fn decoded(text: &str) -> Option<String> {
    let text = text.replace('+', " ");
    Some(percent_decode_str(&text).decode_utf8().ok()?.into_owned())
}

/// The path of `scheme://host/path?query`. Without a scheme nothing tells an entity from a host, so that is refused but for the host that the
/// caller knows: taking one for the other would open the whole namespace.
fn path_of(resource: &str, host: Option<&str>) -> Option<String> {
    let Some((_, rest)) = resource.split_once("://") else {
        return host.is_some_and(|host| resource.trim_end_matches('/').eq_ignore_ascii_case(host)).then(String::new);
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    Some(rest.split_once('/').map(|(_, path)| normalized(path)).unwrap_or_default())
}
