//! Requests about messages: looked at, received by number, settled, renewed, scheduled.

use std::{sync::Arc, time::Duration};

use sprag_amqp::value::{Array, Map, Symbol, Value};
use sprag_broker::client::{ClientMessage, ClientSession, Error, Mode, Modified, Settle, Source};
use sprag_core::{
    ids::SequenceNumber,
    message::{LockToken, Message},
    time::Timestamp,
};

use super::{Answer, Request, body};
use crate::amqp::{
    context::Context,
    failure::Failure,
    message::{self, Handed},
    peer::modified,
};

/// The most messages that one request is answered with, and about how many bytes of them: a client asks again for the rest.
const MAX_MESSAGES: usize = 1_000;
const MAX_ANSWER: usize = 4 << 20;
/// The most messages that one request deletes, as on Azure; and how many of them are locked at a time.
const MAX_DELETED: usize = 4_000;
const DELETED_AT_A_TIME: usize = 256;

fn source(context: &Context, request: &Request) -> Result<Source, Failure> {
    Ok(context.engine.source(&request.place.name)?)
}

/// The session that the request is about, which the asking connection has to hold.
pub(super) fn session(request: &Request) -> Result<&Arc<ClientSession>, Failure> {
    let id = request.session.as_ref().ok_or_else(|| Failure::argument("session-id: a text is required"))?;
    let held = request.held.first().filter(|session| session.id() == id);
    held.ok_or_else(|| Failure::session_lost(id.as_str()))
}

/// `message`, and `lock-token` for one that is locked.
fn entry(context: &Context, message: &ClientMessage, handed: Handed) -> (usize, Value) {
    let mut encoded = Vec::with_capacity(message.message.body.len() + 512);
    message::write(&mut encoded, message, handed);
    let len = encoded.len();
    let mut map: Map = [("message".to_owned(), Value::Binary(encoded.into()))].into_iter().collect();
    if let (Some(lock), Handed::Locked(_)) = (message.lock, handed) {
        map.0.push((Value::from("lock-token"), Value::Uuid(context.tokens.uuid(lock.token))));
    }
    (len, Value::Map(map))
}

fn one(field: &str, value: Value) -> Map {
    [(field.to_owned(), value)].into_iter().collect()
}

pub(super) async fn peek(context: &Context, request: &Request) -> Result<Answer, Failure> {
    let from = SequenceNumber(body::number(&request.body, "from-sequence-number")?);
    let count = body::count(&request.body, "message-count", 1)?.min(MAX_MESSAGES);
    let place = context.engine.looked_at(&request.place.name)?;
    let found = place.peek(from, count, request.session.as_ref()).await?;
    let mut bytes = 0;
    let mut entries = Vec::new();
    for message in &found {
        if bytes >= MAX_ANSWER {
            break;
        }
        let (len, entry) = entry(context, message, Handed::Shown);
        bytes += len;
        entries.push(entry);
    }
    match entries.is_empty() {
        true => Ok(Answer::nothing()),
        false => Ok(Answer::ok(one("messages", Value::List(entries)))),
    }
}

pub(super) async fn receive_deferred(context: &Context, request: &Request) -> Result<Answer, Failure> {
    let numbers: Vec<_> = body::numbers(&request.body, "sequence-numbers")?.into_iter().map(SequenceNumber).collect();
    let mode = match body::optional(&request.body, "receiver-settle-mode").and_then(Value::as_u64) {
        Some(0) => Mode::Delete,
        _ => Mode::PeekLock,
    };
    let source = source(context, request)?;
    let messages = match source.requires_session() {
        true => session(request)?.receive_deferred(&numbers, mode).await?,
        false => source.receive_deferred(&numbers, mode).await?,
    };
    let entries = messages.iter().map(|message| {
        let handed = match message.lock {
            Some(lock) => Handed::Locked(context.tokens.uuid(lock.token)),
            None => Handed::Deleted,
        };
        entry(context, message, handed).1
    });
    Ok(Answer::ok(one("messages", Value::List(entries.collect()))))
}

/// The locks that a request names. One of another process is as lost as one that has lapsed.
fn locks(context: &Context, request: &Request) -> Result<Vec<LockToken>, Failure> {
    let tokens = body::items(&request.body, "lock-tokens")?;
    let lock = |token: &Value| {
        let bytes = match token {
            Value::Uuid(bytes) => &bytes[..],
            Value::Binary(bytes) => &bytes[..],
            _ => return Err(Failure::argument("lock-tokens: UUIDs are required")),
        };
        context.tokens.lock(bytes).ok_or_else(|| Failure::from(Error::LockLost))
    };
    tokens.iter().map(lock).collect()
}

/// Also says which messages were `settled`: some may be when others are not.
pub(super) async fn update_disposition(
    context: &Context,
    request: &Request,
    settled: &mut Vec<LockToken>,
) -> Result<Answer, Failure> {
    let how = disposition(&request.body)?;
    let locks = locks(context, request)?;
    let source = source(context, request)?;
    let settle = async |lock: LockToken| -> Result<(), Error> {
        if !source.requires_session() {
            return source.settle(lock, how.clone()).await;
        }
        // Without the session's id, the lock is of one of those that are held here.
        let mut result = Err(Error::LockLost);
        for session in &request.held {
            result = session.settle(lock, how.clone()).await;
            if result.is_ok() {
                break;
            }
        }
        result
    };
    if source.requires_session()
        && let Some(id) = &request.session
        && request.held.is_empty()
    {
        return Err(Failure::session_lost(id.as_str()));
    }
    // All at once, so that they share a write.
    let results = futures_util::future::join_all(locks.iter().map(|lock| settle(*lock))).await;
    settled.extend(locks.iter().zip(&results).filter(|(_, result)| result.is_ok()).map(|(lock, _)| *lock));
    let failed = results.len() - settled.len();
    match results.into_iter().find_map(Result::err) {
        None => Ok(Answer::done()),
        Some(error) if locks.len() == 1 => Err(error.into()),
        Some(error) => {
            let failure = Failure::from(error);
            let text = format!("{failed} of {} were not settled, the others were: {}", locks.len(), failure.text);
            Err(Failure { text, ..failure })
        }
    }
}

/// Deletes the oldest messages that nobody holds: up to a number of them, those from before a time. Azure's clients purge with it.
pub(super) async fn delete(context: &Context, request: &Request) -> Result<Answer, Failure> {
    let wanted = body::count(&request.body, "message-count", 1)?.min(MAX_DELETED);
    let before = body::optional(&request.body, "enqueued-time-utc").and_then(Value::as_i64).unwrap_or(i64::MAX);
    let source = source(context, request)?;
    let session = match source.requires_session() {
        true => Some(session(request)?),
        false => None,
    };
    let receive = async |max: usize| match session {
        Some(session) => session.receive(max, Duration::ZERO, Mode::PeekLock).await,
        None => source.receive(max, Duration::ZERO, Mode::PeekLock).await,
    };
    let settle = async |message: &ClientMessage, how: Settle| -> Result<(), Error> {
        let lock = message.lock.ok_or(Error::LockLost)?.token;
        match session {
            Some(session) => session.settle(lock, how).await,
            None => source.settle(lock, how).await,
        }
    };
    let mut deleted = 0;
    while deleted < wanted {
        let taken = receive(DELETED_AT_A_TIME.min(wanted - deleted)).await?;
        let count = taken.len();
        let (old, newer): (Vec<_>, Vec<_>) = taken.into_iter().partition(|message| message.enqueued_at.0 <= before);
        // Together, so that they share a write.
        let gone = futures_util::future::join_all(old.iter().map(|message| settle(message, Settle::Complete))).await;
        deleted += gone.iter().filter(|result| result.is_ok()).count();
        for message in &newer {
            settle(message, Settle::Release).await?;
        }
        if let Some(error) = gone.into_iter().find_map(Result::err) {
            return Err(error.into());
        }
        if count == 0 || !newer.is_empty() {
            break;
        }
    }
    match i32::try_from(deleted) {
        Ok(0) | Err(_) => Ok(Answer::nothing()),
        Ok(deleted) => Ok(Answer::ok(one("message-count", Value::Int(deleted)))),
    }
}

fn disposition(body: &Map) -> Result<Settle, Failure> {
    let properties = || -> Result<Modified, Failure> {
        match body::optional(body, "properties-to-modify") {
            Some(Value::Map(map)) => modified(map, &[]),
            None => Ok(Modified::new()),
            Some(_) => Err(Failure::argument("properties-to-modify: it is no map")),
        }
    };
    Ok(match body::text(body, "disposition-status")? {
        "completed" => Settle::Complete,
        "abandoned" => Settle::Abandon { modified: properties()? },
        // Azure's spelling.
        "defered" | "deferred" => Settle::Defer { modified: properties()? },
        "suspended" => Settle::DeadLetter {
            reason: body::optional_text(body, "deadletter-reason"),
            description: body::optional_text(body, "deadletter-description"),
            modified: properties()?,
        },
        "released" | "unlocked" => Settle::Release,
        other => return Err(Failure::argument(format!("disposition-status: {other:?} is none"))),
    })
}

pub(super) fn renew(context: &Context, request: &Request) -> Result<Answer, Failure> {
    let locks = locks(context, request)?;
    let renewed: Result<Vec<Timestamp>, Error> = source(context, request)?.renew(&locks).into_iter().collect();
    let expirations = renewed?.into_iter().map(|until| until.0);
    Ok(Answer::ok(one("expirations", Array::timestamps(expirations))))
}

pub(super) async fn schedule(context: &Context, request: &Request) -> Result<Answer, Failure> {
    let messages = body::items(&request.body, "messages")?.iter().map(scheduled).collect::<Result<Vec<_>, _>>()?;
    let sent = context.engine.target(&request.place.name)?.send(messages).await?;
    let numbers = Array::longs(sent.into_iter().map(|number| number.0));
    Ok(Answer::ok(one("sequence-numbers", numbers)))
}

fn scheduled(entry: &Value) -> Result<Message, Failure> {
    let entry = entry.as_map().ok_or_else(|| Failure::argument("messages: maps are required"))?;
    let encoded = body::optional(entry, "message").and_then(Value::as_binary);
    let encoded = encoded.ok_or_else(|| Failure::argument("message: the encoded message is required"))?;
    let message = message::read(encoded.clone())?;
    match message.scheduled_for {
        Some(_) => Ok(message),
        None => Err(Failure::argument(format!(
            "{}: a message that is to be scheduled says when",
            Symbol::from_static("x-opt-scheduled-enqueue-time")
        ))),
    }
}

pub(super) async fn cancel(context: &Context, request: &Request) -> Result<Answer, Failure> {
    let numbers: Vec<_> = body::numbers(&request.body, "sequence-numbers")?.into_iter().map(SequenceNumber).collect();
    context.engine.target(&request.place.name)?.cancel_scheduled(&numbers).await?;
    Ok(Answer::done())
}
