//! What the benches are made of: a transport, a store, and how a commit is carried out.

use std::sync::Arc;

use sprag_broker::{Engine, EntitySpec, Options};
use sprag_gateway::{
    access::Access,
    amqp::{Config as GatewayConfig, Gateway},
};
use sprag_servicebus::{ConnectionString, EntitySettings, ServiceBus, topology::MOST_DELIVERIES};
use sprag_store::{
    Store, clock,
    inbox::{InboxBeside, InboxOf},
    memory::MemoryStore,
};
use sprag_transport::{
    Committer, Transport,
    memory::{EntityConfig, MemoryTransport},
    ordered::Ordered,
};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::world::{Bench, OUT, SOURCE, Setup};

/// The parts of the memory bench, with their switches.
#[derive(Clone)]
pub(crate) struct Memory {
    pub(crate) transport: Arc<MemoryTransport>,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) ordered: Ordered,
}

/// A gateway that runs.
pub(crate) struct Served {
    pub(crate) stop: oneshot::Sender<()>,
    pub(crate) task: JoinHandle<()>,
}

pub(crate) struct Parts {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) committer: Arc<dyn Committer>,
    pub(crate) memory: Option<Memory>,
    pub(crate) engine: Option<Engine>,
    pub(crate) gateway: Option<Served>,
}

pub(crate) async fn parts(bench: Bench, setup: &Setup, dir: &std::path::Path) -> Parts {
    match bench {
        Bench::Memory => {
            let source = EntityConfig { requires_session: setup.sessions, ..EntityConfig::plain(SOURCE) };
            let source = source.lock_duration(setup.lock).max_delivery_count(setup.deliveries);
            let transport = Arc::new(MemoryTransport::new([source, EntityConfig::plain(OUT)]));
            let own = Arc::new(MemoryStore::new());
            let store: Arc<dyn Store> = match &setup.inbox_in {
                None => Arc::clone(&own) as Arc<dyn Store>,
                Some(other) => {
                    let inbox = InboxOf::new(Arc::clone(other) as Arc<dyn Store>);
                    Arc::new(InboxBeside::new(Arc::clone(&own) as Arc<dyn Store>, Arc::new(inbox)))
                }
            };
            let ordered = Ordered::new(Arc::clone(&store), Arc::clone(&transport) as Arc<dyn Transport>);
            let memory = Memory { transport: Arc::clone(&transport), store: own, ordered: ordered.clone() };
            Parts { transport, store, committer: Arc::new(ordered), memory: Some(memory), engine: None, gateway: None }
        }
        Bench::Embedded => {
            let engine = engine(setup, dir, vec![]).await;
            let shared = Arc::new(engine.clone());
            Parts {
                transport: Arc::clone(&shared) as Arc<dyn Transport>,
                store: Arc::clone(&shared) as Arc<dyn Store>,
                committer: shared,
                memory: None,
                engine: Some(engine),
                gateway: None,
            }
        }
        Bench::ServiceBus => {
            let parked = EntitySpec {
                requires_session: true,
                lock_duration: setup.lock,
                max_delivery_count: MOST_DELIVERIES,
                ..EntitySpec::queue(format!("{SOURCE}.deferred").as_str())
            };
            let engine = engine(setup, dir, setup.sessions.then_some(parked).into_iter().collect()).await;
            let listen = Some(([127, 0, 0, 1], 0).into());
            let gateway = GatewayConfig { listen, access: Access::emulator(), ..GatewayConfig::default() };
            let gateway = Gateway::build(gateway, engine.clone()).await.expect("there is a free port");
            let address = gateway.handle().address().expect("it listens");
            let (stop, stopped) = oneshot::channel::<()>();
            let task = tokio::spawn(async move {
                gateway
                    .run(async {
                        let _either_way = stopped.await;
                    })
                    .await;
            });
            let connection = format!(
                "Endpoint=sb://{address};SharedAccessKeyName={};SharedAccessKey={};UseDevelopmentEmulator=true",
                Access::EMULATOR_NAME,
                Access::EMULATOR_KEY
            );
            let source = EntitySettings {
                name: SOURCE.into(),
                requires_session: setup.sessions,
                lock_duration: setup.lock,
                max_delivery_count: setup.deliveries,
            };
            let config = sprag_servicebus::Config {
                entities: vec![source, EntitySettings::plain(OUT)],
                ..sprag_servicebus::Config::new(ConnectionString::parse(&connection).expect("it is one"))
            };
            let transport: Arc<dyn Transport> = Arc::new(ServiceBus::new(config).expect("it needs nothing"));
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            Parts {
                committer: Arc::new(Ordered::new(Arc::clone(&store), Arc::clone(&transport))),
                transport,
                store,
                memory: None,
                engine: Some(engine),
                gateway: Some(Served { stop, task }),
            }
        }
    }
}

async fn engine(setup: &Setup, dir: &std::path::Path, more: Vec<EntitySpec>) -> Engine {
    let mut options = Options::new(dir.join("engine"));
    options.clock = Arc::new(clock::now);
    let engine = Engine::open(options).expect("an empty folder opens");
    let source = EntitySpec {
        requires_session: setup.sessions,
        lock_duration: setup.lock,
        max_delivery_count: setup.deliveries,
        ..EntitySpec::queue(SOURCE)
    };
    let entities = [vec![source, EntitySpec::queue(OUT)], more].concat();
    engine.declare(entities).await.expect("the entities are taken");
    engine
}
