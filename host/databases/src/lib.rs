//! Stores on database servers, for hosts that share what they remember.
//!
//! Start reading at [`postgres::PostgresStore`] or [`sqlserver::SqlServerStore`]; [`cosmos::CosmosInbox`] is an inbox and nothing else. [`test_server`] is
//! what tests run against.
//!
//! *Invariant:* knows no transport, no runtime and no loop; shows no secret.

pub mod cosmos;
pub mod postgres;
pub mod sqlserver;
#[cfg(feature = "test-server")]
pub mod test_server;
mod together;
mod trust;
mod url;
