//! A look at all that an entity holds, in the order of its numbers.

use sprag_core::ids::SessionId;

use super::{Index, Sess, Slot, session::CameFrom};
use crate::entity::{Address, EntityIndex, Letters};

/// In which part of the entity a message was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    Active,
    /// Deferred by a client, or parked by a worker.
    Deferred,
    Scheduled,
}

impl Index {
    /// Up to `max` messages from a number on: numbers, hand-overs, and where they are. Of one session, or all. The dead letters of one
    /// session are picked by the reader, for the index does not know of which session they are.
    pub(crate) fn look(
        &self,
        at: Address,
        session: Option<&SessionId>,
        from: i64,
        max: usize,
    ) -> Vec<(i64, u32, Seen)> {
        let mut found = Found { from, max, seen: Vec::new() };
        let state = &self.entities[at.entity];
        let letters = match at.part {
            Letters::Own => None,
            Letters::Dead => Some(&state.dead),
            Letters::Transfer => Some(&state.transfer),
        };
        if let Some(letters) = letters {
            if session.is_some() {
                found.max = usize::MAX;
            }
            found.plain(letters);
            return found.seen();
        }
        match session {
            Some(id) => state.sessions.get(id).into_iter().for_each(|sess| found.session(sess)),
            None => state.sessions.values().for_each(|sess| found.session(sess)),
        }
        if session.is_none() || !state.requires_session {
            // An entity without sessions takes messages with session ids; they are picked by the reader.
            found.max = if session.is_some() { usize::MAX } else { max };
            found.plain(&state.plain);
        }
        let scheduled = self.scheduled_of(at.entity, session).filter(|(seq, _)| *seq >= from);
        found.seen.extend(scheduled.map(|(seq, _)| (seq, 0, Seen::Scheduled)));
        found.seen()
    }

    fn scheduled_of(&self, entity: EntityIndex, session: Option<&SessionId>) -> impl Iterator<Item = (i64, i64)> {
        let of = self.scheduled.iter().filter(move |(_, it)| it.entity == entity);
        of.filter(move |(_, it)| session.is_none() || it.session.as_ref() == session)
            .map(|((due, seq), _)| (*seq, *due))
    }
}

struct Found {
    from: i64,
    max: usize,
    seen: Vec<(i64, u32, Seen)>,
}

impl Found {
    fn put(&mut self, slots: impl Iterator<Item = Slot>, seen: Seen) {
        self.seen.extend(slots.take(self.max).map(|slot| (slot.seq, slot.deliveries, seen)));
    }

    fn session(&mut self, sess: &Sess) {
        let from = self.from;
        let start = sess.active.partition_point(|slot| slot.seq < from);
        self.put(sess.active.range(start..).copied(), Seen::Active);
        let start = sess.deferred.partition_point(|slot| slot.seq < from);
        self.put(sess.deferred[start..].iter().copied(), Seen::Deferred);
        // Parked ones are in parking order, so none can be left out before all are sorted.
        let parked = sess.parked.iter().map(|(_, slot)| *slot).filter(|slot| slot.seq >= from);
        self.seen.extend(parked.map(|slot| (slot.seq, slot.deliveries, Seen::Deferred)));
        for (of, seen) in
            [(CameFrom::Active, Seen::Active), (CameFrom::Parked, Seen::Deferred), (CameFrom::Deferred, Seen::Deferred)]
        {
            let in_hand = sess.in_hand(of).map(|current| current.slot).filter(|slot| slot.seq >= from);
            self.seen.extend(in_hand.map(|slot| (slot.seq, slot.deliveries, seen)));
        }
    }

    fn plain(&mut self, plain: &super::Plain) {
        let from = self.from;
        self.put(plain.available.range(from..).map(|(_, slot)| *slot), Seen::Active);
        self.put(plain.deferred.range(from..).map(|(_, slot)| *slot), Seen::Deferred);
        for locked in plain.locked.values().filter(|locked| locked.slot.seq >= from) {
            let seen = if locked.deferred { Seen::Deferred } else { Seen::Active };
            self.seen.push((locked.slot.seq, locked.slot.deliveries, seen));
        }
    }

    fn seen(mut self) -> Vec<(i64, u32, Seen)> {
        self.seen.sort_unstable_by_key(|(seq, _, _)| *seq);
        self.seen.truncate(self.max);
        self.seen
    }
}
