//! Three hosts: one with the embedded broker, and two that share its sessions as clients over AMQP and keep their records in one database.
//!
//! The two are killed and frozen in turn while messages come; afterwards the books of the handler (`guests/test/ledger`) say whether every event
//! counted once, in order, whole or not at all. `SPRAG_SEED` repeats the choices, `SPRAG_SOAK=1` goes on ten times as long.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::{Duration, Instant},
};

use parking_lot::RwLock;
use serde_json::{Value, json};
use sprag_core::{effect::HistoryKind, outcome::Outcome};
use sprag_databases::{
    postgres::{Options, PostgresStore},
    test_server::{Database, fresh_database},
};
use sprag_store::{Store, query};
use sprag_tests::{
    host::{Api, Host, PATIENCE, Place, pass, until},
    ledger::{Books, Sent, is_skipped, recorded},
    random::{self, Random},
};

/// As the queues have it.
const LOCK: Duration = Duration::from_secs(5);
const SESSIONS: usize = 6;
const KEY: &str = "the key of all hosts";

const BROKER: &str = r#"
[host]
console = "127.0.0.1:0"

[embedded]
listen = "127.0.0.1:0"
administration = "off"
keys = [{ name = "hosts", key = "file:key.txt" }]

[[queue]]
name = "work"
requires_session = true
lock_duration = "5s"
max_delivery_count = 2000

[[queue]]
name = "work.deferred"
requires_session = true
lock_duration = "5s"
max_delivery_count = 2000

[[queue]]
name = "tally"
requires_session = true
lock_duration = "5s"
max_delivery_count = 2000

[[queue]]
name = "tally.deferred"
requires_session = true
lock_duration = "5s"
max_delivery_count = 2000
"#;

const CLIENT: &str = r#"
[host]
console = "127.0.0.1:0"
control_key = "file:key.txt"
shutdown_grace = "20s"

[servicebus.a]
connection = "file:connection.txt"

[store.main]
kind = "postgres"
url = "file:database.txt"

[[endpoint]]
name = "work"
source = { queue = "work", transport = "a", lock_duration = "5s", max_delivery_count = 2000 }
store = "main"
handlers = ["ledger"]
inbox = { mode = "record" }
retry = { strategy = "fixed", base = "20ms", attempts = 2, jitter = "none", on = ["once"] }
publish = ["tally"]
host_ended_limit = 100
concurrency = 8

[[endpoint]]
name = "tally"
source = { queue = "tally", transport = "a", lock_duration = "5s", max_delivery_count = 2000 }
store = "main"
handlers = ["ledger"]
inbox = { mode = "record" }
publish = []
host_ended_limit = 100
concurrency = 8

[handler.ledger]
grant = ["state"]
"#;

/// The host with the broker, and the places of the other two.
struct World {
    broker: Host,
    database: Database,
    runtime: tokio::runtime::Runtime,
    _broker: Place,
    clients: [Place; 2],
}

impl World {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("threads");
        let database = runtime.block_on(fresh_database());
        let place = Place::new(BROKER, &[]);
        fs::write(place.path().join("key.txt"), KEY).expect("written");
        let broker = place.run();
        let file = fs::read_to_string(place.path().join(".sprag/host.json")).expect("the host has written it");
        let file: Value = serde_json::from_str(&file).expect("it is JSON");
        let connection = format!(
            "Endpoint=sb://{};SharedAccessKeyName=hosts;SharedAccessKey={KEY};UseDevelopmentEmulator=true",
            file["amqp"].as_str().expect("it serves AMQP")
        );
        let client = || {
            let place = Place::new(CLIENT, &[("test-ledger", "ledger")]);
            for (name, text) in [("key.txt", KEY), ("connection.txt", &connection), ("database.txt", database.url())] {
                fs::write(place.path().join(name), text).expect("written");
            }
            place
        };
        Self { clients: [client(), client()], database, runtime, broker, _broker: place }
    }

    fn send(&self, session: usize, events: &[Sent]) {
        let messages: Vec<Value> = events.iter().map(|event| event.message(session)).collect();
        self.broker.send("work", &messages);
    }
}

/// Who can be asked now.
#[derive(Default)]
struct Shared {
    api: RwLock<Option<Api>>,
    enough: AtomicBool,
    closed: AtomicBool,
}

impl Shared {
    /// Asks until a host has answered. None: it is over.
    fn asked(&self, ask: impl Fn(&Api) -> Result<sprag_tests::host::Answer, ureq::Error>) -> Option<Value> {
        while !self.closed.load(SeqCst) {
            let api = self.api.read().clone();
            match api.as_ref().map(&ask) {
                Some(Ok(answer)) if answer.status < 300 => return Some(answer.json),
                // Frozen, stopping, or it asked the broker at a bad moment.
                Some(Ok(answer)) => assert!(matches!(answer.status, 404 | 503), "{answer:?}"),
                Some(Err(_)) | None => {}
            }
            pass(Duration::from_millis(5));
        }
        None
    }
}

/// Resolves what blocks a session, one way or the other.
fn operate(shared: &Shared) -> Option<()> {
    loop {
        let failed = shared.asked(|api| api.get("/api/events?endpoint=work&outcome=failed&limit=1000"))?;
        for event in failed["items"].as_array().expect("a listing") {
            if event["error"]["kind"] != "never" {
                continue;
            }
            let event = event["event_id"].as_str().expect("an id").to_owned();
            let (verb, input) = match is_skipped(&event) {
                true => ("skip", json!({ "endpoint": "work", "reason": "given up" })),
                false => ("resubmit", json!({ "endpoint": "work", "body": "ok" })),
            };
            // One key per event: what was accepted before a kill is not accepted a second time.
            shared.asked(|api| {
                let answer =
                    api.post(&format!("/api/events/{event}/{verb}?wait=0s"), &format!("operator-{event}"), &input)?;
                // A conflict: it is no longer as it was when it was listed.
                Ok(if answer.status == 409 { sprag_tests::host::Answer { status: 200, ..answer } } else { answer })
            })?;
        }
        pass(Duration::from_millis(20));
    }
}

struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.enough.store(true, SeqCst);
        self.0.closed.store(true, SeqCst);
    }
}

/// Spec 8, A27, P5, P33: whoever is killed or frozen, the order of each session is kept, nothing is lost, and what is recorded does not run again.
#[test]
fn two_hosts_share_sessions_and_are_killed_in_turn() {
    let turns = if std::env::var_os("SPRAG_SOAK").is_some() { 300 } else { 24 };
    let seed = random::seed();
    eprintln!("SPRAG_SEED={seed}, {turns} turns");
    let mut random = Random::new(seed);
    let world = World::new();
    let shared = Shared::default();
    let began = Instant::now();
    let (sent, inbox) = std::thread::scope(|scope| {
        let seeds: Vec<Random> = (0..SESSIONS).map(|_| Random::new(random.word())).collect();
        let (shared, world) = (&shared, &world);
        let closing = Closing(shared);
        let senders: Vec<_> = seeds
            .into_iter()
            .enumerate()
            .map(|(session, random)| scope.spawn(move || send(shared, world, session, random)))
            .collect();
        let operator = scope.spawn(move || operate(shared));
        let mut hosts = [Some(world.clients[0].run()), Some(world.clients[1].run())];
        for turn in 0..turns {
            let (victim, other) = (turn % 2, 1 - turn % 2);
            *shared.api.write() = hosts[other].as_ref().map(Host::api);
            pass(Duration::from_millis(100 + random.below(900)));
            let host = hosts[victim].take().expect("it runs");
            if random.one_in(6) {
                // Frozen past its locks: what it does when it goes on must not count (P5).
                host.signal(libc::SIGSTOP).expect("it is there");
                pass(LOCK + Duration::from_millis(500 + random.below(1_500)));
                host.signal(libc::SIGCONT).expect("it is there");
                hosts[victim] = Some(host);
            } else {
                host.kill();
                hosts[victim] = Some(world.clients[victim].run());
            }
        }
        eprintln!("{turns} turns in {:.0?}", began.elapsed());
        shared.enough.store(true, SeqCst);
        let sent: Vec<Vec<Sent>> =
            senders.into_iter().map(|sender| sender.join().expect("the sender did not panic")).collect();
        let host = hosts[0].as_ref().expect("it runs");
        *shared.api.write() = Some(host.api());
        let settling = Instant::now();
        while waiting(&world.broker) + open(host) > 0 {
            assert!(
                settling.elapsed() < Duration::from_secs(120),
                "not settled: {:?} {:?} {:?}\n{}",
                world.broker.get("/api/peek?entity=work&limit=10"),
                host.items("/api/sessions"),
                host.items("/api/events?outcome=failed"),
                host.log(),
            );
            pass(Duration::from_millis(100));
        }
        drop(closing);
        operator.join().expect("the operator did not panic");
        let inbox = recorded(host);
        for host in hosts.into_iter().flatten() {
            assert_eq!(host.stop(), Some(0), "with nothing to do, a host stops at once");
        }
        (sent, inbox)
    });
    let books = books(&world, inbox);
    for (session, events) in sent.iter().enumerate() {
        books.check_session(session, events);
    }
    let count = sent.iter().map(Vec::len).sum();
    books.check_whole(count);
    eprintln!("{count} events, {} runs, {:.0?} in all", books.runs, began.elapsed());
}

/// Sends the events of one session, and some of them once more.
fn send(shared: &Shared, world: &World, session: usize, mut random: Random) -> Vec<Sent> {
    let mut sent: Vec<Sent> = Vec::new();
    while !shared.enough.load(SeqCst) {
        let first = sent.len();
        for _ in 0..1 + random.below(3) {
            sent.push(Sent::random(session, sent.len(), &mut random));
        }
        world.send(session, &sent[first..]);
        if random.one_in(4) {
            let again = random.below(sent.len() as u64) as usize;
            world.send(session, &sent[again..=again]);
        }
        pass(Duration::from_millis(50 + random.below(300)));
    }
    sent
}

/// Messages at the broker that somebody still has to do something about.
fn waiting(broker: &Host) -> usize {
    let of =
        |entity: &str, part: &str| broker.items(&format!("/api/peek?entity={entity}&part={part}&limit=1000")).len();
    ["work", "work.deferred", "tally", "tally.deferred"]
        .iter()
        .map(|entity| of(entity, "active") + of(entity, "scheduled"))
        .sum()
}

/// Events that are not at their end, and messages that have not left.
fn open(host: &Host) -> usize {
    let open = ["failed", "pending", "deferred"]
        .iter()
        .map(|outcome| host.items(&format!("/api/events?outcome={outcome}&limit=1000")).len());
    open.sum::<usize>() + host.items("/api/outbox").len()
}

/// What the database holds, read by a store of the test's own.
fn books(world: &World, inbox: BTreeSet<String>) -> Books {
    let mut books = world.runtime.block_on(async {
        let store = PostgresStore::open(Options::new(world.database.url())).await.expect("the database answers");
        let mut books = Books { inbox, ..Books::default() };
        for endpoint in ["work", "tally"] {
            let mut after: Option<String> = None;
            loop {
                let found = store.state_scan(&endpoint.into(), "", after.as_deref(), 1_000).await.expect("read");
                let Some((last, _)) = found.last() else { break };
                after = Some(last.clone());
                for (key, versioned) in found {
                    let value = String::from_utf8(versioned.value.to_vec()).expect("text");
                    books.state.insert((endpoint.to_owned(), key), value);
                }
            }
        }
        let mut page = query::Page { after: None, limit: 1_000 };
        loop {
            let found = store.events(&query::EventFilter::default(), &page).await.expect("read");
            for row in found.items {
                let event = row.outcome.event_id.clone();
                let history = store.history(&row.endpoint, &event).await.expect("read");
                let runs: Vec<_> = history.iter().filter(|line| line.kind == HistoryKind::Run).collect();
                books.runs += runs.len();
                let completed = runs.iter().position(|line| line.outcome == Some(Outcome::Completed));
                if completed.is_some_and(|at| at + 1 < runs.len()) {
                    books.reruns.push(event.to_string());
                }
                let key = (row.endpoint.to_string(), event.to_string());
                books.outcomes.entry(key).or_default().push(row.outcome.outcome);
            }
            let Some(next) = found.next else { break };
            page.after = Some(next);
        }
        books.outbox = store.outbox(&query::Page::default()).await.expect("read").items.len();
        books
    });
    books.left = waiting(&world.broker);
    books.dead = world.broker.items("/api/dead-letters?limit=1000").len();
    books
}

/// The run of an event has begun in the host of this folder: its flight recorder has noted it.
fn has_begun(place: &Path, event: &str) -> bool {
    let noted = fs::read(place.join(".sprag/flight")).unwrap_or_default();
    noted.windows(event.len()).any(|bytes| bytes == event.as_bytes())
}

/// `sprag check` looks at namespace and database, and changes nothing there.
#[test]
fn a_check_changes_nothing() {
    let world = World::new();
    let checked = world.clients[0].sprag(&["check", "--json"]);
    let found = checked.json();
    let of = |code: &str| found.as_array().expect("findings").iter().filter(|it| it["code"] == code).count();
    assert_eq!(of("SPR0504"), 1, "that its tables are made at the start is said: {found}");
    let tables = world.runtime.block_on(async {
        let client = world.database.client().await;
        let rows = client.query("SELECT tablename FROM pg_tables WHERE tablename LIKE 'sprag%'", &[]).await;
        rows.expect("the database answers").len()
    });
    assert_eq!(tables, 0, "no table was made");
    assert_eq!(world.clients[0].run().stop(), Some(0), "a start makes them");
    assert!(!world.clients[0].sprag(&["check"]).done().stderr.contains("SPR0504"));
}

/// A27: the session of a host that is killed is another's within the lock's time and 2 s. A host that is only frozen still waits for a session, by
/// all that the broker can know: when its lock lapses, the session may be handed to it once more, and moves after a second lock.
#[test]
fn a_session_moves_to_the_other_host() {
    for (signal, name) in [(libc::SIGKILL, "killed"), (libc::SIGSTOP, "frozen")] {
        let world = World::new();
        let first = world.clients[0].run();
        world.send(
            0,
            &[Sent { id: "long".into(), body: "ok+1500".into() }, Sent { id: "next".into(), body: "ok".into() }],
        );
        until("the run has begun", PATIENCE, || has_begun(world.clients[0].path(), "long").then_some(()));
        let second = world.clients[1].run();
        first.signal(signal).expect("it is there");
        let at = Instant::now();
        second.outcome("next", "completed");
        let took = at.elapsed();
        let locks = if signal == libc::SIGKILL { 1 } else { 2 };
        let bound = LOCK * locks + Duration::from_secs(2) + Duration::from_millis(1_500);
        eprintln!("{name}: both events were done by the other host after {took:.1?} (lock {LOCK:?}, the run 1.5 s)");
        // The bound is the promise's; twice that is for a machine that does much else beside.
        assert!(took < bound * 2, "{name}: {took:?}");
        if signal == libc::SIGSTOP {
            first.signal(libc::SIGCONT).expect("it is there");
            assert_eq!(first.stop(), Some(0), "it lets go of what it has lost");
        }
        let long = second.get("/api/events/long");
        assert_eq!(long["outcome"], "completed", "{long}");
        assert_eq!(second.stop(), Some(0));
        let books = books(&world, BTreeSet::new());
        let counted = |key: &str| books.state.get(&("work".to_owned(), key.to_owned())).cloned();
        assert_eq!(counted("event/long").as_deref(), Some("1"), "{name}: it counted once");
        assert_eq!(counted("log/s0").as_deref(), Some("long\nnext\n"), "{name}: in order");
        let outcomes: BTreeMap<_, _> = books.outcomes;
        assert_eq!(outcomes.keys().filter(|(endpoint, _)| endpoint == "work").count(), 2);
    }
}
