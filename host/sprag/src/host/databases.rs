//! The stores on database servers: how each kind is opened, and what its errors mean for the host's exit code.

use std::sync::Arc;

use sprag_databases::{
    cosmos::{self, Account, CosmosInbox},
    postgres::{self, PostgresStore},
    sqlserver::{self, SqlServerStore},
};
use sprag_store::{Store, inbox::Inbox};

use crate::{
    config::{Config, Database, StoreKind},
    failure::{Exit, Failure},
};

/// What a section `[store.NAME]` gives.
pub(super) enum Opened {
    Store(Arc<dyn Store>),
    /// It holds records of inboxes and nothing else.
    Inbox(Arc<dyn Inbox>),
}

/// Why one could not be opened.
pub(crate) enum Problem {
    /// It may work later.
    Away(String),
    /// The section is wrong.
    Options(String),
    /// The start of a host makes or updates what is missing.
    Schema(String),
    Other(String),
}

impl Problem {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Away(text) | Self::Options(text) | Self::Schema(text) | Self::Other(text) => text,
        }
    }
}

impl From<postgres::OpenError> for Problem {
    fn from(error: postgres::OpenError) -> Self {
        use postgres::OpenError as E;
        let text = error.to_string();
        match error {
            E::Unreachable { .. } | E::Unavailable(_) => Self::Away(text),
            E::Options(_) => Self::Options(text),
            E::Schema(_) | E::Older { .. } => Self::Schema(text),
            _ => Self::Other(text),
        }
    }
}

impl From<sqlserver::OpenError> for Problem {
    fn from(error: sqlserver::OpenError) -> Self {
        use sqlserver::OpenError as E;
        let text = error.to_string();
        match error {
            E::Unreachable { .. } | E::Unavailable(_) => Self::Away(text),
            E::Options(_) => Self::Options(text),
            E::Schema(_) | E::Older { .. } => Self::Schema(text),
            _ => Self::Other(text),
        }
    }
}

impl From<cosmos::OpenError> for Problem {
    fn from(error: cosmos::OpenError) -> Self {
        use cosmos::OpenError as E;
        let text = error.to_string();
        match error {
            E::Unavailable(_) => Self::Away(text),
            E::Options(_) => Self::Options(text),
            E::NoContainer { .. } => Self::Schema(text),
            _ => Self::Other(text),
        }
    }
}

/// Opens one. It has to answer once: what is in its tables decides whether anything may run.
pub(super) async fn open(config: &Config, name: &str, database: &Database) -> Result<Opened, Failure> {
    let opened = match database.kind {
        StoreKind::Postgres => {
            let opened = PostgresStore::open(postgres_options(config, name, database)).await;
            opened.map(|store| Opened::Store(Arc::new(store))).map_err(Problem::from)
        }
        StoreKind::SqlServer => {
            let opened = SqlServerStore::open(sqlserver_options(config, name, database)).await;
            opened.map(|store| Opened::Store(Arc::new(store))).map_err(Problem::from)
        }
        StoreKind::Cosmos => match cosmos_options(database) {
            Ok(options) => {
                let opened = CosmosInbox::open(options).await;
                opened.map(|inbox| Opened::Inbox(Arc::new(inbox))).map_err(Problem::from)
            }
            Err(problem) => Err(problem),
        },
    };
    opened.map_err(|problem| {
        let exit = match &problem {
            Problem::Away(_) => Exit::TryAgain,
            Problem::Options(_) => Exit::Configuration,
            Problem::Schema(_) | Problem::Other(_) => Exit::Failed,
        };
        let text = format!("[store.{name}]: {}", problem.text());
        Failure::new(exit, text).code("SPR0504").help("sprag explain SPR0504")
    })
}

/// Looks at one, and makes nothing: a check changes nothing.
pub(crate) async fn look(config: &Config, name: &str, database: &Database) -> Result<(), Problem> {
    match database.kind {
        StoreKind::Postgres => {
            let options = postgres_options(config, name, database);
            PostgresStore::open(postgres::Options { auto_create_table: false, ..options }).await.map(drop)?;
        }
        StoreKind::SqlServer => {
            let options = sqlserver_options(config, name, database);
            SqlServerStore::open(sqlserver::Options { auto_create_table: false, ..options }).await.map(drop)?;
        }
        StoreKind::Cosmos => {
            let options = cosmos_options(database)?;
            CosmosInbox::open(cosmos::Options { auto_create_container: false, ..options }).await.map(drop)?;
        }
    }
    Ok(())
}

fn postgres_options(config: &Config, name: &str, database: &Database) -> postgres::Options {
    postgres::Options {
        extra_roots: database.authorities.clone(),
        pool_size: config.pool(name, database) as usize,
        sql_role: database.sql_role.clone(),
        auto_create_table: database.auto_create_table,
        ..postgres::Options::new(database.url.clone())
    }
}

fn sqlserver_options(config: &Config, name: &str, database: &Database) -> sqlserver::Options {
    sqlserver::Options {
        extra_roots: database.authorities.clone(),
        pool_size: config.pool(name, database) as usize,
        auto_create_table: database.auto_create_table,
        ..sqlserver::Options::new(database.url.clone())
    }
}

fn cosmos_options(database: &Database) -> Result<cosmos::Options, Problem> {
    let account = Account::parse(&database.url).map_err(|error| Problem::Options(error.to_string()))?;
    let defaults = cosmos::Options::new(account);
    Ok(cosmos::Options {
        auto_create_container: database.auto_create_table,
        allow_relaxed_consistency: database.allow_relaxed_consistency,
        concurrency: database.pool.map_or(defaults.concurrency, |pool| pool as usize),
        extra_roots: database.authorities.clone(),
        ..defaults
    })
}
