//! The alternative client: the crate `azservicebus` behind the same seam (cargo feature `azservicebus`).
//!
//! Start reading at [`AzServiceBus`], then `worker` (a client and its thread), then `session`, `plain` and `sending` (what is done there).
//! `message` takes messages from one line of AMQP crates to the other, `fault` says what an error of the crate means.
//!
//! The crate receives, settles, renews, reads and writes session state, and sends. The rest (listings, schedules, what is put onto a source
//! itself, parked messages) is our own client's, which this transport holds: there the crate has no API, or one whose answer cannot be
//! relied on. `docs/run-on-service-bus.md` says what follows from that for a user.
//!
//! *Invariants*, each for a trap of the crate (ADR 6): a client lives on a thread of its own, whose runtime has no other thread; no call of the
//! crate is given up and gone on with (who gives up, gives up the client, its runtime and its connection); a client that failed to make a
//! receiver or a sender is not used again; nothing is settled without a renewal before it, because only that tells whether the lock holds;
//! nothing is retried by the crate, because it would send twice and resume a session that it does not hold.

mod fault;
mod message;
mod plain;
mod sending;
mod session;
mod worker;

use std::{collections::HashMap, sync::Arc, time::Duration};

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
    BuildError, ServiceBus,
    config::Config,
    fault::{Fault, condition},
    transport::Shared,
};

/// A named session that somebody holds is asked for again after this long, at first and at most: each time over a connection of its own.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// Why a transport was not built on this client.
#[derive(Debug, thiserror::Error)]
pub enum Unsupported {
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Its token credentials are `azure_core`'s, of a version of its own.
    #[error(
        "the client `azservicebus` takes a connection string only: tokens of an identity are for the client of our own"
    )]
    Tokens,
    /// It trusts Mozilla's list, compiled in.
    #[error("the client `azservicebus` cannot be given further authorities (extra_roots)")]
    Roots,
    /// It sends where it is told, and knows no way round by a topic.
    #[error(
        "the client `azservicebus` does not serve endpoints on NimBus's topology: that is for the client of our own"
    )]
    Nimbus,
}

/// Azure Service Bus through the crate `azservicebus`. Cheap to clone.
#[derive(Clone)]
pub struct AzServiceBus {
    inner: Arc<Inner>,
}

struct Inner {
    /// What the crate does not do.
    own: ServiceBus,
    clients: Arc<worker::Clients>,
    receivers: Mutex<HashMap<EntityName, plain::Receiver>>,
    senders: Mutex<HashMap<EntityName, sending::Sender>>,
}

impl AzServiceBus {
    /// Does not connect: the first call does. [`Config::settle`] is for the client of our own; this one settles on links, after a renewal.
    pub fn new(config: Config) -> Result<Self, Unsupported> {
        if config.tokens.is_some() {
            return Err(Unsupported::Tokens);
        }
        if !config.extra_roots.is_empty() {
            return Err(Unsupported::Roots);
        }
        if !config.nimbus.is_empty() {
            return Err(Unsupported::Nimbus);
        }
        let clients = Arc::new(worker::Clients::new(config.connection.clone(), config.operation_timeout));
        let own = ServiceBus::new(config)?;
        Ok(Self { inner: Arc::new(Inner { own, clients, receivers: Mutex::default(), senders: Mutex::default() }) })
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.inner.own.shared
    }

    async fn granted(&self, source: &EntityName, wanted: session::Wanted) -> Result<Arc<dyn Session>, Fault> {
        let settings = self.shared().settings(source, true);
        let granted = session::accept(&self.inner.clients, source, wanted, settings.lock_duration).await?;
        Ok(Arc::new(session::HeldSession::new(Arc::clone(self.shared()), source.clone(), settings, granted)))
    }

    /// Makes one where there is none or where its client has gone.
    fn receiver(&self, source: &EntityName) -> plain::Receiver {
        let mut receivers = self.inner.receivers.lock();
        match receivers.get(source).filter(|receiver| receiver.lives()) {
            Some(receiver) => receiver.clone(),
            None => {
                let receiver = plain::Receiver::start(&self.inner.clients, self.shared(), source);
                receivers.insert(source.clone(), receiver.clone());
                receiver
            }
        }
    }

    fn sender(&self, entity: &EntityName) -> sending::Sender {
        let mut senders = self.inner.senders.lock();
        match senders.get(entity).filter(|sender| sender.lives()) {
            Some(sender) => sender.clone(),
            None => {
                let sender = sending::Sender::start(&self.inner.clients, entity);
                senders.insert(entity.clone(), sender.clone());
                sender
            }
        }
    }
}

#[async_trait]
impl Transport for AzServiceBus {
    async fn accept_next(&self, source: &EntityName, wait: Duration) -> Result<Option<Arc<dyn Session>>, Error> {
        match self.granted(source, session::Wanted::Next(wait)).await {
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
        let until = Instant::now() + wait;
        let mut pause = ASK_AGAIN.0;
        loop {
            match self.granted(source, session::Wanted::Named(session.clone())).await {
                Ok(held) => return Ok(held),
                Err(fault) if fault.is(condition::SESSION_HELD) => {
                    if Instant::now() + pause > until {
                        return Err(Error::SessionHeld(session.clone()));
                    }
                }
                Err(fault) => return Err(fault.about(source)),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(ASK_AGAIN.1);
        }
    }

    async fn receive(&self, source: &EntityName, max: usize, wait: Duration) -> Result<Vec<Delivery>, Error> {
        match max {
            0 => Ok(Vec::new()),
            max => self.receiver(source).receive(max, wait).await.map_err(|fault| fault.about(source)),
        }
    }

    async fn renew(&self, source: &EntityName, lock: LockToken) -> Result<Duration, Error> {
        self.receiver(source).renew(lock).await.map_err(|fault| fault.about(source))
    }

    async fn settle(&self, source: &EntityName, lock: LockToken, settlement: Settlement) -> Result<(), Error> {
        self.receiver(source).settle(lock, settlement).await.map_err(|fault| fault.about(source))
    }

    /// Scheduled messages are our own client's: the crate gives all of a list one time, and the numbers are needed to take them back.
    async fn send(&self, entity: &EntityName, messages: Vec<Message>) -> Result<Vec<SequenceNumber>, Error> {
        if messages.iter().all(|message| message.scheduled_for.is_some()) {
            return self.inner.own.send(entity, messages).await;
        }
        self.shared().check(entity, &messages)?;
        let messages = messages.iter().map(message::to_crate).collect::<Result<Vec<_>, _>>()?;
        self.sender(entity).send(messages).await.map_err(|fault| fault.about(entity))?;
        Ok(Vec::new())
    }

    async fn enqueue(&self, source: &EntityName, message: Message) -> Result<(), Error> {
        self.inner.own.enqueue(source, message).await
    }

    async fn cancel_scheduled(&self, entity: &EntityName, sequence: SequenceNumber) -> Result<(), Error> {
        self.inner.own.cancel_scheduled(entity, sequence).await
    }

    async fn cancel_scheduled_id(&self, source: &EntityName, id: &MessageId) -> Result<bool, Error> {
        self.inner.own.cancel_scheduled_id(source, id).await
    }

    async fn peek(
        &self,
        entity: &EntityName,
        part: Part,
        session: Option<&SessionId>,
        from: SequenceNumber,
        max: usize,
    ) -> Result<Vec<Peeked>, Error> {
        self.inner.own.peek(entity, part, session, from, max).await
    }

    async fn replay_dead_letters(&self, entity: &EntityName, sequences: &[SequenceNumber]) -> Result<u64, Error> {
        self.inner.own.replay_dead_letters(entity, sequences).await
    }

    async fn settings(&self, entity: &EntityName) -> Result<Settings, Error> {
        self.inner.own.settings(entity).await
    }

    async fn describe(&self, entity: &EntityName) -> Result<EntityInfo, Error> {
        self.inner.own.describe(entity).await
    }

    async fn entities(&self) -> Result<Vec<EntityInfo>, Error> {
        self.inner.own.entities().await
    }

    async fn names(&self) -> Result<Vec<EntityName>, Error> {
        self.inner.own.names().await
    }

    async fn sessions(
        &self,
        entity: &EntityName,
        after: Option<&SessionId>,
        max: usize,
    ) -> Result<Vec<SessionInfo>, Error> {
        self.inner.own.sessions(entity, after, max).await
    }
}
