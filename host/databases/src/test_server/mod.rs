//! A real PostgreSQL for tests, and a fresh database for each; and an account of Cosmos DB, which is a stand-in ([`cosmos`]).
//!
//! [`fresh_database`] takes the server that all test processes of this machine share: the first one starts it, each holds a lock while it lives, and
//! a watcher (`watch.sh`) ends the server and removes its folder once nobody has held the lock for a while, however they ended. With
//! `SPRAG_TEST_POSTGRES` set to the URL of a user that may create databases, it takes that server instead. [`Server::start`] is a server of
//! a test's own, to stop and start.
//!
//! It needs PostgreSQL's server (Debian: `apt-get install postgresql`) and `flock` (util-linux). The server refuses to run as root; tests that do run it
//! as the user `postgres`.
//!
//! The stand-in for Cosmos DB is a package of npm, which the first test installs below the target folder; each test has a process of its own.
//!
//! What goes wrong here panics: there is no test without a server.

mod cosmos;
mod database;
mod folder;
mod programs;
mod server;
pub mod tds;

pub use cosmos::{Cosmos, KEY as COSMOS_KEY, cosmos};
pub use database::{Database, fresh_database};
pub use server::{Server, Setup};

/// The user of servers that tests start.
pub const USER: &str = "sprag";
/// Its password: a test looks for it where it must not be.
pub const PASSWORD: &str = "hush-hush";
