//! A [`Store`] on PostgreSQL, shared by any number of hosts.
//!
//! Start reading at [`PostgresStore`]; what a write does is in [`batch`]. Every call is one transaction, and what arbitrates between hosts is a unique
//! key in the database (`schema_v1.sql`), never what a host remembers: two hosts that decide the same delivery at the same moment get one `Done` and
//! one `AlreadyDecided`.
//!
//! *Invariant:* no answer comes from anywhere but the database, and an error is never an answer.

mod actions;
mod address;
mod batch;
mod calls;
mod check;
mod connections;
mod fault;
mod leases;
mod listings;
mod options;
mod outbox;
mod purge;
mod schema;
mod sql;
mod state;
pub(crate) mod text;
mod tls;
pub(crate) mod write;

use std::time::Duration;

use async_trait::async_trait;
use sprag_core::{
    action::Action,
    effect::{HistoryLine, StoreWrite},
    ids::{ActionId, EndpointName, EventId, MessageId},
    message::Message,
    sql::{Rows, Statement, StatementError, TransactionId},
    time::Timestamp,
};
use sprag_store::{
    ActionRefused, Answer, Error, NewAction, OutboxRow, Question, Retention, Sql, Store, Versioned, Written,
    lease::Leases,
    query::{self, Listing, Page},
};

pub use options::{OpenError, Options, Url};
pub use schema::{VERSION as SCHEMA_VERSION, schema_sql};

use crate::together::Together;

use check::Asked;
use connections::Connections;
use sql::Transactions;
use write::Prepared;

/// A store on a PostgreSQL database. Cheap to clone.
#[derive(Clone)]
pub struct PostgresStore {
    connections: Connections,
    checks: Together<Asked>,
    writes: Together<Prepared>,
    transactions: Option<Transactions>,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let peer = self.connections.peer();
        f.debug_struct("PostgresStore").field("at", &peer.at).field("database", &peer.database).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects, and makes sure of the tables.
    pub async fn open(options: Options) -> Result<Self, OpenError> {
        let connections = Connections::new(&options)?;
        let auto_create = options.auto_create_table;
        let role = options.sql_role.clone();
        connections
            .open(move |connection| {
                Box::pin(async move {
                    schema::prepare(connection, auto_create).await?;
                    match &role {
                        Some(role) => sql::check_role(connection, role).await,
                        None => Ok(()),
                    }
                })
            })
            .await?;
        let timeout = options.statement_timeout;
        let transactions = options.sql_role.map(|role| Transactions::new(connections.clone(), role, timeout));
        let under_way = calls::MOST_UNDER_WAY.min(connections.size().div_ceil(2));
        Ok(Self { connections, checks: Together::new(under_way), writes: Together::new(under_way), transactions })
    }
}

#[async_trait]
impl Sql for PostgresStore {
    async fn begin(&self, _: &EndpointName) -> Result<TransactionId, StatementError> {
        self.transactions()?.begin().await
    }

    async fn statement(&self, transaction: TransactionId, statement: Statement) -> Result<Rows, StatementError> {
        self.transactions()?.statement(transaction, statement).await
    }

    fn roll_back(&self, transaction: TransactionId) {
        if let Some(transactions) = &self.transactions {
            transactions.roll_back(transaction);
        }
    }
}

impl PostgresStore {
    fn transactions(&self) -> Result<&Transactions, StatementError> {
        let none = || StatementError::Refused("the store has no role for handlers' SQL (sql_role)".to_owned());
        self.transactions.as_ref().ok_or_else(none)
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn sql(&self) -> Option<&dyn Sql> {
        self.transactions.is_some().then_some(self as &dyn Sql)
    }

    async fn check(&self, question: Question<'_>) -> Result<Answer, Error> {
        let connections = self.connections.clone();
        self.checks.call(Asked::new(&question), move |waiting| calls::check(connections.clone(), waiting)).await
    }

    async fn write(&self, endpoint: &EndpointName, write: StoreWrite) -> Result<Written, Error> {
        let prepared = Prepared::new(endpoint, write)?;
        if let Some(id) = prepared.transaction {
            let transactions = self.transactions().map_err(|error| Error::Refused(error.to_string()))?;
            return transactions.write(id, prepared).await;
        }
        let connections = self.connections.clone();
        if prepared.may_be_shared() {
            return self.writes.call(prepared, move |waiting| calls::write(connections.clone(), waiting)).await;
        }
        calls::write_alone(&connections, prepared).await
    }

    async fn decision_done(&self, endpoint: &EndpointName, message_id: &MessageId) -> Result<(), Error> {
        let key = write::message_key(endpoint, message_id);
        self.connections.call(move |connection| Box::pin(write::decision_done(connection, key))).await
    }

    async fn state_get(&self, endpoint: &EndpointName, key: &str) -> Result<Option<Versioned>, Error> {
        let (endpoint, key) = (endpoint.clone(), key.to_owned());
        self.connections.call(move |connection| Box::pin(state::get(connection, endpoint, key))).await
    }

    async fn state_scan(
        &self,
        endpoint: &EndpointName,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<(String, Versioned)>, Error> {
        let (endpoint, range) = (endpoint.clone(), state::Range::new(prefix, after));
        self.connections.call(move |connection| Box::pin(state::scan(connection, endpoint, range, limit))).await
    }

    fn leases(&self) -> Option<&dyn Leases> {
        Some(self)
    }

    async fn purge_inbox(&self, endpoint: &EndpointName, before: Timestamp, limit: u32) -> Result<u32, Error> {
        let endpoint = endpoint.clone();
        self.connections.call(move |connection| Box::pin(purge::inbox(connection, endpoint, before, limit))).await
    }

    async fn purge_tracking(&self, keep: &Retention, limit: u32) -> Result<u32, Error> {
        let keep = keep.clone();
        self.connections.call(move |connection| Box::pin(purge::tracking(connection, keep, limit))).await
    }

    async fn outbox_claim(
        &self,
        endpoints: &[EndpointName],
        max: u32,
        lease: Duration,
    ) -> Result<Vec<OutboxRow>, Error> {
        let endpoints = endpoints.to_vec();
        self.connections
            .call(move |connection| Box::pin(async move { outbox::claim(connection, &endpoints, max, lease).await }))
            .await
    }

    async fn outbox_sent(&self, ids: &[i64]) -> Result<(), Error> {
        let ids = ids.to_vec();
        self.connections.call(move |connection| Box::pin(async move { outbox::sent(connection, &ids).await })).await
    }

    async fn outbox_failed(&self, id: i64, error: &str, again_at: Option<Timestamp>) -> Result<(), Error> {
        let error = error.to_owned();
        self.connections
            .call(move |connection| Box::pin(async move { outbox::failed(connection, id, &error, again_at).await }))
            .await
    }

    async fn outbox_resolve(&self, id: i64, drop: bool) -> Result<bool, Error> {
        self.connections.call(move |connection| Box::pin(outbox::resolve(connection, id, drop))).await
    }

    async fn create_actions(
        &self,
        actions: Vec<NewAction>,
        audit: query::AuditEntry,
    ) -> Result<Vec<Result<ActionId, ActionRefused>>, Error> {
        self.connections
            .call(move |connection| Box::pin(async move { actions::create(connection, &actions, &audit).await }))
            .await
    }

    async fn action(&self, id: ActionId) -> Result<Option<Action>, Error> {
        self.connections.call(move |connection| Box::pin(actions::find(connection, id))).await
    }

    async fn action_of_key(&self, key: &str) -> Result<Option<ActionId>, Error> {
        let key = key.to_owned();
        self.connections.call(move |connection| Box::pin(async move { actions::of_key(connection, &key).await })).await
    }

    async fn events(&self, filter: &query::EventFilter, page: &Page) -> Result<Listing<query::EventRow>, Error> {
        let (filter, page) = (filter.clone(), page.clone());
        self.connections.call(move |connection| Box::pin(listings::events(connection, filter, page))).await
    }

    async fn find_events(&self, id: &str) -> Result<Vec<query::EventRow>, Error> {
        let id = id.to_owned();
        self.connections
            .call(move |connection| Box::pin(async move { listings::find_events(connection, &id).await }))
            .await
    }

    async fn history(&self, endpoint: &EndpointName, event_id: &EventId) -> Result<Vec<HistoryLine>, Error> {
        let (endpoint, event_id) = (endpoint.clone(), event_id.clone());
        self.connections
            .call(move |connection| Box::pin(async move { listings::history(connection, &endpoint, &event_id).await }))
            .await
    }

    async fn kept_message(&self, endpoint: &EndpointName, event_id: &EventId) -> Result<Option<Message>, Error> {
        let (endpoint, event_id) = (endpoint.clone(), event_id.clone());
        self.connections
            .call(move |connection| {
                Box::pin(async move { listings::kept_message(connection, &endpoint, &event_id).await })
            })
            .await
    }

    async fn failure_groups(&self, filter: &query::EventFilter) -> Result<Vec<query::FailureGroup>, Error> {
        let filter = filter.clone();
        self.connections.call(move |connection| Box::pin(listings::failure_groups(connection, filter))).await
    }

    async fn inbox(&self, filter: &query::InboxFilter, page: &Page) -> Result<Listing<query::InboxRow>, Error> {
        let (filter, page) = (filter.clone(), page.clone());
        self.connections.call(move |connection| Box::pin(listings::inbox(connection, filter, page))).await
    }

    async fn audit(&self, page: &Page) -> Result<Listing<query::AuditRow>, Error> {
        let page = page.clone();
        self.connections.call(move |connection| Box::pin(listings::audit(connection, page))).await
    }

    async fn add_audit(&self, entry: query::AuditEntry) -> Result<(), Error> {
        self.connections
            .call(move |connection| Box::pin(async move { actions::add_audit(connection, &entry).await.map(drop) }))
            .await
    }

    async fn outbox(&self, page: &Page) -> Result<Listing<query::OutboxListRow>, Error> {
        let page = page.clone();
        self.connections.call(move |connection| Box::pin(listings::outbox(connection, page))).await
    }
}
