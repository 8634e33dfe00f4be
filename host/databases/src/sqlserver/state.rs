//! The handlers' key-value state, and how what a run read of it is held against what is there at its commit (P4).
//!
//! Who reads or writes state stands in line first: each key belongs to one of some rows of `gate`, and a commit changes the rows of its keys, all in
//! one statement, and so is alone with them until its transaction ends. Who has scanned changes all of them. That is ordinary locking of rows, which
//! every engine has, where the server's hints about ranges of keys mean something on one and nothing on another. Statements after it see what
//! whoever stood there before has committed.
//!
//! SQL Server pads bytes with zeros to compare them, so `a` and `a\0` are one key to it. The bytes 0 and 1 of a key are therefore written as
//! 1 1 and 1 2: no zero is left, the order stays, and so does the start of a key.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use sprag_core::{
    ids::{Digest, EndpointName},
    run::{StateRead, StateWrite, Version},
};
use sprag_store::Versioned;
use tiberius::Row;

use crate::postgres::write::Key;

use super::{
    connections::Connection,
    fault::Fault,
    schema::{STATE_SLOT, STATE_SLOTS},
    script::{self, Names, Script, Value, number, rows_together},
    write::digest_key,
};

/// As much of a key as the index on its order takes.
const START: usize = 800;

/// The first column of the rows of answers, which tells them apart.
pub(crate) const VERSIONS: i64 = 100;
pub(crate) const SCANS: i64 = 101;

/// What a unit of work does to state.
#[derive(Debug)]
pub(crate) struct StateChange {
    endpoint: EndpointName,
    endpoint_key: Key,
    /// Rows of `gate`; all of them is none listed.
    slots: BTreeSet<i64>,
    all: bool,
    reads: Vec<(String, i64)>,
    scans: Vec<Scan>,
    puts: Vec<(String, Bytes)>,
    deleted: Vec<String>,
}

#[derive(Debug)]
struct Scan {
    range: Range,
    limit: u32,
    /// Keys as the table has them.
    found: Vec<(Vec<u8>, i64)>,
}

/// Keys from one to below another, as the table has them.
#[derive(Debug)]
pub(crate) struct Range {
    from: Vec<u8>,
    below: Vec<u8>,
}

/// A key as the table has it.
fn escaped(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len());
    for byte in key {
        match byte {
            0 => out.extend_from_slice(&[1, 1]),
            1 => out.extend_from_slice(&[1, 2]),
            other => out.push(*other),
        }
    }
    out
}

fn unescaped(bytes: &[u8]) -> Result<String, Fault> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes.iter();
    while let Some(byte) = rest.next() {
        out.push(match byte {
            1 => rest.next().map_or(0, |next| next.wrapping_sub(1)),
            other => *other,
        });
    }
    String::from_utf8(out).map_err(|_| Fault::Unreadable("a key of state is not UTF-8".to_owned()))
}

fn start(key: &[u8]) -> Vec<u8> {
    key[..key.len().min(START)].to_vec()
}

impl Range {
    /// The keys that start with `prefix` and come after `after`.
    pub(crate) fn new(prefix: &str, after: Option<&str>) -> Self {
        let from = match after {
            // The next key after one is that with a zero byte more.
            Some(after) if after >= prefix => escaped(&[after.as_bytes(), &[0]].concat()),
            _ => escaped(prefix.as_bytes()),
        };
        // No byte of UTF-8 is 255, so one more is a byte still, and 255 is above every key.
        let mut below = escaped(prefix.as_bytes());
        match below.last_mut() {
            Some(last) => *last += 1,
            None => below.push(255),
        }
        Self { from, below }
    }

    /// Adds a statement that reads `first`, key and version.
    fn select_into<'a>(&'a self, script: &mut Script<'a>, first: &str, endpoint_key: &'a Key, limit: u32) {
        let sql = format!(
            "SELECT TOP (?) {first}, state_key, version FROM #state WHERE endpoint_key = CAST(? AS binary(32)) \
             AND key_start >= ? AND key_start <= ? AND state_key >= ? AND state_key < ? ORDER BY key_start, state_key;"
        );
        let values = vec![
            i64::from(limit).into(),
            endpoint_key.into(),
            start(&self.from).into(),
            start(&self.below).into(),
            Value::from(&self.from),
            Value::from(&self.below),
        ];
        script.add(&sql, values);
    }
}

fn hash(endpoint: &EndpointName, key: &str) -> Key {
    let endpoint = endpoint.as_str();
    Digest::of(format!("state {}:{endpoint}{key}", endpoint.len()).as_bytes()).0.to_vec()
}

fn slot(hash: &Key) -> i64 {
    STATE_SLOT + i64::from(hash[0]) % STATE_SLOTS
}

impl StateChange {
    pub(crate) fn new(endpoint: &EndpointName, reads: Vec<StateRead>, writes: Vec<StateWrite>) -> Self {
        let mut change = Self {
            endpoint: endpoint.clone(),
            endpoint_key: digest_key(endpoint.as_str()),
            slots: BTreeSet::new(),
            all: false,
            reads: vec![],
            scans: vec![],
            puts: vec![],
            deleted: vec![],
        };
        for read in reads {
            match read {
                StateRead::Key { key, version } => change.reads.push((key, version.0)),
                StateRead::Scan { prefix, after, limit, found } => change.scans.push(Scan {
                    range: Range::new(&prefix, after.as_deref()),
                    limit,
                    found: found.into_iter().map(|(key, version)| (escaped(key.as_bytes()), version.0)).collect(),
                }),
            }
        }
        // The last write of each key counts.
        let last: BTreeMap<String, Option<Bytes>> = writes.into_iter().map(|write| (write.key, write.value)).collect();
        for (key, value) in last {
            match value {
                Some(value) => change.puts.push((key, value)),
                None => change.deleted.push(key),
            }
        }
        let keys = change.reads.iter().map(|(key, _)| key).chain(change.puts.iter().map(|(key, _)| key));
        change.slots = keys.chain(&change.deleted).map(|key| slot(&hash(endpoint, key))).collect();
        change.all = !change.scans.is_empty();
        change
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty() && !self.all
    }

    /// Stands in line, and asks for what the run read. In one round trip, which ends before anything else of the write begins.
    pub(crate) fn ask<'a>(&'a self, names: &'a Names) -> Vec<Script<'a>> {
        let mut script = Script::new(names);
        if self.all {
            script.add("UPDATE #gate SET passed = passed + 1 WHERE slot >= ?;", vec![STATE_SLOT.into()]);
        } else {
            let slots = script.list(self.slots.iter().map(|slot| Value::from(*slot)));
            script.add(&format!("UPDATE #gate SET passed = passed + 1 WHERE slot IN {slots};"), vec![]);
        }
        let mut scripts = vec![script];
        for part in self.reads.chunks(rows_together(2)) {
            let mut script = Script::new(names);
            let hashes = script.hashes(part.iter().map(|(key, _)| hash(&self.endpoint, key).into()));
            script.add(&format!("SELECT {VERSIONS}, state_key, version FROM #state WHERE hash IN {hashes};"), vec![]);
            scripts.push(script);
        }
        for (n, scan) in self.scans.iter().enumerate() {
            let mut script = Script::new(names);
            scan.range.select_into(&mut script, &format!("{}", SCANS + n as i64), &self.endpoint_key, scan.limit);
            scripts.push(script);
        }
        scripts
    }

    /// Whether the answers to [`Self::ask`] are what the run saw.
    pub(crate) fn still_holds(&self, answers: &[Row]) -> Result<bool, Fault> {
        let mut found: BTreeMap<i64, Vec<(Vec<u8>, i64)>> = BTreeMap::new();
        for row in answers {
            let pair = (script::bytes(row, 1)?.to_vec(), number(row, 2)?);
            found.entry(number(row, 0)?).or_default().push(pair);
        }
        let versions: BTreeMap<Vec<u8>, i64> = found.remove(&VERSIONS).unwrap_or_default().into_iter().collect();
        let same = |(key, version): &(String, i64)| {
            versions.get(&escaped(key.as_bytes())).copied().unwrap_or_default() == *version
        };
        if !self.reads.iter().all(same) {
            return Ok(false);
        }
        let same = |(n, scan): (usize, &Scan)| found.remove(&(SCANS + n as i64)).unwrap_or_default() == scan.found;
        Ok(self.scans.iter().enumerate().all(same))
    }

    /// What is written. A row that is replaced gets a new number of the counter, which is its version.
    pub(crate) fn apply<'a>(&'a self, names: &'a Names) -> Vec<Script<'a>> {
        let mut scripts = Vec::new();
        let gone: Vec<&String> = self.puts.iter().map(|(key, _)| key).chain(&self.deleted).collect();
        for part in gone.chunks(rows_together(1)) {
            let mut script = Script::new(names);
            let hashes = script.hashes(part.iter().map(|key| hash(&self.endpoint, key).into()));
            script.add(&format!("DELETE FROM #state WHERE hash IN {hashes};"), vec![]);
            scripts.push(script);
        }
        for part in self.puts.chunks(rows_together(5)) {
            let mut script = Script::new(names);
            let rows = part.iter().map(|(key, value)| {
                let written = escaped(key.as_bytes());
                vec![
                    hash(&self.endpoint, key).into(),
                    Value::from(&self.endpoint_key),
                    start(&written).into(),
                    written.into(),
                    Value::from(&value[..]),
                ]
            });
            let table = script.table("(?, ?, ?, ?, ?)", rows);
            script.add("INSERT INTO #state (hash, endpoint_key, key_start, state_key, content) ", vec![]);
            script.text.push_str(&format!("{};", &table[1..table.len() - 1]));
            scripts.push(script);
        }
        scripts
    }
}

pub(crate) async fn get(
    connection: &mut Connection,
    endpoint: EndpointName,
    key: String,
) -> Result<Option<Versioned>, Fault> {
    let names = connection.names();
    let sql = "SELECT content, version FROM #state WHERE hash = CAST(? AS binary(32))";
    let row = connection.row(Script::of(&names, sql, vec![hash(&endpoint, &key).into()])).await?;
    row.map(|row| versioned(&row, 0)).transpose()
}

/// A value and its version, from this column on.
fn versioned(row: &Row, column: usize) -> Result<Versioned, Fault> {
    Ok(Versioned {
        value: Bytes::copy_from_slice(script::bytes(row, column)?),
        version: Version(number(row, column + 1)?),
    })
}

pub(crate) async fn scan(
    connection: &mut Connection,
    endpoint: EndpointName,
    range: Range,
    limit: u32,
) -> Result<Vec<(String, Versioned)>, Fault> {
    let names = connection.names();
    let mut script = Script::new(&names);
    let endpoint_key = digest_key(endpoint.as_str());
    range.select_into(&mut script, "content", &endpoint_key, limit);
    let rows = connection.rows(script).await?;
    rows.iter()
        .map(|row| {
            let value =
                Versioned { value: Bytes::copy_from_slice(script::bytes(row, 0)?), version: Version(number(row, 2)?) };
            Ok((unescaped(script::bytes(row, 1)?)?, value))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As SQL Server compares: the shorter one with zeros after it.
    fn below(one: &[u8], other: &[u8]) -> bool {
        let longest = one.len().max(other.len());
        let padded = |bytes: &[u8]| bytes.iter().copied().chain(std::iter::repeat(0)).take(longest).collect::<Vec<_>>();
        padded(one) < padded(other)
    }

    #[test]
    fn a_range_is_what_starts_with_the_prefix() {
        let keys = [
            "",
            "p",
            "p/",
            "p/\0",
            "p/\0\0",
            "p/\u{1}",
            "p/\u{1}\0",
            "p/\u{2}",
            "p/a",
            "p/\u{10FFFF}",
            "p0",
            "q",
            "\0",
        ];
        for prefix in keys {
            for after in keys.map(Some).into_iter().chain([None]) {
                let range = Range::new(prefix, after);
                for key in keys {
                    let written = escaped(key.as_bytes());
                    let within = !below(&written, &range.from) && below(&written, &range.below);
                    let wanted = key.starts_with(prefix) && after.is_none_or(|after| key > after);
                    assert_eq!(within, wanted, "{key:?} in {prefix:?} after {after:?}");
                }
            }
        }
    }

    #[test]
    fn keys_come_back_in_their_order() {
        let mut keys =
            ["", "\0", "\0\0", "\u{1}", "\u{1}\0", "\u{2}", "a", "a\0", "a\0b", "a\u{1}", "ab", "\u{10FFFF}"];
        keys.sort_unstable();
        for pair in keys.windows(2) {
            let (one, other) = (escaped(pair[0].as_bytes()), escaped(pair[1].as_bytes()));
            assert!(below(&one, &other), "{pair:?}");
            assert!(!one.contains(&0) && unescaped(&one).unwrap() == pair[0]);
        }
    }

    /// Who has scanned is alone; who names keys is alone with those of their slots.
    #[test]
    fn lines() {
        let endpoint = EndpointName::from("e");
        let read = |key: &str| StateRead::Key { key: key.into(), version: Version(0) };
        let write = |key: &str| StateWrite { key: key.into(), value: None };
        let change = |reads, writes| StateChange::new(&endpoint, reads, writes);
        assert!(change(vec![], vec![]).is_empty());
        let one = change(vec![read("a")], vec![write("a")]);
        assert_eq!(one.slots, BTreeSet::from([slot(&hash(&endpoint, "a"))]));
        let scan = StateRead::Scan { prefix: String::new(), after: None, limit: 1, found: vec![] };
        assert!(change(vec![scan], vec![]).all);
        assert!(one.slots.iter().all(|slot| (STATE_SLOT..STATE_SLOT + STATE_SLOTS).contains(slot)));
    }
}
