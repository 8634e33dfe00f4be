//! Everything that changes something: accepted here, applied by the session's loop (P13, P15).

use std::time::Duration;

use sprag_core::{
    action::ActionKind,
    ids::{ActionId, EndpointName, EntityName, EventId, MessageId, SequenceNumber, SessionId},
    message::{Message, MessageType, Value, property},
    operations::{Caller, Error, EventAction, EventFilter, GroupAction, Result, SkipSession, view},
    outcome::{Outcome, kind},
    session_state::SessionState,
    time::Timestamp,
};
use sprag_store::{ActionRefused, NewAction, query};
use tokio::time::Instant;

use super::{Host, convert, listings};
use crate::config::EndpointConfig;

pub(super) async fn send(host: &Host, entity: &EntityName, messages: Vec<Message>) -> Result<Vec<view::Sent>> {
    for message in &messages {
        refuse_reserved(message)?;
    }
    let ids: Vec<Option<MessageId>> = messages.iter().map(|message| message.message_id.clone()).collect();
    let transport = host.transport_of(entity).await?;
    let sequences = transport.send(entity, messages).await.map_err(convert::transport_error)?;
    // A message that duplicate detection dropped may have no number.
    let mut sequences = sequences.into_iter();
    Ok(ids.into_iter().map(|message_id| view::Sent { message_id, sequence_number: sequences.next() }).collect())
}

/// Only the host may write these (P31).
fn refuse_reserved(message: &Message) -> Result<()> {
    let reserved = property::RESERVED.into_iter().find(|name| message.property(name).is_some());
    let disguised = (message.message_type() != MessageType::Event).then_some(property::MESSAGE_TYPE);
    match reserved.or(disguised) {
        Some(name) => Err(Error::Invalid(format!("property {name:?} is reserved for the host"))),
        None => Ok(()),
    }
}

pub(super) async fn act(host: &Host, wish: EventAction, caller: &Caller) -> Result<view::Action> {
    let (index, row) = listings::find(host, &wish.event, wish.endpoint.as_ref()).await?;
    let endpoint = host.endpoint(&row.endpoint)?;
    // A repeated request is answered like the first, whatever has become of the event since.
    if let Some(key) = idempotency_key(wish.kind, endpoint, &row.outcome.event_id, caller)
        && let Some(first) = endpoint.store.action_of_key(&key).await.map_err(convert::store_error)?
    {
        return action(host, ActionId(host.public_id(index, first.0)), Duration::ZERO).await;
    }
    if let Err(error) = check_state(host, index, wish.kind, &row, wish.again)
        && !ends_a_stuck_block(endpoint, wish.kind, &row).await?
    {
        return Err(error);
    }
    let new = new_action(host, index, endpoint, &row, &wish, caller).await?;
    let entry =
        audit_entry(host, wish.kind.name(), endpoint, row.outcome.event_id.to_string(), wish.reason.clone(), 1, caller);
    let mut answers = create(host, endpoint, vec![new], entry).await?;
    match answers.pop() {
        Some(Ok(id)) => action(host, id, Duration::ZERO).await,
        Some(Err(refused)) => Err(refusal(host, index, refused)),
        None => Err(Error::Unavailable("the store did not answer for the action".to_owned())),
    }
}

/// What P13 allows, said with the state that stands against it (A38).
fn check_state(host: &Host, store: usize, kind: ActionKind, row: &query::EventRow, again: bool) -> Result<()> {
    let event = row.outcome.event_id.as_str();
    let now = row.outcome.outcome;
    if let Some(id) = row.open_action {
        return Err(Error::Conflict(format!(
            "event {event:?} has an open action already: {}",
            host.public_id(store, id.0)
        )));
    }
    let since = format!(
        "event {event:?} is {} since {}{}",
        now.name(),
        row.outcome.at,
        row.outcome.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default()
    );
    let allowed = match kind {
        ActionKind::Resubmit => match now {
            Outcome::Failed | Outcome::DeadLettered | Outcome::Unsupported => true,
            Outcome::Completed | Outcome::Skipped if again => true,
            Outcome::Completed | Outcome::Skipped => {
                return Err(Error::Conflict(format!("{since}; to run it as a new event add --again")));
            }
            Outcome::Pending | Outcome::Deferred | Outcome::Handoff => false,
        },
        ActionKind::Skip => matches!(now, Outcome::Failed | Outcome::Handoff | Outcome::Deferred),
        // A completion may come after the deadline, while the event still blocks (P14); the loop knows whether it does.
        ActionKind::HandoffComplete => {
            now == Outcome::Handoff
                || (now == Outcome::Failed
                    && row.outcome.error.as_ref().is_some_and(|error| error.kind == kind::HANDOFF_EXPIRED))
        }
        ActionKind::HandoffFail => now == Outcome::Handoff,
        ActionKind::SkipSession => {
            return Err(Error::Invalid("skipping a session is not an action on one event".to_owned()));
        }
    };
    if allowed { Ok(()) } else { Err(Error::Conflict(since)) }
}

/// Whether the event has its end and blocks its session all the same (P9): its end was written by a holder that had lost the session, on a
/// transport without one transaction. A skip or a resubmission then unblocks the session and changes nothing else.
async fn ends_a_stuck_block(endpoint: &EndpointConfig, kind: ActionKind, row: &query::EventRow) -> Result<bool> {
    let (true, true, None, Some(id)) = (
        matches!(kind, ActionKind::Skip | ActionKind::Resubmit),
        row.outcome.outcome.is_final(),
        row.open_action,
        &row.outcome.session,
    ) else {
        return Ok(false);
    };
    Ok(session(endpoint, id).await?.is_some_and(|(state, ..)| state.is_blocked_by(&row.outcome.event_id)))
}

/// One key may stand for a whole group, so the event is part of it.
fn idempotency_key(kind: ActionKind, endpoint: &EndpointConfig, event_id: &EventId, caller: &Caller) -> Option<String> {
    caller.idempotency_key.as_ref().map(|key| format!("{key}|{}|{}|{event_id}", kind.name(), endpoint.name))
}

async fn new_action(
    host: &Host,
    store: usize,
    endpoint: &EndpointConfig,
    row: &query::EventRow,
    wish: &EventAction,
    caller: &Caller,
) -> Result<NewAction> {
    let event_id = &row.outcome.event_id;
    let mut control = if wish.kind == ActionKind::Resubmit {
        let kept = host.stores[store].kept_message(&row.endpoint, event_id).await.map_err(convert::store_error)?;
        resubmission(kept, row, wish)?
    } else {
        Message { session_id: row.outcome.session.clone(), ..Message::default() }
    };
    control.message_id = Some(fresh_id()?);
    control.set_property(property::MESSAGE_TYPE, Value::string(wish.kind.message_type().name()));
    control.set_property(property::EVENT_ID, Value::string(event_id.as_str()));
    control.set_property(property::EVENT_TYPE_ID, Value::string(row.outcome.event_type.as_str()));
    let source = row.outcome.source_id.as_ref().or(row.outcome.message_id.as_ref());
    if let Some(source) = source.filter(|_| !wish.again) {
        control.set_property(property::INBOX_MESSAGE_ID, Value::string(source.as_str()));
    }
    host.config.seal.sign(&mut control);
    Ok(NewAction {
        kind: wish.kind,
        endpoint: endpoint.name.clone(),
        event_id: Some(event_id.clone()),
        session: row.outcome.session.clone(),
        reason: wish.reason.clone(),
        by: caller.name.clone(),
        idempotency_key: idempotency_key(wish.kind, endpoint, event_id, caller),
        control,
        source: endpoint.store_enqueues.then(|| endpoint.source.clone()),
    })
}

/// The kept message again: everything survives but what a host or a broker had added to it (A40).
fn resubmission(kept: Option<Message>, row: &query::EventRow, wish: &EventAction) -> Result<Message> {
    let mut message = match (kept, &wish.body) {
        (Some(message), _) => message,
        // With a body of the operator's own the event can be made anew from what is known of it.
        (None, Some(_)) => Message { session_id: row.outcome.session.clone(), ..Message::default() },
        (None, None) => {
            return Err(Error::Conflict(format!(
                "the message of event {:?} is not kept any more; give it a body",
                row.outcome.event_id.as_str()
            )));
        }
    };
    if let Some(body) = &wish.body {
        message.body = body.clone();
    }
    let hops = message.properties.remove(property::HOP_COUNT);
    for name in property::RESERVED.into_iter().chain(["DeadLetterSource"]) {
        message.properties.remove(name);
    }
    if let Some(hops) = hops {
        message.set_property(property::HOP_COUNT, hops);
    }
    if let Some(id) = &row.outcome.message_id {
        message.set_property(property::PARENT_MESSAGE_ID, Value::string(id.as_str()));
    }
    message.session_id = row.outcome.session.clone().or(message.session_id);
    // It is to run now, and to wait as long as it must.
    message.scheduled_for = None;
    message.time_to_live = None;
    Ok(message)
}

fn fresh_id() -> Result<MessageId> {
    use std::fmt::Write as _;
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::Unavailable(format!("the system gives no random numbers: {error}")))?;
    let text = bytes.iter().fold(String::with_capacity(32), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    Ok(text.into())
}

fn audit_entry(
    host: &Host,
    verb: &str,
    endpoint: &EndpointConfig,
    target: String,
    reason: Option<String>,
    count: u64,
    caller: &Caller,
) -> query::AuditEntry {
    query::AuditEntry {
        at: host.now(),
        by: caller.name.clone(),
        verb: verb.to_owned(),
        endpoint: Some(endpoint.name.clone()),
        target,
        reason,
        count,
    }
}

/// Accepts actions at one endpoint. The ids in the answers are public ones.
async fn create(
    host: &Host,
    endpoint: &EndpointConfig,
    actions: Vec<NewAction>,
    entry: query::AuditEntry,
) -> Result<Vec<std::result::Result<ActionId, ActionRefused>>> {
    let controls: Vec<Message> = if endpoint.store_enqueues {
        Vec::new()
    } else {
        actions.iter().map(|action| action.control.clone()).collect()
    };
    let answers = endpoint.store.create_actions(actions, entry).await.map_err(convert::store_error)?;
    for (mut control, answer) in controls.into_iter().zip(&answers) {
        let Ok(id) = answer else { continue };
        control.set_property(property::ACTION_ID, Value::Long(id.0));
        endpoint.transport.enqueue(&endpoint.source, control).await.map_err(convert::transport_error)?;
    }
    let index = host.store_index(&endpoint.store);
    Ok(answers.into_iter().map(|answer| answer.map(|id| ActionId(host.public_id(index, id.0)))).collect())
}

fn refusal(host: &Host, store: usize, refused: ActionRefused) -> Error {
    match refused {
        ActionRefused::Open { id, kind, by } => Error::Conflict(format!(
            "action {} ({}) by {by} is already open for this event",
            host.public_id(store, id.0),
            kind.name()
        )),
        ActionRefused::NoSuchEvent => Error::NotFound("there is no such event any more".to_owned()),
    }
}

/// The events of a group, as they were at the cut-off.
async fn group_events(host: &Host, group: &str, until: Timestamp) -> Result<Vec<(usize, query::EventRow)>> {
    let filter = EventFilter {
        outcomes: vec![Outcome::Failed],
        group: Some(group.to_owned()),
        // The store's bound is exclusive, the operator's is not.
        until: Some(until.after(Duration::from_millis(1))),
        ..EventFilter::default()
    };
    let filter = convert::store_filter(filter);
    let mut found = Vec::new();
    for (index, store) in host.stores.iter().enumerate() {
        let mut page = query::Page { after: None, limit: 1_000 };
        loop {
            let listing = store.events(&filter, &page).await.map_err(convert::store_error)?;
            found.extend(listing.items.into_iter().map(|row| (index, row)));
            page.after = listing.next;
            if page.after.is_none() {
                break;
            }
        }
    }
    // Oldest first, so that they run in the order in which they failed.
    found.sort_by_key(|(_, row)| row.outcome.at);
    Ok(found)
}

pub(super) async fn act_on_group(host: &Host, wish: GroupAction, caller: &Caller) -> Result<view::GroupResult> {
    if !matches!(wish.kind, ActionKind::Resubmit | ActionKind::Skip) {
        return Err(Error::Invalid("a group of failures can be resubmitted or skipped".to_owned()));
    }
    let cut_off = wish.until.unwrap_or_else(|| host.now());
    let found = group_events(host, &wish.group, cut_off).await?;
    let mut result = view::GroupResult {
        group: wish.group.clone(),
        kind: wish.kind,
        dry_run: wish.dry_run,
        cut_off: cut_off.into(),
        count: found.len() as u64,
        accepted: 0,
        refused: Vec::new(),
        events: Vec::new(),
        actions: Vec::new(),
    };
    if wish.dry_run {
        result.events = found.into_iter().map(|(_, row)| row.outcome.event_id).collect();
        return Ok(result);
    }
    let Some((store, first)) = found.first() else {
        return Err(Error::NotFound(format!("no failures are in group {:?} until {cut_off}", wish.group)));
    };
    // A group is of one endpoint: its name is part of the key.
    let (store, endpoint) = (*store, host.endpoint(&first.endpoint)?);
    let mut actions = Vec::new();
    let mut events: Vec<EventId> = Vec::new();
    for (_, row) in &found {
        let event = EventAction {
            kind: wish.kind,
            event: row.outcome.event_id.to_string(),
            endpoint: Some(row.endpoint.clone()),
            reason: wish.reason.clone(),
            body: None,
            again: false,
        };
        let made = match check_state(host, store, wish.kind, row, false) {
            Ok(()) => new_action(host, store, endpoint, row, &event, caller).await,
            Err(error) => Err(error),
        };
        match made {
            Ok(action) => {
                actions.push(action);
                events.push(row.outcome.event_id.clone());
            }
            Err(error @ (Error::Conflict(_) | Error::NotFound(_))) => {
                result.refused.push(view::Refused { event_id: row.outcome.event_id.clone(), text: error.to_string() });
            }
            Err(error) => return Err(error),
        }
    }
    if actions.is_empty() {
        return Ok(result);
    }
    // One transaction: after a crash either all are open or none is (A39).
    let verb = format!("{}-group", wish.kind.name());
    let entry =
        audit_entry(host, &verb, endpoint, wish.group.clone(), wish.reason.clone(), actions.len() as u64, caller);
    for (event_id, answer) in events.into_iter().zip(create(host, endpoint, actions, entry).await?) {
        match answer {
            Ok(id) => result.actions.push(id),
            Err(refused) => {
                result.refused.push(view::Refused { event_id, text: refusal(host, store, refused).to_string() })
            }
        }
    }
    result.accepted = result.actions.len() as u64;
    Ok(result)
}

/// A session of an endpoint, if it has messages, a block or something parked.
async fn session(endpoint: &EndpointConfig, id: &SessionId) -> Result<Option<(SessionState, view::SessionLine, u64)>> {
    // Sessions come in order of their ids: the one before the wanted one is not known, so look until it must have come.
    let mut after = None;
    loop {
        let found = endpoint
            .transport
            .sessions(&endpoint.source, after.as_ref(), 1_000)
            .await
            .map_err(convert::transport_error)?;
        let Some(last) = found.last().map(|info| info.session.clone()) else { return Ok(None) };
        let passed = last >= *id;
        if let Some(info) = found.into_iter().find(|info| info.session == *id) {
            let queued = info.active;
            let state =
                SessionState::from_bytes(info.state.as_deref()).map_err(|error| Error::Conflict(error.to_string()))?;
            return Ok(Some((state, listings::session_line(endpoint.name.clone(), info)?, queued)));
        }
        if passed {
            return Ok(None);
        }
        after = Some(last);
    }
}

pub(super) async fn skip_session(host: &Host, wish: SkipSession, caller: &Caller) -> Result<view::SessionSkip> {
    if wish.reason.trim().is_empty() {
        return Err(Error::Invalid("skipping a session needs a reason".to_owned()));
    }
    let candidates: Vec<&EndpointConfig> = match &wish.endpoint {
        Some(name) => vec![host.endpoint(name)?],
        None => host.config.endpoints.iter().collect(),
    };
    let mut found = Vec::new();
    for endpoint in candidates {
        if !endpoint.transport.settings(&endpoint.source).await.map_err(convert::transport_error)?.requires_session {
            continue;
        }
        if let Some((state, line, queued)) = session(endpoint, &wish.session).await?
            && (state.block.is_some() || line.parked > 0 || wish.endpoint.is_some())
        {
            found.push((endpoint, state, line, queued));
        }
    }
    if found.len() > 1 {
        let choices = found.iter().map(|(endpoint, ..)| endpoint.name.to_string()).collect();
        return Err(Error::Ambiguous { id: wish.session.to_string(), choices });
    }
    let Some((endpoint, state, line, queued)) = found.pop() else {
        return Err(Error::NotFound(format!(
            "no session {:?} is blocked or has parked messages",
            wish.session.as_str()
        )));
    };
    if state.block.is_none() && line.parked == 0 {
        return Err(Error::Conflict(format!(
            "nothing blocks session {:?} of endpoint {:?} and nothing is parked in it",
            wish.session.as_str(),
            endpoint.name.as_str()
        )));
    }
    let mut result = view::SessionSkip {
        endpoint: endpoint.name.clone(),
        session: wish.session.clone(),
        dry_run: wish.dry_run,
        cut_off: host.now().into(),
        blocked_by: state.block.map(|block| block.event_id),
        parked: line.parked,
        queued,
        action: None,
    };
    if wish.dry_run {
        return Ok(result);
    }
    // What is queued before this message is parked before the loop comes to it: the message is the cut-off.
    let mut control =
        Message { message_id: Some(fresh_id()?), session_id: Some(wish.session.clone()), ..Message::default() };
    control.set_property(property::MESSAGE_TYPE, Value::string(MessageType::SkipSession.name()));
    host.config.seal.sign(&mut control);
    let new = NewAction {
        kind: ActionKind::SkipSession,
        endpoint: endpoint.name.clone(),
        event_id: None,
        session: Some(wish.session.clone()),
        reason: Some(wish.reason.clone()),
        by: caller.name.clone(),
        idempotency_key: caller
            .idempotency_key
            .as_ref()
            .map(|key| format!("{key}|skip-session|{}|{}", endpoint.name, wish.session)),
        control,
        source: endpoint.store_enqueues.then(|| endpoint.source.clone()),
    };
    let count = u64::from(result.blocked_by.is_some()) + result.parked + result.queued;
    let entry = audit_entry(host, "skip-session", endpoint, wish.session.to_string(), Some(wish.reason), count, caller);
    match create(host, endpoint, vec![new], entry).await?.pop() {
        Some(Ok(id)) => result.action = Some(id),
        Some(Err(refused)) => return Err(refusal(host, host.store_index(&endpoint.store), refused)),
        None => return Err(Error::Unavailable("the store did not answer for the action".to_owned())),
    }
    Ok(result)
}

pub(super) async fn copy_to(
    host: &Host,
    event: &str,
    endpoint: Option<&EndpointName>,
    to: &EndpointName,
    caller: &Caller,
) -> Result<view::Sent> {
    let (index, row) = listings::find(host, event, endpoint).await?;
    let target = host.endpoint(to)?;
    if row.endpoint == *to {
        return Err(Error::Invalid(format!(
            "event {event:?} is of endpoint {:?} itself; resubmit it without another endpoint",
            to.as_str()
        )));
    }
    let kept =
        host.stores[index].kept_message(&row.endpoint, &row.outcome.event_id).await.map_err(convert::store_error)?;
    let wish = EventAction {
        kind: ActionKind::Resubmit,
        event: event.to_owned(),
        endpoint: None,
        reason: None,
        body: None,
        again: true,
    };
    let mut message = resubmission(kept, &row, &wish)?;
    let id = fresh_id()?;
    message.message_id = Some(id.clone());
    message.set_property(property::EVENT_ID, Value::string(row.outcome.event_id.as_str()));
    target.transport.enqueue(&target.source, message).await.map_err(convert::transport_error)?;
    host.audit(Some(&row.endpoint), caller, "resubmit-to", format!("{} to {to}", row.outcome.event_id), 1).await?;
    Ok(view::Sent { message_id: Some(id), sequence_number: None })
}

/// How often an action that is waited for is looked at.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_AT_MOST: Duration = Duration::from_millis(500);

pub(super) async fn action(host: &Host, id: ActionId, wait: Duration) -> Result<view::Action> {
    let missing = || Error::NotFound(format!("there is no action {id}"));
    let (store, inner) = host.private_id(id.0).ok_or_else(missing)?;
    let until = Instant::now() + wait;
    let mut pause = LOOK;
    loop {
        let action = store.action(ActionId(inner)).await.map_err(convert::store_error)?.ok_or_else(missing)?;
        let action = convert::action(action, id.0);
        let left = until.saturating_duration_since(Instant::now());
        if !action.is_open() || left.is_zero() {
            return Ok(action);
        }
        tokio::time::sleep(pause.min(left)).await;
        pause = (pause * 2).min(LOOK_AT_MOST);
    }
}

pub(super) async fn replay_dead_letters(
    host: &Host,
    entity: &EntityName,
    sequences: &[SequenceNumber],
    caller: &Caller,
) -> Result<u64> {
    let transport = host.transport_of(entity).await?;
    let mut count = 0;
    if sequences.is_empty() {
        // Those that are there now: what is dead-lettered again meanwhile has a higher number or is not looked at twice.
        let mut from = SequenceNumber(0);
        loop {
            let peeked = transport
                .peek(entity, sprag_transport::Part::DeadLetters, None, from, 1_000)
                .await
                .map_err(convert::transport_error)?;
            let Some(last) = peeked.iter().map(|message| message.sequence).max() else { break };
            let numbers: Vec<SequenceNumber> = peeked.into_iter().map(|message| message.sequence).collect();
            count += transport.replay_dead_letters(entity, &numbers).await.map_err(convert::transport_error)?;
            from = SequenceNumber(last.0.saturating_add(1));
        }
    } else {
        count = transport.replay_dead_letters(entity, sequences).await.map_err(convert::transport_error)?;
        if count == 0 {
            return Err(Error::NotFound(format!("none of these is a dead letter of {:?}", entity.as_str())));
        }
    }
    let endpoint = host.reader_of(entity).map(|endpoint| endpoint.name.clone());
    host.audit(endpoint.as_ref(), caller, "dead-letters-replay", entity.to_string(), count).await?;
    Ok(count)
}

/// Rows deleted at once.
const PURGE: u32 = 1_000;

pub(super) async fn purge_inbox(
    host: &Host,
    endpoint: &EndpointName,
    before: Timestamp,
    caller: &Caller,
) -> Result<u64> {
    let store = &host.endpoint(endpoint)?.store;
    let mut count = 0;
    loop {
        let deleted = store.purge_inbox(endpoint, before, PURGE).await.map_err(convert::store_error)?;
        count += u64::from(deleted);
        if deleted < PURGE {
            break;
        }
    }
    host.audit(Some(endpoint), caller, "purge-inbox", format!("before {before}"), count).await?;
    Ok(count)
}
