//! Several hosts on one database.

use std::sync::Arc;

use sprag_core::{effect::StoreWrite, run::Version, time::Timestamp};
use sprag_store::{
    Error, Store, Written,
    conformance::sample::{changes, put, record, saw},
    query::Page,
};

use crate::support::{ask, fake, open, options, shop, success};

/// P1, A23: of two hosts that decide the same delivery at the same moment one decides it, and neither fails.
#[tokio::test(flavor = "multi_thread")]
async fn two_hosts_race_on_one_decision() {
    let (one, fake) = fake().await;
    let hosts = [one, Arc::new(open(options(&fake.url())).await)];
    for round in 0..30 {
        let id = format!("m-{round}");
        let calls: Vec<_> = (0..6)
            .map(|n| {
                let (store, write) = (Arc::clone(&hosts[n % 2]), success(&id));
                tokio::spawn(async move { store.write(&shop(), write).await })
            })
            .collect();
        let mut done = 0;
        for call in calls {
            done += usize::from(call.await.unwrap().expect("no write fails") == Written::Done);
        }
        assert_eq!(done, 1, "{id}");
    }
    let outbox = hosts[0].outbox(&Page::default()).await.unwrap().items;
    assert_eq!(outbox.len(), 30, "each message is sent once");
}

/// Writes that name the same ids in another order do not fail by waiting for each other.
#[tokio::test(flavor = "multi_thread")]
async fn records_in_another_order_do_not_fail() {
    let (one, fake) = fake().await;
    let hosts = [one, Arc::new(open(options(&fake.url())).await)];
    for round in 0..30 {
        let ids: Vec<String> = (0..4).map(|n| format!("{round}-{n}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let backwards: Vec<&str> = ids.iter().rev().copied().collect();
        let calls: Vec<_> = [record(&ids), record(&backwards)]
            .into_iter()
            .zip(&hosts)
            .map(|(write, store)| {
                let (store, write) = (Arc::clone(store), StoreWrite { finals: write.record.clone(), ..write });
                tokio::spawn(async move { store.write(&shop(), write).await })
            })
            .collect();
        for call in calls {
            call.await.unwrap().expect("no write fails");
        }
    }
}

/// P4 across hosts: increments that read and write are neither lost nor done twice, and other keys are not in their way.
#[tokio::test(flavor = "multi_thread")]
async fn counters_of_two_hosts_add_up() {
    let (one, fake) = fake().await;
    let hosts = [one, Arc::new(open(options(&fake.url())).await)];
    let runs: Vec<_> = (0..6)
        .map(|n| {
            let store = Arc::clone(&hosts[n % 2]);
            tokio::spawn(async move {
                let mut conflicts = 0;
                for _ in 0..8 {
                    loop {
                        let found = store.state_get(&shop(), "sum").await.unwrap();
                        let (value, version) = found.map_or((0, Version(0)), |it| (text_number(&it.value), it.version));
                        let writes = vec![put("sum", &(value + 1).to_string()), put(&format!("own-{n}"), "x")];
                        match store.write(&shop(), changes(writes, vec![saw("sum", version)])).await {
                            Ok(written) => break assert_eq!(written, Written::Done),
                            Err(Error::StateConflict) => conflicts += 1,
                            Err(other) => panic!("{other}"),
                        }
                    }
                }
                conflicts
            })
        })
        .collect();
    let mut conflicts = 0;
    for run in runs {
        conflicts += run.await.unwrap();
    }
    assert!(conflicts > 0, "six at once get into each other's way");
    let sum = hosts[0].state_get(&shop(), "sum").await.unwrap().unwrap();
    assert_eq!(text_number(&sum.value), 48);
}

fn text_number(bytes: &[u8]) -> u32 {
    std::str::from_utf8(bytes).expect("a number was written").parse().expect("a number was written")
}

/// A50: rows that somebody else is at are passed over, without a wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_waits_for_nobody() {
    let (store, fake) = fake().await;
    store.write(&shop(), record(&["held", "free"])).await.unwrap();
    let client = fake.database().client().await;
    let hold = r#"BEGIN; SELECT 1 FROM nimbus."InboxMessages" WHERE "MessageId" = 'held' FOR UPDATE"#;
    client.batch_execute(hold).await.unwrap();
    let far = Timestamp(i64::MAX / 2);
    assert_eq!(store.purge_inbox(&shop(), far, 10).await.unwrap(), 1);
    assert!(!ask(&store, "free").await.unwrap().own_recorded);
    client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(store.purge_inbox(&shop(), far, 10).await.unwrap(), 1);
}

/// A48, A49 in small: hosts purge and insert at once. Nothing fails, nothing young goes, nothing old stays.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_purge_while_others_record() {
    let (one, fake) = fake().await;
    let hosts = [one, Arc::new(open(options(&fake.url())).await)];
    let ids = |kind: &str| -> StoreWrite {
        StoreWrite { record: (0..400).map(|n| format!("{kind}-{n}").into()).collect(), ..StoreWrite::default() }
    };
    hosts[0].write(&shop(), ids("old")).await.unwrap();
    let age = r#"UPDATE nimbus."InboxMessages" SET "CreatedAtUtc" = timestamp '2020-01-01'"#;
    fake.database().client().await.batch_execute(age).await.unwrap();
    let before = Timestamp(1_600_000_000_000);
    let tasks: Vec<_> = hosts
        .iter()
        .enumerate()
        .map(|(n, store)| {
            let (store, young) = (Arc::clone(store), ids(&format!("young-{n}")));
            tokio::spawn(async move {
                let mut gone = 0;
                loop {
                    let batch = store.purge_inbox(&shop(), before, 30).await.expect("no purge fails");
                    gone += batch;
                    if batch < 30 {
                        return gone;
                    }
                    store.write(&shop(), young.clone()).await.expect("no record fails");
                }
            })
        })
        .collect();
    let mut gone = 0;
    for task in tasks {
        gone += task.await.unwrap();
    }
    // A batch is short as well where the rest is in another host's hands.
    gone += hosts[0].purge_inbox(&shop(), before, 1_000).await.unwrap();
    assert_eq!(gone, 400);
    assert!(ask(&hosts[1], "young-0-0").await.unwrap().own_recorded);
}
