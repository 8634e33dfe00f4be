//! Messages on the wire and messages of the host: the same, whoever writes and whoever reads.
//!
//! Start at [`read()`] (what came) and [`write_bare`] (what goes). Both sides of the wire use them: the broker's face to the network and the client of a
//! far broker. Sections are taken apart because hosts and engines ask for them; what they do not use is kept as it came, with its types, in
//! [`sprag_core::message::Rare`]. What a side says beside the message (a header's counts, a broker's annotations) is its own to write.
//!
//! *Invariant:* no sockets, no queues, and nothing that a sender wrote is lost on the way.

pub mod annotations;
mod read;
mod values;
mod write;

pub use read::read;
pub use values::from_wire;
pub use write::{sent_annotations, write_bare};

/// Why bytes are no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("{0}")]
    Encoding(#[from] sprag_amqp::decode::DecodeError),
    #[error("0x{0:x} is no character")]
    NoCharacter(u32),
    #[error("an application property has a key that is no text")]
    NamelessProperty,
    #[error("{0} is not of its type")]
    WrongType(&'static str),
}
