//! Numbers that must never go back, and small dictionaries: the writer's own memory beside the file.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension as _};
use sprag_core::ids::{Digest, EndpointName, HandlerName};

use crate::writer::Stop;

/// How far ahead of use a counter is written down: one row for so many numbers. What was left of a block is skipped at the next start.
const BLOCK: i64 = 10_000;

#[derive(Debug, Clone, Copy)]
struct Counter {
    name: &'static str,
    next: i64,
    /// The file promises that no number below this is given again.
    saved: i64,
}

impl Counter {
    fn load(connection: &Connection, name: &'static str) -> rusqlite::Result<Self> {
        let saved = connection
            .query_row("SELECT value FROM counter WHERE name = ?1", [name], |row| row.get(0))
            .optional()?
            .unwrap_or(1);
        Ok(Self { name, next: saved, saved })
    }

    fn next(&mut self) -> i64 {
        self.next += 1;
        self.next - 1
    }

    fn save(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        if self.next > self.saved {
            let saved = self.next + BLOCK;
            connection
                .prepare_cached("INSERT OR REPLACE INTO counter (name, value) VALUES (?1, ?2)")?
                .execute((self.name, saved))?;
            self.saved = saved;
        }
        Ok(())
    }
}

/// What the writer remembers between transactions.
#[derive(Debug)]
pub(crate) struct Local {
    sequence: Counter,
    state_version: Counter,
    endpoints: HashMap<EndpointName, i64>,
    versions: HashMap<(Option<HandlerName>, Option<Digest>), i64>,
    /// Whether the outbox may have rows: a publish looks for earlier ones only then. None: look.
    pub(crate) outbox_used: Option<bool>,
    /// The same for decisions, which only a remote transport leaves here.
    pub(crate) decisions_used: Option<bool>,
    /// Rows of messages that are done and wait to be swept. None: count them.
    pub(crate) settled: Option<usize>,
}

impl Local {
    pub(crate) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            sequence: Counter::load(connection, "sequence")?,
            state_version: Counter::load(connection, "state_version")?,
            endpoints: HashMap::new(),
            versions: HashMap::new(),
            outbox_used: None,
            decisions_used: None,
            settled: None,
        })
    }

    /// The next message number. One row of numbers serves all entities: within each it rises, and the table stays in time order.
    pub(crate) fn next_sequence(&mut self) -> i64 {
        self.sequence.next()
    }

    pub(crate) fn next_version(&mut self) -> i64 {
        self.state_version.next()
    }

    /// Before a commit: numbers given since the last one are covered by the file.
    pub(crate) fn save(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.sequence.save(connection)?;
        self.state_version.save(connection)
    }

    /// What was written since the last commit is gone; so is what was learned from it. Given numbers are not given again.
    pub(crate) fn rolled_back(&mut self) {
        self.sequence.saved = 0;
        self.state_version.saved = 0;
        self.endpoints.clear();
        self.versions.clear();
        self.outbox_used = None;
        self.decisions_used = None;
        self.settled = None;
    }

    /// The endpoint's number, given at its first use.
    pub(crate) fn endpoint(&mut self, connection: &Connection, name: &EndpointName) -> Result<i64, Stop> {
        if let Some(id) = self.endpoints.get(name) {
            return Ok(*id);
        }
        connection.prepare_cached("INSERT OR IGNORE INTO endpoint (name) VALUES (?1)")?.execute([name.as_str()])?;
        let id = connection
            .prepare_cached("SELECT id FROM endpoint WHERE name = ?1")?
            .query_row([name.as_str()], |row| row.get(0))?;
        self.endpoints.insert(name.clone(), id);
        Ok(id)
    }

    /// The number of (handler, digest); none for neither.
    pub(crate) fn version(
        &mut self,
        connection: &Connection,
        handler: Option<&HandlerName>,
        digest: Option<&Digest>,
    ) -> Result<Option<i64>, Stop> {
        if handler.is_none() && digest.is_none() {
            return Ok(None);
        }
        let key = (handler.cloned(), digest.copied());
        if let Some(id) = self.versions.get(&key) {
            return Ok(Some(*id));
        }
        let params = (handler.map(HandlerName::as_str), digest.map(|digest| &digest.0[..]));
        let found = connection
            .prepare_cached("SELECT id FROM version WHERE handler IS ?1 AND digest IS ?2")?
            .query_row(params, |row| row.get(0))
            .optional()?;
        let id = match found {
            Some(id) => id,
            None => {
                connection.prepare_cached("INSERT INTO version (handler, digest) VALUES (?1, ?2)")?.execute(params)?;
                connection.last_insert_rowid()
            }
        };
        self.versions.insert(key, id);
        Ok(Some(id))
    }
}
