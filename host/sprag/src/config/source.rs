//! An endpoint's source: what is received from, and on which topology (P21).
//!
//! The topology stands at the source, not at its [servicebus.NAME]: a namespace that NimBus has made may get endpoints of ours one after another, each on
//! its own entities or on those that NimBus had for it.

use sprag_core::ids::EntityName;

use super::{
    Remote, Subscription, Topology,
    parse::{DECLARED, count},
    read::{self, Table},
};

/// What NimBus calls something else than an endpoint: topics, subscriptions and addresses.
const NIMBUS_NAMES: [&str; 6] = ["Resolver", "Deferred", "DeferredProcessor", "Retry", "Continuation", "Manager"];

/// What is received from, and where it is.
pub(super) fn read_source(table: &Table<'_, '_>, endpoint: &str) -> Option<(EntityName, Option<Remote>)> {
    let (queue, topic, subscription) = (table.text("queue"), table.text("topic"), table.text("subscription"));
    if table.text("topology").as_deref() == Some("nimbus") {
        return read_nimbus_source(table, endpoint);
    }
    let (source, subscription) = match (queue, topic, subscription) {
        (Some(queue), None, None) => (EntityName::from(queue), None),
        (None, Some(topic), Some(name)) => (
            EntityName::from(format!("{topic}/{name}")),
            Some(Subscription { topic: topic.into(), name, filter: table.text("filter") }),
        ),
        _ => {
            table.source.found(
                table.span(),
                read::BAD_VALUE,
                "a source is { queue = NAME } or { topic = NAME, subscription = NAME }",
            );
            return None;
        }
    };
    if subscription.is_none() && table.has("filter") {
        table.source.found(table.span_of("filter"), read::BAD_VALUE, "`filter` of a source is for a subscription");
    }
    let Some(transport) = table.text("transport") else {
        for name in ["filter", "topology", "requires_session", "lock_duration", "max_delivery_count"] {
            if table.has(name) {
                let text =
                    format!("`{name}` of a source is for Service Bus; the embedded engine's entity says it itself");
                table.source.found(table.span_of(name), read::BAD_VALUE, text);
            }
        }
        return Some((source, None));
    };
    // P21: what the endpoint sends to itself must not reach another subscriber of the topic.
    let source = if subscription.is_some() { EntityName::from(endpoint) } else { source };
    Some((source, Some(read_remote(table, transport, Topology::Own, subscription))))
}

fn read_remote(
    table: &Table<'_, '_>,
    transport: String,
    topology: Topology,
    subscription: Option<Subscription>,
) -> Remote {
    Remote {
        transport,
        topology,
        subscription,
        requires_session: table.boolean("requires_session").expect(DECLARED),
        lock_duration: table.duration("lock_duration").expect(DECLARED),
        max_delivery_count: count(table, "max_delivery_count"),
    }
}

/// NimBus names topic and subscriptions after the endpoint (P21, reference 1.6), so the source names nothing.
fn read_nimbus_source(table: &Table<'_, '_>, endpoint: &str) -> Option<(EntityName, Option<Remote>)> {
    let refuse = |name: &str, text: String| table.source.found(table.span_of(name), read::BAD_VALUE, text);
    for name in ["queue", "topic", "subscription", "filter"] {
        if table.has(name) {
            let text = format!(
                "with `topology = \"nimbus\"` topic and subscription are named after the endpoint: leave `{name}` out"
            );
            refuse(name, text);
        }
    }
    if table.boolean("requires_session") == Some(false) {
        refuse("requires_session", "with `topology = \"nimbus\"` an endpoint has sessions".to_owned());
    }
    let is_taken = NIMBUS_NAMES.iter().any(|taken| taken.eq_ignore_ascii_case(endpoint));
    if is_taken || endpoint.contains('/') {
        refuse("topology", format!("NimBus cannot have an endpoint named {endpoint:?}"));
    }
    let Some(transport) = table.text("transport") else {
        refuse("topology", "`topology` of a source is for Service Bus: name its `transport`".to_owned());
        return None;
    };
    let source = sprag_servicebus::topology::nimbus_source_of(&endpoint.into());
    Some((source, Some(read_remote(table, transport, Topology::Nimbus, None))))
}
