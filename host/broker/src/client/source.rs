//! Where messages are received from.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sprag_core::{
    ids::{EntityName, SequenceNumber, SessionId},
    message::LockToken,
    time::Timestamp,
};

use super::{ClientMessage, ClientSession, Error, LONGEST_WAIT, MessageState, Mode, Settle, Taken, settle, state_of};
use crate::{
    Engine,
    broker::look_until,
    entity::{Address, Entity, EntityKind},
    index::{Accept, Change, Handed, NEVER, Pin},
    messages,
    shared::Shared,
};

/// A queue, a subscription, or the dead letters of one. Cheap to clone; it stays of use when the entity's settings change, and says so when
/// the entity has gone.
#[derive(Clone)]
pub struct Source {
    pub(super) engine: Engine,
    pub(super) at: Address,
    pub(super) name: EntityName,
}

/// Which sessions of an entity are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sessions {
    /// With messages or a state.
    All,
    /// With active messages.
    WithMessages,
    /// Whose state was set after this.
    UpdatedSince(Timestamp),
}

impl Engine {
    /// The queue or subscription of this name (`topic/subscription`), its dead letters (`…/$DeadLetterQueue`), or
    /// those that it could not forward (`…/$Transfer/$DeadLetterQueue`).
    pub fn source(&self, name: &EntityName) -> Result<Source, Error> {
        let source = self.looked_at(name)?;
        if source.entity().spec.kind == EntityKind::Topic {
            return Err(Error::Refused(format!("{} is a topic: receive from one of its subscriptions", source.name)));
        }
        Ok(source)
    }

    /// The same, and a topic too: nothing is received from one, but what is scheduled there can be looked at, as on Azure (its issue
    /// `azure-service-bus#352`: by design, for nothing else shows it).
    pub fn looked_at(&self, name: &EntityName) -> Result<Source, Error> {
        let topology = self.shared.topology();
        let at = topology.address(name)?;
        let spec = &topology.entities[at.entity].spec;
        Ok(Source { engine: self.clone(), at, name: spec.name.clone() })
    }
}

impl Source {
    /// Of the entity, as it was declared; also for its dead letters.
    pub fn name(&self) -> &EntityName {
        &self.name
    }

    pub fn is_dead_letters(&self) -> bool {
        self.at.is_dead()
    }

    /// Whether messages are received through sessions. Dead letters never are.
    pub fn requires_session(&self) -> bool {
        self.entity().spec.requires_session && !self.at.is_dead()
    }

    pub fn lock_duration(&self) -> Duration {
        self.entity().spec.lock_duration
    }

    /// Whether something could be received now.
    pub fn check(&self) -> Result<(), Error> {
        self.shared().with_index(|index| index.open(self.at)).map_err(|shut| Error::shut(shut, &self.name))
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.engine.shared
    }

    fn entity(&self) -> Arc<Entity> {
        Arc::clone(&self.shared().topology().entities[self.at.entity])
    }

    pub(super) fn touch(&self) {
        self.entity().touch(self.shared().now());
    }

    fn plain(&self) -> Result<(), Error> {
        match self.requires_session() {
            true => Err(Error::SessionRequired(self.name.clone())),
            false => Ok(()),
        }
    }

    fn with_sessions(&self) -> Result<(), Error> {
        match self.requires_session() {
            true => Ok(()),
            false => Err(Error::NoSessions(self.name.clone())),
        }
    }

    /// Up to `max` messages, as soon as there is one; none after `wait`.
    pub async fn receive(&self, max: usize, wait: Duration, mode: Mode) -> Result<Vec<ClientMessage>, Error> {
        self.plain()?;
        let (shared, at) = (self.shared(), self.at);
        let wake = shared.with_index(|index| Arc::clone(&index.plain(at).wake));
        let found = look_until(&wake, wait.min(LONGEST_WAIT), || {
            shared.refuse_when_closed()?;
            let wall = shared.now().0;
            let handed = shared.with_index(|index| {
                index.open(at).map_err(|shut| Error::shut(shut, &self.name))?;
                Ok::<_, Error>(index.take_plain(at, max.max(1), Instant::now(), wall))
            })?;
            Ok::<_, Error>((!handed.is_empty()).then_some(handed))
        });
        let handed = found.await?.unwrap_or_default();
        self.touch();
        self.hand_over(handed, MessageState::Active, mode).await
    }

    /// Deferred messages by their numbers, all or none of them.
    pub async fn receive_deferred(
        &self,
        sequences: &[SequenceNumber],
        mode: Mode,
    ) -> Result<Vec<ClientMessage>, Error> {
        self.plain()?;
        let seqs: Vec<i64> = sequences.iter().map(|sequence| sequence.0).collect();
        let handed = self.shared().with_index(|index| {
            index.open(self.at).map_err(|shut| Error::shut(shut, &self.name))?;
            let taken = index.take_deferred_plain(self.at, &seqs, Instant::now());
            taken.map_err(|missing| Error::MessageNotFound(SequenceNumber(missing)))
        })?;
        self.hand_over(handed, MessageState::Deferred, mode).await
    }

    async fn hand_over(
        &self,
        handed: Vec<Handed>,
        state: MessageState,
        mode: Mode,
    ) -> Result<Vec<ClientMessage>, Error> {
        let (mut messages, mut failed) = (Vec::with_capacity(handed.len()), None);
        for handed in handed {
            let until = self.shared().with_index(|index| index.plain_until(self.at, handed.lock));
            let until = until.map_or(self.shared().now(), |until| self.shared().wall_of(until));
            match self.shared().client_message(handed, state, Some(until)) {
                Ok(message) => messages.push(message),
                Err(error) => {
                    // It may be readable later; nothing else is held up by it.
                    let given_back = self.light(LockToken(handed.lock), true).is_ok();
                    tracing::error!(entity = %self.name, sequence = handed.slot.seq, %error, given_back, "a message cannot be read");
                    failed = Some(error);
                }
            }
        }
        if mode == Mode::Delete {
            messages = self.delete(messages).await?;
        }
        match failed {
            Some(error) if messages.is_empty() => Err(error),
            _ => Ok(messages),
        }
    }

    /// Deletes before anybody gets them, in one group. Those that could not be deleted stay locked until their locks lapse.
    async fn delete(&self, messages: Vec<ClientMessage>) -> Result<Vec<ClientMessage>, Error> {
        let under_way: Vec<_> = messages
            .into_iter()
            .map(|mut message| {
                let lock = message.lock.take().expect("it was just locked").token;
                (message, self.begin(lock, Settle::Complete))
            })
            .collect();
        let (mut deleted, mut failed) = (Vec::with_capacity(under_way.len()), None);
        for (message, deleting) in under_way {
            match deleting {
                Ok(deleting) => match deleting.await {
                    Ok(()) => deleted.push(message),
                    Err(error) => failed = Some(error),
                },
                // Its lock has lapsed already: it comes again.
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if deleted.is_empty() => Err(error),
            _ => Ok(deleted),
        }
    }

    /// Settles a message of this source, received or deferred. [`Error::LockLost`] when its lock has lapsed or was never here.
    pub async fn settle(&self, lock: LockToken, how: Settle) -> Result<(), Error> {
        if how.is_light() {
            let counts = how != Settle::Release;
            self.light(lock, counts)?;
            if counts {
                // The count is in the file before anybody is told that it counts.
                self.shared().flush().await?;
            }
            return Ok(());
        }
        self.begin(lock, how)?.await
    }

    /// Gives a message back. What is to be written is with the writer then, in order.
    fn light(&self, lock: LockToken, counts: bool) -> Result<(), Error> {
        let now = Instant::now();
        let result = self.shared().with_index(|index| index.unhand_plain(self.at, lock.0, counts, now));
        Ok(result?)
    }

    fn begin(&self, lock: LockToken, how: Settle) -> Result<impl Future<Output = Result<(), Error>> + use<'_>, Error> {
        let (shared, at) = (self.shared(), self.at);
        let slot = shared.with_index(|index| index.pin_plain(at, lock.0, Instant::now()))?;
        shared.cache.lock().remove(slot.seq);
        let taken = Taken { at, slot };
        let written = shared.begin_pinned(Pin::Plain { at, lock: lock.0 }, how.bytes(), move |tx| {
            let how = settle(tx, taken, &how)?;
            tx.changes.push(Change::SettledPlain { at, lock: lock.0, how });
            Ok(())
        });
        Ok(async { Ok(written.await?) })
    }

    /// Extends locks, each on its own merits. Answers until when they hold then.
    pub fn renew(&self, locks: &[LockToken]) -> Vec<Result<Timestamp, Error>> {
        let now = Instant::now();
        let renewed: Vec<_> = self
            .shared()
            .with_index(|index| locks.iter().map(|lock| index.renew_plain(self.at, lock.0, now)).collect());
        let wall = self.shared().now();
        renewed.into_iter().map(|lock| Ok(wall.after(lock?))).collect()
    }

    /// Looks at messages from a number on, in the order of their numbers, whatever their state; of one session, or all. Locks nothing.
    pub async fn peek(
        &self,
        from: SequenceNumber,
        max: usize,
        session: Option<&SessionId>,
    ) -> Result<Vec<ClientMessage>, Error> {
        let gone = self.entity().is_gone();
        if gone {
            return Err(Error::NoSuchEntity(self.name.clone()));
        }
        let seen = self.shared().with_index(|index| index.look(self.at, session, from.0, max));
        let session = session.cloned();
        let read = self.shared().read_long(move |connection| {
            let mut found = Vec::new();
            for (seq, deliveries, seen) in seen {
                if found.len() == max {
                    break;
                }
                // It may have gone since.
                let Some(mut row) = messages::read_row(connection, seq)? else { continue };
                if session.is_some() && row.message.session_id != session {
                    continue;
                }
                messages::name_the_reason(&mut row.message, row.reason.as_deref(), row.description.as_deref());
                found.push(ClientMessage {
                    sequence: SequenceNumber(seq),
                    enqueue_sequence: SequenceNumber(row.enqueue_seq.unwrap_or(seq)),
                    state: state_of(seen),
                    lock: None,
                    // The file may be behind: counts are written when a message is given back.
                    delivery_count: deliveries,
                    enqueued_at: row.enqueued_at,
                    expires_at: row.expires_at.filter(|at| at.0 != NEVER),
                    id_assigned: row.id_assigned,
                    message: Arc::new(row.message),
                });
            }
            Ok(found)
        });
        Ok(read.await?)
    }

    /// The named session, whether or not it has messages. [`Error::SessionHeld`] when another receiver still holds it after `wait`.
    pub async fn accept(&self, session: &SessionId, wait: Duration) -> Result<ClientSession, Error> {
        self.with_sessions()?;
        crate::entity::check_session(session).map_err(Error::Refused)?;
        let (shared, deadline) = (self.shared(), tokio::time::Instant::now() + wait.min(LONGEST_WAIT));
        loop {
            let accept = || {
                shared.refuse_when_closed()?;
                shared.with_index(|index| {
                    index.open(self.at).map_err(|shut| Error::shut(shut, &self.name))?;
                    Ok::<_, Error>(index.accept(self.at.entity, session, Instant::now()))
                })
            };
            let waiters = match accept()? {
                Accept::Got { token, wake } => return Ok(ClientSession::new(self, session.clone(), token, wake)),
                Accept::Held(waiters) => waiters,
            };
            let woken = waiters.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            if let Accept::Got { token, wake } = accept()? {
                return Ok(ClientSession::new(self, session.clone(), token, wake));
            }
            if tokio::time::timeout_at(deadline, woken).await.is_err() {
                return Err(Error::SessionHeld(session.clone()));
            }
        }
    }

    /// The session that has waited longest and has active messages. None after `wait`.
    pub async fn accept_next(&self, wait: Duration) -> Result<Option<ClientSession>, Error> {
        self.with_sessions()?;
        let (shared, at) = (self.shared(), self.at);
        let wake = shared.with_index(|index| Arc::clone(&index.entities[at.entity].wake));
        let found = look_until(&wake, wait.min(LONGEST_WAIT), || {
            shared.refuse_when_closed()?;
            let accepted = shared.with_index(|index| {
                index.open(at).map_err(|shut| Error::shut(shut, &self.name))?;
                Ok::<_, Error>(index.accept_next(at.entity, Instant::now()))
            })?;
            // From here on, whoever drops it gives it back.
            Ok::<_, Error>(accepted.map(|(session, token, wake)| ClientSession::new(self, session, token, wake)))
        });
        found.await
    }

    /// Sessions in the order of their ids.
    pub fn sessions(&self, which: Sessions, skip: usize, max: usize) -> Result<Vec<SessionId>, Error> {
        self.with_sessions()?;
        self.shared().with_index(|index| {
            index.open(self.at).map_err(|shut| Error::shut(shut, &self.name))?;
            let sessions = index.entities[self.at.entity].sessions.iter();
            let wanted = sessions.filter(|(_, sess)| match which {
                Sessions::All => sess.state.is_some() || sess.message_count() > 0,
                Sessions::WithMessages => sess.active_count() > 0,
                Sessions::UpdatedSince(time) => sess.state.is_some() && sess.state_at > time.0,
            });
            let mut ids: Vec<&SessionId> = wanted.map(|(id, _)| id).collect();
            ids.sort_unstable();
            Ok(ids.into_iter().skip(skip).take(max).cloned().collect())
        })
    }
}
