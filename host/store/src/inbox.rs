//! An inbox by itself: which ids of which endpoint are recorded, and nothing else.
//!
//! A [`Store`] has one of its own, which commits with everything else. Where an endpoint keeps its inbox in another place (P34: in `record` mode only)
//! the two are put together by [`InboxBeside`]: start reading there. Any store's inbox can be that other place ([`InboxOf`]); one that is
//! nothing but an inbox implements [`Inbox`] itself. Both pass [`inbox_conformance!`](crate::inbox_conformance).

mod beside;

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use sprag_core::{
    effect::StoreWrite,
    ids::{EndpointName, EventId, MessageId},
    time::Timestamp,
};

use crate::{Error, Question, Store, query};

pub use beside::InboxBeside;

/// Which ids of which endpoint are recorded.
///
/// Rules for every implementation, checked by [`inbox_conformance!`](crate::inbox_conformance):
///
/// - Ids and endpoints compare by bytes; (endpoint, id) of one endpoint never meets another's (spec 4).
/// - Recording an id again is no error, whoever recorded it; its first time stays.
/// - A failure is never an answer: it says nothing about whether an id is recorded.
/// - A record that has begun runs to its end even if the caller stops waiting (spec 4).
#[async_trait]
pub trait Inbox: Send + Sync + 'static {
    /// Whether each of these is recorded, in the order asked.
    async fn recorded(&self, asked: &[(EndpointName, MessageId)]) -> Result<Vec<bool>, Error>;

    /// Records the ids, none of them before those in front of it: where a failure leaves a part of them recorded, it is the first part.
    async fn record(&self, endpoint: &EndpointName, ids: &[MessageId]) -> Result<(), Error>;

    /// Deletes at most `limit` records of the endpoint made before `before`, oldest first. Answers how many.
    async fn purge(&self, endpoint: &EndpointName, before: Timestamp, limit: u32) -> Result<u32, Error>;

    /// Every record that the filter lets through, in an order of the inbox's own. Limits and cursors are as [`query::Page`] says.
    async fn list(
        &self,
        filter: &query::InboxFilter,
        page: &query::Page,
    ) -> Result<query::Listing<query::InboxRow>, Error>;
}

/// The inbox of a store, for endpoints that keep the rest of what they remember elsewhere.
#[derive(Clone)]
pub struct InboxOf(Arc<dyn Store>);

impl InboxOf {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }

    /// One question holds two ids; a store may put questions that are asked at the same time together.
    async fn pair(
        &self,
        endpoint: &EndpointName,
        first: &MessageId,
        second: Option<&MessageId>,
    ) -> Result<[bool; 2], Error> {
        let event_id = EventId::from("");
        let question = Question {
            endpoint,
            message_id: Some(first),
            source_id: second,
            event_id: &event_id,
            inbox: true,
            outcome: false,
        };
        let answer = self.0.check(question).await?;
        Ok([answer.own_recorded, answer.source_recorded])
    }
}

#[async_trait]
impl Inbox for InboxOf {
    async fn recorded(&self, asked: &[(EndpointName, MessageId)]) -> Result<Vec<bool>, Error> {
        let mut pairs = Vec::with_capacity(asked.len());
        let mut rest = asked;
        while let [(endpoint, first), after @ ..] = rest {
            let (second, after) = match after {
                [(other, second), after @ ..] if other == endpoint => (Some(second), after),
                _ => (None, after),
            };
            pairs.push((endpoint, first, second));
            rest = after;
        }
        let answers = try_join_all(pairs.iter().map(|(endpoint, first, second)| self.pair(endpoint, first, *second)));
        let both = answers.await?.into_iter().zip(&pairs);
        Ok(both.flat_map(|(answer, (.., second))| answer.into_iter().take(1 + usize::from(second.is_some()))).collect())
    }

    async fn record(&self, endpoint: &EndpointName, ids: &[MessageId]) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        // One transaction for all of them. That the first was there already drops a unit of work, of which there is none, and nothing else.
        self.0.write(endpoint, StoreWrite { record: ids.to_vec(), ..StoreWrite::default() }).await?;
        Ok(())
    }

    async fn purge(&self, endpoint: &EndpointName, before: Timestamp, limit: u32) -> Result<u32, Error> {
        self.0.purge_inbox(endpoint, before, limit).await
    }

    async fn list(
        &self,
        filter: &query::InboxFilter,
        page: &query::Page,
    ) -> Result<query::Listing<query::InboxRow>, Error> {
        self.0.inbox(filter, page).await
    }
}
