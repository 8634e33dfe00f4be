//! What a call costs, and texts that a column cannot hold as they are.

use sprag_core::{effect::OutcomeWrite, outcome::Outcome};
use sprag_databases::test_server::{Server, Setup};
use sprag_store::{
    Error, Store as _, Written,
    conformance::sample::{failed, only, outcome, put, record},
    query::{EventFilter, Page},
};

use crate::support::{ask, fresh, open, shop, success, until};

/// Spec 4: a check is one statement, and so one round trip.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_is_one_statement() {
    let server = Server::start(Setup { settings: vec![("log_statement".into(), "all".into())], ..Setup::default() });
    let store = open(&server.url("postgres")).await;
    store.write(&shop(), success("m")).await.unwrap();
    ask(&store, "m").await.unwrap();
    let statements =
        || server.log().lines().filter(|line| line.contains("execute") || line.contains("statement:")).count();
    let before = statements();
    for _ in 0..10 {
        assert!(ask(&store, "m").await.unwrap().own_recorded);
    }
    assert_eq!(statements() - before, 10);
    let before = statements();
    store.write(&shop(), success("n")).await.unwrap();
    assert_eq!(statements() - before, 5, "BEGIN, the claim, the message, the event, COMMIT");
}

/// A call that holds the table up, so that others come together behind it.
async fn hold(server: &Server) -> tokio_postgres::Client {
    let url = server.url("postgres").replace("prefer", "disable");
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("the server is there");
    tokio::spawn(connection);
    client.batch_execute("BEGIN; LOCK TABLE sprag_inbox IN ACCESS EXCLUSIVE MODE").await.expect("the server is there");
    client
}

/// Sixty-four calls, begun while the table is held up. On one thread: all have begun before this looks.
async fn together<T: Send + 'static>(
    client: &tokio_postgres::Client,
    spawn: impl Fn(usize) -> tokio::task::JoinHandle<T>,
) -> Vec<T> {
    let calls: Vec<_> = (0..64).map(spawn).collect();
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    until("a round trip is under way", async || {
        client.query_one(waiting, &[]).await.expect("the server is there").get::<_, i64>(0) > 0
    })
    .await;
    client.batch_execute("ROLLBACK").await.expect("the server is there");
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.expect("the server is there"));
    }
    answers
}

/// Spec 4: calls that wait together share a round trip.
#[tokio::test]
async fn who_waits_together_shares_a_round_trip() {
    let server = Server::start(Setup { settings: vec![("log_statement".into(), "all".into())], ..Setup::default() });
    let store = open(&server.url("postgres")).await;
    let logged = |what: &str| server.log().lines().filter(|line| line.contains(what)).count();

    let client = hold(&server).await;
    let before = logged("COMMIT");
    let written = together(&client, |n| {
        let store = store.clone();
        tokio::spawn(async move { store.write(&shop(), success(&format!("m-{n}"))).await.unwrap() })
    })
    .await;
    assert!(written.iter().all(|one| *one == Written::Done));
    let commits = logged("COMMIT") - before;
    assert!(commits <= 4, "{commits} transactions for 64 writes");
    assert_eq!(store.outbox(&Page::default()).await.unwrap().items.len(), 64);

    let client = hold(&server).await;
    let check = "FROM unnest($1::bytea[], $2::bytea[], $3::bytea[]) WITH ORDINALITY AS q";
    let before = logged(check);
    let answers = together(&client, |n| {
        let store = store.clone();
        tokio::spawn(async move { ask(&store, &format!("m-{}", n * 2)).await.unwrap().own_recorded })
    })
    .await;
    let expected: Vec<bool> = (0..64).map(|n| n * 2 < 64).collect();
    assert_eq!(answers, expected, "each has its own answer");
    let checks = logged(check) - before;
    assert!(checks <= 4, "{checks} statements for 64 checks");
}

/// What is wrong with one write is not the others' fault.
#[tokio::test]
async fn a_write_that_cannot_be_held_fails_alone() {
    let server = Server::start(Setup::default());
    let store = open(&server.url("postgres")).await;
    let client = hold(&server).await;
    // No index takes such an endpoint.
    let endless: String =
        (0..5_000u32).map(|n| char::from_u32(0x4e00 + n.wrapping_mul(2_654_435_761) % 0x5000).unwrap()).collect();
    let results = together(&client, |n| {
        let (store, endless) = (store.clone(), endless.clone());
        tokio::spawn(async move {
            let endpoint = if n % 20 == 19 { endless.into() } else { shop() };
            store.write(&endpoint, record(&[&format!("m-{n}")])).await
        })
    })
    .await;
    for (n, result) in results.into_iter().enumerate() {
        match result {
            Ok(written) => assert!(written == Written::Done && n % 20 != 19, "{n}"),
            Err(Error::Invalid(text)) => assert!(n % 20 == 19 && text.contains("54000"), "{n}: {text}"),
            Err(other) => panic!("{n}: {other}"),
        }
    }
}

/// Every character comes back, U+0000 too, in ids, texts and keys.
#[tokio::test(flavor = "multi_thread")]
async fn every_character_is_kept() {
    let (store, _database) = fresh().await;
    for odd in ["a\0b", "\0", "a\u{10FFFF}b", "a\u{10FFFF}0b"] {
        assert!(!ask(&store, odd).await.unwrap().own_recorded, "{odd:?}");
        let event = OutcomeWrite { reason: Some(odd.into()), ..failed(odd, odd, odd) };
        store.write(&shop(), only(event.clone())).await.unwrap();
        store.write(&shop(), record(&[odd])).await.unwrap();
        store.write(&shop(), sprag_store::conformance::sample::changes(vec![put(odd, odd)], vec![])).await.unwrap();
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

/// Ids, sessions and texts longer than an index or a page takes.
#[tokio::test(flavor = "multi_thread")]
async fn long_texts_are_kept() {
    let (store, _database) = fresh().await;
    // Not compressible, for otherwise it would fit after all.
    let long: String =
        (0..9_000u32).map(|n| char::from_u32(0x4e00 + n.wrapping_mul(2_654_435_761) % 0x5000).unwrap()).collect();
    let event = OutcomeWrite {
        session: Some(long.as_str().into()),
        message_id: Some(format!("m{long}").into()),
        source_id: Some(format!("s{long}").into()),
        ..outcome(&long, Outcome::Deferred)
    };
    store.write(&shop(), only(event.clone())).await.unwrap();
    for id in [long.clone(), format!("m{long}"), format!("s{long}")] {
        assert_eq!(store.find_events(&id).await.unwrap()[0].outcome, event);
    }
    let filter = EventFilter { session: event.session.clone(), ..EventFilter::default() };
    assert_eq!(store.events(&filter, &Page::default()).await.unwrap().items.len(), 1);
}
