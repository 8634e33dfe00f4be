//! Where a message goes from where it was sent: from a topic to the subscriptions whose rules want it, from an entity to the one that it
//! forwards to. All in the transaction that accepts the message, so that whoever sent it knows that it has arrived.
//!
//! Nothing here refuses: what cannot go on stays with the entity where it has got to, with the reason. What could not be forwarded is there
//! among the transfer dead letters (`…/$Transfer/$DeadLetterQueue`), as on Azure; a copy that its subscription cannot take, among the dead
//! letters; and a dead letter that cannot be forwarded stays one.

use std::sync::Arc;

use sprag_core::ids::SequenceNumber;

use crate::{
    entity::{EntityIndex, MAX_HOPS},
    filter,
    index::{Change, NEVER, Place, Taken},
    messages::{self, Prepared, Sender, accept, check_room, delete, name_the_reason, put_row, read_row, unreadable},
    writer::{Stop, Tx},
};

/// Why a message could not be forwarded. Azure documents the one for hops; the others are the names of its errors.
mod reason {
    pub(super) const NOT_FOUND: &str = "MessagingEntityNotFound";
    pub(super) const DISABLED: &str = "MessagingEntityDisabled";
    pub(super) const HOPS: &str = "MaxTransferHopCountExceeded";
    pub(super) const TOO_LARGE: &str = "MessageSizeExceeded";
    pub(super) const FULL: &str = "QuotaExceeded";
    /// As Azure writes it for subscriptions.
    pub(super) const NO_SESSION: &str = "Session ID is null";
    /// The target does not take it for another reason.
    pub(super) const REFUSED: &str = "ForwardingFailed";
}

/// A copy, or several, to each subscription whose rules want it. The number is the first copy's; with no copy it names nothing.
pub(crate) fn publish(
    tx: &mut Tx<'_>,
    topic: EntityIndex,
    prepared: &Prepared,
    hops: u32,
) -> Result<SequenceNumber, Stop> {
    let mut first = None;
    for subscription in tx.topology.entities[topic].subscriptions.clone() {
        let target = Arc::clone(&tx.topology.entities[subscription]);
        if target.is_gone() {
            continue;
        }
        let copies = filter::copies(&target.rules, &prepared.message);
        if copies.plain {
            let seq = land(tx, topic, subscription, prepared, hops)?;
            first.get_or_insert(seq);
        }
        for message in copies.changed {
            // What an action has made of it need not be a message that the subscription takes.
            let made = target.spec.accepts(&message, 0).and_then(|()| Prepared::exact(message));
            let seq = match made {
                Ok(mut made) => {
                    (made.id_assigned, made.enqueue_seq) = (prepared.id_assigned, prepared.enqueue_seq);
                    land(tx, topic, subscription, &made, hops)?
                }
                Err(error) => {
                    put_dead(tx, subscription, prepared, Place::Dead, "RuleActionFailed", &error.to_string())?
                }
            };
            first.get_or_insert(seq);
        }
    }
    Ok(SequenceNumber(first.unwrap_or_else(|| tx.local.next_sequence())))
}

/// A copy arrives at its subscription.
fn land(
    tx: &mut Tx<'_>,
    topic: EntityIndex,
    subscription: EntityIndex,
    prepared: &Prepared,
    hops: u32,
) -> Result<i64, Stop> {
    let spec = &tx.topology.entities[subscription].spec;
    if spec.forward_to.is_some() {
        return forward(tx, subscription, prepared, hops);
    }
    if spec.requires_session && prepared.message.session_id.is_none() {
        // As Service Bus does: the publisher cannot know who subscribes, and the others shall have it.
        let problem = "the subscription requires sessions and the message has no session id";
        return put_dead(tx, subscription, prepared, Place::Dead, reason::NO_SESSION, problem);
    }
    put_row(tx, subscription, prepared, Place::Active, Sender::Topic(topic))
}

/// A message that cannot be where it belongs: among the dead letters of a kind, with the reason.
fn put_dead(
    tx: &mut Tx<'_>,
    entity: EntityIndex,
    prepared: &Prepared,
    kind: Place,
    reason: &str,
    description: &str,
) -> Result<i64, Stop> {
    let seq = put_row(tx, entity, prepared, Place::Active, Sender::Client)?;
    let state = if kind == Place::Transfer { messages::TRANSFER } else { messages::DEAD };
    messages::bury(tx, seq, state, Some(reason), Some(description))?;
    // As a dead letter it reads differently.
    tx.fresh.pop();
    if let Some(Change::Insert { place, slot, .. }) = tx.changes.last_mut() {
        *place = kind;
        slot.expires_at = NEVER;
    }
    Ok(seq)
}

/// A message goes on to the entity that this one forwards to, or stays among the transfer dead letters here.
pub(crate) fn forward(tx: &mut Tx<'_>, from: EntityIndex, prepared: &Prepared, hops: u32) -> Result<i64, Stop> {
    let entity = &tx.topology.entities[from];
    match onward(tx, entity.forward_to, prepared, hops) {
        Ok(to) => Ok(accept(tx, to, prepared, hops + 1)?.0),
        Err((reason, problem)) => put_dead(tx, from, prepared, Place::Transfer, reason, &problem),
    }
}

/// Whether a message can go on to an entity; or the reason, and what is wrong.
fn onward(
    tx: &Tx<'_>,
    to: Option<EntityIndex>,
    prepared: &Prepared,
    hops: u32,
) -> Result<EntityIndex, (&'static str, String)> {
    let Some(to) = to.filter(|to| !tx.topology.entities[*to].is_gone()) else {
        return Err((reason::NOT_FOUND, "the entity that it would be forwarded to is not there".into()));
    };
    let spec = &tx.topology.entities[to].spec;
    if hops >= MAX_HOPS {
        let problem = format!("it has been forwarded {hops} times and would go on to {}", spec.name);
        return Err((reason::HOPS, problem));
    }
    if !spec.status.sends() {
        return Err((reason::DISABLED, format!("{} takes no messages: its status is {:?}", spec.name, spec.status)));
    }
    let size = prepared.size.into();
    if spec.requires_session && prepared.message.session_id.is_none() {
        return Err((reason::NO_SESSION, format!("{} requires sessions and the message has no session id", spec.name)));
    }
    if size > spec.max_message_size {
        let problem = format!("the message has {size} bytes; {} takes at most {}", spec.name, spec.max_message_size);
        return Err((reason::TOO_LARGE, problem));
    }
    spec.accepts(&prepared.message, size).map_err(|error| (reason::REFUSED, error.to_string()))?;
    check_room(tx, to, size).map(|()| to).map_err(|stop| (reason::FULL, stop.to_string()))
}

/// A message that waits on an entity which forwards since. Answers where it is when it could not go on: among the transfer dead letters of this
/// one, or, a dead letter, where it was.
pub(crate) fn forward_row(tx: &mut Tx<'_>, taken: &Taken) -> Result<Option<Place>, Stop> {
    let (entity, seq) = (taken.entity, taken.slot.seq);
    let Some(row) = read_row(tx.connection, seq).map_err(unreadable)? else { return Ok(None) };
    if taken.place == Place::Dead {
        let gone = forward_dead(tx, entity, seq, row.reason.as_deref(), row.description.as_deref())?;
        return Ok((!gone).then_some(Place::Dead));
    }
    let to = tx.topology.entities[entity].forward_to;
    let mut prepared = Prepared::exact(row.message)?;
    (prepared.id_assigned, prepared.enqueue_seq) = (row.id_assigned, row.enqueue_seq);
    match onward(tx, to, &prepared, 0) {
        Ok(to) => {
            accept(tx, to, &prepared, 1)?;
            delete(tx, seq)?;
            Ok(None)
        }
        Err((reason, problem)) => {
            messages::bury(tx, seq, messages::TRANSFER, Some(reason), Some(&problem))?;
            Ok(Some(Place::Transfer))
        }
    }
}

/// A dead letter goes on to the entity that takes those of this one. False: it cannot.
pub(crate) fn forward_dead(
    tx: &mut Tx<'_>,
    entity: EntityIndex,
    seq: i64,
    reason: Option<&str>,
    description: Option<&str>,
) -> Result<bool, Stop> {
    let source = Arc::clone(&tx.topology.entities[entity]);
    let Some(row) = read_row(tx.connection, seq).map_err(unreadable)? else { return Ok(false) };
    let mut message = row.message;
    name_the_reason(&mut message, reason, description);
    message.scheduled_for = None;
    message.rare_mut().dead_letter_source.get_or_insert_with(|| source.spec.name.clone());
    let mut prepared = Prepared::exact(message)?;
    prepared.id_assigned = row.id_assigned;
    let Ok(to) = onward(tx, source.forward_dead_letters_to, &prepared, 0) else { return Ok(false) };
    accept(tx, to, &prepared, 1)?;
    delete(tx, seq)?;
    Ok(true)
}
