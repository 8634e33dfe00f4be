//! A link as data: its state, its credit, and a message that is not complete.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::keys::{IncomingKey, LinkKey};
use crate::performative::{Attach, DeliveryState, Role};

#[derive(Debug)]
pub(super) enum LinkState {
    /// The application has not answered the peer's attach.
    Requested(Arc<Attach>),
    Attached,
    /// We have sent detach: everything but the peer's detach is passed over.
    Detaching,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) key: LinkKey,
    pub(super) name: Arc<str>,
    /// Ours: a receiver when the peer sends.
    pub(super) role: Role,
    pub(super) state: LinkState,
    pub(super) delivery_count: u32,
    /// Deliveries that the sender, whichever side it is, may still begin.
    pub(super) credit: u32,
    /// The longest message: ours when the peer sends, the peer's when we do; 0 of the peer means any.
    pub(super) max_message_size: u64,
    /// As a sender: the peer waits for the answer to a drain.
    pub(super) drain: bool,
    /// As a receiver: what is granted in all.
    pub(super) target_credit: u32,
    /// As a receiver: deliveries that have begun and are not settled.
    pub(super) in_use: u32,
    pub(super) partial: Option<Box<Partial>>,
}

/// A message of which more frames are to come.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) key: IncomingKey,
    pub(super) tag: Bytes,
    pub(super) format: u32,
    pub(super) settled: bool,
    pub(super) state: Option<DeliveryState>,
    pub(super) payload: BytesMut,
    /// It is not kept, and refused when it has come to its end.
    pub(super) too_long: bool,
}

impl Link {
    pub(super) fn requested(key: LinkKey, attach: Arc<Attach>) -> Self {
        Self {
            key,
            name: Arc::from(attach.name.as_str()),
            role: attach.role.other(),
            delivery_count: match attach.role {
                Role::Sender => attach.initial_delivery_count.unwrap_or(0),
                Role::Receiver => 0,
            },
            credit: 0,
            max_message_size: attach.max_message_size.unwrap_or(0),
            drain: false,
            target_credit: 0,
            in_use: 0,
            partial: None,
            state: LinkState::Requested(attach),
        }
    }

    /// Whether the peer may be told of new credit: when at least half of what is granted in all would be new. What is not answered counts
    /// as taken, so that a sender who is faster than we are comes to rest.
    pub(super) fn raise_credit(&mut self) -> bool {
        let free = self.target_credit.saturating_sub(self.in_use);
        let new = free.saturating_sub(self.credit);
        if new == 0 || new < self.target_credit / 2 {
            return false;
        }
        self.credit = free;
        true
    }
}
