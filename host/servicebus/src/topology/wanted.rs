//! The entities of an endpoint in Sprag's own topology: a queue of its own, and one beside it for what is parked (P19, P21).

use std::time::Duration;

use sprag_core::ids::{EndpointName, EntityName};

use super::{MOST_DELIVERIES, Wanted};
use crate::{
    address,
    administration::{DEFAULT_RULE, Path, Rule, Setting},
};

/// Where an endpoint's messages come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A queue of its own.
    Queue(EntityName),
    /// A subscription of a topic, with a SQL filter or all messages. It forwards into a queue named after the endpoint.
    Topic { topic: EntityName, subscription: String, filter: Option<String> },
}

/// What of an endpoint decides on its entities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub name: EndpointName,
    pub source: Source,
    pub requires_session: bool,
    pub lock_duration: Duration,
    pub max_delivery_count: u32,
}

/// The queue that an endpoint receives from: never one that another subscriber sees, so that its retries and triggers reach it only.
pub fn source_of(endpoint: &Endpoint) -> EntityName {
    match &endpoint.source {
        Source::Queue(name) => name.clone(),
        Source::Topic { .. } => endpoint.name.as_str().into(),
    }
}

/// The entities of one endpoint, in the order in which they are made: what is forwarded to comes first.
pub fn wanted(endpoint: &Endpoint) -> Vec<Wanted> {
    let source = source_of(endpoint);
    let mut all = vec![Wanted::new(Path::Queue(source.clone()), carrier(endpoint, endpoint.max_delivery_count))];
    if endpoint.requires_session {
        // P19: parked copies burn no deliveries and do not expire.
        let parked = Path::Queue(address::parked(&source));
        all.push(Wanted::new(parked, carrier(endpoint, MOST_DELIVERIES)));
    }
    if let Source::Topic { topic, subscription, filter } = &endpoint.source {
        // It belongs to those who publish: how it is set up is their affair.
        all.push(Wanted::new(Path::Topic(topic.clone()), Vec::new()));
        // Without sessions of its own: it only forwards.
        let settings = vec![Setting::RequiresSession(false), Setting::ForwardTo(Some(source))];
        let rules = vec![Rule::of(DEFAULT_RULE, filter.as_deref())];
        let path = Path::subscription(topic.clone(), subscription.clone());
        all.push(Wanted { rules, ..Wanted::new(path, settings) });
    }
    all
}

/// A queue that carries stand-ins: never with duplicate detection, which would swallow them (P25), in one piece, and nothing goes on from it.
fn carrier(endpoint: &Endpoint, deliveries: u32) -> Vec<Setting> {
    vec![
        Setting::RequiresSession(endpoint.requires_session),
        Setting::DuplicateDetection(false),
        Setting::Partitioned(false),
        Setting::LockDuration(endpoint.lock_duration),
        Setting::MaxDeliveryCount(deliveries),
        Setting::TimeToLive(None),
        Setting::DeadLetterOnExpiry(true),
        Setting::ForwardTo(None),
        Setting::AutoDeleteOnIdle(None),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(source: Source, requires_session: bool) -> Endpoint {
        Endpoint {
            name: "billing".into(),
            source,
            requires_session,
            lock_duration: Duration::from_secs(30),
            max_delivery_count: 10,
        }
    }

    fn names(endpoint: &Endpoint) -> Vec<String> {
        let name = |wanted: Wanted| {
            let told = wanted.settings.iter().filter(|setting| {
                let told = ["requires_session", "max_delivery_count", "forward_to"];
                told.contains(&setting.name()) && setting.value() != "none"
            });
            let told: Vec<_> = told.map(Setting::value).collect();
            let rules: Vec<_> = wanted.rules.iter().map(ToString::to_string).collect();
            format!("{}/{}/{}", wanted.path, told.join("/"), rules.join("/"))
        };
        wanted(endpoint).into_iter().map(name).collect()
    }

    /// P21: what a topic's endpoint sends to itself reaches no other subscriber.
    #[test]
    fn a_topic_forwards_into_a_queue_of_the_endpoint() {
        let topic = |filter: Option<&str>| Source::Topic {
            topic: "shop".into(),
            subscription: "billing".into(),
            filter: filter.map(str::to_owned),
        };
        assert_eq!(
            names(&endpoint(topic(None), true)),
            [
                "queue billing/true/10/",
                "queue billing.deferred/true/2000/",
                "topic shop//",
                "subscription shop/billing/false/billing/$Default: all messages"
            ]
        );
        assert!(names(&endpoint(topic(Some("a = 1")), false))[2].ends_with("$Default: a = 1"));
    }

    #[test]
    fn a_queue_has_the_parked_side_beside_it() {
        assert_eq!(
            names(&endpoint(Source::Queue("orders".into()), true)),
            ["queue orders/true/10/", "queue orders.deferred/true/2000/"]
        );
        assert_eq!(
            names(&endpoint(Source::Queue("mails".into()), false)),
            ["queue mails/false/10/"],
            "nothing is parked without sessions"
        );
    }
}
