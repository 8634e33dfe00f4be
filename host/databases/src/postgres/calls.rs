//! Which checks and which writes go together, and what each of their callers is told.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use sprag_store::{Answer, Error, Written};

use crate::together::{Shared, Waiting};

use super::{
    batch,
    check::{self as questions, Asked},
    connections::Connections,
    fault::Fault,
    write::{Key, Prepared},
};

/// Round trips of checks, and of writes, at the same time: more of them would each carry less.
pub(crate) const MOST_UNDER_WAY: usize = 2;
/// Calls in one round trip, and about as many bytes.
const MOST_TOGETHER: usize = 256;
const MOST_BYTES: usize = 4 << 20;

impl Shared for Asked {
    type Answer = Answer;

    fn take(waiting: &mut VecDeque<Waiting<Self>>) -> Vec<Waiting<Self>> {
        let most = waiting.len().min(MOST_TOGETHER);
        waiting.drain(..most).collect()
    }
}

impl Shared for Prepared {
    type Answer = Written;

    /// Those that have no key in common; the others stay, in their order.
    fn take(waiting: &mut VecDeque<Waiting<Self>>) -> Vec<Waiting<Self>> {
        let (mut taken, mut left) = (Vec::new(), VecDeque::new());
        let (mut keys, mut bytes): (HashSet<Key>, usize) = Default::default();
        while let Some(next) = waiting.pop_front() {
            let own = next.call.keys();
            let room = taken.len() < MOST_TOGETHER && (taken.is_empty() || bytes + next.call.bytes() <= MOST_BYTES);
            if room && own.iter().all(|key| !keys.contains(*key)) {
                bytes += next.call.bytes();
                keys.extend(own.into_iter().cloned());
                taken.push(next);
                continue;
            }
            // What stays keeps its keys from those behind it.
            keys.extend(own.into_iter().cloned());
            left.push_back(next);
            if !room {
                break;
            }
        }
        left.append(waiting);
        *waiting = left;
        taken
    }
}

/// Asks all questions in one round trip.
pub(crate) async fn check(connections: Connections, waiting: Vec<Waiting<Asked>>) {
    let (asked, callers): (Vec<_>, Vec<_>) = waiting.into_iter().map(|it| (it.call, it.answer)).unzip();
    let answers = connections.call(move |connection| Box::pin(questions::check(connection, asked))).await;
    match answers {
        Ok(answers) => {
            for (caller, answer) in callers.into_iter().zip(answers) {
                // Whoever has gone away needs no answer.
                let _ = caller.send(answer.map_err(Fault::into_error));
            }
        }
        Err(error) => callers.into_iter().for_each(|caller| drop(caller.send(Err(error.clone())))),
    }
}

/// Writes all in one transaction. Where one of them is at fault, or what it waits for, each goes on alone.
pub(crate) async fn write(connections: Connections, waiting: Vec<Waiting<Prepared>>) {
    let (writes, callers): (Vec<_>, Vec<_>) = waiting.into_iter().map(|it| (it.call, it.answer)).unzip();
    let writes = Arc::new(writes);
    match write_batch(&connections, Arc::clone(&writes)).await {
        Ok(written) => callers.into_iter().zip(written).for_each(|(caller, one)| drop(caller.send(Ok(one)))),
        Err(Failed { of_one: true, .. }) if callers.len() > 1 => {
            let writes = Arc::into_inner(writes).expect("the batch has ended");
            for (write, caller) in writes.into_iter().zip(callers) {
                let connections = connections.clone();
                tokio::spawn(async move { drop(caller.send(write_alone(&connections, write).await)) });
            }
        }
        Err(Failed { error, .. }) => callers.into_iter().for_each(|caller| drop(caller.send(Err(error.clone())))),
    }
}

/// Writes one in a transaction of its own.
pub(crate) async fn write_alone(connections: &Connections, write: Prepared) -> Result<Written, Error> {
    let written = write_batch(connections, Arc::new(vec![write])).await.map_err(|failed| failed.error)?;
    written.into_iter().next().ok_or_else(|| Error::Unavailable("a write has no answer".to_owned()))
}

/// Why nothing of a batch was written.
struct Failed {
    error: Error,
    /// One of the batch may be what was wrong.
    of_one: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, of_one: false }
    }
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Self { of_one: fault.is_of_one(), error: fault.into_error() }
    }
}

async fn write_batch(connections: &Connections, batch: Arc<Vec<Prepared>>) -> Result<Vec<Written>, Failed> {
    connections.call_as(move |connection| Box::pin(async move { batch::write(connection, &batch).await })).await
}

#[cfg(test)]
mod tests {
    use sprag_store::conformance::sample;
    use tokio::sync::oneshot;

    use super::*;

    /// Two writes of one key are two transactions, in their order, and so is what shares a key with one that waits.
    #[test]
    fn writes_of_one_key_do_not_go_together() {
        let mut waiting = VecDeque::new();
        for ids in [vec!["a"], vec!["b"], vec!["a", "c"], vec!["c"], vec!["d"]] {
            let call = Prepared::new(&sample::endpoint(), sample::record(&ids)).unwrap();
            waiting.push_back(Waiting { call, answer: oneshot::channel().0 });
        }
        let mut rounds = Vec::new();
        while !waiting.is_empty() {
            let taken = Prepared::take(&mut waiting);
            let ids = |it: &Waiting<Prepared>| {
                it.call.records.iter().map(|row| row.message_id.0.to_string()).collect::<String>()
            };
            rounds.push(taken.iter().map(ids).collect::<Vec<_>>().join(" "));
        }
        assert_eq!(rounds, ["a b d", "ac", "c"]);
    }
}
