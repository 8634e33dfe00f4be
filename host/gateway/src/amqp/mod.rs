//! The embedded broker's AMQP 1.0 face: what the official Azure Service Bus SDKs speak.
//!
//! Start reading at [`Gateway`] (who listens), then `socket` (one connection's bytes) and `peer` (what one client does). `management`
//! carries out requests, `message` converts messages, `address` reads addresses, `permission` knows who may what, and `failure` is the one
//! place where an error gets its names on the wire.
//!
//! *Invariants:* a send is accepted only after the engine has it on the disk; what a client may make us hold is bounded (by credit, by
//! bytes that wait, by links); a client that has shown no right can do nothing but show one; nothing polls.

mod address;
mod config;
mod context;
mod failure;
mod gateway;
mod management;
mod message;
mod peer;
mod permission;
mod socket;
mod tls;
mod token;

pub use config::{BuildError, Config, Tls};
pub use gateway::{Counts, Gateway, Handle};
