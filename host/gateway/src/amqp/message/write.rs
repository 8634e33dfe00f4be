//! A message of the engine, as a receiver gets it.

use sprag_amqp::{
    message::{self as wire, Header},
    value::{Map, Value as Wire},
};
use sprag_broker::client::{ClientMessage, MessageState};
use sprag_core::message::Rare;
use sprag_messages::annotations;

/// How a receiver comes to have a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handed {
    /// With the right to settle it, under this name.
    Locked([u8; 16]),
    /// Gone from the entity.
    Deleted,
    /// Only looked at.
    Shown,
}

/// Writes a message.
pub(crate) fn write(out: &mut Vec<u8>, delivery: &ClientMessage, handed: Handed) {
    let message = &*delivery.message;
    let none = Rare::default();
    let rare = message.rare.as_deref().unwrap_or(&none);
    let header = Header {
        durable: rare.durable.unwrap_or_default(),
        priority: rare.priority.unwrap_or(Header::default().priority),
        // What the entity makes of it counts, and is what the clients show.
        ttl: match delivery.expires_at {
            Some(at) => Some(u32::try_from(at.since(delivery.enqueued_at).as_millis()).unwrap_or(u32::MAX)),
            None => message.time_to_live.map(|ttl| u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX)),
        },
        first_acquirer: false,
        // Earlier deliveries that have failed, without this one.
        delivery_count: match handed {
            Handed::Shown => delivery.delivery_count,
            _ => delivery.delivery_count.saturating_sub(1),
        },
    };
    let mut delivery_annotations = Map::new();
    if let Handed::Locked(lock) = handed {
        delivery_annotations.set(annotations::LOCK_TOKEN, Wire::Uuid(lock));
    }
    let mut bare = Vec::with_capacity(message.body.len() + 256);
    sprag_messages::write_bare(&mut bare, message);
    wire::write(out, Some(&header), &delivery_annotations, &message_annotations(delivery, rare, handed), &bare);
}

fn message_annotations(delivery: &ClientMessage, rare: &Rare, handed: Handed) -> Map {
    let mut map = sprag_messages::sent_annotations(&delivery.message);
    map.set(annotations::SEQUENCE_NUMBER, Wire::Long(delivery.sequence.0));
    map.set(annotations::ENQUEUE_SEQUENCE_NUMBER, Wire::Long(delivery.enqueue_sequence.0));
    map.set(annotations::ENQUEUED_TIME, Wire::Timestamp(delivery.enqueued_at.0));
    map.set(
        annotations::MESSAGE_STATE,
        Wire::Int(match delivery.state {
            MessageState::Active => 0,
            MessageState::Deferred => 1,
            MessageState::Scheduled => 2,
        }),
    );
    if let (Some(lock), Handed::Locked(_)) = (delivery.lock, handed) {
        map.set(annotations::LOCKED_UNTIL, Wire::Timestamp(lock.until.0));
    }
    if delivery.id_assigned {
        map.set(annotations::ASSIGNED_ID, Wire::Bool(true));
    }
    if let Some(source) = &rare.dead_letter_source {
        map.set(annotations::DEAD_LETTER_SOURCE, Wire::String(source.as_str().to_owned()));
    }
    map
}
