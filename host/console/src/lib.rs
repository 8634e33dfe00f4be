//! The local HTTP API: what an operator can do through [`Operations`], over loopback, with a token.
//!
//! Start reading at [`Console`], then [`routes`](mod@routes). Every answer that is not a success is a problem detail (RFC 9457) with a code that
//! `sprag explain` knows. [`wire`] is what senders write; the command reads lines with the same code.
//!
//! *Invariant:* this crate acts through `Operations` only; it knows no store, no transport and no loop.

mod gate;
mod idempotency;
pub mod problem;
mod routes;
pub mod wire;

use std::{future::Future, net::SocketAddr, sync::Arc};

use sprag_core::operations::Operations;
use tokio::{net::TcpListener, sync::watch};

/// Largest request that is read: a body of 16 MiB in base64, with room.
pub const MAX_REQUEST: usize = 32 << 20;

/// What the API needs to know.
#[derive(Clone)]
pub struct Config {
    /// A loopback address; port 0 takes any free one.
    pub listen: SocketAddr,
    /// What a caller must show.
    pub token: String,
    /// The name that actions of the token's holder are audited under.
    pub operator: String,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0} can be reached from other machines; the API listens on loopback only")]
    NotLoopback(SocketAddr),
    #[error("cannot listen on {0}: another program uses the port")]
    PortTaken(SocketAddr),
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    #[error("the API stopped: {0}")]
    Serve(std::io::Error),
}

/// A bound API that does not serve yet.
pub struct Console {
    listener: TcpListener,
    address: SocketAddr,
    config: Config,
}

impl Console {
    /// Takes the port, so that one that is taken is known before anything else starts.
    pub async fn bind(config: Config) -> Result<Self, Error> {
        if !config.listen.ip().is_loopback() {
            return Err(Error::NotLoopback(config.listen));
        }
        let listener = TcpListener::bind(config.listen).await.map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => Error::PortTaken(config.listen),
            _ => Error::Listen(config.listen, error),
        })?;
        let address = listener.local_addr().map_err(|error| Error::Listen(config.listen, error))?;
        Ok(Self { listener, address, config })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`, then finishes the requests that have begun. Those that wait for an action stop waiting.
    pub async fn serve(
        self,
        operations: Arc<dyn Operations>,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let (stopping, stopped) = watch::channel(false);
        let state = routes::Shared::new(operations, &self.config, self.address, stopped);
        let stop = async move {
            stop.await;
            // Nobody listens when no request waits.
            let _ = stopping.send(true);
        };
        axum::serve(self.listener, routes::app(state)).with_graceful_shutdown(stop).await.map_err(Error::Serve)
    }
}
