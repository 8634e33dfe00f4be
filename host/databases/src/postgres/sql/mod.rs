//! SQL of runs ([`Sql`](sprag_store::Sql)): a connection that a run holds from its first statement to its commit.
//!
//! Statements are carried out as the role that the configuration names, which has no rights on the host's tables (P37); the write that ends the
//! transaction resets the role first. Each statement stands behind a savepoint, so one that fails changes nothing and the run may go on.
//!
//! Runs never hold the last connections of the pool: a run that waits for the answer to a check or reads state beside its transaction would
//! otherwise wait for itself.

mod guard;
mod role;
mod values;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::TryStreamExt as _;
use parking_lot::Mutex;
use sprag_core::sql::{Rows, Statement, StatementError, TransactionId};
use sprag_store::{Error, Written};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(crate) use role::check as check_role;

use super::{
    batch,
    connections::{Connection, Connections, Lease},
    fault::Fault,
    write::Prepared,
};
use values::Parameter;

/// Connections that stay for everything else.
const KEPT_BACK: usize = 2;

/// The transactions that runs have open.
#[derive(Clone)]
pub(crate) struct Transactions(Arc<Inner>);

struct Inner {
    connections: Connections,
    role: String,
    /// Of the store's own statements.
    statement_timeout: Duration,
    next: AtomicU64,
    open: Mutex<HashMap<TransactionId, Slot>>,
    room: Arc<Semaphore>,
}

/// One statement at a time, in a task that holds the lock.
type Slot = Arc<tokio::sync::Mutex<Transaction>>;

struct Transaction {
    stage: Stage,
    _room: OwnedSemaphorePermit,
}

enum Stage {
    /// No statement came yet, and there is no connection.
    New,
    Open(Lease),
    Over(StatementError),
}

impl Transactions {
    pub(crate) fn new(connections: Connections, role: String, statement_timeout: Duration) -> Self {
        let room = connections.size().saturating_sub(KEPT_BACK).max(1);
        Self(Arc::new(Inner {
            connections,
            role,
            statement_timeout,
            next: AtomicU64::new(1),
            open: Mutex::default(),
            room: Arc::new(Semaphore::new(room)),
        }))
    }

    pub(crate) async fn begin(&self) -> Result<TransactionId, StatementError> {
        let room = Arc::clone(&self.0.room).acquire_owned().await;
        let room = room.map_err(|_| StatementError::Unavailable("the store is closed".to_owned()))?;
        let id = TransactionId(self.0.next.fetch_add(1, Relaxed));
        let transaction = Transaction { stage: Stage::New, _room: room };
        self.0.open.lock().insert(id, Arc::new(tokio::sync::Mutex::new(transaction)));
        Ok(id)
    }

    /// In a task of its own, so that it goes on to its end when the run was stopped: a connection in the middle of a statement is nobody's (A31).
    pub(crate) async fn statement(&self, id: TransactionId, statement: Statement) -> Result<Rows, StatementError> {
        guard::check(&statement.text).map_err(StatementError::Refused)?;
        let Some(slot) = self.0.open.lock().get(&id).cloned() else {
            return Err(StatementError::Over("the transaction is over".to_owned()));
        };
        let inner = Arc::clone(&self.0);
        let task = tokio::spawn(async move {
            let mut transaction = slot.lock_owned().await;
            inner.carry_out(&mut transaction, &statement).await
        });
        task.await.unwrap_or_else(|error| Err(StatementError::Unavailable(format!("the call did not end: {error}"))))
    }

    pub(crate) fn roll_back(&self, id: TransactionId) {
        let Some(slot) = self.0.open.lock().remove(&id) else { return };
        let connections = self.0.connections.clone();
        // Without a runtime the connection is closed, which rolls back too.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let mut transaction = slot.lock_owned().await;
            if let Stage::Open(mut lease) = std::mem::replace(&mut transaction.stage, Stage::New) {
                lease.ended_well = lease.connection(connections.patience()).batch("ROLLBACK").await.is_ok();
            }
        });
    }

    /// Writes in the run's transaction and commits it.
    pub(crate) async fn write(&self, id: TransactionId, write: Prepared) -> Result<Written, Error> {
        let Some(slot) = self.0.open.lock().remove(&id) else {
            return Err(Error::Refused("the run's transaction is over".to_owned()));
        };
        let (connections, timeout) = (self.0.connections.clone(), self.0.statement_timeout);
        let task = tokio::spawn(async move {
            let mut transaction = slot.lock_owned().await;
            match std::mem::replace(&mut transaction.stage, Stage::New) {
                // It granted SQL and used none.
                Stage::New => super::calls::write_alone(&connections, write).await,
                Stage::Over(StatementError::Conflict) => Err(Error::StateConflict),
                Stage::Over(error) => Err(Error::Refused(error.to_string())),
                Stage::Open(mut lease) => {
                    let connection = lease.connection(connections.patience());
                    let written = batch::write_within(connection, &write, timeout).await;
                    lease.ended_well = written.is_ok();
                    written.map_err(commit_error)
                }
            }
        });
        task.await.unwrap_or_else(|error| Err(Error::Unavailable(format!("the call did not end: {error}"))))
    }
}

impl Inner {
    async fn carry_out(&self, transaction: &mut Transaction, statement: &Statement) -> Result<Rows, StatementError> {
        if matches!(transaction.stage, Stage::New) {
            transaction.stage = Stage::Open(self.open().await?);
        }
        let lease = match &transaction.stage {
            Stage::Open(lease) => lease,
            Stage::Over(error) => return Err(error.clone()),
            Stage::New => return Err(StatementError::Unavailable("the transaction was not begun".to_owned())),
        };
        let result = behind_savepoint(lease.connection(self.connections.patience()), statement, &self.role).await;
        if let Err(error) = &result
            && is_over(error)
        {
            // The connection is closed, and with it goes the transaction.
            transaction.stage = Stage::Over(error.clone());
        }
        result
    }

    async fn open(&self) -> Result<Lease, StatementError> {
        let lease = self.connections.lend().await.map_err(|error| StatementError::Unavailable(error.to_string()))?;
        let begin = format!("BEGIN; SET LOCAL ROLE {}", role::quoted(&self.role));
        lease.connection(self.connections.patience()).batch(&begin).await.map_err(unavailable)?;
        Ok(lease)
    }
}

fn is_over(error: &StatementError) -> bool {
    matches!(error, StatementError::Over(_) | StatementError::Conflict | StatementError::Unavailable(_))
}

async fn behind_savepoint(
    connection: Connection<'_>,
    statement: &Statement,
    role: &str,
) -> Result<Rows, StatementError> {
    let time = statement.time.as_millis().max(2);
    // Whoever waits for another's lock gives up a little before: that is a conflict, to be repeated, and no fault of the statement.
    let lock_time = time - time.div_ceil(10);
    let begin = format!("SAVEPOINT run; SET LOCAL statement_timeout = {time}; SET LOCAL lock_timeout = {lock_time}");
    connection.batch(&begin).await.map_err(unavailable)?;
    match carry_out(connection, statement).await {
        Ok(rows) => {
            connection.batch("RELEASE SAVEPOINT run").await.map_err(unavailable)?;
            // Should a statement have found a way to become somebody else, it was the last one (P37).
            let who = connection.row("SELECT current_user::text = $1", &[&role]).await.map_err(unavailable)?;
            if who.is_some_and(|row| row.get(0)) {
                return Ok(rows);
            }
            Err(StatementError::Over("a statement of the handler has left the role of handlers".to_owned()))
        }
        Err(error) if is_over(&error) => Err(error),
        Err(error) => {
            let back = "ROLLBACK TO SAVEPOINT run; RELEASE SAVEPOINT run";
            connection.batch(back).await.map_err(unavailable)?;
            Err(error)
        }
    }
}

async fn carry_out(connection: Connection<'_>, statement: &Statement) -> Result<Rows, StatementError> {
    let patience = statement.time + connection.patience();
    let client = connection.client();
    let call = async {
        let prepared = client.prepare(&statement.text).await.map_err(failed)?;
        if prepared.params().len() != statement.parameters.len() {
            return Err(StatementError::Failed {
                code: "08P01".to_owned(),
                constraint: None,
                text: format!(
                    "the statement has {} parameters, {} were given",
                    prepared.params().len(),
                    statement.parameters.len()
                ),
            });
        }
        let columns: Vec<String> = prepared.columns().iter().map(|column| column.name().to_owned()).collect();
        let parameters = statement.parameters.iter().map(Parameter);
        let stream = client.query_raw(&prepared, parameters).await.map_err(failed)?;
        futures_util::pin_mut!(stream);
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while let Some(row) = stream.try_next().await.map_err(failed)? {
            if rows.len() == statement.max_rows {
                let text = format!("the result has more than {} rows (limits.sql_rows)", statement.max_rows);
                return Err(StatementError::TooMuch(text));
            }
            let row = values::row(&row).map_err(StatementError::Refused)?;
            bytes += row.iter().map(sprag_core::sql::Value::bytes).sum::<usize>();
            if bytes > statement.max_bytes {
                let text = format!("the result has more than {} bytes (limits.sql_bytes)", statement.max_bytes);
                return Err(StatementError::TooMuch(text));
            }
            rows.push(row);
        }
        Ok(Rows { columns, rows, affected: stream.rows_affected().unwrap_or(0) })
    };
    tokio::time::timeout(patience, call).await.unwrap_or_else(|_| Err(unavailable(Fault::NoAnswer)))
}

fn unavailable(fault: Fault) -> StatementError {
    match fault {
        Fault::Sql(error) if error.code().is_some_and(is_conflict) => StatementError::Conflict,
        fault => StatementError::Unavailable(fault.into_error().to_string()),
    }
}

fn is_conflict(state: &tokio_postgres::error::SqlState) -> bool {
    ["40001", "40P01", "55P03"].contains(&state.code())
}

/// What a statement of a handler failed with. The text is the server's, about the handler's own statement; it goes to the handler, not to our log.
fn failed(error: tokio_postgres::Error) -> StatementError {
    let Some(told) = error.as_db_error() else {
        // The driver could not send a value, or there is no connection any more.
        return unavailable(Fault::Sql(error));
    };
    let state = told.code().code();
    if is_conflict(told.code()) {
        return StatementError::Conflict;
    }
    // The server is stopping, full or broken, or takes no writes: nothing that a handler did.
    if ["08", "53", "57P", "58", "F0", "XX"].iter().any(|start| state.starts_with(start)) || state == "25006" {
        return unavailable(Fault::Sql(error));
    }
    StatementError::Failed {
        code: state.to_owned(),
        constraint: told.constraint().map(str::to_owned),
        text: told.message().to_owned(),
    }
}

/// Why the commit did not take place. A rule of the handler's own tables that is looked at only then is its failure, not an outage.
fn commit_error(fault: Fault) -> Error {
    let Fault::Sql(error) = &fault else { return fault.into_error() };
    let Some(told) = error.as_db_error() else { return fault.into_error() };
    let is_ours = told.table().is_some_and(|table| table.starts_with("sprag_"));
    if is_conflict(told.code()) || fault.may_be_repeated() && is_ours {
        return Error::StateConflict;
    }
    if told.code().code().starts_with("23") && !is_ours {
        return Error::Refused(format!("the database refused the commit: {}", told.message()));
    }
    fault.into_error()
}
