//! A session in a receiver's hands.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use sprag_core::{
    ids::SessionId,
    message::{Delivery, LockToken, Message, Origin},
};
use sprag_transport::{Error, Parked, Session, Settlement};
use tokio::sync::Notify;

use crate::{
    broker::look_until,
    entity::{Address, EntityIndex},
    index::{Change, Pin, Settled},
    messages,
    shared::Shared,
};

/// Dropped without a word, it keeps the session until its lock lapses: whoever dropped it may have panicked over a message, and an immediate
/// second try would burn the message's deliveries in a moment.
pub(crate) struct Handle {
    shared: Arc<Shared>,
    entity: EntityIndex,
    id: SessionId,
    token: u64,
    max_delivery_count: u32,
    wake: Arc<Notify>,
}

impl Handle {
    pub(crate) fn new(shared: &Arc<Shared>, entity: EntityIndex, id: SessionId, token: u64, wake: Arc<Notify>) -> Self {
        let max_delivery_count = shared.topology().entities[entity].spec.max_delivery_count;
        Self { shared: Arc::clone(shared), entity, id, token, max_delivery_count, wake }
    }

    fn give_up(&self, lock: u64) {
        // The lock may have lapsed in the meantime, and then it is where it belongs.
        let _ = self
            .shared
            .with_index(|index| index.unhand(self.entity, &self.id, self.token, lock, false, Instant::now()));
    }
}

#[async_trait]
impl Session for Handle {
    fn id(&self) -> &SessionId {
        &self.id
    }

    fn lock(&self) -> LockToken {
        LockToken(self.token)
    }

    fn remaining(&self) -> Duration {
        self.shared.with_index(|index| index.remaining(self.entity, &self.id, self.token, Instant::now()))
    }

    async fn renew(&self) -> Result<Duration, Error> {
        self.shared.with_index(|index| index.renew(self.entity, &self.id, self.token, Instant::now()))
    }

    async fn state(&self) -> Result<Option<Bytes>, Error> {
        self.shared.with_index(|index| index.state(self.entity, &self.id, self.token, Instant::now()))
    }

    async fn set_state(&self, state: Option<Bytes>) -> Result<(), Error> {
        let state = state.filter(|state| !state.is_empty());
        let now = Instant::now();
        let unchanged = self.shared.with_index(|index| index.state(self.entity, &self.id, self.token, now))? == state;
        if unchanged {
            return Ok(());
        }
        let pin = self.shared.with_index(|index| index.pin(self.entity, &self.id, self.token, now))?;
        let (entity, id) = (self.entity, self.id.clone());
        let bytes = state.as_ref().map_or(64, Bytes::len);
        let written = self.shared.write_pinned(Pin::Session(pin), bytes, move |tx| {
            messages::set_session_state(tx, entity, &id, state.as_ref())
        });
        Ok(written.await?)
    }

    async fn receive(&self, wait: Duration) -> Result<Option<Delivery>, Error> {
        let found = look_until(&self.wake, wait, || {
            self.shared.refuse_when_closed()?;
            let wall = self.shared.now().0;
            self.shared.with_index(|index| index.next_main(self.entity, &self.id, self.token, Instant::now(), wall))
        });
        let Some(handed) = found.await? else { return Ok(None) };
        let delivery = self.shared.delivery(handed, Origin::Main, self.max_delivery_count);
        if let Err(error) = &delivery {
            tracing::error!(session = %self.id, sequence = handed.slot.seq, %error, "a message cannot be read");
            self.give_up(handed.lock);
        }
        delivery.map(Some)
    }

    async fn receive_parked(&self) -> Result<Parked, Error> {
        self.shared.refuse_when_closed()?;
        let wall = self.shared.now().0;
        let handed = self
            .shared
            .with_index(|index| index.next_parked(self.entity, &self.id, self.token, Instant::now(), wall))?;
        let Some((handed, number)) = handed else { return Ok(Parked::Empty { certain: true }) };
        // Parked messages are never given up for their count (P19).
        match self.shared.delivery(handed, Origin::Parked, u32::MAX) {
            Ok(delivery) => Ok(Parked::Copy(Delivery { parked_as: Some(number), ..delivery })),
            Err(error) => {
                self.give_up(handed.lock);
                Err(error)
            }
        }
    }

    /// A change of place: the copy is not needed.
    async fn park(&self, delivery: &Delivery, sequence: u32, _copy: &Message) -> Result<(), Error> {
        let now = Instant::now();
        let lock = delivery.lock.0;
        let (pin, current) =
            self.shared.with_index(|index| index.pin_delivery(self.entity, &self.id, self.token, lock, now))?;
        let settled = pin.clone();
        let written = self.shared.write_pinned(Pin::Session(pin), 128, move |tx| {
            messages::park(tx, current.slot.seq, sequence)?;
            tx.changes.push(Change::SettledInSession { pin: settled.clone(), how: Settled::Aside(sequence) });
            Ok(())
        });
        Ok(written.await?)
    }

    async fn settle(&self, lock: LockToken, settlement: Settlement) -> Result<(), Error> {
        let now = Instant::now();
        if matches!(settlement, Settlement::Abandon | Settlement::Release) {
            let counts = settlement == Settlement::Abandon;
            let (result, buries) = self
                .shared
                .with_index_posting(|index| index.unhand(self.entity, &self.id, self.token, lock.0, counts, now));
            if result.is_ok() && buries {
                self.shared.flush().await?;
            }
            return result;
        }
        let (pin, current) =
            self.shared.with_index(|index| index.pin_delivery(self.entity, &self.id, self.token, lock.0, now))?;
        self.shared.cache.lock().remove(current.slot.seq);
        let (settled, entity) = (pin.clone(), self.entity);
        let written = self.shared.write_pinned(Pin::Session(pin), 256, move |tx| {
            let how = match &settlement {
                // What was put aside stays there; only the delivery ends.
                _ if current.is_aside() => Settled::Gone,
                Settlement::DeadLetter { reason, description } => messages::to_dead_letters(
                    tx,
                    Address::own(entity),
                    current.slot.seq,
                    Some(reason),
                    Some(description),
                )?,
                _ => {
                    messages::delete(tx, current.slot.seq)?;
                    Settled::Gone
                }
            };
            tx.changes.push(Change::SettledInSession { pin: settled.clone(), how });
            Ok(())
        });
        Ok(written.await?)
    }

    async fn release(&self, pause: Duration) -> Result<(), Error> {
        let (result, buries) = self
            .shared
            .with_index_posting(|index| index.release(self.entity, &self.id, self.token, pause, Instant::now()));
        if buries {
            self.shared.flush().await?;
        }
        result
    }
}
