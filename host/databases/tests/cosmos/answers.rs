//! What is asked, and what the answers mean.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::json;
use sprag_core::ids::{EndpointName, MessageId};
use sprag_databases::cosmos::{Account, CosmosInbox, Credential, OpenError, Options, Tokens};
use sprag_store::{Error, conformance::sample, inbox::Inbox};

use crate::recorded::{KEY, Reply, Service, account, container, reply};

fn asked(ids: &[&str]) -> Vec<(EndpointName, MessageId)> {
    ids.iter().map(|id| (sample::endpoint(), MessageId::from(*id))).collect()
}

/// Case 130, issue part 7: Strong, or said to be accepted. An account that does not tell is no better than one below.
#[tokio::test]
async fn the_consistency_is_strong_or_accepted() {
    for (level, opens) in [
        ("Strong", true),
        ("BoundedStaleness", false),
        ("Session", false),
        ("ConsistentPrefix", false),
        ("Eventual", false),
        ("", false),
    ] {
        let service = Service::start(move |seen| match seen.what.as_str() {
            "GET /" if level.is_empty() => reply(200, json!({ "id": "shop" })),
            "GET /" => account(level),
            _ => container(),
        })
        .await;
        let opened = CosmosInbox::open(service.options()).await;
        match opened {
            Ok(_) => assert!(opens, "{level}"),
            Err(OpenError::Consistency { found, .. }) => {
                assert!(!opens && (found == level || level.is_empty() && found == "unknown"), "{level}: {found}");
            }
            Err(other) => panic!("{level}: {other:?}"),
        }
        let relaxed = Options { allow_relaxed_consistency: true, ..service.options() };
        assert!(CosmosInbox::open(relaxed).await.is_ok(), "{level}");
    }
}

/// 200 is recorded, 404 is not; and 404 because there is no container is neither (spec 4: a failure is never an answer).
#[tokio::test]
async fn a_missing_document_is_not_a_missing_container() {
    for (status, substatus, expected) in [
        (200, "0", Some(true)),
        (404, "0", Some(false)),
        (404, "", Some(false)),
        (404, "1003", None),
        (404, "1002", None),
        (500, "0", None),
        (400, "0", None),
        (401, "0", None),
        (403, "5300", None),
    ] {
        let service = Service::usual(move |_| {
            Reply(status, vec![("x-ms-substatus", substatus.to_owned())], json!({ "id": "x" }))
        })
        .await;
        let answer = service.open().await.recorded(&asked(&["m"])).await;
        match expected {
            Some(expected) => assert_eq!(answer.unwrap(), [expected], "{status}/{substatus}"),
            None => assert!(matches!(answer, Err(Error::Unavailable(_))), "{status}/{substatus}: {answer:?}"),
        }
        assert_eq!(service.seen().len(), 1, "{status}/{substatus}: what says no says no again");
    }
}

/// A58, A59: the key is a hash, and every record is a partition of its own. The documents are those of NimBus.
#[tokio::test]
async fn a_record_is_a_document_of_nimbus() {
    let service = Service::usual(|_| reply(201, json!({}))).await;
    let inbox = service.open().await;
    inbox.record(&"BillingEndpoint".into(), &["m1".into(), "a/b?#".into()]).await.unwrap();
    let seen = service.seen();
    assert_eq!(seen.len(), 2);
    let key = "45DFC57A1F0406B519D5F26FEB6DCB8673488873DDCE00DAE7B0BEEA28BEA6D8";
    let first = &seen[0];
    assert_eq!(first.what, "POST /dbs/MessageDatabase/colls/inbox/docs");
    assert_eq!(first.body["id"], key);
    assert_eq!(first.header("x-ms-documentdb-partitionkey"), format!("[\"{key}\"]"));
    assert_eq!((&first.body["endpointId"], &first.body["messageId"]), (&json!("BillingEndpoint"), &json!("m1")));
    let time = first.body["createdAtUtc"].as_str().unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z') && time.len() == 28, "{time}");
    assert_eq!(first.body.as_object().map(|it| it.len()), Some(4), "{}", first.body);
    assert_eq!(seen[1].body["messageId"], "a/b?#");
    assert_ne!(seen[1].header("x-ms-documentdb-partitionkey"), first.header("x-ms-documentdb-partitionkey"));
    for request in &seen {
        assert!(request.header("authorization").starts_with("type%3Dmaster%26ver%3D1.0%26sig%3D"));
        assert!(request.header("x-ms-date").ends_with(" GMT"));
        assert_eq!(request.header("x-ms-version"), "2018-12-31");
    }
}

/// 409: whoever was there first. The source id goes first, and what fails leaves those in front of it (seed 000).
#[tokio::test]
async fn records_go_in_order_and_a_conflict_is_one_that_is_there() {
    let service = Service::usual(|seen| match seen.body["messageId"].as_str() {
        Some("source") => reply(409, json!({ "code": "Conflict" })),
        Some("own") => reply(403, json!({ "code": "Forbidden", "message": "so says the service" })),
        _ => reply(201, json!({})),
    })
    .await;
    let inbox = service.open().await;
    let ids = ["first", "source", "own", "never"].map(MessageId::from);
    let refused = inbox.record(&sample::endpoint(), &ids).await;
    assert!(matches!(&refused, Err(Error::Unavailable(text)) if text.contains("403") && !text.contains("says")));
    let sent: Vec<_> = service.seen().iter().map(|it| it.body["messageId"].as_str().unwrap().to_owned()).collect();
    assert_eq!(sent, ["first", "source", "own"]);
    inbox.record(&sample::endpoint(), &ids[..2]).await.unwrap();

    // What the service can never hold is the request's fault.
    let service = Service::usual(|_| reply(413, json!({}))).await;
    let refused = service.open().await.record(&sample::endpoint(), &ids[..1]).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}

/// Many ids at once go out at once, and no more of them than the options say.
#[tokio::test(flavor = "multi_thread")]
async fn requests_go_side_by_side_within_the_bound() {
    let service = Service::usual(|_| reply(200, json!({}))).await;
    let inbox = CosmosInbox::open(Options { concurrency: 4, ..service.options() }).await.unwrap();
    let ids: Vec<String> = (0..40).map(|n| format!("m-{n}")).collect();
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    let calls = (0..4).map(|_| {
        let (inbox, asked) = (inbox.clone(), asked(&ids));
        tokio::spawn(async move { inbox.recorded(&asked).await })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap().unwrap(), [true; 40]);
    }
    assert_eq!(service.seen().len(), 160);
    assert!((2..=4).contains(&service.most_at_once()), "{}", service.most_at_once());
}

/// The container as it must be: its key, and no time to live, which would forget before the retention has passed.
#[tokio::test]
async fn a_container_of_another_kind_is_refused() {
    let with = |what| {
        Service::start(move |seen: &crate::recorded::Seen| match seen.what.as_str() {
            "GET /" => account("Strong"),
            _ => reply(200, serde_json::from_str(what).unwrap()),
        })
    };
    let service = with(r#"{"partitionKey":{"paths":["/endpointId"]}}"#).await;
    let refused = CosmosInbox::open(service.options()).await;
    assert!(matches!(&refused, Err(OpenError::PartitionKey { found, .. }) if found == "/endpointId"), "{refused:?}");
    let service = with(r#"{"partitionKey":{"paths":["/id"]},"defaultTtl":86400}"#).await;
    let refused = CosmosInbox::open(service.options()).await;
    assert!(matches!(refused, Err(OpenError::TimeToLive { seconds: 86_400, .. })), "{refused:?}");
    let service = with(r#"{"partitionKey":{"paths":["/id"]},"defaultTtl":-1}"#).await;
    assert!(CosmosInbox::open(service.options()).await.is_ok());
}

/// Where it is not there it is made, by whoever is first; an identity that may not is told what to do.
#[tokio::test]
async fn a_container_is_made_or_asked_for() {
    let made = Arc::new(Mutex::new(false));
    let is_made = Arc::clone(&made);
    let service = Service::start(move |seen| match seen.what.as_str() {
        "GET /" => account("Strong"),
        "POST /dbs" => reply(409, json!({})),
        "POST /dbs/MessageDatabase/colls" => {
            *is_made.lock() = true;
            reply(201, json!({}))
        }
        _ if *is_made.lock() => container(),
        _ => Reply(404, vec![("x-ms-substatus", "1003".into())], json!({})),
    })
    .await;
    let without = Options { auto_create_container: false, ..service.options() };
    let refused = CosmosInbox::open(without).await;
    assert!(matches!(refused, Err(OpenError::NoContainer { .. })), "{refused:?}");
    assert!(CosmosInbox::open(service.options()).await.is_ok());
    let sent = service.all().into_iter().find(|it| it.what.starts_with("POST /dbs/M")).unwrap().body;
    assert_eq!(sent["partitionKey"]["paths"], json!(["/id"]));
    assert_eq!(sent.get("defaultTtl"), None, "no time to live");

    let service = Service::start(|seen| match seen.what.as_str() {
        "GET /" => account("Strong"),
        what if what.starts_with("POST") => reply(403, json!({})),
        _ => reply(404, json!({})),
    })
    .await;
    let refused = CosmosInbox::open(service.options()).await;
    assert!(matches!(refused, Err(OpenError::Rights { status: 403, .. })), "{refused:?}");
}

/// Tokens of Entra in place of a key.
#[tokio::test]
async fn a_token_is_asked_for_and_shown() {
    struct Given(Result<String, String>);
    #[async_trait::async_trait]
    impl Tokens for Given {
        async fn token(&self, scope: &str) -> Result<String, String> {
            assert_eq!(scope, "https://127.0.0.1/.default");
            self.0.clone()
        }
    }
    let service = Service::usual(|_| reply(200, json!({}))).await;
    let at = format!("{:?}", service.options().account);
    let at = at.split('"').nth(1).unwrap();
    let with = |given| {
        let account = Account::new(at, Credential::Tokens(Arc::new(Given(given)))).unwrap();
        Options { account, ..service.options() }
    };
    let inbox = CosmosInbox::open(with(Ok("a.b.c".into()))).await.unwrap();
    assert_eq!(inbox.recorded(&asked(&["m"])).await.unwrap(), [true]);
    assert_eq!(service.seen()[0].header("authorization"), "type%3Daad%26ver%3D1.0%26sig%3Da.b.c");
    let refused = CosmosInbox::open(with(Err("no such identity".into()))).await;
    assert!(
        matches!(&refused, Err(OpenError::NoToken { problem, .. }) if problem == "no such identity"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn options_that_cannot_be_are_refused() {
    let account = || Account::parse(&format!("AccountEndpoint=http://127.0.0.1:1/;AccountKey={KEY}")).unwrap();
    let usual = || Options::new(account());
    for options in [
        Options { database: String::new(), ..usual() },
        Options { container: "a/b".into(), ..usual() },
        Options { container: "a ".into(), ..usual() },
        Options { container: "x".repeat(256), ..usual() },
        Options { concurrency: 0, ..usual() },
        Options { request_timeout: Duration::ZERO, ..usual() },
        Options { time_limit: Duration::from_secs(1), ..usual() },
    ] {
        let refused = CosmosInbox::open(options).await;
        assert!(matches!(refused, Err(OpenError::Options(_))), "{refused:?}");
    }
}
