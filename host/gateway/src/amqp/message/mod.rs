//! Messages on the wire and messages of the engine.
//!
//! Start at [`write()`] (what a receiver gets). What a sender wrote is read, and the message itself written, by `sprag-messages`; what is here is the
//! broker's word on it.

#[cfg(test)]
mod tests;
mod write;

pub(crate) use sprag_messages::{Unreadable, from_wire, read};
pub(crate) use write::{Handed, write};
