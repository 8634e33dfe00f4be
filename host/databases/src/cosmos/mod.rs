//! An [`Inbox`] on Azure Cosmos DB, shareable with an inbox of NimBus: the same container, the same documents, the same keys
//! (spec 4; the seed's reference 1.15).
//!
//! Start reading at [`CosmosInbox`]. It is an inbox and nothing else: an endpoint keeps the rest in a store
//! ([`InboxBeside`](sprag_store::inbox::InboxBeside), P34). What is spoken is the service's REST interface over HTTP/1.1, by the client that the hosts
//! speak to Azure with elsewhere (`ureq`, rustls). The official crate `azure_data_cosmos` is a preview without a promise, and brings a second HTTP
//! client with a second TLS for five kinds of requests.
//!
//! *What a call costs.* Every id asked about is a point read of its own (about 1 request unit), every id recorded a create of its own (about 6): each
//! document is a partition of its own, which no statement covers two of, so nothing is coalesced as on a database server. What a host does
//! at the same time goes out at the same time, [`Options::concurrency`] requests at most. So a fresh delivery costs one or two reads side by
//! side, and one or two creates one after the other, about 5 ms each near the account.
//!
//! *Invariant:* no answer comes from anywhere but the service, and an error is never an answer; no text shows a key, a token or what the service said.

mod account;
mod client;
mod document;
mod fault;
mod http;
mod opening;
mod options;
mod query;
mod signature;

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use sprag_core::{
    ids::{EndpointName, MessageId},
    time::Timestamp,
};
use sprag_store::{
    Error,
    inbox::Inbox,
    query::{InboxFilter, InboxRow, Listing, Page},
};

pub use account::{Account, Credential, Malformed, Tokens};
#[cfg(feature = "test-server")]
pub(crate) use opening::drop_database;
pub use options::{OpenError, Options};

use client::{Client, Request};
use document::{Document, Key};
use fault::Fault;

/// An inbox in a container of Cosmos DB. Cheap to clone.
#[derive(Clone)]
pub struct CosmosInbox(Arc<Inner>);

struct Inner {
    client: Client,
    concurrency: usize,
}

impl std::fmt::Debug for CosmosInbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = self.0.client.place();
        f.debug_struct("CosmosInbox")
            .field("at", &place.at)
            .field("container", &place.container)
            .finish_non_exhaustive()
    }
}

impl CosmosInbox {
    /// Asks the account for its consistency, and makes sure of the container.
    pub async fn open(options: Options) -> Result<Self, OpenError> {
        let client = Client::new(&options)?;
        opening::prepare(&client, &options).await?;
        Ok(Self(Arc::new(Inner { client, concurrency: options.concurrency })))
    }

    /// How often the service has said since the start that there were too many requests (429). Each was waited out, within the time of its call (A59).
    pub fn throttled(&self) -> u64 {
        self.0.client.throttled()
    }

    /// A point read: there, or not there. A container that is gone is neither.
    async fn is_recorded(&self, key: Key) -> Result<bool, Fault> {
        let answer = self.0.client.call(Request::read(&key)).await?;
        match (answer.status, answer.substatus) {
            (200, _) => Ok(true),
            (404, 0) => Ok(false),
            _ => Err(answer.refused()),
        }
    }

    async fn create(&self, endpoint: &EndpointName, id: &MessageId) -> Result<(), Fault> {
        let answer = self.0.client.call(Request::create(&Document::new(endpoint, id))?).await?;
        match answer.status {
            // Whoever was there first: the first time stays.
            200 | 201 | 409 => Ok(()),
            400 | 413 => Err(Fault::Invalid(format!("the inbox cannot hold an id (status {})", answer.status))),
            _ => Err(answer.refused()),
        }
    }

    /// Deletes what has not been written again since it was found. Someone else may have been faster, or an id may have been purged and recorded
    /// again: then it stays.
    async fn delete(&self, found: query::Found) -> Result<bool, Fault> {
        let answer = self.0.client.call(Request::delete(&found.id, &found.etag)).await?;
        match (answer.status, answer.substatus) {
            (200 | 204, _) => Ok(true),
            (404, 0) | (412, _) => Ok(false),
            _ => Err(answer.refused()),
        }
    }

    async fn purge_found(&self, found: Vec<query::Found>) -> Result<u32, Fault> {
        let gone = stream::iter(found).map(|it| self.delete(it)).buffer_unordered(self.0.concurrency);
        gone.try_fold(0, async |gone, one| Ok(gone + u32::from(one))).await
    }
}

#[async_trait]
impl Inbox for CosmosInbox {
    async fn recorded(&self, asked: &[(EndpointName, MessageId)]) -> Result<Vec<bool>, Error> {
        let keys: Vec<_> = asked.iter().map(|(endpoint, id)| Key::of(endpoint, id)).collect();
        let answers = stream::iter(keys).map(|key| self.is_recorded(key)).buffered(self.0.concurrency);
        Ok(answers.try_collect().await?)
    }

    async fn record(&self, endpoint: &EndpointName, ids: &[MessageId]) -> Result<(), Error> {
        let (inbox, endpoint, ids) = (self.clone(), endpoint.clone(), ids.to_vec());
        // A task of its own: a record ends whatever becomes of its caller. One after the other: none before those in front of it.
        let records = tokio::spawn(async move {
            for id in &ids {
                inbox.create(&endpoint, id).await?;
            }
            Ok::<_, Fault>(())
        });
        match records.await {
            Ok(recorded) => Ok(recorded?),
            Err(error) => Err(Error::Unavailable(format!("the record did not end: {error}"))),
        }
    }

    async fn purge(&self, endpoint: &EndpointName, before: Timestamp, limit: u32) -> Result<u32, Error> {
        let found = query::oldest(&self.0.client, endpoint, before, limit).await?;
        Ok(self.purge_found(found).await?)
    }

    /// In the order of the records' keys, which is none that means anything.
    async fn list(&self, filter: &InboxFilter, page: &Page) -> Result<Listing<InboxRow>, Error> {
        Ok(query::list(&self.0.client, filter, page).await?)
    }
}
