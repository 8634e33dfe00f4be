//! An entity: its messages, its sessions, and what calls do to them. Nothing here waits.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use sprag_core::{
    ids::{MessageId, SequenceNumber, SessionId},
    message::{Delivery, LockToken, Message, Origin},
    time::Timestamp,
};
use sprag_store::clock;
use tokio::time::Instant;

use super::EntityConfig;
use crate::{EntityInfo, Error, Part, Peeked, SessionInfo, Settlement};

pub(super) struct Entity {
    config: EntityConfig,
    last_sequence: i64,
    /// Rises with every session that becomes ready: who waits longest is offered first.
    last_turn: u64,
    active: BTreeMap<SequenceNumber, Stored>,
    scheduled: BTreeMap<SequenceNumber, Stored>,
    parked: BTreeMap<(u32, SequenceNumber), Stored>,
    dead: BTreeMap<SequenceNumber, Dead>,
    sessions: BTreeMap<SessionId, Slot>,
}

#[derive(Clone)]
struct Stored {
    message: Arc<Message>,
    enqueued_at: Timestamp,
    delivery_count: u32,
    moved_at: Option<Timestamp>,
    lock: Option<Lock>,
}

#[derive(Clone, Copy)]
struct Lock {
    token: LockToken,
    /// None: for as long as the session is held.
    until: Option<Instant>,
}

struct Dead {
    stored: Stored,
    reason: String,
    description: String,
}

#[derive(Default)]
pub(super) struct Slot {
    pub(super) state: Option<Bytes>,
    holder: Option<(LockToken, Instant)>,
    paused_until: Option<Instant>,
    turn: Option<u64>,
}

impl Stored {
    fn new(message: Message) -> Self {
        Self { message: Arc::new(message), enqueued_at: clock::now(), delivery_count: 0, moved_at: None, lock: None }
    }

    fn session(&self) -> Option<&SessionId> {
        self.message.session_id.as_ref()
    }

    fn has_lock(&self, token: LockToken) -> bool {
        self.lock.is_some_and(|lock| lock.token == token)
    }
}

impl Entity {
    pub(super) fn new(config: EntityConfig) -> Self {
        Self {
            config,
            last_sequence: 0,
            last_turn: 0,
            active: BTreeMap::new(),
            scheduled: BTreeMap::new(),
            parked: BTreeMap::new(),
            dead: BTreeMap::new(),
            sessions: BTreeMap::new(),
        }
    }

    /// Brings the entity up to this moment: what is due becomes active, what has lapsed is given back. Comes before every look.
    pub(super) fn catch_up(&mut self) {
        let (now, wall) = (Instant::now(), clock::now());
        let is_due = |stored: &Stored| stored.message.scheduled_for.is_none_or(|due| due <= wall);
        let mut due: Vec<_> = self
            .scheduled
            .iter()
            .filter(|(_, stored)| is_due(stored))
            .map(|(sequence, stored)| (stored.message.scheduled_for, *sequence))
            .collect();
        due.sort_unstable();
        for (_, sequence) in due {
            let stored = self.scheduled.remove(&sequence).expect("it was just found");
            self.activate(stored);
        }
        let lapsed: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, slot)| slot.holder.is_some_and(|(_, until)| until <= now))
            .map(|(id, _)| id.clone())
            .collect();
        for id in &lapsed {
            self.lapse(Some(id));
        }
        let unlocked: Vec<_> = self
            .active
            .iter()
            .filter(|(_, stored)| stored.lock.and_then(|lock| lock.until).is_some_and(|until| until <= now))
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in unlocked {
            self.give_back(sequence);
        }
        for slot in self.sessions.values_mut().filter(|slot| slot.paused_until.is_some_and(|until| until <= now)) {
            slot.paused_until = None;
        }
        let used: BTreeSet<_> =
            self.active.values().chain(self.parked.values()).filter_map(Stored::session).cloned().collect();
        self.sessions.retain(|id, slot| {
            slot.state.is_some() || slot.holder.is_some() || slot.paused_until.is_some() || used.contains(id)
        });
    }

    /// When time alone changes something next.
    pub(super) fn next_moment(&self) -> Option<Instant> {
        let wall = clock::now();
        let due = self.scheduled.values().filter_map(|stored| stored.message.scheduled_for);
        let due = due.min().map(|due| Instant::now() + due.since(wall) + Duration::from_millis(1));
        let locks = self.active.values().filter_map(|stored| stored.lock.and_then(|lock| lock.until));
        let sessions = self.sessions.values().flat_map(|slot| [slot.holder.map(|(_, until)| until), slot.paused_until]);
        due.into_iter().chain(locks).chain(sessions.flatten()).min()
    }

    fn next_sequence(&mut self) -> SequenceNumber {
        self.last_sequence += 1;
        SequenceNumber(self.last_sequence)
    }

    fn next_turn(&mut self) -> u64 {
        self.last_turn += 1;
        self.last_turn
    }

    /// Puts a message at the end of what is active. A scheduled one gets its number anew, so that it overtakes nothing.
    fn activate(&mut self, stored: Stored) -> SequenceNumber {
        let sequence = self.next_sequence();
        if let Some(session) = stored.session().cloned() {
            let turn = self.next_turn();
            self.sessions.entry(session).or_default().turn.get_or_insert(turn);
        }
        self.active.insert(sequence, stored);
        sequence
    }

    /// Ends a delivery that counted: back in its place, or to the dead letters if that was the last one.
    fn give_back(&mut self, sequence: SequenceNumber) {
        let Some(stored) = self.active.get_mut(&sequence) else { return };
        stored.lock = None;
        if stored.delivery_count >= self.config.max_delivery_count {
            let stored = self.active.remove(&sequence).expect("it was just found");
            let description = format!("delivered {} times without being completed", stored.delivery_count);
            self.bury(sequence, stored, "MaxDeliveryCountExceeded".into(), description);
        }
    }

    fn bury(&mut self, sequence: SequenceNumber, stored: Stored, reason: String, description: String) {
        let stored = Stored { lock: None, moved_at: Some(clock::now()), ..stored };
        self.dead.insert(sequence, Dead { stored, reason, description });
    }

    /// Takes the locks of one session away, or of all sessions and deliveries.
    pub(super) fn lapse(&mut self, session: Option<&SessionId>) {
        let concerned = |stored: &Stored| stored.lock.is_some() && (session.is_none() || stored.session() == session);
        let locked: Vec<_> =
            self.active.iter().filter(|(_, stored)| concerned(stored)).map(|(sequence, _)| *sequence).collect();
        for sequence in locked {
            self.give_back(sequence);
        }
        for stored in self.parked.values_mut().filter(|stored| concerned(stored)) {
            stored.lock = None;
        }
        let ids: Vec<_> =
            self.sessions.keys().filter(|id| session.is_none_or(|session| session == *id)).cloned().collect();
        for id in ids {
            let turn = self.next_turn();
            let slot = self.sessions.get_mut(&id).expect("it was just found");
            if slot.holder.take().is_some() {
                slot.turn = Some(turn);
            }
        }
    }

    fn kind(&self, requires_session: bool) -> Result<(), Error> {
        match (self.config.requires_session, requires_session) {
            (true, false) => {
                Err(Error::Refused(format!("{} has sessions: its messages come with one", self.config.name)))
            }
            (false, true) => Err(Error::Refused(format!("{} has no sessions", self.config.name))),
            _ => Ok(()),
        }
    }

    fn is_ready(&self, session: &SessionId) -> bool {
        self.active.values().any(|stored| stored.session() == Some(session))
    }

    pub(super) fn accept_next(
        &mut self,
        lock: impl FnOnce() -> LockToken,
    ) -> Result<Option<(SessionId, LockToken, Instant)>, Error> {
        self.kind(true)?;
        let ready = self.sessions.iter().filter(|(_, slot)| slot.holder.is_none() && slot.paused_until.is_none());
        let longest =
            ready.filter(|(id, _)| self.is_ready(id)).min_by_key(|(_, slot)| slot.turn).map(|(id, _)| id.clone());
        Ok(longest.map(|id| {
            let (token, until) = self.hold(&id, lock());
            (id, token, until)
        }))
    }

    pub(super) fn accept(
        &mut self,
        id: &SessionId,
        lock: impl FnOnce() -> LockToken,
    ) -> Result<Option<(LockToken, Instant)>, Error> {
        self.kind(true)?;
        if self.sessions.get(id).is_some_and(|slot| slot.holder.is_some()) {
            return Ok(None);
        }
        Ok(Some(self.hold(id, lock())))
    }

    fn hold(&mut self, id: &SessionId, token: LockToken) -> (LockToken, Instant) {
        let until = Instant::now() + self.config.lock_duration;
        let slot = self.sessions.entry(id.clone()).or_default();
        *slot = Slot { state: slot.state.take(), holder: Some((token, until)), paused_until: None, turn: None };
        (token, until)
    }

    /// The session's slot, for its holder only.
    pub(super) fn held(&mut self, id: &SessionId, token: LockToken) -> Result<&mut Slot, Error> {
        let slot = self.sessions.get_mut(id).ok_or(Error::LockLost)?;
        match slot.holder {
            Some((holder, _)) if holder == token => Ok(slot),
            _ => Err(Error::LockLost),
        }
    }

    pub(super) fn renew_session(&mut self, id: &SessionId, token: LockToken) -> Result<Instant, Error> {
        let until = Instant::now() + self.config.lock_duration;
        self.held(id, token)?.holder = Some((token, until));
        Ok(until)
    }

    pub(super) fn release(&mut self, id: &SessionId, token: LockToken, pause: Duration) -> Result<(), Error> {
        self.held(id, token)?;
        self.lapse(Some(id));
        let slot = self.sessions.get_mut(id).expect("it was just held");
        slot.paused_until = (!pause.is_zero()).then(|| Instant::now() + pause);
        Ok(())
    }

    fn hand_over(&mut self, sequence: SequenceNumber, lock: Lock) -> Delivery {
        let stored = self.active.get_mut(&sequence).expect("the caller has found it");
        stored.delivery_count += 1;
        stored.lock = Some(lock);
        Delivery {
            sequence,
            origin: Origin::Main,
            lock: lock.token,
            delivery_count: stored.delivery_count,
            max_delivery_count: self.config.max_delivery_count,
            enqueued_at: stored.enqueued_at,
            parked_as: None,
            id_assigned: false,
            message: Arc::clone(&stored.message),
        }
    }

    pub(super) fn receive(
        &mut self,
        max: usize,
        mut lock: impl FnMut() -> LockToken,
    ) -> Result<Option<Vec<Delivery>>, Error> {
        self.kind(false)?;
        let free: Vec<_> = self
            .active
            .iter()
            .filter(|(_, stored)| stored.lock.is_none())
            .map(|(sequence, _)| *sequence)
            .take(max)
            .collect();
        let until = Some(Instant::now() + self.config.lock_duration);
        let deliveries: Vec<_> =
            free.into_iter().map(|sequence| self.hand_over(sequence, Lock { token: lock(), until })).collect();
        Ok(Some(deliveries).filter(|deliveries| !deliveries.is_empty()))
    }

    /// The first of the session; nothing while it is in hand already.
    pub(super) fn receive_in_session(
        &mut self,
        id: &SessionId,
        token: LockToken,
        lock: impl FnOnce() -> LockToken,
    ) -> Result<Option<Delivery>, Error> {
        self.held(id, token)?;
        let first = self.active.iter().find(|(_, stored)| stored.session() == Some(id));
        let free = first.filter(|(_, stored)| stored.lock.is_none()).map(|(sequence, _)| *sequence);
        Ok(free.map(|sequence| self.hand_over(sequence, Lock { token: lock(), until: None })))
    }

    pub(super) fn receive_parked(
        &mut self,
        id: &SessionId,
        token: LockToken,
        lock: LockToken,
    ) -> Result<Option<Delivery>, Error> {
        self.held(id, token)?;
        let oldest = self.parked.iter_mut().find(|(_, stored)| stored.session() == Some(id));
        Ok(oldest.map(|((_number, sequence), stored)| {
            stored.lock = Some(Lock { token: lock, until: None });
            Delivery {
                sequence: *sequence,
                origin: Origin::Parked,
                lock,
                // Parked copies burn no deliveries (P19).
                delivery_count: 1,
                max_delivery_count: u32::MAX,
                enqueued_at: stored.enqueued_at,
                // A copy says its number itself.
                parked_as: None,
                id_assigned: false,
                message: Arc::clone(&stored.message),
            }
        }))
    }

    pub(super) fn park(
        &mut self,
        id: &SessionId,
        token: LockToken,
        delivery: &Delivery,
        number: u32,
        copy: &Message,
    ) -> Result<(), Error> {
        self.held(id, token)?;
        if !self.active.values().any(|stored| stored.has_lock(delivery.lock) && stored.session() == Some(id)) {
            return Err(Error::LockLost);
        }
        let sequence = self.next_sequence();
        let copy = Stored {
            message: Arc::new(copy.clone()),
            enqueued_at: delivery.enqueued_at,
            delivery_count: 0,
            moved_at: Some(clock::now()),
            lock: None,
        };
        self.parked.insert((number, sequence), copy);
        Ok(())
    }

    pub(super) fn renew(&mut self, token: LockToken) -> Result<Duration, Error> {
        let lock = self.active.values_mut().filter_map(|stored| stored.lock.as_mut()).find(|lock| lock.token == token);
        let until = lock.and_then(|lock| lock.until.as_mut()).ok_or(Error::LockLost)?;
        *until = Instant::now() + self.config.lock_duration;
        Ok(self.config.lock_duration)
    }

    /// Settles what the lock is on: of the session whose holder asks, or of an entity without sessions.
    pub(super) fn settle(
        &mut self,
        session: Option<(&SessionId, LockToken)>,
        lock: LockToken,
        settlement: Settlement,
    ) -> Result<(), Error> {
        if let Some((id, token)) = session {
            self.held(id, token)?;
        }
        let id = session.map(|(id, _)| id);
        let is_meant = |stored: &Stored| stored.has_lock(lock) && (id.is_none() || stored.session() == id);
        if let Some(sequence) = self.active.iter().find(|(_, stored)| is_meant(stored)).map(|(sequence, _)| *sequence) {
            self.settle_active(sequence, settlement);
            return Ok(());
        }
        let place = self.parked.iter().find(|(_, stored)| is_meant(stored)).map(|(place, _)| *place);
        self.settle_parked(place.ok_or(Error::LockLost)?, settlement);
        Ok(())
    }

    fn settle_active(&mut self, sequence: SequenceNumber, settlement: Settlement) {
        match settlement {
            Settlement::Complete => {
                self.active.remove(&sequence);
            }
            Settlement::Abandon => self.give_back(sequence),
            Settlement::Release => {
                let stored = self.active.get_mut(&sequence).expect("the caller has found it");
                stored.lock = None;
                stored.delivery_count -= 1;
            }
            Settlement::DeadLetter { reason, description } => {
                let stored = self.active.remove(&sequence).expect("the caller has found it");
                self.bury(sequence, stored, reason, description);
            }
        }
    }

    fn settle_parked(&mut self, place: (u32, SequenceNumber), settlement: Settlement) {
        match settlement {
            Settlement::Complete => {
                self.parked.remove(&place);
            }
            Settlement::Abandon | Settlement::Release => {
                self.parked.get_mut(&place).expect("the caller has found it").lock = None;
            }
            Settlement::DeadLetter { reason, description } => {
                let stored = self.parked.remove(&place).expect("the caller has found it");
                self.bury(place.1, stored, reason, description);
            }
        }
    }

    fn takes(&self, message: &Message) -> Result<(), Error> {
        if self.config.requires_session && message.session_id.is_none() {
            let id = message.message_id.as_ref().map_or("without id", |id| id.as_str());
            return Err(Error::Refused(format!("{} has sessions, and message {id} names none", self.config.name)));
        }
        Ok(())
    }

    pub(super) fn send(&mut self, messages: Vec<Message>) -> Result<Vec<SequenceNumber>, Error> {
        messages.iter().try_for_each(|message| self.takes(message))?;
        Ok(messages.into_iter().map(|message| self.put(message)).collect())
    }

    fn put(&mut self, message: Message) -> SequenceNumber {
        if message.scheduled_for.is_some_and(|due| due > clock::now()) {
            let sequence = self.next_sequence();
            self.scheduled.insert(sequence, Stored::new(message));
            return sequence;
        }
        self.activate(Stored::new(message))
    }

    pub(super) fn enqueue(&mut self, message: Message) -> Result<(), Error> {
        self.takes(&message)?;
        let mut all = self.active.values().chain(self.scheduled.values()).chain(self.parked.values());
        let is_there =
            message.message_id.is_some() && all.any(|stored| stored.message.message_id == message.message_id);
        if !is_there {
            self.put(message);
        }
        Ok(())
    }

    pub(super) fn cancel(&mut self, sequence: SequenceNumber) -> Result<(), Error> {
        let found = self.scheduled.remove(&sequence);
        found.map(|_| ()).ok_or_else(|| Error::NoSuchScheduled(sequence, self.config.name.clone()))
    }

    pub(super) fn cancel_id(&mut self, id: &MessageId) -> bool {
        let before = self.scheduled.len();
        self.scheduled.retain(|_, stored| stored.message.message_id.as_ref() != Some(id));
        self.scheduled.len() < before
    }

    pub(super) fn replay(&mut self, sequences: &[SequenceNumber]) -> u64 {
        let mut replayed = 0;
        for dead in sequences.iter().filter_map(|sequence| self.dead.remove(sequence)).collect::<Vec<_>>() {
            self.activate(Stored { delivery_count: 0, moved_at: None, ..dead.stored });
            replayed += 1;
        }
        replayed
    }

    pub(super) fn peek(
        &self,
        part: Part,
        session: Option<&SessionId>,
        from: SequenceNumber,
        max: usize,
    ) -> Vec<Peeked> {
        let look = |sequence: SequenceNumber, stored: &Stored, parked_as: Option<u32>| Peeked {
            sequence,
            part,
            enqueued_at: stored.enqueued_at,
            delivery_count: stored.delivery_count,
            parked_as,
            moved_at: stored.moved_at,
            dead_letter_reason: None,
            dead_letter_description: None,
            message: (*stored.message).clone(),
        };
        let all: Box<dyn Iterator<Item = Peeked> + '_> = match part {
            Part::Active => Box::new(self.active.iter().map(|(sequence, stored)| look(*sequence, stored, None))),
            Part::Scheduled => Box::new(self.scheduled.iter().map(|(sequence, stored)| look(*sequence, stored, None))),
            Part::Parked => Box::new(
                self.parked.iter().map(|((parked_as, sequence), stored)| look(*sequence, stored, Some(*parked_as))),
            ),
            Part::DeadLetters => Box::new(self.dead.iter().map(|(sequence, dead)| Peeked {
                dead_letter_reason: Some(dead.reason.clone()),
                dead_letter_description: Some(dead.description.clone()),
                ..look(*sequence, &dead.stored, None)
            })),
        };
        let is_wanted =
            |it: &Peeked| it.sequence >= from && (session.is_none() || it.message.session_id.as_ref() == session);
        all.filter(is_wanted).take(max).collect()
    }

    pub(super) fn describe(&self) -> EntityInfo {
        EntityInfo {
            name: self.config.name.clone(),
            requires_session: self.config.requires_session,
            lock_duration: self.config.lock_duration,
            max_delivery_count: self.config.max_delivery_count,
            active: self.active.len() as u64,
            scheduled: self.scheduled.len() as u64,
            parked: self.parked.len() as u64,
            dead_letters: self.dead.len() as u64,
        }
    }

    pub(super) fn list_sessions(&self, after: Option<&SessionId>, max: usize) -> Vec<SessionInfo> {
        let listed = self.sessions.iter().filter(|(id, _)| after.is_none_or(|after| *id > after)).take(max);
        listed
            .map(|(id, slot)| {
                let parked = || self.parked.values().filter(|stored| stored.session() == Some(id));
                SessionInfo {
                    session: id.clone(),
                    state: slot.state.clone(),
                    active: self.active.values().filter(|stored| stored.session() == Some(id)).count() as u64,
                    parked: parked().count() as u64,
                    oldest_parked_at: parked().filter_map(|stored| stored.moved_at).min(),
                    locked: slot.holder.is_some(),
                }
            })
            .collect()
    }
}
