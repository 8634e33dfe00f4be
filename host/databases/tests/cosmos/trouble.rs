//! Too many requests, a service that is not available, and one that is not there.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use serde_json::json;
use sprag_databases::cosmos::{CosmosInbox, OpenError, Options};
use sprag_store::{Error, conformance::sample, inbox::Inbox};
use tokio::net::TcpListener;

use crate::recorded::{KEY, Reply, Service, account, reply};

/// A59: 429 is waited out as long as the service asks, counted, and neither a duplicate nor a failure.
#[tokio::test]
async fn too_many_requests_are_waited_out() {
    let tries = AtomicU32::new(0);
    let service = Service::usual(move |_| match tries.fetch_add(1, Ordering::Relaxed) {
        0 => Reply(429, vec![("x-ms-retry-after-ms", "120".into())], json!({})),
        1 => Reply(429, vec![("x-ms-retry-after-ms", "80.5".into())], json!({})),
        2 => reply(429, json!({})),
        _ => reply(404, json!({})),
    })
    .await;
    let inbox = service.open().await;
    assert_eq!(inbox.recorded(&[(sample::endpoint(), "m".into())]).await.unwrap(), [false]);
    assert_eq!(inbox.throttled(), 3);
    let seen = service.seen();
    let pauses: Vec<_> = seen.windows(2).map(|two| two[1].at - two[0].at).collect();
    assert_eq!(pauses.len(), 3);
    for (pause, least) in pauses.iter().zip([120, 80, 100]) {
        assert!(*pause >= Duration::from_millis(least), "{pauses:?}");
    }
}

/// A59: for as long as a call may take, however often that is, and then it is an outage.
#[tokio::test]
async fn too_many_requests_have_a_bound() {
    let service = Service::usual(|seen| match seen.what.starts_with("POST") {
        true => Reply(429, vec![("x-ms-retry-after-ms", "5".into())], json!({})),
        false => Reply(429, vec![("x-ms-retry-after-ms", "60000".into())], json!({})),
    })
    .await;
    // Long enough for more than a few tries on a busy machine.
    let limit = Duration::from_secs(3);
    let options = Options { request_timeout: limit, time_limit: limit, ..service.options() };
    let inbox = CosmosInbox::open(options).await.unwrap();
    let begun = Instant::now();
    let refused = inbox.record(&sample::endpoint(), &["m".into()]).await;
    assert!(matches!(&refused, Err(Error::Unavailable(text)) if text.contains("429")), "{refused:?}");
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert!(inbox.throttled() > 5, "a pause that was asked for is no failed try: {}", inbox.throttled());

    let before = inbox.throttled();
    let begun = Instant::now();
    let refused = inbox.recorded(&[(sample::endpoint(), "m".into())]).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "a minute is not waited for");
    assert_eq!(inbox.throttled(), before + 1);
}

/// What may work again is tried again, a few times.
#[tokio::test]
async fn what_is_not_available_is_tried_again() {
    for status in [408, 410, 449, 502, 503, 504] {
        let tries = AtomicU32::new(0);
        let service = Service::usual(move |_| match tries.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => reply(status, json!({ "message": "try again" })),
            _ => reply(200, json!({})),
        })
        .await;
        let inbox = service.open().await;
        assert_eq!(inbox.recorded(&[(sample::endpoint(), "m".into())]).await.unwrap(), [true], "{status}");
        assert_eq!((service.seen().len(), inbox.throttled()), (3, 0), "{status}");

        let service = Service::usual(move |_| reply(status, json!({}))).await;
        let refused = service.open().await.recorded(&[(sample::endpoint(), "m".into())]).await;
        assert!(matches!(&refused, Err(Error::Unavailable(text)) if text.contains(&status.to_string())), "{refused:?}");
        assert_eq!(service.seen().len(), 5, "{status}");
    }
}

/// A57: the cause by its name, and within 5 s. No text shows the key.
#[tokio::test]
async fn opening_names_what_is_wrong() {
    for status in [401, 403] {
        let service = Service::start(move |_| reply(status, json!({ "message": format!("signed with {KEY}") }))).await;
        let refused = CosmosInbox::open(service.options()).await.unwrap_err();
        assert!(matches!(refused, OpenError::Refused { status: found, .. } if found == status), "{refused:?}");
        let text = format!("{refused} {refused:?}");
        assert!(!text.contains(KEY) && text.contains("127.0.0.1"), "{text}");
        assert_eq!(service.all().len(), 1, "what is refused is not asked for again");
    }
    let service = Service::start(|_| reply(200, json!("no account"))).await;
    let refused = CosmosInbox::open(service.options()).await.unwrap_err();
    assert!(matches!(refused, OpenError::Unavailable(_)), "{refused:?}");

    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let text = format!("AccountEndpoint=http://127.0.0.1:{port}/;AccountKey={KEY}");
    let nobody = sprag_databases::cosmos::Account::parse(&text).unwrap();
    let begun = Instant::now();
    let refused = CosmosInbox::open(Options::new(nobody)).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert!(matches!(&refused, OpenError::Unavailable(text) if text.contains("refused")), "{refused:?}");
    assert!(!format!("{refused} {refused:?}").contains(KEY));
}

/// A service that takes connections and says nothing holds nobody for longer than the request's time.
#[tokio::test]
async fn silence_has_a_bound() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let text = format!("AccountEndpoint=http://127.0.0.1:{port}/;AccountKey={KEY}");
    let account_of_it = sprag_databases::cosmos::Account::parse(&text).unwrap();
    let limit = Duration::from_millis(200);
    let options = Options { request_timeout: limit, time_limit: limit, ..Options::new(account_of_it) };
    let begun = Instant::now();
    let refused = CosmosInbox::open(options).await;
    assert!(matches!(refused, Err(OpenError::Unavailable(_))), "{refused:?}");
    assert!(begun.elapsed() < Duration::from_secs(5));
}

/// An outage ends by itself: the next call works.
#[tokio::test]
async fn after_an_outage_the_next_call_works() {
    let down = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_down = std::sync::Arc::clone(&down);
    let service = Service::start(move |seen| match seen.what.as_str() {
        _ if is_down.load(Ordering::Relaxed) => reply(503, json!({})),
        "GET /" => account("Strong"),
        "GET /dbs/MessageDatabase/colls/inbox" => crate::recorded::container(),
        _ => reply(404, json!({})),
    })
    .await;
    let inbox = service.open().await;
    let asked = [(sample::endpoint(), "m".into())];
    down.store(true, Ordering::Relaxed);
    assert!(matches!(inbox.recorded(&asked).await, Err(Error::Unavailable(_))));
    down.store(false, Ordering::Relaxed);
    assert_eq!(inbox.recorded(&asked).await.unwrap(), [false]);
}
