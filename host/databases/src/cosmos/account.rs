//! Which account, and with what right.

use std::{fmt, net::IpAddr, sync::Arc};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};

/// Gives tokens of Microsoft Entra. Asked at every request, so it has to keep its token until shortly before that ends.
#[async_trait]
pub trait Tokens: Send + Sync + 'static {
    /// A token for the scope. The error says why there is none, without a secret in it.
    async fn token(&self, scope: &str) -> Result<String, String>;
}

/// With what right. Its `Debug` text holds no secret.
#[derive(Clone)]
pub enum Credential {
    /// An account's key, primary or secondary, as it was decoded.
    Key(Arc<[u8]>),
    /// An identity with the data plane's rights on the container. It cannot make databases and containers.
    Tokens(Arc<dyn Tokens>),
}

impl Credential {
    /// A key as the portal gives it, in base64.
    pub fn key(text: &str) -> Result<Self, Malformed> {
        match STANDARD.decode(text.trim()) {
            Ok(key) if !key.is_empty() => Ok(Self::Key(key.into())),
            _ => Err(Malformed::Key),
        }
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key(_) => "Key(..)",
            Self::Tokens(_) => "Tokens(..)",
        })
    }
}

/// Why a text names no account. It never repeats a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("the connection string has a part without `=` (part {0})")]
    NoPair(usize),
    #[error("the connection string has no AccountEndpoint")]
    NoEndpoint,
    #[error("the connection string has no AccountKey")]
    NoKey,
    #[error("the account's key is not base64")]
    Key,
    #[error("the account's endpoint is not https://HOST/ or https://HOST:PORT/")]
    Endpoint,
    #[error(
        "the account's endpoint is http:, which is for an emulator on this machine only: its requests and answers are not encrypted"
    )]
    Plain,
}

/// An account of Cosmos DB.
#[derive(Debug, Clone)]
pub struct Account {
    /// `https://HOST:PORT`, without a slash at its end.
    pub(crate) base: String,
    pub(crate) host: String,
    pub(crate) plain: bool,
    pub(crate) credential: Credential,
}

impl Account {
    /// By its endpoint: `https://NAME.documents.azure.com:443/`. `http:` is taken for addresses of this machine only.
    pub fn new(endpoint: &str, credential: Credential) -> Result<Self, Malformed> {
        let (scheme, rest) = endpoint.trim().split_once("://").ok_or(Malformed::Endpoint)?;
        let plain = match scheme.to_ascii_lowercase().as_str() {
            "https" => false,
            "http" => true,
            _ => return Err(Malformed::Endpoint),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let fits =
            |text: &str| !text.is_empty() && text.chars().all(|it| it.is_ascii_alphanumeric() || "-._:[]".contains(it));
        if !fits(authority) {
            return Err(Malformed::Endpoint);
        }
        // An address of IPv6 stands in brackets and has colons.
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                port.parse::<u16>().map_err(|_| Malformed::Endpoint)?;
                host
            }
            _ => authority,
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_here = host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|it: IpAddr| it.is_loopback());
        match (host.is_empty(), plain && !is_here) {
            (true, _) => Err(Malformed::Endpoint),
            (_, true) => Err(Malformed::Plain),
            _ => Ok(Self {
                base: format!("{}://{authority}", if plain { "http" } else { "https" }),
                host,
                plain,
                credential,
            }),
        }
    }

    /// By a connection string, as the portal gives it: `AccountEndpoint=…;AccountKey=…;`. Other parts are passed over, as the SDKs do.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let (mut endpoint, mut key) = (None, None);
        for (at, part) in text.trim().split(';').enumerate().filter(|(_, part)| !part.trim().is_empty()) {
            // Keys have `=` in them themselves.
            let (field, value) = part.split_once('=').ok_or(Malformed::NoPair(at + 1))?;
            match field.trim().to_ascii_lowercase().as_str() {
                "accountendpoint" => endpoint = Some(value),
                "accountkey" => key = Some(value),
                _ => {}
            }
        }
        let endpoint = endpoint.ok_or(Malformed::NoEndpoint)?;
        Self::new(endpoint, Credential::key(key.ok_or(Malformed::NoKey)?)?)
    }

    /// What a token of Entra is asked for.
    pub(crate) fn scope(&self) -> String {
        format!("https://{}/.default", self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "Z2VoZWlt";

    #[test]
    fn what_the_portal_gives() {
        let text = format!("AccountEndpoint=https://shop.documents.azure.com:443/;AccountKey={KEY};");
        let account = Account::parse(&text).unwrap();
        assert_eq!((account.base.as_str(), account.plain), ("https://shop.documents.azure.com:443", false));
        assert_eq!(account.scope(), "https://shop.documents.azure.com/.default");
        assert!(matches!(&account.credential, Credential::Key(key) if **key == *b"geheim"));
        let shown = format!("{account:?}");
        assert!(!shown.contains(KEY) && !shown.contains("geheim"), "{shown}");
    }

    #[test]
    fn what_is_none_is_named() {
        let with = |endpoint: &str| format!("AccountEndpoint={endpoint};AccountKey={KEY}");
        for (text, why) in [
            ("nonsense".to_owned(), Malformed::NoPair(1)),
            (format!("AccountKey={KEY}"), Malformed::NoEndpoint),
            ("AccountEndpoint=https://h/".to_owned(), Malformed::NoKey),
            ("AccountEndpoint=https://h/;AccountKey=§".to_owned(), Malformed::Key),
            ("AccountEndpoint=https://h/;AccountKey=".to_owned(), Malformed::Key),
            (with("h"), Malformed::Endpoint),
            (with("ftp://h/"), Malformed::Endpoint),
            (with("https:///"), Malformed::Endpoint),
            (with("https://h:x/"), Malformed::Endpoint),
            (with("https://user@h/"), Malformed::Endpoint),
            (with("https://h/dbs"), Malformed::Endpoint),
            (with("http://shop.example.com/"), Malformed::Plain),
        ] {
            assert_eq!(Account::parse(&text).map(|it| it.base), Err(why), "{text}");
        }
        for here in ["http://127.0.0.1:8081/", "http://localhost:8081", "http://[::1]:8081/"] {
            assert!(Account::parse(&with(here)).unwrap().plain, "{here}");
        }
    }
}
