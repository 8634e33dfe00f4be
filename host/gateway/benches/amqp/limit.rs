//! What the figures are compared to: the same rows in plain SQLite, in batches of 256, each batch on the disk before the next.

use std::{fs::File, io::Write as _, path::Path, time::Instant};

use rusqlite::Connection;

const BATCH: usize = 256;
/// About what a message without properties of its own needs beside its body.
const HEADER: usize = 80;

/// Messages per second.
pub(crate) struct Limit {
    pub(crate) insert: f64,
    pub(crate) delete: f64,
}

pub(crate) fn sqlite(dir: &Path, messages: usize, body: usize) -> Limit {
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

/// Milliseconds that one fsync of 4 KiB takes: the median of 50.
pub(crate) fn fsync(dir: &Path) -> f64 {
    let mut file = File::create(dir.join("fsync-probe")).expect("a file");
    let mut took: Vec<f64> = (0..50)
        .map(|_| {
            file.write_all(&[0; 4_096]).expect("written");
            let begun = Instant::now();
            file.sync_data().expect("synchronized");
            begun.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    took.sort_unstable_by(f64::total_cmp);
    took[took.len() / 2]
}
