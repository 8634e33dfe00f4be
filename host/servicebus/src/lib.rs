//! The transport on Azure Service Bus, and on whatever speaks as it does.
//!
//! Start reading at [`ServiceBus`] (the [`sprag_transport::Transport`]), then `session` (a session that is held), `link` (what receives),
//! `management` and `requests` (what links cannot do), `connection` (made, found broken, made again) and its `ear`. `message` converts messages, `fault` says
//! what an error of the broker means. Apart from all that, [`administration`] reads and makes entities over HTTP, and [`topology`] says which ones
//! an endpoint needs. `identity` is there with the feature `azure-identity` only.
//!
//! What differs from the embedded engine is the broker's: a batch's numbers are not told, counts are found by looking at every message, a
//! session given back with a pause is held for as long, and parked messages are copies on a queue of their own beside the endpoint's
//! (`<endpoint>.deferred`, P21), where one look is no proof (P17). An endpoint on NimBus's topology has a topic in place of both: `way` says how
//! its own messages come back to it there, and only to it.
//!
//! *Invariants:* what awaits an answer may be dropped at any point and leaves no session held and no message locked; an answer goes to the one
//! who asked; locks are counted on monotonic time from before the asking; no secret is in an error, a `Debug` text or a log.

mod address;
pub mod administration;
#[cfg(feature = "azservicebus")]
pub mod azservicebus;
mod clock;
mod config;
mod connection;
mod connection_string;
mod ear;
mod fault;
#[cfg(feature = "azure-identity")]
mod identity;
mod link;
mod listing;
mod management;
mod message;
mod parked;
mod plain;
mod requests;
mod sender;
mod session;
mod settle;
mod tls;
mod together;
mod token;
pub mod topology;
mod transport;
mod way;

pub use config::{Config, EntitySettings, Settle};
pub use connection_string::{ConnectionString, Credential, Malformed};
#[cfg(feature = "azure-identity")]
pub use identity::{Identity, IdentityError};
pub use token::{Token, TokenError, TokenSource};
pub use transport::{Counts, ServiceBus};

/// Why a transport was not built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("no certificate of an authority was found on this machine: TLS with Service Bus is not possible")]
    NoRoots,
    #[error("{file} cannot be used for TLS: {problem}", file = file.display())]
    Roots { file: std::path::PathBuf, problem: String },
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
}
