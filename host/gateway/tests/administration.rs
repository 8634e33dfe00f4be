//! The administration API over HTTP, for what the suites with the real clients (`tests/sdk`) cannot provoke or do not show.

#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the answer")]

use std::{net::SocketAddr, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, Mac};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sprag_broker::{Engine, EntitySpec, FilterSpec, Options};
use sprag_core::{
    message::{Body, Message},
    time::Timestamp,
};
use sprag_gateway::{
    access::{Access, Key, Right, Rights},
    administration,
};
use sprag_transport::Transport as _;

/// When all of it takes place, in seconds.
const NOW: i64 = 1_800_000_000;
const FOR_EVER: &str = "P10675199DT2H48M5.4775807S";

struct Server {
    address: SocketAddr,
    engine: Engine,
    runtime: tokio::runtime::Runtime,
    folder: tempfile::TempDir,
    agent: ureq::Agent,
}

struct Answer {
    status: u16,
    body: String,
}

impl Answer {
    /// Each element is there with this text.
    fn has(&self, elements: &[(&str, &str)]) {
        for (name, text) in elements {
            let element = format!("<{name}>{text}</{name}>");
            assert!(self.body.contains(&element), "{element} in {}", self.body);
        }
    }

    fn is(&self, status: u16, part: &str) {
        assert!(self.status == status && self.body.contains(part), "{status} {part:?}: {} {}", self.status, self.body);
    }
}

impl Server {
    fn new(access: Access) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::over(folder, access)
    }

    fn over(folder: tempfile::TempDir, access: Access) -> Self {
        let engine = Engine::open(Options::new(folder.path())).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let router = administration::router(engine.clone(), access, Arc::new(|| Timestamp(NOW * 1_000)));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move { axum::serve(listener, router).await });
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        Self { address, engine, runtime, folder, agent }
    }

    fn open() -> Self {
        Self::new(Access::open())
    }

    fn ask(&self, method: &str, path: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = ureq::http::Request::builder().method(method).uri(format!("http://{}/{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut response = self.agent.run(request.body(body.to_owned()).unwrap()).unwrap();
        Answer { status: response.status().as_u16(), body: response.body_mut().read_to_string().unwrap() }
    }

    fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", &[])
    }

    fn create(&self, path: &str, kind: &str, settings: &str) -> Answer {
        self.ask("PUT", path, &entry(kind, settings), &[])
    }

    fn update(&self, path: &str, kind: &str, settings: &str) -> Answer {
        self.ask("PUT", path, &entry(kind, settings), &[("If-Match", "*")])
    }

    fn delete(&self, path: &str) -> Answer {
        self.ask("DELETE", path, "", &[])
    }
}

fn entry(kind: &str, settings: &str) -> String {
    format!(
        "<entry xmlns='http://www.w3.org/2005/Atom'><content type='application/xml'>\
         <{kind} xmlns='http://schemas.microsoft.com/netservices/2010/10/servicebus/connect' \
         xmlns:i='http://www.w3.org/2001/XMLSchema-instance'>{settings}</{kind}></content></entry>"
    )
}

fn token(resource: &str, name: &str, key: &str, expires: i64) -> String {
    let resource = utf8_percent_encode(resource, NON_ALPHANUMERIC);
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(key.as_bytes()).unwrap();
    mac.update(format!("{resource}\n{expires}").as_bytes());
    let signature = STANDARD.encode(mac.finalize().into_bytes());
    let signature = utf8_percent_encode(&signature, NON_ALPHANUMERIC);
    format!("SharedAccessSignature sr={resource}&sig={signature}&se={expires}&skn={name}")
}

#[test]
fn a_queue_is_made_changed_and_removed() {
    let server = Server::open();
    server.get("orders").is(404, "<Code>404</Code>");
    server.update("orders", "QueueDescription", "").is(404, "SubCode=40400");
    let settings = "<MaxDeliveryCount>3</MaxDeliveryCount><LockDuration>PT1M</LockDuration>\
        <RequiresSession>true</RequiresSession><RequiresDuplicateDetection>true</RequiresDuplicateDetection>\
        <UserMetadata>a &lt; b</UserMetadata>";
    let made = server.create("orders", "QueueDescription", settings);
    assert_eq!(made.status, 201, "{}", made.body);
    let expected = [
        ("LockDuration", "PT1M"),
        ("MaxSizeInMegabytes", "1024"),
        ("RequiresDuplicateDetection", "true"),
        ("RequiresSession", "true"),
        ("DefaultMessageTimeToLive", FOR_EVER),
        ("DuplicateDetectionHistoryTimeWindow", "PT10M"),
        ("MaxDeliveryCount", "3"),
        ("EnableBatchedOperations", "true"),
        ("MessageCount", "0"),
        ("Status", "Active"),
        ("UserMetadata", "a &lt; b"),
        ("AutoDeleteOnIdle", FOR_EVER),
    ];
    made.has(&expected);
    server.get("Orders").has(&expected);
    server.create("ORDERS", "QueueDescription", "").is(409, "MessagingEntityAlreadyExists");
    server
        .update("orders", "QueueDescription", settings.replace("PT1M", "PT2M").as_str())
        .has(&[("LockDuration", "PT2M")]);
    server.update("orders", "QueueDescription", "").is(400, "requires_session cannot change");
    server.update("orders", "TopicDescription", "").is(400, "is no topic");
    let deleted = server.delete("orders");
    assert_eq!((deleted.status, deleted.body.as_str()), (200, ""));
    server.delete("orders").is(404, "orders");
}

#[test]
fn what_a_change_leaves_out_goes_to_its_default() {
    let server = Server::open();
    let settings = "<DefaultMessageTimeToLive>PT5M</DefaultMessageTimeToLive><Status>Disabled</Status>\
        <EnableBatchedOperations>false</EnableBatchedOperations><UserMetadata>x</UserMetadata>";
    let all = [("DefaultMessageTimeToLive", "PT5M"), ("Status", "Disabled"), ("EnableBatchedOperations", "false")];
    server.create("q", "QueueDescription", settings).has(&all);
    let changed = server.update("q", "QueueDescription", "");
    let defaults = [("DefaultMessageTimeToLive", FOR_EVER), ("Status", "Active"), ("EnableBatchedOperations", "true")];
    changed.has(&defaults);
    assert!(!changed.body.contains("UserMetadata"), "{}", changed.body);
}

/// Sizes that megabytes cannot say must survive a client that reads, changes something else and writes back.
#[test]
fn sizes_that_are_sent_back_stay_to_the_byte() {
    let server = Server::open();
    let spec = EntitySpec { max_size: Some(1_500_000), max_message_size: 1_500, ..EntitySpec::queue("small") };
    server.runtime.block_on(server.engine.declare(vec![spec, EntitySpec::queue("unlimited")])).unwrap();
    let sizes = |name: &str| {
        let view = server.engine.entity(&name.into()).unwrap();
        (view.spec.max_size, view.spec.max_message_size)
    };
    server.get("small").has(&[("MaxSizeInMegabytes", "2"), ("MaxMessageSizeInKilobytes", "2")]);
    let same = "<MaxSizeInMegabytes>2</MaxSizeInMegabytes><MaxMessageSizeInKilobytes>2</MaxMessageSizeInKilobytes>";
    server.update("small", "QueueDescription", same).has(&[("MaxSizeInMegabytes", "2")]);
    assert_eq!(sizes("small"), (Some(1_500_000), 1_500));
    server.update("small", "QueueDescription", &same.replace('2', "3")).has(&[("MaxSizeInMegabytes", "3")]);
    assert_eq!(sizes("small"), (Some(3 << 20), 3 << 10));
    server.get("unlimited").has(&[("MaxSizeInMegabytes", "81920")]);
    server.update("unlimited", "QueueDescription", "<MaxSizeInMegabytes>81920</MaxSizeInMegabytes>");
    server.update("unlimited", "QueueDescription", "<Status>Active</Status>");
    assert_eq!(sizes("unlimited").0, None);
}

#[test]
fn what_the_engine_does_not_have_is_kept_or_refused_by_name() {
    let server = Server::open();
    for (name, value) in [
        ("EnableBatchedOperations", "false"),
        ("EnableExpress", "true"),
        ("EnablePartitioning", "true"),
        ("SupportOrdering", "false"),
        ("DuplicateDetectionHistoryTimeWindow", "PT1M"),
        ("AutoDeleteOnIdle", FOR_EVER),
        ("AuthorizationRules", ""),
    ] {
        let made = server.create("kept", "QueueDescription", &format!("<{name}>{value}</{name}>"));
        assert_eq!(made.status, 201, "{name}: {}", made.body);
        if !value.is_empty() {
            server.get("kept").has(&[(name, value)]);
        }
        server.delete("kept");
    }
    for (kind, name, value) in [
        ("QueueDescription", "AutoDeleteOnIdle", "PT5M"),
        ("QueueDescription", "AuthorizationRules", "<AuthorizationRule/>"),
        ("QueueDescription", "IsAnonymousAccessible", "true"),
        ("QueueDescription", "SubscriptionCounts", "1"),
        ("QueueDescription", "LockDuration", FOR_EVER),
        ("QueueDescription", "LockDuration", "30"),
        ("QueueDescription", "MaxDeliveryCount", "0"),
        ("QueueDescription", "MaxDeliveryCount", "-1"),
        ("QueueDescription", "MaxSizeInMegabytes", "0"),
        ("QueueDescription", "MaxSizeInMegabytes", "99999999999999999"),
        ("QueueDescription", "RequiresSession", "maybe"),
        ("QueueDescription", "Status", "Asleep"),
        ("QueueDescription", "ForwardTo", "sb://localhost/"),
        ("TopicDescription", "RequiresSession", "true"),
        ("TopicDescription", "ForwardTo", "x"),
        ("TopicDescription", "FilteringMessagesBeforePublishing", "true"),
    ] {
        let refused = server.create("refused", kind, &format!("<{name}>{value}</{name}>"));
        refused.is(400, "SubCode=40000");
        let named = [name, &name[1..], "max_delivery_count"].into_iter().any(|it| refused.body.contains(it));
        assert!(named || name == "ForwardTo", "{name}: {}", refused.body);
    }
    server.get("refused").is(404, "refused");
    let twice = "<LockDuration>PT1M</LockDuration><LockDuration>PT2M</LockDuration>";
    server.create("refused", "QueueDescription", twice).is(400, "twice");
}

#[test]
fn topics_have_subscriptions_and_those_have_rules() {
    let server = Server::open();
    server.create("t/Subscriptions/s", "SubscriptionDescription", "").is(404, "t");
    server.create("t", "TopicDescription", "").has(&[("SubscriptionCount", "0")]);
    let rule = "<DefaultRuleDescription><Filter i:type='SqlFilter'><SqlExpression>a &gt; 1</SqlExpression></Filter>\
        <Name>first</Name></DefaultRuleDescription>";
    let made = server.create("t/subscriptions/s", "SubscriptionDescription", rule);
    assert_eq!(made.status, 201, "{}", made.body);
    server.create("T/Subscriptions/Plain", "SubscriptionDescription", "");
    server.get("t").has(&[("SubscriptionCount", "2")]);
    server.get("t/s").is(404, "t/s");
    server.get("t/Subscriptions/").is(200, "/t/Subscriptions/Plain?api-version=");
    server.get("t/Subscriptions/s/Rules").is(200, "/t/Subscriptions/s/Rules/first?");
    server.get("t/Subscriptions/plain/Rules/$default").is(200, "i:type=\"TrueFilter\"");
    let filter = "<Filter i:type='CorrelationFilter'><Label>red</Label><Properties><KeyValueOfstringanyType><Key>n</Key>\
        <Value i:type='x:int' xmlns:x='http://www.w3.org/2001/XMLSchema'>7</Value></KeyValueOfstringanyType></Properties></Filter>";
    let action = "<Action i:type='SqlRuleAction'><SqlExpression>SET b = 1</SqlExpression></Action>";
    let path = "t/Subscriptions/s/Rules/second";
    server.create(path, "RuleDescription", &format!("{filter}{action}")).is(201, "<Label>red</Label>");
    server.get(path).is(200, "i:type=\"d6p1:int\">7</Value>");
    server.create(path, "RuleDescription", filter).is(409, "MessagingEntityAlreadyExists");
    server.update(path, "RuleDescription", "<Filter i:type='FalseFilter'/>").is(200, "i:type=\"FalseFilter\"");
    server.update("t/Subscriptions/s/Rules/third", "RuleDescription", filter).is(404, "third");
    for (body, problem) in [
        ("<Filter i:type='SqlFilter'><SqlExpression>a &gt;</SqlExpression></Filter>", "at character"),
        ("<Filter i:type='SqlFilter'/>", "SqlExpression"),
        ("<Filter i:type='BlueFilter'/>", "BlueFilter"),
        ("<Filter/>", "kind of filter"),
        ("<Filter i:type='CorrelationFilter'><Colour>red</Colour></Filter>", "Colour"),
        ("<Action i:type='BlueAction'/>", "BlueAction"),
        ("<Name>other</Name>", "other"),
    ] {
        server.create("t/Subscriptions/s/Rules/wrong", "RuleDescription", body).is(400, problem);
    }
    assert_eq!(server.delete(path).status, 200);
    server.delete(path).is(404, "second");
    assert_eq!(server.delete("t").status, 200);
    server.get("t/Subscriptions/s").is(404, "SubCode=40400");
}

#[test]
fn lists_come_in_pages_in_the_order_of_names() {
    let server = Server::open();
    let specs = (0..205).map(|n| EntitySpec::queue(format!("q{n:03}"))).collect();
    server.runtime.block_on(server.engine.declare(specs)).unwrap();
    let page = |query: &str| {
        let answer = server.get(&format!("$Resources/queues?api-version=2021-05{query}"));
        let names: Vec<_> = answer
            .body
            .split("<entry")
            .skip(1)
            .map(|entry| entry.split("<title type=\"text\">").nth(1).unwrap().split('<').next().unwrap().to_owned())
            .collect();
        (names, answer.body.split("rel=\"next\" href=\"").nth(1).map(|it| it.split('"').next().unwrap().to_owned()))
    };
    let (names, next) = page("");
    assert_eq!((names.len(), names[0].as_str(), names[99].as_str()), (100, "q000", "q099"));
    let next = next.unwrap();
    assert!(next.ends_with("?api-version=2021-05&amp;$skip=100&amp;$top=100"), "{next}");
    let (names, next) = page("&%24skip=200&%24top=7");
    assert_eq!((names.len(), names[4].as_str(), next), (5, "q204", None));
    assert_eq!(page("&$skip=1&$top=2").0, ["q001", "q002"]);
    assert_eq!(page("&$skip=205").0.len(), 0);
    assert_eq!(page("&$top=1000").0.len(), 100, "no more than a page; the next one is named");
    server.get("$Resources/queues?$skip=x").is(400, "SubCode=40000");
    server.get("$Resources/topics").is(200, "<feed");
}

#[test]
fn counts_and_times_are_told() {
    let server = Server::open();
    server.create("q", "QueueDescription", "");
    let message = Message { body: Body::Data("hello".into()), ..Message::default() };
    server.runtime.block_on(server.engine.send(&"q".into(), vec![message])).unwrap();
    let view = server.get("q");
    view.is(200, "<CountDetails xmlns:d2p1=\"http://schemas.microsoft.com/netservices/2011/06/servicebus\">");
    view.has(&[("d2p1:ActiveMessageCount", "1"), ("MessageCount", "1"), ("d2p1:DeadLetterMessageCount", "0")]);
    assert!(!view.body.contains("<SizeInBytes>0<"), "{}", view.body);
    server.get("$namespaceinfo").has(&[("Name", "127.0.0.1"), ("NamespaceType", "Messaging")]);
}

#[test]
fn only_who_may_manage_is_let_in() {
    let send: Rights = [Right::Send, Right::Listen].into_iter().collect();
    let server = Server::new(Access::with_keys([
        Key::new("root", "secret", Rights::ALL),
        Key::new("sender", "secret", send),
        Key::new("one", "secret", Rights::ALL).for_entity("q"),
    ]));
    let ask = |path: &str, token: &str| server.ask("GET", path, "", &[("Authorization", token)]);
    let soon = NOW + 60;
    server.get("$namespaceinfo").is(401, "There is no token");
    ask("$namespaceinfo", "Bearer abc").is(401, "malformed");
    ask("$namespaceinfo", &token("https://h", "root", "other", soon)).is(401, "signature");
    ask("$namespaceinfo", &token("https://h", "nobody", "secret", soon)).is(401, "no key");
    ask("$namespaceinfo", &token("https://h", "root", "secret", NOW)).is(401, "ended");
    ask("$namespaceinfo", &token("https://h", "sender", "secret", soon)).is(401, "Manage,EntityRead claims");
    ask("$namespaceinfo", &token("https://h", "one", "secret", soon)).is(401, "no key");
    ask("$namespaceinfo", &token("https://h", "root", "secret", soon)).is(200, "NamespaceInfo");
    ask("$namespaceinfo", &token("https://h/q", "one", "secret", soon)).is(401, "Manage,EntityRead claims");
    ask("q", &token("https://h/q?api-version=2021-05", "one", "secret", soon)).is(404, "q");
    let create = |path: &str, settings: &str, headers: &[(&str, &str)]| {
        server.ask("PUT", path, &entry("QueueDescription", settings), headers)
    };
    let root = token("sb://h", "root", "secret", soon);
    for name in ["q2", "q3"] {
        assert_eq!(create(name, "", &[("Authorization", &root)]).status, 201);
    }
    // Who may manage `q` may not make its messages go on to `q2` without showing that they may send there.
    let one = token("https://h/q", "one", "secret", soon);
    let forward = "<ForwardTo>sb://h/q2</ForwardTo>";
    create("q", forward, &[("Authorization", &one)]).is(401, "ServiceBusSupplementaryAuthorization");
    let proof = |resource: &str, name: &str| token(resource, name, "secret", soon);
    let with =
        |proof: &str| create("q", forward, &[("Authorization", &one), ("ServiceBusSupplementaryAuthorization", proof)]);
    with(&proof("sb://h/q3", "sender")).is(401, "q2");
    with(&proof("sb://h/q2", "one")).is(401, "no key");
    with(&proof("elsewhere", "root")).is(401, "malformed");
    with(&proof(&server.address.to_string(), "sender")).is(201, "<ForwardTo>sb://127.0.0.1:");
}

#[test]
fn requests_that_are_none_are_refused() {
    let server = Server::open();
    for (body, problem) in [
        ("", "ends too early"),
        ("{}", "ends too early"),
        ("<entry/>", "no entry with a description"),
        ("<QueueDescription/>", "no entry with a description"),
        ("<!DOCTYPE a [<!ENTITY x 'y'>]><entry/>", "document types"),
    ] {
        server.ask("PUT", "q", body, &[]).is(400, problem);
    }
    server.ask("PUT", "q", &entry("RuleDescription", ""), &[]).is(400, "cannot be described");
    server.ask("PUT", "q", &entry("QueueDescription", ""), &[("If-Match", "\"1\"")]).is(412, "If-Match");
    server.ask("PUT", "q", &"x".repeat(300_000), &[]).is(413, "at most");
    server.ask("POST", "q", "", &[]).is(405, "POST");
    server.ask("DELETE", "$namespaceinfo", "", &[]).is(405, "cannot be deleted");
    server.get("").is(404, "names nothing");
    for name in ["$cbs", "a//b", "a b", "a%3Fb", "q/$management"] {
        let path = name.replace(' ', "%20");
        server.create(&path, "QueueDescription", "").is(400, "the name");
    }
    server.create("t", "TopicDescription", "");
    let long = format!("t/Subscriptions/{}", "s".repeat(51));
    server.create(&long, "SubscriptionDescription", "").is(400, "50 characters");
}

#[test]
fn what_was_administered_is_there_after_a_restart() {
    let server = Server::open();
    server.create("t", "TopicDescription", "<UserMetadata>mine</UserMetadata>");
    server.create("t/Subscriptions/s", "SubscriptionDescription", "<MaxDeliveryCount>7</MaxDeliveryCount>");
    let filter = "<Filter i:type='CorrelationFilter'><Properties><KeyValueOfstringanyType><Key>at</Key>\
        <Value i:type='x:dateTime'>2026-11-30T01:02:03.004Z</Value></KeyValueOfstringanyType></Properties></Filter>";
    server.create("t/Subscriptions/s/Rules/r", "RuleDescription", filter);
    let Server { engine, runtime, folder, .. } = server;
    runtime.block_on(engine.close());
    drop((runtime, engine));
    let server = Server::over(folder, Access::open());
    server.get("t").has(&[("UserMetadata", "mine")]);
    server.get("t/Subscriptions/s").has(&[("MaxDeliveryCount", "7")]);
    server.get("t/Subscriptions/s/Rules/r").is(200, "i:type=\"d6p1:dateTime\">2026-11-30T01:02:03.004Z</Value>");
    let kept = server.engine.rules(&"t/s".into()).unwrap();
    assert!(kept.iter().any(|rule| matches!(rule.spec.filter, FilterSpec::All) && rule.spec.name == "$Default"));
}
