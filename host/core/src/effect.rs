//! What a decision asks for: an ordered list of effects, ending one delivery.
//!
//! On the embedded engine a commit is one transaction. On a remote transport its effects are carried out in the order listed,
//! which the machine chose so that a crash between any two of them is safe (spec 3, `docs/protocol.md`).

use std::time::Duration;

use crate::{
    ids::{ActionId, Digest, EndpointName, EventId, EventType, HandlerName, LeaseOwner, MessageId, SessionId},
    message::Message,
    outcome::{Failure, Outcome},
    run::UnitOfWork,
    session_state::SessionState,
    time::Timestamp,
};

/// All that one decision changes.
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    pub endpoint: EndpointName,
    pub effects: Vec<Effect>,
}

/// One step of a commit.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// The database transaction: all of it or nothing.
    Store(Box<StoreWrite>),
    /// Puts a message of the host's own onto the endpoint's source: a retry, a handoff's deadline, a drain trigger.
    /// Sending one whose id is already there is no error and adds nothing.
    Enqueue(Box<Message>),
    /// Takes a scheduled message of the host's own back, by message id. Best effort.
    CancelScheduled(MessageId),
    /// Writes the session's state; an idle one is cleared to null (P32).
    SetState(SessionState),
    /// Puts the delivery aside behind the session's block. On a transport that parks by copying this sends the copy, which says whose it is under
    /// the hosts' seal (P31); the delivery itself is settled by the [`Effect::Complete`] that follows. Where parking is a change of place, both
    /// are one and the copy is not needed.
    Park { sequence: u32, copy: Box<Message> },
    /// Settles the delivery: done with it.
    Complete,
    /// Moves the delivery to the dead-letter queue.
    DeadLetter { reason: String, description: String },
}

/// What the database transaction of one decision writes. Everything is optional but the endpoint.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StoreWrite {
    /// Inbox records, in this order: source id first (seed 000). Empty when the inbox is off or the id unusable.
    pub record: Vec<MessageId>,
    /// Ids that are final from now on: never run again but by a resubmission (P2).
    pub finals: Vec<MessageId>,
    /// The decision on this delivery (P1). First one wins; where one is there already, `unit` is dropped.
    pub decision: Option<Decision>,
    /// The event's current outcome.
    pub outcome: Option<OutcomeWrite>,
    /// One more line of the event's history.
    pub history: Option<HistoryLine>,
    /// State writes and outgoing messages of a run that succeeded.
    pub unit: UnitOfWork,
    /// An operator's action that this decision carries out or refuses.
    pub action: Option<ActionWrite>,
    /// What becomes of the lease under which the delivery was decided, or of the one that a handoff left (mode `lease`, spec 4).
    pub lease: Option<LeaseEnd>,
}

/// The end of a lease, in the transaction of the decision that ends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseEnd {
    /// What was leased: the event's source id.
    pub id: MessageId,
    /// The acquisition that has to hold it still; where it does not, nothing of the write is written. None: the lease of a handoff, which nobody
    /// holds; no error when there is none.
    pub owner: Option<LeaseOwner>,
    pub how: LeaseEnding,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseEnding {
    /// The lease goes. Whether the event is done is told by the records and final ids of the same write.
    Over,
    /// The lease stays, without an expiry, until the handoff is settled (P26).
    HandedOff,
}

/// A decision, kept until its effects are known to be done (P1).
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub message_id: MessageId,
    pub outcome: Outcome,
    /// The attempt that it decides.
    pub attempt: u32,
    /// What followed the store's transaction; a redelivery carries it out again, each step being repeatable.
    pub rest: Vec<Effect>,
}

/// When an outcome may replace the one that is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OutcomeGuard {
    /// Unless the stored one is final or knows of more attempts: a stale write changes nothing.
    #[default]
    Newer,
    /// Only where none is stored (P8).
    IfAbsent,
    /// Over a final one too: a resubmission's.
    Resubmitted,
}

/// The row of one event at one endpoint, as it is to be. What is none, empty or zero here and is not about the end itself (ids, session, event type,
/// handler, digest, `enqueued_at`, `keep`) leaves what is stored; `outcome`, `reason`, `error`, `attempts` and `at` are always written.
#[derive(Debug, Clone, PartialEq)]
pub struct OutcomeWrite {
    pub event_id: EventId,
    /// The message id of the delivery that this outcome is about.
    pub message_id: Option<MessageId>,
    /// The id under which the transport first delivered the event.
    pub source_id: Option<MessageId>,
    pub session: Option<SessionId>,
    pub event_type: EventType,
    pub outcome: Outcome,
    pub guard: OutcomeGuard,
    pub reason: Option<String>,
    pub error: Option<Failure>,
    /// Runs so far.
    pub attempts: u32,
    pub handler: Option<HandlerName>,
    pub digest: Option<Digest>,
    pub enqueued_at: Timestamp,
    pub at: Timestamp,
    /// The message, kept while the event is unresolved so that it can be resubmitted (P38). None: keep what is there;
    /// a final outcome lets the store drop it after its time.
    pub keep: Option<Box<Message>>,
}

/// What a line of an event's history tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HistoryKind {
    /// A run that ended, however.
    Run,
    Parked,
    Duplicate,
    /// A decision without a run: no handler, limit of runs that ended with the process, deadline, skip.
    Decided,
    /// An operator's action.
    Action,
    /// An end that decided nothing: the delivery comes again.
    Transient,
}

impl HistoryKind {
    pub const ALL: [Self; 6] = [Self::Run, Self::Parked, Self::Duplicate, Self::Decided, Self::Action, Self::Transient];

    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Parked => "parked",
            Self::Duplicate => "duplicate",
            Self::Decided => "decided",
            Self::Action => "action",
            Self::Transient => "transient",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct HistoryLine {
    pub event_id: EventId,
    pub kind: HistoryKind,
    pub at: Timestamp,
    pub message_id: Option<MessageId>,
    pub outcome: Option<Outcome>,
    pub attempt: u32,
    pub started_at: Option<Timestamp>,
    /// How long the run took.
    pub took: Option<Duration>,
    pub handler: Option<HandlerName>,
    pub digest: Option<Digest>,
    pub reason: Option<String>,
    pub error: Option<Failure>,
    /// The operator, for an action.
    pub by: Option<String>,
}

/// How an operator's action ended.
#[derive(Debug, Clone, PartialEq)]
pub struct ActionWrite {
    pub id: ActionId,
    pub result: ActionResult,
    pub at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActionResult {
    Applied {
        text: String,
    },
    /// Something else had already taken effect; the text names it.
    Conflict {
        text: String,
    },
}
