//! Topology and its administration, against the broker's own administration API over TCP, and against a fake of it for what that cannot be
//! made to say.

#[path = "support/namespace.rs"]
mod namespace;
mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use sprag_broker::{DEFAULT_RULE, EntityKind, EntitySpec, EntityStatus, FilterSpec, RuleSpec};
use sprag_core::{
    ids::EntityName,
    message::{Body, Message, Value, property},
};
use sprag_servicebus::{
    Config, ConnectionString, EntitySettings, ServiceBus, Token, TokenError, TokenSource,
    administration::{self, Administration, Error, Path, Rule, Setting},
    topology::{
        ApplyError, Change, Difference, Endpoint, Forward, NimbusEndpoint, Progress, Report, Source, Wanted, apply,
        check, current, diff, read_settings, view, wanted, wanted_nimbus,
    },
};
use sprag_transport::{Parked, Settlement, Transport as _};

use namespace::{Fake, Namespace};
use support::connection_string;

const EVENTUALLY: Duration = Duration::from_secs(20);

fn billing(filter: Option<&str>) -> Vec<Wanted> {
    wanted(&Endpoint {
        name: "billing".into(),
        source: Source::Topic {
            topic: "shop".into(),
            subscription: "billing".into(),
            filter: filter.map(str::to_owned),
        },
        requires_session: true,
        lock_duration: Duration::from_secs(30),
        max_delivery_count: 10,
    })
}

async fn applied(administration: &Administration, wanted: &[Wanted]) -> Report {
    apply(administration, wanted, &mut |_| {}).await.expect("it is applied")
}

async fn difference(administration: &Administration, wanted: &[Wanted]) -> Difference {
    diff(wanted, &current(administration, wanted).await.expect("it is read"))
}

fn done(report: &Report) -> Vec<String> {
    report.done.iter().map(ToString::to_string).collect()
}

fn name(text: &str) -> EntityName {
    text.into()
}

#[tokio::test]
async fn what_an_endpoint_needs_is_made_once() {
    let namespace = Namespace::start().await;
    let (client, wanted) = (&namespace.administration, billing(Some("EventTypeId LIKE 'Order%'")));
    let mut told = Vec::new();
    let report =
        apply(client, &wanted, &mut |progress| told.push(format!("{progress:?}").split('(').next().map(str::to_owned)))
            .await
            .expect("it is applied");
    let made = [
        "create queue billing",
        "create queue billing.deferred",
        "create topic shop",
        "create subscription shop/billing",
    ];
    assert_eq!(done(&report), made);
    assert_eq!(told.len(), 8, "each is told when it begins and when it is done: {told:?}");

    let spec = |entity: &str| namespace.broker.engine.entity(&name(entity)).expect("it is there").spec;
    let (queue, deferred) = (spec("billing"), spec("billing.deferred"));
    assert_eq!((queue.requires_session, queue.max_delivery_count, queue.lock_duration.as_secs()), (true, 10, 30));
    assert_eq!((deferred.requires_session, deferred.max_delivery_count), (true, 2_000));
    for spec in [&queue, &deferred] {
        assert_eq!((spec.default_ttl, spec.dead_letter_on_expiry, spec.duplicate_detection), (None, true, None));
    }
    let subscription = spec("shop/billing");
    assert_eq!((subscription.requires_session, subscription.forward_to), (false, Some(name("billing"))));
    let rules = namespace.broker.engine.rules(&name("shop/billing")).expect("they are there");
    assert_eq!(rules.len(), 1);
    assert_eq!(rules[0].spec.name, DEFAULT_RULE);
    assert_eq!(rules[0].spec.filter, FilterSpec::Sql("EventTypeId LIKE 'Order%'".into()));

    let again = applied(client, &wanted).await;
    assert_eq!((done(&again), again.untouched.len()), (Vec::new(), 4));
    let now = current(client, &wanted).await.expect("it is read");
    assert_eq!(check(&wanted, &now), []);
    let queue = now.get(&Path::queue("Billing")).expect("it is there");
    assert_eq!(
        read_settings(&queue.entity),
        EntitySettings { requires_session: true, ..EntitySettings::plain("billing") }
    );
}

/// After `apply`, what is published reaches the endpoint's own queue, with its session, and can be parked there.
#[tokio::test]
async fn messages_go_the_way_that_was_made() {
    let namespace = Namespace::start().await;
    let wanted = billing(Some("EventTypeId LIKE 'Order%'"));
    applied(&namespace.administration, &wanted).await;
    let now = current(&namespace.administration, &wanted).await.expect("it is read");
    let entities = ["billing", "billing.deferred"]
        .map(|queue| read_settings(&now.get(&Path::queue(queue)).expect("it is there").entity));
    let transport = ServiceBus::new(Config {
        entities: entities.into(),
        ..Config::new(connection_string(namespace.broker.address()))
    })
    .expect("it needs nothing");
    let event = |id: &str, event_type: &str| {
        let mut message = Message {
            message_id: Some(id.into()),
            session_id: Some("s".into()),
            body: Body::Data(Bytes::from_static(b"x")),
            ..Message::default()
        };
        message.set_property(property::EVENT_TYPE_ID, Value::string(event_type));
        message
    };
    let sent = vec![event("1", "OrderPlaced"), event("2", "Other"), event("3", "OrderPaid")];
    transport.send(&name("shop"), sent).await.expect("it is taken");
    let session =
        transport.accept_next(&name("billing"), EVENTUALLY).await.expect("accepting works").expect("a session");
    assert_eq!(session.id().as_str(), "s");
    let mut ids = Vec::new();
    for sequence in 0..2 {
        let delivery = session.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes");
        ids.push(delivery.message.message_id.as_ref().expect("it has one").to_string());
        session.park(&delivery, sequence, &delivery.message).await.expect("it is parked");
        session.settle(delivery.lock, Settlement::Complete).await.expect("it is completed");
    }
    assert_eq!(ids, ["1", "3"], "the rule leaves out the other");
    for id in ids {
        let Parked::Copy(copy) = session.receive_parked().await.expect("looking works") else {
            panic!("{id} is parked")
        };
        assert_eq!(copy.message.message_id.as_ref().map(|it| it.as_str()), Some(id.as_str()));
        session.settle(copy.lock, Settlement::Complete).await.expect("it is completed");
    }
}

#[tokio::test]
async fn what_was_changed_by_hand_is_put_right_and_the_rest_stays() {
    let namespace = Namespace::start().await;
    let (client, engine, wanted) = (&namespace.administration, &namespace.broker.engine, billing(None));
    applied(client, &wanted).await;
    let spec = engine.entity(&name("billing")).expect("it is there").spec;
    let by_hand = EntitySpec {
        lock_duration: Duration::from_secs(60),
        default_ttl: Some(Duration::from_secs(3_600)),
        user_metadata: Some("ours".into()),
        status: EntityStatus::ReceiveDisabled,
        max_size: Some(7 << 20),
        ..spec.clone()
    };
    engine.update_entity(by_hand.clone()).await.expect("it is changed");
    let steps = view::steps_text(&view::steps(&difference(client, &wanted).await));
    assert_eq!(steps, "update  queue  billing  lock_duration 30s (is 1m), ttl never (is 1h)\n");
    let report = applied(client, &wanted).await;
    assert_eq!(done(&report), ["update lock_duration, ttl of queue billing"]);
    let now = engine.entity(&name("billing")).expect("it is there").spec;
    assert_eq!(now, EntitySpec { lock_duration: spec.lock_duration, default_ttl: None, ..by_hand });
    assert!(difference(client, &wanted).await.is_none());
}

#[tokio::test]
async fn a_rule_is_changed_in_place_and_others_are_left() {
    let namespace = Namespace::start().await;
    let (client, engine) = (&namespace.administration, &namespace.broker.engine);
    applied(client, &billing(None)).await;
    let subscription = name("shop/billing");
    engine.add_rule(&subscription, RuleSpec::new("mine", FilterSpec::Sql("b = 2".into()))).await.expect("it is added");
    let wanted = billing(Some("a = 1"));
    let report = applied(client, &wanted).await;
    assert_eq!(done(&report), ["update rule $Default of subscription shop/billing"]);
    let left: Vec<_> = report.left.iter().map(|left| left.rule.name.as_str()).collect();
    assert_eq!(left, ["mine"]);
    let filters: Vec<_> =
        engine.rules(&subscription).expect("they are there").into_iter().map(|it| it.spec.filter).collect();
    assert_eq!(filters, [FilterSpec::Sql("a = 1".into()), FilterSpec::Sql("b = 2".into())]);
    engine.remove_rule(&subscription, DEFAULT_RULE).await.expect("it is removed");
    assert_eq!(done(&applied(client, &wanted).await), ["create rule $Default of subscription shop/billing"]);
}

/// What cannot be changed in place is refused with its text, and nothing else is touched, not even what could be.
#[tokio::test]
async fn with_a_conflict_nothing_is_changed() {
    let namespace = Namespace::start().await;
    let (client, engine, wanted) = (&namespace.administration, &namespace.broker.engine, billing(None));
    let plain = EntitySpec { max_delivery_count: 3, ..EntitySpec::queue("billing") };
    let detecting = EntitySpec {
        duplicate_detection: Some(Duration::from_secs(60)),
        ..EntitySpec::queue("billing.deferred").with_sessions()
    };
    for spec in [plain, detecting] {
        engine.create_entity(spec, vec![]).await.expect("it is made");
    }
    let before = engine.all_entities();
    let error = apply(client, &wanted, &mut |progress| panic!("{progress:?}")).await.expect_err("it is refused");
    let ApplyError::Conflicts { conflicts, report } = &error else { panic!("{error}") };
    assert_eq!(conflicts.iter().map(|it| it.setting).collect::<Vec<_>>(), ["requires_session", "duplicate_detection"]);
    assert_eq!(report.done, []);
    let text = error.to_string();
    for part in ["queue billing: it has no sessions, and it needs them", "give the endpoint another name", "(P25)"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(engine.all_entities(), before);
}

/// Above all: what is parked is never lost to a change of settings.
#[tokio::test]
async fn parked_messages_survive() {
    let namespace = Namespace::start().await;
    let (client, engine, wanted) = (&namespace.administration, &namespace.broker.engine, billing(None));
    applied(client, &wanted).await;
    let parked = name("billing.deferred");
    let message = Message { message_id: Some("1".into()), session_id: Some("s".into()), ..Message::default() };
    engine.send(&parked, vec![message]).await.expect("it is taken");
    let before = engine.entity(&parked).expect("it is there");
    let short = EntitySpec {
        default_ttl: Some(Duration::from_secs(86_400)),
        max_delivery_count: 10,
        dead_letter_on_expiry: false,
        ..before.spec.clone()
    };
    engine.update_entity(short).await.expect("it is changed");
    let report = applied(client, &wanted).await;
    assert_eq!(done(&report), ["update max_delivery_count, ttl, dead_letter_on_expiry of queue billing.deferred"]);
    let after = engine.entity(&parked).expect("it is there");
    assert_eq!((after.spec, after.created_at, after.counts.active), (before.spec, before.created_at, 1));
}

/// Several hosts at once: each ends with everything there, whoever made it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_may_apply_at_the_same_time() {
    let namespace = Namespace::start().await;
    let mut wanted = billing(Some("a = 1"));
    wanted.extend(wanted_nimbus(&nimbus("crm", &[])));
    let hosts = (0..4).map(|_| {
        let (port, wanted) = (namespace.port, wanted.clone());
        tokio::spawn(async move {
            let client = Administration::new(namespace::config(port)).expect("it needs nothing");
            applied(&client, &wanted).await
        })
    });
    let hosts: Vec<_> = hosts.collect();
    let mut made = Vec::new();
    for host in hosts {
        let report = host.await.expect("no panic");
        made.extend(done(&report));
    }
    let mut once = made.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), made.len(), "nothing is made twice: {made:?}");
    assert!(difference(&namespace.administration, &wanted).await.is_none());
}

fn nimbus(endpoint: &str, forwards: &[(&str, &[&str])]) -> NimbusEndpoint {
    let forward = |(to, types): &(&str, &[&str])| Forward {
        to: (*to).into(),
        event_types: types.iter().map(|it| (*it).to_owned()).collect(),
    };
    NimbusEndpoint {
        name: endpoint.into(),
        lock_duration: Duration::from_secs(30),
        max_delivery_count: 10,
        forwards: forwards.iter().map(forward).collect(),
    }
}

/// NimBus's topology: what a producer publishes comes to the consumer's own subscription with its address, and to the resolver beside it.
#[tokio::test]
async fn the_topology_of_nimbus_routes_as_nimbus_does() {
    let namespace = Namespace::start().await;
    let (client, engine) = (&namespace.administration, &namespace.broker.engine);
    let mut wanted = wanted_nimbus(&nimbus("shop", &[("crm", &["OrderPlaced", "OrderPaid"])]));
    wanted.extend(wanted_nimbus(&nimbus("crm", &[])));
    applied(client, &wanted).await;
    let again = applied(client, &wanted).await;
    assert_eq!((done(&again), again.left), (Vec::new(), Vec::new()), "no rule lets everything in");
    let mut event = Message { message_id: Some("1".into()), session_id: Some("s".into()), ..Message::default() };
    for (property, value) in [(property::EVENT_TYPE_ID, "OrderPaid"), ("To", "OrderPaid"), ("EventId", "e")] {
        event.set_property(property, Value::string(value));
    }
    engine.send(&name("shop"), vec![event]).await.expect("it is taken");
    let at = |entity: &str| engine.entity(&name(entity)).expect("it is there").counts.active;
    let where_it_is =
        ["crm/crm", "Resolver/Resolver", "shop/shop", "shop/Deferred", "crm/Deferred", "crm/crm-reply"].map(at);
    assert_eq!(where_it_is, [1, 1, 0, 0, 0, 0]);
    let source = engine.source(&name("crm/crm")).expect("it is there");
    let got = source.peek(sprag_core::ids::SequenceNumber(0), 10, None).await.expect("it is looked at");
    let text = |property: &str| got[0].message.text_property(property).map(str::to_owned);
    assert_eq!((text("To"), text("From")), (Some("crm".into()), Some("shop".into())));
    assert!(text("EventId").is_some_and(|id| id != "e"), "each copy is an event of its own");
    assert_eq!(check(&wanted, &current(client, &wanted).await.expect("it is read")), []);
}

/// A namespace of more entities than a page takes, rules too.
#[tokio::test]
async fn lists_are_read_to_their_end() {
    let namespace = Namespace::start().await;
    let (client, engine) = (&namespace.administration, &namespace.broker.engine);
    let queues: Vec<_> = (0..205).map(|n| EntitySpec::queue(format!("q{n:03}"))).collect();
    let topic = EntitySpec::topic("shop");
    let subscription = EntitySpec::subscription(&name("shop"), "s", FilterSpec::All);
    engine.declare(queues.into_iter().chain([topic, subscription]).collect()).await.expect("they are taken");
    for n in 0..101 {
        engine
            .add_rule(&name("shop/s"), RuleSpec::new(format!("r{n}"), FilterSpec::Nothing))
            .await
            .expect("it is added");
    }
    let queues = client.queues().await.expect("they are listed");
    assert_eq!((queues.len(), &queues[0].path, &queues[204].path), (205, &Path::queue("q000"), &Path::queue("q204")));
    assert_eq!(client.topics().await.expect("they are listed")[0].path, Path::topic("shop"));
    let path = Path::subscription("shop", "s");
    assert_eq!(client.subscriptions(&name("shop")).await.expect("they are listed")[0].path, path);
    assert_eq!(client.rules(&path).await.expect("they are listed").len(), 102);
    assert_eq!(client.rule(&path, "r7").await.expect("it is there").filter, administration::Filter::Nothing);
    assert!(client.exists(&Path::topic("shop")).await.expect("it is asked"));
    assert!(!client.exists(&Path::queue("shop")).await.expect("it is asked"), "a topic is no queue");
    assert!(!client.exists(&Path::subscription("shop", "none")).await.expect("it is asked"));
    let error = client.create(&Path::queue("q000"), &[], None).await.expect_err("it is there");
    assert!(error.is_conflict() && error.to_string().contains("q000 is there already"), "{error}");
    let kind = engine.entity(&name("shop/s")).expect("it is there").spec.kind;
    assert!(matches!(kind, EntityKind::Subscription(_)));
}

#[tokio::test]
async fn a_wrong_key_is_told_from_a_right_that_is_missing() {
    let namespace = Namespace::start().await;
    let mut config = namespace::config(namespace.port);
    config.connection.credential =
        sprag_servicebus::Credential::Key { name: "RootManageSharedAccessKey".into(), key: "not-the-key".into() };
    let client = Administration::new(config).expect("it needs nothing");
    let error = apply(&client, &billing(None), &mut |_| {}).await.expect_err("it is refused");
    let ApplyError::Administration { error: Error::Unauthorized { right, detail, .. }, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(right.contains("Manage") && detail.contains("signature does not fit the key"), "{error}");
    let all = format!("{error} {error:?}");
    assert!(!all.contains("not-the-key") && !all.contains("sig="), "{all}");
}

#[tokio::test]
async fn a_namespace_that_is_not_there_is_told_so() {
    let mut namespace = Namespace::start().await;
    namespace.stop_administration().await;
    let client = Administration::new(namespace::config(namespace.port)).expect("it needs nothing");
    let error = apply(&client, &billing(None), &mut |_| {}).await.expect_err("nobody answers");
    let ApplyError::Administration { error: Error::Unreachable { address, .. }, change: None, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(*address, format!("http://127.0.0.1:{}", namespace.port));
}

// === against a fake ===

fn queue_entry(title: &str, settings: &str) -> String {
    format!(
        "<entry xmlns='http://www.w3.org/2005/Atom'><title type='text'>{title}</title><content type='application/xml'>\
         <QueueDescription xmlns='http://schemas.microsoft.com/netservices/2010/10/servicebus/connect'>{settings}</QueueDescription>\
         </content></entry>"
    )
}

fn detail(text: &str) -> String {
    format!("<Error><Code>1</Code><Detail>{text}</Detail></Error>")
}

const BUSY: &str = "429 Too Many Requests\r\nRetry-After: 0";
const SESSIONS: &str = "<RequiresSession>true</RequiresSession>";

#[tokio::test]
async fn a_busy_namespace_is_asked_again() {
    let answers = [
        (BUSY, detail("SubCode=50009 slow down")),
        ("503 Service Unavailable", String::new()),
        ("200 OK", queue_entry("q", SESSIONS)),
    ];
    let fake = Fake::start(answers).await;
    let queue = fake.client().get(&Path::queue("q")).await.expect("it is there");
    assert!(queue.requires_session);
    let got = fake.got();
    assert_eq!(got.len(), 3);
    for it in got {
        assert_eq!(it.line, "GET /q?api-version=2021-05 HTTP/1.1");
        assert!(it.head.to_lowercase().contains("authorization: sharedaccesssignature sr="), "{}", it.head);
    }
}

/// As often as is configured; and not at all when it is to wait longer than is bearable.
#[tokio::test]
async fn a_busy_namespace_is_not_asked_for_ever() {
    let fake = Fake::start([(BUSY, detail("SubCode=50009 slow down"))]).await;
    let error = fake.client().get(&Path::queue("q")).await.expect_err("it stays busy");
    assert!(matches!(error, Error::Busy { status: 429, tries: 4, .. }), "{error}");
    assert!(error.to_string().contains("slow down"), "{error}");
    assert_eq!(fake.got().len(), 4);
    let fake = Fake::start([("429 Too Many Requests\r\nRetry-After: 3600", String::new())]).await;
    let client = fake.client();
    let answer = tokio::time::timeout(EVENTUALLY, client.get(&Path::queue("q"))).await.expect("nobody waits an hour");
    let error = answer.expect_err("it stays busy");
    assert!(
        matches!(error, Error::Busy { tries: 1, retry_after: Some(wait), .. } if wait.as_secs() == 3_600),
        "{error}"
    );
    assert_eq!(fake.got().len(), 1);
}

/// The other host's queue came between the look and the making.
#[tokio::test]
async fn a_conflict_is_looked_at_again() {
    let wanted: Vec<_> = wanted(&Endpoint {
        name: "mails".into(),
        source: Source::Queue("mails".into()),
        requires_session: false,
        lock_duration: Duration::from_secs(30),
        max_delivery_count: 10,
    });
    let whole = queue_entry(
        "mails",
        "<LockDuration>PT30S</LockDuration><DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>",
    );
    let answers = [
        // An entity that is not there, as Azure says it.
        (
            "200 OK",
            "<feed xmlns='http://www.w3.org/2005/Atom'><title>Publicly Listed Services</title></feed>".to_owned(),
        ),
        ("409 Conflict", detail("SubCode=40901. Another conflicting operation is in progress.")),
        ("200 OK", whole),
    ];
    let fake = Fake::start(answers).await;
    let mut again = 0;
    let mut progress = |progress: Progress<'_>| again += usize::from(matches!(progress, Progress::LookingAgain { .. }));
    let report = apply(&fake.client(), &wanted, &mut progress).await.expect("it is applied");
    assert_eq!((done(&report), again), (Vec::new(), 1));
    let methods: Vec<_> = fake.got().iter().map(|it| it.line[..3].to_owned()).collect();
    assert_eq!(methods, ["GET", "PUT", "GET"]);
}

/// A server that takes a change and does not make it would be asked for ever.
#[tokio::test]
async fn a_change_that_is_not_kept_is_told_so() {
    let wanted = vec![Wanted::new(Path::queue("q"), vec![Setting::TimeToLive(None)])];
    let fake =
        Fake::start([("200 OK", queue_entry("q", "<DefaultMessageTimeToLive>PT1H</DefaultMessageTimeToLive>"))]).await;
    let error = apply(&fake.client(), &wanted, &mut |_| {}).await.expect_err("it is not kept");
    assert!(
        matches!(&error, ApplyError::NotKept { change, .. } if matches!(**change, Change::Update { .. })),
        "{error}"
    );
    let methods: Vec<_> = fake.got().iter().map(|it| it.line[..3].to_owned()).collect();
    assert_eq!(methods, ["GET", "GET", "PUT", "GET"], "an update reads what it changes");
}

/// An update says that it replaces what is there, and shows a right to what is forwarded to.
#[tokio::test]
async fn requests_have_what_the_service_asks_for() {
    let fake = Fake::start([("200 OK", queue_entry("a b", "<New>kept</New>"))]).await;
    let client = fake.client();
    client.update(&Path::queue("a b"), &[Setting::ForwardTo(Some("next".into()))]).await.expect("it is taken");
    client.create(&Path::queue("a b"), &[], None).await.expect("it is taken");
    let got = fake.got();
    assert_eq!(got[1].line, "PUT /a%20b?api-version=2021-05 HTTP/1.1");
    let (update, create) = (got[1].head.to_lowercase(), got[2].head.to_lowercase());
    assert!(update.contains("if-match: *") && !create.contains("if-match"), "{update}\n{create}");
    let proof = "servicebussupplementaryauthorization: sharedaccesssignature sr=sb%3a%2f%2f127.0.0.1%2fnext&";
    assert!(update.contains(proof), "{update}");
    assert!(!create.contains("supplementary"), "{create}");
    assert!(update.contains("content-type: application/atom+xml;type=entry;charset=utf-8"), "{update}");
    assert!(
        got[1].body.contains("<ForwardTo>sb://127.0.0.1/next</ForwardTo>") && got[1].body.contains("<New>kept</New>")
    );
}

/// A token of an identity in place of a key: shown as what it is, once for many requests, and anew when it ends.
#[tokio::test]
async fn tokens_of_an_identity_are_shown_until_they_end() {
    /// Counts how often it is asked.
    struct Identity(AtomicU32, Duration);

    #[async_trait::async_trait]
    impl TokenSource for Identity {
        async fn token(&self, audience: &str) -> Result<Token, TokenError> {
            assert_eq!(audience, "sb://127.0.0.1/");
            let text = format!("token-{}", self.0.fetch_add(1, SeqCst));
            Ok(Token { text, kind: "jwt", expires_at: sprag_store::clock::now().after(self.1) })
        }
    }

    for (life, shown) in [(3_600, ["token-0", "token-0"]), (30, ["token-0", "token-1"])] {
        let fake = Fake::start([("200 OK", queue_entry("q", SESSIONS))]).await;
        let identity = Arc::new(Identity(AtomicU32::new(0), Duration::from_secs(life)));
        let config = administration::Config { tokens: Some(identity), ..namespace::config(fake.address.port()) };
        let client = Administration::new(config).expect("it needs nothing");
        for _ in 0..2 {
            client.get(&Path::queue("q")).await.expect("it is there");
        }
        for (got, token) in fake.got().iter().zip(shown) {
            let expected = format!("authorization: Bearer {token}");
            assert!(got.head.lines().any(|line| line.eq_ignore_ascii_case(&expected)), "{expected}: {}", got.head);
        }
    }
}

/// The real service is behind TLS: with the platform's authorities, and those that are configured beside them.
#[tokio::test]
async fn tls_asks_for_an_authority_that_is_known() {
    let fake = Fake::start_tls([("200 OK", queue_entry("q", SESSIONS))]).await;
    let text = "Endpoint=sb://localhost;SharedAccessKeyName=R;SharedAccessKey=K";
    let connection = ConnectionString::parse(text).expect("it is one");
    let known = administration::Config {
        port: Some(fake.address.port()),
        extra_roots: vec![namespace::certificate()],
        ..administration::Config::new(connection)
    };
    let unknown = administration::Config { extra_roots: Vec::new(), ..known.clone() };
    let client = Administration::new(known).expect("the certificate is read");
    assert!(client.get(&Path::queue("q")).await.expect("it is there").requires_session);
    match Administration::new(unknown) {
        Ok(client) => {
            let error = client.get(&Path::queue("q")).await.expect_err("nobody vouches for it");
            assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        }
        // A machine without any authority.
        Err(error) => assert!(matches!(error, sprag_servicebus::BuildError::NoRoots), "{error}"),
    }
    assert_eq!(fake.got().len(), 1);
}

/// Errors have the service's words, and never what was shown to it.
#[tokio::test]
async fn errors_keep_the_services_words_and_no_secret() {
    let rule = Rule::of("r", None);
    for (status, is) in [
        ("400 Bad Request", "refuses it (status 400)"),
        ("401 Unauthorized", "Manage"),
        ("403 Forbidden", "Manage"),
        ("404 Not Found", "there is no rule r of subscription t/s"),
        ("409 Conflict", "conflict"),
        ("301 Moved\r\nLocation: http://127.0.0.1:1/", "status 301"),
    ] {
        let fake = Fake::start([(status, detail("Words of the service. TrackingId:7 {head}"))]).await;
        let client = fake.client();
        let error = client.create_rule(&Path::subscription("t", "s"), &rule).await.expect_err("it is refused");
        let text = error.to_string();
        assert!(text.contains(is) && text.contains("Words of the service. TrackingId:7"), "{status}: {text}");
        let head = fake.got()[0].head.clone();
        let signature = head.split("&sig=").nth(1).and_then(|it| it.split('&').next()).expect("it was shown");
        assert!(text.contains("(not shown)") && !format!("{text} {error:?}").contains(signature), "{text}");
    }
}

#[tokio::test]
async fn listings_are_text_and_json() {
    let namespace = Namespace::start().await;
    let (client, wanted) = (&namespace.administration, billing(Some("a = 1")));
    let before = current(client, &wanted).await.expect("it is read");
    assert_eq!(
        view::show_text(&view::show(&wanted, &before)),
        "queue         billing           not there\n\
         queue         billing.deferred  not there\n\
         topic         shop              not there\n\
         subscription  shop/billing      not there\n"
    );
    let steps = view::steps(&diff(&wanted, &before));
    let carrier = |deliveries: u32| {
        format!(
            "requires_session true, duplicate_detection false, partitioned false, lock_duration 30s, max_delivery_count {deliveries}, \
             ttl never, dead_letter_on_expiry true, forward_to none, auto_delete_on_idle never"
        )
    };
    assert_eq!(
        view::steps_text(&steps),
        format!(
            "create  queue         billing           {}\n\
             create  queue         billing.deferred  {}\n\
             create  topic         shop\n\
             create  subscription  shop/billing      requires_session false, forward_to billing, rule $Default: a = 1\n",
            carrier(10),
            carrier(2_000)
        )
    );
    let report = view::applied(&applied(client, &wanted).await);
    assert_eq!(report.done, steps.changes, "what is told before is what is done");
    let now = current(client, &wanted).await.expect("it is read");
    assert_eq!(
        view::show_text(&view::show(&wanted, &now)),
        "queue         billing           sessions, lock 30s, 10 deliveries, expires never\n\
         queue         billing.deferred  sessions, lock 30s, 2000 deliveries, expires never\n\
         topic         shop              expires never\n\
         subscription  shop/billing      forwards to billing, expires never, rule $Default: a = 1\n"
    );
    assert_eq!(view::steps_text(&view::steps(&diff(&wanted, &now))), "nothing to do\n");
    let json = serde_json::to_value(view::show(&wanted, &now)).expect("it is JSON");
    assert_eq!(
        json[3],
        serde_json::json!({
            "entity": "shop/billing", "kind": "subscription", "exists": true, "status": "active",
            "settings": {
                "auto_delete_on_idle": "never", "dead_letter_on_expiry": false, "forward_to": "billing", "lock_duration": "30s",
                "max_delivery_count": 10, "requires_session": false, "ttl": "never",
            },
            "rules": [{ "name": "$Default", "filter": "a = 1", "action": null }],
        })
    );
    let json = serde_json::to_value(&steps.changes[3]).expect("it is JSON");
    assert_eq!(
        json,
        serde_json::json!({
            "change": "create", "entity": "shop/billing", "kind": "subscription",
            "settings": [
                { "name": "requires_session", "from": null, "to": false },
                { "name": "forward_to", "from": null, "to": "billing" },
            ],
            "rule": { "name": "$Default", "filter": "a = 1", "action": null },
            "rule_before": null,
        })
    );
}
