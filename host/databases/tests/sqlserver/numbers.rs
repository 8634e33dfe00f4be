//! Everything is told by the server's error number (A24): the fake's texts are in German.

use sprag_core::effect::StoreWrite;
use sprag_databases::test_server::tds::Trouble;
use sprag_store::{
    Error, Store, Written,
    conformance::sample::{changes, put, record, saw},
};

use crate::support::{ask, fake, open, options, shop, success, until};

/// P4: the loser of a deadlock (1205) begins again, and so does who was told that a key is there (2627, 2601), wherever it was.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_in_the_way_is_repeated() {
    let (store, fake) = fake().await;
    for number in [1205, 2627, 2601] {
        for statement in ["[decision]", "[InboxMessages]", "[event]", "COMMIT"] {
            let id = format!("m-{number}-{statement}");
            fake.plan(statement, 0, Trouble::Error(number));
            assert_eq!(store.write(&shop(), success(&id)).await.unwrap(), Written::Done, "{id}");
            assert!(ask(&store, &id).await.unwrap().own_recorded, "{id}");
        }
    }
    fake.plan("LEFT JOIN", 0, Trouble::Error(1205));
    assert!(ask(&store, "m-1205-COMMIT").await.unwrap().own_recorded, "a question is asked again");
}

/// P4: what loses again and again is a conflict for a run, which repeats, and an outage for all else.
#[tokio::test(flavor = "multi_thread")]
async fn what_loses_for_ever_is_told() {
    let (store, fake) = fake().await;
    (0..5).for_each(|_| fake.plan("[state]", 0, Trouble::Error(1205)));
    let with_unit = changes(vec![put("k", "v")], vec![saw("other", Default::default())]);
    assert!(matches!(store.write(&shop(), with_unit.clone()).await, Err(Error::StateConflict)));
    assert_eq!(store.write(&shop(), with_unit).await.unwrap(), Written::Done);

    // Once with the others that it might have been, and once alone.
    (0..10).for_each(|_| fake.plan("[InboxMessages]", 0, Trouble::Error(1205)));
    let result = store.write(&shop(), record(&["m"])).await;
    assert!(matches!(&result, Err(Error::Unavailable(text)) if text.contains("1205")), "{result:?}");
}

/// A23, and both numbers for *already there*: the other host's record is met while this one is being written.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_another_host_is_writing_is_waited_for() {
    let (store, fake) = fake().await;
    let client = fake.database().client().await;
    for round in 0..2 {
        let id = format!("m-{round}");
        store.write(&shop(), record(&[&id])).await.unwrap();
        // As another host would: the row is gone for everybody, and comes back with its commit.
        let take = "CREATE TEMP TABLE IF NOT EXISTS held AS SELECT * FROM nimbus.\"InboxMessages\" WHERE false; DELETE FROM held; \
             WITH gone AS (DELETE FROM nimbus.\"InboxMessages\" RETURNING *) INSERT INTO held SELECT * FROM gone; \
             BEGIN; INSERT INTO nimbus.\"InboxMessages\" SELECT * FROM held";
        client.batch_execute(take).await.unwrap();
        let call = tokio::spawn({
            let (store, write) = (store.clone(), success(&id));
            async move { store.write(&shop(), write).await }
        });
        let waiting = "SELECT 1 FROM pg_locks WHERE NOT granted";
        until("the store waits for us", async || !client.query(waiting, &[]).await.unwrap().is_empty()).await;
        client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(call.await.unwrap().unwrap(), Written::AlreadyDecided, "{id}");
    }
    assert!(store.outbox(&Default::default()).await.unwrap().items.is_empty(), "P35: the unit of work is dropped");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_each_number_means() {
    let (store, fake) = fake().await;
    for (number, what) in [
        (1222, "held what was needed"),
        (9002, "full"),
        (3906, "read-only"),
        (208, "tables are not there"),
        (229, "may not do"),
        (6005, "stopping or starting"),
        (10928, "no room"),
        (50_000, "refused a statement"),
    ] {
        fake.plan("[InboxMessages]", 0, Trouble::Error(number));
        match store.write(&shop(), record(&["m"])).await {
            Err(Error::Unavailable(text)) => {
                assert!(text.contains(what) && text.contains(&number.to_string()), "{number}: {text}");
                assert!(!text.contains("geplant"), "no text of the server's: {text}");
            }
            other => panic!("{number}: {other:?}"),
        }
    }
    // A value that no column can hold is the caller's.
    let long = "x".repeat(600);
    let result = store.write(&shop(), record(&[&long])).await;
    assert!(matches!(&result, Err(Error::Invalid(text)) if text.contains("2628")), "{result:?}");
}

/// What is wrong with one write is not the others' fault.
#[tokio::test]
async fn a_write_that_cannot_be_held_fails_alone() {
    let (_, fake) = fake().await;
    let store = open(options(&fake.url())).await;
    let client = fake.database().client().await;
    client.batch_execute(r#"BEGIN; LOCK TABLE nimbus."InboxMessages" IN ACCESS EXCLUSIVE MODE"#).await.unwrap();
    let calls: Vec<_> = (0..40)
        .map(|n| {
            let store = store.clone();
            let id = if n % 20 == 19 { "x".repeat(600) } else { format!("m-{n}") };
            tokio::spawn(async move { store.write(&shop(), record(&[&id])).await })
        })
        .collect();
    let waiting = "SELECT 1 FROM pg_locks WHERE NOT granted";
    until("a round trip is under way", async || !client.query(waiting, &[]).await.unwrap().is_empty()).await;
    client.batch_execute("ROLLBACK").await.unwrap();
    for (n, call) in calls.into_iter().enumerate() {
        match call.await.unwrap() {
            Ok(written) => assert!(written == Written::Done && n % 20 != 19, "{n}"),
            Err(Error::Invalid(text)) => assert!(n % 20 == 19 && text.contains("2628"), "{n}: {text}"),
            Err(other) => panic!("{n}: {other}"),
        }
    }
    assert_eq!(store.write(&shop(), StoreWrite::default()).await.unwrap(), Written::Done);
}
