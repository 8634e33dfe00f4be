//! The parts of a host, made from its configuration.

use std::{
    collections::BTreeSet, fs, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::PathBuf, sync::Arc,
    time::Duration,
};

use sprag_broker::{DeclareError, Engine, OpenError, Options};
use sprag_core::ids::EntityName;
use sprag_runtime::{Destinations, Runtime, RuntimeConfig, registry::EndpointHandlers};
use sprag_store::{Store, memory::MemoryStore};
use sprag_transport::{Committer, Transport, ordered::Ordered};
use sprag_worker::{EndpointConfig, InboxConfig};

use super::entities;
use crate::{
    config::{self, Config, StoreKind},
    failure::{Exit, Failure},
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

pub(super) fn endpoints(engine: &Engine, embedded: &Arc<dyn Store>, config: &Config) -> Vec<EndpointConfig> {
    let transport: Arc<dyn Transport> = Arc::new(engine.clone());
    let committer: Arc<dyn Committer> = Arc::new(engine.clone());
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let in_memory: Arc<dyn Committer> = Arc::new(Ordered::new(Arc::clone(&memory), Arc::clone(&transport)));
    let known: BTreeSet<EntityName> = config.entities().cloned().collect();
    let largest = config
        .queues
        .iter()
        .map(|queue| queue.max_message_size)
        .chain(config.topics.iter().map(|topic| topic.max_message_size))
        .max();
    let max_body = largest.and_then(|size| usize::try_from(size).ok()).unwrap_or(1 << 20);
    config
        .endpoints
        .iter()
        .map(|endpoint| {
            let (store, committer) = match endpoint.store {
                StoreKind::Embedded => (Arc::clone(embedded), Arc::clone(&committer)),
                StoreKind::Memory => (Arc::clone(&memory), Arc::clone(&in_memory)),
            };
            let inbox = endpoint
                .inbox
                .as_ref()
                .map(|inbox| InboxConfig { retention: inbox.retention, cleanup_interval: inbox.cleanup_interval });
            EndpointConfig {
                name: endpoint.name.clone(),
                source: endpoint.source.clone(),
                transport: Arc::clone(&transport),
                store,
                committer,
                concurrency: endpoint.concurrency as usize,
                inbox,
                retry: endpoint.retry.clone(),
                host_ended_limit: endpoint.host_ended_limit,
                destinations: Arc::new(Allowed {
                    known: known.clone(),
                    engine: engine.clone(),
                    publish: endpoint.publish.clone(),
                }),
                max_body,
                back_off: BACK_OFF,
            }
        })
        .collect()
}

/// Where an endpoint's handlers may send.
struct Allowed {
    /// As configured.
    known: BTreeSet<EntityName>,
    /// Knows those that came by the administration.
    engine: Engine,
    publish: Option<Vec<EntityName>>,
}

impl Destinations for Allowed {
    fn check(&self, entity: &EntityName) -> Result<(), String> {
        if !self.known.contains(entity) && self.engine.target(entity).is_err() {
            let advice = config::nearest(entity.as_str(), self.known.iter().map(EntityName::as_str));
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
