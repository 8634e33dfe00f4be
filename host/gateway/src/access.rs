//! Who may do what: shared access keys and the tokens made with them, as Azure Service Bus checks them.
//!
//! Azure's clients send no key but a *shared access signature*: a resource, an end of validity and an HMAC of the two. Both faces of the
//! broker check them here: AMQP in `$cbs`, HTTP in the `Authorization` header; SASL PLAIN sends name and key themselves
//! ([`Access::check_plain`]). What a check yields is a [`Grant`], to be asked again each time it is used, because it ends.
//!
//! *Invariant:* no key, signature or token is ever in an error, a `Debug` text or a log; they are compared in constant time.

mod token;

use std::{fmt, sync::Arc};

use sprag_core::time::Timestamp;
use subtle::ConstantTimeEq;

use token::Token;

/// What a key allows. `Manage` implies the other two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    Send,
    Listen,
    Manage,
}

/// A set of rights.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rights(u8);

impl Rights {
    pub const ALL: Self = Self(0b111);

    pub fn has(self, right: Right) -> bool {
        self.0 & (bit(right) | bit(Right::Manage)) != 0
    }
}

fn bit(right: Right) -> u8 {
    match right {
        Right::Send => 0b001,
        Right::Listen => 0b010,
        Right::Manage => 0b100,
    }
}

impl FromIterator<Right> for Rights {
    fn from_iter<T: IntoIterator<Item = Right>>(rights: T) -> Self {
        Self(rights.into_iter().fold(0, |set, right| set | bit(right)))
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [Right::Send, Right::Listen, Right::Manage];
        f.debug_set().entries(all.into_iter().filter(|right| self.has(*right))).finish()
    }
}

/// A shared access key: of the whole namespace, or of one entity.
#[derive(Clone)]
pub struct Key {
    name: String,
    primary: String,
    secondary: Option<String>,
    rights: Rights,
    path: String,
}

impl Key {
    /// A key of the whole namespace.
    pub fn new(name: impl Into<String>, primary: impl Into<String>, rights: Rights) -> Self {
        Self { name: name.into(), primary: primary.into(), secondary: None, rights, path: String::new() }
    }

    /// With a second secret, so that the first can be replaced while clients still use it.
    pub fn with_secondary(self, secondary: impl Into<String>) -> Self {
        Self { secondary: Some(secondary.into()), ..self }
    }

    /// Only for this entity and what is below it (`topic` covers `topic/Subscriptions/s`).
    pub fn for_entity(self, path: &str) -> Self {
        Self { path: normalized(path), ..self }
    }

    /// Never one that is empty: it would let everybody in.
    fn secrets(&self) -> impl Iterator<Item = &[u8]> {
        [Some(&self.primary), self.secondary.as_ref()]
            .into_iter()
            .flatten()
            .map(String::as_bytes)
            .filter(|it| !it.is_empty())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, rights, path, .. } = self;
        f.debug_struct("Key").field("name", name).field("rights", rights).field("path", path).finish_non_exhaustive()
    }
}

/// What a checked token allows, until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The entity it is for, as a path in lower case without slashes at its ends; empty: the whole namespace.
    pub path: String,
    pub expires_at: Timestamp,
    pub rights: Rights,
}

impl Grant {
    fn everything() -> Self {
        Self { path: String::new(), expires_at: Timestamp(i64::MAX), rights: Rights::ALL }
    }

    /// Whether it allows this, there and now. `path` is as the client writes it: slashes at its ends and upper case do not matter.
    pub fn allows(&self, path: &str, right: Right, now: Timestamp) -> bool {
        now < self.expires_at && self.rights.has(right) && covers(&self.path, &normalized(path))
    }
}

/// Why somebody is not let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("the token is malformed: {0}")]
    Malformed(&'static str),
    /// None of that name that is for the token's resource.
    #[error("there is no key {name:?} for this resource")]
    UnknownKey { name: String },
    #[error("the signature does not fit the key {name:?}")]
    WrongSignature { name: String },
    #[error("the token ended at {0}")]
    Expired(Timestamp),
}

/// Who is let in. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Access {
    /// None: everybody may do everything.
    keys: Option<Arc<[Key]>>,
}

impl Access {
    /// Name of the emulator's key, and of the key that Azure makes with a namespace.
    pub const EMULATOR_NAME: &str = "RootManageSharedAccessKey";
    /// The emulator's key, as its connection string has it. It is public, so it must not open anything beyond this machine.
    pub const EMULATOR_KEY: &str = "SAS_KEY_VALUE";

    /// Everybody may do everything; of a token only the shape is checked.
    pub fn open() -> Self {
        Self { keys: None }
    }

    /// Nobody may do anything without one of these.
    pub fn with_keys(keys: impl IntoIterator<Item = Key>) -> Self {
        Self { keys: Some(keys.into_iter().collect()) }
    }

    /// Who has the emulator's connection string may do everything.
    pub fn emulator() -> Self {
        Self::with_keys([Key::new(Self::EMULATOR_NAME, Self::EMULATOR_KEY, Rights::ALL)])
    }

    pub fn is_open(&self) -> bool {
        self.keys.is_none()
    }

    /// What somebody may do who has shown nothing.
    pub fn anonymous(&self) -> Option<Grant> {
        self.is_open().then(Grant::everything)
    }

    /// Checks `SharedAccessSignature sr=…&sig=…&se=…&skn=…`.
    pub fn check(&self, token: &str, now: Timestamp) -> Result<Grant, Denied> {
        self.check_read(Token::read(token, None)?, now)
    }

    /// The same for a token whose resource may also be this host, as the client named it, without a scheme: what the JavaScript
    /// administration client sends to prove that it may forward.
    pub fn check_at(&self, token: &str, host: &str, now: Timestamp) -> Result<Grant, Denied> {
        self.check_read(Token::read(token, Some(host))?, now)
    }

    fn check_read(&self, token: Token, now: Timestamp) -> Result<Grant, Denied> {
        let Some(keys) = &self.keys else { return Ok(Grant::everything()) };
        let named = |key: &&Key| token.names(&key.name) && covers(&key.path, &token.path);
        let mut candidates = keys.iter().filter(named).peekable();
        if candidates.peek().is_none() {
            return Err(Denied::UnknownKey { name: token.key_name });
        }
        let Some(key) = candidates.find(|key| key.secrets().any(|secret| token.is_signed_with(secret))) else {
            return Err(Denied::WrongSignature { name: token.key_name });
        };
        // Last, so that only who has the key learns of it.
        if token.expires_at <= now {
            return Err(Denied::Expired(token.expires_at));
        }
        Ok(Grant { path: token.path, expires_at: token.expires_at, rights: key.rights })
    }

    /// Checks what SASL PLAIN sends: the name of a key, and the key. Such a grant does not end.
    pub fn check_plain(&self, name: &str, key: &str) -> Result<Grant, Denied> {
        let Some(keys) = &self.keys else { return Ok(Grant::everything()) };
        let mut known = false;
        for candidate in keys.iter().filter(|candidate| candidate.name == name) {
            known = true;
            if candidate.secrets().any(|secret| secret.ct_eq(key.as_bytes()).into()) {
                let expires_at = Timestamp(i64::MAX);
                return Ok(Grant { path: candidate.path.clone(), expires_at, rights: candidate.rights });
            }
        }
        let name = name.to_owned();
        Err(if known { Denied::WrongSignature { name } } else { Denied::UnknownKey { name } })
    }
}

fn normalized(path: &str) -> String {
    path.trim_matches('/').to_lowercase()
}

/// Both as [`normalized`] makes them. Entities whose names have slashes are below those that their names start with, as on Azure.
fn covers(outer: &str, inner: &str) -> bool {
    outer.is_empty() || inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests;
