//! Messages that come in, and what both sides say about deliveries.

use bytes::{Bytes, BytesMut};

use super::{
    Connection, Fault,
    event::{Delivery, Disposed, Event},
    keys::{IncomingKey, OutgoingKey},
    link::{Link, LinkState, Partial},
    links::no_such_link,
    session::Miscounted,
};
use crate::{
    condition,
    performative::{AmqpError, DeliveryState, Disposition, Role, Transfer},
};

impl Connection {
    pub(super) fn on_transfer(&mut self, channel: u16, transfer: Transfer, payload: Bytes) -> Result<(), Fault> {
        let session = self.sessions.get_mut(&channel).expect("looked up by the caller");
        let handle = transfer.handle;
        if session.count_transfer() == Err(Miscounted::WindowViolated) {
            let error = AmqpError::new(condition::WINDOW_VIOLATION, "a transfer beyond the incoming window");
            return Err(Fault::Session(channel, error));
        }
        session.top_up(&mut self.output);
        let Some(link) = session.links.get_mut(&handle) else {
            return Err(no_such_link(session, handle));
        };
        if matches!(link.state, LinkState::Detaching) {
            return Ok(());
        }
        let fault = |condition, text: &str| Err(Fault::Link(link.key, AmqpError::new(condition, text)));
        if link.role == Role::Sender {
            return fault(condition::NOT_ALLOWED, "a transfer on a link that is to be sent to");
        }
        if transfer.resume {
            return fault(condition::NOT_IMPLEMENTED, "deliveries are not resumed here");
        }
        let mut partial = match link.partial.take() {
            Some(partial) => {
                // The older line of fe2o3-amqp, which azservicebus stands on, numbers the last frame of a long message anew, and keeps its tag.
                let goes_on = |tag: &Bytes| *tag == partial.tag && !partial.tag.is_empty();
                if let Some(id) = transfer.delivery_id
                    && id != super::keys::wire_id(partial.key.id)
                    && !transfer.delivery_tag.as_ref().is_some_and(goes_on)
                {
                    return fault(condition::NOT_ALLOWED, "a delivery began within another one");
                }
                partial
            }
            None => {
                if link.credit == 0 {
                    return fault(condition::TRANSFER_LIMIT_EXCEEDED, "a transfer without credit");
                }
                let Some(id) = transfer.delivery_id else {
                    return fault(condition::INVALID_FIELD, "a delivery without delivery-id");
                };
                let link_key = link.key;
                let Some(key) = session.begin_incoming(id) else {
                    let text = format!("delivery-id {id} does not come after the one before");
                    return Err(Fault::Session(channel, AmqpError::new(condition::INVALID_FIELD, text)));
                };
                let link = session.links.get_mut(&handle).expect("looked up above");
                debug_assert_eq!(link.key, link_key);
                link.credit -= 1;
                link.in_use += 1;
                link.delivery_count = link.delivery_count.wrapping_add(1);
                Box::new(Partial {
                    key,
                    tag: transfer.delivery_tag.unwrap_or_default(),
                    format: transfer.message_format.unwrap_or(0),
                    settled: false,
                    state: None,
                    payload: BytesMut::new(),
                    too_long: false,
                })
            }
        };
        let link = session.links.get_mut(&handle).expect("looked up above");
        if transfer.aborted {
            link.in_use = link.in_use.saturating_sub(1);
            self.raise_credit(channel, handle);
            return Ok(());
        }
        partial.settled |= transfer.settled.unwrap_or(false);
        if transfer.state.is_some() {
            partial.state = transfer.state;
        }
        if partial.payload.len() as u64 + payload.len() as u64 > link.max_message_size {
            // What there is of it is let go of at once, and what follows is not kept.
            partial.too_long = true;
            partial.payload = BytesMut::new();
        }
        if transfer.more {
            if !partial.too_long {
                partial.payload.extend_from_slice(&payload);
            }
            link.partial = Some(partial);
            return Ok(());
        }
        if partial.too_long {
            return self.refuse_too_long(channel, handle, &partial);
        }
        // A message in one frame, which is nearly every message, is not copied.
        let payload = if partial.payload.is_empty() {
            payload
        } else {
            partial.payload.extend_from_slice(&payload);
            std::mem::take(&mut partial.payload).freeze()
        };
        let link_key = link.key;
        let Partial { key, tag, format, settled, state, .. } = *partial;
        if settled {
            link.in_use = link.in_use.saturating_sub(1);
        } else {
            session.incoming.insert(key.id, link_key);
        }
        self.events.push_back(Event::Delivery(Delivery { link: link_key, key, tag, settled, format, payload, state }));
        if settled {
            self.raise_credit(channel, handle);
        }
        Ok(())
    }

    /// A message that was longer than the link takes is rejected and the link lives on, as on Azure, whose clients expect that. One that
    /// is settled has no answer, so the link is detached to say it.
    fn refuse_too_long(&mut self, channel: u16, handle: u32, partial: &Partial) -> Result<(), Fault> {
        let session = self.sessions.get_mut(&channel).expect("looked up by the caller");
        let link = session.links.get_mut(&handle).expect("looked up by the caller");
        let text = format!("the message is longer than the {} bytes that this link takes", link.max_message_size);
        let error = AmqpError::new(condition::MESSAGE_SIZE_EXCEEDED, text);
        if partial.settled {
            return Err(Fault::Link(link.key, error));
        }
        session.incoming.insert(partial.key.id, link.key);
        let state = DeliveryState::Rejected(Some(error));
        self.output.settled(channel, Role::Receiver, super::keys::wire_id(partial.key.id), Some(&state));
        self.release_incoming(partial.key);
        Ok(())
    }

    pub(super) fn on_disposition(&mut self, channel: u16, disposition: Disposition) -> Result<(), Fault> {
        let session = self.sessions.get_mut(&channel).expect("looked up by the caller");
        let Disposition { role, first, last, settled, state, .. } = disposition;
        let Some(ids) = session.range(role == Role::Receiver, first, last) else {
            let error = AmqpError::new(condition::INVALID_FIELD, "a disposition whose last is before its first");
            return Err(Fault::Session(channel, error));
        };
        // Only what is there is walked over, so a range may be as wide as it likes.
        match role {
            Role::Receiver => {
                let key = session.key;
                let disposed = |id: u64, of: super::session::Unsettled| Disposed {
                    link: of.link,
                    key: OutgoingKey { session: key, id },
                    tag: of.tag,
                };
                let deliveries: Vec<Disposed> = if settled {
                    let found: Vec<u64> = session.outgoing.range(ids).map(|(id, _)| *id).collect();
                    let outgoing = &mut session.outgoing;
                    found.into_iter().filter_map(|id| Some(disposed(id, outgoing.remove(&id)?))).collect()
                } else {
                    let found = session.outgoing.range(ids);
                    found
                        .map(|(id, of)| disposed(*id, super::session::Unsettled { link: of.link, tag: of.tag.clone() }))
                        .collect()
                };
                if !deliveries.is_empty() {
                    self.events.push_back(Event::Disposition { deliveries, settled, state });
                }
            }
            Role::Sender if settled => {
                let key = session.key;
                let found: Vec<u64> = session.incoming.range(ids).map(|(id, _)| *id).collect();
                let deliveries: Vec<_> = found.iter().map(|id| IncomingKey { session: key, id: *id }).collect();
                for delivery in &deliveries {
                    self.release_incoming(*delivery);
                }
                if !deliveries.is_empty() {
                    self.events.push_back(Event::Withdrawn { deliveries });
                }
            }
            // What a sender thinks of its own delivery before it settles has no consequence here.
            Role::Sender => {}
        }
        Ok(())
    }

    /// Forgets a delivery of the peer and gives its credit back. Says whether it was there.
    pub(super) fn release_incoming(&mut self, delivery: IncomingKey) -> bool {
        let Some(session) = self.session_mut(delivery.session) else { return false };
        let Some(key) = session.incoming.remove(&delivery.id) else { return false };
        if let Some(link) = session.links.get_mut(&key.handle).filter(|link: &&mut Link| link.key == key) {
            link.in_use = link.in_use.saturating_sub(1);
            self.raise_credit(delivery.session.channel, key.handle);
        }
        true
    }
}
