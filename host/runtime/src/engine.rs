//! The engine: how code is compiled, where instances get their memory, and the clock that stops a guest that does not stop.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak, mpsc},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::{
    cache::{self, Cache},
    config::{PoolMode, RuntimeConfig},
};

/// How often a guest that only computes gives way to others, and how exactly `limits.time` is kept for it.
const TICK: Duration = Duration::from_millis(10);
/// Room on the stack of a run for the host's own functions, beside the guest's `limits.stack`.
const HOST_STACK: usize = 1 << 20;
/// Big components (JavaScript, Python) are made of several modules.
const CORE_INSTANCES: u32 = 20;
const MEMORIES: u32 = 4;
const TABLES: u32 = 10;
const TABLE_ELEMENTS: usize = 60_000;
const INSTANCE_SIZE: usize = 4 << 20;
/// Address space one memory takes, so that the guest's code needs no bounds checks.
const MEMORY_SLOT: usize = 4 << 30;
/// Memory of a finished instance that stays mapped for the next one.
const KEEP_RESIDENT: usize = 1 << 20;
/// Stack sizes (`limits.stack`) one host may use at a time: each has an engine and a pool of its own.
const MAX_ENGINES: usize = 8;

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Cache(#[from] cache::FolderError),
    #[error(
        "the instance pool cannot be made: {0}. It was asked for (pool = \"required\"); with \"auto\" the host runs without"
    )]
    Pool(String),
    #[error("the WebAssembly engine cannot be made: {0}")]
    Engine(String),
    #[error("the thread that keeps time cannot be started: {0}")]
    Thread(std::io::Error),
    #[error("limits.stack: {0}")]
    Stack(String),
}

/// How instances get their memory, for health and `doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// From a pool of this many instances.
    Pool { instances: u32, address_space: u64 },
    /// On demand, and why.
    OnDemand { why: String },
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool { instances, address_space } => {
                write!(f, "pool of {instances} instances, {} GiB of address space", address_space >> 30)
            }
            Self::OnDemand { why } => write!(f, "on demand: {why}"),
        }
    }
}

/// Compiles and runs handlers. Cheap to clone.
#[derive(Clone)]
pub struct Runtime {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    config: RuntimeConfig,
    mode: Mode,
    pub(crate) cache: Option<Cache>,
    /// By stack size. The first is the default's.
    engines: Mutex<BTreeMap<usize, Engine>>,
    /// A turn for each run.
    pub(crate) turns: Arc<Semaphore>,
    /// A place for each instance that is kept.
    pub(crate) kept: Arc<Semaphore>,
    /// Dropping it stops the ticker.
    _ticker: mpsc::Sender<()>,
}

impl Runtime {
    pub fn new(config: RuntimeConfig) -> Result<Self, Error> {
        let cache = config.cache_dir.as_deref().map(Cache::open).transpose()?;
        let stack = crate::config::Limits::default().stack;
        let (engine, mode) = make_engine(&config, stack)?;
        if let Mode::OnDemand { why } = &mode
            && config.pool == PoolMode::Auto
        {
            tracing::warn!("handlers run without the instance pool, two to four times slower: {why}");
        }
        let (stop, stopped) = mpsc::channel();
        let inner = Arc::new(Inner {
            turns: Arc::new(Semaphore::new(config.max_instances.max(1) as usize)),
            kept: Arc::new(Semaphore::new(config.max_kept as usize)),
            engines: Mutex::new(BTreeMap::from([(stack, engine)])),
            config,
            mode,
            cache,
            _ticker: stop,
        });
        let engines = Arc::downgrade(&inner);
        // A plain thread: a task would not run while guests hold all of the executor's threads (A64).
        std::thread::Builder::new()
            .name("sprag-ticker".into())
            .spawn(move || tick(&stopped, &engines))
            .map_err(Error::Thread)?;
        Ok(Self { inner })
    }

    /// How instances get their memory.
    pub fn mode(&self) -> &Mode {
        &self.inner.mode
    }

    /// The engine for this size of the guest's stack.
    pub(crate) fn engine(&self, stack: usize) -> Result<Engine, Error> {
        const RANGE: std::ops::RangeInclusive<usize> = 64 << 10..=64 << 20;
        if !RANGE.contains(&stack) {
            return Err(Error::Stack(format!("{stack} bytes; it can be 64 KiB to 64 MiB")));
        }
        let mut engines = self.inner.engines.lock();
        if let Some(engine) = engines.get(&stack) {
            return Ok(engine.clone());
        }
        if engines.len() >= MAX_ENGINES {
            let known: Vec<String> = engines.keys().map(|stack| format!("{} KiB", stack >> 10)).collect();
            return Err(Error::Stack(format!("at most {MAX_ENGINES} different sizes; there are {}", known.join(", "))));
        }
        let (engine, mode) = make_engine(&self.inner.config, stack)?;
        if let (Mode::OnDemand { why }, Mode::Pool { .. }) = (&mode, &self.inner.mode) {
            tracing::warn!("handlers with limits.stack = {} KiB run without the instance pool: {why}", stack >> 10);
        }
        engines.insert(stack, engine.clone());
        Ok(engine)
    }
}

fn tick(stopped: &mpsc::Receiver<()>, inner: &Weak<Inner>) {
    while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
        let Some(inner) = inner.upgrade() else { return };
        for engine in inner.engines.lock().values() {
            engine.increment_epoch();
        }
    }
}

fn make_engine(config: &RuntimeConfig, stack: usize) -> Result<(Engine, Mode), Error> {
    let why = match config.pool {
        PoolMode::Off => "the pool is switched off".to_owned(),
        PoolMode::Auto | PoolMode::Required => {
            let instances = config.max_instances.saturating_add(config.max_kept).max(1);
            let memories = instances.saturating_mul(2);
            let address_space = u64::from(memories) * MEMORY_SLOT as u64;
            match Engine::new(&engine_config(stack, Some(pool(instances, memories)))) {
                Ok(engine) => return Ok((engine, Mode::Pool { instances, address_space })),
                Err(error) => {
                    let why = format!(
                        "a pool of {instances} instances needs {} GiB of address space, and {}: {}",
                        address_space >> 30,
                        allowed_address_space(),
                        error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ")
                    );
                    if config.pool == PoolMode::Required {
                        return Err(Error::Pool(why));
                    }
                    why
                }
            }
        }
    };
    match Engine::new(&engine_config(stack, None)) {
        Ok(engine) => Ok((engine, Mode::OnDemand { why })),
        Err(error) => Err(Error::Engine(format!("{error:#}"))),
    }
}

fn allowed_address_space() -> String {
    match rustix::process::getrlimit(rustix::process::Resource::As).current {
        Some(bytes) => format!("the process is limited to {} MiB (ulimit -v)", bytes >> 20),
        None => "the process has no limit of its own".into(),
    }
}

fn engine_config(stack: usize, pool: Option<PoolingAllocationConfig>) -> Config {
    let mut config = Config::new();
    config.wasm_component_model(true);
    config.epoch_interruption(true);
    // What only WASI 0.3 needs, and taxes every call (reference/wasmtime.md).
    config.concurrency_support(false);
    config.max_wasm_stack(stack);
    config.async_stack_size(stack + HOST_STACK);
    config.memory_reservation(MEMORY_SLOT as u64);
    match pool {
        Some(pool) => {
            config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
        }
        // With no pool there may be little address space: small reservations, and the guest's code checks its bounds.
        None => {
            config.memory_reservation(64 << 20);
            config.memory_reservation_for_growth(16 << 20);
            config.memory_guard_size(64 << 10);
        }
    }
    config
}

fn pool(instances: u32, memories: u32) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_core_instances(instances.saturating_mul(6))
        .total_memories(memories)
        .total_tables(instances.saturating_mul(4))
        .total_stacks(instances)
        .max_component_instance_size(INSTANCE_SIZE)
        .max_core_instance_size(INSTANCE_SIZE)
        .max_core_instances_per_component(CORE_INSTANCES)
        .max_memories_per_component(MEMORIES)
        .max_tables_per_component(TABLES)
        .table_elements(TABLE_ELEMENTS)
        .max_memory_size(MEMORY_SLOT)
        .linear_memory_keep_resident(KEEP_RESIDENT)
        .table_keep_resident(KEEP_RESIDENT)
        .pagemap_scan(Enabled::Auto);
    pool
}
