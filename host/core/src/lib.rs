//! Words, values and decisions. No clock, no I/O, no async: what comes in is a fact, what goes out is a value.
//!
//! Start reading at [`machine`]: it decides what happens to a delivery, as a [`effect::Commit`]. The rest are the words it
//! speaks with.
//!
//! *Invariant:* this crate knows no store, no transport, no runtime and no clock; every time is an argument.

pub mod action;
pub mod effect;
pub mod identity;
pub mod ids;
pub mod machine;
pub mod message;
pub mod operations;
pub mod outcome;
pub mod retry;
pub mod run;
pub mod seal;
pub mod session_state;
pub mod sql;
pub mod time;
