//! A transport whose entities have other names than its user sees: a prefix, so that the suites, which know their entities by fixed names, run
//! beside each other on one namespace; or those of sources on NimBus's topology.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use sprag_core::{
    ids::{EntityName, MessageId, SequenceNumber, SessionId},
    message::{Delivery, LockToken, Message},
};
use sprag_servicebus::ServiceBus;
use sprag_transport::{
    EntityInfo, EntitySettings, Error, Parked, Part, Peeked, Session, SessionInfo, Settlement, Transport,
};

pub struct Prefixed {
    inner: ServiceBus,
    names: Names,
}

struct PrefixedSession {
    inner: Arc<dyn Session>,
    names: Names,
}

/// How names become others, and back.
#[derive(Clone)]
enum Names {
    Prefix(Arc<str>),
    /// The endpoints among them: each receives from a subscription of its name on a topic of its name.
    Nimbus(Arc<[EntityName]>),
}

impl Prefixed {
    pub fn new(inner: ServiceBus, prefix: &str) -> Self {
        Self { inner, names: Names::Prefix(prefix.into()) }
    }

    pub fn nimbus(inner: ServiceBus, endpoints: &[EntityName]) -> Self {
        Self { inner, names: Names::Nimbus(endpoints.into()) }
    }

    fn session(&self, inner: Arc<dyn Session>) -> Arc<dyn Session> {
        Arc::new(PrefixedSession { inner, names: self.names.clone() })
    }
}

impl Names {
    /// As the namespace knows it.
    fn there(&self, name: &EntityName) -> EntityName {
        match self {
            Self::Prefix(prefix) => format!("{prefix}{name}").into(),
            Self::Nimbus(endpoints) if endpoints.contains(name) => format!("{name}/{name}").into(),
            Self::Nimbus(_) => name.clone(),
        }
    }

    /// As the suite knows it.
    fn here(&self, name: EntityName) -> EntityName {
        match self {
            Self::Prefix(prefix) => name.as_str().strip_prefix(&**prefix).map(Into::into).unwrap_or(name),
            Self::Nimbus(endpoints) => endpoints.iter().find(|it| self.there(it) == name).cloned().unwrap_or(name),
        }
    }

    fn info(&self, info: EntityInfo) -> EntityInfo {
        EntityInfo { name: self.here(info.name), ..info }
    }

    fn said<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        let without = |text: String| match self {
            Self::Prefix(prefix) => text.replace(&**prefix, ""),
            Self::Nimbus(_) => text,
        };
        result.map_err(|error| match error {
            Error::LockLost | Error::SessionHeld(_) => error,
            Error::NoSuchEntity(name) => Error::NoSuchEntity(self.here(name)),
            Error::NoSuchScheduled(sequence, name) => Error::NoSuchScheduled(sequence, self.here(name)),
            Error::Refused(text) => Error::Refused(without(text)),
            Error::Full(text) => Error::Full(without(text)),
            Error::Unavailable(text) => Error::Unavailable(without(text)),
        })
    }
}

#[async_trait]
impl Transport for Prefixed {
    async fn accept_next(&self, source: &EntityName, wait: Duration) -> Result<Option<Arc<dyn Session>>, Error> {
        let accepted = self.names.said(self.inner.accept_next(&self.names.there(source), wait).await)?;
        Ok(accepted.map(|session| self.session(session)))
    }

    async fn accept(
        &self,
        source: &EntityName,
        session: &SessionId,
        wait: Duration,
    ) -> Result<Arc<dyn Session>, Error> {
        let accepted = self.inner.accept(&self.names.there(source), session, wait).await;
        Ok(self.session(self.names.said(accepted)?))
    }

    async fn receive(&self, source: &EntityName, max: usize, wait: Duration) -> Result<Vec<Delivery>, Error> {
        self.names.said(self.inner.receive(&self.names.there(source), max, wait).await)
    }

    async fn renew(&self, source: &EntityName, lock: LockToken) -> Result<Duration, Error> {
        self.names.said(self.inner.renew(&self.names.there(source), lock).await)
    }

    async fn settle(&self, source: &EntityName, lock: LockToken, settlement: Settlement) -> Result<(), Error> {
        self.names.said(self.inner.settle(&self.names.there(source), lock, settlement).await)
    }

    async fn send(&self, entity: &EntityName, messages: Vec<Message>) -> Result<Vec<SequenceNumber>, Error> {
        self.names.said(self.inner.send(&self.names.there(entity), messages).await)
    }

    async fn enqueue(&self, source: &EntityName, message: Message) -> Result<(), Error> {
        self.names.said(self.inner.enqueue(&self.names.there(source), message).await)
    }

    async fn cancel_scheduled(&self, entity: &EntityName, sequence: SequenceNumber) -> Result<(), Error> {
        self.names.said(self.inner.cancel_scheduled(&self.names.there(entity), sequence).await)
    }

    async fn cancel_scheduled_id(&self, source: &EntityName, id: &MessageId) -> Result<bool, Error> {
        self.names.said(self.inner.cancel_scheduled_id(&self.names.there(source), id).await)
    }

    async fn peek(
        &self,
        entity: &EntityName,
        part: Part,
        session: Option<&SessionId>,
        from: SequenceNumber,
        max: usize,
    ) -> Result<Vec<Peeked>, Error> {
        self.names.said(self.inner.peek(&self.names.there(entity), part, session, from, max).await)
    }

    async fn replay_dead_letters(&self, entity: &EntityName, sequences: &[SequenceNumber]) -> Result<u64, Error> {
        self.names.said(self.inner.replay_dead_letters(&self.names.there(entity), sequences).await)
    }

    // Not left to the trait: the transport's own is what commits ask.
    async fn settings(&self, entity: &EntityName) -> Result<EntitySettings, Error> {
        self.names.said(self.inner.settings(&self.names.there(entity)).await)
    }

    async fn describe(&self, entity: &EntityName) -> Result<EntityInfo, Error> {
        let info = self.names.said(self.inner.describe(&self.names.there(entity)).await)?;
        Ok(self.names.info(info))
    }

    async fn entities(&self) -> Result<Vec<EntityInfo>, Error> {
        let all = self.names.said(self.inner.entities().await)?;
        Ok(all.into_iter().map(|info| self.names.info(info)).collect())
    }

    async fn sessions(
        &self,
        entity: &EntityName,
        after: Option<&SessionId>,
        max: usize,
    ) -> Result<Vec<SessionInfo>, Error> {
        self.names.said(self.inner.sessions(&self.names.there(entity), after, max).await)
    }
}

#[async_trait]
impl Session for PrefixedSession {
    fn id(&self) -> &SessionId {
        self.inner.id()
    }

    fn lock(&self) -> LockToken {
        self.inner.lock()
    }

    fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    async fn renew(&self) -> Result<Duration, Error> {
        self.names.said(self.inner.renew().await)
    }

    async fn state(&self) -> Result<Option<Bytes>, Error> {
        self.names.said(self.inner.state().await)
    }

    async fn set_state(&self, state: Option<Bytes>) -> Result<(), Error> {
        self.names.said(self.inner.set_state(state).await)
    }

    async fn receive(&self, wait: Duration) -> Result<Option<Delivery>, Error> {
        self.names.said(self.inner.receive(wait).await)
    }

    async fn receive_parked(&self) -> Result<Parked, Error> {
        self.names.said(self.inner.receive_parked().await)
    }

    async fn park(&self, delivery: &Delivery, sequence: u32, copy: &Message) -> Result<(), Error> {
        self.names.said(self.inner.park(delivery, sequence, copy).await)
    }

    async fn settle(&self, lock: LockToken, settlement: Settlement) -> Result<(), Error> {
        self.names.said(self.inner.settle(lock, settlement).await)
    }

    async fn release(&self, pause: Duration) -> Result<(), Error> {
        self.names.said(self.inner.release(pause).await)
    }
}
