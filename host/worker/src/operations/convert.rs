//! Rows and failures of stores and transports as what operators see.

use sprag_core::{
    action::{Action, ActionState},
    effect::OutcomeWrite,
    ids::{EntityName, EventId},
    message::{Message, MessageType, property},
    operations::{self, Error, Part, view},
    outcome::Outcome,
};
use sprag_store::query;
use sprag_transport::{self as transport, Peeked};

pub(super) fn store_error(error: sprag_store::Error) -> Error {
    match error {
        sprag_store::Error::Invalid(text) | sprag_store::Error::Refused(text) => Error::Invalid(text),
        error @ sprag_store::Error::Closed(_) => Error::Full(error.to_string()),
        error @ (sprag_store::Error::Unavailable(_)
        | sprag_store::Error::StateConflict
        | sprag_store::Error::LeaseLost) => Error::Unavailable(error.to_string()),
    }
}

pub(super) fn transport_error(error: transport::Error) -> Error {
    match error {
        error @ (transport::Error::NoSuchEntity(_) | transport::Error::NoSuchScheduled(..)) => {
            Error::NotFound(error.to_string())
        }
        transport::Error::Refused(text) => Error::Invalid(text),
        transport::Error::Full(text) => Error::Full(text),
        error @ (transport::Error::LockLost | transport::Error::SessionHeld(_) | transport::Error::Unavailable(_)) => {
            Error::Unavailable(error.to_string())
        }
    }
}

pub(super) fn store_page(page: &operations::Page) -> query::Page {
    query::Page { after: page.after.clone(), limit: page.limit.clamp(1, operations::Page::MAX) }
}

pub(super) fn store_filter(filter: operations::EventFilter) -> query::EventFilter {
    query::EventFilter {
        endpoint: filter.endpoint,
        session: filter.session,
        event_type: filter.event_type,
        outcomes: filter.outcomes,
        since: filter.since,
        until: filter.until,
        id_prefix: filter.id_prefix,
        error_text: filter.error_text,
        group: filter.group,
    }
}

pub(super) fn event(row: query::EventRow) -> view::Event {
    let query::EventRow { endpoint, outcome, .. } = row;
    view::Event {
        event_id: outcome.event_id,
        message_id: outcome.message_id,
        endpoint,
        session: outcome.session,
        event_type: outcome.event_type,
        outcome: outcome.outcome,
        reason: outcome.reason,
        error: outcome.error,
        attempts: outcome.attempts,
        handler: outcome.handler,
        digest: outcome.digest.map(|digest| digest.to_string()),
        enqueued_at: outcome.enqueued_at.into(),
        updated_at: outcome.at.into(),
    }
}

/// The key of the group of failures that an event belongs to.
pub(super) fn group_of(row: &query::EventRow) -> Option<String> {
    let OutcomeWrite { outcome, event_type, error, .. } = &row.outcome;
    let error = error.as_ref().filter(|_| *outcome == Outcome::Failed)?;
    Some(query::FailureGroup::key_of(row.endpoint.as_str(), event_type.as_str(), &error.kind, &error.text))
}

pub(super) fn group(group: query::FailureGroup) -> view::Group {
    view::Group {
        key: group.key,
        endpoint: group.endpoint,
        event_type: group.event_type,
        kind: group.kind,
        first_line: group.first_line,
        count: group.count,
        oldest_at: group.oldest.into(),
        newest_at: group.newest.into(),
    }
}

pub(super) fn inbox(row: query::InboxRow) -> view::InboxLine {
    view::InboxLine {
        endpoint: row.endpoint,
        message_id: row.message_id,
        recorded_at: row.recorded_at.into(),
        state: if row.lease.is_some() { "in-progress" } else { "processed" }.to_owned(),
        expires_at: row.lease.as_ref().and_then(|lease| lease.expires_at).map(Into::into),
        owner: row.lease.map(|lease| lease.owner.to_string()),
    }
}

pub(super) fn audit(row: query::AuditRow, id: i64) -> view::AuditLine {
    let mut actions = view::ActionCounts::default();
    for action in &row.actions {
        match action.state {
            ActionState::Open => actions.open += 1,
            ActionState::Applied { .. } => actions.applied += 1,
            ActionState::Conflict { .. } => actions.conflict += 1,
        }
    }
    let entry = row.entry;
    view::AuditLine {
        id,
        at: entry.at.into(),
        by: entry.by,
        verb: entry.verb,
        endpoint: entry.endpoint,
        target: entry.target,
        reason: entry.reason,
        count: entry.count,
        actions,
    }
}

pub(super) fn outbox(row: query::OutboxListRow, id: i64) -> view::OutboxLine {
    view::OutboxLine {
        id,
        endpoint: row.endpoint,
        entity: row.entity,
        message_id: row.message_id,
        event_id: row.event_id,
        session: row.session,
        created_at: row.created_at.into(),
        tries: row.tries,
        error: row.error,
        poison: row.poison,
    }
}

pub(super) fn action(action: Action, id: i64) -> view::Action {
    view::Action { id: sprag_core::ids::ActionId(id), ..action.into() }
}

pub(super) fn part(part: Part) -> transport::Part {
    match part {
        Part::Active => transport::Part::Active,
        Part::Scheduled => transport::Part::Scheduled,
        Part::Parked => transport::Part::Parked,
        Part::DeadLetters => transport::Part::DeadLetters,
    }
}

/// The event that a message in an entity is about.
pub(super) fn event_id(entity: &EntityName, peeked: &Peeked) -> EventId {
    peeked.message.event_id(|| EventId::from(format!("{entity}#{}", peeked.sequence)))
}

/// What a scheduled message is for.
pub(super) fn scheduled_kind(message: &Message) -> &'static str {
    match message.message_type() {
        MessageType::Event => "event",
        MessageType::Retry => "retry",
        MessageType::HandoffExpired => "handoff-deadline",
        MessageType::DrainTrigger => "drain",
        MessageType::Resubmission
        | MessageType::Skip
        | MessageType::HandoffCompleted
        | MessageType::HandoffFailed
        | MessageType::SkipSession => "action",
    }
}

pub(super) fn attempt(message: &Message) -> Option<u32> {
    message.property(property::RETRY_COUNT).and_then(|value| value.as_i64()).and_then(|n| u32::try_from(n).ok())
}
