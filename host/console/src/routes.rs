//! What can be asked for, and how an answer is written.

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{
        DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request, State,
        rejection::{BytesRejection, QueryRejection},
    },
    http::{HeaderMap, StatusCode, request::Parts},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sprag_core::{
    action::ActionKind,
    ids::{ActionId, EndpointName, EntityName, SequenceNumber, SessionId},
    operations::{
        Caller, EventAction, EventFilter, GroupAction, InboxFilter, Operations, OutboxResolution, Page, Part,
        PlaceFilter, SkipSession,
        time::Time,
        view::{Action, Health, Listing},
    },
    outcome::Outcome,
};
use tokio::sync::watch;

use crate::{
    Config, MAX_REQUEST,
    gate::{self, Token},
    idempotency::{self, Answers},
    problem::{BAD_REQUEST, NO_SUCH_PLACE, Problem, TOO_LARGE, WRONG_METHOD},
    wire::NewMessage,
};

/// Longest that a request waits for an action.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Most messages of one send.
pub(crate) const MOST_MESSAGES: usize = 1_000;

/// What every request can reach.
pub(crate) struct Shared {
    pub operations: Arc<dyn Operations>,
    pub token: Token,
    pub operator: String,
    pub address: SocketAddr,
    pub answers: Answers,
    stopped: watch::Receiver<bool>,
}

impl Shared {
    pub(crate) fn new(
        operations: Arc<dyn Operations>,
        config: &Config,
        address: SocketAddr,
        stopped: watch::Receiver<bool>,
    ) -> Arc<Self> {
        Arc::new(Self {
            operations,
            token: Token::new(&config.token),
            operator: config.operator.clone(),
            address,
            answers: Answers::default(),
            stopped,
        })
    }

    fn caller(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        Ok(Caller { name: self.operator.clone(), idempotency_key: idempotency::key(headers)? })
    }
}

type Ops = State<Arc<Shared>>;
type Answer<T> = Result<Json<T>, Problem>;

pub(crate) fn app(shared: Arc<Shared>) -> Router {
    let api = Router::new()
        .route("/events", get(events))
        .route("/events/{id}", get(event))
        .route("/events/{id}/resubmit", post(resubmit))
        .route("/events/{id}/skip", post(skip))
        .route("/events/{id}/handoff/complete", post(handoff_complete))
        .route("/events/{id}/handoff/fail", post(handoff_fail))
        .route("/groups", get(groups))
        .route("/groups/{key}/resubmit", post(group_resubmit))
        .route("/groups/{key}/skip", post(group_skip))
        .route("/sessions", get(sessions))
        .route("/sessions/{session}/skip", post(skip_session))
        .route("/parked", get(parked))
        .route("/scheduled", get(scheduled))
        .route("/scheduled/cancel", post(cancel_scheduled))
        .route("/dead-letters", get(dead_letters))
        .route("/dead-letters/replay", post(replay))
        .route("/inbox", get(inbox))
        .route("/inbox/purge", post(purge_inbox))
        .route("/outbox", get(outbox))
        .route("/outbox/{id}/retry", post(outbox_retry))
        .route("/outbox/{id}/drop", post(outbox_drop))
        .route("/handlers", get(handlers))
        .route("/endpoints", get(endpoints))
        .route("/audit", get(audit))
        .route("/peek", get(peek))
        .route("/send", post(send))
        .route("/actions/{id}", get(action))
        .route("/health", get(health))
        .fallback(no_such_place)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(shared.clone(), idempotency::once))
        .layer(middleware::from_fn_with_state(shared.clone(), gate::authenticated));
    Router::new()
        .nest("/api", api)
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .fallback(no_such_place)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_REQUEST))
        .layer(middleware::from_fn_with_state(shared.clone(), gate::right_host))
        .layer(middleware::from_fn(gate::safe_headers))
        .with_state(shared)
}

async fn no_such_place(request: Request) -> Problem {
    Problem::new(NO_SUCH_PLACE, format!("there is nothing at {}", request.uri().path()))
}

async fn wrong_method(request: Request) -> Problem {
    Problem::new(WRONG_METHOD, format!("{} is not what {} takes", request.method(), request.uri().path()))
}

/// A JSON body whose mistakes are problems. No body counts as `{}`.
struct Input<T>(T);

impl<T: DeserializeOwned> FromRequest<Arc<Shared>> for Input<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Self, Problem> {
        let bytes = Bytes::from_request(request, shared).await.map_err(|rejection| match rejection {
            BytesRejection::FailedToBufferBody(error) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                Problem::new(TOO_LARGE, format!("a request has at most {} MiB", MAX_REQUEST >> 20))
            }
            other => Problem::new(BAD_REQUEST, other.body_text()),
        })?;
        let text = match std::str::from_utf8(&bytes) {
            Ok(text) if text.trim().is_empty() => "{}",
            Ok(text) => text,
            Err(error) => return Err(Problem::new(BAD_REQUEST, format!("the request is not UTF-8: {error}"))),
        };
        serde_json::from_str(text)
            .map(Self)
            .map_err(|error| Problem::new(BAD_REQUEST, format!("the request is not what this takes: {error}")))
    }
}

/// Query parameters whose mistakes are problems.
struct Asked<T>(T);

impl<T: DeserializeOwned> FromRequestParts<Arc<Shared>> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Problem> {
        let asked: Result<Query<T>, QueryRejection> = Query::from_request_parts(parts, shared).await;
        asked.map(|Query(asked)| Self(asked)).map_err(|rejection| Problem::new(BAD_REQUEST, rejection.body_text()))
    }
}

fn page(after: Option<String>, limit: Option<u32>) -> Result<Page, Problem> {
    let limit = limit.unwrap_or(Page::default().limit);
    if !(1..=Page::MAX).contains(&limit) {
        return Err(Problem::new(BAD_REQUEST, format!("`limit` is 1 to {}, not {limit}", Page::MAX)));
    }
    Ok(Page { after, limit })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsAsked {
    endpoint: Option<EndpointName>,
    session: Option<SessionId>,
    #[serde(rename = "type")]
    event_type: Option<String>,
    /// Several with commas.
    outcome: Option<String>,
    since: Option<Time>,
    until: Option<Time>,
    id: Option<String>,
    error: Option<String>,
    group: Option<String>,
    after: Option<String>,
    limit: Option<u32>,
}

impl EventsAsked {
    fn split(self) -> Result<(EventFilter, Page), Problem> {
        let mut outcomes = Vec::new();
        for name in self.outcome.iter().flat_map(|names| names.split(',')) {
            outcomes.push(Outcome::from_name(name).ok_or_else(|| {
                let known = Outcome::ALL.map(Outcome::name).join(", ");
                Problem::new(BAD_REQUEST, format!("{name:?} is no outcome; there are {known}"))
            })?);
        }
        let filter = EventFilter {
            endpoint: self.endpoint,
            session: self.session,
            event_type: self.event_type.map(Into::into),
            outcomes,
            since: self.since.map(|at| at.0),
            until: self.until.map(|at| at.0),
            id_prefix: self.id,
            error_text: self.error,
            group: self.group,
        };
        Ok((filter, page(self.after, self.limit)?))
    }
}

async fn events(State(shared): Ops, Asked(asked): Asked<EventsAsked>) -> Result<impl IntoResponse, Problem> {
    let (filter, page) = asked.split()?;
    Ok(Json(shared.operations.events(filter, page).await?))
}

async fn groups(State(shared): Ops, Asked(asked): Asked<EventsAsked>) -> Result<impl IntoResponse, Problem> {
    let (filter, _) = asked.split()?;
    Ok(Json(shared.operations.groups(filter).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    endpoint: Option<EndpointName>,
}

async fn event(
    State(shared): Ops,
    Path(id): Path<String>,
    Asked(which): Asked<Which>,
) -> Result<impl IntoResponse, Problem> {
    Ok(Json(shared.operations.event(&id, which.endpoint.as_ref()).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlacesAsked {
    endpoint: Option<EndpointName>,
    entity: Option<EntityName>,
    session: Option<SessionId>,
    #[serde(default)]
    blocked: bool,
    after: Option<String>,
    limit: Option<u32>,
}

impl PlacesAsked {
    fn split(self) -> Result<(PlaceFilter, Page), Problem> {
        let filter =
            PlaceFilter { endpoint: self.endpoint, entity: self.entity, session: self.session, blocked: self.blocked };
        Ok((filter, page(self.after, self.limit)?))
    }
}

async fn sessions(State(shared): Ops, Asked(asked): Asked<PlacesAsked>) -> Result<impl IntoResponse, Problem> {
    let (filter, page) = asked.split()?;
    Ok(Json(shared.operations.sessions(filter, page).await?))
}

async fn parked(State(shared): Ops, Asked(asked): Asked<PlacesAsked>) -> Result<impl IntoResponse, Problem> {
    let (filter, page) = asked.split()?;
    Ok(Json(shared.operations.parked(filter, page).await?))
}

async fn scheduled(State(shared): Ops, Asked(asked): Asked<PlacesAsked>) -> Result<impl IntoResponse, Problem> {
    let (filter, page) = asked.split()?;
    Ok(Json(shared.operations.scheduled(filter, page).await?))
}

async fn dead_letters(State(shared): Ops, Asked(asked): Asked<PlacesAsked>) -> Result<impl IntoResponse, Problem> {
    let (filter, page) = asked.split()?;
    Ok(Json(shared.operations.dead_letters(filter, page).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InboxAsked {
    endpoint: Option<EndpointName>,
    message_id: Option<String>,
    after: Option<String>,
    limit: Option<u32>,
}

async fn inbox(State(shared): Ops, Asked(asked): Asked<InboxAsked>) -> Result<impl IntoResponse, Problem> {
    let page = page(asked.after, asked.limit)?;
    let filter = InboxFilter { endpoint: asked.endpoint, message_id: asked.message_id.map(Into::into) };
    Ok(Json(shared.operations.inbox(filter, page).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PageAsked {
    after: Option<String>,
    limit: Option<u32>,
}

async fn audit(State(shared): Ops, Asked(asked): Asked<PageAsked>) -> Result<impl IntoResponse, Problem> {
    Ok(Json(shared.operations.audit(page(asked.after, asked.limit)?).await?))
}

async fn outbox(State(shared): Ops, Asked(asked): Asked<PageAsked>) -> Result<impl IntoResponse, Problem> {
    Ok(Json(shared.operations.outbox(page(asked.after, asked.limit)?).await?))
}

async fn handlers(State(shared): Ops) -> Result<impl IntoResponse, Problem> {
    Ok(Json(shared.operations.handlers().await?))
}

async fn endpoints(State(shared): Ops) -> Result<impl IntoResponse, Problem> {
    Ok(Json(shared.operations.endpoints().await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PeekAsked {
    entity: EntityName,
    #[serde(default)]
    part: Part,
    session: Option<SessionId>,
    after: Option<String>,
    limit: Option<u32>,
}

async fn peek(State(shared): Ops, Asked(asked): Asked<PeekAsked>) -> Result<impl IntoResponse, Problem> {
    let page = page(asked.after, asked.limit)?;
    Ok(Json(shared.operations.peek(&asked.entity, asked.part, asked.session.as_ref(), page).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SendInput {
    entity: EntityName,
    messages: Vec<NewMessage>,
}

async fn send(State(shared): Ops, Input(input): Input<SendInput>) -> Result<impl IntoResponse, Problem> {
    if input.messages.is_empty() || input.messages.len() > MOST_MESSAGES {
        return Err(Problem::new(
            BAD_REQUEST,
            format!("a send has 1 to {MOST_MESSAGES} messages, not {}", input.messages.len()),
        ));
    }
    let mut messages = Vec::with_capacity(input.messages.len());
    for (index, message) in input.messages.into_iter().enumerate() {
        messages.push(
            message
                .into_message()
                .map_err(|error| Problem::new(BAD_REQUEST, format!("message {}: {error}", index + 1)))?,
        );
    }
    Ok(Json(Listing::whole(shared.operations.send(&input.entity, messages).await?)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ActionInput {
    endpoint: Option<EndpointName>,
    reason: Option<String>,
    body: Option<serde_json::Value>,
    body_base64: Option<String>,
    #[serde(default)]
    again: bool,
    /// Another endpoint: it gets a copy.
    to: Option<EndpointName>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wait {
    wait: Option<String>,
}

/// 202 while it is open; 200 when it has ended.
fn accepted(action: Action) -> Response {
    let status = if action.is_open() { StatusCode::ACCEPTED } else { StatusCode::OK };
    (status, [("location", format!("/api/actions/{}", action.id))], Json(action)).into_response()
}

async fn act(
    shared: &Shared,
    headers: &HeaderMap,
    kind: ActionKind,
    event: String,
    input: ActionInput,
    wait: Wait,
) -> Result<Response, Problem> {
    let wait = waiting(wait)?;
    let caller = shared.caller(headers)?;
    if kind != ActionKind::Resubmit
        && (input.body.is_some() || input.body_base64.is_some() || input.again || input.to.is_some())
    {
        return Err(Problem::new(BAD_REQUEST, "`body`, `again` and `to` are for a resubmission"));
    }
    let message = NewMessage { body: input.body, body_base64: input.body_base64, ..NewMessage::default() };
    let edited = message.body.is_some() || message.body_base64.is_some();
    let body = message.into_message().map_err(|error| Problem::new(BAD_REQUEST, error))?.body;
    if let Some(to) = input.to {
        if edited || input.again {
            return Err(Problem::new(BAD_REQUEST, "a copy to another endpoint takes no `body` and no `again`"));
        }
        let sent = shared.operations.copy_to(&event, input.endpoint.as_ref(), &to, &caller).await?;
        return Ok(Json(sent).into_response());
    }
    let action = EventAction {
        kind,
        event,
        endpoint: input.endpoint,
        reason: input.reason,
        body: edited.then_some(body),
        again: input.again,
    };
    let action = shared.operations.act(action, &caller).await?;
    if wait.is_zero() || !action.is_open() {
        Ok(accepted(action))
    } else {
        Ok(accepted(ended(shared, action.id, wait).await?))
    }
}

/// How the action stands when it has ended, `wait` has passed or the host stops.
async fn ended(shared: &Shared, id: ActionId, wait: Duration) -> Result<Action, Problem> {
    let mut stopped = shared.stopped.clone();
    let waited = shared.operations.action(id, wait);
    let stop = async move {
        // A closed channel means that the host has stopped.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    match until(waited, stop).await {
        Some(action) => Ok(action?),
        None => Ok(shared.operations.action(id, Duration::ZERO).await?),
    }
}

async fn until<T>(work: impl Future<Output = T>, stop: impl Future<Output = ()>) -> Option<T> {
    tokio::select! {
        done = work => Some(done),
        () = stop => None,
    }
}

/// `10`, `10s` or `500ms`.
fn waiting(wait: Wait) -> Result<Duration, Problem> {
    let Some(text) = wait.wait else { return Ok(Duration::ZERO) };
    let parsed = match text.strip_suffix("ms") {
        Some(millis) => millis.parse().ok().map(Duration::from_millis),
        None => text.strip_suffix('s').unwrap_or(&text).parse().ok().map(Duration::from_secs),
    };
    match parsed {
        Some(wait) => Ok(wait.min(LONGEST_WAIT)),
        None => Err(Problem::new(BAD_REQUEST, format!("`wait` is a time such as 10s, not {text:?}"))),
    }
}

macro_rules! event_action {
    ($name:ident, $kind:expr) => {
        async fn $name(
            State(shared): Ops,
            Path(id): Path<String>,
            Asked(wait): Asked<Wait>,
            headers: HeaderMap,
            Input(input): Input<ActionInput>,
        ) -> Result<Response, Problem> {
            act(&shared, &headers, $kind, id, input, wait).await
        }
    };
}
event_action!(resubmit, ActionKind::Resubmit);
event_action!(skip, ActionKind::Skip);
event_action!(handoff_complete, ActionKind::HandoffComplete);
event_action!(handoff_fail, ActionKind::HandoffFail);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupInput {
    until: Option<Time>,
    reason: Option<String>,
    #[serde(default)]
    dry_run: bool,
}

async fn act_on_group(
    shared: &Shared,
    headers: &HeaderMap,
    kind: ActionKind,
    group: String,
    input: GroupInput,
) -> Result<Response, Problem> {
    let caller = shared.caller(headers)?;
    let action =
        GroupAction { kind, group, until: input.until.map(|at| at.0), reason: input.reason, dry_run: input.dry_run };
    let result = shared.operations.act_on_group(action, &caller).await?;
    let status = if result.dry_run { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(result)).into_response())
}

async fn group_resubmit(
    State(shared): Ops,
    Path(key): Path<String>,
    headers: HeaderMap,
    Input(input): Input<GroupInput>,
) -> Result<Response, Problem> {
    act_on_group(&shared, &headers, ActionKind::Resubmit, key, input).await
}

async fn group_skip(
    State(shared): Ops,
    Path(key): Path<String>,
    headers: HeaderMap,
    Input(input): Input<GroupInput>,
) -> Result<Response, Problem> {
    act_on_group(&shared, &headers, ActionKind::Skip, key, input).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SkipSessionInput {
    endpoint: Option<EndpointName>,
    reason: String,
    #[serde(default)]
    dry_run: bool,
}

async fn skip_session(
    State(shared): Ops,
    Path(session): Path<String>,
    headers: HeaderMap,
    Input(input): Input<SkipSessionInput>,
) -> Result<Response, Problem> {
    let caller = shared.caller(&headers)?;
    let action =
        SkipSession { session: session.into(), endpoint: input.endpoint, reason: input.reason, dry_run: input.dry_run };
    let result = shared.operations.skip_session(action, &caller).await?;
    let status = if result.dry_run { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(result)).into_response())
}

async fn action(State(shared): Ops, Path(id): Path<i64>, Asked(wait): Asked<Wait>) -> Answer<Action> {
    let wait = waiting(wait)?;
    Ok(Json(ended(&shared, ActionId(id), wait).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelInput {
    entity: EntityName,
    sequence_number: SequenceNumber,
}

/// How many things a mutation touched.
#[derive(Serialize)]
struct Count {
    count: u64,
}

async fn cancel_scheduled(State(shared): Ops, headers: HeaderMap, Input(input): Input<CancelInput>) -> Answer<Count> {
    let caller = shared.caller(&headers)?;
    shared.operations.cancel_scheduled(&input.entity, input.sequence_number, &caller).await?;
    Ok(Json(Count { count: 1 }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplayInput {
    entity: EntityName,
    #[serde(default)]
    sequence_numbers: Vec<SequenceNumber>,
    #[serde(default)]
    all: bool,
}

async fn replay(State(shared): Ops, headers: HeaderMap, Input(input): Input<ReplayInput>) -> Answer<Count> {
    let caller = shared.caller(&headers)?;
    if input.all != input.sequence_numbers.is_empty() {
        return Err(Problem::new(BAD_REQUEST, "give either `sequence_numbers` or `all`"));
    }
    Ok(Json(Count {
        count: shared.operations.replay_dead_letters(&input.entity, &input.sequence_numbers, &caller).await?,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PurgeInput {
    endpoint: EndpointName,
    before: Time,
}

async fn purge_inbox(State(shared): Ops, headers: HeaderMap, Input(input): Input<PurgeInput>) -> Answer<Count> {
    let caller = shared.caller(&headers)?;
    Ok(Json(Count { count: shared.operations.purge_inbox(&input.endpoint, input.before.0, &caller).await? }))
}

async fn resolve_outbox(shared: &Shared, headers: &HeaderMap, id: i64, resolution: OutboxResolution) -> Answer<Count> {
    let caller = shared.caller(headers)?;
    shared.operations.resolve_outbox(id, resolution, &caller).await?;
    Ok(Json(Count { count: 1 }))
}

async fn outbox_retry(State(shared): Ops, Path(id): Path<i64>, headers: HeaderMap) -> Answer<Count> {
    resolve_outbox(&shared, &headers, id, OutboxResolution::Retry).await
}

async fn outbox_drop(State(shared): Ops, Path(id): Path<i64>, headers: HeaderMap) -> Answer<Count> {
    resolve_outbox(&shared, &headers, id, OutboxResolution::Drop).await
}

async fn health(State(shared): Ops) -> Answer<Health> {
    Ok(Json(shared.operations.health().await))
}

async fn alive() -> &'static str {
    "ok\n"
}

/// Names of checks and reasons, so without a token; nothing in them is a message's.
async fn ready(State(shared): Ops) -> Response {
    let health = shared.operations.health().await;
    let status = if health.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(health)).into_response()
}
