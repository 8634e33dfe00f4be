//! SQL in the transaction that the run's commit ends.
//!
//! It begins with the first statement and commits together with the record that the message is done. A run that fails, or that turns out to be a
//! second copy, leaves nothing. A statement that fails changes nothing, and the run may go on.
//!
//! ```no_run
//! use sprag_handler::{Failure, sql};
//!
//! fn book(account: &str, cents: i64) -> Result<(), Failure> {
//!     let bank = sql::Database::new("embedded");
//!     let changed = bank.execute("UPDATE account SET cents = cents + $1 WHERE name = $2", &[cents.into(), account.into()])?;
//!     if changed == 0 {
//!         return Err(Failure::failed("no-account", format!("there is no account {account}")));
//!     }
//!     Ok(())
//! }
//! ```

use crate::Failure;
use crate::bindings::sprag::handler::sql;

pub use crate::bindings::sprag::handler::sql::{Failure as StatementFailure, Rows, SqlError, Value};

/// The database that `sprag.toml` grants: `grant = ["sql:NAME"]`, with the name of the endpoint's store.
#[derive(Debug, Clone, Copy)]
pub struct Database<'n> {
    name: &'n str,
}

impl<'n> Database<'n> {
    pub const fn new(name: &'n str) -> Self {
        Self { name }
    }

    /// The rows of one statement. Its parameters are written `$1`, `$2`.
    pub fn query(&self, statement: &str, parameters: &[Value]) -> Result<Rows, SqlError> {
        sql::query(self.name, statement, parameters)
    }

    /// Carries one statement out. Answers how many rows it inserted, changed or deleted.
    pub fn execute(&self, statement: &str, parameters: &[Value]) -> Result<u64, SqlError> {
        sql::execute(self.name, statement, parameters)
    }

    /// The first value of the first row, if there is one.
    pub fn value(&self, statement: &str, parameters: &[Value]) -> Result<Option<Value>, SqlError> {
        Ok(self.query(statement, parameters)?.rows.into_iter().next().and_then(|row| row.into_iter().next()))
    }
}

impl Value {
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Integer(it) => Some(*it),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Decimal(text) | Self::Uuid(text) | Self::Json(text) => Some(text),
            _ => None,
        }
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<Vec<u8>> for Value {
    fn from(value: Vec<u8>) -> Self {
        Self::Bytes(value)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Failure {
        match error {
            SqlError::Refused(text) => Failure::failed("sql-refused", text),
            SqlError::Failed(StatementFailure { code, text, .. }) => Failure::failed("sql", format!("{text} ({code})")),
            SqlError::TooMuch(text) => Failure::failed("sql-too-much", text),
            // How the run ends is the host's to say, whatever it returns; this says the same.
            SqlError::Over(text) => Failure::transient(text),
        }
    }
}
