//! Messages in the hands of a session's holder: several for a client that asks for several; and what becomes of each in the end.

use std::{collections::HashSet, time::Instant};

use sprag_core::ids::SessionId;
use sprag_transport::Error;

use super::{CameFrom, EntityIndex, Handed, Index, NEVER, Place, Post, SessionPin, Settled, Slot, session::Current};

impl Index {
    /// Up to `max` messages of the session, for a client that works on several at once.
    pub(crate) fn next_several(
        &mut self,
        entity: EntityIndex,
        session: &SessionId,
        token: u64,
        max: usize,
        now: Instant,
        wall: i64,
    ) -> Result<Vec<Handed>, Error> {
        let mut handed = Vec::new();
        while handed.len() < max {
            let Some(mut slot) = self.held(entity, session, token, now)?.active.pop_front() else { break };
            if self.bury_if_over(entity, Some(session), slot, Place::Active, wall) {
                continue;
            }
            slot.deliveries += 1;
            let lock = self.token();
            let current = Current { lock, slot, from: CameFrom::Active, number: 0, settling: false, aside: false };
            self.held_holder(entity, session, token, now)?.flight.push(current);
            handed.push(Handed { lock, slot });
        }
        // So that a lost session is noticed where nothing waits, too.
        self.held(entity, session, token, now)?;
        Ok(handed)
    }

    /// The deferred messages of these numbers, all or none; the first that is not there is answered.
    pub(crate) fn take_deferred(
        &mut self,
        entity: EntityIndex,
        session: &SessionId,
        token: u64,
        seqs: &[i64],
        now: Instant,
    ) -> Result<Result<Vec<Handed>, i64>, Error> {
        let deferred = &self.held(entity, session, token, now)?.deferred;
        let place = |seq: &i64| deferred.binary_search_by_key(seq, |slot| slot.seq);
        let mut asked = HashSet::new();
        if let Some(missing) = seqs.iter().find(|seq| place(seq).is_err() || !asked.insert(**seq)) {
            return Ok(Err(*missing));
        }
        let mut handed = Vec::with_capacity(seqs.len());
        for seq in seqs {
            let deferred = &mut self.held(entity, session, token, now)?.deferred;
            let at = deferred.binary_search_by_key(seq, |slot| slot.seq).expect("just seen");
            let mut slot = deferred.remove(at);
            slot.deliveries += 1;
            let lock = self.token();
            let current = Current { lock, slot, from: CameFrom::Deferred, number: 0, settling: false, aside: false };
            self.held_holder(entity, session, token, now)?.flight.push(current);
            handed.push(Handed { lock, slot });
        }
        Ok(Ok(handed))
    }

    /// Abandons a delivery of a held session, or gives it back uncounted.
    pub(crate) fn unhand(
        &mut self,
        entity: EntityIndex,
        session: &SessionId,
        token: u64,
        lock: u64,
        counts: bool,
        now: Instant,
    ) -> Result<(), Error> {
        let holder = self.held_holder(entity, session, token, now)?;
        if holder.current(lock).is_none_or(|current| current.settling) {
            return Err(Error::LockLost);
        }
        let current = holder.take(lock).expect("just found");
        holder.wake.notify_one();
        if !current.aside {
            self.put_back(entity, session, current, counts);
        }
        Ok(())
    }

    /// Where it came from. A delivery that counts may have been the last one allowed.
    pub(super) fn put_back(&mut self, entity: EntityIndex, session: &SessionId, current: Current, counts: bool) {
        let mut slot = current.slot;
        match (current.from, counts) {
            (CameFrom::Active, true) => return self.put_back_counted(entity, session, slot),
            (CameFrom::Deferred, true) => {
                if self.bury_if_over(entity, Some(session), slot, Place::Deferred, i64::MIN) {
                    return;
                }
                self.posts.push(Post::Deliveries { seq: slot.seq, count: slot.deliveries });
            }
            (CameFrom::Parked, true) => {}
            (_, false) => slot.deliveries -= 1,
        }
        let Some(sess) = self.entities[entity].sessions.get_mut(session) else { return };
        match current.from {
            CameFrom::Active => sess.put_active(slot),
            CameFrom::Deferred => sess.put_deferred(slot),
            CameFrom::Parked => sess.put_parked(current.number, slot),
        }
    }

    /// Back into its place; the delivery counted, and may have been the last one allowed.
    pub(super) fn put_back_counted(&mut self, entity: EntityIndex, session: &SessionId, slot: Slot) {
        if self.bury_if_over(entity, Some(session), slot, Place::Active, i64::MIN) {
            return;
        }
        self.posts.push(Post::Deliveries { seq: slot.seq, count: slot.deliveries });
        if let Some(sess) = self.entities[entity].sessions.get_mut(session) {
            sess.put_active(slot);
        }
    }

    pub(super) fn settled_in_session(&mut self, pin: &SessionPin, how: Settled, now: Instant) {
        let Some(lock) = pin.lock else { return };
        let state = &mut self.entities[pin.entity];
        let Some(sess) = state.sessions.get_mut(&pin.session) else { return };
        let Some(holder) = sess.holder.as_mut().filter(|holder| holder.token == pin.token) else { return };
        let Some(current) = holder.current(lock) else { return };
        let number = match how {
            Settled::Aside(number) | Settled::AsideAndDone(number) => Some(number),
            Settled::Gone | Settled::Dead | Settled::Deferred | Settled::Back => None,
        };
        let ended = *current;
        if matches!(how, Settled::Aside(_)) {
            current.aside = true;
        } else {
            holder.wake.notify_one();
            holder.take(lock);
        }
        if ended.aside {
            return;
        }
        if how == Settled::Back {
            return self.put_back(pin.entity, &pin.session, ended, true);
        }
        let slot = ended.slot;
        *state.counts.of(ended.from.place(ended.number)) -= 1;
        match (how, number) {
            (_, Some(number)) => {
                state.counts.parked += 1;
                sess.put_parked(number, slot);
            }
            (Settled::Deferred, _) => {
                state.counts.deferred += 1;
                sess.put_deferred(slot);
            }
            (Settled::Dead, _) => {
                self.forget_expiry(slot);
                self.insert(pin.entity, None, Slot { expires_at: NEVER, deliveries: 0, ..slot }, Place::Dead, now);
            }
            _ => {
                state.counts.bytes -= u64::from(slot.size);
                self.forget_expiry(slot);
            }
        }
    }
}
