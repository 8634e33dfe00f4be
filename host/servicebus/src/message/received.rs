//! What a receiver gets: the message, and the broker's word on it.

use bytes::Bytes;
use sprag_amqp::message::Sections;
use sprag_core::{
    ids::SequenceNumber,
    message::{Message, property},
    time::Timestamp,
};

use super::{Unreadable, annotations, read};

/// In which of an entity's places a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Active,
    Deferred,
    Scheduled,
}

/// A message that was received or looked at.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Received {
    pub(crate) message: Message,
    pub(crate) sequence: SequenceNumber,
    pub(crate) enqueued_at: Timestamp,
    /// Of the header: earlier deliveries of a message that is received, all deliveries of one that is looked at.
    pub(crate) delivery_count: u32,
    pub(crate) state: State,
    /// The broker gave the id (P29).
    pub(crate) id_assigned: bool,
}

impl Received {
    pub(crate) fn read(payload: Bytes) -> Result<Self, Unreadable> {
        let sections = Sections::find(payload.clone())?;
        let map = sections.message_annotations()?;
        let number = |name: &sprag_amqp::value::Symbol| map.get(name.as_str()).and_then(|value| value.as_i64());
        let state = match number(&annotations::MESSAGE_STATE) {
            Some(1) => State::Deferred,
            Some(2) => State::Scheduled,
            _ => State::Active,
        };
        let mut message = read(payload)?;
        if let Some(source) = map.get(annotations::DEAD_LETTER_SOURCE.as_str()).and_then(|value| value.as_str()) {
            message.rare_mut().dead_letter_source = Some(source.into());
        }
        Ok(Self {
            sequence: SequenceNumber(number(&annotations::SEQUENCE_NUMBER).unwrap_or(0)),
            enqueued_at: Timestamp(number(&annotations::ENQUEUED_TIME).unwrap_or(0)),
            delivery_count: sections.header()?.map_or(0, |header| header.delivery_count),
            state,
            id_assigned: map.get(annotations::ASSIGNED_ID.as_str()).is_some_and(|value| value.as_bool() != Some(false)),
            message,
        })
    }

    /// The parking number of a parked copy.
    pub(crate) fn parked_as(&self) -> Option<u32> {
        let number = self.message.property(property::DEFERRAL_SEQUENCE)?.as_i64()?;
        u32::try_from(number).ok()
    }
}
