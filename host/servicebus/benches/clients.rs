//! The two clients for Service Bus beside each other, against the embedded broker over TCP on the same machine (docs/adr/006).
//!
//! `cargo bench -p sprag-servicebus --features azservicebus --bench clients [-- RUNS]`. Every figure is the median of all runs, with the
//! lowest and the highest beside it. A call that takes longer than [`HANGS`] counts as one that hung.
//!
//! `own` and `azservicebus` are the two transports behind the seam; `raw, many threads` is the crate as its examples use it, on a
//! runtime with several threads, and only sends.

use std::{
    error::Error,
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use azservicebus::{
    ServiceBusClient, ServiceBusClientOptions, ServiceBusRetryOptions, authorization::AzureNamedKeyCredential,
};
use sprag_broker::{Engine, EntitySpec, Options};
use sprag_core::{ids::EntityName, message::Message};
use sprag_gateway::{
    access::Access,
    amqp::{Config as GatewayConfig, Gateway},
};
use sprag_servicebus::{Config, ConnectionString, EntitySettings, ServiceBus, azservicebus::AzServiceBus};
use sprag_transport::{Settlement, Transport};

type Failure = Box<dyn Error + Send + Sync>;

const RUNS: usize = 5;
const HANGS: Duration = Duration::from_secs(3);
const SENDS: usize = 1_000;
const RECEIVES: usize = 1_000;
const SESSIONS: usize = 64;
const IN_EACH: usize = 5;
const WORKERS: usize = 8;
/// Sends of the hunt for hangs, with both cores busy; the second size is the one at which the race is lost most.
const HUNT: usize = 300;
const SIZES: [usize; 2] = [256, 60_000];
const SOON: Duration = Duration::from_secs(10);

fn main() -> Result<(), Failure> {
    let runs = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(RUNS);
    let folder = tempfile::tempdir()?;
    let broker = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let address = broker.block_on(serve(folder.path()))?;
    let cores = thread::available_parallelism()?;
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    println!("{cores} cores, {}, profile {profile}, {runs} runs, broker in the same process", machine());

    let name = Access::EMULATOR_NAME;
    let key = Access::EMULATOR_KEY;
    let text =
        format!("Endpoint=sb://{address};SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true");
    let config = Config {
        entities: vec![EntitySettings::plain("plain"), EntitySettings::sessions("sessions")],
        operation_timeout: HANGS,
        ..Config::new(ConnectionString::parse(&text)?)
    };
    let clients = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let own: Arc<dyn Transport> = Arc::new(ServiceBus::new(config.clone())?);
    let other: Arc<dyn Transport> = Arc::new(AzServiceBus::new(config)?);
    for (title, transport) in [("own", own), ("azservicebus", other)] {
        println!("\n{title}");
        report("send one by one, 256 B", runs, SENDS, || clients.block_on(send(&transport, 1)))?;
        clients.block_on(empty(&transport))?;
        report("send, 8 callers, 256 B", runs, SENDS, || clients.block_on(send(&transport, WORKERS)))?;
        clients.block_on(empty(&transport))?;
        report("receive 32 and complete each", runs, RECEIVES, || {
            clients.block_on(fill(&transport))?;
            clients.block_on(receive(&transport))
        })?;
        report("8 workers, 64 sessions of 5", runs, SESSIONS * IN_EACH, || {
            clients.block_on(fill_sessions(&transport))?;
            clients.block_on(sessions(&transport))
        })?;
        for size in SIZES {
            let hung = busy(|| clients.block_on(hunt(&transport, size)))?;
            println!("  {:<34} {hung} of {HUNT} sends hung, both cores busy", format!("{size} B"));
            clients.block_on(empty(&transport))?;
        }
    }
    println!("\nraw, many threads");
    for size in SIZES {
        let hung = busy(|| clients.block_on(hunt_raw(&address.to_string(), size)))?;
        println!("  {:<34} {hung} of {HUNT} sends hung, both cores busy", format!("{size} B"));
    }
    Ok(())
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| "an unknown processor".to_owned(), |(_, name)| name.trim().to_owned())
}

async fn serve(folder: &std::path::Path) -> Result<std::net::SocketAddr, Failure> {
    let engine = Engine::open(Options::new(folder))?;
    let sessions = EntitySpec { requires_session: true, ..EntitySpec::queue("sessions") };
    engine.declare(vec![EntitySpec::queue("plain"), sessions]).await?;
    let listen = Some(([127, 0, 0, 1], 0).into());
    let config = GatewayConfig { listen, access: Access::emulator(), ..GatewayConfig::default() };
    let gateway = Gateway::build(config, engine).await?;
    let address = gateway.handle().address().ok_or("it does not listen")?;
    tokio::spawn(gateway.run(std::future::pending()));
    Ok(address)
}

/// Each run answers how long its measured part took.
fn report(
    title: &str,
    runs: usize,
    messages: usize,
    mut run: impl FnMut() -> Result<Duration, Failure>,
) -> Result<(), Failure> {
    let mut rates = Vec::with_capacity(runs);
    for _ in 0..runs {
        rates.push(messages as f64 / run()?.as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    let [lowest, median, highest] = [rates[0], rates[runs / 2], rates[runs - 1]];
    println!("  {title:<34} {median:>8.0}/s   ({lowest:.0} to {highest:.0})");
    Ok(())
}

fn message(session: Option<String>, size: usize) -> Message {
    Message {
        session_id: session.map(|id| id.as_str().into()),
        body: sprag_core::message::Body::Data(vec![7; size].into()),
        ..Message::default()
    }
}

fn plain() -> EntityName {
    "plain".into()
}

async fn send(transport: &Arc<dyn Transport>, callers: usize) -> Result<Duration, Failure> {
    transport.send(&plain(), vec![message(None, 256)]).await?;
    let began = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let transport = Arc::clone(transport);
            tokio::spawn(async move {
                for _ in 0..SENDS / callers {
                    transport.send(&plain(), vec![message(None, 256)]).await?;
                }
                Ok::<_, sprag_transport::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(began.elapsed())
}

async fn fill(transport: &Arc<dyn Transport>) -> Result<(), Failure> {
    for _ in 0..RECEIVES / 100 {
        transport.send(&plain(), (0..100).map(|_| message(None, 256)).collect()).await?;
    }
    Ok(())
}

async fn receive(transport: &Arc<dyn Transport>) -> Result<Duration, Failure> {
    let began = Instant::now();
    let mut left = RECEIVES;
    while left > 0 {
        let got = transport.receive(&plain(), 32.min(left), SOON).await?;
        left -= got.len();
        for delivery in got {
            transport.settle(&plain(), delivery.lock, Settlement::Complete).await?;
        }
    }
    Ok(began.elapsed())
}

async fn empty(transport: &Arc<dyn Transport>) -> Result<(), Failure> {
    loop {
        let got = transport.receive(&plain(), 100, Duration::from_millis(300)).await?;
        if got.is_empty() {
            return Ok(());
        }
        for delivery in got {
            transport.settle(&plain(), delivery.lock, Settlement::Complete).await?;
        }
    }
}

async fn fill_sessions(transport: &Arc<dyn Transport>) -> Result<(), Failure> {
    for session in 0..SESSIONS {
        let messages = (0..IN_EACH).map(|_| message(Some(format!("s{session}")), 256)).collect();
        transport.send(&"sessions".into(), messages).await?;
    }
    Ok(())
}

async fn sessions(transport: &Arc<dyn Transport>) -> Result<Duration, Failure> {
    let began = Instant::now();
    let tasks: Vec<_> = (0..WORKERS)
        .map(|_| {
            let transport = Arc::clone(transport);
            tokio::spawn(async move {
                for _ in 0..SESSIONS / WORKERS {
                    let held = transport.accept_next(&"sessions".into(), SOON).await?.ok_or("no session")?;
                    for _ in 0..IN_EACH {
                        let delivery = held.receive(SOON).await?.ok_or("no message")?;
                        held.settle(delivery.lock, Settlement::Complete).await?;
                    }
                    held.release(Duration::ZERO).await?;
                }
                Ok::<_, Failure>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(began.elapsed())
}

/// With two threads that do nothing but compute.
fn busy<T>(work: impl FnOnce() -> T) -> T {
    let stop = Arc::new(AtomicBool::new(false));
    let burning: Vec<_> = (0..2)
        .map(|_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                let mut n = 0_u64;
                while !stop.load(Relaxed) {
                    n = black_box(n.wrapping_mul(31).wrapping_add(1));
                }
            })
        })
        .collect();
    let result = work();
    stop.store(true, Relaxed);
    for thread in burning {
        // A thread that computes does not panic.
        let _either_way = thread.join();
    }
    result
}

async fn hunt(transport: &Arc<dyn Transport>, size: usize) -> Result<usize, Failure> {
    let mut hung = 0;
    for _ in 0..HUNT {
        // The transport gives up by itself after as long; this one is for what does not.
        let sent = tokio::time::timeout(HANGS * 3, transport.send(&plain(), vec![message(None, size)])).await;
        hung += usize::from(!matches!(sent, Ok(Ok(_))));
    }
    Ok(hung)
}

async fn hunt_raw(address: &str, size: usize) -> Result<usize, Failure> {
    let retry_options = ServiceBusRetryOptions { max_retries: 0, try_timeout: HANGS, ..Default::default() };
    let options = ServiceBusClientOptions { retry_options, ..Default::default() };
    let key = AzureNamedKeyCredential::new(Access::EMULATOR_NAME, Access::EMULATOR_KEY);
    let mut client = ServiceBusClient::unsecured().new_from_named_key_credential(address, key, options).await?;
    // On a worker of the runtime: the future that `block_on` drives has a thread of its own.
    let hunting = tokio::spawn(async move {
        let mut sender = client.create_sender("plain", Default::default()).await?;
        let mut hung = 0;
        for _ in 0..HUNT {
            hung += usize::from(sender.send_message(vec![7_u8; size]).await.is_err());
        }
        Ok::<_, Failure>(hung)
    });
    hunting.await?
}
