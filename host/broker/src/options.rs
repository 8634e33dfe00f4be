//! How an engine is opened, and why it may not be.

use std::{path::PathBuf, sync::Arc, time::Duration};

use sprag_core::time::Timestamp;

/// What gives the wall time. Only what is stored or shown, schedules and times to live use it; locks do not.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// How an engine is opened.
#[derive(Clone)]
pub struct Options {
    /// The data folder; made when it is not there.
    pub dir: PathBuf,
    /// Bytes of fresh messages kept in memory, so that one that is delivered soon is not read back. Default 64 MiB.
    pub message_cache: usize,
    /// SQLite's page cache of the writing connection (`cache_size`). Default 64 MiB, reached only when that much of the file is in use:
    /// it holds the right edges of the tables and the hash index of the inbox (about 16 bytes a row).
    /// Readers have 2 MiB each. `mmap_size` is 0: mapped pages would count as resident memory, and the system caches the file anyway.
    pub page_cache: usize,
    /// Refuse sends (never settlements) when so many bytes of the file are in use. Default: no limit.
    pub max_size: Option<u64>,
    /// The most commands in one transaction. Default 512.
    pub group_count: usize,
    /// The most bytes of messages in one transaction. Default 8 MiB.
    pub group_bytes: usize,
    /// The most commands that wait for the writer; more wait before the queue. Default 8,192.
    pub queue: usize,
    /// Pages in the write-ahead log after which the writer moves them into the file. Default 8,192 (32 MiB).
    pub checkpoint_pages: u32,
    /// Connections that are kept for reading. Default 4.
    pub readers: usize,
    /// How long a connection waits for a lock on the file that somebody else holds (a backup, a person with a shell). Default 5 s.
    pub busy_timeout: Duration,
    pub clock: Clock,
}

impl Options {
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            message_cache: 64 << 20,
            page_cache: 64 << 20,
            max_size: None,
            group_count: 512,
            group_bytes: 8 << 20,
            queue: 8_192,
            checkpoint_pages: 8_192,
            readers: 4,
            busy_timeout: Duration::from_secs(5),
            clock: Arc::new(wall_clock),
        }
    }
}

fn wall_clock() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Why an engine could not be opened. Each names the folder and, where there is one, the way out.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Exit code 73.
    #[error("{dir} is in use by {holder}", dir = dir.display())]
    Held { dir: PathBuf, holder: String },
    #[error("{dir} cannot be used as data folder: {source}", dir = dir.display())]
    Folder { dir: PathBuf, source: std::io::Error },
    #[error("{file} cannot be opened: {problem}", file = file.display())]
    File { file: PathBuf, problem: String },
    #[error("{file} cannot be opened: its schema has version {found}; this binary knows versions up to {known}: use a newer sprag", file = file.display())]
    Newer { file: PathBuf, found: i64, known: i64 },
}
