//! Operators' actions, each applied by the loop that holds the session (P13 to P15).

use super::{Arrival, Known, Next, Rules, build, event, is_drainable, open_action, stand_in};
use crate::{
    action::Action,
    effect::{Commit, Effect, HistoryKind, HistoryLine, OutcomeGuard, OutcomeWrite, StoreWrite},
    identity,
    message::MessageType,
    outcome::{Failure, Outcome, kind},
    session_state::{BlockKind, SessionState, SkipParked},
};

pub(super) fn decide(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Next {
    let Some(action) = open_action(known).filter(|action| belongs(action, arrival)) else {
        // Carried out before, or nobody's wish: a message alone has no authority.
        return if arrival.kind == MessageType::Resubmission && known.answer.own_recorded {
            Next::Commit(build::duplicate(rules, arrival, known))
        } else {
            Next::Commit(build::complete_only(rules, arrival, known))
        };
    };
    match arrival.kind {
        MessageType::Resubmission => resubmission(rules, arrival, known),
        MessageType::Skip => Next::Commit(skip(rules, arrival, known, action)),
        MessageType::HandoffCompleted => Next::Commit(handoff_completed(rules, arrival, known)),
        MessageType::HandoffFailed => Next::Commit(handoff_failed(rules, arrival, known, action)),
        MessageType::SkipSession => Next::Commit(skip_session(rules, arrival, known, action)),
        MessageType::Event | MessageType::Retry | MessageType::HandoffExpired | MessageType::DrainTrigger => {
            Next::Commit(build::complete_only(rules, arrival, known))
        }
    }
}

fn belongs(action: &Action, arrival: &Arrival) -> bool {
    action.kind.message_type() == arrival.kind
        && match &action.event_id {
            Some(event_id) => *event_id == arrival.event_id,
            None => action.session == arrival.session,
        }
}

fn stored(known: &Known<'_>) -> Option<Outcome> {
    known.answer.outcome.as_ref().map(|stored| stored.outcome)
}

/// The action comes too late or to the wrong event: nothing but its answer is written (P12).
fn refuse(rules: &Rules, arrival: &Arrival, known: &Known<'_>, text: String) -> Commit {
    let write = StoreWrite { action: build::conflict(known, text), ..Default::default() };
    let mut commit = build::complete_only(rules, arrival, known);
    commit.effects.insert(0, Effect::Store(Box::new(write)));
    commit
}

/// The event has its end already. If it blocks its session all the same, the session goes on (P9): its end was written by a holder that had
/// lost the session, and nothing else would unblock it.
fn late(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Commit {
    if stored(known).is_some_and(Outcome::is_final) && known.state.is_blocked_by(&arrival.event_id) {
        return build::duplicate(rules, arrival, known);
    }
    refuse(rules, arrival, known, now_is(known))
}

fn now_is(known: &Known<'_>) -> String {
    stored(known)
        .map_or_else(|| "the event is not known".to_owned(), |outcome| format!("the event is {} now", outcome.name()))
}

/// Runs the event again, under its session's order: it waits behind another event's block like a message (P13).
fn resubmission(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Next {
    if known.answer.own_recorded {
        return Next::Commit(build::duplicate(rules, arrival, known));
    }
    // Without a source id it was asked for as a new event (`--again`).
    let again = arrival.stands_for.is_none();
    let resolved = matches!(stored(known), Some(Outcome::Completed | Outcome::Skipped | Outcome::Handoff));
    if resolved && !again {
        return Next::Commit(late(rules, arrival, known));
    }
    match &known.state.block {
        Some(block) if !block.is_of(&arrival.event_id) => return stand_in::wait_behind(rules, arrival, known),
        Some(block) if block.kind == BlockKind::Handoff => {
            return Next::Commit(refuse(rules, arrival, known, "the event waits for its handoff".into()));
        }
        Some(_) => {}
        None if arrival.origin == crate::message::Origin::Main && is_drainable(known.state) => return Next::Drain,
        None => {}
    }
    let attempt = stand_in::next_attempt(arrival, known);
    event::run_or(rules, arrival, known, attempt, |rules, arrival, known| {
        if known.state.is_blocked_by(&arrival.event_id) {
            return stand_in::no_handler_for_stand_in(rules, arrival, known);
        }
        let write = StoreWrite {
            outcome: Some(OutcomeWrite {
                reason: Some(event::no_handler(arrival)),
                ..build::outcome(arrival, known, Outcome::Unsupported, attempt)
            }),
            history: Some(build::history(arrival, known, HistoryKind::Decided, Some(Outcome::Unsupported), attempt)),
            action: build::applied(known, event::no_handler(arrival)),
            ..Default::default()
        };
        Next::Commit(build::decided(rules, arrival, known, write, vec![Effect::Complete]))
    })
}

/// Gives up on one event: blocked, handed off, or still parked.
fn skip(rules: &Rules, arrival: &Arrival, known: &Known<'_>, action: &Action) -> Commit {
    if !matches!(stored(known), Some(Outcome::Failed | Outcome::Handoff | Outcome::Deferred)) {
        return late(rules, arrival, known);
    }
    resolve(rules, arrival, known, Outcome::Skipped, action.reason.clone(), action, "skipped")
}

/// A late completion is accepted while the event still blocks (P14).
fn handoff_completed(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Commit {
    let waits = stored(known) == Some(Outcome::Handoff)
        || rules.sessions && stored(known) == Some(Outcome::Failed) && known.state.is_blocked_by(&arrival.event_id);
    let owns = !rules.sessions || known.state.is_blocked_by(&arrival.event_id);
    if !waits || !owns {
        return refuse(rules, arrival, known, now_is(known));
    }
    let action = open_action(known).expect("decide has checked that the action is open");
    resolve(rules, arrival, known, Outcome::Completed, action.reason.clone(), action, "completed")
}

fn resolve(
    rules: &Rules,
    arrival: &Arrival,
    known: &Known<'_>,
    outcome: Outcome,
    reason: Option<String>,
    action: &Action,
    text: &str,
) -> Commit {
    let attempts = known.answer.outcome.as_ref().map_or(0, |stored| stored.attempts);
    let write = StoreWrite {
        finals: build::finals(arrival, known),
        outcome: Some(OutcomeWrite {
            reason: reason.clone(),
            // The control message's ids are not the event's.
            message_id: None,
            source_id: None,
            ..build::outcome(arrival, known, outcome, attempts)
        }),
        history: Some(HistoryLine {
            reason,
            by: Some(action.by.clone()),
            message_id: None,
            ..build::history(arrival, known, HistoryKind::Action, Some(outcome), attempts)
        }),
        action: build::applied(known, text),
        ..Default::default()
    };
    let mut rest: Vec<Effect> = cancel_scheduled(rules, arrival, known).into_iter().collect();
    rest.extend(build::unblock_own(rules, arrival, known));
    rest.push(Effect::Complete);
    build::decided(rules, arrival, known, write, rest)
}

/// Takes back, best effort, the retry or the deadline that the block is waiting for (P11).
fn cancel_scheduled(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Option<Effect> {
    let block = known.state.block.as_ref().filter(|block| block.is_of(&arrival.event_id))?;
    let source = block.source_id.as_ref().or(arrival.stands_for.as_ref())?.as_str();
    Some(Effect::CancelScheduled(match block.kind {
        BlockKind::Failure => identity::retry_id(&rules.endpoint, source, block.attempt),
        BlockKind::Handoff => identity::handoff_expiry_id(&rules.endpoint, source, block.attempt),
    }))
}

fn handoff_failed(rules: &Rules, arrival: &Arrival, known: &Known<'_>, action: &Action) -> Commit {
    let owns = !rules.sessions
        || known
            .state
            .block
            .as_ref()
            .is_some_and(|block| block.is_of(&arrival.event_id) && block.kind == BlockKind::Handoff);
    if stored(known) != Some(Outcome::Handoff) || !owns {
        return refuse(rules, arrival, known, now_is(known));
    }
    let text = action.reason.clone().unwrap_or_else(|| "Handoff failed.".into());
    let cancel = cancel_scheduled(rules, arrival, known);
    let mut commit = stand_in::failed_handoff(rules, arrival, known, Failure::new(kind::HANDOFF_FAILED, text));
    if let Some(Effect::Store(write)) = commit.effects.first_mut() {
        write.action = build::applied(known, "failed");
        if let Some(line) = &mut write.history {
            line.kind = HistoryKind::Action;
            line.by = Some(action.by.clone());
        }
    }
    commit.effects.splice(1..1, cancel);
    commit
}

/// Gives up on the blocker and on all that is parked behind it; what is queued before the action was parked before it came (A43).
fn skip_session(rules: &Rules, arrival: &Arrival, known: &Known<'_>, action: &Action) -> Commit {
    let reason = action.reason.clone().unwrap_or_default();
    if known.state.block.is_none() && known.state.parked == 0 {
        return refuse(rules, arrival, known, "nothing blocks the session and nothing is parked in it".into());
    }
    let mut rest = vec![];
    let mut write = StoreWrite { action: build::applied(known, "skipped"), ..Default::default() };
    if let Some(block) = &known.state.block {
        write.finals.extend(block.source_id.clone());
        let blocker = Arrival { event_id: block.event_id.clone(), ..arrival.clone() };
        write.outcome = Some(OutcomeWrite {
            reason: Some(reason.clone()),
            message_id: None,
            source_id: block.source_id.clone(),
            event_type: "".into(),
            guard: OutcomeGuard::Newer,
            ..build::outcome(&blocker, known, Outcome::Skipped, block.attempt)
        });
        write.history = Some(HistoryLine {
            reason: Some(reason.clone()),
            by: Some(action.by.clone()),
            message_id: None,
            ..build::history(&blocker, known, HistoryKind::Action, Some(Outcome::Skipped), block.attempt)
        });
        rest.extend(cancel_scheduled(rules, &blocker, known));
    }
    let mut state = SessionState { block: None, ..known.state.clone() };
    if state.parked > 0 {
        state.skip_parked = Some(SkipParked { below: state.next_sequence, reason, by: action.by.clone() });
        rest.push(build::trigger(rules, arrival, known));
    }
    rest.push(Effect::SetState(state));
    rest.push(Effect::Complete);
    build::decided(rules, arrival, known, write, rest)
}
