//! `sprag.toml`: what it may say, and what it means.
//!
//! Start reading at [`Config`]. [`keys`] declares every key once; [`read`] reads a tree by it; [`parse`] makes a [`Config`], [`names`] checks
//! that its names meet; [`sample`] writes the documented sample. Everything wrong is found in one go, each with its line and column.

mod keys;
mod names;
mod parse;
mod read;
mod sample;
mod source;
mod units;

use std::{
    collections::BTreeMap,
    fmt,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use sprag_broker::{EntityStatus, FilterSpec, RuleSpec};
use sprag_core::{
    ids::{EndpointName, EntityName, HandlerName},
    retry::RetryPolicy,
};
use sprag_gateway::access::Right;
use sprag_runtime::HandlerConfig;
use sprag_servicebus::{ConnectionString, Settle};

pub(crate) use read::{Finding, nearest};
pub(crate) use sample::sample;
pub(crate) use units::{duration as parse_duration, show_duration};

/// The name of the file.
pub(crate) const FILE: &str = "sprag.toml";

#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// None when there is no file.
    pub file: Option<PathBuf>,
    pub host: Host,
    pub embedded: Embedded,
    pub queues: Vec<Queue>,
    pub topics: Vec<Topic>,
    pub servicebus: BTreeMap<String, ServiceBus>,
    pub stores: BTreeMap<String, Database>,
    pub endpoints: Vec<Endpoint>,
    pub handlers: BTreeMap<HandlerName, HandlerConfig>,
}

#[derive(Debug, Clone)]
pub(crate) struct Host {
    pub data: PathBuf,
    pub handlers: PathBuf,
    pub console: SocketAddr,
    pub shutdown_grace: Duration,
    pub max_size: u64,
    pub watch: bool,
    pub control_key: Option<String>,
}

/// The embedded engine's face to the network.
#[derive(Debug, Clone)]
pub(crate) struct Embedded {
    /// The file has the section: `run` serves it then.
    pub is_written: bool,
    pub listen: Listen,
    pub administration: Listen,
    pub plain_beyond_loopback: bool,
    pub session_wait: Duration,
    pub link_idle: Duration,
    pub connection_idle: Duration,
    pub tls: Option<Tls>,
    pub keys: Vec<SharedKey>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listen {
    /// None: not at all.
    pub address: Option<SocketAddr>,
    /// Somebody asked for exactly this.
    pub is_asked_for: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Tls {
    pub listen: SocketAddr,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// No `Debug`: it holds secrets.
#[derive(Clone)]
pub(crate) struct SharedKey {
    pub name: String,
    pub key: String,
    pub secondary: Option<String>,
    pub rights: Vec<Right>,
    pub entity: Option<String>,
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedKey").field("name", &self.name).field("rights", &self.rights).finish_non_exhaustive()
    }
}

/// Settings that queues and subscriptions share.
#[derive(Debug, Clone)]
pub(crate) struct Queue {
    /// `queue` or `topic/subscription`.
    pub name: EntityName,
    pub requires_session: bool,
    pub lock_duration: Duration,
    pub max_delivery_count: u32,
    pub ttl: Option<Duration>,
    pub dead_letter_on_expiry: bool,
    /// Queues only.
    pub duplicate_window: Option<Duration>,
    /// Queues only; a subscription has its topic's.
    pub max_message_size: u64,
    pub max_size: Option<u64>,
    pub status: EntityStatus,
    pub forward_to: Option<EntityName>,
    pub forward_dead_letters_to: Option<EntityName>,
    pub user_metadata: Option<String>,
    /// Subscriptions only. Not with `rules`.
    pub filter: Option<FilterSpec>,
    /// Subscriptions only.
    pub rules: Vec<RuleSpec>,
}

#[derive(Debug, Clone)]
pub(crate) struct Topic {
    pub name: EntityName,
    pub duplicate_window: Option<Duration>,
    pub ttl: Option<Duration>,
    pub max_message_size: u64,
    pub max_size: Option<u64>,
    pub status: EntityStatus,
    pub user_metadata: Option<String>,
    pub subscriptions: Vec<Queue>,
}

/// A namespace of Service Bus.
#[derive(Debug, Clone)]
pub(crate) struct ServiceBus {
    pub connection: ConnectionString,
    /// An identity in place of the connection string's key, by its name.
    pub credential: Option<String>,
    /// Through the crate `azservicebus` instead of the client of our own.
    pub by_azservicebus: bool,
    pub settle: Settle,
    pub operation_timeout: Duration,
    pub idle_timeout: Duration,
    pub max_message_size: u64,
    /// None: the usual one.
    pub administration_port: Option<u16>,
    pub authorities: Vec<PathBuf>,
}

/// What a section `[store.NAME]` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Postgres,
    SqlServer,
    /// Inboxes only.
    Cosmos,
}

/// A store on a database server. No `Debug`: its URL is a secret.
#[derive(Clone)]
pub(crate) struct Database {
    pub kind: StoreKind,
    pub url: String,
    pub allow_relaxed_consistency: bool,
    /// None: what is needed.
    pub pool: Option<u32>,
    pub sql_role: Option<String>,
    pub auto_create_table: bool,
    pub authorities: Vec<PathBuf>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("pool", &self.pool).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub name: EndpointName,
    /// The queue or subscription that is received from. On Service Bus a subscription forwards into a queue of the endpoint's (P21).
    pub source: EntityName,
    /// On Service Bus.
    pub remote: Option<Remote>,
    pub concurrency: u32,
    /// Empty: every handler that names the event type.
    pub handlers: Vec<HandlerName>,
    pub inbox: Option<Inbox>,
    pub retry: Option<RetryPolicy>,
    pub store: StoreRef,
    pub single_host: bool,
    /// None: any entity.
    pub publish: Option<Vec<EntityName>>,
    pub resolver: Option<EntityName>,
    pub host_ended_limit: u32,
}

impl Endpoint {
    /// The store of its inbox, if that is another one than its own.
    pub(crate) fn inbox_beside(&self) -> Option<&StoreRef> {
        self.inbox.as_ref().map(|inbox| &inbox.store).filter(|store| **store != self.store)
    }

    pub(crate) fn has_sql(&self) -> bool {
        self.inbox.as_ref().is_some_and(|inbox| inbox.mode == Mode::Transaction)
    }
}

/// What the configuration says of a source on Service Bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    /// The name of its [`ServiceBus`].
    pub transport: String,
    pub topology: Topology,
    /// None: the source is a queue of its own, or NimBus's topology has it.
    pub subscription: Option<Subscription>,
    pub requires_session: bool,
    pub lock_duration: Duration,
    pub max_delivery_count: u32,
}

/// Which entities an endpoint has on Service Bus (P21).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topology {
    /// A queue of its own, and one beside it for what is parked.
    Own,
    /// NimBus's: a topic with subscriptions.
    Nimbus,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subscription {
    pub topic: EntityName,
    pub name: String,
    pub filter: Option<String>,
}

/// Which store an endpoint uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum StoreRef {
    #[default]
    Embedded,
    Memory,
    /// One of [`Config::stores`].
    Named(String),
}

/// Connections that a store has where nothing else is said, and those that runs with SQL leave to everything else (P36).
const USUAL_POOL: u32 = 16;
const BESIDE_SQL: u32 = 2;

impl StoreRef {
    /// As handlers are granted it.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Embedded => "embedded",
            Self::Memory => "memory",
            Self::Named(name) => name,
        }
    }

    fn from_name(name: &str) -> Self {
        match name {
            "embedded" => Self::Embedded,
            "memory" => Self::Memory,
            name => Self::Named(name.to_owned()),
        }
    }
}

/// What an inbox promises (spec 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Record,
    Transaction,
    Lease,
}

#[derive(Debug, Clone)]
pub(crate) struct Inbox {
    pub mode: Mode,
    /// The endpoint's own, or another one (P34).
    pub store: StoreRef,
    /// In mode `lease`: how long one lasts unless it is renewed.
    pub lease: Duration,
    pub retention: Duration,
    pub cleanup_interval: Duration,
}

/// Why there is no configuration: everything that is wrong with it.
#[derive(Debug, Clone)]
pub(crate) struct Wrong {
    pub file: PathBuf,
    pub findings: Vec<Finding>,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.findings.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{}", self.file.display())?;
            if let Some((line, column)) = finding.at {
                write!(f, ":{line}:{column}")?;
            }
            write!(f, ": {} [{}]", finding.text, finding.code)?;
        }
        Ok(())
    }
}

impl std::error::Error for Wrong {}

impl Config {
    /// Reads a file. Relative paths in it are meant beside it.
    pub(crate) fn load(file: &Path) -> Result<Self, Wrong> {
        let wrong =
            |code, text: String| Wrong { file: file.to_owned(), findings: vec![Finding { at: None, code, text }] };
        let bytes = std::fs::read(file).map_err(|error| wrong(read::SYNTAX, format!("cannot be read: {error}")))?;
        let text = String::from_utf8(bytes).map_err(|error| wrong(read::SYNTAX, format!("is not UTF-8: {error}")))?;
        let base = match file.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let mut config = parse::parse(&text, &base).map_err(|findings| Wrong { file: file.to_owned(), findings })?;
        config.file = Some(file.to_owned());
        Ok(config)
    }

    /// What `sprag dev` runs without a file: one endpoint named after the folder on a session queue of the same name, with every
    /// handler and the embedded inbox on (spec 9).
    pub(crate) fn for_folder(folder: &Path) -> Self {
        let name = folder_name(folder);
        let mut config = parse::parse("", folder).expect("no keys are no wrong keys");
        config.queues.push(Queue { requires_session: true, ..parse::default_queue(&name) });
        config.endpoints.push(parse::default_endpoint(&name, EntityName::from(name.as_str())));
        config
    }

    /// The same for handlers of which several claim one event type (P28): a topic instead of the queue, with a subscription and an
    /// endpoint for each of those handlers, and one for the rest together.
    pub(crate) fn for_folder_with_conflicts(folder: &Path, conflicting: &[HandlerName], rest: &[HandlerName]) -> Self {
        let name = folder_name(folder);
        let mut config = Self::for_folder(folder);
        config.queues.clear();
        config.endpoints.clear();
        let mut subscriptions = Vec::new();
        let mut add = |endpoint: String, handlers: Vec<HandlerName>| {
            let entity = format!("{name}/{endpoint}");
            subscriptions.push(Queue { requires_session: true, ..parse::default_queue(&entity) });
            let defaults = parse::default_endpoint(&endpoint, EntityName::from(entity));
            config.endpoints.push(Endpoint { handlers, ..defaults });
        };
        if !rest.is_empty() {
            add(name.clone(), rest.to_vec());
        }
        for handler in conflicting {
            add(format!("{name}-{handler}"), vec![handler.clone()]);
        }
        config.topics.push(Topic { subscriptions, ..parse::default_topic(&name) });
        config
    }

    /// The settings of a handler; the defaults when it has no section.
    pub(crate) fn handler(&self, name: &HandlerName) -> HandlerConfig {
        let config = self.handlers.get(name).cloned().unwrap_or_else(parse::default_handler);
        HandlerConfig { name: Some(name.clone()), ..config }
    }

    /// Connections that a store needs at least, so that no run with SQL waits for another one's (P36).
    pub(crate) fn needed_pool(&self, store: &str) -> u32 {
        let with_sql = self.endpoints.iter().filter(|endpoint| endpoint.has_sql() && endpoint.store.name() == store);
        let runs: u32 = with_sql.map(|endpoint| endpoint.concurrency).sum();
        if runs == 0 { 1 } else { runs + BESIDE_SQL }
    }

    pub(crate) fn pool(&self, store: &str, database: &Database) -> u32 {
        database.pool.unwrap_or_else(|| self.needed_pool(store).max(USUAL_POOL))
    }

    /// Every entity that can be sent to.
    pub(crate) fn entities(&self) -> impl Iterator<Item = &EntityName> {
        self.queues.iter().map(|queue| &queue.name).chain(self.topics.iter().map(|topic| &topic.name))
    }

    /// The settings of an endpoint's source, when it is the embedded engine's.
    pub(crate) fn source_of(&self, endpoint: &Endpoint) -> Option<&Queue> {
        if endpoint.remote.is_some() {
            return None;
        }
        self.queues
            .iter()
            .chain(self.topics.iter().flat_map(|topic| &topic.subscriptions))
            .find(|queue| queue.name == endpoint.source)
    }

    /// Whether an endpoint has sessions.
    pub(crate) fn has_sessions(&self, endpoint: &Endpoint) -> bool {
        self.way_back(endpoint).is_some_and(|way| way.requires_session)
    }

    /// How a message of an endpoint's source comes back.
    fn way_back(&self, endpoint: &Endpoint) -> Option<WayBack> {
        match &endpoint.remote {
            Some(Remote { requires_session, lock_duration, max_delivery_count, .. }) => Some(WayBack {
                requires_session: *requires_session,
                redeliveries: lock_duration.saturating_mul(*max_delivery_count),
                ttl: None,
            }),
            None => self.source_of(endpoint).map(|source| WayBack {
                requires_session: source.requires_session,
                redeliveries: source.lock_duration.saturating_mul(source.max_delivery_count),
                ttl: source.ttl,
            }),
        }
    }

    /// Retentions that are shorter than the longest bounded way back, and ways that have no bound (spec 4, A62).
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut unbounded = Vec::new();
        for endpoint in &self.endpoints {
            let (Some(inbox), Some(source)) = (&endpoint.inbox, self.way_back(endpoint)) else { continue };
            let retries = endpoint.retry.as_ref().map_or(Duration::ZERO, retry_horizon);
            let redeliveries = source.redeliveries;
            let longest = retries.max(redeliveries.saturating_add(source.ttl.unwrap_or_default()));
            if inbox.retention < longest {
                warnings.push(format!(
                    "endpoint {:?}: its inbox forgets after {} but a message can come back after {} (retries {}, lock × deliveries{} {}); \
                     set inbox.retention to at least {}",
                    endpoint.name.as_str(),
                    show_duration(inbox.retention),
                    show_duration(longest),
                    show_duration(retries),
                    if source.ttl.is_some() { " + ttl" } else { "" },
                    show_duration(redeliveries.saturating_add(source.ttl.unwrap_or_default())),
                    show_duration(longest),
                ));
            }
            if source.ttl.is_none() {
                unbounded.push(format!("{:?} has no ttl", endpoint.source.as_str()));
            }
            if source.requires_session {
                unbounded.push(format!(
                    "parking in endpoint {:?} lasts until its block is resolved",
                    endpoint.name.as_str()
                ));
            }
        }
        if !unbounded.is_empty() {
            warnings.push(format!(
                "ways back without a bound, which no retention covers: {}; an event resolved later than its retention counts as new to the inbox",
                unbounded.join("; ")
            ));
        }
        warnings
    }
}

struct WayBack {
    requires_session: bool,
    /// All of them, one lock after another.
    redeliveries: Duration,
    ttl: Option<Duration>,
}

/// The longest time from the first failure to the last retry.
fn retry_horizon(policy: &RetryPolicy) -> Duration {
    std::iter::once(&policy.schedule)
        .chain(policy.rules.iter().filter_map(|rule| rule.schedule.as_ref()))
        .map(|schedule| {
            schedule.max.unwrap_or(schedule.base).max(schedule.base).saturating_mul(schedule.attempts.saturating_sub(1))
        })
        .max()
        .unwrap_or_default()
}

/// What the file-less endpoint is called.
pub(crate) fn folder_name(folder: &Path) -> String {
    let name =
        folder.canonicalize().ok().as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    match name {
        Some(name) if read::check_name(&name).is_ok() => name,
        _ => "main".to_owned(),
    }
}

/// Where the API listens unless told otherwise.
pub(crate) const CONSOLE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

#[cfg(test)]
mod tests;
