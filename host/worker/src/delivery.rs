//! The way of one message: take its lease where there are leases, ask the store, decide, run, decide again, commit.

use std::{sync::Arc, time::Duration};

use sprag_core::{
    effect::{Commit, Effect, HistoryKind, HistoryLine, StoreWrite},
    ids::SequenceNumber,
    machine::{self, Answer, Arrival, Claim, Concluded, Ended, Known, Next},
    message::{Delivery, MessageType, Origin, Value, property},
    outcome::{Failure, kind},
    run::{End, UnitOfWork},
    session_state::SessionState,
    time::Timestamp,
};
use sprag_runtime::{RunInput, RunOutput, RunSql};
use sprag_store::{Question, Written};
use sprag_transport::{CommitError, Held, Session, Settlement};
use tracing::{debug, error, warn};

use crate::{
    config::EndpointConfig,
    endpoint::Endpoint,
    flight,
    handlers::{Handler, Resolved},
    lease::{Lease, Taken},
    resolver,
    signal::{Counters, Signal, SignalKind, Told},
    sql::Transaction,
};

/// A session's state as the loop carries it from delivery to delivery.
#[derive(Debug, Clone, Default)]
pub(crate) struct Live {
    pub(crate) state: SessionState,
    /// It differs from what the transport holds.
    pub(crate) changed: bool,
}

/// How far a delivery came.
pub(crate) enum Step {
    /// Decided and settled.
    Settled,
    /// What is parked comes first; then the delivery is to be handled again.
    Drain,
    /// Undecided: it is to be settled like this, and its session to rest for so long.
    GiveBack { settlement: Settlement, pause: Duration },
    /// Nothing can be settled any more.
    LockLost,
}

/// Most repetitions of a run whose state had changed meanwhile (P4).
const MAX_CONFLICTS: u32 = 10;
/// Longest pause before a delivery that ended transiently comes again.
const MAX_BACK_OFF: Duration = Duration::from_secs(30);
/// Kind of the history line of a run whose commit did not happen.
const NOT_COMMITTED: &str = "not-committed";
/// Hops after which a message is taken for a loop (spec 9).
const MAX_HOPS: i64 = 32;

/// Handles one delivery as far as it can be.
pub(crate) async fn handle(
    endpoint: &Endpoint,
    session: Option<&Arc<dyn Session>>,
    live: &mut Live,
    delivery: &Delivery,
) -> Step {
    let arrival = Arrival::read(&endpoint.config.source, delivery, &endpoint.rules.seal);
    Counters::add(&endpoint.counters.received);
    if let Some(why) = arrival.unusable
        && endpoint.rules.inbox
        && arrival.kind == MessageType::Event
    {
        Counters::add(&endpoint.counters.bypasses);
        warn!(endpoint = %endpoint.config.name, place = %arrival.place, "{why}: the inbox cannot recognise a redelivery of it");
    }
    let lease = match Lease::take(endpoint, &arrival).await {
        Taken::Lease(lease) => lease,
        Taken::InProgress { left } => return in_progress(endpoint, &arrival, left),
        Taken::Stopping => return Step::GiveBack { settlement: Settlement::Release, pause: Duration::ZERO },
    };
    let step = handle_leased(endpoint, session, live, delivery, &arrival, &lease).await;
    lease.let_go().await;
    step
}

/// Somebody else is at the event: this copy waits until the lease may have lapsed. It is never completed for that, since the other may fail, and
/// burns no delivery (`reference/nimbus-barewire.md` 5.2).
fn in_progress(endpoint: &Endpoint, arrival: &Arrival, left: Duration) -> Step {
    Counters::add(&endpoint.counters.in_progress);
    let pause = left.max(endpoint.config.back_off);
    debug!(endpoint = %endpoint.config.name, event = %arrival.event_id, ?pause, "in progress elsewhere: put back");
    endpoint.signals.send(|| Signal {
        kind: SignalKind::PutBack { text: "the event is in progress elsewhere".to_owned(), pause },
        endpoint: endpoint.config.name.clone(),
        session: arrival.session.clone(),
        event_id: arrival.event_id.clone(),
        event_type: arrival.event_type.clone(),
        handler: None,
        attempt: 0,
        took: None,
    });
    Step::GiveBack { settlement: Settlement::Release, pause }
}

async fn handle_leased(
    endpoint: &Endpoint,
    session: Option<&Arc<dyn Session>>,
    live: &mut Live,
    delivery: &Delivery,
    arrival: &Arrival,
    lease: &Lease,
) -> Step {
    let Some((answer, action)) = ask(endpoint, arrival).await else {
        return Step::GiveBack { settlement: Settlement::Release, pause: Duration::ZERO };
    };
    let Some(host_ended) = host_ended(endpoint, delivery, arrival, &answer).await else {
        return Step::GiveBack { settlement: Settlement::Release, pause: endpoint.config.back_off };
    };
    let resolved = endpoint.handlers.resolve(&endpoint.config.name, &arrival.event_type);
    let known = Known {
        now: endpoint.now(),
        state: &live.state,
        state_changed: live.changed,
        answer: &answer,
        action: action.as_ref(),
        claim: match &resolved {
            Resolved::Handler(_) => Claim::Handler,
            Resolved::Nobody => Claim::Nobody,
            Resolved::NotReady => Claim::NotReady,
        },
        host_ended,
        lease: lease.known(),
    };
    let way = Way { endpoint, session, delivery, arrival, lease };
    let (step, after) = match (machine::decide(&endpoint.rules, arrival, &known), &resolved) {
        (Next::Commit(commit), _) => {
            let attempt = answer.outcome.as_ref().map_or(0, |stored| stored.attempts);
            match way.commit(&known, commit, attempt, None).await {
                Ok(after) => {
                    if let Err(error) = endpoint.recorder.forget(&endpoint.config.name, noted_as(endpoint, delivery)) {
                        warn!(%error, "the flight recorder could not be written");
                    }
                    (Step::Settled, Some(after))
                }
                Err(error) => (way.not_committed(error).await, None),
            }
        }
        (Next::Drain, _) => (Step::Drain, None),
        (Next::Run { attempt }, Resolved::Handler(handler)) => way.run(&known, handler, attempt).await,
        // A machine that runs without a claim would be a fault of ours; the message waits for a handler either way.
        (Next::PutBack | Next::Run { .. }, _) => {
            (Step::GiveBack { settlement: Settlement::Release, pause: endpoint.config.back_off }, None)
        }
    };
    if let Some(after) = after {
        *live = after;
    }
    step
}

/// The number under which the flight recorder knows a delivery. On a far broker parked copies are on a queue beside, whose numbers are its own.
fn noted_as(endpoint: &Endpoint, delivery: &Delivery) -> SequenceNumber {
    const BESIDE: i64 = 1 << 62;
    match delivery.origin {
        Origin::Parked if endpoint.config.expected.is_some() => SequenceNumber(delivery.sequence.0 | BESIDE),
        _ => delivery.sequence,
    }
}

/// Runs of this delivery that ended with a process, ours or another host's (P23): deliveries that the broker has counted and nobody accounts for.
/// None: it cannot be known now.
async fn host_ended(endpoint: &Endpoint, delivery: &Delivery, arrival: &Arrival, answer: &Answer) -> Option<u32> {
    let ours = endpoint.recorder.ended(&endpoint.config.name, noted_as(endpoint, delivery));
    let before = delivery.delivery_count.saturating_sub(1);
    // Parked copies are not counted by the broker (P19).
    if !endpoint.config.is_shared || before <= ours || answer.decision.is_some() || delivery.origin == Origin::Parked {
        return Some(ours);
    }
    match endpoint.config.store.history(&endpoint.config.name, &arrival.event_id).await {
        Ok(history) => {
            let is_noted = |line: &&HistoryLine| {
                line.message_id == arrival.message_id
                    && line.error.as_ref().is_none_or(|error| error.kind != kind::HOST_ENDED)
            };
            let noted = u32::try_from(history.iter().filter(is_noted).count()).unwrap_or(u32::MAX);
            Some(ours.max(before.saturating_sub(noted)))
        }
        Err(error) => {
            endpoint.gate.log(&endpoint.config.name, &error);
            None
        }
    }
}

/// What the store knows. Waits while the store cannot be reached: a failure is never an answer (spec 4). None when the host stops meanwhile.
async fn ask(endpoint: &Endpoint, arrival: &Arrival) -> Option<(Answer, Option<sprag_core::action::Action>)> {
    let store = &endpoint.config.store;
    let question = Question {
        endpoint: &endpoint.config.name,
        message_id: arrival.message_id.as_ref(),
        source_id: arrival.stands_for.as_ref(),
        event_id: &arrival.event_id,
        inbox: endpoint.rules.inbox,
        outcome: arrival.asks_for_outcome(),
    };
    loop {
        let asked = async {
            let answer = store.check(question.clone()).await?;
            let action = match arrival.action {
                Some(id) => store.action(id).await?,
                None => None,
            };
            Ok::<_, sprag_store::Error>((answer, action))
        };
        match asked.await {
            Ok(known) => {
                endpoint.gate.works();
                return Some(known);
            }
            Err(error) => {
                Counters::add(&endpoint.counters.store_errors);
                if !endpoint.gate.failed(&endpoint.config.name, &error, endpoint.stop.clone()).await {
                    return None;
                }
            }
        }
    }
}

/// One delivery with all that its commits need.
struct Way<'a> {
    endpoint: &'a Endpoint,
    session: Option<&'a Arc<dyn Session>>,
    delivery: &'a Delivery,
    arrival: &'a Arrival,
    lease: &'a Lease,
}

impl Way<'_> {
    /// Runs the handler and commits what came of it.
    async fn run(&self, known: &Known<'_>, handler: &Arc<dyn Handler>, attempt: u32) -> (Step, Option<Live>) {
        let Self { endpoint, delivery, arrival, .. } = self;
        let noted = endpoint.recorder.begin(flight::Run {
            endpoint: &endpoint.config.name,
            sequence: noted_as(endpoint, delivery),
            event_id: &arrival.event_id,
            message_id: arrival.message_id.as_ref(),
        });
        let noted = match noted {
            Ok(noted) => noted,
            Err(error) => {
                error!(%error, "the flight recorder cannot be written: the message waits");
                return (self.give_back(Settlement::Release, None), None);
            }
        };
        let shown = endpoint.in_flight.enter(&endpoint.config.name, arrival);
        let (step, after) = self.run_until_committed(known, handler, attempt).await;
        drop(shown);
        let freed = match step {
            Step::Settled => endpoint.recorder.decided(noted),
            _ => endpoint.recorder.undecided(noted),
        };
        if let Err(error) = freed {
            warn!(%error, "the flight recorder could not be written: a run may be counted as ended with the process");
        }
        (step, after)
    }

    async fn run_until_committed(
        &self,
        known: &Known<'_>,
        handler: &Arc<dyn Handler>,
        attempt: u32,
    ) -> (Step, Option<Live>) {
        let Self { endpoint, arrival, .. } = self;
        for conflicts in 0.. {
            let started_at = endpoint.now();
            Counters::add(&endpoint.counters.runs);
            let transaction = self.transaction();
            let output = handler.run(self.input(attempt, transaction.clone())).await;
            let RunOutput { end, mut unit, took, log_dropped } = output;
            if log_dropped > 0 {
                warn!(handler = %handler.name(), event = %arrival.event_id, log_dropped, "log lines over the handler's limit were dropped");
            }
            let end = match end {
                End::Done | End::Handoff { .. } => self.count_hops(end, &mut unit),
                end => end,
            };
            let end = if conflicts == MAX_CONFLICTS {
                End::transient(format!("what the run read was changed by others {MAX_CONFLICTS} times"))
            } else {
                end
            };
            let known = Known { now: endpoint.now(), ..known.clone() };
            let in_the_way = conflicts < MAX_CONFLICTS && transaction.as_ref().is_some_and(|it| it.had_conflict());
            if let Some(transaction) = &transaction {
                match matches!(end, End::Done | End::Handoff { .. }) && !in_the_way {
                    true => unit.transaction = transaction.id(),
                    // Before anything else is written: on the embedded engine it holds the writer.
                    false => transaction.end(),
                }
            }
            let concluded = match in_the_way {
                true => Err(CommitError::StateConflict),
                false => self.conclude(&known, handler, End::clone(&end), unit, attempt, started_at, took).await,
            };
            // What no write has ended has no effect, and lets go of its locks now. An instance that is kept would keep it, too.
            if let Some(transaction) = &transaction {
                transaction.end();
            }
            match concluded {
                Err(CommitError::StateConflict) => {
                    Counters::add(&endpoint.counters.state_conflicts);
                    // Those who want the same key step out of each other's way: up to 2, 4, 8 … 64 ms.
                    let most = Duration::from_millis(2 << conflicts.min(5));
                    tokio::time::sleep(most.mul_f64(random())).await;
                }
                Err(CommitError::Refused(text)) => {
                    let end = End::failed(kind::COMPONENT_ERROR, text);
                    return match self
                        .conclude(&known, handler, end, UnitOfWork::default(), attempt, started_at, took)
                        .await
                    {
                        Ok(done) => done,
                        Err(error) => (self.not_committed(error).await, None),
                    };
                }
                Err(error) => return (self.not_committed(error).await, None),
                Ok(done) => return done,
            }
        }
        unreachable!("the loop ends with the conflict limit's transient end, which commits nothing")
    }

    #[expect(clippy::too_many_arguments, reason = "the facts of one run, each used once")]
    async fn conclude(
        &self,
        known: &Known<'_>,
        handler: &Arc<dyn Handler>,
        end: End,
        unit: UnitOfWork,
        attempt: u32,
        started_at: Timestamp,
        took: Duration,
    ) -> Result<(Step, Option<Live>), CommitError> {
        let random = if matches!(end, End::Failed { .. }) { random() } else { 0.5 };
        let text = match &end {
            End::Transient { text, .. } => text.clone(),
            _ => String::new(),
        };
        let ended =
            Ended { end, unit, attempt, handler: handler.name(), digest: handler.digest(), started_at, took, random };
        match machine::conclude(&self.endpoint.rules, self.arrival, known, ended) {
            Concluded::Commit(commit) => {
                let after = self.commit(known, commit, attempt, Some((handler, took))).await?;
                Ok((Step::Settled, Some(after)))
            }
            Concluded::PutBack { retry_after, note } => {
                self.note(*note).await;
                let settlement = match self.arrival.origin {
                    Origin::Main => Settlement::Abandon,
                    // Parked copies burn no deliveries (P19).
                    Origin::Parked => Settlement::Release,
                };
                let step = self.give_back(settlement, retry_after);
                self.tell_put_back(&step, text, attempt, Some((handler, took)));
                Ok((step, None))
            }
        }
    }

    async fn commit(
        &self,
        known: &Known<'_>,
        commit: Commit,
        attempt: u32,
        run: Option<(&Arc<dyn Handler>, Duration)>,
    ) -> Result<Live, CommitError> {
        let endpoint = self.endpoint;
        let (state, changed) = machine::after_commit(known, self.arrival, &commit);
        let told = Told::of(&endpoint.signals, &endpoint.config.name, self.arrival, &commit, attempt, run);
        let held = Held { source: &endpoint.config.source, session: self.session, delivery: self.delivery };
        let publishes = endpoint.config.resolver.is_some()
            || commit.effects.iter().any(|effect| match effect {
                Effect::Store(write) => !write.unit.outgoing.is_empty(),
                _ => false,
            });
        let ends_lease =
            commit.effects.iter().any(|effect| matches!(effect, Effect::Store(write) if write.lease.is_some()));
        let has_sql = commit
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::Store(write) if write.unit.transaction.is_some()));
        let told_too = match has_sql && self.resolver_is_gone().await {
            true => None,
            false => self.with_outcome_told(&commit, run.map(|(_, took)| took)),
        };
        let written = match told_too {
            None => endpoint.config.committer.commit(held, commit).await?,
            Some(told) => match endpoint.config.committer.commit(held, told).await {
                // The decision counts more than who is told of it. Were it the run's own message that has nowhere to go, it is refused again. A
                // transaction of SQL is over with its first try; that its resolver is there was looked up before.
                Err(CommitError::Refused(why)) if !has_sql => {
                    let decided = endpoint.config.committer.commit(held, commit).await?;
                    error!(endpoint = %endpoint.config.name, event = %self.arrival.event_id, "the resolver is not told of this outcome: {why}");
                    decided
                }
                other => other?,
            },
        };
        if ends_lease {
            self.lease.has_ended();
        }
        match written {
            Written::Done => {
                told.tell(&endpoint.signals, &endpoint.counters);
                if publishes && !endpoint.config.store_enqueues {
                    endpoint.outbox.send_replace(());
                }
            }
            Written::AlreadyDecided => {
                Counters::add(&endpoint.counters.duplicates);
                debug!(endpoint = %endpoint.config.name, event = %self.arrival.event_id, "decided before: this run's work was dropped");
            }
        }
        Ok(Live { state, changed })
    }

    /// Whether the endpoint's resolver is known not to be there; then it is not told, and that is said.
    async fn resolver_is_gone(&self) -> bool {
        let EndpointConfig { resolver: Some(resolver), transport, name, .. } = &self.endpoint.config else {
            return false;
        };
        match transport.settings(resolver).await {
            Err(error @ sprag_transport::Error::NoSuchEntity(_)) => {
                error!(endpoint = %name, event = %self.arrival.event_id, "the resolver is not told of this outcome: {error}");
                true
            }
            _ => false,
        }
    }

    /// The commit with a message to the endpoint's resolver, when it has one and the commit decides.
    fn with_outcome_told(&self, commit: &Commit, took: Option<Duration>) -> Option<Commit> {
        let config = &self.endpoint.config;
        let resolver = config.resolver.as_ref()?;
        let mut commit = commit.clone();
        let write = commit.effects.iter_mut().find_map(|effect| match effect {
            Effect::Store(write) if write.outcome.is_some() => Some(write),
            _ => None,
        })?;
        let outcome = write.outcome.as_ref()?;
        let told = resolver::told(&config.name, resolver, self.arrival, outcome, took)?;
        write.unit.outgoing.push(told);
        Some(commit)
    }

    /// What to do with a delivery whose commit did not happen, or not whole: it comes again and finds out.
    async fn not_committed(&self, error: CommitError) -> Step {
        let Self { endpoint, arrival, .. } = self;
        if endpoint.config.is_shared {
            self.note_uncommitted(&error).await;
        }
        match error {
            CommitError::LockLost => {
                Counters::add(&endpoint.counters.lock_lost);
                warn!(endpoint = %endpoint.config.name, event = %arrival.event_id, "the lock was lost before the commit: nothing was changed, it comes again");
                Step::LockLost
            }
            error @ CommitError::LeaseLost => {
                Counters::add(&endpoint.counters.lease_lost);
                warn!(endpoint = %endpoint.config.name, event = %arrival.event_id, "the lease was lost before the commit: nothing was changed, it comes again");
                let step = self.give_back(Settlement::Release, None);
                self.tell_put_back(&step, error.to_string(), 0, None);
                step
            }
            error => {
                Counters::add(&endpoint.counters.store_errors);
                endpoint.gate.log(&endpoint.config.name, &error);
                let step = self.give_back(Settlement::Release, None);
                self.tell_put_back(&step, error.to_string(), 0, None);
                step
            }
        }
    }

    /// So that nobody takes this delivery for one whose host has ended (P23).
    async fn note_uncommitted(&self, error: &CommitError) {
        let line = HistoryLine {
            event_id: self.arrival.event_id.clone(),
            kind: HistoryKind::Transient,
            at: self.endpoint.now(),
            message_id: self.arrival.message_id.clone(),
            outcome: None,
            attempt: 0,
            started_at: None,
            took: None,
            handler: None,
            digest: None,
            reason: None,
            error: Some(Failure::new(NOT_COMMITTED, error.to_string())),
            by: None,
        };
        self.note(StoreWrite { history: Some(line), ..Default::default() }).await;
    }

    /// The attempt that decided nothing is shown to the operator, best effort: the store may be what failed.
    async fn note(&self, note: StoreWrite) {
        Counters::add(&self.endpoint.counters.transient);
        if let Err(error) = self.endpoint.config.store.write(&self.endpoint.config.name, note).await {
            self.endpoint.gate.log(&self.endpoint.config.name, &error);
        }
    }

    fn give_back(&self, settlement: Settlement, retry_after: Option<Duration>) -> Step {
        let doubled = 2_u32.saturating_pow(self.delivery.delivery_count.saturating_sub(1).min(16));
        let pause = self.endpoint.config.back_off.saturating_mul(doubled).min(MAX_BACK_OFF);
        Step::GiveBack { settlement, pause: pause.max(retry_after.unwrap_or_default()) }
    }

    fn tell_put_back(&self, step: &Step, text: String, attempt: u32, run: Option<(&Arc<dyn Handler>, Duration)>) {
        let Step::GiveBack { pause, .. } = step else { return };
        self.endpoint.signals.send(|| Signal {
            kind: SignalKind::PutBack { text, pause: *pause },
            endpoint: self.endpoint.config.name.clone(),
            session: self.arrival.session.clone(),
            event_id: self.arrival.event_id.clone(),
            event_type: self.arrival.event_type.clone(),
            handler: run.map(|(handler, _)| handler.name().clone()),
            attempt,
            took: run.map(|(_, took)| took),
        });
    }

    /// For a run's SQL, where the endpoint has any.
    fn transaction(&self) -> Option<Arc<Transaction>> {
        let EndpointConfig { sql, store, name, .. } = &self.endpoint.config;
        let database = Arc::clone(sql.as_ref()?);
        Some(Arc::new(Transaction::new(Arc::clone(store), name.clone(), database)))
    }

    fn input(&self, attempt: u32, transaction: Option<Arc<Transaction>>) -> RunInput {
        let Self { endpoint, arrival, .. } = self;
        RunInput {
            endpoint: endpoint.config.name.clone(),
            message: Arc::clone(&arrival.message),
            message_id: arrival.message_id.clone(),
            event_id: arrival.event_id.clone(),
            event_type: arrival.event_type.clone(),
            session: arrival.session.clone(),
            enqueued_at: arrival.enqueued_at,
            attempt,
            source: arrival.source_text().to_owned(),
            destinations: Arc::clone(&endpoint.config.destinations),
            state: Arc::clone(&endpoint.state),
            sql: transaction.map(|transaction| transaction as Arc<dyn RunSql>),
            max_body: endpoint.config.max_body,
            trace: None,
        }
    }

    /// Every outgoing message has come one handler further; one that has come through too many is a loop.
    fn count_hops(&self, end: End, unit: &mut UnitOfWork) -> End {
        if unit.outgoing.is_empty() {
            return end;
        }
        let hops = self.arrival.message.property(property::HOP_COUNT).and_then(Value::as_i64).unwrap_or(0) + 1;
        if hops > MAX_HOPS {
            *unit = UnitOfWork::default();
            return End::failed(
                kind::COMPONENT_ERROR,
                format!("the message has come through {MAX_HOPS} handlers: it goes in a circle"),
            );
        }
        for outgoing in &mut unit.outgoing {
            outgoing.message.set_property(property::HOP_COUNT, Value::Long(hops));
        }
        end
    }
}

/// Uniform in 0..1.
fn random() -> f64 {
    let mut bytes = [0; 4];
    // Without randomness every retry gets the middle of its jitter.
    if getrandom::fill(&mut bytes).is_err() {
        return 0.5;
    }
    f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0)
}
