//! Rows and filters of the listings.

use sprag_core::{
    action::Action,
    effect::OutcomeWrite,
    ids::{ActionId, EndpointName, EntityName, EventId, EventType, LeaseOwner, MessageId, SessionId},
    outcome::Outcome,
    time::Timestamp,
};

/// A part of a listing. `after` is the `next` of the part before.
#[derive(Debug, Clone)]
pub struct Page {
    pub after: Option<String>,
    /// 1 to 1,000; anything else is refused, as is a cursor that no listing gave.
    pub limit: u32,
}

impl Default for Page {
    fn default() -> Self {
        Self { after: None, limit: 100 }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Listing<T> {
    pub items: Vec<T>,
    /// None: that was all.
    pub next: Option<String>,
}

/// Which events; an empty filter means all. Newest change first.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    pub endpoint: Option<EndpointName>,
    pub session: Option<SessionId>,
    pub event_type: Option<EventType>,
    pub outcomes: Vec<Outcome>,
    /// Changed at this time or later.
    pub since: Option<Timestamp>,
    /// Changed before this time.
    pub until: Option<Timestamp>,
    /// Start of the event id.
    pub id_prefix: Option<String>,
    /// Part of the error's text, in any case.
    pub error_text: Option<String>,
    /// The key of a [`FailureGroup`].
    pub group: Option<String>,
}

/// One event at one endpoint. `outcome.keep` is always none here: see `Store::kept_message`.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRow {
    pub endpoint: EndpointName,
    pub outcome: OutcomeWrite,
    /// Duplicates seen of it.
    pub duplicates: u32,
    /// The message is still kept.
    pub has_message: bool,
    /// A resubmission of this event under another id, or the event that this one resubmits.
    pub open_action: Option<ActionId>,
}

/// Failed events that failed in the same way (spec 9): kind and first line of the error, event type, endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct FailureGroup {
    /// The first 16 hex digits of SHA-256 over the four parts, each led by its length in bytes and a colon.
    pub key: String,
    pub endpoint: EndpointName,
    pub event_type: EventType,
    pub kind: String,
    pub first_line: String,
    pub count: u64,
    pub oldest: Timestamp,
    pub newest: Timestamp,
}

impl FailureGroup {
    pub fn key_of(endpoint: &str, event_type: &str, kind: &str, text: &str) -> String {
        let first_line = Self::first_line_of(text);
        let parts: String =
            [endpoint, event_type, kind, first_line].iter().map(|part| format!("{}:{part}", part.len())).collect();
        sprag_core::ids::Digest::of(parts.as_bytes()).to_string()[..16].to_owned()
    }

    pub fn first_line_of(text: &str) -> &str {
        text.lines().next().unwrap_or_default()
    }
}

#[derive(Debug, Clone, Default)]
pub struct InboxFilter {
    pub endpoint: Option<EndpointName>,
    pub message_id: Option<MessageId>,
}

/// A record of the inbox, or a lease. Newest first; one that ends while it is listed may be shown as both.
#[derive(Debug, Clone, PartialEq)]
pub struct InboxRow {
    pub endpoint: EndpointName,
    pub message_id: MessageId,
    /// When the record was written, or the lease taken.
    pub recorded_at: Timestamp,
    /// None: a record.
    pub lease: Option<LeaseRow>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct LeaseRow {
    /// Who took it, whether or not it still runs.
    pub owner: LeaseOwner,
    /// None: the event was handed off, and the lease stays until that is settled (P26).
    pub expires_at: Option<Timestamp>,
}

/// What an operator did, when and why.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditEntry {
    pub at: Timestamp,
    pub by: String,
    /// The verb: `resubmit`, `skip-session`, `scheduled-cancel`.
    pub verb: String,
    pub endpoint: Option<EndpointName>,
    /// An event id, a session id, a group key, an entity.
    pub target: String,
    pub reason: Option<String>,
    /// How many events it touched.
    pub count: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct AuditRow {
    pub id: i64,
    pub entry: AuditEntry,
    /// The actions it accepted and what became of them.
    pub actions: Vec<Action>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct OutboxListRow {
    pub id: i64,
    pub endpoint: EndpointName,
    pub entity: EntityName,
    pub message_id: Option<MessageId>,
    pub session: Option<SessionId>,
    pub created_at: Timestamp,
    pub tries: u32,
    pub error: Option<String>,
    pub poison: bool,
    pub event_id: Option<EventId>,
}
