//! Endpoints on NimBus's topology (P21, reference 1.6): the suites that every transport passes, on sources that are subscriptions of a topic with
//! the Resolver and a forwarder beside them; and that what a host sends to itself reaches nobody else there.

#[path = "support/namespace.rs"]
mod namespace;
#[path = "support/nimbus.rs"]
mod nimbus;
#[path = "support/prefixed.rs"]
mod prefixed;
mod support;

use std::{sync::Arc, time::Duration};

use sprag_broker::{Engine, EntitySpec, FilterSpec, RuleSpec};
use sprag_core::{
    ids::{EntityName, SequenceNumber},
    message::{Message, Value, property},
    seal::Seal,
};
use sprag_servicebus::{
    Config, ServiceBus,
    topology::{self, NimbusEndpoint, Severity, wanted_nimbus},
};
use sprag_store::memory::MemoryStore;
use sprag_transport::{
    Parked, Part, Session, Settlement, Transport,
    conformance::{self, Bench},
    ordered::Ordered,
};

use namespace::Namespace;
use nimbus::EVENT_TYPE;
use prefixed::Prefixed;
use support::{Broker, EVENTUALLY, any_port, config, connection_string, message, until};

/// Each entity of the suite that has sessions is an endpoint; the others are queues that endpoints send to.
async fn bench(entities: &[conformance::EntitySpec]) -> Bench {
    let lock = |it: &conformance::EntitySpec| it.lock_duration.max(Duration::from_secs(1));
    let with_sessions = entities.iter().filter(|it| it.requires_session);
    let endpoints: Vec<_> =
        with_sessions.map(|it| nimbus::endpoint(it.name, lock(it), it.max_delivery_count)).collect();
    let plain: Vec<_> = entities.iter().filter(|it| !it.requires_session).copied().collect();
    let queues = support::specs(&plain);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let specs = nimbus::specs(&endpoints).into_iter().chain(queues.clone()).collect();
    let broker = Broker::start(dir.path(), specs, any_port()).await;
    let transport = transport(&broker, &endpoints, &queues);
    let names: Vec<EntityName> = endpoints.iter().map(|it| it.name.as_str().into()).collect();
    let (store, transport) = (Arc::new(MemoryStore::new()), Arc::new(Prefixed::nimbus(transport, &names)));
    Bench {
        committer: Arc::new(Ordered::new(store.clone(), transport.clone())),
        transport,
        store,
        now: sprag_store::clock::now,
        far: true,
        keep: Box::new((broker, dir)),
    }
}

fn transport(broker: &Broker, endpoints: &[NimbusEndpoint], queues: &[EntitySpec]) -> ServiceBus {
    let mut config = config(broker.address(), queues);
    config.entities.extend(endpoints.iter().map(nimbus::settings));
    config.nimbus = endpoints.iter().map(|it| it.name.clone()).collect();
    ServiceBus::new(config).expect("it needs nothing")
}

sprag_transport::transport_conformance!(bench);

mod committer {
    use super::bench;

    sprag_transport::committer_conformance!(bench);
}

/// One endpoint, `billing`.
struct World {
    transport: ServiceBus,
    source: EntityName,
    broker: Broker,
    _dir: tempfile::TempDir,
}

impl World {
    async fn start() -> Self {
        let endpoint = nimbus::endpoint("billing", Duration::from_secs(30), 10);
        let dir = tempfile::tempdir().expect("a temporary folder");
        let endpoints = [endpoint];
        let broker = Broker::start(dir.path(), nimbus::specs(&endpoints), any_port()).await;
        let transport = transport(&broker, &endpoints, &[]);
        Self { transport, source: nimbus::source(&endpoints[0].name), broker, _dir: dir }
    }

    fn engine(&self) -> &Engine {
        &self.broker.engine
    }

    fn active(&self, entity: &str) -> u64 {
        self.engine().entity(&entity.into()).expect("it is there").counts.active
    }

    /// What nobody but others receives from, on this topic and behind it.
    fn elsewhere(&self) -> Vec<(&'static str, u64)> {
        let all = ["crm/crm", "Resolver/Resolver", "billing/DeferredProcessor", "billing/billing-reply"];
        all.map(|name| (name, self.active(name))).into_iter().filter(|(_, count)| *count > 0).collect()
    }

    async fn session(&self) -> Arc<dyn Session> {
        let session = self.transport.accept_next(&self.source, EVENTUALLY).await.expect("accepting works");
        session.expect("a session is offered")
    }

    async fn peek(&self, part: Part) -> Vec<sprag_transport::Peeked> {
        self.transport.peek(&self.source, part, None, SequenceNumber(0), 100).await.expect("peeking works")
    }
}

/// An event that a consumer of this topic waits for, as long as nobody has forwarded it.
fn event(id: &str) -> Message {
    let mut event = message(Some("s"), id);
    event.set_property(property::EVENT_TYPE_ID, Value::string(EVENT_TYPE));
    event
}

/// As a forwarder of NimBus's brings it to the endpoint.
fn forwarded(id: &str) -> Message {
    let mut event = event(id);
    event.set_property("To", Value::string("billing"));
    event.set_property("From", Value::string("shop"));
    event
}

async fn next(session: &dyn Session) -> sprag_core::message::Delivery {
    session.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes")
}

async fn parked(session: &dyn Session) -> sprag_core::message::Delivery {
    match session.receive_parked().await.expect("the look works") {
        Parked::Copy(copy) => copy,
        other => panic!("{other:?}"),
    }
}

fn id_of(message: &Message) -> &str {
    message.message_id.as_ref().expect("it has one").as_str()
}

/// The others on the topic do take what is for them: without that, the rules below would show nothing.
#[tokio::test]
async fn the_resolver_and_the_forwarder_are_there() {
    let world = World::start().await;
    world.engine().send(&"billing".into(), vec![event("published"), forwarded("received")]).await.expect("taken");
    assert_eq!(
        world.elsewhere(),
        [("crm/crm", 1), ("Resolver/Resolver", 2)],
        "the published one by way of the consumer"
    );
    assert_eq!(world.active("billing/billing"), 1);
}

/// P21: retries and triggers, at once and later, whatever their event said of itself, come to their endpoint and to nobody else; and look there as
/// they did when they were sent, under a seal that holds (P31).
#[tokio::test]
async fn a_stand_in_reaches_its_own_endpoint_only() {
    let world = World::start().await;
    let seal = Seal::new(b"the hosts' key");
    let stand_in = |id: &str, of: Message| {
        let mut message = Message { message_id: Some(id.into()), ..of };
        message.set_property(property::MESSAGE_TYPE, Value::string("RetryRequest"));
        message.set_property(property::INBOX_MESSAGE_ID, Value::string("m"));
        seal.sign(&mut message);
        message
    };
    let mut written_otherwise = event("c");
    written_otherwise.set_property("to", Value::string("Resolver"));
    written_otherwise.set_property("from", Value::Null);
    let soon = sprag_store::clock::now().after(Duration::from_millis(300));
    let later = Message { scheduled_for: Some(soon), ..stand_in("later", forwarded("d")) };
    let sent = [
        stand_in("own", event("a")),
        stand_in("forwarded", forwarded("b")),
        stand_in("otherwise", written_otherwise),
        later.clone(),
    ];
    for message in sent.clone() {
        world.transport.enqueue(&world.source, message).await.expect("it is taken");
    }
    world.transport.send(&world.source, vec![forwarded("operator")]).await.expect("it is taken");
    let waiting = world.peek(Part::Scheduled).await;
    assert_eq!(waiting.iter().map(|it| &it.message).collect::<Vec<_>>(), [&later], "seen where it waits, as it was");
    until("the later one has come", || world.active("billing/billing") == 5).await;
    assert_eq!(world.elsewhere(), []);
    assert_eq!(world.active("billing/Deferred"), 0);

    let session = world.session().await;
    let mut got = Vec::new();
    for _ in 0..5 {
        let delivery = next(&*session).await;
        session.settle(delivery.lock, Settlement::Complete).await.expect("it is completed");
        got.push(delivery.message);
    }
    assert_eq!(*got[0], sent[0]);
    assert_eq!(*got[1], sent[1]);
    assert_eq!(got[2].text_property("To"), Some("Resolver"), "under its usual name");
    assert_eq!(*got[3], forwarded("operator"));
    assert_eq!((id_of(&got[4]), got[4].text_property("From")), ("later", Some("shop")));
    assert!([0, 1, 2, 4].into_iter().all(|at| seal.holds(&got[at])), "the way changes nothing that is sealed");
}

/// P11: a retry that is resolved before its time is taken back, by its id, also by a host that did not send it.
#[tokio::test]
async fn what_waits_on_the_topic_is_taken_back() {
    let world = World::start().await;
    let tomorrow = sprag_store::clock::now().after(Duration::from_secs(86_400));
    let later = |id: &str| Message { scheduled_for: Some(tomorrow), ..event(id) };
    for id in ["mine", "theirs", "mine"] {
        world.transport.enqueue(&world.source, later(id)).await.expect("it is taken");
    }
    // Somebody's own, published later: not this endpoint's to see or to take.
    world.engine().send(&"billing".into(), vec![later("published")]).await.expect("it is taken");
    let ids =
        |seen: &[sprag_transport::Peeked]| seen.iter().map(|it| id_of(&it.message).to_owned()).collect::<Vec<_>>();
    assert_eq!(ids(&world.peek(Part::Scheduled).await), ["mine", "theirs"]);
    let other = transport(&world.broker, &[nimbus::endpoint("billing", Duration::from_secs(30), 10)], &[]);
    assert!(other.cancel_scheduled_id(&world.source, &"theirs".into()).await.expect("an answer"));
    assert!(!other.cancel_scheduled_id(&world.source, &"published".into()).await.expect("an answer"));
    assert!(world.transport.cancel_scheduled_id(&world.source, &"mine".into()).await.expect("an answer"));
    assert!(world.peek(Part::Scheduled).await.is_empty());
}

/// P16, P19, P21: parked copies wait on `Deferred` only, in their order, beside what NimBus has parked there; what is given up there is seen (P24)
/// and goes back there only.
#[tokio::test]
async fn what_is_parked_waits_on_deferred_only() {
    let world = World::start().await;
    world.engine().send(&"billing".into(), vec![forwarded("1"), forwarded("2")]).await.expect("they are taken");
    let before = world.elsewhere();
    let session = world.session().await;
    // As NimBus parks, before the endpoint was ours.
    let mut theirs = event("0");
    for (name, value) in [("To", "Deferred"), ("From", "shop"), (property::ORIGINAL_SESSION_ID, "s")] {
        theirs.set_property(name, Value::string(value));
    }
    theirs.set_property(property::DEFERRAL_SEQUENCE, Value::Int(0));
    world.engine().send(&"billing".into(), vec![theirs.clone()]).await.expect("it is taken");
    for sequence in [2, 1] {
        let delivery = next(&*session).await;
        let copy = conformance::parked_copy(&delivery, sequence);
        session.park(&delivery, sequence, &copy).await.expect("it is parked");
        session.settle(delivery.lock, Settlement::Complete).await.expect("it is completed");
    }
    assert_eq!((world.active("billing/Deferred"), world.active("billing/billing")), (3, 0));
    assert_eq!(world.elsewhere(), before, "nobody else has seen a copy");

    let copy = parked(&*session).await;
    assert_eq!(*copy.message, theirs, "as it came: it says of itself what it says");
    session.settle(copy.lock, Settlement::Complete).await.expect("it is completed");
    let copy = parked(&*session).await;
    assert_eq!((id_of(&copy.message), copy.message.text_property("To")), ("2", Some("billing")));
    let give_up = Settlement::DeadLetter { reason: "Why".into(), description: "because".into() };
    session.settle(copy.lock, give_up).await.expect("it is given up");
    let dead = world.peek(Part::DeadLetters).await;
    assert_eq!(dead.iter().map(|it| id_of(&it.message)).collect::<Vec<_>>(), ["2"]);
    let replayed = world.transport.replay_dead_letters(&world.source, &[dead[0].sequence]).await;
    assert_eq!(replayed.expect("an answer"), 1);
    let order = ["2", "1"].map(str::to_owned);
    for id in order {
        let copy = parked(&*session).await;
        assert_eq!((id_of(&copy.message), copy.message.text_property("From")), (&*id, Some("shop")));
        session.settle(copy.lock, Settlement::Complete).await.expect("it is completed");
    }
    assert!(matches!(session.receive_parked().await, Ok(Parked::Empty { certain: false })));
    assert_eq!(world.elsewhere(), before);
}

/// A dead letter of the endpoint's goes back to the endpoint, and the Resolver does not see it as a new one.
#[tokio::test]
async fn a_dead_letter_goes_back_to_its_endpoint_only() {
    let world = World::start().await;
    world.engine().send(&"billing".into(), vec![forwarded("1")]).await.expect("it is taken");
    let before = world.elsewhere();
    let session = world.session().await;
    let delivery = next(&*session).await;
    let give_up = Settlement::DeadLetter { reason: "Why".into(), description: "because".into() };
    session.settle(delivery.lock, give_up).await.expect("it is given up");
    let dead = world.peek(Part::DeadLetters).await;
    world.transport.replay_dead_letters(&world.source, &[dead[0].sequence]).await.expect("an answer");
    let again = next(&*session).await;
    assert_eq!(*again.message, forwarded("1"));
    assert_eq!(world.elsewhere(), before);
}

/// P21, P19: `check`, and with it the start of a host, refuses a topic on which somebody else could take what is the endpoint's, or on which it
/// expires; `apply` leaves what is not the endpoint's as it is.
#[tokio::test]
async fn who_else_could_take_it_is_named() {
    let namespace = Namespace::start().await;
    let (client, engine) = (&namespace.administration, &namespace.broker.engine);
    let wanted = wanted_nimbus(&nimbus::endpoint("billing", Duration::from_secs(45), 7));
    let problems = async || topology::check(&wanted, &topology::current(client, &wanted).await.expect("it is read"));
    topology::apply(client, &wanted, &mut |_| {}).await.expect("it is applied");
    assert_eq!(problems().await, []);

    // Not ours: others may have it otherwise.
    let resolver = engine.entity(&"Resolver/Resolver".into()).expect("it is there").spec;
    assert_eq!((resolver.lock_duration.as_secs(), resolver.max_delivery_count), (30, 10), "made as NimBus makes it");
    engine.update_entity(EntitySpec { max_delivery_count: 3, ..resolver }).await.expect("it is changed");
    let harmless = FilterSpec::Sql("user.EventTypeId = 'x' AND user.From IS NULL".into());
    engine.declare(vec![EntitySpec::subscription(&"billing".into(), "agent", harmless)]).await.expect("it is taken");
    assert_eq!(problems().await, []);

    let tap = EntitySpec::subscription(&"billing".into(), "audit", FilterSpec::All);
    engine.declare(vec![tap]).await.expect("it is taken");
    let by_type = RuleSpec::new("all-orders", FilterSpec::Sql("EventTypeId LIKE 'Order%'".into()));
    engine.add_rule(&"billing/billing".into(), by_type).await.expect("it is added");
    let mut topic = engine.entity(&"billing".into()).expect("it is there").spec;
    topic.default_ttl = Some(Duration::from_secs(3_600));
    engine.update_entity(topic).await.expect("it is changed");
    let found = problems().await;
    let told: Vec<_> = found.iter().map(|it| (it.severity, it.path.to_string())).collect();
    let error = |path: &str| (Severity::Error, path.to_owned());
    assert_eq!(
        told,
        [error("topic billing"), error("subscription billing/audit"), error("subscription billing/billing"),],
        "{found:?}"
    );
    assert!(found[0].text.contains("(P19)") && found[1].text.contains("(P21)") && found[2].text.contains("all-orders"));

    let report = topology::apply(client, &wanted, &mut |_| {}).await.expect("it is applied");
    assert_eq!(report.done.iter().map(ToString::to_string).collect::<Vec<_>>(), ["update ttl of topic billing"]);
    let resolver = engine.entity(&"Resolver/Resolver".into()).expect("it is there").spec;
    assert_eq!(resolver.max_delivery_count, 3, "left as it was");
}

/// What `apply` makes is what the transport needs.
#[tokio::test]
async fn what_is_applied_carries_an_endpoint() {
    let namespace = Namespace::start().await;
    let endpoint = nimbus::endpoint("billing", Duration::from_secs(30), 10);
    topology::apply(&namespace.administration, &wanted_nimbus(&endpoint), &mut |_| {}).await.expect("it is applied");
    let transport = ServiceBus::new(Config {
        entities: vec![nimbus::settings(&endpoint)],
        nimbus: vec![endpoint.name.clone()],
        ..Config::new(connection_string(namespace.broker.address()))
    });
    let (transport, source) = (transport.expect("it needs nothing"), nimbus::source(&endpoint.name));
    transport.settings(&source).await.expect("it is there");
    transport.enqueue(&source, event("retry")).await.expect("it is taken");
    let session = transport.accept_next(&source, EVENTUALLY).await.expect("accepting works").expect("it is offered");
    let delivery = next(&*session).await;
    session.park(&delivery, 0, &conformance::parked_copy(&delivery, 0)).await.expect("it is parked");
    session.settle(delivery.lock, Settlement::Complete).await.expect("it is completed");
    assert_eq!(id_of(&parked(&*session).await.message), "retry");
    let resolver = namespace.broker.engine.entity(&"Resolver/Resolver".into()).expect("it is there");
    assert_eq!(resolver.counts.active, 0);
}
