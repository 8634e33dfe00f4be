//! Failures on demand, for tests of what sits above a store or a transport in memory.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Which calls are to fail, and how. `Op` names the calls, `E` is their error.
#[derive(Debug)]
pub struct Faults<Op, E> {
    inner: Mutex<Inner<Op, E>>,
}

#[derive(Debug)]
struct Inner<Op, E> {
    seen: HashMap<Op, u64>,
    planned: HashMap<(Op, u64), E>,
    outage: Option<E>,
}

impl<Op, E> Default for Faults<Op, E> {
    fn default() -> Self {
        Self { inner: Mutex::new(Inner { seen: HashMap::new(), planned: HashMap::new(), outage: None }) }
    }
}

impl<Op: Copy + Eq + std::hash::Hash, E: Clone> Faults<Op, E> {
    /// The `nth` call of `op` from now (1: the next one) fails with `error`, before it has done anything.
    pub fn fail(&self, op: Op, nth: u64, error: E) {
        let mut inner = self.inner.lock();
        let seen = inner.seen.get(&op).copied().unwrap_or(0);
        inner.planned.insert((op, seen + nth), error);
    }

    /// From now on every call fails with `error`, until this is called with none.
    pub fn outage(&self, error: Option<E>) {
        self.inner.lock().outage = error;
    }

    /// How many calls of `op` there were.
    pub fn calls(&self, op: Op) -> u64 {
        self.inner.lock().seen.get(&op).copied().unwrap_or(0)
    }

    /// Counts a call and says whether it may go on.
    pub fn enter(&self, op: Op) -> Result<(), E> {
        let mut inner = self.inner.lock();
        let seen = inner.seen.entry(op).or_default();
        *seen += 1;
        let number = *seen;
        match inner.planned.remove(&(op, number)).or_else(|| inner.outage.clone()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}
