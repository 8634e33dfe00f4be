//! Connection strings, as the Azure portal gives them and the SDKs take them.
//!
//! `Endpoint=sb://NAMESPACE[:PORT]/;SharedAccessKeyName=…;SharedAccessKey=…[;EntityPath=…]`, or `SharedAccessSignature=…` in place of name and key.
//! `UseDevelopmentEmulator=true` means plain TCP.

use std::fmt;

use sprag_core::ids::EntityName;

/// The port of AMQP in TLS, and in the clear.
const TLS_PORT: u16 = 5671;
const PLAIN_PORT: u16 = 5672;

/// Where a namespace is, and with what right it is used. Its `Debug` text holds no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectionString {
    pub host: String,
    pub port: u16,
    /// Plain TCP: a development broker.
    pub plain: bool,
    pub credential: Credential,
    /// The only entity that the credential is for.
    pub entity: Option<EntityName>,
}

/// With what right.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// A key, with which tokens are made.
    Key { name: String, key: String },
    /// One token, made elsewhere. When it has ended, so has the right.
    Signature(String),
}

/// Why a text is no connection string. It never repeats a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("the connection string has a part without `=` (part {0})")]
    NoPair(usize),
    #[error("the connection string has no Endpoint")]
    NoEndpoint,
    #[error("the Endpoint of the connection string is not sb://HOST or sb://HOST:PORT")]
    Endpoint,
    #[error("the connection string has neither SharedAccessKeyName and SharedAccessKey nor a SharedAccessSignature")]
    NoCredential,
    #[error("UseDevelopmentEmulator of the connection string is neither `true` nor `false`")]
    Emulator,
}

impl ConnectionString {
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let (mut endpoint, mut name, mut key, mut signature, mut entity) = (None, None, None, None, None);
        let mut plain = false;
        for (at, part) in text.trim().split(';').enumerate().filter(|(_, part)| !part.trim().is_empty()) {
            // Keys and signatures have `=` in them themselves.
            let (field, value) = part.split_once('=').ok_or(Malformed::NoPair(at + 1))?;
            let value = value.trim();
            match field.trim().to_ascii_lowercase().as_str() {
                "endpoint" => endpoint = Some(value),
                "sharedaccesskeyname" => name = Some(value),
                "sharedaccesskey" => key = Some(value),
                "sharedaccesssignature" => signature = Some(value),
                "entitypath" => entity = Some(value).filter(|value| !value.is_empty()),
                "usedevelopmentemulator" => {
                    plain = match value.to_ascii_lowercase().as_str() {
                        "true" => true,
                        "false" => false,
                        _ => return Err(Malformed::Emulator),
                    }
                }
                // The SDKs pass over what they do not know, and so do strings that work with them.
                _ => {}
            }
        }
        let (host, port) = endpoint_of(endpoint.ok_or(Malformed::NoEndpoint)?)?;
        let credential = match (name, key, signature) {
            (Some(name), Some(key), _) if !name.is_empty() && !key.is_empty() => {
                Credential::Key { name: name.to_owned(), key: key.to_owned() }
            }
            (_, _, Some(signature)) if !signature.is_empty() => Credential::Signature(signature.to_owned()),
            _ => return Err(Malformed::NoCredential),
        };
        let port = port.unwrap_or(if plain { PLAIN_PORT } else { TLS_PORT });
        Ok(Self { host, port, plain, credential, entity: entity.map(Into::into) })
    }
}

fn endpoint_of(endpoint: &str) -> Result<(String, Option<u16>), Malformed> {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    // An address of IPv6 stands in brackets and has colons.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse().map_err(|_| Malformed::Endpoint)?)),
        _ => (authority, None),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.is_empty() {
        true => Err(Malformed::Endpoint),
        false => Ok((host.to_owned(), port)),
    }
}

impl fmt::Debug for ConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, plain, entity, .. } = self;
        let mut text = f.debug_struct("ConnectionString");
        text.field("host", host).field("port", port).field("plain", plain).field("entity", entity);
        text.finish_non_exhaustive()
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key { name, .. } => f.debug_struct("Key").field("name", name).finish_non_exhaustive(),
            Self::Signature(_) => f.write_str("Signature(..)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_portal_gives() {
        let text = "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=abc+/d=";
        let parsed = ConnectionString::parse(text).expect("it is one");
        assert_eq!((parsed.host.as_str(), parsed.port, parsed.plain), ("ns.servicebus.windows.net", 5671, false));
        assert_eq!(parsed.credential, Credential::Key { name: "Root".into(), key: "abc+/d=".into() });
        assert_eq!(parsed.entity, None);
        let of_entity = ConnectionString::parse(&format!("{text};EntityPath=orders")).expect("it is one");
        assert_eq!(of_entity.entity, Some("orders".into()));
    }

    /// azservicebus drops the port and dials 5672.
    #[test]
    fn the_emulator_is_plain_and_keeps_its_port() {
        let text =
            "endpoint = sb://127.0.0.1:5673; SharedAccessKeyName=R;SharedAccessKey=K;UseDevelopmentEmulator=true;";
        let parsed = ConnectionString::parse(text).expect("it is one");
        assert_eq!((parsed.host.as_str(), parsed.port, parsed.plain), ("127.0.0.1", 5673, true));
        let usual =
            "Endpoint=sb://[::1];SharedAccessSignature=SharedAccessSignature sr=x&sig=y;UseDevelopmentEmulator=true";
        let parsed = ConnectionString::parse(usual).expect("it is one");
        assert_eq!((parsed.host.as_str(), parsed.port), ("::1", 5672));
        assert_eq!(parsed.credential, Credential::Signature("SharedAccessSignature sr=x&sig=y".into()));
    }

    #[test]
    fn what_is_none_is_named() {
        for (text, why) in [
            ("", Malformed::NoEndpoint),
            ("nonsense", Malformed::NoPair(1)),
            ("Endpoint=sb:///;SharedAccessKeyName=R;SharedAccessKey=K", Malformed::Endpoint),
            ("Endpoint=sb://h:x;SharedAccessKeyName=R;SharedAccessKey=K", Malformed::Endpoint),
            ("Endpoint=sb://h;SharedAccessKeyName=R", Malformed::NoCredential),
            ("Endpoint=sb://h;SharedAccessKeyName=R;SharedAccessKey=K;UseDevelopmentEmulator=yes", Malformed::Emulator),
        ] {
            assert_eq!(ConnectionString::parse(text), Err(why), "{text}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let parsed =
            ConnectionString::parse("Endpoint=sb://h;SharedAccessKeyName=R;SharedAccessKey=geheim").expect("it is one");
        assert!(!format!("{parsed:?} {:?}", parsed.credential).contains("geheim"));
    }
}
