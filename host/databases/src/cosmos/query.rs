//! Queries over all records: the oldest ones of an endpoint, and listings.
//!
//! The service's gateway puts no order on a query over several of its partitions; a query within one of them has one. So each partition is asked by
//! itself, and what they answer is merged here. Which partitions there are is asked each time: they split while a container grows.

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use sprag_core::{ids::EndpointName, time::Timestamp};
use sprag_store::query::{InboxFilter, InboxRow, Listing, Page};

use super::{
    client::{Client, On, Request},
    document::{self, Document, Key},
    fault::Fault,
};

/// Partitions that are asked at the same time.
const TOGETHER: usize = 8;
/// The most that one page of the service holds.
const MOST_OF_A_PAGE: u32 = 1_000;

/// A record that is to be purged, as it was when it was found.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Found {
    pub(crate) id: String,
    #[serde(rename = "_etag")]
    pub(crate) etag: String,
    #[serde(rename = "createdAtUtc")]
    created_at_utc: String,
}

/// At most `limit` records of the endpoint that were made before that time, the oldest of all.
pub(crate) async fn oldest(
    client: &Client,
    endpoint: &EndpointName,
    before: Timestamp,
    limit: u32,
) -> Result<Vec<Found>, Fault> {
    if limit == 0 {
        return Ok(Vec::new());
    }
    let query = Query {
        text: "SELECT c.id, c._etag, c.createdAtUtc FROM c \
               WHERE c.endpointId = @endpoint AND c.createdAtUtc < @before ORDER BY c.createdAtUtc"
            .to_owned(),
        values: vec![("@endpoint", endpoint.as_str().to_owned()), ("@before", document::written(before))],
    };
    let mut found: Vec<Found> = everywhere(client, query, limit).await?;
    found.sort_by(|a, b| (&a.created_at_utc, &a.id).cmp(&(&b.created_at_utc, &b.id)));
    found.truncate(limit as usize);
    Ok(found)
}

/// In the order of keys, which every partition has an index of; the cursor is the last key.
pub(crate) async fn list(client: &Client, filter: &InboxFilter, page: &Page) -> Result<Listing<InboxRow>, Fault> {
    if !(1..=1_000).contains(&page.limit) {
        return Err(Fault::Invalid(format!("a listing takes 1 to 1000 at a time, not {}", page.limit)));
    }
    let mut conditions = Vec::new();
    let mut values = Vec::new();
    if let Some(endpoint) = &filter.endpoint {
        conditions.push("c.endpointId = @endpoint");
        values.push(("@endpoint", endpoint.as_str().to_owned()));
    }
    if let Some(id) = &filter.message_id {
        conditions.push("c.messageId = @message");
        values.push(("@message", id.as_str().to_owned()));
    }
    if let Some(cursor) = &page.after {
        let strange = || Fault::Invalid(format!("{cursor:?} is not where a listing goes on"));
        let key = Key::read(cursor).ok_or_else(strange)?;
        conditions.push("c.id > @after");
        values.push(("@after", key.as_str().to_owned()));
    }
    let conditions = if conditions.is_empty() { String::new() } else { format!("WHERE {} ", conditions.join(" AND ")) };
    let text = format!("SELECT c.id, c.endpointId, c.messageId, c.createdAtUtc FROM c {conditions}ORDER BY c.id");
    let mut found: Vec<Document> = everywhere(client, Query { text, values }, page.limit + 1).await?;
    found.sort_by(|a, b| a.id.cmp(&b.id));
    let more = found.len() > page.limit as usize;
    found.truncate(page.limit as usize);
    let next = found.last().filter(|_| more).map(|last| last.id.clone());
    let items = found.into_iter().map(row).collect::<Result<_, _>>()?;
    Ok(Listing { items, next })
}

fn row(document: Document) -> Result<InboxRow, Fault> {
    let unreadable = || Fault::Unreadable("a record has no time".to_owned());
    let recorded_at = document::read(&document.created_at_utc).ok_or_else(unreadable)?;
    let (endpoint, message_id) = (document.endpoint_id.into(), document.message_id.into());
    Ok(InboxRow { endpoint, message_id, recorded_at, lease: None })
}

struct Query {
    text: String,
    values: Vec<(&'static str, String)>,
}

impl Query {
    fn json(&self) -> Value {
        let values: Vec<_> = self.values.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
        json!({ "query": self.text, "parameters": values })
    }
}

#[derive(Deserialize)]
struct Ranges {
    #[serde(rename = "PartitionKeyRanges")]
    ranges: Vec<Range>,
}

#[derive(Deserialize)]
struct Range {
    /// A text; emulators have a number.
    id: Value,
}

#[derive(Deserialize)]
struct Part<T> {
    #[serde(rename = "Documents")]
    documents: Vec<T>,
}

/// The first `limit` of every partition.
async fn everywhere<T: DeserializeOwned>(client: &Client, query: Query, limit: u32) -> Result<Vec<T>, Fault> {
    let query = query.json();
    let mut ranges = Vec::new();
    let mut continuation = None;
    loop {
        let mut request = Request::get(On::Ranges);
        if let Some(place) = continuation {
            request = request.with("x-ms-continuation", place);
        }
        let answer = client.call(request).await?;
        if answer.status != 200 {
            return Err(answer.refused());
        }
        ranges.extend(answer.json::<Ranges>()?.ranges.into_iter().map(|range| match range.id {
            Value::String(id) => id,
            other => other.to_string(),
        }));
        continuation = answer.continuation;
        if continuation.is_none() {
            break;
        }
    }
    let parts = stream::iter(ranges).map(|range| within(client, range, &query, limit)).buffer_unordered(TOGETHER);
    parts.try_concat().await
}

async fn within<T: DeserializeOwned>(
    client: &Client,
    range: String,
    query: &Value,
    limit: u32,
) -> Result<Vec<T>, Fault> {
    let mut found = Vec::new();
    let mut continuation = None;
    loop {
        let left = limit - u32::try_from(found.len()).unwrap_or(limit).min(limit);
        let mut request = Request::post(On::Documents, query)?
            .with("content-type", "application/query+json".to_owned())
            .with("x-ms-documentdb-isquery", "True".to_owned())
            .with("x-ms-documentdb-query-enablecrosspartition", "True".to_owned())
            .with("x-ms-documentdb-partitionkeyrangeid", range.clone())
            .with("x-ms-max-item-count", left.min(MOST_OF_A_PAGE).to_string());
        if let Some(place) = continuation {
            request = request.with("x-ms-continuation", place);
        }
        let answer = client.call(request).await?;
        if answer.status != 200 {
            return Err(answer.refused());
        }
        found.extend(answer.json::<Part<T>>()?.documents);
        continuation = answer.continuation;
        if continuation.is_none() || found.len() >= limit as usize {
            return Ok(found);
        }
    }
}
