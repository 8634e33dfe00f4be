//! Instances kept for reuse, where a handler's isolation allows it.
//!
//! Only an instance whose last run came back whole is kept: one that trapped, was stopped or was denied memory is dropped, never
//! entered again (A63). How many are kept is bounded over all handlers; the longest unused one makes room.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use sprag_core::ids::{EndpointName, SessionId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wasmtime::Store;

use crate::{bindings::Everything, config::Isolation, input::RunInput, run_state::RunState};

/// Runs after which an instance is retired: a store frees some of what a run took only when it is dropped.
const MAX_RUNS: u32 = 10_000;

/// An instance that can be called.
pub(crate) struct Live {
    pub(crate) store: Store<RunState>,
    pub(crate) exports: Everything,
    pub(crate) runs: u32,
    /// Its place among the kept ones, once it has been kept.
    place: Option<OwnedSemaphorePermit>,
}

impl Live {
    pub(crate) fn new(store: Store<RunState>, exports: Everything) -> Self {
        Self { store, exports, runs: 0, place: None }
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Any,
    Session(EndpointName, SessionId),
}

impl Key {
    /// None: the run gets a fresh instance, and it is not kept.
    pub(crate) fn of(isolation: Isolation, input: &RunInput) -> Option<Self> {
        match isolation {
            Isolation::Message => None,
            Isolation::Session => input.session.clone().map(|session| Self::Session(input.endpoint.clone(), session)),
            Isolation::Pooled => Some(Self::Any),
        }
    }
}

pub(crate) struct Kept {
    places: Arc<Semaphore>,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    /// By key, the last one used on top.
    live: HashMap<Key, Vec<(u64, Live)>>,
    /// By age; the number is that of the entry in `live`.
    by_age: BTreeMap<u64, Key>,
    next: u64,
}

impl Kept {
    pub(crate) fn new(places: Arc<Semaphore>) -> Self {
        Self { places, idle: Mutex::default() }
    }

    pub(crate) fn take(&self, key: &Key) -> Option<Live> {
        let mut idle = self.idle.lock();
        let stack = idle.live.get_mut(key)?;
        let (age, live) = stack.pop()?;
        if stack.is_empty() {
            idle.live.remove(key);
        }
        idle.by_age.remove(&age);
        Some(live)
    }

    /// Keeps a healthy instance, if there is a place for it.
    pub(crate) fn put(&self, key: Key, mut live: Live) {
        live.runs += 1;
        if live.runs >= MAX_RUNS {
            return;
        }
        let mut idle = self.idle.lock();
        if live.place.is_none() {
            live.place = match self.places.clone().try_acquire_owned() {
                Ok(place) => Some(place),
                // The handler's own longest unused one gives its place; where it has none, nothing is kept.
                Err(_) => idle.drop_oldest(),
            };
        }
        if live.place.is_none() {
            return;
        }
        let age = idle.next;
        idle.next += 1;
        idle.by_age.insert(age, key.clone());
        idle.live.entry(key).or_default().push((age, live));
    }
}

impl Idle {
    fn drop_oldest(&mut self) -> Option<OwnedSemaphorePermit> {
        let (age, key) = self.by_age.pop_first()?;
        let stack = self.live.get_mut(&key)?;
        let at = stack.iter().position(|(other, _)| *other == age)?;
        let (_, mut live) = stack.remove(at);
        if stack.is_empty() {
            self.live.remove(&key);
        }
        live.place.take()
    }
}
