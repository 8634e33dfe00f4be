//! A session in the hands of a client.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use sprag_core::{
    ids::{SequenceNumber, SessionId},
    message::LockToken,
    time::Timestamp,
};
use tokio::sync::Notify;

use super::{ClientMessage, Error, LONGEST_WAIT, MessageState, Mode, Settle, Source, Taken, settle};
use crate::{
    broker::look_until,
    entity::{Address, EntityIndex},
    index::{Change, Handed, Pin},
    messages,
    shared::Shared,
};

/// A session that a client holds, until it releases it, drops it, or its lock lapses; then its messages are there for the next one. Unlike
/// the worker's, a dropped one is given back at once: a connection that is gone has nothing more to say.
///
/// Its messages come in order, several at a time if asked for; one that is abandoned comes again in its place. They are locked as long
/// as the session is.
pub struct ClientSession {
    source: Source,
    id: SessionId,
    token: u64,
    wake: Arc<Notify>,
    released: AtomicBool,
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        // Lost before, it is somebody else's, or there is nothing left to give back.
        let _ = self.give_back();
    }
}

impl ClientSession {
    pub(super) fn new(source: &Source, id: SessionId, token: u64, wake: Arc<Notify>) -> Self {
        Self { source: source.clone(), id, token, wake, released: AtomicBool::new(false) }
    }

    pub fn id(&self) -> &SessionId {
        &self.id
    }

    pub fn source(&self) -> &Source {
        &self.source
    }

    fn shared(&self) -> &Arc<Shared> {
        self.source.shared()
    }

    fn entity(&self) -> EntityIndex {
        self.source.at.entity
    }

    /// A lost session and a lost message are two things; the index says the same of both.
    fn why(&self, error: sprag_transport::Error) -> Error {
        match error {
            sprag_transport::Error::LockLost if !self.is_held() => self.lost(),
            other => other.into(),
        }
    }

    fn lost(&self) -> Error {
        match self.shared().topology().entities[self.entity()].is_gone() {
            true => Error::NoSuchEntity(self.source.name.clone()),
            false => Error::SessionLockLost(self.id.clone()),
        }
    }

    pub fn is_held(&self) -> bool {
        self.shared().with_index(|index| index.holds(self.entity(), &self.id, self.token, Instant::now()))
    }

    /// Until when the session is held, unless it is renewed. Now, for one that is lost.
    pub fn locked_until(&self) -> Timestamp {
        self.shared().now().after(self.remaining())
    }

    /// How long the session is still held, unless it is renewed. Zero, for one that is lost.
    pub fn remaining(&self) -> Duration {
        self.shared().with_index(|index| index.remaining(self.entity(), &self.id, self.token, Instant::now()))
    }

    /// Extends the lock. Answers until when it holds then.
    pub fn renew(&self) -> Result<Timestamp, Error> {
        let now = Instant::now();
        let renewed = self.shared().with_index(|index| index.renew(self.entity(), &self.id, self.token, now));
        Ok(self.shared().now().after(renewed.map_err(|error| self.why(error))?))
    }

    /// None where none was ever set, or none since it was set to none.
    pub fn state(&self) -> Result<Option<Bytes>, Error> {
        let now = Instant::now();
        let state = self.shared().with_index(|index| index.state(self.entity(), &self.id, self.token, now));
        state.map_err(|error| self.why(error))
    }

    pub async fn set_state(&self, state: Option<Bytes>) -> Result<(), Error> {
        let now = Instant::now();
        let pin = self.shared().with_index(|index| index.pin(self.entity(), &self.id, self.token, now));
        let pin = pin.map_err(|error| self.why(error))?;
        let (entity, id) = (self.entity(), self.id.clone());
        let bytes = state.as_ref().map_or(64, Bytes::len);
        let written = self.shared().write_pinned(Pin::Session(pin), bytes, move |tx| {
            messages::set_session_state(tx, entity, &id, state.as_ref())
        });
        Ok(written.await?)
    }

    /// Up to `max` messages of the session, in order, as soon as there is one; none after `wait`.
    pub async fn receive(&self, max: usize, wait: Duration, mode: Mode) -> Result<Vec<ClientMessage>, Error> {
        let (shared, entity) = (self.shared(), self.entity());
        let found = look_until(&self.wake, wait.min(LONGEST_WAIT), || {
            shared.refuse_when_closed()?;
            let wall = shared.now().0;
            let handed = shared.with_index(|index| {
                index.open(self.source.at).map_err(|shut| Error::shut(shut, &self.source.name))?;
                index
                    .next_several(entity, &self.id, self.token, max.max(1), Instant::now(), wall)
                    .map_err(|_| Error::SessionLockLost(self.id.clone()))
            })?;
            Ok::<_, Error>((!handed.is_empty()).then_some(handed))
        });
        let handed = found.await?.unwrap_or_default();
        self.source.touch();
        self.hand_over(handed, MessageState::Active, mode).await
    }

    /// Deferred messages of the session by their numbers, all or none of them.
    pub async fn receive_deferred(
        &self,
        sequences: &[SequenceNumber],
        mode: Mode,
    ) -> Result<Vec<ClientMessage>, Error> {
        let seqs: Vec<i64> = sequences.iter().map(|sequence| sequence.0).collect();
        let now = Instant::now();
        let taken = self
            .shared()
            .with_index(|index| index.take_deferred(self.entity(), &self.id, self.token, &seqs, now))
            .map_err(|error| self.why(error))?;
        let handed = taken.map_err(|missing| Error::MessageNotFound(SequenceNumber(missing)))?;
        self.hand_over(handed, MessageState::Deferred, mode).await
    }

    async fn hand_over(
        &self,
        handed: Vec<Handed>,
        state: MessageState,
        mode: Mode,
    ) -> Result<Vec<ClientMessage>, Error> {
        let until = self.locked_until();
        let mut messages = Vec::with_capacity(handed.len());
        let mut handed = handed.into_iter();
        let mut failed = None;
        for next in handed.by_ref() {
            match self.shared().client_message(next, state, Some(until)) {
                Ok(message) => messages.push(message),
                Err(error) => {
                    tracing::error!(session = %self.id, sequence = next.slot.seq, %error, "a message cannot be read");
                    failed = Some((next, error));
                    break;
                }
            }
        }
        if let Some((next, error)) = failed {
            // What follows it waits behind it, for order's sake; the delivery of the unreadable one counts, so that it ends somewhere.
            for (n, back) in std::iter::once(next).chain(handed).enumerate() {
                let given_back = self.light(LockToken(back.lock), n == 0);
                tracing::debug!(given_back = given_back.is_ok(), "given back");
            }
            if messages.is_empty() {
                return Err(error);
            }
        }
        if mode == Mode::PeekLock {
            return Ok(messages);
        }
        let mut under_way = Vec::with_capacity(messages.len());
        for mut message in messages {
            let lock = message.lock.take().expect("it was just locked").token;
            under_way.push((message, self.begin(lock, Settle::Complete)));
        }
        let (mut deleted, mut failed) = (Vec::with_capacity(under_way.len()), None);
        for (message, deleting) in under_way {
            let done = match deleting {
                Ok(deleting) => deleting.await,
                Err(error) => Err(error),
            };
            match done {
                Ok(()) => deleted.push(message),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if deleted.is_empty() => Err(error),
            _ => Ok(deleted),
        }
    }

    /// Settles a message of this session. [`Error::SessionLockLost`] when the session is somebody else's by now; [`Error::LockLost`] when
    /// the session is held and this message is not in its hands.
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
        let result =
            self.shared().with_index(|index| index.unhand(self.entity(), &self.id, self.token, lock.0, counts, now));
        result.map_err(|error| self.why(error))
    }

    fn begin(&self, lock: LockToken, how: Settle) -> Result<impl Future<Output = Result<(), Error>> + use<'_>, Error> {
        let (shared, entity, now) = (self.shared(), self.entity(), Instant::now());
        let pinned = shared.with_index(|index| index.pin_delivery(entity, &self.id, self.token, lock.0, now));
        let (pin, current) = pinned.map_err(|error| self.why(error))?;
        let slot = current.slot;
        shared.cache.lock().remove(slot.seq);
        let taken = Taken { at: Address::own(entity), slot };
        let settled = pin.clone();
        let written = shared.begin_pinned(Pin::Session(pin), how.bytes(), move |tx| {
            let how = settle(tx, taken, &how)?;
            tx.changes.push(Change::SettledInSession { pin: settled.clone(), how });
            Ok(())
        });
        Ok(async { Ok(written.await?) })
    }

    /// Gives the session back. What is still in hand is there for the next holder at once, and those deliveries do not count.
    pub async fn release(&self) -> Result<(), Error> {
        if self.give_back()? {
            self.shared().flush().await?;
        }
        Ok(())
    }

    /// True: the writer is burying something.
    fn give_back(&self) -> Result<bool, Error> {
        if self.released.swap(true, Relaxed) {
            return Ok(false);
        }
        let now = Instant::now();
        let (result, buries) = self
            .shared()
            .with_index_posting(|index| index.release(self.entity(), &self.id, self.token, Duration::ZERO, now));
        result.map_err(|error| self.why(error))?;
        Ok(buries)
    }
}
