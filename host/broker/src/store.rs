//! [`Store`] on the engine.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _};
use sprag_core::{
    action::Action,
    effect::{Decision, HistoryLine, StoreWrite},
    ids::{ActionId, EndpointName, EventId, MessageId},
    message::Message,
    time::Timestamp,
};
use sprag_store::{
    ActionRefused, Answer, Error, NewAction, OutboxRow, Question, Retention, Sql, Store, StoredOutcome, Versioned,
    Written,
    lease::Leases,
    query::{self, Listing, Page},
};

use crate::{
    Engine, actions, codes, decision, listings,
    messages::Prepared,
    outbox, purge,
    shared::{ReadFailure, Shared},
    state,
    tracking::{self, FIND_FINAL, FIND_RECORD, FIND_RECORDED_EVENT, PreparedWrite, event_hash, id_hash, inbox_hash},
    writer::Tx,
};

impl Shared {
    /// The endpoint's number, without asking the file twice. None: nothing was ever written for it.
    fn endpoint(&self, connection: &Connection, name: &EndpointName) -> rusqlite::Result<Option<i64>> {
        if let Some(id) = self.endpoints.read().get(name) {
            return Ok(Some(*id));
        }
        let found = tracking::endpoint_id(connection, name)?;
        if let Some(id) = found {
            self.endpoints.write().insert(name.clone(), id);
        }
        Ok(found)
    }
}

/// Nothing is written of any of the ids, so there is nothing to read.
fn is_unknown(shared: &Shared, question: &Question<'_>) -> bool {
    let excludes = |id: &str| shared.known.excludes(id_hash(question.endpoint.as_str(), id));
    let own = question.message_id.map(MessageId::as_str);
    let event = Some(question.event_id.as_str()).filter(|event| question.outcome && own != Some(*event));
    [own, question.source_id.map(MessageId::as_str), event].into_iter().flatten().all(excludes)
}

fn check(shared: &Shared, connection: &Connection, question: &Question<'_>) -> Result<Answer, ReadFailure> {
    let Some(endpoint) = shared.endpoint(connection, question.endpoint)? else { return Ok(Answer::default()) };
    let hash = |id: &MessageId| inbox_hash(question.endpoint, id);
    let own = question.message_id.map(|id| (id, hash(id)));
    let source = question.source_id.map(|id| (id, hash(id)));
    let is_in = |sql: &str, id: Option<(&MessageId, i64)>| -> rusqlite::Result<bool> {
        match id {
            Some((id, hash)) => connection.prepare_cached(sql)?.exists((hash, endpoint, id.as_str())),
            None => Ok(false),
        }
    };
    let mut answer = Answer::default();
    if question.inbox {
        let recorded = |id| Ok::<_, rusqlite::Error>(is_in(FIND_RECORDED_EVENT, id)? || is_in(FIND_RECORD, id)?);
        answer.own_recorded = recorded(own)?;
        answer.source_recorded = recorded(source)?;
    }
    answer.is_final = is_in(FIND_FINAL, own)? || is_in(FIND_FINAL, source)?;
    if let Some((id, hash)) = own {
        let found: Option<(i64, Vec<u8>)> = connection
            .prepare_cached("SELECT outcome, rest FROM decision WHERE hash = ?1 AND endpoint = ?2 AND message_id = ?3")?
            .query_row((hash, endpoint, id.as_str()), |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        if let Some((outcome, rest)) = found {
            let (attempt, rest) = decision::decode(&rest)?;
            let outcome = codes::outcome_of(outcome)
                .ok_or_else(|| ReadFailure::Broken("a decision has an unknown outcome".into()))?;
            answer.decision = Some(Decision { message_id: id.clone(), outcome, attempt, rest });
        }
    }
    if question.outcome {
        let event = question.event_id.as_str();
        let found: Option<(Option<i64>, u32)> = connection
            .prepare_cached("SELECT outcome, attempts FROM event INDEXED BY event_hash WHERE hash = ?1 AND endpoint = ?2 AND event_id = ?3")?
            .query_row((event_hash(question.endpoint.as_str(), event), endpoint, event), |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()?;
        answer.outcome = found.and_then(|(outcome, attempts)| {
            let outcome = outcome.and_then(codes::outcome_of)?;
            Some(StoredOutcome { outcome, attempts })
        });
    }
    Ok(answer)
}

#[async_trait]
impl Store for Engine {
    fn sql(&self) -> Option<&dyn Sql> {
        Some(self)
    }

    async fn check(&self, question: Question<'_>) -> Result<Answer, Error> {
        if is_unknown(&self.shared, &question) {
            return Ok(Answer::default());
        }
        Ok(self.shared.read(|connection| check(&self.shared, connection, &question))?)
    }

    async fn write(&self, endpoint: &EndpointName, write: StoreWrite) -> Result<Written, Error> {
        let endpoint = endpoint.clone();
        let prepared = PreparedWrite::new(write, true).map_err(|error| Error::Invalid(error.to_string()))?;
        let (bytes, transaction) = (prepared.bytes(), prepared.transaction());
        let apply = move |tx: &mut Tx<'_>| {
            let standing = tracking::examine(tx, &endpoint, &prepared, false)?;
            tracking::write(tx, &endpoint, &prepared, standing, false)
        };
        Ok(match transaction {
            Some(id) => self.shared.finish_run(id, None, bytes, apply).await?,
            None => self.shared.write(bytes, apply).await?,
        })
    }

    async fn decision_done(&self, endpoint: &EndpointName, message_id: &MessageId) -> Result<(), Error> {
        let (endpoint, id) = (endpoint.clone(), message_id.clone());
        let done = self.shared.write(64, move |tx| tracking::decision_done(tx, &endpoint, &id));
        Ok(done.await?)
    }

    async fn state_get(&self, endpoint: &EndpointName, key: &str) -> Result<Option<Versioned>, Error> {
        let found = self.shared.read(|connection| match self.shared.endpoint(connection, endpoint)? {
            Some(endpoint) => Ok(state::get(connection, endpoint, key)?),
            None => Ok(None),
        });
        Ok(found?)
    }

    async fn state_scan(
        &self,
        endpoint: &EndpointName,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<(String, Versioned)>, Error> {
        let found = self.shared.read(|connection| match self.shared.endpoint(connection, endpoint)? {
            Some(endpoint) => Ok(state::scan(connection, endpoint, prefix, after, limit)?),
            None => Ok(Vec::new()),
        });
        Ok(found?)
    }

    fn leases(&self) -> Option<&dyn Leases> {
        Some(self)
    }

    async fn purge_inbox(&self, endpoint: &EndpointName, before: Timestamp, limit: u32) -> Result<u32, Error> {
        let endpoint = endpoint.clone();
        Ok(self.shared.write(64 * limit as usize, move |tx| purge::inbox(tx, &endpoint, before, limit)).await?)
    }

    async fn purge_tracking(&self, keep: &Retention, limit: u32) -> Result<u32, Error> {
        let keep = keep.clone();
        Ok(self.shared.write(256 * limit as usize, move |tx| purge::tracking(tx, &keep, limit)).await?)
    }

    async fn outbox_claim(
        &self,
        endpoints: &[EndpointName],
        max: u32,
        lease: Duration,
    ) -> Result<Vec<OutboxRow>, Error> {
        // A look that finds nothing costs no transaction: the relay looks often.
        let some = self
            .shared
            .read(|connection| Ok(connection.prepare_cached("SELECT 1 FROM outbox LIMIT 1")?.exists([])?))?;
        if !some {
            return Ok(Vec::new());
        }
        let endpoints = endpoints.to_vec();
        Ok(self.shared.write(1_024 * max as usize, move |tx| outbox::claim(tx, &endpoints, max, lease)).await?)
    }

    async fn outbox_sent(&self, ids: &[i64]) -> Result<(), Error> {
        let ids = ids.to_vec();
        Ok(self.shared.write(64 * ids.len(), move |tx| outbox::sent(tx, &ids)).await?)
    }

    async fn outbox_failed(&self, id: i64, error: &str, again_at: Option<Timestamp>) -> Result<(), Error> {
        let error = error.to_owned();
        Ok(self.shared.write(256, move |tx| outbox::failed(tx, id, &error, again_at)).await?)
    }

    async fn outbox_resolve(&self, id: i64, drop: bool) -> Result<bool, Error> {
        Ok(self.shared.write(64, move |tx| outbox::resolve(tx, id, drop)).await?)
    }

    async fn create_actions(
        &self,
        actions: Vec<NewAction>,
        audit: query::AuditEntry,
    ) -> Result<Vec<Result<ActionId, ActionRefused>>, Error> {
        // Before anything is written: afterwards a control message that cannot be put would have to take the others with it.
        let topology = self.shared.topology();
        for action in &actions {
            let Some(source) = action.source.as_ref().and_then(|source| topology.position(source)) else { continue };
            Prepared::new(action.control.clone())
                .and_then(|control| topology.entities[source].spec.accepts(&control.message, 0))
                .map_err(|error| Error::Invalid(error.to_string()))?;
        }
        let bytes = actions.iter().map(|action| 512 + action.control.body.len()).sum();
        Ok(self.shared.write(bytes, move |tx| actions::create(tx, &actions, &audit)).await?)
    }

    async fn action(&self, id: ActionId) -> Result<Option<Action>, Error> {
        Ok(self.shared.read(|connection| Ok(actions::find(connection, id)?))?)
    }

    async fn action_of_key(&self, key: &str) -> Result<Option<ActionId>, Error> {
        Ok(self.shared.read(|connection| Ok(actions::of_key(connection, key)?))?)
    }

    async fn events(&self, filter: &query::EventFilter, page: &Page) -> Result<Listing<query::EventRow>, Error> {
        let (filter, page) = (filter.clone(), page.clone());
        Ok(self.shared.read_long(move |connection| listings::events(connection, &filter, &page)).await?)
    }

    async fn find_events(&self, id: &str) -> Result<Vec<query::EventRow>, Error> {
        let id = id.to_owned();
        Ok(self.shared.read_long(move |connection| listings::find_events(connection, &id)).await?)
    }

    async fn history(&self, endpoint: &EndpointName, event_id: &EventId) -> Result<Vec<HistoryLine>, Error> {
        Ok(self.shared.read(|connection| listings::history(connection, endpoint, event_id))?)
    }

    async fn kept_message(&self, endpoint: &EndpointName, event_id: &EventId) -> Result<Option<Message>, Error> {
        Ok(self.shared.read(|connection| listings::kept_message(connection, endpoint, event_id))?)
    }

    async fn failure_groups(&self, filter: &query::EventFilter) -> Result<Vec<query::FailureGroup>, Error> {
        let filter = filter.clone();
        Ok(self.shared.read_long(move |connection| listings::failure_groups(connection, &filter)).await?)
    }

    async fn inbox(&self, filter: &query::InboxFilter, page: &Page) -> Result<Listing<query::InboxRow>, Error> {
        let (filter, page) = (filter.clone(), page.clone());
        Ok(self.shared.read_long(move |connection| listings::inbox(connection, &filter, &page)).await?)
    }

    async fn audit(&self, page: &Page) -> Result<Listing<query::AuditRow>, Error> {
        let page = page.clone();
        Ok(self.shared.read_long(move |connection| listings::audit(connection, &page)).await?)
    }

    async fn add_audit(&self, entry: query::AuditEntry) -> Result<(), Error> {
        let added = self.shared.write(512, move |tx| {
            actions::add_audit(tx, &entry)?;
            Ok(())
        });
        Ok(added.await?)
    }

    async fn outbox(&self, page: &Page) -> Result<Listing<query::OutboxListRow>, Error> {
        let page = page.clone();
        Ok(self.shared.read_long(move |connection| listings::outbox(connection, &page)).await?)
    }
}
