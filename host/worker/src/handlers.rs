//! Who handles what: the seam to the runtime's registry, and to plain functions in tests.

use std::sync::Arc;

use async_trait::async_trait;
use sprag_core::ids::{Digest, EndpointName, EventType, HandlerName};
use sprag_runtime::{RunInput, RunOutput};
use tokio::sync::watch;

/// One version of a handler.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    fn name(&self) -> &HandlerName;
    fn digest(&self) -> Digest;
    async fn run(&self, input: RunInput) -> RunOutput;
}

/// Who takes an event type at an endpoint.
#[derive(Clone)]
pub enum Resolved {
    Handler(Arc<dyn Handler>),
    /// No configured handler claims the type.
    Nobody,
    /// A handler that the endpoint names is not loaded (P27).
    NotReady,
}

pub trait Handlers: Send + Sync + 'static {
    fn resolve(&self, endpoint: &EndpointName, event_type: &EventType) -> Resolved;

    /// Whether every handler that the endpoint names is loaded; with none named, at least one (P27).
    fn is_ready(&self, endpoint: &EndpointName) -> bool;

    /// Rises whenever a handler was loaded, replaced or removed.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// The runtime's registry as the loops see it.
pub struct Registered(pub Arc<sprag_runtime::Registry>);

#[async_trait]
impl Handler for sprag_runtime::Handler {
    fn name(&self) -> &HandlerName {
        sprag_runtime::Handler::name(self)
    }

    fn digest(&self) -> Digest {
        sprag_runtime::Handler::digest(self)
    }

    async fn run(&self, input: RunInput) -> RunOutput {
        sprag_runtime::Handler::run(self, input).await
    }
}

impl Handlers for Registered {
    fn resolve(&self, endpoint: &EndpointName, event_type: &EventType) -> Resolved {
        match self.0.resolve(endpoint, event_type) {
            sprag_runtime::Resolution::Handler(handler) => Resolved::Handler(handler),
            sprag_runtime::Resolution::Unclaimed => Resolved::Nobody,
            sprag_runtime::Resolution::NotReady(_) => Resolved::NotReady,
        }
    }

    fn is_ready(&self, endpoint: &EndpointName) -> bool {
        self.0.ready(endpoint).is_ok()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes()
    }
}
