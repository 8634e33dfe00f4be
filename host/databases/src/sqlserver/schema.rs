//! The tables: how they are made, brought forward and checked.
//!
//! The version stands in the one row of `schema_version`. Steps that are missing are taken in one transaction. Several hosts may start at once: who
//! comes second finds a name taken, and then the tables. Tables newer than this binary are refused, because writing into them could lose what
//! the newer one keeps there.
//!
//! The check looks at columns, types and keys, and joins the catalogue by its numbers: names of keys and constraints are the catalogue's own business.

use std::collections::BTreeMap;

use super::{
    connections::{Connection, OpenFault},
    fault::{DUPLICATE_OBJECT, Fault},
    options::OpenError,
    script::{Names, Script, binary, number, optional_number, optional_text, text},
};

/// The version that this binary writes.
pub const VERSION: i32 = 1;

/// What takes the tables from version `n` to `n + 1`, in order.
const STEPS: [&str; VERSION as usize] = [include_str!("schema_v1.sql")];

/// How often a host begins again that found others making the same tables.
const TRIES: u32 = 10;

/// The first slots of `gate` are for claims of the outbox and for acceptance of actions; from [`STATE_SLOT`] on they are for state.
pub(crate) const CLAIM_SLOT: i64 = 1;
pub(crate) const ACCEPT_SLOT: i64 = 2;
pub(crate) const STATE_SLOT: i64 = 16;
pub(crate) const STATE_SLOTS: i64 = 128;

const VERSION_TABLE: &str = "CREATE TABLE #schema_version (one bigint NOT NULL PRIMARY KEY, version bigint NOT NULL)";

/// As NimBus makes it (`reference/nimbus-barewire.md` 1.15), so that both may use one.
const INBOX: [&str; 2] = [
    concat!(
        "CREATE TABLE #inbox (IdentityHash binary(32) NOT NULL, EndpointId nvarchar(260) ",
        binary!(),
        " NOT NULL, MessageId nvarchar(512) ",
        binary!(),
        " NOT NULL, CreatedAtUtc datetime2 NOT NULL CONSTRAINT [DF_{table}_CreatedAtUtc] DEFAULT SYSUTCDATETIME(), \
         CONSTRAINT [PK_{table}] PRIMARY KEY NONCLUSTERED (IdentityHash))"
    ),
    "CREATE CLUSTERED INDEX [IX_{table}_CreatedAtUtc] ON #inbox (CreatedAtUtc)",
];

/// What a column must be. Lengths in bytes for bytes, in characters for texts; -1 is any length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Number,
    Hash,
    Bytes(i64),
    Text(i64),
    Time,
}

impl Kind {
    fn name(self) -> String {
        let length = |length: i64| if length < 0 { "max".to_owned() } else { length.to_string() };
        match self {
            Self::Number => "bigint".to_owned(),
            Self::Hash => "binary(32)".to_owned(),
            Self::Bytes(most) => format!("varbinary({})", length(most)),
            Self::Text(most) => format!("nvarchar({})", length(most)),
            Self::Time => "datetime2".to_owned(),
        }
    }

    fn takes(self, found: &Column) -> bool {
        let room = |most: i64| found.length < 0 || (most >= 0 && found.length >= most);
        match self {
            Self::Number => found.kind == "bigint",
            Self::Hash => found.kind == "binary" && found.length == 32,
            Self::Bytes(most) => found.kind == "varbinary" && room(most),
            Self::Text(most) => found.kind == "nvarchar" && room(most),
            Self::Time => found.kind == "datetime2",
        }
    }
}

use Kind::{Bytes, Hash, Number, Text, Time};

const MAX: i64 = -1;
const WORD: Kind = Text(40);
const ANY: Kind = Text(MAX);
const BLOB: Kind = Bytes(MAX);

type Columns = &'static [(&'static str, Kind)];

/// Tables, their columns as the store uses them, and the keys that arbitrate between hosts: without one of these two hosts would both win. The
/// check looks at these and not at what else there is.
const TABLES: [(&str, Columns, &[&str]); 13] = [
    ("schema_version", &[("one", Number), ("version", Number)], &["one"]),
    (
        "inbox",
        &[("IdentityHash", Hash), ("EndpointId", Text(260)), ("MessageId", Text(512)), ("CreatedAtUtc", Time)],
        &["IdentityHash"],
    ),
    ("final", &[("hash", Hash), ("endpoint", ANY), ("message_id", ANY), ("noted_at", Number)], &["hash"]),
    (
        "decision",
        &[
            ("hash", Hash),
            ("endpoint", ANY),
            ("message_id", ANY),
            ("outcome", WORD),
            ("rest", BLOB),
            ("noted_at", Number),
        ],
        &["hash"],
    ),
    (
        "event",
        &[
            ("hash", Hash),
            ("endpoint", ANY),
            ("event_id", ANY),
            ("message_id", ANY),
            ("source_id", ANY),
            ("session_id", ANY),
            ("event_type", ANY),
            ("outcome", WORD),
            ("reason", ANY),
            ("error_kind", ANY),
            ("error_text", ANY),
            ("attempts", Number),
            ("handler", ANY),
            ("digest", Bytes(32)),
            ("enqueued_at", Number),
            ("noted_at", Number),
            ("kept_session", ANY),
            ("kept_header", BLOB),
            ("kept_body", BLOB),
            ("id_key", Hash),
            ("message_key", Hash),
            ("source_key", Hash),
            ("session_key", Hash),
        ],
        &["hash"],
    ),
    (
        "history",
        &[
            ("event", Hash),
            ("n", Number),
            ("kind", WORD),
            ("noted_at", Number),
            ("message_id", ANY),
            ("outcome", WORD),
            ("attempt", Number),
            ("started_at", Number),
            ("took", Number),
            ("handler", ANY),
            ("digest", Bytes(32)),
            ("reason", ANY),
            ("error_kind", ANY),
            ("error_text", ANY),
            ("by_whom", ANY),
        ],
        &["event, n"],
    ),
    (
        "state",
        &[
            ("hash", Hash),
            ("endpoint_key", Hash),
            ("key_start", Bytes(800)),
            ("state_key", BLOB),
            ("version", Number),
            ("content", BLOB),
        ],
        &["hash"],
    ),
    (
        "outbox",
        &[
            ("id", Number),
            ("endpoint_key", Hash),
            ("endpoint", ANY),
            ("entity", ANY),
            ("session_id", ANY),
            ("lane", Hash),
            ("message_id", ANY),
            ("event_id", ANY),
            ("created_at", Number),
            ("tries", Number),
            ("error", ANY),
            ("again_at", Number),
            ("claimed_until", Number),
            ("header", BLOB),
            ("body", BLOB),
        ],
        &["id"],
    ),
    (
        "audit",
        &[
            ("id", Number),
            ("noted_at", Number),
            ("by_whom", ANY),
            ("verb", ANY),
            ("endpoint", ANY),
            ("target", ANY),
            ("reason", ANY),
            ("events", Number),
        ],
        &["id"],
    ),
    (
        "action",
        &[
            ("id", Number),
            ("kind", WORD),
            ("endpoint", ANY),
            ("event_id", ANY),
            ("session_id", ANY),
            ("reason", ANY),
            ("by_whom", ANY),
            ("noted_at", Number),
            ("state", WORD),
            ("end_text", ANY),
            ("ended_at", Number),
            ("audit", Number),
        ],
        &["id"],
    ),
    ("open_action", &[("target", Hash), ("action_id", Number)], &["target"]),
    ("action_key", &[("hash", Hash), ("action_id", Number)], &["hash"]),
    ("gate", &[("slot", Number), ("passed", Number)], &["slot"]),
];

/// The statements that make the tables, each a batch of its own, for an administrator who runs them beforehand. `names` are the schema of the
/// host's tables, the inbox's schema and the inbox's table, as in the options.
pub fn schema_sql(options: &super::Options) -> Result<Vec<String>, OpenError> {
    let names = Names::new(options)?;
    let mut batches: Vec<String> = schemas(&names).map(|schema| format!("CREATE SCHEMA [{schema}]")).collect();
    batches.extend(inbox(&names));
    batches.push(names.fill(VERSION_TABLE));
    batches.extend(STEPS.iter().flat_map(|step| statements(step)).map(|text| names.fill(text)));
    batches.extend(gates().map(|text| names.fill(&text)));
    batches.push(names.fill(&note(VERSION)));
    Ok(batches)
}

/// The schemas that tables are in, each once.
fn schemas(names: &Names) -> impl Iterator<Item = &str> {
    let same = names.schema.eq_ignore_ascii_case(&names.inbox_schema);
    [Some(names.schema.as_str()), Some(names.inbox_schema.as_str()).filter(|_| !same)].into_iter().flatten()
}

fn inbox(names: &Names) -> impl Iterator<Item = String> {
    INBOX.iter().map(|text| names.fill(&text.replace("{table}", &names.inbox_table)))
}

/// The statements of a step.
fn statements(step: &str) -> impl Iterator<Item = &str> {
    step.split(";\n")
        .map(|text| {
            // Comments stand before a statement.
            let mut rest = text.trim();
            while rest.starts_with("--") {
                rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
            }
            rest
        })
        .filter(|text| !text.is_empty())
}

/// The rows to stand in line at.
fn gates() -> impl Iterator<Item = String> {
    let slots: Vec<i64> = [CLAIM_SLOT, ACCEPT_SLOT].into_iter().chain(STATE_SLOT..STATE_SLOT + STATE_SLOTS).collect();
    let rows: Vec<String> = slots.iter().map(|slot| format!("({slot}, 0)")).collect();
    std::iter::once(format!("INSERT INTO #gate (slot, passed) VALUES {}", rows.join(", ")))
}

fn note(version: i32) -> String {
    format!("INSERT INTO #schema_version (one, version) VALUES (1, {version})")
}

/// Makes sure of the tables, or says what is wrong with them.
pub(crate) async fn prepare(connection: &mut Connection, auto_create: bool) -> Result<(), OpenFault> {
    let names = connection.names();
    let found = version(connection, &names).await?;
    if found > VERSION {
        return Err(OpenError::Newer { found, known: VERSION }.into());
    }
    if auto_create {
        make(connection, &names).await?;
    } else if found > 0 && found < VERSION {
        return Err(OpenError::Older { found, known: VERSION }.into());
    }
    // A version that is not there is shown by what is missing.
    match problems(connection, &names).await? {
        problems if problems.is_empty() => Ok(()),
        problems => Err(OpenError::Schema(problems).into()),
    }
}

const TABLE_IS_THERE: &str = "SELECT 1 FROM sys.tables AS t INNER JOIN sys.schemas AS s ON s.schema_id = t.schema_id \
     WHERE s.name = ? AND t.name = ?";
const SCHEMA_IS_THERE: &str = "SELECT 1 FROM sys.schemas AS s WHERE s.name = ?";

/// 0: there are no tables yet.
async fn version(connection: &mut Connection, names: &Names) -> Result<i32, Fault> {
    if !has_table(connection, names, &names.schema, "schema_version").await? {
        return Ok(0);
    }
    let row = connection.row(Script::of(names, "SELECT version FROM #schema_version WHERE one = 1", vec![])).await?;
    let found = row.map(|row| number(&row, 0)).transpose()?.unwrap_or(0);
    i32::try_from(found).map_err(|_| Fault::Unreadable("the version of the tables is none".to_owned()))
}

async fn has_table(connection: &mut Connection, names: &Names, schema: &str, table: &str) -> Result<bool, Fault> {
    Ok(connection.row(Script::of(names, TABLE_IS_THERE, vec![schema.into(), table.into()])).await?.is_some())
}

/// Makes what is missing, again where others were making it as well.
async fn make(connection: &mut Connection, names: &Names) -> Result<(), OpenFault> {
    let mut tries = 1;
    loop {
        let taken = match in_transaction(connection, names).await {
            Err(OpenFault::Fault(fault)) if is_taken(&fault) => fault,
            other => return other,
        };
        connection.roll_back().await?;
        // Whoever made it has committed by now, or this is not ours.
        if tries == TRIES {
            let problem = format!(
                "a table of the schema {} is there, but not the row in schema_version that tells its version: use another schema or remove it (error {})",
                names.schema,
                taken.number().unwrap_or_default()
            );
            return Err(OpenError::Schema(vec![problem]).into());
        }
        tries += 1;
    }
}

fn is_taken(fault: &Fault) -> bool {
    fault.may_be_repeated() || fault.number().is_some_and(|number| DUPLICATE_OBJECT.contains(&number))
}

async fn in_transaction(connection: &mut Connection, names: &Names) -> Result<(), OpenFault> {
    for schema in schemas(names) {
        if connection.row(Script::of(names, SCHEMA_IS_THERE, vec![schema.into()])).await?.is_none() {
            connection.batch(&format!("CREATE SCHEMA [{schema}]")).await?;
        }
    }
    connection.begin().await?;
    if !has_table(connection, names, &names.inbox_schema, &names.inbox_table).await? {
        for text in inbox(names) {
            connection.batch(&text).await?;
        }
    }
    let found = version(connection, names).await?;
    let Some(missing) = usize::try_from(found).ok().and_then(|done| STEPS.get(done..)) else {
        return Err(OpenError::Newer { found, known: VERSION }.into());
    };
    if !missing.is_empty() {
        take_steps(connection, names, found, missing).await?;
    }
    connection.end(Ok(())).await?;
    Ok(())
}

async fn take_steps(
    connection: &mut Connection,
    names: &Names,
    found: i32,
    missing: &[&'static str],
) -> Result<(), Fault> {
    if found == 0 && !has_table(connection, names, &names.schema, "schema_version").await? {
        connection.batch(&names.fill(VERSION_TABLE)).await?;
    }
    for step in missing {
        for text in statements(step) {
            connection.batch(&names.fill(text)).await?;
        }
    }
    if found == 0 {
        for text in gates() {
            connection.batch(&names.fill(&text)).await?;
        }
        return connection.batch(&names.fill(&note(VERSION))).await;
    }
    connection.batch(&names.fill(&format!("UPDATE #schema_version SET version = {VERSION} WHERE one = 1"))).await
}

#[derive(Debug)]
struct Column {
    kind: String,
    /// In bytes for bytes, in characters for texts; -1 is any length.
    length: i64,
    collation: Option<String>,
}

const COLUMNS: &str = "SELECT c.COLUMN_NAME, c.DATA_TYPE, c.CHARACTER_MAXIMUM_LENGTH, c.COLLATION_NAME FROM INFORMATION_SCHEMA.COLUMNS AS c \
     WHERE c.TABLE_SCHEMA = ? AND c.TABLE_NAME = ?";
const KEYS: &str = "SELECT i.index_id, c.name FROM sys.indexes AS i INNER JOIN sys.tables AS t ON t.object_id = i.object_id \
     INNER JOIN sys.schemas AS s ON s.schema_id = t.schema_id \
     INNER JOIN sys.index_columns AS k ON k.object_id = i.object_id AND k.index_id = i.index_id \
     INNER JOIN sys.columns AS c ON c.object_id = k.object_id AND c.column_id = k.column_id \
     WHERE s.name = ? AND t.name = ? AND i.is_unique = 1 AND i.has_filter = 0 AND i.is_disabled = 0 AND k.key_ordinal > 0 ORDER BY i.index_id, k.key_ordinal";

/// What of [`TABLES`] is not there.
async fn problems(connection: &mut Connection, names: &Names) -> Result<Vec<String>, Fault> {
    let mut problems = Vec::new();
    for (table, columns, keys) in TABLES {
        let (schema, name) = match table {
            "inbox" => (names.inbox_schema.as_str(), names.inbox_table.as_str()),
            own => (names.schema.as_str(), own),
        };
        let shown = format!("{schema}.{name}");
        let found = columns_of(connection, names, schema, name).await?;
        if found.is_empty() {
            problems.push(format!("table {shown} is missing"));
            continue;
        }
        for (column, kind) in columns {
            if let Some(problem) = problem_of(&found, column, *kind) {
                problems.push(format!("column {shown}.{column} {problem}"));
            }
        }
        let unique = keys_of(connection, names, schema, name).await?;
        for key in keys {
            if !unique.iter().any(|found| found == key) {
                problems.push(format!("table {shown} has no unique key on ({key})"));
            }
        }
    }
    Ok(problems)
}

fn problem_of(found: &BTreeMap<String, Column>, column: &str, kind: Kind) -> Option<String> {
    let Some(found) = found.get(column) else { return Some(format!("({}) is missing", kind.name())) };
    if !kind.takes(found) {
        let found = match found.kind.as_str() {
            plain @ ("bigint" | "datetime2" | "int") => plain.to_owned(),
            sized if found.length < 0 => format!("{sized}(max)"),
            sized => format!("{sized}({})", found.length),
        };
        return Some(format!("is of type {found} and must be {}", kind.name()));
    }
    // Another equality of letters would make two ids one.
    let binary = |name: &str| {
        let name = name.to_ascii_uppercase();
        name.ends_with("_BIN2") || name.ends_with("_BIN")
    };
    if matches!(kind, Text(_)) && !found.collation.as_deref().is_some_and(binary) {
        return Some(concat!("must have ", binary!()).to_owned());
    }
    None
}

async fn columns_of(
    connection: &mut Connection,
    names: &Names,
    schema: &str,
    table: &str,
) -> Result<BTreeMap<String, Column>, Fault> {
    let rows = connection.rows(Script::of(names, COLUMNS, vec![schema.into(), table.into()])).await?;
    let mut columns = BTreeMap::new();
    for row in rows {
        let column = Column {
            kind: text(&row, 1)?.to_ascii_lowercase(),
            length: optional_number(&row, 2)?.unwrap_or(0),
            collation: optional_text(&row, 3)?,
        };
        columns.insert(text(&row, 0)?, column);
    }
    Ok(columns)
}

/// The columns of each unique key, as text.
async fn keys_of(connection: &mut Connection, names: &Names, schema: &str, table: &str) -> Result<Vec<String>, Fault> {
    let rows = connection.rows(Script::of(names, KEYS, vec![schema.into(), table.into()])).await?;
    let mut keys: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    for row in rows {
        keys.entry(number(&row, 0)?).or_default().push(text(&row, 1)?);
    }
    Ok(keys.into_values().map(|columns| columns.join(", ")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlserver::Options;

    /// The check asks for what the statements make: one of them without the other would be found here, not at a customer's.
    #[test]
    fn the_check_knows_every_column_that_is_made() {
        let batches = schema_sql(&Options::new("")).unwrap().join(";\n");
        for (table, columns, _) in TABLES {
            let name =
                if table == "inbox" { "[nimbus].[InboxMessages]".to_owned() } else { format!("[sprag].[{table}]") };
            let start = batches.find(&format!("CREATE TABLE {name} (")).unwrap_or_else(|| panic!("{name}"));
            let body = &batches[start..start + batches[start..].find("\n)").or(batches[start..].find(";\n")).unwrap()];
            for (column, kind) in columns {
                let kind = kind.name();
                assert!(body.contains(&format!("{column} {kind} ")), "{name}: {column} {kind} in {body}");
            }
        }
    }

    #[test]
    fn statements_are_split_and_comments_left_out() {
        let found: Vec<&str> =
            statements("-- a; b\n-- c\nCREATE TABLE x (\n  y int\n);\nCREATE INDEX i ON x (y);\n").collect();
        assert_eq!(found, ["CREATE TABLE x (\n  y int\n)", "CREATE INDEX i ON x (y)"]);
        assert!(STEPS.iter().flat_map(|step| statements(step)).all(|text| text.starts_with("CREATE ")));
    }
}
