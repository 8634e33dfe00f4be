//! Leases in the maps.

use std::time::Duration;

use sprag_core::{
    effect::{LeaseEnd, LeaseEnding},
    ids::{EndpointName, LeaseOwner, MessageId},
    time::Timestamp,
};

use super::tables::{Endpoint, Lease, Tables};
use crate::lease::Leased;

impl Tables {
    fn held(&mut self, endpoint: &EndpointName, id: &MessageId, owner: &LeaseOwner) -> Option<&mut Lease> {
        self.endpoints.get_mut(endpoint)?.held(id, owner)
    }

    pub(super) fn acquire(
        &mut self,
        endpoint: &EndpointName,
        id: &MessageId,
        owner: &LeaseOwner,
        time: Duration,
        now: Timestamp,
    ) -> Leased {
        let number = self.next();
        let leases = &mut self.endpoints.entry(endpoint.clone()).or_default().leases;
        match leases.get(id) {
            Some(Lease { until: None, .. }) => return Leased::HandedOff,
            Some(Lease { until: Some(until), owner: holder, .. }) if *until > now && holder != owner => {
                return Leased::InProgress { left: until.since(now) };
            }
            _ => {}
        }
        let lease = Lease { owner: owner.clone(), until: Some(now.after(time)), at: now, number };
        leases.insert(id.clone(), lease);
        Leased::Acquired
    }

    pub(super) fn renew(
        &mut self,
        endpoint: &EndpointName,
        id: &MessageId,
        owner: &LeaseOwner,
        until: Timestamp,
    ) -> bool {
        self.held(endpoint, id, owner).map(|lease| lease.until = Some(until)).is_some()
    }

    pub(super) fn release(&mut self, endpoint: &EndpointName, id: &MessageId, owner: &LeaseOwner) {
        if self.held(endpoint, id, owner).is_some()
            && let Some(endpoint) = self.endpoints.get_mut(endpoint)
        {
            endpoint.leases.remove(id);
        }
    }

    /// Whether the end of a lease may take place.
    pub(super) fn may_end(&mut self, endpoint: &EndpointName, end: &LeaseEnd) -> bool {
        end.owner.as_ref().is_none_or(|owner| self.held(endpoint, &end.id, owner).is_some())
    }
}

impl Endpoint {
    fn held(&mut self, id: &MessageId, owner: &LeaseOwner) -> Option<&mut Lease> {
        self.leases.get_mut(id).filter(|lease| lease.owner == *owner && lease.until.is_some())
    }

    /// After [`Tables::may_end`]. `stands`: the decision that ends it is the first one.
    pub(super) fn end_lease(&mut self, end: &LeaseEnd, stands: bool) {
        match &end.owner {
            Some(owner) if stands && end.how == LeaseEnding::HandedOff => {
                if let Some(lease) = self.held(&end.id, owner) {
                    lease.until = None;
                }
            }
            Some(_) => {
                self.leases.remove(&end.id);
            }
            None => {
                // A lease that somebody holds is not what the settlement means.
                if self.leases.get(&end.id).is_some_and(|lease| lease.until.is_none()) {
                    self.leases.remove(&end.id);
                }
            }
        }
    }

    /// Drops at most `room` leases that lapsed before the given time.
    pub(super) fn purge_leases(&mut self, before: Timestamp, room: usize) -> usize {
        let lapsed = |lease: &Lease| lease.until.is_some_and(|until| until < before);
        let old: Vec<MessageId> =
            self.leases.iter().filter(|(_, lease)| lapsed(lease)).map(|(id, _)| id.clone()).take(room).collect();
        for id in &old {
            self.leases.remove(id);
        }
        old.len()
    }
}
