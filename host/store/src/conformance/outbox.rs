//! Claims, leases and order of outgoing messages (P33, A20 to A22).

use std::{collections::HashSet, sync::Arc, time::Duration};

use sprag_core::{
    effect::StoreWrite,
    ids::EndpointName,
    message::Message,
    run::{Outgoing, UnitOfWork},
    time::Timestamp,
};

use super::{
    Subject,
    sample::{self, sends, write},
};
use crate::{OutboxRow, query::Page};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(40);

async fn claim(store: &Subject, max: u32, lease: Duration) -> Vec<OutboxRow> {
    let rows = store.outbox_claim(&[sample::endpoint()], max, lease).await.expect("a claim answers");
    assert!(rows.len() <= max as usize);
    rows
}

fn ids(rows: &[OutboxRow]) -> Vec<&str> {
    rows.iter().map(|row| row.message.message_id.as_ref().expect("rules send ids").as_str()).collect()
}

async fn sent(store: &Subject, rows: &[OutboxRow]) {
    store.outbox_sent(&rows.iter().map(|row| row.id).collect::<Vec<_>>()).await.expect("it is noted");
}

/// Waits until the database's clock is past `lease`.
async fn let_lapse(lease: Duration) {
    tokio::time::sleep(lease + Duration::from_millis(20)).await;
}

/// P33, case 136: per session in the order of writing; a claimed or sent row is not given again.
pub async fn rows_leave_in_order_and_are_claimed_once(store: &Subject) {
    write(store, sends(&[("q", Some("s"), "1"), ("q", Some("s"), "2")])).await;
    write(store, sends(&[("q", Some("s"), "3")])).await;
    let rows = claim(store, 100, LONG).await;
    assert_eq!(ids(&rows), ["1", "2", "3"]);
    assert!(rows.iter().all(|row| row.tries == 0 && row.endpoint == sample::endpoint() && row.entity.as_str() == "q"));
    assert_eq!(claim(store, 100, LONG).await, []);
    sent(store, &rows[..2]).await;
    assert_eq!(
        store.outbox(&Page::default()).await.expect("the outbox").items.len(),
        1,
        "a row stays until it is sent"
    );
    sent(store, &rows).await;
    assert_eq!(store.outbox(&Page::default()).await.expect("the outbox").items, []);
    write(store, sends(&[("q", Some("s"), "4")])).await;
    assert_eq!(ids(&claim(store, 1, LONG).await), ["4"]);
}

/// P33: what a relay claimed and did not send is sent by another one, under the same id.
pub async fn a_lapsed_claim_is_given_again(store: &Subject) {
    write(store, sends(&[("q", Some("s"), "1"), ("q", None, "2")])).await;
    let first = claim(store, 10, SHORT).await;
    assert_eq!(first.len(), 2);
    let_lapse(SHORT).await;
    let second = claim(store, 10, LONG).await;
    assert_eq!(
        second.iter().map(|row| &row.message).collect::<Vec<_>>(),
        first.iter().map(|row| &row.message).collect::<Vec<_>>()
    );
}

/// P33: a row is sent by one host at a time.
pub async fn concurrent_claims_share_no_row(store: &Subject) {
    let rows: Vec<String> = (0..60).map(|n| format!("m-{n}")).collect();
    write(store, sends(&rows.iter().map(|id| ("q", None, id.as_str())).collect::<Vec<_>>())).await;
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let store = Arc::clone(store);
            tokio::spawn(async move { claim(&store, 10, LONG).await })
        })
        .collect();
    let mut seen = HashSet::new();
    for task in tasks {
        for row in task.await.expect("no task panics") {
            assert!(seen.insert(row.id), "row {} was given twice", row.id);
        }
    }
    assert_eq!(seen.len(), 60, "what is due is given");
}

/// P33: while a relay holds the oldest of a session, no other one gets a later one of it; other sessions and entities go.
pub async fn a_claimed_session_waits_and_others_go(store: &Subject) {
    write(store, sends(&[("q", Some("s"), "1"), ("q", Some("s"), "2"), ("q", Some("t"), "3"), ("r", Some("s"), "4")]))
        .await;
    let first = claim(store, 1, LONG).await;
    assert_eq!(ids(&first), ["1"]);
    assert_eq!(ids(&claim(store, 10, LONG).await), ["3", "4"]);
    assert_eq!(claim(store, 10, LONG).await, []);
    sent(store, &first).await;
    assert_eq!(ids(&claim(store, 10, LONG).await), ["2"]);
}

/// Case 132: a failed row is not given before its time, holds the later ones of its session, and comes alone.
pub async fn a_failed_row_backs_off_and_holds_its_session(store: &Subject) {
    write(store, sends(&[("q", Some("s"), "1"), ("q", Some("s"), "2"), ("q", Some("t"), "3")])).await;
    let rows = claim(store, 10, SHORT).await;
    assert_eq!(rows.len(), 3);
    store.outbox_failed(rows[0].id, "no such queue", Some(Timestamp(i64::MAX / 2))).await.expect("it is noted");
    sent(store, &rows[2..]).await;
    let_lapse(SHORT).await;
    assert_eq!(ids(&claim(store, 10, LONG).await), [""; 0], "2 waits for 1, and 1 for its time");
    let due = crate::clock::now().after(SHORT);
    store.outbox_failed(rows[0].id, "no such queue", Some(due)).await.expect("it is noted");
    let_lapse(SHORT).await;
    let again = claim(store, 10, LONG).await;
    assert_eq!(ids(&again), ["1"], "while it is failing, the oldest comes alone");
    assert_eq!(again[0].tries, 2);
    sent(store, &again).await;
    assert_eq!(ids(&claim(store, 10, LONG).await), ["2"]);
}

/// Spec 5: a poison row is never given, holds its session, and goes on or away when an operator says so.
pub async fn a_poison_row_waits_for_an_operator(store: &Subject) {
    write(store, sends(&[("q", Some("s"), "1"), ("q", Some("s"), "2"), ("q", Some("s"), "3")])).await;
    let rows = claim(store, 10, SHORT).await;
    store.outbox_failed(rows[0].id, "refused", None).await.expect("it is noted");
    let_lapse(SHORT).await;
    assert_eq!(claim(store, 10, LONG).await, []);
    assert!(store.outbox_resolve(rows[0].id, false).await.expect("an answer"), "it is let go on");
    let again = claim(store, 10, SHORT).await;
    assert_eq!(ids(&again)[0], "1");
    store.outbox_failed(again[0].id, "refused", None).await.expect("it is noted");
    assert!(store.outbox_resolve(again[0].id, true).await.expect("an answer"), "it is dropped");
    assert!(!store.outbox_resolve(again[0].id, true).await.expect("an answer"), "it is gone");
    assert!(!store.outbox_resolve(i64::MAX, false).await.expect("an answer"), "it was never there");
    let_lapse(SHORT).await;
    assert_eq!(ids(&claim(store, 10, LONG).await), ["2", "3"]);
}

/// P33: hosts that serve different endpoints may share a store; each sends its own.
pub async fn a_relay_gets_rows_of_its_endpoints_only(store: &Subject) {
    write(store, sends(&[("q", Some("s"), "1")])).await;
    let other = EndpointName::from("another");
    store.write(&other, sends(&[("q", Some("s"), "2")])).await.expect("it is written");
    let of = |endpoints: Vec<EndpointName>| async move {
        ids(&store.outbox_claim(&endpoints, 10, LONG).await.expect("a claim answers"))
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(of(Vec::new()).await, [""; 0]);
    assert_eq!(of(vec![other.clone()]).await, ["2"], "another endpoint's row does not hold it");
    assert_eq!(of(vec![sample::endpoint(), other]).await, ["1"]);
}

/// There is no order without a session: one failing message does not hold the others.
pub async fn messages_without_a_session_do_not_wait_for_each_other(store: &Subject) {
    write(store, sends(&[("q", None, "1"), ("q", None, "2"), ("q", None, "3")])).await;
    let first = claim(store, 1, LONG).await;
    store.outbox_failed(first[0].id, "refused", None).await.expect("it is noted");
    assert_eq!(ids(&claim(store, 10, LONG).await), ["2", "3"]);
}

/// P33: it arrives as it was published, whatever it holds.
pub async fn a_message_survives_the_outbox_whole(store: &Subject) {
    let messages: Vec<Message> = sample::every_body()
        .into_iter()
        .map(|(name, body)| Message {
            body,
            scheduled_for: Some(Timestamp(i64::MAX / 4)),
            ..sample::full_message(name)
        })
        .collect();
    let outgoing = messages.iter().map(|message| Outgoing { entity: "q".into(), message: message.clone() }).collect();
    write(store, StoreWrite { unit: UnitOfWork { outgoing, ..UnitOfWork::default() }, ..StoreWrite::default() }).await;
    let rows = claim(store, 100, LONG).await;
    assert_eq!(
        rows.into_iter().map(|row| row.message).collect::<Vec<_>>(),
        messages,
        "scheduled ones leave at once; the entity keeps them"
    );
}
