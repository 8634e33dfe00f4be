//! What an endpoint is, with its parts already built.

use std::{sync::Arc, time::Duration};

use sprag_core::{
    ids::{EndpointName, EntityName},
    retry::RetryPolicy,
};
use sprag_runtime::Destinations;
use sprag_store::Store;
use sprag_transport::{Committer, EntitySettings, Transport};

/// One endpoint: its source, its store, and how its decisions are carried out.
#[derive(Clone)]
pub struct EndpointConfig {
    pub name: EndpointName,
    pub source: EntityName,
    /// What its entity is meant to be, for a transport that may be out of reach at the start. None: the transport has to answer then.
    pub expected: Option<EntitySettings>,
    pub transport: Arc<dyn Transport>,
    pub store: Arc<dyn Store>,
    pub committer: Arc<dyn Committer>,
    /// Other hosts may serve it too: what ended with their process is not in our flight recorder, but in the broker's count of deliveries (P23).
    pub is_shared: bool,
    /// Store and transport are one engine: the store puts an action's message onto the source itself, in the same transaction.
    pub store_enqueues: bool,
    /// Sessions, or messages of an entity without sessions, side by side.
    pub concurrency: usize,
    /// None: the inbox is off.
    pub inbox: Option<InboxConfig>,
    /// The name under which handlers are granted SQL in the endpoint's store. None: it has none (its inbox is not of mode `transaction`).
    pub sql: Option<Arc<str>>,
    pub retry: Option<RetryPolicy>,
    /// Default 3 (P23).
    pub host_ended_limit: u32,
    /// Who is told of outcomes: an entity of its transport.
    pub resolver: Option<EntityName>,
    /// Where its handlers may send.
    pub destinations: Arc<dyn Destinations>,
    /// The largest body its transport takes.
    pub max_body: usize,
    /// First pause before a delivery that ended transiently comes again; doubles with each, up to 30 s.
    pub back_off: Duration,
}

#[derive(Debug, Clone)]
pub struct InboxConfig {
    /// How long a record is kept. Default 7 d.
    pub retention: Duration,
    /// How often records past it are deleted. Default 1 h.
    pub cleanup_interval: Duration,
    /// Mode `lease`: how long the lease on a message in hand lasts unless it is renewed, above zero. For sources without sessions and stores with leases.
    /// None: mode `record`.
    pub lease: Option<Duration>,
}

impl Default for InboxConfig {
    fn default() -> Self {
        Self { retention: Duration::from_secs(7 * 86_400), cleanup_interval: Duration::from_secs(3_600), lease: None }
    }
}
