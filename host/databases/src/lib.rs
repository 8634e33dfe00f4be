//! Stores on database servers, for hosts that share what they remember.
//!
//! Start reading at [`postgres::PostgresStore`]; [`cosmos::CosmosInbox`] is an inbox and nothing else. [`test_server`] is the server that tests run
//! against.
//!
//! *Invariant:* knows no transport, no runtime and no loop; shows no secret.

pub mod cosmos;
pub mod postgres;
#[cfg(feature = "test-server")]
pub mod test_server;
