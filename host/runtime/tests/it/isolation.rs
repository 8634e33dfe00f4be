//! Who shares an instance, and that a broken one is never entered again.

use sprag_core::outcome::kind;
use sprag_runtime::{HandlerConfig, Isolation, RunInput, RuntimeConfig};

use crate::support::*;

fn probe_with_isolation(isolation: Isolation) -> std::sync::Arc<sprag_runtime::Handler> {
    load(&runtime(), "probe", HandlerConfig { isolation, ..config("probe") })
}

async fn runs(handler: &sprag_runtime::Handler, session: Option<&str>, endpoint: &str) -> String {
    said(handler, RunInput { session: session.map(Into::into), endpoint: endpoint.into(), ..input("runs") }).await
}

#[tokio::test]
async fn message_isolation_gives_every_run_a_fresh_instance() {
    let probe = probe_with_isolation(Isolation::Message);
    for _ in 0..3 {
        assert_eq!(runs(&probe, Some("s"), "e").await, "1");
    }
}

#[tokio::test]
async fn session_isolation_shares_within_one_session_of_one_endpoint() {
    let probe = probe_with_isolation(Isolation::Session);
    assert_eq!(runs(&probe, Some("a"), "e").await, "1");
    assert_eq!(runs(&probe, Some("a"), "e").await, "2");
    assert_eq!(runs(&probe, Some("b"), "e").await, "1");
    assert_eq!(runs(&probe, Some("a"), "other").await, "1");
    assert_eq!(runs(&probe, Some("a"), "e").await, "3");
    assert_eq!(runs(&probe, None, "e").await, "1");
    assert_eq!(runs(&probe, None, "e").await, "1", "no session, no sharing");
}

#[tokio::test]
async fn kept_instances_are_bounded_and_the_longest_unused_one_goes() {
    let probe = probe_with_isolation(Isolation::Session);
    // The test's runtime keeps four.
    for session in ["a", "b", "c", "d", "e"] {
        assert_eq!(runs(&probe, Some(session), "x").await, "1");
    }
    assert_eq!(runs(&probe, Some("e"), "x").await, "2");
    assert_eq!(runs(&probe, Some("a"), "x").await, "1", "it had to make room");
}

/// A63.
#[tokio::test]
async fn a_trapped_instance_is_never_entered_again() {
    for isolation in [Isolation::Message, Isolation::Session, Isolation::Pooled] {
        let probe = probe_with_isolation(isolation);
        let shared = isolation != Isolation::Message;
        assert_eq!(runs(&probe, Some("s"), "e").await, "1");
        assert_eq!(runs(&probe, Some("s"), "e").await, if shared { "2" } else { "1" });
        for body in ["panic", "bad-utf8", "recurse", "alloc-then-fail 128"] {
            let end = run(&probe, body).await.end;
            assert_ne!(failure(end).0, kind::COMPONENT_ERROR, "{body}");
            let next = RunInput { endpoint: "billing".into(), ..input("runs") };
            assert_eq!(said(&probe, next).await, "1", "{isolation:?}: fresh after {body}");
        }
    }
}

#[tokio::test]
async fn a_stopped_instance_is_never_entered_again() {
    let limits = sprag_runtime::Limits { time: std::time::Duration::from_millis(100), ..Default::default() };
    let probe = load(&runtime(), "probe", HandlerConfig { isolation: Isolation::Pooled, limits, ..config("probe") });
    assert_eq!(runs(&probe, None, "e").await, "1");
    assert_eq!(failure(run(&probe, "spin").await.end).0, kind::TIMEOUT);
    assert_eq!(runs(&probe, None, "e").await, "1");
}

/// Nothing of a run is left for the next one in the same instance.
#[tokio::test]
async fn a_reused_instance_begins_with_clean_books() {
    let probe = probe_with_isolation(Isolation::Pooled);
    assert_eq!(run(&probe, "publish-done out").await.unit.outgoing.len(), 1);
    let output = run(&probe, "publish-done out").await;
    assert_eq!(output.unit.outgoing.len(), 1);
    let map = Map { down: true, ..Map::default() };
    run_with(&probe, "get k", map).await;
    assert_eq!(run(&probe, "ok").await.end, sprag_core::run::End::Done);
    assert_eq!(failure(run(&probe, "publish-many 1001").await.end).0, kind::OUTPUT_LIMIT);
    assert_eq!(run(&probe, "publish-many 1000").await.end, sprag_core::run::End::Done);
}

async fn run_with(handler: &sprag_runtime::Handler, body: &str, map: Map) {
    let output = handler.run(RunInput { state: std::sync::Arc::new(map), ..input(body) }).await;
    assert!(matches!(output.end, sprag_core::run::End::Transient { .. }));
}

/// More runs than instances: they wait for their turn, and their time counts from then.
#[tokio::test]
async fn runs_beyond_the_pool_wait_for_their_turn() {
    let runtime =
        sprag_runtime::Runtime::new(RuntimeConfig { max_instances: 2, max_kept: 0, ..RuntimeConfig::default() })
            .unwrap();
    let wasi = load(&runtime, "wasi", HandlerConfig::named("wasi"));
    let napping: Vec<_> = (0..20)
        .map(|_| {
            let wasi = wasi.clone();
            tokio::spawn(async move { run(&wasi, "nap").await.end })
        })
        .collect();
    for nap in napping {
        assert_eq!(nap.await.unwrap(), sprag_core::run::End::Done);
    }
}

/// A68: many runs over several components, and the memory stays where it was after the first tenth. With `SPRAG_SOAK`: 1,000,000 over 50.
#[tokio::test]
async fn resident_memory_is_flat() {
    let (components, rounds) = if std::env::var_os("SPRAG_SOAK").is_some() { (50_u8, 20_000) } else { (5, 4_000) };
    let runtime = runtime();
    let handlers: Vec<_> = (0..components)
        .map(|n| runtime.load(&version(&component("noop"), n), HandlerConfig::default(), |_| {}).unwrap())
        .collect();
    let mut after_warm_up = 0;
    for round in 0..rounds {
        for handler in &handlers {
            run(handler, "ok").await;
        }
        if round == rounds / 10 {
            after_warm_up = resident();
        }
    }
    let more = resident().saturating_sub(after_warm_up);
    assert!(more < 8 << 20, "{} KiB more after {} runs", more >> 10, rounds * u32::from(components));
}
