//! NimBus's topology: a topic for each endpoint, on which its subscriptions tell by `To` what is whose, and a topic for outcomes.
//!
//! Names, filters and actions are NimBus's to the letter (reference 1.6), because its own provisioning compares them as text and replaces what
//! differs. What differs here on purpose: nothing is removed, so a rule that lets everything in stays where somebody left it, and is named.

use std::time::Duration;

use sprag_core::ids::{EndpointName, EntityName};

use super::{MOST_DELIVERIES, Wanted};
use crate::{
    administration::{DEFAULT_RULE, Filter, Path, Rule, Setting},
    way::{self, CONTINUATION, DEFERRED, RETRY},
};

const RESOLVER: &str = "Resolver";
const DEFERRED_PROCESSOR: &str = "DeferredProcessor";
/// As NimBus makes what it receives from.
const LOCK: Duration = Duration::from_secs(30);
const DELIVERIES: u32 = 10;
/// What a topic of NimBus's may hold, in megabytes.
const TOPIC_SIZE: u64 = 5_120;

/// What of an endpoint decides on its entities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NimbusEndpoint {
    pub name: EndpointName,
    /// NimBus's own: 30 s.
    pub lock_duration: Duration,
    /// NimBus's own: 10.
    pub max_delivery_count: u32,
    /// Who takes what this endpoint publishes.
    pub forwards: Vec<Forward>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    pub to: EndpointName,
    pub event_types: Vec<String>,
}

/// The entities of one endpoint, in the order in which they are made: what is forwarded to comes first.
pub fn wanted_nimbus(endpoint: &NimbusEndpoint) -> Vec<Wanted> {
    let name = endpoint.name.as_str();
    let at = |subscription: &str| Path::subscription(name, subscription);
    let all_outcomes = vec![Rule::new(DEFAULT_RULE, Filter::All)];
    let mut all = vec![
        topic(RESOLVER),
        // It takes whatever is forwarded to its topic.
        theirs(Path::subscription(RESOLVER, RESOLVER), true).with(all_outcomes),
        carrier(name),
    ];
    let is_deferred = format!("{} AND user.OriginalSessionId IS NOT NULL", to(DEFERRED));
    let reply = format!("{name}-reply");
    all.extend([
        ours(at(name), endpoint, endpoint.max_delivery_count).with(vec![
            rule(&format!("to-{name}"), to(name)),
            rule("continuation", to(CONTINUATION)).with_action(redirect(name, CONTINUATION)),
            rule("retry", to(RETRY)).with_action(redirect(name, RETRY)),
        ]),
        theirs(at(&reply), true).with(vec![rule("ReplyFilter", to(&reply))]),
        forwarding(at(RESOLVER), RESOLVER).with(vec![
            rule(&format!("from-{name}"), to(RESOLVER)).with_action(format!("SET user.From = {}", quoted(name))),
            rule(&format!("to-{name}"), to(name)),
        ]),
        // P19: parked copies burn no deliveries and do not expire.
        ours(at(DEFERRED), endpoint, MOST_DELIVERIES).with(vec![rule("DeferredFilter", is_deferred)]),
        theirs(at(DEFERRED_PROCESSOR), false).with(vec![rule("DeferredProcessorFilter", to(DEFERRED_PROCESSOR))]),
    ]);
    for forward in &endpoint.forwards {
        let consumer = forward.to.as_str();
        // How the consumer's topic is set up is the consumer's affair; forwarding needs it to be there.
        all.push(Wanted::new(Path::topic(consumer), Vec::new()));
        let rules = forward.event_types.iter().map(|event_type| {
            // Only what was published, not what was forwarded: else two who take each other's events play them back and forth.
            let filter = format!("user.EventTypeId = {} AND user.From IS NULL", quoted(event_type));
            rule(event_type, filter).with_action(format!(
                "SET user.From = {}; SET user.EventId = newid(); SET user.To = {};",
                quoted(name),
                quoted(consumer)
            ))
        });
        all.push(forwarding(at(consumer), consumer).with(rules.collect()));
    }
    all
}

/// The subscription that such an endpoint receives from.
pub fn nimbus_source_of(endpoint: &EndpointName) -> EntityName {
    way::nimbus_source(endpoint)
}

/// Never with duplicate detection (a message that is scheduled anew keeps its id), never partitioned.
fn topic(name: &str) -> Wanted {
    let settings = vec![Setting::DuplicateDetection(false), Setting::Partitioned(false)];
    let made_with =
        vec![Setting::MaxSizeInMegabytes(TOPIC_SIZE), Setting::BatchedOperations(true), Setting::SupportOrdering(true)];
    Wanted { made_with, ..Wanted::new(Path::topic(name), settings) }
}

/// The endpoint's own: what comes through it must not expire, nor lose its order (P19).
fn carrier(name: &str) -> Wanted {
    let mut wanted = topic(name);
    wanted.settings.extend([
        Setting::TimeToLive(None),
        Setting::AutoDeleteOnIdle(None),
        Setting::SupportOrdering(true),
    ]);
    Wanted { carries_stand_ins: true, ..wanted }
}

/// What the endpoint receives from.
fn ours(path: Path, endpoint: &NimbusEndpoint, deliveries: u32) -> Wanted {
    let settings = vec![
        Setting::RequiresSession(true),
        Setting::LockDuration(endpoint.lock_duration),
        Setting::MaxDeliveryCount(deliveries),
        Setting::TimeToLive(None),
        Setting::DeadLetterOnExpiry(true),
        Setting::ForwardTo(None),
        Setting::AutoDeleteOnIdle(None),
    ];
    Wanted { made_with: usual().to_vec(), ..Wanted::new(path, settings) }
}

/// What others receive from. How they want it otherwise is their affair.
fn theirs(path: Path, requires_session: bool) -> Wanted {
    let settings = vec![Setting::RequiresSession(requires_session), Setting::ForwardTo(None)];
    let made_with = [Setting::LockDuration(LOCK), Setting::MaxDeliveryCount(DELIVERIES)];
    Wanted { made_with: made_with.into_iter().chain(usual()).collect(), ..Wanted::new(path, settings) }
}

fn forwarding(path: Path, target: &str) -> Wanted {
    let settings = vec![Setting::RequiresSession(false), Setting::ForwardTo(Some(EntityName::from(target)))];
    Wanted { made_with: usual().to_vec(), ..Wanted::new(path, settings) }
}

impl Wanted {
    fn with(self, rules: Vec<Rule>) -> Self {
        Self { rules, ..self }
    }
}

fn usual() -> [Setting; 2] {
    [Setting::BatchedOperations(true), Setting::DeadLetterOnFilterErrors(true)]
}

fn rule(name: &str, filter: String) -> Rule {
    Rule::new(name, Filter::Sql(filter))
}

fn to(whom: &str) -> String {
    format!("user.To = {}", quoted(whom))
}

fn redirect(endpoint: &str, from: &str) -> String {
    format!("SET user.To = {}; SET user.From = {}", quoted(endpoint), quoted(from))
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_filters_and_actions_are_nimbus_s() {
        let endpoint = NimbusEndpoint {
            name: "billing".into(),
            lock_duration: Duration::from_secs(30),
            max_delivery_count: 10,
            forwards: vec![Forward { to: "crm".into(), event_types: vec!["OrderPlaced".into()] }],
        };
        let all = wanted_nimbus(&endpoint);
        let told: Vec<String> = all
            .iter()
            .map(|wanted| {
                let sessions = wanted.settings.contains(&Setting::RequiresSession(true));
                let rules: Vec<_> = wanted.rules.iter().map(|rule| format!("\n  {rule}")).collect();
                let forward = wanted.settings.iter().find(|it| matches!(it, Setting::ForwardTo(Some(_))));
                let forward = forward.map(|it| format!(" -> {}", it.value())).unwrap_or_default();
                format!("{}{}{forward}{}", wanted.path, if sessions { " (sessions)" } else { "" }, rules.concat())
            })
            .collect();
        let expected = "\
topic Resolver
subscription Resolver/Resolver (sessions)
  $Default: all messages
topic billing
subscription billing/billing (sessions)
  to-billing: user.To = 'billing'
  continuation: user.To = 'Continuation', then SET user.To = 'billing'; SET user.From = 'Continuation'
  retry: user.To = 'Retry', then SET user.To = 'billing'; SET user.From = 'Retry'
subscription billing/billing-reply (sessions)
  ReplyFilter: user.To = 'billing-reply'
subscription billing/Resolver -> Resolver
  from-billing: user.To = 'Resolver', then SET user.From = 'billing'
  to-billing: user.To = 'billing'
subscription billing/Deferred (sessions)
  DeferredFilter: user.To = 'Deferred' AND user.OriginalSessionId IS NOT NULL
subscription billing/DeferredProcessor
  DeferredProcessorFilter: user.To = 'DeferredProcessor'
topic crm
subscription billing/crm -> crm
  OrderPlaced: user.EventTypeId = 'OrderPlaced' AND user.From IS NULL, then SET user.From = 'billing'; SET user.EventId = newid(); SET user.To = 'crm';";
        assert_eq!(told.join("\n"), expected);
    }
}
