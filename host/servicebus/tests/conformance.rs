//! The suites that every transport and every committer pass, over TCP against the embedded broker's AMQP face, or against the namespace that
//! `SPRAG_TEST_SERVICEBUS` names (`docs/run-on-service-bus.md`, "Testing against a namespace").

#[path = "support/namespace.rs"]
mod namespace;
#[path = "support/place.rs"]
mod place;
#[path = "support/prefixed.rs"]
mod prefixed;
mod support;

use std::sync::Arc;

use sprag_core::ids::EntityName;
use sprag_servicebus::administration::{Administration, Path};
use sprag_store::memory::MemoryStore;
use sprag_transport::{
    conformance::{self, Bench},
    ordered::Ordered,
};
use tokio::sync::oneshot;

use namespace::Namespace;
use place::Place;
use support::{Broker, any_port, connection_string, specs, transport};

async fn bench(entities: &[conformance::EntitySpec]) -> Bench {
    if let Some(place) = Place::of_environment() {
        return place.bench(entities).await;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let specs = specs(entities);
    let broker = Broker::start(dir.path(), specs.clone(), any_port()).await;
    let (store, transport) = (Arc::new(MemoryStore::new()), Arc::new(transport(broker.address(), &specs)));
    Bench {
        committer: Arc::new(Ordered::new(store.clone(), transport.clone())),
        transport,
        store,
        now: sprag_store::clock::now,
        far: true,
        keep: Box::new((broker, dir)),
    }
}

sprag_transport::transport_conformance!(bench);

mod committer {
    use super::bench;

    sprag_transport::committer_conformance!(bench);
}

/// Once a run, on the namespace of the environment. Without one there is nothing to sweep; [`only_what_is_old_and_ours_is_swept`] shows that it works.
#[tokio::test]
async fn what_killed_runs_left_is_swept() {
    let Some(place) = Place::of_environment() else { return };
    for name in place.sweep().await {
        eprintln!("{name} was left by another run, and is removed");
    }
}

/// A namespace on a thread of its own: what is dropped waits for it, and would wait for ever on the same one.
struct Aside {
    place: Place,
    administration: Administration,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Aside {
    async fn start() -> Self {
        let (tell, told) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = async move {
            let namespace = Namespace::start().await;
            let ports = (namespace.broker.address(), namespace.port);
            tell.send(ports).expect("somebody waits for it");
            let _either_way = stopped.await;
        };
        let thread = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(serve);
        });
        let (address, port) = told.await.expect("it starts");
        let place = Place::new(connection_string(address), Some(port));
        Self { administration: place.administration(), place, stop: Some(stop), thread: Some(thread) }
    }

    async fn queues(&self) -> Vec<EntityName> {
        let queues = self.administration.queues().await.expect("they are listed");
        queues.iter().map(|queue| queue.path.name()).collect()
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(ended, Some(Ok(()))), "the namespace does not panic");
        }
    }
}

/// What `SPRAG_TEST_SERVICEBUS` does, with a namespace of our own in place of Azure's.
#[tokio::test]
async fn rules_run_on_a_namespace_beside_each_other() {
    let aside = Aside::start().await;
    let entities = conformance::entities();
    let (first, second) = (aside.place.bench(entities).await, aside.place.bench(entities).await);
    let made = aside.queues().await;
    assert_eq!(made.len(), 2 * specs(entities).len(), "{made:?}");
    assert!(made.iter().all(|name| name.as_str().starts_with("sprag-test-")), "{made:?}");

    // Names go there and back, and the second does not see what the first one's rules leave in entities of the same names.
    conformance::sending::an_entity_that_is_not_there(&first).await;
    conformance::sessions::messages_come_in_order(&first).await;
    conformance::scheduled::cancelling_a_wrong_number_names_it(&first).await;
    conformance::parking::a_parked_message_is_found_again(&second).await;
    conformance::commits::a_plain_delivery_is_completed(&second).await;
    drop(first);
    assert_eq!(aside.queues().await.len(), specs(entities).len(), "the other one's are still there");
    drop(second);
    assert_eq!(aside.queues().await, []);
}

#[tokio::test]
async fn a_rule_that_fails_leaves_nothing() {
    let aside = Aside::start().await;
    let place = aside.place.clone();
    let rule = async move {
        let bench = place.bench(conformance::entities()).await;
        assert!(bench.transport.entities().await.expect("a listing").is_empty(), "as a rule fails");
    };
    let failed = tokio::spawn(rule).await.expect_err("there are entities");
    assert!(failed.is_panic());
    assert_eq!(aside.queues().await, []);
}

#[tokio::test]
async fn only_what_is_old_and_ours_is_swept() {
    let aside = Aside::start().await;
    let now = place::now();
    let (old, young) = (place::prefix(now - 3_700), place::prefix(now - 3_500));
    let (old, young) = (["sessions", "sessions.deferred"].map(|name| format!("{old}{name}")), format!("{young}plain"));
    let others = ["orders", "sprag-test-1-orders", "sprag-test-1-0000000g-x", "sprag-test-x-00000000-x"];
    let all = old.iter().chain([&young]).map(String::as_str).chain(others);
    for name in all {
        aside.administration.create(&Path::queue(name), &[], None).await.expect("it is made");
    }
    let mut swept = aside.place.sweep().await;
    swept.sort();
    assert_eq!(swept, old.map(EntityName::from));
    let mut left = aside.queues().await;
    left.sort();
    let mut kept = others.map(EntityName::from).to_vec();
    kept.push(young.into());
    kept.sort();
    assert_eq!(left, kept);
    assert_eq!(aside.place.sweep().await, []);
}
