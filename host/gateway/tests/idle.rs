//! Links and connections that nobody uses are closed, as on Azure (case A79); those that are used are not (case A80).

mod support;

use std::time::Duration;

use sprag_amqp::{
    performative::DeliveryState,
    value::{Array, Value},
};
use sprag_broker::EntitySpec;
use sprag_gateway::amqp::Config;
use support::{Broker, Client, in_session, map, message};
use tokio::net::TcpStream;

fn limited() -> Config {
    let limit = Some(Duration::from_secs(3));
    Config { link_idle: limit, connection_idle: limit, ..Config::default() }
}

/// A receiver that waits with credit is idle, a sender too. One that is sent on, one whose message is renewed and one whose session is renewed
/// are not.
#[tokio::test]
async fn idle_links_are_detached_and_used_ones_stay() {
    let specs = ["used", "slow", "idle"].map(EntitySpec::queue).into_iter();
    let specs = specs.chain([EntitySpec::queue("s").with_sessions()]).collect();
    // Long enough that a busy machine does not leave a link alone for it by mistake.
    let config = Config { link_idle: Some(Duration::from_secs(10)), connection_idle: None, ..Config::default() };
    let broker = Broker::with(specs, config).await;
    let mut client = broker.client().await;
    let used = client.sender("used").await.unwrap();
    let slow = client.sender("slow").await.unwrap();
    client.send(slow, &message("takes long")).await;
    client.detach(slow).await;
    let slow = client.receiver("slow", 1).await.unwrap();
    let in_hand = client.receive(slow).await;
    let of_slow = client.requests("slow/$management").await.unwrap();
    let of_session = Client::<TcpStream>::of_session("s", Some("a"), None);
    let session = client.attach(of_session).await.unwrap().0;
    let of_s = client.requests("s/$management").await.unwrap();
    let idle = [client.receiver("idle", 10).await.unwrap(), client.sender("idle").await.unwrap()];

    let (mut waiting, mut ended) = (idle.to_vec(), Vec::new());
    while !waiting.is_empty() {
        assert_eq!(client.send(used, &message("x")).await, DeliveryState::Accepted);
        let Value::Uuid(token) = in_hand.lock_token() else { panic!("no token") };
        let renew = map([("lock-tokens", Array::uuids([token]))]);
        assert_eq!(client.manage(&of_slow, "renew-lock", renew).await.0, 200);
        let renew = map([("session-id", Value::from("a"))]);
        assert_eq!(client.manage(&of_s, "renew-session-lock", renew).await.0, 200);
        waiting.retain(|handle| match client.has_detached(*handle) {
            Some(error) => {
                ended.push(error.expect("it says why"));
                false
            }
            None => true,
        });
        // So that the credit for answers lasts.
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert_eq!(ended.len(), 2);
    for error in &ended {
        assert_eq!(error.condition, "amqp:link:detach-forced");
        let text = error.description.as_deref().unwrap();
        assert!(text.contains("IdleTimerExpired: Idle timeout: 00:00:10"), "{text}");
    }
    assert!([used, slow, session].iter().all(|handle| client.has_detached(*handle).is_none()));
    // All of them still work, and so do new ones to the same entity.
    assert_eq!(client.settle(in_hand.id, DeliveryState::Accepted).await, DeliveryState::Accepted);
    client.give(session, 0, 1, false).await;
    let sender = client.sender("s").await.unwrap();
    client.send(sender, &in_session("a", "in it")).await;
    assert_eq!(client.receive(session).await.body(), "in it");
    let again = client.sender("idle").await.unwrap();
    assert_eq!(client.send(again, &message("x")).await, DeliveryState::Accepted);
}

/// A session is given back when its link is detached: the next one may have it.
#[tokio::test]
async fn an_idle_session_is_free_again() {
    let specs = vec![EntitySpec { lock_duration: Duration::from_secs(300), ..EntitySpec::queue("s").with_sessions() }];
    let broker = Broker::with(specs, Config { connection_idle: None, ..limited() }).await;
    let mut first = broker.client().await;
    let of_session = Client::<TcpStream>::of_session("s", Some("a"), None);
    let idle = first.attach(of_session.clone()).await.unwrap().0;
    let mut second = broker.client().await;
    let held = second.attach(of_session.clone()).await.unwrap_err();
    assert_eq!(held.condition, "com.microsoft:session-cannot-be-locked");
    assert_eq!(first.detached(idle).await.unwrap().condition, "amqp:link:detach-forced");
    second.attach(of_session).await.expect("nobody holds it");
}

/// A connection that has had no link, and one whose links have gone, are closed; so is one on which there are only links for requests.
#[tokio::test]
async fn connections_without_links_are_closed() {
    let broker = Broker::with(vec![EntitySpec::queue("q")], limited()).await;
    let mut none = broker.client().await;
    let mut gone = broker.client().await;
    let sender = gone.sender("q").await.unwrap();
    assert_eq!(gone.send(sender, &message("x")).await, DeliveryState::Accepted);
    let mut requests = broker.client().await;
    requests.requests("q/$management").await.unwrap();
    assert_eq!(gone.detached(sender).await.unwrap().condition, "amqp:link:detach-forced");
    for client in [&mut none, &mut gone, &mut requests] {
        let error = client.closed().await.expect("it says why");
        assert_eq!(error.condition, "amqp:connection:forced");
        assert!(error.description.unwrap().contains("active links in the past 3000 milliseconds"));
    }
    support::until("nothing is left", || broker.handle.counts().connections == 0).await;
}
