//! Requests about sessions. But for the listing, they are for who holds the session, and nobody else.

use bytes::Bytes;
use sprag_amqp::value::{Array, Map, Value};
use sprag_broker::client::Sessions;
use sprag_core::time::Timestamp;

use super::{Answer, Request, body, messages::session};
use crate::amqp::{context::Context, failure::Failure};

/// What .NET calls the end of time, in milliseconds since 1970: clients ask with it for sessions that have messages.
const END_OF_TIME: i64 = 253_402_300_799_999;
/// The most sessions that one request is answered with.
const MAX_SESSIONS: usize = 1_000;

pub(super) fn renew(request: &Request) -> Result<Answer, Failure> {
    let until = session(request)?.renew()?;
    Ok(Answer::ok([("expiration".to_owned(), Value::Timestamp(until.0))].into_iter().collect()))
}

pub(super) fn state(request: &Request) -> Result<Answer, Failure> {
    let state = session(request)?.state()?.map_or(Value::Null, Value::Binary);
    Ok(Answer::ok([("session-state".to_owned(), state)].into_iter().collect()))
}

pub(super) async fn set_state(request: &Request) -> Result<Answer, Failure> {
    let state = match request.body.get("session-state") {
        None | Some(Value::Null) => None,
        // It is kept for long; the request that it is a part of is not.
        Some(Value::Binary(state)) => Some(Bytes::copy_from_slice(state)),
        Some(Value::String(state)) => Some(Bytes::copy_from_slice(state.as_bytes())),
        Some(_) => return Err(Failure::argument("session-state: a binary or null is required")),
    };
    session(request)?.set_state(state).await?;
    Ok(Answer::done())
}

pub(super) fn list(context: &Context, request: &Request) -> Result<Answer, Failure> {
    let since = body::optional(&request.body, "last-updated-time").and_then(Value::as_i64);
    let skip = body::count(&request.body, "skip", 0)?;
    let top = body::count(&request.body, "top", MAX_SESSIONS)?.min(MAX_SESSIONS);
    let which = match since {
        None => Sessions::All,
        Some(time) if time >= END_OF_TIME => Sessions::WithMessages,
        Some(time) => Sessions::UpdatedSince(Timestamp(time)),
    };
    let name = &request.place.name;
    let found = context.engine.source(name)?.sessions(which, skip, top)?;
    if found.is_empty() {
        return Ok(Answer::nothing());
    }
    let next = i32::try_from(skip + found.len()).unwrap_or(i32::MAX);
    let ids = Array::strings(found.iter().map(|id| id.to_string()));
    let body: Map = [("skip".to_owned(), Value::Int(next)), ("sessions-ids".to_owned(), ids)].into_iter().collect();
    Ok(Answer::ok(body))
}
