//! The command as a person or a script meets it: exit codes, messages, what goes where.

mod support;

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use serde_json::json;
use support::{Host, refused, sprag, sprag_with};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn usage_is_exit_2_and_help_has_examples() {
    let folder = folder();
    assert_eq!(sprag(folder.path(), &["frobnicate"]).exit, 2);
    assert_eq!(sprag(folder.path(), &["send"]).exit, 2);
    let typo = sprag(folder.path(), &["event"]);
    assert!(typo.exit == 2 && typo.err.contains("events"), "{typo:?}");
    let help = sprag(folder.path(), &["send", "--help"]);
    assert!(help.exit == 0 && help.out.contains("Examples:"), "{help:?}");
    let outcome = sprag(folder.path(), &["events", "--outcome", "compleet"]);
    assert!(outcome.exit == 2 && outcome.err.contains("did you mean completed?"), "{outcome:?}");
}

#[test]
fn without_a_host_the_verbs_say_try_again() {
    let folder = folder();
    for args in [&["events"][..], &["sessions"], &["send", "q"], &["resubmit", "e"], &["handlers", "--json"]] {
        let said = sprag(folder.path(), args);
        refused(&said, 75, &["there is no .sprag/host.json", "SPR0301", "sprag dev"]);
        assert!(said.out.is_empty(), "{said:?}");
    }
    refused(
        &sprag(folder.path(), &["events", "--host", "127.0.0.1:1", "--token", "t"]),
        75,
        &["no host answers at http://127.0.0.1:1"],
    );
    refused(&sprag(folder.path(), &["events", "--host", "127.0.0.1:1"]), 2, &["there is no token for", "SPR0302"]);
}

#[test]
fn a_wrong_configuration_is_exit_78_with_line_and_suggestion() {
    let folder = folder();
    fs::write(
        folder.path().join("sprag.toml"),
        "[host]\nconsol = \"127.0.0.1:0\"\n[[queue]]\nname = \"q\"\nlock_duration = \"10\"\n",
    )
    .expect("written");
    for args in [&["check"][..], &["run"], &["dev"]] {
        let said = sprag(folder.path(), args);
        assert_eq!(said.exit, 78, "{said:?}");
        assert!(
            said.err.contains("sprag.toml:2:1: unknown key `consol` in [host]; did you mean `console`?"),
            "{said:?}"
        );
        assert!(
            said.err.contains("sprag.toml:5:17: `lock_duration` in [[queue]] \"q\": \"10\" is not a duration"),
            "{said:?}"
        );
    }
    let said = sprag(folder.path(), &["check", "--json"]);
    let first = &said.json()[0];
    assert_eq!((said.exit, json!([first["line"], first["code"]])), (78, json!([2, "SPR0102"])));
    assert_eq!(sprag(folder.path(), &["run", "--config", "nowhere.toml"]).exit, 78);
}

#[test]
fn check_names_missing_handlers_and_short_retention() {
    let folder = folder();
    let text = "[[queue]]\nname = \"q\"\nttl = \"30d\"\n[[endpoint]]\nname = \"e\"\nsource = { queue = \"q\" }\nhandlers = [\"payment\"]\ninbox = { retention = \"1h\" }\n";
    fs::write(folder.path().join("sprag.toml"), text).expect("written");
    let handlers = folder.path().join("handlers");
    fs::create_dir(&handlers).expect("a folder");
    fs::write(handlers.join("text.wasm"), "this is no component").expect("written");
    let said = sprag(folder.path(), &["check"]);
    assert_eq!(said.exit, 1, "{said:?}");
    for part in [
        "text.wasm: this is not WebAssembly",
        "endpoint \"e\" would take no messages: not loaded: payment",
        "its inbox forgets after 1h",
        "SPR0405",
    ] {
        assert!(said.err.contains(part), "{part}: {said:?}");
    }
}

#[test]
fn explain_knows_every_code() {
    let folder = folder();
    let one = sprag(folder.path(), &["explain", "spr0102"]);
    assert!(one.exit == 0 && one.out.starts_with("# SPR0102: unknown key"), "{one:?}");
    refused(&sprag(folder.path(), &["explain", "SPRXXXX"]), 2, &["there is no code SPRXXXX"]);
    assert!(sprag(folder.path(), &["explain"]).out.lines().count() > 20);
}

#[test]
fn doctor_says_what_is_here() {
    let folder = folder();
    let said = sprag(folder.path(), &["doctor", "--json"]);
    let findings = said.json();
    let names: Vec<&str> =
        findings.as_array().expect("a list").iter().filter_map(|finding| finding["name"].as_str()).collect();
    for name in ["kernel", "instance pool", "disk", "fsync", "port", "host", "Rust"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
}

#[test]
fn a_host_is_found_sent_to_and_stopped() {
    let host = Host::start();
    let entity = host.entity();
    let queue = entity.as_str();
    let file = host.path().join(".sprag/host.json");
    assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);

    let sent = host.run(&[
        "send",
        queue,
        "--session",
        "s1",
        "--type",
        "T",
        "--id",
        "m1",
        "--body",
        "{}",
        "--header",
        "tenant=acme",
        "--json",
    ]);
    assert_eq!(sent.exit, 0, "{sent:?}");
    assert_eq!(sent.json()["message_id"], "m1");
    assert!(sent.json()["sequence_number"].is_i64(), "{sent:?}");

    let peeked = host.run(&["peek", queue, "--json"]).json();
    assert_eq!(peeked["items"][0]["message_id"], "m1");
    assert_eq!(peeked["items"][0]["headers"]["tenant"], "acme");
    assert_eq!(peeked["items"][0]["headers"]["EventTypeId"], "T");

    // Case A46: what is scheduled can be found and cancelled.
    let later = host.run(&["send", queue, "--session", "s1", "--id", "m2", "--at", "1h", "--json"]);
    assert_eq!(later.exit, 0, "{later:?}");
    let scheduled = host.run(&["scheduled", "--json"]).json();
    assert_eq!(scheduled["items"][0]["event_id"], "m2");
    assert_eq!(scheduled["items"][0]["session"], "s1");
    let number = scheduled["items"][0]["sequence_number"].to_string();
    assert_eq!(host.run(&["scheduled", "cancel", queue, &number]).exit, 0);
    assert_eq!(host.run(&["scheduled", "--json"]).json()["items"], json!([]));
    refused(&host.run(&["scheduled", "cancel", queue, &number]), 1, &["SPR0201"]);

    // Rule P27: an endpoint without handlers takes nothing, and says so.
    let endpoints = host.run(&["endpoints", "--json"]).json();
    assert_eq!(endpoints["items"][0]["state"], "paused");
    assert_eq!(endpoints["items"][0]["active"], 1);
    assert_eq!(endpoints["items"][0]["reasons"][0], "no handler is loaded");

    let (exit, said, folder) = host.end("-TERM");
    assert_eq!(exit, Some(0), "{said}");
    assert!(!folder.path().join(".sprag/host.json").exists(), "gone after a clean stop");

    // What was acknowledged is there at the next start.
    let host = Host::in_folder(folder);
    assert_eq!(host.run(&["peek", queue, "--json"]).json()["items"][0]["message_id"], "m1");
    let (exit, said, _) = host.end("-INT");
    assert_eq!(exit, Some(0), "{said}");
}

/// Case A82.
#[test]
fn looking_at_nothing_is_an_empty_list() {
    let host = Host::start();
    let entity = host.entity();
    let queue = entity.as_str();
    for args in [
        &["peek", queue, "--json"][..],
        &["peek", queue, "--part", "dead-letters", "--json"],
        &["peek", queue, "--after", "0:999999", "--json"],
        &["events", "--json"],
        &["events", "groups", "--json"],
        &["sessions", "--json"],
        &["parked", "--json"],
        &["dead-letters", "--json"],
        &["inbox", "--json"],
        &["audit", "--json"],
        &["outbox", "--json"],
    ] {
        let said = host.run(args);
        assert_eq!((said.exit, said.json()), (0, json!({ "items": [], "next": null })), "{args:?}: {said:?}");
    }
    let table = host.run(&["events"]);
    assert!(table.exit == 0 && table.out.is_empty() && table.err.contains("no events"), "{table:?}");
}

#[test]
fn each_bad_message_has_one_clear_error_and_nothing_is_sent() {
    let host = Host::start();
    let entity = host.entity();
    let queue = entity.as_str();
    let big = host.path().join("big");
    fs::write(&big, vec![b'x'; 10 << 20]).expect("written");
    let huge = host.path().join("huge");
    fs::write(&huge, vec![b'x'; 17 << 20]).expect("written");
    let bytes = host.path().join("bytes");
    fs::write(&bytes, [b'a', 0xff]).expect("written");
    let long = "x".repeat(600);
    for (args, parts) in [
        (&["send", queue, "--session", "s", "--body", "@big"][..], &["1048576"][..]),
        (&["send", queue, "--session", "s", "--body", "@huge"][..], &["larger than 16 MiB"][..]),
        (&["send", queue, "--session", "s", "--body", "@bytes"][..], &["not UTF-8 text (byte 1)", "--binary"][..]),
        (&["send", queue, "--session", "s", "--body", "@nowhere"][..], &["cannot read the body from nowhere"][..]),
        (&["send", queue, "--session", "s", "--id", "a\u{7}b"][..], &["control characters"][..]),
        (&["send", queue, "--session", "s", "--id", long.as_str()][..], &["600 UTF-16 units"][..]),
        (&["send", queue, "--session", long.as_str()][..], &["`session` has 600 UTF-16 units"][..]),
        (&["send", queue, "--session", "s", "--header", "novalue"][..], &["is not K=V"][..]),
        (&["send", queue, "--session", "s", "--header", "InboxMessageId=m1"][..], &["reserved for the host"][..]),
        (
            &["send", queue, "--session", "s", "--header", "MessageType=RetryRequest"][..],
            &["reserved for the host"][..],
        ),
        (&["send", queue][..], &["session"][..]),
    ] {
        refused(&host.run(args), 2, parts);
    }
    refused(&host.run(&["send", "nowhere", "--session", "s"]), 1, &["nowhere", "SPR0201"]);
    assert_eq!(host.run(&["peek", queue, "--json"]).json()["items"], json!([]));
    let binary = host.run(&["send", queue, "--session", "s", "--body", "@bytes", "--binary"]);
    assert_eq!(binary.exit, 0, "{binary:?}");
    assert_eq!(host.run(&["peek", queue, "--json"]).json()["items"][0]["body_base64"], "Yf8=");
}

fn write_lines(folder: &Path, lines: &[&[u8]]) {
    fs::write(folder.join("lines"), lines.join(&b'\n')).expect("written");
}

#[test]
fn lines_are_sent_in_batches_and_bad_ones_are_named() {
    let host = Host::start();
    let entity = host.entity();
    let queue = entity.as_str();
    write_lines(
        &host.path(),
        &[
            br#"{"type":"A","id":"1","session":"s","body":{"n":1}}"#,
            b"",
            br#"{"specversion":"1.0","type":"B","source":"/x","id":"2","sessionid":"s","data":{"n":2}}"#,
            b"{nonsense",
            &[b'"', 0xff, b'"'],
            br#"{"id":"3"}"#,
            br#"{"id":"4","session":"s"}"#,
        ],
    );
    let strict = host.run(&["send", queue, "--lines", "lines"]);
    refused(&strict, 2, &["line 4: not JSON", "(2 sent)", "--keep-going"]);
    let ids = |said: support::Said| {
        said.json()["items"]
            .as_array()
            .expect("items")
            .iter()
            .map(|item| item["message_id"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(host.run(&["peek", queue, "--json"])), ["1", "2"]);
    let lenient = host.run(&["send", queue, "--lines", "lines", "--keep-going"]);
    assert_eq!(lenient.exit, 1, "{lenient:?}");
    for part in ["line 4: not JSON", "line 5: not UTF-8", "line 6: ", "sent 3 to", "3 lines left out"] {
        assert!(lenient.err.contains(part), "{part}: {lenient:?}");
    }
    assert_eq!(ids(host.run(&["peek", queue, "--json"])), ["1", "2", "1", "2", "4"]);

    let many: String = (0..1_234).map(|n| format!("{{\"id\":\"n{n}\",\"session\":\"s{}\"}}\n", n % 7)).collect();
    let sent = sprag_with(&host.path(), &["send", queue, "--lines", "-", "--json"], many.as_bytes());
    assert_eq!((sent.exit, sent.out.lines().count()), (0, 1_234), "{}", sent.err);
    // Paging gives each once.
    let mut seen = std::collections::BTreeSet::new();
    let mut after: Option<String> = None;
    loop {
        let mut args = vec!["peek", queue, "--json", "--limit", "500"];
        if let Some(after) = &after {
            args.extend(["--after", after]);
        }
        let page = host.run(&args).json();
        for item in page["items"].as_array().expect("items") {
            assert!(seen.insert(item["sequence_number"].as_i64().expect("a number")));
        }
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => break,
        }
    }
    assert_eq!(seen.len(), 1_234 + 5);
}

/// Case A61: also by another path to the same folder.
#[test]
fn a_second_host_on_the_folder_is_refused_and_the_first_is_unaffected() {
    let host = Host::start();
    let link = folder();
    let linked = link.path().join("linked");
    std::os::unix::fs::symlink(host.path(), &linked).expect("a link");
    for path in [host.path(), linked] {
        let began = std::time::Instant::now();
        let said = sprag(&path, &["dev", "--console", "127.0.0.1:0"]);
        refused(&said, 73, &[&host.pid().to_string(), "SPR0401"]);
        assert!(began.elapsed() < std::time::Duration::from_secs(2), "took {:?}", began.elapsed());
    }
    assert_eq!(host.run(&["endpoints"]).exit, 0);
    // After SIGKILL a third one starts without any cleaning.
    let (_, _, folder) = host.end("-KILL");
    refused(&sprag(folder.path(), &["events"]), 75, &["no host answers at"]);
    let third = Host::in_folder(folder);
    assert_eq!(third.run(&["endpoints"]).exit, 0);
}

#[test]
fn a_taken_port_and_a_folder_that_cannot_be_written() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let folder = folder();
    refused(
        &sprag(folder.path(), &["dev", "--console", &address]),
        1,
        &["another program uses the port", &address, "SPR0402"],
    );
    // A file where the folder should be: refused to root, too.
    let blocked = tempfile::tempdir().expect("a folder");
    fs::write(blocked.path().join(".sprag"), "in the way").expect("written");
    refused(
        &sprag(blocked.path(), &["dev", "--console", "127.0.0.1:0"]),
        1,
        &["cannot be used as data folder", "SPR0403"],
    );
    refused(&sprag(folder.path(), &["dev", "nowhere"]), 2, &["nowhere is no folder"]);
}

#[test]
fn actions_on_what_is_not_there() {
    let host = Host::start();
    for args in [
        &["resubmit", "gone"][..],
        &["skip", "gone", "--reason", "r"],
        &["handoff", "complete", "gone"],
        &["skip-session", "gone", "--reason", "r"],
        &["events", "show", "gone"],
        &["resubmit", "--group", "0000000000000000"],
        &["outbox", "retry", "17"],
    ] {
        refused(&host.run(args), 1, &["SPR0201"]);
    }
    refused(&host.run(&["events", "--endpoint", "other"]), 1, &["there is no endpoint \"other\""]);
    refused(&host.run(&["purge-inbox", &host.entity(), "--before", "7d"]), 2, &["add --yes"]);
    let purged = host.run(&["purge-inbox", &host.entity(), "--before", "7d", "--yes"]);
    assert_eq!(purged.exit, 0, "{purged:?}");
    let audit = host.run(&["audit", "--json"]).json();
    assert_eq!(audit["items"][0]["verb"], "purge-inbox");
}

#[test]
fn nothing_is_coloured_when_piped() {
    let host = Host::start();
    host.run(&["send", &host.entity(), "--session", "s"]);
    for args in [&["endpoints"][..], &["handlers"], &["doctor"], &["peek", &host.entity()]] {
        let said = host.run(args);
        assert!(!said.out.contains('\u{1b}') && !said.err.contains('\u{1b}'), "{said:?}");
    }
}
