//! What the tests share: guests, inputs, a store made of a map, and a log that can be read.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use sprag_core::{
    ids::{EndpointName, EntityName},
    message::{Body, Message},
    run::{End, Version},
    time::Timestamp,
};
use sprag_runtime::{
    Anywhere, Destinations, Handler, HandlerConfig, Limits, NoState, PoolMode, RunInput, RunOutput, Runtime,
    RuntimeConfig, StateReader, Unavailable,
};

/// A guest's file.
pub(crate) fn guest(name: &str) -> Vec<u8> {
    let path = format!("{}/../../guests/out/test-{name}.wasm", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}: run guests/test/build first"))
}

/// A runtime with a small pool: tests run beside one another in many processes.
pub(crate) fn runtime() -> Runtime {
    Runtime::new(RuntimeConfig { max_instances: 20, max_kept: 4, ..RuntimeConfig::default() }).unwrap()
}

pub(crate) fn config(name: &str) -> HandlerConfig {
    HandlerConfig {
        grant: vec!["state".into()],
        config: Some(BTreeMap::from([("currency".into(), "EUR".into()), ("limits".into(), "{\"max\":3}".into())])),
        ..HandlerConfig::named(name)
    }
}

pub(crate) fn load(runtime: &Runtime, name: &str, config: HandlerConfig) -> Arc<Handler> {
    runtime.load(&guest(name), config, |_| {}).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub(crate) fn probe() -> Arc<Handler> {
    load(&runtime(), "probe", config("probe"))
}

pub(crate) fn probe_with(limits: Limits) -> Arc<Handler> {
    load(&runtime(), "probe", HandlerConfig { limits, ..config("probe") })
}

pub(crate) fn wasi() -> Arc<Handler> {
    load(&runtime(), "wasi", HandlerConfig::named("wasi"))
}

/// A message whose body tells the guest what to do.
pub(crate) fn input(body: &str) -> RunInput {
    RunInput {
        endpoint: EndpointName::from("billing"),
        message: Arc::new(Message {
            message_id: Some("m-1".into()),
            session_id: Some("s-1".into()),
            body: Body::Data(Bytes::copy_from_slice(body.as_bytes())),
            ..Message::default()
        }),
        message_id: Some("m-1".into()),
        event_id: "e-1".into(),
        event_type: "probe".into(),
        session: Some("s-1".into()),
        enqueued_at: Timestamp(1_796_000_461_007),
        attempt: 3,
        source: "m-0".into(),
        destinations: Arc::new(Anywhere),
        state: Arc::new(NoState),
        sql: None,
        max_body: 1 << 20,
        trace: None,
    }
}

pub(crate) async fn run(handler: &Handler, body: &str) -> RunOutput {
    handler.run(input(body)).await
}

/// The text a guest said by discarding the message.
pub(crate) async fn said(handler: &Handler, input: RunInput) -> String {
    match handler.run(input).await.end {
        End::Discard { reason } => reason,
        other => panic!("expected a discard, got {other:?}"),
    }
}

/// The kind and text of a failure.
#[track_caller]
pub(crate) fn failure(end: End) -> (String, String) {
    match end {
        End::Failed { failure, .. } => (failure.kind, failure.text),
        other => panic!("expected a failure, got {other:?}"),
    }
}

/// Sends to `out` and `later` only.
pub(crate) struct OnlyOut;

impl Destinations for OnlyOut {
    fn check(&self, entity: &EntityName) -> Result<(), String> {
        if entity.as_str() == "out" { Ok(()) } else { Err(format!("there is no queue or topic `{entity}`")) }
    }
}

/// Key-value pairs in a map; `down` makes every call fail.
#[derive(Default)]
pub(crate) struct Map {
    pub(crate) pairs: Mutex<BTreeMap<String, (Bytes, Version)>>,
    pub(crate) down: bool,
}

impl Map {
    pub(crate) fn of(pairs: &[(&str, &str)]) -> Arc<Self> {
        let pairs = pairs.iter().enumerate().map(|(at, (key, value))| {
            ((*key).to_owned(), (Bytes::copy_from_slice(value.as_bytes()), Version(at as i64 + 1)))
        });
        Arc::new(Self { pairs: Mutex::new(pairs.collect()), down: false })
    }
}

#[async_trait]
impl StateReader for Map {
    async fn get(&self, _: &EndpointName, key: &str) -> Result<Option<(Bytes, Version)>, Unavailable> {
        if self.down {
            return Err(Unavailable("the store is away".into()));
        }
        Ok(self.pairs.lock().get(key).cloned())
    }

    async fn scan(
        &self,
        _: &EndpointName,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<(String, Bytes, Version)>, Unavailable> {
        if self.down {
            return Err(Unavailable("the store is away".into()));
        }
        let pairs = self.pairs.lock();
        let found = pairs
            .iter()
            .filter(|(key, _)| key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after))
            .take(limit as usize)
            .map(|(key, (value, version))| (key.clone(), value.clone(), *version));
        Ok(found.collect())
    }
}

/// Everything logged by this process since the first call, a line each: level, fields, message. Tests run in processes of their
/// own under nextest.
pub(crate) fn log() -> &'static Log {
    static LOG: LazyLock<Log> = LazyLock::new(|| {
        let log = Log::default();
        tracing::subscriber::set_global_default(Subscriber(log.clone())).expect("the only subscriber");
        log
    });
    &LOG
}

#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn lines_with(&self, what: &str) -> Vec<String> {
        self.0.lock().iter().filter(|line| line.contains(what)).cloned().collect()
    }
}

struct Subscriber(Log);

impl tracing::Subscriber for Subscriber {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("sprag")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String);
        impl tracing::field::Visit for Line {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                use std::fmt::Write as _;
                write!(self.0, " {field}={value:?}").expect("a String takes everything");
            }
        }
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.0.lock().push(line.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Resident memory of this process, in bytes.
pub(crate) fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4_096
}

/// The guest as a component.
pub(crate) fn component(name: &str) -> Vec<u8> {
    wit_component::ComponentEncoder::default().module(&guest(name)).unwrap().encode().unwrap()
}

/// The same bytes with every `from` replaced by `to`, of the same length.
pub(crate) fn patched(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let (mut bytes, mut found) = (bytes.to_vec(), 0);
    for at in 0..=bytes.len() - from.len() {
        if bytes[at..].starts_with(from.as_bytes()) {
            bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
            found += 1;
        }
    }
    assert!(found > 0, "{from} is not in it");
    bytes
}

pub(crate) fn pool_off() -> RuntimeConfig {
    RuntimeConfig { pool: PoolMode::Off, ..RuntimeConfig::default() }
}

/// The same component under another digest: a section that nobody reads says so.
pub(crate) fn version(component: &[u8], version: u8) -> Vec<u8> {
    let mut bytes = component.to_vec();
    bytes.extend_from_slice(&[0, 3, 1, b'v', version]);
    bytes
}
