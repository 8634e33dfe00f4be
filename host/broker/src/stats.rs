//! How the engine is doing, for health and benchmarks.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// A look at the engine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    /// Bytes of the file and of its write-ahead log on the disk.
    pub file_bytes: u64,
    pub log_bytes: u64,
    /// Bytes of the file that hold something; known only with a `max_size`.
    pub used_bytes: Option<u64>,
    /// Commands that wait for the writer.
    pub queued: usize,
    pub commits: u64,
    pub commands: u64,
    pub largest_group: u64,
    /// Of the last group: how long it took, and how long of that its commit (one `fsync`).
    pub last_group: Duration,
    pub last_commit: Duration,
    pub checkpoints: u64,
    pub longest_checkpoint: Duration,
    /// Processor time that the writer has used. None where the system does not say.
    pub writer_cpu: Option<Duration>,
    /// Why nothing is written any more.
    pub closed: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    commits: AtomicU64,
    commands: AtomicU64,
    largest_group: AtomicU64,
    last_group: AtomicU64,
    last_commit: AtomicU64,
    log_pages: AtomicU32,
    checkpoints: AtomicU64,
    longest_checkpoint: AtomicU64,
    /// Where the system tells how much time the writer's thread has used.
    schedstat: OnceLock<std::path::PathBuf>,
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Counters {
    /// Called by the writer's thread.
    pub(crate) fn name_writer(&self) {
        if let Ok(thread) = std::fs::read_link("/proc/thread-self") {
            // The writer is the only one to set it.
            let _ = self.schedstat.set(std::path::Path::new("/proc").join(thread).join("schedstat"));
        }
    }

    pub(crate) fn group(&self, commands: usize, took: Duration, commit: Duration) {
        self.commits.fetch_add(1, Relaxed);
        self.commands.fetch_add(commands as u64, Relaxed);
        self.largest_group.fetch_max(commands as u64, Relaxed);
        self.last_group.store(nanos(took), Relaxed);
        self.last_commit.store(nanos(commit), Relaxed);
    }

    pub(crate) fn log_pages(&self, pages: u32) {
        self.log_pages.store(pages, Relaxed);
    }

    pub(crate) fn checkpoint(&self, took: Duration) {
        self.checkpoints.fetch_add(1, Relaxed);
        self.longest_checkpoint.fetch_max(nanos(took), Relaxed);
    }

    pub(crate) fn look(&self) -> Stats {
        let duration = |n: &AtomicU64| Duration::from_nanos(n.load(Relaxed));
        let cpu = self.schedstat.get().and_then(|path| {
            let text = std::fs::read_to_string(path).ok()?;
            text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
        });
        Stats {
            commits: self.commits.load(Relaxed),
            commands: self.commands.load(Relaxed),
            largest_group: self.largest_group.load(Relaxed),
            last_group: duration(&self.last_group),
            last_commit: duration(&self.last_commit),
            checkpoints: self.checkpoints.load(Relaxed),
            longest_checkpoint: duration(&self.longest_checkpoint),
            writer_cpu: cpu,
            ..Stats::default()
        }
    }
}
