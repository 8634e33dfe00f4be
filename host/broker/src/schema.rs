//! The file's tables, and how an older file becomes a current one.
//!
//! The version stands in `PRAGMA user_version`. A file is brought forward step by step, each step in its own transaction; a file newer
//! than this binary is refused, because writing into it could lose what the newer one keeps there.
//!
//! How the tables are laid out follows from what a message costs. Rows are appended in time order (`message`, `inbox`, `event`), so that
//! a busy file writes next to where it wrote before; what must be found by a text is found through the first eight bytes of a hash of
//! it, because an index of small integers stays in the cache where an index of texts would not. A hit compares the text in the row.

use rusqlite::Connection;

/// The version that this binary writes.
pub const VERSION: i64 = 5;

/// What takes a file from version `n` to `n + 1`, in order.
const STEPS: [&str; VERSION as usize] = [V1, V2, V3, V4, V5];

/// The host's tables. Handlers' SQL has tables of its own in the same file and does not reach these (P37). A table that comes later is called
/// `sprag_…`, because handlers may have taken any other name.
pub(crate) const TABLES: [&str; 19] = [
    "action", "audit", "counter", "decision", "endpoint", "entity", "event", "final", "history", "inbox", "kept",
    "message", "outbox", "rule", "seen", "session", "settled", "state", "version",
];

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("its schema has version {found}; this binary knows versions up to {VERSION}: use a newer sprag")]
    Newer { found: i64 },
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
}

/// Brings the file to [`VERSION`].
pub(crate) fn migrate(connection: &mut Connection) -> Result<(), Error> {
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let Some(missing) = usize::try_from(found).ok().and_then(|done| STEPS.get(done..)) else {
        return Err(Error::Newer { found });
    };
    for (number, step) in (found + 1..).zip(missing) {
        let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        transaction.execute_batch(step)?;
        transaction.pragma_update(None, "user_version", number)?;
        transaction.commit()?;
    }
    Ok(())
}

/// Version 1, frozen: a change of the tables is a new step. `tests/fixtures/schema_v1.sql` holds a copy that a test compares.
pub(crate) const V1: &str = r#"
-- Counters that must never go back; written in blocks, see `Counter`.
CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE endpoint (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
-- Which component ran: (handler, digest), interned because every event and every line of history names one.
CREATE TABLE version (id INTEGER PRIMARY KEY, handler TEXT, digest BLOB);

CREATE TABLE entity (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, spec TEXT NOT NULL);

-- state: 0 active, 1 scheduled, 2 parked, 3 dead letter. flags: 1 the id was given by the broker.
CREATE TABLE message (
  seq INTEGER PRIMARY KEY,
  entity INTEGER NOT NULL,
  state INTEGER NOT NULL,
  session TEXT,
  id_hash INTEGER NOT NULL,
  enqueued_at INTEGER NOT NULL,
  expires_at INTEGER,
  due INTEGER,
  deliveries INTEGER NOT NULL,
  flags INTEGER NOT NULL,
  parked_as INTEGER,
  moved_at INTEGER,
  reason TEXT,
  description TEXT,
  size INTEGER NOT NULL,
  header BLOB NOT NULL,
  body BLOB NOT NULL
);
CREATE INDEX message_id ON message (id_hash);

CREATE TABLE session (entity INTEGER NOT NULL, session TEXT NOT NULL, state BLOB NOT NULL, PRIMARY KEY (entity, session)) WITHOUT ROWID;

-- Message ids that an entity with duplicate detection has seen.
CREATE TABLE seen (
  id INTEGER PRIMARY KEY, entity INTEGER NOT NULL, id_hash INTEGER NOT NULL, message_id TEXT NOT NULL, at INTEGER NOT NULL, seq INTEGER NOT NULL
);
CREATE INDEX seen_id ON seen (id_hash);
CREATE INDEX seen_age ON seen (entity, at);

CREATE TABLE inbox (id INTEGER PRIMARY KEY, hash INTEGER NOT NULL, endpoint INTEGER NOT NULL, recorded_at INTEGER NOT NULL, message_id TEXT NOT NULL);
CREATE INDEX inbox_hash ON inbox (hash);
CREATE INDEX inbox_age ON inbox (endpoint, recorded_at);

CREATE TABLE final (id INTEGER PRIMARY KEY, hash INTEGER NOT NULL, endpoint INTEGER NOT NULL, at INTEGER NOT NULL, message_id TEXT NOT NULL);
CREATE INDEX final_hash ON final (hash);

CREATE TABLE decision (
  id INTEGER PRIMARY KEY, hash INTEGER NOT NULL, endpoint INTEGER NOT NULL, message_id TEXT NOT NULL, outcome INTEGER NOT NULL, rest BLOB NOT NULL, at INTEGER NOT NULL
);
CREATE INDEX decision_hash ON decision (hash);

-- recorded_at: the inbox record of the message whose id is the event id, the usual case, where the event was new: one row less and one look-up
-- less than a row of its own in `inbox`, which holds all other records. outcome null: only history is known. message_id and source_id are null when absent or the same as event_id (flags 1 and 2 say which).
CREATE TABLE event (
  id INTEGER PRIMARY KEY,
  hash INTEGER NOT NULL,
  endpoint INTEGER NOT NULL,
  event_id TEXT NOT NULL,
  flags INTEGER NOT NULL,
  message_id TEXT,
  source_id TEXT,
  session TEXT,
  event_type TEXT NOT NULL,
  outcome INTEGER,
  reason TEXT,
  error_kind TEXT,
  error_text TEXT,
  attempts INTEGER NOT NULL,
  version INTEGER,
  enqueued_at INTEGER NOT NULL,
  at INTEGER NOT NULL,
  recorded_at INTEGER,
  lines INTEGER NOT NULL,
  duplicates INTEGER NOT NULL
);
CREATE INDEX event_hash ON event (hash);
CREATE INDEX event_recorded ON event (endpoint, recorded_at) WHERE recorded_at IS NOT NULL;
CREATE INDEX event_outcome ON event (outcome, at, id);
CREATE INDEX event_message ON event (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX event_source ON event (source_id) WHERE source_id IS NOT NULL;
-- Completed events are not in it: they are the many, and the usual message must not pay for a listing.
CREATE INDEX event_session ON event (session, at) WHERE outcome <> 1;

CREATE TABLE history (
  event INTEGER NOT NULL,
  n INTEGER NOT NULL,
  kind INTEGER NOT NULL,
  at INTEGER NOT NULL,
  message_id TEXT,
  outcome INTEGER,
  attempt INTEGER NOT NULL,
  started_at INTEGER,
  took INTEGER,
  version INTEGER,
  reason TEXT,
  error_kind TEXT,
  error_text TEXT,
  by_whom TEXT,
  PRIMARY KEY (event, n)
) WITHOUT ROWID;

-- The message of an unresolved event.
CREATE TABLE kept (event INTEGER PRIMARY KEY, session TEXT, header BLOB NOT NULL, body BLOB NOT NULL);

CREATE TABLE state (endpoint INTEGER NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, value BLOB NOT NULL, PRIMARY KEY (endpoint, key)) WITHOUT ROWID;

-- again_at null: poison.
CREATE TABLE outbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  endpoint INTEGER NOT NULL,
  entity TEXT NOT NULL,
  session TEXT,
  message_id TEXT,
  event_id TEXT,
  created_at INTEGER NOT NULL,
  tries INTEGER NOT NULL,
  error TEXT,
  again_at INTEGER,
  claimed_until INTEGER NOT NULL,
  header BLOB NOT NULL,
  body BLOB NOT NULL
);
CREATE INDEX outbox_lane ON outbox (entity, session);

-- state: 0 open, 1 applied, 2 conflict.
CREATE TABLE action (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  kind INTEGER NOT NULL,
  endpoint INTEGER NOT NULL,
  event_id TEXT,
  session TEXT,
  reason TEXT,
  by_whom TEXT NOT NULL,
  at INTEGER NOT NULL,
  state INTEGER NOT NULL,
  text TEXT,
  ended_at INTEGER,
  idempotency_key TEXT,
  audit INTEGER
);
CREATE INDEX action_open ON action (endpoint, event_id, session) WHERE state = 0;
CREATE UNIQUE INDEX action_key ON action (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX action_audit ON action (audit);

CREATE TABLE audit (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  by_whom TEXT NOT NULL,
  verb TEXT NOT NULL,
  endpoint TEXT,
  target TEXT NOT NULL,
  reason TEXT,
  count INTEGER NOT NULL
);
"#;

/// Version 2: entities that are administered, rules, deferred messages.
///
/// `message.state` has two more values: 4 deferred, 5 a deferred dead letter. `message.enqueue_seq` is the number under which a message that
/// came due, or was forwarded, was accepted; null when it is its own. `entity.declared` is the spec as configuration gave it last, so that
/// the next declaration knows what configuration has changed and what the administration has.
const V2: &str = r#"
ALTER TABLE message ADD COLUMN enqueue_seq INTEGER;

ALTER TABLE session ADD COLUMN updated_at INTEGER NOT NULL DEFAULT 0;

ALTER TABLE entity ADD COLUMN declared TEXT;
ALTER TABLE entity ADD COLUMN created_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE entity ADD COLUMN updated_at INTEGER NOT NULL DEFAULT 0;
UPDATE entity SET declared = spec, created_at = unixepoch() * 1000, updated_at = unixepoch() * 1000;

CREATE TABLE rule (entity INTEGER NOT NULL, name TEXT NOT NULL, spec TEXT NOT NULL, created_at INTEGER NOT NULL, PRIMARY KEY (entity, name)) WITHOUT ROWID;
INSERT INTO rule (entity, name, spec, created_at)
  SELECT id, '$Default', json_object('name', '$Default', 'filter', spec -> '$.kind.subscription'), created_at
  FROM entity WHERE spec -> '$.kind.subscription' IS NOT NULL;
"#;

/// Version 3: messages that are done and whose rows go later, see `messages::end`.
const V3: &str = "CREATE TABLE settled (seq INTEGER PRIMARY KEY);";

/// Version 4: `message.state` has two more values, 6 a transfer dead letter and 7 a deferred one. No table changes; the number does, so that a
/// binary that would take such a row for an active message refuses the file.
const V4: &str = "";

/// Version 5: leases, see `leases.rs`. expires_at null: handed off.
const V5: &str = r#"
CREATE TABLE sprag_lease (
  id INTEGER PRIMARY KEY, hash INTEGER NOT NULL, endpoint INTEGER NOT NULL, message_id TEXT NOT NULL, owner TEXT NOT NULL, taken_at INTEGER NOT NULL, expires_at INTEGER
);
CREATE INDEX sprag_lease_hash ON sprag_lease (hash);
CREATE INDEX sprag_lease_age ON sprag_lease (endpoint, taken_at);
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_known_as_the_hosts() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection).unwrap();
        let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name NOT LIKE 'sprag%' ORDER BY name";
        let mut statement = connection.prepare(sql).unwrap();
        let tables: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        assert_eq!(tables, TABLES);
    }

    /// The first version is as the fixture froze it.
    #[test]
    fn version_1_has_not_changed() {
        let tables = |sql: &str| {
            let connection = Connection::open_in_memory().unwrap();
            connection.execute_batch(sql).unwrap();
            let mut statement =
                connection.prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name").unwrap();
            let tables = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
            tables.map(Result::unwrap).collect::<Vec<_>>()
        };
        assert_eq!(tables(V1), tables(include_str!("../tests/fixtures/schema_v1.sql")));
    }
}
