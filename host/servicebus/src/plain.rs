//! Deliveries of entities without sessions.
//!
//! A receive borrows a link, and gives it back for the next one: attaching costs more than receiving. What comes on a link that nobody has
//! borrowed is given back to the entity at once, uncounted, so nothing sits locked for nobody (A14).

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use sprag_core::{
    ids::EntityName,
    message::{Delivery, LockToken, Origin},
};
use sprag_transport::{Error, Settlement};
use tokio::time::Instant;
use tracing::debug;

use crate::{
    address,
    config::Settle,
    fault::{Fault, condition},
    link::{Arrival, From, Link},
    management::Management,
    settle::{self, Hand, Hands},
    together::{self, Completion},
    transport::Shared,
};

/// After the first message: how long the next one may take that is there already.
const NEXT: Duration = Duration::from_millis(50);
/// How long a link that nobody borrows stays open.
const IDLE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Plain {
    idle: Mutex<HashMap<EntityName, Vec<Arc<Link>>>>,
    hands: Mutex<HashMap<EntityName, Arc<Hands>>>,
}

/// A link on loan. Dropped, wherever that is, it goes back.
struct Loan {
    shared: Arc<Shared>,
    source: EntityName,
    link: Arc<Link>,
}

impl Drop for Loan {
    fn drop(&mut self) {
        if self.link.end().is_some() {
            return;
        }
        let link = Arc::clone(&self.link);
        self.shared.plain.idle.lock().entry(self.source.clone()).or_default().push(Arc::clone(&link));
        let (shared, source) = (Arc::downgrade(&self.shared), self.source.clone());
        tokio::spawn(watch(shared, source, link));
    }
}

/// Gives back what comes while nobody has the link, and closes it after a while.
async fn watch(shared: Weak<Shared>, source: EntityName, link: Arc<Link>) {
    let until = Instant::now() + IDLE;
    loop {
        let arrived = link.arrived(until).await;
        let Some(shared) = shared.upgrade() else { return };
        let Some(unwanted) = shared.plain.unwanted(&source, &link, arrived) else { return };
        for arrival in unwanted {
            give_back(&shared, &source, &link, arrival).await;
        }
    }
}

async fn give_back(shared: &Arc<Shared>, source: &EntityName, link: &Arc<Link>, arrival: Arrival) {
    let hand = Hand { arrival, link: Arc::clone(link), origin: Origin::Main };
    let management = Management::of_link(link, source);
    let how = shared.client.config.settle;
    if let Err(fault) = settle::settle(how, &management, None, &hand, Settlement::Release).await {
        debug!(%source, %fault, "a message that nobody took comes again when its lock has lapsed");
    }
}

/// Gives back what was received for a caller that does not wait any more.
struct Got {
    shared: Arc<Shared>,
    source: EntityName,
    link: Arc<Link>,
    arrivals: Vec<Arrival>,
}

impl Drop for Got {
    fn drop(&mut self) {
        for arrival in std::mem::take(&mut self.arrivals) {
            let (shared, source, link) = (Arc::clone(&self.shared), self.source.clone(), Arc::clone(&self.link));
            tokio::spawn(async move { give_back(&shared, &source, &link, arrival).await });
        }
    }
}

impl Plain {
    fn hands(&self, source: &EntityName) -> Arc<Hands> {
        Arc::clone(self.hands.lock().entry(source.clone()).or_default())
    }

    /// What has come on a link that nobody has borrowed. None when it needs no watch any more.
    fn unwanted(&self, source: &EntityName, link: &Arc<Link>, arrived: bool) -> Option<Vec<Arrival>> {
        let mut idle = self.idle.lock();
        let links = idle.get_mut(source)?;
        // On loan again, it has another watch when it comes back.
        let at = links.iter().position(|one| Arc::ptr_eq(one, link))?;
        if !arrived || link.end().is_some() {
            links.swap_remove(at);
            return None;
        }
        Some(link.left_over())
    }

    fn idle(&self, source: &EntityName) -> Option<Arc<Link>> {
        let mut idle = self.idle.lock();
        let links = idle.get_mut(source)?;
        while let Some(link) = links.pop() {
            if link.end().is_none() && !link.connection.is_dead() {
                return Some(link);
            }
        }
        None
    }
}

async fn borrow(shared: &Arc<Shared>, source: &EntityName) -> Result<Loan, Fault> {
    let link = match shared.plain.idle(source) {
        Some(link) => link,
        None => Arc::new(Link::open(&shared.client, &address::path(source), From::Plain).await?),
    };
    Ok(Loan { shared: Arc::clone(shared), source: source.clone(), link })
}

pub(crate) async fn receive(
    shared: &Arc<Shared>,
    source: &EntityName,
    max: usize,
    wait: Duration,
) -> Result<Vec<Delivery>, Error> {
    if max == 0 {
        return Ok(Vec::new());
    }
    let until = Instant::now() + wait;
    let loan = borrow(shared, source).await.map_err(|fault| fault.about(source))?;
    let link = Arc::clone(&loan.link);
    let mut got = Got { shared: Arc::clone(shared), source: source.clone(), link, arrivals: Vec::new() };
    let failed = |fault: Fault| match fault.is_lock_lost() {
        true => Error::Unavailable(fault.to_string()),
        false => fault.about(source),
    };
    // The first one as long as the caller waits, the others as long as it takes to find out whether they are there.
    match loan.link.receive(until).await {
        Ok(Some(first)) => got.arrivals.push(first),
        Ok(None) => return Ok(Vec::new()),
        Err(fault) => return Err(failed(fault)),
    }
    while got.arrivals.len() < max {
        match loan.link.receive(Instant::now() + NEXT).await {
            Ok(Some(next)) => got.arrivals.push(next),
            Ok(None) => break,
            Err(fault) => {
                debug!(%source, %fault, "a link has ended under a receive");
                break;
            }
        }
    }
    let settings = shared.settings(source, false);
    let hands = shared.plain.hands(source);
    // What was never settled is not kept for ever: its lock has lapsed long since, unless it was renewed.
    if let Some(lapsed) = Instant::now().checked_sub(settings.lock_duration * 4) {
        hands.forget_before(lapsed);
    }
    let deliveries = std::mem::take(&mut got.arrivals).into_iter().map(|arrival| {
        let lock = shared.locks.next();
        let hand = Hand { arrival: arrival.clone(), link: Arc::clone(&loan.link), origin: Origin::Main };
        hands.put(lock, hand);
        settle::delivery(arrival, lock, Origin::Main, &settings)
    });
    Ok(deliveries.collect())
}

pub(crate) async fn renew(shared: &Arc<Shared>, source: &EntityName, lock: LockToken) -> Result<Duration, Error> {
    let hands = shared.plain.hands(source);
    let Some(hand) = hands.get(lock) else { return Err(Error::LockLost) };
    let asked = Instant::now();
    let management = Management::of(&shared.client, source);
    if let Err(fault) = management.renew(hand.arrival.lock).await {
        if fault.is_lock_lost() {
            hands.take(lock);
        }
        return Err(fault.about(source));
    }
    hands.renewed(lock, asked);
    Ok(shared.settings(source, false).lock_duration.saturating_sub(asked.elapsed()))
}

pub(crate) async fn settle(
    shared: &Arc<Shared>,
    source: &EntityName,
    lock: LockToken,
    settlement: Settlement,
) -> Result<(), Error> {
    let hands = shared.plain.hands(source);
    let Some(hand) = hands.get(lock) else { return Err(Error::LockLost) };
    // The lock is the entity's, not the connection's: it can be settled over another one.
    let how = shared.client.config.settle;
    let result = if settlement == Settlement::Complete && how == Settle::Management {
        let completion = Completion {
            lock: hand.arrival.lock,
            sequence: hand.arrival.received.sequence,
            holds_until: hand.arrival.at + shared.settings(source, false).lock_duration,
        };
        together::complete(shared, source, completion).await
    } else {
        let management = Management::of(&shared.client, source);
        settle::settle(how, &management, None, &hand, settlement).await
    };
    let over = match &result {
        Ok(()) => true,
        Err(fault) => fault.is_lock_lost() || fault.is(condition::MESSAGE_NOT_FOUND),
    };
    if over {
        hands.take(lock);
    }
    result.map_err(|fault| match fault.is(condition::MESSAGE_NOT_FOUND) {
        true => Error::LockLost,
        false => fault.about(source),
    })
}
