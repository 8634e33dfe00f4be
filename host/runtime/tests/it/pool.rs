//! Where instances get their memory, and what happens where there is too little address space (A69).

use std::process::Command;

use sprag_core::run::End;
use sprag_runtime::{HandlerConfig, PoolMode, Runtime, RuntimeConfig};

use crate::support::*;

#[tokio::test]
async fn without_the_pool_handlers_run_all_the_same() {
    let runtime = Runtime::new(pool_off()).unwrap();
    assert!(runtime.mode().to_string().contains("switched off"), "{}", runtime.mode());
    let probe = load(&runtime, "probe", config("probe"));
    assert_eq!(run(&probe, "ok").await.end, End::Done);
    assert_eq!(failure(run(&probe, "alloc 128").await.end).0, "memory-limit");
    assert_eq!(failure(run(&probe, "recurse").await.end).0, "stack-overflow");
}

/// Runs this very test again in a process with 2 GiB of address space.
#[test]
fn too_little_address_space() {
    if let Ok(mode) = std::env::var("SPRAG_TEST_POOL") {
        return limited(&mode);
    }
    for mode in ["auto", "required"] {
        let test = std::env::current_exe().unwrap();
        let output = Command::new("bash")
            .args(["-c", "ulimit -v 2097152; exec \"$0\" --exact pool::too_little_address_space --nocapture"])
            .arg(test)
            .env("SPRAG_TEST_POOL", mode)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("limited: seen"), "{mode}: {text}");
    }
}

fn limited(mode: &str) {
    let pool = if mode == "auto" { PoolMode::Auto } else { PoolMode::Required };
    let log = log();
    let made = Runtime::new(RuntimeConfig { pool, ..RuntimeConfig::default() });
    match (pool, made) {
        (PoolMode::Required, Err(error)) => {
            let text = error.to_string();
            assert!(text.contains("GiB") && text.contains("2048 MiB (ulimit -v)"), "{text}");
        }
        (PoolMode::Auto, Ok(runtime)) => {
            let text = runtime.mode().to_string();
            assert!(text.starts_with("on demand") && text.contains("2048 MiB (ulimit -v)"), "{text}");
            assert_eq!(log.lines_with("without the instance pool").len(), 1);
            let executor = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let noop = load(&runtime, "noop", HandlerConfig::default());
            assert_eq!(executor.block_on(run(&noop, "")).end, End::Done);
        }
        (_, Ok(_)) => panic!("it should have been refused"),
        (_, Err(error)) => panic!("{error}"),
    }
    println!("limited: seen");
}
