//! The operator's way, as `docs/operate.md` tells it: with the verbs, against the real process.

use std::{fs, time::Duration};

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
concurrency = 8

[handler.ledger]
grant = ["state"]
"#;

fn place() -> Place {
    Place::new(CONFIG, &[("test-ledger", "ledger")])
}

fn message(id: &str, session: &str, body: &str) -> Value {
    json!({ "id": id, "session": session, "type": "Work", "body": body })
}

fn ids(listing: &Value) -> Vec<String> {
    listing["items"]
        .as_array()
        .expect("a listing")
        .iter()
        .map(|it| it["event_id"].as_str().expect("an event").to_owned())
        .collect()
}

/// The events of a session in the order in which the handler's runs counted.
fn log(place: &Place, session: &str) -> Vec<String> {
    let db = rusqlite::Connection::open_with_flags(place.database(), rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY)
        .expect("opens");
    let value = db.query_row("SELECT value FROM state WHERE key = ?1", [format!("log/{session}")], |row| {
        row.get::<_, Vec<u8>>(0)
    });
    String::from_utf8(value.unwrap_or_default()).expect("text").lines().map(str::to_owned).collect()
}

fn parked(host: &Host, session: &str, count: usize) {
    until("they are parked", PATIENCE, || {
        (host.items(&format!("/api/parked?session={session}&limit=1000")).len() == count).then_some(())
    });
}

/// "A customer's messages stand still": what one sees, and what one does.
#[test]
fn a_failing_event_blocks_and_is_resubmitted_with_another_body() {
    let place = place();
    let host = place.run();
    host.send(
        "work",
        &[
            message("a1", "anna", "ok"),
            message("a2", "anna", "never"),
            message("a3", "anna", "ok"),
            message("a4", "anna", "ok"),
        ],
    );
    host.send("work", &[message("b1", "ben", "ok")]);
    host.outcome("a2", "failed");
    host.outcome("b1", "completed");
    parked(&host, "anna", 2);

    let blocked = place.sprag(&["sessions", "--blocked", "--json"]).done().json();
    assert_eq!(blocked["items"].as_array().map(Vec::len), Some(1), "{blocked}");
    assert_eq!(blocked["items"][0]["session"], "anna");
    assert_eq!(
        (&blocked["items"][0]["blocked_by"]["event_id"], &blocked["items"][0]["parked"]),
        (&json!("a2"), &json!(2))
    );
    let table = place.sprag(&["sessions", "--blocked"]).done().stdout;
    assert!(table.contains("anna") && table.contains("a2"), "{table}");
    assert_eq!(
        ids(&place.sprag(&["parked", "--session", "anna", "--json"]).done().json()),
        ["a3", "a4"],
        "in their order"
    );
    let shown = place.sprag(&["events", "show", "a2", "--json"]).done().json();
    assert_eq!(
        (&shown["outcome"], &shown["error"]["kind"], &shown["message"]["body"]),
        (&json!("failed"), &json!("never"), &json!("never"))
    );
    assert_eq!(shown["history"].as_array().map(Vec::len), Some(1), "{shown}");
    let text = place.sprag(&["events", "show", "a2"]).done().stdout;
    assert!(text.contains("as it is, this event fails"), "{text}");
    assert_eq!(ids(&place.sprag(&["events", "--outcome", "failed", "--json"]).done().json()), ["a2"]);

    fs::write(place.path().join("fixed"), "ok").expect("written");
    place.sprag(&["resubmit", "a2", "--body", "@fixed", "--reason", "the body was wrong"]).done();
    for event in ["a2", "a3", "a4"] {
        host.outcome(event, "completed");
    }
    assert_eq!(log(&place, "anna"), ["a1", "a2", "a3", "a4"], "in order, as if nothing had happened");
    assert!(
        place.sprag(&["sessions", "--blocked", "--json"]).done().json()["items"].as_array().is_some_and(Vec::is_empty)
    );

    let audit = place.sprag(&["audit", "--json"]).done().json();
    let line = &audit["items"][0];
    assert_eq!(
        (&line["verb"], &line["target"], &line["reason"]),
        (&json!("resubmit"), &json!("a2"), &json!("the body was wrong")),
        "{line}"
    );
    assert_eq!(line["by"], "olga");
    assert!(line["at"].as_str().is_some_and(|at| at.ends_with('Z')), "{line}");
    let text = place.sprag(&["audit"]).done().stdout;
    assert!(text.contains("olga") && text.contains("resubmit") && text.contains("the body was wrong"), "{text}");
    assert_eq!(host.stop(), Some(0));
}

/// A37: a group has a cut-off; what fails later stays.
#[test]
fn a_group_is_resubmitted_up_to_its_cut_off() {
    let place = place();
    let host = place.run();
    let send = |from: usize, to: usize| {
        let messages: Vec<Value> = (from..to).map(|n| message(&format!("g{n}"), &format!("g{n}"), "once")).collect();
        host.send("work", &messages);
        for n in from..to {
            host.outcome(&format!("g{n}"), "failed");
        }
    };
    send(0, 10);
    host.send("work", &[message("other", "other", "never")]);
    host.outcome("other", "failed");
    let groups = place.sprag(&["events", "groups", "--json"]).done().json();
    let groups = groups.as_array().or_else(|| groups["items"].as_array()).expect("groups").clone();
    let group = groups.iter().find(|group| group["kind"] == "once").expect("a group of these failures");
    assert_eq!(group["count"], 10, "{groups:?}");
    let key = group["key"].as_str().expect("a key");
    let dry = place.sprag(&["resubmit", "--group", key, "--dry-run", "--json"]).done().json();
    assert_eq!(
        (&dry["count"], &dry["accepted"], dry["events"].as_array().map(Vec::len)),
        (&json!(10), &json!(0), Some(10)),
        "{dry}"
    );
    let cut_off = dry["cut_off"].as_str().expect("a cut-off");
    assert_eq!(host.items("/api/events?outcome=failed").len(), 11, "a dry run touches nothing");
    pass(Duration::from_millis(5));
    send(10, 15);
    let done = place.sprag(&["resubmit", "--group", key, "--until", cut_off, "--reason", "mended", "--json"]).done();
    let json = done.json();
    assert_eq!((&json["accepted"], &json["cut_off"]), (&json!(10), &json!(cut_off)), "{json}");
    assert!(done.stderr.contains("10 of 10 failures until") && done.stderr.contains(cut_off), "{done:?}");
    for n in 0..10 {
        host.outcome(&format!("g{n}"), "completed");
    }
    let mut left = ids(&host.get("/api/events?outcome=failed"));
    left.sort();
    assert_eq!(left, ["g10", "g11", "g12", "g13", "g14", "other"], "exactly the ten were touched");
    let line =
        host.items("/api/audit").into_iter().find(|line| line["verb"] == "resubmit-group").expect("an audit entry");
    assert_eq!((&line["count"], &line["by"], &line["reason"]), (&json!(10), &json!("olga"), &json!("mended")));
    assert_eq!(host.stop(), Some(0));
}

/// A39: killed in the middle of a group. It goes on by itself, and the same request again does not resubmit what is done.
#[test]
fn a_kill_in_the_middle_of_a_group() {
    let place = place();
    let host = place.run();
    let messages: Vec<Value> = (0..200).map(|n| message(&format!("k{n}"), &format!("k{n}"), "once")).collect();
    host.send("work", &messages);
    for n in 0..200 {
        host.outcome(&format!("k{n}"), "failed");
    }
    let key = host.items("/api/groups")[0]["key"].as_str().expect("a key").to_owned();
    let path = format!("/api/groups/{key}/resubmit");
    // The cut-off goes with the request, so that a repeat means the same.
    let now = host.api().post(&path, "dry", &json!({ "dry_run": true })).expect("answers").ok()["cut_off"].clone();
    let request = json!({ "reason": "mended", "until": now });
    let first = host.api().post(&path, "the-group", &request).expect("answers").ok();
    assert_eq!(first["accepted"], 200, "{first}");
    until("some are done", PATIENCE, || {
        (host.items("/api/events?outcome=completed&limit=1000").len() >= 20).then_some(())
    });
    host.kill();

    let host = place.run();
    // Whatever it answers, it starts nothing a second time.
    let again = host.api().post(&path, "the-group", &request).expect("answers");
    assert!(again.status < 500, "{again:?}");
    for n in 0..200 {
        let event = host.outcome(&format!("k{n}"), "completed");
        assert_eq!(log(&place, &format!("k{n}")), [format!("k{n}")], "{event}");
    }
    until("no action is left open", PATIENCE, || {
        host.items("/api/audit").iter().all(|line| line["actions"]["open"] == 0).then_some(())
    });
    assert!(host.items("/api/sessions?blocked=true").is_empty());
    assert_eq!(host.stop(), Some(0));
}

/// A43, A38: a whole session is skipped, another is left alone; what is skipped is not resubmitted by accident.
#[test]
fn a_session_beyond_saving() {
    let place = place();
    let host = place.run();
    let mut messages = vec![message("s0", "S", "never")];
    messages.extend((1..=40).map(|n| message(&format!("s{n}"), "S", "ok")));
    messages.push(message("t0", "T", "never"));
    messages.extend((1..=3).map(|n| message(&format!("t{n}"), "T", "ok")));
    host.send("work", &messages);
    parked(&host, "S", 40);
    parked(&host, "T", 3);
    let dry = place.sprag(&["skip-session", "S", "--reason", "customer is gone", "--dry-run", "--json"]).done().json();
    assert_eq!((&dry["parked"], &dry["blocked_by"], &dry["action"]), (&json!(40), &json!("s0"), &Value::Null), "{dry}");
    place.sprag(&["skip-session", "S", "--reason", "customer is gone"]).done();
    for n in 0..=40 {
        let event = host.outcome(&format!("s{n}"), "skipped");
        assert!(event["reason"].as_str().is_some_and(|reason| reason.contains("customer is gone")), "{event}");
        let by = event["history"].as_array().expect("history").iter().any(|line| line["by"] == "olga");
        assert!(by, "who did it stands in the history: {event}");
    }
    let sessions = host.items("/api/sessions?blocked=true");
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    assert_eq!((&sessions[0]["session"], &sessions[0]["parked"]), (&json!("T"), &json!(3)), "T is as it was");
    let lines: Vec<Value> =
        host.items("/api/audit").into_iter().filter(|line| line["verb"] == "skip-session").collect();
    assert_eq!(lines.len(), 1, "one entry for all of it: {lines:?}");
    assert_eq!(
        (&lines[0]["target"], &lines[0]["by"], &lines[0]["reason"]),
        (&json!("S"), &json!("olga"), &json!("customer is gone"))
    );
    // The session is usable.
    host.send("work", &[message("s41", "S", "ok")]);
    host.outcome("s41", "completed");
    assert_eq!(log(&place, "S"), ["s41"]);

    let conflict = place.sprag(&["resubmit", "s7"]);
    assert_eq!(conflict.code, Some(1), "{conflict:?}");
    assert!(
        conflict.stderr.contains("skipped since")
            && conflict.stderr.contains("customer is gone")
            && conflict.stderr.contains("[SPR0203]"),
        "{conflict:?}"
    );
    assert_eq!(host.outcome("s7", "skipped")["open_action"], Value::Null, "no promise that is not kept");
    // On purpose it can be done, as a new event.
    place.sprag(&["resubmit", "s7", "--again", "--body", "ok", "--reason", "she is back"]).done();
    host.outcome("s7", "completed");
    // One event alone.
    place.sprag(&["skip", "t0", "--reason", "a test"]).done();
    for n in 1..=3 {
        host.outcome(&format!("t{n}"), "completed");
    }
    assert_eq!(log(&place, "T"), ["t1", "t2", "t3"]);
    assert_eq!(host.stop(), Some(0));
}

/// A46: what is scheduled can be found, by a host that has just started too, and taken back.
#[test]
fn what_is_scheduled_survives_a_restart_and_can_be_cancelled() {
    let retry = "inbox = { mode = \"record\" }\nretry = { strategy = \"fixed\", base = \"1h\", max = \"2h\", attempts = 3, jitter = \"none\" }";
    let place = Place::new(&CONFIG.replace("inbox = { mode = \"record\" }", retry), &[("test-ledger", "ledger")]);
    let host = place.run();
    for n in 0..3 {
        host.send("work", &[message(&format!("r{n}"), &format!("r{n}"), "once")]);
        host.outcome(&format!("r{n}"), "failed");
    }
    place
        .sprag(&[
            "send",
            "work",
            "--id",
            "later",
            "--session",
            "later",
            "--type",
            "Work",
            "--body",
            "ok",
            "--at",
            "10h",
        ])
        .done();
    host.kill();
    let host = place.run();
    let listing = place.sprag(&["scheduled", "--json"]).done().json();
    let mut seen = ids(&listing);
    seen.sort();
    assert_eq!(seen, ["later", "r0", "r1", "r2"], "{listing}");
    let of = |event: &str| {
        listing["items"]
            .as_array()
            .expect("a listing")
            .iter()
            .find(|it| it["event_id"] == event)
            .expect("listed")
            .clone()
    };
    let retry = of("r1");
    assert_eq!(
        (&retry["endpoint"], &retry["session"], &retry["kind"], &retry["attempt"]),
        (&json!("work"), &json!("r1"), &json!("retry"), &json!(1)),
        "{retry}"
    );
    assert!(retry["due_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{retry}");
    assert_eq!(of("later")["kind"], "event");
    for event in ["r1", "later"] {
        let number = of(event)["sequence_number"].to_string();
        place.sprag(&["scheduled", "cancel", "work", &number]).done();
        let again = place.sprag(&["scheduled", "cancel", "work", &number]);
        assert_eq!(again.code, Some(1), "{again:?}");
        assert!(again.stderr.contains(&number), "it repeats the number (A47): {again:?}");
    }
    assert_eq!(ids(&host.get("/api/scheduled")).len(), 2);
    host.outcome("r1", "failed");
    place.sprag(&["resubmit", "r1"]).done();
    host.outcome("r1", "completed");
    assert_eq!(host.stop(), Some(0));
}

/// "Dead letters rise": what expired while its handler was away is replayed once it is back.
#[test]
fn dead_letters_are_replayed() {
    let expiring = "requires_session = true\nttl = \"1s\"\ndead_letter_on_expiry = true";
    let place = Place::new(&CONFIG.replace("requires_session = true", expiring), &[]);
    let mut host = place.spawn(&["dev", "."]);
    until("the host is there", PATIENCE, || host.found().then_some(()));
    host.send("work", &[message("d1", "d", "ok")]);
    let listing = until("it has expired", PATIENCE, || {
        let listing = place.sprag(&["dead-letters", "--json"]).done().json();
        (!listing["items"].as_array()?.is_empty()).then_some(listing)
    });
    let letter = &listing["items"][0];
    assert_eq!((&letter["event_id"], &letter["entity"]), (&json!("d1"), &json!("work")), "{letter}");
    assert!(letter["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{letter}");
    let fresh = place.path().join("fresh.wasm");
    fs::copy(guest("test-ledger"), &fresh).expect("copied");
    fs::rename(&fresh, place.handler("ledger")).expect("renamed");
    host.ready();
    place.sprag(&["dead-letters", "replay", "work", "--all"]).done();
    host.outcome("d1", "completed");
    assert!(host.items("/api/dead-letters").is_empty());
    let audit = host.items("/api/audit");
    assert!(audit.iter().any(|line| line["verb"].as_str().is_some_and(|verb| verb.contains("replay"))), "{audit:?}");
    assert_eq!(host.stop(), Some(0));
}

/// The outcome of competing actions: one takes effect, the other is told.
#[test]
fn of_two_actions_one_takes_effect() {
    let place = place();
    let host = place.run();
    host.send("work", &[message("c1", "c", "once"), message("c2", "c", "ok")]);
    host.outcome("c1", "failed");
    let skip = place.sprag(&["skip", "c1", "--reason", "first", "--no-wait", "--json"]).done().json();
    let second = place.sprag(&["resubmit", "c1"]);
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.stderr.contains("SPR0203") || second.stderr.contains("conflict"), "{second:?}");
    let action = host.get(&format!("/api/actions/{}?wait=20s", skip["id"]));
    assert_eq!(action["state"], "applied", "{action}");
    host.outcome("c1", "skipped");
    host.outcome("c2", "completed");
    assert_eq!(log(&place, "c"), ["c2"]);
    assert_eq!(host.stop(), Some(0));
}
