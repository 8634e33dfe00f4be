//! Batches: one delivery that carries several messages.

use bytes::Bytes;

use super::Sections;
use crate::decode::{DecodeError, Problem, Result};

/// The message-format of a batch: each data section of its body is one encoded message.
pub const BATCH_FORMAT: u32 = 0x8001_3700;

/// What a batch is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The message around the messages. Its own properties and annotations are the sender's word on all of them; nobody but the one who
    /// stores them knows what to make of that.
    pub envelope: Sections,
    /// The encoded messages, sharing memory with the batch.
    pub messages: Vec<Bytes>,
}

/// Takes a batch apart. One without messages is refused: there would be nothing to accept.
pub fn batch(payload: Bytes) -> Result<Batch> {
    let envelope = Sections::find(payload)?;
    let messages = envelope.data()?;
    if messages.is_empty() || messages.iter().any(Bytes::is_empty) {
        return Err(DecodeError { at: 0, problem: Problem::EmptyMessage });
    }
    Ok(Batch { envelope, messages })
}
