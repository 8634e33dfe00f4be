//! Handlers' key-value state, read (P4).

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Row};
use sprag_core::run::Version;
use sprag_store::Versioned;

pub(crate) fn get(connection: &Connection, endpoint: i64, key: &str) -> rusqlite::Result<Option<Versioned>> {
    connection
        .prepare_cached("SELECT version, value FROM state WHERE endpoint = ?1 AND key = ?2")?
        .query_row((endpoint, key), |row| versioned(row, 0))
        .optional()
}

/// Entries in byte order. A prefix is plain text, so it is compared here, not by a pattern.
pub(crate) fn scan(
    connection: &Connection,
    endpoint: i64,
    prefix: &str,
    after: Option<&str>,
    limit: u32,
) -> rusqlite::Result<Vec<(String, Versioned)>> {
    let (sql, from) = match after.filter(|after| *after >= prefix) {
        Some(after) => {
            ("SELECT version, value, key FROM state WHERE endpoint = ?1 AND key > ?2 ORDER BY key LIMIT ?3", after)
        }
        None => {
            ("SELECT version, value, key FROM state WHERE endpoint = ?1 AND key >= ?2 ORDER BY key LIMIT ?3", prefix)
        }
    };
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query((endpoint, from, limit))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let key: String = row.get(2)?;
        if !key.starts_with(prefix) {
            break;
        }
        found.push((key, versioned(row, 0)?));
    }
    Ok(found)
}

fn versioned(row: &Row<'_>, first: usize) -> rusqlite::Result<Versioned> {
    Ok(Versioned { version: Version(row.get(first)?), value: Bytes::from(row.get::<_, Vec<u8>>(first + 1)?) })
}
