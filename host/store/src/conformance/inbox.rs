//! What every inbox does, be it a store's or one by itself: cases 12 to 17, 123 to 127, A18, A23, A49, A58.

use std::{collections::HashSet, sync::Arc, time::Duration};

use sprag_core::{
    ids::{EndpointName, MessageId},
    time::Timestamp,
};

use super::{
    sample::{self, endpoint},
    walk,
};
use crate::{
    inbox::Inbox,
    query::{InboxFilter, InboxRow, Page},
};

/// What rules take.
pub type Subject = Arc<dyn Inbox>;

fn ids(of: &[&str]) -> Vec<MessageId> {
    of.iter().map(|id| MessageId::from(*id)).collect()
}

async fn record(inbox: &Subject, of: &[&str]) {
    record_at(inbox, &endpoint(), of).await;
}

async fn record_at(inbox: &Subject, endpoint: &EndpointName, of: &[&str]) {
    inbox.record(endpoint, &ids(of)).await.expect("a record is taken");
}

async fn are_recorded(inbox: &Subject, endpoint: &EndpointName, of: &[&str]) -> Vec<bool> {
    let asked: Vec<_> = ids(of).into_iter().map(|id| (endpoint.clone(), id)).collect();
    inbox.recorded(&asked).await.expect("a check answers")
}

async fn is_recorded(inbox: &Subject, endpoint: &EndpointName, id: &str) -> bool {
    are_recorded(inbox, endpoint, &[id]).await == [true]
}

async fn rows(inbox: &Subject, filter: InboxFilter, limit: u32) -> Vec<InboxRow> {
    walk(limit, |page| {
        let filter = filter.clone();
        async move { inbox.list(&filter, &page).await }
    })
    .await
}

async fn recorded_at(inbox: &Subject, id: &str) -> Timestamp {
    let filter = InboxFilter { endpoint: Some(endpoint()), message_id: Some(id.into()) };
    rows(inbox, filter, 10).await[0].recorded_at
}

async fn purge(inbox: &Subject, endpoint: &EndpointName, before: Timestamp, limit: u32) -> u32 {
    inbox.purge(endpoint, before, limit).await.expect("a purge answers")
}

/// Later than anything a rule records, whatever the inbox's clock says.
fn far() -> Timestamp {
    Timestamp(i64::MAX / 2)
}

/// Case 1.
pub async fn a_fresh_id_is_not_recorded(inbox: &Subject) {
    assert!(!is_recorded(inbox, &endpoint(), "new").await);
    assert_eq!(inbox.recorded(&[]).await.expect("no question is a question"), [true; 0]);
}

pub async fn what_is_recorded_is_found(inbox: &Subject) {
    record(inbox, &["source", "own"]).await;
    assert_eq!(are_recorded(inbox, &endpoint(), &["own", "other", "source"]).await, [true, false, true]);
    let row = &rows(inbox, InboxFilter { message_id: Some("own".into()), ..InboxFilter::default() }, 10).await[0];
    assert_eq!((row.endpoint.as_str(), row.message_id.as_str()), ("shop", "own"));
}

/// Spec 4: checks that wait together may go together, and each has its own answer.
pub async fn many_are_asked_at_once(inbox: &Subject) {
    record(inbox, &["b", "d"]).await;
    record_at(inbox, &"bank".into(), &["a", "d"]).await;
    let endpoints = [("shop", "bd"), ("bank", "ad"), ("bank", "ad"), ("shop", "bd")];
    let all = (0..10).flat_map(|_| endpoints).flat_map(|found| ["a", "b", "c", "d", "d"].map(|id| (found, id)));
    // Every third is left out, so that endpoints come in odd numbers too.
    let some = all.enumerate().filter(|(n, _)| n % 3 != 1).map(|(_, one)| one);
    let (asked, expected): (Vec<_>, Vec<_>) = some
        .map(|((endpoint, found), id)| ((EndpointName::from(endpoint), MessageId::from(id)), found.contains(id)))
        .unzip();
    assert_eq!(inbox.recorded(&asked).await.expect("a check answers"), expected);
}

/// Case 127.
pub async fn recording_again_keeps_the_first_time(inbox: &Subject) {
    record(inbox, &["m"]).await;
    let first = rows(inbox, InboxFilter::default(), 10).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    record(inbox, &["m"]).await;
    assert_eq!(first.len(), 1);
    assert_eq!(rows(inbox, InboxFilter::default(), 10).await, first);
}

/// Seed 000: a stand-in's source may be there from an earlier try; the stand-in's own id is recorded all the same.
pub async fn what_was_there_does_not_keep_the_rest_away(inbox: &Subject) {
    record(inbox, &["source"]).await;
    record(inbox, &["source", "own"]).await;
    record(inbox, &["new", "own", "last"]).await;
    assert_eq!(are_recorded(inbox, &endpoint(), &["source", "own", "new", "last"]).await, [true; 4]);
    assert_eq!(rows(inbox, InboxFilter::default(), 10).await.len(), 4);
}

pub async fn nothing_to_record_is_no_error(inbox: &Subject) {
    record(inbox, &[]).await;
    assert_eq!(rows(inbox, InboxFilter::default(), 10).await, []);
}

/// Case 17, A23: none fails, and one row is there.
pub async fn thirty_two_concurrent_records_of_one_id(inbox: &Subject) {
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let inbox = Arc::clone(inbox);
            tokio::spawn(async move { inbox.record(&endpoint(), &ids(&["one"])).await })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task panics").expect("no record fails");
    }
    assert_eq!(rows(inbox, InboxFilter::default(), 10).await.len(), 1);
}

/// A58: each is recorded, found, listed and purged as itself, ids and endpoints alike.
pub async fn odd_characters_are_kept_apart(inbox: &Subject) {
    let odd = sample::odd_ids();
    for id in &odd {
        assert!(!is_recorded(inbox, &endpoint(), id).await, "{id:?} is not there before");
        record(inbox, &[id]).await;
        assert!(is_recorded(inbox, &endpoint(), id).await, "{id:?} is there");
        let filter = InboxFilter { endpoint: None, message_id: Some(id.as_ref().into()) };
        let listed = rows(inbox, filter, 10).await;
        assert_eq!(listed.iter().map(|row| row.message_id.as_str()).collect::<Vec<_>>(), [id.as_ref()]);
    }
    for id in odd.iter().filter(|id| id.encode_utf16().count() <= 260) {
        let odd = EndpointName::from(id.as_ref());
        assert!(!is_recorded(inbox, &odd, "m").await, "endpoint {id:?} knows nothing");
        record_at(inbox, &odd, &["m"]).await;
        assert!(is_recorded(inbox, &odd, "m").await);
        assert_eq!(purge(inbox, &odd, far(), 10).await, 1, "endpoint {id:?} is purged alone");
    }
    assert!(is_recorded(inbox, &endpoint(), &odd[0]).await);
}

/// Cases 12 and 13.
pub async fn case_and_trailing_space_matter(inbox: &Subject) {
    record_at(inbox, &"e1".into(), &["id"]).await;
    for (endpoint, id) in [("e1", "ID"), ("e1", "id "), ("e1", " id"), ("E1", "id"), ("e1 ", "id"), (" e1", "id")] {
        assert!(!is_recorded(inbox, &endpoint.into(), id).await, "{endpoint:?} {id:?}");
    }
}

/// Cases 14, 15 and A18, also where plain concatenation of names would collide.
pub async fn endpoints_do_not_meet(inbox: &Subject) {
    for ((endpoint, id), (other, other_id)) in
        [(("ab", "c"), ("a", "bc")), (("a", "b"), ("b", "a")), (("a", "1\u{1f}a\u{1f}x"), ("a\u{1f}x", "x"))]
    {
        record_at(inbox, &endpoint.into(), &[id]).await;
        assert!(!is_recorded(inbox, &other.into(), other_id).await, "{other:?} {other_id:?}");
        assert!(!is_recorded(inbox, &other.into(), id).await, "{other:?} {id:?}");
    }
}

/// Spec 4: recording runs to its end whatever happens to the caller.
pub async fn a_dropped_caller_does_not_stop_a_record(inbox: &Subject) {
    {
        let (endpoint, ids) = (endpoint(), ids(&["source", "own"]));
        let begun = inbox.record(&endpoint, &ids);
        tokio::select! {
            biased;
            result = begun => result.expect("a record is taken"),
            () = std::future::ready(()) => {}
        }
    }
    for _ in 0..2_000 {
        if are_recorded(inbox, &endpoint(), &["source", "own"]).await == [true; 2] {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the record was lost with its caller");
}

/// Case 123.
pub async fn a_purge_is_bounded_and_takes_the_oldest(inbox: &Subject) {
    record(inbox, &["oldest"]).await;
    for n in 0..25 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        record(inbox, &[&format!("m-{n}")]).await;
    }
    assert_eq!(purge(inbox, &endpoint(), recorded_at(inbox, "oldest").await, 10).await, 0, "before means before");
    assert_eq!(purge(inbox, &endpoint(), far(), 1).await, 1);
    assert!(!is_recorded(inbox, &endpoint(), "oldest").await);
    assert_eq!(purge(inbox, &endpoint(), recorded_at(inbox, "m-3").await, 10).await, 3, "a short batch ends a pass");
    assert_eq!(purge(inbox, &endpoint(), far(), 10).await, 10);
    assert_eq!(are_recorded(inbox, &endpoint(), &["m-2", "m-3", "m-12", "m-13"]).await, [false, false, false, true]);
    assert_eq!(purge(inbox, &endpoint(), far(), 100).await, 12);
    assert_eq!(purge(inbox, &endpoint(), far(), 100).await, 0);
    record(inbox, &["m-0"]).await;
    assert!(is_recorded(inbox, &endpoint(), "m-0").await, "a purged id can be recorded again");
}

/// Cases 125 and 126.
pub async fn a_purge_is_of_one_endpoint(inbox: &Subject) {
    for endpoint in ["e1", "e1 ", "E1", "e", "e11"] {
        record_at(inbox, &endpoint.into(), &["m"]).await;
    }
    assert_eq!(purge(inbox, &"e1".into(), far(), 100).await, 1);
    assert!(!is_recorded(inbox, &"e1".into(), "m").await);
    for endpoint in ["e1 ", "E1", "e", "e11"] {
        assert!(is_recorded(inbox, &endpoint.into(), "m").await, "{endpoint:?}");
    }
}

/// Case 127: recording again does not make it younger.
pub async fn age_counts_from_the_first_record(inbox: &Subject) {
    record(inbox, &["m"]).await;
    let first = recorded_at(inbox, "m").await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    record(inbox, &["m"]).await;
    assert_eq!(purge(inbox, &endpoint(), first.after(Duration::from_millis(1)), 10).await, 1);
}

/// A48, A49: several hosts may purge at once; none fails, and what is gone was counted by one of them.
pub async fn purges_side_by_side_take_each_record_once(inbox: &Subject) {
    let all: Vec<String> = (0..60).map(|n| format!("m-{n}")).collect();
    record(inbox, &all.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let inbox = Arc::clone(inbox);
            tokio::spawn(async move { inbox.purge(&endpoint(), far(), 60).await })
        })
        .collect();
    let mut gone = 0;
    for task in tasks {
        gone += task.await.expect("no task panics").expect("no purge fails");
    }
    assert_eq!(gone + purge(inbox, &endpoint(), far(), 60).await, 60);
    assert_eq!(rows(inbox, InboxFilter::default(), 10).await, []);
}

pub async fn rows_without_loss_or_repeat(inbox: &Subject) {
    for chunk in 0..4 {
        let all: Vec<String> = (0..100).map(|n| format!("m-{chunk}-{n}")).collect();
        record(inbox, &all.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    for limit in [70, 400, 1_000] {
        let listed = rows(inbox, InboxFilter::default(), limit).await;
        let seen: HashSet<_> = listed.iter().map(|row| row.message_id.clone()).collect();
        assert_eq!((listed.len(), seen.len()), (400, 400), "{limit} at a time");
    }
}

pub async fn rows_are_filtered(inbox: &Subject) {
    record(inbox, &["m", "n"]).await;
    record_at(inbox, &"bank".into(), &["m"]).await;
    let count = async |endpoint: Option<&str>, id: Option<&str>| {
        let filter = InboxFilter { endpoint: endpoint.map(Into::into), message_id: id.map(Into::into) };
        rows(inbox, filter, 10).await.len()
    };
    assert_eq!(count(None, None).await, 3);
    assert_eq!(count(Some("shop"), None).await, 2);
    assert_eq!(count(None, Some("m")).await, 2);
    assert_eq!(count(Some("bank"), Some("m")).await, 1);
    assert_eq!(count(Some("bank"), Some("n")).await, 0);
}

pub async fn a_strange_cursor_is_refused(inbox: &Subject) {
    record(inbox, &["m"]).await;
    for page in [
        Page { after: Some("?".into()), limit: 10 },
        Page { after: None, limit: 0 },
        Page { after: None, limit: 1_001 },
    ] {
        let refused = inbox.list(&InboxFilter::default(), &page).await;
        assert!(matches!(refused, Err(crate::Error::Invalid(_))), "{page:?}: {refused:?}");
    }
}
