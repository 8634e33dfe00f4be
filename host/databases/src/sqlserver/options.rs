//! What a store on SQL Server is opened with, and every way that opening can fail.

use std::{path::PathBuf, time::Duration};

pub use crate::url::Url;

/// How to reach the database and how to use it.
#[derive(Debug, Clone)]
pub struct Options {
    /// `mssql://user:password@host:port/database?encrypt=true`, or an ADO.NET connection string.
    pub url: Url,
    /// The schema of the host's own tables.
    pub schema: String,
    /// Schema and name of the inbox's table, which may be shared with NimBus.
    pub inbox_schema: String,
    pub inbox_table: String,
    /// Authorities beside the platform's, in PEM. The URL's `TrustServerCertificateCA` is one more.
    pub extra_roots: Vec<PathBuf>,
    /// Connections at most. At least as many as the endpoints' concurrency where handlers use SQL (P36).
    pub pool_size: usize,
    /// Makes and updates the tables. When false they are checked, and what is missing is said.
    pub auto_create_table: bool,
    /// Longest time of one statement, and of the wait for a free connection.
    pub statement_timeout: Duration,
    /// Longest time until a new connection is ready for statements.
    pub connect_timeout: Duration,
}

impl Options {
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: Url::new(url),
            schema: "sprag".to_owned(),
            inbox_schema: "nimbus".to_owned(),
            inbox_table: "InboxMessages".to_owned(),
            extra_roots: Vec::new(),
            pool_size: 16,
            auto_create_table: true,
            statement_timeout: Duration::from_secs(10),
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
    #[error("no authority is known that could vouch for the server; name a file of them (TrustServerCertificateCA)")]
    NoRoots,
    #[error("the server {at} cannot be reached: {problem}")]
    Unreachable { at: String, problem: String },
    /// The server offers no encryption, or its certificate is not trusted. Never answered by going on without (A56).
    #[error("TLS with {at} failed: {problem}; see Encrypt, TrustServerCertificateCA and TrustServerCertificate")]
    Tls { at: String, problem: String },
    #[error("the server {at} does not let user {user:?} in (error {number}): check the login and its password")]
    Refused { at: String, user: String, number: u32 },
    #[error("the server {at} has no database {database:?} for this login (error {number})")]
    NoDatabase { at: String, database: String, number: u32 },
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
        "the tables may not be made by user {user:?} (error {number}): grant CREATE TABLE and CREATE SCHEMA, or make them beforehand and set auto_create_table = false"
    )]
    Rights { user: String, number: u32 },
    #[error("the database answered with error {number} while it was opened")]
    Sql { number: u32 },
    /// It may work later: the server starts up, has no connection left, did not answer in time.
    #[error("{0}")]
    Unavailable(String),
}
