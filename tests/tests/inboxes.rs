//! An inbox in another store than its endpoint's, in the real process: the records are in PostgreSQL, everything else is in the embedded engine.

use std::fs;

use serde_json::json;
use sprag_databases::test_server::fresh_database;
use sprag_tests::host::{PATIENCE, Place, until};

const CONFIG: &str = r#"
[host]
console = "127.0.0.1:0"

[[queue]]
name = "work"
requires_session = true

[store.records]
kind = "postgres"
url = "file:database.txt"

[[endpoint]]
name = "work"
source = { queue = "work" }
handlers = ["noop"]
inbox = { mode = "record", store = "records" }
"#;

/// P34: a duplicate is known by its record there, also after the process was killed, and the listing shows it.
#[test]
fn records_are_kept_in_the_other_store() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let database = runtime.block_on(fresh_database());
    let place = Place::new(CONFIG, &[("test-noop", "noop")]);
    fs::write(place.path().join("database.txt"), database.url()).expect("the folder can be written");
    let host = place.run();
    let send = |host: &sprag_tests::host::Host, id: &str| {
        host.send("work", &[json!({ "id": id, "type": "noop", "session": "s", "body": {} })]);
    };
    send(&host, "m-1");
    host.outcome("m-1", "completed");
    host.kill();
    let host = place.run();
    // The first may find a decision that the killed host had not marked as done, and takes what is left of it.
    send(&host, "m-1");
    send(&host, "m-1");
    send(&host, "m-2");
    host.outcome("m-2", "completed");
    until("the duplicate is in the history", PATIENCE, || {
        let event = host.get("/api/events/m-1");
        let history = event["history"].as_array()?;
        history.iter().any(|line| line["kind"] == "duplicate").then_some(())
    });
    let event = host.get("/api/events/m-1");
    let runs = event["history"].as_array().expect("a history").iter().filter(|line| line["kind"] == "run").count();
    assert_eq!(runs, 1, "{event}");
    let listed: Vec<_> = host.items("/api/inbox").iter().map(|row| row["message_id"].clone()).collect();
    assert!(listed.contains(&json!("m-1")) && listed.contains(&json!("m-2")), "{listed:?}");
    assert_eq!(host.stop(), Some(0));
    let books = runtime.block_on(database.client());
    let rows =
        runtime.block_on(books.query("SELECT message_id FROM sprag_inbox ORDER BY 1", &[])).expect("the records");
    let ids: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(ids, ["m-1", "m-2"]);
    let events = runtime.block_on(books.query("SELECT 1 FROM sprag_event", &[])).expect("the tables");
    assert!(events.is_empty(), "everything else is in the endpoint's own store");
}
