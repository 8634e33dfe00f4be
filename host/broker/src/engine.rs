//! The engine as a whole: opened, declared, closed.

use std::{collections::HashMap, path::Path, sync::Arc, thread::JoinHandle, time::Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags};
use sprag_core::ids::SessionId;

use crate::{
    admin,
    counters::Local,
    entity::{EntityIndex, Topology},
    index::{Change, Index, NEVER, Place, Slot},
    known, leases,
    lock::{self, FolderLock},
    messages,
    options::{OpenError, Options},
    schema,
    shared::{ReadFailure, Shared},
    stats::Stats,
    writer::Writer,
};

/// The name of the file in the data folder.
pub const FILE: &str = "engine.db";

/// The embedded engine: broker, inbox, outbox, handler state and tracking in one file. Cheap to clone; the last clone closes it.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    _running: Arc<Running>,
}

/// The threads, and the lock that goes when they have ended.
struct Running {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    lock: Mutex<Option<FolderLock>>,
}

impl Running {
    fn end(&self) {
        self.shared.end_timer();
        self.shared.known.end();
        // Runs that were left: nobody commits them any more, and the log cannot move while they look at it.
        self.shared.transactions.end();
        self.shared.queue.end();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the engine has panicked");
            }
        }
        self.shared.drop_readers();
        self.lock.lock().take();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

impl Engine {
    /// Opens the engine of a folder, or makes it. Blocks for as long as reading the waiting messages takes.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        let dir = &options.dir;
        std::fs::create_dir_all(dir).map_err(|source| OpenError::Folder { dir: dir.clone(), source })?;
        let lock = FolderLock::take(dir, (options.clock)()).map_err(|error| match error {
            lock::Error::Held { holder } => OpenError::Held { dir: dir.clone(), holder },
            lock::Error::Io { source, .. } => OpenError::Folder { dir: dir.clone(), source },
        })?;
        let file = dir.join(FILE);
        let problem = |error: rusqlite::Error| OpenError::File { file: file.clone(), problem: error.to_string() };
        let mut connection = open_writer(&file, &options).map_err(problem)?;
        schema::migrate(&mut connection).map_err(|error| match error {
            schema::Error::Newer { found } => OpenError::Newer { file: file.clone(), found, known: schema::VERSION },
            schema::Error::Sql(error) => problem(error),
        })?;
        leases::void(&connection).map_err(problem)?;
        let local = Local::load(&connection).map_err(problem)?;
        let (topology, index) =
            load(&connection, &options).map_err(|failure| OpenError::File { file: file.clone(), problem: failure })?;
        let page_size =
            connection.pragma_query_value(None, "page_size", |row| row.get::<_, i64>(0)).map_err(problem)?;
        let page_size = u64::try_from(page_size).unwrap_or(4_096);
        let (max_size, ends) = (options.max_size, options.dir.clone());
        let shared = Arc::new(Shared::new(options, file.clone(), index, topology, page_size));
        if max_size.is_some() {
            let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map_err(problem);
            let used = number("PRAGMA page_count")? - number("PRAGMA freelist_count")?;
            shared.set_used_pages(u64::try_from(used).unwrap_or(0));
        }
        if known::is_empty(&connection).map_err(problem)? {
            shared.known.start_empty();
        } else {
            shared.known.fill_soon();
        }
        let writer = Writer::new(connection, Arc::clone(&shared), local).map_err(problem)?;
        let thread = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(work)
                .map_err(|source| OpenError::Folder { dir: ends.clone(), source })
        };
        let (timed, filled) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads = vec![
            thread("sprag-writer", Box::new(move || writer.run()))?,
            thread("sprag-timer", Box::new(move || timed.run_timer()))?,
            thread("sprag-known", Box::new(move || known::run(&filled)))?,
        ];
        // What came due or expired while nobody was here.
        shared.with_index(|index| index.tick(Instant::now(), shared.now().0));
        let running =
            Running { shared: Arc::clone(&shared), threads: Mutex::new(threads), lock: Mutex::new(Some(lock)) };
        Ok(Self { shared, _running: Arc::new(running) })
    }

    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Ends: what is queued is written, the log is moved into the file, the folder is free. What other clones try afterwards is refused.
    pub async fn close(&self) {
        let running = Arc::clone(&self._running);
        if let Err(error) = tokio::task::spawn_blocking(move || running.end()).await {
            tracing::error!(%error, "closing the engine failed");
        }
    }

    /// A copy of the file as it is now, while everything goes on (`sprag backup`).
    pub async fn backup(&self, to: &Path) -> Result<(), sprag_store::Error> {
        let to = to.to_owned();
        let shared = Arc::clone(&self.shared);
        let copied = self.shared.read_long(move |_| {
            let to = to.to_str().ok_or_else(|| ReadFailure::Invalid("the path of a backup must be UTF-8".into()))?;
            // A connection of its own: one of the pool may write nowhere, and this one is used for long.
            let connection = shared.open_reader()?;
            connection.pragma_update(None, "query_only", false)?;
            connection.execute("VACUUM INTO ?1", [to])?;
            Ok(())
        });
        copied.await.map_err(Into::into)
    }
}

fn open_writer(file: &Path, options: &Options) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.set_prepared_statement_cache_capacity(128);
    connection.busy_timeout(options.busy_timeout)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "cache_size", -i64::try_from(options.page_cache / 1_024).unwrap_or(i64::MAX))?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    // Reads the file, so that one that is none is told here.
    connection.pragma_query_value(None, "schema_version", |row| row.get::<_, i64>(0))?;
    Ok(connection)
}

/// The index, from the file.
fn load(connection: &Connection, options: &Options) -> Result<(Topology, Index), String> {
    let text = |error: rusqlite::Error| error.to_string();
    let topology = admin::load(connection)?;
    let now = Instant::now();
    let mut index = Index::new(u64::try_from((options.clock)().0).unwrap_or(0) << 20);
    index.declare(&topology);
    let by_id: HashMap<i64, EntityIndex> =
        topology.entities.iter().enumerate().map(|(n, entity)| (entity.id, n)).collect();

    let mut statement = connection.prepare("SELECT entity, session, state, updated_at FROM session").map_err(text)?;
    let mut rows = statement.query([]).map_err(text)?;
    while let Some(row) = rows.next().map_err(text)? {
        let read = || -> rusqlite::Result<_> {
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, Vec<u8>>(2)?, row.get::<_, i64>(3)?))
        };
        let (entity, session, state, at) = read().map_err(text)?;
        if let Some(&entity) = by_id.get(&entity) {
            let state = Some(Bytes::from(state));
            index.apply(Change::State { entity, session: session.into(), state, at }, now);
        }
    }

    let mut statement = connection
        .prepare("SELECT seq, entity, state, session, expires_at, due, deliveries, parked_as, size FROM message WHERE seq NOT IN settled ORDER BY seq")
        .map_err(text)?;
    let mut rows = statement.query([]).map_err(text)?;
    let mut sessions: HashMap<String, SessionId> = HashMap::new();
    while let Some(row) = rows.next().map_err(text)? {
        let mut insert = || -> rusqlite::Result<()> {
            let Some(&entity) = by_id.get(&row.get::<_, i64>(1)?) else { return Ok(()) };
            let session = match row.get_ref(3)?.as_str_or_null()? {
                Some(session) if !sessions.contains_key(session) => {
                    Some(sessions.entry(session.to_owned()).or_insert(session.into()).clone())
                }
                Some(session) => sessions.get(session).cloned(),
                None => None,
            };
            let slot = Slot {
                seq: row.get(0)?,
                expires_at: row.get::<_, Option<i64>>(4)?.unwrap_or(NEVER),
                deliveries: row.get(6)?,
                size: row.get(8)?,
            };
            let place = match row.get::<_, i64>(2)? {
                messages::SCHEDULED => Place::Scheduled(row.get(5)?),
                messages::PARKED => Place::Parked(row.get::<_, Option<u32>>(7)?.unwrap_or(0)),
                messages::DEAD => Place::Dead,
                messages::DEFERRED => Place::Deferred,
                messages::DEAD_DEFERRED => Place::DeadDeferred,
                messages::TRANSFER => Place::Transfer,
                messages::TRANSFER_DEFERRED => Place::TransferDeferred,
                _ => Place::Active,
            };
            index.apply(Change::Insert { entity, session, slot, place }, now);
            Ok(())
        };
        insert().map_err(text)?;
    }
    drop(rows);
    drop(statement);
    Ok((topology, index))
}
