//! The parts of a host, made from its configuration.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use sprag_broker::{DeclareError, Engine, OpenError, Options};
use sprag_core::ids::EntityName;
use sprag_runtime::{Destinations, Runtime, RuntimeConfig, registry::EndpointHandlers};
use sprag_servicebus::{administration, topology::Severity};
use sprag_store::{
    Store,
    inbox::{Inbox, InboxBeside, InboxOf},
    memory::MemoryStore,
};
use sprag_transport::{Committer, EntitySettings, Transport, ordered::Ordered};
use sprag_worker::{EndpointConfig, InboxConfig};

use tracing::{info, warn};

use super::{
    databases::{self, Opened},
    entities,
};
use crate::{
    config::{self, Config, StoreRef},
    failure::{Exit, Failure},
    namespaces,
};

/// First pause before a delivery that ended transiently comes again.
const BACK_OFF: Duration = Duration::from_millis(500);

pub(super) async fn open(config: &Config) -> Result<Engine, Failure> {
    let options = Options { max_size: Some(config.host.max_size), ..Options::new(&config.host.data) };
    let opened = tokio::task::spawn_blocking(move || Engine::open(options)).await;
    opened.map_err(|error| Failure::failed(format!("opening the engine failed: {error}")))?.map_err(|error| {
        let (exit, code) = match &error {
            OpenError::Held { .. } => (Exit::DataHeld, "SPR0401"),
            OpenError::Folder { .. } => (Exit::Failed, "SPR0403"),
            OpenError::File { .. } | OpenError::Newer { .. } => (Exit::Failed, "SPR0406"),
        };
        Failure::new(exit, error.to_string()).code(code).help(format!("sprag explain {code}"))
    })
}

pub(super) async fn declare(engine: &Engine, config: &Config) -> Result<(), Failure> {
    engine.declare(entities::specs(config)).await.map_err(|error| match error {
        DeclareError::Store(error) => Failure::failed(error.to_string()).code("SPR0406"),
        error => {
            let place = config.file.as_ref().map(|file| format!("{}: ", file.display())).unwrap_or_default();
            Failure::new(Exit::Configuration, format!("{place}{error}")).code("SPR0104")
        }
    })
}

/// What endpoints are put together from: transports and stores, each once.
pub(super) struct Parts {
    engine: Engine,
    near: Arc<dyn Transport>,
    remote: BTreeMap<String, Arc<dyn Transport>>,
    embedded: Arc<dyn Store>,
    memory: Arc<dyn Store>,
    databases: BTreeMap<String, Opened>,
}

impl Parts {
    /// Opens what endpoints use. A namespace that cannot be reached is no error: it is tried again. A database has to answer once, because
    /// nothing is known of its tables before.
    pub(super) async fn build(engine: &Engine, config: &Config) -> Result<Self, Failure> {
        let mut remote: BTreeMap<String, Arc<dyn Transport>> = BTreeMap::new();
        for (name, namespace) in &config.servicebus {
            remote.insert(name.clone(), namespaces::transport(config, name, namespace)?);
        }
        let mut databases = BTreeMap::new();
        for (name, database) in &config.stores {
            databases.insert(name.clone(), databases::open(config, name, database).await?);
        }
        Ok(Self {
            near: Arc::new(engine.clone()),
            embedded: Arc::new(engine.clone()),
            memory: Arc::new(MemoryStore::new()),
            engine: engine.clone(),
            remote,
            databases,
        })
    }

    /// The embedded engine first: it is asked first where an entity is.
    pub(super) fn transports(&self) -> Vec<Arc<dyn Transport>> {
        std::iter::once(&self.near).chain(self.remote.values()).cloned().collect()
    }

    pub(super) fn endpoints(&self, config: &Config) -> Vec<EndpointConfig> {
        config.endpoints.iter().map(|endpoint| self.endpoint(endpoint, config)).collect()
    }

    fn endpoint(&self, endpoint: &config::Endpoint, config: &Config) -> EndpointConfig {
        // The reader of the configuration has refused names that stand for nothing.
        let transport = match &endpoint.remote {
            None => &self.near,
            Some(remote) => &self.remote[&remote.transport],
        };
        let own = self.store(&endpoint.store);
        let store = match endpoint.inbox_beside() {
            None => own,
            Some(beside) => Arc::new(InboxBeside::new(own, self.inbox(beside))),
        };
        let is_one_engine =
            endpoint.remote.is_none() && endpoint.store == StoreRef::Embedded && endpoint.inbox_beside().is_none();
        let committer: Arc<dyn Committer> = match is_one_engine {
            true => Arc::new(self.engine.clone()),
            false => Arc::new(Ordered::new(Arc::clone(&store), Arc::clone(transport))),
        };
        EndpointConfig {
            name: endpoint.name.clone(),
            source: endpoint.source.clone(),
            expected: endpoint.remote.as_ref().map(|remote| EntitySettings {
                requires_session: remote.requires_session,
                lock_duration: remote.lock_duration,
                max_delivery_count: remote.max_delivery_count,
            }),
            transport: Arc::clone(transport),
            store,
            committer,
            store_enqueues: is_one_engine,
            is_shared: endpoint.remote.is_some() && !endpoint.single_host,
            concurrency: endpoint.concurrency as usize,
            inbox: endpoint.inbox.as_ref().map(|inbox| InboxConfig {
                retention: inbox.retention,
                cleanup_interval: inbox.cleanup_interval,
                lease: (inbox.mode == config::Mode::Lease).then_some(inbox.lease),
            }),
            sql: endpoint.has_sql().then(|| endpoint.store.name().into()),
            retry: endpoint.retry.clone(),
            host_ended_limit: endpoint.host_ended_limit,
            resolver: endpoint.resolver.clone(),
            destinations: self.destinations(endpoint, config),
            max_body: largest_body(endpoint, config),
            back_off: BACK_OFF,
        }
    }

    /// The reader of the configuration has refused stores that hold inboxes only.
    fn store(&self, store: &StoreRef) -> Arc<dyn Store> {
        match store {
            StoreRef::Embedded => Arc::clone(&self.embedded),
            StoreRef::Memory => Arc::clone(&self.memory),
            StoreRef::Named(name) => match &self.databases[name] {
                Opened::Store(store) => Arc::clone(store),
                Opened::Inbox(_) => unreachable!("[store.{name}] was refused as a store of records"),
            },
        }
    }

    fn inbox(&self, store: &StoreRef) -> Arc<dyn Inbox> {
        if let StoreRef::Named(name) = store
            && let Opened::Inbox(inbox) = &self.databases[name]
        {
            return Arc::clone(inbox);
        }
        Arc::new(InboxOf::new(self.store(store)))
    }

    fn destinations(&self, endpoint: &config::Endpoint, config: &Config) -> Arc<dyn Destinations> {
        let publish = endpoint.publish.clone();
        match endpoint.remote {
            None => {
                let known = config.entities().cloned().collect();
                Arc::new(Allowed { here: Some((known, self.engine.clone())), publish })
            }
            // Whether a namespace has an entity is found out when the run commits.
            Some(_) => Arc::new(Allowed { here: None, publish }),
        }
    }
}

/// How long a start waits for a namespace to say what it has. It starts without that: the namespace may be out of reach for a while.
const TOPOLOGY_LOOK: Duration = Duration::from_secs(10);

/// A host does not start on entities that would lose or misplace messages (P19, P21, P25). What cannot be looked at is said and left: looking needs
/// the right Manage, which a host does not need otherwise.
pub(super) async fn refuse_unsafe_topology(config: &Config) -> Result<(), Failure> {
    for (name, namespace) in &config.servicebus {
        let look = tokio::time::timeout(TOPOLOGY_LOOK, namespaces::problems(config, name, namespace));
        let problems = match look.await {
            Ok(looked) => looked?,
            Err(_) => {
                warn!(namespace = name, "its entities could not be checked: no answer within {TOPOLOGY_LOOK:?}");
                continue;
            }
        };
        let problems = match problems {
            Ok(problems) => problems,
            Err(error @ administration::Error::Unauthorized { .. }) => {
                info!(namespace = name, "its entities are not checked at the start: {error}");
                continue;
            }
            Err(error) => {
                warn!(namespace = name, "its entities could not be checked: {error}");
                continue;
            }
        };
        let (errors, warnings): (Vec<_>, Vec<_>) =
            problems.into_iter().partition(|problem| problem.severity == Severity::Error);
        for problem in warnings {
            warn!(namespace = name, "{problem}");
        }
        if !errors.is_empty() {
            let lines: Vec<String> = errors.iter().map(|problem| format!("\n  {problem}")).collect();
            return Err(Failure::new(Exit::Configuration, format!("[servicebus.{name}]:{}", lines.concat()))
                .code("SPR0503")
                .help("sprag topology diff shows what is missing, sprag topology apply makes it"));
        }
    }
    Ok(())
}

/// The largest body that a handler of the endpoint may publish.
fn largest_body(endpoint: &config::Endpoint, config: &Config) -> usize {
    let largest = match &endpoint.remote {
        Some(remote) => config.servicebus.get(&remote.transport).map(|namespace| namespace.max_message_size),
        None => config
            .queues
            .iter()
            .map(|queue| queue.max_message_size)
            .chain(config.topics.iter().map(|topic| topic.max_message_size))
            .max(),
    };
    largest.and_then(|size| usize::try_from(size).ok()).unwrap_or(1 << 20)
}

/// Where an endpoint's handlers may send.
struct Allowed {
    /// The entities as configured, and the engine, which knows those that came by the administration. None: they are elsewhere.
    here: Option<(BTreeSet<EntityName>, Engine)>,
    publish: Option<Vec<EntityName>>,
}

impl Destinations for Allowed {
    fn check(&self, entity: &EntityName) -> Result<(), String> {
        if let Some((known, engine)) = &self.here
            && !known.contains(entity)
            && engine.target(entity).is_err()
        {
            let advice = config::nearest(entity.as_str(), known.iter().map(EntityName::as_str));
            let advice = advice.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
            return Err(format!("there is no queue or topic {:?}{advice}", entity.as_str()));
        }
        match &self.publish {
            Some(allowed) if !allowed.contains(entity) => {
                Err(format!("{:?} is not in the endpoint's `publish`", entity.as_str()))
            }
            _ => Ok(()),
        }
    }
}

pub(crate) fn handlers_of(config: &Config) -> Vec<EndpointHandlers> {
    config
        .endpoints
        .iter()
        .map(|endpoint| EndpointHandlers {
            endpoint: endpoint.name.clone(),
            handlers: (!endpoint.handlers.is_empty()).then(|| endpoint.handlers.clone()),
        })
        .collect()
}

/// Compiled code is shared by every host of this user, so that a component is compiled once per machine.
fn cache_folder(config: &Config) -> PathBuf {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    named("SPRAG_CACHE")
        .or_else(|| named("XDG_CACHE_HOME").map(|cache| cache.join("sprag/compiled")))
        .or_else(|| named("HOME").map(|home| home.join(".cache/sprag/compiled")))
        .unwrap_or_else(|| config.host.data.join("compiled"))
}

pub(crate) async fn runtime(config: &Config) -> Result<Runtime, Failure> {
    let folder = cache_folder(config);
    let make = move || Runtime::new(RuntimeConfig { cache_dir: Some(folder), ..RuntimeConfig::default() });
    let made = tokio::task::spawn_blocking(make)
        .await
        .map_err(|error| Failure::failed(format!("the runtime did not start: {error}")))?;
    made.map_err(|error| {
        Failure::failed(error.to_string())
            .code("SPR0406")
            .help("the folder for compiled code can be set with SPRAG_CACHE")
    })
}

/// The key that signs the host's own messages: as configured, or made at the first start.
pub(super) fn control_key(config: &Config) -> Result<Vec<u8>, Failure> {
    if let Some(key) = &config.host.control_key {
        return Ok(key.clone().into_bytes());
    }
    let path = config.host.data.join("control.key");
    let failed = |error: std::io::Error| Failure::failed(format!("{}: {error}", path.display())).code("SPR0403");
    match fs::read(&path) {
        Ok(key) if !key.is_empty() => Ok(key),
        Ok(_) => Err(Failure::failed(format!(
            "{} is empty; delete it, and messages of the host that wait are treated as strangers'",
            path.display()
        ))
        .code("SPR0403")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let key = crate::hostfile::random_hex(32).into_bytes();
            // Whole or not at all: half a key would not verify what the whole one signed.
            let fresh = path.with_extension("key.new");
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&fresh)
                .map_err(failed)?;
            file.write_all(&key)
                .and_then(|()| file.sync_all())
                .and_then(|()| fs::rename(&fresh, &path))
                .map_err(failed)?;
            Ok(key)
        }
        Err(error) => Err(failed(error)),
    }
}
