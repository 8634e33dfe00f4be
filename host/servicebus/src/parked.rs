//! The messages of a session that are parked: copies on the queue beside, or on the subscription `Deferred` of NimBus's (P16 to P21).
//!
//! The queue has sessions, no time to live and the largest delivery limit. A look peeks first, so that a session without parked messages costs
//! one request and locks nothing; then it takes the session there and one copy, and further ones only as far as the lowest parking number is
//! behind them. What is not wanted goes back by closing, never by abandoning (P19).

use std::{collections::VecDeque, sync::Arc, time::Duration};

use sprag_core::{
    ids::{EntityName, SequenceNumber, SessionId},
    message::{Message, Origin},
};
use sprag_transport::{Error, Parked, Settlement};
use tokio::{sync::Mutex, time::Instant};
use tracing::debug;

use crate::{
    fault::{Fault, condition},
    link::{Arrival, Link},
    management::Management,
    message::State,
    settle::{self, Hand, Hands},
    transport::Shared,
    way::Way,
};

/// A session that was just given back may still look held: this long, it is asked for again before it counts as busy.
const BUSY_AFTER: Duration = Duration::from_millis(300);
/// A copy that was seen comes within this time, or somebody else has it.
const COPY_WAIT: Duration = Duration::from_secs(5);

pub(crate) struct ParkedSide {
    shared: Arc<Shared>,
    /// Where they are, and where they are sent to.
    entity: EntityName,
    entry: EntityName,
    way: Way,
    id: SessionId,
    held: Mutex<Option<Held>>,
}

struct Held {
    link: Arc<Link>,
    management: Management,
    /// Taken on the way to a copy with a lower number.
    aside: VecDeque<Arrival>,
}

/// What a look has found.
enum Found {
    Copy(Box<Arrival>, Arc<Link>),
    Nothing,
    /// Something was seen, and it does not come: that is not the same as nothing (P17).
    Elsewhere,
}

impl ParkedSide {
    pub(crate) fn new(shared: Arc<Shared>, source: EntityName, id: SessionId) -> Self {
        let way = shared.way(&source);
        let (entity, entry) = (way.parked(&source), way.parked_entry(&source));
        Self { shared, entity, entry, way, id, held: Mutex::default() }
    }

    /// The copy with the lowest parking number.
    pub(crate) async fn receive(&self, hands: &Hands) -> Result<Parked, Error> {
        let mut held = self.held.lock().await;
        if hands.holds(Origin::Parked) {
            return Err(Error::Refused("a parked copy is in hand: it is settled before the next one".into()));
        }
        match self.find(&mut held).await {
            Ok(Found::Copy(mut arrival, link)) => {
                self.way.read(&mut arrival.received.message);
                let lock = self.shared.locks.next();
                hands.put(lock, Hand { arrival: (*arrival).clone(), link, origin: Origin::Parked });
                let settings = self.shared.settings(&self.entity, true);
                Ok(Parked::Copy(settle::delivery(*arrival, lock, Origin::Parked, &settings)))
            }
            Ok(Found::Nothing) => Ok(Parked::Empty { certain: false }),
            Ok(Found::Elsewhere) => Ok(Parked::Busy),
            Err(fault) if fault.is(condition::SESSION_HELD) => Ok(Parked::Busy),
            Err(fault) => {
                *held = None;
                Err(fault.about(&self.entity))
            }
        }
    }

    async fn find(&self, held: &mut Option<Held>) -> Result<Found, Fault> {
        if held.as_ref().is_some_and(|held| held.link.end().is_some()) {
            *held = None;
        }
        // Whether a copy is ours its seal says to whoever reads it; here its word on its place is taken as it stands.
        let mut lowest: Option<u32> = None;
        let mut seen = false;
        let look = Management::of(&self.shared.client, &self.entity);
        look.walk(Some(&self.id), SequenceNumber(0), |received| {
            // What is scheduled or deferred there nobody of us has put there, and it does not come.
            if received.state != State::Active {
                return true;
            }
            seen = true;
            let number = received.parked_as();
            lowest = [lowest, number].into_iter().flatten().min();
            true
        })
        .await?;
        if !seen {
            return Ok(Found::Nothing);
        }
        if held.is_none() {
            let (link, _since) = self.shared.named(&self.entity, &self.id, BUSY_AFTER).await?;
            let management = Management::of_link(&link, &self.entity);
            *held = Some(Held { link: Arc::new(link), management, aside: VecDeque::new() });
        }
        let side = held.as_mut().expect("it was just taken");
        let is_lowest = |arrival: &Arrival| lowest.is_none() || arrival.received.parked_as() == lowest;
        if let Some(at) = side.aside.iter().position(is_lowest) {
            let arrival = side.aside.remove(at).expect("it was just found");
            return Ok(Found::Copy(Box::new(arrival), Arc::clone(&side.link)));
        }
        let until = Instant::now() + COPY_WAIT;
        while let Some(arrival) = side.link.receive(until).await? {
            if is_lowest(&arrival) {
                return Ok(Found::Copy(Box::new(arrival), Arc::clone(&side.link)));
            }
            side.aside.push_back(arrival);
        }
        Ok(Found::Elsewhere)
    }

    /// Sends a copy with what it says under the hosts' seal (P31).
    pub(crate) async fn park(&self, copy: &Message) -> Result<(), Error> {
        let copy = self.way.parked_copy(copy, &self.id);
        self.shared.put(&self.entry, &[copy]).await.map_err(|fault| fault.about(&self.entity))
    }

    pub(crate) async fn settle(
        &self,
        hands: &Hands,
        lock: sprag_core::message::LockToken,
        hand: &Hand,
        settlement: Settlement,
    ) -> Result<(), Error> {
        if matches!(settlement, Settlement::Release | Settlement::Abandon) {
            self.close().await;
            hands.forget(Origin::Parked);
            return Ok(());
        }
        let held = self.held.lock().await;
        let Some(side) = held.as_ref().filter(|side| Arc::ptr_eq(&side.link, &hand.link)) else {
            hands.take(lock);
            return Err(Error::LockLost);
        };
        let how = self.shared.client.config.settle;
        let result = settle::settle(how, &side.management, Some(&self.id), hand, settlement).await;
        if result.as_ref().is_ok() || result.as_ref().is_err_and(Fault::is_lock_lost) {
            hands.take(lock);
        }
        result.map_err(|fault| fault.about(&self.entity))
    }

    pub(crate) async fn renew(&self) -> Result<(), Error> {
        let held = self.held.lock().await;
        let Some(side) = held.as_ref() else { return Ok(()) };
        side.management.renew_session(&self.id).await.map_err(|fault| fault.about(&self.entity))
    }

    /// Gives back what is held, uncounted as far as the broker lets.
    pub(crate) async fn close(&self) {
        if let Some(side) = self.held.lock().await.take() {
            debug!(session = %self.id, aside = side.aside.len(), "parked messages are given back");
            side.link.close().await;
        }
    }
}
