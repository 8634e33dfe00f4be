//! What the host holds for one instance while it runs: its limits, the run's input and what the run has asked for so far.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;
use sprag_core::{
    run::{Outgoing, StateRead, StateWrite, UnitOfWork, Version},
    sql::StatementError,
};
use wasmtime::{ResourceLimiter, component::ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use crate::{config::Limits, handler::Shared, input::RunInput, log::Sink};

/// Resources (streams, descriptors, pollables) one instance may hold at a time. Host memory that linear memory does not see (A67).
pub(crate) const MAX_HANDLES: usize = 10_000;

pub(crate) struct RunState {
    pub(crate) shared: Arc<Shared>,
    pub(crate) limiter: Limiter,
    pub(crate) input: Arc<RunInput>,
    pub(crate) sink: Arc<Sink>,
    pub(crate) deadline: Instant,
    pub(crate) faults: Faults,
    pub(crate) work: Work,
    /// Only where the component imports WASI: it costs.
    pub(crate) wasi: Option<Box<Wasi>>,
}

pub(crate) struct Wasi {
    pub(crate) ctx: WasiCtx,
    pub(crate) table: ResourceTable,
}

/// What went wrong in a host call. It decides the run's end whatever the guest makes of it.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// A store could not answer (P6).
    pub(crate) store: Option<String>,
    /// Its transaction is over: nothing that it did can be committed.
    pub(crate) transaction: Option<StatementError>,
    /// Past a limit of what a run may leave behind.
    pub(crate) output: Option<String>,
    /// Sent to where it may not, or came through too many handlers.
    pub(crate) refused: Option<String>,
}

/// What the run has asked for so far.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) outgoing: Vec<Outgoing>,
    /// Ids are numbered over all tries, so that they do not depend on what the host refused.
    pub(crate) ordinal: u32,
    /// Of outgoing messages and state writes together.
    pub(crate) bytes: usize,
    /// The run's own writes, which it sees.
    pub(crate) writes: BTreeMap<String, Option<Bytes>>,
    pub(crate) reads: Vec<StateRead>,
    /// Keys read once are the same for the whole run.
    pub(crate) seen: HashMap<String, (Option<Bytes>, Version)>,
    /// Bytes of state held for the run.
    pub(crate) held: usize,
}

impl Work {
    pub(crate) fn into_unit(self) -> UnitOfWork {
        UnitOfWork {
            outgoing: self.outgoing,
            writes: self.writes.into_iter().map(|(key, value)| StateWrite { key, value }).collect(),
            reads: self.reads,
            transaction: None,
        }
    }
}

impl RunState {
    pub(crate) fn new(
        shared: Arc<Shared>,
        input: Arc<RunInput>,
        deadline: Instant,
        wasi: Option<Box<Wasi>>,
        sink: Arc<Sink>,
    ) -> Self {
        let limiter = Limiter::new(&shared.config.limits);
        Self { shared, limiter, input, sink, deadline, faults: Faults::default(), work: Work::default(), wasi }
    }

    /// Makes an instance that has run before ready for its next run.
    pub(crate) fn begin(&mut self, input: Arc<RunInput>, deadline: Instant) {
        self.sink.begin(input.clone(), self.shared.config.limits.log);
        self.limiter.denied = None;
        self.input = input;
        self.deadline = deadline;
        self.faults = Faults::default();
        self.work = Work::default();
    }
}

impl WasiView for RunState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let wasi =
            self.wasi.as_mut().expect("WASI is linked only for components that import it, and those get a context");
        WasiCtxView { ctx: &mut wasi.ctx, table: &mut wasi.table }
    }
}

/// Counts what the instance takes, and remembers what it was denied: a guest that runs out of memory usually goes on to fail in
/// some other way, and the operator must see the cause (A66).
#[derive(Debug)]
pub(crate) struct Limiter {
    memory: usize,
    max_memory: usize,
    elements: usize,
    max_elements: usize,
    pub(crate) denied: Option<String>,
}

impl Limiter {
    fn new(limits: &Limits) -> Self {
        Self { memory: 0, max_memory: limits.memory, elements: 0, max_elements: limits.tables, denied: None }
    }

    /// Whether another run has a fair chance with what is left: an instance that has grown close to its limit, or was denied more,
    /// is not kept.
    pub(crate) fn has_room(&self) -> bool {
        self.denied.is_none() && self.memory <= self.max_memory / 4 * 3
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.memory.saturating_add(desired.saturating_sub(current));
        if total > self.max_memory {
            self.denied = Some(format!(
                "{} of memory were asked for, {} are allowed (limits.memory)",
                size(total),
                size(self.max_memory)
            ));
            return Ok(false);
        }
        self.memory = total;
        Ok(true)
    }

    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        self.denied = Some(format!("memory could not be had: {error}"));
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.elements.saturating_add(desired.saturating_sub(current));
        if total > self.max_elements {
            self.denied = Some(format!(
                "{total} table elements were asked for, {} are allowed (limits.tables)",
                self.max_elements
            ));
            return Ok(false);
        }
        self.elements = total;
        Ok(true)
    }

    fn table_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        self.denied = Some(format!("table elements could not be had: {error}"));
        Ok(())
    }
}

/// `64.0 MiB`, `17 bytes`.
pub(crate) fn size(bytes: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for a screen")]
    match bytes {
        0..1_024 => format!("{bytes} bytes"),
        1_024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1_024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}
