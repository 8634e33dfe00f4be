//! What a run's end means.

use super::{Arrival, Concluded, Ended, Known, Rules, build};
use crate::{
    effect::{Effect, HistoryLine, OutcomeWrite, StoreWrite},
    identity,
    message::MessageType,
    outcome::{Failure, Outcome, clip, kind},
    retry::Failed,
    run::End,
    session_state::{BlockKind, SessionState},
};

pub(super) fn conclude(rules: &Rules, arrival: &Arrival, known: &Known<'_>, ended: Ended<'_>) -> Concluded {
    match ended.end.clone() {
        End::Done => Concluded::Commit(done(rules, arrival, known, ended)),
        End::Discard { reason } => {
            let write = StoreWrite { finals: build::finals(arrival, known), ..Default::default() };
            let rest = vec![Effect::Complete];
            Concluded::Commit(resolved(
                rules,
                arrival,
                known,
                &ended,
                Outcome::Skipped,
                Some(clip(&reason)),
                write,
                rest,
            ))
        }
        End::DeadLetter { reason, text } => {
            Concluded::Commit(dead_letter(rules, arrival, known, &ended, &reason, &text))
        }
        End::Handoff { reason, external_id, expected_by } => {
            Concluded::Commit(handoff(rules, arrival, known, ended, reason, external_id, expected_by))
        }
        End::Failed { failure, retry_after } => {
            Concluded::Commit(failed(rules, arrival, known, &ended, failure, retry_after))
        }
        End::Transient { text, .. } if arrival.last_delivery => {
            // Given back once more, the transport would drop it into the dead letters without a word (P22).
            let failure = Failure::new(kind::DELIVERIES_EXHAUSTED, text);
            Concluded::Commit(failed(rules, arrival, known, &ended, failure, None))
        }
        End::Transient { text, retry_after } => {
            let line = HistoryLine {
                error: Some(Failure::new("transient", clip(&text))),
                ..build::run_line(arrival, known, &ended, None)
            };
            Concluded::PutBack { retry_after, note: Box::new(StoreWrite { history: Some(line), ..Default::default() }) }
        }
    }
}

/// Done: unit of work, records and outcome in one transaction; then the session goes on; then the delivery is settled.
fn done(rules: &Rules, arrival: &Arrival, known: &Known<'_>, mut ended: Ended<'_>) -> crate::effect::Commit {
    let write = StoreWrite {
        record: build::records(rules, arrival, known),
        unit: std::mem::take(&mut ended.unit),
        ..Default::default()
    };
    resolved(rules, arrival, known, &ended, Outcome::Completed, None, write, vec![Effect::Complete])
}

/// The event has come to an end that lets its session go on (P10).
#[expect(
    clippy::too_many_arguments,
    reason = "all ends that resolve an event share it; each argument is one fact of the end"
)]
fn resolved(
    rules: &Rules,
    arrival: &Arrival,
    known: &Known<'_>,
    ended: &Ended<'_>,
    outcome: Outcome,
    reason: Option<String>,
    mut write: StoreWrite,
    settle: Vec<Effect>,
) -> crate::effect::Commit {
    write.outcome = Some(OutcomeWrite {
        reason: reason.clone(),
        handler: Some(ended.handler.clone()),
        digest: Some(ended.digest),
        // What did not complete can be looked at, and resubmitted, for some days more (P38).
        keep: if outcome == Outcome::Completed { None } else { build::kept(arrival) },
        ..build::outcome(arrival, known, outcome, ended.attempt)
    });
    write.history = Some(HistoryLine { reason, ..build::run_line(arrival, known, ended, Some(outcome)) });
    write.action = build::applied(known, format!("ran and ended {}", outcome.name()));
    let mut rest = build::unblock_own(rules, arrival, known);
    rest.extend(settle);
    build::decided(rules, arrival, known, write, rest)
}

fn dead_letter(
    rules: &Rules,
    arrival: &Arrival,
    known: &Known<'_>,
    ended: &Ended<'_>,
    reason: &str,
    text: &str,
) -> crate::effect::Commit {
    let (reason, description) = (clip(reason), clip(text));
    let write = StoreWrite { finals: build::finals(arrival, known), ..Default::default() };
    let settle = vec![Effect::DeadLetter { reason: reason.clone(), description: description.clone() }];
    let mut commit = resolved(rules, arrival, known, ended, Outcome::DeadLettered, Some(reason.clone()), write, settle);
    if let Some(Effect::Store(write)) = commit.effects.first_mut()
        && let Some(outcome) = &mut write.outcome
    {
        outcome.error = Some(Failure::new(reason, description));
    }
    commit
}

fn failed(
    rules: &Rules,
    arrival: &Arrival,
    known: &Known<'_>,
    ended: &Ended<'_>,
    failure: Failure,
    retry_after: Option<std::time::Duration>,
) -> crate::effect::Commit {
    let since = match arrival.kind {
        // The policy counts from the operator's action.
        MessageType::Resubmission => ended.attempt.saturating_sub(1),
        _ => known
            .state
            .block
            .as_ref()
            .filter(|block| block.is_of(&arrival.event_id))
            .map_or(0, |block| block.since_attempt),
    };
    let delay = rules.retry.as_ref().and_then(|policy| {
        policy.delay(Failed {
            failure: &failure,
            event_type: arrival.event_type.as_str(),
            runs: ended.attempt.saturating_sub(since).max(1),
            retry_after,
            random: ended.random,
        })
    });
    let line = build::run_line(arrival, known, ended, Some(Outcome::Failed));
    build::fail(rules, arrival, known, build::Fail { failure, attempt: ended.attempt, delay, line, run: Some(ended) })
}

/// Handed off: outcome with the unit of work, deadline, block, complete. Never recorded; its settlement makes it final.
fn handoff(
    rules: &Rules,
    arrival: &Arrival,
    known: &Known<'_>,
    mut ended: Ended<'_>,
    reason: String,
    external_id: Option<String>,
    expected_by: Option<crate::time::Timestamp>,
) -> crate::effect::Commit {
    let reason = match &external_id {
        Some(id) => clip(&format!("{reason} ({id})")),
        None => clip(&reason),
    };
    let attempt = ended.attempt;
    let write = StoreWrite {
        unit: std::mem::take(&mut ended.unit),
        outcome: Some(OutcomeWrite {
            reason: Some(reason.clone()),
            handler: Some(ended.handler.clone()),
            digest: Some(ended.digest),
            keep: build::kept(arrival),
            ..build::outcome(arrival, known, Outcome::Handoff, attempt)
        }),
        history: Some(HistoryLine {
            reason: Some(reason),
            ..build::run_line(arrival, known, &ended, Some(Outcome::Handoff))
        }),
        action: build::applied(known, "ran and handed off"),
        ..Default::default()
    };
    let mut rest = vec![];
    if let Some(expected_by) = expected_by {
        let id = identity::handoff_expiry_id(&rules.endpoint, arrival.source_text(), attempt);
        rest.push(build::stand_in(rules, arrival, MessageType::HandoffExpired, id, attempt, expected_by));
    }
    if rules.sessions {
        rest.push(Effect::SetState(build::blocked(arrival, known, BlockKind::Handoff, attempt)));
    }
    rest.push(Effect::Complete);
    build::decided(rules, arrival, known, write, rest)
}

/// The state once a parked copy has been taken out by a commit that did not write one itself. What no host had put there was never counted, and a
/// count too low would leave a copy there for ever (P16).
pub(super) fn after_parked(state: &SessionState, arrival: &Arrival) -> SessionState {
    match arrival.parked_as {
        Some(_) => SessionState { parked: state.parked.saturating_sub(1), ..state.clone() },
        None => state.clone(),
    }
}
