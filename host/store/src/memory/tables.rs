//! The maps, and what calls do to them.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Bound,
    time::Duration,
};

use sprag_core::{
    action::{Action, ActionState},
    effect::{ActionResult, ActionWrite, Decision, HistoryLine, OutcomeGuard, OutcomeWrite, StoreWrite},
    ids::{ActionId, EndpointName, EntityName, EventId, LeaseOwner, MessageId, SessionId},
    message::Message,
    run::{StateRead, UnitOfWork, Version},
    time::Timestamp,
};

use crate::{
    ActionRefused, Answer, Error, NewAction, OutboxRow, Question, Retention, StoredOutcome, Versioned, Written,
    query::AuditEntry,
};

#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) endpoints: BTreeMap<EndpointName, Endpoint>,
    pub(super) outbox: BTreeMap<i64, Row>,
    pub(super) actions: BTreeMap<ActionId, Action>,
    by_idempotency_key: HashMap<String, ActionId>,
    pub(super) audit: BTreeMap<i64, (AuditEntry, Vec<ActionId>)>,
    /// One counter for versions and row ids: nothing is ever used twice.
    counter: i64,
}

#[derive(Debug, Default)]
pub(super) struct Endpoint {
    pub(super) inbox: BTreeMap<MessageId, Record>,
    pub(super) leases: BTreeMap<MessageId, Lease>,
    finals: BTreeMap<MessageId, Timestamp>,
    decisions: BTreeMap<MessageId, (Decision, Timestamp)>,
    state: BTreeMap<String, Versioned>,
    pub(super) events: BTreeMap<EventId, Event>,
    pub(super) history: BTreeMap<EventId, Vec<HistoryLine>>,
}

#[derive(Debug)]
pub(super) struct Record {
    pub(super) at: Timestamp,
    /// Tells apart what was recorded at the same moment.
    pub(super) number: i64,
}

#[derive(Debug)]
pub(super) struct Lease {
    pub(super) owner: LeaseOwner,
    /// None: handed off.
    pub(super) until: Option<Timestamp>,
    pub(super) at: Timestamp,
    pub(super) number: i64,
}

#[derive(Debug)]
pub(super) struct Event {
    /// `keep` and `guard` are at their defaults here.
    pub(super) outcome: OutcomeWrite,
    pub(super) message: Option<Message>,
}

#[derive(Debug)]
pub(super) struct Row {
    pub(super) endpoint: EndpointName,
    pub(super) entity: EntityName,
    pub(super) message: Message,
    pub(super) event_id: Option<EventId>,
    pub(super) created_at: Timestamp,
    pub(super) tries: u32,
    pub(super) error: Option<String>,
    pub(super) standing: Standing,
}

/// How an outbox row stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Waiting,
    Claimed { until: Timestamp },
    Failing { again_at: Timestamp },
    Poison,
}

impl Tables {
    pub(super) fn next(&mut self) -> i64 {
        self.counter += 1;
        self.counter
    }

    pub(super) fn check(&self, question: &Question<'_>) -> Answer {
        let Some(endpoint) = self.endpoints.get(question.endpoint) else { return Answer::default() };
        let recorded = |id: Option<&MessageId>| question.inbox && id.is_some_and(|id| endpoint.inbox.contains_key(id));
        let is_final = |id: Option<&MessageId>| id.is_some_and(|id| endpoint.finals.contains_key(id));
        Answer {
            own_recorded: recorded(question.message_id),
            source_recorded: recorded(question.source_id),
            is_final: is_final(question.message_id) || is_final(question.source_id),
            decision: question
                .message_id
                .and_then(|id| endpoint.decisions.get(id))
                .map(|(decision, _)| decision.clone()),
            outcome: endpoint
                .events
                .get(question.event_id)
                .filter(|_| question.outcome)
                .map(|event| StoredOutcome { outcome: event.outcome.outcome, attempts: event.outcome.attempts }),
        }
    }

    pub(super) fn write(&mut self, name: &EndpointName, write: StoreWrite, now: Timestamp) -> Result<Written, Error> {
        if write.lease.as_ref().is_some_and(|end| !self.may_end(name, end)) {
            return Err(Error::LeaseLost);
        }
        let found = self.endpoints.get(name);
        let decided = write
            .decision
            .as_ref()
            .is_some_and(|new| found.is_some_and(|it| it.decisions.contains_key(&new.message_id)));
        let recorded = write.record.first().is_some_and(|id| found.is_some_and(|it| it.inbox.contains_key(id)));
        let event_id = write
            .outcome
            .as_ref()
            .map(|outcome| outcome.event_id.clone())
            .or_else(|| write.history.as_ref().map(|line| line.event_id.clone()));
        let written = if decided || recorded {
            Written::AlreadyDecided
        } else {
            if !write.unit.reads.iter().all(|read| self.still_holds(name, read)) {
                return Err(Error::StateConflict);
            }
            self.apply(name, write.unit, event_id, now);
            Written::Done
        };
        if let Some(end) = write.action {
            self.end_action(end);
        }
        let mut number = self.counter;
        let endpoint = self.endpoints.entry(name.clone()).or_default();
        if let Some(end) = &write.lease {
            endpoint.end_lease(end, written == Written::Done);
        }
        if let Some(line) = write.history {
            endpoint.history.entry(line.event_id.clone()).or_default().push(line);
        }
        if !decided {
            for id in write.record {
                number += 1;
                endpoint.inbox.entry(id).or_insert(Record { at: now, number });
            }
            for id in write.finals {
                endpoint.finals.entry(id).or_insert(now);
            }
            if let Some(decision) = write.decision {
                endpoint.decisions.insert(decision.message_id.clone(), (decision, now));
            }
            if let Some(outcome) = write.outcome {
                endpoint.put_outcome(outcome);
            }
        }
        self.counter = number;
        Ok(written)
    }

    /// The unit of work of a run that succeeded.
    fn apply(&mut self, name: &EndpointName, unit: UnitOfWork, event_id: Option<EventId>, now: Timestamp) {
        for write in unit.writes {
            let version = Version(self.next());
            let state = &mut self.endpoints.entry(name.clone()).or_default().state;
            match write.value {
                Some(value) => state.insert(write.key, Versioned { value, version }),
                None => state.remove(&write.key),
            };
        }
        for outgoing in unit.outgoing {
            let id = self.next();
            let row = Row {
                endpoint: name.clone(),
                entity: outgoing.entity,
                message: outgoing.message,
                event_id: event_id.clone(),
                created_at: now,
                tries: 0,
                error: None,
                standing: Standing::Waiting,
            };
            self.outbox.insert(id, row);
        }
    }

    fn still_holds(&self, name: &EndpointName, read: &StateRead) -> bool {
        match read {
            StateRead::Key { key, version } => {
                self.state_get(name, key).map(|found| found.version).unwrap_or_default() == *version
            }
            StateRead::Scan { prefix, after, limit, found } => {
                let again = self.state_scan(name, prefix, after.as_deref(), *limit);
                again
                    .iter()
                    .map(|(key, found)| (key, found.version))
                    .eq(found.iter().map(|(key, version)| (key, *version)))
            }
        }
    }

    pub(super) fn decision_done(&mut self, name: &EndpointName, message_id: &MessageId) {
        if let Some(endpoint) = self.endpoints.get_mut(name) {
            endpoint.decisions.remove(message_id);
        }
    }

    pub(super) fn state_get(&self, name: &EndpointName, key: &str) -> Option<Versioned> {
        self.endpoints.get(name)?.state.get(key).cloned()
    }

    pub(super) fn state_scan(
        &self,
        name: &EndpointName,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Vec<(String, Versioned)> {
        let Some(endpoint) = self.endpoints.get(name) else { return Vec::new() };
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        endpoint
            .state
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .take(limit as usize)
            .map(|(key, found)| (key.clone(), found.clone()))
            .collect()
    }

    pub(super) fn purge_inbox(&mut self, name: &EndpointName, before: Timestamp, limit: u32) -> u32 {
        let Some(endpoint) = self.endpoints.get_mut(name) else { return 0 };
        let mut old: Vec<_> = endpoint
            .inbox
            .iter()
            .filter(|(_, record)| record.at < before)
            .map(|(id, record)| ((record.at, record.number), id.clone()))
            .collect();
        old.sort_unstable();
        old.truncate(limit as usize);
        for (_, id) in &old {
            endpoint.inbox.remove(id);
        }
        let lapsed = endpoint.purge_leases(before, limit as usize - old.len());
        u32::try_from(old.len() + lapsed).expect("no longer than the limit")
    }

    pub(super) fn purge_tracking(&mut self, keep: &Retention, limit: u32) -> u32 {
        let (bodies, outcomes, audit) =
            (keep.now.before(keep.bodies), keep.now.before(keep.outcomes), keep.now.before(keep.audit));
        let mut room = limit;
        for endpoint in self.endpoints.values_mut() {
            room -= endpoint.purge(bodies, outcomes, room);
        }
        let old = self.audit.iter().filter(|(_, (entry, _))| entry.at < audit);
        let old: Vec<i64> = old.map(|(id, _)| *id).take(room as usize).collect();
        for id in old {
            let (_, actions) = self.audit.remove(&id).expect("it was just found");
            let ended: HashSet<_> = actions
                .into_iter()
                .filter(|id| self.actions.get(id).is_some_and(|action| action.state != ActionState::Open))
                .collect();
            self.actions.retain(|id, _| !ended.contains(id));
            self.by_idempotency_key.retain(|_, id| !ended.contains(id));
            room -= 1;
        }
        limit - room
    }

    pub(super) fn outbox_claim(
        &mut self,
        endpoints: &[EndpointName],
        max: u32,
        lease: Duration,
        now: Timestamp,
    ) -> Vec<OutboxRow> {
        let mut held: HashSet<(EntityName, SessionId)> = HashSet::new();
        let mut claimed = Vec::new();
        for (id, row) in self.outbox.iter_mut().filter(|(_, row)| endpoints.contains(&row.endpoint)) {
            if claimed.len() == max as usize {
                break;
            }
            let place = row.message.session_id.clone().map(|session| (row.entity.clone(), session));
            if place.as_ref().is_some_and(|place| held.contains(place)) {
                continue;
            }
            let due = match row.standing {
                Standing::Waiting => true,
                Standing::Claimed { until } => until <= now,
                Standing::Failing { again_at } => again_at <= now,
                Standing::Poison => false,
            };
            if !due || row.tries > 0 {
                held.extend(place);
            }
            if due {
                row.standing = Standing::Claimed { until: now.after(lease) };
                claimed.push(OutboxRow {
                    id: *id,
                    endpoint: row.endpoint.clone(),
                    entity: row.entity.clone(),
                    message: row.message.clone(),
                    tries: row.tries,
                });
            }
        }
        claimed
    }

    pub(super) fn outbox_sent(&mut self, ids: &[i64]) {
        for id in ids {
            self.outbox.remove(id);
        }
    }

    pub(super) fn outbox_failed(&mut self, id: i64, error: &str, again_at: Option<Timestamp>) {
        let Some(row) = self.outbox.get_mut(&id) else { return };
        row.tries += 1;
        row.error = Some(error.to_owned());
        row.standing = again_at.map_or(Standing::Poison, |again_at| Standing::Failing { again_at });
    }

    pub(super) fn outbox_resolve(&mut self, id: i64, drop: bool, now: Timestamp) -> bool {
        let Some(row) = self.outbox.get_mut(&id).filter(|row| row.standing == Standing::Poison) else { return false };
        if drop {
            self.outbox.remove(&id);
        } else {
            row.standing = Standing::Failing { again_at: now };
        }
        true
    }

    pub(super) fn open_action_on_event(&self, endpoint: &EndpointName, event_id: &EventId) -> Option<&Action> {
        self.actions.values().find(|it| {
            it.state == ActionState::Open && it.endpoint == *endpoint && it.event_id.as_ref() == Some(event_id)
        })
    }

    fn open_action_on_session(&self, endpoint: &EndpointName, session: Option<&SessionId>) -> Option<&Action> {
        self.actions.values().find(|it| {
            it.state == ActionState::Open
                && it.endpoint == *endpoint
                && it.event_id.is_none()
                && it.session.as_ref() == session
        })
    }

    pub(super) fn create_actions(
        &mut self,
        wishes: Vec<NewAction>,
        audit: AuditEntry,
    ) -> Vec<Result<ActionId, ActionRefused>> {
        let answers: Vec<_> = wishes.into_iter().map(|wish| self.create_action(wish, audit.at)).collect();
        let accepted = answers.iter().filter_map(|answer| answer.as_ref().ok().copied()).collect();
        self.add_audit(audit, accepted);
        answers
    }

    fn create_action(&mut self, wish: NewAction, at: Timestamp) -> Result<ActionId, ActionRefused> {
        if let Some(first) = wish.idempotency_key.as_ref().and_then(|key| self.by_idempotency_key.get(key)) {
            return Ok(*first);
        }
        let open = match &wish.event_id {
            Some(event_id) => {
                if !self.endpoints.get(&wish.endpoint).is_some_and(|it| it.events.contains_key(event_id)) {
                    return Err(ActionRefused::NoSuchEvent);
                }
                self.open_action_on_event(&wish.endpoint, event_id)
            }
            None => self.open_action_on_session(&wish.endpoint, wish.session.as_ref()),
        };
        if let Some(open) = open {
            return Err(ActionRefused::Open { id: open.id, kind: open.kind, by: open.by.clone() });
        }
        let id = ActionId(self.next());
        if let Some(key) = wish.idempotency_key {
            self.by_idempotency_key.insert(key, id);
        }
        let action = Action {
            id,
            kind: wish.kind,
            endpoint: wish.endpoint,
            event_id: wish.event_id,
            session: wish.session,
            reason: wish.reason,
            by: wish.by,
            at,
            state: ActionState::Open,
        };
        self.actions.insert(id, action);
        Ok(id)
    }

    fn end_action(&mut self, end: ActionWrite) {
        let Some(action) = self.actions.get_mut(&end.id).filter(|action| action.state == ActionState::Open) else {
            return;
        };
        action.state = match end.result {
            ActionResult::Applied { text } => ActionState::Applied { text, at: end.at },
            ActionResult::Conflict { text } => ActionState::Conflict { text, at: end.at },
        };
    }

    pub(super) fn action(&self, id: ActionId) -> Option<Action> {
        self.actions.get(&id).cloned()
    }

    pub(super) fn action_of_key(&self, key: &str) -> Option<ActionId> {
        self.by_idempotency_key.get(key).copied()
    }

    pub(super) fn add_audit(&mut self, entry: AuditEntry, actions: Vec<ActionId>) {
        let id = self.next();
        self.audit.insert(id, (entry, actions));
    }
}

/// What the new outcome leaves unsaid is taken from the stored one.
fn filled_in(new: OutcomeWrite, stored: &OutcomeWrite) -> OutcomeWrite {
    OutcomeWrite {
        message_id: new.message_id.or_else(|| stored.message_id.clone()),
        source_id: new.source_id.or_else(|| stored.source_id.clone()),
        session: new.session.or_else(|| stored.session.clone()),
        event_type: if new.event_type.as_str().is_empty() { stored.event_type.clone() } else { new.event_type },
        handler: new.handler.or_else(|| stored.handler.clone()),
        digest: new.digest.or(stored.digest),
        enqueued_at: if new.enqueued_at == Timestamp::default() { stored.enqueued_at } else { new.enqueued_at },
        ..new
    }
}

impl Endpoint {
    fn put_outcome(&mut self, new: OutcomeWrite) {
        let stored = self.events.get(&new.event_id);
        let allowed = match (stored, new.guard) {
            (None, _) | (Some(_), OutcomeGuard::Resubmitted) => true,
            (Some(_), OutcomeGuard::IfAbsent) => false,
            (Some(stored), OutcomeGuard::Newer) => {
                !stored.outcome.outcome.is_final() && stored.outcome.attempts <= new.attempts
            }
        };
        if !allowed {
            return;
        }
        let OutcomeWrite { keep, .. } = new;
        let outcome = OutcomeWrite { keep: None, guard: OutcomeGuard::default(), ..new };
        match self.events.entry(outcome.event_id.clone()) {
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(Event { outcome, message: keep.map(|message| *message) });
            }
            std::collections::btree_map::Entry::Occupied(mut place) => {
                let event = place.get_mut();
                event.outcome = filled_in(outcome, &event.outcome);
                if let Some(message) = keep {
                    event.message = Some(*message);
                }
            }
        }
    }

    /// Deletes at most `room` bodies and outcomes that were final before the given times.
    fn purge(&mut self, bodies: Timestamp, outcomes: Timestamp, room: u32) -> u32 {
        let mut gone = 0;
        let mut whole = Vec::new();
        for (id, event) in self.events.iter_mut().filter(|(_, event)| event.outcome.outcome.is_final()) {
            if gone == room {
                break;
            }
            if event.outcome.at < outcomes {
                whole.push(id.clone());
                gone += 1;
            } else if event.outcome.at < bodies && event.message.take().is_some() {
                gone += 1;
            }
        }
        for id in whole {
            self.events.remove(&id);
            self.history.remove(&id);
        }
        // What belongs to no event that is kept: histories of events that never had an outcome, ids that were final, decisions that nobody
        // came back for.
        let events = &self.events;
        gone += drop_some(&mut self.history, room - gone, |id, lines| {
            !events.contains_key(id) && lines.iter().all(|line| line.at < outcomes)
        });
        gone += drop_some(&mut self.finals, room - gone, |_, at| *at < outcomes);
        gone += drop_some(&mut self.decisions, room - gone, |_, (_, at)| *at < outcomes);
        gone
    }
}

/// Drops at most `room` of those that are old, and says how many.
fn drop_some<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>, room: u32, is_old: impl Fn(&K, &V) -> bool) -> u32 {
    let old: Vec<K> =
        map.iter().filter(|(key, value)| is_old(key, value)).map(|(key, _)| key.clone()).take(room as usize).collect();
    for key in &old {
        map.remove(key);
    }
    u32::try_from(old.len()).expect("no more than there is room for")
}
