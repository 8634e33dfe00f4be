//! A handler's SQL as values: what a run asks of a database, in the transaction that its commit ends, and what comes back.

use std::time::Duration;

use bytes::Bytes;

use crate::time::Timestamp;

/// A transaction that a run has opened in its endpoint's store and that a write ends, or nobody (then nothing of it takes effect).
/// The number means something in the process that opened it, and only while it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransactionId(pub u64);

/// A value that goes into a statement or comes out of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Null,
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    Bytes(Bytes),
    /// As the database writes it: `-12.50`. Never through a float.
    Decimal(String),
    /// Microseconds since 1970-01-01T00:00:00Z.
    Timestamp(i64),
    /// In the canonical form.
    Uuid(String),
    Json(String),
}

impl Value {
    /// About what it takes in memory, for the limit on a result.
    pub fn bytes(&self) -> usize {
        let own = match self {
            Self::Text(text) | Self::Decimal(text) | Self::Uuid(text) | Self::Json(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            _ => 0,
        };
        own + std::mem::size_of::<Self>()
    }

    /// A time for databases that have no type for it, and for parameters sent as text: RFC 3339 in UTC with microseconds.
    pub fn time_text(microseconds: i64) -> String {
        let (millis, rest) = (microseconds.div_euclid(1_000), microseconds.rem_euclid(1_000));
        let text = Timestamp(millis).to_string();
        format!("{}{rest:03}Z", text.trim_end_matches('Z'))
    }
}

/// One statement with its parameters and with what its result may be.
#[derive(Debug, Clone, PartialEq)]
pub struct Statement {
    pub text: String,
    pub parameters: Vec<Value>,
    /// Most rows that are given back; one more is [`StatementError::TooMuch`].
    pub max_rows: usize,
    /// Most bytes of values that are given back.
    pub max_bytes: usize,
    /// How long it may take.
    pub time: Duration,
}

/// What a statement gave.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rows {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Value>>,
    /// Rows that it inserted, changed or deleted; for one that only reads, the rows that it found.
    pub affected: u64,
}

/// Why a statement gave nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StatementError {
    /// A handler may not do this: end the transaction, touch the host's tables. Nothing was carried out, and the transaction goes on.
    #[error("{0}")]
    Refused(String),
    /// The database refused it: a constraint, a syntax error, a missing table. It changed nothing, and the transaction goes on.
    #[error("{text}")]
    Failed {
        /// SQLSTATE, SQL Server's number or SQLite's extended result code.
        code: String,
        /// The constraint that it would break, where the database tells.
        constraint: Option<String>,
        text: String,
    },
    /// More rows or bytes than the handler's limits allow. The transaction goes on.
    #[error("{0}")]
    TooMuch(String),
    /// The transaction is over, and nothing of it takes effect: it or a statement took too long.
    #[error("{0}")]
    Over(String),
    /// Others were in the way (a deadlock, a serialization failure). The transaction is over; the run is to be repeated (P4).
    #[error("another transaction was in the way")]
    Conflict,
    /// The database could not be reached or did not answer. The transaction is over; the run ends as transient (P6).
    #[error("{0}")]
    Unavailable(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_microseconds_before_1970_too() {
        assert_eq!(Value::time_text(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(Value::time_text(1_234_567), "1970-01-01T00:00:01.234567Z");
        assert_eq!(Value::time_text(-1), "1969-12-31T23:59:59.999999Z");
    }
}
