//! An embedded broker of a test's own, with its AMQP face on a port that is free.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

pub mod way;

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use sprag_broker::{Engine, EntitySpec, Options};
use sprag_core::message::{Body, Message};
use sprag_gateway::amqp::{Gateway, Handle};
pub use sprag_gateway::{access::Access, amqp::Config as GatewayConfig};
use sprag_servicebus::{Config, ConnectionString, EntitySettings, ServiceBus};
use sprag_transport::{Error, conformance};
use tokio::{sync::oneshot, task::JoinHandle, time::Instant};

/// A broker that is served. Dropped, it stops some time later; [`Broker::stop`] waits for that.
pub struct Broker {
    pub engine: Engine,
    pub handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
}

/// The entities of the suite, each with sessions with its parked side.
pub fn specs(entities: &[conformance::EntitySpec]) -> Vec<EntitySpec> {
    let mut specs = Vec::new();
    for it in entities {
        let spec = EntitySpec {
            requires_session: it.requires_session,
            // A lock shorter than a second is refused; rules ask for what it is.
            lock_duration: it.lock_duration.max(Duration::from_secs(1)),
            max_delivery_count: it.max_delivery_count,
            ..EntitySpec::queue(it.name)
        };
        if it.requires_session {
            let name = format!("{}.deferred", it.name);
            let most = sprag_servicebus::topology::MOST_DELIVERIES;
            specs.push(EntitySpec {
                requires_session: true,
                lock_duration: spec.lock_duration,
                max_delivery_count: most,
                dead_letter_on_expiry: true,
                ..EntitySpec::queue(name.as_str())
            });
        }
        specs.push(spec);
    }
    specs
}

pub fn settings(specs: &[EntitySpec]) -> Vec<EntitySettings> {
    let settings = |spec: &EntitySpec| EntitySettings {
        name: spec.name.clone(),
        requires_session: spec.requires_session,
        lock_duration: spec.lock_duration,
        max_delivery_count: spec.max_delivery_count,
    };
    specs.iter().map(settings).collect()
}

impl Broker {
    pub async fn start(folder: &Path, specs: Vec<EntitySpec>, listen: SocketAddr) -> Self {
        let access = Access::emulator();
        Self::with(folder, specs, GatewayConfig { listen: Some(listen), access, ..GatewayConfig::default() }).await
    }

    pub async fn with(folder: &Path, specs: Vec<EntitySpec>, config: GatewayConfig) -> Self {
        let mut options = Options::new(folder);
        options.clock = Arc::new(sprag_store::clock::now);
        let engine = Engine::open(options).expect("the folder opens");
        engine.declare(specs).await.expect("the entities are taken");
        let gateway = Gateway::build(config, engine.clone()).await.expect("the port is free");
        let handle = gateway.handle();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(async move {
            gateway
                .run(async {
                    let _either_way = stopped.await;
                })
                .await;
        });
        Self { engine, handle, stop: Some(stop), served: Some(served) }
    }

    pub fn address(&self) -> SocketAddr {
        self.handle.address().expect("it listens")
    }

    pub async fn stop(mut self) {
        drop(self.stop.take());
        if let Some(served) = self.served.take() {
            served.await.expect("the gateway does not panic");
        }
        self.engine.close().await;
    }
}

pub fn connection_string(address: SocketAddr) -> ConnectionString {
    let text = format!(
        "Endpoint=sb://{address};SharedAccessKeyName={};SharedAccessKey={};UseDevelopmentEmulator=true",
        Access::EMULATOR_NAME,
        Access::EMULATOR_KEY
    );
    ConnectionString::parse(&text).expect("it is one")
}

pub fn config(address: SocketAddr, specs: &[EntitySpec]) -> Config {
    Config { entities: settings(specs), ..Config::new(connection_string(address)) }
}

pub fn transport(address: SocketAddr, specs: &[EntitySpec]) -> ServiceBus {
    ServiceBus::new(config(address, specs)).expect("it needs nothing")
}

pub fn any_port() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

pub const EVENTUALLY: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_millis(30);

/// Tries until it works: how a loop of the host behaves.
pub async fn eventually<T, F: Future<Output = Result<T, Error>>>(mut work: impl FnMut() -> F) -> T {
    let until = Instant::now() + EVENTUALLY;
    loop {
        match work().await {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < until, "{error:?}"),
        }
        tokio::time::sleep(SOON).await;
    }
}

/// Waits for something that a counter shows.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + EVENTUALLY;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        tokio::time::sleep(SOON).await;
    }
}

pub fn message(session: Option<&str>, id: &str) -> Message {
    Message {
        message_id: Some(id.into()),
        session_id: session.map(Into::into),
        body: Body::Data(Bytes::from_static(b"x")),
        ..Message::default()
    }
}

pub fn is_lost<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::LockLost)), "{result:?}");
}

/// A queue with sessions, with locks of so many seconds.
pub fn with_sessions(name: &str, seconds: u64) -> EntitySpec {
    EntitySpec { requires_session: true, lock_duration: Duration::from_secs(seconds), ..EntitySpec::queue(name) }
}
