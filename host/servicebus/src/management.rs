//! What links cannot do: requests to an entity, each as a function.

use std::sync::Arc;

use bytes::Bytes;
use sprag_amqp::value::{Array, Map, Value};
use sprag_core::{
    ids::{EntityName, SequenceNumber, SessionId},
    message::Message,
};
use sprag_transport::Settlement;
use tracing::warn;

use crate::{
    address,
    connection::{Client, Connection},
    fault::Fault,
    message::{self, Received},
    requests::Answer,
};

/// Messages looked at with one request.
const PAGE: i32 = 100;
/// Sessions listed with one request.
const SESSIONS: i32 = 100;
/// What .NET calls the end of time, in milliseconds since 1970: asks for sessions that have messages.
pub(crate) const WITH_MESSAGES: i64 = 253_402_300_799_999;
/// Asks for sessions whose state was ever set.
pub(crate) const WITH_STATE: i64 = 0;

/// An entity, asked over a connection: the given one (what is locked is locked to a connection) or the one that is there.
#[derive(Clone)]
pub(crate) struct Management {
    client: Arc<Client>,
    connection: Option<Arc<Connection>>,
    link: Option<String>,
    path: String,
}

fn map<const N: usize>(fields: [(&str, Value); N]) -> Map {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn with_session(mut body: Map, session: Option<&SessionId>) -> Map {
    if let Some(id) = session {
        body.0.push((Value::from("session-id"), Value::String(id.to_string())));
    }
    body
}

impl Management {
    pub(crate) fn of(client: &Arc<Client>, entity: &EntityName) -> Self {
        Self { client: Arc::clone(client), connection: None, link: None, path: address::path(entity) }
    }

    /// Over the connection of the link that holds what it is about.
    pub(crate) fn of_link(link: &crate::link::Link, entity: &EntityName) -> Self {
        Self {
            client: Arc::clone(link.connection.client()),
            connection: Some(Arc::clone(&link.connection)),
            link: Some(link.name().to_owned()),
            path: address::path(entity),
        }
    }

    async fn ask(&self, operation: &str, body: Map) -> Result<Answer, Fault> {
        let connection = match &self.connection {
            Some(connection) => Arc::clone(connection),
            None => self.client.connected().await?,
        };
        connection.management(&self.path).await?.ask(operation, self.link.as_deref(), body).await
    }

    /// Whether the entity is there, and answers.
    pub(crate) async fn exists(&self) -> Result<(), Fault> {
        self.client.connected().await?.management(&self.path).await.map(drop)
    }

    /// One page of messages, from a number on. Empty at the end.
    pub(crate) async fn peek(&self, session: Option<&SessionId>, from: SequenceNumber) -> Result<Vec<Received>, Fault> {
        self.look(session, from, PAGE).await
    }

    /// Whether a message is in the entity, in whatever state.
    pub(crate) async fn is_there(&self, number: SequenceNumber) -> Result<bool, Fault> {
        Ok(self.look(None, number, 1).await?.iter().any(|received| received.sequence == number))
    }

    async fn look(
        &self,
        session: Option<&SessionId>,
        from: SequenceNumber,
        count: i32,
    ) -> Result<Vec<Received>, Fault> {
        let body = map([("from-sequence-number", Value::Long(from.0.max(0))), ("message-count", Value::Int(count))]);
        let answer = self.ask("peek-message", with_session(body, session)).await?;
        let Some(entries) = answer.body.get("messages").and_then(Value::as_items) else { return Ok(Vec::new()) };
        let read = entries.iter().filter_map(|entry| {
            let bytes = entry.as_map().and_then(|entry| entry.get("message")).and_then(Value::as_binary)?;
            match Received::read(bytes.clone()) {
                Ok(received) => Some(received),
                Err(error) => {
                    warn!(path = self.path, %error, "a message that was looked at cannot be read and is left out");
                    None
                }
            }
        });
        Ok(read.collect())
    }

    /// Walks all messages from a number on, page by page, until `look` has had enough.
    pub(crate) async fn walk(
        &self,
        session: Option<&SessionId>,
        from: SequenceNumber,
        mut look: impl FnMut(Received) -> bool + Send,
    ) -> Result<(), Fault> {
        let mut from = from;
        loop {
            let page = self.peek(session, from).await?;
            let Some(last) = page.iter().map(|received| received.sequence).max() else { return Ok(()) };
            for received in page {
                if !look(received) {
                    return Ok(());
                }
            }
            match last.0.checked_add(1) {
                Some(next) if next > from.0 => from = SequenceNumber(next),
                // A broker that numbers down would be walked for ever.
                _ => return Ok(()),
            }
        }
    }

    pub(crate) async fn schedule(&self, messages: &[Message]) -> Result<Vec<SequenceNumber>, Fault> {
        let entries = messages.iter().map(|one| {
            let mut entry = map([("message", Value::Binary(message::encode(one).into()))]);
            let mut text = |name: &str, text: Option<String>| {
                entry.0.extend(text.map(|text| (Value::from(name), Value::String(text))));
            };
            text("message-id", one.message_id.as_ref().map(ToString::to_string));
            text("session-id", one.session_id.as_ref().map(ToString::to_string));
            text("partition-key", one.partition_key.as_ref().map(ToString::to_string));
            Value::Map(entry)
        });
        let answer = self.ask("schedule-message", map([("messages", Value::List(entries.collect()))])).await?;
        let numbers = answer.body.get("sequence-numbers").and_then(Value::as_items).unwrap_or_default();
        let numbers: Vec<_> = numbers.iter().filter_map(Value::as_i64).map(SequenceNumber).collect();
        match numbers.len() == messages.len() {
            true => Ok(numbers),
            // They are scheduled: not an error that would make somebody send them again.
            false => {
                warn!(path = self.path, "the broker does not tell the numbers of scheduled messages");
                Ok(Vec::new())
            }
        }
    }

    pub(crate) async fn cancel(&self, number: SequenceNumber) -> Result<(), Fault> {
        self.ask("cancel-scheduled-message", map([("sequence-numbers", Array::longs([number.0]))])).await.map(drop)
    }

    pub(crate) async fn renew(&self, lock: [u8; 16]) -> Result<(), Fault> {
        self.ask("renew-lock", map([("lock-tokens", Array::uuids([lock]))])).await.map(drop)
    }

    pub(crate) async fn renew_session(&self, session: &SessionId) -> Result<(), Fault> {
        self.ask("renew-session-lock", with_session(Map::new(), Some(session))).await.map(drop)
    }

    /// Null and no bytes are both no state (P32).
    pub(crate) async fn state(&self, session: &SessionId) -> Result<Option<Bytes>, Fault> {
        let answer = self.ask("get-session-state", with_session(Map::new(), Some(session))).await?;
        let state = answer.body.get("session-state").and_then(Value::as_binary).cloned();
        Ok(state.filter(|state| !state.is_empty()))
    }

    pub(crate) async fn set_state(&self, session: &SessionId, state: Option<Bytes>) -> Result<(), Fault> {
        let state = state.filter(|state| !state.is_empty()).map_or(Value::Null, Value::Binary);
        let body = map([("session-state", state)]);
        self.ask("set-session-state", with_session(body, Some(session))).await.map(drop)
    }

    /// Sessions that have messages ([`WITH_MESSAGES`]) or a state that was set since a time.
    pub(crate) async fn sessions(&self, since: i64) -> Result<Vec<SessionId>, Fault> {
        let mut found = Vec::new();
        let mut skip = 0;
        loop {
            let body = map([
                ("last-updated-time", Value::Timestamp(since)),
                ("skip", Value::Int(skip)),
                ("top", Value::Int(SESSIONS)),
            ]);
            let answer = self.ask("get-message-sessions", body).await?;
            let ids = answer.body.get("sessions-ids").and_then(Value::as_items).unwrap_or_default();
            if ids.is_empty() {
                return Ok(found);
            }
            found.extend(ids.iter().filter_map(Value::as_str).map(SessionId::from));
            let next = answer.body.get("skip").and_then(Value::as_i64).and_then(|skip| i32::try_from(skip).ok());
            skip = next.filter(|next| *next > skip).unwrap_or(skip + i32::try_from(ids.len()).unwrap_or(SESSIONS));
        }
    }

    /// Settles deliveries, all in the same way.
    pub(crate) async fn settle(
        &self,
        session: Option<&SessionId>,
        locks: impl IntoIterator<Item = [u8; 16]>,
        settlement: &Settlement,
    ) -> Result<(), Fault> {
        let status = match settlement {
            Settlement::Complete => "completed",
            Settlement::Abandon => "abandoned",
            Settlement::Release => "unlocked",
            Settlement::DeadLetter { .. } => "suspended",
        };
        let mut body = map([("lock-tokens", Array::uuids(locks)), ("disposition-status", Value::from(status))]);
        if let Settlement::DeadLetter { reason, description } = settlement {
            body.0.push((Value::from("deadletter-reason"), Value::String(reason.clone())));
            body.0.push((Value::from("deadletter-description"), Value::String(description.clone())));
        }
        self.ask("update-disposition", with_session(body, session)).await.map(drop)
    }
}
