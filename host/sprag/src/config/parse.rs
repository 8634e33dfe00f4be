//! From a tree to a [`Config`], and whether the names in it meet.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
};

use sprag_broker::{Correlation, DEFAULT_RULE, EntityStatus, FilterSpec, FilterValue, RuleSpec};
use sprag_core::{
    ids::{EntityName, HandlerName},
    retry::{Jitter, RetryPolicy, Rule, Schedule, Strategy},
};
use sprag_gateway::access::Right;
use sprag_runtime::{Folder, HandlerConfig, Isolation, Limits};
use sprag_servicebus::{ConnectionString, Settle};
use toml::de::{DeTable, DeValue};

use super::{
    Config, Database, Embedded, Endpoint, Finding, Host, Inbox, Listen, Mode, Queue, ServiceBus, SharedKey, StoreKind,
    StoreRef, Tls, Topic,
    keys::{self, Section},
    names::{Places, check_inboxes, check_names, check_sql, check_stores},
    nearest,
    read::{self, Source, Table, TextOrTable},
    source, units,
};

/// Everything the key table gives a default is there.
pub(super) const DECLARED: &str = "the key table declares a default";

pub(crate) fn parse(text: &str, base: &Path) -> Result<Config, Vec<Finding>> {
    let source = Source::new(text, base);
    let tree = match DeTable::parse(text) {
        Ok(tree) => tree,
        Err(error) => {
            source.found(error.span().or(Some(0..0)), read::SYNTAX, error.message().to_owned());
            return Err(source.into_findings());
        }
    };
    let root = Table::new(&source, &keys::ROOT, Some((tree.get_ref(), tree.span())), "");
    let (config, places) = read_root(&root, base);
    check_names(&source, &config, &places);
    check_stores(&source, &config, &places);
    check_sql(&source, &config, &places);
    check_inboxes(&source, &config, &places);
    let findings = source.into_findings();
    if findings.is_empty() { Ok(config) } else { Err(findings) }
}

fn read_root(root: &Table<'_, '_>, base: &Path) -> (Config, Places) {
    let mut places = Places::default();
    let host = root.table("host").unwrap_or_else(|| unwritten(root.source, &keys::HOST));
    let host = read_host(&host, base);
    let is_written = root.has("embedded");
    let embedded = root.table("embedded").unwrap_or_else(|| unwritten(root.source, &keys::EMBEDDED));
    let embedded = Embedded { is_written, ..read_embedded(&embedded, base) };
    let mut queues = Vec::new();
    for table in root.tables("queue") {
        let name = table.text("name");
        let queue = Queue {
            duplicate_window: table.duration("duplicate_window"),
            max_message_size: table.bytes("max_message_size").expect(DECLARED),
            ..read_queue(&table, name.as_deref().unwrap_or_default().into(), &mut places)
        };
        let Some(name) = name else { continue };
        places.entities.push((name.as_str().into(), table.span_of("name")));
        if name.contains('/') {
            table.source.found(
                table.span_of("name"),
                read::BAD_VALUE,
                format!("the queue's name {name:?} has a `/`, which stands between a topic and its subscription"),
            );
        }
        queues.push(queue);
    }
    let mut topics = Vec::new();
    for table in root.tables("topic") {
        let Some(name) = table.text("name") else { continue };
        places.entities.push((name.as_str().into(), table.span_of("name")));
        let mut subscriptions = Vec::new();
        for inner in table.tables("subscriptions") {
            let Some(subscription) = inner.text("name") else { continue };
            let entity = EntityName::from(format!("{name}/{subscription}"));
            places.entities.push((entity.clone(), inner.span_of("name")));
            let filter = inner.text_or_table("filter").and_then(|filter| read_filter(&inner, "filter", filter));
            let rules: Vec<RuleSpec> = inner.tables("rules").iter().filter_map(read_subscription_rule).collect();
            check_rules(&inner, &rules);
            subscriptions.push(Queue { filter, rules, ..read_queue(&inner, entity, &mut places) });
        }
        topics.push(Topic {
            name: name.into(),
            duplicate_window: table.duration("duplicate_window"),
            ttl: table.duration("ttl"),
            max_message_size: table.bytes("max_message_size").expect(DECLARED),
            max_size: table.bytes("max_size"),
            status: status(&table),
            user_metadata: user_metadata(&table),
            subscriptions,
        });
    }
    let servicebus = named(root, "servicebus", &keys::SERVICEBUS, |_, table| read_servicebus(table, base));
    let stores = named(root, "store", &keys::STORE, |name, table| read_store(name, table, base));
    let endpoints = root.tables("endpoint").iter().filter_map(|table| read_endpoint(table, &mut places)).collect();
    let handlers = named(root, "handler", &keys::HANDLER, |_, table| Some(read_handler(table, base)));
    let handlers = handlers.into_iter().map(|(name, handler)| (HandlerName::from(name), handler)).collect();
    (Config { file: None, host, embedded, queues, topics, servicebus, stores, endpoints, handlers }, places)
}

/// The tables `[kind.NAME]`, by name.
fn named<T>(
    root: &Table<'_, '_>,
    kind: &str,
    section: &'static Section,
    read: impl Fn(&str, &Table<'_, '_>) -> Option<T>,
) -> BTreeMap<String, T> {
    let mut all = BTreeMap::new();
    for (name, value) in root.free(kind).into_iter().flatten() {
        let path = format!("[{kind}.{}]", name.get_ref());
        match value.get_ref().as_table() {
            Some(table) => {
                let table = Table::new(root.source, section, Some((table, value.span())), path);
                all.extend(read(name.get_ref(), &table).map(|one| (name.get_ref().to_string(), one)));
            }
            None => root.source.found(Some(value.span()), read::BAD_VALUE, format!("{path}: expected a table")),
        }
    }
    all
}

fn read_servicebus(table: &Table<'_, '_>, base: &Path) -> Option<ServiceBus> {
    let credential = table.text("credential");
    let connection = table.secret("connection").and_then(|text| {
        // An identity needs the address only; what stands for a key is never shown to anybody.
        let text = if credential.is_some() { format!("{text};SharedAccessSignature=-") } else { text };
        ConnectionString::parse(&text)
            .map_err(|error| table.source.found(table.span_of("connection"), read::SECRET, error.to_string()))
            .ok()
    });
    let settle = match table.text("settle").as_deref() {
        Some("link") => Settle::Link,
        _ => Settle::Management,
    };
    Some(ServiceBus {
        credential,
        by_azservicebus: table.text("client").as_deref() == Some("azservicebus"),
        settle,
        operation_timeout: table.duration("operation_timeout").expect(DECLARED),
        idle_timeout: table.duration("idle_timeout").expect(DECLARED),
        max_message_size: table.bytes("max_message_size").expect(DECLARED),
        administration_port: table.count("administration_port").and_then(|port| u16::try_from(port).ok()),
        authorities: authorities(table, base),
        connection: connection?,
    })
}

fn read_store(name: &str, table: &Table<'_, '_>, base: &Path) -> Option<Database> {
    if StoreRef::from_name(name) != StoreRef::Named(name.to_owned()) {
        let text = format!("[store.{name}]: {name:?} is always there and needs no section; give this one another name");
        table.source.found(table.span(), read::BAD_VALUE, text);
    }
    let kind = match table.text("kind").as_deref() {
        Some("sqlserver") => StoreKind::SqlServer,
        Some("cosmos") => StoreKind::Cosmos,
        _ => StoreKind::Postgres,
    };
    let foreign = |key: &str, of: StoreKind| {
        if table.has(key) && kind != of {
            let text = format!("`{key}` of [store.{name}] is for another kind of store");
            table.source.found(table.span_of(key), read::BAD_VALUE, text);
        }
    };
    let relaxed = table.boolean("allow_relaxed_consistency").expect(DECLARED);
    if relaxed {
        foreign("allow_relaxed_consistency", StoreKind::Cosmos);
    }
    foreign("sql_role", StoreKind::Postgres);
    Some(Database {
        kind,
        allow_relaxed_consistency: relaxed,
        pool: table.count("pool").and_then(|count| u32::try_from(count).ok()),
        sql_role: table.text("sql_role"),
        auto_create_table: table.boolean("auto_create_table").expect(DECLARED),
        authorities: authorities(table, base),
        url: table.secret("url")?,
    })
}

fn authorities(table: &Table<'_, '_>, base: &Path) -> Vec<PathBuf> {
    table.texts("authorities").unwrap_or_default().into_iter().map(|(file, _)| base.join(file)).collect()
}

fn unwritten<'a, 'i>(source: &'a Source<'i>, section: &'static Section) -> Table<'a, 'i> {
    Table::new(source, section, None, "")
}

fn read_host(table: &Table<'_, '_>, base: &Path) -> Host {
    let console = table.address("console").expect(DECLARED);
    if !console.ip().is_loopback() {
        table.source.found(
            table.span_of("console"),
            read::BAD_VALUE,
            format!("`console` in [host]: {console} can be reached from other machines; this build listens on loopback only, such as 127.0.0.1:{}", console.port()),
        );
    }
    Host {
        data: base.join(table.text("data").expect(DECLARED)),
        handlers: base.join(table.text("handlers").expect(DECLARED)),
        console,
        shutdown_grace: table.duration("shutdown_grace").expect(DECLARED),
        max_size: table.bytes("max_size").expect(DECLARED),
        watch: table.boolean("watch").expect(DECLARED),
        control_key: table.secret("control_key"),
    }
}

fn read_embedded(table: &Table<'_, '_>, base: &Path) -> Embedded {
    let listen =
        |name: &str| Listen { address: table.address_or_off(name).expect(DECLARED), is_asked_for: table.has(name) };
    let administration = listen("administration");
    if administration.address.is_some_and(|address| !address.ip().is_loopback()) {
        table.source.found(
            table.span_of("administration"),
            read::BAD_VALUE,
            "`administration` in [embedded]: plain HTTP beyond loopback would show its keys; listen on loopback, behind a proxy with TLS",
        );
    }
    let plain_beyond_loopback = table.boolean("plain_beyond_loopback").expect(DECLARED);
    let plain = listen("listen");
    if let Some(address) = plain.address.filter(|address| !address.ip().is_loopback() && !plain_beyond_loopback) {
        table.source.found(
            table.span_of("listen"),
            read::BAD_VALUE,
            format!("`listen` in [embedded]: {address} can be reached from other machines, and plain AMQP shows keys and messages on the way; use `tls`, or say `plain_beyond_loopback = true`"),
        );
    }
    let tls = table.table("tls").and_then(|tls| {
        Some(Tls {
            listen: tls.address("listen")?,
            certificate: base.join(tls.text("certificate")?),
            key: base.join(tls.text("key")?),
        })
    });
    let keys: Vec<SharedKey> = table.tables("keys").iter().filter_map(read_key).collect();
    let reachable =
        [plain.address, tls.as_ref().map(|tls| tls.listen)].into_iter().flatten().find(|it| !it.ip().is_loopback());
    if let Some(address) = reachable.filter(|_| !table.has("keys")) {
        table.source.found(
            table.span(),
            read::MISSING,
            format!("[embedded] has no `keys`: everybody who reaches {address} could read and write all messages"),
        );
    }
    Embedded {
        is_written: false,
        listen: plain,
        administration,
        plain_beyond_loopback,
        session_wait: table.duration("session_wait").expect(DECLARED),
        link_idle: table.duration("link_idle").expect(DECLARED),
        connection_idle: table.duration("connection_idle").expect(DECLARED),
        tls,
        keys,
    }
}

fn read_key(table: &Table<'_, '_>) -> Option<SharedKey> {
    let rights = table.texts("rights").map_or_else(
        || vec![Right::Send, Right::Listen, Right::Manage],
        |rights| {
            let named = |(name, span): (String, Range<usize>)| match name.as_str() {
                "send" => Some(Right::Send),
                "listen" => Some(Right::Listen),
                "manage" => Some(Right::Manage),
                other => {
                    let text = format!("there is no right {other:?}; there are send, listen, manage");
                    table.source.found(Some(span), read::BAD_VALUE, text);
                    None
                }
            };
            rights.into_iter().filter_map(named).collect()
        },
    );
    Some(SharedKey {
        name: table.text("name")?,
        key: table.secret("key")?,
        secondary: table.secret("secondary"),
        rights,
        entity: table.text("entity"),
    })
}

fn read_queue(table: &Table<'_, '_>, name: EntityName, places: &mut Places) -> Queue {
    let mut onward = |key: &'static str| {
        let target = table.text(key).map(EntityName::from)?;
        let span = table.span_of(key);
        // A subscription has a name of two parts, which is not one that can be forwarded to.
        if target == name {
            table.source.found(span, read::BAD_VALUE, format!("`{key}` of {:?} names itself", name.as_str()));
        } else {
            places.forwards.push((key, target.clone(), span));
        }
        Some(target)
    };
    let (forward_to, forward_dead_letters_to) = (onward("forward_to"), onward("forward_dead_letters_to"));
    if forward_to.is_some() && table.boolean("requires_session").expect(DECLARED) {
        table.source.found(
            table.span_of("forward_to"),
            read::BAD_VALUE,
            format!(
                "{:?} requires sessions, so it cannot forward: leave out `forward_to` or `requires_session`",
                name.as_str()
            ),
        );
    }
    Queue {
        name,
        requires_session: table.boolean("requires_session").expect(DECLARED),
        lock_duration: table.duration("lock_duration").expect(DECLARED),
        max_delivery_count: count(table, "max_delivery_count"),
        ttl: table.duration("ttl"),
        dead_letter_on_expiry: table.boolean("dead_letter_on_expiry").expect(DECLARED),
        duplicate_window: None,
        max_message_size: 0,
        max_size: table.bytes("max_size"),
        status: status(table),
        forward_to,
        forward_dead_letters_to,
        user_metadata: user_metadata(table),
        filter: None,
        rules: Vec::new(),
    }
}

fn status(table: &Table<'_, '_>) -> EntityStatus {
    match table.text("status").expect(DECLARED).as_str() {
        "disabled" => EntityStatus::Disabled,
        "send-disabled" => EntityStatus::SendDisabled,
        "receive-disabled" => EntityStatus::ReceiveDisabled,
        _ => EntityStatus::Active,
    }
}

fn user_metadata(table: &Table<'_, '_>) -> Option<String> {
    const MOST: usize = 1_024;
    let text = table.text("user_metadata")?;
    let length = text.chars().count();
    if length > MOST {
        let problem = format!("`user_metadata` has {length} characters; at most {MOST} are taken");
        table.source.found(table.span_of("user_metadata"), read::BAD_VALUE, problem);
    }
    Some(text)
}

/// A filter, which is tried out, so that a wrong one is told with its place.
fn read_filter(table: &Table<'_, '_>, key: &str, filter: TextOrTable<'_, '_>) -> Option<FilterSpec> {
    let filter = match filter {
        TextOrTable::Text(text) => FilterSpec::Sql(text),
        TextOrTable::Table(table) => FilterSpec::Correlation(Box::new(read_correlation(&table)?)),
    };
    check_rule(table, key, &RuleSpec::new(DEFAULT_RULE, filter.clone())).then_some(filter)
}

fn check_rule(table: &Table<'_, '_>, key: &str, rule: &RuleSpec) -> bool {
    let checked = rule.validate();
    if let Err(error) = &checked {
        table.source.found(
            table.span_of(key),
            read::BAD_VALUE,
            format!("`{key}`, at character {}: {}", error.position, error.problem),
        );
    }
    checked.is_ok()
}

fn read_correlation(table: &Table<'_, '_>) -> Option<Correlation> {
    let mut properties = BTreeMap::new();
    for (name, value) in table.free("properties").into_iter().flatten() {
        let wanted = match value.get_ref() {
            DeValue::String(text) => FilterValue::Text(text.to_string()),
            DeValue::Boolean(flag) => FilterValue::Bool(*flag),
            DeValue::Integer(number) => {
                let whole = i64::from_str_radix(&number.as_str().replace('_', ""), number.radix());
                whole.map_or_else(|_| FilterValue::Text(number.to_string()), FilterValue::Int)
            }
            DeValue::Float(number) => {
                let real = number.as_str().replace('_', "").parse();
                real.map_or_else(|_| FilterValue::Text(number.to_string()), FilterValue::Double)
            }
            _ => {
                let text = format!(
                    "`{}` in `properties` of a filter: it takes texts, numbers, true and false",
                    name.get_ref()
                );
                table.source.found(Some(value.span()), read::BAD_VALUE, text);
                continue;
            }
        };
        properties.insert(name.get_ref().to_string(), wanted);
    }
    let correlation = Correlation {
        message_id: table.text("message_id"),
        session_id: table.text("session_id"),
        subject: table.text("subject"),
        content_type: table.text("content_type"),
        correlation_id: table.text("correlation_id"),
        to: table.text("to"),
        reply_to: table.text("reply_to"),
        reply_to_session_id: table.text("reply_to_session_id"),
        properties,
    };
    if correlation == Correlation::default() {
        table.source.found(
            table.span(),
            read::BAD_VALUE,
            "a filter that compares nothing lets everything through; leave it out",
        );
        return None;
    }
    Some(correlation)
}

fn read_subscription_rule(table: &Table<'_, '_>) -> Option<RuleSpec> {
    let name = table.text("name");
    let filter = match table.text_or_table("filter") {
        Some(filter) => read_filter(table, "filter", filter),
        None => Some(FilterSpec::All),
    };
    let action = table.text("action").map(Into::into);
    let (name, filter) = (name?, filter?);
    // Its name and its action; the filter has been looked at.
    let named = check_rule(table, "name", &RuleSpec::new(name.as_str(), FilterSpec::All));
    let acts = action.is_none()
        || check_rule(
            table,
            "action",
            &RuleSpec { action: action.clone(), ..RuleSpec::new(DEFAULT_RULE, FilterSpec::All) },
        );
    (named && acts).then_some(RuleSpec { name, filter, action })
}

fn check_rules(table: &Table<'_, '_>, rules: &[RuleSpec]) {
    if table.has("filter") && table.has("rules") {
        let text = "a subscription has `filter` or `rules`, not both; the filter can be one of the rules";
        table.source.found(table.span_of("filter"), read::BAD_VALUE, text);
    }
    for (index, rule) in rules.iter().enumerate() {
        if rules[..index].iter().any(|other| other.name.eq_ignore_ascii_case(&rule.name)) {
            table.source.found(
                table.span_of("rules"),
                read::TWICE,
                format!("there are two rules named {:?}", rule.name),
            );
        }
    }
}

pub(super) fn count(table: &Table<'_, '_>, name: &str) -> u32 {
    u32::try_from(table.count(name).expect(DECLARED)).expect("the key table's bounds are below 2^32")
}

fn size(table: &Table<'_, '_>, name: &str) -> usize {
    usize::try_from(table.bytes(name).expect(DECLARED)).expect("the key table's bounds fit an address space of 64 bits")
}

fn read_endpoint(table: &Table<'_, '_>, places: &mut Places) -> Option<Endpoint> {
    let name = table.text("name");
    if let Some(name) = &name {
        places.endpoints.push((name.as_str().into(), table.span_of("name")));
    }
    let source =
        table.table("source").and_then(|source| source::read_source(&source, name.as_deref().unwrap_or_default()));
    let (source, remote) = source.map_or((None, None), |(source, remote)| (Some(source), remote));
    if let Some(source) = &source {
        let transport = remote.as_ref().map(|remote| remote.transport.clone());
        places.sources.push((transport, source.clone(), table.span_of("source")));
    }
    let publish = table.texts("publish").map(|names| {
        // What a namespace has is not known here.
        let here = names.iter().filter(|_| remote.is_none());
        places.publish.extend(here.map(|(name, span)| (EntityName::from(name.as_str()), span.clone())));
        names.into_iter().map(|(name, _)| name.into()).collect()
    });
    let resolver = table.text("resolver").map(|name| (EntityName::from(name), table.span_of("resolver")));
    if let (Some((name, Some(span))), None) = (&resolver, &remote) {
        places.publish.push((name.clone(), span.clone()));
    }
    let handlers = table.texts("handlers");
    let store = StoreRef::from_name(&table.text("store").expect(DECLARED));
    if handlers.as_ref().is_some_and(Vec::is_empty) {
        table.source.found(
            table.span_of("handlers"),
            read::BAD_VALUE,
            "`handlers` is empty; leave it out for every handler that names the event type",
        );
    }
    let endpoint = Endpoint {
        name: name.clone().unwrap_or_default().into(),
        source: source.clone().unwrap_or_else(|| "".into()),
        concurrency: count(table, "concurrency"),
        handlers: handlers.unwrap_or_default().into_iter().map(|(name, _)| name.into()).collect(),
        remote,
        inbox: table.table("inbox").map(|inbox| read_inbox(&inbox, &store)),
        retry: table.table("retry").map(|retry| read_retry(&retry)),
        store,
        single_host: table.boolean("single_host").expect(DECLARED),
        publish,
        resolver: resolver.map(|(name, _)| name),
        host_ended_limit: count(table, "host_ended_limit"),
    };
    (name.is_some() && source.is_some()).then_some(endpoint)
}

fn read_inbox(table: &Table<'_, '_>, otherwise: &StoreRef) -> Inbox {
    let mode = match table.text("mode").as_deref() {
        Some("transaction") => Mode::Transaction,
        Some("lease") => Mode::Lease,
        _ => Mode::Record,
    };
    if table.has("lease") && mode != Mode::Lease {
        table.source.found(table.span_of("lease"), read::BAD_VALUE, "`lease` of an inbox is for `mode = \"lease\"`");
    }
    let store = table.text("store").map_or_else(|| otherwise.clone(), |name| StoreRef::from_name(&name));
    if store != *otherwise && mode != Mode::Record {
        let text = "an inbox of mode \"transaction\" or \"lease\" is in its endpoint's own store, because both commit in one transaction; leave out `store`";
        table.source.found(table.span_of("store"), read::BAD_VALUE, text);
    }
    Inbox {
        mode,
        lease: table.duration("lease").expect(DECLARED),
        store,
        retention: table.duration("retention").expect(DECLARED),
        cleanup_interval: table.duration("cleanup_interval").expect(DECLARED),
    }
}

fn read_retry(table: &Table<'_, '_>) -> RetryPolicy {
    let schedule = Schedule {
        strategy: strategy(table).expect(DECLARED),
        base: table.duration("base").expect(DECLARED),
        max: table.duration("max"),
        attempts: count(table, "attempts"),
        jitter: jitter(table).expect(DECLARED),
    };
    if schedule.max.is_some_and(|max| max < schedule.base) {
        table.source.found(table.span_of("max"), read::BAD_VALUE, "`max` of a retry is shorter than its `base`");
    }
    let rules = table.tables("rules").iter().map(|rule| read_rule(rule, &schedule)).collect();
    let on = table.texts("on").unwrap_or_default().into_iter().map(|(kind, _)| kind).collect();
    RetryPolicy { schedule, on, rules }
}

fn read_rule(table: &Table<'_, '_>, otherwise: &Schedule) -> Rule {
    let rule = Rule {
        kind: table.text("kind"),
        text: table.text("text"),
        event_type: table.text("event_type"),
        schedule: Some(Schedule {
            strategy: strategy(table).unwrap_or(otherwise.strategy),
            base: table.duration("base").unwrap_or(otherwise.base),
            max: table.duration("max").or(otherwise.max),
            attempts: table.count("attempts").and_then(|n| u32::try_from(n).ok()).unwrap_or(otherwise.attempts),
            jitter: jitter(table).unwrap_or(otherwise.jitter),
        }),
    };
    if rule.kind.is_none() && rule.text.is_none() && rule.event_type.is_none() {
        table.source.found(
            table.span(),
            read::BAD_VALUE,
            "a retry rule needs at least one of `kind`, `text`, `event_type`",
        );
    }
    rule
}

fn strategy(table: &Table<'_, '_>) -> Option<Strategy> {
    Some(match table.text("strategy")?.as_str() {
        "fixed" => Strategy::Fixed,
        "linear" => Strategy::Linear,
        _ => Strategy::Exponential,
    })
}

fn jitter(table: &Table<'_, '_>) -> Option<Jitter> {
    Some(match table.text("jitter")?.as_str() {
        "none" => Jitter::None,
        "bounded" => Jitter::Bounded,
        _ => Jitter::Full,
    })
}

/// Grants that a handler can have in this build.
const GRANTS: [&str; 3] = ["state", "config", "sql:NAME"];
/// Grants of later builds, by what comes before a colon.
const LATER_GRANTS: [&str; 1] = ["http"];

fn read_handler(table: &Table<'_, '_>, base: &Path) -> HandlerConfig {
    let mut grants = Vec::new();
    for (grant, span) in table.texts("grant").unwrap_or_default() {
        let kind = grant.split(':').next().unwrap_or_default();
        let is_database =
            kind == "sql" && grant.split_once(':').is_some_and(|(_, name)| read::check_name(name).is_ok());
        if ["state", "config"].contains(&grant.as_str()) || is_database {
            grants.push(grant);
        } else if LATER_GRANTS.contains(&kind) {
            table.source.found(Some(span), read::NOT_YET, format!("the grant {grant:?} is not in this build yet"));
        } else {
            let advice = nearest(&grant, GRANTS.into_iter())
                .map_or_else(|| format!("it takes {}", GRANTS.join(", ")), |near| format!("did you mean {near:?}?"));
            table.source.found(Some(span), read::BAD_VALUE, format!("unknown grant {grant:?}; {advice}"));
        }
    }
    let isolation = table.text("isolation").as_deref().and_then(Isolation::from_name).unwrap_or_default();
    let folders = table
        .tables("folders")
        .iter()
        .filter_map(|folder| {
            let guest = folder.text("guest");
            if guest.as_ref().is_some_and(|guest| !guest.starts_with('/') && guest != ".") {
                folder.source.found(folder.span_of("guest"), read::BAD_VALUE, "`guest` of a folder starts with `/`");
            }
            Some(Folder {
                path: base.join(folder.text("host")?),
                guest: guest?,
                write: folder.boolean("write").expect(DECLARED),
            })
        })
        .collect();
    let limits = table.table("limits").unwrap_or_else(|| unwritten(table.source, &keys::LIMITS));
    // The import is granted by the table being there; `grant = ["config"]` alone grants an empty one.
    let asked = grants.iter().any(|grant| grant == "config");
    grants.retain(|grant| grant != "config");
    let config = read_free(table, base).or_else(|| asked.then(BTreeMap::new));
    HandlerConfig { name: None, grant: grants, config, limits: read_limits(&limits), isolation, folders }
}

fn read_limits(table: &Table<'_, '_>) -> Limits {
    Limits {
        time: table.duration("time").expect(DECLARED),
        memory: size(table, "memory"),
        stack: size(table, "stack"),
        tables: count(table, "tables") as usize,
        outgoing: count(table, "outgoing"),
        outgoing_bytes: size(table, "outgoing_bytes"),
        log: size(table, "log"),
        body: size(table, "body"),
        sql_time: table.duration("sql_time").expect(DECLARED),
        sql_rows: count(table, "sql_rows"),
        sql_bytes: size(table, "sql_bytes"),
    }
}

/// A handler's own settings as texts: a text as it is, or what it points to; anything else as JSON.
fn read_free(table: &Table<'_, '_>, base: &Path) -> Option<BTreeMap<String, String>> {
    let mut entries = BTreeMap::new();
    for (name, value) in table.free("config")? {
        let text = match value.get_ref() {
            DeValue::String(text) => match units::reference(text, base) {
                None => text.to_string(),
                Some(Ok(secret)) => secret,
                Some(Err(error)) => {
                    table.source.found(
                        Some(value.span()),
                        read::SECRET,
                        format!("`{}` in the handler's config: {error}", name.get_ref()),
                    );
                    continue;
                }
            },
            other => json(other).to_string(),
        };
        entries.insert(name.get_ref().to_string(), text);
    }
    Some(entries)
}

fn json(value: &DeValue<'_>) -> serde_json::Value {
    match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Integer(number) => i64::from_str_radix(&number.as_str().replace('_', ""), number.radix())
            .map_or_else(|_| number.to_string().into(), Into::into),
        DeValue::Float(number) => number.as_str().parse::<f64>().map_or_else(|_| number.to_string().into(), Into::into),
        DeValue::Boolean(flag) => (*flag).into(),
        DeValue::Datetime(at) => at.to_string().into(),
        DeValue::Array(items) => items.iter().map(|item| json(item.get_ref())).collect(),
        DeValue::Table(entries) => entries
            .iter()
            .map(|(name, value)| (name.get_ref().to_string(), json(value.get_ref())))
            .collect::<serde_json::Map<_, _>>()
            .into(),
    }
}

/// A queue or subscription with every setting at its default.
pub(crate) fn default_queue(name: &str) -> Queue {
    let source = Source::new("", Path::new("."));
    let table = unwritten(&source, &keys::QUEUE);
    Queue {
        max_message_size: table.bytes("max_message_size").expect(DECLARED),
        ..read_queue(&table, name.into(), &mut Places::default())
    }
}

pub(crate) fn default_topic(name: &str) -> Topic {
    let source = Source::new("", Path::new("."));
    let table = unwritten(&source, &keys::TOPIC);
    Topic {
        name: name.into(),
        duplicate_window: None,
        ttl: None,
        max_message_size: table.bytes("max_message_size").expect(DECLARED),
        max_size: None,
        status: EntityStatus::Active,
        user_metadata: None,
        subscriptions: Vec::new(),
    }
}

/// An endpoint of a file-less `dev`.
pub(crate) fn default_endpoint(name: &str, entity: EntityName) -> Endpoint {
    let source = Source::new("", Path::new("."));
    let table = unwritten(&source, &keys::ENDPOINT);
    Endpoint {
        name: name.into(),
        source: entity,
        concurrency: count(&table, "concurrency"),
        handlers: Vec::new(),
        remote: None,
        inbox: Some(read_inbox(&unwritten(&source, &keys::INBOX), &StoreRef::default())),
        retry: None,
        store: StoreRef::Embedded,
        single_host: false,
        publish: None,
        resolver: None,
        host_ended_limit: count(&table, "host_ended_limit"),
    }
}

pub(crate) fn default_handler() -> HandlerConfig {
    let source = Source::new("", Path::new("."));
    read_handler(&unwritten(&source, &keys::HANDLER), Path::new("."))
}
