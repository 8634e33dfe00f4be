//! How the gateway is opened, and why it may not be.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use sprag_broker::Clock;
use sprag_core::time::Timestamp;

use crate::access::Access;

/// How the gateway is opened.
#[derive(Clone)]
pub struct Config {
    /// Where AMQP is spoken in the clear (Azure's port is 5672). Loopback only, see `plain_beyond_loopback`. Default: nowhere.
    pub listen: Option<SocketAddr>,
    /// Where it is spoken through TLS (Azure's port is 5671). Default: nowhere.
    pub tls: Option<Tls>,
    /// Lets `listen` be an address that other machines can reach: keys and messages can then be read on the way. Default: no.
    pub plain_beyond_loopback: bool,
    /// Who is let in. Default: everybody.
    pub access: Access,
    /// How long a client waits for the next free session when it does not say how long. Default 60 s, as on Azure.
    pub session_wait: Duration,
    /// The most connections; more are closed as they come. Default 10,000.
    pub max_connections: usize,
    /// A client that sends nothing for twice as long is gone. Default 60 s.
    pub idle_time_out: Duration,
    /// A link to an entity on which nothing happens for so long is detached; a receiver that waits is one, too. Default 10 min, as on Azure.
    pub link_idle: Option<Duration>,
    /// A connection without a link to an entity is closed after so long, and after 60 s at most while it has not had one. Default 5 min, as on
    /// Azure.
    pub connection_idle: Option<Duration>,
    /// The largest frame, in bytes. Default 64 KiB.
    pub max_frame_size: u32,
    /// Messages that a sender may have under way. Default 1,000.
    pub credit: u32,
    /// How long connections may take to end their writes when the gateway stops. Default 10 s.
    pub stop_grace: Duration,
    /// By which tokens end. Default: the system's.
    pub clock: Clock,
}

/// A port with TLS.
#[derive(Debug, Clone)]
pub struct Tls {
    pub listen: SocketAddr,
    /// PEM: the certificate and those that lead to its authority.
    pub certificate: PathBuf,
    /// PEM: the certificate's private key.
    pub key: PathBuf,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: None,
            tls: None,
            plain_beyond_loopback: false,
            access: Access::open(),
            session_wait: Duration::from_secs(60),
            max_connections: 10_000,
            idle_time_out: Duration::from_secs(60),
            link_idle: Some(Duration::from_secs(600)),
            connection_idle: Some(Duration::from_secs(300)),
            max_frame_size: 64 << 10,
            credit: 1_000,
            stop_grace: Duration::from_secs(10),
            clock: Arc::new(wall_clock),
        }
    }
}

fn wall_clock() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Why a gateway was not opened. Each names the way out where there is one.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("the gateway has no address to listen on: give one for plain AMQP or for TLS")]
    Nowhere,
    #[error(
        "{0} can be reached from other machines, and plain AMQP shows keys and messages to whoever is between: \
         use TLS, listen on loopback, or allow plain AMQP beyond loopback"
    )]
    PlainBeyondLoopback(SocketAddr),
    #[error("cannot listen on {0}: another program uses the port")]
    PortTaken(SocketAddr),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("{file} cannot be used for TLS: {problem}", file = file.display())]
    Tls { file: PathBuf, problem: String },
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
}
