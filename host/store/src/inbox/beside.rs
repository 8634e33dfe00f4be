//! A store whose inbox is in another place.
//!
//! Two places cannot commit together, so the order of the two writes is what makes a crash between them safe:
//!
//! - **The store first, then the record.** A record without its unit of work would lose the work: the redelivery would be taken for a duplicate.
//! - **What is to be recorded is written with the decision**, as the first thing that is left to do ([`Effect::Store`] with nothing but records in
//!   [`Decision::rest`]). A redelivery finds the decision (P1), and its check records what is missing before it answers, so whoever carries the decision
//!   out and then marks it as done does so with the record there. The mark is taken out of the answer: nobody above knows of it.
//! - **A record that fails fails the write**, as [`Error::Unavailable`]: nothing more is done about the delivery, it comes again, and its check finds
//!   the decision. To its committer this is a write of which it is not known whether it took place (`CommitError::Unavailable`), which is true.
//!
//! What happens after a crash, or a failure, at each point of one delivery:
//!
//! | it ends | store | inbox | the redelivery |
//! |---|---|---|---|
//! | before the store's write | nothing | nothing | runs |
//! | within the store's write, without an answer | nothing, or all with the decision | nothing | runs, or as the next line |
//! | after the store's write | decided | nothing | is not run: its check records, then the rest is carried out |
//! | between two records | decided | the source id | the same; the rest of the ids is recorded |
//! | after the records | decided | recorded | is not run; nothing is left to record |
//! | after the settlement, before the decision is marked as done | decided | recorded | none comes; the decision goes with the purge of tracking |
//! | after that | outcome | recorded | none comes; a second copy is a duplicate |
//!
//! Two holders of one delivery (a host that was frozen past its lock): the decision in the store arbitrates, the first one wins. The loser is told
//! [`Written::AlreadyDecided`], and what it had to record is dropped; what the *winner* had to record is made sure of before the loser
//! is told so, because equal decisions are carried out by whoever holds the lock, and then marked as done.
//!
//! It has no SQL for handlers, whatever the store has: mode `transaction` wants the record in the same transaction (P35).
//!
//! What is weaker than with one store (P35):
//!
//! - An existing record is known at the check only, and the decision arbitrates only until it is done. Of two deliveries under one id that are
//!   handled side by side (a host that froze between the last look at its lock (P5) and its write; a second copy on an endpoint without sessions) the
//!   later one is not stopped if the earlier one's decision was done in the meantime: its unit of work takes effect as well.
//! - Between the store's write and the record, a *second copy* of the event (another message id, the same source id) is not known as a duplicate.
//!   Within a session the event still blocks or is still in hand, and the copy does not run; on an endpoint without sessions it runs.
//! - A write that records and has no decision has no redelivery that could mend it: a crash between the two writes loses the record, and the
//!   message runs again. The machine decides every delivery that has an id, so this is for messages whose redelivery no inbox could recognise.

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use sprag_core::{
    action::Action,
    effect::{Decision, Effect, HistoryLine, StoreWrite},
    ids::{ActionId, EndpointName, EventId, MessageId},
    message::Message,
    time::Timestamp,
};

use super::Inbox;
use crate::{
    ActionRefused, Answer, Error, NewAction, OutboxRow, Question, Retention, Store, Versioned, Written,
    query::{self, Listing, Page},
};

/// A store with the inbox in another place. Cheap to clone.
#[derive(Clone)]
pub struct InboxBeside {
    store: Arc<dyn Store>,
    inbox: Arc<dyn Inbox>,
}

impl InboxBeside {
    pub fn new(store: Arc<dyn Store>, inbox: Arc<dyn Inbox>) -> Self {
        Self { store, inbox }
    }

    /// Writes the store's part and then records. See the module's documentation for the order.
    async fn write_both(&self, endpoint: &EndpointName, mut write: StoreWrite) -> Result<Written, Error> {
        let mut record = std::mem::take(&mut write.record);
        let decided = write.decision.as_ref().map(|decision| decision.message_id.clone());
        if let Some(decision) = &mut write.decision {
            decision.rest.insert(0, records_only(&record));
        }
        let written = match write == StoreWrite::default() {
            true => Written::Done,
            false => self.store.write(endpoint, write).await?,
        };
        if let (Written::AlreadyDecided, Some(id)) = (written, decided) {
            record = self.left_to_record(endpoint, &id).await?;
        }
        self.record(endpoint, &record).await?;
        Ok(written)
    }

    /// What the decision that is stored has to record. None is stored when it is done, and then its records are there.
    async fn left_to_record(&self, endpoint: &EndpointName, id: &MessageId) -> Result<Vec<MessageId>, Error> {
        let event_id = EventId::from("");
        let question = Question {
            endpoint,
            message_id: Some(id),
            source_id: None,
            event_id: &event_id,
            inbox: false,
            outcome: false,
        };
        let mut stored = self.store.check(question).await?.decision;
        Ok(stored.as_mut().map(take_records).unwrap_or_default())
    }

    /// A failure here comes after the store's write, or instead of an answer: never is it one of the run's own, such as a conflict, which would be
    /// repeated under the same lock.
    async fn record(&self, endpoint: &EndpointName, ids: &[MessageId]) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        let recorded = self.inbox.record(endpoint, ids).await;
        recorded.map_err(|error| Error::Unavailable(format!("decided, and not yet recorded in the inbox: {error}")))
    }

    /// Whether the delivery's own id and its source id are recorded.
    async fn is_recorded(&self, question: &Question<'_>) -> Result<(bool, bool), Error> {
        let ids = [question.message_id, question.source_id];
        let asked: Vec<_> = ids.into_iter().flatten().map(|id| (question.endpoint.clone(), id.clone())).collect();
        if asked.is_empty() {
            return Ok((false, false));
        }
        let mut answers = self.inbox.recorded(&asked).await?.into_iter();
        let mut next = |id: Option<&MessageId>| id.is_some() && answers.next().unwrap_or_default();
        Ok((next(question.message_id), next(question.source_id)))
    }
}

fn records_only(ids: &[MessageId]) -> Effect {
    Effect::Store(Box::new(StoreWrite { record: ids.to_vec(), ..StoreWrite::default() }))
}

/// Takes out what [`InboxBeside`] put into a decision: the decision is then as it was made.
fn take_records(decision: &mut Decision) -> Vec<MessageId> {
    match decision.rest.first_mut() {
        Some(Effect::Store(write)) => {
            let record = std::mem::take(&mut write.record);
            decision.rest.remove(0);
            record
        }
        _ => Vec::new(),
    }
}

#[async_trait]
impl Store for InboxBeside {
    async fn check(&self, question: Question<'_>) -> Result<Answer, Error> {
        let of_store = self.store.check(Question { inbox: false, ..question.clone() });
        let of_inbox = async {
            match question.inbox {
                true => self.is_recorded(&question).await,
                false => Ok((false, false)),
            }
        };
        let (mut answer, (own, source)) = tokio::try_join!(of_store, of_inbox)?;
        (answer.own_recorded, answer.source_recorded) = (own, source);
        let left = answer.decision.as_mut().map(take_records).unwrap_or_default();
        if !question.inbox || left.is_empty() {
            return Ok(answer);
        }
        let known =
            |id: &&MessageId| own && question.message_id == Some(*id) || source && question.source_id == Some(*id);
        if !left.iter().all(|id| known(&id)) {
            let (beside, endpoint, missing) = (self.clone(), question.endpoint.clone(), left.clone());
            to_its_end(async move { beside.record(&endpoint, &missing).await }).await?;
        }
        answer.own_recorded |= question.message_id.is_some_and(|id| left.contains(id));
        answer.source_recorded |= question.source_id.is_some_and(|id| left.contains(id));
        Ok(answer)
    }

    async fn write(&self, endpoint: &EndpointName, write: StoreWrite) -> Result<Written, Error> {
        if write.record.is_empty() {
            return self.store.write(endpoint, write).await;
        }
        let (beside, endpoint) = (self.clone(), endpoint.clone());
        to_its_end(async move { beside.write_both(&endpoint, write).await }).await
    }

    async fn decision_done(&self, endpoint: &EndpointName, message_id: &MessageId) -> Result<(), Error> {
        // Whoever carried it out has come by `check` or by `write`, and neither answers before the records are there.
        self.store.decision_done(endpoint, message_id).await
    }

    async fn state_get(&self, endpoint: &EndpointName, key: &str) -> Result<Option<Versioned>, Error> {
        self.store.state_get(endpoint, key).await
    }

    async fn state_scan(
        &self,
        endpoint: &EndpointName,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<(String, Versioned)>, Error> {
        self.store.state_scan(endpoint, prefix, after, limit).await
    }

    async fn purge_inbox(&self, endpoint: &EndpointName, before: Timestamp, limit: u32) -> Result<u32, Error> {
        self.inbox.purge(endpoint, before, limit).await
    }

    async fn purge_tracking(&self, keep: &Retention, limit: u32) -> Result<u32, Error> {
        self.store.purge_tracking(keep, limit).await
    }

    async fn outbox_claim(
        &self,
        endpoints: &[EndpointName],
        max: u32,
        lease: Duration,
    ) -> Result<Vec<OutboxRow>, Error> {
        self.store.outbox_claim(endpoints, max, lease).await
    }

    async fn outbox_sent(&self, ids: &[i64]) -> Result<(), Error> {
        self.store.outbox_sent(ids).await
    }

    async fn outbox_failed(&self, id: i64, error: &str, again_at: Option<Timestamp>) -> Result<(), Error> {
        self.store.outbox_failed(id, error, again_at).await
    }

    async fn outbox_resolve(&self, id: i64, drop: bool) -> Result<bool, Error> {
        self.store.outbox_resolve(id, drop).await
    }

    async fn create_actions(
        &self,
        actions: Vec<NewAction>,
        audit: query::AuditEntry,
    ) -> Result<Vec<Result<ActionId, ActionRefused>>, Error> {
        self.store.create_actions(actions, audit).await
    }

    async fn action(&self, id: ActionId) -> Result<Option<Action>, Error> {
        self.store.action(id).await
    }

    async fn action_of_key(&self, key: &str) -> Result<Option<ActionId>, Error> {
        self.store.action_of_key(key).await
    }

    async fn events(&self, filter: &query::EventFilter, page: &Page) -> Result<Listing<query::EventRow>, Error> {
        self.store.events(filter, page).await
    }

    async fn find_events(&self, id: &str) -> Result<Vec<query::EventRow>, Error> {
        self.store.find_events(id).await
    }

    async fn history(&self, endpoint: &EndpointName, event_id: &EventId) -> Result<Vec<HistoryLine>, Error> {
        self.store.history(endpoint, event_id).await
    }

    async fn kept_message(&self, endpoint: &EndpointName, event_id: &EventId) -> Result<Option<Message>, Error> {
        self.store.kept_message(endpoint, event_id).await
    }

    async fn failure_groups(&self, filter: &query::EventFilter) -> Result<Vec<query::FailureGroup>, Error> {
        self.store.failure_groups(filter).await
    }

    async fn inbox(&self, filter: &query::InboxFilter, page: &Page) -> Result<Listing<query::InboxRow>, Error> {
        self.inbox.list(filter, page).await
    }

    async fn audit(&self, page: &Page) -> Result<Listing<query::AuditRow>, Error> {
        self.store.audit(page).await
    }

    async fn add_audit(&self, entry: query::AuditEntry) -> Result<(), Error> {
        self.store.add_audit(entry).await
    }

    async fn outbox(&self, page: &Page) -> Result<Listing<query::OutboxListRow>, Error> {
        self.store.outbox(page).await
    }
}

/// In a task of its own: two writes that belong together are not cut in two by a caller that stops waiting.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(error) => Err(Error::Unavailable(format!("the write did not end: {error}"))),
    }
}
