//! Everything that can go wrong in a call, and what the caller is told.
//!
//! What the server says is read by its error number, never by its text: that is in the server's language (A24), and may repeat values.

use sprag_store::{Error, codec};

use super::{options::OpenError, wire};

/// A unique key is there already: of a constraint, of an index.
pub(crate) const DUPLICATE_KEY: [u32; 2] = [2627, 2601];
/// An object, a schema, an index of that name is there already.
pub(crate) const DUPLICATE_OBJECT: [u32; 3] = [2714, 2759, 1913];
/// The loser of a deadlock; somebody else's update under snapshot isolation; a table that was changed meanwhile.
const IN_THE_WAY: [u32; 4] = [1205, 3960, 3961, 3966];
const LOCK_TIMEOUT: u32 = 1222;
/// Values that no column can hold, and rows that no page or index can.
const CANNOT_HOLD: [u32; 8] = [2628, 8152, 8115, 220, 241, 511, 1946, 7119];
const NO_RIGHTS: [u32; 7] = [229, 230, 262, 297, 300, 2760, 15247];
const NO_LOGIN: [u32; 7] = [18456, 18452, 18470, 18486, 18487, 18488, 18450];
const NO_DATABASE: [u32; 3] = [4060, 911, 4063];

#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Sql(#[from] tiberius::error::Error),
    /// The server did not answer in time, and nobody knows what it did.
    #[error("no answer in time")]
    NoAnswer,
    /// What a run read has changed (P4).
    #[error("state has changed")]
    Conflict,
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
    /// The server's number for it.
    pub(crate) fn number(&self) -> Option<u32> {
        match self {
            Self::Sql(error) => error.code(),
            _ => None,
        }
    }

    /// Another transaction was in the way, and this one had no effect: the same again may do (P4). A key that is there is that too: it was not
    /// when this statement looked, and the next one sees it.
    pub(crate) fn may_be_repeated(&self) -> bool {
        self.number().is_some_and(|number| IN_THE_WAY.contains(&number) || DUPLICATE_KEY.contains(&number))
    }

    /// One of several writes may be what was wrong, or what another transaction was in the way of: the others may do without it.
    pub(crate) fn is_of_one(&self) -> bool {
        match self {
            Self::Sql(_) => {
                self.may_be_repeated()
                    || self.number().is_some_and(|number| number == LOCK_TIMEOUT || CANNOT_HOLD.contains(&number))
            }
            Self::NoAnswer => false,
            Self::Conflict | Self::Invalid(_) | Self::Unreadable(_) => true,
        }
    }

    /// The connection is as it was before the call, so the next call may have it (A31).
    pub(crate) fn leaves_connection_clean(&self) -> bool {
        matches!(self, Self::Conflict | Self::Invalid(_) | Self::Unreadable(_))
    }

    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Conflict => Error::StateConflict,
            Self::Invalid(text) => Error::Invalid(text),
            Self::NoAnswer => Error::Unavailable("the database did not answer in time".to_owned()),
            Self::Unreadable(text) => Error::Unavailable(format!("a row of the database cannot be read: {text}")),
            Self::Sql(error) => {
                tracing::debug!(%error, "a call to the database failed");
                told(&error)
            }
        }
    }
}

fn told(error: &tiberius::error::Error) -> Error {
    let Some(number) = error.code() else {
        return Error::Unavailable(match error {
            tiberius::error::Error::Io { .. } => "the connection to the database was lost".to_owned(),
            _ => "the database's answer could not be read".to_owned(),
        });
    };
    if CANNOT_HOLD.contains(&number) {
        return Error::Invalid(format!("the database cannot hold a value (error {number})"));
    }
    let what = named(number).unwrap_or("the database refused a statement");
    Error::Unavailable(format!("{what} (error {number})"))
}

/// What a number means that may mean something else later.
fn named(number: u32) -> Option<&'static str> {
    Some(match number {
        LOCK_TIMEOUT => "another transaction held what was needed for too long",
        1105 | 9002 => "the database's disk or log is full",
        3906 => "the database takes no writes: it is read-only",
        207 | 208 | 2812 => "the database's tables are not there or not as they must be",
        922 | 927 | 6005 | 17142 | 18401 | 40613 => "the database is stopping or starting",
        701 | 1204 | 10928 | 10929 | 17809 | 40501 | 49918 | 49919 | 49920 => "the database has no room left",
        _ if NO_RIGHTS.contains(&number) => "the database's user may not do what the store needs",
        _ if NO_LOGIN.contains(&number) => "the database does not let the user in",
        _ if IN_THE_WAY.contains(&number) || DUPLICATE_KEY.contains(&number) => {
            "another transaction was in the way again and again"
        }
        _ => return None,
    })
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoConnection {
    #[error(transparent)]
    Wire(#[from] wire::Error),
    #[error(transparent)]
    Login(#[from] tiberius::error::Error),
    #[error("it did not answer in time")]
    TimedOut,
    #[error("it sends its clients on, from one server to the next")]
    SentOn,
}

/// Whom a connection was to reach, for its errors.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) at: String,
    pub(crate) user: String,
    pub(crate) database: String,
}

impl Peer {
    /// Why there is no connection (A57: the cause by its name, not a time-out of the pool).
    pub(crate) fn no_connection(&self, error: &NoConnection) -> OpenError {
        tracing::debug!(%error, at = %self.at, "no connection to the database");
        let at = self.at.clone();
        match error {
            NoConnection::Wire(wire::Error::Tls(problem)) => OpenError::Tls { at, problem: problem.clone() },
            NoConnection::Login(error) if error.code().is_some() => self.refused(error),
            other => OpenError::Unreachable { at, problem: other.to_string() },
        }
    }

    /// An error of the server while a store is opened.
    pub(crate) fn refused(&self, error: &tiberius::error::Error) -> OpenError {
        let Self { at, user, database } = self.clone();
        let Some(number) = error.code() else {
            return OpenError::Unavailable(format!("the connection to {at} was lost while the database was opened"));
        };
        match number {
            _ if NO_LOGIN.contains(&number) => OpenError::Refused { at, user, number },
            _ if NO_DATABASE.contains(&number) => OpenError::NoDatabase { at, database, number },
            _ if NO_RIGHTS.contains(&number) => OpenError::Rights { user, number },
            _ => match named(number) {
                Some(what) => OpenError::Unavailable(format!("{what} (error {number}), at {at}")),
                None => OpenError::Sql { number },
            },
        }
    }
}
