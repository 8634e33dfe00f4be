//! Messages on the wire and messages of the engine.
//!
//! Start at [`read`] (what a sender wrote) and [`write()`] (what a receiver gets). Sections are taken apart because the engine filters by
//! them and keeps them in columns of its own; what it does not use is kept as it came, with its types, in [`sprag_core::message::Rare`].

mod annotations;
mod read;
#[cfg(test)]
mod tests;
mod values;
mod write;

pub(crate) use read::read;
pub(crate) use values::from_wire;
pub(crate) use write::{Handed, write};

/// Why bytes are no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("{0}")]
    Encoding(#[from] sprag_amqp::decode::DecodeError),
    #[error("0x{0:x} is no character")]
    NoCharacter(u32),
    #[error("an application property has a key that is no text")]
    NamelessProperty,
    #[error("{0} is not of its type")]
    WrongType(&'static str),
}
