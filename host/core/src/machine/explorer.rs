//! The machine, explored exhaustively in a small scope.
//!
//! A small world holds what a broker and a store would hold: a queue, scheduled and parked messages, a session's state, inbox, finals,
//! decisions and outcomes. Every step lets the real machine decide, every run may end in each way that is left in the budget, and every commit may be
//! cut by a crash after each of its effects. All reachable worlds are visited; the properties below are checked by name in each.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use super::*;
use crate::{
    action::{Action, ActionKind},
    effect::OutcomeGuard,
    ids::{ActionId, EntityName, EventId, MessageId, SequenceNumber},
    message::{Delivery, LockToken, Message, Value, property},
    retry::{Jitter, Schedule, Strategy},
};

const SOURCE: &str = "q";
/// Far more than any scope below reaches; a step that goes round in circles is found instead of filling the memory.
const MOST_WORLDS: usize = 40_000;
const FAR: Timestamp = Timestamp(1_000);

/// What may still happen. Each use takes one away, so that the world is finite.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Budget {
    crashes: u8,
    failures: u8,
    handoffs: u8,
    /// Skips by an operator while something blocks; one more is always there for the end.
    skips: u8,
    /// Runs whose session is lost without a word: the message is delivered again, and the run's commit comes late.
    lost: u8,
}

#[derive(Debug, Clone, PartialEq)]
struct Queued {
    sequence: i64,
    message: Message,
    deliveries: u32,
}

/// A whole world between two steps.
#[derive(Debug, Clone)]
struct World {
    queue: Vec<Queued>,
    scheduled: Vec<Queued>,
    parked: Vec<(u32, Queued)>,
    state: Option<Vec<u8>>,
    inbox: BTreeSet<MessageId>,
    finals: BTreeSet<MessageId>,
    decisions: BTreeMap<MessageId, Decision>,
    outcomes: BTreeMap<EventId, StoredOutcome>,
    actions: Vec<Action>,
    /// Runs that were committed as done, by event.
    done: Vec<EventId>,
    /// What a holder that has lost its session will still try.
    late: Option<Commit>,
    next_sequence: i64,
    budget: Budget,
}

impl std::fmt::Display for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = |queued: &Queued| {
            let kind = queued.message.message_type().name().trim_end_matches("Request").to_owned();
            let id = queued.message.message_id.as_ref().map_or("", |id| id.as_str());
            format!("{kind}:{}:{:.8}", queued.message.text_property(property::EVENT_ID).unwrap_or(""), id)
        };
        let state = self.state.as_deref().map_or("idle".into(), String::from_utf8_lossy);
        write!(
            f,
            "queue {:?} scheduled {:?} parked {:?} state {state} inbox {:?} finals {:?} decided {:?} outcomes {:?} {:?}",
            self.queue.iter().map(name).collect::<Vec<_>>(),
            self.scheduled.iter().map(name).collect::<Vec<_>>(),
            self.parked.iter().map(|(number, queued)| (*number, name(queued))).collect::<Vec<_>>(),
            self.inbox,
            self.finals,
            self.decisions
                .iter()
                .map(|(id, decision)| (id.as_str(), decision.outcome, decision.attempt))
                .collect::<Vec<_>>(),
            self.outcomes,
            self.budget,
        )
    }
}

/// Whether a crash can fall between the effects of a commit.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Engine {
    /// One transaction: all or nothing.
    Atomic,
    /// One effect after another, the decision kept until all are done.
    Ordered,
}

struct Explorer {
    engine: Engine,
    rules: Rules,
    /// By hash: a clash would hide a world, at odds of one in a hundred million for the scopes below.
    seen: HashSet<u64>,
    /// Events in the order in which they were sent.
    order: Vec<EventId>,
    runs: usize,
    ends: usize,
}

fn event(id: &str, message_id: &str) -> Message {
    let mut message =
        Message { message_id: Some(message_id.into()), session_id: Some("s".into()), ..Default::default() };
    message.set_property(property::EVENT_ID, Value::string(id));
    message.set_property(property::EVENT_TYPE_ID, Value::string("T"));
    message
}

impl World {
    fn new(messages: Vec<Message>, budget: Budget) -> Self {
        let mut world = Self {
            queue: vec![],
            scheduled: vec![],
            parked: vec![],
            state: None,
            inbox: BTreeSet::new(),
            finals: BTreeSet::new(),
            decisions: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            actions: vec![],
            done: vec![],
            late: None,
            next_sequence: 0,
            budget,
        };
        for message in messages {
            world.enqueue(message);
        }
        world
    }

    fn enqueue(&mut self, mut message: Message) {
        let there = |queued: &Queued| queued.message.message_id == message.message_id;
        if self.queue.iter().chain(&self.scheduled).any(there) && message.message_type() != MessageType::Event {
            return;
        }
        let later = message.scheduled_for.take().is_some();
        self.next_sequence += 1;
        let queued = Queued { sequence: self.next_sequence, message, deliveries: 0 };
        if later { self.scheduled.push(queued) } else { self.queue.push(queued) }
    }

    fn session(&self) -> SessionState {
        SessionState::from_bytes(self.state.as_deref()).expect("what the machine wrote can be read")
    }

    fn answer(&self, arrival: &Arrival) -> Answer {
        let ids: Vec<&MessageId> = [&arrival.message_id, &arrival.stands_for].into_iter().flatten().collect();
        Answer {
            own_recorded: arrival.message_id.as_ref().is_some_and(|id| self.inbox.contains(id)),
            source_recorded: arrival.stands_for.as_ref().is_some_and(|id| self.inbox.contains(id)),
            is_final: ids.iter().any(|id| self.finals.contains(*id)),
            decision: arrival.message_id.as_ref().and_then(|id| self.decisions.get(id)).cloned(),
            outcome: self.outcomes.get(&arrival.event_id).cloned(),
        }
    }

    /// One transaction, as stores do it: what was decided before keeps its decision, what was recorded before loses its unit of work.
    fn store(&mut self, write: &StoreWrite) {
        if let Some(answered) = &write.action
            && let Some(action) = self.actions.iter_mut().find(|action| action.id == answered.id)
        {
            action.state = ActionState::Applied { text: String::new(), at: FAR };
        }
        if write.decision.as_ref().is_some_and(|decision| self.decisions.contains_key(&decision.message_id)) {
            return;
        }
        let recorded = write.record.first().is_some_and(|id| self.inbox.contains(id));
        if let Some(outcome) = &write.outcome
            && outcome.outcome == Outcome::Completed
            && !recorded
        {
            assert!(!self.done.contains(&outcome.event_id), "done once: {} in {self}", outcome.event_id);
            self.done.push(outcome.event_id.clone());
        }
        self.inbox.extend(write.record.iter().cloned());
        self.finals.extend(write.finals.iter().cloned());
        if let Some(decision) = &write.decision {
            self.decisions.entry(decision.message_id.clone()).or_insert_with(|| decision.clone());
        }
        if let Some(outcome) = &write.outcome {
            let stored = self.outcomes.get(&outcome.event_id);
            let allowed = match outcome.guard {
                OutcomeGuard::IfAbsent => stored.is_none(),
                OutcomeGuard::Resubmitted => true,
                OutcomeGuard::Newer => {
                    stored.is_none_or(|stored| !stored.outcome.is_final() && stored.attempts <= outcome.attempts)
                }
            };
            if allowed {
                let row = StoredOutcome { outcome: outcome.outcome, attempts: outcome.attempts };
                self.outcomes.insert(outcome.event_id.clone(), row);
            }
        }
    }

    fn is_resolved(&self, event: &EventId) -> bool {
        self.outcomes.get(event).is_some_and(|stored| stored.outcome.is_final())
    }
}

/// Where the delivery that a commit settles sits.
#[derive(Debug, Clone, Copy)]
enum Place {
    Queue,
    Parked,
}

impl Explorer {
    fn new(engine: Engine, order: &[&str]) -> Self {
        let schedule = Schedule {
            strategy: Strategy::Fixed,
            base: Duration::from_millis(1),
            max: None,
            attempts: 2,
            jitter: Jitter::None,
        };
        Self {
            engine,
            rules: Rules {
                endpoint: "e".into(),
                sessions: true,
                inbox: true,
                retry: Some(RetryPolicy { schedule, on: vec![], rules: vec![] }),
                host_ended_limit: 3,
                seal: Seal::new(b"k"),
            },
            seen: HashSet::new(),
            order: order.iter().map(|id| EventId::from(*id)).collect(),
            runs: 0,
            ends: 0,
        }
    }

    /// Visits every world that can be reached.
    fn explore(&mut self, start: World) {
        let mut open = vec![start];
        while let Some(world) = open.pop() {
            let mut hasher = DefaultHasher::new();
            format!("{world:?}").hash(&mut hasher);
            if !self.seen.insert(hasher.finish()) {
                continue;
            }
            assert!(self.seen.len() < MOST_WORLDS, "the scope is finite: {world}");
            let mut next = vec![];
            if !world.queue.is_empty() {
                next.extend(self.deliver(&world));
            }
            // Time passes: what is scheduled next becomes active. Not while the queue is busy, to keep the world small, but for a retry,
            // which may well come while later messages wait.
            if !world.scheduled.is_empty() {
                let mut later = world.clone();
                let due = later.scheduled.remove(0);
                later.queue.push(due);
                next.push(later);
            }
            if let Some(block) =
                world.session().block.filter(|_| world.actions.iter().all(|action| action.state != ActionState::Open))
            {
                let idle = world.queue.is_empty() && world.scheduled.is_empty();
                if world.budget.skips > 0 || idle {
                    assert!(world.actions.len() < 8, "an action resolves what blocks: {world}");
                    let mut acted = world.clone();
                    acted.budget.skips = acted.budget.skips.saturating_sub(1);
                    let handed_off = block.kind == crate::session_state::BlockKind::Handoff;
                    acted.act(
                        if handed_off { ActionKind::HandoffComplete } else { ActionKind::Skip },
                        &block,
                        &self.rules.seal,
                    );
                    next.push(acted);
                }
            }
            if world.late.is_some() {
                let mut later = world.clone();
                self.come_late(&mut later);
                next.push(later);
            }
            if next.is_empty() {
                self.end(&world);
            }
            open.extend(next);
        }
    }

    /// Nothing can happen any more.
    fn end(&mut self, world: &World) {
        self.ends += 1;
        for event in &self.order {
            assert!(world.is_resolved(event), "no message lost: {event} has no final outcome in {world}");
        }
        assert!(world.parked.is_empty(), "no message lost: parked for ever in {world}");
        assert!(world.session().block.is_none(), "a blocked session is always resolvable: {world}");
        assert_eq!(world.state, None, "an idle session costs nothing: {world}");
    }

    /// The head of the queue is delivered, and everything that may come of it.
    fn deliver(&mut self, world: &World) -> Vec<World> {
        let mut world = world.clone();
        world.queue[0].deliveries += 1;
        let state = world.session();
        self.step(world, state, false, Place::Queue, 0)
    }

    fn step(&mut self, world: World, state: SessionState, changed: bool, place: Place, depth: usize) -> Vec<World> {
        assert!(depth < 32, "a drain always ends: {world}");
        let (queued, parked_as, origin) = match place {
            Place::Queue => (&world.queue[0], None, Origin::Main),
            Place::Parked => {
                let (number, queued) = &world.parked[0];
                // A copy says its number itself.
                (queued, (self.engine == Engine::Atomic).then_some(*number), Origin::Parked)
            }
        };
        let delivery = Delivery {
            sequence: SequenceNumber(queued.sequence),
            origin,
            lock: LockToken(1),
            delivery_count: queued.deliveries,
            max_delivery_count: 100,
            enqueued_at: Timestamp(1),
            parked_as,
            id_assigned: false,
            message: Arc::new(queued.message.clone()),
        };
        let arrival = Arrival::read(&EntityName::from(SOURCE), &delivery, &self.rules.seal);
        let answer = world.answer(&arrival);
        let action = arrival.action.and_then(|id| world.actions.iter().find(|action| action.id == id)).cloned();
        let known = Known {
            now: Timestamp(10),
            state: &state,
            state_changed: changed,
            answer: &answer,
            action: action.as_ref(),
            claim: Claim::Handler,
            host_ended: 0,
            lease: Lease::Off,
        };
        match decide(&self.rules, &arrival, &known) {
            Next::Commit(commit) => self.commit(&world, &known, &arrival, commit, place, depth),
            Next::Drain if world.parked.is_empty() => {
                self.step(world.clone(), after_drain(&state), true, Place::Queue, depth + 1)
            }
            Next::Drain => self.step(world.clone(), state.clone(), changed, Place::Parked, depth + 1),
            Next::PutBack => vec![],
            Next::Run { attempt } => {
                self.check_run(&world, &state, &arrival, place);
                let mut next = vec![];
                for (end, budget) in ends(&world.budget) {
                    let mut world = world.clone();
                    world.budget = budget;
                    let handler = HandlerName::from("h");
                    let ended = Ended {
                        end,
                        unit: UnitOfWork::default(),
                        attempt,
                        handler: &handler,
                        digest: Digest([0; 32]),
                        started_at: Timestamp(9),
                        took: Duration::ZERO,
                        random: 0.5,
                    };
                    match conclude(&self.rules, &arrival, &known, ended) {
                        Concluded::Commit(commit) => {
                            if world.budget.lost > 0 && world.late.is_none() && matches!(place, Place::Queue) {
                                let mut lost = world.clone();
                                lost.budget.lost -= 1;
                                lost.late = Some(commit.clone());
                                next.push(lost);
                            }
                            next.extend(self.commit(&world, &known, &arrival, commit, place, depth))
                        }
                        Concluded::PutBack { .. } => next.push(world),
                    }
                }
                next
            }
        }
    }

    /// What must hold whenever a handler is about to run.
    fn check_run(&mut self, world: &World, state: &SessionState, arrival: &Arrival, place: Place) {
        self.runs += 1;
        for id in [&arrival.message_id, &arrival.stands_for].into_iter().flatten() {
            assert!(!world.inbox.contains(id), "no recorded message run: {id} in {world}");
            assert!(!world.finals.contains(id), "no final message run: {id} in {world}");
        }
        let before = self.order.iter().take_while(|event| **event != arrival.event_id);
        for event in before {
            assert!(
                world.is_resolved(event),
                "order kept: {} runs before {event} is resolved in {world}",
                arrival.event_id
            );
        }
        let waits = world.parked.iter().any(|(_, parked)| {
            let id = parked.message.event_id(|| "?".into());
            id != arrival.event_id && !world.is_resolved(&id)
        });
        let owns = state.is_blocked_by(&arrival.event_id);
        assert!(
            matches!(place, Place::Parked) || !waits || owns,
            "nothing parked overtaken: {} in {world}",
            arrival.event_id
        );
    }

    /// The commit whole, and cut after each effect while a crash is left.
    fn commit(
        &mut self,
        world: &World,
        known: &Known<'_>,
        arrival: &Arrival,
        commit: Commit,
        place: Place,
        depth: usize,
    ) -> Vec<World> {
        let mut next = vec![];
        if world.budget.crashes > 0 {
            let cuts = match self.engine {
                Engine::Atomic => vec![0, commit.effects.len()],
                Engine::Ordered => (0..=commit.effects.len()).collect(),
            };
            for cut in cuts {
                let mut cut_world = world.clone();
                cut_world.budget.crashes -= 1;
                self.apply(&mut cut_world, &commit.effects[..cut], place);
                next.push(cut_world);
            }
        }
        let mut whole = world.clone();
        self.apply(&mut whole, &commit.effects, place);
        if let Some(id) = &arrival.message_id {
            whole.decisions.remove(id);
        }
        let (state, changed) = after_commit(known, arrival, &commit);
        match place {
            Place::Queue => next.push(whole),
            // The drain goes on under the same lock, for the delivery at the head of the queue.
            Place::Parked => next.extend(self.step(whole, state, changed, Place::Queue, depth + 1)),
        }
        next
    }

    /// The commit of a holder that has lost its session: what needs no lock takes place, and the rest fails.
    fn come_late(&self, world: &mut World) {
        let commit = world.late.take().expect("the caller has seen it");
        let needs_lock = |effect: &Effect| !matches!(effect, Effect::Store(_) | Effect::Enqueue(_));
        let mut end = commit.effects.iter().position(needs_lock).unwrap_or(commit.effects.len());
        if let Some(Effect::Store(write)) = commit.effects.first()
            && let Some(decision) = &write.decision
            && world.decisions.get(&decision.message_id).is_some_and(|first| first != decision)
        {
            // Another decision was there first: a committer carries nothing more of this one out.
            end = 1;
        }
        self.apply(world, &commit.effects[..end], Place::Queue);
    }

    fn apply(&self, world: &mut World, effects: &[Effect], place: Place) {
        let mut parked = false;
        for effect in effects {
            match effect {
                Effect::Store(write) => world.store(write),
                Effect::Enqueue(message) => world.enqueue((**message).clone()),
                Effect::CancelScheduled(id) => {
                    world.scheduled.retain(|queued| queued.message.message_id.as_ref() != Some(id));
                }
                Effect::SetState(state) => world.state = state.to_bytes(),
                Effect::Park { sequence, copy } => {
                    let head = world.queue[0].clone();
                    match self.engine {
                        Engine::Atomic => {
                            world.queue.remove(0);
                            parked = true;
                            world.parked.push((*sequence, Queued { deliveries: 0, ..head }));
                        }
                        Engine::Ordered => {
                            world.next_sequence += 1;
                            let message = (**copy).clone();
                            let queued = Queued { sequence: world.next_sequence, message, deliveries: 0 };
                            world.parked.push((*sequence, queued));
                        }
                    }
                    world.parked.sort_by_key(|(number, _)| *number);
                }
                Effect::Complete | Effect::DeadLetter { .. } => match place {
                    Place::Queue if parked => {}
                    Place::Queue => drop(world.queue.remove(0)),
                    Place::Parked => drop(world.parked.remove(0)),
                },
            }
        }
    }
}

impl World {
    fn act(&mut self, kind: ActionKind, block: &crate::session_state::Block, seal: &Seal) {
        let id = ActionId(i64::try_from(self.actions.len()).expect("few") + 1);
        let mut control = event(block.event_id.as_str(), &format!("action-{id}"));
        control.set_property(property::MESSAGE_TYPE, Value::string(kind.message_type().name()));
        control.set_property(property::ACTION_ID, Value::Long(id.0));
        if let Some(source) = &block.source_id {
            control.set_property(property::INBOX_MESSAGE_ID, Value::string(source.as_str()));
        }
        seal.sign(&mut control);
        self.actions.push(Action {
            id,
            kind,
            endpoint: "e".into(),
            event_id: Some(block.event_id.clone()),
            session: Some("s".into()),
            reason: Some("r".into()),
            by: "op".into(),
            at: Timestamp(1),
            state: ActionState::Open,
        });
        self.enqueue(control);
    }
}

/// The ways in which a run may end, with what is left after.
fn ends(budget: &Budget) -> Vec<(End, Budget)> {
    let mut ends = vec![(End::Done, budget.clone())];
    if budget.failures > 0 {
        ends.push((End::failed("x", "boom"), Budget { failures: budget.failures - 1, ..budget.clone() }));
    }
    if budget.handoffs > 0 {
        let end = End::Handoff { reason: "job".into(), external_id: None, expected_by: Some(FAR) };
        ends.push((end, Budget { handoffs: budget.handoffs - 1, ..budget.clone() }));
    }
    ends
}

fn explored(engine: Engine, messages: Vec<Message>, order: &[&str], budget: Budget) {
    let mut explorer = Explorer::new(engine, order);
    explorer.explore(World::new(messages, budget));
    println!("{engine:?}: {} worlds, {} runs, {} ends", explorer.seen.len(), explorer.runs, explorer.ends);
    assert!(explorer.seen.len() > 100 && explorer.ends > 0, "the scope is not trivial");
}

/// Two events and a duplicate of the first, one failure with its retry, a skip, one crash: after every effect.
#[test]
fn two_events_a_duplicate_a_failure_a_skip_and_a_crash() {
    for engine in [Engine::Atomic, Engine::Ordered] {
        let messages = vec![event("A", "a"), event("A", "a"), event("B", "b")];
        explored(engine, messages, &["A", "B"], Budget { crashes: 1, failures: 1, handoffs: 0, skips: 1, lost: 0 });
    }
}

#[test]
fn failures_of_both_events_and_two_crashes() {
    for engine in [Engine::Atomic, Engine::Ordered] {
        let messages = vec![event("A", "a"), event("B", "b")];
        explored(engine, messages, &["A", "B"], Budget { crashes: 2, failures: 2, handoffs: 0, skips: 1, lost: 0 });
    }
}

#[test]
fn a_handoff_a_failure_and_a_crash() {
    for engine in [Engine::Atomic, Engine::Ordered] {
        let messages = vec![event("A", "a"), event("B", "b"), event("A", "a")];
        explored(engine, messages, &["A", "B"], Budget { crashes: 1, failures: 1, handoffs: 1, skips: 1, lost: 0 });
    }
}

#[test]
fn three_events_and_a_retry_that_fails_again() {
    for engine in [Engine::Atomic, Engine::Ordered] {
        let messages = vec![event("A", "a"), event("B", "b"), event("C", "c")];
        explored(
            engine,
            messages,
            &["A", "B", "C"],
            Budget { crashes: 1, failures: 2, handoffs: 0, skips: 0, lost: 0 },
        );
    }
}

/// A07, A13, P5: a session is lost in the middle of a run and nobody is told; the next holder serves its messages, and the first one's
/// commit comes at any later moment. Only where effects happen one after another: one transaction looks at the lock itself.
#[test]
fn a_commit_that_comes_after_its_session_was_lost() {
    for skips in [0, 1] {
        let messages = vec![event("A", "a"), event("B", "b")];
        let budget = Budget { crashes: 0, failures: 2, handoffs: 0, skips, lost: 1 };
        explored(Engine::Ordered, messages, &["A", "B"], budget);
    }
}
