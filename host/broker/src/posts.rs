//! What the index asks of the writer by itself: nobody waits for these.

use crate::{
    entity::Address,
    index::{Change, Place, Post, Settled, Taken},
    messages, route,
    shared::Shared,
    writer::{Queued, Stop, Tx},
};

/// How long a failed step waits before it is tried again, in milliseconds.
const AGAIN: i64 = 5_000;

pub(crate) fn forward(shared: &Shared, posts: Vec<Post>) {
    for post in posts {
        let (queued, answer) = match post {
            Post::Deliveries { seq, count } => Queued::new(64, move |tx| {
                tx.execute("UPDATE message SET deliveries = ?2 WHERE seq = ?1", (seq, count))?;
                Ok(())
            }),
            Post::Bury { taken, dead, reason, description } => {
                // As a dead letter it reads differently.
                shared.cache.lock().remove(taken.slot.seq);
                let undo = vec![Change::PutBack { taken: taken.clone() }];
                let (queued, answer) = Queued::new(256, move |tx| bury(tx, &taken, dead, reason, &description));
                (queued.with_undo(undo), answer)
            }
            Post::Forward { taken } => {
                shared.cache.lock().remove(taken.slot.seq);
                let undo = vec![Change::PutBack { taken: taken.clone() }];
                let (queued, answer) = Queued::new(taken.slot.size as usize, move |tx| {
                    let to = route::forward_row(tx, &taken)?;
                    tx.changes.push(Change::Buried { taken: taken.clone(), to });
                    Ok(())
                });
                (queued.with_undo(undo), answer)
            }
            Post::Due { entity, seqs } => {
                let undo = vec![Change::NotDue { seqs: seqs.clone(), again_at: shared.now().0 + AGAIN }];
                let (queued, answer) = Queued::new(1_024 * seqs.len(), move |tx| {
                    seqs.iter().try_for_each(|seq| messages::come_due(tx, entity, *seq))
                });
                (queued.with_undo(undo), answer)
            }
        };
        drop(answer);
        // The writer has ended, and with it this process's broker: the file is as it was, and the next start finds it so.
        if !shared.queue.push_now(queued) {
            tracing::debug!("the engine has ended before a step of its own");
        }
    }
}

fn bury(tx: &mut Tx<'_>, taken: &Taken, dead: bool, reason: &str, description: &str) -> Result<(), Stop> {
    let to = if dead {
        let at = Address::own(taken.entity);
        let how = messages::to_dead_letters(tx, at, taken.slot.seq, Some(reason), Some(description))?;
        (how == Settled::Dead).then_some(Place::Dead)
    } else {
        messages::delete(tx, taken.slot.seq)?;
        None
    };
    tx.changes.push(Change::Buried { taken: taken.clone(), to });
    Ok(())
}
