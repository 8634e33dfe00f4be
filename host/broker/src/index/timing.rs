//! What time does: locks lapse, pauses end, messages come due and expire.

use std::time::{Duration, Instant};

use sprag_core::ids::SessionId;

use super::{Deadline, EntityIndex, Index, Place, Post, Taken};

/// The longest sleep while something waits for wall time, which can be set: a clock put forward is noticed by then.
const WALL_CHECK: Duration = Duration::from_secs(5);
/// How many due messages one transaction takes on.
const DUE_BATCH: usize = 256;

impl Index {
    /// Does what time has brought. Answers when to come again.
    pub(crate) fn tick(&mut self, now: Instant, wall: i64) -> Option<Instant> {
        while let Some((&(at, token), _)) = self.deadlines.first_key_value() {
            if at > now {
                break;
            }
            match self.deadlines.pop_first().expect("just seen").1 {
                Deadline::SessionLock { entity, session } => self.lapse(entity, &session, token, now),
                Deadline::PlainLock { at } => self.lapse_plain(at, token),
                Deadline::Pause { entity, session } => self.pause_over(entity, &session, token, now),
            }
        }
        self.take_due(wall);
        self.expire(wall);
        self.next_tick(now, wall)
    }

    pub(crate) fn next_tick(&self, now: Instant, wall: i64) -> Option<Instant> {
        let first_due = self.scheduled.first_key_value().map(|(key, _)| key.0).filter(|due| *due != i64::MAX);
        let first_expiry = self.expiry.first_key_value().map(|(key, _)| key.0);
        let wall_wait = first_due.into_iter().chain(first_expiry).min().map(|at| {
            let wait = u64::try_from(at.saturating_sub(wall)).unwrap_or(0);
            now + Duration::from_millis(wait).min(WALL_CHECK)
        });
        self.deadlines.first_key_value().map(|(key, _)| key.0).into_iter().chain(wall_wait).min()
    }

    /// Posts what is due. It stays counted as scheduled until the writer has moved it.
    fn take_due(&mut self, wall: i64) {
        let due: Vec<(i64, i64)> = self.scheduled.range(..=(wall, i64::MAX)).map(|(key, _)| *key).collect();
        let mut batches: Vec<(EntityIndex, Vec<i64>)> = Vec::new();
        for key in due {
            // Moved out of sight of the next tick, to the end of time, until the writer answers.
            let scheduled = self.scheduled.remove(&key).expect("just seen");
            let entity = scheduled.entity;
            self.scheduled.insert((i64::MAX, key.1), scheduled);
            self.due_of.insert(key.1, i64::MAX);
            match batches.last_mut() {
                Some((last, seqs)) if *last == entity && seqs.len() < DUE_BATCH => seqs.push(key.1),
                _ => batches.push((entity, vec![key.1])),
            }
        }
        self.posts.extend(batches.into_iter().map(|(entity, seqs)| Post::Due { entity, seqs }));
    }

    /// The writer could not move them: they are due again later.
    pub(super) fn not_due(&mut self, seqs: &[i64], again_at: i64) {
        for seq in seqs {
            if let Some(scheduled) = self.scheduled.remove(&(i64::MAX, *seq)) {
                self.scheduled.insert((again_at, *seq), scheduled);
                self.due_of.insert(*seq, again_at);
            }
        }
    }

    fn expire(&mut self, wall: i64) {
        while let Some((&(at, seq), _)) = self.expiry.first_key_value() {
            if at > wall {
                break;
            }
            let (entity, session) = self.expiry.pop_first().expect("just seen").1;
            match self.take_expired(entity, session.as_ref(), seq) {
                Some(taken) => self.bury_expired(entity, taken.session.as_ref(), taken.slot, taken.place),
                None if self.in_hand(entity, session.as_ref(), seq) => {
                    // Its holder may finish it. If it comes back, this finds it.
                    self.expiry.insert((wall + 1_000, seq), (entity, session));
                }
                None => {}
            }
        }
    }

    fn take_expired(&mut self, entity: EntityIndex, session: Option<&SessionId>, seq: i64) -> Option<Taken> {
        let Some(session) = session.filter(|_| self.entities[entity].requires_session) else {
            return self.take_expired_plain(entity, seq);
        };
        let sess = self.entities[entity].sessions.get_mut(session)?;
        let taken = |slot, place| Some(Taken { entity, session: Some(session.clone()), slot, place });
        if let Ok(at) = sess.active.binary_search_by_key(&seq, |slot| slot.seq) {
            let slot = sess.active.remove(at).expect("just found");
            return taken(slot, Place::Active);
        }
        if let Ok(at) = sess.deferred.binary_search_by_key(&seq, |slot| slot.seq) {
            let slot = sess.deferred.remove(at);
            return taken(slot, Place::Deferred);
        }
        let at = sess.parked.iter().position(|(_, slot)| slot.seq == seq)?;
        let (number, slot) = sess.parked.remove(at).expect("just found");
        taken(slot, Place::Parked(number))
    }

    fn in_hand(&self, entity: EntityIndex, session: Option<&SessionId>, seq: i64) -> bool {
        let state = &self.entities[entity];
        if state.plain.locked.values().any(|locked| locked.slot.seq == seq) {
            return true;
        }
        let holder = session.and_then(|session| state.sessions.get(session)).and_then(|sess| sess.holder.as_ref());
        holder.is_some_and(|holder| holder.in_hand().any(|current| current.slot.seq == seq))
    }
}
