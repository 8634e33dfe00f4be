//! How the transport is opened.

use std::{sync::Arc, time::Duration};

use sprag_core::ids::{EndpointName, EntityName};

use crate::{connection_string::ConnectionString, token::TokenSource};

/// How deliveries are settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Settle {
    /// By a request, whose answer is awaited: a refusal is seen (A30), and completions that wait together share one.
    #[default]
    Management,
    /// By a disposition on the link, as the SDKs settle. Its answer is awaited too, though the client library keeps it to itself: it is overheard. What
    /// this cannot do: settle over another connection than the one on which the message came. After that one has broken, its deliveries come
    /// again when their locks have lapsed.
    Link,
}

/// What is known of an entity. AMQP does not tell it: it comes from the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntitySettings {
    pub name: EntityName,
    pub requires_session: bool,
    /// As the entity has it: locks are counted with it from the moment of asking, on monotonic time (A15).
    pub lock_duration: Duration,
    pub max_delivery_count: u32,
}

impl EntitySettings {
    /// As a new entity is on Azure, with sessions: locks of 30 s, 10 deliveries.
    pub fn sessions(name: impl Into<EntityName>) -> Self {
        Self { requires_session: true, ..Self::plain(name) }
    }

    /// The same without sessions.
    pub fn plain(name: impl Into<EntityName>) -> Self {
        Self {
            name: name.into(),
            requires_session: false,
            lock_duration: Duration::from_secs(30),
            max_delivery_count: 10,
        }
    }
}

#[derive(Clone)]
pub struct Config {
    pub connection: ConnectionString,
    /// In place of the connection string's credential.
    pub tokens: Option<Arc<dyn TokenSource>>,
    /// The entities that this host serves or lists. Others can be sent to.
    pub entities: Vec<EntitySettings>,
    /// Endpoints on NimBus's topology (P21, [`crate::topology::wanted_nimbus`]). Each receives from the subscription of its name on the topic of its
    /// name, which `entities` calls `<endpoint>/<endpoint>`; what is sent to that goes to the topic, so that this endpoint alone gets it.
    pub nimbus: Vec<EndpointName>,
    pub settle: Settle,
    /// How long one request, send or link may take. Default 30 s.
    pub operation_timeout: Duration,
    /// A broker that is silent for so long is gone (it is asked for a sign of life at half of it). Default 30 s.
    pub idle_timeout: Duration,
    /// Between two tries to connect, at first and at most. Default 200 ms and 30 s.
    pub backoff: (Duration, Duration),
    /// Certificates (PEM) of authorities beside the platform's.
    pub extra_roots: Vec<std::path::PathBuf>,
}

impl Config {
    pub fn new(connection: ConnectionString) -> Self {
        Self {
            connection,
            tokens: None,
            entities: Vec::new(),
            nimbus: Vec::new(),
            settle: Settle::default(),
            operation_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(30),
            backoff: (Duration::from_millis(200), Duration::from_secs(30)),
            extra_roots: Vec::new(),
        }
    }
}
