//! The suites that every transport and every committer pass.
//!
//! An implementation's test file calls [`transport_conformance!`](crate::transport_conformance) and
//! [`committer_conformance!`](crate::committer_conformance) with an async function that makes a [`Bench`]: a fresh transport that has the
//! [`entities`] and nothing in them. Each rule becomes a test of its own.
//!
//! Rules wait with tokio's time only, so they run where it is paused as well as in real time. Where a lock has to lapse they ask the
//! entity for how long that takes ([`Transport::describe`]), so a transport may make [`SHORT_LOCK`] longer if it must.

pub mod commits;
pub mod dead_letters;
pub mod locks;
pub mod parking;
pub mod peeking;
pub mod plain;
pub mod scheduled;
pub mod sending;
pub mod sessions;

use std::{any::Any, sync::Arc, time::Duration};

use sprag_core::{
    ids::{EntityName, SequenceNumber, SessionId},
    message::{Delivery, Message, Value, property},
    time::Timestamp,
};
use sprag_store::{Store, conformance::sample};

use crate::{Committer, Parked, Part, Peeked, Session, Settlement, Transport};

/// What an implementation's test makes for each rule.
pub struct Bench {
    pub transport: Arc<dyn Transport>,
    /// What the committer writes to.
    pub store: Arc<dyn Store>,
    pub committer: Arc<dyn Committer>,
    /// Wall time as the transport sees it: [`sprag_store::clock::now`] will do.
    pub now: fn() -> Timestamp,
    /// The broker is not near: it does not tell the numbers of what is sent, since when a message is dead, or of a held session that has
    /// nothing, and takes simple values for properties only. Each rule that this concerns says so.
    pub far: bool,
    /// What must live as long as the test: a temporary folder.
    pub keep: Box<dyn Any + Send>,
}

/// An entity that rules need.
#[derive(Debug, Clone, Copy)]
pub struct EntitySpec {
    pub name: &'static str,
    pub requires_session: bool,
    pub lock_duration: Duration,
    pub max_delivery_count: u32,
}

/// The lock duration of the entities on which locks lapse.
pub const SHORT_LOCK: Duration = Duration::from_millis(500);

const fn spec(
    name: &'static str,
    requires_session: bool,
    lock_duration: Duration,
    max_delivery_count: u32,
) -> EntitySpec {
    EntitySpec { name, requires_session, lock_duration, max_delivery_count }
}

const LONG_LOCK: Duration = Duration::from_secs(30);
const ENTITIES: [EntitySpec; 8] = [
    spec("sessions", true, LONG_LOCK, 10),
    spec("sessions-two", true, LONG_LOCK, 2),
    spec("sessions-short", true, SHORT_LOCK, 10),
    spec("plain", false, LONG_LOCK, 10),
    spec("plain-two", false, LONG_LOCK, 2),
    spec("plain-five", false, LONG_LOCK, 5),
    spec("plain-short", false, SHORT_LOCK, 10),
    spec("elsewhere", false, LONG_LOCK, 10),
];

/// The queues that a bench has; no duplicate detection, no time to live.
pub fn entities() -> &'static [EntitySpec] {
    &ENTITIES
}

/// Makes a test of every rule for transports.
///
/// ```ignore
/// async fn bench(entities: &[EntitySpec]) -> Bench { .. }
/// sprag_transport::transport_conformance!(bench);
/// ```
///
/// Options after the function go to `#[tokio::test(..)]`. For a transport that cannot keep every rule, `each = some_macro!` before them names
/// a macro that makes each test itself, from `rule_name (attributes) { body }`: it can ignore one by name and with the reason.
#[macro_export]
macro_rules! transport_conformance {
    ($make:path, each = $each:ident ! $(, $option:ident = $value:expr)*) => {
        $crate::transport_conformance!(@all [$each] $make, ($($option = $value),*));
    };
    ($make:path $(, $option:ident = $value:expr)*) => {
        $crate::transport_conformance!(@all [] $make, ($($option = $value),*));
    };
    (@all $each:tt $make:path, $options:tt) => {
        $crate::transport_conformance!(@rules $each $make, $options,
            sending::what_is_sent_is_received_whole
            sending::every_kind_of_body_arrives_as_what_it_is
            sending::numbers_rise
            sending::a_batch_goes_whole_or_not_at_all
            sending::an_entity_that_is_not_there
            sending::a_session_entity_refuses_a_message_without_session
            sending::a_message_without_an_id_is_delivered
            sending::enqueueing_an_id_twice_adds_nothing
            sending::enqueueing_a_scheduled_id_twice_adds_nothing
            sending::a_dropped_sender_leaves_all_or_nothing
            sessions::messages_come_in_order
            sessions::the_next_comes_after_the_one_before
            sessions::nothing_overtakes_what_was_given_back
            sessions::a_session_has_one_holder
            sessions::a_named_session_is_waited_for
            sessions::a_named_session_need_not_have_messages
            sessions::accepting_goes_round
            sessions::acceptors_share_no_session
            sessions::an_acceptor_wakes_up_when_a_message_comes
            sessions::a_receiver_wakes_up_when_a_message_comes
            sessions::a_dropped_acceptor_takes_nothing
            sessions::eight_sessions_side_by_side
            sessions::state_is_kept_and_null_is_empty
            sessions::a_pause_keeps_the_session_from_being_offered
            sessions::a_released_session_gives_its_messages_back
            sessions::sessions_are_listed
            locks::a_lapsed_session_refuses_everything
            locks::renewing_keeps_a_session
            locks::a_dropped_session_comes_back
            locks::a_lapsed_delivery_cannot_be_settled
            locks::renewing_keeps_a_delivery
            locks::a_lock_settles_once
            plain::a_receiver_takes_what_it_asked_for
            plain::two_receivers_never_get_the_same_message
            plain::a_plain_receiver_wakes_up
            plain::a_dropped_receiver_takes_nothing
            plain::what_is_given_back_comes_again
            plain::a_session_call_on_a_plain_entity_is_refused
            dead_letters::limits_are_per_entity
            dead_letters::a_session_goes_on_after_a_dead_letter
            dead_letters::reason_and_description_are_kept
            dead_letters::what_is_replayed_is_as_it_was
            scheduled::a_scheduled_message_comes_at_its_time
            scheduled::a_scheduled_message_wakes_its_session
            scheduled::scheduled_messages_can_be_found_and_cancelled
            scheduled::cancelling_a_wrong_number_names_it
            scheduled::cancelling_by_id
            parking::a_parked_message_is_found_again
            parking::parked_messages_come_in_parking_order
            parking::a_session_with_nothing_but_parked_messages
            parking::parked_copies_burn_no_deliveries
            parking::a_parked_copy_goes_back_with_its_session
            parking::a_parked_copy_can_be_a_dead_letter
            peeking::peeking_past_the_end_is_empty
            peeking::peeking_locks_nothing_and_sees_what_is_locked
            peeking::counts_tell_the_parts_apart
        );
    };
    (@rules [$each:ident] $make:path, $options:tt, $($module:ident :: $rule:ident)*) => {
        $(
            $each! { $rule (#[tokio::test $options]) {
                let bench: $crate::conformance::Bench = $make($crate::conformance::entities()).await;
                $crate::conformance::$module::$rule(&bench).await;
            } }
        )*
    };
    (@rules [] $make:path, $options:tt, $($module:ident :: $rule:ident)*) => {
        $(
            #[tokio::test $options]
            async fn $rule() {
                let bench: $crate::conformance::Bench = $make($crate::conformance::entities()).await;
                $crate::conformance::$module::$rule(&bench).await;
            }
        )*
    };
}

/// Makes a test of every rule for committers: see [`transport_conformance!`](crate::transport_conformance).
#[macro_export]
macro_rules! committer_conformance {
    ($make:path, each = $each:ident ! $(, $option:ident = $value:expr)*) => {
        $crate::committer_conformance!(@all [$each] $make, ($($option = $value),*));
    };
    ($make:path $(, $option:ident = $value:expr)*) => {
        $crate::committer_conformance!(@all [] $make, ($($option = $value),*));
    };
    (@all $each:tt $make:path, $options:tt) => {
        $crate::transport_conformance!(@rules $each $make, $options,
            commits::success_is_visible_together
            commits::a_failure_schedules_blocks_and_completes
            commits::an_idle_state_is_written_as_none
            commits::parking_moves_the_message
            commits::a_parked_copy_is_completed
            commits::a_dead_letter_carries_its_reason
            commits::a_scheduled_retry_is_cancelled
            commits::cancelling_what_is_gone_is_no_error
            commits::a_plain_delivery_is_completed
            commits::enqueued_and_outgoing_messages_arrive_once
            commits::a_lost_session_drops_all
            commits::a_lost_delivery_drops_all
            commits::a_state_conflict_drops_all_and_the_lock_stays
            commits::an_outgoing_message_to_nowhere_is_refused
            commits::a_recorded_delivery_is_settled_and_changes_nothing_more
            commits::what_an_earlier_decision_left_is_carried_out
            commits::a_dropped_caller_does_not_stop_a_commit
        );
    };
}

/// How long a rule waits for what must not come.
pub(crate) const SOON: Duration = Duration::from_millis(30);
/// How long a rule waits at most for what must come.
pub(crate) const EVENTUALLY: Duration = Duration::from_secs(20);

pub(crate) fn entity(name: &str) -> EntityName {
    name.into()
}

pub(crate) fn message(session: Option<&str>, id: &str) -> Message {
    Message { session_id: session.map(SessionId::from), ..sample::message(id) }
}

pub(crate) fn id_of(delivery: &Delivery) -> &str {
    delivery.message.message_id.as_ref().expect("rules send ids").as_str()
}

pub(crate) fn peeked_ids(peeked: &[Peeked]) -> Vec<&str> {
    peeked.iter().map(|it| it.message.message_id.as_ref().expect("rules send ids").as_str()).collect()
}

impl Bench {
    pub(crate) async fn send(&self, to: &str, session: Option<&str>, ids: &[&str]) {
        let messages = ids.iter().map(|id| message(session, id)).collect();
        self.transport.send(&entity(to), messages).await.expect("a message is taken");
    }

    /// Sends without sessions, and says the numbers. Where the broker does not tell them they are looked up.
    pub(crate) async fn numbered(&self, to: &str, ids: &[&str]) -> Vec<SequenceNumber> {
        let messages = ids.iter().map(|id| message(None, id)).collect();
        let told = self.transport.send(&entity(to), messages).await.expect("a message is taken");
        if !self.far {
            return told;
        }
        assert!(told.is_empty(), "all numbers or none: {told:?}");
        let seen = self.peek(to, Part::Active).await;
        let number =
            |id: &&str| seen.iter().find(|it| peeked_ids(std::slice::from_ref(it)) == [*id]).map(|it| it.sequence);
        ids.iter().map(|id| number(id).expect("it was sent")).collect()
    }

    /// A message with everything in it that the transport takes.
    pub(crate) fn full_message(&self, id: &str) -> Message {
        let mut full = sample::full_message(id);
        if self.far {
            let compound =
                |value: &Value| matches!(value, Value::List(_) | Value::Map(_) | Value::Array(_) | Value::Described(_));
            full.properties.retain(|_, value| !compound(value));
            // On the wire an id has the type that its text fits, and the usual priority is no priority.
            full.correlation_id = Some("c0ffee".into());
            full.rare_mut().priority = Some(9);
        }
        full
    }

    /// The session that is offered next.
    pub(crate) async fn offered(&self, source: &str) -> Arc<dyn Session> {
        let session = self.transport.accept_next(&entity(source), EVENTUALLY).await.expect("accepting works");
        session.expect("a session is offered")
    }

    pub(crate) async fn nothing_offered(&self, source: &str) {
        let session = self.transport.accept_next(&entity(source), SOON).await.expect("accepting works");
        assert!(session.is_none(), "session {} is offered", session.expect("it is some").id());
    }

    pub(crate) async fn named(&self, source: &str, session: &str) -> Arc<dyn Session> {
        self.transport.accept(&entity(source), &session.into(), EVENTUALLY).await.expect("the session is accepted")
    }

    /// One message of a plain entity.
    pub(crate) async fn take(&self, source: &str) -> Delivery {
        let mut got = self.transport.receive(&entity(source), 1, EVENTUALLY).await.expect("receiving works");
        assert_eq!(got.len(), 1, "a message comes");
        got.remove(0)
    }

    pub(crate) async fn nothing_to_take(&self, source: &str) {
        let got = self.transport.receive(&entity(source), 10, SOON).await.expect("receiving works");
        assert!(got.is_empty(), "{got:?}");
    }

    pub(crate) async fn peek(&self, source: &str, part: Part) -> Vec<Peeked> {
        self.transport.peek(&entity(source), part, None, SequenceNumber(0), 1_000).await.expect("peeking works")
    }

    pub(crate) async fn lock_duration(&self, source: &str) -> Duration {
        self.transport.describe(&entity(source)).await.expect("the entity is there").lock_duration
    }

    /// Lets every lock of the entity lapse that is not renewed.
    pub(crate) async fn let_locks_lapse(&self, source: &str) {
        let lock = self.lock_duration(source).await;
        tokio::time::sleep(lock + Duration::from_millis(50)).await;
    }
}

/// The session's next message.
pub(crate) async fn next(session: &dyn Session) -> Delivery {
    session.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes")
}

pub(crate) async fn nothing_next(session: &dyn Session) {
    let got = session.receive(SOON).await.expect("receiving works");
    assert!(got.is_none(), "{got:?}");
}

pub(crate) async fn complete(session: &dyn Session, delivery: &Delivery) {
    session.settle(delivery.lock, Settlement::Complete).await.expect("the delivery is completed");
}

pub(crate) async fn release(session: &dyn Session) {
    session.release(Duration::ZERO).await.expect("the session is released");
}

/// The session's oldest parked copy.
pub(crate) async fn parked(session: &dyn Session) -> Delivery {
    match session.receive_parked().await.expect("the look works") {
        Parked::Copy(delivery) => delivery,
        other => panic!("a parked copy is there, not {other:?}"),
    }
}

/// A copy of a delivery with its place in the order, as a commit has one for a transport that parks by copying. Transports do not look at its seal.
pub fn parked_copy(delivery: &Delivery, sequence: u32) -> Message {
    let mut copy = (*delivery.message).clone();
    copy.set_property(property::DEFERRAL_SEQUENCE, Value::Uint(sequence));
    copy
}

/// The parking number: what the transport knows, or else what the copy says.
pub(crate) fn parked_as(copy: &Delivery) -> Option<u32> {
    let said = || copy.message.property(property::DEFERRAL_SEQUENCE).and_then(Value::as_i64);
    copy.parked_as.or_else(|| said().and_then(|number| u32::try_from(number).ok()))
}

pub(crate) async fn nothing_parked(session: &dyn Session) {
    let look = session.receive_parked().await.expect("the look works");
    assert!(matches!(look, Parked::Empty { .. }), "{look:?}");
}
