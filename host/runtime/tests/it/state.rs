//! The `state` import: a run sees its own writes, and its reads are written down (P4).

use std::sync::Arc;

use bytes::Bytes;
use sprag_core::run::{End, StateRead, StateWrite, Version};
use sprag_runtime::RunInput;

use crate::support::*;

async fn seen(state: &Arc<Map>, steps: &str) -> (String, sprag_core::run::UnitOfWork) {
    let probe = probe();
    let output = probe.run(RunInput { state: state.clone(), ..input(&format!("state {steps}")) }).await;
    match output.end {
        End::Discard { reason } => (reason, output.unit),
        End::Done => (String::new(), output.unit),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_run_sees_its_own_writes() {
    let state = Map::of(&[("a", "1"), ("b", "2")]);
    let (text, _) = seen(&state, "?a +a=9 ?a -a ?a ?c +c=3 ?c").await;
    assert_eq!(text, "a=1 a=9 a:none c:none c=3");
}

#[tokio::test]
async fn writes_are_the_last_of_each_key_and_reads_carry_versions() {
    let state = Map::of(&[("a", "1"), ("b", "2")]);
    let probe = probe();
    let output = probe.run(RunInput { state: state.clone(), ..input("state +a=5 +a=6 -b +c=7") }).await;
    assert_eq!(output.end, End::Done);
    let write = |key: &str, value: Option<&'static str>| StateWrite {
        key: key.into(),
        value: value.map(|value| Bytes::from_static(value.as_bytes())),
    };
    assert_eq!(output.unit.writes, [write("a", Some("6")), write("b", None), write("c", Some("7"))]);
    assert_eq!(output.unit.reads, []);

    let output = probe.run(RunInput { state, ..input("set a=x") }).await;
    assert_eq!(output.unit.writes.len(), 1);
}

/// Done runs carry their reads, once each.
#[tokio::test]
async fn reads_are_written_down_once() {
    let state = Map::of(&[("a", "1")]);
    let probe = probe();
    // `get-hide` answers done; a compare-and-set reads too.
    let output = probe.run(RunInput { state: state.clone(), ..input("get-hide a") }).await;
    assert_eq!(output.unit.reads, [StateRead::Key { key: "a".into(), version: Version(1) }]);
    let output = probe.run(RunInput { state, ..input("get-hide zzz") }).await;
    assert_eq!(output.unit.reads, [StateRead::Key { key: "zzz".into(), version: Version(0) }]);
}

#[tokio::test]
async fn compare_and_set() {
    let state = Map::of(&[("a", "1")]);
    let (text, _) = seen(&state, "~a=2>3 ?a ~a=1>3 ?a ~b=>new ?b ~b=>again ~b=new> ?b").await;
    assert_eq!(text, "false a=1 true a=3 true b=new false true b:none");
}

#[tokio::test]
async fn scans_merge_own_writes_in_order() {
    let state = Map::of(&[("k1", "1"), ("k3", "3"), ("k5", "5"), ("l", "x")]);
    let (text, _) = seen(&state, "*k +k2=2 -k3 +k5=55 +k9=9 +m=y *k *k:2 *k>k2 *k>k2:1 *z").await;
    assert_eq!(text, "[k1=1,k3=3,k5=5] [k1=1,k2=2,k5=55,k9=9] [k1=1,k2=2] [k5=55,k9=9] [k5=55] []");
    // Deleted ones do not use up the limit.
    let many: Vec<(String, String)> = (0..200).map(|n| (format!("k{n:03}"), n.to_string())).collect();
    let pairs: Vec<(&str, &str)> = many.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let state = Map::of(&pairs);
    let deletes: String = (0..150).map(|n| format!("-k{n:03} ")).collect();
    let (text, _) = seen(&state, &format!("{deletes}*k:3")).await;
    assert_eq!(text, "[k150=150,k151=151,k152=152]");
}

#[tokio::test]
async fn scans_are_written_down_with_what_they_found() {
    let state = Map::of(&[("k1", "1"), ("k2", "2"), ("x", "3")]);
    let probe = probe();
    let output = probe.run(RunInput { state, ..input("scan-limit 2") }).await;
    assert_eq!(output.end, End::Discard { reason: "2".into() });
    let output =
        probe.run(RunInput { state: Map::of(&[("k1", "1"), ("k2", "2"), ("x", "3")]), ..input("scan-done k") }).await;
    let found = vec![("k1".to_owned(), Version(1)), ("k2".to_owned(), Version(2))];
    assert_eq!(output.unit.reads, [StateRead::Scan { prefix: "k".into(), after: None, limit: 32, found }]);
    // Big ranges are read in steps, each of them checked at commit.
    let many: Vec<(String, String)> = (0..900).map(|n| (format!("k{n:03}"), "v".repeat(20))).collect();
    let pairs: Vec<(&str, &str)> = many.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let output = probe.run(RunInput { state: Map::of(&pairs), ..input("scan-limit 1000") }).await;
    assert_eq!(output.end, End::Discard { reason: "900".into() });
    for limit in [0, 1_001] {
        let (kind, text) = failure(probe.run(input(&format!("scan-limit {limit}"))).await.end);
        assert!(kind == "state" && text.contains("1000"), "{text}");
    }
}

#[tokio::test]
async fn keys_and_values_have_limits() {
    let probe = probe();
    let long = "k".repeat(1_025);
    for body in [
        "set =x".to_owned(),
        format!("set {long}=x"),
        format!("get {long}"),
        "get ".to_owned(),
        "set-size 1048577".to_owned(),
    ] {
        let (kind, text) = failure(run(&probe, &body).await.end);
        assert!(kind == "state" && text.contains("Invalid"), "{text}");
    }
    assert_eq!(run(&probe, "set-size 1048576").await.end, End::Done);
    assert_eq!(run(&probe, &format!("set {}=x", "k".repeat(1_024))).await.end, End::Done);
}

/// A67: what the host holds for a run is bounded.
#[tokio::test]
async fn state_read_counts_against_the_memory_limit() {
    let big = "v".repeat(1 << 20);
    let keys: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    let pairs: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), big.as_str())).collect();
    let state = Map::of(&pairs);
    let probe = probe();
    for body in ["get-many 100", "scan-limit 1000"] {
        let (kind, text) = failure(probe.run(RunInput { state: state.clone(), ..input(body) }).await.end);
        assert_eq!(kind, "memory-limit", "{body}: {text}");
    }
}
