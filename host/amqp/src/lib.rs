//! AMQP 1.0 from the server's side, as bytes and states: no socket, no clock, and nothing of queues.
//!
//! Start reading at [`connection::Connection`]: bytes in, events out; commands in, bytes out. Below it: [`frame`] (headers and their
//! sizes), [`performative`] (what frames say), [`decode`] and [`encode`] (values), [`value`]. Beside it: [`message`], which finds the
//! sections of an encoded message without taking it apart, for the one who stores it.
//!
//! *Invariants:* what comes in is read leniently (clients differ from the standard and from each other) and within limits that are all
//! named; nothing that comes in makes this crate panic or take more memory than its length justifies; what goes out is as the standard
//! has it; payloads are not copied on their way in, and once on their way out.

mod codes;
pub mod condition;
pub mod connection;
#[cfg(test)]
mod corpus;
pub mod decode;
pub mod encode;
pub mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod message;
pub mod performative;
pub mod value;
