//! What goes after its time, and what stays (spec 4, P38).

use std::time::Duration;

use sprag_core::{
    effect::{HistoryKind, OutcomeWrite, StoreWrite},
    ids::{EndpointName, MessageId},
    outcome::Outcome,
    time::Timestamp,
};

use super::{
    Subject,
    sample::{at, endpoint, failed, is_recorded, line, message, only, outcome, record, write},
};
use crate::{
    Retention,
    query::{AuditEntry, InboxFilter, Page},
};

const DAY: u64 = 86_400;

/// Later than anything a rule writes, whatever the store's clock says.
fn far() -> Timestamp {
    Timestamp(i64::MAX / 2)
}

async fn recorded_at(store: &Subject, id: &str) -> Timestamp {
    let filter = InboxFilter { endpoint: Some(endpoint()), message_id: Some(id.into()) };
    store.inbox(&filter, &Page::default()).await.expect("the inbox is listed").items[0].recorded_at
}

async fn purge(store: &Subject, endpoint: &EndpointName, before: Timestamp, limit: u32) -> u32 {
    store.purge_inbox(endpoint, before, limit).await.expect("a purge answers")
}

/// Purges tracking as of `now` in batches of `limit` until nothing is left to do.
async fn purge_tracking(store: &Subject, now: Timestamp, limit: u32) {
    let keep = Retention {
        now,
        bodies: Duration::from_secs(7 * DAY),
        outcomes: Duration::from_secs(30 * DAY),
        audit: Duration::from_secs(365 * DAY),
    };
    for _ in 0..1_000 {
        let gone = store.purge_tracking(&keep, limit).await.expect("a purge answers");
        assert!(gone <= limit, "a batch is bounded");
        if gone == 0 {
            return;
        }
    }
    panic!("a purge that does not end");
}

/// Case 123: a pass deletes what it may and no more, the oldest first.
pub async fn the_inbox_is_purged_in_bounded_batches(store: &Subject) {
    write(store, record(&["oldest"])).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    for chunk in 0..25 {
        let ids: Vec<MessageId> = (0..100).map(|n| format!("m-{chunk}-{n}").into()).collect();
        write(store, StoreWrite { record: ids, ..StoreWrite::default() }).await;
    }
    assert_eq!(purge(store, &endpoint(), recorded_at(store, "oldest").await, 10).await, 0, "before means before");
    assert_eq!(purge(store, &endpoint(), far(), 1).await, 1);
    assert!(!is_recorded(store, &endpoint(), "oldest").await);
    assert_eq!(purge(store, &endpoint(), far(), 1_000).await, 1_000);
    assert_eq!(purge(store, &endpoint(), far(), 1_000).await, 1_000);
    assert_eq!(purge(store, &endpoint(), far(), 1_000).await, 500, "a short batch ends the pass");
    assert_eq!(purge(store, &endpoint(), far(), 1_000).await, 0);
    write(store, record(&["m-0-0"])).await;
    assert!(is_recorded(store, &endpoint(), "m-0-0").await, "a purged id can be recorded again");
}

/// Cases 125 and 126: another endpoint's rows stay, whatever its name.
pub async fn the_inbox_is_purged_per_endpoint(store: &Subject) {
    for endpoint in ["e1", "e1 ", "E1", "e", "e11"] {
        store.write(&endpoint.into(), record(&["m"])).await.expect("a write is taken");
    }
    assert_eq!(purge(store, &"e1".into(), far(), 100).await, 1);
    assert!(!is_recorded(store, &"e1".into(), "m").await);
    for endpoint in ["e1 ", "E1", "e", "e11"] {
        assert!(is_recorded(store, &endpoint.into(), "m").await, "{endpoint:?}");
    }
}

/// Case 127: recording again does not make it younger.
pub async fn age_counts_from_the_first_record(store: &Subject) {
    write(store, record(&["m"])).await;
    let first = recorded_at(store, "m").await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    write(store, record(&["m"])).await;
    assert_eq!(purge(store, &endpoint(), first.after(Duration::from_millis(1)), 10).await, 1);
}

/// P38: a body is kept until its event is resolved and 7 days more.
pub async fn resolved_bodies_go_and_unresolved_stay(store: &Subject) {
    let keeping = |write: OutcomeWrite| only(OutcomeWrite { keep: Some(Box::new(message("m"))), ..write });
    for n in 0..5 {
        write(store, keeping(failed(&format!("resolved-{n}"), "trap", "boom"))).await;
        write(
            store,
            only(OutcomeWrite { attempts: 2, at: at(2), ..outcome(&format!("resolved-{n}"), Outcome::Skipped) }),
        )
        .await;
    }
    for unresolved in [Outcome::Failed, Outcome::Deferred, Outcome::Handoff, Outcome::Pending] {
        write(store, keeping(outcome(unresolved.name(), unresolved))).await;
    }
    let kept = |event: String| async move {
        store.kept_message(&endpoint(), &event.as_str().into()).await.expect("an answer").is_some()
    };
    purge_tracking(store, at(6 * DAY), 2).await;
    assert!(kept("resolved-0".into()).await);
    purge_tracking(store, at(8 * DAY), 2).await;
    for n in 0..5 {
        assert!(!kept(format!("resolved-{n}")).await);
        let row = &store.find_events(&format!("resolved-{n}")).await.expect("the outcome stays")[0];
        assert!(!row.has_message);
    }
    purge_tracking(store, at(4_000 * DAY), 2).await;
    for unresolved in [Outcome::Failed, Outcome::Deferred, Outcome::Handoff, Outcome::Pending] {
        assert!(kept(unresolved.name().into()).await, "{unresolved:?}");
        assert_eq!(store.find_events(unresolved.name()).await.expect("an answer").len(), 1, "{unresolved:?}");
    }
}

/// P38: outcomes and history of final events, 30 days.
pub async fn old_outcomes_go_with_their_history(store: &Subject) {
    for n in 0..5 {
        let event = format!("done-{n}");
        write(
            store,
            StoreWrite { history: Some(line(&event, HistoryKind::Run)), ..only(outcome(&event, Outcome::Completed)) },
        )
        .await;
    }
    write(store, StoreWrite { history: Some(line("open", HistoryKind::Run)), ..only(failed("open", "trap", "boom")) })
        .await;
    let young = OutcomeWrite { at: at(20 * DAY), ..outcome("young", Outcome::Completed) };
    write(store, StoreWrite { history: Some(line("young", HistoryKind::Run)), ..only(young) }).await;
    purge_tracking(store, at(29 * DAY), 2).await;
    assert_eq!(store.find_events("done-0").await.expect("an answer").len(), 1);
    purge_tracking(store, at(31 * DAY), 2).await;
    for n in 0..5 {
        let event = format!("done-{n}");
        assert_eq!(store.find_events(&event).await.expect("an answer"), []);
        assert_eq!(store.history(&endpoint(), &event.as_str().into()).await.expect("an answer"), []);
    }
    for event in ["open", "young"] {
        assert_eq!(store.find_events(event).await.expect("an answer").len(), 1, "{event}");
        assert_eq!(store.history(&endpoint(), &event.into()).await.expect("an answer").len(), 1, "{event}");
    }
}

/// P38: audit, one year.
pub async fn old_audit_goes(store: &Subject) {
    let entry = |n: u64| AuditEntry {
        at: at(n * DAY),
        by: "ida".into(),
        verb: "skip".into(),
        endpoint: Some(endpoint()),
        target: format!("e-{n}"),
        reason: None,
        count: 1,
    };
    for n in 0..6 {
        store.add_audit(entry(n * 100)).await.expect("it is written");
    }
    purge_tracking(store, at(566 * DAY), 2).await;
    let mut left: Vec<_> = store
        .audit(&Page::default())
        .await
        .expect("audit is listed")
        .items
        .into_iter()
        .map(|row| row.entry.target)
        .collect();
    left.sort_unstable();
    assert_eq!(left, ["e-300", "e-400", "e-500"]);
}
