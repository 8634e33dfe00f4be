//! The API on a loopback port of its own.

use std::net::SocketAddr;

use axum::{
    extract::Request,
    http::{StatusCode, header::HOST},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use sprag_broker::{Clock, Engine};
use tokio::net::TcpListener;

use super::router;
use crate::access::Access;

/// Why the API is not served.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(
        "{0} can be reached from other machines, and the administration API speaks plain HTTP: listen on loopback, behind a proxy with TLS"
    )]
    BeyondLoopback(SocketAddr),
    #[error("cannot listen on {0}: another program uses the port")]
    PortTaken(SocketAddr),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
}

/// A port that is taken and not served yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Takes the port, which must be a loopback one.
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        if !address.ip().is_loopback() {
            return Err(BindError::BeyondLoopback(address));
        }
        let failed = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::AddrInUse => BindError::PortTaken(address),
            _ => BindError::Listen { address, source },
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is there and the requests that have begun are answered.
    pub async fn run(
        self,
        engine: Engine,
        access: Access,
        clock: Clock,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let router = router(engine, access, clock).layer(middleware::from_fn(only_for_this_machine));
        axum::serve(self.listener, router).with_graceful_shutdown(stop).await
    }
}

/// A page in a browser may ask this port under a name of its own that it lets point here (DNS rebinding). Who means this machine says so.
async fn only_for_this_machine(request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name =
        host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit())).map_or(host, |it| it.0);
    if ["127.0.0.1", "localhost", "[::1]"].iter().any(|own| name.eq_ignore_ascii_case(own)) {
        return next.run(request).await;
    }
    (StatusCode::MISDIRECTED_REQUEST, "this API is for programs on its own machine: ask it as 127.0.0.1 or localhost")
        .into_response()
}
