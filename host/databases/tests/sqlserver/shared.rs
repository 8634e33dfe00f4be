//! The inbox that is NimBus's as well (`reference/nimbus-barewire.md` 1.15).

use sprag_core::{effect::StoreWrite, time::Timestamp};
use sprag_store::{
    Store, Written,
    conformance::sample::record,
    query::{InboxFilter, Page},
};

use crate::support::{fake, success};

/// The hash of the row that NimBus writes for (`x😀`, `1`), from the reference: the length counts UTF-16 units.
const NIMBUS: &str = "4d3fb2894b88d86469a1a506bb01d32d3a999ae70dc44dde50e504f4d2f78b60";

#[tokio::test(flavor = "multi_thread")]
async fn what_nimbus_recorded_is_a_duplicate() {
    let (store, fake) = fake().await;
    let client = fake.database().client().await;
    let row = format!(
        "INSERT INTO nimbus.\"InboxMessages\" VALUES ('\\x{NIMBUS}', 'x😀', '1', timestamp '2026-03-01 22:30:00.1234567')"
    );
    client.batch_execute(&row).await.unwrap();
    let endpoint = "x😀".into();
    let write = StoreWrite { decision: None, ..success("1") };
    assert_eq!(store.write(&endpoint, write).await.unwrap(), Written::AlreadyDecided);
    // A54: UTC, as it stands there.
    let found = store.inbox(&InboxFilter::default(), &Page::default()).await.unwrap().items;
    assert_eq!((found.len(), found[0].message_id.as_str()), (1, "1"));
    assert_eq!(found[0].recorded_at, Timestamp(1_772_404_200_123));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_host_recorded_is_nimbus_row() {
    let (store, fake) = fake().await;
    store.write(&"x😀".into(), record(&["1"])).await.unwrap();
    let sql = "SELECT encode(\"IdentityHash\", 'hex'), \"EndpointId\"::text, \"MessageId\"::text FROM nimbus.\"InboxMessages\"";
    let row = fake.database().client().await.query_one(sql, &[]).await.unwrap();
    let found: (String, String, String) = (row.get(0), row.get(1), row.get(2));
    assert_eq!(found, (NIMBUS.to_owned(), "x😀".to_owned(), "1".to_owned()));
}

/// Case 126: SQL Server takes `e1` and `e1 ` for the same, and the fake does too; the lengths tell them apart.
#[tokio::test(flavor = "multi_thread")]
async fn spaces_at_the_end_of_an_endpoint_count() {
    let (store, fake) = fake().await;
    for endpoint in ["e1", "e1 ", "e1  "] {
        store.write(&endpoint.into(), record(&["m"])).await.unwrap();
    }
    assert_eq!(store.purge_inbox(&"e1 ".into(), Timestamp(i64::MAX / 2), 10).await.unwrap(), 1);
    let left = store.inbox(&InboxFilter::default(), &Page::default()).await.unwrap().items;
    let mut names: Vec<&str> = left.iter().map(|row| row.endpoint.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["e1", "e1  "]);
    let purges: Vec<_> = fake.sent().into_iter().filter(|sent| sent.text.starts_with("DELETE FROM [nimbus]")).collect();
    assert_eq!(purges.len(), 1);
    for part in ["DATALENGTH(EndpointId) = DATALENGTH(", "WITH (READPAST, READCOMMITTEDLOCK)", "ORDER BY CreatedAtUtc"]
    {
        assert!(purges[0].text.contains(part), "{part}: {}", purges[0].text);
    }
}
