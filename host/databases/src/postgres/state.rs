//! The handlers' key-value state, and how what a run read of it is held against what is there at its commit (P4).
//!
//! Locks and not `SERIALIZABLE`: that would abort runs that have nothing in common but a page of an index. A write holds advisory locks until its
//! transaction ends: on its endpoint, shared unless it has scanned (who has scanned lets nobody write meanwhile); on each key that it read,
//! shared; on each that it writes, alone. All in the order of their numbers, so no two wait for each other. Statements after the locks see what
//! whoever held them before has committed.

use std::collections::BTreeMap;

use bytes::Bytes;
use sprag_core::{
    ids::{Digest, EndpointName},
    run::{StateRead, StateWrite, Version},
};
use sprag_store::Versioned;
use tokio_postgres::Row;

use super::{
    connections::{Connection, Step, Value},
    fault::Fault,
    text::Text,
};

/// Above this many keys a write locks its endpoint alone instead: the server's table of locks is small and shared by everybody.
const MOST_LOCKS: usize = 64;

const LOCK: &str = "SELECT CASE WHEN l.alone THEN pg_advisory_xact_lock(l.key) ELSE pg_advisory_xact_lock_shared(l.key) END \
     FROM unnest($1::bigint[], $2::boolean[]) AS l(key, alone)";
const VERSIONS: &str = "SELECT key, version FROM sprag_state WHERE endpoint = $1 AND key = ANY($2::bytea[])";
const SCAN_VERSIONS: &str =
    "SELECT key, version FROM sprag_state WHERE endpoint = $1 AND key >= $2 AND key < $3 ORDER BY key LIMIT $4";
const PUT: &str = "INSERT INTO sprag_state (endpoint, key, version, value) \
     SELECT $1::text, w.key, nextval('sprag_version'), w.value FROM unnest($2::bytea[], $3::bytea[]) AS w(key, value) \
     ON CONFLICT (endpoint, key) DO UPDATE SET version = EXCLUDED.version, value = EXCLUDED.value";
const DELETE: &str = "DELETE FROM sprag_state WHERE endpoint = $1 AND key = ANY($2::bytea[])";
const GET: &str = "SELECT value, version FROM sprag_state WHERE endpoint = $1 AND key = $2";
const SCAN: &str =
    "SELECT key, version, value FROM sprag_state WHERE endpoint = $1 AND key >= $2 AND key < $3 ORDER BY key LIMIT $4";

/// What a unit of work does to state, as values for statements.
#[derive(Debug)]
pub(crate) struct StateChange {
    endpoint: Text<EndpointName>,
    locks: Vec<i64>,
    alone: Vec<bool>,
    read_keys: Vec<Vec<u8>>,
    read_versions: Vec<i64>,
    scans: Vec<Scan>,
    put_keys: Vec<Vec<u8>>,
    put_values: Vec<Vec<u8>>,
    deleted: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Scan {
    range: Range,
    limit: i64,
    found: Vec<(Vec<u8>, i64)>,
}

/// Keys from one to below another.
#[derive(Debug)]
pub(crate) struct Range {
    from: Vec<u8>,
    below: Vec<u8>,
}

impl Range {
    /// The keys that start with `prefix` and come after `after`.
    pub(crate) fn new(prefix: &str, after: Option<&str>) -> Self {
        let from = match after {
            // The next key after one is that with a zero byte more.
            Some(after) if after >= prefix => [after.as_bytes(), &[0]].concat(),
            _ => prefix.as_bytes().to_vec(),
        };
        // No byte of UTF-8 is 255, so one more is a byte still, and 255 is above every key.
        let mut below = prefix.as_bytes().to_vec();
        match below.last_mut() {
            Some(last) => *last += 1,
            None => below.push(255),
        }
        Self { from, below }
    }
}

fn lock_key(parts: &[&[u8]]) -> i64 {
    let mut bytes = b"sprag state".to_vec();
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    let digest = Digest::of(&bytes).0;
    i64::from_le_bytes(digest[..8].try_into().expect("eight of thirty-two bytes"))
}

impl StateChange {
    pub(crate) fn new(endpoint: &EndpointName, reads: Vec<StateRead>, writes: Vec<StateWrite>) -> Self {
        let mut change = Self {
            endpoint: Text(endpoint.clone()),
            locks: vec![],
            alone: vec![],
            read_keys: vec![],
            read_versions: vec![],
            scans: vec![],
            put_keys: vec![],
            put_values: vec![],
            deleted: vec![],
        };
        for read in reads {
            match read {
                StateRead::Key { key, version } => {
                    change.read_keys.push(key.into_bytes());
                    change.read_versions.push(version.0);
                }
                StateRead::Scan { prefix, after, limit, found } => change.scans.push(Scan {
                    range: Range::new(&prefix, after.as_deref()),
                    limit: limit.into(),
                    found: found.into_iter().map(|(key, version)| (key.into_bytes(), version.0)).collect(),
                }),
            }
        }
        // One statement cannot write a key twice; the last write of each counts.
        let last: BTreeMap<String, Option<Bytes>> = writes.into_iter().map(|write| (write.key, write.value)).collect();
        for (key, value) in last {
            match value {
                Some(value) => {
                    change.put_keys.push(key.into_bytes());
                    change.put_values.push(value.to_vec());
                }
                None => change.deleted.push(key.into_bytes()),
            }
        }
        change.lock();
        change
    }

    fn lock(&mut self) {
        let endpoint = self.endpoint.0.as_str().as_bytes();
        let mut locks: BTreeMap<i64, bool> = BTreeMap::new();
        for key in &self.read_keys {
            locks.entry(lock_key(&[endpoint, key])).or_insert(false);
        }
        for key in self.put_keys.iter().chain(&self.deleted) {
            locks.insert(lock_key(&[endpoint, key]), true);
        }
        if locks.is_empty() && self.scans.is_empty() {
            return;
        }
        let many = locks.len() > MOST_LOCKS;
        if many {
            locks.clear();
        }
        locks.insert(lock_key(&[endpoint]), many || !self.scans.is_empty());
        (self.locks, self.alone) = locks.into_iter().unzip();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Whether there is something to hold against what is there: see [`Self::still_holds`].
    pub(crate) fn was_read(&self) -> bool {
        !self.read_keys.is_empty() || !self.scans.is_empty()
    }

    pub(crate) fn steps<'a>(&'a self, steps: &mut Vec<Step<'a>>) {
        if self.is_empty() {
            return;
        }
        let mut step = |sql: &'static str, values: Vec<Value<'a>>| steps.push(Step { sql, values });
        step(LOCK, vec![Box::new(&self.locks), Box::new(&self.alone)]);
        if !self.read_keys.is_empty() {
            step(VERSIONS, vec![Box::new(&self.endpoint), Box::new(&self.read_keys)]);
        }
        for Scan { range, limit, .. } in &self.scans {
            let (from, below) = (Box::new(&range.from), Box::new(&range.below));
            step(SCAN_VERSIONS, vec![Box::new(&self.endpoint), from, below, Box::new(limit)]);
        }
        if !self.put_keys.is_empty() {
            step(PUT, vec![Box::new(&self.endpoint), Box::new(&self.put_keys), Box::new(&self.put_values)]);
        }
        if !self.deleted.is_empty() {
            step(DELETE, vec![Box::new(&self.endpoint), Box::new(&self.deleted)]);
        }
    }

    /// Whether the answers, which begin with those to [`Self::steps`], are what the run saw.
    pub(crate) fn still_holds(&self, answers: &[Vec<Row>]) -> Result<bool, Fault> {
        let mut answers = answers.iter().skip(1);
        let mut next = || answers.next().ok_or_else(|| Fault::Unreadable("a read has no answer".to_owned()));
        if !self.read_keys.is_empty() {
            let found: BTreeMap<Vec<u8>, i64> = pairs(next()?)?.into_iter().collect();
            let seen = self.read_keys.iter().zip(&self.read_versions);
            if !seen.into_iter().all(|(key, version)| found.get(key).copied().unwrap_or_default() == *version) {
                return Ok(false);
            }
        }
        for scan in &self.scans {
            if pairs(next()?)? != scan.found {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn pairs(rows: &[Row]) -> Result<Vec<(Vec<u8>, i64)>, Fault> {
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

pub(crate) async fn get(
    connection: Connection<'_>,
    endpoint: EndpointName,
    key: String,
) -> Result<Option<Versioned>, Fault> {
    let row = connection.row(GET, &[&Text(endpoint), &key.as_bytes()]).await?;
    row.map(|row| Ok(Versioned { value: row.try_get::<_, Vec<u8>>(0)?.into(), version: Version(row.try_get(1)?) }))
        .transpose()
}

pub(crate) async fn scan(
    connection: Connection<'_>,
    endpoint: EndpointName,
    range: Range,
    limit: u32,
) -> Result<Vec<(String, Versioned)>, Fault> {
    let rows = connection.rows(SCAN, &[&Text(endpoint), &range.from, &range.below, &i64::from(limit)]).await?;
    rows.iter()
        .map(|row| {
            let key = String::from_utf8(row.try_get(0)?)
                .map_err(|_| Fault::Unreadable("a key of state is not UTF-8".to_owned()))?;
            let value = Versioned { version: Version(row.try_get(1)?), value: row.try_get::<_, Vec<u8>>(2)?.into() };
            Ok((key, value))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_what_starts_with_the_prefix() {
        let keys = ["", "p", "p/", "p/\0", "p/a", "p/\u{10FFFF}", "p0", "q", "\u{10FFFF}"];
        for prefix in keys {
            for after in keys.map(Some).into_iter().chain([None]) {
                let range = Range::new(prefix, after);
                for key in keys {
                    let within = range.from.as_slice() <= key.as_bytes() && key.as_bytes() < range.below.as_slice();
                    let wanted = key.starts_with(prefix) && after.is_none_or(|after| key > after);
                    assert_eq!(within, wanted, "{key:?} in {prefix:?} after {after:?}");
                }
            }
        }
    }

    /// Who writes a key, or has scanned, is alone; many keys become one lock.
    #[test]
    fn locks() {
        let endpoint = EndpointName::from("e");
        let read = |key: &str| StateRead::Key { key: key.into(), version: Version(0) };
        let write = |key: &str| StateWrite { key: key.into(), value: None };
        let alone = |reads: Vec<StateRead>, writes: Vec<StateWrite>| {
            let change = StateChange::new(&endpoint, reads, writes);
            assert!(change.locks.is_sorted());
            change.locks.into_iter().zip(change.alone).collect::<BTreeMap<_, _>>()
        };
        let (whole, a) = (lock_key(&[b"e"]), lock_key(&[b"e", b"a"]));
        assert_eq!(alone(vec![], vec![]), BTreeMap::new());
        assert_eq!(alone(vec![read("a")], vec![]), BTreeMap::from([(whole, false), (a, false)]));
        assert_eq!(alone(vec![read("a")], vec![write("a")]), BTreeMap::from([(whole, false), (a, true)]));
        let scan = StateRead::Scan { prefix: String::new(), after: None, limit: 1, found: vec![] };
        assert_eq!(alone(vec![scan], vec![]), BTreeMap::from([(whole, true)]));
        let many = (0..=MOST_LOCKS).map(|n| write(&n.to_string())).collect();
        assert_eq!(alone(vec![], many), BTreeMap::from([(whole, true)]));
    }
}
