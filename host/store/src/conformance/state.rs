//! The handlers' key-value state and its conflicts (P4).

use std::sync::Arc;

use sprag_core::{
    effect::{HistoryKind, StoreWrite},
    outcome::Outcome,
    run::{StateRead, StateWrite, UnitOfWork, Version},
};

use super::{
    Subject,
    sample::{ask, changes, decision, delete, endpoint, line, outcome, put, record, saw, text, unit, value, write},
};
use crate::{Error, Written, query::Page};

async fn version(store: &Subject, key: &str) -> Version {
    store.state_get(&endpoint(), key).await.expect("state is read").map(|found| found.version).unwrap_or_default()
}

async fn set(store: &Subject, entries: &[(&str, &str)]) {
    write(store, changes(entries.iter().map(|(key, value)| put(key, value)).collect(), vec![])).await;
}

async fn scan(store: &Subject, prefix: &str, after: Option<&str>, limit: u32) -> Vec<(String, Version)> {
    let found = store.state_scan(&endpoint(), prefix, after, limit).await.expect("a scan answers");
    found.into_iter().map(|(key, found)| (key, found.version)).collect()
}

async fn keys(store: &Subject, prefix: &str, after: Option<&str>, limit: u32) -> Vec<String> {
    scan(store, prefix, after, limit).await.into_iter().map(|(key, _)| key).collect()
}

/// Spec 2: what was written is read; what was deleted is gone; a value with no bytes is a value.
pub async fn values_versions_and_deletion(store: &Subject) {
    assert_eq!(value(store, "k").await, None);
    set(store, &[("k", "1"), ("empty", "")]).await;
    assert_eq!(value(store, "k").await, text("1"));
    assert_eq!(value(store, "empty").await, text(""));
    assert!(version(store, "k").await > Version(0));
    write(store, changes(vec![delete("k"), delete("never there")], vec![])).await;
    assert_eq!(value(store, "k").await, None);
    let bytes: Vec<u8> = (0..=255).collect();
    let binary = StateWrite { key: "bytes".into(), value: Some(bytes.clone().into()) };
    write(store, changes(vec![binary], vec![])).await;
    assert_eq!(value(store, "bytes").await, Some(bytes.into()));
}

/// A key that was deleted and written again does not look unchanged.
pub async fn versions_are_never_used_twice(store: &Subject) {
    set(store, &[("k", "1")]).await;
    let first = version(store, "k").await;
    set(store, &[("k", "1")]).await;
    let second = version(store, "k").await;
    write(store, changes(vec![delete("k")], vec![])).await;
    set(store, &[("k", "1")]).await;
    let third = version(store, "k").await;
    assert!(first < second && second < third, "{first:?} {second:?} {third:?}");
}

/// Spec 2: prefix scan, in byte order, after a key, bounded.
pub async fn scans_are_in_byte_order_and_bounded(store: &Subject) {
    set(
        store,
        &[
            ("p/b", ""),
            ("p/a", ""),
            ("p/Z", ""),
            ("p/é", ""),
            ("p/", ""),
            ("p", ""),
            ("q/a", ""),
            ("p/𝄞", ""),
            ("p/\u{ffff}", ""),
        ],
    )
    .await;
    let all = ["p/", "p/Z", "p/a", "p/b", "p/é", "p/\u{ffff}", "p/𝄞"];
    assert_eq!(keys(store, "p/", None, 100).await, all);
    assert_eq!(keys(store, "p/", None, 3).await, all[..3]);
    assert_eq!(keys(store, "p/", Some("p/Z"), 2).await, all[2..4]);
    assert_eq!(keys(store, "p/", Some("p/aa"), 1).await, ["p/b"], "the key after which to go on need not be there");
    assert_eq!(keys(store, "p/", Some("p/𝄞"), 9).await, [""; 0]);
    assert_eq!(keys(store, "nothing", None, 9).await, [""; 0]);
    assert_eq!(keys(store, "", None, 100).await.len(), 9);
}

/// A prefix is text: `%`, `_`, `*` and the like stand for themselves.
pub async fn prefixes_are_plain_text(store: &Subject) {
    set(store, &[("a%b", ""), ("a_b", ""), ("a*b", ""), ("axb", ""), ("a[b", ""), ("A%b", "")]).await;
    for prefix in ["a%", "a_", "a*", "a["] {
        assert_eq!(keys(store, prefix, None, 9).await, [format!("{prefix}b")], "{prefix}");
    }
}

/// Spec 2: state is scoped to the endpoint.
pub async fn endpoints_have_their_own_state(store: &Subject) {
    set(store, &[("k", "mine")]).await;
    assert_eq!(store.state_get(&"other".into(), "k").await.expect("state is read"), None);
    store.write(&"other".into(), changes(vec![delete("k")], vec![saw("k", Version(0))])).await.expect("no conflict");
    assert_eq!(value(store, "k").await, text("mine"));
}

/// P4 and P35: on a conflict nothing of the write is there.
pub async fn a_read_that_changed_is_a_conflict_and_writes_nothing(store: &Subject) {
    set(store, &[("stock", "7")]).await;
    let seen = version(store, "stock").await;
    set(store, &[("stock", "6")]).await;
    let run = StoreWrite {
        finals: vec!["m".into()],
        decision: Some(decision("m", Outcome::Completed)),
        outcome: Some(outcome("m", Outcome::Completed)),
        history: Some(line("m", HistoryKind::Run)),
        unit: UnitOfWork { reads: vec![saw("stock", seen)], ..unit("stock", "5", "out") },
        ..record(&["m"])
    };
    let result = store.write(&endpoint(), run.clone()).await;
    assert!(matches!(result, Err(Error::StateConflict)), "{result:?}");
    assert_eq!(ask(store, &endpoint(), "m", None).await, Default::default());
    assert_eq!(store.history(&endpoint(), &"m".into()).await.expect("history"), []);
    assert_eq!(value(store, "stock").await, text("6"));
    assert_eq!(store.outbox(&Page::default()).await.expect("the outbox").items, []);

    let seen = version(store, "stock").await;
    let again = StoreWrite { unit: UnitOfWork { reads: vec![saw("stock", seen)], ..unit("stock", "5", "out") }, ..run };
    assert_eq!(write(store, again.clone()).await, Written::Done, "the second run read what is there");
    assert_eq!(write(store, again).await, Written::AlreadyDecided, "what is decided looks at no reads");
}

/// P4: that a key was not there is a read, too.
pub async fn a_read_of_an_absent_key_conflicts_with_its_creation(store: &Subject) {
    let create = changes(vec![put("k", "created")], vec![saw("k", Version(0))]);
    assert_eq!(write(store, create.clone()).await, Written::Done);
    let result = store.write(&endpoint(), create).await;
    assert!(matches!(result, Err(Error::StateConflict)), "{result:?}");
    let gone = changes(vec![], vec![saw("k", version(store, "k").await)]);
    write(store, changes(vec![delete("k")], vec![])).await;
    let result = store.write(&endpoint(), gone).await;
    assert!(matches!(result, Err(Error::StateConflict)), "{result:?}");
}

/// P4: scans are validated: a key that came, went or changed within one is a conflict.
pub async fn a_scan_conflicts_with_a_new_key(store: &Subject) {
    let whole = |found| StateRead::Scan { prefix: "p/".into(), after: None, limit: 100, found };
    for change in [put("p/b", ""), put("p/a", "again"), delete("p/a")] {
        set(store, &[("p/a", ""), ("q/a", "")]).await;
        let read = whole(scan(store, "p/", None, 100).await);
        write(store, changes(vec![put("q/b", ""), delete("q/a")], vec![read.clone()])).await;
        write(store, changes(vec![put("q/a", "not within the scan")], vec![read.clone()])).await;
        write(store, changes(vec![change.clone()], vec![])).await;
        let result = store.write(&endpoint(), changes(vec![put("sum", "1")], vec![read])).await;
        assert!(matches!(result, Err(Error::StateConflict)), "{change:?}: {result:?}");
    }
    assert_eq!(value(store, "sum").await, None);
}

/// P4: a scan holds when the same scan would find the same.
pub async fn a_bounded_scan_holds_when_keys_beyond_it_change(store: &Subject) {
    set(store, &[("p/a", ""), ("p/b", ""), ("p/c", ""), ("p/d", "")]).await;
    let read = StateRead::Scan {
        prefix: "p/".into(),
        after: Some("p/a".into()),
        limit: 2,
        found: scan(store, "p/", Some("p/a"), 2).await,
    };
    write(store, changes(vec![put("p/d", "changed"), put("p/a", "changed"), put("p/e", "new")], vec![])).await;
    assert_eq!(write(store, changes(vec![], vec![read.clone()])).await, Written::Done);
    write(store, changes(vec![put("p/bb", "new")], vec![])).await;
    let result = store.write(&endpoint(), changes(vec![], vec![read])).await;
    assert!(matches!(result, Err(Error::StateConflict)), "{result:?}");
}

/// P4: of runs that read the same and write side by side, one commits.
pub async fn two_writers_of_one_key_have_one_winner(store: &Subject) {
    set(store, &[("counter", "0")]).await;
    let seen = version(store, "counter").await;
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                let write = changes(vec![put("counter", &n.to_string())], vec![saw("counter", seen)]);
                store.write(&endpoint(), write).await
            })
        })
        .collect();
    let (mut done, mut conflicts) = (0, 0);
    for task in tasks {
        match task.await.expect("no task panics") {
            Ok(Written::Done) => done += 1,
            Err(Error::StateConflict) => conflicts += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((done, conflicts), (1, 7));
}
