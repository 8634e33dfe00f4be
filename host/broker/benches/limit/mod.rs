//! What figures of benchmarks are compared to: plain SQLite that writes the same rows in batches, each batch on the disk before the next; and
//! what one `fsync` costs here.
//!
//! One copy for all benchmarks: this crate's, the gateway's and the whole host's (`tests/benches/speed`).

#![allow(dead_code, reason = "each benchmark uses some of it")]

use std::{
    fs::File,
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use rusqlite::Connection;

const BATCH: usize = 256;
/// About what a message without properties of its own needs beside its body.
const HEADER: usize = 80;

/// Messages per second, end to end: the rows that a message costs, written in batches of 256 messages by the shortest way: insert the message; then delete it and insert
/// its inbox row, its event and its line of history. Two commits per batch, as the engine needs at least.
pub(crate) fn sqlite(dir: &Path, messages: usize, sessions: usize, body: usize) -> f64 {
    let connection = Connection::open(dir.join("limit.db")).expect("a file");
    connection
        .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -65536;")
        .expect("pragmas");
    connection
        .execute_batch(
            "CREATE TABLE message (seq INTEGER PRIMARY KEY, session TEXT, id TEXT, header BLOB, body BLOB);
             CREATE TABLE inbox (id INTEGER PRIMARY KEY, hash INTEGER, message_id TEXT, at INTEGER);
             CREATE INDEX inbox_hash ON inbox (hash);
             CREATE TABLE event (id INTEGER PRIMARY KEY, hash INTEGER, event_id TEXT, session TEXT, type TEXT, outcome INTEGER, at INTEGER);
             CREATE INDEX event_hash ON event (hash);
             CREATE TABLE history (event INTEGER, n INTEGER, message_id TEXT, outcome INTEGER, at INTEGER, took INTEGER, PRIMARY KEY (event, n)) WITHOUT ROWID;",
        )
        .expect("tables");
    let body = vec![b'x'; body];
    let header = vec![b'h'; 120];
    let hash = |n: usize| (n as i64).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64);
    let begun = Instant::now();
    let all: Vec<usize> = (1..=messages).collect();
    for batch in all.chunks(BATCH) {
        connection.execute_batch("BEGIN IMMEDIATE").expect("begin");
        let mut insert =
            connection.prepare_cached("INSERT INTO message VALUES (?1, ?2, ?3, ?4, ?5)").expect("statement");
        for n in batch {
            insert
                .execute((*n as i64, format!("session-{}", n % sessions), format!("message-{n:029}"), &header, &body))
                .expect("insert");
        }
        connection.execute_batch("COMMIT; BEGIN IMMEDIATE").expect("commit");
        let mut delete = connection.prepare_cached("DELETE FROM message WHERE seq = ?1").expect("statement");
        let mut inbox = connection.prepare_cached("INSERT INTO inbox VALUES (NULL, ?1, ?2, ?3)").expect("statement");
        let mut event =
            connection.prepare_cached("INSERT INTO event VALUES (NULL, ?1, ?2, ?3, ?4, 1, ?5)").expect("statement");
        let mut history =
            connection.prepare_cached("INSERT INTO history VALUES (?1, 0, ?2, 1, ?3, 12345)").expect("statement");
        for n in batch {
            let id = format!("message-{n:029}");
            delete.execute([*n as i64]).expect("delete");
            inbox.execute((hash(*n), &id, 1_796_000_000_000_i64)).expect("insert");
            let session = format!("session-{}", n % sessions);
            event.execute((hash(*n), &id, session, "OrderPlaced", 1_796_000_000_000_i64)).expect("insert");
            history.execute((connection.last_insert_rowid(), &id, 1_796_000_000_000_i64)).expect("insert");
        }
        connection.execute_batch("COMMIT").expect("commit");
    }
    messages as f64 / begun.elapsed().as_secs_f64()
}

/// Messages per second that come and go.
pub(crate) struct Limit {
    pub(crate) insert: f64,
    pub(crate) delete: f64,
}

pub(crate) fn inserts_and_deletes(dir: &Path, messages: usize, body: usize) -> Limit {
    let connection = Connection::open(dir.join("limit.db")).expect("a file");
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -65536;
             CREATE TABLE message (seq INTEGER PRIMARY KEY, entity INTEGER, state INTEGER, id_hash INTEGER, enqueued_at INTEGER, expires_at INTEGER,
                 deliveries INTEGER, flags INTEGER, size INTEGER, header BLOB, body BLOB);
             CREATE INDEX message_id ON message (id_hash);",
        )
        .expect("tables");
    let (header, body) = (vec![b'h'; HEADER], vec![b'x'; body]);
    let hash = |seq: i64| seq.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64);
    let insert = in_batches(
        &connection,
        "INSERT INTO message VALUES (?1, 1, 0, ?2, 1796000000000, 1797000000000, 0, 0, 600, ?3, ?4)",
        messages,
        |statement, seq| statement.execute((seq, hash(seq), &header, &body)),
    );
    let delete = in_batches(&connection, "DELETE FROM message WHERE seq = ?1", messages, |statement, seq| {
        statement.execute([seq])
    });
    Limit { insert, delete }
}

fn in_batches(
    connection: &Connection,
    sql: &str,
    messages: usize,
    each: impl Fn(&mut rusqlite::CachedStatement<'_>, i64) -> rusqlite::Result<usize>,
) -> f64 {
    let begun = Instant::now();
    let all: Vec<i64> = (1..).take(messages).collect();
    for batch in all.chunks(BATCH) {
        connection.execute_batch("BEGIN IMMEDIATE").expect("begin");
        let mut statement = connection.prepare_cached(sql).expect("a statement");
        for seq in batch {
            assert_eq!(each(&mut statement, *seq).expect("written"), 1);
        }
        connection.execute_batch("COMMIT").expect("commit");
    }
    messages as f64 / begun.elapsed().as_secs_f64()
}

/// How long one fsync of 4 KiB takes: the median of 50.
pub(crate) fn fsync(dir: &Path) -> Duration {
    let mut file = File::create(dir.join("fsync-probe")).expect("a file");
    let mut took: Vec<Duration> = (0..50)
        .map(|_| {
            file.write_all(&[0; 4_096]).expect("written");
            let begun = Instant::now();
            file.sync_data().expect("synchronized");
            begun.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[took.len() / 2]
}
