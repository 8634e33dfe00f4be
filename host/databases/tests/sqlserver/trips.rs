//! What a call costs, what is sent, and texts that a column cannot hold as they are.

use sprag_core::{effect::OutcomeWrite, outcome::Outcome};
use sprag_store::{
    Store as _, Written,
    conformance::sample::{changes, failed, line, only, outcome, put, record},
    query::{EventFilter, Page},
};

use crate::support::{ask, fake, fresh, shop, success, until};

/// Spec 4: a check is one statement, and so one round trip. A write's are few, whatever it holds.
#[tokio::test(flavor = "multi_thread")]
async fn calls_are_few_round_trips() {
    let (store, fake) = fake().await;
    store.write(&shop(), success("m")).await.unwrap();
    fake.sent();
    for _ in 0..10 {
        assert!(ask(&store, "m").await.unwrap().own_recorded);
    }
    assert_eq!(fake.sent().len(), 10);
    let whole = sprag_core::effect::StoreWrite {
        history: Some(line("n", sprag_core::effect::HistoryKind::Run)),
        ..success("n")
    };
    store.write(&shop(), whole).await.unwrap();
    let sent: Vec<_> = fake.sent().into_iter().map(|sent| sent.text.chars().take(24).collect::<String>()).collect();
    assert_eq!(
        sent,
        [
            "BEGIN TRANSACTION",
            "INSERT INTO [sprag].[deci",
            "INSERT INTO [nimbus].[In",
            "UPDATE e SET message_id ",
            "COMMIT TRANSACTION"
        ]
        .map(|text| text.chars().take(24).collect::<String>()),
        "the decision, the record, everything else"
    );
}

/// Spec 4: calls that wait together share round trips; no statement has more values than a server takes (issue 4: 2,100), and all of them are bound.
#[tokio::test]
async fn who_waits_together_shares_a_round_trip() {
    let (store, fake) = fake().await;
    let client = fake.database().client().await;
    let hold = r#"BEGIN; LOCK TABLE nimbus."InboxMessages" IN ACCESS EXCLUSIVE MODE"#;
    let waiting = "SELECT 1 FROM pg_locks WHERE NOT granted";

    client.batch_execute(hold).await.unwrap();
    let calls: Vec<_> = (0..300)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { store.write(&shop(), success(&format!("m-{n}"))).await.unwrap() })
        })
        .collect();
    until("a round trip is under way", async || !client.query(waiting, &[]).await.unwrap().is_empty()).await;
    fake.sent();
    client.batch_execute("ROLLBACK").await.unwrap();
    for call in calls {
        assert_eq!(call.await.unwrap(), Written::Done);
    }
    let sent = fake.sent();
    let commits = sent.iter().filter(|sent| sent.text.starts_with("COMMIT")).count();
    assert!(commits <= 5, "{commits} transactions for 300 writes");
    let widest = sent.iter().filter_map(|sent| sent.types.as_ref().map(Vec::len)).max().unwrap_or_default();
    assert!((500..=2_100).contains(&widest), "{widest} values");
    assert_eq!(store.outbox(&Page { after: None, limit: 1_000 }).await.unwrap().items.len(), 300);

    client.batch_execute(hold).await.unwrap();
    let calls: Vec<_> = (0..300)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { ask(&store, &format!("m-{}", n * 2)).await.unwrap().own_recorded })
        })
        .collect();
    until("a round trip is under way", async || !client.query(waiting, &[]).await.unwrap().is_empty()).await;
    client.batch_execute("ROLLBACK").await.unwrap();
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap(), n * 2 < 300, "each has its own answer");
    }
    let sent = fake.sent();
    assert!(sent.len() <= 5, "{} statements for 300 checks", sent.len());
    for sent in sent {
        assert!(!sent.text.contains("0x") && !sent.text.contains("m-"), "no value stands in a text: {}", sent.text);
    }
}

/// A55, and U+0000: every text comes back, whatever its length and wherever a packet ends.
#[tokio::test(flavor = "multi_thread")]
async fn texts_of_every_length_are_kept() {
    let (store, _server) = fresh().await;
    for length in [0, 1, 3_999, 4_000, 4_001, 4_107, 7_999, 8_001, 22_895, 1_000_000] {
        let id = format!("of-{length}");
        let value = "ü".repeat(length);
        store.write(&shop(), changes(vec![put(&id, &value)], vec![])).await.unwrap();
        let found = store.state_get(&shop(), &id).await.unwrap().unwrap();
        assert_eq!(found.value.len(), value.len(), "{length}");
        assert!(found.value == value.as_bytes(), "{length}");
        let event = OutcomeWrite { reason: Some("ä😀".repeat(length / 2)), ..outcome(&id, Outcome::Failed) };
        store.write(&shop(), only(event.clone())).await.unwrap();
        assert!(store.find_events(&id).await.unwrap()[0].outcome == event, "{length}");
    }
}

/// Every character comes back, U+0000 too, in ids, texts and keys.
#[tokio::test(flavor = "multi_thread")]
async fn every_character_is_kept() {
    let (store, _server) = fresh().await;
    for odd in ["a\0b", "\0", "a\u{10FFFF}b", "a\u{10FFFF}0b", "a\u{1}"] {
        assert!(!ask(&store, odd).await.unwrap().own_recorded, "{odd:?}");
        let event = OutcomeWrite { reason: Some(odd.into()), ..failed(odd, odd, odd) };
        store.write(&shop(), only(event.clone())).await.unwrap();
        store.write(&shop(), record(&[odd])).await.unwrap();
        store.write(&shop(), changes(vec![put(odd, odd)], vec![])).await.unwrap();
        assert!(ask(&store, odd).await.unwrap().own_recorded);
        let rows = store.find_events(odd).await.unwrap();
        assert_eq!(rows.len(), 1, "{odd:?}");
        assert_eq!(rows[0].outcome, event);
        let found = store.state_get(&shop(), odd).await.unwrap().unwrap();
        assert_eq!(&found.value[..], odd.as_bytes());
    }
    let filter = EventFilter { id_prefix: Some("a\0".into()), ..EventFilter::default() };
    assert_eq!(store.events(&filter, &Page::default()).await.unwrap().items.len(), 1);
}

/// Ids and sessions longer than an index takes, and prefixes longer than the server looks for.
#[tokio::test(flavor = "multi_thread")]
async fn long_texts_are_kept() {
    let (store, _server) = fresh().await;
    let long: String =
        (0..9_000u32).map(|n| char::from_u32(0x4e00 + n.wrapping_mul(2_654_435_761) % 0x5000).unwrap()).collect();
    let event = OutcomeWrite {
        session: Some(long.as_str().into()),
        message_id: Some(format!("m{long}").into()),
        source_id: Some(format!("s{long}").into()),
        ..outcome(&long, Outcome::Deferred)
    };
    store.write(&shop(), only(event.clone())).await.unwrap();
    store.write(&shop(), only(outcome("another", Outcome::Failed))).await.unwrap();
    for id in [long.clone(), format!("m{long}"), format!("s{long}")] {
        assert_eq!(store.find_events(&id).await.unwrap()[0].outcome, event);
    }
    for filter in [
        EventFilter { session: event.session.clone(), ..EventFilter::default() },
        EventFilter { id_prefix: Some(long.clone()), ..EventFilter::default() },
    ] {
        assert_eq!(store.events(&filter, &Page::default()).await.unwrap().items.len(), 1);
    }
}
