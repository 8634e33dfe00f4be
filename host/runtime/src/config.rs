//! What a host can choose about the engine and about each handler. Defaults live here and nowhere else.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use sprag_core::ids::HandlerName;

/// How instances get their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoolMode {
    /// From a pool reserved at start where the machine allows it, else on demand, with a warning.
    #[default]
    Auto,
    /// From the pool, or the runtime does not start.
    Required,
    /// On demand: two to four times slower per fresh instance, little address space.
    Off,
}

#[derive(Debug, Clone)]
pub struct RuntimeConfig {
    /// Where compiled code is kept. None compiles at every start.
    pub cache_dir: Option<PathBuf>,
    pub pool: PoolMode,
    /// Runs side by side; more wait for their turn.
    pub max_instances: u32,
    /// Instances kept for reuse (`isolation = "session"` or `"pooled"`), over all handlers.
    pub max_kept: u32,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self { cache_dir: None, pool: PoolMode::Auto, max_instances: 1_000, max_kept: 256 }
    }
}

/// Who shares an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// Nobody: every run gets a fresh one.
    #[default]
    Message,
    /// The messages of one session at one endpoint.
    Session,
    /// Any runs, one after the other.
    Pooled,
}

impl Isolation {
    pub const ALL: [Self; 3] = [Self::Message, Self::Session, Self::Pooled];

    /// As written in `sprag.toml`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Session => "session",
            Self::Pooled => "pooled",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|isolation| isolation.name() == name)
    }
}

/// A folder of the host that a handler may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    pub path: PathBuf,
    /// Its name inside the guest, `/data`.
    pub guest: String,
    pub write: bool,
}

/// What one run may use. Past a limit the run ends, by the limit's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Wall time, in guest code and in host calls alike (`timeout`).
    pub time: Duration,
    /// Bytes of linear memory, all memories of the instance together (`memory-limit`). Also bounds what the host holds for the
    /// run in state that it read.
    pub memory: usize,
    /// Elements of all tables together (`memory-limit`).
    pub tables: usize,
    /// Bytes of the guest's stack (`stack-overflow`).
    pub stack: usize,
    /// Outgoing messages (`output-limit`).
    pub outgoing: u32,
    /// Bytes of outgoing messages and of state written, together (`output-limit`).
    pub outgoing_bytes: usize,
    /// Bytes in the log, of lines and of stdout and stderr. What is over is counted and dropped; the run goes on.
    pub log: usize,
    /// How long one statement may take; on the embedded engine, how long a run may hold it from its first write (P36).
    pub sql_time: Duration,
    /// Rows of one result.
    pub sql_rows: u32,
    /// Bytes of one result.
    pub sql_bytes: usize,
    /// Bytes of one outgoing message's body (`output-limit`). The target entity may allow less.
    pub body: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(5),
            memory: 64 << 20,
            tables: 100_000,
            stack: 1 << 20,
            outgoing: 1_000,
            outgoing_bytes: 16 << 20,
            log: 64 << 10,
            sql_time: Duration::from_secs(1),
            sql_rows: 10_000,
            sql_bytes: 4 << 20,
            body: 1 << 20,
        }
    }
}

/// One handler, as `sprag.toml` configures it.
#[derive(Debug, Clone, Default)]
pub struct HandlerConfig {
    pub name: Option<HandlerName>,
    /// `state`, `sql:NAME`. What a component imports and this does not name is refused at load.
    pub grant: Vec<String>,
    /// The table `config`; granted by being there. Texts as they are, everything else as JSON.
    pub config: Option<BTreeMap<String, String>>,
    pub limits: Limits,
    pub isolation: Isolation,
    pub folders: Vec<Folder>,
}

impl HandlerConfig {
    pub fn named(name: impl Into<HandlerName>) -> Self {
        Self { name: Some(name.into()), ..Self::default() }
    }

    pub(crate) fn name(&self) -> HandlerName {
        self.name.clone().unwrap_or_else(|| HandlerName::from("handler"))
    }

    pub(crate) fn grants(&self, capability: &str) -> bool {
        self.grant.iter().any(|grant| grant == capability)
    }
}
