//! Connections to a namespace: made, found broken, made again.
//!
//! Each link has an AMQP session of its own, as the .NET SDK does it, so that no delivery of one holds the window of another (A28) and a link that
//! goes wrong takes nothing with it. A connection has room for so many of them ([`LINKS`]); who needs more gets one more connection. What sends
//! and what asks goes over the first one that lives.
//!
//! *Invariant:* a [`Connection`] is never repaired. Who finds it dead asks [`Client`] for the next one, which is made once, after a pause that
//! grows with every failure.

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
use tokio::{
    net::TcpStream,
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
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
    /// In the order in which they were made.
    open: Vec<Arc<Connection>>,
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
    /// Room for links that receive.
    links: Arc<Semaphore>,
    /// Addresses for which a token was shown: when it ends, and when it is to be shown anew.
    shown: Mutex<HashMap<String, Shown>>,
    /// A token was shown for the first time, or anew.
    was_shown: Notify,
}

/// A link's room on a connection. Dropped when its AMQP session has ended, it is another one's.
pub(crate) type Room = OwnedSemaphorePermit;

/// Links for receiving on one connection. The embedded broker takes 256 AMQP sessions on a connection and the service takes more; the rest is for
/// what sends and asks, up to three on an entity.
const LINKS: usize = 128;
/// Transfers that may come on an AMQP session before its window is told anew, which the library does at half of it. A link that receives has one under
/// way at a time, one for answers a hundred.
const WINDOW: u32 = 1_024;
/// AMQP sessions that we would have on a connection. What counts is the lower number, ours or the broker's.
const CHANNELS: u16 = 4_999;

#[derive(Clone, Copy)]
struct Shown {
    expires_at: Timestamp,
    renew_at: Instant,
}

/// A token is shown anew when a fifth of its life is left, at the latest so long before its end. There is no jitter: whoever makes tokens may count
/// on being asked then (A16).
const REFRESH_BEFORE: Duration = Duration::from_secs(300);
/// Between two tries of a refresh that fails: half of what is left, within these.
const REFRESH_AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How often a connection without anything due is looked at.
const LOOK: Duration = Duration::from_secs(1);

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
        let state = Dialling { open: Vec::new(), failures: 0, not_before: Instant::now() };
        Ok(Self { config, tokens, tls, state: tokio::sync::Mutex::new(state), process, names: AtomicU64::new(1) })
    }

    /// A name that no other link has.
    pub(crate) fn unique_name(&self, what: &str) -> String {
        format!("sprag-{}-{}-{what}", self.process, self.names.fetch_add(1, Relaxed))
    }

    /// A connection, a new one if need be. Waits out the pause after a failure.
    pub(crate) async fn connected(self: &Arc<Self>) -> Result<Arc<Connection>, Fault> {
        let client = Arc::clone(self);
        to_its_end(async move { client.connect(|connection| Some(Arc::clone(connection))).await }).await
    }

    /// A connection with room for one more link, a new one if need be.
    pub(crate) async fn with_room(self: &Arc<Self>) -> Result<(Arc<Connection>, Room), Fault> {
        let client = Arc::clone(self);
        to_its_end(async move { client.connect(Connection::room).await }).await
    }

    /// Connections that are not known to be broken.
    pub(crate) async fn connections(&self) -> usize {
        self.state.lock().await.open.iter().filter(|open| !open.is_dead()).count()
    }

    async fn connect<T>(self: &Arc<Self>, take: impl Fn(&Arc<Connection>) -> Option<T>) -> Result<T, Fault> {
        let mut state = self.state.lock().await;
        state.open.retain(|open| !open.is_dead());
        if let Some(taken) = state.open.iter().find_map(&take) {
            return Ok(taken);
        }
        tokio::time::sleep_until(state.not_before).await;
        match self.dial().await {
            Ok(connection) => {
                state.failures = 0;
                // One that breaks at once is not made again at once.
                state.not_before = Instant::now() + self.config.backoff.0;
                state.open.push(Arc::clone(&connection));
                take(&connection).ok_or_else(|| Fault::Gone("a new connection has no room".to_owned()))
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
            links: Arc::new(Semaphore::new(LINKS)),
            shown: Mutex::default(),
            was_shown: Notify::new(),
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
            .channel_max(CHANNELS)
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
    fn room(connection: &Arc<Self>) -> Option<(Arc<Self>, Room)> {
        let room = Arc::clone(&connection.links).try_acquire_owned().ok()?;
        Some((Arc::clone(connection), room))
    }

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

    pub(crate) fn heard(&self) -> &Arc<Heard> {
        &self.heard
    }

    /// A new AMQP session.
    pub(crate) async fn begin(&self) -> Result<SessionHandle<()>, Fault> {
        let mut handle = self.handle.lock().await;
        match tokio::time::timeout(self.limit(), Session::builder().incoming_window(WINDOW).begin(&mut handle)).await {
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
        self.was_shown.notify_one();
        Ok(())
    }

    /// Addresses whose tokens are to be shown anew, or else when the next one is.
    fn due(&self) -> Result<Vec<String>, Option<Instant>> {
        let shown = self.shown.lock();
        let now = Instant::now();
        let due: Vec<_> =
            shown.iter().filter(|(_, shown)| shown.renew_at <= now).map(|(path, _)| path.clone()).collect();
        match due.is_empty() {
            true => Err(shown.values().map(|shown| shown.renew_at).min()),
            false => Ok(due),
        }
    }

    /// A token could not be shown anew.
    fn show_again_later(&self, path: &str) {
        if let Some(shown) = self.shown.lock().get_mut(path) {
            let left = shown.expires_at.since(clock::now());
            shown.renew_at = Instant::now() + (left / 2).clamp(REFRESH_AGAIN.0, REFRESH_AGAIN.1);
        }
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
    loop {
        let Some(connection) = connection.upgrade() else { return };
        if connection.is_dead() {
            return;
        }
        let due = match connection.due() {
            Ok(due) => due,
            Err(next) => {
                // Looked at again now and then, so that a connection that nobody needs is let go.
                let until = next.unwrap_or_else(|| Instant::now() + LOOK).min(Instant::now() + LOOK);
                let was_shown = connection.was_shown.notified();
                tokio::select! {
                    () = was_shown => {}
                    () = tokio::time::sleep_until(until) => {}
                }
                continue;
            }
        };
        for path in due {
            if let Err(fault) = connection.show(&path).await {
                warn!(path, %fault, "a token could not be shown anew; it is tried again");
                connection.show_again_later(&path);
            }
        }
    }
}
