//! Messages that were just written, so that one that is delivered soon is not read back.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use sprag_core::{message::Message, time::Timestamp};

/// A message as it is handed over.
#[derive(Debug, Clone)]
pub(crate) struct CachedMessage {
    pub(crate) message: Arc<Message>,
    pub(crate) enqueued_at: Timestamp,
    pub(crate) id_assigned: bool,
    pub(crate) parked_as: Option<u32>,
    /// The number under which it was accepted, where that is another one.
    pub(crate) enqueue_seq: Option<i64>,
    pub(crate) size: u32,
}

/// Bounded by bytes; the oldest go first.
#[derive(Debug)]
pub(crate) struct Cache {
    limit: usize,
    bytes: usize,
    messages: HashMap<i64, CachedMessage>,
    /// In the order of arrival; may name messages that are gone.
    order: VecDeque<i64>,
}

/// What a message costs beside its own bytes.
const OVERHEAD: usize = 512;

impl Cache {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, bytes: 0, messages: HashMap::new(), order: VecDeque::new() }
    }

    pub(crate) fn insert(&mut self, seq: i64, message: CachedMessage) {
        let cost = message.size as usize + OVERHEAD;
        if cost > self.limit {
            return;
        }
        self.bytes += cost;
        if let Some(old) = self.messages.insert(seq, message) {
            self.bytes -= old.size as usize + OVERHEAD;
        } else {
            self.order.push_back(seq);
        }
        while self.bytes > self.limit
            && let Some(oldest) = self.order.pop_front()
        {
            self.remove(oldest);
        }
        if self.order.len() > 2 * self.messages.len() + 1_024 {
            self.order.retain(|seq| self.messages.contains_key(seq));
        }
    }

    pub(crate) fn get(&self, seq: i64) -> Option<CachedMessage> {
        self.messages.get(&seq).cloned()
    }

    pub(crate) fn remove(&mut self, seq: i64) {
        if let Some(gone) = self.messages.remove(&seq) {
            self.bytes -= gone.size as usize + OVERHEAD;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(size: u32) -> CachedMessage {
        CachedMessage {
            message: Arc::default(),
            enqueued_at: Timestamp(0),
            id_assigned: false,
            parked_as: None,
            enqueue_seq: None,
            size,
        }
    }

    #[test]
    fn bounded_and_oldest_first() {
        let mut cache = Cache::new(10 * (OVERHEAD + 100));
        (0..25).for_each(|seq| cache.insert(seq, message(100)));
        assert_eq!((0..25).filter(|seq| cache.get(*seq).is_some()).collect::<Vec<_>>(), (15..25).collect::<Vec<_>>());
        cache.insert(99, message(u32::MAX));
        assert!(cache.get(99).is_none());
        (15..25).for_each(|seq| cache.remove(seq));
        assert_eq!(cache.bytes, 0);
    }

    /// One message that stays must not keep the numbers of all that came and went.
    #[test]
    fn order_does_not_grow_with_what_has_gone() {
        let mut cache = Cache::new(1 << 20);
        cache.insert(0, message(1));
        for seq in 1..100_000 {
            cache.insert(seq, message(1));
            cache.remove(seq);
        }
        assert!(cache.order.len() < 2_000 && cache.get(0).is_some());
    }
}
