//! The session machine: what happens to one delivery, as a value.
//!
//! The loop asks [`decide`] with all it knows; the answer is a commit, a wish to drain first, or a run. After the run it asks
//! [`conclude`]. Nothing else decides anything, and nothing here has a clock, does I/O or waits. `docs/protocol.md` holds the rules named P1 to P38.
//!
//! Read on in [`arrival`] (what a delivery is), `event`, `stand_in`, `operator` (the paths by kind of message), `end` (after a run), `lease`
//! (what a decision does to the lease it was made under) and `build` (the effects, in their order).

pub mod arrival;
mod build;
mod end;
mod event;
#[cfg(test)]
mod explorer;
mod lease;
mod operator;
mod stand_in;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::{
    action::{Action, ActionState},
    effect::{Commit, Decision, Effect, StoreWrite},
    ids::{Digest, EndpointName, HandlerName, LeaseOwner},
    message::{MessageType, Origin},
    outcome::Outcome,
    retry::RetryPolicy,
    run::{End, UnitOfWork},
    seal::Seal,
    session_state::SessionState,
    time::Timestamp,
};
pub use arrival::Arrival;

/// What an endpoint's configuration says about its deliveries.
#[derive(Debug, Clone)]
pub struct Rules {
    pub endpoint: EndpointName,
    /// The source has sessions.
    pub sessions: bool,
    /// The inbox is on.
    pub inbox: bool,
    pub retry: Option<RetryPolicy>,
    /// Runs that may end with the process before the event fails as `host-ended` (P23).
    pub host_ended_limit: u32,
    pub seal: Seal,
}

/// What the store knows about a delivery.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// The delivery's own id is recorded in the inbox.
    pub own_recorded: bool,
    /// The source id is recorded in the inbox.
    pub source_recorded: bool,
    /// The delivery's own id or its source id is final (P2).
    pub is_final: bool,
    /// A decision on this delivery that may not have been carried out to its end (P1).
    pub decision: Option<Decision>,
    /// Only when asked for.
    pub outcome: Option<StoredOutcome>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct StoredOutcome {
    pub outcome: Outcome,
    pub attempts: u32,
}

/// Whether somebody would handle the event's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    Handler,
    /// No configured handler claims the type (P27).
    Nobody,
    /// A handler that the endpoint needs is not loaded: nothing runs, nothing is decided.
    NotReady,
}

/// All that is known about a delivery before it runs.
#[derive(Debug, Clone)]
pub struct Known<'a> {
    pub now: Timestamp,
    pub state: &'a SessionState,
    /// The state differs from what the transport holds: the next commit writes it.
    pub state_changed: bool,
    pub answer: &'a Answer,
    /// The operator's action that the delivery carries.
    pub action: Option<&'a Action>,
    pub claim: Claim,
    /// Runs of this delivery that ended with the process.
    pub host_ended: u32,
    pub lease: Lease,
}

/// How a delivery stands to the lease on its event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Lease {
    /// The endpoint has none, or the delivery has no id that one could be on.
    #[default]
    Off,
    /// It needs none, since it leads to no run: a settlement, a deadline, a skip.
    NotTaken,
    Held(LeaseOwner),
    /// The event was handed off and is not settled: nobody may run it again (P26).
    HandedOff,
}

/// What to do next with a delivery.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    Commit(Commit),
    /// Handle what is parked first, then ask again with the state as it is then.
    Drain,
    /// Run the handler; this is its attempt.
    Run {
        attempt: u32,
    },
    /// Give the delivery back undecided: the endpoint is not ready.
    PutBack,
}

/// A run that ended.
#[derive(Debug, Clone)]
pub struct Ended<'a> {
    pub end: End,
    pub unit: UnitOfWork,
    pub attempt: u32,
    pub handler: &'a HandlerName,
    pub digest: Digest,
    pub started_at: Timestamp,
    pub took: Duration,
    /// Uniform in 0..1, for the retry policy's jitter.
    pub random: f64,
}

/// What a run's end leads to.
#[derive(Debug, Clone, PartialEq)]
pub enum Concluded {
    Commit(Commit),
    /// Nothing is decided; the delivery comes again. `note` tells the operator of the attempt and is written best effort.
    PutBack {
        retry_after: Option<Duration>,
        note: Box<StoreWrite>,
    },
}

/// Decides what to do with a delivery that has arrived, before any run.
pub fn decide(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Next {
    match by_kind(rules, arrival, known) {
        Next::Commit(commit) => Next::Commit(lease::ended_by(commit, arrival, known)),
        other => other,
    }
}

fn by_kind(rules: &Rules, arrival: &Arrival, known: &Known<'_>) -> Next {
    if arrival.kind == MessageType::DrainTrigger {
        return stand_in::trigger(rules, arrival, known);
    }
    if let Some(decision) = &known.answer.decision {
        return Next::Commit(carry_out(rules, arrival, known, decision));
    }
    match arrival.kind {
        MessageType::Event => event::decide(rules, arrival, known),
        MessageType::Retry => stand_in::retry(rules, arrival, known),
        MessageType::HandoffExpired => stand_in::handoff_expired(rules, arrival, known),
        MessageType::Resubmission
        | MessageType::Skip
        | MessageType::HandoffCompleted
        | MessageType::HandoffFailed
        | MessageType::SkipSession => operator::decide(rules, arrival, known),
        MessageType::DrainTrigger => Next::Drain,
    }
}

/// Decides what a run's end means.
pub fn conclude(rules: &Rules, arrival: &Arrival, known: &Known<'_>, ended: Ended<'_>) -> Concluded {
    match end::conclude(rules, arrival, known, ended) {
        Concluded::Commit(commit) => Concluded::Commit(lease::ended_by(commit, arrival, known)),
        other => other,
    }
}

/// Nothing blocks the session and something is parked: the drain comes before anything else (A04).
pub fn is_drainable(state: &SessionState) -> bool {
    state.block.is_none() && state.parked > 0
}

/// Whether the action that a control message carries is still to be carried out.
fn open_action<'a>(known: &Known<'a>) -> Option<&'a Action> {
    known.action.filter(|action| action.state == ActionState::Open)
}

/// What is left of a decision that an earlier delivery of this message wrote (P1).
///
/// The session may have moved on since: a parked copy that was decided and not completed comes again only with the next drain. Then only
/// its completion is left, since repeating a block or a retry would bring back what has been resolved.
fn carry_out(rules: &Rules, arrival: &Arrival, known: &Known<'_>, decision: &Decision) -> Commit {
    let settles = |effect: &&Effect| matches!(effect, Effect::Complete | Effect::DeadLetter { .. });
    let settle_only = || build::commit(rules, decision.rest.iter().filter(settles).cloned().collect());
    let whole = || build::commit(rules, decision.rest.clone());
    if arrival.kind == MessageType::SkipSession {
        let unfinished = known.state.skip_parked.is_none() && (known.state.block.is_some() || known.state.parked > 0);
        return if unfinished { whole() } else { settle_only() };
    }
    let still = known
        .answer
        .outcome
        .as_ref()
        .is_none_or(|stored| stored.outcome == decision.outcome && stored.attempts <= decision.attempt);
    let own = known.state.block.as_ref().filter(|block| block.is_of(&arrival.event_id));
    if !still || known.state.block.is_some() && own.is_none() {
        return settle_only();
    }
    if !rules.sessions {
        // Nothing blocks here, so nothing can have been resolved meanwhile: a retry or a deadline that was not sent yet is sent.
        return whole();
    }
    let blocks = decision
        .rest
        .iter()
        .any(|effect| matches!(effect, Effect::SetState(state) if state.is_blocked_by(&arrival.event_id)));
    if blocks {
        // A block of this very decision was the step before the completion; without it all is done again, its retry first.
        return if own.is_some_and(|block| block.attempt >= decision.attempt) { settle_only() } else { whole() };
    }
    let mut effects = vec![];
    if own.is_some() {
        effects.extend(build::unblock(rules, arrival, known));
    }
    effects.extend(decision.rest.iter().filter(settles).cloned());
    build::commit(rules, effects)
}

/// The session's state after a commit took place, and whether the transport holds another one.
///
/// Taking parked copies out does not write the count each time: it is carried along and written with the next commit that settles a
/// delivery of the main queue (one read and at most one write of the state per delivery).
pub fn after_commit(known: &Known<'_>, arrival: &Arrival, commit: &Commit) -> (SessionState, bool) {
    let written = commit.effects.iter().rev().find_map(|effect| match effect {
        Effect::SetState(state) => Some(state.clone()),
        _ => None,
    });
    match written {
        Some(state) => (state, false),
        None if arrival.origin == Origin::Parked => (end::after_parked(known.state, arrival), true),
        None => (known.state.clone(), known.state_changed),
    }
}

/// The state once a drain has found nothing more parked.
pub fn after_drain(state: &SessionState) -> SessionState {
    SessionState { parked: 0, skip_parked: None, ..state.clone() }
}
