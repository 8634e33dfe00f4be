//! A namespace that is not ours alone, as a place for the suites: a rule gets queues of its own there, and takes them away again.
//!
//! Start reading at [`Place::bench`]. All names begin with `sprag-test-SECONDS-RANDOM-`, the time and a number of the rule's own, and nothing with
//! another name is ever removed. The product's client removes nothing, on purpose, so that is done here, in HTTP of our own.

#![allow(unreachable_pub, reason = "a part of a test")]

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use sprag_core::ids::EntityName;
use sprag_servicebus::{
    Config, ConnectionString, ServiceBus, TokenSource as _,
    administration::{self, Administration},
    topology::{Endpoint, Source, read_settings, wanted},
};
use sprag_store::memory::MemoryStore;
use sprag_transport::{
    conformance::{Bench, EntitySpec},
    ordered::Ordered,
};
use tokio_rustls::rustls::crypto::ring;
use ureq::{
    Agent,
    tls::{Certificate, RootCerts, TlsConfig, TlsProvider},
};

use super::prefixed::Prefixed;

const CONNECTION: &str = "SPRAG_TEST_SERVICEBUS";
const ADMINISTRATION_PORT: &str = "SPRAG_TEST_SERVICEBUS_ADMINISTRATION_PORT";
const PREFIX: &str = "sprag-test-";
/// The shortest lock that Azure takes. Rules ask for how long a lock holds.
const SHORTEST_LOCK: Duration = Duration::from_secs(5);
/// No rule takes as long: what is older belongs to a run that was killed.
const LEFT_OVER: Duration = Duration::from_secs(3_600);
/// How often a request is sent while the namespace is busy: it takes few of these at a time, and all rules make theirs at once.
const TRIES: u32 = 10;
/// Between two of them when the namespace does not say how long, at first and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Where, and with what right: Manage on the whole namespace.
#[derive(Clone)]
pub struct Place {
    connection: ConnectionString,
    administration_port: Option<u16>,
}

/// Queues that are there, or that were asked for. Dropped, they are removed, with what is in them.
struct Made {
    place: Place,
    names: Vec<EntityName>,
}

impl Place {
    pub fn new(connection: ConnectionString, administration_port: Option<u16>) -> Self {
        assert!(connection.entity.is_none(), "the connection string is one entity's: the suites need the namespace's");
        Self { connection, administration_port }
    }

    /// None: the suites run against a broker of their own.
    pub fn of_environment() -> Option<Self> {
        let said = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let connection = ConnectionString::parse(&said(CONNECTION)?)
            .unwrap_or_else(|error| panic!("{CONNECTION} is no connection string: {error}"));
        let port = said(ADMINISTRATION_PORT);
        let port =
            port.map(|text| text.parse().unwrap_or_else(|error| panic!("{ADMINISTRATION_PORT} is no port: {error}")));
        Some(Self::new(connection, port))
    }

    /// With entities that nobody else has, in the way in which an endpoint's are made.
    pub async fn bench(&self, entities: &[EntitySpec]) -> Bench {
        let (prefix, administration) = (prefix(now()), self.administration());
        let mut made = Made { place: self.clone(), names: Vec::new() };
        let mut settings = Vec::new();
        for it in entities {
            let endpoint = Endpoint {
                name: it.name.into(),
                source: Source::Queue(format!("{prefix}{}", it.name).into()),
                requires_session: it.requires_session,
                lock_duration: it.lock_duration.max(SHORTEST_LOCK),
                max_delivery_count: it.max_delivery_count,
            };
            for wanted in wanted(&endpoint) {
                // Before it is asked for: an answer that does not come may be a queue that is there.
                made.names.push(wanted.path.name());
                let created = administration.create(&wanted.path, &wanted.settings, None).await;
                settings.push(read_settings(&created.unwrap_or_else(|error| panic!("{}: {error}", wanted.path))));
            }
        }
        let config = Config { entities: settings, ..Config::new(self.connection.clone()) };
        let inner = ServiceBus::new(config).expect("the machine has certificates");
        let (store, transport) = (Arc::new(MemoryStore::new()), Arc::new(Prefixed::new(inner, &prefix)));
        Bench {
            committer: Arc::new(Ordered::new(store.clone(), transport.clone())),
            transport,
            store,
            now: sprag_store::clock::now,
            far: true,
            keep: Box::new(made),
        }
    }

    /// Removes what runs left that were killed. Answers the names.
    pub async fn sweep(&self) -> Vec<EntityName> {
        let queues = self.administration().queues().await.expect("the queues are listed");
        let before = now().saturating_sub(LEFT_OVER.as_secs());
        let names = queues.iter().map(|queue| queue.path.name());
        let old: Vec<_> = names.filter(|name| made_at(name).is_some_and(|at| at < before)).collect();
        let failed = self.remove(&old).await;
        assert!(failed.is_empty(), "these are left: {failed:?}");
        old
    }

    pub fn administration(&self) -> Administration {
        let config = administration::Config {
            port: self.administration_port,
            tries: NonZeroU32::new(TRIES).expect("not zero"),
            backoff: BACKOFF,
            ..administration::Config::new(self.connection.clone())
        };
        Administration::new(config).expect("the machine has certificates")
    }

    /// Answers which of them may still be there, and why.
    async fn remove(&self, names: &[EntityName]) -> Vec<String> {
        let agent = self.agent();
        let mut failed = Vec::new();
        for name in names {
            assert!(made_at(name).is_some(), "{name} is not ours to remove");
            if let Err(problem) = self.remove_one(&agent, name).await {
                failed.push(format!("{name}: {problem}"));
            }
        }
        failed
    }

    async fn remove_one(&self, agent: &Agent, name: &EntityName) -> Result<(), String> {
        let ConnectionString { host, plain, credential, .. } = &self.connection;
        let (scheme, usual) = if *plain { ("http", 5300) } else { ("https", 443) };
        let port = self.administration_port.unwrap_or(usual);
        // An address of IPv6 stands in brackets.
        let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let target = format!("{scheme}://{authority}/{name}?api-version=2021-05");
        let (mut tries, mut pause) = (0, BACKOFF.0);
        loop {
            let token = credential.token(&format!("sb://{host}/{name}")).await.map_err(|error| error.to_string())?.text;
            let token = match token.starts_with("SharedAccessSignature ") {
                true => token,
                false => format!("SharedAccessSignature {token}"),
            };
            let answer = agent.delete(&target).header("Authorization", token).call();
            let answer = answer.map_err(|error| error.to_string())?;
            tries += 1;
            let after = answer.headers().get("Retry-After").and_then(|text| text.to_str().ok()?.parse().ok());
            match answer.status().as_u16() {
                // It was never made, or an answer before this one did not arrive.
                200..=299 | 404 => return Ok(()),
                // 409: another request on the same entity is under way.
                409 | 429 | 500..=599 if tries < TRIES => {
                    tokio::time::sleep(after.map_or(pause, Duration::from_secs).min(BACKOFF.1)).await;
                    pause = (pause * 2).min(BACKOFF.1);
                }
                status => return Err(format!("the namespace answers {status}")),
            }
        }
    }

    fn agent(&self) -> Agent {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(Duration::from_secs(60)));
        let config = match self.connection.plain {
            true => config.proxy(None),
            false => {
                let found = rustls_native_certs::load_native_certs();
                let roots: Vec<_> = found.certs.iter().map(|it| Certificate::from_der(it).to_owned()).collect();
                let tls = TlsConfig::builder()
                    .provider(TlsProvider::Rustls)
                    .root_certs(RootCerts::new_with_certs(&roots))
                    .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()));
                config.https_only(true).tls_config(tls.build())
            }
        };
        config.build().new_agent()
    }
}

impl Drop for Made {
    /// Also when a rule has failed. On a thread of its own, because what is dropped cannot wait for a future.
    fn drop(&mut self) {
        let (place, names) = (self.place.clone(), std::mem::take(&mut self.names));
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(place.remove(&names))
        };
        let problem = match std::thread::spawn(work).join() {
            Ok(failed) if failed.is_empty() => return,
            Ok(failed) => format!("these are left, for an hour at least: {failed:?}"),
            Err(_) => "what the rule made is left, for an hour at least".to_owned(),
        };
        // A second panic would end the process, and the first one's reason with it.
        if std::thread::panicking() {
            eprintln!("{problem}");
        } else {
            panic!("{problem}");
        }
    }
}

/// Of a rule that begins at this second.
pub fn prefix(seconds: u64) -> String {
    let mut random = [0; 4];
    getrandom::fill(&mut random).expect("the system gives random numbers");
    format!("{PREFIX}{seconds}-{:08x}-", u32::from_be_bytes(random))
}

/// The second in a name of ours. None for every other name.
fn made_at(name: &EntityName) -> Option<u64> {
    let mut parts = name.as_str().strip_prefix(PREFIX)?.splitn(3, '-');
    let (seconds, random, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let is_random = random.len() == 8 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let is_ours = is_random && !rest.is_empty() && rest.bytes().all(is_plain);
    is_ours.then(|| seconds.parse().ok()).flatten()
}

/// Seconds, as names have them.
pub fn now() -> u64 {
    u64::try_from(sprag_store::clock::now().0 / 1_000).expect("it is after 1970")
}
