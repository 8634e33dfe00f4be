//! A store in memory: for tests, and where `store = "memory"` is asked for.
//!
//! It is a second opinion on what a store does, so it shares no code with the durable ones: plain maps, each call whole under one lock. What a
//! write does is in [`tables`]; what operators see is in [`listing`].

mod leases;
mod listing;
mod tables;

use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use sprag_core::{
    action::Action,
    effect::{HistoryLine, StoreWrite},
    ids::{ActionId, EndpointName, EventId, LeaseOwner, MessageId},
    message::Message,
    time::Timestamp,
};

use crate::{
    ActionRefused, Answer, Error, NewAction, OutboxRow, Question, Retention, Store, Versioned, Written, clock,
    faults::Faults,
    lease::{Leased, Leases},
    query,
};
use tables::Tables;

/// Kinds of calls that a test can make fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    Check,
    Write,
    DecisionDone,
    State,
    Purge,
    Acquire,
    Renew,
    Release,
    Outbox,
    Actions,
    Listing,
}

#[derive(Debug)]
pub struct MemoryStore {
    tables: Mutex<Tables>,
    now: fn() -> Timestamp,
    faults: Faults<Call, Error>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// Follows tokio's clock: see [`clock`].
    pub fn new() -> Self {
        Self::with_clock(clock::now)
    }

    pub fn with_clock(now: fn() -> Timestamp) -> Self {
        Self { tables: Mutex::default(), now, faults: Faults::default() }
    }

    /// The switches with which a test makes calls fail.
    pub fn faults(&self) -> &Faults<Call, Error> {
        &self.faults
    }

    /// The whole of a call: counted, let through or failed, and then under the lock.
    fn call<T>(&self, call: Call, work: impl FnOnce(&mut Tables, Timestamp) -> T) -> Result<T, Error> {
        self.faults.enter(call)?;
        Ok(work(&mut self.tables.lock(), (self.now)()))
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn check(&self, question: Question<'_>) -> Result<Answer, Error> {
        self.call(Call::Check, |tables, _| tables.check(&question))
    }

    async fn write(&self, endpoint: &EndpointName, write: StoreWrite) -> Result<Written, Error> {
        self.call(Call::Write, |tables, now| tables.write(endpoint, write, now))?
    }

    async fn decision_done(&self, endpoint: &EndpointName, message_id: &MessageId) -> Result<(), Error> {
        self.call(Call::DecisionDone, |tables, _| tables.decision_done(endpoint, message_id))
    }

    async fn state_get(&self, endpoint: &EndpointName, key: &str) -> Result<Option<Versioned>, Error> {
        self.call(Call::State, |tables, _| tables.state_get(endpoint, key))
    }

    async fn state_scan(
        &self,
        endpoint: &EndpointName,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<(String, Versioned)>, Error> {
        self.call(Call::State, |tables, _| tables.state_scan(endpoint, prefix, after, limit))
    }

    fn leases(&self) -> Option<&dyn Leases> {
        Some(self)
    }

    async fn purge_inbox(&self, endpoint: &EndpointName, before: Timestamp, limit: u32) -> Result<u32, Error> {
        self.call(Call::Purge, |tables, _| tables.purge_inbox(endpoint, before, limit))
    }

    async fn purge_tracking(&self, keep: &Retention, limit: u32) -> Result<u32, Error> {
        self.call(Call::Purge, |tables, _| tables.purge_tracking(keep, limit))
    }

    async fn outbox_claim(
        &self,
        endpoints: &[EndpointName],
        max: u32,
        lease: Duration,
    ) -> Result<Vec<OutboxRow>, Error> {
        self.call(Call::Outbox, |tables, now| tables.outbox_claim(endpoints, max, lease, now))
    }

    async fn outbox_sent(&self, ids: &[i64]) -> Result<(), Error> {
        self.call(Call::Outbox, |tables, _| tables.outbox_sent(ids))
    }

    async fn outbox_failed(&self, id: i64, error: &str, again_at: Option<Timestamp>) -> Result<(), Error> {
        self.call(Call::Outbox, |tables, _| tables.outbox_failed(id, error, again_at))
    }

    async fn outbox_resolve(&self, id: i64, drop: bool) -> Result<bool, Error> {
        self.call(Call::Outbox, |tables, now| tables.outbox_resolve(id, drop, now))
    }

    async fn create_actions(
        &self,
        actions: Vec<NewAction>,
        audit: query::AuditEntry,
    ) -> Result<Vec<Result<ActionId, ActionRefused>>, Error> {
        self.call(Call::Actions, |tables, _| tables.create_actions(actions, audit))
    }

    async fn action(&self, id: ActionId) -> Result<Option<Action>, Error> {
        self.call(Call::Actions, |tables, _| tables.action(id))
    }

    async fn action_of_key(&self, key: &str) -> Result<Option<ActionId>, Error> {
        self.call(Call::Actions, |tables, _| tables.action_of_key(key))
    }

    async fn events(
        &self,
        filter: &query::EventFilter,
        page: &query::Page,
    ) -> Result<query::Listing<query::EventRow>, Error> {
        self.call(Call::Listing, |tables, _| tables.list_events(filter, page))?
    }

    async fn find_events(&self, id: &str) -> Result<Vec<query::EventRow>, Error> {
        self.call(Call::Listing, |tables, _| tables.find_events(id))
    }

    async fn history(&self, endpoint: &EndpointName, event_id: &EventId) -> Result<Vec<HistoryLine>, Error> {
        self.call(Call::Listing, |tables, _| tables.history(endpoint, event_id))
    }

    async fn kept_message(&self, endpoint: &EndpointName, event_id: &EventId) -> Result<Option<Message>, Error> {
        self.call(Call::Listing, |tables, _| tables.kept_message(endpoint, event_id))
    }

    async fn failure_groups(&self, filter: &query::EventFilter) -> Result<Vec<query::FailureGroup>, Error> {
        self.call(Call::Listing, |tables, _| tables.failure_groups(filter))
    }

    async fn inbox(
        &self,
        filter: &query::InboxFilter,
        page: &query::Page,
    ) -> Result<query::Listing<query::InboxRow>, Error> {
        self.call(Call::Listing, |tables, _| tables.list_inbox(filter, page))?
    }

    async fn audit(&self, page: &query::Page) -> Result<query::Listing<query::AuditRow>, Error> {
        self.call(Call::Listing, |tables, _| tables.list_audit(page))?
    }

    async fn add_audit(&self, entry: query::AuditEntry) -> Result<(), Error> {
        self.call(Call::Actions, |tables, _| tables.add_audit(entry, Vec::new()))
    }

    async fn outbox(&self, page: &query::Page) -> Result<query::Listing<query::OutboxListRow>, Error> {
        self.call(Call::Listing, |tables, _| tables.list_outbox(page))?
    }
}

#[async_trait]
impl Leases for MemoryStore {
    async fn acquire(
        &self,
        endpoint: &EndpointName,
        id: &MessageId,
        owner: &LeaseOwner,
        time: Duration,
    ) -> Result<Leased, Error> {
        self.call(Call::Acquire, |tables, now| tables.acquire(endpoint, id, owner, time, now))
    }

    async fn renew(
        &self,
        endpoint: &EndpointName,
        id: &MessageId,
        owner: &LeaseOwner,
        time: Duration,
    ) -> Result<bool, Error> {
        self.call(Call::Renew, |tables, now| tables.renew(endpoint, id, owner, now.after(time)))
    }

    async fn release(&self, endpoint: &EndpointName, id: &MessageId, owner: &LeaseOwner) -> Result<(), Error> {
        self.call(Call::Release, |tables, _| tables.release(endpoint, id, owner))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    async fn fresh() -> (Arc<MemoryStore>, ()) {
        (Arc::new(MemoryStore::new()), ())
    }

    crate::store_conformance!(fresh, start_paused = true);
    crate::lease_conformance!(fresh, start_paused = true);

    mod as_an_inbox {
        use std::sync::Arc;

        use crate::{inbox::InboxOf, memory::MemoryStore};

        async fn fresh() -> (Arc<InboxOf>, ()) {
            (Arc::new(InboxOf::new(Arc::new(MemoryStore::new()))), ())
        }

        crate::inbox_conformance!(fresh, start_paused = true);
    }

    /// The switches of the tests above a store: the planned call fails, the others do not, and a failed write wrote nothing.
    #[tokio::test]
    async fn faults_fail_the_planned_call_only() {
        use crate::conformance::sample;
        let store = MemoryStore::new();
        store.faults().fail(Call::Write, 2, Error::Unavailable("planned".into()));
        for (id, fails) in [("a", false), ("b", true), ("c", false)] {
            let written = store.write(&sample::endpoint(), sample::record(&[id])).await;
            assert_eq!(written.is_err(), fails, "{id}");
        }
        let rows = store.inbox(&Default::default(), &Default::default()).await.unwrap().items;
        assert_eq!(rows.len(), 2);
        store.faults().outage(Some(Error::Unavailable("down".into())));
        assert!(store.outbox_claim(&[sample::endpoint()], 1, Duration::from_secs(1)).await.is_err());
        store.faults().outage(None);
        assert!(store.outbox_claim(&[sample::endpoint()], 1, Duration::from_secs(1)).await.is_ok());
        assert_eq!(store.faults().calls(Call::Write), 3);
    }
}
