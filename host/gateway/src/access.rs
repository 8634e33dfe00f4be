//! Who may do what: shared access signatures, as Azure Service Bus checks them.

use sprag_core::time::Timestamp;

/// What a key allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    Send,
    Listen,
    Manage,
}

/// What a checked token allows, until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The entity that the token was made for, as a path in lower case without slashes at its ends; empty: the whole namespace.
    pub path: String,
    pub expires_at: Timestamp,
    pub rights: Vec<Right>,
}
