//! SQL of one run: its transaction begins with its first statement, and ends with the run's commit or without effect.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use sprag_core::{
    ids::EndpointName,
    sql::{Rows, Statement, StatementError, TransactionId},
};
use sprag_runtime::RunSql;
use sprag_store::Store;

/// What one run is given. The transaction is rolled back when this goes, unless a write has ended it.
pub(crate) struct Transaction {
    store: Arc<dyn Store>,
    endpoint: EndpointName,
    database: Arc<str>,
    id: Mutex<Option<TransactionId>>,
    conflict: AtomicBool,
}

impl Transaction {
    pub(crate) fn new(store: Arc<dyn Store>, endpoint: EndpointName, database: Arc<str>) -> Self {
        Self { store, endpoint, database, id: Mutex::default(), conflict: AtomicBool::new(false) }
    }

    /// What was begun, for the run's unit of work.
    pub(crate) fn id(&self) -> Option<TransactionId> {
        *self.id.lock()
    }

    /// Others were in the way: the run is to be repeated (P4).
    pub(crate) fn had_conflict(&self) -> bool {
        self.conflict.load(Relaxed)
    }

    /// Ends it without effect, unless a write has ended it. An instance that is kept for the next run keeps this, too, so its owner calls it.
    pub(crate) fn end(&self) {
        if let (Some(id), Some(sql)) = (self.id.lock().take(), self.store.sql()) {
            sql.roll_back(id);
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.end();
    }
}

#[async_trait]
impl RunSql for Transaction {
    fn database(&self) -> &str {
        &self.database
    }

    async fn statement(&self, statement: Statement) -> Result<Rows, StatementError> {
        let none = || StatementError::Refused("the endpoint's store has no SQL".to_owned());
        let sql = self.store.sql().ok_or_else(none)?;
        let begun = *self.id.lock();
        let id = match begun {
            Some(id) => id,
            None => {
                let id = sql.begin(&self.endpoint).await?;
                *self.id.lock() = Some(id);
                id
            }
        };
        let result = sql.statement(id, statement).await;
        if result == Err(StatementError::Conflict) {
            self.conflict.store(true, Relaxed);
        }
        result
    }
}
