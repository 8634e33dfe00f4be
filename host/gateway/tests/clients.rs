//! What SDKs that are not run in these tests send (.NET, Java, Go), as frames, and what the standard lets any client do.

mod support;

use std::{collections::BTreeSet, time::Duration};

use sprag_amqp::{
    performative::{Begin, DeliveryState, Disposition, Flow, Open, Performative, Role, Transfer},
    value::{Described, Symbol, Value},
};
use sprag_broker::EntitySpec;
use support::{Broker, Client, SESSION_FILTER, in_session, message, until};
use tokio::net::TcpStream;

fn active(broker: &Broker, entity: &str) -> u64 {
    broker.engine.entity(&entity.into()).expect("it is there").counts.active
}

/// Java and .NET write the session as a text or null; Go as a described text or a described null, under the number of the filter; others by
/// its name. Each of them names the session.
#[tokio::test]
async fn session_filters_of_every_form() {
    let broker = Broker::start(vec![EntitySpec::queue("s").with_sessions()]).await;
    let mut client = broker.client().await;
    let number = Value::Ulong(0x0013_7000_000c);
    let described = |by: &Value, value: Value| Value::Described(Box::new(Described { by: by.clone(), value }));
    let name = Value::Symbol(SESSION_FILTER);
    for (n, filter) in [
        Value::from("a"),
        described(&number, Value::from("a")),
        described(&name, Value::from("a")),
        Value::Symbol(Symbol::from_static("a")),
        Value::Null,
        described(&number, Value::Null),
        described(&name, Value::Null),
    ]
    .into_iter()
    .enumerate()
    {
        let sender = client.sender("s").await.unwrap();
        client.send(sender, &in_session("a", &n.to_string())).await;
        let mut attach = Client::<TcpStream>::receiving("s");
        attach.source.as_mut().unwrap().filters.set(SESSION_FILTER, filter.clone());
        let (handle, answer) = client.attach(attach).await.unwrap();
        let granted = answer.source.unwrap().filter("com.microsoft:session-filter").cloned();
        assert_eq!(granted, Some(Value::from("a")), "{filter:?}");
        client.give(handle, 0, 1, false).await;
        let got = client.receive(handle).await;
        assert_eq!(got.body(), n.to_string());
        assert_eq!(client.settle(got.id, DeliveryState::Accepted).await, DeliveryState::Accepted);
        client.detach(handle).await;
        client.detach(sender).await;
    }
    let mut wrong = Client::<TcpStream>::receiving("s");
    wrong.source.as_mut().unwrap().filters.set(SESSION_FILTER, Value::Int(7));
    assert_eq!(client.attach(wrong).await.unwrap_err().condition, "com.microsoft:argument-error");
}

/// The time for which a session is awaited, as any whole number; other properties of a link are nobody's business.
#[tokio::test]
async fn link_properties_of_every_type() {
    let broker = Broker::start(vec![EntitySpec::queue("s").with_sessions()]).await;
    let mut client = broker.client().await;
    for wait in
        [Value::Uint(10), Value::Ulong(10), Value::Int(10), Value::Long(10), Value::Ushort(10), Value::Ubyte(10)]
    {
        let mut attach = Client::<TcpStream>::of_session("s", None, None);
        for (key, value) in [
            ("com.microsoft:timeout", wait.clone()),
            ("com.microsoft:entity-type", Value::Int(9)),
            ("com.microsoft:client-process-id", Value::Ulong(1)),
            ("unknown", Value::List(vec![Value::Null])),
        ] {
            attach.properties.set(Symbol::from_static(key), value);
        }
        let begun = std::time::Instant::now();
        assert_eq!(client.attach(attach).await.unwrap_err().condition, "com.microsoft:timeout", "{wait:?}");
        // A minute is what it is without the property.
        assert!(begun.elapsed() < Duration::from_secs(30), "{wait:?}");
    }
}

/// An idle-time-out of 0 asks for nothing; a window of one transfer lets one message out at a time, however much credit there is.
#[tokio::test]
async fn no_idle_time_out_and_a_small_window() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.connect().await;
    client.log_in("ANONYMOUS", None).await.unwrap();
    let open = Open { container_id: "t".into(), idle_time_out: Some(0), max_frame_size: 512, ..Open::default() };
    client.open_and_begin(open, 1).await;
    let sender = client.sender("q").await.unwrap();
    for n in 0..3 {
        assert_eq!(client.send(sender, &message(&format!("{n}").repeat(900))).await, DeliveryState::Accepted);
    }
    let receiver = client.attach(Client::<TcpStream>::receiving("q")).await.unwrap().0;
    let (mut seen, mut transfers, mut together) = (0, 0_u32, Vec::new());
    while seen < 3 {
        let flow = Flow {
            next_incoming_id: Some(transfers),
            incoming_window: 1,
            outgoing_window: 1_000,
            handle: Some(receiver),
            delivery_count: Some(seen),
            link_credit: Some(10),
            ..Flow::default()
        };
        client.say(Performative::Flow(flow)).await;
        let (more, payload) = client
            .wanted(|said, payload| match said {
                Performative::Transfer(transfer) => Some((transfer.more, payload.clone())),
                _ => None,
            })
            .await;
        transfers += 1;
        together.extend_from_slice(&payload);
        if !more {
            let text = format!("{seen}").repeat(900);
            assert!(together.windows(900).any(|part| part == text.as_bytes()), "message {seen}");
            together.clear();
            seen += 1;
        }
    }
    assert!(transfers >= 6, "{transfers} transfers of 512 bytes at most");
}

/// The .NET SDK opens a session for each link; a processor of many sessions has many.
#[tokio::test]
async fn a_thousand_channels() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.client().await;
    for channel in 1..=1_000 {
        let begin = Begin { incoming_window: 100, outgoing_window: 100, ..Begin::default() };
        client.say_on(channel, Performative::Begin(begin)).await;
    }
    let mut answered = BTreeSet::new();
    while answered.len() < 1_000 {
        let Performative::Begin(begin) = client.next().await else { panic!("no begin") };
        answered.insert(begin.remote_channel.unwrap());
    }
    let sender = client.sender("q").await.unwrap();
    assert_eq!(client.send(sender, &message("x")).await, DeliveryState::Accepted);
}

/// A name is free again once its link is detached. A link of the same name while the older one lives takes it away from that.
#[tokio::test]
async fn link_names_are_used_again() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.client().await;
    let named = || sprag_amqp::performative::Attach { name: "mine".into(), ..Client::<TcpStream>::receiving("q") };
    for _ in 0..3 {
        let (handle, _) = client.attach(named()).await.unwrap();
        client.detach(handle).await;
    }
    let (older, _) = client.attach(named()).await.unwrap();
    let (newer, _) = client.attach(named()).await.unwrap();
    assert_eq!(client.detached(older).await.unwrap().condition, "amqp:link:stolen");
    let sender = client.sender("q").await.unwrap();
    client.send(sender, &message("x")).await;
    client.give(newer, 0, 1, false).await;
    assert_eq!(client.receive(newer).await.body(), "x");
}

/// A flow that asks for an answer gets one: of the session, of a link to send on, of a link to receive on.
#[tokio::test]
async fn echoes_are_answered() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.client().await;
    let sender = client.sender("q").await.unwrap();
    let receiver = client.receiver("q", 7).await.unwrap();
    for (handle, credit) in [(None, None), (Some(sender), Some(1_000)), (Some(receiver), Some(7))] {
        let flow = Flow {
            next_incoming_id: Some(0),
            incoming_window: 1_000,
            outgoing_window: 1_000,
            handle,
            delivery_count: handle.map(|_| 0),
            link_credit: handle.and(credit),
            echo: true,
            ..Flow::default()
        };
        client.say(Performative::Flow(flow)).await;
        let answer = client.wanted(|said, _| match said {
            Performative::Flow(flow) => Some(flow.clone()),
            _ => None,
        });
        let answer = answer.await;
        assert_eq!((answer.handle, answer.link_credit, answer.echo), (handle, credit, false));
    }
}

/// One disposition for many messages: each is settled and answered when it waits for an answer, and settled without one when it does not.
#[tokio::test]
async fn dispositions_over_ranges() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.client().await;
    let sender = client.sender("q").await.unwrap();
    for n in 0..200 {
        client.send(sender, &message(&n.to_string())).await;
    }
    let receiver = client.receiver("q", 200).await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..200 {
        ids.push(client.receive(receiver).await.id);
    }
    client.dispose(ids[0], ids[99], DeliveryState::Accepted, false).await;
    let mut answered = BTreeSet::new();
    while answered.len() < 100 {
        let said: Disposition = client
            .wanted(|said, _| match said {
                Performative::Disposition(said) if said.role == Role::Sender => Some(said.clone()),
                _ => None,
            })
            .await;
        assert_eq!((said.settled, &said.state), (true, &Some(DeliveryState::Accepted)));
        answered.extend(said.first..=said.last.unwrap_or(said.first));
    }
    assert_eq!(answered, ids[..100].iter().copied().collect());
    assert_eq!(active(&broker, "q"), 100);

    client.dispose(ids[100], ids[149], DeliveryState::Accepted, true).await;
    until("settled without an answer", || active(&broker, "q") == 50).await;
    // Settled without an outcome: they go back, uncounted, and come again.
    let settled = Disposition {
        role: Role::Receiver,
        first: ids[150],
        last: Some(ids[199]),
        settled: true,
        state: None,
        batchable: true,
    };
    client.say(Performative::Disposition(settled)).await;
    client.give(receiver, 200, 50, false).await;
    for n in 150..200 {
        let again = client.receive(receiver).await;
        assert_eq!(again.body(), n.to_string());
        assert_eq!(again.sections.header().unwrap().map_or(0, |header| header.delivery_count), 0);
    }
    // What is settled already, and what never was, is passed over.
    client.dispose(ids[0], ids[199] + 1_000, DeliveryState::Released, false).await;
    assert_eq!(client.send(sender, &message("x")).await, DeliveryState::Accepted);
}

/// What newer SDKs purge with (.NET, JavaScript): the oldest messages that nobody holds, as many as are asked for, from before a time.
#[tokio::test]
async fn messages_are_deleted_by_request() {
    let specs = vec![EntitySpec::queue("q"), EntitySpec::queue("s").with_sessions()];
    let specs = specs.into_iter().map(|it| EntitySpec { lock_duration: Duration::from_secs(300), ..it }).collect();
    let broker = Broker::start(specs).await;
    let mut client = broker.client().await;
    let sender = client.sender("q").await.unwrap();
    let receiver = client.receiver("q", 1).await.unwrap();
    client.send(sender, &message("in hand")).await;
    let in_hand = client.receive(receiver).await;
    for n in 0..600 {
        client.transfer(sender, &message(&n.to_string()), true).await;
    }
    client.send(sender, &message("last")).await;
    let requests = client.requests("q/$management").await.unwrap();
    let delete = |count: i32| support::map([("message-count", Value::Int(count))]);
    let deleted = |body: &sprag_amqp::value::Map| body.get("message-count").and_then(Value::as_i64);
    let (status, _, body) = client.manage(&requests, "batch-delete-messages", delete(300)).await;
    assert_eq!((status, deleted(&body), active(&broker, "q")), (200, Some(300), 302));
    let mut long_ago = delete(10);
    long_ago.set(Symbol::from_static("enqueued-time-utc"), Value::Timestamp(1_000));
    assert_eq!(client.manage(&requests, "batch-delete-messages", long_ago).await.0, 204);
    let (_, _, body) = client.manage(&requests, "batch-delete-messages", delete(4_000)).await;
    assert_eq!((deleted(&body), active(&broker, "q")), (Some(301), 1), "what is in hand stays");
    assert_eq!(client.manage(&requests, "batch-delete-messages", delete(1)).await.0, 204);
    assert_eq!(client.settle(in_hand.id, DeliveryState::Accepted).await, DeliveryState::Accepted);

    // Of a session: for its holder.
    let requests = client.requests("s/$management").await.unwrap();
    let sender = client.sender("s").await.unwrap();
    for session in ["a", "b"] {
        client.send(sender, &in_session(session, "x")).await;
    }
    let of_a = support::map([("message-count", Value::Int(5)), ("session-id", Value::from("a"))]);
    let (status, condition, _) = client.manage(&requests, "batch-delete-messages", of_a.clone()).await;
    assert_eq!((status, condition.as_deref()), (410, Some("com.microsoft:session-lock-lost")));
    client.attach(Client::<TcpStream>::of_session("s", Some("a"), None)).await.unwrap();
    let (_, _, body) = client.manage(&requests, "batch-delete-messages", of_a).await;
    assert_eq!((deleted(&body), active(&broker, "s")), (Some(1), 1));
}

/// A message of which only a part was sent is none; the next one on the link is whole.
#[tokio::test]
async fn aborted_messages_are_none() {
    let broker = Broker::start(vec![EntitySpec::queue("q")]).await;
    let mut client = broker.client().await;
    let sender = client.sender("q").await.unwrap();
    let part = Transfer {
        handle: sender,
        delivery_id: Some(500),
        delivery_tag: Some(b"t"[..].into()),
        message_format: Some(0),
        settled: Some(false),
        more: true,
        ..Transfer::default()
    };
    client.say_with(Performative::Transfer(part.clone()), &message("never")[..20]).await;
    let rest = Transfer { handle: sender, more: false, aborted: true, ..Transfer::default() };
    client.say(Performative::Transfer(rest)).await;
    let whole = Transfer { delivery_id: Some(501), more: false, ..part };
    client.say_with(Performative::Transfer(whole), &message("whole")).await;
    assert_eq!(client.outcome(501).await, DeliveryState::Accepted);
    assert_eq!(active(&broker, "q"), 1);
    let receiver = client.receiver("q", 1).await.unwrap();
    assert_eq!(client.receive(receiver).await.body(), "whole");
}

/// What could not be forwarded is read by a plain receiver, peeked at and settled, like any dead letter; nothing is sent there.
#[tokio::test]
async fn transfer_dead_letters_are_read() {
    let sessions = EntitySpec::queue("s").with_sessions();
    let specs = vec![sessions, EntitySpec { forward_to: Some("s".into()), ..EntitySpec::queue("q") }];
    let broker = Broker::start(specs).await;
    let mut client = broker.client().await;
    let sender = client.sender("q").await.unwrap();
    assert_eq!(client.send(sender, &message("no session")).await, DeliveryState::Accepted);
    let letters = "q/$Transfer/$DeadLetterQueue";
    assert_eq!(client.sender(letters).await.unwrap_err().condition, "amqp:not-allowed");
    let requests = client.requests(&format!("{letters}/$management")).await.unwrap();
    let peek = support::map([("from-sequence-number", Value::Long(0)), ("message-count", Value::Int(10))]);
    assert_eq!(client.manage(&requests, "peek-message", peek.clone()).await.0, 200);
    let receiver = client.receiver("amqps://host/Q/$transfer/$deadletterqueue", 1).await.unwrap();
    let letter = client.receive(receiver).await;
    let properties = letter.sections.application_properties().unwrap();
    assert_eq!(properties.get("DeadLetterReason"), Some(&Value::from("Session ID is null")));
    assert!(properties.get("DeadLetterErrorDescription").is_some());
    let renew = support::map([("lock-tokens", {
        let Value::Uuid(token) = letter.lock_token() else { panic!("no token") };
        sprag_amqp::value::Array::uuids([token])
    })]);
    assert_eq!(client.manage(&requests, "renew-lock", renew).await.0, 200);
    assert_eq!(client.settle(letter.id, DeliveryState::Accepted).await, DeliveryState::Accepted);
    assert_eq!(client.manage(&requests, "peek-message", peek).await.0, 204);
    assert_eq!(broker.engine.entity(&"q".into()).unwrap().counts, Default::default());
}
