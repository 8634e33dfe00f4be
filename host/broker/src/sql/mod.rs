//! SQL of runs ([`Sql`]) in the engine's own file (P36).
//!
//! One run at a time has a transaction. It begins on a connection for reading; at its first write it takes the writer's thread, which then serves it until
//! its commit, its rollback or the end of its time, inside the transaction of the group that it came in. So nothing of a handler's waits for a
//! lock of SQLite's, and what a run read cannot change before it writes: nobody else writes handlers' tables meanwhile.
//!
//! The statements stand behind a savepoint. A commit that refuses, or that drops the unit of work, goes back to it and takes nothing else of its group
//! down. If SQLite itself fails in the group, the statements are lost with it and the run is repeated (P4).

mod guard;
mod statement;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{self, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::Connection;
use sprag_core::{
    ids::EndpointName,
    sql::{Rows, Statement, StatementError, TransactionId},
};
use sprag_store::{Sql, Written};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

pub(crate) use guard::Guard;

use crate::{
    Engine,
    index::Pin,
    shared::Shared,
    writer::{LatePin, Queued, Stop, Tx},
};

/// What the writer does at the end of a run's transaction. May be called a second time only after a rollback, which it is not: see [`serve`].
type Finish = Box<dyn FnMut(&mut Tx<'_>) -> Result<Written, Stop> + Send>;

/// The transactions of runs; one at a time.
pub(crate) struct Transactions {
    next: AtomicU64,
    open: Mutex<HashMap<TransactionId, Slot>>,
    room: Arc<Semaphore>,
}

impl Default for Transactions {
    fn default() -> Self {
        Self { next: AtomicU64::new(1), open: Mutex::default(), room: Arc::new(Semaphore::new(1)) }
    }
}

impl Transactions {
    /// Ends all without effect.
    pub(crate) fn end(&self) {
        self.open.lock().clear();
    }
}

type Slot = Arc<tokio::sync::Mutex<Transaction>>;

struct Transaction {
    endpoint: EndpointName,
    stage: Stage,
    _room: OwnedSemaphorePermit,
}

enum Stage {
    New,
    Reading(Reader),
    Writing(Writing),
    Over(StatementError),
}

/// A connection for this run's look at the file as it is.
struct Reader {
    connection: Connection,
    guard: Guard,
}

/// The writer serves this run.
struct Writing {
    orders: mpsc::Sender<Order>,
    done: oneshot::Receiver<Result<Written, Stop>>,
    pin: LatePin,
}

enum Order {
    Statement { statement: Statement, reply: oneshot::Sender<Result<Rows, StatementError>> },
    Finish(Finish),
}

#[async_trait]
impl Sql for Engine {
    async fn begin(&self, endpoint: &EndpointName) -> Result<TransactionId, StatementError> {
        let transactions = &self.shared.transactions;
        let room = Arc::clone(&transactions.room).acquire_owned().await;
        let room = room.map_err(|_| StatementError::Unavailable("the engine has been closed".to_owned()))?;
        let id = TransactionId(transactions.next.fetch_add(1, Relaxed));
        let transaction = Transaction { endpoint: endpoint.clone(), stage: Stage::New, _room: room };
        transactions.open.lock().insert(id, Arc::new(tokio::sync::Mutex::new(transaction)));
        Ok(id)
    }

    async fn statement(&self, id: TransactionId, statement: Statement) -> Result<Rows, StatementError> {
        let Some(slot) = self.shared.transactions.open.lock().get(&id).cloned() else {
            return Err(StatementError::Over("the transaction is over".to_owned()));
        };
        let shared = Arc::clone(&self.shared);
        let task = tokio::spawn(async move {
            let mut transaction = slot.lock_owned().await;
            let result = carry_out(&shared, &mut transaction, statement).await;
            if let Err(error @ (StatementError::Over(_) | StatementError::Conflict | StatementError::Unavailable(_))) =
                &result
            {
                transaction.stage = Stage::Over(error.clone());
            }
            result
        });
        task.await.unwrap_or_else(|error| Err(StatementError::Unavailable(format!("a statement did not end: {error}"))))
    }

    fn roll_back(&self, id: TransactionId) {
        // A statement that is under way holds it until its end; the writer goes back when nobody can order anything any more.
        drop(self.shared.transactions.open.lock().remove(&id));
    }
}

async fn carry_out(
    shared: &Arc<Shared>,
    transaction: &mut Transaction,
    statement: Statement,
) -> Result<Rows, StatementError> {
    let reader = match std::mem::replace(&mut transaction.stage, Stage::New) {
        Stage::Over(error) => return Err(error),
        Stage::Writing(writing) => {
            let answer = order(&writing, statement).await;
            transaction.stage = Stage::Writing(writing);
            return answer;
        }
        Stage::New => None,
        Stage::Reading(reader) => Some(reader),
    };
    // SQLite blocks, and a look can be long.
    let shared_for_read = Arc::clone(shared);
    let asked = statement.clone();
    let looked = tokio::task::spawn_blocking(move || {
        let reader = match reader {
            Some(reader) => reader,
            None => begin_reading(&shared_for_read)?,
        };
        let until = Instant::now() + asked.time;
        let result = reader.guard.during(until, || statement::read(&reader.connection, &asked));
        Ok::<_, StatementError>((reader, result))
    });
    let looked =
        looked.await.map_err(|error| StatementError::Unavailable(format!("a statement did not end: {error}")))?;
    let (reader, result) = looked?;
    match result {
        Some(result) => {
            transaction.stage = Stage::Reading(reader);
            result
        }
        None => {
            drop(reader);
            shared.refuse_when_closed().map_err(|stop| StatementError::Unavailable(stop.to_string()))?;
            let writing = take_writer(shared, &transaction.endpoint, statement.time).await?;
            let answer = order(&writing, statement).await;
            transaction.stage = Stage::Writing(writing);
            answer
        }
    }
}

fn begin_reading(shared: &Shared) -> Result<Reader, StatementError> {
    let unavailable = |error: &dyn std::fmt::Display| StatementError::Unavailable(error.to_string());
    let mut connection = shared.open_reader().map_err(|error| unavailable(&error))?;
    let guard = Guard::default();
    guard
        .watch(&mut connection)
        .and_then(|()| connection.execute_batch("BEGIN"))
        .map_err(|error| unavailable(&error))?;
    Ok(Reader { connection, guard })
}

/// Queues the run at the writer. The first order waits there for its turn.
async fn take_writer(shared: &Arc<Shared>, endpoint: &EndpointName, time: Duration) -> Result<Writing, StatementError> {
    let (orders, given) = mpsc::channel();
    let pin = LatePin::default();
    let (mut given, endpoint) = (Some(given), endpoint.clone());
    let (queued, done) = Queued::new(1 << 16, move |tx| match given.take() {
        Some(given) => serve(tx, &endpoint, &given, time),
        // Its group was rolled back after it, and its statements with it.
        None => Err(sprag_store::Error::StateConflict.into()),
    });
    match shared.queue.push(queued.with_late_pin(pin.clone())).await {
        true => Ok(Writing { orders, done, pin }),
        false => Err(StatementError::Unavailable("the engine has been closed".to_owned())),
    }
}

async fn order(writing: &Writing, statement: Statement) -> Result<Rows, StatementError> {
    let time = statement.time;
    let (reply, answer) = oneshot::channel();
    let sent = writing.orders.send(Order::Statement { statement, reply });
    let over = || StatementError::Over(too_long(time));
    if sent.is_err() {
        return Err(over());
    }
    answer.await.unwrap_or_else(|_| Err(over()))
}

fn too_long(time: Duration) -> String {
    format!("the transaction held the store for longer than {time:?} (limits.sql_time); nothing of it was committed")
}

/// Serves one run, on the writer's thread.
fn serve(
    tx: &mut Tx<'_>,
    endpoint: &EndpointName,
    orders: &mpsc::Receiver<Order>,
    time: Duration,
) -> Result<Written, Stop> {
    // Outside of the savepoint, because its number is remembered whatever becomes of the run.
    tx.local.endpoint(tx.connection, endpoint)?;
    tx.execute("SAVEPOINT run", [])?;
    let deadline = Instant::now() + time;
    let result = loop {
        match orders.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Order::Statement { statement, reply }) => {
                let answer = tx.shared.guard.during(deadline, || statement::write(tx, &statement));
                let is_gone = tx.connection.is_autocommit();
                let answer = match answer {
                    Err(_) if is_gone => Err(StatementError::Over(too_long(time))),
                    answer => answer,
                };
                // Whoever has gone away needs no answer.
                let _ = reply.send(answer);
                if is_gone {
                    // SQLite has rolled the whole group back, to stop a statement that took too long or for want of room.
                    return Err(Stop::lost_transaction());
                }
            }
            Ok(Order::Finish(mut finish)) => {
                tx.in_run = true;
                let result = finish(tx);
                tx.in_run = false;
                break result;
            }
            Err(RecvTimeoutError::Timeout) => break Err(sprag_store::Error::Refused(too_long(time)).into()),
            Err(RecvTimeoutError::Disconnected) => {
                break Err(sprag_store::Error::Refused("the run was rolled back".to_owned()).into());
            }
        }
    };
    match result {
        Err(stop @ Stop::Sql(_)) => return Err(stop),
        Err(_) => tx.drop_statements_of_run()?,
        Ok(_) => {}
    }
    tx.execute("RELEASE run", [])?;
    result
}

impl Tx<'_> {
    /// Back to before the first statement of the run. What the writer did before and does after stays.
    pub(crate) fn drop_statements_of_run(&self) -> Result<(), Stop> {
        self.execute("ROLLBACK TO run", []).map(drop)
    }
}

impl Shared {
    /// Carries out the last step of a unit of work: in the run's transaction if it has written one.
    pub(crate) async fn finish_run(
        &self,
        id: TransactionId,
        pin: Option<Pin>,
        bytes: usize,
        apply: impl FnMut(&mut Tx<'_>) -> Result<Written, Stop> + Send + 'static,
    ) -> Result<Written, Stop> {
        let over = |text: &str| Stop::Store(sprag_store::Error::Refused(text.to_owned()));
        let unpin = |pin: Option<Pin>| {
            if let Some(pin) = pin {
                self.with_index(|index| index.unpin(&pin, Instant::now()));
            }
        };
        let slot = self.transactions.open.lock().remove(&id);
        let Some(slot) = slot else {
            unpin(pin);
            return Err(over("the run's transaction is over"));
        };
        let mut transaction = slot.lock_owned().await;
        let writing = match std::mem::replace(&mut transaction.stage, Stage::New) {
            // It has only read: what it read is as it was, because no other run has written meanwhile.
            Stage::New | Stage::Reading(_) => {
                return match pin {
                    Some(pin) => self.write_pinned(pin, bytes, apply).await,
                    None => self.write(bytes, apply).await,
                };
            }
            Stage::Over(error) => {
                unpin(pin);
                return Err(match error {
                    StatementError::Conflict => sprag_store::Error::StateConflict.into(),
                    StatementError::Unavailable(text) => Stop::Unavailable(text),
                    error => over(&error.to_string()),
                });
            }
            Stage::Writing(writing) => writing,
        };
        *writing.pin.lock() = pin;
        // Where the writer serves it no more, its answer is there already and says why.
        let _ = writing.orders.send(Order::Finish(Box::new(apply)));
        let ended = || Stop::Closed(self.closed().unwrap_or("the engine has been closed").to_owned());
        let written = writing.done.await.unwrap_or_else(|_| Err(ended()));
        unpin(writing.pin.lock().take());
        written
    }
}
