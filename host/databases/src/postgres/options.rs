//! What a store on PostgreSQL is opened with, and every way that opening can fail.

use std::{path::PathBuf, time::Duration};

pub use crate::url::Url;

/// How to reach the database and how to use it.
#[derive(Debug, Clone)]
pub struct Options {
    pub url: Url,
    /// Authorities beside the platform's, in PEM. The URL's `sslrootcert` is one more.
    pub extra_roots: Vec<PathBuf>,
    /// Connections at most. At least as many as the endpoints' concurrency where handlers use SQL (P36).
    pub pool_size: usize,
    /// Makes and updates the tables. When false they are checked, and what is missing is said.
    pub auto_create_table: bool,
    /// Longest time of one statement, and of the wait for a free connection.
    pub statement_timeout: Duration,
    /// The role that handlers' SQL is carried out as (P37): one without rights on the host's tables that the store's user may take. None: no SQL.
    pub sql_role: Option<String>,
    /// Longest time until a new connection is ready for statements.
    pub connect_timeout: Duration,
}

impl Options {
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: Url::new(url),
            extra_roots: Vec::new(),
            pool_size: 16,
            auto_create_table: true,
            statement_timeout: Duration::from_secs(10),
            sql_role: None,
            connect_timeout: Duration::from_secs(5),
        }
    }
}

/// Why a store could not be opened. No text holds a password, a statement or a message of the server: those are in the debug log.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL or another option is wrong. The text does not repeat the URL.
    #[error("{0}")]
    Options(String),
    #[error("the authorities in {}: {problem}", file.display())]
    Roots { file: PathBuf, problem: String },
    #[error("no authority is known that could vouch for the server; name a file of them")]
    NoRoots,
    #[error("the server {at} cannot be reached: {problem}")]
    Unreachable { at: String, problem: String },
    #[error("TLS with {at} failed: {problem}")]
    Tls { at: String, problem: String },
    /// SQLSTATE class 28.
    #[error(
        "the server {at} does not let user {user:?} in (SQLSTATE {state}): check the password and the server's pg_hba.conf"
    )]
    Refused { at: String, user: String, state: String },
    #[error("the server {at} has no database {database:?}")]
    NoDatabase { at: String, database: String },
    #[error("the database is encoded in {found}; it must be UTF8, because ids and texts can hold any character")]
    Encoding { found: String },
    #[error("the server is PostgreSQL {found}; {oldest} is the oldest that has what is needed")]
    TooOld { found: String, oldest: u32 },
    #[error(
        "the database's tables are of version {found}; this binary knows versions up to {known}: use a newer sprag"
    )]
    Newer { found: i32, known: i32 },
    #[error(
        "the database's tables are of version {found} and this binary needs {known}: open it once with auto_create_table = true, or run the statements of `schema_sql`"
    )]
    Older { found: i32, known: i32 },
    /// What is not there or is otherwise than it must be, one entry each.
    #[error("the database's tables are not as they must be: {}", .0.join("; "))]
    Schema(Vec<String>),
    #[error(
        "the tables may not be made by user {user:?} (SQLSTATE 42501): grant CREATE on the schema, or make them beforehand and set auto_create_table = false"
    )]
    Rights { user: String },
    #[error("the role {role:?} for handlers' SQL (sql_role): {problem}")]
    Role { role: String, problem: String },
    #[error("the database answered with SQLSTATE {state} while it was opened")]
    Sql { state: String },
    /// It may work later: the server starts up, has no connection left, did not answer in time.
    #[error("{0}")]
    Unavailable(String),
}
