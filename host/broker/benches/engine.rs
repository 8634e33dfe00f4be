//! How fast the engine is next to plain batched SQLite that inserts and deletes the same rows.
//!
//! `cargo bench -p sprag-broker` (or the binary itself): `[--messages N] [--sessions N] [--body BYTES] [--inbox ROWS] [--quick]`. Prints what one
//! `fsync` costs here, the limit measured in the same run, messages per second through send, receive, check and commit, and the processor time
//! of the writer's thread per message. `--inbox` fills the inbox beforehand.

mod limit;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use sprag_broker::{Engine, EntitySpec, Options};
use sprag_core::{
    effect::{Commit, Effect, HistoryKind, HistoryLine, OutcomeGuard, OutcomeWrite, StoreWrite},
    ids::{Digest, EndpointName, EntityName, EventId, MessageId, SessionId},
    message::{Body, Delivery, Message, Value},
    outcome::Outcome,
    session_state::SessionState,
    time::Timestamp,
};
use sprag_store::{Question, Store as _};
use sprag_transport::{Committer as _, Held, Session, Transport as _};

struct Plan {
    messages: usize,
    sessions: usize,
    body: usize,
    inbox: usize,
}

fn plan() -> Plan {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str, otherwise: usize| {
        let at = arguments.iter().position(|argument| argument == name);
        at.map_or(otherwise, |at| arguments[at + 1].parse().expect("a number follows"))
    };
    let quick = arguments.iter().any(|argument| argument == "--quick");
    Plan {
        messages: number("--messages", if quick { 20_000 } else { 200_000 }),
        sessions: number("--sessions", 512),
        body: number("--body", 1_024),
        inbox: number("--inbox", 0),
    }
}

fn main() {
    // `cargo test` runs benches to see that they start; that is not a measurement.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let plan = plan();
    let base = tempfile::tempdir().expect("a temporary folder");
    println!(
        "messages {}, sessions {}, body {} B, inbox rows before {}",
        plan.messages, plan.sessions, plan.body, plan.inbox
    );
    println!("fsync                     {:>10.3} ms (median of 50)", limit::fsync(base.path()).as_secs_f64() * 1e3);
    let cpu = thread_cpu();
    let limit = limit::sqlite(base.path(), plan.messages, plan.sessions, plan.body);
    println!("plain batched SQLite      {limit:>10.0} messages/s");
    println!(
        "  its processor time      {:>10.1} us/message",
        (thread_cpu() - cpu).as_secs_f64() * 1e6 / plan.messages as f64
    );
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let engine = Engine::open(Options::new(base.path().join("engine"))).expect("an empty folder opens");
        engine.declare(vec![EntitySpec::queue("orders").with_sessions()]).await.expect("a good declaration");
        if plan.inbox > 0 {
            let begun = Instant::now();
            fill_inbox(&engine, plan.inbox).await;
            println!("inbox filled in           {:>10.1} s", begun.elapsed().as_secs_f64());
        }
        one_at_a_time(&engine).await;
        let before = engine.stats();
        let begun = Instant::now();
        end_to_end(&engine, &plan).await;
        let took = begun.elapsed();
        let after = engine.stats();
        let rate = plan.messages as f64 / took.as_secs_f64();
        println!("end to end                {rate:>10.0} messages/s = {:.2} of plain SQLite", rate / limit);
        if let (Some(before), Some(after)) = (before.writer_cpu, after.writer_cpu) {
            let each = (after - before).as_secs_f64() * 1e6 / plan.messages as f64;
            println!("writer's processor time   {each:>10.1} us/message");
        }
        let groups = (after.commits - before.commits).max(1);
        println!(
            "groups                    {groups:>10} (mean {:.0} commands, largest {})",
            (after.commands - before.commands) as f64 / groups as f64,
            after.largest_group
        );
        println!(
            "checkpoints               {:>10} (longest {:.0} ms)",
            after.checkpoints - before.checkpoints,
            after.longest_checkpoint.as_secs_f64() * 1e3
        );
        println!("file, log                 {:>10} MiB, {} MiB", after.file_bytes >> 20, after.log_bytes >> 20);
        println!("resident                  {:>10} MiB", resident() >> 20);
        engine.close().await;
    });
}

/// Processor time of this thread.
fn thread_cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0))
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1_024
}

fn orders() -> EntityName {
    "orders".into()
}

fn message(plan_body: usize, session: &str, n: usize) -> Message {
    let mut message = Message {
        message_id: Some(MessageId::from(format!("message-{n:029}"))),
        session_id: Some(SessionId::from(session)),
        content_type: Some("application/json".into()),
        body: Body::Data(vec![b'x'; plan_body].into()),
        ..Message::default()
    };
    message.set_property("EventTypeId", Value::string("OrderPlaced"));
    message
}

fn completed(delivery: &Delivery) -> Commit {
    let id = delivery.message.message_id.clone().expect("every message here has one");
    let event_id = EventId::from(id.as_str());
    let (handler, digest) = (Some("payment".into()), Some(Digest([7; 32])));
    let at = Timestamp(1_796_000_000_000);
    let write = StoreWrite {
        record: vec![id.clone()],
        outcome: Some(OutcomeWrite {
            event_id: event_id.clone(),
            message_id: Some(id.clone()),
            source_id: None,
            session: delivery.message.session_id.clone(),
            event_type: delivery.message.event_type(),
            outcome: Outcome::Completed,
            guard: OutcomeGuard::Newer,
            reason: None,
            error: None,
            attempts: 1,
            handler: handler.clone(),
            digest,
            enqueued_at: delivery.enqueued_at,
            at,
            keep: None,
        }),
        history: Some(HistoryLine {
            event_id,
            kind: HistoryKind::Run,
            at,
            message_id: Some(id),
            outcome: Some(Outcome::Completed),
            attempt: 1,
            started_at: Some(at),
            took: Some(Duration::from_micros(20)),
            handler,
            digest,
            reason: None,
            error: None,
            by: None,
        }),
        ..StoreWrite::default()
    };
    Commit {
        endpoint: "billing".into(),
        effects: vec![Effect::Store(Box::new(write)), Effect::SetState(SessionState::default()), Effect::Complete],
    }
}

async fn handle_one(engine: &Engine, session: &Arc<dyn Session>, delivery: &Delivery) {
    let endpoint = EndpointName::from("billing");
    let id = delivery.message.message_id.as_ref();
    let event_id = EventId::from(id.expect("every message here has one").as_str());
    let question = Question {
        endpoint: &endpoint,
        message_id: id,
        source_id: None,
        event_id: &event_id,
        inbox: true,
        outcome: false,
    };
    let answer = engine.check(question).await.expect("an answer");
    assert!(!answer.own_recorded);
    session.state().await.expect("the lock holds");
    let held = Held { source: &orders(), session: Some(session), delivery };
    engine.commit(held, completed(delivery)).await.expect("it commits");
}

/// From send to completed on an idle engine.
async fn one_at_a_time(engine: &Engine) {
    let mut times = Vec::new();
    for n in 0..100 {
        let begun = Instant::now();
        engine.send(&orders(), vec![message(1_024, "single", 900_000_000 + n)]).await.expect("sent");
        let session =
            engine.accept_next(&orders(), Duration::from_secs(5)).await.expect("accepted").expect("a session");
        let delivery = session.receive(Duration::ZERO).await.expect("received").expect("a message");
        handle_one(engine, &session, &delivery).await;
        session.release(Duration::ZERO).await.expect("released");
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    println!("one at a time             {:>10.3} ms (median, send to completed)", times[50].as_secs_f64() * 1e3);
}

/// Senders and receivers side by side: a sender per eight sessions with batches of eight, a receiver per eight sessions.
async fn end_to_end(engine: &Engine, plan: &Plan) {
    let done = Arc::new(AtomicUsize::new(0));
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    let (messages, sessions, body) = (plan.messages, plan.sessions, plan.body);
    for _ in 0..64 {
        let (engine, next) = (engine.clone(), Arc::clone(&next));
        tasks.push(tokio::spawn(async move {
            loop {
                let n = next.fetch_add(1, Relaxed);
                if n >= messages {
                    break;
                }
                engine
                    .send(&orders(), vec![message(body, &format!("session-{}", n % sessions), n)])
                    .await
                    .expect("sent");
            }
        }));
    }
    for _ in 0..128.min(sessions) {
        let (engine, done) = (engine.clone(), Arc::clone(&done));
        tasks.push(tokio::spawn(async move {
            while done.load(Relaxed) < messages {
                let accepted =
                    engine.accept_next(&orders(), Duration::from_millis(200)).await.expect("accepting works");
                let Some(session) = accepted else { continue };
                while let Some(delivery) = session.receive(Duration::ZERO).await.expect("receiving works") {
                    handle_one(&engine, &session, &delivery).await;
                    done.fetch_add(1, Relaxed);
                }
                session.release(Duration::ZERO).await.expect("released");
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
}

async fn fill_inbox(engine: &Engine, rows: usize) {
    let endpoint = EndpointName::from("billing");
    let mut tasks = Vec::new();
    for part in 0..8 {
        let (engine, endpoint) = (engine.clone(), endpoint.clone());
        tasks.push(tokio::spawn(async move {
            let mut n = part;
            while n < rows {
                let record = (0..500)
                    .map(|k| n + 8 * k)
                    .filter(|n| *n < rows)
                    .map(|n| MessageId::from(format!("earlier-{n:029}")))
                    .collect();
                engine.write(&endpoint, StoreWrite { record, ..StoreWrite::default() }).await.expect("written");
                n += 8 * 500;
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
}
