//! The loop: one message after another through a session, many sessions side by side.
//!
//! Start reading at [`Worker::run`], then `session` (the loop that holds a session) and `delivery` (the way of one message: ask, decide, run, decide,
//! commit). Nothing else settles a message, writes a record or touches session state.
//!
//! *Invariant:* this crate decides nothing itself; decisions are `sprag_core::machine`'s.

pub mod config;
mod delivery;
mod endpoint;
mod flight;
pub mod handlers;
mod lease;
mod messages;
pub mod operations;
mod relay;
mod renew;
mod resolver;
mod session;
pub mod signal;
mod sql;
mod upkeep;
mod worker;

pub use config::{EndpointConfig, InboxConfig};
pub use flight::FlightRecorder;
pub use worker::{Left, Running, Stop, Worker, WorkerConfig};
