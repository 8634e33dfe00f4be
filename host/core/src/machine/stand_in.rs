//! Messages that the host sends to itself: a retry, a handoff's deadline, a drain trigger.

use super::{Arrival, Known, Next, Rules, build, event, is_drainable};
use crate::{
    effect::{Effect, HistoryKind},
    outcome::{Failure, Outcome, kind},
    retry::Failed,
    session_state::BlockKind,
};

/// A retry runs only if event and attempt are those of the block, and the block is a failure's (P11). A block that was lost does not lose the
/// retry (P12).
pub(super) fn retry(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Next {
    // The source too: a holder that had lost its session may have recorded the event after a later one saw it fail.
    if known.answer.own_recorded || known.answer.source_recorded || known.answer.is_final {
        return Next::Commit(build::duplicate(rules, arrival, known));
    }
    let failed_then = known
        .answer
        .outcome
        .as_ref()
        .is_some_and(|stored| stored.outcome == Outcome::Failed && stored.attempts == arrival.follows);
    // A retry that waited behind another event's block was shown as deferred meanwhile; its attempt has not moved.
    let waited = known
        .answer
        .outcome
        .as_ref()
        .is_some_and(|stored| stored.outcome == Outcome::Deferred && stored.attempts == arrival.follows);
    let due = match &known.state.block {
        Some(block) if block.is_of(&arrival.event_id) => {
            block.kind == BlockKind::Failure && block.attempt == arrival.follows
        }
        Some(_) if failed_then || waited => return wait_behind(rules, arrival, known),
        Some(_) => false,
        None => failed_then || waited,
    };
    if !due {
        return Next::Commit(build::complete_only(rules, arrival, known));
    }
    event::run_or(rules, arrival, known, arrival.follows.saturating_add(1), no_handler_for_stand_in)
}

/// Another event blocks: wait like a message. A copy that comes out of a drain stays where it is.
pub(super) fn wait_behind(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Next {
    match arrival.origin {
        crate::message::Origin::Main => Next::Commit(build::park(rules, arrival, known)),
        crate::message::Origin::Parked => Next::PutBack,
    }
}

/// If no handler takes the blocker's type any more, it stays failed and keeps blocking (P10).
pub(super) fn no_handler_for_stand_in(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Next {
    let attempt = next_attempt(arrival, known);
    Next::Commit(build::fail(
        rules,
        arrival,
        known,
        build::Fail {
            failure: Failure::new(kind::NO_HANDLER, event::no_handler(arrival)),
            attempt,
            delay: None,
            line: build::history(arrival, known, HistoryKind::Decided, None, attempt),
            run: None,
        },
    ))
}

/// Attempts only rise (P11).
pub(super) fn next_attempt(arrival: &Arrival, known: &Known<'_>) -> u32 {
    let block =
        known.state.block.as_ref().filter(|block| block.is_of(&arrival.event_id)).map_or(0, |block| block.attempt);
    let stored = known.answer.outcome.as_ref().map_or(0, |stored| stored.attempts);
    block.max(stored).max(arrival.follows).saturating_add(1)
}

/// A handoff's deadline acts on that same handoff only (P14).
pub(super) fn handoff_expired(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Next {
    let waits = if rules.sessions {
        known.state.block.as_ref().is_some_and(|block| {
            block.is_of(&arrival.event_id) && block.kind == BlockKind::Handoff && block.attempt == arrival.follows
        })
    } else {
        known
            .answer
            .outcome
            .as_ref()
            .is_some_and(|stored| stored.outcome == Outcome::Handoff && stored.attempts == arrival.follows)
    };
    if !waits || known.answer.is_final {
        return Next::Commit(build::complete_only(rules, arrival, known));
    }
    let failure = Failure::new(kind::HANDOFF_EXPIRED, "the job that was handed off was not settled in time");
    Next::Commit(failed_handoff(rules, arrival, known, failure))
}

/// A handed-off event failed without a run of ours.
pub(super) fn failed_handoff(
    rules: &Rules,
    arrival: &Arrival,
    known: &Known<'_>,
    failure: Failure,
) -> crate::effect::Commit {
    let attempt = next_attempt(arrival, known);
    let since = known.state.block.as_ref().map_or(0, |block| block.since_attempt);
    let delay = rules.retry.as_ref().and_then(|policy| {
        policy.delay(Failed {
            failure: &failure,
            event_type: arrival.event_type.as_str(),
            runs: attempt.saturating_sub(since).max(1),
            retry_after: None,
            random: 0.5,
        })
    });
    let line = build::history(arrival, known, HistoryKind::Decided, None, attempt);
    build::fail(rules, arrival, known, build::Fail { failure, attempt, delay, line, run: None })
}

/// Drain, unless something blocks again. The trigger is completed only when the drain has ended; before its last delivery a new one takes
/// its place (P20).
pub(super) fn trigger(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Next {
    if !is_drainable(known.state) {
        return Next::Commit(build::complete_only(rules, arrival, known));
    }
    if arrival.last_delivery {
        let fresh = build::trigger(rules, arrival, known);
        return Next::Commit(build::commit(rules, vec![fresh, Effect::Complete]));
    }
    Next::Drain
}
