//! Effects in their order. Each function says which order it keeps and why.

use std::time::Duration;

use super::{Arrival, Ended, Known, Rules, open_action};
use crate::{
    effect::{
        ActionResult, ActionWrite, Commit, Decision, Effect, HistoryKind, HistoryLine, OutcomeGuard, OutcomeWrite,
        StoreWrite,
    },
    identity,
    ids::MessageId,
    message::{Message, MessageType, Origin, Value, property},
    outcome::{Failure, Outcome, clip},
    session_state::{Block, BlockKind, SessionState},
    time::Timestamp,
};

pub(super) fn commit(rules: &Rules, effects: Vec<Effect>) -> Commit {
    Commit { endpoint: rules.endpoint.clone(), effects }
}

/// A decided commit: the store's transaction with the decision in it, then the rest, which the decision carries (P1). A state that
/// differs from the transport's is written with it.
pub(super) fn decided(
    rules: &Rules,
    arrival: &Arrival,
    known: &Known<'_>,
    mut write: StoreWrite,
    rest: Vec<Effect>,
) -> Commit {
    let rest = with_state(arrival, known, rest);
    if let Some(message_id) = &arrival.message_id {
        write.decision = Some(Decision {
            message_id: message_id.clone(),
            outcome: write.outcome.as_ref().map_or(Outcome::Skipped, |outcome| outcome.outcome),
            attempt: write.outcome.as_ref().map_or(0, |outcome| outcome.attempts),
            rest: rest.clone(),
        });
    }
    let mut effects = Vec::with_capacity(rest.len() + 1);
    effects.push(Effect::Store(Box::new(write)));
    effects.extend(rest);
    commit(rules, effects)
}

/// Completes without writing anything but a state that is due.
pub(super) fn complete_only(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Commit {
    commit(rules, with_state(arrival, known, vec![Effect::Complete]))
}

/// A state changed by a drain is written before the next settlement of a main delivery, unless the commit writes one of its own.
fn with_state(arrival: &Arrival, known: &Known<'_>, mut effects: Vec<Effect>) -> Vec<Effect> {
    if known.state_changed
        && arrival.origin == Origin::Main
        && !effects.iter().any(|effect| matches!(effect, Effect::SetState(_)))
    {
        let settle = effects.iter().position(|effect| matches!(effect, Effect::Complete | Effect::DeadLetter { .. }));
        effects.insert(settle.unwrap_or(effects.len()), Effect::SetState(known.state.clone()));
    }
    effects
}

/// The ids to record for an event that is done: source first, so that a crash between the two leaves the stand-in able to run again.
pub(super) fn records(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Vec<MessageId> {
    if !rules.inbox {
        return vec![];
    }
    let blocked_source = known
        .state
        .block
        .as_ref()
        .filter(|block| arrival.kind == MessageType::Resubmission && block.is_of(&arrival.event_id))
        .and_then(|block| block.source_id.clone());
    let mut ids: Vec<MessageId> = vec![];
    for id in [blocked_source, arrival.stands_for.clone(), arrival.message_id.clone()].into_iter().flatten() {
        if identity::usable(Some(&id)).is_ok() && !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

/// The ids that are final from now on (P2).
pub(super) fn finals(arrival: &Arrival, known: &Known<'_>) -> Vec<MessageId> {
    let blocked_source = known
        .state
        .block
        .as_ref()
        .filter(|block| block.is_of(&arrival.event_id))
        .and_then(|block| block.source_id.clone());
    let own = (arrival.kind == MessageType::Event).then(|| arrival.message_id.clone()).flatten();
    let mut ids: Vec<MessageId> = vec![];
    for id in [blocked_source, arrival.stands_for.clone(), own].into_iter().flatten() {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

pub(super) fn outcome(arrival: &Arrival, known: &Known<'_>, outcome: Outcome, attempts: u32) -> OutcomeWrite {
    OutcomeWrite {
        event_id: arrival.event_id.clone(),
        message_id: arrival.message_id.clone(),
        source_id: arrival.source_id().cloned(),
        session: arrival.session.clone(),
        event_type: arrival.event_type.clone(),
        outcome,
        guard: match arrival.kind {
            MessageType::Resubmission => OutcomeGuard::Resubmitted,
            _ => OutcomeGuard::Newer,
        },
        reason: None,
        error: None,
        attempts,
        handler: None,
        digest: None,
        // A stand-in does not change when the event first came.
        enqueued_at: if arrival.kind == MessageType::Event { arrival.enqueued_at } else { Timestamp(0) },
        at: known.now,
        keep: None,
    }
}

pub(super) fn history(
    arrival: &Arrival,
    known: &Known<'_>,
    kind: HistoryKind,
    outcome: Option<Outcome>,
    attempt: u32,
) -> HistoryLine {
    HistoryLine {
        event_id: arrival.event_id.clone(),
        kind,
        at: known.now,
        message_id: arrival.message_id.clone(),
        outcome,
        attempt,
        started_at: None,
        took: None,
        handler: None,
        digest: None,
        reason: None,
        error: None,
        by: open_action(known).map(|action| action.by.clone()),
    }
}

pub(super) fn run_line(
    arrival: &Arrival,
    known: &Known<'_>,
    ended: &Ended<'_>,
    outcome: Option<Outcome>,
) -> HistoryLine {
    HistoryLine {
        started_at: Some(ended.started_at),
        took: Some(ended.took),
        handler: Some(ended.handler.clone()),
        digest: Some(ended.digest),
        ..history(
            arrival,
            known,
            if outcome.is_some() { HistoryKind::Run } else { HistoryKind::Transient },
            outcome,
            ended.attempt,
        )
    }
}

/// Answers the operator's action that this delivery carries.
pub(super) fn applied(known: &Known<'_>, text: impl Into<String>) -> Option<ActionWrite> {
    open_action(known).map(|action| ActionWrite {
        id: action.id,
        result: ActionResult::Applied { text: text.into() },
        at: known.now,
    })
}

pub(super) fn conflict(known: &Known<'_>, text: impl Into<String>) -> Option<ActionWrite> {
    open_action(known).map(|action| ActionWrite {
        id: action.id,
        result: ActionResult::Conflict { text: text.into() },
        at: known.now,
    })
}

/// The session goes on: trigger first, then the state, so that no crash leaves parked messages that nobody will look for (P20).
pub(super) fn unblock(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Vec<Effect> {
    let state = SessionState { block: None, ..known.state.clone() };
    let mut effects = vec![];
    if state.parked > 0 {
        effects.push(trigger(rules, arrival, known));
    }
    effects.push(Effect::SetState(state));
    effects
}

/// The same where the event blocks its session, nothing where it does not (P10).
pub(super) fn unblock_own(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Vec<Effect> {
    if known.state.is_blocked_by(&arrival.event_id) { unblock(rules, arrival, known) } else { vec![] }
}

/// A drain trigger on the session's own queue. Its id is fresh: it is outside the inbox, and one too many is harmless.
pub(super) fn trigger(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Effect {
    let mut message = Message {
        message_id: Some(MessageId::from(format!(
            "drain-{}-{}-{}",
            arrival.place, known.now.0, known.state.next_sequence
        ))),
        session_id: arrival.session.clone(),
        ..Default::default()
    };
    message.set_property(property::MESSAGE_TYPE, Value::string(MessageType::DrainTrigger.name()));
    rules.seal.sign(&mut message);
    Effect::Enqueue(Box::new(message))
}

/// The event under a new id, asking for something else than a first run: a retry or a deadline.
pub(super) fn stand_in(
    rules: &Rules,
    arrival: &Arrival,
    kind: MessageType,
    id: MessageId,
    attempt: u32,
    at: Timestamp,
) -> Effect {
    let mut message = plain(arrival);
    message.message_id = Some(id);
    message.scheduled_for = Some(at);
    message.set_property(property::MESSAGE_TYPE, Value::string(kind.name()));
    message.set_property(property::EVENT_ID, Value::string(arrival.event_id.as_str()));
    message.set_property(property::RETRY_COUNT, Value::Int(i32::try_from(attempt).unwrap_or(i32::MAX)));
    if let Some(source) = arrival.source_id() {
        message.set_property(property::INBOX_MESSAGE_ID, Value::string(source.as_str()));
    }
    rules.seal.sign(&mut message);
    Effect::Enqueue(Box::new(message))
}

/// The event's message without what made an earlier copy a stand-in; what is kept for an operator and what the next stand-in is made from.
pub(super) fn plain(arrival: &Arrival) -> Message {
    let mut message = (*arrival.message).clone();
    for name in property::RESERVED {
        // The hop count belongs to the event, not to the copy.
        if name != property::HOP_COUNT {
            message.properties.remove(name);
        }
    }
    message.properties.remove(property::MESSAGE_TYPE);
    message.message_id = arrival.source_id().cloned();
    message.time_to_live = None;
    message.scheduled_for = None;
    message
}

/// The same, for an operator to resubmit.
pub(super) fn kept(arrival: &Arrival) -> Option<Box<Message>> {
    Some(Box::new(plain(arrival)))
}

/// Puts the delivery aside behind the session's block: outcome, state, copy, complete (P16).
pub(super) fn park(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Commit {
    let sequence = known.state.next_sequence;
    let state = SessionState {
        parked: known.state.parked.saturating_add(1),
        next_sequence: sequence.saturating_add(1),
        ..known.state.clone()
    };
    let blocker = known.state.block.as_ref().map(|block| block.event_id.as_str()).unwrap_or_default();
    let attempts = known.answer.outcome.as_ref().map_or(0, |stored| stored.attempts);
    let write = StoreWrite {
        outcome: Some(OutcomeWrite {
            reason: Some(format!("waits for {blocker}")),
            ..outcome(arrival, known, Outcome::Deferred, attempts)
        }),
        history: Some(HistoryLine {
            reason: Some(format!("parked as {sequence} behind {blocker}")),
            ..history(arrival, known, HistoryKind::Parked, Some(Outcome::Deferred), attempts)
        }),
        ..Default::default()
    };
    // Parking decides nothing about the event: there is no decision to find on a redelivery, which parks it once more.
    let copy = Box::new(parked_copy(rules, arrival, sequence));
    commit(
        rules,
        vec![
            Effect::Store(Box::new(write)),
            Effect::SetState(state),
            Effect::Park { sequence, copy },
            Effect::Complete,
        ],
    )
}

/// The message as it waits on a transport that parks by copying. The seal makes its words count, so they are written from what was believed of the
/// arrival, and nothing that came with it is taken along (P31). It keeps the message's own id, unless the broker had given it.
fn parked_copy(rules: &Rules, arrival: &Arrival, sequence: u32) -> Message {
    let mut copy = plain(arrival);
    copy.message_id = match arrival.unusable {
        Some(identity::Unusable::Missing) => None,
        _ => arrival.message.message_id.clone(),
    };
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            copy.set_property(name, value);
        }
    };
    let is_stand_in = arrival.kind != MessageType::Event;
    put(property::MESSAGE_TYPE, is_stand_in.then(|| Value::string(arrival.kind.name())));
    put(
        property::RETRY_COUNT,
        (arrival.follows > 0).then(|| Value::Int(i32::try_from(arrival.follows).unwrap_or(i32::MAX))),
    );
    put(property::ACTION_ID, arrival.action.map(|action| Value::Long(action.0)));
    put(property::INBOX_MESSAGE_ID, arrival.source_id().map(|source| Value::string(source.as_str())));
    put(property::EVENT_ID, Some(Value::string(arrival.event_id.as_str())));
    put(property::PLACE, Some(Value::string(arrival.place.as_str())));
    put(property::ORIGINAL_SESSION_ID, arrival.session.as_ref().map(|session| Value::string(session.as_str())));
    put(property::DEFERRAL_SEQUENCE, Some(Value::Uint(sequence)));
    rules.seal.sign(&mut copy);
    copy
}

/// A duplicate: an entry in the history, Skipped only where no outcome exists (P8); unblocks what its own event blocks (P9).
pub(super) fn duplicate(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Commit {
    let attempts = known.answer.outcome.as_ref().map_or(0, |stored| stored.attempts);
    let write = StoreWrite {
        outcome: Some(OutcomeWrite {
            guard: OutcomeGuard::IfAbsent,
            reason: Some(DUPLICATE.into()),
            ..outcome(arrival, known, Outcome::Skipped, attempts)
        }),
        history: Some(HistoryLine {
            reason: Some(DUPLICATE.into()),
            ..history(arrival, known, HistoryKind::Duplicate, None, attempts)
        }),
        action: conflict(known, "the event is done already"),
        ..Default::default()
    };
    let mut rest = unblock_own(rules, arrival, known);
    rest.push(Effect::Complete);
    let mut effects = vec![Effect::Store(Box::new(write))];
    effects.extend(with_state(arrival, known, rest));
    commit(rules, effects)
}

/// The reason given to a delivery whose event is done already.
pub(super) const DUPLICATE: &str = "DuplicateDetected";

/// An event failed: outcome, retry, block, complete. The retry is scheduled before the block, so that no crash between loses it.
pub(super) struct Fail<'a> {
    pub(super) failure: Failure,
    pub(super) attempt: u32,
    /// None: not tried again by itself.
    pub(super) delay: Option<Duration>,
    pub(super) line: HistoryLine,
    pub(super) run: Option<&'a Ended<'a>>,
}

pub(super) fn fail(rules: &Rules, arrival: &Arrival, known: &Known<'_>, fail: Fail<'_>) -> Commit {
    let Fail { failure, attempt, delay, line, run } = fail;
    let failure = Failure { text: clip(&failure.text), ..failure };
    // Without a session nothing waits: what is not tried again has come to its end (P26).
    let dead = !rules.sessions && delay.is_none() && arrival.kind != MessageType::HandoffFailed;
    let end = if dead { Outcome::DeadLettered } else { Outcome::Failed };
    let mut write = StoreWrite {
        outcome: Some(OutcomeWrite {
            error: Some(failure.clone()),
            handler: run.map(|run| run.handler.clone()),
            digest: run.map(|run| run.digest),
            keep: kept(arrival),
            ..outcome(arrival, known, end, attempt)
        }),
        history: Some(HistoryLine { outcome: Some(end), error: Some(failure.clone()), ..line }),
        action: applied(known, format!("ran and failed: {}: {}", failure.kind, failure.text)),
        ..Default::default()
    };
    if dead {
        write.finals = finals(arrival, known);
        let settle = Effect::DeadLetter { reason: failure.kind, description: failure.text };
        return decided(rules, arrival, known, write, vec![settle]);
    }
    let mut rest = vec![];
    if let Some(delay) = delay {
        let id = identity::retry_id(&rules.endpoint, arrival.source_text(), attempt);
        rest.push(stand_in(rules, arrival, MessageType::Retry, id, attempt, known.now.after(delay)));
    }
    if rules.sessions {
        rest.push(Effect::SetState(blocked(arrival, known, BlockKind::Failure, attempt)));
    }
    rest.push(Effect::Complete);
    decided(rules, arrival, known, write, rest)
}

/// The state with this event blocking it. A parked copy that blocks still counts as parked, since it is completed only after this write:
/// a count too high is harmless, one too low is not (P16). The time since when is that of the first block of the same kind.
pub(super) fn blocked(arrival: &Arrival, known: &Known<'_>, kind: BlockKind, attempt: u32) -> SessionState {
    let before = known.state.block.as_ref().filter(|block| block.is_of(&arrival.event_id));
    let since_attempt = match arrival.kind {
        MessageType::Resubmission => attempt.saturating_sub(1),
        _ => before.map_or(0, |block| block.since_attempt),
    };
    SessionState {
        block: Some(Block {
            event_id: arrival.event_id.clone(),
            source_id: before.and_then(|block| block.source_id.clone()).or_else(|| arrival.source_id().cloned()),
            kind,
            attempt,
            since_attempt,
            since: before.filter(|block| block.kind == kind).map_or(known.now, |block| block.since),
        }),
        ..known.state.clone()
    }
}
