//! What all parts of the engine hold together: the index, the queue to the writer, connections for reading.

use std::{
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use parking_lot::{Condvar, Mutex, RwLock};
use rusqlite::{Connection, OpenFlags};
use sprag_core::time::Timestamp;

pub(crate) use crate::cache::{Cache, CachedMessage};
use crate::{
    entity::Topology,
    index::{Index, Pin, Post},
    known::Known,
    options::Options,
    posts, sql,
    stats::{Counters, Stats},
    writer::{Queue, Queued, Stop, Tx},
};

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) file: PathBuf,
    pub(crate) topology: RwLock<Arc<Topology>>,
    index: Mutex<Index>,
    pub(crate) cache: Mutex<Cache>,
    pub(crate) queue: Queue,
    pub(crate) known: Known,
    readers: Mutex<Vec<Connection>>,
    pub(crate) endpoints: RwLock<std::collections::HashMap<sprag_core::ids::EndpointName, i64>>,
    pub(crate) declaring: tokio::sync::Mutex<()>,
    closed: OnceLock<String>,
    used_bytes: AtomicU64,
    page_size: u64,
    timer: Timer,
    pub(crate) stats: Counters,
    pub(crate) transactions: sql::Transactions,
    /// Of the writer's connection.
    pub(crate) guard: sql::Guard,
}

/// When the timer's thread wakes.
#[derive(Default)]
struct Timer {
    next: Mutex<TimerState>,
    changed: Condvar,
}

#[derive(Default)]
struct TimerState {
    wake_at: Option<Instant>,
    ends: bool,
}

impl Shared {
    pub(crate) fn new(options: Options, file: PathBuf, index: Index, topology: Topology, page_size: u64) -> Self {
        Self {
            cache: Mutex::new(Cache::new(options.message_cache)),
            queue: Queue::new(options.queue.max(1)),
            known: Known::default(),
            options,
            file,
            topology: RwLock::new(Arc::new(topology)),
            index: Mutex::new(index),
            readers: Mutex::default(),
            endpoints: RwLock::default(),
            declaring: tokio::sync::Mutex::default(),
            closed: OnceLock::new(),
            used_bytes: AtomicU64::new(0),
            page_size,
            timer: Timer::default(),
            stats: Counters::default(),
            transactions: sql::Transactions::default(),
            guard: sql::Guard::default(),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.options.clock)()
    }

    pub(crate) fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology.read())
    }

    /// Why nothing is written any more.
    pub(crate) fn closed(&self) -> Option<&str> {
        self.closed.get().map(String::as_str)
    }

    /// The first reason stays.
    pub(crate) fn close(&self, reason: String) {
        let _ = self.closed.set(reason);
    }

    pub(crate) fn refuse_when_closed(&self) -> Result<(), Stop> {
        match self.closed() {
            Some(reason) => Err(Stop::Closed(format!("nothing is written until the engine is opened again: {reason}"))),
            None => Ok(()),
        }
    }

    pub(crate) fn set_used_pages(&self, pages: u64) {
        self.used_bytes.store(pages * self.page_size, Relaxed);
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed)
    }

    pub(crate) fn stats(&self) -> Stats {
        let size = |path: &std::path::Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        let mut log = self.file.clone().into_os_string();
        log.push("-wal");
        Stats {
            file_bytes: size(&self.file),
            log_bytes: size(log.as_ref()),
            used_bytes: self.options.max_size.map(|_| self.used_bytes()),
            queued: self.queue.len(),
            closed: self.closed().map(str::to_owned),
            ..self.stats.look()
        }
    }

    /// Works on the index; what it then wants from the writer is handed over. True in the second place: something goes to the dead letters
    /// or away, and the writer has not done it yet.
    pub(crate) fn with_index_posting<T>(&self, work: impl FnOnce(&mut Index) -> T) -> (T, bool) {
        let (result, posts, wake_at) = {
            let mut index = self.index.lock();
            let result = work(&mut index);
            (result, std::mem::take(&mut index.posts), index.next_tick(Instant::now(), self.now().0))
        };
        self.wake_by(wake_at);
        let buries = posts.iter().any(|post| matches!(post, Post::Bury { .. }));
        posts::forward(self, posts);
        (result, buries)
    }

    pub(crate) fn with_index<T>(&self, work: impl FnOnce(&mut Index) -> T) -> T {
        self.with_index_posting(work).0
    }

    fn wake_by(&self, at: Option<Instant>) {
        let Some(at) = at else { return };
        let mut timer = self.timer.next.lock();
        if timer.wake_at.is_none_or(|planned| at < planned) {
            timer.wake_at = Some(at);
            self.timer.changed.notify_one();
        }
    }

    /// The timer's thread: one for all locks, pauses, schedules and times to live.
    pub(crate) fn run_timer(&self) {
        loop {
            {
                let mut timer = self.timer.next.lock();
                while !timer.ends && timer.wake_at.is_none_or(|at| at > Instant::now()) {
                    match timer.wake_at {
                        Some(at) => drop(self.timer.changed.wait_until(&mut timer, at)),
                        None => self.timer.changed.wait(&mut timer),
                    }
                }
                if timer.ends {
                    return;
                }
                timer.wake_at = None;
            }
            // `with_index` plans the next wake.
            self.with_index(|index| index.tick(Instant::now(), self.now().0));
        }
    }

    pub(crate) fn end_timer(&self) {
        self.timer.next.lock().ends = true;
        self.timer.changed.notify_all();
    }

    /// Runs a command. It waits for room in the queue first.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        bytes: usize,
        apply: impl FnMut(&mut Tx<'_>) -> Result<T, Stop> + Send + 'static,
    ) -> Result<T, Stop> {
        self.refuse_when_closed()?;
        let (queued, answer) = Queued::new(bytes, apply);
        let pushed = self.queue.push(queued).await;
        self.hear(pushed, answer).await
    }

    /// Runs a command that uses a lock, which the pin keeps from lapsing meanwhile.
    pub(crate) async fn write_pinned<T: Send + 'static>(
        &self,
        pin: Pin,
        bytes: usize,
        apply: impl FnMut(&mut Tx<'_>) -> Result<T, Stop> + Send + 'static,
    ) -> Result<T, Stop> {
        let (queued, answer) = Queued::new(bytes, apply);
        let pushed = self.queue.push_now(queued.with_pin(pin));
        self.hear(pushed, answer).await
    }

    /// As [`Shared::write_pinned`], but under way when it returns, so that several go into one group.
    pub(crate) fn begin_pinned<T: Send + 'static>(
        &self,
        pin: Pin,
        bytes: usize,
        apply: impl FnMut(&mut Tx<'_>) -> Result<T, Stop> + Send + 'static,
    ) -> impl Future<Output = Result<T, Stop>> {
        let (queued, answer) = Queued::new(bytes, apply);
        let pushed = self.queue.push_now(queued.with_pin(pin));
        self.hear(pushed, answer)
    }

    /// Runs a command of a caller that has taken something out of the index for it: it goes in at once.
    pub(crate) async fn write_detached<T: Send + 'static>(
        &self,
        bytes: usize,
        undo: Vec<crate::index::Change>,
        apply: impl FnMut(&mut Tx<'_>) -> Result<T, Stop> + Send + 'static,
    ) -> Result<T, Stop> {
        let (queued, answer) = Queued::new(bytes, apply);
        let pushed = self.queue.push_now(queued.with_undo(undo));
        self.hear(pushed, answer).await
    }

    async fn hear<T>(&self, pushed: bool, answer: tokio::sync::oneshot::Receiver<Result<T, Stop>>) -> Result<T, Stop> {
        let ended = || Stop::Closed(self.closed().unwrap_or("the engine has been closed").to_owned());
        if !pushed {
            return Err(ended());
        }
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Until the writer has done what was queued before.
    pub(crate) async fn flush(&self) -> Result<(), Stop> {
        let (queued, answer) = Queued::new(0, |_| Ok(()));
        let pushed = self.queue.push_now(queued);
        self.hear(pushed, answer).await
    }

    /// The same, for a thread of the engine's own.
    pub(crate) fn flush_blocking(&self) -> Result<(), Stop> {
        let ended = || Stop::Closed("the engine has been closed".to_owned());
        let (queued, answer) = Queued::new(0, |_| Ok(()));
        if !self.queue.push_now(queued) {
            return Err(ended());
        }
        answer.blocking_recv().unwrap_or_else(|_| Err(ended()))
    }

    /// Reads with a connection of the pool. Short look-ups run where they are called; what can be long belongs to [`Shared::read_long`].
    pub(crate) fn read<T>(&self, work: impl FnOnce(&Connection) -> Result<T, ReadFailure>) -> Result<T, ReadFailure> {
        let pooled = self.readers.lock().pop();
        let connection = match pooled {
            Some(connection) => connection,
            None => self.open_reader()?,
        };
        let result = work(&connection);
        let mut readers = self.readers.lock();
        if readers.len() < self.options.readers.max(1) {
            readers.push(connection);
        }
        result
    }

    pub(crate) async fn read_long<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Connection) -> Result<T, ReadFailure> + Send + 'static,
    ) -> Result<T, ReadFailure> {
        let shared = Arc::clone(self);
        tokio::task::spawn_blocking(move || shared.read(work))
            .await
            .unwrap_or_else(|error| Err(ReadFailure::Broken(format!("a read has panicked: {error}"))))
    }

    pub(crate) fn open_reader(&self) -> Result<Connection, ReadFailure> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.file, flags)?;
        connection.set_prepared_statement_cache_capacity(64);
        connection.busy_timeout(self.options.busy_timeout)?;
        connection.pragma_update(None, "cache_size", -2_048)?;
        connection.pragma_update(None, "mmap_size", 0)?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(connection)
    }

    pub(crate) fn drop_readers(&self) {
        self.readers.lock().clear();
    }
}

/// Why a read gave no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ReadFailure {
    #[error("{0}")]
    Broken(String),
    #[error("{0}")]
    Invalid(String),
}

impl From<rusqlite::Error> for ReadFailure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

impl From<crate::codec::Error> for ReadFailure {
    fn from(error: crate::codec::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

impl From<ReadFailure> for sprag_store::Error {
    fn from(failure: ReadFailure) -> Self {
        match failure {
            ReadFailure::Broken(text) => Self::Unavailable(text),
            ReadFailure::Invalid(text) => Self::Invalid(text),
        }
    }
}

impl From<ReadFailure> for sprag_transport::Error {
    fn from(failure: ReadFailure) -> Self {
        match failure {
            ReadFailure::Broken(text) => Self::Unavailable(text),
            ReadFailure::Invalid(text) => Self::Refused(text),
        }
    }
}
