//! What is to be written to the socket: one buffer, to whose end every frame is written.

use crate::{
    codes, encode,
    frame::{self, Kind, MIN_MAX_FRAME_SIZE},
    performative::{
        AmqpError, DeliveryState, Detach, Flow, Performative, Role, Transfer, descriptors,
        write::{self},
    },
    value::Map,
};

/// A buffer that grew larger than this is not kept for the next round: a thousand quiet connections should not hold what each of them
/// needed once.
const KEPT_CAPACITY: usize = 64 * 1024;

/// A frame that the peer could not read; nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLarge;

#[derive(Debug)]
pub(super) struct Output {
    buffer: Vec<u8>,
    /// The peer's.
    pub(super) max_frame_size: u32,
    /// The disposition at the end of the buffer, which the next one may extend.
    last: Option<LastDisposition>,
}

#[derive(Debug)]
struct LastDisposition {
    channel: u16,
    role: Role,
    id: u32,
    state: Option<DeliveryState>,
    /// Where the four bytes of `last` are.
    at: usize,
    /// The length of the buffer behind it: when that is different now, something else was written.
    end: usize,
}

impl Output {
    pub(super) fn new() -> Self {
        Self { buffer: Vec::new(), max_frame_size: MIN_MAX_FRAME_SIZE, last: None }
    }

    pub(super) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Moves everything to the end of `into`; the answer is how much it was.
    pub(super) fn take(&mut self, into: &mut Vec<u8>) -> usize {
        let len = self.buffer.len();
        self.last = None;
        if into.is_empty() {
            std::mem::swap(&mut self.buffer, into);
            self.buffer.clear();
        } else {
            into.append(&mut self.buffer);
        }
        if self.buffer.capacity() > KEPT_CAPACITY {
            self.buffer = Vec::new();
        }
        len
    }

    pub(super) fn header(&mut self, layer: frame::Layer) {
        self.buffer.extend_from_slice(&layer.header());
    }

    pub(super) fn sasl(&mut self, sasl: &crate::performative::Sasl) {
        frame::write_sasl(&mut self.buffer, sasl);
    }

    pub(super) fn empty(&mut self) {
        frame::write_empty(&mut self.buffer);
    }

    /// Writes a frame, or nothing when it would be too large.
    pub(super) fn frame(&mut self, channel: u16, performative: &Performative) -> Result<(), TooLarge> {
        self.framed(channel, |out| performative.write(out))
    }

    fn framed(&mut self, channel: u16, body: impl FnOnce(&mut Vec<u8>)) -> Result<(), TooLarge> {
        let start = self.buffer.len();
        let len = frame::write(&mut self.buffer, Kind::Amqp, channel, body);
        if len as u64 > u64::from(self.max_frame_size) {
            self.buffer.truncate(start);
            return Err(TooLarge);
        }
        Ok(())
    }

    /// Writes the first of the frames that fits: an error is shortened rather than not told.
    fn shortened(&mut self, channel: u16, error: Option<&AmqpError>, make: impl Fn(Option<AmqpError>) -> Performative) {
        let full = error.cloned();
        let without_info = error.map(|error| AmqpError { info: Map::new(), ..error.clone() });
        let bare =
            error.map(|error| AmqpError { condition: error.condition.clone(), description: None, info: Map::new() });
        for error in [full, without_info, bare, None] {
            if self.frame(channel, &make(error)).is_ok() {
                return;
            }
        }
    }

    pub(super) fn detach(&mut self, channel: u16, handle: u32, closed: bool, error: Option<&AmqpError>) {
        self.shortened(channel, error, |error| Performative::Detach(Detach { handle, closed, error }));
    }

    pub(super) fn end(&mut self, channel: u16, error: Option<&AmqpError>) {
        self.shortened(channel, error, Performative::End);
    }

    pub(super) fn close(&mut self, error: Option<&AmqpError>) {
        self.shortened(0, error, Performative::Close);
    }

    pub(super) fn flow(&mut self, channel: u16, flow: &Flow) {
        // Eleven numbers: it fits into the smallest frame that there is.
        frame::write(&mut self.buffer, Kind::Amqp, channel, |out| flow.write(out));
    }

    /// A settled disposition about one delivery. Those that follow each other and say the same become one frame.
    pub(super) fn settled(&mut self, channel: u16, role: Role, id: u32, state: Option<&DeliveryState>) {
        if let Some(last) = &mut self.last
            && last.end == self.buffer.len()
            && last.channel == channel
            && last.role == role
            && last.id.wrapping_add(1) == id
            && last.state.as_ref() == state
        {
            self.buffer[last.at..last.at + 4].copy_from_slice(&id.to_be_bytes());
            last.id = id;
            return;
        }
        let start = self.buffer.len();
        let mut at = 0;
        let mut body = |state: Option<&DeliveryState>, out: &mut Vec<u8>| {
            write::composite(out, descriptors::DISPOSITION, 6, |out| {
                encode::boolean(out, role == Role::Receiver);
                encode::uint(out, id);
                out.push(codes::UINT);
                at = out.len();
                out.extend_from_slice(&id.to_be_bytes());
                encode::boolean(out, true);
                write::state(out, state);
                encode::boolean(out, false);
            });
        };
        if self.framed(channel, |out| body(state, out)).is_err() {
            // The outcome counts; what explains it is left out where the peer's frames have no room for it.
            let outcome = match state {
                Some(DeliveryState::Rejected(Some(error))) => {
                    let error = AmqpError { condition: error.condition.clone(), description: None, info: Map::new() };
                    Some(DeliveryState::Rejected(Some(error)))
                }
                Some(DeliveryState::Modified { delivery_failed, undeliverable_here, .. }) => {
                    Some(DeliveryState::Modified {
                        delivery_failed: *delivery_failed,
                        undeliverable_here: *undeliverable_here,
                        message_annotations: Map::new(),
                    })
                }
                other => other.cloned(),
            };
            if self.framed(channel, |out| body(outcome.as_ref(), out)).is_err() {
                let bare = matches!(outcome, Some(DeliveryState::Rejected(_))).then_some(DeliveryState::Rejected(None));
                frame::write(&mut self.buffer, Kind::Amqp, channel, |out| body(bare.as_ref(), out));
            }
        }
        let end = self.buffer.len();
        // A list that had to be made wide has moved: such a frame is not extended.
        let kept = end - start < 200;
        self.last = kept.then(|| LastDisposition { channel, role, id, state: state.cloned(), at, end });
    }

    /// One frame of a delivery, with as much of the payload as it takes; the answer is how much that was.
    pub(super) fn transfer(&mut self, channel: u16, transfer: &mut Transfer, payload: &[u8]) -> usize {
        let start = self.buffer.len();
        let max = self.max_frame_size as usize;
        // `more` is one byte whatever it says, so the room does not depend on it: guess it, and write again in the rare case.
        transfer.more = payload.len() + 32 > max;
        loop {
            self.buffer.truncate(start);
            let head = frame::write(&mut self.buffer, Kind::Amqp, channel, |out| transfer.write(out));
            let room = max.saturating_sub(head).max(1);
            let more = payload.len() > room;
            if more == transfer.more {
                let taken = payload.len().min(room);
                self.buffer.extend_from_slice(&payload[..taken]);
                let size = u32::try_from(head + taken).expect("at most max-frame-size, a u32");
                self.buffer[start..start + 4].copy_from_slice(&size.to_be_bytes());
                return taken;
            }
            transfer.more = more;
        }
    }
}
