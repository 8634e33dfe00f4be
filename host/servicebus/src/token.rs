//! Tokens: what a client shows to `$cbs` before it opens a link.

use std::time::Duration;

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, Mac};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::Sha256;
use sprag_core::time::Timestamp;

use crate::{clock, connection_string::Credential};

/// What is shown.
#[derive(Clone)]
pub struct Token {
    pub text: String,
    /// The type, as `$cbs` calls it.
    pub kind: &'static str,
    pub expires_at: Timestamp,
}

/// Why there is no token.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TokenError {
    /// Asking again may help.
    #[error("no token: {0}")]
    Unavailable(String),
    /// Asking again does not.
    #[error("no token: {0}")]
    Denied(String),
}

/// Gives tokens. Keys and signatures are here; another credential (an identity of the platform) is another implementation.
#[async_trait]
pub trait TokenSource: Send + Sync + 'static {
    /// A token for a resource, as `sb://host/entity`.
    async fn token(&self, audience: &str) -> Result<Token, TokenError>;
}

/// How long a token that we make is good for.
const LIFE: Duration = Duration::from_secs(3_600);
const SAS: &str = "servicebus.windows.net:sastoken";
/// What .NET leaves as it is when it encodes a URI's part.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

#[async_trait]
impl TokenSource for Credential {
    async fn token(&self, audience: &str) -> Result<Token, TokenError> {
        match self {
            Self::Key { name, key } => Ok(signed(audience, name, key, clock::now().after(LIFE))),
            Self::Signature(text) => {
                let expires_at = end_of(text)
                    .ok_or_else(|| TokenError::Denied("the signature does not say when it ends (se)".to_owned()))?;
                if expires_at <= clock::now() {
                    return Err(TokenError::Denied(format!("the signature ended at {expires_at}")));
                }
                Ok(Token { text: text.clone(), kind: SAS, expires_at })
            }
        }
    }
}

/// `SharedAccessSignature sr=…&sig=…&se=…&skn=…`: an HMAC over the encoded resource and the end.
fn signed(audience: &str, name: &str, key: &str, expires_at: Timestamp) -> Token {
    let resource = utf8_percent_encode(audience, ENCODED).to_string();
    let end = expires_at.0.div_euclid(1_000);
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("a key of any length is one");
    mac.update(format!("{resource}\n{end}").as_bytes());
    let signature = STANDARD.encode(mac.finalize().into_bytes());
    let text = format!(
        "SharedAccessSignature sr={resource}&sig={}&se={end}&skn={}",
        utf8_percent_encode(&signature, ENCODED),
        utf8_percent_encode(name, ENCODED)
    );
    Token { text, kind: SAS, expires_at: Timestamp(end * 1_000) }
}

fn end_of(signature: &str) -> Option<Timestamp> {
    let fields = signature.strip_prefix("SharedAccessSignature ").unwrap_or(signature);
    let end: i64 = fields.split('&').find_map(|field| field.strip_prefix("se="))?.parse().ok()?;
    end.checked_mul(1_000).map(Timestamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the broker's own check, which the official SDKs pass.
    #[test]
    fn the_broker_takes_what_we_sign() {
        use sprag_gateway::access::{Access, Denied, Key, Rights};
        let now = Timestamp(1_796_000_000_000);
        let access = Access::with_keys([Key::new("Root key", "s3cret+/=", Rights::ALL)]);
        let token = signed("sb://127.0.0.1/orders.deferred", "Root key", "s3cret+/=", now.after(LIFE));
        let grant = access.check(&token.text, now).expect("it is signed");
        assert_eq!((grant.path.as_str(), grant.expires_at), ("orders.deferred", token.expires_at));
        let forged = signed("sb://127.0.0.1/orders.deferred", "Root key", "guess", now.after(LIFE));
        assert!(matches!(access.check(&forged.text, now), Err(Denied::WrongSignature { .. })));
    }

    #[tokio::test]
    async fn a_signature_that_has_ended_is_not_shown() {
        let ended = Credential::Signature("SharedAccessSignature sr=x&sig=y&se=1000&skn=z".to_owned());
        assert!(matches!(ended.token("x").await, Err(TokenError::Denied(_))));
        let endless = Credential::Signature("SharedAccessSignature sr=x&sig=y&skn=z".to_owned());
        assert!(matches!(endless.token("x").await, Err(TokenError::Denied(_))));
        let good = Credential::Signature("SharedAccessSignature sr=x&sig=y&se=9999999999&skn=z".to_owned());
        assert_eq!(good.token("x").await.map(|token| token.expires_at.0).ok(), Some(9_999_999_999_000));
    }
}
