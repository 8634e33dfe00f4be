//! Which entities an endpoint needs on a namespace (P21).
//!
//! A pure function: what `topology show` prints, `apply` makes and `diff` compares. Making them is for a client of the administration API, which is
//! not here yet.

use std::time::Duration;

use sprag_core::ids::{EndpointName, EntityName};

use crate::address;

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    pub name: EntityName,
    pub requires_session: bool,
    pub lock_duration: Duration,
    pub max_delivery_count: u32,
    /// None: messages do not expire.
    pub time_to_live: Option<Duration>,
    pub dead_letter_on_expiry: bool,
}

/// An entity that has to be there. Duplicate detection and partitioning are off on all of them (P25, P21).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    Queue(Queue),
    /// Without sessions of its own: it only forwards.
    Subscription {
        topic: EntityName,
        name: String,
        forward_to: EntityName,
        filter: Option<String>,
    },
}

/// The largest delivery limit that Service Bus takes.
pub const MOST_DELIVERIES: u32 = 2_000;

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
    let queue = Queue {
        name: source.clone(),
        requires_session: endpoint.requires_session,
        lock_duration: endpoint.lock_duration,
        max_delivery_count: endpoint.max_delivery_count,
        time_to_live: None,
        dead_letter_on_expiry: true,
    };
    let mut all = vec![Wanted::Queue(queue.clone())];
    if endpoint.requires_session {
        // P19: parked copies burn no deliveries and do not expire.
        let beside = Queue { name: address::parked(&source), max_delivery_count: MOST_DELIVERIES, ..queue };
        all.push(Wanted::Queue(beside));
    }
    if let Source::Topic { topic, subscription, filter } = &endpoint.source {
        all.push(Wanted::Subscription {
            topic: topic.clone(),
            name: subscription.clone(),
            forward_to: source,
            filter: filter.clone(),
        });
    }
    all
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
        let name = |wanted: Wanted| match wanted {
            Wanted::Queue(queue) => format!("{}/{}/{}", queue.name, queue.requires_session, queue.max_delivery_count),
            Wanted::Subscription { topic, name, forward_to, .. } => format!("{topic}/{name} -> {forward_to}"),
        };
        wanted(endpoint).into_iter().map(name).collect()
    }

    /// P21: what a topic's endpoint sends to itself reaches no other subscriber.
    #[test]
    fn a_topic_forwards_into_a_queue_of_the_endpoint() {
        let topic = Source::Topic { topic: "shop".into(), subscription: "billing".into(), filter: None };
        assert_eq!(
            names(&endpoint(topic, true)),
            ["billing/true/10", "billing.deferred/true/2000", "shop/billing -> billing"]
        );
    }

    #[test]
    fn a_queue_has_the_parked_side_beside_it() {
        assert_eq!(
            names(&endpoint(Source::Queue("orders".into()), true)),
            ["orders/true/10", "orders.deferred/true/2000"]
        );
        assert_eq!(
            names(&endpoint(Source::Queue("mails".into()), false)),
            ["mails/false/10"],
            "nothing is parked without sessions"
        );
    }
}
