//! Where messages come from and go to, and how a decision is carried out.
//!
//! Start reading at [`Transport`], then [`Session`], then [`Committer`]. [`memory::MemoryTransport`] is the small implementation; the embedded
//! broker in `host/broker` is the durable one; both pass [`conformance`].
//!
//! *Invariant:* this crate knows no runtime and no loop, and decides nothing: it only carries out.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod memory;
pub mod ordered;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use sprag_core::{
    effect::Commit,
    ids::{EntityName, MessageId, SequenceNumber, SessionId},
    message::{Delivery, LockToken, Message},
    time::Timestamp,
};

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The lock has lapsed or was taken away; what it held will be delivered again.
    #[error("the lock is lost")]
    LockLost,
    #[error("session {0} is held by another receiver")]
    SessionHeld(SessionId),
    #[error("there is no entity {0:?}")]
    NoSuchEntity(EntityName),
    /// The entity does not take this message: no session id on a session entity, too large, a bad id.
    #[error("{0}")]
    Refused(String),
    /// The entity or the store is full, or takes no writes until it is opened again. Nothing was accepted.
    #[error("{0}")]
    Full(String),
    /// It may work again later.
    #[error("the transport is not available: {0}")]
    Unavailable(String),
    #[error("there is no scheduled message {0} in {1:?}")]
    NoSuchScheduled(SequenceNumber, EntityName),
}

/// What to do with a delivery whose lock is held.
#[derive(Debug, Clone, PartialEq)]
pub enum Settlement {
    Complete,
    /// Back into its place; the delivery counts.
    Abandon,
    /// Back into its place as if it had not been handed over: the delivery does not count.
    Release,
    DeadLetter {
        reason: String,
        description: String,
    },
}

/// What a look at a session's parked messages found.
#[derive(Debug, Clone)]
pub enum Parked {
    /// The oldest one, locked.
    Copy(Delivery),
    /// None. `certain` where the transport cannot be wrong about it; else one look is not proof (P17).
    Empty { certain: bool },
    /// Another receiver holds the parked messages: not the same as empty.
    Busy,
}

/// A part of an entity that can be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    Active,
    Scheduled,
    Parked,
    DeadLetters,
}

/// A message that was looked at without locking it.
#[derive(Debug, Clone, PartialEq)]
pub struct Peeked {
    pub sequence: SequenceNumber,
    pub part: Part,
    pub enqueued_at: Timestamp,
    pub delivery_count: u32,
    /// The parking number, for a parked message.
    pub parked_as: Option<u32>,
    /// Since when it is parked or dead. None where the broker does not tell.
    pub moved_at: Option<Timestamp>,
    pub dead_letter_reason: Option<String>,
    pub dead_letter_description: Option<String>,
    pub message: Message,
}

/// Settings and counts of an entity.
#[derive(Debug, Clone, PartialEq)]
pub struct EntityInfo {
    pub name: EntityName,
    pub requires_session: bool,
    pub lock_duration: Duration,
    pub max_delivery_count: u32,
    pub active: u64,
    pub scheduled: u64,
    pub parked: u64,
    pub dead_letters: u64,
}

/// The settings of an entity that a host needs to serve it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntitySettings {
    pub requires_session: bool,
    pub lock_duration: Duration,
    pub max_delivery_count: u32,
}

/// A session as an operator sees it: one that has messages, state or a holder.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionInfo {
    pub session: SessionId,
    pub state: Option<Bytes>,
    pub active: u64,
    pub parked: u64,
    pub oldest_parked_at: Option<Timestamp>,
    pub locked: bool,
}

/// A broker, near or far.
///
/// Rules for every implementation, checked by [`conformance`]:
///
/// - A message is handed to one receiver at a time; a session is held by one receiver at a time and its messages come in sequence order, the next
///   one only after the one before was settled or released.
/// - A message given back comes again in its place: nothing overtakes it within its session.
/// - `send` answers after the message is as durable as the transport makes things. Refused means: not there.
/// - Locks run on monotonic time. A lapsed lock refuses every settlement with [`Error::LockLost`] and changes nothing.
/// - A delivery past the entity's delivery limit goes to the dead letters with reason `MaxDeliveryCountExceeded`.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// The next session with something to do that nobody holds. None after `wait`.
    async fn accept_next(&self, source: &EntityName, wait: Duration) -> Result<Option<Arc<dyn Session>>, Error>;

    /// The named session, whether or not it has messages. [`Error::SessionHeld`] when somebody still holds it after `wait`.
    async fn accept(&self, source: &EntityName, session: &SessionId, wait: Duration)
    -> Result<Arc<dyn Session>, Error>;

    /// Up to `max` messages of an entity without sessions, at least one unless `wait` passes.
    async fn receive(&self, source: &EntityName, max: usize, wait: Duration) -> Result<Vec<Delivery>, Error>;

    /// Extends a delivery's lock (entities without sessions). Answers for how long it holds from now.
    async fn renew(&self, source: &EntityName, lock: LockToken) -> Result<Duration, Error>;

    /// Settles a delivery of an entity without sessions.
    async fn settle(&self, source: &EntityName, lock: LockToken, settlement: Settlement) -> Result<(), Error>;

    /// Sends all or none. A message with `scheduled_for` becomes visible then. Answers the numbers, in order; none at all where the broker does not
    /// tell them (AMQP tells those of scheduled messages only). May refuse properties that are of no simple AMQP type.
    async fn send(&self, entity: &EntityName, messages: Vec<Message>) -> Result<Vec<SequenceNumber>, Error>;

    /// Puts a message of the host's own onto the source itself (P21), past duplicate detection (P25). One whose message id is
    /// there already, in its session, is left alone. Without a session a second one may be added where looking would mean to look at the whole
    /// entity; a message that was decided is not decided again (P1).
    async fn enqueue(&self, source: &EntityName, message: Message) -> Result<(), Error>;

    /// Takes a scheduled message back.
    async fn cancel_scheduled(&self, entity: &EntityName, sequence: SequenceNumber) -> Result<(), Error>;

    /// Takes a scheduled message of the host's own back, by its id. False when there is none.
    async fn cancel_scheduled_id(&self, source: &EntityName, id: &MessageId) -> Result<bool, Error>;

    /// Looks without locking, from a sequence number on, in sequence order (parked: in parking order). Empty when there is nothing.
    async fn peek(
        &self,
        entity: &EntityName,
        part: Part,
        session: Option<&SessionId>,
        from: SequenceNumber,
        max: usize,
    ) -> Result<Vec<Peeked>, Error>;

    /// Puts dead letters back onto their entity as they were, without the dead-letter properties. Answers how many.
    async fn replay_dead_letters(&self, entity: &EntityName, sequences: &[SequenceNumber]) -> Result<u64, Error>;

    /// Whether the entity is there, and what serving it needs. Cheap, unlike [`Transport::describe`], which counts: for whoever only wants to
    /// know that.
    async fn settings(&self, entity: &EntityName) -> Result<EntitySettings, Error> {
        let EntityInfo { requires_session, lock_duration, max_delivery_count, .. } = self.describe(entity).await?;
        Ok(EntitySettings { requires_session, lock_duration, max_delivery_count })
    }

    /// Settings and counts. A broker that is not near is asked for every message to count them.
    async fn describe(&self, entity: &EntityName) -> Result<EntityInfo, Error>;
    async fn entities(&self) -> Result<Vec<EntityInfo>, Error>;

    /// The entities by name only. Cheap, unlike [`Transport::entities`], which counts.
    async fn names(&self) -> Result<Vec<EntityName>, Error> {
        Ok(self.entities().await?.into_iter().map(|info| info.name).collect())
    }

    /// Sessions of an entity in order of their ids, after `after`, at most `max`. A broker that is not near does not list one that is held and
    /// has neither messages nor state, and may not tell the state of one that is held.
    async fn sessions(
        &self,
        entity: &EntityName,
        after: Option<&SessionId>,
        max: usize,
    ) -> Result<Vec<SessionInfo>, Error>;
}

/// A session that this host holds. Dropping it without [`Session::release`] gives it back when its lock lapses at the latest.
#[async_trait]
pub trait Session: Send + Sync {
    fn id(&self) -> &SessionId;

    /// The right to everything in the session; also names it to the [`Committer`].
    fn lock(&self) -> LockToken;

    /// For how long the lock holds from now, without asking the broker: counted on monotonic time from the last renewal.
    fn remaining(&self) -> Duration;

    async fn renew(&self) -> Result<Duration, Error>;

    /// None and empty are the same: an idle session.
    async fn state(&self) -> Result<Option<Bytes>, Error>;
    async fn set_state(&self, state: Option<Bytes>) -> Result<(), Error>;

    /// The next message of the session. None after `wait`.
    async fn receive(&self, wait: Duration) -> Result<Option<Delivery>, Error>;

    /// The oldest parked message of the session.
    async fn receive_parked(&self) -> Result<Parked, Error>;

    /// Puts a delivery aside as number `sequence`, and leaves it to be settled. Where parked is not a place, `copy` is sent as it stands: its words
    /// are under the hosts' seal (P31).
    async fn park(&self, delivery: &Delivery, sequence: u32, copy: &Message) -> Result<(), Error>;

    /// Settles a delivery of this session, parked ones too.
    async fn settle(&self, lock: LockToken, settlement: Settlement) -> Result<(), Error>;

    /// Gives the session back. Nobody is offered it before `pause` has passed, so that a delivery given back comes again after a back-off;
    /// where the transport cannot do that, it is held for as long.
    async fn release(&self, pause: Duration) -> Result<(), Error>;
}

/// What a commit is about.
#[derive(Clone, Copy)]
pub struct Held<'a> {
    pub source: &'a EntityName,
    /// None on an entity without sessions. Shared, because a commit outlives the caller that waits for it.
    pub session: Option<&'a Arc<dyn Session>>,
    pub delivery: &'a Delivery,
}

/// Why a commit did not happen, or not whole.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CommitError {
    /// Before the first effect: nothing was changed, the delivery comes again (P5).
    #[error("the lock was lost before the commit")]
    LockLost,
    /// Nothing was changed; the run is to be repeated under the same lock (P4).
    #[error("state that the run read has changed meanwhile")]
    StateConflict,
    /// Nothing was changed: somebody has taken over the lease under which it was decided; the delivery comes again (P5).
    #[error("the lease on the message was lost before the commit")]
    LeaseLost,
    /// Nothing was changed, or it is not known; the delivery comes again and finds out (P1, P5).
    #[error("{0}")]
    Unavailable(String),
    /// The first effect took place and a later one did not; the redelivery carries out the rest (P1).
    #[error("carried out in part: {0}")]
    Partial(String),
    /// A message of the run cannot be sent: no such entity. The run counts as failed (`component-error`); nothing was changed.
    #[error("{0}")]
    Refused(String),
}

/// Carries out decisions. A commit that has begun runs to its end even if the caller stops waiting.
#[async_trait]
pub trait Committer: Send + Sync + 'static {
    async fn commit(&self, held: Held<'_>, commit: Commit) -> Result<sprag_store::Written, CommitError>;
}
