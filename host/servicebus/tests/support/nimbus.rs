//! Endpoints on NimBus's topology on a broker of a test's own, with the Resolver and a forwarder beside them.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::time::Duration;

use sprag_broker::{EntitySpec, FilterSpec, RuleSpec};
use sprag_core::ids::{EndpointName, EntityName};
use sprag_servicebus::{
    EntitySettings,
    administration::{Filter, Path, Rule, Setting},
    topology::{Forward, NimbusEndpoint, Wanted, nimbus_source_of, wanted_nimbus},
};

/// Who takes what an endpoint of [`of`] publishes, of this type.
pub const CONSUMER: &str = "crm";
pub const EVENT_TYPE: &str = "OrderPlaced";

pub fn endpoint(name: &str, lock_duration: Duration, max_delivery_count: u32) -> NimbusEndpoint {
    NimbusEndpoint {
        name: name.into(),
        lock_duration,
        max_delivery_count,
        forwards: vec![Forward { to: CONSUMER.into(), event_types: vec![EVENT_TYPE.to_owned()] }],
    }
}

/// What the transport has to know of such an endpoint.
pub fn settings(endpoint: &NimbusEndpoint) -> EntitySettings {
    EntitySettings {
        lock_duration: endpoint.lock_duration,
        max_delivery_count: endpoint.max_delivery_count,
        ..EntitySettings::sessions(source(&endpoint.name))
    }
}

pub fn source(endpoint: &EndpointName) -> EntityName {
    nimbus_source_of(endpoint)
}

/// Their entities and the consumer's, as the embedded broker is told of them: each once, those that are forwarded to first.
pub fn specs(endpoints: &[NimbusEndpoint]) -> Vec<EntitySpec> {
    let consumer = NimbusEndpoint { forwards: Vec::new(), ..endpoint(CONSUMER, Duration::from_secs(30), 10) };
    let wanted: Vec<Wanted> = endpoints.iter().chain([&consumer]).flat_map(wanted_nimbus).collect();
    let mut specs: Vec<EntitySpec> = Vec::new();
    for kind in ["topic", "subscription"] {
        for one in wanted.iter().filter(|one| one.path.kind() == kind) {
            if !specs.iter().any(|spec| spec.name == one.path.name()) {
                specs.push(spec(one));
            }
        }
    }
    specs
}

fn spec(wanted: &Wanted) -> EntitySpec {
    let mut spec = match &wanted.path {
        Path::Subscription { topic, name } => EntitySpec::subscription(topic, name, FilterSpec::All),
        path => EntitySpec::topic(path.name()),
    };
    for setting in wanted.made_with.iter().chain(&wanted.settings) {
        match setting {
            Setting::RequiresSession(on) => spec.requires_session = *on,
            Setting::LockDuration(lock) => spec.lock_duration = *lock,
            Setting::MaxDeliveryCount(count) => spec.max_delivery_count = *count,
            Setting::DeadLetterOnExpiry(on) => spec.dead_letter_on_expiry = *on,
            Setting::ForwardTo(target) => spec.forward_to = target.clone(),
            _ => {}
        }
    }
    spec.rules = wanted.rules.iter().map(rule).collect();
    spec
}

fn rule(rule: &Rule) -> RuleSpec {
    let filter = match &rule.filter {
        Filter::All => FilterSpec::All,
        Filter::Sql(sql) => FilterSpec::Sql(sql.clone()),
        other => panic!("{other}: not one of NimBus's"),
    };
    RuleSpec { action: rule.action.as_deref().map(Into::into), ..RuleSpec::new(rule.name.clone(), filter) }
}
