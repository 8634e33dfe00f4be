//! What is loaded, and what is refused in one clear line.

use sprag_runtime::{Compile, HandlerConfig, LoadError, Runtime};

use crate::{ends::handwritten, support::*};

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

    let mut encoder = wit_component::ComponentEncoder::default().module(&guest("noop")).unwrap();
    let component = encoder.encode().unwrap();
    let handler = runtime().load(&component, HandlerConfig::default(), |_| {}).unwrap();
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
    let wat = handwritten(
        "(drop (call $random (i32.const 2048) (i32.const 8))) (i32.const 1024)",
        "",
    )
    .replacen(
        "(module",
        "(module (import \"wasi_snapshot_preview1\" \"random_get\" (func $random (param i32 i32) (result i32)))",
        1,
    );
    let handler = runtime().load(&module(&wat, ""), HandlerConfig::named("c"), |_| {}).unwrap();
    assert_eq!(run(&handler, "").await.end, sprag_core::run::End::Done);
}

#[test]
fn what_is_no_component() {
    assert!(matches!(refused(b"#!/bin/sh\necho no", HandlerConfig::default()), LoadError::NotWasm(_)));
    assert!(matches!(refused(b"", HandlerConfig::default()), LoadError::Truncated(_)));
    let whole = guest("probe");
    for part in [1, 2, 3, 5, 9] {
        let half = &whole[..whole.len() * part / 10];
        let error = refused(half, config("probe"));
        assert!(matches!(error, LoadError::Truncated(_) | LoadError::Invalid(_) | LoadError::PlainModule), "{part}/10: {error}");
    }
    let mut component = wit_component::ComponentEncoder::default().module(&guest("noop")).unwrap();
    let component = component.encode().unwrap();
    for part in 1..10 {
        let error = refused(&component[..component.len() * part / 10], HandlerConfig::default());
        assert!(matches!(error, LoadError::Truncated(_) | LoadError::Invalid(_)), "{part}/10: {error}");
    }
    let plain = wat::parse_str("(module (func (export \"handle\")))").unwrap();
    assert_eq!(refused(&plain, HandlerConfig::default()), LoadError::PlainModule);
    let broken = wat::parse_str("(component (core module (func (export \"f\") (result i32))) )");
    assert!(matches!(refused(&broken.unwrap(), HandlerConfig::default()), LoadError::Invalid(_) | LoadError::MissingExport(_)));
}

#[test]
fn another_world_is_named_by_what_it_lacks() {
    let other = wat::parse_str(r#"(component (core module $m (func (export "f"))) (core instance $i (instantiate $m))
        (func $f (canon lift (core func $i "f"))) (export "describe" (func $f)))"#)
    .unwrap();
    let error = refused(&other, HandlerConfig::default());
    assert_eq!(error, LoadError::MissingExport("handle".into()));

    let both = wat::parse_str(r#"(component (core module $m (func (export "f"))) (core instance $i (instantiate $m))
        (func $f (canon lift (core func $i "f"))) (export "describe" (func $f)) (export "handle" (func $f)))"#)
    .unwrap();
    let error = refused(&both, HandlerConfig::default());
    assert!(matches!(error, LoadError::WrongWorld(_)), "{error}");
}

#[test]
fn another_version_of_the_contract_is_named() {
    let newer = wat::parse_str(r#"(component (import "sprag:handler/context@0.2.0" (instance)))"#).unwrap();
    let error = refused(&newer, HandlerConfig::default());
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
    assert!(matches!(&error, LoadError::NotGranted { import, .. } if import == "sprag:handler/config@0.1.0"), "{error}");
    let http = wat::parse_str(
        r#"(component (import "wasi:http/outgoing-handler@0.2.0" (instance))
            (core module $m (func (export "f"))) (core instance $i (instantiate $m))
            (func $f (canon lift (core func $i "f"))) (export "describe" (func $f)) (export "handle" (func $f)))"#,
    )
    .unwrap();
    let error = refused(&http, HandlerConfig::default());
    assert!(matches!(&error, LoadError::UnknownImport { import, .. } if import == "wasi:http/outgoing-handler@0.2.0"), "{error}");
}

#[test]
fn a_missing_folder_is_named() {
    let folder = sprag_runtime::Folder { path: "/nowhere/at/all".into(), guest: "/data".into(), write: false };
    let error = refused(&guest("wasi"), HandlerConfig { folders: vec![folder], ..HandlerConfig::named("wasi") });
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
}

#[test]
fn a_describe_that_traps_or_says_nothing_is_refused() {
    let wat = handwritten("(i32.const 1024)", "").replace("(result i32) (i32.const 16))", "(result i32) unreachable)");
    let error = refused(&module(&wat, ""), HandlerConfig::default());
    assert!(matches!(&error, LoadError::Describe(text) if text.starts_with("trap")), "{error}");
    let wat = handwritten("(i32.const 1024)", "").replace("(result i32) (i32.const 16))", "(result i32) (i32.const 4096))");
    assert_eq!(refused(&module(&wat, ""), HandlerConfig::default()), LoadError::NoEventTypes);
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
