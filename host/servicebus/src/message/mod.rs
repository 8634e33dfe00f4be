//! Messages on the wire and messages of the host.
//!
//! Start at [`encode`] (what is sent) and [`Received`] (what a receiver gets). The message itself is read and written by `sprag-messages`, as the
//! broker's gateway does it; what is here is what only a client says and hears.

mod received;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use received::{Received, State};
pub(crate) use sprag_messages::{Unreadable, annotations, read};
pub(crate) use write::{encode, is_simple};
