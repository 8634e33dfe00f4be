//! Frames and protocol headers: eight bytes that say what follows.
//!
//! [`next`] takes complete units out of a growing buffer and leaves the rest there; a frame's body shares the buffer's memory.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::performative::{Performative, Sasl};

/// Every frame and every protocol header begins with as many bytes.
pub const HEADER: usize = 8;

/// The smallest `max-frame-size` that the standard lets a peer ask for.
pub const MIN_MAX_FRAME_SIZE: u32 = 512;

/// What a protocol header asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    Amqp,
    Tls,
    Sasl,
}

impl Layer {
    pub const fn header(self) -> [u8; HEADER] {
        let id = match self {
            Self::Amqp => 0,
            Self::Tls => 2,
            Self::Sasl => 3,
        };
        [b'A', b'M', b'Q', b'P', id, 1, 0, 0]
    }

    /// None when it is no header of version 1.0.0 of a layer that we know.
    pub fn of(header: [u8; HEADER]) -> Option<Self> {
        [Self::Amqp, Self::Tls, Self::Sasl].into_iter().find(|layer| layer.header() == header)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Amqp,
    Sasl,
}

/// A frame whose body has not been looked at. Without a body it only says that the peer is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    pub channel: u16,
    pub body: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {size} bytes, of which {max} are allowed")]
    TooLarge { size: u32, max: u32 },
    #[error("a frame of {size} bytes is shorter than its own header")]
    TooShort { size: u32 },
    #[error("a frame whose body would begin at byte {offset} of {size}")]
    DataOffset { offset: u32, size: u32 },
    #[error("type {0} of a frame is not known")]
    UnknownKind(u8),
}

/// Takes the protocol header at the front, once its eight bytes are there.
pub fn next_header(input: &mut BytesMut) -> Option<[u8; HEADER]> {
    let header = *input.first_chunk::<HEADER>()?;
    input.advance(HEADER);
    Some(header)
}

/// Takes the frame at the front, once it is complete. A frame that may not be is an error as soon as its header is there.
///
/// After an error the buffer is of no use: nobody can tell where the next frame would begin.
pub fn next(input: &mut BytesMut, max: u32) -> Result<Option<Frame>, FrameError> {
    let Some(header) = input.first_chunk::<HEADER>() else { return Ok(None) };
    let [s0, s1, s2, s3, words, kind, c0, c1] = *header;
    let size = u32::from_be_bytes([s0, s1, s2, s3]);
    let offset = u32::from(words) * 4;
    if size < HEADER as u32 {
        return Err(FrameError::TooShort { size });
    }
    if size > max {
        return Err(FrameError::TooLarge { size, max });
    }
    if offset < HEADER as u32 || offset > size {
        return Err(FrameError::DataOffset { offset, size });
    }
    let kind = match kind {
        0 => Kind::Amqp,
        1 => Kind::Sasl,
        other => return Err(FrameError::UnknownKind(other)),
    };
    let size = size as usize;
    if input.len() < size {
        return Ok(None);
    }
    let mut body = input.split_to(size).freeze();
    body.advance(offset as usize);
    Ok(Some(Frame { kind, channel: u16::from_be_bytes([c0, c1]), body }))
}

/// Writes a frame around what `body` writes; the answer is how many bytes it takes.
pub fn write(out: &mut Vec<u8>, kind: Kind, channel: u16, body: impl FnOnce(&mut Vec<u8>)) -> usize {
    let start = out.len();
    let kind = match kind {
        Kind::Amqp => 0,
        Kind::Sasl => 1,
    };
    let [c0, c1] = channel.to_be_bytes();
    out.extend_from_slice(&[0, 0, 0, 0, 2, kind, c0, c1]);
    body(out);
    let len = out.len() - start;
    let size = u32::try_from(len).expect("a frame is at most as long as the peer's max-frame-size, a u32");
    out[start..start + 4].copy_from_slice(&size.to_be_bytes());
    len
}

pub fn write_amqp(out: &mut Vec<u8>, channel: u16, performative: &Performative, payload: &[u8]) -> usize {
    write(out, Kind::Amqp, channel, |out| {
        performative.write(out);
        out.extend_from_slice(payload);
    })
}

pub fn write_sasl(out: &mut Vec<u8>, frame: &Sasl) -> usize {
    write(out, Kind::Sasl, 0, |out| frame.write(out))
}

/// The frame without a body.
pub fn write_empty(out: &mut Vec<u8>) -> usize {
    write(out, Kind::Amqp, 0, |_| {})
}

#[cfg(test)]
mod tests;
