//! The HTTP layer over operations that answer from a table: shapes, refusals, keys.

mod support;

use serde_json::{Value, json};
use support::{ask, get, post, serve};

/// The JSON of a listing is a promise: what is in `golden` may only grow with a reason. `SPRAG_WRITE_GOLDEN=1` writes the files again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shapes_stay() {
    let host = serve().await;
    for (path, name) in [
        ("/api/events", "events"),
        ("/api/events/order-1", "event"),
        ("/api/groups", "groups"),
        ("/api/sessions", "sessions"),
        ("/api/parked", "parked"),
        ("/api/scheduled", "scheduled"),
        ("/api/dead-letters", "dead-letters"),
        ("/api/inbox", "inbox"),
        ("/api/audit", "audit"),
        ("/api/outbox", "outbox"),
        ("/api/handlers", "handlers"),
        ("/api/endpoints", "endpoints"),
        ("/api/peek?entity=orders&part=dead-letters", "peek"),
        ("/api/actions/7", "action"),
        ("/api/health", "health"),
        ("/api/events/twice", "problem-ambiguous"),
    ] {
        golden(name, &get(host.address, path).await.body);
    }
    let sent = post(host.address, "/api/send", &json!({ "entity": "orders", "messages": [{ "id": "m1" }] })).await;
    golden("send", &sent.body);
    golden("group", &post(host.address, "/api/groups/g/resubmit", &json!({})).await.body);
    golden(
        "skip-session",
        &post(host.address, "/api/sessions/s/skip", &json!({ "reason": "r", "dry_run": true })).await.body,
    );
}

fn golden(name: &str, got: &Value) {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.json"));
    if std::env::var_os("SPRAG_WRITE_GOLDEN").is_some() {
        std::fs::write(&file, format!("{got:#}\n")).expect("written");
    }
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let expected: Value = serde_json::from_str(&text).expect("a golden file is JSON");
    assert_eq!(*got, expected, "the shape of {name} has changed; it is now\n{got:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_come_in() {
    let host = serve().await;
    for (header, value, status, code) in [
        ("authorization", "Bearer wrong", 401, "SPR0210"),
        ("authorization", "", 401, "SPR0210"),
        ("authorization", "Basic a-token", 401, "SPR0210"),
        ("host", "evil.example", 421, "SPR0211"),
    ] {
        let answer = ask(host.address, "GET", "/api/events", &[(header, value)], None).await;
        assert_eq!((answer.status, answer.body["code"].as_str()), (status, Some(code)), "{header}: {value}");
        assert_eq!(answer.headers["content-type"], "application/problem+json");
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        assert_eq!(answer.headers["cache-control"], "no-store");
    }
    let answer = ask(host.address, "GET", "/api/events", &[("authorization", "")], None).await;
    assert_eq!(answer.headers["www-authenticate"], "Bearer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_needs_no_token_and_gives_reasons() {
    let host = serve().await;
    let alive = ask(host.address, "GET", "/healthz", &[("authorization", "")], None).await;
    assert_eq!(alive.status, 200);
    let ready = ask(host.address, "GET", "/readyz", &[("authorization", "")], None).await;
    assert_eq!((ready.status, &ready.body["checks"][0]["reason"]), (503, &json!("not loaded: payment")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_wrong_request_has_one_clear_problem() {
    let host = serve().await;
    for (method, path, body, status, code, text) in [
        ("GET", "/api/nothing", "", 404, "SPR0214", "there is nothing at"),
        ("DELETE", "/api/events", "", 405, "SPR0215", "DELETE is not what"),
        ("GET", "/api/events?limit=0", "", 400, "SPR0213", "`limit` is 1 to 1000"),
        ("GET", "/api/events?limit=x", "", 400, "SPR0213", "limit"),
        ("GET", "/api/events?outcome=lost", "", 400, "SPR0213", "\"lost\" is no outcome"),
        ("GET", "/api/events?since=yesterday", "", 400, "SPR0213", "is not a time like"),
        ("GET", "/api/events?sesion=a", "", 400, "SPR0213", "unknown field `sesion`"),
        ("GET", "/api/events/gone", "", 404, "SPR0201", "there is no event"),
        ("GET", "/api/events/twice", "", 300, "SPR0202", "billing, shipping"),
        ("POST", "/api/events/skipped/resubmit", "{}", 409, "SPR0203", "is skipped since then"),
        ("POST", "/api/events/a/skip", "{\"again\":true}", 400, "SPR0213", "are for a resubmission"),
        ("POST", "/api/send", "{", 400, "SPR0213", "EOF"),
        ("POST", "/api/send", "{\"entity\":\"q\",\"messages\":[]}", 400, "SPR0213", "1 to 1000 messages, not 0"),
        (
            "POST",
            "/api/send",
            "{\"entity\":\"q\",\"messages\":[{},{\"id\":\" \"}]}",
            400,
            "SPR0213",
            "message 2: `id` is blank",
        ),
        ("POST", "/api/send", "{\"entity\":\"full\",\"messages\":[{}]}", 507, "SPR0206", "the disk is full"),
        ("POST", "/api/sessions/s/skip", "{}", 400, "SPR0213", "missing field `reason`"),
        (
            "POST",
            "/api/dead-letters/replay",
            "{\"entity\":\"q\"}",
            400,
            "SPR0213",
            "either `sequence_numbers` or `all`",
        ),
    ] {
        let answer = ask(host.address, method, path, &[], Some(body.as_bytes().to_vec())).await;
        let detail = answer.body["detail"].as_str().unwrap_or_default().to_owned();
        assert_eq!((answer.status, answer.body["code"].as_str()), (status, Some(code)), "{method} {path}: {detail}");
        assert!(detail.contains(text), "{method} {path}: {detail}");
        assert_eq!(answer.body["type"], format!("urn:sprag:error:{code}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_no_text_and_too_many_bytes() {
    let host = serve().await;
    let answer = ask(host.address, "POST", "/api/send", &[], Some(vec![b'"', 0xff, b'"'])).await;
    assert_eq!((answer.status, answer.body["code"].as_str()), (400, Some("SPR0213")));
    let answer = ask(host.address, "POST", "/api/send", &[], Some(vec![b' '; sprag_console::MAX_REQUEST + 1])).await;
    assert_eq!((answer.status, answer.body["code"].as_str()), (413, Some("SPR0212")));
}

/// Ids may hold anything that a path must not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_with_slashes_is_one_part_of_the_path() {
    let mut host = serve().await;
    let answer = post(host.address, "/api/events/shop%2Fbilling%2317/skip", &json!({ "reason": "r" })).await;
    assert_eq!(answer.status, 202);
    assert_eq!(answer.headers["location"], "/api/actions/7");
    assert!(host.asked.recv().await.expect("asked").starts_with("skip shop/billing#17 by tester"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_reach_the_operations() {
    let mut host = serve().await;
    let path = "/api/events?endpoint=billing&session=c%201&type=T&outcome=failed,dead-lettered&since=2026-11-29T12:00:00Z&after=c1&limit=5";
    assert_eq!(get(host.address, path).await.status, 200);
    let asked = host.asked.recv().await.expect("asked");
    for part in
        ["\"billing\"", "\"c 1\"", "[Failed, DeadLettered]", "since: Some(Timestamp(", "after: Some(\"c1\"), limit: 5"]
    {
        assert!(asked.contains(part), "{asked}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutation_with_a_key_happens_once() {
    let mut host = serve().await;
    let body = json!({ "entity": "orders", "messages": [{ "id": "m1" }] }).to_string().into_bytes();
    let key = [("idempotency-key", "k1")];
    let first = ask(host.address, "POST", "/api/send", &key, Some(body.clone())).await;
    let second = ask(host.address, "POST", "/api/send", &key, Some(body.clone())).await;
    assert_eq!((first.status, &first.body), (second.status, &second.body));
    assert_eq!(host.asked.recv().await.as_deref(), Some("send 1 to orders"));
    assert!(host.asked.try_recv().is_err(), "the second was answered from memory");
    let other = json!({ "entity": "invoices", "messages": [{ "id": "m1" }] }).to_string().into_bytes();
    let reused = ask(host.address, "POST", "/api/send", &key, Some(other)).await;
    assert_eq!((reused.status, reused.body["code"].as_str()), (422, Some("SPR0216")));
    let fresh = ask(host.address, "POST", "/api/send", &[("idempotency-key", "k2")], Some(body)).await;
    assert_eq!(fresh.status, 200);
    assert_eq!(host.asked.recv().await.as_deref(), Some("send 1 to orders"));
}

/// A failure of the host is no answer to keep: the repeat may do better.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_mutation_with_a_key_can_be_repeated() {
    let mut host = serve().await;
    let body = json!({ "entity": "full", "messages": [{}] }).to_string().into_bytes();
    for _ in 0..2 {
        assert_eq!(
            ask(host.address, "POST", "/api/send", &[("idempotency-key", "k")], Some(body.clone())).await.status,
            507
        );
        assert_eq!(host.asked.recv().await.as_deref(), Some("send 1 to full"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_action_is_accepted_and_can_be_waited_for() {
    let host = serve().await;
    let open =
        post(host.address, "/api/events/order-1/resubmit", &json!({ "body": { "total": 4 }, "again": true })).await;
    assert_eq!((open.status, &open.body["state"]), (202, &json!("open")));
    let ended = post(host.address, "/api/events/order-1/resubmit?wait=5s", &json!({})).await;
    assert_eq!((ended.status, &ended.body["state"]), (200, &json!("applied")));
    let wrong = get(host.address, "/api/actions/7?wait=soon").await;
    assert_eq!((wrong.status, wrong.body["code"].as_str()), (400, Some("SPR0213")));
}

/// The stop of the host is not held up by somebody who waits for an action.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_ends_the_waits() {
    let mut host = serve().await;
    let address = host.address;
    let waiting = tokio::spawn(async move { get(address, "/api/actions/9?wait=60s").await });
    assert_eq!(host.asked.recv().await.as_deref(), Some("action 9 wait 60s"));
    host.stop.send(()).expect("the host listens");
    let answer = waiting.await.expect("an answer");
    assert_eq!((answer.status, &answer.body["state"]), (200, &json!("open")));
    tokio::time::timeout(std::time::Duration::from_secs(10), host.served)
        .await
        .expect("the host ends")
        .expect("no panic");
}

#[tokio::test]
async fn a_taken_port_and_an_open_address_are_refused() {
    let host = serve().await;
    let config =
        |listen: std::net::SocketAddr| sprag_console::Config { listen, token: String::new(), operator: String::new() };
    let taken = sprag_console::Console::bind(config(host.address)).await.err().expect("taken").to_string();
    assert_eq!(taken, format!("cannot listen on {}: another program uses the port", host.address));
    let open = sprag_console::Console::bind(config("0.0.0.0:0".parse().expect("an address")))
        .await
        .err()
        .expect("refused")
        .to_string();
    assert!(open.contains("loopback only"), "{open}");
}
