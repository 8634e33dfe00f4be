//! What receivers and senders beyond this process need: several messages in flight, deferral, peeking at everything, sessions that are
//! given back when whoever holds them goes away.
//!
//! Beside [`sprag_transport::Transport`], which is what the worker needs and no more. Start at [`Engine::source`](crate::Engine::source) and
//! [`Engine::target`](crate::Engine::target): a [`Source`] is a queue, a subscription or the dead letters of one; its sessions are [`ClientSession`]s; a [`Target`] is a queue or a
//! topic. Nothing here knows how messages travel.
//!
//! *Cancelling.* A future that is dropped while it waits has taken nothing. One that has something to write has handed it to the writer
//! at its first poll, and what it asked for happens whether or not somebody still listens: a `receive` in [`Mode::Delete`] that is dropped
//! after it has found messages loses them, as at-most-once delivery may; run it to its end.

mod session;
mod source;
mod target;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sprag_core::{
    ids::{EntityName, SequenceNumber, SessionId},
    message::{LockToken, Message, Value},
    time::Timestamp,
};

use crate::{
    index::{Handed, NEVER, Seen, Settled, Shut, Slot},
    messages,
    shared::{ReadFailure, Shared},
    writer::{Stop, Tx},
};

pub use session::ClientSession;
pub use source::{Sessions, Source};
pub use target::Target;

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("there is no entity {0:?}")]
    NoSuchEntity(EntityName),
    /// Its status forbids it, at the moment.
    #[error("{entity} is disabled for this: its status says so")]
    Disabled { entity: EntityName },
    /// The lock has lapsed, or was never of this receiver.
    #[error("the lock of the message is lost")]
    LockLost,
    #[error("the lock of session {0} is lost")]
    SessionLockLost(SessionId),
    #[error("session {0} is held by another receiver")]
    SessionHeld(SessionId),
    /// No deferred or scheduled message of this number.
    #[error("there is no such message: {0}")]
    MessageNotFound(SequenceNumber),
    /// It has sessions: accept one to receive.
    #[error("{0} requires sessions")]
    SessionRequired(EntityName),
    #[error("{0} has no sessions")]
    NoSessions(EntityName),
    #[error("the message has {size} bytes; {entity} takes at most {limit}")]
    TooLarge { entity: EntityName, size: u64, limit: u64 },
    /// The entity does not take this message, or cannot do what was asked for.
    #[error("{0}")]
    Refused(String),
    /// No room for more messages.
    #[error("{0}")]
    Full(String),
    /// It may work again later.
    #[error("{0}")]
    Unavailable(String),
}

impl From<sprag_transport::Error> for Error {
    fn from(error: sprag_transport::Error) -> Self {
        use sprag_transport::Error as From;
        match error {
            From::LockLost => Self::LockLost,
            From::SessionHeld(session) => Self::SessionHeld(session),
            From::NoSuchEntity(name) => Self::NoSuchEntity(name),
            From::Refused(text) => Self::Refused(text),
            From::Full(text) => Self::Full(text),
            From::Unavailable(text) => Self::Unavailable(text),
            From::NoSuchScheduled(sequence, _) => Self::MessageNotFound(sequence),
        }
    }
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Self {
        match stop {
            // Not for want of room: the engine takes no writes at all.
            Stop::Closed(text) => Self::Unavailable(text),
            other => sprag_transport::Error::from(other).into(),
        }
    }
}

impl From<ReadFailure> for Error {
    fn from(failure: ReadFailure) -> Self {
        sprag_transport::Error::from(failure).into()
    }
}

impl Error {
    fn shut(shut: Shut, entity: &EntityName) -> Self {
        match shut {
            Shut::Gone => Self::NoSuchEntity(entity.clone()),
            Shut::Disabled => Self::Disabled { entity: entity.clone() },
            Shut::Forwards => {
                Self::Refused(format!("nothing can be received from {entity}: its messages are forwarded"))
            }
        }
    }
}

/// How a message is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Locked until it is settled, or the lock lapses.
    PeekLock,
    /// Gone from the file before it is handed over.
    Delete,
}

/// Where a message is within its entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageState {
    Active,
    /// Deferred by a client, or parked by a worker behind what blocks its session.
    Deferred,
    Scheduled,
}

/// The right to settle a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    pub token: LockToken,
    /// Until when, unless it is renewed. Of a session's message: as long as the session's.
    pub until: Timestamp,
}

/// A message as a client gets or sees it.
#[derive(Debug, Clone)]
pub struct ClientMessage {
    pub sequence: SequenceNumber,
    /// The number under which it was accepted: another one when it was scheduled.
    pub enqueue_sequence: SequenceNumber,
    pub state: MessageState,
    /// None for one that is only looked at, or that was deleted as it was handed over.
    pub lock: Option<Lock>,
    /// How many times it has been handed over, this time included.
    pub delivery_count: u32,
    pub enqueued_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    /// The sender gave no id: the one it carries is the engine's.
    pub id_assigned: bool,
    /// Of a dead letter: with the properties `DeadLetterReason` and `DeadLetterErrorDescription`. Of one that was forwarded: with
    /// `rare.dead_letter_source`.
    pub message: Arc<Message>,
}

/// Application properties to be set on a message when it is settled.
pub type Modified = Vec<(Arc<str>, Value)>;

/// What to do with a message whose lock is held.
#[derive(Debug, Clone, PartialEq)]
pub enum Settle {
    Complete,
    /// Back into its place; the delivery counts.
    Abandon {
        modified: Modified,
    },
    /// Back into its place as if it had not been handed over.
    Release,
    /// Set aside: it is received by its number only. The delivery counts.
    Defer {
        modified: Modified,
    },
    DeadLetter {
        reason: Option<String>,
        description: Option<String>,
        modified: Modified,
    },
}

impl Settle {
    /// Whether only the index changes: nothing in the file does.
    fn is_light(&self) -> bool {
        match self {
            Self::Release => true,
            Self::Abandon { modified } => modified.is_empty(),
            _ => false,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Abandon { modified } | Self::Defer { modified } | Self::DeadLetter { modified, .. } => {
                256 + 64 * modified.len()
            }
            _ => 64,
        }
    }
}

/// A delivery, as the writer needs to know it.
#[derive(Debug, Clone, Copy)]
struct Taken {
    at: crate::entity::Address,
    slot: Slot,
}

/// Carries out a settlement in the file. Answers where the message is then.
fn settle(tx: &mut Tx<'_>, taken: Taken, how: &Settle) -> Result<Settled, Stop> {
    let Taken { at, slot: Slot { seq, deliveries, size, .. } } = taken;
    Ok(match how {
        Settle::Complete => {
            messages::end(tx, seq, size)?;
            Settled::Gone
        }
        Settle::Abandon { modified } => {
            messages::modify(tx, seq, modified)?;
            Settled::Back
        }
        Settle::Defer { modified } => {
            messages::modify(tx, seq, modified)?;
            messages::defer(tx, seq, deliveries, at.part)?;
            Settled::Deferred
        }
        Settle::DeadLetter { reason, description, modified } => {
            messages::modify(tx, seq, modified)?;
            messages::to_dead_letters(tx, at, seq, reason.as_deref(), description.as_deref())?
        }
        Settle::Release => Settled::Back,
    })
}

impl Shared {
    /// The wall time of a moment to come.
    fn wall_of(&self, until: Instant) -> Timestamp {
        self.now().after(until.saturating_duration_since(Instant::now()))
    }

    fn client_message(
        &self,
        handed: Handed,
        state: MessageState,
        until: Option<Timestamp>,
    ) -> Result<ClientMessage, Error> {
        let loaded = self.load(handed.slot.seq)?;
        let lock = until.map(|until| Lock { token: LockToken(handed.lock), until });
        Ok(ClientMessage {
            sequence: SequenceNumber(handed.slot.seq),
            enqueue_sequence: SequenceNumber(loaded.enqueue_seq.unwrap_or(handed.slot.seq)),
            state,
            lock,
            delivery_count: handed.slot.deliveries,
            enqueued_at: loaded.enqueued_at,
            expires_at: Some(handed.slot.expires_at).filter(|at| *at != NEVER).map(Timestamp),
            id_assigned: loaded.id_assigned,
            message: loaded.message,
        })
    }
}

fn state_of(seen: Seen) -> MessageState {
    match seen {
        Seen::Active => MessageState::Active,
        Seen::Deferred => MessageState::Deferred,
        Seen::Scheduled => MessageState::Scheduled,
    }
}

/// The longest wait of one call: more than anybody means, and short enough to be added to a clock.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 86_400);
