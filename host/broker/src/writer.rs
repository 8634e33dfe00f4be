//! The one thread that writes, and how commands reach it.
//!
//! It takes whatever waits and commits it together: one `fsync` for many callers. A command is a closure over the open transaction; it
//! refuses before its first write or not at all, so that the others of its group need not care. If SQLite itself fails in a group, the group
//! is rolled back and its commands run one by one, so that only the faulty one fails. The index changes after the commit, then the callers
//! hear of it. Callers only wait: a command that is queued runs to its end whether or not somebody still listens.
//!
//! When the disk is full or an `fsync` fails, nobody knows what is on the disk any more; the group is refused and nothing is written until the
//! engine is opened again and has looked (case A60).

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, ErrorCode};
use sprag_core::time::Timestamp;
use sprag_transport::CommitError;
use tokio::sync::{Semaphore, oneshot};

use crate::{
    counters::Local,
    entity::Topology,
    index::{Change, Pin},
    messages,
    shared::{CachedMessage, Shared},
};

/// Why a command did not happen. Nothing of it was written.
#[derive(Debug, Clone)]
pub(crate) enum Stop {
    Store(sprag_store::Error),
    Transport(sprag_transport::Error),
    Commit(CommitError),
    /// No room.
    Full(String),
    /// SQLite failed.
    Unavailable(String),
    /// Nothing is written until the engine is opened again.
    Closed(String),
    /// Inside a group only: roll back.
    Sql(SqlFailure),
}

#[derive(Debug, Clone)]
pub(crate) struct SqlFailure {
    code: ErrorCode,
    text: String,
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Self {
        let code = error.sqlite_error_code().unwrap_or(ErrorCode::Unknown);
        Self::Sql(SqlFailure { code, text: error.to_string() })
    }
}

impl From<sprag_store::Error> for Stop {
    fn from(error: sprag_store::Error) -> Self {
        Self::Store(error)
    }
}

impl From<sprag_transport::Error> for Stop {
    fn from(error: sprag_transport::Error) -> Self {
        Self::Transport(error)
    }
}

impl From<CommitError> for Stop {
    fn from(error: CommitError) -> Self {
        Self::Commit(error)
    }
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Transport(error) => error.fmt(f),
            Self::Commit(error) => error.fmt(f),
            Self::Full(text) | Self::Unavailable(text) | Self::Closed(text) => f.write_str(text),
            Self::Sql(failure) => f.write_str(&failure.text),
        }
    }
}

impl From<Stop> for sprag_store::Error {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Store(error) => error,
            Stop::Full(text) | Stop::Closed(text) => Self::Closed(text),
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl From<Stop> for sprag_transport::Error {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Transport(error) => error,
            Stop::Full(text) | Stop::Closed(text) => Self::Full(text),
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl From<Stop> for CommitError {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Commit(error) => error,
            Stop::Store(sprag_store::Error::StateConflict) => Self::StateConflict,
            Stop::Store(sprag_store::Error::Refused(text)) => Self::Refused(text),
            Stop::Store(sprag_store::Error::LeaseLost) => Self::LeaseLost,
            Stop::Transport(sprag_transport::Error::LockLost) => Self::LockLost,
            other => Self::Unavailable(other.to_string()),
        }
    }
}

/// A pin that comes to a command after it was queued.
pub(crate) type LatePin = Arc<Mutex<Option<Pin>>>;

impl Stop {
    /// SQLite has ended the transaction of the group on its own.
    pub(crate) fn lost_transaction() -> Self {
        Self::Sql(SqlFailure { code: ErrorCode::OperationAborted, text: "the transaction was rolled back".to_owned() })
    }
}

impl SqlFailure {
    /// Whether what is on the disk is in doubt.
    fn is_fatal(&self) -> bool {
        matches!(
            self.code,
            ErrorCode::DiskFull
                | ErrorCode::SystemIoFailure
                | ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
        )
    }

    fn into_stop(self) -> Stop {
        match self.code {
            ErrorCode::DiskFull => Stop::Full(format!("the disk is full: {}", self.text)),
            _ => Stop::Unavailable(self.text),
        }
    }
}

/// What a command works with.
pub(crate) struct Tx<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) shared: &'a Shared,
    pub(crate) topology: &'a Topology,
    pub(crate) local: &'a mut Local,
    pub(crate) now: Timestamp,
    /// Many commands share this transaction.
    pub(crate) is_busy: bool,
    /// For the index, once this is committed.
    pub(crate) changes: Vec<Change>,
    /// For the cache of fresh messages, once this is committed.
    pub(crate) fresh: Vec<(i64, CachedMessage)>,
    /// Statements of a run stand before what is written now, behind a savepoint.
    pub(crate) in_run: bool,
}

impl Tx<'_> {
    /// Runs a cached statement.
    pub(crate) fn execute(&self, sql: &str, params: impl rusqlite::Params) -> Result<usize, Stop> {
        Ok(self.connection.prepare_cached(sql)?.execute(params)?)
    }

    /// The first row of a cached statement, if there is one.
    pub(crate) fn first<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        read: impl FnOnce(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, Stop> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        Ok(rows.next()?.map(read).transpose()?)
    }
}

trait Command: Send {
    /// May be called a second time, after a rollback.
    fn apply(&mut self, tx: &mut Tx<'_>) -> Result<(), Stop>;
    fn answer(self: Box<Self>, stop: Option<Stop>);
}

struct Call<F, T> {
    apply: F,
    done: Option<T>,
    reply: oneshot::Sender<Result<T, Stop>>,
}

impl<F, T> Command for Call<F, T>
where
    F: FnMut(&mut Tx<'_>) -> Result<T, Stop> + Send,
    T: Send,
{
    fn apply(&mut self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        self.done = Some((self.apply)(tx)?);
        Ok(())
    }

    fn answer(self: Box<Self>, stop: Option<Stop>) {
        let answer = match (stop, self.done) {
            (None, Some(done)) => Ok(done),
            (Some(stop), _) => Err(stop),
            (None, None) => Err(Stop::Unavailable("the command was not run".into())),
        };
        // Nobody has to listen.
        let _ = self.reply.send(answer);
    }
}

/// A command in the queue.
pub(crate) struct Queued {
    command: Box<dyn Command>,
    bytes: usize,
    /// Let go when the command has ended, either way.
    pin: Option<Pin>,
    late_pin: Option<LatePin>,
    /// For the index, if the command fails.
    undo: Vec<Change>,
    holds_permit: bool,
    changes: Vec<Change>,
    fresh: Vec<(i64, CachedMessage)>,
    stop: Option<Stop>,
}

impl Queued {
    pub(crate) fn new<T: Send + 'static>(
        bytes: usize,
        apply: impl FnMut(&mut Tx<'_>) -> Result<T, Stop> + Send + 'static,
    ) -> (Self, oneshot::Receiver<Result<T, Stop>>) {
        let (reply, answer) = oneshot::channel();
        let command = Box::new(Call { apply, done: None, reply });
        let queued = Self {
            command,
            bytes,
            pin: None,
            late_pin: None,
            undo: Vec::new(),
            holds_permit: false,
            changes: Vec::new(),
            fresh: Vec::new(),
            stop: None,
        };
        (queued, answer)
    }

    pub(crate) fn with_pin(self, pin: Pin) -> Self {
        Self { pin: Some(pin), ..self }
    }

    pub(crate) fn with_late_pin(self, pin: LatePin) -> Self {
        Self { late_pin: Some(pin), ..self }
    }

    pub(crate) fn with_undo(self, undo: Vec<Change>) -> Self {
        Self { undo, ..self }
    }
}

/// Commands on their way to the writer. Callers that hold nothing wait for room in it; what settles something that is held, and what the
/// engine asks of itself, is bounded by what can be held and goes in at once.
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    filled: Condvar,
    room: Arc<Semaphore>,
}

#[derive(Default)]
struct Waiting {
    commands: VecDeque<Queued>,
    /// No more commands are taken; what is there is done.
    ends: bool,
}

impl Queue {
    pub(crate) fn new(size: usize) -> Self {
        Self { waiting: Mutex::default(), filled: Condvar::new(), room: Arc::new(Semaphore::new(size)) }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.lock().commands.len()
    }

    /// False: the writer has ended.
    pub(crate) async fn push(&self, mut queued: Queued) -> bool {
        match self.room.acquire().await {
            Ok(permit) => permit.forget(),
            Err(_) => return false,
        }
        queued.holds_permit = true;
        self.push_now(queued)
    }

    /// False: the writer has ended.
    pub(crate) fn push_now(&self, queued: Queued) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.ends {
            return false;
        }
        waiting.commands.push_back(queued);
        // Only the first one finds the writer asleep.
        if waiting.commands.len() == 1 {
            self.filled.notify_one();
        }
        true
    }

    pub(crate) fn end(&self) {
        self.waiting.lock().ends = true;
        self.filled.notify_all();
    }

    /// The next group; none when the engine ends and nothing is left.
    fn take(&self, max_count: usize, max_bytes: usize, group: &mut Vec<Queued>) -> bool {
        let mut waiting = self.waiting.lock();
        while waiting.commands.is_empty() {
            if waiting.ends {
                return false;
            }
            self.filled.wait(&mut waiting);
        }
        let mut bytes = 0;
        while group.len() < max_count
            && let Some(next) = waiting.commands.front()
            && (group.is_empty() || bytes + next.bytes <= max_bytes)
        {
            bytes += next.bytes;
            group.extend(waiting.commands.pop_front());
        }
        true
    }
}

/// A group of more commands than this leaves work that can wait to later ones.
const BUSY_FROM: usize = 16;

/// The writing end: lives in its own thread.
pub(crate) struct Writer {
    connection: Connection,
    shared: Arc<Shared>,
    local: Local,
    /// Pages in the write-ahead log after the last commit.
    log_pages: Arc<AtomicU32>,
    /// Pages in the log when it was last moved into the file.
    checkpointed_at: u32,
}

impl Writer {
    pub(crate) fn new(mut connection: Connection, shared: Arc<Shared>, local: Local) -> rusqlite::Result<Self> {
        let log_pages = Arc::new(AtomicU32::new(0));
        let pages = Arc::clone(&log_pages);
        connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, count: std::ffi::c_int| {
            pages.store(u32::try_from(count).unwrap_or(0), Relaxed);
            Ok(())
        }))?;
        shared.guard.watch(&mut connection)?;
        Ok(Self { connection, shared, local, log_pages, checkpointed_at: 0 })
    }

    /// Until the queue ends; then what was left to later is done.
    pub(crate) fn run(mut self) {
        // If a command panics, this thread ends with it; then nobody may wait for an answer that never comes.
        struct Ending(Arc<Shared>);
        impl Drop for Ending {
            fn drop(&mut self) {
                self.0.close("the writer has ended".into());
                self.0.queue.end();
                self.0.queue.waiting.lock().commands.clear();
                self.0.queue.room.close();
            }
        }
        let _ending = Ending(Arc::clone(&self.shared));
        self.shared.stats.name_writer();
        let (count, bytes) = (self.shared.options.group_count, self.shared.options.group_bytes);
        let mut group = Vec::with_capacity(count);
        while self.shared.queue.take(count.max(1), bytes, &mut group) {
            self.commit(&mut group);
            self.checkpoint();
        }
        if self.local.settled != Some(0) {
            self.commit(&mut Vec::new());
        }
        if let Err(error) = self.move_log("TRUNCATE") {
            tracing::warn!(%error, "the log could not be moved into the file; the next start does it");
        }
    }

    fn commit(&mut self, group: &mut Vec<Queued>) {
        let started = Instant::now();
        match self.attempt(group) {
            Ok(synced) => {
                self.shared.stats.group(group.len(), started.elapsed(), synced);
                self.answer(std::mem::take(group));
            }
            Err(failure) if failure.is_fatal() => self.refuse_all(group, failure),
            Err(failure) if group.len() == 1 => {
                group[0].stop = Some(failure.into_stop());
                self.answer(std::mem::take(group));
            }
            Err(failure) => {
                tracing::warn!(
                    error = failure.text,
                    commands = group.len(),
                    "a group failed; its commands run one by one"
                );
                for queued in group.drain(..) {
                    let mut single = vec![queued];
                    match self.attempt(&mut single) {
                        Ok(_) => {}
                        Err(failure) if failure.is_fatal() => {
                            self.refuse_all(&mut single, failure);
                            continue;
                        }
                        Err(failure) => single[0].stop = Some(failure.into_stop()),
                    }
                    self.answer(single);
                }
            }
        }
    }

    /// Runs the group in one transaction. Answers how long its commit took.
    fn attempt(&mut self, group: &mut [Queued]) -> Result<Duration, SqlFailure> {
        if let Some(reason) = self.shared.closed() {
            group.iter_mut().for_each(|queued| queued.stop = Some(Stop::Closed(reason.to_owned())));
            return Ok(Duration::ZERO);
        }
        let result = self.try_group(group);
        if result.is_err() {
            if !self.connection.is_autocommit()
                && let Err(error) = self.connection.execute_batch("ROLLBACK")
            {
                tracing::error!(%error, "a rollback failed");
            }
            self.local.rolled_back();
        }
        result.map_err(|stop| match stop {
            Stop::Sql(failure) => failure,
            other => SqlFailure { code: ErrorCode::Unknown, text: other.to_string() },
        })
    }

    fn try_group(&mut self, group: &mut [Queued]) -> Result<Duration, Stop> {
        let topology = Arc::clone(&self.shared.topology.read());
        let is_busy = group.len() > BUSY_FROM;
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for queued in group.iter_mut() {
            let mut tx = Tx {
                connection: &self.connection,
                shared: &self.shared,
                topology: &topology,
                local: &mut self.local,
                now: self.shared.now(),
                is_busy,
                changes: Vec::new(),
                fresh: Vec::new(),
                in_run: false,
            };
            queued.stop = match queued.command.apply(&mut tx) {
                Ok(()) => None,
                Err(stop @ Stop::Sql(_)) => return Err(stop),
                Err(refused) => Some(refused),
            };
            if queued.stop.is_none() {
                queued.changes = tx.changes;
                queued.fresh = tx.fresh;
            }
        }
        messages::sweep(&self.connection, &mut self.local, is_busy)?;
        self.local.save(&self.connection)?;
        let syncing = Instant::now();
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(syncing.elapsed())
    }

    fn answer(&mut self, group: Vec<Queued>) {
        let (mut commands, mut released, mut declared) = (Vec::with_capacity(group.len()), 0, None);
        {
            let mut cache = self.shared.cache.lock();
            for (seq, message) in group.iter().filter(|queued| queued.stop.is_none()).flat_map(|queued| &queued.fresh) {
                cache.insert(*seq, message.clone());
            }
        }
        self.shared.with_index(|index| {
            let now = Instant::now();
            for queued in group {
                let changes = if queued.stop.is_none() { queued.changes } else { queued.undo };
                for change in changes {
                    if let Change::Declared { topology } = &change {
                        declared = Some(Arc::clone(topology));
                    }
                    index.apply(change, now);
                }
                let late = queued.late_pin.and_then(|pin| pin.lock().take());
                if let Some(pin) = queued.pin.or(late) {
                    index.unpin(&pin, now);
                }
                released += usize::from(queued.holds_permit);
                commands.push((queued.command, queued.stop));
            }
        });
        // After the index knows the entities, and before anybody hears that they are declared.
        if let Some(topology) = declared {
            *self.shared.topology.write() = topology;
        }
        self.shared.queue.room.add_permits(released);
        commands.into_iter().for_each(|(command, stop)| command.answer(stop));
        self.measure();
    }

    fn refuse_all(&mut self, group: &mut Vec<Queued>, failure: SqlFailure) {
        tracing::error!(error = failure.text, "writing failed; nothing is written until the engine is opened again");
        self.shared.close(failure.text.clone());
        for queued in group.iter_mut() {
            queued.stop = Some(failure.clone().into_stop());
        }
        self.answer(std::mem::take(group));
    }

    /// How much of the file is in use, for `max_size`.
    fn measure(&mut self) {
        if self.shared.options.max_size.is_none() {
            return;
        }
        let read = |sql: &str| -> rusqlite::Result<u64> {
            self.connection
                .prepare_cached(sql)?
                .query_row([], |row| row.get::<_, i64>(0))
                .map(|n| u64::try_from(n).unwrap_or(0))
        };
        if let (Ok(pages), Ok(free)) = (read("PRAGMA page_count"), read("PRAGMA freelist_count")) {
            self.shared.set_used_pages(pages.saturating_sub(free));
        }
    }

    fn move_log(&self, mode: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(&format!("PRAGMA wal_checkpoint({mode})"))?.query_row([], |_| Ok(()))
    }

    /// Moves the log into the file once it has grown, a bounded piece at a time, so that nobody waits for long.
    fn checkpoint(&mut self) {
        let pages = self.log_pages.load(Relaxed);
        let limit = self.shared.options.checkpoint_pages.max(64);
        if pages < self.checkpointed_at {
            self.checkpointed_at = 0;
        }
        self.shared.stats.log_pages(pages);
        if pages < limit || pages - self.checkpointed_at < limit / 4 || self.shared.closed().is_some() {
            return;
        }
        let started = Instant::now();
        // Readers are short; if one has kept the log from starting over for long, wait for it (up to the busy timeout).
        let mode = if pages >= limit.saturating_mul(8) { "RESTART" } else { "PASSIVE" };
        let result = self.move_log(mode);
        self.checkpointed_at = pages;
        self.shared.stats.checkpoint(started.elapsed());
        if let Err(error) = result {
            match Stop::from(error) {
                Stop::Sql(failure) if failure.is_fatal() => {
                    tracing::error!(
                        error = failure.text,
                        "moving the log into the file failed; nothing is written until the engine is opened again"
                    );
                    self.shared.close(failure.text);
                }
                other => tracing::warn!(error = %other, "the log could not be moved into the file; it is tried again"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, EntitySpec, Options};
    use sprag_transport::Transport as _;

    /// A statement that fails takes its own command down and no other of its group; so does a refusal.
    #[tokio::test(flavor = "multi_thread")]
    async fn only_the_faulty_command_of_a_group_fails() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::open(Options::new(dir.path())).unwrap();
        engine.declare(vec![EntitySpec::queue("q")]).await.unwrap();
        // The writer waits inside the first command until the others stand behind it, so that they make one group.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let (first, _) = Queued::new(0, move |_| {
            // Until the other end is dropped; a second run does not wait.
            let _ = wait.lock().recv();
            Ok(())
        });
        assert!(engine.shared.queue.push_now(first));
        let mut answers = Vec::new();
        for n in 0..10 {
            let (queued, answer) = Queued::new(0, move |tx| match n {
                4 => tx.execute("INSERT INTO counter (name, value) VALUES (NULL, NULL)", []).map(|_| n),
                7 => Err(Stop::Full("refused".into())),
                _ => tx.execute("INSERT INTO counter (name, value) VALUES (?1, 1)", [format!("test-{n}")]).map(|_| n),
            });
            assert!(engine.shared.queue.push_now(queued));
            answers.push(answer);
        }
        drop(go);
        for (n, answer) in answers.into_iter().enumerate() {
            let answer = answer.await.unwrap();
            match n {
                4 => assert!(matches!(answer, Err(Stop::Unavailable(_))), "{answer:?}"),
                7 => assert!(matches!(answer, Err(Stop::Full(_))), "{answer:?}"),
                _ => assert_eq!(answer.unwrap(), n),
            }
        }
        let count = engine.shared.read(|connection| {
            Ok(connection
                .query_row("SELECT count(*) FROM counter WHERE name LIKE 'test-%'", [], |row| row.get::<_, i64>(0))?)
        });
        assert_eq!(count.unwrap(), 8);
        assert!(engine.stats().largest_group >= 1 && engine.shared.closed().is_none());
        engine.send(&"q".into(), vec![Default::default()]).await.unwrap();
    }

    /// Messages that end in a busy group leave their rows for a while: nobody sees them, also not an engine that opens a copy of the file as
    /// it is then.
    #[tokio::test(flavor = "multi_thread")]
    async fn rows_of_done_messages_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::open(Options::new(dir.path())).unwrap();
        engine.declare(vec![EntitySpec::queue("q")]).await.unwrap();
        let count = 3 * BUSY_FROM;
        engine.send(&"q".into(), vec![Default::default(); count + 1]).await.unwrap();
        let deliveries = engine.receive(&"q".into(), count, Duration::from_secs(10)).await.unwrap();
        assert_eq!(deliveries.len(), count);
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let (first, _) = Queued::new(0, move |_| {
            let _ = wait.lock().recv();
            Ok(())
        });
        assert!(engine.shared.queue.push_now(first));
        let settling: Vec<_> = deliveries
            .iter()
            .map(|delivery| {
                let (queued, answer) = Queued::new(0, {
                    let seq = delivery.sequence.0;
                    move |tx| crate::messages::end(tx, seq, 100)
                });
                assert!(engine.shared.queue.push_now(queued));
                answer
            })
            .collect();
        drop(go);
        for answer in settling {
            answer.await.unwrap().unwrap();
        }
        let rows = |engine: &Engine, table: &str| {
            let sql = format!("SELECT count(*) FROM {table}");
            let count =
                engine.shared.read(|connection| Ok(connection.query_row(&sql, [], |row| row.get::<_, i64>(0))?));
            usize::try_from(count.unwrap()).unwrap()
        };
        assert_eq!((rows(&engine, "message"), rows(&engine, "settled")), (count + 1, count));

        let copy = tempfile::tempdir().unwrap();
        engine.backup(&copy.path().join(crate::FILE)).await.unwrap();
        let again = Engine::open(Options::new(copy.path())).unwrap();
        assert_eq!(again.describe(&"q".into()).await.unwrap().active, 1);
        let id = deliveries[0].message.message_id.clone().unwrap();
        // A host's message whose id was that of a done one is new.
        again
            .enqueue(&"q".into(), sprag_core::message::Message { message_id: Some(id), ..Default::default() })
            .await
            .unwrap();
        assert_eq!(again.describe(&"q".into()).await.unwrap().active, 2);
        // A quiet group sweeps.
        assert_eq!((rows(&again, "message"), rows(&again, "settled")), (2, 0));
    }

    /// A command that panics ends the writer; nobody waits for ever, and writing is refused.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_panic_in_the_writer_leaves_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::open(Options::new(dir.path())).unwrap();
        engine.declare(vec![EntitySpec::queue("q")]).await.unwrap();
        let result = engine.shared.write(0, |_| -> Result<(), Stop> { panic!("a test") }).await;
        assert!(matches!(result, Err(Stop::Closed(_))), "{result:?}");
        assert!(engine.send(&"q".into(), vec![Default::default()]).await.is_err());
    }
}
