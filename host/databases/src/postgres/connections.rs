//! The connections: how one is made, lent and given back.
//!
//! A call runs in a task of its own, so it goes on to its end when its caller goes away. A connection whose call did not end well is closed, never
//! lent again: nobody knows what is still on its way, or whether a transaction is open (A31).

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType,
};
use futures_util::future::{BoxFuture, MaybeDone, maybe_done};
use parking_lot::Mutex;
use sprag_store::Error;
use tokio_postgres::{Row, types::ToSql};

use super::{
    address::{Address, TlsMode},
    fault::{Fault, Peer},
    options::{OpenError, Options},
    tls,
};

/// Values for a statement's places.
pub(crate) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

#[derive(Clone)]
pub(crate) struct Connections(Arc<Inner>);

struct Inner {
    pool: Pool,
    peer: Peer,
    /// Longest wait for the answer to one statement: the server gives up before.
    patience: Duration,
    down: Mutex<Option<Down>>,
    size: usize,
}

/// No connection could be made, and there is none: until the pause is over callers are told so without another try, so that an outage
/// costs neither processor nor log (A52).
struct Down {
    until: Instant,
    pause: Duration,
    told: Error,
}

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Connections {
    pub(crate) fn new(options: &Options) -> Result<Self, OpenError> {
        if options.pool_size == 0 {
            return Err(OpenError::Options("a pool needs at least one connection".to_owned()));
        }
        if options.statement_timeout < Duration::from_millis(1) || options.connect_timeout < Duration::from_millis(1) {
            return Err(OpenError::Options("a time-out of a database is at least a millisecond".to_owned()));
        }
        let address = Address::read(options)?;
        let tls = tls::connector(&address)?;
        let peer = Peer {
            at: address.at(),
            user: address.user(),
            database: address.database(),
            encrypted: address.mode != TlsMode::Disable,
        };
        let settings = settings(options);
        let manager =
            Manager::from_config(address.config, tls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
        let pool = Pool::builder(manager)
            .max_size(options.pool_size)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(options.statement_timeout))
            .create_timeout(Some(options.connect_timeout))
            .recycle_timeout(Some(options.connect_timeout))
            .post_create(Hook::async_fn(move |client, _| {
                let settings = settings.clone();
                Box::pin(async move { client.batch_execute(&settings).await.map_err(HookError::Backend) })
            }))
            .build()
            .map_err(|error| OpenError::Options(error.to_string()))?;
        let patience = options.statement_timeout + options.connect_timeout;
        Ok(Self(Arc::new(Inner { pool, peer, patience, down: Mutex::new(None), size: options.pool_size })))
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.0.peer
    }

    /// Longest wait for the answer to one statement of ours.
    pub(crate) fn patience(&self) -> Duration {
        self.0.patience
    }

    /// How many there are at most.
    pub(crate) fn size(&self) -> usize {
        self.0.size
    }

    /// Runs the work on a connection, to its end whatever becomes of the caller.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        work: impl for<'c> FnOnce(Connection<'c>) -> BoxFuture<'c, Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Error> {
        self.call_as(work).await
    }

    /// As [`Self::call`], with another error.
    pub(crate) async fn call_as<T: Send + 'static, E: From<Error> + From<Fault> + Send + 'static>(
        &self,
        work: impl for<'c> FnOnce(Connection<'c>) -> BoxFuture<'c, Result<T, Fault>> + Send + 'static,
    ) -> Result<T, E> {
        let connections = self.clone();
        let call = tokio::spawn(async move {
            let lease = connections.lend().await?;
            Ok(connections.run(lease, work).await?)
        });
        call.await.unwrap_or_else(|error| Err(Error::Unavailable(format!("the call did not end: {error}")).into()))
    }

    /// As [`Self::call`], for opening: in the caller's own task, with the names that opening has for what goes wrong.
    pub(crate) async fn open<T>(
        &self,
        work: impl for<'c> FnOnce(Connection<'c>) -> BoxFuture<'c, Result<T, OpenFault>> + Send,
    ) -> Result<T, OpenError> {
        let mut lease = Lease::new(self.0.pool.get().await.map_err(|error| self.why(&error))?);
        let result = work(lease.connection(self.0.patience)).await;
        lease.ended_well = result.is_ok();
        result.map_err(|fault| match fault {
            OpenFault::Open(error) => error,
            OpenFault::Fault(Fault::Sql(error)) => self.0.peer.refused(&error),
            OpenFault::Fault(fault) => OpenError::Unavailable(fault.into_error().to_string()),
        })
    }

    async fn run<T>(
        &self,
        mut lease: Lease,
        work: impl for<'c> FnOnce(Connection<'c>) -> BoxFuture<'c, Result<T, Fault>> + Send,
    ) -> Result<T, Fault> {
        let result = work(lease.connection(self.0.patience)).await;
        lease.ended_well = result.as_ref().map_or_else(Fault::leaves_connection_clean, |_| true);
        result
    }

    pub(crate) async fn lend(&self) -> Result<Lease, Error> {
        if let Some(down) = self.0.down.lock().as_ref()
            && down.until > Instant::now()
            && self.0.pool.status().size == 0
        {
            return Err(down.told.clone());
        }
        match self.0.pool.get().await {
            Ok(object) => {
                *self.0.down.lock() = None;
                Ok(Lease::new(object))
            }
            // It is only busy.
            Err(PoolError::Timeout(TimeoutType::Wait)) => {
                Err(Error::Unavailable("no connection to the database became free in time".to_owned()))
            }
            Err(error) => {
                let told = Error::Unavailable(self.why(&error).to_string());
                let mut down = self.0.down.lock();
                let pause = down.as_ref().map_or(FIRST_PAUSE, |down| (down.pause * 2).min(LONGEST_PAUSE));
                *down = Some(Down { until: Instant::now() + pause, pause, told: told.clone() });
                Err(told)
            }
        }
    }

    fn why(&self, error: &PoolError) -> OpenError {
        match error {
            PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
                self.0.peer.refused(error)
            }
            PoolError::Timeout(_) => {
                OpenError::Unreachable { at: self.0.peer.at.clone(), problem: "it did not answer in time".to_owned() }
            }
            other => OpenError::Unavailable(other.to_string()),
        }
    }
}

/// What is set on every connection before its first call.
fn settings(options: &Options) -> String {
    let timeout = options.statement_timeout.as_millis();
    // A host that hangs in the middle of a transaction must not hold its locks for ever. Nobody is told *done* before it is on the disk,
    // whatever the database's or the user's default is; stronger settings stay.
    format!(
        "SET statement_timeout = {timeout}; SET idle_in_transaction_session_timeout = {}; \
         SET default_transaction_isolation = 'read committed'; SET client_min_messages = 'warning'; SET standard_conforming_strings = on; \
         SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
        timeout * 2
    )
}

/// Errors of opening, and of the calls that it makes.
#[derive(Debug)]
pub(crate) enum OpenFault {
    Open(OpenError),
    Fault(Fault),
}

impl From<Fault> for OpenFault {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<OpenError> for OpenFault {
    fn from(error: OpenError) -> Self {
        Self::Open(error)
    }
}

/// A connection that is lent. Unless its call ended well it is closed when it comes back.
pub(crate) struct Lease {
    object: Option<Object>,
    pub(crate) ended_well: bool,
}

impl Lease {
    fn new(object: Object) -> Self {
        Self { object: Some(object), ended_well: false }
    }

    pub(crate) fn connection(&self, patience: Duration) -> Connection<'_> {
        Connection { client: self.object.as_ref().expect("it is there until it is dropped"), patience }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(object) = self.object.take().filter(|_| !self.ended_well) {
            drop(Object::take(object));
        }
    }
}

/// What of its transaction a list of statements is sent with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Around {
    Begin,
    Nothing,
    Commit,
}

/// A value for a place of a statement.
pub(crate) type Value<'a> = Box<dyn ToSql + Sync + Send + 'a>;

/// A statement and its values.
pub(crate) struct Step<'a> {
    pub(crate) sql: &'static str,
    pub(crate) values: Vec<Value<'a>>,
}

/// Values as the driver takes them.
pub(crate) fn borrowed<'v>(values: &'v [Value<'_>]) -> Vec<&'v (dyn ToSql + Sync)> {
    values.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect()
}

/// Futures that are polled in their order, for statements that must be sent in theirs: the helpers for many futures promise no order.
struct InOrder<F: Future>(Vec<Pin<Box<MaybeDone<F>>>>);

impl<F: Future> InOrder<F> {
    fn new(futures: impl Iterator<Item = F>) -> Self {
        Self(futures.map(|future| Box::pin(maybe_done(future))).collect())
    }
}

impl<F: Future> Future for InOrder<F> {
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut ready = true;
        for future in &mut self.0 {
            ready &= future.as_mut().poll(context).is_ready();
        }
        if !ready {
            return Poll::Pending;
        }
        let take = |future: &mut Pin<Box<MaybeDone<F>>>| future.as_mut().take_output().expect("all have ended");
        Poll::Ready(self.0.iter_mut().map(take).collect())
    }
}

/// A connection for one call.
#[derive(Clone, Copy)]
pub(crate) struct Connection<'c> {
    client: &'c Object,
    patience: Duration,
}

impl Connection<'_> {
    pub(crate) fn client(&self) -> &Object {
        self.client
    }

    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    pub(crate) async fn rows(&self, sql: &str, values: Values<'_>) -> Result<Vec<Row>, Fault> {
        self.bounded(async {
            let statement = self.client.prepare_cached(sql).await?;
            self.client.query(&statement, values).await
        })
        .await
    }

    pub(crate) async fn row(&self, sql: &str, values: Values<'_>) -> Result<Option<Row>, Fault> {
        Ok(self.rows(sql, values).await?.into_iter().next())
    }

    /// Answers how many rows it changed.
    pub(crate) async fn execute(&self, sql: &str, values: Values<'_>) -> Result<u64, Fault> {
        self.bounded(async {
            let statement = self.client.prepare_cached(sql).await?;
            self.client.execute(&statement, values).await
        })
        .await
    }

    /// The statements one after another, sent together: one round trip. Where one fails the others of its transaction do too, and the first error is
    /// told. `around`: what of a transaction is sent with them.
    pub(crate) async fn together(&self, around: Around, steps: &[Step<'_>]) -> Result<Vec<Vec<Row>>, Fault> {
        // First all are prepared, for the answers to be waited for only once all are on their way, and in this order.
        let mut statements = Vec::with_capacity(steps.len());
        for step in steps {
            statements.push(self.bounded(self.client.prepare_cached(step.sql)).await?);
        }
        let begin = async { if around == Around::Begin { self.client.batch_execute("BEGIN").await } else { Ok(()) } };
        let commit =
            async { if around == Around::Commit { self.client.batch_execute("COMMIT").await } else { Ok(()) } };
        let values: Vec<Vec<&(dyn ToSql + Sync)>> = steps.iter().map(|step| borrowed(&step.values)).collect();
        let queries = values.iter().zip(&statements).map(|(values, statement)| self.client.query(statement, values));
        let all = async {
            // Polled, and so sent, in this order; the list keeps to it as well.
            let (begun, answers, committed) = tokio::join!(biased; begin, InOrder::new(queries), commit);
            begun?;
            let answers = answers.into_iter().collect::<Result<Vec<_>, _>>()?;
            committed?;
            Ok(answers)
        };
        self.bounded(all).await
    }

    /// Statements without values.
    pub(crate) async fn batch(&self, sql: &str) -> Result<(), Fault> {
        self.bounded(self.client.batch_execute(sql)).await
    }

    pub(crate) async fn begin(&self) -> Result<(), Fault> {
        self.batch("BEGIN").await
    }

    /// Ends the transaction as the work in it ended. An error of COMMIT itself says nothing about whether it took place (P5).
    pub(crate) async fn end<T>(&self, result: Result<T, Fault>) -> Result<T, Fault> {
        match result {
            Ok(value) => self.batch("COMMIT").await.map(|()| value),
            Err(fault) if fault.may_be_repeated() || fault.leaves_connection_clean() => {
                self.batch("ROLLBACK").await?;
                Err(fault)
            }
            // The connection is closed, and with it goes the transaction.
            Err(fault) => Err(fault),
        }
    }

    async fn bounded<T>(&self, work: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Fault> {
        match tokio::time::timeout(self.patience, work).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Fault::NoAnswer),
        }
    }
}
