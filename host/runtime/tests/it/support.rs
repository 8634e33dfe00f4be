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
    Anywhere, Destinations, Handler, HandlerConfig, Limits, NoState, PoolMode, RunInput, RunOutput, Runtime, RuntimeConfig,
    StateReader, Unavailable,
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

/// Everything logged by this process since the first call, as text. Tests run in processes of their own under nextest.
pub(crate) fn log() -> &'static Log {
    static LOG: LazyLock<Log> = LazyLock::new(|| {
        let log = Log::default();
        let writer = log.clone();
        tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .with_max_level(tracing::Level::DEBUG)
            .init();
        log
    });
    &LOG
}

#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn lines_with(&self, what: &str) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0.lock()).into_owned();
        text.lines().filter(|line| line.contains(what)).map(str::to_owned).collect()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Resident memory of this process, in bytes.
pub(crate) fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4_096
}

/// A module in text with the contract's type information, as the toolchains make them. `imports` are further world items.
pub(crate) fn module(wat: &str, wit_imports: &str) -> Vec<u8> {
    let mut module = wat::parse_str(wat).unwrap();
    let mut resolve = wit_component_resolve();
    let world = format!(
        "package sprag:written;\nworld written {{ include sprag:handler/handler@0.1.0; {wit_imports} }}"
    );
    let package = resolve.push_str("written.wit", &world).unwrap();
    let world = resolve.select_world(&[package], None).unwrap();
    wit_component::embed_component_metadata(&mut module, &resolve, world, wit_component::StringEncoding::UTF8).unwrap();
    module
}

fn wit_component_resolve() -> wit_parser::Resolve {
    let mut resolve = wit_parser::Resolve::default();
    resolve.push_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../../wit")).unwrap();
    resolve
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
