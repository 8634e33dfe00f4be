//! Effects one after another: how a commit is carried out where no engine holds everything.
//!
//! The machine lists a decision's effects in an order in which a crash between any two is safe (P1): first the store's transaction, which holds the
//! decision and what is still to do, then the rest, each step repeatable, the delivery's settlement last. This carries the list out. It
//! decides nothing and repeats nothing: what fails after the first effect is left to the redelivery, which finds the decision.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use sprag_core::{
    effect::{Commit, Decision, Effect, StoreWrite},
    ids::{EntityName, MessageId},
    message::{Delivery, Origin},
};
use sprag_store::{Question, Store, Written};
use tracing::warn;

use crate::{CommitError, Committer, Error, Held, Session, Settlement, Transport};

/// Carries commits out with a store and a transport that know nothing of each other. A cheap handle.
#[derive(Clone)]
pub struct Ordered {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    crash: Arc<CrashPoint>,
}

/// For tests: how many effects may still take place before the process counts as dead.
struct CrashPoint(AtomicUsize);

impl CrashPoint {
    const NEVER: usize = usize::MAX;

    /// Counts an effect, and says whether it may take place.
    fn pass(&self) -> bool {
        let next = |left: usize| match left {
            Self::NEVER => Some(Self::NEVER),
            0 => None,
            left => Some(left - 1),
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

impl Ordered {
    pub fn new(store: Arc<dyn Store>, transport: Arc<dyn Transport>) -> Self {
        Self { store, transport, crash: Arc::new(CrashPoint(AtomicUsize::new(CrashPoint::NEVER))) }
    }

    /// For tests: after `effects` more effects, counted over all commits, nothing takes place any more and every commit fails, as if the
    /// process had died there. That the decision is done counts as an effect, too. None: back to life.
    pub fn crash_after(&self, effects: Option<usize>) {
        self.crash.0.store(effects.unwrap_or(CrashPoint::NEVER), Ordering::Relaxed);
    }
}

#[async_trait]
impl Committer for Ordered {
    async fn commit(&self, held: Held<'_>, commit: Commit) -> Result<Written, CommitError> {
        let step = Step {
            ordered: self.clone(),
            source: held.source.clone(),
            session: held.session.cloned(),
            delivery: held.delivery.clone(),
        };
        // A task of its own: the commit goes on when the caller does not (P5).
        match tokio::spawn(async move { step.run(commit).await }).await {
            Ok(result) => result,
            Err(error) => Err(CommitError::Unavailable(format!("the commit did not end: {error}"))),
        }
    }
}

/// One commit under way, with all it needs.
struct Step {
    ordered: Ordered,
    source: EntityName,
    session: Option<Arc<dyn Session>>,
    delivery: Delivery,
}

/// Why an effect did not take place.
enum Failed {
    Store(sprag_store::Error),
    Transport(Error),
    /// Another decision on this message was there first.
    DecidedOtherwise,
    Crash,
}

impl Step {
    async fn run(&self, commit: Commit) -> Result<Written, CommitError> {
        self.check_outgoing(&commit).await?;
        self.check_lock().await?;
        let settles =
            commit.effects.iter().any(|effect| matches!(effect, Effect::Complete | Effect::DeadLetter { .. }));
        let decided = commit.effects.iter().find_map(|effect| match effect {
            Effect::Store(write) => write.decision.as_ref().map(|decision| decision.message_id.clone()),
            _ => None,
        });
        let mut written = Written::Done;
        for (done, effect) in commit.effects.into_iter().enumerate() {
            if !self.ordered.crash.pass() {
                return Err(Failed::Crash.after(done));
            }
            match self.carry_out(&commit.endpoint, effect).await {
                Ok(None) => {}
                Ok(Some(what)) => written = what,
                Err(failed) => return Err(failed.after(done)),
            }
        }
        // What a redelivery carried out has no decision of its own in it: then it is the delivery's that is done.
        let done = decided
            .or_else(|| self.delivery.message.message_id.clone().filter(|_| settles && !self.delivery.id_assigned));
        if let Some(id) = done.filter(|_| self.ordered.crash.pass()) {
            self.forget(&commit.endpoint, &id).await;
        }
        Ok(written)
    }

    /// A message that no entity takes fails its run before anything is changed.
    async fn check_outgoing(&self, commit: &Commit) -> Result<(), CommitError> {
        let outgoing = commit.effects.iter().filter_map(|effect| match effect {
            Effect::Store(write) => Some(&write.unit.outgoing),
            _ => None,
        });
        let entities: BTreeSet<_> = outgoing.flatten().map(|outgoing| &outgoing.entity).collect();
        for entity in entities {
            match self.ordered.transport.settings(entity).await {
                Ok(_) => {}
                Err(error @ (Error::NoSuchEntity(_) | Error::Refused(_))) => {
                    return Err(CommitError::Refused(error.to_string()));
                }
                Err(error) => return Err(CommitError::Unavailable(error.to_string())),
            }
        }
        Ok(())
    }

    /// The last look before the first effect (P5). A session's lock is known without asking; a delivery's is not.
    async fn check_lock(&self) -> Result<(), CommitError> {
        match &self.session {
            Some(session) if session.remaining().is_zero() => Err(CommitError::LockLost),
            Some(_) => Ok(()),
            None => match self.ordered.transport.renew(&self.source, self.delivery.lock).await {
                Ok(_) => Ok(()),
                Err(Error::LockLost) => Err(CommitError::LockLost),
                Err(error) => Err(CommitError::Unavailable(error.to_string())),
            },
        }
    }

    async fn carry_out(
        &self,
        endpoint: &sprag_core::ids::EndpointName,
        effect: Effect,
    ) -> Result<Option<Written>, Failed> {
        let transport = &self.ordered.transport;
        match effect {
            Effect::Store(write) => return self.write(endpoint, *write).await.map(Some),
            Effect::Enqueue(message) => transport.enqueue(&self.source, *message).await?,
            Effect::CancelScheduled(id) => {
                if let Err(error) = transport.cancel_scheduled_id(&self.source, &id).await {
                    // A retry that comes anyway is stale and does nothing (P11).
                    warn!(%id, %error, "a scheduled message could not be taken back");
                }
            }
            Effect::SetState(state) => self.session()?.set_state(state.to_bytes().map(Into::into)).await?,
            // What is parked already stays so.
            Effect::Park { .. } if self.delivery.origin == Origin::Parked => {}
            Effect::Park { sequence, copy } => self.session()?.park(&self.delivery, sequence, &copy).await?,
            Effect::Complete => self.settle(Settlement::Complete).await?,
            Effect::DeadLetter { reason, description } => {
                self.settle(Settlement::DeadLetter { reason, description }).await?
            }
        }
        Ok(None)
    }

    fn session(&self) -> Result<&Arc<dyn Session>, Failed> {
        let none = || Failed::Transport(Error::Refused(format!("{} has no sessions", self.source)));
        self.session.as_ref().ok_or_else(none)
    }

    async fn settle(&self, settlement: Settlement) -> Result<(), Error> {
        match &self.session {
            Some(session) => session.settle(self.delivery.lock, settlement).await,
            None => self.ordered.transport.settle(&self.source, self.delivery.lock, settlement).await,
        }
    }

    async fn write(&self, endpoint: &sprag_core::ids::EndpointName, write: StoreWrite) -> Result<Written, Failed> {
        let decision = write.decision.clone();
        let event_id = write.outcome.as_ref().map(|outcome| outcome.event_id.clone()).unwrap_or_else(|| "".into());
        let written = self.ordered.store.write(endpoint, write).await.map_err(Failed::Store)?;
        if let (Written::AlreadyDecided, Some(own)) = (written, decision) {
            let first = self.stored_decision(endpoint, &own.message_id, &event_id).await?;
            if first.is_some_and(|first| first != own) {
                // Another holder of this message decided it. Its rest is for the machine to weigh against the session as it is
                // now, and ours must not be carried out.
                return Err(Failed::DecidedOtherwise);
            }
        }
        Ok(written)
    }

    async fn stored_decision(
        &self,
        endpoint: &sprag_core::ids::EndpointName,
        message_id: &MessageId,
        event_id: &sprag_core::ids::EventId,
    ) -> Result<Option<Decision>, Failed> {
        let question = Question {
            endpoint,
            message_id: Some(message_id),
            source_id: None,
            event_id,
            inbox: false,
            outcome: false,
        };
        Ok(self.ordered.store.check(question).await.map_err(Failed::Store)?.decision)
    }

    async fn forget(&self, endpoint: &sprag_core::ids::EndpointName, id: &MessageId) {
        if let Err(error) = self.ordered.store.decision_done(endpoint, id).await {
            // The delivery is settled, so nobody asks for the decision any more; it goes with the purge of tracking.
            warn!(%endpoint, %id, %error, "a decision that is carried out could not be marked as done");
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Transport(error)
    }
}

impl Failed {
    /// What it means after this many effects took place.
    fn after(self, done: usize) -> CommitError {
        let text = match &self {
            Self::Store(error) => error.to_string(),
            Self::Transport(error) => error.to_string(),
            Self::DecidedOtherwise => "another decision on this message was there first".to_owned(),
            Self::Crash => "the process ended here".to_owned(),
        };
        match self {
            Self::DecidedOtherwise => CommitError::Partial(text),
            _ if done > 0 => CommitError::Partial(text),
            Self::Store(sprag_store::Error::StateConflict) => CommitError::StateConflict,
            Self::Store(sprag_store::Error::LeaseLost) => CommitError::LeaseLost,
            Self::Store(sprag_store::Error::Refused(text)) => CommitError::Refused(text),
            Self::Transport(Error::LockLost) => CommitError::LockLost,
            Self::Store(_) | Self::Transport(_) | Self::Crash => CommitError::Unavailable(text),
        }
    }
}

#[cfg(test)]
mod tests;
