//! What goes wrong around a host: input that is no input, files that are no handlers, ports, folders and disks that are not there for it. It says so once,
//! in words that name the way out, and what it had accepted stays.

use std::{
    fs::{self, File},
    io::Write as _,
    net::TcpListener,
    os::unix::fs::symlink,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use sprag_tests::host::{Ended, Host, PATIENCE, Place, guest, pass, until};

const CONFIG: &str = r#"
[embedded]
listen = "off"
administration = "off"

[host]
console = "127.0.0.1:0"
shutdown_grace = "10s"

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

fn place() -> Place {
    Place::new(CONFIG, &[("test-ledger", "ledger")])
}

/// One message on stderr with this text, and this exit code.
#[track_caller]
fn refused(ended: &Ended, code: i32, text: &str) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert!(ended.stderr.contains(text), "{text:?} is missing: {ended:?}");
    assert_eq!(ended.stderr.matches("error:").count(), 1, "one message: {ended:?}");
    assert_eq!(ended.stdout, "", "{ended:?}");
}

fn alive(host: &Host) {
    assert!(host.api().get("/healthz").is_ok_and(|answer| answer.status == 200), "{}", host.log());
}

#[test]
fn bodies_and_ids_that_cannot_be_taken() {
    let place = place();
    let host = place.run();
    let file = |name: &str, bytes: &[u8]| {
        fs::write(place.path().join(name), bytes).expect("written");
        format!("@{name}")
    };
    let binary = file("binary", &[0xff, 0xfe, 0x00, b'a']);
    let send = ["send", "work", "--session", "s", "--type", "T", "--id"];
    let with = |rest: &[&str]| place.sprag(&[&send[..], rest].concat());
    refused(&with(&["a", "--body", &binary]), 2, "--binary");
    // As bytes it is taken. The handler knows no such end, which is its business: the event fails, and shows its body as base64.
    with(&["bytes", "--binary", "--body", &binary]).done();
    host.outcome("bytes", "failed");
    let shown = place.sprag(&["events", "show", "bytes", "--json"]).done().json();
    assert_eq!(shown["message"]["body_base64"], "//4AYQ==", "{shown}");

    let large = file("large", &vec![b'x'; 10 << 20]);
    refused(&with(&["large", "--body", &large]), 2, "1");
    alive(&host);
    refused(&with(&["a\u{1}b", "--body", "ok"]), 2, "control characters");
    refused(&with(&[&"x".repeat(600), "--body", "ok"]), 2, "at most 512");
    refused(&with(&[" ", "--body", "ok"]), 2, "blank");
    refused(&place.sprag(&["send", "work", "--body", "ok"]), 2, "session");
    refused(&place.sprag(&["send", "wrok", "--session", "s", "--body", "ok"]), 1, "wrok");
    // By the API, past the checks of the verb.
    for message in [
        json!({ "id": "a\u{1}b", "session": "s", "body": "ok" }),
        json!({ "id": "x".repeat(600), "session": "s", "body": "ok" }),
    ] {
        let answer = host.api().send("work", &[message]).expect("an answer");
        assert_eq!((answer.status, answer.json["status"].as_u64()), (400, Some(400)), "{answer:?}");
    }
    // The limit of the API itself, above any entity's.
    let huge = "x".repeat(40 << 20);
    if let Ok(answer) = host.api().send("work", &[json!({ "id": "huge", "session": "s", "body": huge })]) {
        assert_eq!(answer.status, 413, "{}", answer.json);
    }
    alive(&host);
    let known: Vec<Value> = host.items("/api/events").into_iter().map(|event| event["event_id"].clone()).collect();
    assert_eq!(known, ["bytes"], "nothing that was refused came in");
    assert_eq!(host.stop(), Some(0));
}

/// P27, A73 at a start: what is no handler is named with the reason; the host lives, says that it is not ready, and serves the rest.
#[test]
fn files_that_are_no_handlers() {
    let noop = fs::read(guest("test-noop")).expect("readable");
    let contract = |from: &[u8], to: &[u8]| {
        let mut bytes = noop.clone();
        for at in 0..=bytes.len() - from.len() {
            if bytes[at..].starts_with(from) {
                bytes[at..at + to.len()].copy_from_slice(to);
            }
        }
        bytes
    };
    let cases: [(&str, Vec<u8>); 5] = [
        ("a text", b"hello\n".to_vec()),
        ("half a file", noop[..noop.len() / 2].to_vec()),
        ("another world", b"\0asm\x0d\0\x01\0".to_vec()),
        ("another version of the contract", contract(b"@0.1.0", b"@0.9.0")),
        ("a grant that is missing", fs::read(guest("test-ledger")).expect("readable")),
    ];
    let toml = CONFIG.replace("grant = [\"state\"]", "");
    for (what, bytes) in cases {
        let place = Place::new(&toml, &[]);
        fs::write(place.handler("ledger"), bytes).expect("written");
        let check = place.sprag(&["check"]);
        assert_eq!(check.code, Some(1), "{what}: {check:?}");
        let said = format!("{}{}", check.stdout, check.stderr);
        assert!(said.contains("ledger") && !said.contains("panicked"), "{what}: {check:?}");
        if what.starts_with("a grant") {
            assert!(said.contains("state") && said.contains("grant"), "{what}: {check:?}");
        }
        let mut host = place.spawn(&["run"]);
        until("the host is there", PATIENCE, || host.found().then_some(()));
        let reasons = until("the file is refused", PATIENCE, || {
            let answer = host.api().get("/readyz").ok()?;
            (answer.status == 503 && answer.json.to_string().contains("refused")).then(|| answer.json.to_string())
        });
        assert!(reasons.contains("ledger"), "{what}: {reasons}");
        alive(&host);
        // A message waits for its handler instead of failing.
        host.send("work", &[json!({ "id": "e", "session": "s", "body": "ok" })]);
        assert_eq!(host.stop(), Some(0), "{what}");
    }
}

#[test]
fn configurations_with_mistakes_are_refused_with_the_nearest_name() {
    for (toml, place_in_file, advice) in [
        ("[host]\nconsol = \"127.0.0.1:0\"\n", "sprag.toml:2:1", "did you mean `console`?"),
        ("[[queue]]\nname = \"a\"\nrequire_session = true\n", "sprag.toml:3:1", "did you mean `requires_session`?"),
        (
            "[[queue]]\nname = \"orders\"\n[[endpoint]]\nname = \"a\"\nsource = { queue = \"order\" }\n",
            "sprag.toml:5",
            "did you mean \"orders\"?",
        ),
        ("[host]\nshutdown_grace = 30\n", "sprag.toml:2", "30s"),
        ("[host\n", "sprag.toml:1", "SPR0101"),
    ] {
        let place = Place::new(toml, &[]);
        for verb in ["run", "check", "dev"] {
            let ended = place.sprag(&[verb]);
            let said = format!("{}{}", ended.stdout, ended.stderr);
            assert_eq!(ended.code, Some(78), "{verb} with {toml:?}: {said}");
            assert!(said.contains(place_in_file) && said.contains(advice), "{verb} with {toml:?}: {said}");
        }
        assert!(!place.path().join(".sprag").exists(), "a refused configuration leaves nothing behind");
    }
}

#[test]
fn a_port_that_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let place = Place::new(&CONFIG.replace("127.0.0.1:0", &address), &[]);
    let ended = place.sprag(&["run"]);
    refused(&ended, 1, &address);
    assert!(ended.stderr.contains("SPR0402") && ended.stderr.contains("--console"), "{ended:?}");
    drop(taken);
    assert!(!place.path().join(".sprag/host.json").exists());
    let mut host = place.spawn(&["run"]);
    until("a host on the port that is free again", PATIENCE, || host.found().then_some(()));
    assert_eq!(host.stop(), Some(0));
}

/// A61: one process per data folder, whatever the folder is called; no cleaning up after a kill.
#[test]
fn a_second_host_on_the_folder_names_the_first() {
    let place = place();
    let first = place.run();
    let link = tempfile::tempdir().expect("a folder");
    symlink(place.path(), link.path().join("other")).expect("a link");
    let by_link = link.path().join("other/sprag.toml");
    for args in [
        vec!["run"],
        vec!["dev", ".", "--console", "127.0.0.1:0"],
        vec!["run", "--config", by_link.to_str().expect("UTF-8")],
    ] {
        let began = Instant::now();
        let ended = place.sprag(&args);
        let took = began.elapsed();
        refused(&ended, 73, &first.pid().to_string());
        assert!(took < Duration::from_secs(2), "{args:?} took {took:?}");
    }
    alive(&first);
    place.sprag(&["send", "work", "--session", "s", "--id", "still", "--type", "T", "--body", "ok"]).done();
    first.outcome("still", "completed");
    first.kill();
    let third = place.run();
    third.outcome("still", "completed");
    assert_eq!(third.stop(), Some(0));
}

/// A mounted file system that goes away with this value.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    /// None where this user may not mount, which the caller has to say.
    fn tmpfs(at: &'a Path, size: &str) -> Option<Self> {
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "sprag-test"]).arg(at).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(at))
    }

    fn options(&self, options: &str) {
        let status = Command::new("mount")
            .args(["-o", &format!("remount,{options}")])
            .arg(self.0)
            .status()
            .expect("mount is there");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

/// A60: the disk is full. What does not fit is refused and said; what was accepted is there after a restart.
#[test]
fn a_full_disk_refuses_sends_and_loses_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let _disk = Mounted::tmpfs(dir.path(), "24m").expect("a small file system can be mounted: run the tests as root");
    let toml = CONFIG.replace("name = \"tally\"\n", "name = \"tally\"\n\n[[queue]]\nname = \"box\"\n");
    let place = Place::at(dir.path(), &toml, &[("test-ledger", "ledger")]);
    // Room that can be made again later.
    let ballast = dir.path().join("ballast");
    fs::write(&ballast, vec![1; 8 << 20]).expect("fits");
    let host = place.run();
    let body = "x".repeat(200 << 10);
    let mut accepted = Vec::new();
    let refusal = loop {
        let id = format!("m{}", accepted.len());
        let answer = host.api().send("box", &[json!({ "id": id, "body": body })]).expect("the host answers");
        if answer.status != 200 {
            break answer;
        }
        accepted.push(id);
        assert!(accepted.len() < 200, "24 MiB hold no more than that");
    };
    assert!([503, 507].contains(&refusal.status), "{refusal:?}");
    assert!(refusal.json["code"].as_str().is_some_and(|code| code.starts_with("SPR")), "{refusal:?}");
    assert!(accepted.len() > 10, "{accepted:?}");
    let by_verb = place.sprag(&["send", "box", "--id", "verb", "--body", &"y".repeat(100 << 10)]);
    assert_ne!(by_verb.code, Some(0), "refused, not acknowledged: {by_verb:?}");
    assert!(by_verb.stderr.contains("[SPR0"), "{by_verb:?}");
    alive(&host);
    assert_eq!(host.items("/api/endpoints").len(), 1, "it can still be asked");
    fs::remove_file(&ballast).expect("removed");
    drop(host);

    let host = place.run();
    let db = rusqlite::Connection::open_with_flags(place.database(), rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY)
        .expect("opens");
    let integrity: String = db.query_row("PRAGMA integrity_check", (), |row| row.get(0)).expect("readable");
    assert_eq!(integrity, "ok");
    let mut found = Vec::new();
    let mut after = String::new();
    loop {
        let page = host.get(&format!("/api/peek?entity=box&limit=20{after}"));
        found.extend(
            page["items"]
                .as_array()
                .expect("a listing")
                .iter()
                .map(|it| it["message_id"].as_str().expect("an id").to_owned()),
        );
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    found.retain(|id| id != "verb" && *id != format!("m{}", accepted.len()));
    assert_eq!(found, accepted, "every accepted message, in order");
    host.send("work", &[json!({ "id": "again", "session": "s", "body": "ok" })]);
    host.outcome("again", "completed");
    assert_eq!(host.stop(), Some(0));
}

#[test]
fn a_folder_that_cannot_be_written() {
    let dir = tempfile::tempdir().expect("a folder");
    let disk = Mounted::tmpfs(dir.path(), "4m").expect("a small file system can be mounted: run the tests as root");
    let place = Place::at(dir.path(), CONFIG, &[("test-ledger", "ledger")]);
    disk.options("ro");
    let ended = place.sprag(&["run"]);
    refused(&ended, 1, "[SPR0403]");
    assert!(ended.stderr.contains(".sprag") && ended.stderr.contains("ead-only"), "{ended:?}");
}

fn active(host: &Host, event: &str) {
    // What is in hand counts as active, and so does what waits behind it.
    until(event, PATIENCE, || {
        host.get("/api/endpoints")["items"][0]["active"].as_u64().is_some_and(|n| n > 0).then_some(())
    });
    // Handed over; the run begins within this time, and if not, the stop waits all the same.
    pass(Duration::from_millis(200));
}

/// A09: a stop in the middle of a run lets it end and settles it.
#[test]
fn a_stop_waits_for_what_runs() {
    let place = place();
    let host = place.run();
    host.send(
        "work",
        &[
            json!({ "id": "long", "session": "s", "body": "ok+2500" }),
            json!({ "id": "later", "session": "s", "body": "ok" }),
        ],
    );
    active(&host, "long");
    let began = Instant::now();
    assert_eq!(host.stop(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    let host = place.run();
    let long = host.outcome("long", "completed");
    assert_eq!(
        (&long["attempts"], &long["duplicates"]),
        (&json!(1), &json!(0)),
        "it ended, was recorded and did not run again: {long}"
    );
    host.outcome("later", "completed");
    assert_eq!(host.stop(), Some(0));
}

/// A70: a handler that hangs in a host call does not hang the exit.
#[test]
fn a_handler_that_hangs_does_not_hang_the_exit() {
    let toml = CONFIG
        .replace("ledger", "wasi")
        .replace("10s", "1s")
        .replace("grant = [\"state\"]", "limits = { time = \"10m\" }");
    let place = Place::new(&toml, &[("test-wasi", "wasi")]);
    let mut host = place.run();
    host.send("work", &[json!({ "id": "stuck-17", "session": "s", "type": "wasi", "body": "sleep" })]);
    active(&host, "stuck-17");
    let began = Instant::now();
    host.signal(libc::SIGTERM).expect("the host is there");
    let status = host.wait(PATIENCE);
    let took = began.elapsed();
    assert_eq!(status.code(), Some(1));
    assert!(took < Duration::from_secs(3), "grace and two seconds: {took:?}");
    let said = host.log();
    assert!(said.contains("stuck-17") && said.contains("SPR0404"), "{said}");
}

/// Nothing that is piped has colours.
#[test]
fn no_colours_when_piped() {
    let place = place();
    let host = place.dev();
    for (id, body) in [("good", "ok"), ("bad", "never")] {
        host.send("work", &[json!({ "id": id, "session": id, "body": body })]);
    }
    host.outcome("good", "completed");
    host.outcome("bad", "failed");
    until("the line about the failure", PATIENCE, || host.log().contains("bad").then_some(()));
    for args in [
        &["events"][..],
        &["events", "show", "bad"],
        &["sessions", "--blocked"],
        &["handlers"],
        &["endpoints"],
        &["audit"],
        &["explain", "SPR0101"],
        &["nothing"],
        &["check"],
    ] {
        let ended = place.sprag(args);
        assert!(!ended.stdout.contains('\u{1b}') && !ended.stderr.contains('\u{1b}'), "{args:?}: {ended:?}");
    }
    assert!(!host.log().contains('\u{1b}'), "{}", host.log());
    assert_eq!(host.stop(), Some(0));
}

/// A verb whose reader goes away ends quietly.
#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = place();
    let host = place.run();
    for n in 0..200 {
        host.send("work", &[json!({ "id": format!("e{n}"), "session": "s", "body": "ok" })]);
    }
    host.outcome("e199", "completed");
    let mut child = place
        .command(&["events", "--limit", "200"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("starts");
    drop(child.stdout.take());
    let ended = child.wait_with_output().expect("ends");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!said.contains("panicked"), "{said}");
    assert_eq!(host.stop(), Some(0));
}

/// The key that signs the host's messages is not replaced silently when it is damaged.
#[test]
fn an_empty_control_key_is_named() {
    let place = place();
    assert_eq!(place.run().stop(), Some(0));
    let key = place.path().join(".sprag/control.key");
    File::create(&key).and_then(|mut file| file.write_all(b"")).expect("emptied");
    refused(&place.sprag(&["run"]), 1, "control.key");
}
