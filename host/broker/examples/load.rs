//! A process that writes until it is stopped, for the tests that stop it: killed, on a full disk, with an `fsync` that fails.
//!
//! `load work DIR` sends to sixteen sessions and handles what it sent; `load fill DIR BYTES` sends messages of that size until one is
//! refused; `load clients DIR` defers, abandons, schedules and completes, as network clients do. All print a line for every answer they got, so that whoever reads them knows what was promised.

use std::{io::Write as _, sync::Arc, time::Duration};

use sprag_broker::{
    Engine, EntitySpec, FilterSpec, Options, RuleSpec,
    client::{Mode, Settle},
};
use sprag_core::{
    effect::{Commit, Effect, StoreWrite},
    ids::{EntityName, MessageId, SequenceNumber, SessionId},
    message::{Body, Message},
};
use sprag_transport::{Committer as _, Held, Part, Session, Transport as _};

const SESSIONS: usize = 16;

fn say(line: String) {
    let mut out = std::io::stdout().lock();
    // Whoever started this may have gone; then nothing is promised to anybody.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn orders() -> EntityName {
    "orders".into()
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let engine = match Engine::open(Options::new(&arguments[2])) {
        Ok(engine) => engine,
        Err(error) => return say(format!("cannot open: {error}")),
    };
    engine.declare(vec![EntitySpec::queue("orders").with_sessions()]).await.expect("a good declaration");
    say("open".into());
    match arguments[1].as_str() {
        "work" => work(engine).await,
        "clients" => clients(engine).await,
        "fill" => fill(engine, arguments[3].parse().expect("a number of bytes")).await,
        other => say(format!("there is no mode {other}")),
    }
}

fn message(session: usize, n: usize, size: usize) -> Message {
    Message {
        message_id: Some(MessageId::from(format!("{session}-{n}"))),
        session_id: Some(SessionId::from(session.to_string())),
        body: Body::Data(vec![b'x'; size].into()),
        ..Message::default()
    }
}

async fn work(engine: Engine) {
    let mut tasks = Vec::new();
    for session in 0..SESSIONS {
        let engine = engine.clone();
        tasks.push(tokio::spawn(async move {
            for n in 0.. {
                if engine.send(&orders(), vec![message(session, n, 200)]).await.is_ok() {
                    say(format!("sent {session} {n}"));
                }
            }
        }));
    }
    for _ in 0..SESSIONS / 2 {
        let engine = engine.clone();
        tasks.push(tokio::spawn(async move {
            loop {
                if let Ok(Some(session)) = engine.accept_next(&orders(), Duration::from_secs(1)).await {
                    handle(&engine, session).await;
                }
            }
        }));
    }
    for task in tasks {
        let _ = task.await;
    }
}

async fn handle(engine: &Engine, session: Arc<dyn Session>) {
    for _ in 0..5 {
        let Ok(Some(delivery)) = session.receive(Duration::ZERO).await else { break };
        let id = delivery.message.message_id.clone().expect("every message here has one");
        let write = StoreWrite { record: vec![id.clone()], ..StoreWrite::default() };
        let commit =
            Commit { endpoint: "billing".into(), effects: vec![Effect::Store(Box::new(write)), Effect::Complete] };
        let held = Held { source: &orders(), session: Some(&session), delivery: &delivery };
        if engine.commit(held, commit).await.is_ok() {
            say(format!("done {id}"));
        }
    }
    let _ = session.release(Duration::ZERO).await;
}

/// Everything here comes through a queue that forwards into a topic, whose subscription has a rule more for each round.
async fn clients(engine: Engine) {
    let topic = EntityName::from("topic");
    let subscription = EntityName::from("topic/all");
    let to_topic = EntitySpec { forward_to: Some(topic.clone()), ..EntitySpec::queue("in") };
    for spec in [EntitySpec::topic("topic"), EntitySpec::subscription(&topic, "all", FilterSpec::All), to_topic] {
        engine.create_entity(spec, vec![]).await.expect("it is new");
    }
    let (target, source) = (engine.target(&"in".into()).expect("made"), engine.source(&subscription).expect("made"));
    let soon = sprag_core::time::Timestamp(i64::MAX / 2);
    for n in 0..usize::MAX {
        let scheduled = Message { scheduled_for: Some(soon), ..message(0, n, 10) };
        let sent = target.send(vec![scheduled]).await.expect("there is room");
        say(format!("scheduled {}", sent[0]));
        target.send((0..3).map(|part| message(part, n, 10)).collect()).await.expect("there is room");
        say(format!("sent {n}"));
        let rule = RuleSpec::new(format!("r{n}"), FilterSpec::Nothing);
        engine.add_rule(&subscription, rule).await.expect("it is new");
        say(format!("rule r{n}"));
        let got = source.receive(3, Duration::from_secs(10), Mode::PeekLock).await.expect("they are there");
        let ways = [Settle::Defer { modified: vec![] }, Settle::Complete, Settle::Abandon { modified: vec![] }];
        for (message, how) in got.into_iter().zip(ways) {
            let word = match how {
                Settle::Complete => "completed",
                Settle::Defer { .. } => "deferred",
                _ => "abandoned",
            };
            let lock = message.lock.expect("it is locked").token;
            source.settle(lock, how).await.expect("the lock holds");
            say(format!("{word} {} {}", message.sequence, message.delivery_count));
        }
    }
}

async fn fill(engine: Engine, size: usize) {
    for n in 0.. {
        match engine.send(&orders(), vec![message(0, n, size)]).await {
            Ok(_) => say(format!("sent 0 {n}")),
            Err(error) => {
                say(format!("refused: {error}"));
                break;
            }
        }
    }
    match engine.send(&orders(), vec![message(0, 1_000_000, 1)]).await {
        Ok(_) => say("again: sent".into()),
        Err(error) => say(format!("again: {error}")),
    }
    match engine.peek(&orders(), Part::Active, None, SequenceNumber(0), 1_000_000).await {
        Ok(peeked) => say(format!("peeked {}", peeked.len())),
        Err(error) => say(format!("peek failed: {error}")),
    }
    say("end".into());
}
