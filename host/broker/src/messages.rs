//! Messages as rows: what the writer does to them.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Row};
use sha2::{Digest as _, Sha256};
use sprag_core::{
    ids::{MessageId, SequenceNumber, SessionId},
    message::{Body, Message, Value, property},
    time::Timestamp,
};
use sprag_transport::Error;

use crate::{
    codec,
    counters::Local,
    entity::{Address, Entity, EntityIndex, EntityKind, Letters},
    index::{Change, NEVER, Place, Settled, Slot},
    route,
    shared::{CachedMessage, ReadFailure},
    writer::{Stop, Tx},
};

const ACTIVE: i64 = 0;
pub(crate) const SCHEDULED: i64 = 1;
pub(crate) const PARKED: i64 = 2;
pub(crate) const DEAD: i64 = 3;
pub(crate) const DEFERRED: i64 = 4;
pub(crate) const DEAD_DEFERRED: i64 = 5;
pub(crate) const TRANSFER: i64 = 6;
pub(crate) const TRANSFER_DEFERRED: i64 = 7;
const ID_ASSIGNED: i64 = 1;

/// What a row costs beside the message's own bytes, about.
const ROW_OVERHEAD: usize = 64;

/// The first eight bytes of a text's SHA-256: what indexes are made of.
pub(crate) fn hash8(text: &str) -> i64 {
    let digest: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    i64::from_le_bytes(digest[..8].try_into().expect("eight of thirty-two bytes"))
}

/// A message made ready for its row by the caller, so that the writer has less to do.
#[derive(Debug, Clone)]
pub(crate) struct Prepared {
    pub(crate) message: Arc<Message>,
    header: Vec<u8>,
    body: BodyBytes,
    id_hash: i64,
    pub(crate) id_assigned: bool,
    /// The number under which it was accepted, where it had one before this.
    pub(crate) enqueue_seq: Option<i64>,
    pub(crate) size: u32,
}

#[derive(Debug, Clone)]
enum BodyBytes {
    /// The message's own bytes: not copied.
    Data(Bytes),
    Made(Vec<u8>),
}

impl BodyBytes {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Data(bytes) => bytes,
            Self::Made(bytes) => bytes,
        }
    }
}

impl Prepared {
    /// Gives the message an id if it has none (P29).
    pub(crate) fn new(mut message: Message) -> Result<Self, Error> {
        let id_assigned = message.message_id.is_none();
        if id_assigned {
            message.message_id = Some(fresh_id()?);
        }
        Ok(Self { id_assigned, ..Self::exact(message)? })
    }

    /// The message as it is, to be kept.
    pub(crate) fn exact(message: Message) -> Result<Self, Error> {
        let (header, body) = codec::encode(&message).map_err(|error| Error::Refused(error.to_string()))?;
        let body = match &message.body {
            Body::Data(bytes) => BodyBytes::Data(bytes.clone()),
            _ => BodyBytes::Made(body.into_owned()),
        };
        let size = u32::try_from(header.len() + body.bytes().len())
            .map_err(|_| Error::Refused("the message has more than 4 GiB".to_owned()))?;
        let id_hash = message.message_id.as_ref().map_or(0, |id| hash8(id.as_str()));
        Ok(Self { message: Arc::new(message), header, body, id_hash, id_assigned: false, enqueue_seq: None, size })
    }

    /// For the bound of a group.
    pub(crate) fn bytes(&self) -> usize {
        self.size as usize + ROW_OVERHEAD
    }

    fn id(&self) -> &MessageId {
        self.message.message_id.as_ref().expect("every message on its way into an entity has one")
    }

    pub(crate) fn parts(&self) -> (&[u8], &[u8]) {
        (&self.header, self.body.bytes())
    }
}

fn fresh_id() -> Result<MessageId, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::Unavailable(format!("no random numbers: {error}")))?;
    Ok(MessageId::from(format!("{:032x}", u128::from_be_bytes(bytes))))
}

/// Whether there is room for so many more bytes. For sends only: what ends a message always has room.
pub(crate) fn check_room(tx: &Tx<'_>, entity: EntityIndex, bytes: u64) -> Result<(), Stop> {
    if let Some(max) = tx.shared.options.max_size
        && tx.shared.used_bytes() + bytes > max
    {
        return Err(Stop::Full(format!("the engine is full: {} of {max} bytes are in use", tx.shared.used_bytes())));
    }
    let entities = &tx.topology.entities;
    let targets = std::iter::once(entity).chain(entities[entity].subscriptions.iter().copied());
    for target in targets {
        let Some(max) = entities[target].spec.max_size else { continue };
        let used = tx.shared.with_index(|index| index.entities[target].counts.bytes);
        if used + bytes > max {
            return Err(Stop::Full(format!(
                "{} is full: {used} of {max} bytes are in use",
                entities[target].spec.name
            )));
        }
    }
    Ok(())
}

/// Refuses what was meant for an entity that has been removed since.
fn alive(tx: &Tx<'_>, entity: EntityIndex) -> Result<(), Stop> {
    let target = &tx.topology.entities[entity];
    match target.is_gone() {
        true => Err(Error::NoSuchEntity(target.spec.name.clone()).into()),
        false => Ok(()),
    }
}

/// Sends: through duplicate detection, to every subscription of a topic whose rules let it through, onward where the entity forwards.
pub(crate) fn send(tx: &mut Tx<'_>, entity: EntityIndex, prepared: &Prepared) -> Result<SequenceNumber, Stop> {
    alive(tx, entity)?;
    accept(tx, entity, prepared, 0)
}

pub(crate) fn accept(
    tx: &mut Tx<'_>,
    entity: EntityIndex,
    prepared: &Prepared,
    hops: u32,
) -> Result<SequenceNumber, Stop> {
    let target = Arc::clone(&tx.topology.entities[entity]);
    if let Some(window) = target.spec.duplicate_detection.filter(|_| !prepared.id_assigned)
        && let Some(first) = seen_before(tx, &target, prepared, window)?
    {
        return Ok(first);
    }
    let seq = put(tx, entity, prepared, Sender::Client, hops)?;
    if target.spec.duplicate_detection.is_some() && !prepared.id_assigned {
        tx.execute(
            "INSERT INTO seen (entity, id_hash, message_id, at, seq) VALUES (?1, ?2, ?3, ?4, ?5)",
            (target.id, prepared.id_hash, prepared.id().as_str(), tx.now.0, seq.0),
        )?;
    }
    Ok(seq)
}

fn seen_before(
    tx: &Tx<'_>,
    target: &Entity,
    prepared: &Prepared,
    window: Duration,
) -> Result<Option<SequenceNumber>, Stop> {
    let since = tx.now.before(window).0;
    // Two rows go for each that comes, so the table stays as long as the window is busy.
    tx.execute(
        "DELETE FROM seen WHERE id IN (SELECT id FROM seen WHERE entity = ?1 AND at < ?2 ORDER BY at LIMIT 2)",
        (target.id, since),
    )?;
    tx.first(
        "SELECT seq FROM seen INDEXED BY seen_id WHERE id_hash = ?1 AND entity = ?2 AND at >= ?3 AND message_id = ?4",
        (prepared.id_hash, target.id, since, prepared.id().as_str()),
        |row| row.get(0).map(SequenceNumber),
    )
}

/// Puts a message of the host's own: no duplicate detection, but nothing where its id waits already. None: it did.
pub(crate) fn enqueue(
    tx: &mut Tx<'_>,
    entity: EntityIndex,
    prepared: &Prepared,
) -> Result<Option<SequenceNumber>, Stop> {
    alive(tx, entity)?;
    if !prepared.id_assigned && find_by_id(tx, entity, prepared.id_hash, prepared.id(), false)?.is_some() {
        return Ok(None);
    }
    put(tx, entity, prepared, Sender::Host, 0).map(Some)
}

/// A message of the entity by its id, dead letters apart.
fn find_by_id(
    tx: &Tx<'_>,
    entity: EntityIndex,
    id_hash: i64,
    id: &MessageId,
    scheduled_only: bool,
) -> Result<Option<i64>, Stop> {
    let mut statement = tx.connection.prepare_cached(
        "SELECT seq, state, header FROM message WHERE id_hash = ?1 AND entity = ?2 AND state NOT IN (3, 5, 6, 7) AND seq NOT IN settled",
    )?;
    let mut rows = statement.query((id_hash, tx.topology.entities[entity].id))?;
    while let Some(row) = rows.next()? {
        let state: i64 = row.get(1)?;
        if scheduled_only && state != SCHEDULED {
            continue;
        }
        let header = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
        if codec::decode(header, &[], None).is_ok_and(|found| found.message_id.as_ref() == Some(id)) {
            return Ok(Some(row.get(0)?));
        }
    }
    Ok(None)
}

/// Who sends. The host's own messages (retries, triggers, deadlines) live as long as they say, not as the entity's default says: a trigger
/// that expires would leave a session undrained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    Client,
    Host,
    /// Through a topic, which has a time to live of its own.
    Topic(EntityIndex),
}

fn put(
    tx: &mut Tx<'_>,
    entity: EntityIndex,
    prepared: &Prepared,
    sender: Sender,
    hops: u32,
) -> Result<SequenceNumber, Stop> {
    let due = prepared.message.scheduled_for.map(|at| at.0).filter(|at| *at > tx.now.0);
    let target = &tx.topology.entities[entity];
    if due.is_none() && target.spec.kind == EntityKind::Topic {
        return route::publish(tx, entity, prepared, hops);
    }
    if due.is_none() && target.spec.forward_to.is_some() {
        return route::forward(tx, entity, prepared, hops).map(SequenceNumber);
    }
    let place = due.map_or(Place::Active, Place::Scheduled);
    put_row(tx, entity, prepared, place, sender).map(SequenceNumber)
}

/// Writes into a dead letter why it is one, as its receivers expect it.
pub(crate) fn name_the_reason(message: &mut Message, reason: Option<&str>, description: Option<&str>) {
    for (name, text) in [(property::DEAD_LETTER_REASON, reason), (property::DEAD_LETTER_DESCRIPTION, description)] {
        if let Some(text) = text {
            message.set_property(name, Value::string(text));
        }
    }
}

pub(crate) fn put_row(
    tx: &mut Tx<'_>,
    entity: EntityIndex,
    prepared: &Prepared,
    place: Place,
    sender: Sender,
) -> Result<i64, Stop> {
    let target = &tx.topology.entities[entity];
    let seq = tx.local.next_sequence();
    let (state, due) = match place {
        Place::Scheduled(due) => (SCHEDULED, Some(due)),
        _ => (ACTIVE, None),
    };
    let most = match sender {
        Sender::Client => target.spec.default_ttl,
        Sender::Topic(topic) => {
            let of_topic = tx.topology.entities[topic].spec.default_ttl;
            target.spec.default_ttl.into_iter().chain(of_topic).min()
        }
        Sender::Host => None,
    };
    let lives = match (prepared.message.time_to_live, most) {
        (Some(own), Some(most)) => Some(own.min(most)),
        (own, most) => own.or(most),
    };
    let expires_at = lives.map(|lives| Timestamp(due.unwrap_or(tx.now.0)).after(lives).0).filter(|at| *at != NEVER);
    let (header, body) = prepared.parts();
    tx.connection
        .prepare_cached(
            "INSERT INTO message (seq, entity, state, session, id_hash, enqueued_at, expires_at, due, deliveries, flags, size, header, body) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, ?9, ?10, ?11, ?12)",
        )?
        .execute(rusqlite::params![
            seq,
            target.id,
            state,
            prepared.message.session_id.as_ref().map(SessionId::as_str),
            prepared.id_hash,
            tx.now.0,
            expires_at,
            due,
            if prepared.id_assigned { ID_ASSIGNED } else { 0 },
            prepared.size,
            header,
            body,
        ])?;
    if let Some(accepted) = prepared.enqueue_seq {
        tx.execute("UPDATE message SET enqueue_seq = ?2 WHERE seq = ?1", (seq, accepted))?;
    }
    let slot = Slot { seq, expires_at: expires_at.unwrap_or(NEVER), deliveries: 0, size: prepared.size };
    tx.changes.push(Change::Insert { entity, session: prepared.message.session_id.clone(), slot, place });
    if place == Place::Active {
        let fresh = CachedMessage {
            message: Arc::clone(&prepared.message),
            enqueued_at: tx.now,
            id_assigned: prepared.id_assigned,
            parked_as: None,
            enqueue_seq: prepared.enqueue_seq,
            size: prepared.size,
        };
        tx.fresh.push((seq, fresh));
    }
    Ok(seq)
}

/// A scheduled message becomes one that can be received, under a new number: it takes its place behind what is there now.
pub(crate) fn come_due(tx: &mut Tx<'_>, entity: EntityIndex, seq: i64) -> Result<(), Stop> {
    let spec = &tx.topology.entities[entity].spec;
    if spec.kind == EntityKind::Topic || spec.forward_to.is_some() {
        let Some(row) = read_row(tx.connection, seq).map_err(unreadable)?.filter(|row| row.state == SCHEDULED) else {
            return Ok(());
        };
        let prepared = Prepared {
            id_assigned: row.id_assigned,
            enqueue_seq: row.enqueue_seq.or(Some(seq)),
            ..Prepared::new(row.message)?
        };
        match tx.topology.entities[entity].spec.kind {
            EntityKind::Topic => drop(route::publish(tx, entity, &prepared, 0)?),
            _ => drop(route::forward(tx, entity, &prepared, 0)?),
        }
        delete(tx, seq)?;
        tx.changes.push(Change::Due { seq, now: None });
        return Ok(());
    }
    let new = tx.local.next_sequence();
    let moved = tx.first(
        "UPDATE message SET seq = ?2, enqueue_seq = coalesce(enqueue_seq, seq), state = 0, due = NULL, enqueued_at = ?3 WHERE seq = ?1 AND state = 1 RETURNING expires_at, size",
        (seq, new, tx.now.0),
        |row| Ok((row.get::<_, Option<i64>>(0)?, row.get(1)?)),
    )?;
    // Otherwise it was taken back in the meantime.
    if let Some((expires_at, size)) = moved {
        let slot = Slot { seq: new, expires_at: expires_at.unwrap_or(NEVER), deliveries: 0, size };
        tx.changes.push(Change::Due { seq, now: Some(slot) });
    }
    Ok(())
}

/// Messages of at most so many bytes share a page with others. The limit on what waits to be swept bounds the room it takes: 2 MiB.
const SHARES_A_PAGE: u32 = 2_048;
/// So many rows that wait are swept.
const SWEEP_FROM: usize = 1_024;

/// The message is done. Its row goes at once, or, while the writer is busy and the row shares its page with others, a little later with them:
/// sessions end their messages in another order than they came, so that each page would be written again for each message that leaves it.
/// Half of what a busy engine wrote was that. Until then the number stands in `settled`, and the row is none.
pub(crate) fn end(tx: &mut Tx<'_>, seq: i64, size: u32) -> Result<(), Stop> {
    if !tx.is_busy || size > SHARES_A_PAGE {
        return delete(tx, seq);
    }
    tx.execute("INSERT OR IGNORE INTO settled (seq) VALUES (?1)", [seq])?;
    tx.local.settled = tx.local.settled.map(|waiting| waiting + 1);
    Ok(())
}

/// At the end of a group: deletes the rows that [`end`] has left, when there are many, or time.
pub(crate) fn sweep(connection: &Connection, local: &mut Local, is_busy: bool) -> rusqlite::Result<()> {
    let waiting = match local.settled {
        Some(waiting) => waiting,
        None => count_settled(connection)?,
    };
    local.settled = Some(waiting);
    if waiting == 0 || (is_busy && waiting < SWEEP_FROM) {
        return Ok(());
    }
    connection.prepare_cached("DELETE FROM message WHERE seq IN (SELECT seq FROM settled)")?.execute([])?;
    connection.prepare_cached("DELETE FROM settled")?.execute([])?;
    local.settled = Some(0);
    Ok(())
}

fn count_settled(connection: &Connection) -> rusqlite::Result<usize> {
    let count: i64 = connection.prepare_cached("SELECT count(*) FROM settled")?.query_row([], |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

pub(crate) fn delete(tx: &mut Tx<'_>, seq: i64) -> Result<(), Stop> {
    tx.execute("DELETE FROM message WHERE seq = ?1", [seq])?;
    Ok(())
}

/// To the dead letters of its entity, or on to where those go. Answers what has become of it: dead, or gone from here. A transfer dead letter
/// stays one.
pub(crate) fn to_dead_letters(
    tx: &mut Tx<'_>,
    at: Address,
    seq: i64,
    reason: Option<&str>,
    description: Option<&str>,
) -> Result<Settled, Stop> {
    if at.part == Letters::Transfer {
        bury(tx, seq, TRANSFER, reason, description)?;
        return Ok(Settled::Dead);
    }
    let forwards = tx.topology.entities[at.entity].spec.forward_dead_letters_to.is_some();
    if forwards && route::forward_dead(tx, at.entity, seq, reason, description)? {
        return Ok(Settled::Gone);
    }
    bury(tx, seq, DEAD, reason, description)?;
    Ok(Settled::Dead)
}

/// Makes a message a dead letter of one of the two kinds.
pub(crate) fn bury(
    tx: &mut Tx<'_>,
    seq: i64,
    state: i64,
    reason: Option<&str>,
    description: Option<&str>,
) -> Result<(), Stop> {
    tx.execute(
        "UPDATE message SET state = ?5, moved_at = ?2, reason = ?3, description = ?4, expires_at = NULL, deliveries = 0, parked_as = NULL \
         WHERE seq = ?1",
        (seq, tx.now.0, reason, description.map(sprag_core::outcome::clip), state),
    )?;
    Ok(())
}

/// Set aside by a client.
pub(crate) fn defer(tx: &mut Tx<'_>, seq: i64, deliveries: u32, part: Letters) -> Result<(), Stop> {
    let state = match part {
        Letters::Own => DEFERRED,
        Letters::Dead => DEAD_DEFERRED,
        Letters::Transfer => TRANSFER_DEFERRED,
    };
    tx.execute(
        "UPDATE message SET state = ?2, deliveries = ?3, moved_at = coalesce(moved_at, ?4) WHERE seq = ?1",
        (seq, state, deliveries, tx.now.0),
    )?;
    Ok(())
}

/// Sets application properties of a message that is here already.
pub(crate) fn modify(tx: &mut Tx<'_>, seq: i64, properties: &[(Arc<str>, Value)]) -> Result<(), Stop> {
    if properties.is_empty() {
        return Ok(());
    }
    let Some(row) = read_row(tx.connection, seq).map_err(unreadable)? else { return Ok(()) };
    let mut message = row.message;
    message.properties.extend(properties.iter().cloned());
    let (header, _) = codec::encode(&message).map_err(|error| Error::Refused(error.to_string()))?;
    tx.execute("UPDATE message SET header = ?2 WHERE seq = ?1", (seq, header))?;
    Ok(())
}

/// A change of place: the row stays as it is.
pub(crate) fn park(tx: &mut Tx<'_>, seq: i64, number: u32) -> Result<(), Stop> {
    tx.execute("UPDATE message SET state = 2, parked_as = ?2, moved_at = ?3 WHERE seq = ?1", (seq, number, tx.now.0))?;
    Ok(())
}

/// Takes a scheduled message back. False: there is none.
pub(crate) fn cancel(tx: &mut Tx<'_>, entity: EntityIndex, seq: i64) -> Result<bool, Stop> {
    let target = &tx.topology.entities[entity];
    let id_hash = tx.first(
        "DELETE FROM message WHERE seq = ?1 AND entity = ?2 AND state = 1 RETURNING id_hash",
        (seq, target.id),
        |row| row.get::<_, i64>(0),
    )?;
    let Some(id_hash) = id_hash else { return Ok(false) };
    // It was never delivered: sending it again is not a duplicate.
    tx.execute(
        "DELETE FROM seen INDEXED BY seen_id WHERE id_hash = ?1 AND entity = ?2 AND seq = ?3",
        (id_hash, target.id, seq),
    )?;
    tx.changes.push(Change::Cancelled { seq });
    Ok(true)
}

pub(crate) fn cancel_by_id(tx: &mut Tx<'_>, entity: EntityIndex, id: &MessageId) -> Result<bool, Stop> {
    match find_by_id(tx, entity, hash8(id.as_str()), id, true)? {
        Some(seq) => cancel(tx, entity, seq),
        None => Ok(false),
    }
}

/// A dead letter goes back to its entity, behind what is there now. False: it is no dead letter of the entity.
pub(crate) fn replay(tx: &mut Tx<'_>, at: Address, seq: i64) -> Result<bool, Stop> {
    let target = Arc::clone(&tx.topology.entities[at.entity]);
    let state = if at.part == Letters::Transfer { TRANSFER } else { DEAD };
    let row = read_row(tx.connection, seq).map_err(unreadable)?;
    let Some(row) = row.filter(|row| row.state == state && row.entity == target.id) else { return Ok(false) };
    let lives = row.message.time_to_live.into_iter().chain(target.spec.default_ttl).min();
    let expires_at = lives.map(|lives| tx.now.after(lives).0);
    let new = tx.local.next_sequence();
    tx.execute(
        "UPDATE message SET seq = ?2, state = 0, moved_at = NULL, reason = NULL, description = NULL, enqueued_at = ?3, expires_at = ?4 \
         WHERE seq = ?1",
        (seq, new, tx.now.0, expires_at),
    )?;
    let slot = Slot { seq: new, expires_at: expires_at.unwrap_or(NEVER), deliveries: 0, size: row.size };
    tx.changes.push(Change::Replayed { at, seq, session: row.message.session_id, slot });
    Ok(true)
}

pub(crate) fn unreadable(failure: ReadFailure) -> Stop {
    Stop::Unavailable(failure.to_string())
}

pub(crate) fn set_session_state(
    tx: &mut Tx<'_>,
    entity: EntityIndex,
    session: &SessionId,
    state: Option<&Bytes>,
) -> Result<(), Stop> {
    let id = tx.topology.entities[entity].id;
    match state {
        Some(state) => tx.execute(
            "INSERT OR REPLACE INTO session (entity, session, state, updated_at) VALUES (?1, ?2, ?3, ?4)",
            (id, session.as_str(), &state[..], tx.now.0),
        )?,
        None => tx.execute("DELETE FROM session WHERE entity = ?1 AND session = ?2", (id, session.as_str()))?,
    };
    tx.changes.push(Change::State { entity, session: session.clone(), state: state.cloned(), at: tx.now.0 });
    Ok(())
}

/// A message's row, whole.
pub(crate) struct MessageRow {
    pub(crate) entity: i64,
    pub(crate) state: i64,
    pub(crate) enqueued_at: Timestamp,
    pub(crate) id_assigned: bool,
    pub(crate) parked_as: Option<u32>,
    pub(crate) moved_at: Option<Timestamp>,
    pub(crate) reason: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) size: u32,
    pub(crate) enqueue_seq: Option<i64>,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) message: Message,
}

pub(crate) fn read_row(connection: &Connection, seq: i64) -> Result<Option<MessageRow>, ReadFailure> {
    let mut statement = connection.prepare_cached(
        "SELECT entity, state, session, enqueued_at, flags, parked_as, moved_at, reason, description, size, header, body, \
         enqueue_seq, expires_at FROM message WHERE seq = ?1",
    )?;
    let read = |row: &Row<'_>| -> rusqlite::Result<Result<MessageRow, codec::Error>> {
        let session = row.get_ref(2)?.as_str_or_null()?;
        let message = match codec::decode(row.get_ref(10)?.as_blob()?, row.get_ref(11)?.as_blob()?, session) {
            Ok(message) => message,
            Err(error) => return Ok(Err(error)),
        };
        Ok(Ok(MessageRow {
            entity: row.get(0)?,
            state: row.get(1)?,
            enqueued_at: Timestamp(row.get(3)?),
            id_assigned: row.get::<_, i64>(4)? & ID_ASSIGNED != 0,
            parked_as: row.get(5)?,
            moved_at: row.get::<_, Option<i64>>(6)?.map(Timestamp),
            reason: row.get(7)?,
            description: row.get(8)?,
            size: row.get(9)?,
            enqueue_seq: row.get(12)?,
            expires_at: row.get::<_, Option<i64>>(13)?.map(Timestamp),
            message,
        }))
    };
    match statement.query_row([seq], read).optional()? {
        Some(row) => Ok(Some(row?)),
        None => Ok(None),
    }
}
