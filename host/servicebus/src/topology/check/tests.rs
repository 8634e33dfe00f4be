//! Each thing that can be wrong, and that its sentence says what to do.

use std::time::Duration;

use super::*;
use crate::{
    administration::{Entity, Rule},
    topology::{Endpoint, Found, Source, wanted},
};

fn endpoint(source: Source) -> Vec<Wanted> {
    wanted(&Endpoint {
        name: "billing".into(),
        source,
        requires_session: true,
        lock_duration: Duration::from_secs(30),
        max_delivery_count: 10,
    })
}

fn shop() -> Source {
    Source::Topic { topic: "shop".into(), subscription: "billing".into(), filter: None }
}

/// All that is wanted is there, as it has to be, but for one entity.
fn all_but(wanted: &[Wanted], spoil: impl Fn(&mut Entity, &mut Vec<Rule>) -> bool) -> Current {
    let mut current = Current::default();
    for one in wanted {
        let mut entity = Entity::as_made(&one.path, &one.settings);
        let mut rules = one.rules.clone();
        if spoil(&mut entity, &mut rules) {
            current.add(Found { entity, rules });
        }
    }
    current
}

#[test]
fn what_is_as_it_has_to_be_has_no_problem() {
    let wanted = endpoint(shop());
    assert_eq!(check(&wanted, &all_but(&wanted, |_, _| true)), []);
}

#[test]
fn each_problem_is_named_with_what_to_do() {
    use Severity::{Error, Warning};
    type Spoil = fn(&mut Entity, &mut Vec<Rule>) -> bool;
    let cases: [(Spoil, Severity, &str, &str); 15] = [
        (
            |it, _| it.path.name().as_str() != "billing.deferred",
            Error,
            "queue billing.deferred: it is not there",
            "topology apply",
        ),
        (|it, _| it.path.kind() != "subscription", Error, "nothing that is published arrives", "topology apply"),
        (
            |it, _| {
                it.forward_to = None;
                true
            },
            Error,
            "could reach other subscribers (P21)",
            "topology apply",
        ),
        (
            |it, _| {
                if it.path.name().as_str() == "billing" {
                    it.forward_to = Some("elsewhere".into());
                }
                true
            },
            Error,
            "it forwards to elsewhere",
            "topology apply",
        ),
        (
            |it, _| {
                if it.path.name().as_str() == "billing" {
                    it.duplicate_detection = true;
                }
                true
            },
            Error,
            "queue billing: it has duplicate detection",
            "entity that publishers send to",
        ),
        (
            |it, _| {
                if it.path.name().as_str() == "billing.deferred" {
                    it.duplicate_detection = true;
                }
                true
            },
            Error,
            "queue billing.deferred: it has duplicate detection",
            "(P25)",
        ),
        (
            |it, _| {
                if it.path.name().as_str() == "billing" {
                    it.requires_session = false;
                }
                true
            },
            Error,
            "it has no sessions, and it needs them",
            "another name",
        ),
        (
            |it, _| {
                if it.path.name().as_str() == "billing.deferred" {
                    it.time_to_live = Some(Duration::from_secs(86_400));
                }
                true
            },
            Error,
            "ttl 1d: parked messages expire",
            "topology apply",
        ),
        (
            |it, _| {
                if it.path.name().as_str() == "billing" {
                    it.lock_duration = Duration::from_secs(10);
                }
                true
            },
            Error,
            "lock_duration 10s on the namespace, 30s in the configuration",
            "write lock_duration = \"10s\"",
        ),
        (
            |it, _| {
                if it.path.name().as_str() == "billing" {
                    it.lock_duration = Duration::from_secs(60);
                }
                true
            },
            Warning,
            "lock_duration 1m on the namespace",
            "write lock_duration = \"1m\"",
        ),
        (
            |it, _| {
                if it.path.name().as_str() == "billing" {
                    it.max_delivery_count = 3;
                }
                true
            },
            Error,
            "max_delivery_count 3 on the namespace, 10 in the configuration",
            "write max_delivery_count = 3",
        ),
        (
            |it, _| {
                if it.path.name().as_str() == "billing" {
                    it.status = Status::ReceiveDisabled;
                }
                true
            },
            Error,
            "nothing can be received from it",
            "Active",
        ),
        (
            |it, _| {
                if it.path.name().as_str() == "billing" {
                    it.path = Path::topic("billing");
                }
                true
            },
            Error,
            "there is a topic of this name, and a queue is needed",
            "another name",
        ),
        (
            |_, rules| {
                if let Some(rule) = rules.first_mut() {
                    *rule = Rule::of("$Default", Some("a = 1"));
                }
                true
            },
            Error,
            "its rule says \"$Default: a = 1\", and it should say \"$Default: all messages\"",
            "topology apply",
        ),
        (
            |_, rules| {
                if !rules.is_empty() {
                    rules.push(Rule::of("mine", Some("b = 2")));
                }
                true
            },
            Warning,
            "it has the rule \"mine: b = 2\"",
            "Remove the rule mine",
        ),
    ];
    let wanted = endpoint(shop());
    for (spoil, severity, text, remedy) in cases {
        let found = check(&wanted, &all_but(&wanted, spoil));
        let [problem] = found.as_slice() else { panic!("{text}: one problem in {found:#?}") };
        let told = problem.to_string();
        assert!(
            told.contains(text) && told.contains(remedy) && problem.severity == severity,
            "{text}, {remedy}: {told}"
        );
    }
}

/// Without a topic nothing is forwarded, and without sessions nothing is parked.
#[test]
fn an_empty_namespace_lacks_everything_that_is_needed() {
    let names = |source: Source| {
        let found = check(&endpoint(source), &Current::default());
        found.iter().map(|problem| problem.path.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(Source::Queue("orders".into())), ["queue orders", "queue orders.deferred"]);
    assert_eq!(names(shop()).len(), 4);
}
