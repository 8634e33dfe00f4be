//! Where a host remembers: inbox, tracking, handler state, outbox and operator actions behind one trait.
//!
//! Start reading at [`Store`]. [`memory::MemoryStore`] is the small implementation; the embedded engine in `host/broker` is the
//! durable one; both pass [`conformance`]. An inbox in another place than the rest is an [`inbox::Inbox`].
//!
//! *Invariant:* this crate knows no transport, no runtime and no loop.

pub mod clock;
pub mod codec;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod decision;
pub mod faults;
pub mod inbox;
pub mod lease;
pub mod memory;
pub mod query;
pub mod sql;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
pub use sprag_core::machine::{Answer, StoredOutcome};
use sprag_core::{
    action::{Action, ActionKind},
    effect::StoreWrite,
    ids::{ActionId, EndpointName, EntityName, EventId, MessageId, SequenceNumber, SessionId},
    message::Message,
    run::Version,
    time::Timestamp,
};

pub use sql::Sql;

/// A store's failure is never an answer: it says nothing about whether something is recorded.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// It may work again later. The text carries no credentials and no statement; those are in the debug log.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// What the run read has changed since (P4). Nothing was written.
    #[error("state that the run read has changed meanwhile")]
    StateConflict,
    /// The lease under which the write was decided is no longer its owner's. Nothing was written.
    #[error("the lease on the message was lost")]
    LeaseLost,
    /// The store has stopped writing until it is opened again (a failed fsync, a full disk).
    #[error("the store takes no more writes until it is opened again: {0}")]
    Closed(String),
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The unit of work cannot be committed, however often it is tried: its transaction took too long and is over, or breaks a rule of the
    /// database that is looked at when it commits. Nothing was written.
    #[error("{0}")]
    Refused(String),
}

/// What is asked about a delivery before it may run.
#[derive(Debug, Clone)]
pub struct Question<'a> {
    pub endpoint: &'a EndpointName,
    /// The delivery's own id, when usable.
    pub message_id: Option<&'a MessageId>,
    /// `InboxMessageId`, when usable and another one.
    pub source_id: Option<&'a MessageId>,
    pub event_id: &'a EventId,
    /// Whether the endpoint's inbox is on.
    pub inbox: bool,
    /// The event's stored outcome is wanted too: for stand-ins and repeated deliveries.
    pub outcome: bool,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    Done,
    /// The delivery was decided or recorded before, and the unit of work was dropped. Decided before: only the history line and the end of the
    /// action were written, so that a late success cannot record what the first decision left failed. Recorded before: all the rest was written.
    AlreadyDecided,
}

/// An operator's wish, before it is accepted.
#[derive(Debug, Clone)]
pub struct NewAction {
    pub kind: ActionKind,
    pub endpoint: EndpointName,
    pub event_id: Option<EventId>,
    pub session: Option<SessionId>,
    pub reason: Option<String>,
    pub by: String,
    /// For a retried request: the same key answers with the first request's action.
    pub idempotency_key: Option<String>,
    /// The message that carries the action through the session's loop.
    pub control: Message,
    /// Where a store that is also the source's engine puts `control` in the same transaction, with its `SpragActionId`. None: the caller sends
    /// it after this call.
    pub source: Option<EntityName>,
}

/// Why an action was not accepted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ActionRefused {
    /// Another action on the event is open (P15): it is the one winner.
    #[error("action {id} ({kind}) by {by} is already open for this event", kind = kind.name())]
    Open { id: ActionId, kind: ActionKind, by: String },
    #[error("no such event")]
    NoSuchEvent,
}

/// A row of the outbox that a relay has claimed.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxRow {
    pub id: i64,
    pub endpoint: EndpointName,
    pub entity: EntityName,
    pub message: Message,
    /// Failed tries so far.
    pub tries: u32,
}

/// A value with its version.
#[derive(Debug, Clone, PartialEq)]
pub struct Versioned {
    pub value: Bytes,
    pub version: Version,
}

/// Everything durable that is not a message in a queue.
///
/// Rules for every implementation, checked by [`conformance`]:
///
/// - Ids compare by bytes; (endpoint, id) of one endpoint never meets another's (spec 4).
/// - [`Store::write`] is one transaction. Recording an id again is no error; its first time stays.
/// - A write whose decision or first record is there already drops its unit of work and keeps the first decision (P1, P35): see
///   [`Written::AlreadyDecided`]. Its `unit.reads` are not looked at.
/// - `unit.reads` are checked in the transaction; if one does not hold, nothing is written ([`Error::StateConflict`], P4).
/// - `lease` with an owner that does not hold it any more: nothing is written ([`Error::LeaseLost`]). A lapsed one that nobody has taken over is held.
///   The lease of a write that was decided before is over, however it was to end.
/// - An outcome obeys its guard; a history line is always added.
/// - A call that has begun runs to its end even if the caller stops waiting.
/// - A write whose `unit.transaction` is set commits that transaction with all else that it writes, or ends it without effect: where the unit is dropped,
///   and with every error.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// For the `sql` import. None: this store has none.
    fn sql(&self) -> Option<&dyn Sql> {
        None
    }

    async fn check(&self, question: Question<'_>) -> Result<Answer, Error>;

    async fn write(&self, endpoint: &EndpointName, write: StoreWrite) -> Result<Written, Error>;

    /// The effects that followed a decision are done: it is forgotten, and a later message under the same id is a new one. No error when there is none.
    async fn decision_done(&self, endpoint: &EndpointName, message_id: &MessageId) -> Result<(), Error>;

    async fn state_get(&self, endpoint: &EndpointName, key: &str) -> Result<Option<Versioned>, Error>;

    /// Entries whose key starts with `prefix`, in byte order, after `after`, at most `limit`.
    async fn state_scan(
        &self,
        endpoint: &EndpointName,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<(String, Versioned)>, Error>;

    /// Leases, where the store has them: without, an endpoint cannot have the mode `lease`.
    fn leases(&self) -> Option<&dyn lease::Leases> {
        None
    }

    /// Deletes at most `limit` inbox rows of the endpoint recorded before `before`, oldest first, and leases that lapsed before it. Answers how many.
    async fn purge_inbox(&self, endpoint: &EndpointName, before: Timestamp, limit: u32) -> Result<u32, Error>;

    /// Deletes at most `limit` rows of tracking that are past their time (P38): bodies, outcomes with history, audit. Answers how many.
    async fn purge_tracking(&self, keep: &Retention, limit: u32) -> Result<u32, Error>;

    /// Claims rows of these endpoints that are due for one relay; a claim lapses after `lease` (P33). Per (entity, session) only the oldest is
    /// given while one is failing or claimed. Rows of other endpoints are another relay's: a store may be shared by hosts that serve different ones.
    async fn outbox_claim(
        &self,
        endpoints: &[EndpointName],
        max: u32,
        lease: Duration,
    ) -> Result<Vec<OutboxRow>, Error>;
    async fn outbox_sent(&self, ids: &[i64]) -> Result<(), Error>;
    /// `again_at` none: the row is poison and waits for an operator.
    async fn outbox_failed(&self, id: i64, error: &str, again_at: Option<Timestamp>) -> Result<(), Error>;
    /// An operator lets a poison row go on, or drops it. False when there is no such row.
    async fn outbox_resolve(&self, id: i64, drop: bool) -> Result<bool, Error>;

    /// Accepts all of the actions in one transaction, each on its own merits: one open action per event, or per session for a whole
    /// session. Writes `audit` as one entry that names the accepted actions. A key seen before answers with its first action. Answers in the order given.
    async fn create_actions(
        &self,
        actions: Vec<NewAction>,
        audit: query::AuditEntry,
    ) -> Result<Vec<Result<ActionId, ActionRefused>>, Error>;
    async fn action(&self, id: ActionId) -> Result<Option<Action>, Error>;
    /// The action that a request with this key was answered with, open or ended.
    async fn action_of_key(&self, key: &str) -> Result<Option<ActionId>, Error>;

    async fn events(
        &self,
        filter: &query::EventFilter,
        page: &query::Page,
    ) -> Result<query::Listing<query::EventRow>, Error>;
    /// Every endpoint's row with this event id, or with this message or source id.
    async fn find_events(&self, id: &str) -> Result<Vec<query::EventRow>, Error>;
    async fn history(
        &self,
        endpoint: &EndpointName,
        event_id: &EventId,
    ) -> Result<Vec<sprag_core::effect::HistoryLine>, Error>;
    /// The message of an unresolved event, as kept for a resubmission.
    async fn kept_message(&self, endpoint: &EndpointName, event_id: &EventId) -> Result<Option<Message>, Error>;
    async fn failure_groups(&self, filter: &query::EventFilter) -> Result<Vec<query::FailureGroup>, Error>;
    async fn inbox(
        &self,
        filter: &query::InboxFilter,
        page: &query::Page,
    ) -> Result<query::Listing<query::InboxRow>, Error>;
    async fn audit(&self, page: &query::Page) -> Result<query::Listing<query::AuditRow>, Error>;
    async fn add_audit(&self, entry: query::AuditEntry) -> Result<(), Error>;
    async fn outbox(&self, page: &query::Page) -> Result<query::Listing<query::OutboxListRow>, Error>;
}

/// How long tracking is kept (P38).
#[derive(Debug, Clone)]
pub struct Retention {
    pub now: Timestamp,
    /// A resolved event's body. Default 7 d.
    pub bodies: Duration,
    /// Outcomes and history of final events. Default 30 d.
    pub outcomes: Duration,
    /// Audit. Default 365 d.
    pub audit: Duration,
}

/// A message number together with the entity that gave it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    pub entity: EntityName,
    pub sequence: SequenceNumber,
}
