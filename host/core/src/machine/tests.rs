//! Single decisions, each as the list of effects it leads to.

use std::{sync::Arc, time::Duration};

use super::*;
use crate::{
    effect::{LeaseEnd, LeaseEnding, OutcomeWrite},
    ids::{EntityName, EventId, MessageId, SequenceNumber},
    message::{Delivery, LockToken, Message, Value, property},
    session_state::{Block, BlockKind, SkipParked},
};

fn rules(sessions: bool) -> Rules {
    Rules { endpoint: "e".into(), sessions, inbox: true, retry: None, host_ended_limit: 3, seal: Seal::new(b"k") }
}

fn arrival(origin: Origin, change: impl FnOnce(&mut Message)) -> Arrival {
    let mut message = Message { message_id: Some("m1".into()), session_id: Some("s".into()), ..Default::default() };
    message.set_property(property::EVENT_ID, Value::string("E1"));
    message.set_property(property::EVENT_TYPE_ID, Value::string("T"));
    change(&mut message);
    let delivery = Delivery {
        sequence: SequenceNumber(7),
        origin,
        lock: LockToken(1),
        delivery_count: 1,
        max_delivery_count: 10,
        enqueued_at: Timestamp(1),
        parked_as: (origin == Origin::Parked).then_some(3),
        id_assigned: false,
        message: Arc::new(message),
    };
    Arrival::read(&EntityName::from("q"), &delivery, &Seal::new(b"k"))
}

/// One word per effect, with what matters of it.
fn words(commit: &Commit) -> Vec<String> {
    let word = |effect: &Effect| match effect {
        Effect::Store(write) => {
            let outcome = write.outcome.as_ref().map_or("-", |outcome| outcome.outcome.name());
            format!("store {outcome} record {:?} final {:?}", write.record, write.finals)
        }
        Effect::Enqueue(message) => format!("enqueue {}", message.message_type().name()),
        Effect::CancelScheduled(_) => "cancel".into(),
        Effect::SetState(state) => match &state.block {
            Some(block) => format!("block {} {} attempt {}", block.event_id, block.kind.name(), block.attempt),
            None => format!("unblock parked {}", state.parked),
        },
        Effect::Park { sequence, .. } => format!("park {sequence}"),
        Effect::Complete => "complete".into(),
        Effect::DeadLetter { reason, .. } => format!("dead-letter {reason}"),
    };
    commit.effects.iter().map(word).collect()
}

struct Case {
    rules: Rules,
    state: SessionState,
    answer: Answer,
    claim: Claim,
    host_ended: u32,
    lease: Lease,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            rules: rules(true),
            state: SessionState::default(),
            answer: Answer::default(),
            claim: Claim::Handler,
            host_ended: 0,
            lease: Lease::Off,
        }
    }
}

impl Case {
    fn known(&self) -> Known<'_> {
        Known {
            now: Timestamp(10),
            state: &self.state,
            state_changed: false,
            answer: &self.answer,
            action: None,
            claim: self.claim,
            host_ended: self.host_ended,
            lease: self.lease.clone(),
        }
    }

    fn decide(&self, arrival: &Arrival) -> Next {
        decide(&self.rules, arrival, &self.known())
    }

    fn conclude(&self, arrival: &Arrival, end: End) -> Commit {
        let handler = HandlerName::from("h");
        let ended = Ended {
            end,
            unit: UnitOfWork::default(),
            attempt: 1,
            handler: &handler,
            digest: Digest([0; 32]),
            started_at: Timestamp(9),
            took: Duration::ZERO,
            random: 0.5,
        };
        match conclude(&self.rules, arrival, &self.known(), ended) {
            Concluded::Commit(commit) => commit,
            Concluded::PutBack { .. } => panic!("expected a commit"),
        }
    }
}

fn committed(next: Next) -> Commit {
    match next {
        Next::Commit(commit) => commit,
        other => panic!("expected a commit, got {other:?}"),
    }
}

fn outcome(commit: &Commit) -> &OutcomeWrite {
    commit
        .effects
        .iter()
        .find_map(|effect| match effect {
            Effect::Store(write) => write.outcome.as_ref(),
            _ => None,
        })
        .expect("an outcome")
}

fn blocked_by(event: &str) -> SessionState {
    SessionState {
        block: Some(Block {
            event_id: EventId::from(event),
            source_id: Some("m0".into()),
            kind: BlockKind::Failure,
            attempt: 1,
            since_attempt: 0,
            since: Timestamp(5),
        }),
        next_sequence: 4,
        ..Default::default()
    }
}

#[test]
fn a_success_records_and_completes() {
    let case = Case::default();
    let event = arrival(Origin::Main, |_| {});
    assert_eq!(case.decide(&event), Next::Run { attempt: 1 });
    assert_eq!(words(&case.conclude(&event, End::Done)), [r#"store completed record ["m1"] final []"#, "complete"]);
}

/// Case 42, with the retry before the block (spec 3): outcome, retry, block, complete.
#[test]
fn a_failure_schedules_before_it_blocks() {
    let mut case = Case::default();
    let schedule = crate::retry::Schedule {
        strategy: crate::retry::Strategy::Fixed,
        base: Duration::from_secs(1),
        max: None,
        attempts: 2,
        jitter: crate::retry::Jitter::None,
    };
    case.rules.retry = Some(RetryPolicy { schedule, on: vec![], rules: vec![] });
    let commit = case.conclude(&arrival(Origin::Main, |_| {}), End::failed("x", "boom"));
    assert_eq!(
        words(&commit),
        ["store failed record [] final []", "enqueue RetryRequest", "block E1 failure attempt 1", "complete"]
    );
    assert!(outcome(&commit).keep.is_some(), "an unresolved event keeps its message");
}

/// Case 43: outcome, state, copy, complete (P16).
#[test]
fn behind_a_block_it_is_parked() {
    let case = Case { state: blocked_by("E0"), ..Default::default() };
    let commit = committed(case.decide(&arrival(Origin::Main, |_| {})));
    assert_eq!(
        words(&commit),
        ["store deferred record [] final []", "block E0 failure attempt 1", "park 4", "complete"]
    );
}

/// Case 44: a second copy of the blocker is completed, and nothing else.
#[test]
fn the_blocker_itself_is_completed() {
    let case = Case { state: blocked_by("e1"), ..Default::default() };
    assert_eq!(words(&committed(case.decide(&arrival(Origin::Main, |_| {})))), ["complete"]);
}

/// Case 3: a duplicate is skipped, not parked, while another event blocks.
#[test]
fn a_duplicate_is_never_parked() {
    let answer = Answer { own_recorded: true, ..Default::default() };
    let case = Case { state: blocked_by("E0"), answer, ..Default::default() };
    let commit = committed(case.decide(&arrival(Origin::Main, |_| {})));
    assert_eq!(words(&commit), ["store skipped record [] final []", "complete"]);
}

/// P38: what was skipped keeps its message for some days more, so that it can be resubmitted; what completed does not.
#[test]
fn skipped_events_keep_their_message() {
    let skip = SkipParked { below: 4, reason: "gone".into(), by: "ann".into() };
    let state = SessionState { parked: 1, next_sequence: 4, skip_parked: Some(skip), ..Default::default() };
    let skipped = committed(Case { state, ..Default::default() }.decide(&arrival(Origin::Parked, |_| {})));
    assert_eq!(words(&skipped), [r#"store skipped record [] final ["m1"]"#, "complete"]);
    assert!(outcome(&skipped).keep.is_some());
    let event = arrival(Origin::Main, |_| {});
    let discarded = Case::default().conclude(&event, End::Discard { reason: "old".into() });
    assert!(outcome(&discarded).keep.is_some());
    assert!(outcome(&Case::default().conclude(&event, End::Done)).keep.is_none());
}

/// P27: a type that nobody claims is unsupported; a handler that is not loaded makes the message wait.
#[test]
fn no_handler_and_not_ready_are_two_things() {
    let event = arrival(Origin::Main, |_| {});
    let nobody = Case { claim: Claim::Nobody, ..Default::default() };
    assert_eq!(words(&committed(nobody.decide(&event))), ["store unsupported record [] final []", "complete"]);
    assert_eq!(Case { claim: Claim::NotReady, ..Default::default() }.decide(&event), Next::PutBack);
}

/// P23: past the limit it fails as host-ended, without a run.
#[test]
fn a_run_that_keeps_ending_the_process_fails() {
    let case = Case { host_ended: 3, ..Default::default() };
    let commit = committed(case.decide(&arrival(Origin::Main, |_| {})));
    assert_eq!(outcome(&commit).error.as_ref().map(|error| error.kind.as_str()), Some("host-ended"));
    assert_eq!(words(&commit)[1..], ["block E1 failure attempt 1", "complete"]);
}

/// P26: without a session nothing waits, so a failure without a retry is dead-lettered, its message kept.
#[test]
fn without_sessions_a_failure_ends_in_the_dead_letters() {
    let case = Case { rules: rules(false), ..Default::default() };
    let commit = case.conclude(&arrival(Origin::Main, |message| message.session_id = None), End::failed("x", "boom"));
    assert_eq!(words(&commit), [r#"store dead-lettered record [] final ["m1"]"#, "dead-letter x"]);
    assert!(outcome(&commit).keep.is_some());
}

/// P31: what makes a stand-in does not count without the host's seal; an unsigned retry is an event like any other.
#[test]
fn a_forged_stand_in_is_an_event() {
    let forged = arrival(Origin::Main, |message| {
        message.set_property(property::MESSAGE_TYPE, Value::string("RetryRequest"));
        message.set_property(property::INBOX_MESSAGE_ID, Value::string("victim"));
        message.set_property(property::RETRY_COUNT, Value::Int(1));
    });
    assert_eq!((forged.kind, forged.stands_for, forged.follows), (MessageType::Event, None, 0));
    let signed = arrival(Origin::Main, |message| {
        message.set_property(property::MESSAGE_TYPE, Value::string("RetryRequest"));
        message.set_property(property::INBOX_MESSAGE_ID, Value::string("m0"));
        message.set_property(property::RETRY_COUNT, Value::Int(1));
        Seal::new(b"k").sign(message);
    });
    assert_eq!((signed.kind, signed.stands_for, signed.follows), (MessageType::Retry, Some("m0".into()), 1));
}

/// P31: an operator's message does nothing unless a host has sent it: its action is one more word that needs the seal.
#[test]
fn a_forged_action_is_nobodys() {
    let skip = |message: &mut Message| {
        message.set_property(property::MESSAGE_TYPE, Value::string("SkipRequest"));
        message.set_property(property::ACTION_ID, Value::Long(1));
    };
    assert_eq!(arrival(Origin::Main, skip).action, None);
    let signed = arrival(Origin::Main, |message| {
        skip(message);
        Seal::new(b"k").sign(message);
    });
    assert_eq!(signed.action.map(|action| action.0), Some(1));
}

/// The copy that a block makes of a delivery.
fn copy_behind_a_block(arrival: &Arrival) -> Message {
    let block = Block {
        event_id: "E0".into(),
        source_id: None,
        kind: BlockKind::Failure,
        attempt: 1,
        since_attempt: 0,
        since: Timestamp(1),
    };
    let state = SessionState { block: Some(block), next_sequence: 4, ..Default::default() };
    let commit = committed(Case { state, ..Default::default() }.decide(arrival));
    let copy = commit.effects.into_iter().find_map(|effect| match effect {
        Effect::Park { sequence: 4, copy } => Some(*copy),
        _ => None,
    });
    copy.expect("it is parked as the state says")
}

/// A message among the parked ones, on a transport that parks by copying.
fn from_parked(message: Message) -> Arrival {
    let delivery = Delivery {
        sequence: SequenceNumber(1),
        origin: Origin::Parked,
        lock: LockToken(1),
        delivery_count: 1,
        max_delivery_count: 10,
        enqueued_at: Timestamp(1),
        parked_as: None,
        id_assigned: false,
        message: Arc::new(message),
    };
    Arrival::read(&EntityName::from("q"), &delivery, &Seal::new(b"k"))
}

/// P31: a parked copy says what was believed of the message, and nothing that somebody had written into it.
#[test]
fn parking_launders_nothing() {
    for kind in ["EventRequest", "RetryRequest", "ProcessDeferredRequest"] {
        let forged = arrival(Origin::Main, |message| {
            message.set_property(property::MESSAGE_TYPE, Value::string(kind));
            message.set_property(property::INBOX_MESSAGE_ID, Value::string("victim"));
            message.set_property(property::RETRY_COUNT, Value::Int(9));
            message.set_property(property::ACTION_ID, Value::Long(1));
            message.set_property(property::PLACE, Value::string("elsewhere#1"));
        });
        let copy = copy_behind_a_block(&forged);
        assert_eq!((copy.text_property(property::INBOX_MESSAGE_ID), copy.time_to_live), (Some("m1"), None));
        let back = from_parked(copy);
        assert_eq!((back.kind, back.source_text(), back.place.as_str()), (MessageType::Event, "m1", "q#7"));
        assert_eq!((back.follows, back.action, back.parked_as), (0, None, Some(4)));
    }
}

/// A stand-in that waits stays one, and completes what it stood for.
#[test]
fn a_parked_stand_in_stays_one() {
    let waiting = arrival(Origin::Main, |message| {
        message.set_property(property::MESSAGE_TYPE, Value::string("RetryRequest"));
        message.set_property(property::INBOX_MESSAGE_ID, Value::string("m0"));
        message.set_property(property::RETRY_COUNT, Value::Int(2));
        Seal::new(b"k").sign(message);
    });
    let mut case = Case::default();
    case.answer.outcome = Some(StoredOutcome { outcome: Outcome::Failed, attempts: 2 });
    case.state.block = Some(Block {
        event_id: "E0".into(),
        source_id: None,
        kind: BlockKind::Failure,
        attempt: 1,
        since_attempt: 0,
        since: Timestamp(1),
    });
    let commit = committed(case.decide(&waiting));
    let copy = commit.effects.into_iter().find_map(|effect| match effect {
        Effect::Park { copy, .. } => Some(*copy),
        _ => None,
    });
    let back = from_parked(copy.expect("it is parked"));
    assert_eq!((back.kind, back.follows, back.source_text()), (MessageType::Retry, 2, "m0"));
    assert_eq!((back.event_id.as_str(), back.message_id.as_ref().map(|id| id.as_str())), ("E1", Some("m1")));
}

/// P31, P16: what nobody with the key has put among the parked ones is a message like any other, and does not count as one of them.
#[test]
fn a_forged_copy_is_an_event_and_not_counted() {
    let copy = copy_behind_a_block(&arrival(Origin::Main, |_| {}));
    let mut as_number_one = copy.clone();
    as_number_one.set_property(property::DEFERRAL_SEQUENCE, Value::Uint(1));
    let mut of_a_victim = copy.clone();
    of_a_victim.set_property(property::INBOX_MESSAGE_ID, Value::string("victim"));
    let mut unsigned = copy.clone();
    unsigned.properties.remove(property::SIGNATURE);
    let state = SessionState { parked: 2, ..Default::default() };
    for (message, counted) in [(copy, true), (as_number_one, false), (of_a_victim, false), (unsigned, false)] {
        let back = from_parked(message);
        assert_eq!((back.kind, back.source_text(), back.parked_as.is_some()), (MessageType::Event, "m1", counted));
        let case = Case { state: state.clone(), ..Default::default() };
        let commit = case.conclude(&back, End::Done);
        assert_eq!(words(&commit)[0], r#"store completed record ["m1"] final []"#);
        let (after, changed) = after_commit(&case.known(), &back, &commit);
        assert_eq!((after.parked, changed), (if counted { 1 } else { 2 }, true));
    }
}

/// P29, P30: a parked copy of an event without an id goes on under the place where it first came.
#[test]
fn a_parked_event_without_ids_keeps_its_name() {
    let nameless = arrival(Origin::Main, |message| {
        message.message_id = None;
        message.properties.remove(property::EVENT_ID);
    });
    let back = from_parked(copy_behind_a_block(&nameless));
    assert_eq!((back.event_id.as_str(), back.source_text()), ("q#7", "q#7"));
    assert_eq!(back.message_id, None);
}

/// P29: without any id an event is named after its place.
#[test]
fn an_event_without_ids_is_named_after_its_place() {
    let nameless = arrival(Origin::Main, |message| {
        message.message_id = None;
        message.properties.remove(property::EVENT_ID);
    });
    assert_eq!(nameless.event_id.as_str(), "q#7");
    assert_eq!(nameless.source_text(), "q#7");
}

fn lease_end(commit: &Commit) -> Option<&LeaseEnd> {
    commit.effects.iter().find_map(|effect| match effect {
        Effect::Store(write) => write.lease.as_ref(),
        _ => None,
    })
}

/// Spec 4, mode `lease`: whatever a run ends in, its decision ends the lease, and only if this acquisition holds it still.
#[test]
fn a_decision_ends_the_lease_it_was_made_under() {
    let owner = LeaseOwner::from("here-1");
    let case = Case { rules: rules(false), lease: Lease::Held(owner.clone()), ..Default::default() };
    let event = arrival(Origin::Main, |_| {});
    let handoff = End::Handoff { reason: "job".into(), external_id: None, expected_by: None };
    for (end, how) in [
        (End::Done, LeaseEnding::Over),
        (End::Discard { reason: "no".into() }, LeaseEnding::Over),
        (End::failed("x", "boom"), LeaseEnding::Over),
        (handoff, LeaseEnding::HandedOff),
    ] {
        let commit = case.conclude(&event, end);
        let expected = LeaseEnd { id: "m1".into(), owner: Some(owner.clone()), how };
        assert_eq!(lease_end(&commit), Some(&expected));
    }
    let recorded = Case { answer: Answer { own_recorded: true, ..Default::default() }, ..case };
    let commit = committed(recorded.decide(&event));
    assert_eq!(lease_end(&commit).map(|end| (&end.owner, end.how)), Some((&Some(owner), LeaseEnding::Over)));
    let off = Case { rules: rules(false), ..Default::default() };
    assert_eq!(lease_end(&off.conclude(&event, End::Done)), None);
}

/// P26: what is handed off does not run again; its settlement ends the lease, whoever had left it, and a copy does not.
#[test]
fn a_handoff_keeps_its_lease_until_it_is_settled() {
    let case = Case { rules: rules(false), lease: Lease::HandedOff, ..Default::default() };
    let commit = committed(case.decide(&arrival(Origin::Main, |_| {})));
    assert_eq!(words(&commit), ["store skipped record [] final []", "complete"]);
    assert_eq!(lease_end(&commit), None);

    let mut expiry = Message { message_id: Some("x1".into()), ..Default::default() };
    expiry.set_property(property::MESSAGE_TYPE, Value::string(MessageType::HandoffExpired.name()));
    expiry.set_property(property::EVENT_ID, Value::string("E1"));
    expiry.set_property(property::INBOX_MESSAGE_ID, Value::string("m1"));
    expiry.set_property(property::RETRY_COUNT, Value::Int(1));
    Seal::new(b"k").sign(&mut expiry);
    let expired = arrival(Origin::Main, |message| *message = expiry);
    let stored = |outcome| Answer { outcome: Some(StoredOutcome { outcome, attempts: 1 }), ..Default::default() };
    let case =
        Case { rules: rules(false), answer: stored(Outcome::Handoff), lease: Lease::NotTaken, ..Default::default() };
    let commit = committed(case.decide(&expired));
    let expected = LeaseEnd { id: "m1".into(), owner: None, how: LeaseEnding::Over };
    assert_eq!(lease_end(&commit), Some(&expected));
    let late = Case { answer: stored(Outcome::Completed), ..case };
    assert_eq!(words(&committed(late.decide(&expired))), ["complete"]);
}

/// An event, its retries and its resubmissions are leased under one id; what leads to no run is not leased.
#[test]
fn the_lease_is_on_the_source_id() {
    let kinds = [
        (MessageType::Event, Some("m1")),
        (MessageType::Retry, Some("m0")),
        (MessageType::Resubmission, Some("m0")),
        (MessageType::HandoffExpired, None),
        (MessageType::Skip, None),
    ];
    for (kind, expected) in kinds {
        let arrival = arrival(Origin::Main, |message| {
            message.set_property(property::MESSAGE_TYPE, Value::string(kind.name()));
            message.set_property(property::INBOX_MESSAGE_ID, Value::string("m0"));
            Seal::new(b"k").sign(message);
        });
        assert_eq!(arrival.leased_as().map(MessageId::as_str), expected, "{kind:?}");
    }
    assert_eq!(arrival(Origin::Main, |message| message.message_id = None).leased_as(), None);
}
