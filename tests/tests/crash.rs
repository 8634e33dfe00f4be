//! The process is killed at random points while it works; afterwards what it did is compared with what it promised.
//!
//! The handler (`guests/test/ledger`) keeps books in `state`: which event it handled, in which order per session, how many; and it publishes a
//! message per run to a second endpoint that keeps books too. A run that counted twice, a commit that was half there or a message that
//! overtook another shows in them. `SPRAG_SEED` repeats the choices, `SPRAG_SOAK=1` kills ten times as often.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};
use sprag_core::outcome::Outcome;
use sprag_tests::{
    host::{Api, Place, pass},
    ledger::{Books, Sent, is_skipped, recorded},
    random::{self, Random},
};

const SESSIONS: usize = 6;
/// How long the host may take for what is left when nobody kills it any more.
const SETTLES: Duration = Duration::from_secs(120);

const CONFIG: &str = r#"
[embedded]
listen = "off"
administration = "off"

[host]
console = "127.0.0.1:0"
shutdown_grace = "20s"

[[queue]]
name = "work"
requires_session = true
max_delivery_count = 2000

[[queue]]
name = "tally"
requires_session = true
max_delivery_count = 2000

[[endpoint]]
name = "work"
source = { queue = "work" }
handlers = ["ledger"]
inbox = { mode = "record" }
retry = { strategy = "fixed", base = "20ms", attempts = 2, jitter = "none", on = ["once"] }
publish = ["tally"]
host_ended_limit = 100
concurrency = 8

[[endpoint]]
name = "tally"
source = { queue = "tally" }
handlers = ["ledger"]
inbox = { mode = "record" }
publish = []
host_ended_limit = 100
concurrency = 8

[handler.ledger]
grant = ["state"]
"#;

/// What the threads share.
struct Shared {
    /// The host that runs now, when it can be asked.
    api: RwLock<Option<Api>>,
    /// Which host it is.
    life: AtomicUsize,
    /// No more new messages.
    enough: AtomicBool,
    /// The operator goes home.
    closed: AtomicBool,
    refused: Mutex<Vec<String>>,
}

impl Shared {
    /// Asks until a host has answered. None: it is over.
    fn asked(&self, ask: impl Fn(&Api) -> Result<sprag_tests::host::Answer, ureq::Error>) -> Option<Value> {
        loop {
            if self.closed.load(SeqCst) {
                return None;
            }
            let api = self.api.read().clone();
            match api.as_ref().map(&ask) {
                Some(Ok(answer)) if answer.status < 300 => return Some(answer.json),
                // It stops or starts; as good as not reachable.
                Some(Ok(answer)) if answer.status == 503 => {}
                Some(Ok(answer)) => {
                    self.refused.lock().push(format!("{answer:?}"));
                    return None;
                }
                Some(Err(_)) | None => {}
            }
            pass(Duration::from_millis(2));
        }
    }
}

/// Sends the events of one session, again and again until they are accepted, and some of them once more.
fn send(shared: &Shared, session: usize, mut random: Random) -> Vec<Sent> {
    let mut sent: Vec<Sent> = Vec::new();
    let mut life = 0;
    while !shared.enough.load(SeqCst) {
        if shared.life.load(SeqCst) == life {
            pass(Duration::from_millis(1));
            continue;
        }
        life = shared.life.load(SeqCst);
        for _ in 0..random.below(3) {
            let first = sent.len();
            for _ in 0..1 + random.below(2) {
                sent.push(Sent::random(session, sent.len(), &mut random));
            }
            let messages: Vec<Value> = sent[first..].iter().map(|event| event.message(session)).collect();
            if shared.asked(|api| api.send("work", &messages)).is_none() {
                return sent;
            }
        }
        if !sent.is_empty() && random.one_in(4) {
            let again = &sent[random.below(sent.len() as u64) as usize];
            if shared.asked(|api| api.send("work", &[again.message(session)])).is_none() {
                return sent;
            }
        }
    }
    sent
}

/// Resolves what blocks a session, one way or the other.
fn operate(shared: &Shared) -> Option<()> {
    loop {
        let blocked = shared.asked(|api| api.get("/api/sessions?endpoint=work&blocked=true&limit=1000"))?;
        for session in blocked["items"].as_array().expect("a listing") {
            let event = session["blocked_by"]["event_id"].as_str().expect("a blocked session").to_owned();
            let known = shared.asked(|api| api.get(&format!("/api/events/{event}?endpoint=work")))?;
            let (verb, input) = match known["error"]["kind"].as_str() {
                Some("never") if is_skipped(&event) => ("skip", json!({ "endpoint": "work", "reason": "given up" })),
                Some("never") => ("resubmit", json!({ "endpoint": "work", "body": "ok" })),
                // Its retry is on the way, or it has been resolved meanwhile.
                _ => continue,
            };
            // One key per event: what was accepted before a kill is not accepted a second time.
            shared.asked(|api| {
                let answer =
                    api.post(&format!("/api/events/{event}/{verb}?wait=0s"), &format!("operator-{event}"), &input)?;
                // A conflict: it is no longer as it was when it was listed.
                Ok(if answer.status == 409 { sprag_tests::host::Answer { status: 200, ..answer } } else { answer })
            })?;
        }
        pass(Duration::from_millis(10));
    }
}

/// Backs the README: in order, once per event, whole or not at all, nothing accepted is lost (also A09, P1 to P6, P16 as the process shows them).
#[test]
fn whatever_is_killed_when_every_event_counts_once_and_in_order() {
    let kills = if std::env::var_os("SPRAG_SOAK").is_some() { 2_000 } else { 200 };
    let seed = random::seed();
    eprintln!("SPRAG_SEED={seed}, {kills} kills");
    let mut random = Random::new(seed);
    let place = Place::new(CONFIG, &[("test-ledger", "ledger")]);
    // Compiles the component once, so that starts are short from here on.
    assert_eq!(place.run().stop(), Some(0));

    let shared = Shared {
        api: RwLock::default(),
        life: AtomicUsize::new(0),
        enough: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        refused: Mutex::default(),
    };
    let began = Instant::now();
    let (sent, inbox): (Vec<Vec<Sent>>, _) = std::thread::scope(|scope| {
        let seeds: Vec<Random> = (0..SESSIONS).map(|_| Random::new(random.word())).collect();
        let shared = &shared;
        let senders: Vec<_> = seeds
            .into_iter()
            .enumerate()
            .map(|(session, random)| scope.spawn(move || send(shared, session, random)))
            .collect();
        let operator = scope.spawn(move || operate(shared));
        // A panic here must not leave the threads waiting for a host that never comes.
        let closing = Closing(shared);
        for _ in 0..kills {
            let mut host = place.spawn(&["run"]);
            if random.one_in(8) {
                // In the middle of its start.
                pass(Duration::from_millis(random.below(120)));
            } else {
                host.ready();
                *shared.api.write() = Some(host.api());
                shared.life.fetch_add(1, SeqCst);
                pass(Duration::from_millis(10 + random.below(220)));
            }
            host.kill();
        }
        eprintln!("killed {kills} times in {:.0?}", began.elapsed());

        let host = place.run();
        *shared.api.write() = Some(host.api());
        shared.enough.store(true, SeqCst);
        let sent: Vec<Vec<Sent>> =
            senders.into_iter().map(|sender| sender.join().expect("the sender did not panic")).collect();
        let waits = || {
            let endpoints = host.items("/api/endpoints");
            let waits = |name: &str| endpoints.iter().map(|it| it[name].as_u64().expect("a number")).sum::<u64>();
            (waits("active") + waits("scheduled") + waits("parked"), host.items("/api/sessions?blocked=true").len())
        };
        let settling = Instant::now();
        while waits() != (0, 0) {
            assert!(
                settling.elapsed() < SETTLES,
                "not settled: {:?} {:?}",
                host.items("/api/sessions?blocked=true"),
                host.items("/api/endpoints")
            );
            pass(Duration::from_millis(50));
        }
        drop(closing);
        operator.join().expect("the operator did not panic");
        let inbox = recorded(&host);
        assert_eq!(host.stop(), Some(0), "with nothing to do, the host stops at once");
        (sent, inbox)
    });
    assert_eq!(*shared.refused.lock(), Vec::<String>::new(), "requests that were refused");

    let books = books(&place, inbox);
    for (session, events) in sent.iter().enumerate() {
        books.check_session(session, events);
    }
    books.check_whole(sent.iter().map(Vec::len).sum());
    eprintln!(
        "{} events, {} runs, {:.0?} in all",
        sent.iter().map(Vec::len).sum::<usize>(),
        books.runs,
        began.elapsed()
    );
}

struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.enough.store(true, SeqCst);
        self.0.closed.store(true, SeqCst);
    }
}

/// What is on the disk when all is over, read without the host; the inbox as the host listed it.
fn books(place: &Place, inbox: BTreeSet<String>) -> Books {
    let db = Connection::open_with_flags(place.database(), OpenFlags::SQLITE_OPEN_READ_ONLY).expect("the file opens");
    let one = |sql: &str| -> usize {
        let count: i64 = db.query_row(sql, (), |row| row.get(0)).expect("readable");
        usize::try_from(count).expect("a count")
    };
    let integrity: String = db.query_row("PRAGMA integrity_check", (), |row| row.get(0)).expect("readable");
    assert_eq!(integrity, "ok");
    let mut state = BTreeMap::new();
    let mut rows =
        db.prepare("SELECT e.name, s.key, s.value FROM state s JOIN endpoint e ON e.id = s.endpoint").expect("known");
    let rows = rows.query_map((), |row| Ok((row.get(0)?, row.get(1)?, row.get::<_, Vec<u8>>(2)?))).expect("readable");
    for row in rows {
        let (endpoint, key, value): (String, String, Vec<u8>) = row.expect("readable");
        state.insert((endpoint, key), String::from_utf8(value).expect("text"));
    }
    let mut outcomes: BTreeMap<_, Vec<Outcome>> = BTreeMap::new();
    let mut rows = db
        .prepare("SELECT e.name, v.event_id, v.outcome FROM event v JOIN endpoint e ON e.id = v.endpoint")
        .expect("known");
    let rows =
        rows.query_map((), |row| Ok((row.get(0)?, row.get(1)?, row.get::<_, Option<i64>>(2)?))).expect("readable");
    for row in rows {
        let (endpoint, event, outcome) = row.expect("readable");
        outcomes.entry((endpoint, event)).or_default().push(outcome_of(outcome));
    }
    let mut reruns = db
        .prepare(
            "SELECT v.event_id FROM history done JOIN history later ON later.event = done.event AND later.n > done.n JOIN event v ON v.id = done.event \
             WHERE done.kind = 0 AND done.outcome = 1 AND later.kind = 0",
        )
        .expect("known");
    let reruns = reruns.query_map((), |row| row.get(0)).expect("readable").map(|row| row.expect("readable")).collect();
    Books {
        state,
        outcomes,
        inbox,
        // 0 active, 1 scheduled, 2 parked, 3 dead.
        left: one("SELECT count(*) FROM message WHERE state <> 3"),
        dead: one("SELECT count(*) FROM message WHERE state = 3"),
        outbox: one("SELECT count(*) FROM outbox"),
        reruns,
        runs: one("SELECT count(*) FROM history WHERE kind = 0"),
    }
}

/// As the engine writes them; those that an event can end with here.
fn outcome_of(code: Option<i64>) -> Outcome {
    match code {
        Some(1) => Outcome::Completed,
        Some(4) => Outcome::Skipped,
        Some(5) => Outcome::DeadLettered,
        _ => Outcome::Pending,
    }
}
