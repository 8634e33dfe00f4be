//! Which handler serves which event at which endpoint.
//!
//! Readers see one table, whole; a change puts a new one in its place. A run keeps the version it began with, because it holds it.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    sync::Arc,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use sprag_core::ids::{EndpointName, EventType, HandlerName};
use tokio::sync::watch;

use crate::{component::LoadError, handler::Handler};

/// The event type that stands for any other.
const ANY: &str = "*";

/// What an endpoint says about its handlers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointHandlers {
    pub endpoint: EndpointName,
    /// None: every handler there is.
    pub handlers: Option<Vec<HandlerName>>,
}

impl EndpointHandlers {
    fn takes(&self, handler: &HandlerName) -> bool {
        self.handlers.as_ref().is_none_or(|names| names.contains(handler))
    }
}

/// Who handles an event.
#[derive(Clone)]
pub enum Resolution {
    Handler(Arc<Handler>),
    /// No configured handler claims this type: outcome `unsupported`.
    Unclaimed,
    /// A handler that might claim it is not loaded: the message must wait (P27).
    NotReady(NotReady),
}

/// Why an endpoint may take no messages (P27).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    #[error("no handler is loaded")]
    NoHandler,
    #[error("not loaded: {}", .0.iter().map(HandlerName::as_str).collect::<Vec<_>>().join(", "))]
    Missing(Vec<HandlerName>),
    #[error("there is no endpoint `{0}`")]
    NoEndpoint(EndpointName),
}

#[derive(Default)]
struct Table {
    endpoints: Vec<EndpointHandlers>,
    handlers: BTreeMap<HandlerName, Arc<Handler>>,
    routes: HashMap<EndpointName, Route>,
}

#[derive(Default)]
struct Route {
    exact: HashMap<EventType, Arc<Handler>>,
    any: Option<Arc<Handler>>,
    missing: Vec<HandlerName>,
}

/// The handlers of a host.
pub struct Registry {
    table: ArcSwap<Table>,
    /// One change at a time.
    change: Mutex<()>,
    version: watch::Sender<u64>,
}

impl Registry {
    pub fn new(endpoints: Vec<EndpointHandlers>) -> Arc<Self> {
        let table = Table::build(endpoints, BTreeMap::new());
        Arc::new(Self { table: ArcSwap::from_pointee(table), change: Mutex::new(()), version: watch::Sender::new(0) })
    }

    /// An exact type beats `*` (P28).
    pub fn resolve(&self, endpoint: &EndpointName, event_type: &EventType) -> Resolution {
        let table = self.table.load();
        let Some(route) = table.routes.get(endpoint) else {
            return Resolution::NotReady(NotReady::NoEndpoint(endpoint.clone()));
        };
        if let Some(handler) = route.exact.get(event_type) {
            return Resolution::Handler(handler.clone());
        }
        match (route.readiness(), &route.any) {
            // A missing handler may claim this very type, which would beat the `*` of another.
            (Err(why), _) => Resolution::NotReady(why),
            (Ok(()), Some(handler)) => Resolution::Handler(handler.clone()),
            (Ok(()), None) => Resolution::Unclaimed,
        }
    }

    /// Whether the endpoint may take messages (P27).
    pub fn ready(&self, endpoint: &EndpointName) -> Result<(), NotReady> {
        match self.table.load().routes.get(endpoint) {
            Some(route) => route.readiness(),
            None => Err(NotReady::NoEndpoint(endpoint.clone())),
        }
    }

    /// Rises with every change: for those who wait until an endpoint is ready.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    pub fn handlers(&self) -> Vec<Arc<Handler>> {
        self.table.load().handlers.values().cloned().collect()
    }

    pub fn get(&self, name: &HandlerName) -> Option<Arc<Handler>> {
        self.table.load().handlers.get(name).cloned()
    }

    pub fn endpoints(&self) -> Vec<EndpointHandlers> {
        self.table.load().endpoints.clone()
    }

    /// Puts a handler in, in place of the version before, which is the answer. Refused if it claims a type that another has (P28).
    pub fn insert(&self, handler: Arc<Handler>) -> Result<Option<Arc<Handler>>, LoadError> {
        let _one = self.change.lock();
        let table = self.table.load();
        for endpoint in table.endpoints.iter().filter(|endpoint| endpoint.takes(handler.name())) {
            let others =
                table.handlers.values().filter(|other| other.name() != handler.name() && endpoint.takes(other.name()));
            for other in others {
                let shared =
                    handler.info().event_types.iter().find(|event_type| other.info().event_types.contains(event_type));
                if let Some(event_type) = shared {
                    return Err(LoadError::Claimed {
                        event_type: event_type.to_string(),
                        endpoint: endpoint.endpoint.to_string(),
                        other: other.name().to_string(),
                        fix: two_endpoints(endpoint, other.name(), handler.name(), &table),
                    });
                }
            }
        }
        let mut handlers = table.handlers.clone();
        let before = handlers.insert(handler.name().clone(), handler);
        self.publish(Table::build(table.endpoints.clone(), handlers));
        Ok(before)
    }

    pub fn remove(&self, name: &HandlerName) -> Option<Arc<Handler>> {
        let _one = self.change.lock();
        let table = self.table.load();
        let mut handlers = table.handlers.clone();
        let before = handlers.remove(name)?;
        self.publish(Table::build(table.endpoints.clone(), handlers));
        Some(before)
    }

    /// For `sprag dev` without a file, whose endpoints follow from the handlers.
    pub fn set_endpoints(&self, endpoints: Vec<EndpointHandlers>) {
        let _one = self.change.lock();
        let handlers = self.table.load().handlers.clone();
        self.publish(Table::build(endpoints, handlers));
    }

    fn publish(&self, table: Table) {
        self.table.store(Arc::new(table));
        self.version.send_modify(|version| *version += 1);
    }
}

impl Table {
    fn build(endpoints: Vec<EndpointHandlers>, handlers: BTreeMap<HandlerName, Arc<Handler>>) -> Self {
        let mut routes: HashMap<EndpointName, Route> = HashMap::new();
        for endpoint in &endpoints {
            let route = routes.entry(endpoint.endpoint.clone()).or_default();
            for handler in handlers.values().filter(|handler| endpoint.takes(handler.name())) {
                for event_type in &handler.info().event_types {
                    if event_type.as_str() == ANY {
                        route.any = Some(handler.clone());
                    } else {
                        route.exact.insert(event_type.clone(), handler.clone());
                    }
                }
            }
            let named = endpoint.handlers.iter().flatten();
            route.missing = named.filter(|name| !handlers.contains_key(*name)).cloned().collect();
        }
        Self { endpoints, handlers, routes }
    }
}

impl Route {
    fn readiness(&self) -> Result<(), NotReady> {
        if !self.missing.is_empty() {
            return Err(NotReady::Missing(self.missing.clone()));
        }
        if self.exact.is_empty() && self.any.is_none() {
            return Err(NotReady::NoHandler);
        }
        Ok(())
    }
}

/// The configuration under which both handlers get the events (P28).
fn two_endpoints(endpoint: &EndpointHandlers, first: &HandlerName, second: &HandlerName, table: &Table) -> String {
    let name = &endpoint.endpoint;
    let mut stay: Vec<String> = match &endpoint.handlers {
        Some(names) => names.iter().filter(|name| *name != second).map(|name| format!("\"{name}\"")).collect(),
        None => table.handlers.keys().filter(|name| *name != second).map(|name| format!("\"{name}\"")).collect(),
    };
    if stay.is_empty() {
        stay.push(format!("\"{first}\""));
    }
    let mut text = String::new();
    write!(
        text,
        "[[endpoint]]\nname = \"{name}\"\nsource = {{ topic = \"TOPIC\", subscription = \"{name}\" }}\nhandlers = [{}]\n\n\
         [[endpoint]]\nname = \"{name}-{second}\"\nsource = {{ topic = \"TOPIC\", subscription = \"{name}-{second}\" }}\n\
         handlers = [\"{second}\"]\n",
        stay.join(", ")
    )
    .expect("a String takes everything");
    text
}
