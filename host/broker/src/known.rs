//! Which ids were ever written down, as a filter in memory in front of the look-ups by hash.
//!
//! Nearly every message is new, and the answer to "what is known of it?" is "nothing". The filter gives that answer without a look at the
//! file: a Bloom filter never forgets an id, and takes about one in five hundred unknown ones for known, which then costs the look that it
//! saves the others. It holds the hashes of the rows of `event`, `inbox`, `final` and `decision`.
//!
//! A thread fills it from the file after the engine was opened; until then every question goes to the file. Rows that were purged stay in it,
//! so it is filled anew, by the same thread, each time it has doubled.
//!
//! *Invariant:* the hash of a row is in the filter before the row's transaction commits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, RwLock};
use rusqlite::Connection;

use crate::shared::{ReadFailure, Shared};

/// Bits for each id: with [`PROBES`] bits set in one block, 0.2 % of unknown ids look known in a full segment.
const BITS_PER_ID: usize = 16;
const PROBES: u32 = 6;
const BLOCK_BITS: usize = 512;
/// Ids of the first segment; each further one has twice as many. The first one has 512 KiB.
const FIRST_SEGMENT: usize = 1 << 18;
/// A filter with fewer ids is never filled anew.
const REFILL_FROM: usize = 4 << 20;
/// Rows read at once while it is filled, so that no read keeps the log from being moved into the file for long.
const CHUNK: i64 = 50_000;

/// Sixty-four bytes, a cache line: a look touches one per segment.
type Block = [AtomicU64; BLOCK_BITS / 64];

#[derive(Debug)]
struct Segment {
    blocks: Box<[Block]>,
    capacity: usize,
    ids: AtomicUsize,
}

impl Segment {
    fn new(capacity: usize) -> Self {
        let blocks = (capacity * BITS_PER_ID).div_ceil(BLOCK_BITS);
        Self { blocks: (0..blocks).map(|_| Block::default()).collect(), capacity, ids: AtomicUsize::new(0) }
    }

    /// The block of a hash, and its bits in it. Hashes come from SHA-256, so their bits need no more mixing than this.
    fn probes(&self, hash: i64) -> (&Block, impl Iterator<Item = (usize, u64)> + use<>) {
        let hash = hash.cast_unsigned();
        let block = (u128::from(hash) * self.blocks.len() as u128) >> 64;
        let block = usize::try_from(block).expect("it is less than the number of blocks");
        let bits = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
        let probe = move |n: u32| {
            let bit = usize::try_from(bits >> (9 * n)).unwrap_or(usize::MAX) % BLOCK_BITS;
            (bit / 64, 1 << (bit % 64))
        };
        (&self.blocks[block], (0..PROBES).map(probe))
    }

    fn insert(&self, hash: i64) {
        let (block, probes) = self.probes(hash);
        for (word, bit) in probes {
            block[word].fetch_or(bit, Relaxed);
        }
        self.ids.fetch_add(1, Relaxed);
    }

    fn may_have(&self, hash: i64) -> bool {
        let (block, mut probes) = self.probes(hash);
        probes.all(|(word, bit)| block[word].load(Relaxed) & bit != 0)
    }

    fn is_full(&self) -> bool {
        self.ids.load(Relaxed) >= self.capacity
    }
}

/// A filter that grows.
#[derive(Debug, Default)]
struct Filter {
    segments: Vec<Segment>,
}

impl Filter {
    fn is_full(&self) -> bool {
        self.segments.last().is_none_or(Segment::is_full)
    }

    fn grow(&mut self) {
        if self.is_full() {
            self.segments.push(Segment::new(FIRST_SEGMENT << self.segments.len()));
        }
    }

    /// There must be room.
    fn insert(&self, hash: i64) {
        self.segments.last().expect("there is room, so there is a segment").insert(hash);
    }

    fn may_have(&self, hash: i64) -> bool {
        self.segments.iter().any(|segment| segment.may_have(hash))
    }

    fn ids(&self) -> usize {
        self.segments.iter().map(|segment| segment.ids.load(Relaxed)).sum()
    }
}

#[derive(Debug, Default)]
struct Filters {
    /// Complete. None: every question goes to the file.
    serving: Option<Filter>,
    /// Being filled; new rows go into both.
    filling: Option<Filter>,
    /// How many ids the serving one may have before it is filled anew.
    refill_at: usize,
}

impl Filters {
    fn each(&self) -> impl Iterator<Item = &Filter> {
        self.serving.iter().chain(&self.filling)
    }

    fn serve(&mut self, filter: Filter) {
        self.refill_at = (2 * filter.ids()).max(REFILL_FROM);
        self.serving = Some(filter);
    }
}

#[derive(Debug, Default)]
enum Wanted {
    #[default]
    Nothing,
    Filling,
    End,
}

#[derive(Debug, Default)]
pub(crate) struct Known {
    filters: RwLock<Filters>,
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

impl Known {
    /// Certainly no row has this hash. False says nothing.
    pub(crate) fn excludes(&self, hash: i64) -> bool {
        self.filters.read().serving.as_ref().is_some_and(|filter| !filter.may_have(hash))
    }

    /// Before a row with this hash is committed.
    pub(crate) fn insert(&self, hash: i64) {
        {
            let filters = self.filters.read();
            if !filters.each().any(Filter::is_full) {
                filters.each().for_each(|filter| filter.insert(hash));
                return;
            }
        }
        let mut filters = self.filters.write();
        filters.serving.iter_mut().for_each(Filter::grow);
        filters.filling.iter_mut().for_each(Filter::grow);
        filters.each().for_each(|filter| filter.insert(hash));
        let refill = filters.filling.is_none()
            && filters.serving.as_ref().is_some_and(|serving| serving.ids() >= filters.refill_at);
        drop(filters);
        if refill {
            self.want(Wanted::Filling);
        }
    }

    /// The file holds no row yet.
    pub(crate) fn start_empty(&self) {
        self.filters.write().serve(Filter::default());
    }

    fn want(&self, new: Wanted) {
        let mut wanted = self.wanted.lock();
        if !matches!(*wanted, Wanted::End) {
            *wanted = new;
        }
        self.changed.notify_all();
    }

    pub(crate) fn fill_soon(&self) {
        self.want(Wanted::Filling);
    }

    pub(crate) fn end(&self) {
        self.want(Wanted::End);
    }

    fn ends(&self) -> bool {
        matches!(*self.wanted.lock(), Wanted::End)
    }

    /// True: it is to be filled. False: the engine closes.
    fn wait(&self) -> bool {
        let mut wanted = self.wanted.lock();
        loop {
            match *wanted {
                Wanted::Nothing => self.changed.wait(&mut wanted),
                Wanted::Filling => {
                    *wanted = Wanted::Nothing;
                    return true;
                }
                Wanted::End => return false,
            }
        }
    }

    /// Takes hashes that were read from the file.
    fn fill(&self, hashes: &[i64]) {
        let mut rest = hashes;
        while !rest.is_empty() {
            let filters = self.filters.read();
            let Some(filling) = &filters.filling else { return };
            let room = filling.segments.last().map_or(0, |last| last.capacity.saturating_sub(last.ids.load(Relaxed)));
            let (now, later) = rest.split_at(room.min(rest.len()));
            now.iter().for_each(|hash| filling.insert(*hash));
            rest = later;
            drop(filters);
            self.filters.write().filling.iter_mut().for_each(Filter::grow);
        }
    }
}

/// The tables in the order in which they are read: a purge may move a row from the first to the second, never back.
const TABLES: [(&str, &str); 4] =
    [("event", "event_hash"), ("inbox", "inbox_hash"), ("final", "final_hash"), ("decision", "decision_hash")];

/// Whether the file holds no row that the filter would know.
pub(crate) fn is_empty(connection: &Connection) -> rusqlite::Result<bool> {
    for (table, _) in TABLES {
        if connection.prepare(&format!("SELECT 1 FROM {table} LIMIT 1"))?.exists([])? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The thread that fills the filter.
pub(crate) fn run(shared: &Arc<Shared>) {
    while shared.known.wait() {
        let started = Instant::now();
        match fill(shared) {
            Ok(true) => {
                let took: Duration = started.elapsed();
                tracing::debug!(?took, "the filter of known ids is complete");
            }
            // The engine closes.
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, "the filter of known ids could not be filled: every check reads the file until the engine is opened again");
                shared.known.filters.write().filling = None;
            }
        }
    }
}

/// False: the engine closes.
fn fill(shared: &Arc<Shared>) -> Result<bool, ReadFailure> {
    let mut empty = Filter::default();
    empty.grow();
    shared.known.filters.write().filling = Some(empty);
    // What is being written now may have looked before; everything after it goes into the new filter by itself.
    if shared.flush_blocking().is_err() {
        return Ok(false);
    }
    let connection = shared.open_reader()?;
    for (table, index) in TABLES {
        let mut statement = connection
            .prepare(&format!("SELECT hash FROM {table} INDEXED BY {index} WHERE hash > ?1 ORDER BY hash LIMIT ?2"))?;
        // The lowest number of all is skipped: whoever has it would be looked up in vain.
        let mut after = i64::MIN;
        shared.known.fill(&[i64::MIN]);
        loop {
            if shared.known.ends() {
                return Ok(false);
            }
            let hashes =
                statement.query_map((after, CHUNK), |row| row.get::<_, i64>(0))?.collect::<Result<Vec<_>, _>>()?;
            let Some(last) = hashes.last() else { break };
            after = *last;
            shared.known.fill(&hashes);
        }
    }
    let mut filters = shared.known.filters.write();
    if let Some(filled) = filters.filling.take() {
        filters.serve(filled);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use sprag_core::{
        effect::StoreWrite,
        ids::{EndpointName, EventId, MessageId},
    };
    use sprag_store::{Question, Store as _};

    use super::*;
    use crate::{Engine, Options, tracking::id_hash};

    #[test]
    fn an_inserted_id_is_never_excluded_and_most_others_are() {
        let known = Known::default();
        let hash = |n: usize| id_hash("endpoint", &format!("message-{n}"));
        assert!(!known.excludes(hash(0)), "an incomplete filter excludes nothing");
        known.start_empty();
        // Into the second segment.
        let inserted = FIRST_SEGMENT + 10_000;
        (0..inserted).for_each(|n| known.insert(hash(n)));
        assert!((0..inserted).all(|n| !known.excludes(hash(n))));
        let looks = 100_000;
        let wrong = (inserted..inserted + looks).filter(|n| !known.excludes(hash(*n))).count();
        assert!(wrong < looks / 100, "{wrong} of {looks} unknown ids look known");
    }

    fn endpoint() -> EndpointName {
        "e".into()
    }

    async fn record(engine: &Engine, ids: std::ops::Range<usize>) {
        let record = ids.map(|n| MessageId::from(format!("m{n}"))).collect();
        engine.write(&endpoint(), StoreWrite { record, ..StoreWrite::default() }).await.unwrap();
    }

    async fn is_recorded(engine: &Engine, id: &str) -> bool {
        let (id, event_id) = (MessageId::from(id), EventId::from(id));
        let endpoint = endpoint();
        let question = Question {
            endpoint: &endpoint,
            message_id: Some(&id),
            source_id: None,
            event_id: &event_id,
            inbox: true,
            outcome: false,
        };
        engine.check(question).await.unwrap().own_recorded
    }

    /// Records from before the engine was opened are found while the filter is filled and afterwards; those that come meanwhile too.
    #[tokio::test(flavor = "multi_thread")]
    async fn records_of_an_earlier_process_are_known() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::open(Options::new(dir.path())).unwrap();
        record(&engine, 0..2_000).await;
        engine.close().await;
        drop(engine);
        let engine = Engine::open(Options::new(dir.path())).unwrap();
        let mut next = 2_000;
        loop {
            let complete = engine.shared.known.filters.read().serving.is_some();
            record(&engine, next..next + 1).await;
            next += 1;
            assert!(is_recorded(&engine, "m0").await && is_recorded(&engine, &format!("m{}", next - 1)).await);
            assert!(!is_recorded(&engine, "other").await);
            if complete {
                break;
            }
        }
        for n in 0..next {
            assert!(is_recorded(&engine, &format!("m{n}")).await, "m{n}");
        }
        // Filled anew while it serves.
        engine.shared.known.fill_soon();
        record(&engine, next..next + 100).await;
        for n in 0..next + 100 {
            assert!(is_recorded(&engine, &format!("m{n}")).await, "m{n}");
        }
    }
}
