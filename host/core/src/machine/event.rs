//! The path of an event: its first delivery, a redelivery, a second copy, or a parked copy (spec 3).

use super::{Arrival, Claim, Known, Lease, Next, Rules, build, is_drainable};
use crate::{
    effect::{HistoryKind, HistoryLine, OutcomeWrite, StoreWrite},
    message::Origin,
    outcome::{Failure, Outcome, kind},
};

pub(super) fn decide(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Next {
    let parked = arrival.origin == Origin::Parked;
    let recorded = known.answer.own_recorded || parked && known.answer.source_recorded;
    // What was handed off is being done somewhere: a copy of it must not start that again (P26).
    if recorded || known.answer.is_final || known.lease == Lease::HandedOff {
        return Next::Commit(build::duplicate(rules, arrival, known));
    }
    if let Some(block) = known.state.block.as_ref().filter(|_| rules.sessions) {
        return if block.is_of(&arrival.event_id) {
            // Running it again could repeat a handed-off job; parking it would run it behind its own resolution (seed 003).
            Next::Commit(build::complete_only(rules, arrival, known))
        } else if parked {
            // A drain stops at a block; what is parked stays so.
            Next::PutBack
        } else {
            Next::Commit(build::park(rules, arrival, known))
        };
    }
    if rules.sessions && !parked && is_drainable(known.state) {
        return Next::Drain;
    }
    if parked
        && let Some(skip) = &known.state.skip_parked
        && arrival.parked_as.is_some_and(|number| number < skip.below)
    {
        let write = StoreWrite {
            finals: build::finals(arrival, known),
            outcome: Some(OutcomeWrite {
                reason: Some(skip.reason.clone()),
                keep: build::kept(arrival),
                ..build::outcome(arrival, known, Outcome::Skipped, 0)
            }),
            history: Some(HistoryLine {
                reason: Some(skip.reason.clone()),
                by: Some(skip.by.clone()),
                ..build::history(arrival, known, HistoryKind::Action, Some(Outcome::Skipped), 0)
            }),
            ..Default::default()
        };
        return Next::Commit(build::decided(rules, arrival, known, write, vec![crate::effect::Effect::Complete]));
    }
    run_or(rules, arrival, known, 1, |rules, arrival, known| {
        let write = StoreWrite {
            outcome: Some(OutcomeWrite {
                reason: Some(no_handler(arrival)),
                keep: build::kept(arrival),
                ..build::outcome(arrival, known, Outcome::Unsupported, 0)
            }),
            history: Some(build::history(arrival, known, HistoryKind::Decided, Some(Outcome::Unsupported), 0)),
            ..Default::default()
        };
        Next::Commit(build::decided(rules, arrival, known, write, vec![crate::effect::Effect::Complete]))
    })
}

/// What stands between a delivery that may run and its run: a handler that is not there, a run that keeps ending with the process.
pub(super) fn run_or(
    rules: &Rules,
    arrival: &Arrival,
    known: &Known<'_>,
    attempt: u32,
    unsupported: impl FnOnce(&Rules, &Arrival, &Known<'_>) -> Next,
) -> Next {
    match known.claim {
        Claim::NotReady => Next::PutBack,
        Claim::Nobody => unsupported(rules, arrival, known),
        Claim::Handler if known.host_ended >= rules.host_ended_limit => {
            let text = format!("the process ended during {} runs of this event", known.host_ended);
            Next::Commit(build::fail(
                rules,
                arrival,
                known,
                build::Fail {
                    failure: Failure::new(kind::HOST_ENDED, text),
                    attempt,
                    // Trying it again by itself would end the process again.
                    delay: None,
                    line: build::history(arrival, known, HistoryKind::Decided, None, attempt),
                    run: None,
                },
            ))
        }
        Claim::Handler => Next::Run { attempt },
    }
}

pub(super) fn no_handler(arrival: &Arrival) -> String {
    match arrival.event_type.as_str() {
        "" => "the message names no event type, and no handler takes any (`*`)".to_owned(),
        event_type => format!("no handler takes {event_type}"),
    }
}
