//! An embedded broker of a test's own, with its AMQP face on a port that is free.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use sprag_broker::{Engine, EntitySpec, Options};
use sprag_gateway::{
    access::Access,
    amqp::{Config as GatewayConfig, Gateway, Handle},
};
use sprag_servicebus::{Config, ConnectionString, EntitySettings, ServiceBus};
use sprag_transport::conformance;
use tokio::{sync::oneshot, task::JoinHandle};

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
        let mut options = Options::new(folder);
        options.clock = Arc::new(sprag_store::clock::now);
        let engine = Engine::open(options).expect("the folder opens");
        engine.declare(specs).await.expect("the entities are taken");
        let config = GatewayConfig { listen: Some(listen), access: Access::emulator(), ..GatewayConfig::default() };
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
