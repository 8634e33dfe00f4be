//! A fake SQL Server for tests.
//!
//! There is no SQL Server where the tests run. [`Fake`] speaks its protocol (TDS 7.4: greeting, TLS within the greeting, login, batches,
//! `sp_executesql`, attention) to a real client, and carries out the T-SQL that the store sends on a real PostgreSQL, translated. So what the store
//! does between hosts is arbitrated by a real database, with real locks; but what SQL Server itself makes of the statements is not shown by
//! it. It takes only what it knows: any other statement, and any construct that the store must not use, is refused (`translate`), and so a
//! test fails that would need it. It is stricter than the real one: an error ends a transaction, and nothing but `ROLLBACK` is taken after it.
//!
//! What it imitates on purpose, because stores have fallen over it: texts compare without the spaces at their end; a key that is there is told as
//! 2627 and as 2601 in turn; the loser of a deadlock has no transaction any more; a message in another language than English.
//!
//! With `SPRAG_TEST_SQLSERVER` set, the conformance suite runs against that server and not against this.

mod lexer;
mod protocol;
mod session;
mod translate;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_rustls::rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use super::{Database, PASSWORD, USER, fresh_database};

/// What PostgreSQL lacks of what the statements call, and the catalogue as the statements ask for it.
const SETUP: &str = include_str!("setup.sql");

/// What a fake does where a real server would be in trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Answers with this error; it has carried nothing out.
    Error(u32),
    /// Carries the statement out, sends half of the answer and hangs up.
    HalfAnAnswer,
    /// Hangs up before it has carried anything out.
    HangUp,
    /// Carries it out and says nothing.
    Silence,
}

/// What was sent to a fake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub text: String,
    /// The declared types of the values, in their order. None: a batch, which has no values.
    pub types: Option<Vec<String>>,
}

#[derive(Debug, Default)]
struct Planned {
    /// A part of the statement's text, how many such statements go well before, and what happens then.
    troubles: Vec<(String, u32, Trouble)>,
    sent: Vec<Sent>,
}

struct Shared {
    postgres: String,
    tls: Option<Arc<ServerConfig>>,
    planned: Mutex<Planned>,
    connections: AtomicU64,
    sessions: Mutex<Vec<JoinHandle<()>>>,
    down: AtomicBool,
    duplicates: AtomicU64,
}

/// A fake with a database of its own. Both are gone when it is dropped.
pub struct Fake {
    shared: Arc<Shared>,
    at: SocketAddr,
    accept: JoinHandle<()>,
    database: Database,
}

impl Fake {
    pub async fn start() -> Self {
        Self::start_with(None).await
    }

    /// One with a certificate and its key in PEM: whoever wants TLS gets it.
    pub async fn start_with_tls(certificate: &str, key: &str) -> Self {
        let certificates = CertificateDer::pem_slice_iter(certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .expect("a certificate in PEM");
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key in PEM");
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring knows them")
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .expect("the key is the certificate's");
        Self::start_with(Some(Arc::new(config))).await
    }

    async fn start_with(tls: Option<Arc<ServerConfig>>) -> Self {
        let database = fresh_database().await;
        database.client().await.batch_execute(SETUP).await.expect("the database takes the set-up");
        let shared = Arc::new(Shared {
            postgres: database.url().to_owned(),
            tls,
            planned: Mutex::default(),
            connections: AtomicU64::new(0),
            sessions: Mutex::default(),
            down: AtomicBool::new(false),
            duplicates: AtomicU64::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let at = listener.local_addr().expect("it is bound");
        let accept = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { shared, at, accept, database }
    }

    /// Where it is reached, without encryption.
    pub fn url(&self) -> String {
        self.url_with("encrypt=false")
    }

    /// Where it is reached, with these settings.
    pub fn url_with(&self, settings: &str) -> String {
        format!("mssql://{USER}:{PASSWORD}@localhost:{}/{}?{settings}", self.at.port(), self.database.name())
    }

    /// The database that the statements are carried out on, for what a store does not do.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Carries a batch out as an administrator would.
    pub async fn batch(&self, text: &str) {
        let client = self.database.client().await;
        for statement in translate::translate(text, &[]).unwrap_or_else(|problem| panic!("{text}: {problem}")) {
            client.batch_execute(&statement.sql).await.unwrap_or_else(|error| panic!("{text}: {error}"));
            for column in &statement.declared {
                session::declare(&client, column).await.expect("the set-up has a table for it");
            }
        }
    }

    /// The next statement that holds this text goes wrong, after `before` others that do not.
    pub fn plan(&self, text: &str, before: u32, trouble: Trouble) {
        self.shared.planned.lock().troubles.push((text.to_owned(), before, trouble));
    }

    /// Everything that was sent since the last call.
    pub fn sent(&self) -> Vec<Sent> {
        std::mem::take(&mut self.shared.planned.lock().sent)
    }

    /// How many connections there were so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Ends all sessions and refuses new ones, until it is up again.
    pub fn go_down(&self) {
        self.shared.down.store(true, Ordering::Relaxed);
        self.shared.sessions.lock().drain(..).for_each(|session| session.abort());
    }

    pub fn come_up(&self) {
        self.shared.down.store(false, Ordering::Relaxed);
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.accept.abort();
        self.shared.sessions.lock().drain(..).for_each(|session| session.abort());
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((tcp, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        if shared.down.load(Ordering::Relaxed) {
            continue;
        }
        let session = tokio::spawn(session::serve(tcp, Arc::clone(&shared)));
        shared.sessions.lock().push(session);
    }
}

impl Shared {
    /// Notes what was sent, and what is planned for it.
    fn receive(&self, sent: Sent) -> Option<Trouble> {
        let mut planned = self.planned.lock();
        let due = planned.troubles.iter_mut().position(|(text, before, _)| {
            let meant = sent.text.contains(text.as_str());
            let due = meant && *before == 0;
            *before = before.saturating_sub(u32::from(meant));
            due
        });
        let trouble = due.map(|at| planned.troubles.remove(at).2);
        planned.sent.push(sent);
        trouble
    }
}
