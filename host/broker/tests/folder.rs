//! What is found in the data folder: an older file, a newer one, none that is readable.

use std::time::Duration;

use sprag_broker::{Engine, FILE, OpenError, Options, SCHEMA_VERSION};
use sprag_core::effect::{LeaseEnd, LeaseEnding, StoreWrite};
use sprag_store::{Store as _, lease::Leased};

fn open(dir: &std::path::Path) -> Result<Engine, OpenError> {
    Engine::open(Options::new(dir))
}

fn refused(dir: &std::path::Path) -> String {
    open(dir).err().expect("it cannot be opened").to_string()
}

/// A file of version 1, made from the frozen text, opens and keeps what it holds. A new version adds its own fixture; this one stays.
#[tokio::test]
async fn a_file_of_version_1_is_brought_forward() {
    use sprag_transport::{Part, Transport as _};
    let dir = tempfile::tempdir().unwrap();
    {
        let connection = rusqlite::Connection::open(dir.path().join(FILE)).unwrap();
        connection.execute_batch(include_str!("fixtures/schema_v1.sql")).unwrap();
    }
    let engine = open(dir.path()).unwrap();
    let peeked =
        engine.peek(&"orders".into(), Part::Active, None, sprag_core::ids::SequenceNumber(0), 10).await.unwrap();
    assert_eq!(peeked.len(), 1);
    assert_eq!(peeked[0].message.message_id.as_ref().unwrap().as_str(), "m1");
    let sent = engine.send(&"orders".into(), vec![Default::default()]).await.unwrap();
    assert!(sent[0] > peeked[0].sequence);
    engine.close().await;
    drop(engine);
    let connection = rusqlite::Connection::open(dir.path().join(FILE)).unwrap();
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(version, SCHEMA_VERSION);
}

/// What migrations make of the first version is what a fresh file has.
#[test]
fn an_old_file_ends_as_a_fresh_one_begins() {
    let tables = |dir: &std::path::Path| {
        drop(open(dir).unwrap());
        let connection = rusqlite::Connection::open(dir.join(FILE)).unwrap();
        let mut statement =
            connection.prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name").unwrap();
        let tables: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        tables
    };
    let (old, fresh) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let connection = rusqlite::Connection::open(old.path().join(FILE)).unwrap();
    connection.execute_batch(include_str!("fixtures/schema_v1.sql")).unwrap();
    drop(connection);
    assert_eq!(tables(old.path()), tables(fresh.path()));
}

/// A topic with subscriptions as version 1 wrote them: their filters become rules, and a declaration as before changes nothing.
#[tokio::test]
async fn filters_of_version_1_become_rules() {
    use sprag_broker::{Correlation, DEFAULT_RULE, EntitySpec, FilterSpec};
    let dir = tempfile::tempdir().unwrap();
    let connection = rusqlite::Connection::open(dir.path().join(FILE)).unwrap();
    connection.execute_batch(include_str!("fixtures/schema_v1.sql")).unwrap();
    let old = |name: &str, kind: &str| {
        let spec = format!(
            r#"{{"name":"{name}","kind":{kind},"requires_session":false,"lock_duration":{{"secs":30,"nanos":0}},"max_delivery_count":10,"default_ttl":null,"dead_letter_on_expiry":false,"duplicate_detection":null,"max_message_size":1048576,"max_size":null}}"#
        );
        connection.execute("INSERT INTO entity (name, spec) VALUES (?1, ?2)", [name, &spec]).unwrap();
    };
    old("shop", r#""topic""#);
    old("shop/all", r#"{"subscription":"all"}"#);
    old("shop/orders", r#"{"subscription":{"sql":"EventTypeId LIKE 'Order%'"}}"#);
    old(
        "shop/gold",
        r#"{"subscription":{"correlation":{"message_id":null,"session_id":null,"subject":null,"content_type":null,"correlation_id":null,"to":null,"reply_to":null,"reply_to_session_id":null,"properties":{"tier":"gold"}}}}"#,
    );
    drop(connection);
    let engine = open(dir.path()).unwrap();
    let filter = |name: &str| {
        let rules = engine.rules(&name.into()).unwrap();
        assert_eq!((rules.len(), rules[0].spec.name.as_str()), (1, DEFAULT_RULE), "{name}");
        rules[0].spec.filter.clone()
    };
    let gold = Correlation { properties: [("tier".to_owned(), "gold".into())].into(), ..Correlation::default() };
    let gold = FilterSpec::Correlation(Box::new(gold));
    let orders = FilterSpec::Sql("EventTypeId LIKE 'Order%'".into());
    assert_eq!(
        [filter("shop/all"), filter("shop/orders"), filter("shop/gold")],
        [FilterSpec::All, orders.clone(), gold.clone()]
    );
    let before = engine.entity(&"shop/gold".into()).unwrap();
    assert!(before.created_at.0 > 0);
    let topic = "shop".into();
    let subscription = |name: &str, filter: &FilterSpec| EntitySpec::subscription(&topic, name, filter.clone());
    engine
        .declare(vec![EntitySpec::topic("shop"), subscription("gold", &gold), subscription("orders", &orders)])
        .await
        .unwrap();
    assert_eq!(engine.entity(&"shop/gold".into()).unwrap(), before);
}

/// A newer file is refused and left as it is.
#[test]
fn a_newer_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    let version = || {
        let connection = rusqlite::Connection::open(dir.path().join(FILE)).unwrap();
        connection.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)).unwrap()
    };
    {
        let connection = rusqlite::Connection::open(dir.path().join(FILE)).unwrap();
        connection.pragma_update(None, "user_version", SCHEMA_VERSION + 1).unwrap();
    }
    let error = refused(dir.path());
    assert!(error.contains(&format!("version {}", SCHEMA_VERSION + 1)) && error.contains("newer sprag"), "{error}");
    assert_eq!(version(), SCHEMA_VERSION + 1);
}

/// One clear error each, which names the path.
#[test]
fn a_folder_that_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "not a folder").unwrap();
    let error = refused(&file);
    assert!(error.contains("file") && error.contains("data folder"), "{error}");

    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join(FILE), "this is text and not a database, and it is long enough to be one".repeat(100))
        .unwrap();
    let error = refused(&data);
    assert!(error.contains(FILE) && error.contains("not a database"), "{error}");

    // Root may write where it is forbidden; a read-only mount holds for everybody.
    let fixed = dir.path().join("fixed");
    std::fs::create_dir(&fixed).unwrap();
    let mounted =
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "ro", "tmpfs"]).arg(&fixed).status().unwrap();
    assert!(mounted.success(), "the test of a read-only folder needs the right to mount a tmpfs (run it as root)");
    let error = open(&fixed).err().map(|error| error.to_string());
    assert!(std::process::Command::new("umount").arg(&fixed).status().unwrap().success());
    let error = error.expect("it is read-only");
    assert!(error.contains("fixed") && error.to_lowercase().contains("read-only"), "{error}");
}

/// The lock goes with the engine, and a second engine in the same process meets it as well.
#[test]
fn the_lock_goes_with_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path()).unwrap();
    assert!(matches!(open(dir.path()), Err(OpenError::Held { .. })));
    let clone = first.clone();
    drop(first);
    assert!(matches!(open(dir.path()), Err(OpenError::Held { .. })));
    drop(clone);
    drop(open(dir.path()).unwrap());
}

/// ADR 2: what a process had in hand is in nobody's hand when it has ended; a handoff waits for its settlement all the same (P26).
#[tokio::test]
async fn leases_of_the_last_process_are_void() {
    let dir = tempfile::tempdir().unwrap();
    let (endpoint, hour) = ("e".into(), Duration::from_secs(3_600));
    let acquire = async |engine: &Engine, id: &str, owner: &str| {
        let leases = engine.leases().unwrap();
        leases.acquire(&endpoint, &id.into(), &owner.into(), hour).await.unwrap()
    };
    let engine = open(dir.path()).unwrap();
    for id in ["held", "off"] {
        assert_eq!(acquire(&engine, id, "a").await, Leased::Acquired);
    }
    let end = LeaseEnd { id: "off".into(), owner: Some("a".into()), how: LeaseEnding::HandedOff };
    engine.write(&endpoint, StoreWrite { lease: Some(end), ..StoreWrite::default() }).await.unwrap();
    engine.close().await;
    drop(engine);
    let engine = open(dir.path()).unwrap();
    assert_eq!(acquire(&engine, "held", "b").await, Leased::Acquired);
    assert_eq!(acquire(&engine, "off", "b").await, Leased::HandedOff);
}
