//! Purges and listings over several partitions of the service, in pages.

use serde_json::{Value, json};
use sprag_core::{ids::EndpointName, time::Timestamp};
use sprag_store::{
    Error,
    conformance::sample,
    inbox::Inbox,
    query::{InboxFilter, Page},
};

use crate::recorded::{Reply, Seen, Service, ranges, reply};

/// A key that stands for a number.
fn key(n: usize) -> String {
    format!("{n:064X}")
}

fn found(n: usize, second: usize) -> Value {
    let created = format!("2026-01-01T00:00:{second:02}.0000000Z");
    json!({ "id": key(n), "_etag": format!("\"etag-{n}\""), "createdAtUtc": created, "endpointId": "shop", "messageId": n.to_string() })
}

/// Two partitions, each of which gives two records to a page: (number, second).
fn pages(seen: &Seen) -> Reply {
    let all: &[(usize, usize)] = match seen.header("x-ms-documentdb-partitionkeyrangeid") {
        "0" => &[(1, 1), (3, 2), (5, 7), (7, 9)],
        "1" => &[(2, 3), (4, 4), (6, 5), (8, 8)],
        other => panic!("{other:?} is no partition"),
    };
    let from = seen.header("x-ms-continuation").parse().unwrap_or(0);
    let most = seen.header("x-ms-max-item-count").parse::<usize>().expect("a number").min(2);
    let to = (from + most).min(all.len());
    let documents: Vec<_> = all[from..to].iter().map(|(n, second)| found(*n, *second)).collect();
    let next = (to < all.len()).then(|| ("x-ms-continuation", to.to_string()));
    Reply(200, next.into_iter().collect(), json!({ "Documents": documents, "_count": documents.len() }))
}

/// Cases 18 and 123: the oldest of all partitions, each deleted only as it was found. What has changed or is gone is passed over and not counted.
#[tokio::test]
async fn the_oldest_go_wherever_they_are() {
    let service = Service::usual(|seen| match seen.what.as_str() {
        "GET /dbs/MessageDatabase/colls/inbox/pkranges" => ranges(&["0", "1"]),
        what if what.starts_with("POST") => pages(seen),
        what if what == format!("DELETE /dbs/MessageDatabase/colls/inbox/docs/{}", key(3)) => reply(412, json!({})),
        what if what == format!("DELETE /dbs/MessageDatabase/colls/inbox/docs/{}", key(4)) => reply(404, json!({})),
        _ => reply(204, json!({})),
    })
    .await;
    let inbox = service.open().await;
    let gone = inbox.purge(&sample::endpoint(), Timestamp(1_800_000_000_000), 5).await.unwrap();
    assert_eq!(gone, 3, "five were found, one was recorded again and one purged by somebody else meanwhile");
    let mut deleted: Vec<_> = service.seen().into_iter().filter(|it| it.what.starts_with("DELETE")).collect();
    deleted.sort_by(|a, b| a.what.cmp(&b.what));
    // By seconds 1, 2, 3, 4 and 5.
    for (seen, n) in deleted.iter().zip([1, 2, 3, 4, 6]) {
        assert!(seen.what.ends_with(&key(n)), "{}", seen.what);
        assert_eq!(seen.header("if-match"), format!("\"etag-{n}\""), "only as it was found");
        assert_eq!(seen.header("x-ms-documentdb-partitionkey"), format!("[\"{}\"]", key(n)));
    }
    assert_eq!(deleted.len(), 5);
    let query = service.seen().into_iter().find(|it| it.what.starts_with("POST")).unwrap();
    assert_eq!(query.header("content-type"), "application/query+json");
    let values: Vec<_> = query.body["parameters"].as_array().unwrap().iter().map(|it| it["value"].clone()).collect();
    assert_eq!(
        values,
        [json!("shop"), json!("2027-01-15T08:00:00.0000000Z")],
        "values are never part of the statement"
    );
}

#[tokio::test]
async fn a_purge_that_fails_says_so() {
    let service = Service::usual(|seen| match seen.what.as_str() {
        what if what.ends_with("/pkranges") => ranges(&["0", "1"]),
        what if what.starts_with("POST") => pages(seen),
        _ => reply(403, json!({})),
    })
    .await;
    let inbox = service.open().await;
    let refused = inbox.purge(&sample::endpoint(), Timestamp(1_800_000_000_000), 5).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    assert_eq!(inbox.purge(&EndpointName::from("shop"), Timestamp(0), 0).await.unwrap(), 0);
}

/// Listings go on where they ended, over all partitions, without loss or repeat.
#[tokio::test]
async fn a_listing_merges_partitions_and_pages() {
    let service = Service::usual(|seen| match seen.what.as_str() {
        what if what.ends_with("/pkranges") => match seen.header("x-ms-continuation") {
            "" => {
                let Reply(status, _, body) = ranges(&["0"]);
                Reply(status, vec![("x-ms-continuation", "more".into())], body)
            }
            _ => ranges(&["1"]),
        },
        _ => {
            let Reply(status, headers, mut body) = pages(seen);
            let after = seen.body["parameters"].as_array().unwrap().iter().find(|it| it["name"] == "@after");
            if let Some(after) = after.and_then(|it| it["value"].as_str()) {
                body["Documents"].as_array_mut().unwrap().retain(|it| it["id"].as_str().unwrap() > after);
            }
            Reply(status, headers, body)
        }
    })
    .await;
    let inbox = service.open().await;
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let part = inbox.list(&InboxFilter::default(), &Page { after, limit: 3 }).await.unwrap();
        all.push(part.items.iter().map(|row| row.message_id.to_string()).collect::<Vec<_>>().join(" "));
        after = part.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(all, ["1 2 3", "4 5 6", "7 8"]);
    let row = &inbox.list(&InboxFilter::default(), &Page { after: None, limit: 1 }).await.unwrap().items[0];
    assert_eq!(row.recorded_at.to_string(), "2026-01-01T00:00:01.000Z");
}

/// What somebody else has put there is not shown as a record that it is not.
#[tokio::test]
async fn a_document_that_is_no_record_is_an_error() {
    let service = Service::usual(|seen| match seen.what.as_str() {
        what if what.ends_with("/pkranges") => ranges(&["0"]),
        _ => reply(200, json!({ "Documents": [{ "id": "x", "other": 1 }] })),
    })
    .await;
    let refused = service.open().await.list(&InboxFilter::default(), &Page::default()).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
}
