//! [`Transport`] on the engine.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use sprag_core::{
    ids::{EntityName, MessageId, SequenceNumber, SessionId},
    message::{Delivery, LockToken, Message, Origin},
};
use sprag_transport::{EntityInfo, Error, Part, Peeked, Session, SessionInfo, Settlement, Transport};
use tokio::sync::Notify;

use crate::{
    Engine,
    entity::{Address, EntityIndex, EntityKind, Letters, Topology},
    index::{Accept, CameFrom, Change, Handed, Index, Pin, Sess, Settled, Shut, Slot},
    messages::{self, Prepared},
    session::Handle,
    shared::{CachedMessage, Shared},
    writer::Stop,
};

/// Waits for a wake after a look that found nothing, and looks again. None after `wait`.
pub(crate) async fn look_until<T, E>(
    wake: &Notify,
    wait: Duration,
    mut look: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    if wait.is_zero() {
        return look();
    }
    let deadline = tokio::time::Instant::now() + wait;
    loop {
        // Listening begins before the look, so what comes between the two is not missed.
        let woken = wake.notified();
        tokio::pin!(woken);
        woken.as_mut().enable();
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        if tokio::time::timeout_at(deadline, woken).await.is_err() {
            return look();
        }
    }
}

fn shut_error(shut: Shut, name: &EntityName) -> Error {
    match shut {
        Shut::Gone => Error::NoSuchEntity(name.clone()),
        Shut::Disabled => Error::Refused(format!("nothing can be received from {name} now: its status says so")),
        Shut::Forwards => Error::Refused(format!("nothing can be received from {name}: its messages are forwarded")),
    }
}

impl Shared {
    /// The message of a hand-over, from the cache or from the file.
    pub(crate) fn load(&self, seq: i64) -> Result<CachedMessage, Error> {
        if let Some(cached) = self.cache.lock().get(seq) {
            return Ok(cached);
        }
        let row = self.read(|connection| messages::read_row(connection, seq))?;
        let row = row.ok_or_else(|| Error::Unavailable(format!("message {seq} is not in the file")))?;
        let mut message = row.message;
        let is_dead = matches!(
            row.state,
            messages::DEAD | messages::DEAD_DEFERRED | messages::TRANSFER | messages::TRANSFER_DEFERRED
        );
        if is_dead {
            messages::name_the_reason(&mut message, row.reason.as_deref(), row.description.as_deref());
        }
        Ok(CachedMessage {
            message: Arc::new(message),
            enqueued_at: row.enqueued_at,
            id_assigned: row.id_assigned,
            parked_as: row.parked_as,
            enqueue_seq: row.enqueue_seq,
            size: row.size,
        })
    }

    pub(crate) fn delivery(&self, handed: Handed, origin: Origin, max_delivery_count: u32) -> Result<Delivery, Error> {
        let loaded = self.load(handed.slot.seq)?;
        Ok(Delivery {
            sequence: SequenceNumber(handed.slot.seq),
            origin,
            lock: LockToken(handed.lock),
            delivery_count: handed.slot.deliveries,
            max_delivery_count,
            enqueued_at: loaded.enqueued_at,
            parked_as: loaded.parked_as,
            id_assigned: loaded.id_assigned,
            message: loaded.message,
        })
    }

    /// Settlements that end a message go to the writer; the others change the index only.
    pub(crate) async fn settle_plain(&self, at: Address, lock: LockToken, settlement: Settlement) -> Result<(), Error> {
        let now = Instant::now();
        let counts = matches!(settlement, Settlement::Abandon);
        if matches!(settlement, Settlement::Abandon | Settlement::Release) {
            let (result, buries) = self.with_index_posting(|index| index.unhand_plain(at, lock.0, counts, now));
            if result.is_ok() && buries {
                self.flush().await?;
            }
            return result;
        }
        let slot = self.with_index(|index| index.pin_plain(at, lock.0, now))?;
        self.cache.lock().remove(slot.seq);
        let pin = Pin::Plain { at, lock: lock.0 };
        let written = self.write_pinned(pin, 256, move |tx| {
            let how = match &settlement {
                // A dead letter that is dead-lettered again stays what it is, with the new reason.
                Settlement::DeadLetter { reason, description } => {
                    messages::to_dead_letters(tx, at, slot.seq, Some(reason), Some(description))?
                }
                _ => {
                    messages::delete(tx, slot.seq)?;
                    Settled::Gone
                }
            };
            tx.changes.push(Change::SettledPlain { at, lock: lock.0, how });
            Ok(())
        });
        Ok(written.await?)
    }
}

fn session_entity(topology: &Topology, name: &EntityName) -> Result<EntityIndex, Error> {
    match topology.address(name)? {
        Address { entity, part: Letters::Own } if topology.entities[entity].spec.kind == EntityKind::Topic => {
            Err(Error::Refused(format!("{name} is a topic: receive from one of its subscriptions")))
        }
        Address { entity, part: Letters::Own } if topology.entities[entity].spec.requires_session => Ok(entity),
        _ => Err(Error::Refused(format!("{name} has no sessions"))),
    }
}

fn plain_entity(topology: &Topology, name: &EntityName) -> Result<Address, Error> {
    let at = topology.address(name)?;
    let spec = &topology.entities[at.entity].spec;
    if spec.kind == EntityKind::Topic {
        return Err(Error::Refused(format!("{name} is a topic: receive from one of its subscriptions")));
    }
    if spec.requires_session && !at.is_dead() {
        return Err(Error::Refused(format!("{name} requires sessions: accept one to receive from it")));
    }
    Ok(at)
}

#[async_trait]
impl Transport for Engine {
    async fn accept_next(&self, source: &EntityName, wait: Duration) -> Result<Option<Arc<dyn Session>>, Error> {
        let entity = session_entity(&self.shared.topology(), source)?;
        let wake = self.shared.with_index(|index| Arc::clone(&index.entities[entity].wake));
        let found = look_until(&wake, wait, || {
            self.shared.refuse_when_closed()?;
            self.shared.with_index(|index| {
                index.open(Address::own(entity)).map_err(|shut| shut_error(shut, source))?;
                Ok::<_, Error>(index.accept_next(entity, Instant::now()))
            })
        });
        let found = found.await?;
        Ok(found.map(|(session, token, wake)| {
            Arc::new(Handle::new(&self.shared, entity, session, token, wake)) as Arc<dyn Session>
        }))
    }

    async fn accept(
        &self,
        source: &EntityName,
        session: &SessionId,
        wait: Duration,
    ) -> Result<Arc<dyn Session>, Error> {
        let entity = session_entity(&self.shared.topology(), source)?;
        crate::entity::check_session(session).map_err(Error::Refused)?;
        self.shared.refuse_when_closed()?;
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            let accept = || {
                self.shared.with_index(|index| {
                    index.open(Address::own(entity)).map_err(|shut| shut_error(shut, source))?;
                    Ok::<_, Error>(index.accept(entity, session, Instant::now()))
                })
            };
            let waiters = match accept()? {
                Accept::Got { token, wake } => {
                    return Ok(Arc::new(Handle::new(&self.shared, entity, session.clone(), token, wake)));
                }
                Accept::Held(waiters) => waiters,
            };
            let woken = waiters.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            if let Accept::Got { token, wake } = accept()? {
                return Ok(Arc::new(Handle::new(&self.shared, entity, session.clone(), token, wake)));
            }
            if tokio::time::timeout_at(deadline, woken).await.is_err() {
                return Err(Error::SessionHeld(session.clone()));
            }
        }
    }

    async fn receive(&self, source: &EntityName, max: usize, wait: Duration) -> Result<Vec<Delivery>, Error> {
        let topology = self.shared.topology();
        let at = plain_entity(&topology, source)?;
        let wake = self.shared.with_index(|index| Arc::clone(&index.plain(at).wake));
        let found = look_until(&wake, wait, || {
            self.shared.refuse_when_closed()?;
            let wall = self.shared.now().0;
            let handed = self.shared.with_index(|index| {
                index.open(at).map_err(|shut| shut_error(shut, source))?;
                Ok::<_, Error>(index.take_plain(at, max.max(1), Instant::now(), wall))
            })?;
            Ok::<_, Error>((!handed.is_empty()).then_some(handed))
        });
        let limit = if at.is_dead() { u32::MAX } else { topology.entities[at.entity].spec.max_delivery_count };
        let mut deliveries = Vec::new();
        let mut failed = None;
        for handed in found.await?.unwrap_or_default() {
            match self.shared.delivery(handed, Origin::Main, limit) {
                Ok(delivery) => deliveries.push(delivery),
                Err(error) => {
                    // It may be readable later; nothing else is held up by it.
                    let back =
                        self.shared.with_index(|index| index.unhand_plain(at, handed.lock, true, Instant::now()));
                    tracing::error!(entity = %source, sequence = handed.slot.seq, %error, given_back = back.is_ok(), "a message cannot be read");
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(error) if deliveries.is_empty() => Err(error),
            _ => Ok(deliveries),
        }
    }

    async fn renew(&self, source: &EntityName, lock: LockToken) -> Result<Duration, Error> {
        let at = plain_entity(&self.shared.topology(), source)?;
        self.shared.with_index(|index| index.renew_plain(at, lock.0, Instant::now()))
    }

    async fn settle(&self, source: &EntityName, lock: LockToken, settlement: Settlement) -> Result<(), Error> {
        let at = plain_entity(&self.shared.topology(), source)?;
        self.shared.settle_plain(at, lock, settlement).await
    }

    async fn send(&self, entity: &EntityName, messages: Vec<Message>) -> Result<Vec<SequenceNumber>, Error> {
        let topology = self.shared.topology();
        let at = topology.position(entity).ok_or_else(|| Error::NoSuchEntity(entity.clone()))?;
        let spec = &topology.entities[at].spec;
        if let EntityKind::Subscription(_) = spec.kind {
            return Err(Error::Refused(format!("{entity} is a subscription: send to its topic")));
        }
        if !spec.status.sends() {
            return Err(Error::Refused(format!("{entity} takes no messages now: its status is {:?}", spec.status)));
        }
        topology.entities[at].touch(self.shared.now());
        let prepared = messages
            .into_iter()
            .map(|message| {
                let prepared = Prepared::new(message)?;
                spec.accepts(&prepared.message, prepared.size.into())?;
                Ok(prepared)
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let bytes = prepared.iter().map(Prepared::bytes).sum();
        let sent = self.shared.write(bytes, move |tx| {
            messages::check_room(tx, at, prepared.iter().map(|message| u64::from(message.size)).sum())?;
            prepared.iter().map(|message| messages::send(tx, at, message)).collect::<Result<Vec<_>, Stop>>()
        });
        Ok(sent.await?)
    }

    async fn enqueue(&self, source: &EntityName, message: Message) -> Result<(), Error> {
        let topology = self.shared.topology();
        let at = topology.position(source).ok_or_else(|| Error::NoSuchEntity(source.clone()))?;
        let prepared = Prepared::new(message)?;
        // The host's own messages carry what their originals did, so size is not looked at.
        topology.entities[at].spec.accepts(&prepared.message, 0)?;
        let put = self.shared.write(prepared.bytes(), move |tx| messages::enqueue(tx, at, &prepared));
        put.await?;
        Ok(())
    }

    async fn cancel_scheduled(&self, entity: &EntityName, sequence: SequenceNumber) -> Result<(), Error> {
        let at = self.shared.topology().position(entity).ok_or_else(|| Error::NoSuchEntity(entity.clone()))?;
        let missing = Error::NoSuchScheduled(sequence, entity.clone());
        match self.shared.write(64, move |tx| messages::cancel(tx, at, sequence.0)).await? {
            true => Ok(()),
            false => Err(missing),
        }
    }

    async fn cancel_scheduled_id(&self, source: &EntityName, id: &MessageId) -> Result<bool, Error> {
        let at = self.shared.topology().position(source).ok_or_else(|| Error::NoSuchEntity(source.clone()))?;
        let id = id.clone();
        Ok(self.shared.write(64, move |tx| messages::cancel_by_id(tx, at, &id)).await?)
    }

    async fn peek(
        &self,
        entity: &EntityName,
        part: Part,
        session: Option<&SessionId>,
        from: SequenceNumber,
        max: usize,
    ) -> Result<Vec<Peeked>, Error> {
        let at = self.shared.topology().address(entity)?;
        let part = if at.is_dead() && part == Part::Active { Part::DeadLetters } else { part };
        let places = self.shared.with_index(|index| places(index, at, part, session, from.0, max));
        let session = session.cloned();
        let peeked = self.shared.read_long(move |connection| {
            let mut peeked = Vec::new();
            for (seq, deliveries) in places {
                if peeked.len() == max {
                    break;
                }
                // It may have gone since.
                let Some(row) = messages::read_row(connection, seq)? else { continue };
                if session.is_some() && row.message.session_id != session {
                    continue;
                }
                peeked.push(Peeked {
                    sequence: SequenceNumber(seq),
                    part,
                    enqueued_at: row.enqueued_at,
                    // The file may be behind: counts are written when a message is given back.
                    delivery_count: deliveries,
                    parked_as: row.parked_as,
                    moved_at: row.moved_at,
                    dead_letter_reason: row.reason,
                    dead_letter_description: row.description,
                    message: row.message,
                });
            }
            Ok(peeked)
        });
        Ok(peeked.await?)
    }

    async fn replay_dead_letters(&self, entity: &EntityName, sequences: &[SequenceNumber]) -> Result<u64, Error> {
        let mut at = self.shared.topology().address(entity)?;
        if !at.is_dead() {
            at.part = Letters::Dead;
        }
        // What somebody is just receiving stays with them.
        let taken = self.shared.with_index(|index| {
            let take = |sequence: &SequenceNumber| index.take_dead(at, sequence.0);
            sequences.iter().filter_map(take).collect::<Vec<_>>()
        });
        let undo = vec![Change::NotReplayed { at, slots: taken.clone() }];
        let replayed = self.shared.write_detached(256 * taken.len(), undo, move |tx| {
            let mut count = 0;
            for slot in &taken {
                count += u64::from(messages::replay(tx, at, slot.seq)?);
            }
            Ok(count)
        });
        let replayed = replayed.await;
        let mut cache = self.shared.cache.lock();
        sequences.iter().for_each(|sequence| cache.remove(sequence.0));
        Ok(replayed?)
    }

    async fn describe(&self, entity: &EntityName) -> Result<EntityInfo, Error> {
        let topology = self.shared.topology();
        let at = topology.address(entity)?.entity;
        Ok(self.shared.with_index(|index| describe(&topology, index, at)))
    }

    async fn entities(&self) -> Result<Vec<EntityInfo>, Error> {
        let topology = self.shared.topology();
        let there = |at: &EntityIndex| !topology.entities[*at].is_gone();
        Ok(self.shared.with_index(|index| {
            (0..topology.entities.len()).filter(there).map(|at| describe(&topology, index, at)).collect()
        }))
    }

    async fn sessions(
        &self,
        entity: &EntityName,
        after: Option<&SessionId>,
        max: usize,
    ) -> Result<Vec<SessionInfo>, Error> {
        let at = session_entity(&self.shared.topology(), entity)?;
        let mut found = self.shared.with_index(|index| {
            let sessions = &index.entities[at].sessions;
            let mut ids: Vec<&SessionId> = sessions.keys().filter(|id| after.is_none_or(|after| *id > after)).collect();
            ids.sort_unstable();
            ids.truncate(max);
            ids.into_iter().map(|id| session_info(id, &sessions[id])).collect::<Vec<_>>()
        });
        let oldest: Vec<_> = found.iter().map(|(_, oldest)| *oldest).collect();
        let times = self.shared.read_long(move |connection| {
            let mut statement =
                connection.prepare_cached("SELECT moved_at FROM message WHERE seq = ?1 AND state = 2")?;
            let mut times = Vec::with_capacity(oldest.len());
            for seq in oldest {
                let time: Option<i64> = match seq {
                    Some(seq) => {
                        statement.query_map([seq], |row| row.get::<_, Option<i64>>(0))?.next().transpose()?.flatten()
                    }
                    None => None,
                };
                times.push(time.map(sprag_core::time::Timestamp));
            }
            Ok(times)
        });
        for ((info, _), time) in found.iter_mut().zip(times.await?) {
            info.oldest_parked_at = time;
        }
        Ok(found.into_iter().map(|(info, _)| info).collect())
    }
}

fn describe(topology: &Topology, index: &Index, at: EntityIndex) -> EntityInfo {
    let (spec, counts) = (&topology.entities[at].spec, index.entities[at].counts);
    EntityInfo {
        name: spec.name.clone(),
        requires_session: spec.requires_session,
        lock_duration: spec.lock_duration,
        max_delivery_count: spec.max_delivery_count,
        active: counts.active,
        scheduled: counts.scheduled,
        parked: counts.parked,
        dead_letters: counts.dead,
    }
}

/// What the index knows of a session, and the number of its oldest parked message.
fn session_info(id: &SessionId, session: &Sess) -> (SessionInfo, Option<i64>) {
    let oldest = session.in_hand(CameFrom::Parked).map(|current| current.slot.seq).next();
    let oldest = oldest.or_else(|| session.parked.front().map(|(_, slot)| slot.seq));
    let info = SessionInfo {
        session: id.clone(),
        state: session.state.clone(),
        active: session.active_count(),
        parked: session.parked_count(),
        oldest_parked_at: None,
        locked: session.is_held(),
    };
    (info, oldest)
}

/// Numbers and delivery counts of the messages in a part of an entity, from a number on, in the order of a peek: parked ones of one session
/// in parking order, all others by number. Without a session no more than `max`; the dead letters of a session are picked by the reader.
fn places(
    index: &Index,
    address: Address,
    part: Part,
    session: Option<&SessionId>,
    from: i64,
    max: usize,
) -> Vec<(i64, u32)> {
    let at = address.entity;
    let state = &index.entities[at];
    let one = session.and_then(|id| state.sessions.get(id)).into_iter();
    let sessions = one.chain(session.is_none().then(|| state.sessions.values()).into_iter().flatten());
    let mut found: Vec<(u32, Slot)> = Vec::new();
    match part {
        Part::Active => {
            for session in sessions {
                found.extend(session.in_hand(CameFrom::Active).map(|current| (0, current.slot)));
                found.extend(session.active.iter().map(|slot| (0, *slot)));
            }
            found.extend(state.plain.slots().map(|slot| (0, slot)));
        }
        Part::Parked => {
            let order = |number| if session.is_some() { number } else { 0 };
            for session in sessions {
                found.extend(session.in_hand(CameFrom::Parked).map(|current| (order(current.number), current.slot)));
                found.extend(session.parked.iter().map(|(number, slot)| (order(*number), *slot)));
            }
        }
        Part::Scheduled => {
            for ((_, seq), it) in &index.scheduled {
                if it.entity == at && (session.is_none() || it.session.as_ref() == session) {
                    found.push((0, Slot { seq: *seq, expires_at: 0, deliveries: 0, size: it.size }));
                }
            }
        }
        Part::DeadLetters if address.part == Letters::Transfer => {
            found.extend(state.transfer.slots().map(|slot| (0, slot)));
        }
        Part::DeadLetters => found.extend(state.dead.slots().map(|slot| (0, slot))),
    }
    found.retain(|(_, slot)| slot.seq >= from);
    found.sort_unstable_by_key(|(number, slot)| (*number, slot.seq));
    if session.is_none() {
        found.truncate(max);
    }
    found.into_iter().map(|(_, slot)| (slot.seq, slot.deliveries)).collect()
}
