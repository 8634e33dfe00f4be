//! A whole host in this process: engine, runtime, worker, as `sprag run` puts them together.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use sprag_broker::{Engine, EntitySpec, Options};
use sprag_core::{
    effect::{HistoryKind, HistoryLine, OutcomeGuard, OutcomeWrite, StoreWrite},
    ids::{EndpointName, EntityName, EventId, MessageId, SessionId},
    message::{Body, Message, Value},
    outcome::Outcome,
    seal::Seal,
    time::Timestamp,
};
use sprag_runtime::{Anywhere, HandlerConfig, Registry, Runtime, RuntimeConfig, registry::EndpointHandlers};
use sprag_store::Store;
use sprag_transport::Transport;
use sprag_worker::{
    EndpointConfig, InboxConfig, Stop, Worker, WorkerConfig,
    handlers::Registered,
    signal::{Counters, SignalKind, Signals},
};
use tokio::{sync::watch, task::JoinHandle};

pub(crate) const SESSIONS: usize = 512;
pub(crate) const BODY: usize = 1_024;
const GUEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../guests/out/test-noop.wasm");
const SENDERS: usize = 64;
/// Messages in one send. `sprag send --lines` uses more.
const BATCH: usize = 16;

struct Host {
    engine: Engine,
    counters: Arc<Counters>,
    signals: Signals,
    stop: watch::Sender<bool>,
    running: JoinHandle<()>,
    /// What the handler says it takes.
    event_type: String,
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

fn endpoint() -> EndpointName {
    "bench".into()
}

fn source() -> EntityName {
    "orders".into()
}

impl Host {
    async fn start(dir: &Path, inbox_rows: usize) -> Self {
        let engine = Engine::open(Options::new(dir.join("data"))).expect("an empty folder opens");
        engine.declare(vec![EntitySpec::queue("orders").with_sessions()]).await.expect("a good declaration");
        if inbox_rows > 0 {
            fill_inbox(&engine, inbox_rows).await;
        }
        let runtime = Runtime::new(RuntimeConfig::default()).expect("a runtime");
        let bytes = std::fs::read(GUEST).unwrap_or_else(|error| panic!("{GUEST}: {error} (./x setup builds it)"));
        let handler = tokio::task::block_in_place(|| runtime.load(&bytes, HandlerConfig::named("noop"), |_| {}))
            .expect("the guest loads");
        let event_type = handler.info().event_types.first().map_or_else(|| "*".into(), ToString::to_string);
        let registry = Registry::new(vec![EndpointHandlers { endpoint: endpoint(), handlers: None }]);
        registry.insert(handler).expect("the only handler");
        let shared = Arc::new(engine.clone());
        let (stop, stopped) = Stop::new();
        let (counters, signals) = (Arc::new(Counters::default()), Signals::default());
        let worker = Worker::build(
            WorkerConfig {
                endpoints: vec![EndpointConfig {
                    name: endpoint(),
                    source: source(),
                    expected: None,
                    is_shared: false,
                    store_enqueues: true,
                    sql: None,
                    resolver: None,
                    transport: Arc::clone(&shared) as _,
                    store: Arc::clone(&shared) as _,
                    committer: shared,
                    concurrency: SESSIONS,
                    inbox: Some(InboxConfig::default()),
                    retry: None,
                    host_ended_limit: 3,
                    destinations: Arc::new(Anywhere),
                    max_body: 1 << 20,
                    back_off: Duration::from_millis(500),
                }],
                handlers: Arc::new(Registered(registry)),
                flight: dir.join("data/flight"),
                seal: Seal::new(b"bench"),
                signals: signals.clone(),
                counters: Arc::clone(&counters),
                clock: now,
            },
            stopped,
        )
        .await
        .expect("the worker is built");
        let running = tokio::spawn(async move {
            // The runtime's ticker must outlive the runs.
            let _runtime = runtime;
            let left = worker.run(Duration::from_secs(30)).await;
            assert!(left.is_empty(), "left running: {left:?}");
        });
        Self { engine, counters, signals, stop, running, event_type }
    }

    async fn end(self) {
        self.stop.send(true).expect("the worker listens");
        self.running.await.expect("no panic");
        self.engine.close().await;
    }

    fn message(&self, session: &str, id: &str) -> Message {
        let mut message = Message {
            message_id: Some(MessageId::from(id)),
            session_id: Some(SessionId::from(session)),
            content_type: Some("application/json".into()),
            body: Body::Data(vec![b'x'; BODY].into()),
            ..Message::default()
        };
        let event_type = if self.event_type == "*" { "OrderPlaced" } else { &self.event_type };
        message.set_property("EventTypeId", Value::string(event_type));
        message
    }
}

/// Messages per second from the first send to the last completion, senders and worker side by side: 64 senders, each of which awaits its send of 16 messages
/// before the next.
pub(crate) async fn end_to_end(dir: &Path, messages: usize, inbox_rows: usize) -> f64 {
    let host = Arc::new(Host::start(dir, inbox_rows).await);
    let next = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut senders = vec![];
    for _ in 0..SENDERS {
        let (host, next) = (Arc::clone(&host), Arc::clone(&next));
        senders.push(tokio::spawn(async move {
            loop {
                let from = next.fetch_add(BATCH, Relaxed);
                if from >= messages {
                    break;
                }
                let batch = (from..(from + BATCH).min(messages))
                    .map(|n| host.message(&format!("session-{}", n % SESSIONS), &format!("message-{n:029}")))
                    .collect();
                host.engine.send(&source(), batch).await.expect("accepted");
            }
        }));
    }
    for sender in senders {
        sender.await.expect("no panic");
    }
    while host.counters.completed.load(Relaxed) < messages as u64 {
        tokio::task::yield_now().await;
        assert!(began.elapsed() < Duration::from_secs(600), "only {} completed", host.counters.completed.load(Relaxed));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let rate = messages as f64 / began.elapsed().as_secs_f64();
    let runs = host.counters.runs.load(Relaxed);
    assert_eq!(runs, messages as u64, "each message runs once");
    Arc::into_inner(host).expect("the senders are gone").end().await;
    rate
}

/// From before the send until the outcome is committed, one after another.
pub(crate) async fn one_at_a_time(dir: &Path, messages: usize) -> Vec<Duration> {
    let host = Host::start(dir, 0).await;
    let mut signals = host.signals.subscribe();
    let mut took = Vec::with_capacity(messages);
    for n in 0..messages {
        let id = format!("single-{n}");
        let message = host.message(&format!("session-{}", n % SESSIONS), &id);
        let began = Instant::now();
        host.engine.send(&source(), vec![message]).await.expect("accepted");
        loop {
            let signal = signals.recv().await.expect("the worker lives");
            if signal.event_id.as_str() == id {
                assert!(matches!(signal.kind, SignalKind::Outcome { outcome: Outcome::Completed, .. }), "{signal:?}");
                break;
            }
        }
        took.push(began.elapsed());
    }
    host.end().await;
    took
}

/// Prints the resident MiB of an engine that knows 100,000 sessions by their history and holds 1,000,000 records.
pub(crate) async fn memory(dir: &Path) {
    let host = Host::start(dir, 1_000_000).await;
    let mut tasks = vec![];
    for part in 0..8 {
        let engine = host.engine.clone();
        tasks.push(tokio::spawn(async move {
            for n in (part..100_000).step_by(8) {
                engine.write(&endpoint(), completed(n)).await.expect("written");
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    println!("{}", sprag_tests::machine::resident(None) >> 20);
    host.end().await;
}

fn completed(n: usize) -> StoreWrite {
    let event_id = EventId::from(format!("event-{n}"));
    StoreWrite {
        outcome: Some(OutcomeWrite {
            event_id: event_id.clone(),
            message_id: Some(MessageId::from(event_id.as_str())),
            source_id: None,
            session: Some(SessionId::from(format!("idle-{n}"))),
            event_type: "OrderPlaced".into(),
            outcome: Outcome::Completed,
            guard: OutcomeGuard::Newer,
            reason: None,
            error: None,
            attempts: 1,
            handler: Some("noop".into()),
            digest: None,
            enqueued_at: now(),
            at: now(),
            keep: None,
        }),
        history: Some(HistoryLine {
            event_id,
            kind: HistoryKind::Run,
            at: now(),
            message_id: None,
            outcome: Some(Outcome::Completed),
            attempt: 1,
            started_at: Some(now()),
            took: Some(Duration::from_micros(20)),
            handler: Some("noop".into()),
            digest: None,
            reason: None,
            error: None,
            by: None,
        }),
        ..StoreWrite::default()
    }
}

async fn fill_inbox(engine: &Engine, rows: usize) {
    let mut tasks = vec![];
    for part in 0..8 {
        let engine = engine.clone();
        tasks.push(tokio::spawn(async move {
            for from in (part * 500..rows).step_by(8 * 500) {
                let record =
                    (from..(from + 500).min(rows)).map(|n| MessageId::from(format!("earlier-{n:029}"))).collect();
                engine.write(&endpoint(), StoreWrite { record, ..StoreWrite::default() }).await.expect("written");
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
}
