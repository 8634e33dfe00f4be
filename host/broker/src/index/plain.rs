//! Messages without sessions, and dead letters: many hands, each message locked on its own.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::{Duration, Instant},
};

use sprag_transport::Error;

use super::{Deadline, Handed, Index, NEVER, Place, Post, Settled, Slot, Taken};
use crate::entity::{Address, EntityIndex, Letters};

#[derive(Debug, Default)]
pub(crate) struct Plain {
    pub(crate) available: BTreeMap<i64, Slot>,
    /// Set aside, to be asked for by number.
    pub(crate) deferred: BTreeMap<i64, Slot>,
    pub(crate) locked: HashMap<u64, Locked>,
    /// For those who wait for a message.
    pub(crate) wake: std::sync::Arc<tokio::sync::Notify>,
}

#[derive(Debug)]
pub(crate) struct Locked {
    pub(crate) slot: Slot,
    until: Instant,
    settling: bool,
    /// The lock lapsed while it was being settled.
    gone: bool,
    /// It came from the deferred ones, and goes back there.
    pub(crate) deferred: bool,
}

impl Plain {
    pub(super) fn put(&mut self, slot: Slot) {
        self.available.insert(slot.seq, slot);
        self.wake.notify_one();
    }

    pub(super) fn defer(&mut self, slot: Slot) {
        self.deferred.insert(slot.seq, slot);
    }

    pub(super) fn clear(&mut self) {
        self.available = BTreeMap::new();
        self.deferred = BTreeMap::new();
        self.locked = HashMap::new();
    }

    /// All that are not deferred, in hands or not.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        let in_hand = self.locked.values().filter(|locked| !locked.deferred).map(|locked| locked.slot);
        self.available.values().copied().chain(in_hand)
    }
}

impl Address {
    /// Where its messages wait.
    fn place(self) -> Place {
        match self.part {
            Letters::Own => Place::Active,
            Letters::Dead => Place::Dead,
            Letters::Transfer => Place::Transfer,
        }
    }

    fn deferred_place(self) -> Place {
        match self.part {
            Letters::Own => Place::Deferred,
            Letters::Dead => Place::DeadDeferred,
            Letters::Transfer => Place::TransferDeferred,
        }
    }
}

impl Index {
    pub(crate) fn plain(&mut self, at: Address) -> &mut Plain {
        let state = &mut self.entities[at.entity];
        match at.part {
            Letters::Own => &mut state.plain,
            Letters::Dead => &mut state.dead,
            Letters::Transfer => &mut state.transfer,
        }
    }

    /// Up to `max` messages, oldest first.
    pub(crate) fn take_plain(&mut self, at: Address, max: usize, now: Instant, wall: i64) -> Vec<Handed> {
        let until = now + self.entities[at.entity].lock_duration;
        let mut handed = Vec::new();
        while handed.len() < max {
            let Some((_, mut slot)) = self.plain(at).available.pop_first() else { break };
            if !at.is_dead() && self.bury_if_over(at.entity, None, slot, Place::Active, wall) {
                continue;
            }
            slot.deliveries += 1;
            let lock = self.lock_plain(at, slot, until, false);
            handed.push(Handed { lock, slot });
        }
        handed
    }

    fn lock_plain(&mut self, at: Address, slot: Slot, until: Instant, deferred: bool) -> u64 {
        let lock = self.token();
        self.plain(at).locked.insert(lock, Locked { slot, until, settling: false, gone: false, deferred });
        self.deadlines.insert((until, lock), Deadline::PlainLock { at });
        lock
    }

    /// The deferred messages of these numbers, all or none; the first that is not there is answered.
    pub(crate) fn take_deferred_plain(&mut self, at: Address, seqs: &[i64], now: Instant) -> Result<Vec<Handed>, i64> {
        let deferred = &self.plain(at).deferred;
        let mut asked = HashSet::new();
        if let Some(missing) = seqs.iter().find(|seq| !deferred.contains_key(seq) || !asked.insert(**seq)) {
            return Err(*missing);
        }
        let until = now + self.entities[at.entity].lock_duration;
        let mut handed = Vec::with_capacity(seqs.len());
        for seq in seqs {
            let mut slot = self.plain(at).deferred.remove(seq).expect("just seen");
            slot.deliveries += 1;
            let lock = self.lock_plain(at, slot, until, true);
            handed.push(Handed { lock, slot });
        }
        Ok(handed)
    }

    /// When the lock of a delivery ends.
    pub(crate) fn plain_until(&mut self, at: Address, lock: u64) -> Option<Instant> {
        self.plain(at).locked.get(&lock).map(|locked| locked.until)
    }

    fn locked(&mut self, at: Address, lock: u64, now: Instant) -> Result<&mut Locked, Error> {
        let locked = self.plain(at).locked.get_mut(&lock);
        locked.filter(|locked| locked.until > now && !locked.gone).ok_or(Error::LockLost)
    }

    pub(crate) fn renew_plain(&mut self, at: Address, lock: u64, now: Instant) -> Result<Duration, Error> {
        let duration = self.entities[at.entity].lock_duration;
        let locked = self.locked(at, lock, now)?;
        let old = std::mem::replace(&mut locked.until, now + duration);
        if let Some(deadline) = self.deadlines.remove(&(old, lock)) {
            self.deadlines.insert((now + duration, lock), deadline);
        }
        Ok(duration)
    }

    pub(crate) fn pin_plain(&mut self, at: Address, lock: u64, now: Instant) -> Result<Slot, Error> {
        let locked = self.locked(at, lock, now)?;
        if std::mem::replace(&mut locked.settling, true) {
            return Err(Error::LockLost);
        }
        Ok(locked.slot)
    }

    pub(crate) fn unpin_plain(&mut self, at: Address, lock: u64) {
        let Some(locked) = self.plain(at).locked.get_mut(&lock) else { return };
        locked.settling = false;
        if locked.gone {
            self.unlock_plain(at, lock, true);
        }
    }

    pub(crate) fn unhand_plain(&mut self, at: Address, lock: u64, counts: bool, now: Instant) -> Result<(), Error> {
        if self.locked(at, lock, now)?.settling {
            return Err(Error::LockLost);
        }
        self.unlock_plain(at, lock, counts);
        Ok(())
    }

    pub(super) fn lapse_plain(&mut self, at: Address, lock: u64) {
        match self.plain(at).locked.get_mut(&lock) {
            Some(locked) if locked.settling => locked.gone = true,
            Some(_) => self.unlock_plain(at, lock, true),
            None => {}
        }
    }

    fn unlock_plain(&mut self, at: Address, lock: u64, counts: bool) {
        let Some(Locked { mut slot, until, deferred, .. }) = self.plain(at).locked.remove(&lock) else { return };
        self.deadlines.remove(&(until, lock));
        let place = if deferred { Place::Deferred } else { Place::Active };
        if !counts {
            slot.deliveries -= 1;
        } else if !at.is_dead() {
            if self.bury_if_over(at.entity, None, slot, place, i64::MIN) {
                return;
            }
            self.posts.push(Post::Deliveries { seq: slot.seq, count: slot.deliveries });
        }
        if deferred {
            return self.plain(at).defer(slot);
        }
        if self.entities[at.entity].forwards(at) {
            self.forget_expiry(slot);
            let place = at.place();
            self.posts.push(Post::Forward { taken: Taken { entity: at.entity, session: None, slot, place } });
            return;
        }
        self.plain(at).put(slot);
    }

    pub(super) fn settled_plain(&mut self, at: Address, lock: u64, how: Settled) {
        if how == Settled::Back {
            return self.unlock_plain(at, lock, true);
        }
        let Some(Locked { slot, until, deferred, .. }) = self.plain(at).locked.remove(&lock) else { return };
        self.deadlines.remove(&(until, lock));
        let state = &mut self.entities[at.entity];
        let was = if deferred { at.deferred_place() } else { at.place() };
        *state.counts.of(was) -= 1;
        match how {
            Settled::Deferred => {
                // It lives on as long as before.
                *state.counts.of(at.deferred_place()) += 1;
                return self.plain(at).defer(slot);
            }
            Settled::Dead => {
                let slot = Slot { expires_at: NEVER, deliveries: 0, ..slot };
                match at.part {
                    // It stays where it is, with another reason.
                    Letters::Transfer => {
                        state.counts.transfer += 1;
                        state.transfer.put(slot);
                    }
                    Letters::Own | Letters::Dead => {
                        state.counts.dead += 1;
                        state.dead.put(slot);
                    }
                }
            }
            _ => state.counts.bytes -= u64::from(slot.size),
        }
        self.forget_expiry(slot);
    }

    /// Takes a dead letter out before it is replayed. None: it is not there, or in somebody's hands.
    pub(crate) fn take_dead(&mut self, at: Address, seq: i64) -> Option<Slot> {
        self.plain(at).available.remove(&seq)
    }

    pub(super) fn remove_dead(&mut self, at: Address, seq: i64) {
        self.plain(at).available.remove(&seq);
        *self.entities[at.entity].counts.of(at.place()) -= 1;
    }

    /// Takes an expired message out of the available ones.
    pub(super) fn take_expired_plain(&mut self, entity: EntityIndex, seq: i64) -> Option<Taken> {
        let plain = &mut self.entities[entity].plain;
        if let Some(slot) = plain.available.remove(&seq) {
            return Some(Taken { entity, session: None, slot, place: Place::Active });
        }
        let slot = plain.deferred.remove(&seq)?;
        Some(Taken { entity, session: None, slot, place: Place::Deferred })
    }
}
