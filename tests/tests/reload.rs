//! Handlers change under a running `sprag dev`, well and badly, while messages are under way.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::symlink,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use sprag_tests::host::{Host, PATIENCE, Place, guest, pass, until};

const CONFIG: &str = r#"
[embedded]
listen = "off"
administration = "off"

[host]
console = "127.0.0.1:0"

[[queue]]
name = "work"
requires_session = true

[[queue]]
name = "tally"

[[endpoint]]
name = "work"
source = { queue = "work" }
handlers = ["ledger"]
inbox = { mode = "record" }

[handler.ledger]
grant = ["state"]
"#;

/// Longer than the watcher needs to look at the folder, by notice or by poll.
const LOOKED: Duration = Duration::from_millis(1_500);

/// The component as another version: the same code and one custom section more.
fn version(component: &str, n: u8) -> Vec<u8> {
    let mut bytes = fs::read(guest(component)).expect("readable");
    // A section of kind 0: its size, the length of its name, the name, the content.
    bytes.extend_from_slice(&[0, 4, 1, b'v', 0, n]);
    bytes
}

/// Write beside, rename over: what careful tools do.
fn replace(path: &Path, bytes: &[u8]) {
    let fresh = path.with_extension("new");
    fs::write(&fresh, bytes).expect("writable");
    fs::rename(&fresh, path).expect("renamed");
}

fn handler(host: &Host, name: &str) -> Value {
    host.items("/api/handlers").into_iter().find(|it| it["name"] == name).unwrap_or(Value::Null)
}

fn digest(host: &Host) -> String {
    handler(host, "ledger")["digest"].as_str().unwrap_or("none").to_owned()
}

/// Waits for a version other than this one, and answers which.
fn next_version(host: &Host, before: &str) -> String {
    until("another version serves", PATIENCE, || {
        let now = digest(host);
        (now != before && now != "none" && handler(host, "ledger")["state"] == "serving").then_some(now)
    })
}

fn event(id: &str, body: &str) -> Value {
    json!({ "id": id, "session": id, "type": "Work", "body": body })
}

/// Sends one message, and answers the version that handled it.
fn handled_by(host: &Host, id: &str) -> String {
    host.send("work", &[event(id, "ok")]);
    host.outcome(id, "completed")["digest"].as_str().expect("a completed event has its version").to_owned()
}

/// Lines of the host's log that start so.
fn lines(host: &Host, word: &str) -> usize {
    host.log().lines().filter(|line| line.starts_with(word)).count()
}

/// A74, A73: a new version by rename; what runs finishes on the version it began with.
#[test]
fn what_is_in_flight_finishes_on_its_version() {
    let place = Place::new(CONFIG, &[("test-ledger", "ledger")]);
    let host = place.dev();
    let first = digest(&host);
    host.send("work", &[event("long", "ok+3000")]);
    until("the long one runs", PATIENCE, || (host.get("/api/endpoints")["items"][0]["active"] == 1).then_some(()));
    replace(&place.handler("ledger"), &version("test-ledger", 1));
    let second = next_version(&host, &first);
    assert_eq!(handled_by(&host, "short"), second, "a message that comes now has the new version");
    let long = host.outcome("long", "completed");
    assert_eq!(long["digest"], first.as_str(), "it finished on the version it began with");
    assert_eq!(long["attempts"], 1, "and was not run again");
    assert_eq!(host.stop(), Some(0));
}

/// A71: touched, or replaced by the same bytes. A72: many other files, one reload.
#[test]
fn the_same_content_and_other_files_are_no_reload() {
    let place = Place::new(CONFIG, &[("test-ledger", "ledger")]);
    let host = place.dev();
    let first = digest(&host);
    let file = place.handler("ledger");
    let bytes = fs::read(&file).expect("readable");
    fs::write(&file, &bytes).expect("written in place");
    replace(&file, &bytes);
    File::options()
        .append(true)
        .open(&file)
        .and_then(|file| file.set_modified(std::time::SystemTime::now()))
        .expect("touched");
    for n in 0..300 {
        fs::write(place.path().join(format!("handlers/part-{n}.o")), [0; 100]).expect("written");
    }
    pass(LOOKED);
    assert_eq!(
        (lines(&host, "reloaded"), lines(&host, "refused"), lines(&host, "removed")),
        (0, 0, 0),
        "{}",
        host.log()
    );
    assert_eq!(handled_by(&host, "same"), first);
    replace(&file, &version("test-ledger", 1));
    let second = next_version(&host, &first);
    pass(LOOKED);
    assert_eq!(digest(&host), second);
    assert_eq!(lines(&host, "reloaded"), 1, "one change, one reload: {}", host.log());
    assert_eq!(host.stop(), Some(0));
}

/// A73: half copies, truncated files, texts, other worlds and other versions of the contract: the good version serves on, one rejection each.
#[test]
fn what_is_no_handler_is_refused_and_the_old_version_serves_on() {
    let place = Place::new(CONFIG, &[("test-ledger", "ledger")]);
    let host = place.dev();
    let first = digest(&host);
    let file = place.handler("ledger");

    // Copied in place, in two halves.
    let bytes = version("test-ledger", 1);
    let (head, tail) = bytes.split_at(bytes.len() / 2);
    let mut writing = File::create(&file).expect("writable");
    writing.write_all(head).expect("written");
    let half_since = Instant::now();
    while half_since.elapsed() < LOOKED {
        let id = format!("half-{}", half_since.elapsed().as_millis());
        assert_eq!(handled_by(&host, &id), first, "half a file serves nobody");
        pass(Duration::from_millis(100));
    }
    writing.write_all(tail).expect("written");
    drop(writing);
    let second = next_version(&host, &first);
    assert_eq!(handled_by(&host, "whole"), second, "complete, it is taken");

    let noop = fs::read(guest("test-noop")).expect("readable");
    let other_contract = replaced(&noop, b"sprag:handler", b"other:handler");
    let bad: [(&str, Vec<u8>); 4] = [
        ("truncated", bytes[..bytes.len() / 3].to_vec()),
        ("a text", b"this is no component\n".to_vec()),
        // A component, and a good one, that exports nothing.
        ("another world", b"\0asm\x0d\0\x01\0".to_vec()),
        ("another contract", other_contract),
    ];
    for (n, (what, content)) in bad.iter().enumerate() {
        let refused = lines(&host, "refused");
        replace(&file, content);
        let shown = until(what, PATIENCE, || {
            let shown = handler(&host, "ledger");
            (shown["state"] == "refused" && lines(&host, "refused") > refused).then_some(shown)
        });
        assert_eq!(shown["digest"], second.as_str(), "{what}: the version before serves on");
        assert!(shown["error"].as_str().is_some_and(|error| !error.is_empty()), "{what}: {shown}");
        assert_eq!(handled_by(&host, &format!("bad-{n}")), second, "{what}");
        pass(LOOKED);
        assert_eq!(lines(&host, "refused"), refused + 1, "{what}: one clear rejection\n{}", host.log());
    }
    replace(&file, &version("test-ledger", 2));
    let third = next_version(&host, &second);
    assert_eq!(handled_by(&host, "good-again"), third);
    assert_eq!(host.stop(), Some(0));
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = bytes.to_vec();
    let mut at = 0;
    while at + from.len() <= bytes.len() {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
        at += 1;
    }
    bytes
}

/// A74: deleted and made again, and a symbolic link that is swapped. What came meanwhile waits, and is handled.
#[test]
fn deletes_and_swaps_are_seen_and_nothing_is_lost() {
    let place = Place::new(CONFIG, &[("test-ledger", "ledger")]);
    let host = place.dev();
    let first = digest(&host);
    let file = place.handler("ledger");
    fs::remove_file(&file).expect("deleted");
    until("the endpoint waits", PATIENCE, || (host.api().get("/readyz").ok()?.status == 503).then_some(()));
    host.send("work", &[event("meanwhile", "ok")]);
    assert!(host.api().get("/healthz").is_ok_and(|answer| answer.status == 200), "it is alive, and not ready");
    fs::write(&file, version("test-ledger", 1)).expect("made again");
    let second = next_version(&host, &first);
    assert_eq!(host.outcome("meanwhile", "completed")["digest"], second.as_str(), "what came meanwhile had waited");

    for n in 2..4 {
        fs::write(place.path().join(format!("v{n}.wasm")), version("test-ledger", n)).expect("written");
    }
    let link = |n: u8| {
        let fresh = place.path().join("link");
        symlink(place.path().join(format!("v{n}.wasm")), &fresh).expect("a link");
        fs::rename(&fresh, &file).expect("swapped");
    };
    link(2);
    let third = next_version(&host, &second);
    assert_eq!(handled_by(&host, "linked"), third);
    link(3);
    let fourth = next_version(&host, &third);
    assert_eq!(handled_by(&host, "swapped"), fourth);
    assert_eq!(host.stop(), Some(0));
}

/// No message is lost or handled twice while versions change under load.
#[test]
fn under_load_every_message_is_handled_once() {
    let place = Place::new(CONFIG, &[("test-ledger", "ledger")]);
    let host = place.dev();
    let mut serving = digest(&host);
    let mut sent = 0;
    for n in 0..6 {
        for _ in 0..40 {
            host.send("work", &[json!({ "id": format!("e{sent}"), "session": format!("s{}", sent % 5), "type": "Work", "body": "ok+3" })]);
            sent += 1;
        }
        replace(&place.handler("ledger"), &version("test-ledger", n));
        serving = next_version(&host, &serving);
    }
    for n in 0..sent {
        let event = host.outcome(&format!("e{n}"), "completed");
        assert_eq!((&event["attempts"], &event["duplicates"]), (&json!(1), &json!(0)), "{event}");
    }
    assert_eq!(host.stop(), Some(0));
}

const HOSTILE: &str = r#"
[embedded]
listen = "off"
administration = "off"

[host]
console = "127.0.0.1:0"

[[queue]]
name = "probes"
requires_session = true

[[queue]]
name = "calm"

[[endpoint]]
name = "probes"
source = { queue = "probes" }
handlers = ["probe"]
inbox = { mode = "record" }

[[endpoint]]
name = "calm"
source = { queue = "calm" }
handlers = ["noop"]
inbox = { mode = "record" }

[handler.probe]
grant = ["state"]
config = { a = "b" }
limits = { time = "2s" }
"#;

fn probe(id: &str, body: &str) -> Value {
    json!({ "id": id, "session": id, "type": "probe", "body": body })
}

/// A63: a trap costs the message its run, and nobody else anything.
#[test]
fn a_trap_is_one_messages_failure() {
    let place = Place::new(HOSTILE, &[("test-probe", "probe"), ("test-noop", "noop")]);
    let host = place.dev();
    host.send("probes", &[probe("before", "ok")]);
    host.outcome("before", "completed");
    host.send("probes", &[probe("boom", "panic of the handler")]);
    let failed = host.outcome("boom", "failed");
    assert_eq!(failed["error"]["kind"], "trap", "{failed}");
    host.send("probes", &[probe("after", "ok")]);
    host.outcome("after", "completed");
    assert_eq!(host.stop(), Some(0));
}

/// A64: more handlers that spin for ever than there are threads: each is stopped in time, others are served, health answers.
#[test]
fn handlers_that_spin_are_stopped_and_health_answers_meanwhile() {
    let place = Place::new(HOSTILE, &[("test-probe", "probe"), ("test-noop", "noop")]);
    let host = place.dev();
    let spinning = std::thread::available_parallelism().map_or(2, usize::from) + 2;
    let messages: Vec<Value> = (0..spinning).map(|n| probe(&format!("spin-{n}"), "spin")).collect();
    host.send("probes", &messages);
    let began = Instant::now();
    let mut calm = 0;
    while host.items("/api/events?outcome=failed").len() < spinning {
        assert!(began.elapsed() < PATIENCE, "{}", host.log());
        let asked = Instant::now();
        assert!(host.api().get("/healthz").is_ok_and(|answer| answer.status == 200));
        assert!(asked.elapsed() < Duration::from_secs(1), "health took {:?}", asked.elapsed());
        let id = format!("calm-{calm}");
        host.send("calm", &[json!({ "id": id, "type": "Any" })]);
        host.outcome(&id, "completed");
        calm += 1;
        pass(Duration::from_millis(50));
    }
    assert!(calm >= 2, "others were served meanwhile");
    for n in 0..spinning {
        let event = host.outcome(&format!("spin-{n}"), "failed");
        assert_eq!(event["error"]["kind"], "timeout", "{event}");
        let run = event["history"]
            .as_array()
            .and_then(|lines| lines.iter().find(|line| line["kind"] == "run"))
            .expect("a run");
        let took = run["took_ms"].as_u64().expect("a run took some time");
        // 10 % is what an idle machine keeps (the runtime's own tests); here others use the same cores.
        assert!((1_900..3_000).contains(&took), "stopped after {took} ms");
    }
    assert_eq!(host.stop(), Some(0));
}
