//! Several hosts on one database.

use std::{sync::Arc, time::Duration};

use sprag_core::{
    effect::{LeaseEnd, LeaseEnding, StoreWrite},
    run::Version,
    time::Timestamp,
};
use sprag_store::{
    Error, Store, Written,
    conformance::sample::{changes, put, record, saw},
    lease::Leased,
    query::{InboxFilter, Page},
};

use crate::support::{ask, fresh, open, shop, success};

/// P1, A23: of two hosts that decide the same delivery at the same moment one decides it, and neither fails.
#[tokio::test(flavor = "multi_thread")]
async fn two_hosts_race_on_one_decision() {
    let (one, database) = fresh().await;
    let hosts = [one, Arc::new(open(database.url()).await)];
    for round in 0..40 {
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
    assert_eq!(outbox.len(), 40, "each message is sent once");
}

/// Writes that name the same ids in another order do not fail by waiting for each other.
#[tokio::test(flavor = "multi_thread")]
async fn records_in_another_order_do_not_fail() {
    let (one, database) = fresh().await;
    let hosts = [one, Arc::new(open(database.url()).await)];
    for round in 0..40 {
        let ids: Vec<String> = (0..4).map(|n| format!("{round}-{n}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let backwards: Vec<&str> = ids.iter().rev().copied().collect();
        let writes = [record(&ids), record(&backwards)];
        let calls: Vec<_> = writes
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
    let (one, database) = fresh().await;
    let hosts = [one, Arc::new(open(database.url()).await)];
    let runs: Vec<_> = (0..8)
        .map(|n| {
            let store = Arc::clone(&hosts[n % 2]);
            tokio::spawn(async move {
                let mut conflicts = 0;
                for _ in 0..10 {
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
    assert!(conflicts > 0, "eight at once get into each other's way");
    let sum = hosts[0].state_get(&shop(), "sum").await.unwrap().unwrap();
    assert_eq!(text_number(&sum.value), 80);
}

fn text_number(bytes: &[u8]) -> u32 {
    std::str::from_utf8(bytes).expect("a number was written").parse().expect("a number was written")
}

/// A48, A49 in small: four hosts purge and insert at once. Nothing fails, nothing young goes, nothing old stays.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_purge_while_others_record() {
    let (one, database) = fresh().await;
    let mut hosts = vec![one];
    for _ in 0..3 {
        hosts.push(Arc::new(open(database.url()).await));
    }
    let ids = |kind: &str, n: usize| -> StoreWrite {
        StoreWrite { record: (0..200).map(|i| format!("{kind}-{n}-{i}").into()).collect(), ..StoreWrite::default() }
    };
    for n in 0..10 {
        hosts[0].write(&shop(), ids("old", n)).await.unwrap();
    }
    let client = database.client().await;
    client.execute("UPDATE sprag_inbox SET recorded_at = recorded_at - 86400000", &[]).await.unwrap();
    let before = {
        let row = client.query_one("SELECT max(recorded_at) + 1 FROM sprag_inbox", &[]).await.unwrap();
        Timestamp(row.get(0))
    };
    let tasks: Vec<_> = hosts
        .iter()
        .enumerate()
        .map(|(n, store)| {
            let store = Arc::clone(store);
            let young = ids("young", n);
            tokio::spawn(async move {
                let mut gone = 0;
                loop {
                    let batch = store.purge_inbox(&shop(), before, 70).await.expect("no purge fails");
                    assert!(batch <= 70);
                    gone += batch;
                    if batch < 70 {
                        break;
                    }
                    store.write(&shop(), young.clone()).await.expect("no record fails");
                }
                gone
            })
        })
        .collect();
    let mut gone = 0;
    for task in tasks {
        gone += task.await.unwrap();
    }
    // A batch is short as well where the rest is in another host's hands.
    gone += hosts[0].purge_inbox(&shop(), before, 1_000).await.unwrap();
    assert_eq!(gone, 2_000);
    let left = hosts[0].inbox(&InboxFilter::default(), &Page { after: None, limit: 1_000 }).await.unwrap().items;
    assert!(left.iter().all(|row| row.message_id.as_str().starts_with("young")));
    assert!(!left.is_empty());
}

/// A50: rows that somebody else is at are passed over, without a wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_waits_for_nobody() {
    let (store, database) = fresh().await;
    store.write(&shop(), record(&["held", "free"])).await.unwrap();
    let client = database.client().await;
    client.batch_execute("BEGIN; SELECT 1 FROM sprag_inbox WHERE message_id = 'held' FOR UPDATE").await.unwrap();
    let far = Timestamp(i64::MAX / 2);
    assert_eq!(store.purge_inbox(&shop(), far, 10).await.unwrap(), 1);
    assert!(!ask(&store, "free").await.unwrap().own_recorded);
    client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(store.purge_inbox(&shop(), far, 10).await.unwrap(), 1);
}

/// Spec 4, mode `lease`: hosts that want the same messages at the same moment share them, and the writes that end their leases go together.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_lease_messages_to_themselves() {
    let (one, database) = fresh().await;
    let hosts = [one, Arc::new(open(database.url()).await)];
    let calls: Vec<_> = (0..200)
        .map(|n| {
            let (store, id, owner) = (Arc::clone(&hosts[n % 2]), format!("m-{}", n / 4), format!("owner-{n}"));
            tokio::spawn(async move {
                let leases = store.leases().unwrap();
                let time = Duration::from_secs(60);
                let leased = leases.acquire(&shop(), &id.as_str().into(), &owner.as_str().into(), time).await.unwrap();
                // Whoever comes after the end of a lease finds the record.
                if leased != Leased::Acquired || ask(&store, &id).await.unwrap().own_recorded {
                    return 0;
                }
                let how = LeaseEnding::Over;
                let lease = LeaseEnd { id: id.as_str().into(), owner: Some(owner.as_str().into()), how };
                let written = store.write(&shop(), StoreWrite { lease: Some(lease), ..success(&id) }).await.unwrap();
                assert_eq!(written, Written::Done, "{id}");
                1
            })
        })
        .collect();
    let mut runs = 0;
    for call in calls {
        runs += call.await.unwrap();
    }
    assert_eq!(runs, 50, "each message once");
}
