//! SQL of a run in its endpoint's store: statements in one transaction, which the run's write ends (spec 4, mode `transaction`; P35 to P37).
//!
//! The transaction is open between calls, so it has a name ([`TransactionId`]) that travels in the unit of work. Whoever opens one sees to it that it
//! ends: by [`Store::write`](crate::Store::write), or by [`Sql::roll_back`].
//!
//! Checked by `sql_conformance!`, on every store that has SQL.

use async_trait::async_trait;
use sprag_core::{
    ids::EndpointName,
    sql::{Rows, Statement, StatementError, TransactionId},
};

/// Rules for every implementation:
///
/// - A statement sees what the ones before it in its transaction did, and nobody else does before the write has committed.
/// - One statement at a time, and one statement per text. One that failed changed nothing; the transaction goes on, unless the error says that it is over.
/// - A statement cannot end the transaction, change who it acts as, or read or write the host's tables (P37).
/// - A statement that has begun runs to its end or to its time, even if the caller stops waiting (its connection is not given to another, A31).
#[async_trait]
pub trait Sql: Send + Sync {
    /// Opens a transaction. Waits for room; the caller bounds that.
    async fn begin(&self, endpoint: &EndpointName) -> Result<TransactionId, StatementError>;

    async fn statement(&self, transaction: TransactionId, statement: Statement) -> Result<Rows, StatementError>;

    /// Ends a transaction without effect, soon. Nothing happens where it is over.
    fn roll_back(&self, transaction: TransactionId);
}
