//! Addresses with secrets in them.

use std::fmt;

/// A database's address with what is needed to get in. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Url(String);

impl Url {
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}
