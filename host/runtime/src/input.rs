//! What a run is given and what it leaves behind.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use sprag_core::{
    ids::{EndpointName, EntityName, EventId, EventType, MessageId, SessionId},
    message::Message,
    run::{End, UnitOfWork, Version},
    sql::{Rows, Statement, StatementError},
    time::Timestamp,
};

/// W3C trace context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    pub traceparent: String,
    pub tracestate: Option<String>,
}

/// One run of one event.
#[derive(Clone)]
pub struct RunInput {
    pub endpoint: EndpointName,
    pub message: Arc<Message>,
    /// The delivery's id as its sender gave it; none when the broker made one up (P29).
    pub message_id: Option<MessageId>,
    pub event_id: EventId,
    pub event_type: EventType,
    pub session: Option<SessionId>,
    pub enqueued_at: Timestamp,
    /// Which run of this event this is, from 1.
    pub attempt: u32,
    /// The source id, from which the ids of outgoing messages derive (P30).
    pub source: String,
    /// Where this endpoint's handlers may send.
    pub destinations: Arc<dyn Destinations>,
    /// The endpoint's key-value state.
    pub state: Arc<dyn StateReader>,
    /// The run's transaction in the endpoint's store. None: the endpoint has none.
    pub sql: Option<Arc<dyn RunSql>>,
    /// The largest body the transport takes. `limits.body` may be less.
    pub max_body: usize,
    /// None: what the message itself carries.
    pub trace: Option<Trace>,
}

/// What a run leaves behind. Nothing of it has taken effect.
#[derive(Debug, Clone)]
pub struct RunOutput {
    pub end: End,
    /// Empty unless the run ended as done or as a handoff (P3).
    pub unit: UnitOfWork,
    pub took: Duration,
    /// Log lines that were over the limit.
    pub log_dropped: u64,
}

/// Which entities an endpoint may send to.
pub trait Destinations: Send + Sync + 'static {
    /// Why not, in one line.
    fn check(&self, entity: &EntityName) -> Result<(), String>;
}

/// Every entity: for tests and tools that commit nothing.
pub struct Anywhere;

impl Destinations for Anywhere {
    fn check(&self, _: &EntityName) -> Result<(), String> {
        Ok(())
    }
}

/// The store could not answer. It says nothing about what is in it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// Reads an endpoint's key-value state, as committed.
#[async_trait]
pub trait StateReader: Send + Sync + 'static {
    async fn get(&self, endpoint: &EndpointName, key: &str) -> Result<Option<(Bytes, Version)>, Unavailable>;

    /// Entries whose key starts with `prefix`, in byte order, after `after`, at most `limit`.
    async fn scan(
        &self,
        endpoint: &EndpointName,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<(String, Bytes, Version)>, Unavailable>;
}

/// SQL of one run, in a transaction that begins with its first statement. Whoever makes it ends it, once the run has ended.
#[async_trait]
pub trait RunSql: Send + Sync + 'static {
    /// The name under which the configuration grants the database.
    fn database(&self) -> &str;

    async fn statement(&self, statement: Statement) -> Result<Rows, StatementError>;
}

/// No state at all: for runs that have none to read.
pub struct NoState;

#[async_trait]
impl StateReader for NoState {
    async fn get(&self, _: &EndpointName, _: &str) -> Result<Option<(Bytes, Version)>, Unavailable> {
        Ok(None)
    }

    async fn scan(
        &self,
        _: &EndpointName,
        _: &str,
        _: Option<&str>,
        _: u32,
    ) -> Result<Vec<(String, Bytes, Version)>, Unavailable> {
        Ok(Vec::new())
    }
}
