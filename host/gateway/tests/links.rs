//! Links, as no SDK would use them: what is refused and how, what survives, what a connection that breaks leaves behind.

mod support;

use std::time::Duration;

use sprag_amqp::{
    message::BATCH_FORMAT,
    performative::{
        Attach, DeliveryState, Disposition, Flow, Performative, Role, SenderSettle, Source, Target, Transfer,
    },
    value::{Array, Map, Symbol, Value},
};
use sprag_broker::{EntitySpec, EntityStatus, FilterSpec};
use support::{Broker, Client, condition, in_session, map, message, until};

fn brief(spec: EntitySpec) -> EntitySpec {
    EntitySpec { lock_duration: Duration::from_secs(1), ..spec }
}

#[tokio::test]
async fn a_message_goes_through_with_the_answers_of_azure() {
    let broker = Broker::start(vec![EntitySpec::queue("Orders")]).await;
    let mut client = broker.client().await;
    let sender = client.sender("amqps://broker.example/orders/").await.unwrap();
    assert_eq!(client.send(sender, &message("one")).await, DeliveryState::Accepted);
    let receiver = client.receiver("ORDERS", 10).await.unwrap();
    let got = client.receive(receiver).await;
    assert_eq!((&got.body()[..], got.settled, got.tag.len()), (&b"one"[..], false, 16));
    assert_eq!(got.annotation("x-opt-sequence-number"), Some(Value::Long(1)));
    assert_eq!(client.settle(got.id, DeliveryState::Accepted).await, DeliveryState::Accepted);
    assert_eq!(broker.engine.entity(&"orders".into()).unwrap().counts.active, 0);
}

/// azservicebus names its answers' addresses after the host and a number, without a path: two senders of a queue have two, and each waits
/// for its own.
#[tokio::test]
async fn an_answer_goes_to_the_address_that_was_named() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.client().await;
    let first = client.requests_at("q/$management", "amqp://127.0.0.1:5672-c1fd20a9;0:0:1").await.unwrap();
    let second = client.requests_at("q/$management", "amqp://127.0.0.1:5672-c1fd20a9;0:0:3").await.unwrap();
    for requests in [&first, &second, &first] {
        let body = map([("from-sequence-number", Value::Long(1)), ("message-count", Value::Int(1))]);
        let (status, _, _) = client.manage(requests, "peek-message", body).await;
        assert_eq!(status, 204);
    }
}

/// The Python SDK compares the outcome with its own, and takes an error in a rejection for a failure.
#[tokio::test]
async fn outcomes_come_back_without_their_errors() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.client().await;
    let sender = client.sender("q").await.unwrap();
    let receiver = client.receiver("q", 10).await.unwrap();
    for state in [
        DeliveryState::Released,
        DeliveryState::Modified {
            delivery_failed: true,
            undeliverable_here: false,
            message_annotations: map([("note", Value::from("n"))]),
        },
        DeliveryState::Modified { delivery_failed: false, undeliverable_here: true, message_annotations: Map::new() },
    ] {
        client.send(sender, &message("x")).await;
        let got = client.receive(receiver).await;
        let echoed = match state.clone() {
            DeliveryState::Modified { delivery_failed, undeliverable_here, .. } => {
                DeliveryState::Modified { delivery_failed, undeliverable_here, message_annotations: Map::new() }
            }
            other => other,
        };
        assert_eq!(client.settle(got.id, state.clone()).await, echoed);
        if !matches!(state, DeliveryState::Modified { undeliverable_here: true, .. }) {
            let again = client.receive(receiver).await;
            client.settle(again.id, DeliveryState::Accepted).await;
        }
    }
    client.send(sender, &message("bad")).await;
    let got = client.receive(receiver).await;
    let mut error = sprag_amqp::performative::AmqpError::new(Symbol::from_static("com.microsoft:dead-letter"), "");
    // rhea writes the keys as texts.
    error.info = map([
        ("DeadLetterReason", Value::from("why")),
        ("DeadLetterErrorDescription", Value::from("because")),
        ("step", Value::Int(3)),
    ]);
    let rejected = DeliveryState::Rejected(Some(error));
    assert_eq!(client.settle(got.id, rejected).await, DeliveryState::Rejected(None));
    let dead = client.receiver("q/$DeadLetterQueue", 1).await.unwrap();
    let letter = client.receive(dead).await;
    let properties = letter.sections.application_properties().unwrap();
    assert_eq!(properties.get("DeadLetterReason"), Some(&Value::from("why")));
    assert_eq!(properties.get("DeadLetterErrorDescription"), Some(&Value::from("because")));
    assert_eq!(properties.get("step"), Some(&Value::Int(3)));
}

#[tokio::test]
async fn links_to_nowhere_are_refused_and_the_connection_lives() {
    let specs = vec![
        EntitySpec::queue("q"),
        EntitySpec::queue("s").with_sessions(),
        EntitySpec::topic("t"),
        EntitySpec::subscription(&"t".into(), "sub", FilterSpec::All),
        EntitySpec { status: EntityStatus::Disabled, ..EntitySpec::queue("off") },
    ];
    let broker = Broker::start(specs).await;
    let mut client = broker.client().await;
    for (address, expected) in [
        ("nowhere", "amqp:not-found"),
        ("t/Subscriptions/none", "amqp:not-found"),
        ("amqp://host/", "amqp:not-found"),
        ("nowhere/$management", "amqp:not-found"),
        ("s", "amqp:not-allowed"),
        ("t", "amqp:not-allowed"),
        ("off", "com.microsoft:entity-disabled"),
    ] {
        assert_eq!(client.receiver(address, 1).await.unwrap_err().condition, expected, "receive from {address}");
    }
    for (address, expected) in [
        ("nowhere", "amqp:not-found"),
        ("off", "com.microsoft:entity-disabled"),
        ("t/Subscriptions/sub", "amqp:not-allowed"),
        ("q/$DeadLetterQueue", "amqp:not-allowed"),
    ] {
        assert_eq!(client.sender(address).await.unwrap_err().condition, expected, "send to {address}");
    }
    let filter = Client::<tokio::net::TcpStream>::of_session("q", Some("x"), None);
    assert_eq!(client.attach(filter).await.unwrap_err().condition, "amqp:not-allowed");
    let coordinator = Attach {
        source: Some(Source::at("me")),
        target: Some(Target::Coordinator { capabilities: Vec::new() }),
        ..Attach::new("", 0, Role::Sender)
    };
    let error = client.attach(coordinator).await.unwrap_err();
    assert_eq!(error.condition, "amqp:not-implemented");
    assert!(error.description.unwrap().contains("transactions"));
    // After all that, the connection works.
    let sender = client.sender("q").await.unwrap();
    assert_eq!(client.send(sender, &message("x")).await, DeliveryState::Accepted);
}

#[tokio::test]
async fn messages_that_are_not_taken_are_rejected_and_the_link_lives() {
    let small = EntitySpec { max_message_size: 2_000, ..EntitySpec::queue("small") };
    let full = EntitySpec { max_size: Some(3_000), ..EntitySpec::queue("full") };
    let broker = Broker::start(vec![small, full, EntitySpec::queue("s").with_sessions()]).await;
    let mut client = broker.client().await;

    let sender = client.sender("small").await.unwrap();
    let long = message(&"x".repeat(5_000));
    assert_eq!(condition(&client.send(sender, &long).await), "amqp:link:message-size-exceeded");
    assert_eq!(condition(&client.send(sender, b"nonsense").await), "amqp:decode-error");
    assert_eq!(client.send(sender, &message("x")).await, DeliveryState::Accepted);

    let sender = client.sender("s").await.unwrap();
    assert_eq!(condition(&client.send(sender, &message("no session")).await), "amqp:not-allowed");
    assert_eq!(client.send(sender, &in_session("s", "x")).await, DeliveryState::Accepted);

    let sender = client.sender("full").await.unwrap();
    let mut outcomes = Vec::new();
    for _ in 0..6 {
        outcomes.push(condition(&client.send(sender, &message(&"x".repeat(1_000))).await));
    }
    assert_eq!(outcomes[0], "Accepted");
    assert_eq!(outcomes[5], "amqp:resource-limit-exceeded");
}

/// A batch is all there or not at all.
#[tokio::test]
async fn batches_are_all_or_nothing() {
    let broker = Broker::start(vec![EntitySpec::queue("s").with_sessions()]).await;
    let mut client = broker.client().await;
    let sender = client.sender("s").await.unwrap();
    for (second, expected, count) in
        [(message("no session"), "amqp:not-allowed", 0), (in_session("a", "2"), "Accepted", 2)]
    {
        let mut batch = Vec::new();
        sprag_amqp::message::write_data(&mut batch, &in_session("a", "1"));
        sprag_amqp::message::write_data(&mut batch, &second);
        let transfer = Transfer {
            handle: sender,
            delivery_id: Some(100 + count),
            delivery_tag: Some(b"batch"[..].into()),
            message_format: Some(BATCH_FORMAT),
            settled: Some(false),
            ..Transfer::default()
        };
        client.say_with(Performative::Transfer(transfer), &batch).await;
        assert_eq!(condition(&client.outcome(100 + count).await), expected);
        assert_eq!(broker.engine.entity(&"s".into()).unwrap().counts.active, u64::from(count));
    }
}

/// Sent settled, a message is taken without an answer.
#[tokio::test]
async fn fire_and_forget() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.client().await;
    let sender = client.sender("q").await.unwrap();
    client.transfer(sender, &message("one"), true).await;
    // Gone before anybody could have answered: it is taken all the same.
    client.say(Performative::Close(None)).await;
    client.closed().await;
    until("the message is there", || broker.engine.entity(&"q".into()).unwrap().counts.active == 1).await;
}

#[tokio::test]
async fn receive_and_delete_drain_and_credit() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.client().await;
    let sender = client.sender("q").await.unwrap();
    for n in 0..5 {
        client.send(sender, &message(&n.to_string())).await;
    }
    let attach = Attach { sender_settle: SenderSettle::Settled, ..Client::<tokio::net::TcpStream>::receiving("q") };
    let receiver = client.attach(attach).await.unwrap().0;
    client.give(receiver, 0, 2, false).await;
    for n in 0..2 {
        let got = client.receive(receiver).await;
        assert!(got.settled);
        assert_eq!(got.body(), n.to_string());
    }
    assert_eq!(broker.engine.entity(&"q".into()).unwrap().counts.active, 3, "as many as there was credit for");
    // More credit than messages, and drain: the rest, and then the credit is used up.
    client.give(receiver, 2, 10, true).await;
    for n in 2..5 {
        assert_eq!(client.receive(receiver).await.body(), n.to_string());
    }
    let flow = client.wanted(|said, _| match said {
        Performative::Flow(flow) if flow.handle == Some(receiver) => Some(flow.clone()),
        _ => None,
    });
    let flow: Flow = flow.await;
    assert_eq!((flow.drain, flow.link_credit, flow.delivery_count), (true, Some(0), Some(12)));
    // The link goes on after it, waiting this time.
    client.give(receiver, 12, 1, false).await;
    client.send(sender, &message("later")).await;
    assert_eq!(client.receive(receiver).await.body(), "later");
}

/// A receiver that takes its credit back is not sent what came afterwards; whoever asks next gets it.
#[tokio::test]
async fn credit_that_is_taken_back_is_gone() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.client().await;
    let idle = client.receiver("q", 10).await.unwrap();
    let flow = Flow {
        next_incoming_id: Some(0),
        incoming_window: 1_000,
        outgoing_window: 1_000,
        handle: Some(idle),
        delivery_count: Some(0),
        link_credit: Some(0),
        ..Flow::default()
    };
    client.say(Performative::Flow(flow)).await;
    let sender = client.sender("q").await.unwrap();
    client.send(sender, &message("x")).await;
    let other = client.receiver("q", 1).await.unwrap();
    assert_eq!(client.receive(other).await.body(), "x");
}

/// Case A30: a settlement after the lock has lapsed is refused, and says so.
#[tokio::test]
async fn a_lock_that_lapsed_settles_nothing() {
    let broker = Broker::start(vec![brief(EntitySpec::queue("q"))]).await;
    let mut client = broker.client().await;
    let sender = client.sender("q").await.unwrap();
    client.send(sender, &message("x")).await;
    let receiver = client.receiver("q", 2).await.unwrap();
    let first = client.receive(receiver).await;
    let again = client.receive(receiver).await;
    assert_eq!(again.sections.header().unwrap().unwrap().delivery_count, 1);
    let lost = client.settle(first.id, DeliveryState::Accepted).await;
    assert_eq!(condition(&lost), "com.microsoft:message-lock-lost");
    assert_eq!(client.settle(again.id, DeliveryState::Accepted).await, DeliveryState::Accepted);
}

#[tokio::test]
async fn a_transactional_settlement_is_refused_by_name() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.client().await;
    let sender = client.sender("q").await.unwrap();
    client.send(sender, &message("x")).await;
    let receiver = client.receiver("q", 1).await.unwrap();
    let got = client.receive(receiver).await;
    let state = DeliveryState::Transactional { transaction: b"t"[..].into() };
    assert_eq!(condition(&client.settle(got.id, state).await), "amqp:not-implemented");
}

/// A connection that breaks gives its sessions back at once; messages without a session stay locked until their locks lapse.
#[tokio::test]
async fn a_cut_in_the_middle() {
    let specs = vec![brief(EntitySpec::queue("q")), EntitySpec::queue("s").with_sessions()];
    let broker = Broker::start(specs).await;
    let mut one = broker.client().await;
    let (to_q, to_s) = (one.sender("q").await.unwrap(), one.sender("s").await.unwrap());
    one.send(to_q, &message("x")).await;
    one.send(to_s, &in_session("a", "1")).await;
    let receiver = one.receiver("q", 1).await.unwrap();
    one.receive(receiver).await;
    let session = one.attach(Client::<tokio::net::TcpStream>::of_session("s", Some("a"), None)).await.unwrap().0;
    one.give(session, 0, 5, false).await;
    one.receive(session).await;
    // And half of a frame.
    one.write(&[0, 0, 1, 0, 2]).await;
    drop(one);

    let mut other = broker.client().await;
    let session = other.attach(Client::<tokio::net::TcpStream>::of_session("s", None, None)).await.unwrap().0;
    other.give(session, 0, 5, false).await;
    let again = other.receive(session).await;
    assert_eq!((again.body(), again.sections.header().unwrap().unwrap().delivery_count), ("1".into(), 0));
    let receiver = other.receiver("q", 1).await.unwrap();
    assert_eq!(other.receive(receiver).await.sections.header().unwrap().unwrap().delivery_count, 1);
    until("one connection is left", || broker.handle.counts().connections == 1).await;
    assert_eq!(broker.handle.counts().sessions, 1);
}

#[tokio::test]
async fn sessions_are_held_awaited_lost_and_given_back() {
    let broker = Broker::start(vec![brief(EntitySpec::queue("s").with_sessions())]).await;
    let (mut one, mut other) = (broker.client().await, broker.client().await);
    let of = Client::<tokio::net::TcpStream>::of_session;

    let (session, answer) = one.attach(of("s", Some("a"), None)).await.unwrap();
    let filters = answer.source.unwrap().filters;
    assert_eq!(filters.get(support::SESSION_FILTER.as_str()), Some(&Value::from("a")));
    let until_ticks = answer.properties.get("com.microsoft:locked-until-utc").and_then(Value::as_i64).unwrap();
    assert!(until_ticks > 639_000_000_000_000_000, "{until_ticks}: tenths of microseconds since the year 1");
    // As SDKs that describe their filters write it.
    let mut described = of("s", None, None);
    let value = Value::described(0x137_0000_000c, Value::from("a"));
    described.source.as_mut().unwrap().filters.set(support::SESSION_FILTER, value);
    assert_eq!(other.attach(described).await.unwrap_err().condition, "com.microsoft:session-cannot-be-locked");
    let none = other.attach(of("s", None, Some(Duration::from_millis(50)))).await.unwrap_err();
    assert_eq!(none.condition, "com.microsoft:timeout");

    // Nobody renews it: its holder is told, by a detach.
    assert_eq!(one.detached(session).await.unwrap().condition, "com.microsoft:session-lock-lost");
    let (session, _) = other.attach(of("s", Some("a"), None)).await.unwrap();
    other.detach(session).await;
    one.attach(of("s", Some("a"), None)).await.unwrap();
}

/// A client that goes away while it waits for a session leaves nothing that would take the session.
#[tokio::test]
async fn a_wait_for_a_session_ends_with_its_link() {
    let broker = Broker::start(vec![EntitySpec::queue("s").with_sessions()]).await;
    let (mut one, mut other) = (broker.client().await, broker.client().await);
    let mut waiting = Client::<tokio::net::TcpStream>::of_session("s", None, None);
    waiting.name = "waits".into();
    waiting.handle = 9;
    one.say(Performative::Attach(Box::new(waiting))).await;
    until("the wait has begun", || broker.handle.counts().links == 1).await;
    drop(one);
    until("the connection is gone", || broker.handle.counts().connections == 1).await;
    let sender = other.sender("s").await.unwrap();
    other.send(sender, &in_session("a", "x")).await;
    let of = Client::<tokio::net::TcpStream>::of_session("s", None, Some(Duration::from_secs(5)));
    other.attach(of).await.unwrap();
    assert_eq!(broker.handle.counts().sessions, 1);
}

/// Only who holds a session may ask for its state, renew it or settle in it (else 410).
#[tokio::test]
async fn requests_about_a_session_are_for_its_holder() {
    let broker = Broker::start(vec![EntitySpec::queue("s").with_sessions()]).await;
    let (mut one, mut other) = (broker.client().await, broker.client().await);
    let sender = one.sender("s").await.unwrap();
    one.send(sender, &in_session("a", "x")).await;
    let session = one.attach(Client::<tokio::net::TcpStream>::of_session("s", Some("a"), None)).await.unwrap().0;
    one.give(session, 0, 5, false).await;
    let got = one.receive(session).await;
    let state = || map([("session-id", Value::from("a")), ("session-state", Value::Binary(b"x"[..].into()))]);
    let settle = || {
        let Value::Uuid(token) = got.lock_token() else { panic!("a UUID") };
        map([
            ("disposition-status", Value::from("completed")),
            ("lock-tokens", Array::uuids([token])),
            ("session-id", Value::from("a")),
        ])
    };
    let theirs = other.requests("s/$management").await.unwrap();
    for (operation, body) in [
        ("get-session-state", state()),
        ("set-session-state", state()),
        ("renew-session-lock", state()),
        ("update-disposition", settle()),
    ] {
        let (status, condition, _) = other.manage(&theirs, operation, body).await;
        assert_eq!((status, condition.as_deref()), (410, Some("com.microsoft:session-lock-lost")), "{operation}");
    }
    let mine = one.requests("s/$management").await.unwrap();
    for (operation, body) in [
        ("set-session-state", state()),
        ("get-session-state", state()),
        ("renew-session-lock", state()),
        ("update-disposition", settle()),
    ] {
        assert_eq!(one.manage(&mine, operation, body).await.0, 200, "{operation}");
    }
    // What was settled by request is settled on the link as well.
    let settled = one.wanted(|said, _| match said {
        Performative::Disposition(said) if said.role == Role::Sender => Some(said.clone()),
        _ => None,
    });
    let settled: Disposition = settled.await;
    assert_eq!((settled.first, settled.settled), (got.id, true));
    assert_eq!(broker.engine.entity(&"s".into()).unwrap().counts.active, 0);
}

/// Tokens of a process that has ended are void, whatever the new one's locks are called.
#[tokio::test]
async fn several_locks_in_one_request() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.client().await;
    let sender = client.sender("q").await.unwrap();
    let receiver = client.receiver("q", 10).await.unwrap();
    let mut tokens = Vec::new();
    for _ in 0..3 {
        client.send(sender, &message("x")).await;
        let Value::Uuid(token) = client.receive(receiver).await.lock_token() else { panic!("a UUID") };
        tokens.push(token);
    }
    let mut foreign = tokens[0];
    foreign[0] ^= 1;
    let requests = client.requests("q/$management").await.unwrap();
    let settle = |tokens: Vec<[u8; 16]>| {
        map([("disposition-status", Value::from("completed")), ("lock-tokens", Array::uuids(tokens))])
    };
    let (status, condition, _) = client.manage(&requests, "update-disposition", settle(vec![foreign])).await;
    assert_eq!((status, condition.as_deref()), (410, Some("com.microsoft:message-lock-lost")));
    let renew = map([("lock-tokens", Array::uuids(tokens.clone()))]);
    let (status, _, body) = client.manage(&requests, "renew-lock", renew).await;
    assert_eq!((status, body.get("expirations").and_then(Value::as_items).map(<[Value]>::len)), (200, Some(3)));
    // The tag's order of bytes is taken as well: azservicebus has no other.
    tokens[1][..4].reverse();
    tokens[1][4..6].reverse();
    tokens[1][6..8].reverse();
    assert_eq!(client.manage(&requests, "update-disposition", settle(tokens)).await.0, 200);
    assert_eq!(broker.engine.entity(&"q".into()).unwrap().counts.active, 0);
    let (status, condition, _) = client.manage(&requests, "no-such-thing", Map::new()).await;
    assert_eq!((status, condition.as_deref()), (501, Some("amqp:not-implemented")));
    let (status, condition, _) = client.manage(&requests, "renew-lock", Map::new()).await;
    assert_eq!((status, condition.as_deref()), (400, Some("com.microsoft:argument-error")));
}

/// What a request settles is settled on the link too, even if the request fails over another of its locks.
#[tokio::test]
async fn a_request_that_fails_in_part_settles_the_rest_on_the_link() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.client().await;
    let sender = client.sender("q").await.unwrap();
    let receiver = client.receiver("q", 10).await.unwrap();
    let (mut ids, mut tokens) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        client.send(sender, &message("x")).await;
        let got = client.receive(receiver).await;
        let Value::Uuid(token) = got.lock_token() else { panic!("a UUID") };
        ids.push(got.id);
        tokens.push(token);
    }
    // The one in the middle is gone before.
    assert_eq!(client.settle(ids[1], DeliveryState::Accepted).await, DeliveryState::Accepted);
    client.forget_said();
    let requests = client.requests("q/$management").await.unwrap();
    let settle = map([("disposition-status", Value::from("completed")), ("lock-tokens", Array::uuids(tokens))]);
    let (status, condition, _) = client.manage(&requests, "update-disposition", settle).await;
    assert_eq!((status, condition.as_deref()), (410, Some("com.microsoft:message-lock-lost")));
    for id in [ids[0], ids[2]] {
        let state = client.wanted(|said, _| match said {
            Performative::Disposition(said) if said.role == Role::Sender && said.settled && said.first == id => {
                Some(said.state.clone())
            }
            _ => None,
        });
        assert_eq!(state.await, Some(DeliveryState::Accepted));
    }
    assert_eq!(broker.engine.entity(&"q".into()).unwrap().counts.active, 0);
}

/// An entity that is removed says so to whoever waits there.
#[tokio::test]
async fn a_removed_entity_detaches_its_links() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.client().await;
    let sender = client.sender("q").await.unwrap();
    let receiver = client.receiver("q", 1).await.unwrap();
    broker.engine.remove_entity(&"q".into()).await.unwrap();
    assert_eq!(client.detached(receiver).await.unwrap().condition, "amqp:not-found");
    let id = client.transfer(sender, &message("x"), false).await;
    assert_eq!(condition(&client.outcome(id).await), "amqp:not-found");
    assert_eq!(client.detached(sender).await.unwrap().condition, "amqp:not-found");
}

#[tokio::test]
async fn a_stop_closes_connections_after_their_writes() {
    let mut broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.client().await;
    let sender = client.sender("q").await.unwrap();
    // Somebody waits, and that does not hold up the stop.
    client.receiver("q/$DeadLetterQueue", 1).await.unwrap();
    assert_eq!(client.send(sender, &message("x")).await, DeliveryState::Accepted);
    broker.begin_stop();
    assert_eq!(client.closed().await.unwrap().condition, "amqp:connection:forced");
    broker.stopped().await;
    assert_eq!(broker.handle.counts().connections, 0);
    let late = tokio::net::TcpStream::connect(broker.handle.address().unwrap()).await;
    assert!(late.is_err(), "nobody listens any more");
}
