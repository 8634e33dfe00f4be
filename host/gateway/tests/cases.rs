//! Field cases that concern a broker, over AMQP (`shared/reference/field-cases.md`, A01–A17, A28–A30, A75–A88).
//!
//! | case | where |
//! |---|---|
//! | A01, A02, A11, A17, A28, A29, A76, A78, A82, A84 | here |
//! | A03, A13, A30 | `links::a_lock_that_lapsed_settles_nothing`, `links::a_cut_in_the_middle` |
//! | A05, A06, A08, A88 | the suites of the transports (`sessions`, `locks`), the broker's `client`; order under load in the soaks of the SDKs |
//! | A12, A87 | `logins::who_says_nothing_is_gone`; the soaks of the SDKs cut connections |
//! | A15 | locks are on monotonic time: `docs/adr/002-locks-in-memory.md` |
//! | A16 | `logins::tokens_end_and_are_renewed` |
//! | A75, A86 | `links::messages_that_are_not_taken_are_rejected_and_the_link_lives`; ids and null states in `message::tests` and the SDKs' suites |
//! | A77 | `links::outcomes_come_back_without_their_errors`; the SDKs' suites |
//! | A79, A80 | `idle` |
//! | A81 | the benchmark (`ready`); entities by configuration and by the administration API in their tests |
//! | A83 | `message::tests::bodies_of_every_kind_survive`, `no_body_stays_no_body` |
//! | A85 | `logins::a_failed_login_ends_the_connection`, `without_a_token_nothing_can_be_done` |
//! | A04, A07, A09, A10, A14 | the worker's: no broker decides them |

#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the answer")]

mod support;

use std::time::Duration;

use sprag_amqp::{
    performative::{AmqpError, DeliveryState},
    value::{Array, Map, Symbol, Value},
};
use sprag_broker::EntitySpec;
use support::{Broker, Client, Received, in_session, map, message};
use tokio::net::TcpStream;

fn deferred() -> DeliveryState {
    DeliveryState::Modified { delivery_failed: false, undeliverable_here: true, message_annotations: Map::new() }
}

fn abandoned() -> DeliveryState {
    DeliveryState::Modified { delivery_failed: true, undeliverable_here: false, message_annotations: Map::new() }
}

fn of_session(session: Option<&str>, wait: u64) -> sprag_amqp::performative::Attach {
    Client::<TcpStream>::of_session("s", session, Some(Duration::from_millis(wait)))
}

fn sequence(message: &Received) -> i64 {
    message.annotation("x-opt-sequence-number").and_then(|number| number.as_i64()).expect("every message has one")
}

fn deliveries(message: &Received) -> u32 {
    message.sections.header().unwrap().map_or(0, |header| header.delivery_count)
}

/// The lock tokens of an answer to a request for deferred messages.
fn tokens(body: &Map) -> Vec<[u8; 16]> {
    let messages = body.get("messages").and_then(Value::as_items).unwrap();
    let token = |entry: &Value| entry.as_map().unwrap().get("lock-token").unwrap().as_uuid().unwrap();
    messages.iter().map(token).collect()
}

/// A01: a session of which everything is deferred is not offered as the next one. Who names it holds it, and gets the messages by their
/// numbers, in another connection, after a restart of the client that has forgotten them (a peek finds them).
#[tokio::test]
async fn a_session_of_deferred_messages() {
    let broker = Broker::start(vec![EntitySpec::queue("s").with_sessions()]).await;
    let mut client = broker.client().await;
    let sender = client.sender("s").await.unwrap();
    let (receiver, _) = client.attach(of_session(Some("a"), 100)).await.unwrap();
    client.give(receiver, 0, 10, false).await;
    for n in 0..3 {
        client.send(sender, &in_session("a", &n.to_string())).await;
        let got = client.receive(receiver).await;
        client.settle(got.id, deferred()).await;
    }
    drop(client);
    let mut client = broker.client().await;
    let error = client.attach(of_session(None, 50)).await.unwrap_err();
    assert_eq!(error.condition, "com.microsoft:timeout");
    client.attach(of_session(Some("a"), 100)).await.unwrap();
    let requests = client.requests("s/$management").await.unwrap();
    let peek = map([
        ("from-sequence-number", Value::Long(0)),
        ("message-count", Value::Int(10)),
        ("session-id", Value::from("a")),
    ]);
    let (status, _, body) = client.manage(&requests, "peek-message", peek).await;
    let entries = body.get("messages").and_then(Value::as_items).unwrap().len();
    assert_eq!((status, entries), (200, 3));
    let numbers = Array::longs([1, 2, 3]);
    let ask = map([
        ("sequence-numbers", numbers),
        ("receiver-settle-mode", Value::Uint(1)),
        ("session-id", Value::from("a")),
    ]);
    let (status, condition, body) = client.manage(&requests, "receive-by-sequence-number", ask).await;
    assert_eq!((status, condition), (200, None));
    assert_eq!(tokens(&body).len(), 3);
}

/// A02: a message of a session that is abandoned comes again before those behind it that the client has not got yet; those that it has got
/// are its own.
#[tokio::test]
async fn an_abandoned_message_comes_again_in_its_place() {
    let broker = Broker::start(vec![EntitySpec::queue("s").with_sessions()]).await;
    let mut client = broker.client().await;
    let sender = client.sender("s").await.unwrap();
    for n in 1..=5 {
        client.send(sender, &in_session("a", &n.to_string())).await;
    }
    let (receiver, _) = client.attach(of_session(Some("a"), 100)).await.unwrap();
    let mut seen = Vec::new();
    for (given, fails) in (0..).zip([false, true, true, false, false, false, false]) {
        client.give(receiver, given, 1, false).await;
        let got = client.receive(receiver).await;
        seen.push(String::from_utf8(got.body().to_vec()).unwrap());
        let state = if fails { abandoned() } else { DeliveryState::Accepted };
        client.settle(got.id, state).await;
    }
    assert_eq!(seen, ["1", "2", "2", "2", "3", "4", "5"]);
}

/// A11: messages that are received by their numbers carry lock tokens of their own; each way of settling works at the first call. A17: they are
/// none at another entity.
#[tokio::test]
async fn tokens_of_deferred_messages() {
    let broker = Broker::start(vec![EntitySpec::queue("q"), EntitySpec::queue("other")]).await;
    let mut client = broker.client().await;
    let sender = client.sender("q").await.unwrap();
    let receiver = client.receiver("q", 10).await.unwrap();
    let mut numbers = Vec::new();
    for n in 0..3 {
        client.send(sender, &message(&n.to_string())).await;
        let got = client.receive(receiver).await;
        // The tag is the token with its first three fields turned round.
        let token = got.lock_token().as_uuid().unwrap();
        let tag = [token[3], token[2], token[1], token[0], token[5], token[4], token[7], token[6]];
        assert_eq!(got.tag[..8], tag);
        assert_eq!(got.tag[8..], token[8..]);
        numbers.push(sequence(&got));
        client.settle(got.id, deferred()).await;
    }
    let requests = client.requests("q/$management").await.unwrap();
    let ask = map([("sequence-numbers", Array::longs(numbers)), ("receiver-settle-mode", Value::Uint(1))]);
    let (status, _, body) = client.manage(&requests, "receive-by-sequence-number", ask).await;
    assert_eq!(status, 200);
    let tokens = tokens(&body);
    let elsewhere = client.requests("other/$management").await.unwrap();
    let renew = |token: [u8; 16]| map([("lock-tokens", Array::uuids([token]))]);
    let (status, condition, _) = client.manage(&elsewhere, "renew-lock", renew(tokens[0])).await;
    assert_eq!((status, condition.as_deref()), (410, Some("com.microsoft:message-lock-lost")));
    assert_eq!(client.manage(&requests, "renew-lock", renew(tokens[0])).await.0, 200);
    for (token, how) in tokens.into_iter().zip(["completed", "abandoned", "suspended"]) {
        let settle = map([("lock-tokens", Array::uuids([token])), ("disposition-status", Value::from(how))]);
        let (status, condition, _) = client.manage(&requests, "update-disposition", settle).await;
        assert_eq!((status, condition), (200, None), "{how}");
    }
    let counts = broker.engine.entity(&"q".into()).unwrap().counts;
    assert_eq!((counts.active, counts.deferred, counts.dead_letters), (0, 1, 1));
}

/// A28, A29: one message in hand holds nobody else up on its connection, at no count; windows are opened again in both directions.
#[tokio::test]
async fn one_message_in_hand_holds_nobody_up() {
    const MESSAGES: u32 = 6_000;
    let specs = vec![EntitySpec::queue("held"), EntitySpec::queue("q")];
    let specs = specs.into_iter().map(|it| EntitySpec { lock_duration: Duration::from_secs(300), ..it }).collect();
    let broker = Broker::start(specs).await;
    let mut client = broker.client().await;
    let to_held = client.sender("held").await.unwrap();
    client.send(to_held, &message("slow")).await;
    let held = client.receiver("held", 1).await.unwrap();
    let slow = client.receive(held).await;
    let sender = client.sender("q").await.unwrap();
    let receiver = client.receiver("q", 500).await.unwrap();
    let mut received = 0;
    while received < MESSAGES {
        let mut last = 0;
        for _ in 0..500 {
            last = client.transfer(sender, &message("x"), false).await;
        }
        assert_eq!(client.outcome(last).await, DeliveryState::Accepted);
        for _ in 0..500 {
            let got = client.receive(receiver).await;
            received += 1;
            client.dispose(got.id, got.id, DeliveryState::Accepted, false).await;
        }
        client.give_after(receiver, received, 500, slow.id + 1 + received).await;
        client.forget_said();
    }
    assert_eq!(client.settle(slow.id, DeliveryState::Accepted).await, DeliveryState::Accepted);
}

/// A76: dead letters of a session entity are read by a plain receiver, with their session; peeked at; and one that is deferred there is
/// received from another connection.
#[tokio::test]
async fn dead_letters_of_a_session_entity() {
    let broker = Broker::start(vec![EntitySpec::queue("s").with_sessions()]).await;
    let mut client = broker.client().await;
    let sender = client.sender("s").await.unwrap();
    client.send(sender, &in_session("a", "x")).await;
    let (receiver, _) = client.attach(of_session(Some("a"), 100)).await.unwrap();
    client.give(receiver, 0, 1, false).await;
    let got = client.receive(receiver).await;
    let mut error = AmqpError::new(Symbol::from_static("com.microsoft:dead-letter"), "");
    error.info = map([("DeadLetterReason", Value::from("why")), ("DeadLetterErrorDescription", Value::from("so"))]);
    client.settle(got.id, DeliveryState::Rejected(Some(error))).await;
    let letters = "s/$DeadLetterQueue";
    let requests = client.requests(&format!("{letters}/$management")).await.unwrap();
    let peek = map([("from-sequence-number", Value::Long(0)), ("message-count", Value::Int(10))]);
    assert_eq!(client.manage(&requests, "peek-message", peek.clone()).await.0, 200);
    let plain = client.receiver(letters, 1).await.unwrap();
    let letter = client.receive(plain).await;
    let properties = letter.sections.application_properties().unwrap();
    assert_eq!(properties.get("DeadLetterReason"), Some(&Value::from("why")));
    assert_eq!(properties.get("DeadLetterErrorDescription"), Some(&Value::from("so")));
    assert_eq!(letter.sections.properties().unwrap().unwrap().group_id.as_deref(), Some("a"));
    let number = sequence(&letter);
    client.settle(letter.id, deferred()).await;

    let mut other = broker.client().await;
    let requests = other.requests(&format!("{letters}/$management")).await.unwrap();
    let ask = map([("sequence-numbers", Array::longs([number])), ("receiver-settle-mode", Value::Uint(1))]);
    let (status, condition, body) = other.manage(&requests, "receive-by-sequence-number", ask).await;
    assert_eq!((status, condition), (200, None));
    let settle = map([("lock-tokens", Array::uuids(tokens(&body))), ("disposition-status", Value::from("completed"))]);
    assert_eq!(other.manage(&requests, "update-disposition", settle).await.0, 200);
    assert_eq!(other.manage(&requests, "peek-message", peek).await.0, 204);
}

/// A78: released is "again, not counted", modified with delivery-failed "again, counted"; neither is a rejection.
#[tokio::test]
async fn released_and_modified_give_back() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.client().await;
    let sender = client.sender("q").await.unwrap();
    client.send(sender, &message("x")).await;
    let receiver = client.receiver("q", 20).await.unwrap();
    for (state, counted) in
        [(DeliveryState::Released, 0), (DeliveryState::Released, 0), (abandoned(), 0), (DeliveryState::Released, 1)]
    {
        let got = client.receive(receiver).await;
        assert_eq!(deliveries(&got), counted);
        client.settle(got.id, state).await;
    }
    let got = client.receive(receiver).await;
    assert_eq!(deliveries(&got), 1);
    client.settle(got.id, DeliveryState::Accepted).await;
    assert_eq!(broker.engine.entity(&"q".into()).unwrap().counts, Default::default());
}

/// A82: a peek at nothing, at the last message, beyond the end: no error.
#[tokio::test]
async fn a_peek_at_nothing() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.client().await;
    let requests = client.requests("q/$management").await.unwrap();
    let peek = |from| map([("from-sequence-number", Value::Long(from)), ("message-count", Value::Int(5))]);
    assert_eq!(client.manage(&requests, "peek-message", peek(0)).await.0, 204);
    let sender = client.sender("q").await.unwrap();
    client.send(sender, &message("x")).await;
    assert_eq!(client.manage(&requests, "peek-message", peek(1)).await.0, 200);
    for beyond in [2, i64::MAX] {
        assert_eq!(client.manage(&requests, "peek-message", peek(beyond)).await.0, 204);
    }
}

/// A84: sessions of one connection are worked on side by side.
#[tokio::test]
async fn sessions_side_by_side() {
    let broker = Broker::start(vec![EntitySpec::queue("s").with_sessions()]).await;
    let mut client = broker.client().await;
    let sender = client.sender("s").await.unwrap();
    for session in 0..8 {
        client.send(sender, &in_session(&session.to_string(), "x")).await;
    }
    let mut in_hand = Vec::new();
    for _ in 0..8 {
        let (receiver, _) = client.attach(of_session(None, 5_000)).await.unwrap();
        client.give(receiver, 0, 1, false).await;
        in_hand.push(client.receive(receiver).await.id);
    }
    for id in in_hand {
        assert_eq!(client.settle(id, DeliveryState::Accepted).await, DeliveryState::Accepted);
    }
}
