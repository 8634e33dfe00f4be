//! The connection to a namespace: made, found broken, made again.
//!
//! There is one for everything. Each link has an AMQP session of its own, as the .NET SDK does it, so that no delivery of one holds the window of
//! another (A28) and a link that goes wrong takes nothing with it.
//!
//! *Invariant:* a [`Connection`] is never repaired. Who finds it dead asks [`Client::connected`] for the next one, which is made once, after a
//! pause that grows with every failure.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fe2o3_amqp::{
    Session,
    connection::{ConnectionHandle, OpenError},
    sasl_profile::SaslProfile,
    session::SessionHandle,
};
use parking_lot::Mutex;
use sprag_core::time::Timestamp;
use tokio::{net::TcpStream, time::Instant};
use tracing::{debug, info, warn};

use crate::{
    clock,
    config::Config,
    ear::{Heard, Listening},
    fault::Fault,
    requests::Requests,
    sender::Sender,
    tls::Tls,
    token::TokenSource,
};

/// Makes connections, one after another.
pub(crate) struct Client {
    pub(crate) config: Config,
    tokens: Arc<dyn TokenSource>,
    tls: Option<Tls>,
    state: tokio::sync::Mutex<Dialling>,
    /// Before every name: another host may have the same process id, and a link of the same name would be taken for ours.
    process: String,
    names: AtomicU64,
}

struct Dialling {
    current: Option<Arc<Connection>>,
    failures: u32,
    not_before: Instant,
}

pub(crate) struct Connection {
    client: Arc<Client>,
    handle: tokio::sync::Mutex<ConnectionHandle<()>>,
    dead: AtomicBool,
    heard: Arc<Heard>,
    cbs: tokio::sync::Mutex<Option<Arc<Requests>>>,
    requests: tokio::sync::Mutex<HashMap<String, Arc<Requests>>>,
    senders: tokio::sync::Mutex<HashMap<String, Arc<Sender>>>,
    /// Addresses for which a token was shown: when it ends, and when it is to be shown anew.
    shown: Mutex<HashMap<String, Shown>>,
}

#[derive(Clone, Copy)]
struct Shown {
    expires_at: Timestamp,
    renew_at: Instant,
}

/// A token is shown anew when a fifth of its life is left, at the latest so long before its end.
const REFRESH_BEFORE: Duration = Duration::from_secs(300);
/// After a refresh that failed.
const REFRESH_AGAIN: Duration = Duration::from_secs(5);

impl Client {
    pub(crate) fn new(config: Config) -> Result<Self, crate::BuildError> {
        let tls = match config.connection.plain {
            true => None,
            false => Some(Tls::new(&config)?),
        };
        let tokens = config.tokens.clone().unwrap_or_else(|| Arc::new(config.connection.credential.clone()));
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(crate::BuildError::Random)?;
        let process = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let state = Dialling { current: None, failures: 0, not_before: Instant::now() };
        Ok(Self { config, tokens, tls, state: tokio::sync::Mutex::new(state), process, names: AtomicU64::new(1) })
    }

    /// A name that no other link has.
    pub(crate) fn unique_name(&self, what: &str) -> String {
        format!("sprag-{}-{}-{what}", self.process, self.names.fetch_add(1, Relaxed))
    }

    /// The connection, a new one if need be. Waits out the pause after a failure.
    pub(crate) async fn connected(self: &Arc<Self>) -> Result<Arc<Connection>, Fault> {
        let client = Arc::clone(self);
        to_its_end(async move { client.connect().await }).await
    }

    async fn connect(self: &Arc<Self>) -> Result<Arc<Connection>, Fault> {
        let mut state = self.state.lock().await;
        if let Some(current) = &state.current {
            if !current.is_dead() {
                return Ok(Arc::clone(current));
            }
            state.current = None;
        }
        tokio::time::sleep_until(state.not_before).await;
        match self.dial().await {
            Ok(connection) => {
                state.failures = 0;
                // One that breaks at once is not made again at once.
                state.not_before = Instant::now() + self.config.backoff.0;
                state.current = Some(Arc::clone(&connection));
                Ok(connection)
            }
            Err(fault) => {
                let pause = self.pause(state.failures);
                state.failures = state.failures.saturating_add(1);
                state.not_before = Instant::now() + pause;
                warn!(host = %self.config.connection.host, %fault, ?pause, "no connection to Service Bus");
                Err(fault)
            }
        }
    }

    fn pause(&self, failures: u32) -> Duration {
        let (first, most) = self.config.backoff;
        first.saturating_mul(2_u32.saturating_pow(failures.min(16))).min(most)
    }

    async fn dial(self: &Arc<Self>) -> Result<Arc<Connection>, Fault> {
        let limit = self.config.operation_timeout;
        let heard = Arc::new(Heard::default());
        let opened = tokio::time::timeout(limit, self.open(&heard)).await.map_err(|_| Fault::Timeout(limit))??;
        let connection = Arc::new(Connection {
            client: Arc::clone(self),
            handle: tokio::sync::Mutex::new(opened),
            dead: AtomicBool::new(false),
            heard,
            cbs: tokio::sync::Mutex::default(),
            requests: tokio::sync::Mutex::default(),
            senders: tokio::sync::Mutex::default(),
            shown: Mutex::default(),
        });
        tokio::spawn(refresh(Arc::downgrade(&connection)));
        info!(host = %self.config.connection.host, "connected to Service Bus");
        Ok(connection)
    }

    async fn open(&self, heard: &Arc<Heard>) -> Result<ConnectionHandle<()>, Fault> {
        let (host, port) = (&self.config.connection.host, self.config.connection.port);
        let gone = |what: &str, error: &dyn std::fmt::Display| Fault::Gone(format!("{what} {host}:{port}: {error}"));
        let stream = TcpStream::connect((host.as_str(), port)).await.map_err(|error| gone("no way to", &error))?;
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "a socket keeps small packets back");
        }
        let container = self.unique_name("host");
        let idle = u32::try_from(self.config.idle_timeout.as_millis()).unwrap_or(u32::MAX);
        let builder = fe2o3_amqp::Connection::builder()
            .container_id(container)
            .hostname(host.as_str())
            .scheme("amqp")
            .sasl_profile(SaslProfile::Anonymous)
            .max_frame_size(64 * 1024_u32)
            .idle_time_out(idle);
        let opened = match &self.tls {
            None => builder.open_with_stream(Listening::new(stream, Arc::clone(heard))).await,
            Some(tls) => {
                let stream = tls.connect(host, stream).await.map_err(|error| gone("no TLS with", &error))?;
                builder.open_with_stream(Listening::new(stream, Arc::clone(heard))).await
            }
        };
        opened.map_err(|error| match error {
            OpenError::SaslError { .. } => Fault::Unauthorized(error.to_string()),
            other => gone("no AMQP with", &other),
        })
    }
}

impl Connection {
    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    pub(crate) fn is_dead(&self) -> bool {
        // Locked while a session begins: then it lives.
        self.dead.load(Relaxed) || self.handle.try_lock().is_ok_and(|handle| handle.is_closed())
    }

    /// It did not answer in time: nobody waits for it any more.
    fn give_up(&self) {
        self.dead.store(true, Relaxed);
    }

    pub(crate) fn limit(&self) -> Duration {
        self.client.config.operation_timeout
    }

    /// Why a link could not be attached.
    pub(crate) async fn why(&self, link: &str, library: Fault) -> Fault {
        self.heard.why(link, library).await
    }

    /// A new AMQP session.
    pub(crate) async fn begin(&self) -> Result<SessionHandle<()>, Fault> {
        let mut handle = self.handle.lock().await;
        match tokio::time::timeout(self.limit(), Session::builder().begin(&mut handle)).await {
            Ok(begun) => Ok(begun?),
            Err(_) => {
                self.give_up();
                Err(Fault::Timeout(self.limit()))
            }
        }
    }

    /// Attaches what needs a session of its own. One on which an attach was refused is not used again: the library and the broker both say
    /// goodbye to such a link, and what is attached next would be taken for it.
    pub(crate) async fn attach<T>(
        &self,
        work: impl AsyncFnOnce(&mut SessionHandle<()>) -> Result<T, Fault>,
    ) -> Result<(T, SessionHandle<()>), Fault> {
        let mut session = self.begin().await?;
        let limit = self.limit();
        let attached = tokio::time::timeout(limit, work(&mut session)).await.unwrap_or(Err(Fault::Timeout(limit)));
        match attached {
            Ok(attached) => Ok((attached, session)),
            Err(fault) => {
                if let Ok(Err(error)) = tokio::time::timeout(limit, session.end()).await {
                    debug!(%error, "a session of the protocol was not ended in order");
                }
                Err(fault)
            }
        }
    }

    /// Where requests about an entity go.
    pub(crate) async fn management(self: &Arc<Self>, path: &str) -> Result<Arc<Requests>, Fault> {
        let (connection, path) = (Arc::clone(self), path.to_owned());
        to_its_end(async move { connection.open_management(&path).await }).await
    }

    async fn open_management(self: &Arc<Self>, path: &str) -> Result<Arc<Requests>, Fault> {
        let address = format!("{path}/$management");
        let mut all = self.requests.lock().await;
        if let Some(open) = all.get(&address).filter(|open| open.is_open()) {
            return Ok(Arc::clone(open));
        }
        self.authorize(&address).await?;
        let opened = Arc::new(Requests::open(self, &address).await?);
        all.insert(address, Arc::clone(&opened));
        Ok(opened)
    }

    pub(crate) async fn sender(self: &Arc<Self>, path: &str) -> Result<Arc<Sender>, Fault> {
        let (connection, path) = (Arc::clone(self), path.to_owned());
        to_its_end(async move { connection.open_sender(&path).await }).await
    }

    async fn open_sender(self: &Arc<Self>, path: &str) -> Result<Arc<Sender>, Fault> {
        let mut all = self.senders.lock().await;
        if let Some(open) = all.get(path).filter(|open| open.is_open()) {
            return Ok(Arc::clone(open));
        }
        self.authorize(path).await?;
        let opened = Arc::new(Sender::open(self, path).await?);
        all.insert(path.to_owned(), Arc::clone(&opened));
        Ok(opened)
    }

    /// Shows a token for an address, unless one is good that was shown before.
    pub(crate) async fn authorize(self: &Arc<Self>, path: &str) -> Result<(), Fault> {
        let shown = self.shown.lock().get(path).copied();
        match shown {
            Some(shown) if shown.expires_at > clock::now() => Ok(()),
            _ => {
                let (connection, path) = (Arc::clone(self), path.to_owned());
                to_its_end(async move { connection.show(&path).await }).await
            }
        }
    }

    async fn show(self: &Arc<Self>, path: &str) -> Result<(), Fault> {
        let audience = format!("sb://{}/{path}", self.client.config.connection.host);
        let token = self.client.tokens.token(&audience).await?;
        let mut cbs = self.cbs.lock().await;
        let open = match cbs.as_ref().filter(|open| open.is_open()) {
            Some(open) => Arc::clone(open),
            None => {
                let opened = Arc::new(Requests::open(self, "$cbs").await?);
                *cbs = Some(Arc::clone(&opened));
                opened
            }
        };
        drop(cbs);
        open.put_token(&audience, &token).await?;
        let left = token.expires_at.since(clock::now());
        let margin = (left / 5).min(REFRESH_BEFORE);
        let shown = Shown { expires_at: token.expires_at, renew_at: Instant::now() + (left - margin) };
        self.shown.lock().insert(path.to_owned(), shown);
        Ok(())
    }
}

/// Opening goes on when the one who asked does not wait any more: half an attach would be answered to whoever comes next, and what was opened
/// serves the next one.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Fault>> + Send + 'static,
) -> Result<T, Fault> {
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(error) => Err(Fault::Gone(format!("opening did not end: {error}"))),
    }
}

/// Shows every token of a connection anew before it ends (A16), for as long as the connection lives.
async fn refresh(connection: Weak<Connection>) {
    // New addresses come without a word; each has a life that is longer than this by far.
    let mut look = tokio::time::interval(Duration::from_secs(1));
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let Some(connection) = connection.upgrade() else { return };
        if connection.is_dead() {
            return;
        }
        let now = Instant::now();
        let due: Vec<String> = {
            let shown = connection.shown.lock();
            shown.iter().filter(|(_, shown)| shown.renew_at <= now).map(|(path, _)| path.clone()).collect()
        };
        for path in due {
            if let Err(fault) = connection.show(&path).await {
                warn!(path, %fault, "a token could not be shown anew; it is tried again");
                if let Some(shown) = connection.shown.lock().get_mut(&path) {
                    shown.renew_at = Instant::now() + REFRESH_AGAIN;
                }
            }
        }
    }
}
