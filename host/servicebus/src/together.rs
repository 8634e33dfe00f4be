//! Completions that wait together share a request.
//!
//! `update-disposition` takes several locks. The first completion of an entity leaves at once; those that come while it is under way leave together
//! as soon as it is answered. So a lone one waits for nobody, and many cost as many round trips as a request has room for them.
//!
//! Only completions of entities without sessions are here: a session has one delivery in hand at a time (A05), and of the other ends there are few.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use sprag_core::ids::{EntityName, SequenceNumber};
use sprag_transport::Settlement;
use tokio::{sync::oneshot, task::JoinSet, time::Instant};
use tracing::debug;

use crate::{
    fault::{Fault, condition},
    management::Management,
    transport::Shared,
};

/// Completions in one request.
const MOST: usize = 100;

#[derive(Default)]
pub(crate) struct Together {
    /// Who waits, by entity. An entity is here while a task of its own settles for it.
    waiting: Mutex<HashMap<EntityName, VecDeque<Waiter>>>,
    requests: AtomicU64,
}

/// A delivery to be completed.
pub(crate) struct Completion {
    pub(crate) lock: [u8; 16],
    pub(crate) sequence: SequenceNumber,
    /// The lock holds until then at least, as far as we know.
    pub(crate) holds_until: Instant,
}

struct Waiter {
    completion: Completion,
    done: oneshot::Sender<Result<(), Fault>>,
}

impl Together {
    /// Requests that were sent.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    fn join(&self, source: &EntityName, waiter: Waiter) -> bool {
        let mut all = self.waiting.lock();
        let is_first = !all.contains_key(source);
        all.entry(source.clone()).or_default().push_back(waiter);
        is_first
    }

    /// Those that leave next. Without any, the entity is nobody's any more.
    fn next(&self, source: &EntityName) -> Option<Vec<Waiter>> {
        let mut all = self.waiting.lock();
        let queue = all.get_mut(source)?;
        if queue.is_empty() {
            all.remove(source);
            return None;
        }
        let many = queue.len().min(MOST);
        Some(queue.drain(..many).collect())
    }
}

/// The task that settles for an entity. Should it end before its time, nobody is left to wait for it.
struct Turn {
    shared: Arc<Shared>,
    source: EntityName,
    is_over: bool,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.together.waiting.lock().remove(&self.source);
        }
    }
}

/// Completes a delivery of an entity without sessions, and answers for it alone.
pub(crate) async fn complete(shared: &Arc<Shared>, source: &EntityName, completion: Completion) -> Result<(), Fault> {
    let (done, result) = oneshot::channel();
    if shared.together.join(source, Waiter { completion, done }) {
        let turn = Turn { shared: Arc::clone(shared), source: source.clone(), is_over: false };
        tokio::spawn(run(turn));
    }
    result.await.map_err(|_| Fault::Gone("the task that settles has ended".to_owned()))?
}

async fn run(mut turn: Turn) {
    while let Some(batch) = turn.shared.together.next(&turn.source) {
        settle(&turn.shared, &turn.source, batch).await;
    }
    turn.is_over = true;
}

async fn settle(shared: &Arc<Shared>, source: &EntityName, batch: Vec<Waiter>) {
    let management = Management::of(&shared.client, source);
    let locks: Vec<_> = batch.iter().map(|waiter| waiter.completion.lock).collect();
    shared.together.requests.fetch_add(1, Relaxed);
    let result = management.settle(None, locks, &Settlement::Complete).await;
    let answered = Instant::now();
    if batch.len() > 1 && result.as_ref().is_err_and(is_lost) {
        debug!(%source, together = batch.len(), "a lock among several is lost: each is settled alone");
        let mut alone = JoinSet::new();
        for waiter in batch {
            let (shared, management) = (Arc::clone(shared), management.clone());
            alone.spawn(async move {
                let result = settle_alone(&shared, &management, &waiter.completion, answered).await;
                // Who does not wait any more does not hear of it.
                let _ = waiter.done.send(result);
            });
        }
        while alone.join_next().await.is_some() {}
        return;
    }
    for waiter in batch {
        // Who does not wait any more does not hear of it.
        let _ = waiter.done.send(result.clone());
    }
}

/// After a request for several was refused: whose lock was lost? A broker may have settled the others all the same, and then refuses them now. What
/// is gone from the entity although its lock still held when the request was answered was taken away by that request and by nobody else.
async fn settle_alone(
    shared: &Shared,
    management: &Management,
    completion: &Completion,
    answered: Instant,
) -> Result<(), Fault> {
    shared.together.requests.fetch_add(1, Relaxed);
    let result = management.settle(None, [completion.lock], &Settlement::Complete).await;
    match result {
        Err(fault) if is_lost(&fault) && answered < completion.holds_until => {
            match management.is_there(completion.sequence).await {
                Ok(false) => Ok(()),
                Ok(true) => Err(fault),
                Err(unknown) => Err(unknown),
            }
        }
        result => result,
    }
}

fn is_lost(fault: &Fault) -> bool {
    fault.is_lock_lost() || fault.is(condition::MESSAGE_NOT_FOUND)
}
