//! A session that this host holds: a link of its own, and requests over the connection of that link.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use sprag_core::{
    ids::{EntityName, SessionId},
    message::{Delivery, LockToken, Message, Origin},
};
use sprag_transport::{Error, Parked, Session, Settlement};
use tokio::{sync::Notify, time::Instant};
use tracing::{debug, warn};

use crate::{
    config::EntitySettings,
    fault::Fault,
    link::Link,
    management::Management,
    parked::ParkedSide,
    settle::{self, Hand, Hands},
    transport::Shared,
    way::Way,
};

pub(crate) struct HeldSession {
    shared: Arc<Shared>,
    source: EntityName,
    settings: EntitySettings,
    way: Way,
    id: SessionId,
    lock: LockToken,
    link: Arc<Link>,
    management: Management,
    parked: ParkedSide,
    hands: Hands,
    /// Until when the lock holds, counted from before it was asked for. In the past once it is lost or given back.
    until: Mutex<Instant>,
    /// A delivery was settled, or the session has ended.
    changed: Notify,
}

/// While a session is held back after its release, its lock is renewed when this part of it is left.
const RENEW_AT: u32 = 3;

impl HeldSession {
    /// `since` is a moment before the lock was asked for.
    pub(crate) fn new(shared: Arc<Shared>, source: EntityName, id: SessionId, link: Link, since: Instant) -> Self {
        let settings = shared.settings(&source, true);
        let management = Management::of_link(&link, &source);
        Self {
            lock: shared.locks.next(),
            parked: ParkedSide::new(Arc::clone(&shared), source.clone(), id.clone()),
            until: Mutex::new(since + settings.lock_duration),
            way: shared.way(&source),
            shared,
            source,
            settings,
            id,
            link: Arc::new(link),
            management,
            hands: Hands::default(),
            changed: Notify::new(),
        }
    }

    /// Known without asking: what the lock's time, the link and the connection say.
    fn check(&self) -> Result<(), Error> {
        if self.remaining().is_zero() {
            return Err(Error::LockLost);
        }
        if let Some(fault) = self.link.end() {
            debug!(session = %self.id, %fault, "the link of a session has ended");
            return Err(self.lost());
        }
        Ok(())
    }

    /// Lost or given back: nothing here works any more.
    fn lost(&self) -> Error {
        *self.until.lock() = Instant::now();
        self.hands.forget(Origin::Main);
        self.changed.notify_waiters();
        Error::LockLost
    }

    fn failed(&self, fault: Fault) -> Error {
        match fault.is_lock_lost() {
            true => self.lost(),
            false => fault.about(&self.source),
        }
    }

    async fn renew_main(&self) -> Result<(), Error> {
        let asked = Instant::now();
        self.management.renew_session(&self.id).await.map_err(|fault| self.failed(fault))?;
        let mut until = self.until.lock();
        *until = (asked + self.settings.lock_duration).max(*until);
        Ok(())
    }
}

#[async_trait]
impl Session for HeldSession {
    fn id(&self) -> &SessionId {
        &self.id
    }

    fn lock(&self) -> LockToken {
        self.lock
    }

    fn remaining(&self) -> Duration {
        self.until.lock().saturating_duration_since(Instant::now())
    }

    /// Both locks, if the parked side is held (P17). Without either, both are given up (P18).
    async fn renew(&self) -> Result<Duration, Error> {
        self.check()?;
        self.renew_main().await?;
        if let Err(error) = self.parked.renew().await {
            if matches!(error, Error::LockLost) {
                warn!(source = %self.source, session = %self.id, "the lock on a session's parked messages is lost");
                self.parked.close().await;
                self.link.close().await;
                return Err(self.lost());
            }
            return Err(error);
        }
        Ok(self.remaining())
    }

    async fn state(&self) -> Result<Option<Bytes>, Error> {
        self.check()?;
        self.management.state(&self.id).await.map_err(|fault| self.failed(fault))
    }

    async fn set_state(&self, state: Option<Bytes>) -> Result<(), Error> {
        self.check()?;
        self.management.set_state(&self.id, state).await.map_err(|fault| self.failed(fault))
    }

    /// One at a time: while one is in hand, the next is not asked for (A05), because the broker would hand it over.
    async fn receive(&self, wait: Duration) -> Result<Option<Delivery>, Error> {
        let wanted = Instant::now() + wait;
        loop {
            self.check()?;
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !self.hands.holds(Origin::Main) {
                break;
            }
            let until = wanted.min(*self.until.lock());
            tokio::select! {
                () = changed => {}
                // The check says what it means.
                () = self.link.ended() => {}
                () = tokio::time::sleep_until(until) => {
                    self.check()?;
                    if Instant::now() >= wanted {
                        return Ok(None);
                    }
                }
            }
        }
        let arrival = match self.link.receive(wanted).await {
            Ok(arrival) => arrival,
            Err(fault) => {
                debug!(session = %self.id, %fault, "the link of a session has ended");
                return Err(self.lost());
            }
        };
        let Some(mut arrival) = arrival else {
            self.check()?;
            return Ok(None);
        };
        self.way.read(&mut arrival.received.message);
        let lock = self.shared.locks.next();
        let hand = Hand { arrival: arrival.clone(), link: Arc::clone(&self.link), origin: Origin::Main };
        self.hands.put(lock, hand);
        Ok(Some(settle::delivery(arrival, lock, Origin::Main, &self.settings)))
    }

    async fn receive_parked(&self) -> Result<Parked, Error> {
        self.check()?;
        self.parked.receive(&self.hands).await
    }

    async fn park(&self, delivery: &Delivery, _sequence: u32, copy: &Message) -> Result<(), Error> {
        self.check()?;
        if delivery.origin == Origin::Parked {
            return Err(Error::Refused("what is parked is not parked again".into()));
        }
        self.parked.park(copy).await
    }

    async fn settle(&self, lock: LockToken, settlement: Settlement) -> Result<(), Error> {
        let Some(hand) = self.hands.get(lock) else { return Err(Error::LockLost) };
        if hand.origin == Origin::Parked {
            self.check()?;
            return self.parked.settle(&self.hands, lock, &hand, settlement).await;
        }
        self.check()?;
        let how = self.shared.client.config.settle;
        let result = settle::settle(how, &self.management, Some(&self.id), &hand, settlement).await;
        match &result {
            Ok(()) => {}
            Err(fault) if fault.is(crate::fault::condition::MESSAGE_LOCK_LOST) => {}
            // It is not known: it stays in hand, so that it can be settled again.
            Err(_) => return result.map_err(|fault| self.failed(fault)),
        }
        self.hands.take(lock);
        self.changed.notify_waiters();
        result.map_err(|fault| self.failed_delivery(fault))
    }

    async fn release(&self, pause: Duration) -> Result<(), Error> {
        self.parked.close().await;
        self.hands.forget(Origin::Parked);
        // What came for nobody goes back uncounted.
        for arrival in self.link.left_over() {
            let hand = Hand { arrival, link: Arc::clone(&self.link), origin: Origin::Main };
            let how = self.shared.client.config.settle;
            let back = settle::settle(how, &self.management, Some(&self.id), &hand, Settlement::Release).await;
            if let Err(fault) = back {
                debug!(session = %self.id, %fault, "a message that nobody took goes back with its session");
            }
        }
        let held_until = Instant::now() + pause;
        let mut lock_until = *self.until.lock();
        self.lost();
        if pause.is_zero() {
            self.link.close().await;
            return Ok(());
        }
        // Nobody may have it before the pause is over, and the broker cannot do that: it is held until then.
        let (link, management) = (Arc::clone(&self.link), self.management.clone());
        let (id, duration) = (self.id.clone(), self.settings.lock_duration);
        tokio::spawn(async move {
            while lock_until < held_until + duration / RENEW_AT {
                tokio::time::sleep_until((lock_until - duration / RENEW_AT).min(held_until)).await;
                if Instant::now() >= held_until {
                    break;
                }
                let asked = Instant::now();
                if let Err(fault) = management.renew_session(&id).await {
                    debug!(session = %id, %fault, "a session that is held back is lost before its pause is over");
                    break;
                }
                lock_until = asked + duration;
            }
            tokio::time::sleep_until(held_until).await;
            link.close().await;
        });
        Ok(())
    }
}

impl HeldSession {
    /// One delivery's lock is lost, which need not be the session's.
    fn failed_delivery(&self, fault: Fault) -> Error {
        fault.about(&self.source)
    }
}
