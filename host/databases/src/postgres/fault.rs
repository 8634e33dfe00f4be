//! Everything that can go wrong in a call, and what the caller is told.
//!
//! What the server says is read by its SQLSTATE, never by its text: that is in the server's language (A24), and may repeat values.

use std::error::Error as _;

use sprag_store::{Error, codec};
use tokio_postgres::error::SqlState;
use tokio_rustls::rustls;

use super::options::OpenError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Sql(#[from] tokio_postgres::Error),
    /// The server did not answer in time, and nobody knows what it did.
    #[error("no answer in time")]
    NoAnswer,
    /// What a run read has changed (P4).
    #[error("state has changed")]
    Conflict,
    /// The lease under which the write was decided is somebody else's now.
    #[error("the lease was lost")]
    LeaseLost,
    /// The request is wrong.
    #[error("{0}")]
    Invalid(String),
    /// A row is not as this binary writes it.
    #[error("a row cannot be read: {0}")]
    Unreadable(String),
}

impl From<codec::Error> for Fault {
    fn from(error: codec::Error) -> Self {
        Self::Unreadable(error.to_string())
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        fault.into_error()
    }
}

impl Fault {
    /// Another transaction was in the way, and this one had no effect: the same again may do (P4). A foreign key that does not hold is that
    /// too: the event was purged between two statements.
    pub(crate) fn may_be_repeated(&self) -> bool {
        let Self::Sql(error) = self else { return false };
        [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED, SqlState::FOREIGN_KEY_VIOLATION]
            .iter()
            .any(|state| error.code() == Some(state))
    }

    /// One of several writes may be what was wrong, or what another transaction was in the way of: the others may do without it.
    pub(crate) fn is_of_one(&self) -> bool {
        match self {
            Self::Sql(error) => {
                let state = error.code().map(SqlState::code);
                state
                    .is_some_and(|state| ["22", "23", "40", "54", "57014"].iter().any(|start| state.starts_with(start)))
            }
            Self::NoAnswer => false,
            Self::Conflict | Self::LeaseLost | Self::Invalid(_) | Self::Unreadable(_) => true,
        }
    }

    /// The connection is as it was before the call, so the next call may have it (A31).
    pub(crate) fn leaves_connection_clean(&self) -> bool {
        matches!(self, Self::Conflict | Self::LeaseLost | Self::Invalid(_) | Self::Unreadable(_))
    }

    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Conflict => Error::StateConflict,
            Self::LeaseLost => Error::LeaseLost,
            Self::Invalid(text) => Error::Invalid(text),
            Self::NoAnswer => Error::Unavailable("the database did not answer in time".to_owned()),
            Self::Unreadable(text) => Error::Unavailable(format!("a row of the database cannot be read: {text}")),
            Self::Sql(error) => {
                tracing::debug!(error = %chain(&error), detail = ?error.as_db_error(), "a call to the database failed");
                told(&error)
            }
        }
    }
}

fn told(error: &tokio_postgres::Error) -> Error {
    let Some(state) = error.code() else {
        return Error::Unavailable(if error.is_closed() || io_in(error).is_some() {
            "the connection to the database was lost".to_owned()
        } else {
            "the database's answer could not be read".to_owned()
        });
    };
    let code = state.code();
    // Values that no column can hold, and rows that no page or index can.
    if code.starts_with("22") || *state == SqlState::PROGRAM_LIMIT_EXCEEDED {
        return Error::Invalid(format!("the database cannot hold a value (SQLSTATE {code})"));
    }
    let what = match code {
        "57014" => "the database ended a statement that took too long",
        "57P01" | "57P02" | "57P03" => "the database is stopping or starting",
        "53100" => "the database's disk is full",
        "53300" => "the database has no connection left",
        "25006" => "the database takes no writes: it is a standby or is read-only",
        "42501" => "the database's user may not do what the store needs",
        "42P01" | "42703" | "3F000" => "the database's tables are not there or not as they must be",
        _ if code.starts_with("28") => "the database does not let the user in",
        _ if code.starts_with("40") => "another transaction was in the way again and again",
        _ => "the database refused a statement",
    };
    Error::Unavailable(format!("{what} (SQLSTATE {code})"))
}

/// An error with its causes, for the debug log and for errors of the driver and the network, which hold no secrets.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

fn io_in(error: &tokio_postgres::Error) -> Option<&std::io::Error> {
    error.source()?.downcast_ref()
}

fn is_tls(error: &tokio_postgres::Error) -> bool {
    io_in(error).and_then(|io| io.get_ref()).is_some_and(|inner| inner.is::<rustls::Error>())
}

/// Whom a connection was to reach, for its errors.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) at: String,
    pub(crate) user: String,
    pub(crate) database: String,
    pub(crate) encrypted: bool,
}

impl Peer {
    /// Why there is no connection (A57: the cause by its name, not a time-out of the pool).
    pub(crate) fn refused(&self, error: &tokio_postgres::Error) -> OpenError {
        tracing::debug!(error = %chain(error), detail = ?error.as_db_error(), at = %self.at, "no connection to the database");
        let Self { at, user, database, .. } = self.clone();
        let Some(state) = error.code() else {
            let problem = chain(error);
            // The driver has no name for "the server offers none" but a cause that is not of the network.
            return if is_tls(error) || (self.encrypted && io_in(error).is_none() && !error.is_closed()) {
                OpenError::Tls { at, problem }
            } else {
                OpenError::Unreachable { at, problem }
            };
        };
        let state = state.code();
        match state {
            "3D000" => OpenError::NoDatabase { at, database },
            "42501" => OpenError::Rights { user },
            _ if state.starts_with("28") => OpenError::Refused { at, user, state: state.to_owned() },
            _ => match told(error) {
                Error::Unavailable(text) if state.starts_with("5") => {
                    OpenError::Unavailable(format!("{text}, at {at}"))
                }
                _ => OpenError::Sql { state: state.to_owned() },
            },
        }
    }
}
