//! One function gives every end of a run its name.
//!
//! The order matters: what the host saw for itself (a store that was down, a limit that was passed) decides before what the guest
//! says or how it fell over, because the guest usually fails *because* of it and says something else (A66, P6).

use std::time::Duration;

use sprag_core::{
    outcome::{Failure, clip, kind},
    run::End,
    sql::StatementError,
    time::Timestamp,
};
use wasmtime::{PoolConcurrencyLimitError, Trap, WasmBacktrace, component::ResourceTableError};
use wasmtime_wasi::I32Exit;

use crate::{
    bindings::sprag::handler::types as wit,
    run_state::{MAX_HANDLES, RunState},
};

/// Why the host itself stops a run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stop {
    #[error("the time is over")]
    Timeout,
    #[error("{0}")]
    Output(String),
    #[error("{0}")]
    Memory(String),
    #[error("{0}")]
    Capability(String),
}

/// How the call came back.
pub(crate) enum Came {
    Answered(Result<wit::Success, wit::Failure>),
    Broke(wasmtime::Error),
    /// The time ran out while the guest waited in a host call.
    TimedOut,
}

/// The run's end. `limit` is the time it had.
pub(crate) fn name(came: Came, state: &RunState, limit: Duration) -> End {
    if let Some(text) = &state.faults.store {
        return End::transient(format!("state could not be read: {text}"));
    }
    match &state.faults.transaction {
        // Both lead to another run; a conflict at once, see the worker.
        Some(error @ (StatementError::Conflict | StatementError::Unavailable(_))) => {
            return End::transient(format!("SQL could not be carried out: {error}"));
        }
        Some(error) => return End::failed(kind::TIMEOUT, error.to_string()),
        None => {}
    }
    if let Some(text) = &state.faults.output {
        return End::failed(kind::OUTPUT_LIMIT, text.clone());
    }
    let denied = state.limiter.denied.as_deref();
    match came {
        Came::Answered(Ok(success)) => match &state.faults.refused {
            Some(text) => End::failed(kind::COMPONENT_ERROR, text.clone()),
            None => succeeded(success),
        },
        Came::Answered(Err(failure)) => failed(failure, denied),
        Came::TimedOut => timeout(denied, limit),
        Came::Broke(error) => broke(&error, state, denied, limit),
    }
}

fn succeeded(success: wit::Success) -> End {
    match success {
        wit::Success::Done => End::Done,
        wit::Success::Discard(reason) => End::Discard { reason: clip(&reason) },
        wit::Success::Handoff(handoff) => End::Handoff {
            reason: clip(&handoff.reason),
            external_id: handoff.external_id.map(|id| clip(&id)),
            expected_by: handoff.expected_by.map(|at| Timestamp(i64::try_from(at).unwrap_or(i64::MAX))),
        },
    }
}

fn failed(failure: wit::Failure, denied: Option<&str>) -> End {
    match failure {
        wit::Failure::Transient(it) => {
            End::Transient { text: clip(&it.text), retry_after: it.retry_after.map(Duration::from_millis) }
        }
        wit::Failure::DeadLetter(it) => End::DeadLetter { reason: clip(&it.reason), text: clip(&it.text) },
        // A guest that was denied memory and then gave up by itself: the cause is the memory.
        wit::Failure::Failed(it) if denied.is_some() => End::failed(
            kind::MEMORY_LIMIT,
            clip(&format!("{}; the handler said: {}", denied.unwrap_or_default(), it.text)),
        ),
        wit::Failure::Failed(it) => {
            let name = it.kind.trim();
            let name = if name.is_empty() { kind::COMPONENT_ERROR.to_owned() } else { clip(name) };
            End::Failed {
                failure: Failure::new(name, clip(&it.text)),
                retry_after: it.retry_after.map(Duration::from_millis),
            }
        }
    }
}

fn timeout(denied: Option<&str>, limit: Duration) -> End {
    match denied {
        Some(text) => End::failed(kind::MEMORY_LIMIT, format!("{text}; the handler then ran until its time was over")),
        None => End::failed(kind::TIMEOUT, format!("the run took longer than {limit:?} (limits.time)")),
    }
}

fn broke(error: &wasmtime::Error, state: &RunState, denied: Option<&str>, limit: Duration) -> End {
    if let Some(stop) = error.downcast_ref::<Stop>() {
        return match stop {
            Stop::Timeout => timeout(denied, limit),
            Stop::Output(text) => End::failed(kind::OUTPUT_LIMIT, text.clone()),
            Stop::Memory(text) => End::failed(kind::MEMORY_LIMIT, text.clone()),
            Stop::Capability(text) => End::failed(kind::HOST_CAPABILITY, text.clone()),
        };
    }
    // Not the guest's doing: there was no room for another instance.
    if error.is::<PoolConcurrencyLimitError>() {
        return End::transient(format!("no room for another instance: {error}"));
    }
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    let says = |what: &str| causes.iter().any(|cause| cause.contains(what));
    if let Some(text) = denied {
        return End::failed(kind::MEMORY_LIMIT, clip(text));
    }
    if matches!(error.downcast_ref::<ResourceTableError>(), Some(ResourceTableError::Full))
        || says("no free keys")
        || says("too many handles")
        || says("table has no free")
    {
        return End::failed(kind::MEMORY_LIMIT, format!("more than {MAX_HANDLES} resources were opened at a time"));
    }
    if says("fuel allocated for hostcalls") {
        let limit = crate::run_state::size(state.shared.hostcall_bytes());
        return End::failed(
            kind::OUTPUT_LIMIT,
            format!("more than {limit} were handed to the host in one call (limits.body)"),
        );
    }
    if let Some(I32Exit(code)) = error.downcast_ref::<I32Exit>() {
        return End::failed(kind::TRAP, with_words(format!("the component exited with code {code}"), state));
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::StackOverflow) => {
            let limit = crate::run_state::size(state.shared.config.limits.stack);
            End::failed(kind::STACK_OVERFLOW, format!("the stack grew over {limit} (limits.stack)"))
        }
        // A guest keeps part of its stack in its own memory, and runs off that end first.
        Some(Trap::MemoryOutOfBounds) if recursing(error) => {
            let text = "the handler's own stack, in its memory, ran over: it recurses too deeply";
            End::failed(kind::STACK_OVERFLOW, with_words(text.into(), state))
        }
        Some(Trap::Interrupt) => timeout(denied, limit),
        Some(trap) => End::failed(kind::TRAP, with_words(trap.to_string(), state)),
        // The guest was on the stack: it gave the host something that cannot be read, or the host refused the call.
        None if error.is::<WasmBacktrace>() => End::failed(kind::TRAP, with_words(root(&causes), state)),
        // It had returned: what it returned cannot be read.
        None => End::failed(kind::BAD_RESULT, clip(&format!("the result cannot be read: {}", root(&causes)))),
    }
}

/// Whether the innermost frames are the same few functions over and over.
fn recursing(error: &wasmtime::Error) -> bool {
    let Some(trace) = error.downcast_ref::<WasmBacktrace>() else { return false };
    let functions: Vec<u32> = trace.frames().iter().map(wasmtime::FrameInfo::func_index).collect();
    // Wasmtime keeps the innermost 20; a cycle of five functions is in there four times.
    let most = functions.iter().map(|one| functions.iter().filter(|other| *other == one).count()).max();
    functions.len() >= 20 && most >= Some(4)
}

fn root(causes: &[String]) -> String {
    causes.last().cloned().unwrap_or_default()
}

/// The panic's own message says more than the trap.
fn with_words(trap: String, state: &RunState) -> String {
    match state.sink.last_words() {
        Some(words) => clip(&format!("{words} ({trap})")),
        None => trap,
    }
}
