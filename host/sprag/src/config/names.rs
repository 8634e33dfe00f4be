//! Whether the names in a configuration meet: found after everything has been read, since they may stand in any order.

use std::ops::Range;

use sprag_core::ids::{EndpointName, EntityName};

use super::{
    Config, Endpoint, Mode, StoreKind, StoreRef, Topology, nearest,
    read::{self, Source},
};

/// Where names stand in the file, for what is found after reading.
#[derive(Default)]
pub(super) struct Places {
    pub(super) entities: Vec<(EntityName, Option<Range<usize>>)>,
    pub(super) endpoints: Vec<(EndpointName, Option<Range<usize>>)>,
    /// By the transport they are on; None is the embedded engine.
    pub(super) sources: Vec<(Option<String>, EntityName, Option<Range<usize>>)>,
    pub(super) publish: Vec<(EntityName, Range<usize>)>,
    /// Key, and the entity that it names.
    pub(super) forwards: Vec<(&'static str, EntityName, Option<Range<usize>>)>,
}

/// Names that are there twice, and names that stand for nothing.
pub(super) fn check_names(source: &Source<'_>, config: &Config, places: &Places) {
    for (index, (name, span)) in places.entities.iter().enumerate() {
        if places.entities[..index].iter().any(|(other, _)| other == name) {
            source.found(span.clone(), read::TWICE, format!("there are two entities named {:?}", name.as_str()));
        }
    }
    for (index, (name, span)) in places.endpoints.iter().enumerate() {
        if places.endpoints[..index].iter().any(|(other, _)| other == name) {
            source.found(span.clone(), read::TWICE, format!("there are two endpoints named {:?}", name.as_str()));
        }
    }
    for (index, (transport, name, span)) in places.sources.iter().enumerate() {
        if places.sources[..index].iter().any(|(on, other, _)| on == transport && other == name) {
            let text = format!(
                "two endpoints read {:?}, so each would get only some of its messages; give each its own queue or subscription",
                name.as_str()
            );
            source.found(span.clone(), read::TWICE, text);
        }
        if let Some(transport) = transport {
            let known = config.servicebus.keys().map(String::as_str);
            missing_section(
                source,
                span.clone(),
                "servicebus",
                transport,
                known,
                "connection = \"env:SERVICEBUS_CONNECTION\"",
            );
            continue;
        }
        let readable = places
            .entities
            .iter()
            .map(|(entity, _)| entity)
            .filter(|entity| config.topics.iter().all(|topic| topic.name != **entity));
        unknown(source, name, span.clone(), readable);
    }
    for (name, span) in &places.publish {
        unknown(source, name, Some(span.clone()), config.entities());
    }
    for (key, name, span) in &places.forwards {
        if places.entities.iter().any(|(entity, _)| entity == name) && config.entities().all(|entity| entity != name) {
            let text =
                format!("`{key}` names the subscription {:?}; messages go on to queues and topics", name.as_str());
            source.found(span.clone(), read::BAD_VALUE, text);
        } else {
            unknown(source, name, span.clone(), config.entities());
        }
    }
    for endpoint in &config.endpoints {
        if config.source_of(endpoint).is_some_and(|queue| queue.forward_to.is_some()) {
            let span = places.sources.iter().find(|(on, name, _)| on.is_none() && *name == endpoint.source);
            let span = span.and_then(|(_, _, span)| span.clone());
            let text =
                format!("endpoint {:?} would get nothing: its source forwards its messages", endpoint.name.as_str());
            source.found(span, read::BAD_VALUE, text);
        }
    }
}

/// Whether every endpoint's store is there, and is one that it can have with its transport (P34); and what else a transport asks for.
pub(super) fn check_stores(source: &Source<'_>, config: &Config, places: &Places) {
    let span_of = |endpoint: &Endpoint| {
        places.endpoints.iter().find(|(name, _)| *name == endpoint.name).and_then(|(_, span)| span.clone())
    };
    for endpoint in &config.endpoints {
        let name = endpoint.name.as_str();
        let inbox = endpoint.inbox_beside();
        for (store, is_inbox) in std::iter::once((&endpoint.store, false)).chain(inbox.map(|store| (store, true))) {
            let (key, what) = if is_inbox { ("inbox.store", "its inbox") } else { ("store", "its records") };
            if let StoreRef::Named(named) = store {
                let known = config.stores.keys().map(String::as_str);
                let example = "kind = \"postgres\", url = \"env:DATABASE_URL\"";
                missing_section(source, span_of(endpoint), "store", named, known, example);
                if !is_inbox && config.stores.get(named).is_some_and(|database| database.kind == StoreKind::Cosmos) {
                    let text = format!(
                        "endpoint {name:?} keeps its records in [store.{named}], and Cosmos DB holds inboxes only: give it another `store`, and \
                         inbox = {{ store = {named:?} }}"
                    );
                    source.found(span_of(endpoint), read::BAD_VALUE, text);
                }
            } else if endpoint.remote.is_some() && !endpoint.single_host {
                let text = format!(
                    "endpoint {name:?} receives from Service Bus, where other hosts can share its work, and keeps {what} in this host only: give it a \
                     store that all of them use ({key} = NAME, with [store.NAME] kind = \"postgres\"), or promise with `single_host = true` that there is one"
                );
                source.found(span_of(endpoint), read::BAD_VALUE, text);
            }
        }
        let nimbus = endpoint.remote.as_ref().filter(|remote| remote.topology == Topology::Nimbus);
        if nimbus.is_some_and(|it| config.servicebus.get(&it.transport).is_some_and(|it| it.by_azservicebus)) {
            let text = format!(
                "endpoint {name:?} is on NimBus's topology, which `client = \"azservicebus\"` cannot serve: leave `client` out"
            );
            source.found(span_of(endpoint), read::BAD_VALUE, text);
        }
        if endpoint.remote.is_some() && config.host.control_key.is_none() {
            let text = format!(
                "endpoint {name:?} receives from Service Bus, so [host] needs `control_key`, for instance control_key = \"env:SPRAG_CONTROL_KEY\": \
                 it signs the host's own messages, and is the same for all hosts that share the endpoint"
            );
            source.found(span_of(endpoint), read::MISSING, text);
        }
    }
}

/// Whether handlers' SQL has a store that can have it, and whether what is granted can be used (P35, P36, P37).
pub(super) fn check_sql(source: &Source<'_>, config: &Config, places: &Places) {
    for endpoint in config.endpoints.iter().filter(|endpoint| endpoint.has_sql()) {
        let span = places.endpoints.iter().find(|(name, _)| *name == endpoint.name).and_then(|(_, span)| span.clone());
        let name = endpoint.name.as_str();
        match &endpoint.store {
            StoreRef::Embedded => {}
            StoreRef::Memory => {
                let text = format!(
                    "endpoint {name:?} has an inbox of mode \"transaction\", and the store \"memory\" has no SQL"
                );
                source.found(span, read::BAD_VALUE, text);
            }
            StoreRef::Named(store) => {
                let Some(database) = config.stores.get(store) else { continue };
                if database.kind != StoreKind::Postgres {
                    let text = format!(
                        "endpoint {name:?} has an inbox of mode \"transaction\", which [store.{store}] cannot have: the embedded engine and PostgreSQL have SQL for handlers"
                    );
                    source.found(span, read::BAD_VALUE, text);
                } else if database.sql_role.is_none() {
                    let text = format!(
                        "endpoint {name:?} has an inbox of mode \"transaction\", so [store.{store}] needs `sql_role`: the database's role that handlers' SQL is \
                         carried out as, without rights on the host's tables"
                    );
                    source.found(span, read::MISSING, text);
                }
            }
        }
    }
    for (name, database) in &config.stores {
        let needed = config.needed_pool(name);
        if let Some(pool) = database.pool.filter(|pool| *pool < needed) {
            let text = format!(
                "[store.{name}] has pool = {pool}, and its endpoints with SQL run up to {} messages side by side, each with a connection of its own: \
                 set pool to at least {needed}, or lower their `concurrency`",
                needed - super::BESIDE_SQL
            );
            source.found(None, read::BAD_VALUE, text);
        }
    }
    for (handler, granted) in &config.handlers {
        for database in granted.grant.iter().filter_map(|grant| grant.strip_prefix("sql:")) {
            let may_run = |endpoint: &&Endpoint| endpoint.handlers.is_empty() || endpoint.handlers.contains(handler);
            let has_it = |endpoint: &Endpoint| endpoint.has_sql() && endpoint.store.name() == database;
            if !config.endpoints.iter().filter(may_run).any(has_it) {
                let text = format!(
                    "[handler.{handler}] is granted \"sql:{database}\", and no endpoint that runs it has store = {database:?} with inbox = {{ mode = \"transaction\" }}"
                );
                source.found(None, read::UNKNOWN_NAME, text);
            }
        }
    }
}

/// A session has one holder, which keeps the copies of an event apart already; leases are for sources without sessions (spec 4).
pub(super) fn check_inboxes(source: &Source<'_>, config: &Config, places: &Places) {
    for endpoint in &config.endpoints {
        if endpoint.inbox.as_ref().is_some_and(|inbox| inbox.mode == Mode::Lease) && config.has_sessions(endpoint) {
            let span = places.endpoints.iter().find(|(name, _)| *name == endpoint.name);
            let text = format!(
                "endpoint {:?} has a source with sessions, which keep the copies of a message apart already: `mode = \"lease\"` of its inbox is for \
                 sources without; take \"record\"",
                endpoint.name.as_str()
            );
            source.found(span.and_then(|(_, span)| span.clone()), read::BAD_VALUE, text);
        }
        if let StoreRef::Named(store) = &endpoint.store
            && endpoint.inbox.as_ref().is_some_and(|inbox| inbox.mode == Mode::Lease)
            && config.stores.get(store).is_some_and(|database| database.kind != StoreKind::Postgres)
        {
            let span = places.endpoints.iter().find(|(name, _)| *name == endpoint.name);
            let text = format!(
                "endpoint {:?} has an inbox of mode \"lease\", which [store.{store}] cannot have: the embedded engine and PostgreSQL have leases",
                endpoint.name.as_str()
            );
            source.found(span.and_then(|(_, span)| span.clone()), read::BAD_VALUE, text);
        }
    }
}

/// A name that stands for a section which is not there.
fn missing_section<'k>(
    source: &Source<'_>,
    span: Option<Range<usize>>,
    kind: &str,
    name: &str,
    known: impl Iterator<Item = &'k str> + Clone,
    example: &str,
) {
    if known.clone().any(|known| known == name) {
        return;
    }
    let advice = nearest(name, known)
        .map_or_else(|| format!("add [{kind}.{name}] with {example}"), |near| format!("did you mean {near:?}?"));
    source.found(span, read::UNKNOWN_NAME, format!("there is no [{kind}.{name}]; {advice}"));
}

fn unknown<'n>(
    source: &Source<'_>,
    name: &EntityName,
    span: Option<Range<usize>>,
    known: impl Iterator<Item = &'n EntityName>,
) {
    let known: Vec<&str> = known.map(EntityName::as_str).collect();
    if known.contains(&name.as_str()) {
        return;
    }
    let (kind, fix) = match name.as_str().split_once('/') {
        Some((topic, subscription)) => {
            ("subscription", format!("add {{ name = {subscription:?} }} to the subscriptions of topic {topic:?}"))
        }
        None => ("queue", format!("add [[queue]] name = {:?}", name.as_str())),
    };
    let advice = nearest(name.as_str(), known.into_iter()).map_or(fix, |near| format!("did you mean {near:?}?"));
    source.found(span, read::UNKNOWN_NAME, format!("there is no {kind} {:?}; {advice}", name.as_str()));
}
