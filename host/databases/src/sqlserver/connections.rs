//! The connections: how one is made, lent and given back.
//!
//! A call runs in a task of its own, so it goes on to its end when its caller goes away. A connection whose call did not end well is closed, never
//! lent again: nobody knows what is still on its way, or whether a transaction is open (A31). The places of the pool are permits of a semaphore,
//! which a waiter that goes away does not take with it (A32).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use sprag_store::Error;
use tiberius::{AuthMethod, Client, Config, Query, Row};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tracing::{instrument::WithSubscriber as _, subscriber::NoSubscriber};

use super::{
    address::Address,
    fault::{Fault, NoConnection, Peer},
    options::{OpenError, Options},
    script::{Names, Script},
    tls,
    wire::{self, Pulse, Tls, Wire},
};

/// How often a statement outside of a transaction is tried that others were in the way of.
const TRIES: u32 = 5;
/// A server may send a client on to another one, as Azure SQL does from its gateway to its nodes; not for ever.
const MOST_HOPS: usize = 3;

#[derive(Clone)]
pub(crate) struct Connections(Arc<Inner>);

struct Inner {
    address: Address,
    tls: Option<Tls>,
    names: Names,
    peer: Peer,
    room: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
    statement_timeout: Duration,
    connect_timeout: Duration,
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
        if options.pool_size == 0 || options.pool_size > Semaphore::MAX_PERMITS {
            return Err(OpenError::Options("a pool needs at least one connection".to_owned()));
        }
        if options.statement_timeout < Duration::from_millis(1) || options.connect_timeout < Duration::from_millis(1) {
            return Err(OpenError::Options("a time-out of a database is at least a millisecond".to_owned()));
        }
        let names = Names::new(options)?;
        let address = Address::read(options)?;
        let tls = tls::of(&address)?;
        let peer = Peer {
            at: address.at(),
            user: address.user.clone(),
            database: address.database.clone().unwrap_or_else(|| "(the login's own)".to_owned()),
        };
        Ok(Self(Arc::new(Inner {
            address,
            tls,
            names,
            peer,
            room: Arc::new(Semaphore::new(options.pool_size)),
            idle: Mutex::new(Vec::new()),
            statement_timeout: options.statement_timeout,
            connect_timeout: options.connect_timeout,
            down: Mutex::new(None),
            size: options.pool_size,
        })))
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.0.peer
    }

    /// How many there are at most.
    pub(crate) fn size(&self) -> usize {
        self.0.size
    }

    /// Runs the work on a connection, to its end whatever becomes of the caller.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        work: impl for<'c> FnOnce(&'c mut Connection) -> BoxFuture<'c, Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Error> {
        self.call_as(work).await
    }

    /// As [`Self::call`], with another error.
    pub(crate) async fn call_as<T: Send + 'static, E: From<Error> + From<Fault> + Send + 'static>(
        &self,
        work: impl for<'c> FnOnce(&'c mut Connection) -> BoxFuture<'c, Result<T, Fault>> + Send + 'static,
    ) -> Result<T, E> {
        let connections = self.clone();
        let call = tokio::spawn(async move {
            let mut lease = connections.lend().await?;
            let result = work(lease.connection()).await;
            lease.ended_well = result.as_ref().map_or_else(Fault::leaves_connection_clean, |_| true);
            Ok(result?)
        });
        call.await.unwrap_or_else(|error| Err(Error::Unavailable(format!("the call did not end: {error}")).into()))
    }

    /// As [`Self::call`], for opening: in the caller's own task, with the names that opening has for what goes wrong.
    pub(crate) async fn open<T>(
        &self,
        work: impl for<'c> FnOnce(&'c mut Connection) -> BoxFuture<'c, Result<T, OpenFault>> + Send,
    ) -> Result<T, OpenError> {
        let permit = self.permit().await.map_err(|error| OpenError::Unavailable(error.to_string()))?;
        let connection = self.connect().await.map_err(|error| self.0.peer.no_connection(&error))?;
        let mut lease =
            Lease { connections: self.clone(), connection: Some(connection), ended_well: false, _permit: permit };
        let result = work(lease.connection()).await;
        lease.ended_well = result.is_ok();
        result.map_err(|fault| match fault {
            OpenFault::Open(error) => error,
            OpenFault::Fault(Fault::Sql(error)) => self.0.peer.refused(&error),
            OpenFault::Fault(fault) => OpenError::Unavailable(fault.into_error().to_string()),
        })
    }

    async fn permit(&self) -> Result<OwnedSemaphorePermit, Error> {
        match timeout(self.0.statement_timeout, Arc::clone(&self.0.room).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(Error::Unavailable("the store is closed".to_owned())),
            Err(_) => Err(Error::Unavailable("no connection to the database became free in time".to_owned())),
        }
    }

    async fn lend(&self) -> Result<Lease, Error> {
        let permit = self.permit().await?;
        let lease = |connection| Lease {
            connections: self.clone(),
            connection: Some(connection),
            ended_well: false,
            _permit: permit,
        };
        if let Some(connection) = self.idle() {
            return Ok(lease(connection));
        }
        if let Some(down) = self.0.down.lock().as_ref()
            && down.until > Instant::now()
        {
            return Err(down.told.clone());
        }
        match self.connect().await {
            Ok(connection) => {
                *self.0.down.lock() = None;
                Ok(lease(connection))
            }
            Err(error) => {
                let told = Error::Unavailable(self.0.peer.no_connection(&error).to_string());
                let mut down = self.0.down.lock();
                let pause = down.as_ref().map_or(FIRST_PAUSE, |down| (down.pause * 2).min(LONGEST_PAUSE));
                *down = Some(Down { until: Instant::now() + pause, pause, told: told.clone() });
                Err(told)
            }
        }
    }

    /// A connection that waits to be used, passing over those whose server has hung up.
    fn idle(&self) -> Option<Connection> {
        let mut idle = self.0.idle.lock();
        while let Some(connection) = idle.pop() {
            if connection.pulse.beats() {
                return Some(connection);
            }
        }
        None
    }

    async fn connect(&self) -> Result<Connection, NoConnection> {
        let connecting = async {
            let (mut host, mut port) = (self.0.address.host.clone(), self.0.address.port);
            for _ in 0..MOST_HOPS {
                match self.connect_to(&host, port).await {
                    Err(NoConnection::Login(tiberius::error::Error::Routing { host: next, port: its })) => {
                        (host, port) = (next, its);
                    }
                    other => return other,
                }
            }
            Err(NoConnection::SentOn)
        };
        let mut connection =
            timeout(self.0.connect_timeout, connecting).await.unwrap_or(Err(NoConnection::TimedOut))?;
        connection.settle(self.0.statement_timeout).await?;
        Ok(connection)
    }

    async fn connect_to(&self, host: &str, port: u16) -> Result<Connection, NoConnection> {
        let address = &self.0.address;
        let (wire, pulse) = wire::open(host, port, self.0.tls.as_ref()).await?;
        let mut config = Config::new();
        config.host(host);
        config.port(port);
        if let Some(database) = &address.database {
            config.database(database);
        }
        config.application_name(&address.application);
        config.authentication(AuthMethod::sql_server(&address.user, &address.password));
        // Both are bounded here, by tokio's clock.
        config.handshake_timeout(None);
        config.command_timeout(None);
        // The driver logs what servers say, at a level that people see.
        let client = Client::connect(config, wire).with_subscriber(NoSubscriber::default()).await?;
        Ok(Connection {
            client,
            pulse,
            names: self.0.names.clone(),
            patience: self.0.statement_timeout + self.0.connect_timeout,
            in_transaction: false,
        })
    }
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
struct Lease {
    connections: Connections,
    connection: Option<Connection>,
    ended_well: bool,
    _permit: OwnedSemaphorePermit,
}

impl Lease {
    fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("it is there until it is dropped")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take().filter(|it| self.ended_well && !it.in_transaction) {
            self.connections.0.idle.lock().push(connection);
        }
    }
}

/// A connection for one call at a time.
pub(crate) struct Connection {
    client: Client<Wire>,
    pulse: Pulse,
    names: Names,
    /// Longest wait for the answer to one statement.
    patience: Duration,
    in_transaction: bool,
}

impl Connection {
    pub(crate) fn names(&self) -> Names {
        self.names.clone()
    }

    /// What is set on every connection before its first call.
    async fn settle(&mut self, statement_timeout: Duration) -> Result<(), NoConnection> {
        let milliseconds = statement_timeout.as_millis().min(i32::MAX as u128);
        for (text, needed) in [
            ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned(), true),
            // Whatever the server's default is: how many rows went is read from the answers.
            ("SET NOCOUNT OFF".to_owned(), false),
            // The server names what it waited for; where it knows no such setting, our own clock ends the wait.
            (format!("SET LOCK_TIMEOUT {milliseconds}"), false),
        ] {
            match self.batch(&text).await {
                Ok(()) => {}
                Err(fault) if !needed && fault.number().is_some() => {
                    tracing::debug!(%fault, "a setting that the database does not know");
                }
                Err(Fault::Sql(error)) => return Err(error.into()),
                Err(_) => return Err(NoConnection::TimedOut),
            }
        }
        Ok(())
    }

    /// The rows of all answers, one after another.
    pub(crate) async fn rows(&mut self, script: Script<'_>) -> Result<Vec<Row>, Fault> {
        let mut tries = 1;
        loop {
            match self.rows_once(&script).await {
                // Outside of a transaction a statement that lost has had no effect (P4).
                Err(fault) if fault.may_be_repeated() && !self.in_transaction && tries < TRIES => tries += 1,
                other => return other,
            }
        }
    }

    async fn rows_once(&mut self, script: &Script<'_>) -> Result<Vec<Row>, Fault> {
        let query = query(script);
        let client = &mut self.client;
        bounded(self.patience, async { query.query(client).await?.into_results().await })
            .await
            .map(|answers| answers.into_iter().flatten().collect())
    }

    pub(crate) async fn row(&mut self, script: Script<'_>) -> Result<Option<Row>, Fault> {
        Ok(self.rows(script).await?.into_iter().next())
    }

    /// Answers how many rows it changed.
    pub(crate) async fn execute(&mut self, script: Script<'_>) -> Result<u64, Fault> {
        let mut tries = 1;
        loop {
            let query = query(&script);
            let client = &mut self.client;
            match bounded(self.patience, async { Ok(query.execute(client).await?.total()) }).await {
                Err(fault) if fault.may_be_repeated() && !self.in_transaction && tries < TRIES => tries += 1,
                other => return other,
            }
        }
    }

    /// Statements without values, as a batch: what begins or ends a transaction, and what makes tables.
    pub(crate) async fn batch(&mut self, text: &str) -> Result<(), Fault> {
        let client = &mut self.client;
        bounded(self.patience, async { client.simple_query(text).await?.into_results().await }).await.map(drop)
    }

    pub(crate) async fn begin(&mut self) -> Result<(), Fault> {
        self.in_transaction = true;
        self.batch("BEGIN TRANSACTION").await
    }

    /// Also where there is no transaction: the loser of a deadlock has none any more.
    pub(crate) async fn roll_back(&mut self) -> Result<(), Fault> {
        self.batch("IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION").await?;
        self.in_transaction = false;
        Ok(())
    }

    /// Ends the transaction as the work in it ended. A COMMIT without an answer says nothing about whether it took place (P5).
    pub(crate) async fn end<T>(&mut self, result: Result<T, Fault>) -> Result<T, Fault> {
        let result = match result {
            Ok(value) => self.batch("COMMIT TRANSACTION").await.map(|()| value),
            Err(fault) => Err(fault),
        };
        match result {
            Ok(value) => {
                self.in_transaction = false;
                Ok(value)
            }
            Err(fault) if fault.may_be_repeated() || fault.leaves_connection_clean() => {
                self.roll_back().await?;
                Err(fault)
            }
            // The connection is closed, and with it goes the transaction.
            Err(fault) => Err(fault),
        }
    }
}

fn query<'a>(script: &Script<'a>) -> Query<'a> {
    let mut query = Query::new(script.text.clone());
    query.bind_iter(script.values.iter().cloned());
    query
}

/// The driver's own events are not for our log: they hold what the server says, and that may hold values.
async fn bounded<T>(
    patience: Duration,
    work: impl Future<Output = Result<T, tiberius::error::Error>> + Send,
) -> Result<T, Fault> {
    match timeout(patience, work.with_subscriber(NoSubscriber::default())).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(Fault::NoAnswer),
    }
}
