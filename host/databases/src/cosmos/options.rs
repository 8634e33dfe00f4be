//! What an inbox on Cosmos DB is opened with, and every way that opening can fail.

use std::{path::PathBuf, time::Duration};

use super::account::Account;

/// How to reach the container and how to use it.
#[derive(Debug, Clone)]
pub struct Options {
    pub account: Account,
    /// Default `MessageDatabase`, as NimBus has it.
    pub database: String,
    /// Default `inbox`, as NimBus has it.
    pub container: String,
    /// Makes database and container where they are not there. When false they are checked, and what is missing is said.
    pub auto_create_container: bool,
    /// Takes an account whose consistency is weaker than Strong. A check by one host may then miss what another has recorded a moment before, and
    /// the handler runs again: for accounts with one host, and for emulators.
    pub allow_relaxed_consistency: bool,
    /// Requests at the same time; the rest wait. Each has a thread while it is under way. Default 32.
    pub concurrency: usize,
    /// Longest time of one request. Default 5 s.
    pub request_timeout: Duration,
    /// Longest time of one call with all its repetitions, pauses that the service asks for (429) included. Default 20 s: less than a lock (P5).
    pub time_limit: Duration,
    /// Authorities beside the platform's, in PEM.
    pub extra_roots: Vec<PathBuf>,
}

impl Options {
    pub fn new(account: Account) -> Self {
        Self {
            account,
            database: "MessageDatabase".to_owned(),
            container: "inbox".to_owned(),
            auto_create_container: true,
            allow_relaxed_consistency: false,
            concurrency: 32,
            request_timeout: Duration::from_secs(5),
            time_limit: Duration::from_secs(20),
            extra_roots: Vec::new(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        for (what, name) in [("database", &self.database), ("container", &self.container)] {
            let fits = (1..=255).contains(&name.chars().count())
                && !name.contains(['/', '\\', '?', '#'])
                && !name.contains(char::is_control)
                && !name.ends_with(' ');
            if !fits {
                let text = format!(
                    "{name:?} cannot be the name of a {what}: 1 to 255 characters without / \\ ? # and without a space at its end"
                );
                return Err(OpenError::Options(text));
            }
        }
        if self.concurrency == 0 {
            return Err(OpenError::Options("an inbox needs at least one request at a time".to_owned()));
        }
        if self.request_timeout.is_zero() || self.time_limit < self.request_timeout {
            let text = "a request's time-out is longer than nothing and at most as long as the call's";
            return Err(OpenError::Options(text.to_owned()));
        }
        Ok(())
    }
}

/// Why an inbox could not be opened. No text holds a key, a token or what the service said: that is in the debug log.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{0}")]
    Options(String),
    #[error("the authorities in {}: {problem}", file.display())]
    Roots { file: PathBuf, problem: String },
    #[error("no authority is known that could vouch for the service; name a file of them")]
    NoRoots,
    /// 401 or 403.
    #[error(
        "the account {at} does not let this host in (status {status}): check the key or the identity's rights, the account's firewall, and this machine's clock"
    )]
    Refused { at: String, status: u16 },
    #[error("there is no token for the account {at}: {problem}")]
    NoToken { at: String, problem: String },
    /// Case 130.
    #[error(
        "the account {at} has the consistency {found}, and an inbox needs Strong: under less, a redelivery on another host may not see a record and runs again. \
         Use an account with Strong consistency, or set allow_relaxed_consistency = true to accept that"
    )]
    Consistency { at: String, found: String },
    #[error(
        "there is no container {container:?} in the database {database:?}: make it with the partition key /id, or set auto_create_container = true"
    )]
    NoContainer { database: String, container: String },
    #[error(
        "the container {container:?} may not be made with this right (status {status}): an identity of Entra cannot; make it beforehand, with the partition key /id"
    )]
    Rights { container: String, status: u16 },
    #[error("the container {container:?} has the partition key {found}; an inbox needs /id")]
    PartitionKey { container: String, found: String },
    #[error(
        "the container {container:?} deletes documents by itself after {seconds} s; an inbox purges its own: turn the container's time to live off"
    )]
    TimeToLive { container: String, seconds: i64 },
    /// It may work later.
    #[error("{0}")]
    Unavailable(String),
}
