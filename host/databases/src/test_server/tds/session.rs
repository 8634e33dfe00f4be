//! One connection to the fake, and its connection to PostgreSQL.

use std::sync::{Arc, atomic::Ordering};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
    task::JoinHandle,
};
use tokio_postgres::{Client, NoTls, error::SqlState, types::ToSql};
use tokio_rustls::TlsAcceptor;

use crate::sqlserver::wire::{
    ANSWER, ENCRYPT_NOT_SUPPORTED, ENCRYPT_ON, ENCRYPT_REQUIRED, GREETING, HEADER, InPackets, Socket, greeting,
    offered, packet,
};

use super::{
    PASSWORD, Sent, Shared, Trouble, USER,
    protocol::{
        ATTENTION, BATCH, Call, LOGIN, RPC, Reader, Writer, bound, read_call, read_login, read_message, type_of,
        write_message,
    },
    translate::{Declared, Statement, translate},
};

trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for S {}

type Message = (u8, Vec<u8>);

/// The most values of one call, as SQL Server has it.
const MOST_VALUES: usize = 2_100;

/// An error of the server: its number, and a text that nobody must read.
struct Refusal(u32, String);

impl From<String> for Refusal {
    /// What the fake does not know is no error that a store could take for something else.
    fn from(problem: String) -> Self {
        eprintln!("the fake SQL Server refuses: {problem}");
        Self(50_000, problem)
    }
}

pub(super) async fn serve(tcp: TcpStream, shared: Arc<Shared>) {
    // A client that hangs up is no news.
    let _ = converse(tcp, shared).await;
}

async fn converse(tcp: TcpStream, shared: Arc<Shared>) -> std::io::Result<()> {
    tcp.set_nodelay(true)?;
    let mut socket = Socket::new(Arc::new(tcp));
    let (kind, body) = read_message(&mut socket).await?;
    if kind != GREETING {
        return Ok(());
    }
    let wanted = offered(&packet(GREETING, &body))?;
    let encrypted = shared.tls.clone().filter(|_| matches!(wanted, ENCRYPT_ON | ENCRYPT_REQUIRED));
    let answer = if encrypted.is_some() { ENCRYPT_ON } else { ENCRYPT_NOT_SUPPORTED };
    socket.write_all(&greeting(ANSWER, answer)).await?;
    let stream: Box<dyn Stream> = match encrypted {
        Some(config) => {
            let mut stream = TlsAcceptor::from(config).accept(InPackets::new(socket)).await?;
            stream.get_mut().0.end();
            Box::new(stream)
        }
        None => Box::new(socket),
    };
    let (mut reading, writing) = tokio::io::split(stream);
    let (kind, body) = read_message(&mut reading).await?;
    let Some(postgres) = log_in(&shared, kind, &body).await else {
        return refuse_login(writing, &shared, &body).await;
    };
    let (sender, messages) = mpsc::channel(4);
    let reader = Guard(tokio::spawn(async move {
        while let Ok(message) = read_message(&mut reading).await {
            if sender.send(message).await.is_err() {
                return;
            }
        }
    }));
    let mut session = Session {
        shared,
        postgres,
        messages,
        stream: Box::new(writing),
        transaction: 0,
        numbers: 1,
        failed: false,
        _reader: reader,
    };
    let mut out = Writer::default();
    out.login_ack();
    out.done(false);
    write_message(&mut session.stream, &out.0).await?;
    while let Some((kind, body)) = session.messages.recv().await {
        if !session.answer(kind, &body).await? {
            return Ok(());
        }
    }
    Ok(())
}

/// Ends a task with what it belongs to.
struct Guard(JoinHandle<()>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The connection to PostgreSQL of who may come in.
async fn log_in(shared: &Shared, kind: u8, body: &[u8]) -> Option<Client> {
    let login = read_login(body).ok().filter(|_| kind == LOGIN)?;
    let known =
        login.user == USER && login.password == PASSWORD && shared.postgres.contains(&format!("/{}?", login.database));
    if !known {
        return None;
    }
    let url = shared.postgres.replace("sslmode=prefer", "sslmode=disable");
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.ok()?;
    tokio::spawn(async move {
        // Its error is the client's next one too.
        let _ = connection.await;
    });
    Some(client)
}

/// A database that cannot be opened is told first, and then that nobody is let in; without a database at all, nobody is.
async fn refuse_login(mut writing: impl AsyncWrite + Unpin, shared: &Shared, body: &[u8]) -> std::io::Result<()> {
    let mut out = Writer::default();
    if let Ok(login) = read_login(body)
        && login.password == PASSWORD
        && !shared.postgres.contains(&format!("/{}?", login.database))
    {
        out.error(4060, "Die Datenbank kann nicht ge\u{f6}ffnet werden.");
    }
    out.error(18456, "Fehler bei der Anmeldung.");
    out.done(true);
    write_message(&mut writing, &out.0).await
}

struct Session {
    shared: Arc<Shared>,
    postgres: Client,
    messages: mpsc::Receiver<Message>,
    stream: Box<dyn AsyncWrite + Send + Sync + Unpin>,
    /// The open transaction's number; 0: there is none.
    transaction: u64,
    numbers: u64,
    /// The open transaction has met an error and can only be rolled back.
    failed: bool,
    _reader: Guard,
}

impl Session {
    /// False: the conversation is over.
    async fn answer(&mut self, kind: u8, body: &[u8]) -> std::io::Result<bool> {
        let mut out = Writer::default();
        if kind == ATTENTION {
            out.attended();
            write_message(&mut self.stream, &out.0).await?;
            return Ok(true);
        }
        let (sent, call) = match self.read(kind, body) {
            Ok(read) => read,
            Err(Refusal(number, text)) => {
                out.error(number, &text);
                out.done(true);
                write_message(&mut self.stream, &out.0).await?;
                return Ok(true);
            }
        };
        let trouble = self.shared.receive(sent.clone());
        if trouble == Some(Trouble::HangUp) {
            return Ok(false);
        }
        let result = match trouble {
            Some(Trouble::Error(number)) => Err(Refusal(number, "geplant".to_owned())),
            _ => self.carry_out(&sent.text, call.as_ref(), &mut out).await,
        };
        if let Err(Refusal(number, text)) = &result {
            self.fail(*number, &mut out).await;
            out.error(*number, text);
        }
        if call.is_some() {
            out.done_call(result.is_err())
        } else {
            out.done(result.is_err())
        }
        match trouble {
            Some(Trouble::Silence) => {
                // Until the client has had enough.
                while self.messages.recv().await.is_some() {}
                return Ok(false);
            }
            Some(Trouble::HalfAnAnswer) => {
                let length = (HEADER + out.0.len()) as u16;
                let mut whole = packet(ANSWER, &out.0);
                whole[2..4].copy_from_slice(&length.to_be_bytes());
                self.stream.write_all(&whole[..whole.len() / 2]).await?;
                self.stream.flush().await?;
                return Ok(false);
            }
            _ => write_message(&mut self.stream, &out.0).await?,
        }
        Ok(true)
    }

    fn read(&self, kind: u8, body: &[u8]) -> Result<(Sent, Option<Call>), Refusal> {
        let mut reader = Reader(body);
        let transaction = reader.transaction()?;
        if transaction != self.transaction {
            return Err(Refusal(3989, format!("transaction {transaction} is not the open one")));
        }
        match kind {
            BATCH => Ok((Sent { text: reader.rest()?, types: None }, None)),
            RPC => {
                let call = read_call(&mut reader)?;
                if call.values.len() > MOST_VALUES {
                    return Err(Refusal(8003, "zu viele Parameter".to_owned()));
                }
                Ok((Sent { text: call.text.clone(), types: Some(call.types.clone()) }, Some(call)))
            }
            other => Err(format!("a message of type {other}").into()),
        }
    }

    /// What an error does to the open transaction.
    async fn fail(&mut self, number: u32, out: &mut Writer) {
        if self.transaction == 0 {
            return;
        }
        self.failed = true;
        if number == 1205 {
            // The loser has none any more.
            let _ = self.postgres.batch_execute("ROLLBACK").await;
            out.transaction(10, self.transaction);
            (self.transaction, self.failed) = (0, false);
        }
    }

    async fn carry_out(&mut self, text: &str, call: Option<&Call>, out: &mut Writer) -> Result<(), Refusal> {
        if call.is_none() && self.control(text, out).await? {
            return Ok(());
        }
        if self.failed {
            return Err(Refusal(3930, "die Transaktion kann nur zur\u{fc}ckgesetzt werden".to_owned()));
        }
        let none = Vec::new();
        let types = call.map_or(&none, |call| &call.types);
        for statement in translate(text, types)? {
            let count = self.run(&statement, call, out).await?;
            if call.is_some() {
                out.done_in_call(count);
            }
        }
        Ok(())
    }

    /// Transactions and settings. False: it is none of these.
    async fn control(&mut self, text: &str, out: &mut Writer) -> Result<bool, Refusal> {
        if let Some(milliseconds) = text.strip_prefix("SET LOCK_TIMEOUT ") {
            let milliseconds: u32 = milliseconds.parse().map_err(|_| "a time-out is a number".to_owned())?;
            self.plain(&format!("SET lock_timeout = {milliseconds}")).await?;
            return Ok(true);
        }
        match text {
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED" | "SET NOCOUNT OFF" => {}
            "BEGIN TRANSACTION" if self.transaction == 0 => {
                self.plain("BEGIN").await?;
                (self.transaction, self.numbers) = (self.numbers, self.numbers + 1);
                out.transaction(8, self.transaction);
            }
            "COMMIT TRANSACTION" if self.failed => {
                return Err(Refusal(3930, "die Transaktion kann nicht best\u{e4}tigt werden".to_owned()));
            }
            "COMMIT TRANSACTION" if self.transaction != 0 => {
                self.plain("COMMIT").await?;
                out.transaction(9, self.transaction);
                self.transaction = 0;
            }
            "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION" => {
                if self.transaction != 0 {
                    self.plain("ROLLBACK").await?;
                    out.transaction(10, self.transaction);
                    (self.transaction, self.failed) = (0, false);
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    async fn plain(&self, sql: &str) -> Result<(), Refusal> {
        self.postgres.batch_execute(sql).await.map_err(|error| self.refusal(&error))
    }

    /// Carries a statement out. A client that calls for attention, or goes away, ends it.
    async fn run(&mut self, statement: &Statement, call: Option<&Call>, out: &mut Writer) -> Result<u64, Refusal> {
        let place = |place: &usize| {
            let call = call.ok_or("a batch has no values")?;
            let of = type_of(&call.types[place - 1])?;
            Ok((bound(&call.values[place - 1], &of), of))
        };
        let places = statement.places.iter().map(place).collect::<Result<Vec<_>, String>>()?;
        let (values, types): (Vec<_>, Vec<_>) = places.into_iter().unzip();
        let cancel = self.postgres.cancel_token();
        let work = async {
            let prepared = self.postgres.prepare_typed(&statement.sql, &types).await?;
            let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect();
            if prepared.columns().is_empty() {
                return Ok((
                    Vec::new(),
                    prepared.columns().len(),
                    self.postgres.execute(&prepared, &values).await?,
                    prepared,
                ));
            }
            let rows = self.postgres.query(&prepared, &values).await?;
            let count = rows.len() as u64;
            Ok((rows, prepared.columns().len(), count, prepared))
        };
        tokio::pin!(work);
        let result = tokio::select! {
            result = &mut work => result,
            _ = self.messages.recv() => {
                let _ = cancel.cancel_query(NoTls).await;
                work.await
            }
        };
        let (rows, columns, count, prepared) = result.map_err(|error| self.refusal(&error))?;
        if columns > 0 {
            out.columns(prepared.columns())?;
            for row in &rows {
                out.row(row)?;
            }
        }
        for declared in &statement.declared {
            declare(&self.postgres, declared).await.map_err(|error| self.refusal(&error))?;
        }
        Ok(count)
    }

    /// PostgreSQL's error as SQL Server's.
    fn refusal(&self, error: &tokio_postgres::Error) -> Refusal {
        let Some(state) = error.code() else { return Refusal(50_000, error.to_string()) };
        let number = match state.code() {
            "23505" => {
                // One is told of constraints, the other of indexes.
                let turn = self.shared.duplicates.fetch_add(1, Ordering::Relaxed);
                if turn.is_multiple_of(2) { 2627 } else { 2601 }
            }
            "40P01" | "40001" => 1205,
            "55P03" => 1222,
            "42P01" | "3F000" => 208,
            "42703" => 207,
            "42P06" | "42P07" => 2714,
            "42501" => 262,
            "22001" => 2628,
            _ => {
                eprintln!(
                    "the fake SQL Server has no number for {}: {error}: {:?}",
                    SqlState::code(state),
                    error.as_db_error()
                );
                50_000
            }
        };
        Refusal(number, format!("Fehler {number}"))
    }
}

/// Notes how a column was declared.
pub(super) async fn declare(client: &Client, column: &Declared) -> Result<(), tokio_postgres::Error> {
    let Declared { schema, table, column, kind, length, collation } = column;
    let sql = "INSERT INTO sys.declared VALUES ($1, $2, $3, $4, $5, $6)";
    client.execute(sql, &[schema, table, column, kind, length, collation]).await.map(drop)
}
