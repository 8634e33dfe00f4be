//! Which handler serves an event (P27, P28).

use std::sync::Arc;

use sprag_runtime::{
    Handler, HandlerConfig, LoadError, Registry, Resolution,
    registry::{EndpointHandlers, NotReady},
};

use crate::support::*;

fn handlers() -> [Arc<Handler>; 3] {
    let runtime = runtime();
    [
        load(&runtime, "probe", config("exact")),
        load(&runtime, "noop", HandlerConfig::named("any")),
        load(&runtime, "probe", config("second")),
    ]
}

fn endpoint(name: &str, handlers: Option<&[&str]>) -> EndpointHandlers {
    let handlers = handlers.map(|names| names.iter().map(|name| (*name).into()).collect());
    EndpointHandlers { endpoint: name.into(), handlers }
}

fn resolved(registry: &Registry, endpoint: &str, event_type: &str) -> String {
    match registry.resolve(&endpoint.into(), &event_type.into()) {
        Resolution::Handler(handler) => handler.name().to_string(),
        Resolution::Unclaimed => "unclaimed".into(),
        Resolution::NotReady(why) => why.to_string(),
    }
}

/// P28: an exact type beats `*`.
#[test]
fn an_exact_type_beats_any() {
    let [exact, any, _] = handlers();
    let registry = Registry::new(vec![endpoint("all", None), endpoint("one", Some(&["exact"]))]);
    registry.insert(any).unwrap();
    registry.insert(exact).unwrap();
    assert_eq!(resolved(&registry, "all", "probe"), "exact");
    assert_eq!(resolved(&registry, "all", "probe.other"), "exact");
    assert_eq!(resolved(&registry, "all", "something"), "any");
    assert_eq!(resolved(&registry, "one", "probe"), "exact");
    assert_eq!(resolved(&registry, "one", "something"), "unclaimed");
    assert_eq!(resolved(&registry, "nowhere", "probe"), "there is no endpoint `nowhere`");
}

/// P27: an endpoint takes messages only while every handler it names is loaded; with none named, at least one.
#[test]
fn an_endpoint_waits_for_its_handlers() {
    let [exact, any, _] = handlers();
    let registry = Registry::new(vec![endpoint("all", None), endpoint("two", Some(&["exact", "any"]))]);
    let mut changes = registry.changes();
    assert_eq!(registry.ready(&"all".into()), Err(NotReady::NoHandler));
    assert_eq!(resolved(&registry, "all", "probe"), "no handler is loaded");
    registry.insert(any).unwrap();
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    assert_eq!(registry.ready(&"all".into()), Ok(()));
    assert_eq!(registry.ready(&"two".into()), Err(NotReady::Missing(vec!["exact".into()])));
    // The missing one may claim the type that `*` would take.
    assert_eq!(resolved(&registry, "two", "probe"), "not loaded: exact");
    registry.insert(exact).unwrap();
    assert_eq!(registry.ready(&"two".into()), Ok(()));
    assert_eq!(resolved(&registry, "two", "something"), "any");
    registry.remove(&"any".into()).unwrap();
    registry.remove(&"exact".into()).unwrap();
    assert_eq!(registry.ready(&"all".into()), Err(NotReady::NoHandler));
    assert!(registry.remove(&"exact".into()).is_none());
}

/// P28: two claims are refused, with the configuration that gives both their events.
#[test]
fn two_claims_are_refused_with_the_way_out() {
    let [exact, _, second] = handlers();
    let registry = Registry::new(vec![endpoint("billing", None)]);
    registry.insert(exact.clone()).unwrap();
    let Err(error) = registry.insert(second.clone()) else { panic!("it was accepted") };
    let LoadError::Claimed { event_type, endpoint: at, other, fix } = &error else { panic!("{error}") };
    assert_eq!((event_type.as_str(), at.as_str(), other.as_str()), ("probe", "billing", "exact"));
    assert_eq!(
        fix,
        "[[endpoint]]\nname = \"billing\"\nsource = { topic = \"TOPIC\", subscription = \"billing\" }\nhandlers = [\"exact\"]\n\n\
         [[endpoint]]\nname = \"billing-second\"\nsource = { topic = \"TOPIC\", subscription = \"billing-second\" }\nhandlers = [\"second\"]\n"
    );
    // As printed, both are welcome.
    let registry =
        Registry::new(vec![endpoint("billing", Some(&["exact"])), endpoint("billing-second", Some(&["second"]))]);
    registry.insert(exact.clone()).unwrap();
    registry.insert(second).unwrap();
    assert_eq!(resolved(&registry, "billing-second", "probe"), "second");
    // A new version of the same handler is no second claim.
    assert!(registry.insert(exact).unwrap().is_some());
}

/// A run ends on the version it began with.
#[tokio::test]
async fn a_run_keeps_its_version() {
    let runtime = runtime();
    let component = crate::support::component("wasi");
    let first = runtime.load(&component, HandlerConfig::named("wasi"), |_| {}).unwrap();
    let registry = Registry::new(vec![endpoint("all", None)]);
    registry.insert(first.clone()).unwrap();
    let Resolution::Handler(running) = registry.resolve(&"all".into(), &"wasi".into()) else { panic!("a handler") };
    let nap = tokio::spawn(async move { (run(&running, "nap").await.end, running.digest()) });
    tokio::task::yield_now().await;
    let second = runtime.load(&version(&component, 2), HandlerConfig::named("wasi"), |_| {}).unwrap();
    assert_eq!(registry.insert(second.clone()).unwrap().unwrap().digest(), first.digest());
    assert_eq!(nap.await.unwrap(), (sprag_core::run::End::Done, first.digest()));
    let Resolution::Handler(now) = registry.resolve(&"all".into(), &"wasi".into()) else { panic!("a handler") };
    assert_eq!(now.digest(), second.digest());
}
