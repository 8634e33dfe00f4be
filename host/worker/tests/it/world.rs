//! A host with scripted handlers on one of three benches.

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use sprag_broker::Engine;
use sprag_core::{
    action::{ActionKind, ActionState},
    effect::{Commit, HistoryKind, HistoryLine},
    ids::{ActionId, Digest, EndpointName, EntityName, EventType, HandlerName, MessageId, SequenceNumber, SessionId},
    message::{Body, Message, Value, property},
    operations::{self, Caller, EventAction, Operations, SkipSession, view},
    outcome::Outcome,
    retry::{Jitter, RetryPolicy, Schedule, Strategy},
    run::{End, UnitOfWork},
    seal::Seal,
    session_state::SessionState,
};
use sprag_runtime::{Anywhere, RunInput, RunOutput};
use sprag_store::{Store, clock, memory::MemoryStore, query};
use sprag_transport::{CommitError, Committer, Held, Part, Peeked, SessionInfo, Transport};
use sprag_worker::{
    EndpointConfig, InboxConfig, Left, Stop, Worker, WorkerConfig,
    handlers::{Handler, Handlers, Resolved},
    operations::{HandlerListing, Host, HostConfig},
    signal::{Counters, Signals},
};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::bench::{Memory, Parts, Served, parts};

/// What the endpoint reads.
pub(crate) const SOURCE: &str = "orders";
/// Where handlers send to.
pub(crate) const OUT: &str = "out";
pub(crate) const ENDPOINT: &str = "billing";
/// The longest that anything which must come may take.
const BOUND: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(3);

/// Makes three tests of each scenario: in memory, on the embedded engine, and on Service Bus.
macro_rules! on_every_bench {
    ($($name:ident)*) => {
        mod memory {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::world::Bench::Memory).await;
                }
            )*
        }

        mod embedded {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::world::Bench::Embedded).await;
                }
            )*
        }

        mod service_bus {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::world::Bench::ServiceBus).await;
                }
            )*
        }
    };
}
pub(crate) use on_every_bench;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bench {
    /// Transport and store in memory, effects one after another.
    Memory,
    /// The embedded engine: one transaction.
    Embedded,
    /// A broker at the other end of an AMQP connection, its parked messages on a queue beside, and a store in memory.
    ServiceBus,
}

/// What the endpoint is like.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) sessions: bool,
    pub(crate) lock: Duration,
    pub(crate) deliveries: u32,
    pub(crate) concurrency: usize,
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) ready: bool,
    /// Who is told of outcomes.
    pub(crate) resolver: Option<&'static str>,
    /// The inbox has the mode `lease`, with leases of this length.
    pub(crate) lease: Option<Duration>,
    /// The inbox is in this other store. In memory only.
    pub(crate) inbox_in: Option<Arc<MemoryStore>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            sessions: true,
            lock: Duration::from_secs(30),
            deliveries: 10,
            concurrency: 8,
            retry: None,
            ready: true,
            resolver: None,
            lease: None,
            inbox_in: None,
        }
    }
}

/// So many runs in all, with a short pause between them.
pub(crate) fn retries(attempts: u32) -> Option<RetryPolicy> {
    let schedule = Schedule {
        strategy: Strategy::Fixed,
        base: Duration::from_millis(40),
        max: None,
        attempts,
        jitter: Jitter::None,
    };
    Some(RetryPolicy { schedule, on: vec![], rules: vec![] })
}

/// What a handler waits at until the test opens it.
#[derive(Clone)]
pub(crate) struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }

    pub(crate) async fn pass(&self) {
        let mut open = self.0.subscribe();
        open.wait_for(|open| *open).await.expect("the gate lives as long as who waits at it");
    }
}

/// Waits until it holds. Looking again and again is no synchronization by time: how often it looks changes nothing but the load.
pub(crate) async fn until(what: &str, holds: impl AsyncFnMut() -> bool) {
    until_within(BOUND, what, holds).await;
}

/// The same for what takes long: thousands of messages on a busy machine.
pub(crate) async fn until_within(bound: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waited = timeout(bound, async {
        while !holds().await {
            sleep(LOOK).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}: not within {bound:?}");
}

pub(crate) type Run = Pin<Box<dyn Future<Output = (End, UnitOfWork)> + Send>>;
type Handle = Arc<dyn Fn(RunInput, u32) -> Run + Send + Sync>;

/// A run that began or ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) event: String,
    pub(crate) session: String,
    pub(crate) attempt: u32,
    pub(crate) ended: bool,
}

/// The handlers of the endpoint: one closure, and what came to it.
pub(crate) struct Script {
    name: HandlerName,
    handle: Handle,
    runs: Mutex<HashMap<String, u32>>,
    pub(crate) log: Mutex<Vec<Entry>>,
    unclaimed: Mutex<HashSet<String>>,
    ready: AtomicBool,
    /// How often it was asked whether it is ready while it was not.
    pub(crate) refusals: AtomicU64,
    changes: watch::Sender<u64>,
}

/// The handler of a script.
struct Scripted(Arc<Script>);

#[async_trait]
impl Handler for Scripted {
    fn name(&self) -> &HandlerName {
        &self.0.name
    }

    fn digest(&self) -> Digest {
        Digest([7; 32])
    }

    async fn run(&self, input: RunInput) -> RunOutput {
        let event = input.event_id.to_string();
        let number = {
            let mut runs = self.0.runs.lock();
            let runs = runs.entry(event.clone()).or_default();
            *runs += 1;
            *runs
        };
        let session = input.session.as_ref().map(ToString::to_string).unwrap_or_default();
        let entry = Entry { event, session, attempt: input.attempt, ended: false };
        self.0.log.lock().push(entry.clone());
        let (end, unit) = (self.0.handle)(input, number).await;
        self.0.log.lock().push(Entry { ended: true, ..entry });
        RunOutput { end, unit, took: Duration::from_millis(1), log_dropped: 0 }
    }
}

/// The script as the worker sees it.
struct Scripts(Arc<Script>);

impl Handlers for Scripts {
    fn resolve(&self, _: &EndpointName, event_type: &EventType) -> Resolved {
        if !self.0.ready.load(Ordering::SeqCst) {
            return Resolved::NotReady;
        }
        if self.0.unclaimed.lock().contains(event_type.as_str()) {
            return Resolved::Nobody;
        }
        Resolved::Handler(Arc::new(Scripted(Arc::clone(&self.0))))
    }

    fn is_ready(&self, _: &EndpointName) -> bool {
        let ready = self.0.ready.load(Ordering::SeqCst);
        if !ready {
            self.0.refusals.fetch_add(1, Ordering::SeqCst);
        }
        ready
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }
}

impl Script {
    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::SeqCst);
        self.changes.send_modify(|changes| *changes += 1);
    }

    pub(crate) fn claim(&self, event_type: &str, claimed: bool) {
        let mut unclaimed = self.unclaimed.lock();
        if claimed {
            unclaimed.remove(event_type)
        } else {
            unclaimed.insert(event_type.to_owned())
        };
    }

    /// Events in the order in which their runs began, once per run.
    pub(crate) fn began(&self) -> Vec<String> {
        self.log.lock().iter().filter(|entry| !entry.ended).map(|entry| entry.event.clone()).collect()
    }

    pub(crate) fn attempts(&self, event: &str) -> Vec<u32> {
        let log = self.log.lock();
        log.iter().filter(|entry| !entry.ended && entry.event == event).map(|entry| entry.attempt).collect()
    }

    pub(crate) fn runs_of(&self, event: &str) -> usize {
        self.attempts(event).len()
    }
}

struct NoListing;

impl HandlerListing for NoListing {
    fn handlers(&self) -> Vec<view::Handler> {
        vec![]
    }

    fn of_endpoint(&self, _: &EndpointName) -> Vec<HandlerName> {
        vec![]
    }

    fn reasons(&self, _: &EndpointName) -> Vec<String> {
        vec![]
    }
}

/// Tells when a commit failed: for tests that crash in the middle of one.
pub(crate) struct Watched {
    inner: Arc<dyn Committer>,
    pub(crate) failures: AtomicU64,
}

#[async_trait]
impl Committer for Watched {
    async fn commit(&self, held: Held<'_>, commit: Commit) -> Result<sprag_store::Written, CommitError> {
        let result = self.inner.commit(held, commit).await;
        if result.is_err() {
            self.failures.fetch_add(1, Ordering::SeqCst);
        }
        result
    }
}

struct Running {
    stop: watch::Sender<bool>,
    task: JoinHandle<Vec<Left>>,
    /// Held by everything that belongs to the host: with the last of it the host is gone.
    alive: Weak<Scripts>,
}

/// One host, its bench and all that happened.
pub(crate) struct World {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) commits: Arc<Watched>,
    pub(crate) script: Arc<Script>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) seal: Seal,
    memory: Option<Memory>,
    engine: Option<Engine>,
    gateway: Option<Served>,
    operations: Host,
    endpoint: EndpointConfig,
    flight: PathBuf,
    running: Mutex<Option<Running>>,
    _dir: tempfile::TempDir,
}

impl World {
    /// A host that runs, whose handler ends at once as the closure says. The number is how often the event ran, this run included.
    pub(crate) async fn start(
        bench: Bench,
        setup: Setup,
        end: impl Fn(&RunInput, u32) -> End + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(bench, setup, move |input, number| {
            let end = end(&input, number);
            async move { (end, UnitOfWork::default()) }
        })
        .await
    }

    /// A host that runs, with a handler that may wait and leave work behind.
    pub(crate) async fn start_with<F>(
        bench: Bench,
        setup: Setup,
        handle: impl Fn(RunInput, u32) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = (End, UnitOfWork)> + Send + 'static,
    {
        let world = Self::build(bench, setup, handle).await;
        world.go().await;
        world
    }

    /// The same, not yet running.
    pub(crate) async fn build<F>(
        bench: Bench,
        setup: Setup,
        handle: impl Fn(RunInput, u32) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = (End, UnitOfWork)> + Send + 'static,
    {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let Parts { transport, store, committer, memory, engine, gateway } = parts(bench, &setup, dir.path()).await;
        let script = Arc::new(Script {
            name: "h".into(),
            handle: Arc::new(move |input, number| Box::pin(handle(input, number))),
            runs: Mutex::default(),
            log: Mutex::default(),
            unclaimed: Mutex::default(),
            ready: AtomicBool::new(setup.ready),
            refusals: AtomicU64::new(0),
            changes: watch::Sender::new(0),
        });
        let seal = Seal::new(b"the hosts' key");
        let commits = Arc::new(Watched { inner: committer, failures: AtomicU64::new(0) });
        let endpoint = EndpointConfig {
            name: ENDPOINT.into(),
            source: SOURCE.into(),
            expected: None,
            store_enqueues: bench == Bench::Embedded,
            sql: (bench == Bench::Embedded).then(|| "embedded".into()),
            is_shared: bench == Bench::ServiceBus,
            transport: Arc::clone(&transport),
            store: Arc::clone(&store),
            committer: Arc::clone(&commits) as Arc<dyn Committer>,
            concurrency: setup.concurrency,
            inbox: Some(InboxConfig { lease: setup.lease, ..InboxConfig::default() }),
            retry: setup.retry.clone(),
            host_ended_limit: 3,
            resolver: setup.resolver.map(Into::into),
            destinations: Arc::new(Anywhere),
            max_body: 1 << 20,
            back_off: Duration::from_millis(20),
        };
        let operations = Host::new(HostConfig {
            endpoints: vec![endpoint.clone()],
            transports: vec![Arc::clone(&transport)],
            handlers: Arc::new(Scripts(Arc::clone(&script))),
            listing: Arc::new(NoListing),
            seal: seal.clone(),
            clock: clock::now,
        });
        Self {
            transport,
            store,
            commits,
            script,
            counters: Arc::default(),
            seal,
            memory,
            engine,
            gateway,
            operations,
            endpoint,
            flight: dir.path().join("flight"),
            running: Mutex::default(),
            _dir: dir,
        }
    }

    pub(crate) fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("the scenario is for the memory bench")
    }

    /// The engine behind the broker, for what another one would do with it.
    pub(crate) fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("the scenario has an engine")
    }

    /// Starts a host as a new process would.
    pub(crate) async fn go(&self) {
        self.try_go().await.expect("the worker starts");
    }

    /// The same, for a host that may be refused.
    pub(crate) async fn try_go(&self) -> Result<(), String> {
        let (sender, stop) = Stop::new();
        let handlers = Arc::new(Scripts(Arc::clone(&self.script)));
        let alive = Arc::downgrade(&handlers);
        let config = WorkerConfig {
            endpoints: vec![self.endpoint.clone()],
            handlers,
            flight: self.flight.clone(),
            seal: self.seal.clone(),
            signals: Signals::default(),
            counters: Arc::clone(&self.counters),
            clock: clock::now,
        };
        let worker = Worker::build(config, stop).await.map_err(|error| error.to_string())?;
        let task = tokio::spawn(worker.run(GRACE));
        let before = self.running.lock().replace(Running { stop: sender, task, alive });
        assert!(before.is_none(), "one host at a time");
        Ok(())
    }

    /// Tells the host to stop, without waiting for it.
    pub(crate) fn tell_stop(&self) {
        self.running.lock().as_ref().expect("a host runs").stop.send_replace(true);
    }

    /// Stops the host and answers with what was left.
    pub(crate) async fn stop(&self) -> Vec<Left> {
        self.tell_stop();
        let Running { stop, task, alive } = self.running.lock().take().expect("a host runs");
        let left = timeout(BOUND, task).await.expect("the host ends").expect("the host does not panic");
        until("every task of the host is gone", async || alive.strong_count() == 0).await;
        drop(stop);
        left
    }

    /// The host is gone from one moment to the next; what it held is free again.
    pub(crate) async fn kill(&self) {
        let running = self.running.lock().take().expect("a host runs");
        running.task.abort();
        assert!(running.task.await.is_err(), "it ran until now");
        until("every task of the host is gone", async || running.alive.strong_count() == 0).await;
        // The engine cannot be opened a second time while this one is there, so on it the locks have to lapse.
        if let Some(memory) = &self.memory {
            memory.transport.lose_all();
        }
    }

    pub(crate) async fn send(&self, messages: Vec<Message>) {
        self.transport.send(&SOURCE.into(), messages).await.expect("the messages are taken");
    }

    /// Sends events of one session, in this order.
    pub(crate) async fn send_events(&self, session: &str, events: &[&str]) {
        self.send(events.iter().map(|id| event(session, id)).collect()).await;
    }

    pub(crate) async fn row(&self, event: &str) -> Option<query::EventRow> {
        let rows = self.store.find_events(event).await.expect("the store answers");
        rows.into_iter().find(|row| row.outcome.event_id.as_str() == event)
    }

    pub(crate) async fn outcome(&self, event: &str) -> Option<Outcome> {
        self.row(event).await.map(|row| row.outcome.outcome)
    }

    pub(crate) async fn until_outcome(&self, event: &str, outcome: Outcome) {
        let mut last = None;
        let reached = timeout(BOUND, async {
            loop {
                last = self.outcome(event).await;
                if last == Some(outcome) {
                    return;
                }
                sleep(LOOK).await;
            }
        });
        if reached.await.is_err() {
            panic!("{event} is {last:?}, not {outcome:?}: {}", self.describe().await);
        }
    }

    pub(crate) async fn until_outcomes(&self, events: &[&str], outcome: Outcome) {
        for event in events {
            self.until_outcome(event, outcome).await;
        }
    }

    pub(crate) async fn until_began(&self, event: &str, times: usize) {
        until(&format!("run {times} of {event}"), async || self.script.runs_of(event) >= times).await;
    }

    /// Nothing waits, nothing is scheduled, nothing is parked, and no session is held.
    pub(crate) async fn until_idle(&self) {
        let idle = timeout(BOUND, async {
            while !self.is_idle().await {
                sleep(LOOK).await;
            }
        });
        if idle.await.is_err() {
            panic!("the host does not come to rest: {}", self.describe().await);
        }
    }

    /// Nothing more will happen by itself to a session that is blocked.
    pub(crate) async fn until_idle_but_blocked(&self, session: &str) {
        until("nothing more happens by itself", async || {
            let info = self.transport.describe(&SOURCE.into()).await.expect("the source is there");
            info.active + info.scheduled == 0
                && self.sessions().await.iter().all(|it| !it.locked)
                && self.state(session).await.block.is_some()
        })
        .await;
    }

    pub(crate) async fn until_released(&self, session: &str) {
        until("the session is given back", async || {
            self.sessions().await.iter().all(|it| it.session.as_str() != session || !it.locked)
        })
        .await;
    }

    pub(crate) async fn is_idle(&self) -> bool {
        let info = self.transport.describe(&SOURCE.into()).await.expect("the source is there");
        info.active + info.scheduled + info.parked == 0
            && (!info.requires_session || self.sessions().await.iter().all(|session| !session.locked))
    }

    pub(crate) async fn sessions(&self) -> Vec<SessionInfo> {
        self.transport.sessions(&SOURCE.into(), None, 1_000).await.expect("sessions are listed")
    }

    /// The state as the transport holds it. Only for sessions that something is in, or that are gone.
    pub(crate) async fn state(&self, session: &str) -> SessionState {
        SessionState::from_bytes(self.raw_state(session).await.as_deref()).expect("what the worker wrote can be read")
    }

    /// Over AMQP an outcome is seen some time before the session's state and its settlement are. Waits a while for those; a scenario that keeps a
    /// session held goes on.
    async fn come_to_rest(&self) {
        let (Some(engine), Some(_)) = (&self.engine, &self.gateway) else { return };
        let at_rest = async {
            let is_held = |info: &SessionInfo| info.locked;
            while engine.sessions(&SOURCE.into(), None, 1_000).await.is_ok_and(|all| all.iter().any(is_held)) {
                sleep(LOOK).await;
            }
        };
        // Either way is fine.
        let _ended = timeout(Duration::from_secs(1), at_rest).await;
    }

    pub(crate) async fn raw_state(&self, session: &str) -> Option<bytes::Bytes> {
        self.come_to_rest().await;
        // Over AMQP the state of a session that is held is its holder's secret; the engine behind knows it.
        let sessions = match &self.engine {
            Some(engine) => engine.sessions(&SOURCE.into(), None, 1_000).await.expect("sessions are listed"),
            None => self.sessions().await,
        };
        let found = sessions.into_iter().find(|info| info.session == SessionId::from(session));
        found.and_then(|info| info.state)
    }

    pub(crate) async fn peek(&self, entity: &str, part: Part) -> Vec<Peeked> {
        let peeked = self.transport.peek(&EntityName::from(entity), part, None, SequenceNumber(0), 1_000).await;
        peeked.expect("peeking works")
    }

    pub(crate) async fn history(&self, event: &str) -> Vec<HistoryLine> {
        self.store.history(&ENDPOINT.into(), &event.into()).await.expect("the store answers")
    }

    pub(crate) async fn history_kinds(&self, event: &str) -> Vec<HistoryKind> {
        self.history(event).await.into_iter().map(|line| line.kind).collect()
    }

    /// Ids in the inbox that are of this event: its own and its stand-ins'.
    pub(crate) async fn is_recorded(&self, id: &str) -> bool {
        let filter = query::InboxFilter { endpoint: Some(ENDPOINT.into()), message_id: Some(MessageId::from(id)) };
        let rows = self.store.inbox(&filter, &query::Page::default()).await.expect("the store answers").items;
        rows.iter().any(|row| row.lease.is_none())
    }

    pub(crate) async fn act(&self, kind: ActionKind, event: &str) -> operations::Result<view::Action> {
        self.wish(kind, event, None).await
    }

    /// As one request, which may be repeated.
    pub(crate) async fn act_with_key(
        &self,
        kind: ActionKind,
        event: &str,
        key: &str,
    ) -> operations::Result<view::Action> {
        let caller = Caller { idempotency_key: Some(key.to_owned()), ..operator() };
        let (event, reason) = (event.to_owned(), Some("told so".into()));
        let wish = EventAction { kind, event, endpoint: None, reason, body: None, again: false };
        self.operations.act(wish, &caller).await
    }

    async fn wish(&self, kind: ActionKind, event: &str, body: Option<Body>) -> operations::Result<view::Action> {
        self.come_to_rest().await;
        let reason = Some("told so".into());
        let again = body.is_some();
        let wish = EventAction { kind, event: event.to_owned(), endpoint: None, reason, body, again };
        self.operations.act(wish, &operator()).await
    }

    /// Runs a resolved event again, as a new one; its body is not kept any more, so the operator gives it.
    pub(crate) async fn act_again(&self, event: &str) -> ActionState {
        let action = self
            .wish(ActionKind::Resubmit, event, Some(Body::Data(b"again"[..].into())))
            .await
            .expect("the wish is accepted");
        self.answered(action.id).await
    }

    /// Acts, and waits until the session's loop has answered.
    pub(crate) async fn act_and_wait(&self, kind: ActionKind, event: &str) -> ActionState {
        let action = match self.act(kind, event).await {
            Ok(action) => action,
            Err(error) => panic!("{kind:?} of {event}: {error}; {}", self.describe().await),
        };
        self.answered(action.id).await
    }

    pub(crate) async fn answered(&self, id: ActionId) -> ActionState {
        let mut state = ActionState::Open;
        let answered = timeout(BOUND, async {
            while state == ActionState::Open {
                sleep(LOOK).await;
                state =
                    self.store.action(id).await.expect("the store answers").map_or(ActionState::Open, |it| it.state);
            }
        });
        if answered.await.is_err() {
            panic!("action {id} is not answered: {}", self.describe().await);
        }
        state
    }

    /// Asks for everything in the session to be skipped.
    pub(crate) async fn skip_session_soon(&self, session: &str) -> ActionId {
        let reason = "all of it".to_owned();
        let wish = SkipSession { endpoint: None, session: session.into(), reason, dry_run: false };
        let skip = self.operations.skip_session(wish, &operator()).await.expect("the skip is accepted");
        skip.action.expect("it is not a dry run")
    }

    pub(crate) async fn skip_session(&self, session: &str) -> ActionState {
        let id = self.skip_session_soon(session).await;
        self.answered(id).await
    }

    pub(crate) fn count(&self, counter: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        counter(&self.counters).load(Ordering::SeqCst)
    }

    /// All that a failed wait may want to know.
    pub(crate) async fn describe(&self) -> String {
        let mut text = format!("runs {:?}\n", self.script.log.lock());
        let page = query::Page { after: None, limit: 1_000 };
        if let Ok(events) = self.store.events(&query::EventFilter::default(), &page).await {
            for row in events.items.iter().take(50) {
                let outcome = &row.outcome;
                text += &format!(
                    "{} {:?} attempts {} {:?} {:?}\n",
                    outcome.event_id, outcome.outcome, outcome.attempts, outcome.reason, outcome.error
                );
            }
        }
        for part in [Part::Active, Part::Scheduled, Part::Parked, Part::DeadLetters] {
            let peeked = self.transport.peek(&SOURCE.into(), part, None, SequenceNumber(0), 50).await;
            for message in peeked.unwrap_or_default() {
                let kind = message.message.message_type();
                text += &format!(
                    "{part:?} {} {:?} {kind:?} deliveries {}\n",
                    message.sequence, message.message.message_id, message.delivery_count
                );
            }
        }
        for session in self.transport.sessions(&SOURCE.into(), None, 20).await.unwrap_or_default() {
            let state = session.state.as_deref().map(String::from_utf8_lossy);
            text += &format!("session {} locked {} {state:?}\n", session.session, session.locked);
        }
        text
    }

    /// Ends the world: the host first, then the engine.
    pub(crate) async fn end(self) {
        if self.running.lock().is_some() {
            assert!(self.stop().await.is_empty(), "nothing is left running");
        }
        if let Some(gateway) = self.gateway {
            drop(gateway.stop);
            gateway.task.await.expect("the gateway does not panic");
        }
        if let Some(engine) = &self.engine {
            engine.close().await;
        }
    }
}

/// How long a stopping host waits for what runs. Only one scenario reaches it.
const GRACE: Duration = Duration::from_secs(2);

fn operator() -> Caller {
    Caller { name: "ada".into(), idempotency_key: None }
}

/// An event under the message id `m-<event>`, of type `Order`.
pub(crate) fn event(session: &str, id: &str) -> Message {
    let mut message = Message {
        message_id: Some(format!("m-{id}").into()),
        session_id: (!session.is_empty()).then(|| session.into()),
        body: Body::Data(bytes::Bytes::from(format!("body of {id}"))),
        ..Message::default()
    };
    message.set_property(property::EVENT_ID, Value::string(id));
    message.set_property(property::EVENT_TYPE_ID, Value::string("Order"));
    message
}

/// An event of another type.
pub(crate) fn event_of(session: &str, id: &str, event_type: &str) -> Message {
    let mut message = event(session, id);
    message.set_property(property::EVENT_TYPE_ID, Value::string(event_type));
    message
}

pub(crate) fn fails(text: &str) -> End {
    End::failed("boom", text)
}
