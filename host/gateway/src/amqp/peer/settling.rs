//! What receivers say about messages, carried out and answered.

use std::sync::Arc;

use sprag_amqp::{
    connection::{Disposed, LinkKey, OutgoingKey},
    performative::{AmqpError, DeliveryState},
    value::{Map, Value as Wire},
};
use sprag_broker::client::{Error, Modified, Settle};
use sprag_core::message::LockToken;

use super::{Done, Kind, Link, Peer};
use crate::amqp::{
    failure::{Failure, named},
    message::from_wire,
};

/// The keys under which clients say why a message is put to the dead letters.
const REASON: &str = "DeadLetterReason";
const DESCRIPTION: &str = "DeadLetterErrorDescription";

/// What has become of a settlement.
pub(in crate::amqp) struct Settled {
    link: LinkKey,
    delivery: OutgoingKey,
    lock: LockToken,
    /// The outcome that the client asked for. None: it does not wait for an answer.
    asked: Option<DeliveryState>,
    result: Result<(), Error>,
}

impl Peer {
    pub(super) fn disposed(&mut self, deliveries: Vec<Disposed>, settled: bool, state: Option<DeliveryState>) {
        let how = match &state {
            Some(DeliveryState::Received { .. }) => return,
            None if !settled => return,
            // Settled without an outcome: it has not been worked on.
            None => Ok(Settle::Release),
            Some(state) => outcome(state),
        };
        for Disposed { link, key, tag } in deliveries {
            self.used(link);
            let Some(lock) = self.context.tokens.lock(&tag) else { continue };
            match &how {
                Ok(how) => {
                    let asked = state.clone().filter(|_| !settled);
                    self.settle(link, key, lock, how.clone(), asked);
                }
                Err(failure) if !settled => {
                    let state = DeliveryState::Rejected(Some(failure.to_error()));
                    // The lock stays the client's; its delivery is over.
                    let _ = self.amqp.settle_outgoing(key, Some(&state));
                    self.forget_lock(link, lock);
                }
                Err(_) => self.forget_lock(link, lock),
            }
        }
    }

    fn settle(
        &mut self,
        link: LinkKey,
        delivery: OutgoingKey,
        lock: LockToken,
        how: Settle,
        asked: Option<DeliveryState>,
    ) {
        let Some(Link { kind: Kind::Receiver(receiver), .. }) = self.links.get(&link) else { return };
        let from = receiver.from.clone();
        self.write(async move {
            let result = from.settle(lock, how).await;
            Done::Settled(Settled { link, delivery, lock, asked, result })
        });
    }

    pub(super) fn settled(&mut self, settled: Settled) {
        self.writing -= 1;
        let Settled { link, delivery, lock, asked, result } = settled;
        self.forget_lock(link, lock);
        if let Err(error) = &result {
            tracing::debug!(%error, "a settlement was not carried out");
        }
        let Some(asked) = asked else { return };
        let answer = match result {
            Ok(()) => echo(asked),
            Err(error) => DeliveryState::Rejected(Some(Failure::from(error).to_error())),
        };
        // A client that has gone in the meantime does not hear of it.
        let _ = self.amqp.settle_outgoing(delivery, Some(&answer));
    }

    fn forget_lock(&mut self, link: LinkKey, lock: LockToken) {
        if self.locks.remove(&lock).is_some()
            && let Some(Link { kind: Kind::Receiver(receiver), .. }) = self.links.get_mut(&link)
        {
            receiver.settled();
        }
    }

    /// Messages were settled by a request: their deliveries are over too.
    pub(super) fn settled_by_request(&mut self, locks: &[LockToken]) {
        for lock in locks {
            let Some((link, delivery)) = self.locks.get(lock).copied() else { continue };
            self.forget_lock(link, *lock);
            // Settled by the client at the same time, or gone with its link.
            let _ = self.amqp.settle_outgoing(delivery, Some(&DeliveryState::Accepted));
        }
    }
}

/// What an outcome asks for.
fn outcome(state: &DeliveryState) -> Result<Settle, Failure> {
    Ok(match state {
        DeliveryState::Accepted => Settle::Complete,
        DeliveryState::Released => Settle::Release,
        DeliveryState::Modified { undeliverable_here: true, message_annotations, .. } => {
            Settle::Defer { modified: modified(message_annotations, &[])? }
        }
        DeliveryState::Modified { message_annotations, .. } => {
            Settle::Abandon { modified: modified(message_annotations, &[])? }
        }
        DeliveryState::Rejected(error) => dead_letter(error.as_ref())?,
        DeliveryState::Transactional { .. } | DeliveryState::Declared { .. } => return Err(Failure::transactions()),
        DeliveryState::Received { .. } => return Err(Failure::not_allowed("received is not an outcome")),
    })
}

fn dead_letter(error: Option<&AmqpError>) -> Result<Settle, Failure> {
    let Some(error) = error else {
        return Ok(Settle::DeadLetter { reason: None, description: None, modified: Vec::new() });
    };
    let text = |key: &str| error.info.get(key).and_then(Wire::as_str).map(str::to_owned);
    // Who does not use an SDK of Service Bus gives a plain AMQP error.
    let own = (error.condition != named::DEAD_LETTER).then(|| error.condition.to_string());
    Ok(Settle::DeadLetter {
        reason: text(REASON).or(own),
        description: text(DESCRIPTION).or_else(|| error.description.clone()),
        modified: modified(&error.info, &[REASON, DESCRIPTION])?,
    })
}

/// Properties to be set, from a map whose keys are symbols or texts.
pub(crate) fn modified(map: &Map, without: &[&str]) -> Result<Modified, Failure> {
    let mut properties = Modified::new();
    for (key, value) in map.iter() {
        let key = key.as_str().ok_or_else(|| Failure::argument("a property to modify has no text for its name"))?;
        if !without.contains(&key) {
            properties.push((Arc::from(key), from_wire(value.clone())?));
        }
    }
    Ok(properties)
}

/// The same outcome, for a client to recognize: the Python SDK compares it with its own, and takes an error in it for a failure.
fn echo(asked: DeliveryState) -> DeliveryState {
    match asked {
        DeliveryState::Rejected(_) => DeliveryState::Rejected(None),
        DeliveryState::Modified { delivery_failed, undeliverable_here, .. } => {
            DeliveryState::Modified { delivery_failed, undeliverable_here, message_annotations: Map::new() }
        }
        other => other,
    }
}
