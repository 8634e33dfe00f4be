//! What an operator can see and do: the one door through which the HTTP API, the command and the web console act.
//!
//! Start reading at [`Operations`]. What it answers with is in [`view`]; those values are also the JSON of `--json` and of the API,
//! so their fields are a promise (spec 9). Actions on events are not carried out here: they are accepted, audited, and go through
//! the loop of the session that holds the event (P15), so what comes back first is the number of an action that is open.
//!
//! *Invariant:* nothing here knows HTTP, a terminal, a store or a transport.

pub mod time;
pub mod view;

use std::time::Duration;

use async_trait::async_trait;

use crate::{
    action::ActionKind,
    ids::{ActionId, EndpointName, EntityName, EventType, MessageId, SequenceNumber, SessionId},
    message::{Body, Message},
    outcome::Outcome,
    time::Timestamp,
};
use view::{
    Action, AuditLine, DeadLetter, Endpoint, Event, EventDetail, Group, GroupResult, Handler, Health, InboxLine,
    Listing, OutboxLine, ParkedMessage, PeekedMessage, ScheduledMessage, Sent, SessionLine, SessionSkip,
};

/// Why an operation was not done.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    NotFound(String),
    /// An id names several events (P29): the caller has to say which endpoint's.
    #[error("{id:?} is not unique; name one of these endpoints: {}", choices.join(", "))]
    Ambiguous { id: String, choices: Vec<String> },
    /// It does not go together with what is there now; the text says what that is.
    #[error("{0}")]
    Conflict(String),
    #[error("{0}")]
    Invalid(String),
    /// It may work again later.
    #[error("{0}")]
    Unavailable(String),
    /// No room, or no more writes until the engine is opened again. Nothing was accepted.
    #[error("{0}")]
    Full(String),
}

impl Error {
    /// The code that `sprag explain` has a page for.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "SPR0201",
            Self::Ambiguous { .. } => "SPR0202",
            Self::Conflict(_) => "SPR0203",
            Self::Invalid(_) => "SPR0204",
            Self::Unavailable(_) => "SPR0205",
            Self::Full(_) => "SPR0206",
        }
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// Who asks, as authenticated (spec 3: operators are authenticated, not believed).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub name: String,
    /// A repeated request with the same key has the answer of the first.
    pub idempotency_key: Option<String>,
}

/// A part of a listing. `after` is the `next` of the part before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub after: Option<String>,
    /// 1 to [`Page::MAX`].
    pub limit: u32,
}

impl Page {
    pub const MAX: u32 = 1_000;
}

impl Default for Page {
    fn default() -> Self {
        Self { after: None, limit: 100 }
    }
}

/// Which events; an empty filter means all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EventFilter {
    pub endpoint: Option<EndpointName>,
    pub session: Option<SessionId>,
    pub event_type: Option<EventType>,
    pub outcomes: Vec<Outcome>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub id_prefix: Option<String>,
    /// Part of the error's text.
    pub error_text: Option<String>,
    /// The key of a group of failures.
    pub group: Option<String>,
}

/// Which sessions, parked, scheduled or dead messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlaceFilter {
    pub endpoint: Option<EndpointName>,
    pub entity: Option<EntityName>,
    pub session: Option<SessionId>,
    /// Sessions only: those that wait for an event.
    pub blocked: bool,
}

/// Which inbox rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InboxFilter {
    pub endpoint: Option<EndpointName>,
    pub message_id: Option<MessageId>,
}

/// A wish about one event.
#[derive(Debug, Clone, PartialEq)]
pub struct EventAction {
    /// Any but [`ActionKind::SkipSession`].
    pub kind: ActionKind,
    /// An event id, or the id of a message that carried it.
    pub event: String,
    pub endpoint: Option<EndpointName>,
    pub reason: Option<String>,
    /// A resubmission with another body.
    pub body: Option<Body>,
    /// A resubmission of an event that is completed or skipped: it counts as a new one (P13).
    pub again: bool,
}

/// A wish about every event of a group of failures.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupAction {
    /// [`ActionKind::Resubmit`] or [`ActionKind::Skip`].
    pub kind: ActionKind,
    pub group: String,
    /// Failures after this time are not touched. None: now.
    pub until: Option<Timestamp>,
    pub reason: Option<String>,
    pub dry_run: bool,
}

/// A wish about everything that waits in a session.
#[derive(Debug, Clone, PartialEq)]
pub struct SkipSession {
    pub session: SessionId,
    /// Needed when several endpoints have such a session.
    pub endpoint: Option<EndpointName>,
    pub reason: String,
    pub dry_run: bool,
}

/// A part of an entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    #[default]
    Active,
    Scheduled,
    Parked,
    DeadLetters,
}

/// What to do with a poison row of the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutboxResolution {
    Retry,
    Drop,
}

/// Everything an operator can see and do.
#[async_trait]
pub trait Operations: Send + Sync + 'static {
    /// Newest change first.
    async fn events(&self, filter: EventFilter, page: Page) -> Result<Listing<Event>>;
    /// One event with its history, by event id or message id.
    async fn event(&self, id: &str, endpoint: Option<&EndpointName>) -> Result<EventDetail>;
    /// Failures that failed in the same way.
    async fn groups(&self, filter: EventFilter) -> Result<Listing<Group>>;
    async fn sessions(&self, filter: PlaceFilter, page: Page) -> Result<Listing<SessionLine>>;
    async fn parked(&self, filter: PlaceFilter, page: Page) -> Result<Listing<ParkedMessage>>;
    async fn scheduled(&self, filter: PlaceFilter, page: Page) -> Result<Listing<ScheduledMessage>>;
    async fn dead_letters(&self, filter: PlaceFilter, page: Page) -> Result<Listing<DeadLetter>>;
    async fn inbox(&self, filter: InboxFilter, page: Page) -> Result<Listing<InboxLine>>;
    async fn audit(&self, page: Page) -> Result<Listing<AuditLine>>;
    async fn outbox(&self, page: Page) -> Result<Listing<OutboxLine>>;
    async fn handlers(&self) -> Result<Listing<Handler>>;
    async fn endpoints(&self) -> Result<Listing<Endpoint>>;
    /// Looks at an entity's messages without taking them. Empty is an answer, not an error.
    async fn peek(
        &self,
        entity: &EntityName,
        part: Part,
        session: Option<&SessionId>,
        page: Page,
    ) -> Result<Listing<PeekedMessage>>;

    /// Accepts all of the messages or none.
    async fn send(&self, entity: &EntityName, messages: Vec<Message>) -> Result<Vec<Sent>>;

    /// Accepts an action on one event; it is open until the session's loop has applied it.
    async fn act(&self, action: EventAction, caller: &Caller) -> Result<Action>;
    async fn act_on_group(&self, action: GroupAction, caller: &Caller) -> Result<GroupResult>;
    async fn skip_session(&self, action: SkipSession, caller: &Caller) -> Result<SessionSkip>;
    /// Hands a copy of an event's message to another endpoint; the event itself stays as it is.
    async fn copy_to(
        &self,
        event: &str,
        endpoint: Option<&EndpointName>,
        to: &EndpointName,
        caller: &Caller,
    ) -> Result<Sent>;
    /// How an action stands. Waits up to `wait` for its end.
    async fn action(&self, id: ActionId, wait: Duration) -> Result<Action>;

    async fn cancel_scheduled(&self, entity: &EntityName, sequence: SequenceNumber, caller: &Caller) -> Result<()>;
    /// Answers how many were put back. An empty list of sequences means all that are there now.
    async fn replay_dead_letters(
        &self,
        entity: &EntityName,
        sequences: &[SequenceNumber],
        caller: &Caller,
    ) -> Result<u64>;
    async fn resolve_outbox(&self, id: i64, resolution: OutboxResolution, caller: &Caller) -> Result<()>;
    /// Deletes an endpoint's inbox rows recorded before a time. Answers how many.
    async fn purge_inbox(&self, endpoint: &EndpointName, before: Timestamp, caller: &Caller) -> Result<u64>;

    /// Whether the host can do its work, with reasons.
    async fn health(&self) -> Health;
}
