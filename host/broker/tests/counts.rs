//! Many operations in random order, by clients, a worker and an administrator; afterwards what the engine counts is what the file holds,
//! before and after it is opened again.

#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the answer")]

#[path = "support/mod.rs"]
mod support;

use std::{collections::BTreeMap, time::Duration};

use sprag_broker::{
    Engine, EntityCounts, EntitySpec, FILE, FilterSpec, RuleSpec,
    client::{ClientMessage, ClientSession, Mode, Settle},
};
use sprag_core::{ids::SequenceNumber, message::Value};
use sprag_transport::{Settlement, Transport as _};
use support::*;

/// A small generator, so that a seed names a run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn how(random: &mut Random) -> Settle {
    let modified = match random.below(2) {
        0 => vec![],
        _ => vec![("n".into(), Value::Long(random.0 as i64))],
    };
    match random.below(6) {
        0 | 1 => Settle::Complete,
        2 => Settle::Abandon { modified },
        3 => Settle::Defer { modified },
        4 => Settle::Release,
        _ => Settle::DeadLetter { reason: Some("r".into()), description: None, modified },
    }
}

const NAMES: [&str; 6] = ["q", "s", "in", "t", "t/a", "t/b"];

fn specs() -> Vec<EntitySpec> {
    let topic = "t".into();
    let few = |spec: EntitySpec| EntitySpec { max_delivery_count: 3, ..spec };
    let sessions = few(EntitySpec::subscription(&topic, "b", FilterSpec::All)).with_sessions();
    vec![
        EntitySpec { forward_dead_letters_to: Some("q".into()), ..few(EntitySpec::queue("s").with_sessions()) },
        few(EntitySpec::queue("q")),
        EntitySpec { forward_to: Some("t".into()), ..EntitySpec::queue("in") },
        EntitySpec::topic("t"),
        few(EntitySpec::subscription(&topic, "a", FilterSpec::Sql("sys.SessionId <> 'x'".into()))),
        sessions,
    ]
}

struct World {
    engine: Engine,
    random: Random,
    held: Vec<(String, ClientMessage)>,
    sessions: Vec<(ClientSession, Vec<ClientMessage>)>,
    clock: i64,
}

impl World {
    async fn step(&mut self) {
        let random = &mut self.random;
        let sources = ["q", "t/a", "q/$DeadLetterQueue", "t/a/$DeadLetterQueue", "t/b/$DeadLetterQueue"];
        match random.below(12) {
            0..=3 => {
                let name = ["q", "s", "in", "t"][random.below(4) as usize];
                let mut message = in_session(["x", "y", "z"][random.below(3) as usize], "m");
                message.scheduled_for = (random.below(4) == 0).then(|| now().after(Duration::from_millis(30)));
                message.time_to_live = (random.below(4) == 0).then(|| Duration::from_millis(80));
                let sent = self.engine.target(&name.into()).unwrap().send(vec![message]).await.unwrap();
                if random.below(8) == 0 {
                    // It need not be scheduled.
                    let _ = self.engine.target(&name.into()).unwrap().cancel_scheduled(&sent).await;
                }
            }
            4 | 5 => {
                let name = sources[random.below(5) as usize];
                let mode = if random.below(4) == 0 { Mode::Delete } else { Mode::PeekLock };
                let source = self.engine.source(&name.into()).unwrap();
                let got = source.receive(1 + random.below(3) as usize, Duration::ZERO, mode).await.unwrap();
                if mode == Mode::PeekLock {
                    self.held.extend(got.into_iter().map(|it| (name.to_owned(), it)));
                }
            }
            6 | 7 if !self.held.is_empty() => {
                let at = random.below(self.held.len() as u64) as usize;
                let (name, message) = self.held.swap_remove(at);
                let settled = self.engine.source(&name.as_str().into()).unwrap();
                settled.settle(message.lock.unwrap().token, how(random)).await.unwrap();
            }
            8 => {
                let name = sources[random.below(5) as usize];
                let source = self.engine.source(&name.into()).unwrap();
                for seen in source.peek(SequenceNumber(0), 20, None).await.unwrap() {
                    // Somebody may have it, or it is the worker's.
                    if let Ok(got) = source.receive_deferred(&[seen.sequence], Mode::PeekLock).await {
                        self.held.extend(got.into_iter().map(|it| (name.to_owned(), it)));
                    }
                }
            }
            9 => {
                let name = ["s", "t/b"][random.below(2) as usize];
                let source = self.engine.source(&name.into()).unwrap();
                if let Some(session) = source.accept_next(Duration::ZERO).await.unwrap() {
                    let got = session.receive(3, Duration::ZERO, Mode::PeekLock).await.unwrap();
                    self.sessions.push((session, got));
                }
            }
            10 if !self.sessions.is_empty() => {
                let at = random.below(self.sessions.len() as u64) as usize;
                let (session, held) = &mut self.sessions[at];
                for message in held.drain(..) {
                    session.settle(message.lock.unwrap().token, how(random)).await.unwrap();
                }
                for seen in session.source().peek(SequenceNumber(0), 5, Some(session.id())).await.unwrap() {
                    if let Ok(got) = session.receive_deferred(&[seen.sequence], Mode::PeekLock).await {
                        held.extend(got);
                    }
                }
                held.extend(session.receive(2, Duration::ZERO, Mode::PeekLock).await.unwrap());
                if random.below(2) == 0 {
                    self.sessions.remove(at);
                }
            }
            _ => {
                if let Some(session) = self.engine.accept_next(&"t/b".into(), Duration::ZERO).await.unwrap() {
                    if let Some(delivery) = session.receive(Duration::ZERO).await.unwrap() {
                        if random.below(2) == 0 {
                            session.park(&delivery, random.below(5) as u32, &delivery.message).await.unwrap();
                        }
                        session.settle(delivery.lock, Settlement::Complete).await.unwrap();
                    }
                    session.release(Duration::ZERO).await.unwrap();
                }
                self.clock += 1;
                if self.clock % 16 == 0 {
                    let rule = RuleSpec::new(format!("r{}", self.clock), FilterSpec::Sql("sys.SessionId = 'y'".into()));
                    self.engine.add_rule(&"t/a".into(), rule.with_action("SET n = 1")).await.unwrap();
                }
            }
        }
    }
}

/// By the rows: (counts, bytes) of each entity.
fn in_file(dir: &std::path::Path) -> BTreeMap<String, (EntityCounts, u64)> {
    let connection = rusqlite::Connection::open(dir.join(FILE)).unwrap();
    let count = |name: &str, states: &str| {
        let sql = format!(
            "SELECT count(*), coalesce(sum(m.size), 0) FROM message m JOIN entity e ON e.id = m.entity WHERE e.name = ?1 AND m.state IN ({states}) AND m.seq NOT IN settled"
        );
        connection
            .query_row(&sql, [name], |row| Ok((row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64)))
            .unwrap()
    };
    let of = |name: &str| {
        let counts = EntityCounts {
            active: count(name, "0").0,
            scheduled: count(name, "1").0,
            deferred: count(name, "2, 4").0,
            dead_letters: count(name, "3, 5").0,
            transfer_dead_letters: 0,
        };
        (counts, count(name, "0, 1, 2, 3, 4, 5").1)
    };
    NAMES.into_iter().map(|name| (name.to_owned(), of(name))).collect()
}

fn counted(engine: &Engine) -> BTreeMap<String, (EntityCounts, u64)> {
    let of = |name: &str| {
        let view = engine.entity(&name.into()).unwrap();
        (view.counts, view.bytes)
    };
    NAMES.into_iter().map(|name| (name.to_owned(), of(name))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_counted_is_what_is_there() {
    let seeds: u64 = if std::env::var_os("SPRAG_SOAK").is_some() { 200 } else { 6 };
    for seed in 0..seeds {
        let (engine, dir) = engine(specs()).await;
        let mut world = World { engine, random: Random(seed), held: Vec::new(), sessions: Vec::new(), clock: 0 };
        for _ in 0..400 {
            world.step().await;
        }
        let World { engine, held, sessions, .. } = world;
        drop((held, sessions));
        // What the engine does by itself comes to rest: schedules, times to live, forwarding.
        until(&format!("seed {seed}: counts and file agree"), async || {
            let before = counted(&engine);
            before == in_file(dir.path())
                && before == counted(&engine)
                && before["in"].0.scheduled + before["t"].0.scheduled == 0
        })
        .await;
        let rest = counted(&engine);
        let engine = reopen(engine, &dir).await;
        // Nothing has a lock any more; deferred and locked ones that expired meanwhile may go.
        until(&format!("seed {seed}: opened again, they agree"), async || counted(&engine) == in_file(dir.path()))
            .await;
        for name in NAMES.into_iter().filter(|name| !["in", "t"].contains(name)) {
            assert!(
                counted(&engine)[name].0.active <= rest[name].0.active + rest[name].0.scheduled,
                "seed {seed}, {name}"
            );
            let source = engine.source(&name.into()).unwrap();
            let dead = engine.source(&format!("{name}/$DeadLetterQueue").into()).unwrap();
            // One that has just expired is counted until it is buried, and not seen any more.
            until(&format!("seed {seed}, {name}: a peek shows all"), async || {
                let counts = counted(&engine)[name].0;
                let seen = source.peek(SequenceNumber(0), 10_000, None).await.unwrap().len() as u64;
                let letters = dead.peek(SequenceNumber(0), 10_000, None).await.unwrap().len() as u64;
                seen == counts.active + counts.deferred + counts.scheduled && letters == counts.dead_letters
            })
            .await;
        }
    }
}
