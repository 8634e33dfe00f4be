//! The tables: how they are made, brought forward and checked.
//!
//! The version stands in the one row of `sprag_schema`. Steps that are missing are taken in one transaction under an advisory lock, so several hosts may
//! start at once, and whoever is second finds nothing to do. Tables newer than this binary are refused, because writing into them could lose
//! what the newer one keeps there.

use tokio_postgres::error::SqlState;

use super::{
    connections::{Connection, OpenFault},
    fault::Fault,
    options::OpenError,
};

/// The version that this binary writes.
pub const VERSION: i32 = 2;

/// What takes the tables from version `n` to `n + 1`, in order.
const STEPS: [&str; VERSION as usize] = [include_str!("schema_v1.sql"), include_str!("schema_v2.sql")];

/// `sprag_schema`, which tells the version of the rest.
const VERSION_TABLE: &str = "CREATE TABLE IF NOT EXISTS sprag_schema (one boolean PRIMARY KEY DEFAULT true CHECK (one), version integer NOT NULL);\n";

/// The oldest server that has what is needed: identity columns, hash indexes that survive a crash, `starts_with`, incremental sort.
const OLDEST_SERVER: i32 = 13;

/// "sprag" in the database's space of advisory locks.
const MIGRATION_LOCK: i64 = 0x73_70_72_61_67_00_00_01;

/// Tables and their columns as the store uses them. The check looks at these and not at what else there is.
const COLUMNS: [(&str, &[(&str, &str)]); 11] = [
    ("sprag_schema", &[("one", "boolean"), ("version", "integer")]),
    ("sprag_inbox", &[("hash", "bytea"), ("endpoint", "text"), ("message_id", "text"), ("recorded_at", "bigint")]),
    ("sprag_final", &[("hash", "bytea"), ("endpoint", "text"), ("message_id", "text"), ("at", "bigint")]),
    (
        "sprag_decision",
        &[
            ("hash", "bytea"),
            ("endpoint", "text"),
            ("message_id", "text"),
            ("outcome", "text"),
            ("rest", "bytea"),
            ("at", "bigint"),
        ],
    ),
    (
        "sprag_event",
        &[
            ("hash", "bytea"),
            ("endpoint", "text"),
            ("event_id", "text"),
            ("message_id", "text"),
            ("source_id", "text"),
            ("session", "text"),
            ("event_type", "text"),
            ("outcome", "text"),
            ("reason", "text"),
            ("error_kind", "text"),
            ("error_text", "text"),
            ("attempts", "bigint"),
            ("handler", "text"),
            ("digest", "bytea"),
            ("enqueued_at", "bigint"),
            ("at", "bigint"),
            ("kept_session", "text"),
            ("kept_header", "bytea"),
            ("kept_body", "bytea"),
        ],
    ),
    (
        "sprag_history",
        &[
            ("event", "bytea"),
            ("n", "bigint"),
            ("kind", "text"),
            ("at", "bigint"),
            ("message_id", "text"),
            ("outcome", "text"),
            ("attempt", "bigint"),
            ("started_at", "bigint"),
            ("took", "bigint"),
            ("handler", "text"),
            ("digest", "bytea"),
            ("reason", "text"),
            ("error_kind", "text"),
            ("error_text", "text"),
            ("by_whom", "text"),
        ],
    ),
    ("sprag_state", &[("endpoint", "text"), ("key", "bytea"), ("version", "bigint"), ("value", "bytea")]),
    (
        "sprag_outbox",
        &[
            ("id", "bigint"),
            ("endpoint", "text"),
            ("entity", "text"),
            ("session", "text"),
            ("lane", "bytea"),
            ("message_id", "text"),
            ("event_id", "text"),
            ("created_at", "bigint"),
            ("tries", "bigint"),
            ("error", "text"),
            ("again_at", "bigint"),
            ("claimed_until", "bigint"),
            ("header", "bytea"),
            ("body", "bytea"),
        ],
    ),
    (
        "sprag_audit",
        &[
            ("id", "bigint"),
            ("at", "bigint"),
            ("by_whom", "text"),
            ("verb", "text"),
            ("endpoint", "text"),
            ("target", "text"),
            ("reason", "text"),
            ("count", "bigint"),
        ],
    ),
    (
        "sprag_action",
        &[
            ("id", "bigint"),
            ("kind", "text"),
            ("endpoint", "text"),
            ("event_id", "text"),
            ("session", "text"),
            ("target", "bytea"),
            ("reason", "text"),
            ("by_whom", "text"),
            ("at", "bigint"),
            ("state", "text"),
            ("text", "text"),
            ("ended_at", "bigint"),
            ("idempotency_key", "bytea"),
            ("audit", "bigint"),
        ],
    ),
    (
        "sprag_lease",
        &[
            ("hash", "bytea"),
            ("endpoint", "text"),
            ("message_id", "text"),
            ("owner", "text"),
            ("taken_at", "bigint"),
            ("expires_at", "bigint"),
        ],
    ),
];

/// Keys that arbitrate between hosts. Without one of these two hosts would both win.
const KEYS: [(&str, &str); 10] = [
    ("sprag_inbox", "hash"),
    ("sprag_final", "hash"),
    ("sprag_decision", "hash"),
    ("sprag_event", "hash"),
    ("sprag_history", "event, n"),
    ("sprag_state", "endpoint, key"),
    ("sprag_outbox", "id"),
    ("sprag_action", "target"),
    ("sprag_action", "idempotency_key"),
    ("sprag_lease", "hash"),
];

/// The tables that are the host's.
pub(crate) fn tables() -> impl Iterator<Item = &'static str> {
    COLUMNS.iter().map(|(table, _)| *table)
}

/// The statements that make the tables, for an administrator who runs them beforehand.
pub fn schema_sql() -> String {
    let mut sql = VERSION_TABLE.to_owned();
    STEPS.iter().for_each(|step| sql.push_str(step));
    sql.push_str(&format!(
        "INSERT INTO sprag_schema (version) VALUES ({VERSION}) ON CONFLICT (one) DO UPDATE SET version = EXCLUDED.version;\n"
    ));
    sql
}

/// Makes sure of the tables, or says what is wrong with them.
pub(crate) async fn prepare(connection: Connection<'_>, auto_create: bool) -> Result<(), OpenFault> {
    let server = connection
        .row("SELECT current_setting('server_version_num')::int, current_setting('server_encoding')", &[])
        .await?;
    if let Some(row) = server {
        let (version, encoding): (i32, String) = (row.get(0), row.get(1));
        if version / 10_000 < OLDEST_SERVER {
            let (found, oldest) = ((version / 10_000).to_string(), OLDEST_SERVER.unsigned_abs());
            return Err(OpenError::TooOld { found, oldest }.into());
        }
        if encoding != "UTF8" {
            return Err(OpenError::Encoding { found: encoding }.into());
        }
    }
    let found = version(&connection).await?;
    if found > VERSION {
        return Err(OpenError::Newer { found, known: VERSION }.into());
    }
    if found < VERSION {
        // A version that is not there is shown by what is missing, below.
        if auto_create {
            migrate(&connection).await?;
        } else if found > 0 {
            return Err(OpenError::Older { found, known: VERSION }.into());
        }
    }
    match problems(&connection).await? {
        problems if problems.is_empty() => Ok(()),
        problems => Err(OpenError::Schema(problems).into()),
    }
}

/// 0: there are no tables yet.
async fn version(connection: &Connection<'_>) -> Result<i32, Fault> {
    let there = connection.row("SELECT to_regclass('sprag_schema') IS NOT NULL", &[]).await?;
    if !there.is_some_and(|row| row.get(0)) {
        return Ok(0);
    }
    Ok(connection.row("SELECT version FROM sprag_schema", &[]).await?.map_or(0, |row| row.get(0)))
}

/// One host after another. The lock is taken before the transaction begins: only the beginning of one makes a connection that has looked for a table
/// in vain look again.
async fn migrate(connection: &Connection<'_>) -> Result<(), OpenFault> {
    connection.execute("SELECT pg_advisory_lock($1)", &[&MIGRATION_LOCK]).await?;
    connection.begin().await?;
    take_steps(connection).await?;
    connection.batch("COMMIT").await?;
    // After an error the connection is closed, and with it go transaction and lock.
    connection.execute("SELECT pg_advisory_unlock($1)", &[&MIGRATION_LOCK]).await?;
    Ok(())
}

async fn take_steps(connection: &Connection<'_>) -> Result<(), OpenFault> {
    let found = version(connection).await?;
    let Some(missing) = usize::try_from(found).ok().and_then(|done| STEPS.get(done..)) else {
        return Err(OpenError::Newer { found, known: VERSION }.into());
    };
    connection.batch(VERSION_TABLE).await?;
    for step in missing {
        connection.batch(step).await.map_err(|fault| match fault {
            // A table of that name that is not ours: the check names what is wrong with it.
            Fault::Sql(error) if error.code() == Some(&SqlState::DUPLICATE_TABLE) => {
                OpenFault::Open(OpenError::Schema(vec![
                    "a table whose name begins with sprag_ is there, but not the row in sprag_schema that tells its version: \
                     use another schema (search_path in the URL's options) or remove it"
                        .to_owned(),
                ]))
            }
            other => other.into(),
        })?;
    }
    let note =
        "INSERT INTO sprag_schema (version) VALUES ($1) ON CONFLICT (one) DO UPDATE SET version = EXCLUDED.version";
    connection.execute(note, &[&VERSION]).await?;
    Ok(())
}

/// What of [`COLUMNS`] and [`KEYS`] is not there.
async fn problems(connection: &Connection<'_>) -> Result<Vec<String>, Fault> {
    let tables: Vec<&str> = tables().collect();
    let columns = connection
        .rows(
            "SELECT t.name, a.attname::text, format_type(a.atttypid, a.atttypmod), coalesce(c.collname::text, '') \
             FROM unnest($1::text[]) AS t(name) LEFT JOIN pg_attribute a ON a.attrelid = to_regclass(t.name) AND a.attnum > 0 AND NOT a.attisdropped \
             LEFT JOIN pg_collation c ON c.oid = a.attcollation WHERE to_regclass(t.name) IS NOT NULL AND a.attname IS NOT NULL",
            &[&tables],
        )
        .await?;
    let columns: Vec<(String, String, String, String)> =
        columns.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect();
    let mut problems = Vec::new();
    for (table, wanted) in COLUMNS {
        if !columns.iter().any(|found| found.0 == table) {
            problems.push(format!("table {table} is missing"));
            continue;
        }
        for (column, kind) in wanted {
            match columns.iter().find(|found| found.0 == table && found.1 == *column) {
                None => problems.push(format!("column {table}.{column} ({kind}) is missing")),
                Some((_, _, found, _)) if found != kind => {
                    problems.push(format!("column {table}.{column} is of type {found} and must be {kind}"));
                }
                // Another order or equality of letters would make two ids one.
                Some((_, _, _, collation))
                    if *kind == "text" && !["C", "POSIX", "ucs_basic"].contains(&collation.as_str()) =>
                {
                    problems.push(format!("column {table}.{column} must have COLLATE \"C\""));
                }
                Some(_) => {}
            }
        }
    }
    let keys = connection
        .rows(
            "SELECT t.name, (SELECT string_agg(a.attname::text, ', ' ORDER BY k.n) FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(column_number, n) \
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.column_number WHERE k.n <= i.indnkeyatts) \
             FROM unnest($1::text[]) AS t(name) JOIN pg_index i ON i.indrelid = to_regclass(t.name) WHERE i.indisunique AND i.indisvalid",
            &[&tables],
        )
        .await?;
    let keys: Vec<(String, Option<String>)> = keys.iter().map(|row| (row.get(0), row.get(1))).collect();
    for (table, key) in KEYS {
        let there = columns.iter().any(|found| found.0 == table);
        if there && !keys.iter().any(|found| found.0 == table && found.1.as_deref() == Some(key)) {
            problems.push(format!("table {table} has no unique key on ({key})"));
        }
    }
    let sequence = connection.row("SELECT to_regclass('sprag_version') IS NOT NULL", &[]).await?;
    if !sequence.is_some_and(|row| row.get(0)) {
        problems.push("sequence sprag_version is missing".to_owned());
    }
    Ok(problems)
}
