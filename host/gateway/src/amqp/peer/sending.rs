//! Messages that clients send: read, handed to the engine, and answered when they are in the file.

use bytes::Bytes;
use sprag_amqp::{
    connection::{Delivery, LinkKey},
    message::{BATCH_FORMAT, batch},
    performative::DeliveryState,
};
use sprag_core::message::Message;

use super::{Done, Kind, Link, Peer, Unanswered};
use crate::amqp::{failure::Failure, message};

/// What has become of a delivery.
pub(in crate::amqp) struct Sent {
    link: LinkKey,
    delivery: Unanswered,
    bytes: usize,
    result: Result<(), Failure>,
}

impl Peer {
    pub(super) fn received(&mut self, delivery: Delivery) {
        match self.links.get(&delivery.link) {
            Some(Link { kind: Kind::Sender(target), .. }) => {
                let target = target.clone();
                self.used(delivery.link);
                self.send(target, delivery);
            }
            Some(Link { kind: Kind::Requests, .. }) => self.requested(delivery),
            // Links of other kinds are not sent on, and one that has gone is nobody's.
            _ => {}
        }
    }

    fn send(&mut self, target: sprag_broker::client::Target, delivery: Delivery) {
        let Delivery { link, key, settled, format, payload, state, .. } = delivery;
        let delivery = (!settled).then_some(key);
        let bytes = payload.len();
        let messages = match state {
            Some(DeliveryState::Transactional { .. }) => Err(Failure::transactions()),
            _ => read_all(format, &payload),
        };
        let messages = match messages {
            Ok(messages) => messages,
            Err(failure) => return self.answer_send(link, delivery, Err(failure)),
        };
        self.unwritten += bytes;
        self.write(async move {
            let result = target.send(messages).await.map(drop).map_err(Failure::from);
            Done::Sent(Sent { link, delivery, bytes, result })
        });
    }

    pub(super) fn sent(&mut self, sent: Sent) {
        self.writing -= 1;
        self.unwritten -= sent.bytes;
        self.answer_send(sent.link, sent.delivery, sent.result);
    }

    fn answer_send(&mut self, link: LinkKey, delivery: Unanswered, result: Result<(), Failure>) {
        let state = match &result {
            Ok(()) => DeliveryState::Accepted,
            Err(failure) => {
                tracing::debug!(condition = %failure.condition, text = %failure.text, "a message was not taken");
                DeliveryState::Rejected(Some(failure.to_error()))
            }
        };
        if let Some(key) = delivery {
            // A client that has gone in the meantime does not hear of it.
            let _ = self.amqp.settle_incoming(key, &state);
        }
        if let Err(failure) = result
            && failure.ends_link()
        {
            self.detach(link, &failure);
        }
    }
}

/// The messages of a delivery. They are copied out of what was read from the socket, which is larger and would be kept for their sake.
fn read_all(format: u32, payload: &Bytes) -> Result<Vec<Message>, Failure> {
    let payload = Bytes::copy_from_slice(payload);
    if format != BATCH_FORMAT {
        return Ok(vec![message::read(payload)?]);
    }
    batch(payload)?.messages.into_iter().map(|one| message::read(one).map_err(Failure::from)).collect()
}
