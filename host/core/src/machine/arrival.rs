//! A delivery, read: what it asks for and in whose name.

use std::sync::Arc;

use crate::{
    identity::{self, Unusable},
    ids::{ActionId, EntityName, EventId, EventType, MessageId, SequenceNumber, SessionId},
    message::{Delivery, Message, MessageType, Origin, property},
    seal::Seal,
    time::Timestamp,
};

/// What a delivery is, with nothing believed that is not signed (P31).
#[derive(Debug, Clone)]
pub struct Arrival {
    pub kind: MessageType,
    pub origin: Origin,
    pub event_id: EventId,
    pub event_type: EventType,
    /// The delivery's own id, when the inbox can use it.
    pub message_id: Option<MessageId>,
    /// Why it cannot.
    pub unusable: Option<Unusable>,
    /// The id under which the transport first delivered the event, for a stand-in.
    pub stands_for: Option<MessageId>,
    /// The attempt that a retry or a deadline follows.
    pub follows: u32,
    pub action: Option<ActionId>,
    pub session: Option<SessionId>,
    pub sequence: SequenceNumber,
    /// Whether the entity would give the message up after this delivery (P22).
    pub last_delivery: bool,
    pub repeated: bool,
    pub enqueued_at: Timestamp,
    /// The parking number that a host gave. None of the main queue, and of a message among the parked ones that no host has put there.
    pub parked_as: Option<u32>,
    /// Where the event first came from, for ids of what has none.
    pub place: String,
    pub message: Arc<Message>,
}

impl Arrival {
    pub fn read(source: &EntityName, delivery: &Delivery, seal: &Seal) -> Self {
        let message = &delivery.message;
        let sealed = seal.holds(message);
        let number = |name: &str| message.property(name).and_then(|value| value.as_i64());
        let small = |name: &str| number(name).and_then(|n| u32::try_from(n).ok());
        // Where parked is a place, the transport knows what is there. A copy has to show who made it.
        let copied_as = (delivery.origin == Origin::Parked && delivery.parked_as.is_none() && sealed)
            .then(|| small(property::DEFERRAL_SEQUENCE))
            .flatten();
        let place = copied_as
            .and_then(|_| message.text_property(property::PLACE))
            .map_or_else(|| format!("{source}#{}", delivery.sequence), str::to_owned);
        let id = message.message_id.as_ref().filter(|_| !delivery.id_assigned);
        let (message_id, unusable) = match identity::usable(id) {
            Ok(id) => (Some(id.clone()), None),
            Err(why) => (None, Some(why)),
        };
        let wished = message.message_type();
        let kind = match wished {
            MessageType::Event => MessageType::Event,
            // These do nothing unless the store holds the action that they name under the seal.
            MessageType::Resubmission
            | MessageType::Skip
            | MessageType::HandoffCompleted
            | MessageType::HandoffFailed
            | MessageType::SkipSession => wished,
            MessageType::Retry | MessageType::HandoffExpired | MessageType::DrainTrigger if sealed => wished,
            MessageType::Retry | MessageType::HandoffExpired | MessageType::DrainTrigger => MessageType::Event,
        };
        let believed = sealed && (kind != MessageType::Event || copied_as.is_some());
        let stands_for = believed
            .then(|| message.text_property(property::INBOX_MESSAGE_ID).map(MessageId::from))
            .flatten()
            .filter(|source| identity::usable(Some(source)).is_ok() && Some(source) != message_id.as_ref());
        Self {
            kind,
            origin: delivery.origin,
            event_id: if delivery.id_assigned && message.text_property(property::EVENT_ID).is_none() {
                EventId::from(place.as_str())
            } else {
                message.event_id(|| EventId::from(place.as_str()))
            },
            event_type: message.event_type(),
            message_id,
            unusable,
            stands_for,
            follows: believed.then(|| small(property::RETRY_COUNT)).flatten().unwrap_or(0),
            action: believed.then(|| number(property::ACTION_ID)).flatten().map(ActionId),
            session: message.session_id.clone(),
            sequence: delivery.sequence,
            last_delivery: delivery.delivery_count >= delivery.max_delivery_count,
            repeated: delivery.delivery_count > 1,
            enqueued_at: delivery.enqueued_at,
            parked_as: delivery.parked_as.or(copied_as),
            place,
            message: Arc::clone(message),
        }
    }

    /// The id under which the transport first delivered the event, if it is of use to the inbox.
    pub fn source_id(&self) -> Option<&MessageId> {
        self.stands_for.as_ref().or(self.message_id.as_ref())
    }

    /// What ids of outgoing messages and retries are derived from (P30).
    pub fn source_text(&self) -> &str {
        self.source_id().map_or(self.place.as_str(), |id| id.as_str())
    }

    /// Whether the store's answer should say what is stored about the event: not needed for the usual fresh delivery.
    pub fn asks_for_outcome(&self) -> bool {
        self.kind != MessageType::Event || self.repeated || self.origin == Origin::Parked
    }
}
