//! What is loaded, and what is refused in one clear line.

use sprag_runtime::{Compile, HandlerConfig, LoadError, Runtime};

use crate::support::*;

fn refused(bytes: &[u8], config: HandlerConfig) -> LoadError {
    let Err(error) = runtime().load(bytes, config, |_| {}) else { panic!("it was loaded") };
    let text = error.to_string();
    assert!(!text.is_empty() && !text.contains('\n'), "one line: {text}");
    error
}

#[test]
fn a_core_module_is_wrapped_and_a_component_taken_as_it_is() {
    let steps = parking_lot::Mutex::new(Vec::new());
    let handler = runtime().load(&guest("probe"), config("payment"), |step| steps.lock().push(step)).unwrap();
    assert_eq!(handler.name().as_str(), "payment");
    let types: Vec<_> = handler.info().event_types.iter().map(|it| it.as_str()).collect();
    assert_eq!(types, ["probe", "probe.other"]);
    let steps = steps.into_inner();
    assert!(matches!(steps[..], [Compile::Started { .. }, Compile::Ready { cached: false, .. }]), "{steps:?}");
    assert_eq!(handler.digest(), sprag_core::ids::Digest::of(&guest("probe")));

    let handler = runtime().load(&component("noop"), HandlerConfig::default(), |_| {}).unwrap();
    assert_eq!(handler.info().event_types[0].as_str(), "*");
}

#[tokio::test]
async fn loading_from_a_task_blocks_nobody() {
    let runtime = runtime();
    let handler = runtime.load_async(guest("noop"), HandlerConfig::default(), |_| {}).await.unwrap();
    assert_eq!(run(&handler, "").await.end, sprag_core::run::End::Done);
    // And by mistake on the task's own thread: slow, but no panic.
    runtime.load(&guest("noop"), HandlerConfig::default(), |_| {}).unwrap();
}

/// A module of the C kind, which imports `wasi_snapshot_preview1`.
#[tokio::test]
async fn a_preview_1_module_gets_the_adapter() {
    let handler = load(&runtime(), "broken", HandlerConfig::named("c"));
    assert_eq!(run(&handler, "ok").await.end, sprag_core::run::End::Done);
}

#[test]
fn what_is_no_component() {
    assert!(matches!(refused(b"#!/bin/sh\necho no", HandlerConfig::default()), LoadError::NotWasm(_)));
    assert!(matches!(refused(b"", HandlerConfig::default()), LoadError::Truncated(_)));
    let whole = guest("probe");
    for part in [1, 2, 3, 5, 9] {
        let half = &whole[..whole.len() * part / 10];
        let error = refused(half, config("probe"));
        assert!(
            matches!(error, LoadError::Truncated(_) | LoadError::Invalid(_) | LoadError::PlainModule),
            "{part}/10: {error}"
        );
    }
    let component = component("noop");
    for part in 1..10 {
        let error = refused(&component[..component.len() * part / 10], HandlerConfig::default());
        assert!(matches!(error, LoadError::Truncated(_) | LoadError::Invalid(_)), "{part}/10: {error}");
    }
    assert_eq!(refused(b"\0asm\x01\0\0\0", HandlerConfig::default()), LoadError::PlainModule);
    // Whole, and broken inside: only the compiler sees it.
    let mut broken = guest("noop");
    let code = broken.windows(4).rposition(|bytes| bytes == [0x20, 0x00, 0x41, 0x10]).unwrap_or(broken.len() / 3);
    broken[code..code + 4].fill(0xff);
    refused(&broken, HandlerConfig::default());
}

#[test]
fn another_world_is_named_by_what_it_lacks() {
    let error = refused(&patched(&component("noop"), "handle", "handlx"), HandlerConfig::default());
    // The name of the package has the word in it, too.
    assert!(matches!(error, LoadError::MissingExport(_) | LoadError::UnknownImport { .. }), "{error}");
    let error = refused(&patched(&component("noop"), "describe", "describx"), HandlerConfig::default());
    assert_eq!(error, LoadError::MissingExport("describe".into()));
    let error = refused(b"\0asm\x0d\0\x01\0", HandlerConfig::default());
    assert_eq!(error, LoadError::MissingExport("describe".into()));
    // The right names with other types.
    let error = refused(&patched(&component("noop"), "dead-letter", "dead-lettex"), HandlerConfig::default());
    assert!(matches!(error, LoadError::WrongWorld(_)), "{error}");
}

#[test]
fn another_version_of_the_contract_is_named() {
    let error = refused(&patched(&component("noop"), "@0.1.0", "@0.2.0"), HandlerConfig::default());
    assert_eq!(error, LoadError::WrongVersion { found: "sprag:handler@0.2.0".into() });
    assert!(error.to_string().contains("sprag:handler@0.1.0"));
}

#[test]
fn what_is_not_granted_is_refused_with_the_line_that_grants_it() {
    let error = refused(&guest("probe"), HandlerConfig { grant: Vec::new(), ..config("payment") });
    let LoadError::NotGranted { import, fix } = &error else { panic!("{error}") };
    assert_eq!(import, "sprag:handler/state@0.1.0");
    assert_eq!(fix, "[handler.payment] grant = [\"state\"]");
    let error = refused(&guest("probe"), HandlerConfig { config: None, ..config("payment") });
    assert!(
        matches!(&error, LoadError::NotGranted { import, .. } if import == "sprag:handler/config@0.1.0"),
        "{error}"
    );
    let error =
        refused(&patched(&component("wasi"), "wasi:random/random@", "wasi:http12/random@"), HandlerConfig::default());
    assert!(
        matches!(&error, LoadError::UnknownImport { import, .. } if import.starts_with("wasi:http12/random@")),
        "{error}"
    );
}

#[test]
fn a_missing_folder_is_named() {
    let folder = sprag_runtime::Folder { path: "/nowhere/at/all".into(), guest: "/data".into(), write: false };
    let error = refused(&guest("wasi"), HandlerConfig { folders: vec![folder], ..HandlerConfig::named("wasi") });
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
}

#[test]
fn a_describe_that_fails_is_refused() {
    let limits = sprag_runtime::Limits { memory: 64 << 10, ..Default::default() };
    let error = refused(&guest("noop"), HandlerConfig { limits, ..HandlerConfig::default() });
    assert!(matches!(&error, LoadError::Describe(text) if text.starts_with("memory-limit")), "{error}");
}

#[test]
fn runtimes_end_with_their_last_user() {
    let runtime: Runtime = runtime();
    let handler = load(&runtime, "noop", HandlerConfig::default());
    drop(runtime);
    let executor = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    assert_eq!(executor.block_on(run(&handler, "")).end, sprag_core::run::End::Done);
}
