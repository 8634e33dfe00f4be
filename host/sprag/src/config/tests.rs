use super::*;

fn wrong(text: &str) -> String {
    let findings = parse::parse(text, Path::new(".")).expect_err("this is wrong");
    Wrong { file: FILE.into(), findings }.to_string()
}

fn right(text: &str) -> Config {
    parse::parse(text, Path::new("/somewhere"))
        .unwrap_or_else(|findings| panic!("{}", Wrong { file: FILE.into(), findings }))
}

const SHOP: &str = r#"
[[topic]]
name = "shop"
subscriptions = [{ name = "billing", requires_session = true, filter = "EventTypeId LIKE 'Order%'" }]

[[queue]]
name = "invoices"

[[endpoint]]
name = "billing"
source = { topic = "shop", subscription = "billing" }
handlers = ["payment"]
inbox = { retention = "7d" }
retry = { strategy = "linear", base = "1s", rules = [{ kind = "timeout", attempts = 2 }] }
publish = ["invoices"]

[handler.payment]
config = { currency = "EUR", rate = 3 }
grant = ["state"]
limits = { time = "5s", memory = "64MiB" }
"#;

#[test]
fn the_example_of_the_contract_means_what_it_says() {
    let config = right(SHOP);
    let endpoint = &config.endpoints[0];
    assert_eq!(endpoint.source.as_str(), "shop/billing");
    assert_eq!(endpoint.concurrency, 64);
    let retry = endpoint.retry.as_ref().expect("a retry");
    assert_eq!(retry.schedule.base, Duration::from_secs(1));
    assert_eq!(retry.schedule.attempts, 5);
    let rule = retry.rules[0].schedule.as_ref().expect("a schedule");
    assert_eq!((rule.attempts, rule.base), (2, Duration::from_secs(1)), "what a rule leaves out comes from the policy");
    let handler = config.handler(&"payment".into());
    assert_eq!(handler.limits.memory, 64 << 20);
    let expected = [("currency".to_owned(), "EUR".to_owned()), ("rate".to_owned(), "3".to_owned())];
    assert_eq!(handler.config, Some(expected.into()));
    assert_eq!(config.host.data, Path::new("/somewhere/.sprag"));
    assert_eq!(config.host.console, CONSOLE);
}

#[test]
fn each_mistake_has_one_clear_message_with_its_place() {
    for (text, expected) in [
        (
            "[host]\nconsol = \"x\"\n",
            "sprag.toml:2:1: unknown key `consol` in [host]; did you mean `console`? [SPR0102]",
        ),
        ("[hots]\n", "sprag.toml:1:2: unknown key `hots` in the file; did you mean `host`? [SPR0102]"),
        (
            "[host]\nshutdown_grace = 30\n",
            "sprag.toml:2:18: `shutdown_grace` in [host]: expected a text in quotes, not the number 30, such as \"30s\" [SPR0104]",
        ),
        ("[host]\nshutdown_grace = \"30\"\n", "is not a duration such as"),
        ("[host]\nshutdown_grace = \"2h\"\n", "\"2h\" is not between 0s and 1h"),
        ("[host]\nmax_size = \"1KiB\"\n", "\"1KiB\" is not between 16MiB and 16TiB"),
        ("[host]\nmax_size = \"64M\"\n", "is not a size such as"),
        ("[host]\nwatch = \"yes\"\n", "expected true or false, not a value of type string"),
        ("[host]\nconsole = \"8080\"\n", "is not an address such as"),
        ("[host]\nconsole = \"0.0.0.0:8080\"\n", "can be reached from other machines"),
        (
            "[host]\ncontrol_key = \"hunter2\"\n",
            "secrets are not written here; use \"env:NAME\" or \"file:PATH\" [SPR0108]",
        ),
        (
            "[host]\ncontrol_key = \"env:SPRAG_TEST_NOT_SET\"\n",
            "the environment variable SPRAG_TEST_NOT_SET is not set",
        ),
        ("[webhook]\nurl = \"x\"\n", "sprag.toml:1:2: `webhook` in the file is not in this build yet [SPR0103]"),
        ("[embedded]\nlisten = \"on\"\n", "\"on\" is neither an address such as \"127.0.0.1:5672\" nor \"off\""),
        ("[embedded]\nlisten = \"0.0.0.0:5672\"\n", "plain AMQP shows keys and messages on the way"),
        (
            "[embedded]\nlisten = \"0.0.0.0:5672\"\nplain_beyond_loopback = true\n",
            "[embedded] has no `keys`: everybody who reaches 0.0.0.0:5672 could read and write all messages [SPR0105]",
        ),
        ("[embedded]\nadministration = \"0.0.0.0:5300\"\n", "listen on loopback, behind a proxy with TLS"),
        ("[embedded]\nkeys = [{ name = \"k\", key = \"hunter2\" }]\n", "secrets are not written here"),
        (
            "[embedded]\nkeys = [{ name = \"k\", key = \"env:HOME\", rights = [\"read\"] }]\n",
            "there is no right \"read\"; there are send, listen, manage",
        ),
        ("[embedded]\nlink_idle = \"0s\"\n", "\"0s\" is not between 1s and 3650d"),
        ("[embedded]\ntls = { listen = \"127.0.0.1:5671\" }\n", "needs `certificate`"),
        ("[[queue]]\nname = \"q\"\nmax_delivery_count = 0\n", "0 is not between 1 and 2000"),
        ("[[queue]]\nrequires_session = true\n", "[[queue]] needs `name`, for instance name = \"orders\" [SPR0105]"),
        (
            "[[queue]]\nname = \"a\"\n[[queue]]\nname = \"a\"\n",
            "sprag.toml:4:8: there are two entities named \"a\" [SPR0107]",
        ),
        ("[[queue]]\nname = \"a\\u0007\"\n", "has control characters"),
        (
            "[[queue]]\nname = \"q\"\nforward_too = \"r\"\n",
            "sprag.toml:3:1: unknown key `forward_too` in [[queue]] \"q\"; did you mean `forward_to`? [SPR0102]",
        ),
        (
            "[[queue]]\nname = \"q\"\nstatus = \"send-disable\"\n",
            "\"send-disable\" is not one of active, disabled, send-disabled, receive-disabled; did you mean \"send-disabled\"?",
        ),
        ("[[queue]]\nname = \"q\"\nmax_size = \"1B\"\n", "\"1B\" is not between 1KiB and 16TiB"),
        (
            "[[queue]]\nname = \"q\"\nforward_to = \"q\"\n",
            "sprag.toml:3:14: `forward_to` of \"q\" names itself [SPR0104]",
        ),
        (
            "[[queue]]\nname = \"orders\"\n[[queue]]\nname = \"q\"\nforward_dead_letters_to = \"order\"\n",
            "sprag.toml:5:27: there is no queue \"order\"; did you mean \"orders\"? [SPR0106]",
        ),
        (
            "[[queue]]\nname = \"q\"\nforward_to = \"t/s\"\n[[topic]]\nname = \"t\"\nsubscriptions = [{ name = \"s\" }]\n",
            "`forward_to` names the subscription \"t/s\"; messages go on to queues and topics",
        ),
        (
            "[[queue]]\nname = \"r\"\n[[queue]]\nname = \"q\"\nforward_to = \"r\"\nrequires_session = true\n",
            "\"q\" requires sessions, so it cannot forward",
        ),
        (
            "[[queue]]\nname = \"r\"\n[[queue]]\nname = \"q\"\nforward_to = \"r\"\n[[endpoint]]\nname = \"e\"\nsource = { queue = \"q\" }\n",
            "sprag.toml:8:10: endpoint \"e\" would get nothing: its source forwards its messages [SPR0104]",
        ),
        ("[[topic]]\nname = \"t\"\nforward_to = \"q\"\n", "unknown key `forward_to` in [[topic]] \"t\""),
        (
            "[[topic]]\nname = \"t\"\nsubscriptions = [{ name = \"s\", filter = \"a = \" }]\n",
            "sprag.toml:3:41: `filter`, at character 5: ",
        ),
        (
            "[[topic]]\nname = \"t\"\nsubscriptions = [{ name = \"s\", filter = 3 }]\n",
            "`filter` in `subscriptions` of [[topic]] \"t\" \"s\": expected a text such as \"EventTypeId LIKE 'Order%'\", or a table, not the number 3",
        ),
        (
            "[[topic]]\nname = \"t\"\nsubscriptions = [{ name = \"s\", filter = { subjct = \"x\" } }]\n",
            "unknown key `subjct` in `filter` of `subscriptions` of [[topic]] \"t\" \"s\"; did you mean `subject`?",
        ),
        (
            "[[topic]]\nname = \"t\"\nsubscriptions = [{ name = \"s\", filter = {} }]\n",
            "a filter that compares nothing lets everything through",
        ),
        (
            "[[topic]]\nname = \"t\"\nsubscriptions = [{ name = \"s\", filter = { properties = { a = [1] } } }]\n",
            "`a` in `properties` of a filter: it takes texts, numbers, true and false",
        ),
        (
            "[[topic]]\nname = \"t\"\nsubscriptions = [{ name = \"s\", filter = \"a = 1\", rules = [{ name = \"r\" }] }]\n",
            "a subscription has `filter` or `rules`, not both",
        ),
        (
            "[[topic]]\nname = \"t\"\nsubscriptions = [{ name = \"s\", rules = [{ name = \"r\" }, { name = \"R\" }] }]\n",
            "there are two rules named \"R\" [SPR0107]",
        ),
        (
            "[[topic]]\nname = \"t\"\nsubscriptions = [{ name = \"s\", rules = [{ filter = \"a = 1\" }] }]\n",
            "needs `name`, for instance name = \"big\"",
        ),
        (
            "[[topic]]\nname = \"t\"\nsubscriptions = [{ name = \"s\", rules = [{ name = \"r\", action = \"a = 1\" }] }]\n",
            "`action`, at character 1: ",
        ),
        (
            "[[topic]]\nname = \"t\"\nsubscriptions = [{ name = \"s\", rules = [{ name = \"a/b\" }] }]\n",
            "the rule's name \"a/b\" is not one",
        ),
        ("[queue]\nname = \"a\"\n", "write [[queue]], not a value of type table"),
        (
            "[[endpoint]]\nname = \"e\"\nsource = { queue = \"order\" }\n[[queue]]\nname = \"orders\"\n",
            "there is no queue \"order\"; did you mean \"orders\"? [SPR0106]",
        ),
        (
            "[[endpoint]]\nname = \"e\"\nsource = { topic = \"t\", subscription = \"s\" }\n",
            "there is no subscription \"t/s\"; add { name = \"s\" } to the subscriptions of topic \"t\"",
        ),
        ("[[endpoint]]\nname = \"e\"\nsource = { topic = \"t\" }\n", "a source is { queue = NAME } or"),
        (
            "[[endpoint]]\nname = \"e\"\nsource = { queue = \"q\" }\nretry = { strategy = \"exponental\" }\n[[queue]]\nname = \"q\"\n",
            "did you mean \"exponential\"?",
        ),
        (
            "[[endpoint]]\nname = \"e\"\nsource = { queue = \"q\" }\nretry = { base = \"10m\" }\n[[queue]]\nname = \"q\"\n",
            "`max` of a retry is shorter than its `base`",
        ),
        (
            "[[endpoint]]\nname = \"e\"\nsource = { queue = \"q\" }\nretry = { rules = [{ attempts = 1 }] }\n[[queue]]\nname = \"q\"\n",
            "needs at least one of",
        ),
        (
            "[[endpoint]]\nname = \"e\"\nsource = { queue = \"q\" }\npublish = [\"nowhere\"]\n[[queue]]\nname = \"q\"\n",
            "there is no queue \"nowhere\"; add [[queue]]",
        ),
        (
            "[[queue]]\nname = \"q\"\n[[endpoint]]\nname = \"e\"\nsource = { queue = \"q\" }\ninbox = { lease = \"5s\" }\n",
            "sprag.toml:6:19: `lease` of an inbox is for `mode = \"lease\"` [SPR0104]",
        ),
        (
            "[[queue]]\nname = \"q\"\n[[endpoint]]\nname = \"e\"\nsource = { queue = \"q\" }\ninbox = { mode = \"lease\", lease = \"0s\" }\n",
            "\"0s\" is not between 1s and 1d",
        ),
        (
            "[[queue]]\nname = \"q\"\nrequires_session = true\n[[endpoint]]\nname = \"e\"\nsource = { queue = \"q\" }\ninbox = { mode = \"lease\" }\n",
            "sprag.toml:5:8: endpoint \"e\" has a source with sessions, which keep the copies of a message apart already",
        ),
        ("[handler.a]\ngrant = [\"stat\"]\n", "unknown grant \"stat\"; did you mean \"state\"?"),
        (
            "[handler.a]\ngrant = [\"http:api.example.com\"]\n",
            "the grant \"http:api.example.com\" is not in this build yet [SPR0103]",
        ),
        ("[handler.a]\ngrant = [\"sql\"]\n", "unknown grant \"sql\""),
        (
            "[handler.a]\ngrant = [\"sql:main\"]\n",
            "no endpoint that runs it has store = \"main\" with inbox = { mode = \"transaction\" }",
        ),
        (
            "[[endpoint]]\nname = \"e\"\nsource = { queue = \"q\" }\nstore = \"memory\"\ninbox = { mode = \"transaction\" }\n[[queue]]\nname = \"q\"\n",
            "the store \"memory\" has no SQL",
        ),
        (
            "[[endpoint]]\nname = \"e\"\nsource = { queue = \"q\" }\nstore = \"a\"\ninbox = { mode = \"transaction\" }\n[[queue]]\nname = \"q\"\n[store.a]\nkind = \"postgres\"\nurl = \"env:HOME\"\n",
            "so [store.a] needs `sql_role`",
        ),
        (
            "[[endpoint]]\nname = \"e\"\nsource = { queue = \"q\" }\nstore = \"a\"\nconcurrency = 8\ninbox = { mode = \"transaction\" }\n[[queue]]\nname = \"q\"\n[store.a]\nkind = \"postgres\"\nurl = \"env:HOME\"\nsql_role = \"r\"\npool = 9\n",
            "set pool to at least 10",
        ),
        ("[handler.a]\nisolation = \"none\"\n", "\"none\" is not one of message, session, pooled"),
        ("[host\n", "sprag.toml:1:6:"),
    ] {
        let got = wrong(text);
        assert!(got.contains(expected), "{text}\n  got: {got}\n  not: {expected}");
    }
}

/// The runtime's defaults and those that the sample shows are the same.
#[test]
fn limits_left_out_are_the_runtimes() {
    let default = right("").handler(&"any".into());
    assert_eq!(default.limits, sprag_runtime::Limits::default());
    assert!(default.config.is_none() && default.grant.is_empty());
    assert_eq!(default.isolation, sprag_runtime::Isolation::default());
}

#[test]
fn everything_wrong_is_said_in_one_go_in_the_order_of_the_file() {
    let got = wrong("[host]\nwatch = 1\nconsol = 2\n[[queue]]\nlock_duration = \"1h\"\n");
    let lines: Vec<&str> = got.lines().collect();
    assert_eq!(lines.len(), 4, "{got}");
    for (line, place) in lines.iter().zip(["sprag.toml:2:", "sprag.toml:3:", "sprag.toml:4:", "sprag.toml:5:"]) {
        assert!(line.starts_with(place), "{line}");
    }
}

#[test]
fn two_endpoints_on_one_source_are_refused() {
    let text = "[[queue]]\nname = \"q\"\n[[endpoint]]\nname = \"a\"\nsource = { queue = \"q\" }\n[[endpoint]]\nname = \"b\"\nsource = { queue = \"q\" }\n";
    assert!(wrong(text).contains("two endpoints read \"q\""));
}

/// The sample is right as it is, and with every key of it written.
#[test]
fn the_sample_can_be_used() {
    right(&sample());
    let folder = secrets();
    let secret = |name: &str| format!("file:{}", folder.path().join(name).display());
    let all: String = sample()
        // Sections that are left out, and secrets that are there.
        .replace("# [embedded]", "[embedded]")
        .replace("# [servicebus.prod]", "[servicebus.prod]")
        .replace("# [store.main]", "[store.main]")
        .replace("env:SPRAG_KEY", "env:HOME")
        .replace("env:SERVICEBUS_CONNECTION", &secret("connection.txt"))
        .replace("env:DATABASE_URL", &secret("url.txt"))
        .lines()
        .map(|line| {
            match line.strip_prefix("# ").filter(|rest| {
                rest.split_once(" = ").is_some_and(|(name, _)| !name.contains(' ') && name != "control_key")
            }) {
                Some(line) if !line.starts_with("control_key") => format!("{line}\n"),
                _ => format!("{line}\n"),
            }
        })
        .collect();
    // The sample's queue has sessions.
    let mut all = all.replace("requires_session = false\n", "").replace("forward_to = \"invoices\"\n", "");
    // What the sample's examples point to.
    all.push_str("\n[[queue]]\nname = \"invoices\"\n[[queue]]\nname = \"Resolver\"\n");
    right(&all);
}

/// `docs/sprag.toml` is what the key table says. To write it again: `sprag check --print-sample > docs/sprag.toml`.
#[test]
fn the_sample_in_docs_is_fresh() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sprag.toml");
    let text = std::fs::read_to_string(&file).expect("docs/sprag.toml");
    assert_eq!(text, sample(), "docs/sprag.toml is stale: sprag check --print-sample > docs/sprag.toml");
}

/// What the documentation shows of entities can be used as it is.
#[test]
fn the_entities_in_docs_are_right() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/azure-sdk.md");
    let text = std::fs::read_to_string(&file).expect("docs/azure-sdk.md");
    let block = text.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block of TOML");
    let config = right(block);
    assert_eq!(config.topics[0].subscriptions[0].rules.len(), 2);
    assert_eq!(config.topics[0].subscriptions[1].forward_to, Some("letters".into()));
}

/// A section that the reader knows and the sample forgets would be found by nobody.
#[test]
fn the_sample_shows_every_section() {
    fn tables(section: &'static keys::Section) -> Vec<&'static str> {
        let inner = |key: &'static keys::Key| match key.kind {
            keys::Kind::Table(inner) | keys::Kind::Tables(inner) | keys::Kind::TextOrTable(inner) => {
                [vec![key.name], tables(inner)].concat()
            }
            _ => Vec::new(),
        };
        section.keys.iter().flat_map(inner).collect()
    }
    let text = sample();
    for name in tables(&keys::ROOT).into_iter().chain(tables(&keys::HANDLER)) {
        let shown = [format!("[{name}]"), format!("Keys of `{name}`"), format!(".{name}`: ")];
        assert!(shown.iter().any(|shown| text.contains(shown)), "the sample does not show {name}");
    }
}

#[test]
fn defaults_of_the_key_table_are_right() {
    fn walk(section: &'static keys::Section) {
        let source = read::Source::new("", Path::new("."));
        let table = read::Table::new(&source, section, None, "");
        for key in section.keys {
            match key.kind {
                keys::Kind::Count(..) => drop(table.count(key.name)),
                keys::Kind::Duration(..) => drop(table.duration(key.name)),
                keys::Kind::Bytes(..) => drop(table.bytes(key.name)),
                keys::Kind::Bool => drop(table.boolean(key.name)),
                keys::Kind::Address => drop(table.address(key.name)),
                keys::Kind::AddressOrOff => drop(table.address_or_off(key.name)),
                keys::Kind::Text | keys::Kind::Name | keys::Kind::Choice(_) => drop(table.text(key.name)),
                keys::Kind::Table(inner) | keys::Kind::Tables(inner) => walk(inner),
                keys::Kind::TextOrTable(inner) => walk(inner),
                keys::Kind::Secret | keys::Kind::Names | keys::Kind::Texts | keys::Kind::Free => {}
            }
        }
    }
    for section in [&keys::ROOT, &keys::HANDLER, &keys::SERVICEBUS, &keys::STORE] {
        walk(section);
    }
}

/// Case A62: retention against the longest bounded way back, and the unbounded ones by name, once.
#[test]
fn a_retention_that_is_too_short_is_warned_about() {
    let text = "[[queue]]\nname = \"q\"\nrequires_session = true\n[[endpoint]]\nname = \"e\"\nsource = { queue = \"q\" }\n\
                inbox = { retention = \"10m\" }\nretry = { base = \"10m\", max = \"30m\", attempts = 3 }\n";
    let warnings = right(text).warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("forgets after 10m but a message can come back after 1h"), "{}", warnings[0]);
    assert!(warnings[1].contains("\"q\" has no ttl; parking in endpoint \"e\""), "{}", warnings[1]);
    let enough = text.replace("retention = \"10m\"", "retention = \"1h\"");
    assert_eq!(right(&enough).warnings().len(), 1, "only what no retention covers");
}

#[test]
fn without_a_file_there_is_one_endpoint_named_after_the_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let shop = folder.path().join("shop");
    std::fs::create_dir(&shop).expect("a folder");
    let config = Config::for_folder(&shop);
    assert_eq!(config.queues[0].name.as_str(), "shop");
    assert!(config.queues[0].requires_session);
    assert_eq!((config.endpoints[0].name.as_str(), config.endpoints[0].source.as_str()), ("shop", "shop"));
    assert!(config.endpoints[0].inbox.is_some() && config.endpoints[0].handlers.is_empty());
}

/// Rule P28: handlers that claim the same type each get an endpoint of their own.
#[test]
fn without_a_file_conflicting_handlers_get_an_endpoint_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let shop = folder.path().join("shop");
    std::fs::create_dir(&shop).expect("a folder");
    let config = Config::for_folder_with_conflicts(&shop, &["a".into(), "b".into()], &["c".into()]);
    let endpoints: Vec<_> = config
        .endpoints
        .iter()
        .map(|endpoint| (endpoint.name.as_str(), endpoint.source.as_str(), endpoint.handlers.len()))
        .collect();
    assert_eq!(endpoints, [("shop", "shop/shop", 1), ("shop-a", "shop/shop-a", 1), ("shop-b", "shop/shop-b", 1)]);
    assert_eq!(config.entities().map(EntityName::as_str).collect::<Vec<_>>(), ["shop"], "one place to send to");
}

/// A folder with the secrets that `FAR` points to.
fn secrets() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let connection = "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=geheim";
    for (name, text) in [("connection.txt", connection), ("url.txt", "postgres://u:geheim@h/d"), ("key.txt", "k")] {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    folder
}

const FAR: &str = r#"
[host]
control_key = "file:key.txt"

[servicebus.prod]
connection = "file:connection.txt"

[store.main]
kind = "postgres"
url = "file:url.txt"

[[endpoint]]
name = "billing"
source = { topic = "shop", subscription = "bills", filter = "EventTypeId LIKE 'Order%'", transport = "prod", lock_duration = "1m" }
store = "main"
inbox = {}
publish = ["invoices"]
"#;

/// P21: a subscription on Service Bus forwards into a queue of the endpoint's, which is what is received from.
#[test]
fn a_source_on_service_bus() {
    let folder = secrets();
    let config =
        parse::parse(FAR, folder.path()).unwrap_or_else(|findings| panic!("{}", Wrong { file: FILE.into(), findings }));
    let endpoint = &config.endpoints[0];
    assert_eq!(endpoint.source.as_str(), "billing");
    let remote = endpoint.remote.as_ref().expect("it is on Service Bus");
    assert_eq!((remote.transport.as_str(), remote.requires_session), ("prod", true));
    assert_eq!((remote.lock_duration, remote.max_delivery_count), (Duration::from_secs(60), 10));
    let subscription = remote.subscription.as_ref().expect("it is one of a topic");
    assert_eq!((subscription.topic.as_str(), subscription.name.as_str()), ("shop", "bills"));
    assert_eq!(endpoint.store, StoreRef::Named("main".to_owned()));
    assert_eq!(config.servicebus["prod"].connection.host, "ns.servicebus.windows.net");
    assert!(!format!("{config:?}").contains("geheim"), "no secret is shown");
    let warnings = config.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("\"billing\" has no ttl"), "{}", warnings[0]);
}

const ON_NIMBUS: &str = "source = { topology = \"nimbus\", transport = \"prod\", lock_duration = \"1m\" }\n";

fn on_nimbus() -> String {
    let source = FAR.lines().find(|line| line.starts_with("source")).expect("there is one");
    FAR.replace(&format!("{source}\n"), ON_NIMBUS)
}

/// P21: NimBus's topic and subscription have the endpoint's name.
#[test]
fn a_source_on_nimbus_s_topology() {
    let folder = secrets();
    let config = parse::parse(&on_nimbus(), folder.path())
        .unwrap_or_else(|findings| panic!("{}", Wrong { file: FILE.into(), findings }));
    assert_eq!(config.endpoints[0].source.as_str(), "billing/billing");
    let wanted = crate::namespaces::wanted(&config, "prod");
    let names: Vec<_> = wanted.iter().map(|wanted| wanted.path.to_string()).collect();
    for path in ["topic billing", "subscription billing/billing", "subscription billing/Deferred", "topic Resolver"] {
        assert!(names.iter().any(|name| name == path), "{names:?}");
    }
    assert!(names.iter().all(|name| !name.starts_with("queue")), "{names:?}");
}

#[test]
fn what_nimbus_s_topology_does_not_go_with() {
    let folder = secrets();
    for (from, to, expected) in [
        ("transport = \"prod\"", "queue = \"q\", transport = \"prod\"", "named after the endpoint: leave `queue` out"),
        ("lock_duration = \"1m\"", "filter = \"a = 1\"", "leave `filter` out"),
        ("lock_duration = \"1m\"", "requires_session = false", "an endpoint has sessions"),
        ("name = \"billing\"", "name = \"resolver\"", "NimBus cannot have an endpoint named \"resolver\""),
        ("name = \"billing\"", "name = \"a/b\"", "NimBus cannot have an endpoint named \"a/b\""),
        ("transport = \"prod\", ", "", "name its `transport`"),
        ("topology = \"nimbus\"", "topology = \"nimbos\"", "did you mean \"nimbus\"?"),
        (
            "file:connection.txt\"",
            "file:connection.txt\"\nclient = \"azservicebus\"",
            "which `client = \"azservicebus\"` cannot serve",
        ),
    ] {
        let text = on_nimbus();
        assert!(text.contains(from), "{from}");
        let findings = parse::parse(&text.replace(from, to), folder.path()).expect_err("this is wrong");
        let got = Wrong { file: FILE.into(), findings }.to_string();
        assert!(got.contains(expected), "{to}\n  got: {got}\n  not: {expected}");
    }
}

/// P34, P31, and sections that are named and not there: each with what to do.
#[test]
fn what_a_source_on_service_bus_needs() {
    let folder = secrets();
    let wrong = |text: &str| {
        let findings = parse::parse(text, folder.path()).expect_err("this is wrong");
        Wrong { file: FILE.into(), findings }.to_string()
    };
    for (from, to, expected) in [
        ("store = \"main\"\n", "", "give it a store that all of them use"),
        ("store = \"main\"\n", "store = \"memory\"\n", "give it a store that all of them use"),
        ("store = \"main\"\n", "store = \"mian\"\n", "there is no [store.mian]; did you mean \"main\"? [SPR0106]"),
        ("transport = \"prod\"", "transport = \"test\"", "there is no [servicebus.test]; add [servicebus.test] with"),
        ("control_key = \"file:key.txt\"\n", "", "[host] needs `control_key`"),
        (", transport = \"prod\"", "", "`filter` of a source is for Service Bus"),
        ("kind = \"postgres\"", "kind = \"postgress\"", "did you mean \"postgres\"?"),
        ("url = \"file:url.txt\"", "url = \"postgres://u:p@h/d\"", "secrets are not written here"),
        ("[store.main]", "[store.memory]", "\"memory\" is always there and needs no section"),
        (
            "topic = \"shop\", subscription = \"bills\"",
            "queue = \"bills\"",
            "`filter` of a source is for a subscription",
        ),
        ("file:connection.txt", "file:key.txt", "the connection string has a part without `=`"),
    ] {
        assert!(FAR.contains(from), "{from}");
        let got = wrong(&FAR.replace(from, to));
        assert!(got.contains(expected), "{to}\n  got: {got}\n  not: {expected}");
        assert!(!got.contains("geheim"), "no secret is shown: {got}");
    }
    std::fs::write(folder.path().join("endpoint.txt"), "Endpoint=sb://ns.servicebus.windows.net").expect("written");
    let keyless = FAR.replace("file:connection.txt\"", "file:endpoint.txt\"\ncredential = \"managed-identity\"");
    let config = parse::parse(&keyless, folder.path()).expect("an identity needs no key");
    assert_eq!(config.servicebus["prod"].credential.as_deref(), Some("managed-identity"));
    let alone = FAR.replace("store = \"main\"\n", "single_host = true\n");
    assert!(parse::parse(&alone, folder.path()).is_ok(), "who promises to be alone may keep its records here");
}

/// Spec 4, mode `lease`: for sources without sessions, 30 seconds unless it says otherwise.
#[test]
fn an_inbox_with_leases() {
    let text = |inbox: &str| {
        format!("[[queue]]\nname = \"q\"\n[[endpoint]]\nname = \"e\"\nsource = {{ queue = \"q\" }}\ninbox = {inbox}\n")
    };
    for (written, mode, lease) in [
        ("{}", Mode::Record, 30),
        ("{ mode = \"lease\" }", Mode::Lease, 30),
        ("{ mode = \"lease\", lease = \"90s\" }", Mode::Lease, 90),
    ] {
        let config = right(&text(written));
        let inbox = config.endpoints[0].inbox.as_ref().expect("an inbox");
        assert_eq!((inbox.mode, inbox.lease), (mode, Duration::from_secs(lease)), "{written}");
    }
}
