//! Helpers of these tests.

#![allow(dead_code, reason = "each test program uses some of them")]
#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the answer")]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};

use sprag_broker::{Engine, EntitySpec, Options};
use sprag_core::{
    ids::SequenceNumber,
    message::{Body, Message},
    time::Timestamp,
};
use sprag_transport::{Part, Peeked, Transport as _};
use tempfile::TempDir;

pub(crate) const EVENTUALLY: Duration = Duration::from_secs(20);
pub(crate) const T0: i64 = 1_796_000_000_000;

pub(crate) async fn engine(specs: Vec<EntitySpec>) -> (Engine, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options::new(dir.path())).unwrap();
    engine.declare(specs).await.unwrap();
    (engine, dir)
}

/// An engine whose wall clock the test sets.
pub(crate) async fn timed(specs: Vec<EntitySpec>) -> (Engine, TempDir, Arc<AtomicI64>) {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Arc::new(AtomicI64::new(T0)));
    let engine = open_at(dir.path(), &clock);
    engine.declare(specs).await.unwrap();
    (engine, dir, clock)
}

pub(crate) fn open_at(dir: &Path, clock: &Arc<AtomicI64>) -> Engine {
    let shown = Arc::clone(clock);
    let clock = Arc::new(move || Timestamp(shown.load(Relaxed)));
    Engine::open(Options { clock, ..Options::new(dir) }).unwrap()
}

pub(crate) fn advance(clock: &AtomicI64, seconds: i64) {
    clock.fetch_add(seconds * 1_000, Relaxed);
}

pub(crate) fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp(since.as_millis() as i64)
}

/// Closed and opened again, on the system's clock.
pub(crate) async fn reopen(engine: Engine, dir: &TempDir) -> Engine {
    engine.close().await;
    drop(engine);
    Engine::open(Options::new(dir.path())).unwrap()
}

pub(crate) fn message(id: &str) -> Message {
    Message { message_id: Some(id.into()), body: Body::Data(b"{}"[..].into()), ..Message::default() }
}

pub(crate) fn in_session(session: &str, id: &str) -> Message {
    Message { session_id: Some(session.into()), ..message(id) }
}

/// Waits for what the engine does by itself.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..2_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: not within ten seconds");
}

pub(crate) async fn until_dead(engine: &Engine, entity: &str, count: usize) -> Vec<Peeked> {
    let name = entity.into();
    let dead = async || engine.peek(&name, Part::DeadLetters, None, SequenceNumber(0), 10_000).await.unwrap();
    until("dead letters", async || dead().await.len() >= count).await;
    dead().await
}

/// One poll. None: it is not ready.
pub(crate) async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| match std::pin::Pin::new(&mut *future).poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
