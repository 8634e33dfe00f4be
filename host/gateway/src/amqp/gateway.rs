//! Who listens: ports, connections, and their end.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use sprag_amqp::connection as amqp;
use sprag_broker::Engine;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use super::{
    config::{BuildError, Config},
    context::{Context, Counters, Settings},
    peer::{IdleLimits, Peer},
    socket, tls,
    token::Tokens,
};

/// How long a client may take for the handshake of TLS.
const TLS_HANDSHAKE: Duration = Duration::from_secs(10);
/// After an accept that failed for want of something (file handles, mostly): others may give it back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Ports that are taken and not served yet.
pub struct Gateway {
    plain: Option<TcpListener>,
    tls: Option<(TcpListener, TlsAcceptor)>,
    max_connections: usize,
    context: Arc<Context>,
    handle: Handle,
}

/// What is to be known of a gateway while it runs. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    context: Arc<Context>,
    plain: Option<SocketAddr>,
    tls: Option<SocketAddr>,
}

/// What there is at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub connections: u64,
    pub links: u64,
    /// Sessions of entities that clients hold.
    pub sessions: u64,
}

impl Handle {
    /// Where AMQP is spoken in the clear.
    pub fn address(&self) -> Option<SocketAddr> {
        self.plain
    }

    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.tls
    }

    pub fn counts(&self) -> Counts {
        let [connections, links, sessions] = self.context.counters.all();
        Counts { connections, links, sessions }
    }
}

impl Gateway {
    /// Takes the ports, so that one that is taken is known before anything else starts.
    pub async fn build(config: Config, engine: Engine) -> Result<Self, BuildError> {
        if config.listen.is_none() && config.tls.is_none() {
            return Err(BuildError::Nowhere);
        }
        if let Some(address) = config.listen
            && !address.ip().is_loopback()
            && !config.plain_beyond_loopback
        {
            return Err(BuildError::PlainBeyondLoopback(address));
        }
        let plain = match config.listen {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let tls = match &config.tls {
            Some(tls) => Some((listen(tls.listen).await?, tls::acceptor(tls)?)),
            None => None,
        };
        let protocol = amqp::Config {
            max_frame_size: config.max_frame_size,
            idle_time_out: Some(config.idle_time_out),
            ..amqp::Config::default()
        };
        let context = Arc::new(Context {
            engine,
            access: config.access,
            tokens: Tokens::new().map_err(BuildError::Random)?,
            protocol: Arc::new(protocol),
            settings: Settings {
                session_wait: config.session_wait,
                credit: config.credit,
                stop_grace: config.stop_grace,
                idle: IdleLimits { link: config.link_idle, connection: config.connection_idle },
            },
            counters: Counters::default(),
            clock: config.clock,
        });
        let handle = Handle {
            context: Arc::clone(&context),
            plain: plain.as_ref().and_then(|listener| listener.local_addr().ok()),
            tls: tls.as_ref().and_then(|(listener, _)| listener.local_addr().ok()),
        };
        Ok(Self { plain, tls, max_connections: config.max_connections, context, handle })
    }

    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Serves until `stop` is there, and then until every connection has ended its writes and is closed, or the grace is over.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { plain, tls, max_connections, context, .. } = self;
        let (stopping, stopped) = watch::channel(false);
        let mut connections = JoinSet::new();
        tokio::pin!(stop);
        loop {
            let (stream, acceptor) = tokio::select! {
                () = &mut stop => break,
                Some(ended) = connections.join_next(), if !connections.is_empty() => {
                    report(ended);
                    continue;
                }
                stream = accept(plain.as_ref()) => (stream, None),
                stream = accept(tls.as_ref().map(|(listener, _)| listener)) => {
                    (stream, tls.as_ref().map(|(_, acceptor)| acceptor.clone()))
                }
            };
            if connections.len() >= max_connections {
                tracing::warn!(max_connections, "a connection was closed at once: there are too many");
                continue;
            }
            connections.spawn(serve(Arc::clone(&context), stream, acceptor, stopped.clone()));
        }
        drop((plain, tls));
        // Nobody listens to it when there is no connection.
        let _ = stopping.send(true);
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, BuildError> {
    TcpListener::bind(address).await.map_err(|source| match source.kind() {
        std::io::ErrorKind::AddrInUse => BuildError::PortTaken(address),
        _ => BuildError::Listen { address, source },
    })
}

/// The next connection; never, without a listener.
async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Counts a connection for as long as it lives, however it ends.
struct Counted(Arc<Context>);

impl Counted {
    fn new(context: Arc<Context>) -> Self {
        context.counters.connections.fetch_add(1, Relaxed);
        Self(context)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.counters.connections.fetch_sub(1, Relaxed);
    }
}

async fn serve(context: Arc<Context>, stream: TcpStream, tls: Option<TlsAcceptor>, stop: watch::Receiver<bool>) {
    let _counted = Counted::new(Arc::clone(&context));
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a socket keeps small packets back");
    }
    // Boxed: the future of a connection is large, and a task's place is reserved for the largest of what it may become.
    match tls {
        None => Box::pin(socket::run(stream, Peer::new(context), stop)).await,
        Some(acceptor) => match tokio::time::timeout(TLS_HANDSHAKE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => Box::pin(socket::run(stream, Peer::new(context), stop)).await,
            Ok(Err(error)) => tracing::debug!(%error, "a client and we do not agree on TLS"),
            Err(_) => tracing::debug!("a client did not end its TLS handshake in time"),
        },
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "the task of a connection has panicked");
    }
}
