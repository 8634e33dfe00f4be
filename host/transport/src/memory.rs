//! A transport in memory, for tests.
//!
//! It behaves like a remote broker where the two kinds differ, so that what holds here holds there: parking sends a copy, a look at the parked
//! messages can be wrong or busy, a lock can be taken away without a word, a call can fail or hang. The switches for that are on
//! [`MemoryTransport`] itself. Locks and pauses follow tokio's clock, so a test that pauses time decides when they lapse.
//!
//! [`entity`] holds what an entity is and does; this file waits and wakes.

mod entity;
mod session;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use sprag_core::{
    ids::{EntityName, MessageId, SequenceNumber, SessionId},
    message::{Delivery, LockToken, Message},
};
use sprag_store::faults::Faults;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{EntityInfo, Error, Part, Peeked, Session, SessionInfo, Settlement, Transport};
use entity::Entity;
use session::MemorySession;

/// An entity, declared by the test.
#[derive(Debug, Clone)]
pub struct EntityConfig {
    pub name: EntityName,
    pub requires_session: bool,
    pub lock_duration: Duration,
    pub max_delivery_count: u32,
}

impl EntityConfig {
    /// An entity with sessions: locks of 30 s, 10 deliveries.
    pub fn sessions(name: &str) -> Self {
        Self { requires_session: true, ..Self::plain(name) }
    }

    /// An entity without sessions: locks of 30 s, 10 deliveries.
    pub fn plain(name: &str) -> Self {
        Self {
            name: name.into(),
            requires_session: false,
            lock_duration: Duration::from_secs(30),
            max_delivery_count: 10,
        }
    }

    pub fn lock_duration(self, lock_duration: Duration) -> Self {
        Self { lock_duration, ..self }
    }

    pub fn max_delivery_count(self, max_delivery_count: u32) -> Self {
        Self { max_delivery_count, ..self }
    }
}

/// Kinds of calls that a test can make fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    Accept,
    Receive,
    ReceiveParked,
    Park,
    Renew,
    Settle,
    State,
    SetState,
    Release,
    Send,
    Enqueue,
    Cancel,
    Look,
}

/// What the next looks at parked messages find, whatever is there (P17).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    Busy,
    Empty,
}

pub struct MemoryTransport {
    shared: Arc<Shared>,
}

struct Shared {
    entities: Mutex<BTreeMap<EntityName, Entity>>,
    /// Something changed that a waiter may be waiting for.
    changed: Notify,
    locks: AtomicU64,
    faults: Faults<Call, Error>,
    frozen: watch::Sender<bool>,
    refusal: Mutex<Option<String>>,
    looks: Mutex<Vec<Look>>,
    certain: Mutex<bool>,
}

impl MemoryTransport {
    pub fn new(entities: impl IntoIterator<Item = EntityConfig>) -> Self {
        let entities = entities.into_iter().map(|config| (config.name.clone(), Entity::new(config))).collect();
        let shared = Shared {
            entities: Mutex::new(entities),
            changed: Notify::new(),
            locks: AtomicU64::new(1),
            faults: Faults::default(),
            frozen: watch::Sender::new(false),
            refusal: Mutex::default(),
            looks: Mutex::default(),
            certain: Mutex::new(true),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The switches with which a test makes calls fail.
    pub fn faults(&self) -> &Faults<Call, Error> {
        &self.shared.faults
    }

    /// Every call waits until [`Self::thaw`].
    pub fn freeze(&self) {
        self.shared.frozen.send_replace(true);
    }

    pub fn thaw(&self) {
        self.shared.frozen.send_replace(false);
    }

    /// Sends are refused as full, with this text, until this is called with none.
    pub fn refuse_sends(&self, text: Option<&str>) {
        *self.shared.refusal.lock() = text.map(str::to_owned);
    }

    /// Whether an empty look at parked messages is proof. It is, unless a test says otherwise.
    pub fn set_certain(&self, certain: bool) {
        *self.shared.certain.lock() = certain;
    }

    /// The next looks at parked messages find this instead of what is there, the first one first.
    pub fn next_looks(&self, looks: &[Look]) {
        self.shared.looks.lock().extend(looks.iter().rev());
    }

    /// Takes a session away from its holder, who is not told.
    pub fn lose_session(&self, source: &EntityName, session: &SessionId) {
        self.shared.change(source, |entity| entity.lapse(Some(session))).expect("the test names an entity of its own");
    }

    /// Takes every lock of every entity away, as if all hosts had died.
    pub fn lose_all(&self) {
        for entity in self.shared.entities.lock().values_mut() {
            entity.lapse(None);
        }
        self.shared.changed.notify_waiters();
    }
}

impl Shared {
    /// Before every call: waits while frozen, then lets it go on or fail.
    async fn enter(&self, call: Call) -> Result<(), Error> {
        // The sender lives as long as this; an error would mean that nobody can freeze us any more.
        let mut frozen = self.frozen.subscribe();
        let _thawed = frozen.wait_for(|frozen| !*frozen).await;
        self.faults.enter(call)
    }

    /// Looks at an entity as it is now.
    fn look<T>(&self, name: &EntityName, look: impl FnOnce(&mut Entity) -> T) -> Result<T, Error> {
        let mut entities = self.entities.lock();
        let entity = entities.get_mut(name).ok_or_else(|| Error::NoSuchEntity(name.clone()))?;
        entity.catch_up();
        Ok(look(entity))
    }

    /// Changes an entity and wakes who waits for it.
    fn change<T>(&self, name: &EntityName, change: impl FnOnce(&mut Entity) -> T) -> Result<T, Error> {
        let changed = self.look(name, change)?;
        self.changed.notify_waiters();
        Ok(changed)
    }

    /// Asks again whenever something may have changed, until there is an answer or `wait` has passed.
    async fn wait_for<T>(
        &self,
        name: &EntityName,
        wait: Duration,
        mut ask: impl FnMut(&mut Entity) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let until = Instant::now() + wait;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (answer, next) = self.look(name, |entity| (ask(entity), entity.next_moment()))?;
            if let Some(answer) = answer? {
                return Ok(Some(answer));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            let wake = next.map_or(until, |next| next.min(until));
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    fn new_lock(&self) -> LockToken {
        LockToken(self.locks.fetch_add(1, Ordering::Relaxed))
    }

    fn session(
        self: &Arc<Self>,
        source: &EntityName,
        id: SessionId,
        lock: LockToken,
        until: Instant,
    ) -> Arc<dyn Session> {
        Arc::new(MemorySession::new(Arc::clone(self), source.clone(), id, lock, until))
    }

    fn refused(&self) -> Result<(), Error> {
        self.refusal.lock().clone().map_or(Ok(()), |text| Err(Error::Full(text)))
    }
}

#[async_trait]
impl Transport for MemoryTransport {
    async fn accept_next(&self, source: &EntityName, wait: Duration) -> Result<Option<Arc<dyn Session>>, Error> {
        self.shared.enter(Call::Accept).await?;
        let taken = self.shared.wait_for(source, wait, |entity| entity.accept_next(|| self.shared.new_lock())).await?;
        Ok(taken.map(|(id, lock, until)| self.shared.session(source, id, lock, until)))
    }

    async fn accept(
        &self,
        source: &EntityName,
        session: &SessionId,
        wait: Duration,
    ) -> Result<Arc<dyn Session>, Error> {
        self.shared.enter(Call::Accept).await?;
        let taken =
            self.shared.wait_for(source, wait, |entity| entity.accept(session, || self.shared.new_lock())).await?;
        let (lock, until) = taken.ok_or_else(|| Error::SessionHeld(session.clone()))?;
        Ok(self.shared.session(source, session.clone(), lock, until))
    }

    async fn receive(&self, source: &EntityName, max: usize, wait: Duration) -> Result<Vec<Delivery>, Error> {
        self.shared.enter(Call::Receive).await?;
        let taken = self.shared.wait_for(source, wait, |entity| entity.receive(max, || self.shared.new_lock())).await?;
        Ok(taken.unwrap_or_default())
    }

    async fn renew(&self, source: &EntityName, lock: LockToken) -> Result<Duration, Error> {
        self.shared.enter(Call::Renew).await?;
        self.shared.look(source, |entity| entity.renew(lock))?
    }

    async fn settle(&self, source: &EntityName, lock: LockToken, settlement: Settlement) -> Result<(), Error> {
        self.shared.enter(Call::Settle).await?;
        self.shared.change(source, |entity| entity.settle(None, lock, settlement))?
    }

    async fn send(&self, entity: &EntityName, messages: Vec<Message>) -> Result<Vec<SequenceNumber>, Error> {
        self.shared.enter(Call::Send).await?;
        self.shared.refused()?;
        self.shared.change(entity, |entity| entity.send(messages))?
    }

    async fn enqueue(&self, source: &EntityName, message: Message) -> Result<(), Error> {
        self.shared.enter(Call::Enqueue).await?;
        self.shared.refused()?;
        self.shared.change(source, |entity| entity.enqueue(message))?
    }

    async fn cancel_scheduled(&self, entity: &EntityName, sequence: SequenceNumber) -> Result<(), Error> {
        self.shared.enter(Call::Cancel).await?;
        self.shared.change(entity, |entity| entity.cancel(sequence))?
    }

    async fn cancel_scheduled_id(&self, source: &EntityName, id: &MessageId) -> Result<bool, Error> {
        self.shared.enter(Call::Cancel).await?;
        self.shared.change(source, |entity| entity.cancel_id(id))
    }

    async fn peek(
        &self,
        entity: &EntityName,
        part: Part,
        session: Option<&SessionId>,
        from: SequenceNumber,
        max: usize,
    ) -> Result<Vec<Peeked>, Error> {
        self.shared.enter(Call::Look).await?;
        self.shared.look(entity, |entity| entity.peek(part, session, from, max))
    }

    async fn replay_dead_letters(&self, entity: &EntityName, sequences: &[SequenceNumber]) -> Result<u64, Error> {
        self.shared.enter(Call::Send).await?;
        self.shared.refused()?;
        self.shared.change(entity, |entity| entity.replay(sequences))
    }

    async fn describe(&self, entity: &EntityName) -> Result<EntityInfo, Error> {
        self.shared.enter(Call::Look).await?;
        self.shared.look(entity, |entity| entity.describe())
    }

    async fn entities(&self) -> Result<Vec<EntityInfo>, Error> {
        self.shared.enter(Call::Look).await?;
        let mut entities = self.shared.entities.lock();
        let infos = entities.values_mut().map(|entity| {
            entity.catch_up();
            entity.describe()
        });
        Ok(infos.collect())
    }

    async fn sessions(
        &self,
        entity: &EntityName,
        after: Option<&SessionId>,
        max: usize,
    ) -> Result<Vec<SessionInfo>, Error> {
        self.shared.enter(Call::Look).await?;
        self.shared.look(entity, |entity| entity.list_sessions(after, max))
    }
}

#[cfg(test)]
mod tests;
