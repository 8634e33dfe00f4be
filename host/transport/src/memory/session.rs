//! A session that is held.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use sprag_core::{
    ids::{EntityName, SessionId},
    message::{Delivery, LockToken, Message, Origin},
};
use tokio::time::Instant;

use super::{Call, Look, Shared};
use crate::{Error, Parked, Session, Settlement};

pub(super) struct MemorySession {
    shared: Arc<Shared>,
    source: EntityName,
    id: SessionId,
    lock: LockToken,
    /// As the last renewal said. What the broker did since then is not known here, as it is not with a remote one.
    until: Mutex<Instant>,
}

impl MemorySession {
    pub(super) fn new(shared: Arc<Shared>, source: EntityName, id: SessionId, lock: LockToken, until: Instant) -> Self {
        Self { shared, source, id, lock, until: Mutex::new(until) }
    }
}

#[async_trait]
impl Session for MemorySession {
    fn id(&self) -> &SessionId {
        &self.id
    }

    fn lock(&self) -> LockToken {
        self.lock
    }

    fn remaining(&self) -> Duration {
        self.until.lock().saturating_duration_since(Instant::now())
    }

    async fn renew(&self) -> Result<Duration, Error> {
        self.shared.enter(Call::Renew).await?;
        let until = self.shared.look(&self.source, |entity| entity.renew_session(&self.id, self.lock))??;
        *self.until.lock() = until;
        Ok(self.remaining())
    }

    async fn state(&self) -> Result<Option<Bytes>, Error> {
        self.shared.enter(Call::State).await?;
        self.shared.look(&self.source, |entity| entity.held(&self.id, self.lock).map(|slot| slot.state.clone()))?
    }

    async fn set_state(&self, state: Option<Bytes>) -> Result<(), Error> {
        self.shared.enter(Call::SetState).await?;
        self.shared.look(&self.source, |entity| {
            entity.held(&self.id, self.lock)?.state = state.filter(|bytes| !bytes.is_empty());
            Ok(())
        })?
    }

    async fn receive(&self, wait: Duration) -> Result<Option<Delivery>, Error> {
        self.shared.enter(Call::Receive).await?;
        let take =
            |entity: &mut super::Entity| entity.receive_in_session(&self.id, self.lock, || self.shared.new_lock());
        self.shared.wait_for(&self.source, wait, take).await
    }

    async fn receive_parked(&self) -> Result<Parked, Error> {
        self.shared.enter(Call::ReceiveParked).await?;
        let certain = *self.shared.certain.lock();
        self.shared.look(&self.source, |entity| {
            entity.held(&self.id, self.lock)?;
            match self.shared.looks.lock().pop() {
                Some(Look::Busy) => return Ok(Parked::Busy),
                Some(Look::Empty) => return Ok(Parked::Empty { certain }),
                None => {}
            }
            let copy = entity.receive_parked(&self.id, self.lock, self.shared.new_lock())?;
            Ok(copy.map_or(Parked::Empty { certain }, Parked::Copy))
        })?
    }

    async fn park(&self, delivery: &Delivery, sequence: u32, copy: &Message) -> Result<(), Error> {
        self.shared.enter(Call::Park).await?;
        if delivery.origin == Origin::Parked {
            return Err(Error::Refused("what is parked is not parked again".into()));
        }
        self.shared.change(&self.source, |entity| entity.park(&self.id, self.lock, delivery, sequence, copy))?
    }

    async fn settle(&self, lock: LockToken, settlement: Settlement) -> Result<(), Error> {
        self.shared.enter(Call::Settle).await?;
        self.shared.change(&self.source, |entity| entity.settle(Some((&self.id, self.lock)), lock, settlement))?
    }

    async fn release(&self, pause: Duration) -> Result<(), Error> {
        self.shared.enter(Call::Release).await?;
        let released = self.shared.change(&self.source, |entity| entity.release(&self.id, self.lock, pause))?;
        *self.until.lock() = Instant::now();
        released
    }
}
