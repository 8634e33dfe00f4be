//! What waits where, in memory: the part of the broker that answers "who is next?".
//!
//! It is built from the file at open and changes only after a transaction has committed ([`Change`]), so it never knows of a message that
//! the file does not hold. A waiting message costs a [`Slot`] (24 bytes) in its queue; its text stays in the file. A session without
//! messages, state or holder is not in it at all.
//!
//! Locks live here only. They run on monotonic time, and a lock whose process has died is void, because nobody is left to hold it.
//!
//! What the index finds to be done in the file (a message past its delivery limit, one that has expired, one that is due) it puts into
//! [`Index::posts`]; whoever unlocks the index hands them to the writer.

mod flight;
mod peek;
mod plain;
mod session;
mod timing;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use sprag_core::ids::SessionId;
use tokio::sync::Notify;

use crate::entity::{Address, EntityIndex, EntityStatus, Letters, Topology};

pub(crate) use peek::Seen;
pub(crate) use plain::Plain;
pub(crate) use session::{Accept, CameFrom, Handed, Sess};

/// Never expires.
pub(crate) const NEVER: i64 = i64::MAX;

/// A waiting message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) seq: i64,
    /// Wall time in milliseconds, or [`NEVER`].
    pub(crate) expires_at: i64,
    /// Hand-overs so far.
    pub(crate) deliveries: u32,
    pub(crate) size: u32,
}

/// Where a message is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Active,
    /// Until this wall time.
    Scheduled(i64),
    /// With this parking number.
    Parked(u32),
    Dead,
    /// Set aside by a client, who asks for it by its number.
    Deferred,
    DeadDeferred,
    /// It could not be forwarded.
    Transfer,
    TransferDeferred,
}

/// What a committed transaction has changed.
#[derive(Debug)]
pub(crate) enum Change {
    Insert {
        entity: EntityIndex,
        session: Option<SessionId>,
        slot: Slot,
        place: Place,
    },
    /// A delivery of a session came to its end.
    SettledInSession {
        pin: SessionPin,
        how: Settled,
    },
    /// A delivery of an entity without sessions, or of dead letters, came to its end.
    SettledPlain {
        at: Address,
        lock: u64,
        how: Settled,
    },
    State {
        entity: EntityIndex,
        session: SessionId,
        state: Option<Bytes>,
        /// When.
        at: i64,
    },
    /// A message that a post had taken out is among the dead letters of a kind, or gone.
    Buried {
        taken: Taken,
        to: Option<Place>,
    },
    /// A taken message could not be buried: it is there again.
    PutBack {
        taken: Taken,
    },
    /// A scheduled message was taken back.
    Cancelled {
        seq: i64,
    },
    /// A scheduled message came due and has a new number, or was copied to subscriptions (none).
    Due {
        seq: i64,
        now: Option<Slot>,
    },
    /// Coming due failed; it is tried again.
    NotDue {
        seqs: Vec<i64>,
        again_at: i64,
    },
    /// A dead letter went back to its entity under a new number.
    Replayed {
        at: Address,
        seq: i64,
        session: Option<SessionId>,
        slot: Slot,
    },
    /// Dead letters that were taken out to be replayed are there again.
    NotReplayed {
        at: Address,
        slots: Vec<Slot>,
    },
    Declared {
        topology: Arc<Topology>,
    },
}

/// Where the message of an ended delivery went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    Gone,
    Dead,
    /// Put aside; the delivery goes on until it is settled.
    Aside(u32),
    /// Put aside, and the delivery has ended.
    AsideAndDone(u32),
    Deferred,
    /// Back into its place; the delivery counts.
    Back,
}

/// A message that was taken out, to be buried.
#[derive(Debug, Clone)]
pub(crate) struct Taken {
    pub(crate) entity: EntityIndex,
    pub(crate) session: Option<SessionId>,
    pub(crate) slot: Slot,
    pub(crate) place: Place,
}

/// Something for the writer.
#[derive(Debug)]
pub(crate) enum Post {
    /// A delivery count that must survive this process.
    Deliveries { seq: i64, count: u32 },
    /// To the dead letters, or away.
    Bury { taken: Taken, dead: bool, reason: &'static str, description: String },
    /// Onward to the entity that this one forwards to.
    Forward { taken: Taken },
    /// Scheduled messages that are due.
    Due { entity: EntityIndex, seqs: Vec<i64> },
}

/// A command at the writer is using this session's lock: it does not lapse before the command has ended.
#[derive(Debug, Clone)]
pub(crate) struct SessionPin {
    pub(crate) entity: EntityIndex,
    pub(crate) session: SessionId,
    pub(crate) token: u64,
    /// The delivery that is being settled.
    pub(crate) lock: Option<u64>,
}

#[derive(Debug, Clone)]
pub(crate) enum Pin {
    Session(SessionPin),
    Plain { at: Address, lock: u64 },
}

#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) active: u64,
    pub(crate) scheduled: u64,
    pub(crate) parked: u64,
    pub(crate) deferred: u64,
    pub(crate) dead: u64,
    pub(crate) transfer: u64,
    pub(crate) bytes: u64,
}

impl Counts {
    fn of(&mut self, place: Place) -> &mut u64 {
        match place {
            Place::Active => &mut self.active,
            Place::Scheduled(_) => &mut self.scheduled,
            Place::Parked(_) => &mut self.parked,
            Place::Deferred => &mut self.deferred,
            Place::Dead | Place::DeadDeferred => &mut self.dead,
            Place::Transfer | Place::TransferDeferred => &mut self.transfer,
        }
    }
}

/// Why nothing can be received from an entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shut {
    Gone,
    Disabled,
    Forwards,
}

#[derive(Debug)]
pub(crate) struct EntityState {
    pub(crate) requires_session: bool,
    /// Removed: its place stays empty.
    gone: bool,
    status: EntityStatus,
    forwards: bool,
    forwards_dead: bool,
    pub(crate) lock_duration: Duration,
    pub(crate) max_deliveries: u32,
    dead_on_expiry: bool,
    pub(crate) sessions: HashMap<SessionId, Sess>,
    /// Sessions with something to do that nobody holds, in the order in which they became so.
    ready: VecDeque<SessionId>,
    pub(crate) plain: Plain,
    pub(crate) dead: Plain,
    pub(crate) transfer: Plain,
    pub(crate) counts: Counts,
    /// For those who wait for a session.
    pub(crate) wake: Arc<Notify>,
}

#[derive(Debug)]
pub(crate) struct Scheduled {
    pub(crate) entity: EntityIndex,
    pub(crate) session: Option<SessionId>,
    pub(crate) size: u32,
}

#[derive(Debug)]
enum Deadline {
    SessionLock { entity: EntityIndex, session: SessionId },
    PlainLock { at: Address },
    Pause { entity: EntityIndex, session: SessionId },
}

#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) entities: Vec<EntityState>,
    /// (due, number).
    pub(crate) scheduled: BTreeMap<(i64, i64), Scheduled>,
    /// When each scheduled message is due.
    pub(crate) due_of: HashMap<i64, i64>,
    /// Locks and pauses, by when they end and the token that makes the key unique.
    deadlines: BTreeMap<(Instant, u64), Deadline>,
    /// Messages with a time to live: (end, number).
    expiry: BTreeMap<(i64, i64), (EntityIndex, Option<SessionId>)>,
    next_token: u64,
    pub(crate) posts: Vec<Post>,
}

impl EntityState {
    /// Whether these messages go on to another entity.
    fn forwards(&self, at: Address) -> bool {
        match at.part {
            Letters::Own => self.forwards,
            Letters::Dead => self.forwards_dead,
            Letters::Transfer => false,
        }
    }

    /// Everybody who waits for something from it looks again.
    fn wake_all(&self) {
        self.wake.notify_waiters();
        self.plain.wake.notify_waiters();
        self.dead.wake.notify_waiters();
        self.transfer.wake.notify_waiters();
        self.sessions.values().for_each(Sess::wake_all);
    }
}

impl Index {
    /// Tokens start at `first_token`, so that one of an earlier process does not name a lock of this one.
    pub(crate) fn new(first_token: u64) -> Self {
        Self {
            entities: Vec::new(),
            scheduled: BTreeMap::new(),
            due_of: HashMap::new(),
            deadlines: BTreeMap::new(),
            expiry: BTreeMap::new(),
            next_token: first_token,
            posts: Vec::new(),
        }
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    pub(crate) fn apply(&mut self, change: Change, now: Instant) {
        // What was on its way when its entity was removed has gone with it.
        let of = match &change {
            Change::Insert { entity, .. }
            | Change::State { entity, .. }
            | Change::Replayed { at: Address { entity, .. }, .. }
            | Change::NotReplayed { at: Address { entity, .. }, .. }
            | Change::Buried { taken: Taken { entity, .. }, .. }
            | Change::PutBack { taken: Taken { entity, .. } } => Some(*entity),
            _ => None,
        };
        if of.is_some_and(|entity| self.entities[entity].gone) {
            return;
        }
        match change {
            Change::Insert { entity, session, slot, place } => {
                self.entities[entity].counts.bytes += u64::from(slot.size);
                self.insert(entity, session, slot, place, now);
            }
            Change::SettledInSession { pin, how } => self.settled_in_session(&pin, how, now),
            Change::SettledPlain { at, lock, how } => self.settled_plain(at, lock, how),
            Change::State { entity, session, state, at } => self.set_state(entity, session, state, at),
            Change::Buried { taken, to } => {
                let counts = &mut self.entities[taken.entity].counts;
                *counts.of(taken.place) -= 1;
                match to {
                    Some(Place::Dead) if taken.place == Place::Dead => {
                        // It could not be forwarded: here it stays.
                        counts.dead += 1;
                        self.entities[taken.entity].dead.put(taken.slot);
                    }
                    Some(place) => {
                        let slot = Slot { expires_at: NEVER, deliveries: 0, ..taken.slot };
                        self.insert(taken.entity, None, slot, place, now);
                    }
                    None => counts.bytes -= u64::from(taken.slot.size),
                }
            }
            Change::PutBack { taken } => {
                let counts = &mut self.entities[taken.entity].counts;
                *counts.of(taken.place) -= 1;
                self.insert(taken.entity, taken.session, taken.slot, taken.place, now);
            }
            Change::Cancelled { seq } => {
                if let Some((entity, scheduled)) = self.unschedule(seq) {
                    self.entities[entity].counts.bytes -= u64::from(scheduled.size);
                }
            }
            Change::Due { seq, now: slot } => {
                let Some((entity, scheduled)) = self.unschedule(seq) else { return };
                match slot {
                    Some(slot) => self.insert(entity, scheduled.session, slot, Place::Active, now),
                    None => self.entities[entity].counts.bytes -= u64::from(scheduled.size),
                }
            }
            Change::NotDue { seqs, again_at } => self.not_due(&seqs, again_at),
            Change::Replayed { at, seq, session, slot } => {
                self.remove_dead(at, seq);
                self.insert(at.entity, session, slot, Place::Active, now);
            }
            Change::NotReplayed { at, slots } => slots.into_iter().for_each(|slot| self.plain(at).put(slot)),
            Change::Declared { topology } => self.declare(&topology),
        }
    }

    /// Puts a message into its place and wakes who waits for one. Its bytes are counted by the caller.
    pub(crate) fn insert(
        &mut self,
        entity: EntityIndex,
        session: Option<SessionId>,
        slot: Slot,
        place: Place,
        now: Instant,
    ) {
        let state = &mut self.entities[entity];
        *state.counts.of(place) += 1;
        if state.forwards && place == Place::Active || state.forwards_dead && place == Place::Dead {
            self.posts.push(Post::Forward { taken: Taken { entity, session, slot, place } });
            return;
        }
        if slot.expires_at != NEVER && matches!(place, Place::Active | Place::Parked(_) | Place::Deferred) {
            self.expiry.insert((slot.expires_at, slot.seq), (entity, session.clone()));
        }
        match (place, session) {
            (Place::Scheduled(due), session) => {
                self.due_of.insert(slot.seq, due);
                self.scheduled.insert((due, slot.seq), Scheduled { entity, session, size: slot.size });
            }
            (Place::Dead, _) => state.dead.put(slot),
            (Place::DeadDeferred, _) => state.dead.defer(slot),
            (Place::Transfer, _) => state.transfer.put(slot),
            (Place::TransferDeferred, _) => state.transfer.defer(slot),
            (Place::Deferred, Some(session)) if state.requires_session => self.put_deferred(entity, session, slot),
            (Place::Deferred, _) => state.plain.defer(slot),
            (Place::Active, Some(session)) if state.requires_session => self.put_active(entity, session, slot, now),
            (Place::Parked(number), Some(session)) => self.put_parked(entity, session, number, slot),
            // An entity without sessions does not park; a row that says so (an entity whose sessions were turned off) is given out.
            (Place::Active | Place::Parked(_), _) => {
                state.plain.put(slot);
            }
        }
    }

    fn forget_expiry(&mut self, slot: Slot) {
        if slot.expires_at != NEVER {
            self.expiry.remove(&(slot.expires_at, slot.seq));
        }
    }

    fn unschedule(&mut self, seq: i64) -> Option<(EntityIndex, Scheduled)> {
        let due = self.due_of.remove(&seq)?;
        // While it is coming due it is in `due_of` only.
        let scheduled = self.scheduled.remove(&(due, seq))?;
        self.entities[scheduled.entity].counts.scheduled -= 1;
        Some((scheduled.entity, scheduled))
    }

    pub(crate) fn declare(&mut self, topology: &Topology) {
        for (n, entity) in topology.entities.iter().enumerate() {
            let spec = &entity.spec;
            if n == self.entities.len() {
                self.entities.push(EntityState {
                    requires_session: spec.requires_session,
                    gone: false,
                    status: spec.status,
                    forwards: false,
                    forwards_dead: false,
                    lock_duration: spec.lock_duration,
                    max_deliveries: spec.max_delivery_count,
                    dead_on_expiry: spec.dead_letter_on_expiry,
                    sessions: HashMap::new(),
                    ready: VecDeque::new(),
                    plain: Plain::default(),
                    dead: Plain::default(),
                    transfer: Plain::default(),
                    counts: Counts::default(),
                    wake: Arc::default(),
                });
            }
            let state = &mut self.entities[n];
            state.requires_session = spec.requires_session;
            state.lock_duration = spec.lock_duration;
            state.max_deliveries = spec.max_delivery_count;
            state.dead_on_expiry = spec.dead_letter_on_expiry;
            state.forwards = spec.forward_to.is_some();
            state.forwards_dead = spec.forward_dead_letters_to.is_some();
            let closes = std::mem::replace(&mut state.status, spec.status).receives() && !spec.status.receives();
            if entity.is_gone() && !state.gone {
                self.clear(n);
            } else if closes || state.forwards {
                state.wake_all();
            }
            self.forward_waiting(n);
        }
    }

    /// The entity is no more. Its locks are lost, and who waits for something from it hears of it.
    fn clear(&mut self, entity: EntityIndex) {
        let state = &mut self.entities[entity];
        state.gone = true;
        state.wake_all();
        state.sessions = HashMap::new();
        state.ready = VecDeque::new();
        state.plain.clear();
        state.dead.clear();
        state.transfer.clear();
        state.counts = Counts::default();
        let due_of = &mut self.due_of;
        self.scheduled.retain(|(_, seq), scheduled| {
            let stays = scheduled.entity != entity;
            if !stays {
                due_of.remove(seq);
            }
            stays
        });
        self.expiry.retain(|_, (of, _)| *of != entity);
        self.deadlines.retain(|_, deadline| match deadline {
            Deadline::SessionLock { entity: of, .. } | Deadline::Pause { entity: of, .. } => *of != entity,
            Deadline::PlainLock { at } => at.entity != entity,
        });
    }

    /// What waits on an entity that forwards since now goes on.
    fn forward_waiting(&mut self, entity: EntityIndex) {
        let state = &mut self.entities[entity];
        if state.gone {
            return;
        }
        let mut going = Vec::new();
        if state.forwards {
            going.extend(std::mem::take(&mut state.plain.available).into_values().map(|slot| (slot, Place::Active)));
        }
        if state.forwards_dead {
            going.extend(std::mem::take(&mut state.dead.available).into_values().map(|slot| (slot, Place::Dead)));
        }
        for (slot, place) in going {
            self.forget_expiry(slot);
            self.posts.push(Post::Forward { taken: Taken { entity, session: None, slot, place } });
        }
    }

    /// Whether something can be received from the entity, or from its dead letters.
    pub(crate) fn open(&self, at: Address) -> Result<(), Shut> {
        let state = &self.entities[at.entity];
        match () {
            () if state.gone => Err(Shut::Gone),
            () if !state.status.receives() => Err(Shut::Disabled),
            () if state.forwards(at) => Err(Shut::Forwards),
            () => Ok(()),
        }
    }
}
