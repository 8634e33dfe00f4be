//! Requests to an entity (`$management`): what links cannot do.
//!
//! Start at [`carry_out`]. A request is a map, and so is its answer; the names in them are Azure's. Each group of operations has its file.

mod body;
mod messages;
mod rules;
mod sessions;

use std::sync::Arc;

use sprag_amqp::value::{Map, Value};
use sprag_broker::client::ClientSession;
use sprag_core::{ids::SessionId, message::LockToken};

use super::{address::Place, context::Context, failure::Failure};
use crate::access::Right;

/// A request that may be carried out.
pub(crate) struct Request {
    pub(crate) operation: String,
    pub(crate) place: Place,
    /// The session that it names.
    pub(crate) session: Option<SessionId>,
    pub(crate) body: Map,
    /// Sessions of the entity that the asking connection holds: the named one, or all when none is named.
    pub(crate) held: Vec<Arc<ClientSession>>,
}

/// What has become of a request.
pub(crate) struct Outcome {
    pub(crate) answer: Result<Answer, Failure>,
    /// Messages that were settled. A failure has some too, where others could not be.
    pub(crate) settled: Vec<LockToken>,
}

/// What is answered when it went well.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: i32,
    pub(crate) text: &'static str,
    pub(crate) body: Value,
}

impl Answer {
    fn ok(body: Map) -> Self {
        Self { status: 200, text: "OK", body: Value::Map(body) }
    }

    fn done() -> Self {
        Self::ok(Map::new())
    }

    fn nothing() -> Self {
        Self { status: 204, text: "No Content", body: Value::Null }
    }

    pub(crate) fn accepted() -> Self {
        Self { status: 202, text: "Accepted", body: Value::Null }
    }
}

/// The operation without its vendor.
fn name(operation: &str) -> &str {
    operation.strip_prefix("com.microsoft:").unwrap_or(operation)
}

/// The right that an operation needs. Rules need no more than receiving does, as on Azure.
pub(crate) fn right(operation: &str) -> Right {
    match name(operation) {
        "schedule-message" | "cancel-scheduled-message" => Right::Send,
        _ => Right::Listen,
    }
}

pub(crate) async fn carry_out(context: &Context, request: Request) -> Outcome {
    let mut settled = Vec::new();
    let answer = answer(context, request, &mut settled).await;
    Outcome { answer, settled }
}

async fn answer(context: &Context, request: Request, settled: &mut Vec<LockToken>) -> Result<Answer, Failure> {
    match name(&request.operation) {
        "peek-message" => messages::peek(context, &request).await,
        "receive-by-sequence-number" => messages::receive_deferred(context, &request).await,
        "update-disposition" => messages::update_disposition(context, &request, settled).await,
        "batch-delete-messages" => messages::delete(context, &request).await,
        "renew-lock" => messages::renew(context, &request),
        "schedule-message" => messages::schedule(context, &request).await,
        "cancel-scheduled-message" => messages::cancel(context, &request).await,
        "renew-session-lock" => sessions::renew(&request),
        "get-session-state" => sessions::state(&request),
        "set-session-state" => sessions::set_state(&request).await,
        "get-message-sessions" => sessions::list(context, &request),
        "add-rule" => rules::add(context, &request).await,
        "remove-rule" => rules::remove(context, &request).await,
        "enumerate-rules" => rules::list(context, &request),
        _ => Err(Failure::not_implemented(format!("{} is no operation of this broker", request.operation))),
    }
}
