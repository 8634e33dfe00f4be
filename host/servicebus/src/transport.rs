//! The transport.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use sprag_core::{
    ids::{EntityName, MessageId, SequenceNumber, SessionId},
    message::{Delivery, LockToken, Message},
};
use sprag_transport::{
    EntityInfo, EntitySettings as Settings, Error, Part, Peeked, Session, SessionInfo, Settlement, Transport,
};
use tokio::time::Instant;

use crate::{
    BuildError, address,
    config::{Config, EntitySettings},
    connection::Client,
    fault::{Fault, condition},
    link::{From, Link},
    listing,
    management::Management,
    message::{State, is_simple},
    plain::{self, Plain},
    session::HeldSession,
    settle::Locks,
    together::Together,
    way::Way,
};

/// A named session that somebody holds is asked for again after this long, at first and at most.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// The beginning of a lock is known well enough if it is known to this part of its duration.
const KNOWN_WITHIN: u32 = 8;
/// Scheduled messages of our own whose numbers are remembered. One that is forgotten is looked for.
const REMEMBERED: usize = 10_000;

/// Azure Service Bus as a transport. Cheap to clone.
#[derive(Clone)]
pub struct ServiceBus {
    pub(crate) shared: Arc<Shared>,
}

/// What a transport has open, and what it has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// To the broker.
    pub connections: usize,
    /// For completions of entities without sessions, since the beginning. Those that wait together share one.
    pub completion_requests: u64,
}

pub(crate) struct Shared {
    pub(crate) client: Arc<Client>,
    pub(crate) locks: Locks,
    pub(crate) plain: Plain,
    pub(crate) together: Together,
    scheduled: Mutex<Remembered>,
}

/// Numbers of scheduled messages, by entity and id.
#[derive(Default)]
struct Remembered {
    numbers: HashMap<(EntityName, MessageId), SequenceNumber>,
    order: VecDeque<(EntityName, MessageId)>,
}

impl Remembered {
    fn put(&mut self, entity: &EntityName, id: &MessageId, number: SequenceNumber) {
        let key = (entity.clone(), id.clone());
        if self.numbers.insert(key.clone(), number).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.numbers.remove(&oldest);
            }
        }
    }
}

impl ServiceBus {
    /// Does not connect: the first call does.
    pub fn new(config: Config) -> Result<Self, BuildError> {
        let shared = Shared {
            client: Arc::new(Client::new(config)?),
            locks: Locks::default(),
            plain: Plain::default(),
            together: Together::default(),
            scheduled: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// What it costs at the moment.
    pub async fn counts(&self) -> Counts {
        Counts {
            connections: self.shared.client.connections().await,
            completion_requests: self.shared.together.requests(),
        }
    }

    async fn granted(&self, source: &EntityName, from: From) -> Result<Arc<dyn Session>, Fault> {
        let mut since = Instant::now();
        let link = Link::open(&self.shared.client, &address::path(source), from).await?;
        let id = link.session().cloned().ok_or_else(|| Fault::Gone("the broker grants no session".to_owned()))?;
        // The lock began when the broker granted, at some time since we asked. After a long wait it is renewed, to know.
        if since.elapsed() > self.shared.settings(source, true).lock_duration / KNOWN_WITHIN {
            since = Instant::now();
            Management::of_link(&link, source).renew_session(&id).await?;
        }
        let session = HeldSession::new(Arc::clone(&self.shared), source.clone(), id, link, since);
        Ok(Arc::new(session))
    }
}

impl Shared {
    /// What is configured, or what is usual.
    pub(crate) fn settings(&self, entity: &EntityName, requires_session: bool) -> EntitySettings {
        let known = self.client.config.entities.iter().find(|known| known.name == *entity);
        known.cloned().unwrap_or_else(|| EntitySettings { requires_session, ..EntitySettings::plain(entity.clone()) })
    }

    pub(crate) fn way(&self, entity: &EntityName) -> Way {
        Way::of(entity, &self.client.config.nimbus)
    }

    /// The named session's link, and a moment before it was granted. Asked for again while somebody holds it.
    pub(crate) async fn named(
        &self,
        entity: &EntityName,
        session: &SessionId,
        wait: Duration,
    ) -> Result<(Link, Instant), Fault> {
        let until = Instant::now() + wait;
        let mut pause = ASK_AGAIN.0;
        loop {
            let since = Instant::now();
            let result = Link::open(&self.client, &address::path(entity), From::Session(session.clone())).await;
            match result {
                Err(fault) if fault.is(condition::SESSION_HELD) => {
                    if Instant::now() + pause > until {
                        return Err(fault);
                    }
                }
                other => return other.map(|link| (link, since)),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(ASK_AGAIN.1);
        }
    }

    pub(crate) async fn send(&self, entity: &EntityName, messages: &[Message]) -> Result<(), Error> {
        let way = self.way(entity);
        self.put(&way.entry(entity), &way.addressed(messages)).await.map_err(|fault| fault.about(entity))
    }

    /// As they stand, to where they are sent.
    pub(crate) async fn put(&self, entry: &EntityName, messages: &[Message]) -> Result<(), Fault> {
        let connection = self.client.connected().await?;
        connection.sender(&address::path(entry)).await?.send(messages).await
    }

    async fn schedule(&self, entity: &EntityName, messages: &[Message]) -> Result<Vec<SequenceNumber>, Error> {
        let way = self.way(entity);
        let entry = Management::of(&self.client, &way.entry(entity));
        let numbers = entry.schedule(&way.addressed(messages)).await.map_err(|fault| fault.about(entity))?;
        let mut remembered = self.scheduled.lock();
        for (message, number) in messages.iter().zip(&numbers) {
            if let Some(id) = &message.message_id {
                remembered.put(entity, id, *number);
            }
        }
        Ok(numbers)
    }

    /// Whether a message of this id is in its session already.
    async fn is_there(&self, source: &EntityName, message: &Message) -> Result<bool, Fault> {
        let (Some(id), Some(session)) = (&message.message_id, &message.session_id) else { return Ok(false) };
        let entry = self.way(source).entry(source);
        let remembered = self.scheduled.lock().numbers.get(&(source.clone(), id.clone())).copied();
        if let Some(number) = remembered.filter(|_| entry != *source)
            && Management::of(&self.client, &entry).is_there(number).await?
        {
            return Ok(true);
        }
        let mut found = false;
        let main = Management::of(&self.client, source);
        let walked = main.walk(Some(session), SequenceNumber(0), |received| {
            found = received.message.message_id.as_ref() == Some(id);
            !found
        });
        walked.await?;
        Ok(found)
    }

    /// Refuses what the broker or other receivers could not read.
    pub(crate) fn check(&self, entity: &EntityName, messages: &[Message]) -> Result<(), Error> {
        let configured = self.client.config.entities.iter().find(|known| known.name == *entity);
        let requires_session = configured.is_some_and(|known| known.requires_session);
        for message in messages {
            if requires_session && message.session_id.is_none() {
                let id = message.message_id.as_ref().map_or("without an id", |id| id.as_str());
                return Err(Error::Refused(format!(
                    "{entity} has sessions, and the message {id} of type {:?} has none",
                    message.event_type().as_str()
                )));
            }
            if let Some((name, _)) = message.properties.iter().find(|(_, value)| !is_simple(value)) {
                return Err(Error::Refused(format!("the property {name:?} is not of a simple type")));
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Transport for ServiceBus {
    async fn accept_next(&self, source: &EntityName, wait: Duration) -> Result<Option<Arc<dyn Session>>, Error> {
        match self.granted(source, From::NextSession(wait)).await {
            Ok(session) => Ok(Some(session)),
            Err(fault) if fault.is(condition::TIMEOUT) => Ok(None),
            Err(fault) => Err(fault.about(source)),
        }
    }

    async fn accept(
        &self,
        source: &EntityName,
        session: &SessionId,
        wait: Duration,
    ) -> Result<Arc<dyn Session>, Error> {
        match self.shared.named(source, session, wait).await {
            Ok((link, since)) => {
                let (shared, id) = (Arc::clone(&self.shared), session.clone());
                Ok(Arc::new(HeldSession::new(shared, source.clone(), id, link, since)))
            }
            Err(fault) if fault.is(condition::SESSION_HELD) => Err(Error::SessionHeld(session.clone())),
            Err(fault) => Err(fault.about(source)),
        }
    }

    async fn receive(&self, source: &EntityName, max: usize, wait: Duration) -> Result<Vec<Delivery>, Error> {
        plain::receive(&self.shared, source, max, wait).await
    }

    async fn renew(&self, source: &EntityName, lock: LockToken) -> Result<Duration, Error> {
        plain::renew(&self.shared, source, lock).await
    }

    async fn settle(&self, source: &EntityName, lock: LockToken, settlement: Settlement) -> Result<(), Error> {
        plain::settle(&self.shared, source, lock, settlement).await
    }

    /// Numbers are told for messages that are all scheduled, and not otherwise.
    async fn send(&self, entity: &EntityName, messages: Vec<Message>) -> Result<Vec<SequenceNumber>, Error> {
        self.shared.check(entity, &messages)?;
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        if messages.iter().all(|message| message.scheduled_for.is_some()) {
            return self.shared.schedule(entity, &messages).await;
        }
        self.shared.send(entity, &messages).await.map(|()| Vec::new())
    }

    /// Whether an id is there already is looked up in its session only: without one, the whole entity would have to be looked at.
    /// The same for what waits for its time on a topic, whose messages cannot be looked at by session: there one is found that this process has
    /// sent. A second one is found out by its id when it is delivered (P1).
    async fn enqueue(&self, source: &EntityName, message: Message) -> Result<(), Error> {
        self.shared.check(source, std::slice::from_ref(&message))?;
        let is_there = self.shared.is_there(source, &message).await.map_err(|fault| fault.about(source))?;
        if is_there {
            return Ok(());
        }
        match message.scheduled_for {
            Some(_) => self.shared.schedule(source, &[message]).await.map(drop),
            None => self.shared.send(source, &[message]).await,
        }
    }

    async fn cancel_scheduled(&self, entity: &EntityName, sequence: SequenceNumber) -> Result<(), Error> {
        let none = || Error::NoSuchScheduled(sequence, entity.clone());
        if sequence.0 < 0 {
            return Err(none());
        }
        let entry = self.shared.way(entity).entry(entity);
        match Management::of(&self.shared.client, &entry).cancel(sequence).await {
            Err(fault) if fault.is(condition::MESSAGE_NOT_FOUND) => Err(none()),
            result => result.map_err(|fault| fault.about(entity)),
        }
    }

    async fn cancel_scheduled_id(&self, source: &EntityName, id: &MessageId) -> Result<bool, Error> {
        let remembered = self.shared.scheduled.lock().numbers.remove(&(source.clone(), id.clone()));
        let number = match remembered {
            Some(number) => Some(number),
            None => {
                let mut found = None;
                let way = self.shared.way(source);
                let entry = Management::of(&self.shared.client, &way.entry(source));
                let walked = entry.walk(None, SequenceNumber(0), |received| {
                    let is_it = received.state == State::Scheduled
                        && received.message.message_id.as_ref() == Some(id)
                        && way.leads_here(&received.message);
                    found = is_it.then_some(received.sequence);
                    !is_it
                });
                walked.await.map_err(|fault| fault.about(source))?;
                found
            }
        };
        let Some(number) = number else { return Ok(false) };
        match self.cancel_scheduled(source, number).await {
            Ok(()) => Ok(true),
            Err(Error::NoSuchScheduled(..)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn peek(
        &self,
        entity: &EntityName,
        part: Part,
        session: Option<&SessionId>,
        from: SequenceNumber,
        max: usize,
    ) -> Result<Vec<Peeked>, Error> {
        listing::peek(&self.shared, entity, part, session, from, max).await
    }

    async fn replay_dead_letters(&self, entity: &EntityName, sequences: &[SequenceNumber]) -> Result<u64, Error> {
        listing::replay(&self.shared, entity, sequences).await
    }

    async fn settings(&self, entity: &EntityName) -> Result<Settings, Error> {
        Management::of(&self.shared.client, entity).exists().await.map_err(|fault| fault.about(entity))?;
        let known = self.shared.settings(entity, false);
        Ok(Settings {
            requires_session: known.requires_session,
            lock_duration: known.lock_duration,
            max_delivery_count: known.max_delivery_count,
        })
    }

    async fn describe(&self, entity: &EntityName) -> Result<EntityInfo, Error> {
        listing::describe(&self.shared, entity).await
    }

    async fn entities(&self) -> Result<Vec<EntityInfo>, Error> {
        let mut all = Vec::new();
        for known in &self.shared.client.config.entities {
            all.push(listing::describe(&self.shared, &known.name).await?);
        }
        Ok(all)
    }

    async fn names(&self) -> Result<Vec<EntityName>, Error> {
        Ok(self.shared.client.config.entities.iter().map(|known| known.name.clone()).collect())
    }

    async fn sessions(
        &self,
        entity: &EntityName,
        after: Option<&SessionId>,
        max: usize,
    ) -> Result<Vec<SessionInfo>, Error> {
        listing::sessions(&self.shared, entity, after, max).await
    }
}
