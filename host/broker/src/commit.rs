//! A decision carried out: all of its effects in one transaction.
//!
//! There is nothing that could be left undone, so no decision is kept for a redelivery (P1), and parking is a change of place in the same row.

use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use sprag_core::{
    effect::{Commit, Effect},
    ids::{EndpointName, MessageId, SessionId},
};
use sprag_store::Written;
use sprag_transport::{CommitError, Committer, Error, Held};

use crate::{
    Engine,
    entity::{Address, EntityIndex},
    index::{Change, Pin, Settled},
    messages::{self, Prepared},
    tracking::{self, PreparedWrite, Standing},
    writer::{Stop, Tx},
};

/// An effect, ready for the writer.
enum Step {
    Store(Box<PreparedWrite>),
    Enqueue(Box<Prepared>),
    CancelScheduled(MessageId),
    SetState(Option<Bytes>),
    Park(u32),
    Complete,
    DeadLetter { reason: String, description: String },
}

/// The delivery that the commit ends.
struct Target {
    at: Address,
    session: Option<SessionId>,
    seq: i64,
    size: u32,
    message_id: Option<MessageId>,
    pin: Pin,
    /// It was put aside before this commit.
    aside: bool,
    /// What is stored of the session now: writing the same again writes nothing.
    state: Option<Bytes>,
}

impl Step {
    fn new(effect: Effect) -> Result<Self, Error> {
        Ok(match effect {
            Effect::Store(write) => Self::Store(Box::new(PreparedWrite::new(*write, false)?)),
            Effect::Enqueue(message) => Self::Enqueue(Box::new(Prepared::new(*message)?)),
            Effect::CancelScheduled(id) => Self::CancelScheduled(id),
            Effect::SetState(state) => Self::SetState(state.to_bytes().map(Bytes::from)),
            Effect::Park { sequence, copy: _ } => Self::Park(sequence),
            Effect::Complete => Self::Complete,
            Effect::DeadLetter { reason, description } => Self::DeadLetter { reason, description },
        })
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Store(write) => write.bytes(),
            Self::Enqueue(message) => message.bytes(),
            Self::SetState(state) => state.as_ref().map_or(16, Bytes::len),
            _ => 64,
        }
    }
}

#[async_trait]
impl Committer for Engine {
    async fn commit(&self, held: Held<'_>, commit: Commit) -> Result<Written, CommitError> {
        let refused = |error: Error| match error {
            Error::LockLost => CommitError::LockLost,
            Error::Refused(text) => CommitError::Refused(text),
            other => CommitError::Unavailable(other.to_string()),
        };
        let steps = commit.effects.into_iter().map(Step::new).collect::<Result<Vec<_>, _>>().map_err(refused)?;
        // Removed with all it held, the lock among it.
        let address = self.shared.topology().address(held.source).map_err(|_| CommitError::LockLost)?;
        for step in &steps {
            if let Step::Enqueue(message) = step {
                self.shared.topology().entities[address.entity].spec.accepts(&message.message, 0).map_err(refused)?;
            }
        }
        let target = self.pin(address, &held).map_err(refused)?;
        if steps.iter().any(|step| matches!(step, Step::Complete | Step::DeadLetter { .. })) {
            self.shared.cache.lock().remove(target.seq);
        }
        let bytes = steps.iter().map(Step::bytes).sum();
        let endpoint = commit.endpoint;
        let pin = target.pin.clone();
        let transaction = steps.iter().find_map(|step| match step {
            Step::Store(write) => write.transaction(),
            _ => None,
        });
        let apply = move |tx: &mut Tx<'_>| carry_out(tx, &endpoint, &target, &steps);
        let written = match transaction {
            Some(id) => self.shared.finish_run(id, Some(pin), bytes, apply).await,
            None => self.shared.write_pinned(pin, bytes, apply).await,
        };
        written.map_err(Into::into)
    }
}

impl Engine {
    /// From here on the lock does not lapse before the commit has ended, and nobody else settles the delivery.
    fn pin(&self, at: Address, held: &Held<'_>) -> Result<Target, Error> {
        let (now, lock, seq) = (Instant::now(), held.delivery.lock.0, held.delivery.sequence.0);
        let message_id = held.delivery.message.message_id.clone();
        let Some(session) = held.session else {
            let slot = self.shared.with_index(|index| index.pin_plain(at, lock, now))?;
            return Ok(Target {
                at,
                session: None,
                seq,
                size: slot.size,
                message_id,
                pin: Pin::Plain { at, lock },
                aside: false,
                state: None,
            });
        };
        let id = session.id();
        self.shared.with_index(|index| {
            let (pin, current) = index.pin_delivery(at.entity, id, session.lock().0, lock, now)?;
            let state = index.state(at.entity, id, session.lock().0, now)?;
            Ok(Target {
                at,
                session: Some(id.clone()),
                seq,
                size: current.slot.size,
                message_id,
                pin: Pin::Session(pin),
                aside: current.is_aside(),
                state,
            })
        })
    }
}

fn carry_out(tx: &mut Tx<'_>, endpoint: &EndpointName, target: &Target, steps: &[Step]) -> Result<Written, Stop> {
    let entity: EntityIndex = target.at.entity;
    // Everything that can refuse, before anything is written.
    if tx.topology.entities[entity].is_gone() {
        return Err(CommitError::LockLost.into());
    }
    let mut standings = Vec::new();
    for step in steps {
        if let Step::Store(write) = step {
            standings.push(tracking::examine(tx, endpoint, write, true)?);
        }
    }
    standings.iter_mut().skip(1).for_each(Standing::forget_event);
    let mut standings = standings.into_iter();
    let mut written = Written::Done;
    let mut parked = None;
    let mut settled = None;
    let mut state = target.state.clone();
    for step in steps {
        match step {
            Step::Store(write) => {
                let standing = standings.next().expect("one was taken for each");
                if tracking::write(tx, endpoint, write, standing, true)? == Written::AlreadyDecided {
                    written = Written::AlreadyDecided;
                }
            }
            Step::Enqueue(message) => {
                messages::enqueue(tx, entity, message)?;
            }
            Step::CancelScheduled(id) => {
                messages::cancel_by_id(tx, entity, id)?;
            }
            Step::SetState(new) => {
                if let Some(session) = &target.session
                    && *new != state
                {
                    messages::set_session_state(tx, entity, session, new.as_ref())?;
                    state.clone_from(new);
                }
            }
            Step::Park(number) => {
                messages::park(tx, target.seq, *number)?;
                parked = Some(*number);
            }
            Step::Complete => {
                settled = Some(match parked {
                    Some(number) => Settled::AsideAndDone(number),
                    None => {
                        if !target.aside {
                            messages::end(tx, target.seq, target.size)?;
                        }
                        Settled::Gone
                    }
                });
            }
            Step::DeadLetter { reason, description } => {
                settled = Some(match target.aside {
                    true => Settled::Dead,
                    false => messages::to_dead_letters(tx, target.at, target.seq, Some(reason), Some(description))?,
                });
            }
        }
    }
    if let Some(id) = &target.message_id {
        tracking::decision_done(tx, endpoint, id)?;
    }
    if let Some(how) = settled.or(parked.map(Settled::Aside)) {
        tx.changes.push(match &target.pin {
            Pin::Session(pin) => Change::SettledInSession { pin: pin.clone(), how },
            Pin::Plain { at, lock } => Change::SettledPlain { at: *at, lock: *lock, how },
        });
    }
    Ok(written)
}
