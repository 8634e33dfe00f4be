//! Every way a run can end has its name, and a guest that produces it (spec 2, A65).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sprag_core::{outcome::kind, run::End, time::Timestamp};
use sprag_runtime::{HandlerConfig, Limits};

use crate::support::*;

fn short() -> Limits {
    Limits { time: Duration::from_millis(300), ..Limits::default() }
}

#[tokio::test]
async fn the_ends_a_handler_chooses() {
    let probe = probe();
    assert_eq!(run(&probe, "ok").await.end, End::Done);
    assert_eq!(run(&probe, "discard old news").await.end, End::Discard { reason: "old news".into() });
    assert_eq!(
        run(&probe, "handoff by hand").await.end,
        End::Handoff {
            reason: "by hand".into(),
            external_id: Some("job-1".into()),
            expected_by: Some(Timestamp(4_102_444_800_000)),
        }
    );
    assert_eq!(
        run(&probe, "transient later").await.end,
        End::Transient { text: "later".into(), retry_after: Some(Duration::from_millis(1_500)) }
    );
    let end = run(&probe, "failed no money").await.end;
    assert!(matches!(&end, End::Failed { retry_after: Some(after), .. } if *after == Duration::from_secs(2)));
    assert_eq!(failure(end), ("card-declined".into(), "no money".into()));
    assert_eq!(
        run(&probe, "dead-letter broken").await.end,
        End::DeadLetter { reason: "never".into(), text: "broken".into() }
    );
}

#[tokio::test]
async fn long_texts_are_cut_on_a_character() {
    let End::DeadLetter { reason, text } = run(&probe(), "dead-letter-long").await.end else { panic!("a dead letter") };
    assert_eq!((reason.chars().count(), text.chars().count()), (4_096, 4_096));
}

#[tokio::test]
async fn component_error_is_a_failure_without_a_kind() {
    assert_eq!(failure(run(&probe(), "failed-no-kind why").await.end), (kind::COMPONENT_ERROR.into(), "why".into()));
}

/// A64: as many as there are threads and two more, each stopped in time, while other tasks of the same threads go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timeout_in_guest_code_stops_each_and_holds_nobody_up() {
    let limits = Limits { time: Duration::from_secs(1), ..Limits::default() };
    let probe = probe_with(limits);
    run(&probe, "ok").await;
    let started = Instant::now();
    let spinning: Vec<_> = (0..4)
        .map(|_| {
            let probe = probe.clone();
            tokio::spawn(async move { run(&probe, "spin").await })
        })
        .collect();
    // Somebody else's work on the same two threads.
    let health = tokio::spawn(async {
        let mut slowest = Duration::ZERO;
        for _ in 0..20 {
            let started = Instant::now();
            tokio::time::sleep(Duration::from_millis(10)).await;
            slowest = slowest.max(started.elapsed());
        }
        slowest
    });
    let other = run(&probe, "ok");
    assert_eq!(other.await.end, End::Done);
    assert!(started.elapsed() < Duration::from_secs(1), "another run is not held up");
    assert!(health.await.unwrap() < Duration::from_secs(1));
    for run in spinning {
        let output = run.await.unwrap();
        assert_eq!(failure(output.end).0, kind::TIMEOUT);
        assert!(output.took < Duration::from_millis(1_400), "{:?}", output.took);
    }
}

#[tokio::test]
async fn timeout_in_a_host_call() {
    let wasi = load(&runtime(), "wasi", HandlerConfig { limits: short(), ..HandlerConfig::named("wasi") });
    let started = Instant::now();
    let (kind, text) = failure(run(&wasi, "sleep").await.end);
    assert_eq!(kind, kind::TIMEOUT);
    assert!(text.contains("300ms"), "{text}");
    assert!(started.elapsed() < Duration::from_secs(2));
    assert_eq!(run(&wasi, "nap").await.end, End::Done);
}

#[tokio::test]
async fn timeout_while_the_store_answers_nothing() {
    struct Never;
    #[async_trait::async_trait]
    impl sprag_runtime::StateReader for Never {
        async fn get(
            &self,
            _: &sprag_core::ids::EndpointName,
            _: &str,
        ) -> Result<Option<(bytes::Bytes, sprag_core::run::Version)>, sprag_runtime::Unavailable> {
            std::future::pending().await
        }
        async fn scan(
            &self,
            _: &sprag_core::ids::EndpointName,
            _: &str,
            _: Option<&str>,
            _: u32,
        ) -> Result<Vec<(String, bytes::Bytes, sprag_core::run::Version)>, sprag_runtime::Unavailable> {
            std::future::pending().await
        }
    }
    let output = probe_with(short()).run(sprag_runtime::RunInput { state: Arc::new(Never), ..input("get k") }).await;
    assert_eq!(failure(output.end).0, kind::TIMEOUT);
}

/// A66.
#[tokio::test]
async fn memory_limit_whatever_the_guest_does_next() {
    let probe = probe_with(short());
    for body in ["alloc 128", "alloc-then-spin 128", "alloc-then-fail 128"] {
        let (kind, text) = failure(run(&probe, body).await.end);
        assert_eq!(kind, kind::MEMORY_LIMIT, "{body}: {text}");
        assert!(text.contains("64.0 MiB") && text.contains("limits.memory"), "{text}");
    }
    assert_eq!(run(&probe, "alloc 16").await.end, End::Discard { reason: (16 << 20).to_string() });
    assert_eq!(run(&probe, "alloc-and-cope 128").await.end, End::Discard { reason: "denied".into() });
    let roomy = probe_with(Limits { memory: 256 << 20, ..Limits::default() });
    assert_eq!(run(&roomy, "alloc 128").await.end, End::Discard { reason: (128 << 20).to_string() });
}

/// A67: the host's memory stays bounded whatever is sent.
#[tokio::test]
async fn output_limit_by_count_and_by_size() {
    let probe = probe_with(Limits { memory: 1 << 30, time: Duration::from_secs(60), ..Limits::default() });
    run(&probe, "ok").await;
    let before = resident();
    for body in [
        "publish-many 1000000",
        "publish-huge 2000000",
        "publish-huge 536870912",
        "publish-properties 1001",
        "set-many 100000",
    ] {
        let output = run(&probe, body).await;
        let (kind, text) = failure(output.end);
        assert_eq!(kind, kind::OUTPUT_LIMIT, "{body}: {text}");
        assert!(output.unit.is_empty(), "nothing of it is left");
    }
    let more = resident().saturating_sub(before);
    assert!(more < 64 << 20, "{} MiB more than before", more >> 20);
    let output = run(&probe, "publish-many 1000").await;
    assert_eq!((output.end, output.unit.outgoing.len()), (End::Done, 1_000));
}

/// A67: handles are memory of the host too.
#[tokio::test]
async fn memory_limit_by_handles() {
    let (kind, text) = failure(run(&wasi(), "handles").await.end);
    assert_eq!(kind, kind::MEMORY_LIMIT, "{text}");
}

#[tokio::test]
async fn trap_names_the_panic() {
    let probe = probe();
    let (kind, text) = failure(run(&probe, "panic out of cheese").await.end);
    assert_eq!(kind, kind::TRAP);
    assert!(text.starts_with("panicked at") && text.contains("boom: out of cheese"), "{text}");
    let (kind, text) = failure(run(&probe, "unreachable").await.end);
    assert_eq!(kind, kind::TRAP);
    assert!(text.contains("unreachable"), "{text}");
    let (kind, text) = failure(run(&probe, "divide 0").await.end);
    assert!(kind == kind::TRAP && text.contains("divide by zero"), "{text}");
}

#[tokio::test]
async fn trap_names_what_stderr_said_and_an_exit() {
    let wasi = wasi();
    let (kind, text) = failure(run(&wasi, "stderr-trap Traceback: KeyError").await.end);
    assert!(kind == kind::TRAP && text.contains("Traceback: KeyError"), "{kind} {text}");
    let (kind, text) = failure(run(&wasi, "exit").await.end);
    assert!(kind == kind::TRAP && text.contains("exited with code 1"), "{kind} {text}");
}

#[tokio::test]
async fn trap_when_a_host_call_gets_what_is_no_text() {
    let (kind, text) = failure(run(&probe(), "publish-bad-utf8").await.end);
    assert!(kind == kind::TRAP && text.contains("utf-8"), "{kind} {text}");
}

#[tokio::test]
async fn stack_overflow() {
    let probe = probe();
    let (kind, text) = failure(run(&probe, "recurse").await.end);
    assert!(kind == kind::STACK_OVERFLOW && text.contains("in its memory"), "{kind} {text}");
    let (kind, text) = failure(run(&probe, "recurse-lightly").await.end);
    assert!(kind == kind::STACK_OVERFLOW && text.contains("limits.stack"), "{kind} {text}");
}

#[tokio::test]
async fn bad_result_when_a_text_is_none() {
    let (kind, text) = failure(run(&probe(), "bad-utf8").await.end);
    assert!(kind == kind::BAD_RESULT && text.contains("utf-8"), "{kind} {text}");
}

/// Results that point outside the memory, or name a case that is not there.
#[tokio::test]
async fn bad_result_when_the_result_breaks_the_contract() {
    let broken = load(&runtime(), "broken", HandlerConfig::named("broken"));
    assert_eq!(run(&broken, "ok").await.end, End::Done);
    for body in ["case", "inner-case", "outside", "unaligned", "long-text"] {
        let (kind, text) = failure(run(&broken, body).await.end);
        assert_eq!(kind, kind::BAD_RESULT, "{body}: {text}");
    }
}

/// A63: a trap after the result is a trap too.
#[tokio::test]
async fn trap_in_post_return() {
    let broken = load(&runtime(), "broken", HandlerConfig::named("broken"));
    assert_eq!(failure(run(&broken, "post-return").await.end).0, kind::TRAP);
}

#[tokio::test]
async fn host_capability_when_a_granted_folder_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let granted = sprag_runtime::Folder { path: folder.path().join("data"), guest: "/data".into(), write: true };
    std::fs::create_dir(&granted.path).unwrap();
    let path = granted.path.clone();
    let wasi = load(&runtime(), "wasi", HandlerConfig { folders: vec![granted], ..HandlerConfig::named("wasi") });
    assert_eq!(run(&wasi, "write file.txt").await.end, End::Done);
    std::fs::remove_dir_all(&path).unwrap();
    let (kind, text) = failure(run(&wasi, "read file.txt").await.end);
    assert_eq!(kind, kind::HOST_CAPABILITY);
    assert!(text.contains("data"), "{text}");
}

/// P6.
#[tokio::test]
async fn a_guest_cannot_hide_an_outage() {
    let probe = probe();
    for body in ["get k", "get-hide k", "state ?k", "scan-limit 10"] {
        let state = Arc::new(Map { down: true, ..Map::default() });
        let output = probe.run(sprag_runtime::RunInput { state, ..input(body) }).await;
        let End::Transient { text, .. } = output.end else { panic!("{body}: {:?}", output.end) };
        assert!(text.contains("the store is away"), "{text}");
        assert!(output.unit.is_empty());
    }
}

/// P3: what a failed run sent and wrote is dropped.
#[tokio::test]
async fn a_failure_leaves_nothing() {
    let probe = probe();
    let output = run(&probe, "publish-and-fail out").await;
    assert_eq!(failure(output.end).0, "after-publish");
    assert!(output.unit.is_empty());
}
