//! Sessions: one holder at a time, messages in order: one at a time for a worker, several for a client that asks for several.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use sprag_core::ids::SessionId;
use sprag_transport::Error;
use tokio::sync::Notify;

use super::{Deadline, EntityIndex, Index, Place, Post, SessionPin, Slot, Taken};

/// A session that has messages, state, a holder or somebody who waits for it.
#[derive(Debug, Default)]
pub(crate) struct Sess {
    /// In sequence order.
    pub(crate) active: VecDeque<Slot>,
    /// In parking order.
    pub(crate) parked: VecDeque<(u32, Slot)>,
    /// In sequence order; to be asked for by number.
    pub(crate) deferred: Vec<Slot>,
    pub(crate) state: Option<Bytes>,
    /// When the state was last set, in wall time.
    pub(crate) state_at: i64,
    pub(crate) holder: Option<Box<Holder>>,
    /// Not offered before; the token names the deadline.
    pause: Option<(Instant, u64)>,
    /// It stands in the entity's ready list.
    queued: bool,
    /// Who wants exactly this session.
    waiters: Option<Arc<Notify>>,
}

#[derive(Debug)]
pub(crate) struct Holder {
    pub(super) token: u64,
    until: Instant,
    /// Commands at the writer that use the lock.
    busy: u32,
    /// Given back or lapsed while a command was busy: not offered before then, once the last one has ended.
    gone: Option<Instant>,
    /// The lock lapsed; it was not given back.
    lapsed: bool,
    pub(crate) main: Option<Current>,
    pub(crate) parked: Option<Current>,
    /// What a client has in its hands.
    pub(crate) flight: Vec<Current>,
    /// For the holder who waits for a message.
    pub(super) wake: Arc<Notify>,
}

/// A message in a holder's hands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Current {
    pub(super) lock: u64,
    pub(crate) slot: Slot,
    /// Where it came from, and goes back to.
    pub(crate) from: CameFrom,
    /// For one that came from the parked messages.
    pub(crate) number: u32,
    pub(super) settling: bool,
    /// It was put aside: its row waits among the parked ones, and settling ends the delivery only.
    pub(super) aside: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CameFrom {
    Active,
    Parked,
    Deferred,
}

impl CameFrom {
    pub(super) fn place(self, number: u32) -> Place {
        match self {
            Self::Active => Place::Active,
            Self::Parked => Place::Parked(number),
            Self::Deferred => Place::Deferred,
        }
    }
}

pub(crate) enum Accept {
    Got { token: u64, wake: Arc<Notify> },
    Held(Arc<Notify>),
}

/// A message to be handed over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handed {
    pub(crate) lock: u64,
    pub(crate) slot: Slot,
}

impl Holder {
    pub(crate) fn in_hand(&self) -> impl Iterator<Item = &Current> {
        self.main.iter().chain(&self.parked).chain(&self.flight)
    }

    pub(super) fn current(&mut self, lock: u64) -> Option<&mut Current> {
        let in_hand = self.main.iter_mut().chain(&mut self.parked).chain(&mut self.flight);
        in_hand.into_iter().find(|current| current.lock == lock)
    }

    pub(super) fn take(&mut self, lock: u64) -> Option<Current> {
        let take = |current: &mut Option<Current>| current.take_if(|current| current.lock == lock);
        take(&mut self.main).or_else(|| take(&mut self.parked)).or_else(|| {
            let at = self.flight.iter().position(|current| current.lock == lock)?;
            Some(self.flight.remove(at))
        })
    }
}

impl Sess {
    fn is_idle(&self) -> bool {
        self.active.is_empty()
            && self.parked.is_empty()
            && self.deferred.is_empty()
            && self.state.is_none()
            && self.holder.is_none()
            && !self.queued
            && self.pause.is_none()
            && self.waiters.as_ref().is_none_or(|waiters| Arc::strong_count(waiters) == 1)
    }

    /// Messages that are the entity's own, in hand or not.
    pub(crate) fn active_count(&self) -> u64 {
        self.active.len() as u64 + self.in_hand(CameFrom::Active).count() as u64
    }

    /// All its messages, in hand or not.
    pub(crate) fn message_count(&self) -> u64 {
        let deferred = self.deferred.len() + self.in_hand(CameFrom::Deferred).count();
        self.active_count() + self.parked_count() + deferred as u64
    }

    /// What the holder has of it, and has not put aside.
    pub(crate) fn in_hand(&self, from: CameFrom) -> impl Iterator<Item = &Current> {
        let in_hand = self.holder.iter().flat_map(|holder| holder.in_hand());
        in_hand.filter(move |current| current.from == from && !current.aside)
    }

    pub(crate) fn parked_count(&self) -> u64 {
        self.parked.len() as u64
            + u64::from(self.holder.as_ref().is_some_and(|holder| holder.parked.is_some_and(|c| !c.aside)))
    }

    pub(crate) fn is_held(&self) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.gone.is_none())
    }

    /// By number, for the common case that it belongs at the front or at the back.
    pub(super) fn put_active(&mut self, slot: Slot) {
        if self.active.back().is_none_or(|last| last.seq < slot.seq) {
            self.active.push_back(slot);
        } else {
            let at = self.active.partition_point(|other| other.seq < slot.seq);
            self.active.insert(at, slot);
        }
    }

    pub(super) fn put_deferred(&mut self, slot: Slot) {
        let at = self.deferred.partition_point(|other| other.seq < slot.seq);
        self.deferred.insert(at, slot);
    }

    /// Who holds it and who waits for it looks again.
    pub(super) fn wake_all(&self) {
        if let Some(holder) = &self.holder {
            holder.wake.notify_one();
        }
        if let Some(waiters) = &self.waiters {
            waiters.notify_waiters();
        }
    }

    pub(super) fn put_parked(&mut self, number: u32, slot: Slot) {
        let at = self.parked.partition_point(|(other, there)| (*other, there.seq) < (number, slot.seq));
        self.parked.insert(at, (number, slot));
    }
}

impl Index {
    pub(super) fn put_active(&mut self, entity: EntityIndex, session: SessionId, slot: Slot, now: Instant) {
        let sess = self.entities[entity].sessions.entry(session.clone()).or_default();
        sess.put_active(slot);
        if let Some(holder) = &sess.holder {
            holder.wake.notify_one();
        }
        self.offer(entity, &session, now);
    }

    pub(super) fn put_parked(&mut self, entity: EntityIndex, session: SessionId, number: u32, slot: Slot) {
        self.entities[entity].sessions.entry(session).or_default().put_parked(number, slot);
    }

    pub(super) fn put_deferred(&mut self, entity: EntityIndex, session: SessionId, slot: Slot) {
        self.entities[entity].sessions.entry(session).or_default().put_deferred(slot);
    }

    pub(super) fn set_state(&mut self, entity: EntityIndex, session: SessionId, state: Option<Bytes>, at: i64) {
        let sess = self.entities[entity].sessions.entry(session.clone()).or_default();
        (sess.state, sess.state_at) = (state, at);
        self.tidy(entity, &session);
    }

    /// Puts the session into the ready list if it belongs there, and forgets it if it is idle.
    pub(super) fn offer(&mut self, entity: EntityIndex, session: &SessionId, now: Instant) {
        let state = &mut self.entities[entity];
        let Some(sess) = state.sessions.get_mut(session) else { return };
        if sess.active.is_empty()
            || sess.holder.is_some()
            || sess.queued
            || sess.pause.is_some_and(|(until, _)| until > now)
        {
            return self.tidy(entity, session);
        }
        sess.queued = true;
        state.ready.push_back(session.clone());
        state.wake.notify_one();
    }

    pub(super) fn tidy(&mut self, entity: EntityIndex, session: &SessionId) {
        let sessions = &mut self.entities[entity].sessions;
        if sessions.get(session).is_some_and(Sess::is_idle) {
            sessions.remove(session);
        }
    }

    /// The session that has waited longest, locked.
    pub(crate) fn accept_next(&mut self, entity: EntityIndex, now: Instant) -> Option<(SessionId, u64, Arc<Notify>)> {
        loop {
            let session = self.entities[entity].ready.pop_front()?;
            let Some(sess) = self.entities[entity].sessions.get_mut(&session) else { continue };
            sess.queued = false;
            if sess.holder.is_some() || sess.active.is_empty() {
                self.tidy(entity, &session);
                continue;
            }
            let (token, wake) = self.hold(entity, &session, now);
            return Some((session, token, wake));
        }
    }

    pub(crate) fn accept(&mut self, entity: EntityIndex, session: &SessionId, now: Instant) -> Accept {
        let sess = self.entities[entity].sessions.entry(session.clone()).or_default();
        if sess.holder.is_some() {
            return Accept::Held(Arc::clone(sess.waiters.get_or_insert_default()));
        }
        let (token, wake) = self.hold(entity, session, now);
        Accept::Got { token, wake }
    }

    fn hold(&mut self, entity: EntityIndex, session: &SessionId, now: Instant) -> (u64, Arc<Notify>) {
        let token = self.token();
        let state = &mut self.entities[entity];
        let until = now + state.lock_duration;
        let wake = Arc::new(Notify::new());
        let sess = state.sessions.get_mut(session).expect("the caller has just looked at it");
        if let Some((until, token)) = sess.pause.take() {
            self.deadlines.remove(&(until, token));
        }
        let holder = Holder {
            token,
            until,
            busy: 0,
            gone: None,
            lapsed: false,
            main: None,
            parked: None,
            flight: Vec::new(),
            wake: Arc::clone(&wake),
        };
        sess.holder = Some(Box::new(holder));
        self.deadlines.insert((until, token), Deadline::SessionLock { entity, session: session.clone() });
        (token, wake)
    }

    /// The session, if this token holds it still.
    pub(super) fn held(
        &mut self,
        entity: EntityIndex,
        session: &SessionId,
        token: u64,
        now: Instant,
    ) -> Result<&mut Sess, Error> {
        let sess = self.entities[entity].sessions.get_mut(session).ok_or(Error::LockLost)?;
        match &sess.holder {
            Some(holder) if holder.token == token && holder.gone.is_none() && holder.until > now => Ok(sess),
            _ => Err(Error::LockLost),
        }
    }

    pub(super) fn held_holder(
        &mut self,
        entity: EntityIndex,
        session: &SessionId,
        token: u64,
        now: Instant,
    ) -> Result<&mut Holder, Error> {
        Ok(self.held(entity, session, token, now)?.holder.as_mut().expect("held by the token"))
    }

    pub(crate) fn renew(
        &mut self,
        entity: EntityIndex,
        session: &SessionId,
        token: u64,
        now: Instant,
    ) -> Result<Duration, Error> {
        let duration = self.entities[entity].lock_duration;
        let holder = self.held_holder(entity, session, token, now)?;
        let old = std::mem::replace(&mut holder.until, now + duration);
        if let Some(deadline) = self.deadlines.remove(&(old, token)) {
            self.deadlines.insert((now + duration, token), deadline);
        }
        Ok(duration)
    }

    pub(crate) fn remaining(&mut self, entity: EntityIndex, session: &SessionId, token: u64, now: Instant) -> Duration {
        self.held_holder(entity, session, token, now).map_or(Duration::ZERO, |holder| holder.until - now)
    }

    /// Whether the token holds the session.
    pub(crate) fn holds(&mut self, entity: EntityIndex, session: &SessionId, token: u64, now: Instant) -> bool {
        self.held(entity, session, token, now).is_ok()
    }

    pub(crate) fn state(
        &mut self,
        entity: EntityIndex,
        session: &SessionId,
        token: u64,
        now: Instant,
    ) -> Result<Option<Bytes>, Error> {
        Ok(self.held(entity, session, token, now)?.state.clone())
    }

    /// The next message of the session. None while one is in hand, or when there is none.
    pub(crate) fn next_main(
        &mut self,
        entity: EntityIndex,
        session: &SessionId,
        token: u64,
        now: Instant,
        wall: i64,
    ) -> Result<Option<Handed>, Error> {
        if self.held_holder(entity, session, token, now)?.main.is_some() {
            return Ok(None);
        }
        loop {
            let Some(mut slot) = self.held(entity, session, token, now)?.active.pop_front() else { return Ok(None) };
            if self.bury_if_over(entity, Some(session), slot, Place::Active, wall) {
                continue;
            }
            slot.deliveries += 1;
            let lock = self.token();
            let holder = self.held_holder(entity, session, token, now)?;
            holder.main =
                Some(Current { lock, slot, from: CameFrom::Active, number: 0, settling: false, aside: false });
            return Ok(Some(Handed { lock, slot }));
        }
    }

    /// The oldest parked message, with its number. Refused while one is in hand: a drain takes one at a time.
    pub(crate) fn next_parked(
        &mut self,
        entity: EntityIndex,
        session: &SessionId,
        token: u64,
        now: Instant,
        wall: i64,
    ) -> Result<Option<(Handed, u32)>, Error> {
        if self.held_holder(entity, session, token, now)?.parked.is_some() {
            return Err(Error::Refused(format!("a parked message of session {session} is in hand already")));
        }
        loop {
            let Some((number, mut slot)) = self.held(entity, session, token, now)?.parked.pop_front() else {
                return Ok(None);
            };
            if slot.expires_at <= wall {
                self.bury_expired(entity, Some(session), slot, Place::Parked(number));
                continue;
            }
            slot.deliveries += 1;
            let lock = self.token();
            let holder = self.held_holder(entity, session, token, now)?;
            holder.parked = Some(Current { lock, slot, from: CameFrom::Parked, number, settling: false, aside: false });
            return Ok(Some((Handed { lock, slot }, number)));
        }
    }

    /// Buries a message that may not be handed over any more. False: it may.
    pub(super) fn bury_if_over(
        &mut self,
        entity: EntityIndex,
        session: Option<&SessionId>,
        slot: Slot,
        place: Place,
        wall: i64,
    ) -> bool {
        if slot.expires_at <= wall {
            self.bury_expired(entity, session, slot, place);
            return true;
        }
        let max = self.entities[entity].max_deliveries;
        if slot.deliveries < max {
            return false;
        }
        self.forget_expiry(slot);
        self.posts.push(Post::Bury {
            taken: Taken { entity, session: session.cloned(), slot, place },
            dead: true,
            reason: "MaxDeliveryCountExceeded",
            description: format!("handed over {} times; the entity allows {max}", slot.deliveries),
        });
        true
    }

    pub(super) fn bury_expired(&mut self, entity: EntityIndex, session: Option<&SessionId>, slot: Slot, place: Place) {
        self.forget_expiry(slot);
        let dead = self.entities[entity].dead_on_expiry || matches!(place, Place::Parked(_));
        self.posts.push(Post::Bury {
            taken: Taken { entity, session: session.cloned(), slot, place },
            dead,
            reason: "TTLExpiredException",
            description: "the message outlived its time to live".to_owned(),
        });
    }

    /// A command that uses the session's lock is on its way to the writer.
    pub(crate) fn pin(
        &mut self,
        entity: EntityIndex,
        session: &SessionId,
        token: u64,
        now: Instant,
    ) -> Result<SessionPin, Error> {
        self.held_holder(entity, session, token, now)?.busy += 1;
        Ok(SessionPin { entity, session: session.clone(), token, lock: None })
    }

    /// As [`Index::pin`], for a command that settles this delivery. Also says what was delivered, and whether it was put aside before.
    pub(crate) fn pin_delivery(
        &mut self,
        entity: EntityIndex,
        session: &SessionId,
        token: u64,
        lock: u64,
        now: Instant,
    ) -> Result<(SessionPin, Current), Error> {
        let holder = self.held_holder(entity, session, token, now)?;
        let current = holder.current(lock).filter(|current| !current.settling).ok_or(Error::LockLost)?;
        current.settling = true;
        let current = *current;
        holder.busy += 1;
        Ok((SessionPin { entity, session: session.clone(), token, lock: Some(lock) }, current))
    }

    /// Lets go of what a command held.
    pub(crate) fn unpin(&mut self, pin: &super::Pin, now: Instant) {
        match pin {
            super::Pin::Session(pin) => self.unpin_session(pin, now),
            super::Pin::Plain { at, lock } => self.unpin_plain(*at, *lock),
        }
    }

    pub(crate) fn unpin_session(&mut self, pin: &SessionPin, now: Instant) {
        let Some(sess) = self.entities[pin.entity].sessions.get_mut(&pin.session) else { return };
        let Some(holder) = sess.holder.as_mut().filter(|holder| holder.token == pin.token) else { return };
        holder.busy -= 1;
        if let Some(current) = pin.lock.and_then(|lock| holder.current(lock)) {
            current.settling = false;
        }
        if holder.busy == 0
            && let Some(pause_until) = holder.gone
        {
            self.give_back(pin.entity, &pin.session, pause_until, now);
        }
    }

    /// Ends the hold. What was in hand goes back into its place.
    pub(crate) fn release(
        &mut self,
        entity: EntityIndex,
        session: &SessionId,
        token: u64,
        pause: Duration,
        now: Instant,
    ) -> Result<(), Error> {
        let holder = self.held_holder(entity, session, token, now)?;
        holder.gone = Some(now + pause);
        if holder.busy == 0 {
            self.give_back(entity, session, now + pause, now);
        }
        Ok(())
    }

    /// The lock has lapsed.
    pub(super) fn lapse(&mut self, entity: EntityIndex, session: &SessionId, token: u64, now: Instant) {
        let Some(holder) = self.entities[entity].sessions.get_mut(session).and_then(|sess| sess.holder.as_mut()) else {
            return;
        };
        if holder.token != token || holder.gone.is_some() {
            return;
        }
        holder.gone = Some(now);
        holder.lapsed = true;
        holder.wake.notify_one();
        if holder.busy == 0 {
            self.give_back(entity, session, now, now);
        }
    }

    fn give_back(&mut self, entity: EntityIndex, session: &SessionId, pause_until: Instant, now: Instant) {
        let Some(sess) = self.entities[entity].sessions.get_mut(session) else { return };
        let Some(mut holder) = sess.holder.take() else { return };
        self.deadlines.remove(&(holder.until, holder.token));
        if let Some(waiters) = &sess.waiters {
            waiters.notify_one();
        }
        if let Some(current) = holder.parked.take().filter(|current| !current.aside) {
            // A drain that stops does not use up deliveries of what it had in hand (P19).
            sess.put_parked(current.number, Slot { deliveries: current.slot.deliveries - 1, ..current.slot });
        }
        if let Some(current) = holder.main.take().filter(|current| !current.aside) {
            self.put_back_counted(entity, session, current.slot);
        }
        // A client that gives the session back has not failed at what it had not yet begun; one whose lock lapses has.
        for current in holder.flight.drain(..) {
            self.put_back(entity, session, current, holder.lapsed);
        }
        let Some(sess) = self.entities[entity].sessions.get_mut(session) else { return };
        if pause_until > now && !sess.active.is_empty() {
            let token = self.token();
            let sess = self.entities[entity].sessions.get_mut(session).expect("just looked at");
            sess.pause = Some((pause_until, token));
            self.deadlines.insert((pause_until, token), Deadline::Pause { entity, session: session.clone() });
        }
        self.offer(entity, session, now);
    }

    pub(super) fn pause_over(&mut self, entity: EntityIndex, session: &SessionId, token: u64, now: Instant) {
        if let Some(sess) = self.entities[entity].sessions.get_mut(session)
            && sess.pause.is_some_and(|(_, of)| of == token)
        {
            sess.pause = None;
            self.offer(entity, session, now);
        }
    }
}

impl Current {
    pub(crate) fn is_aside(&self) -> bool {
        self.aside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten thousand idle sessions cost two megabytes, not twenty.
    #[test]
    fn an_idle_session_is_small() {
        assert!(size_of::<Sess>() <= 192, "{} bytes", size_of::<Sess>());
    }
}
