//! Credit, windows and drains.

use bytes::Bytes;

use super::client::{Client, Said, credit_flow, whole};
use crate::{
    connection::{CommandError, Config, DeliverError, Event, LinkKey, Outgoing},
    performative::{DeliveryState, Disposition, Flow, Open, Performative, Role, Transfer},
};

fn message(len: usize) -> Outgoing {
    Outgoing { tag: Bytes::from_static(b"t"), payload: Bytes::from(vec![7; len]), format: 0, settled: false }
}

fn flows(client: &mut Client) -> Vec<Flow> {
    let frames = client.frames();
    frames
        .into_iter()
        .filter_map(|(frame, _)| if let Performative::Flow(flow) = frame { Some(flow) } else { None })
        .collect()
}

/// Credit goes back when messages are answered, half of it at a time; a sender that is faster than we are comes to rest.
#[test]
fn a_sender_gets_new_credit_as_its_messages_are_answered() {
    let mut client = Client::ready(Config::default());
    let link = client.sender(0, 4);
    (0..4).for_each(|id| client.transfer(whole(0, id), b"x"));
    assert_eq!(client.server.credit(link), 0);
    let events = client.events();
    assert_eq!((events.len(), client.said()), (4, vec![]));
    let keys: Vec<_> = events
        .into_iter()
        .map(|event| if let Event::Delivery(delivery) = event { delivery.key } else { panic!("{event:?}") })
        .collect();
    client.server.settle_incoming(keys[0], &DeliveryState::Accepted).expect("there");
    assert_eq!(client.server.credit(link), 0, "one is not worth a frame");
    client.server.settle_incoming(keys[1], &DeliveryState::Accepted).expect("there");
    assert_eq!(client.server.credit(link), 2);
    let flows = flows(&mut client);
    let [flow] = flows.as_slice() else { panic!("{flows:?}") };
    assert_eq!((flow.handle, flow.delivery_count, flow.link_credit), (Some(0), Some(4), Some(2)));
}

#[test]
fn settled_messages_give_their_credit_back_by_themselves() {
    let mut client = Client::ready(Config::default());
    let link = client.sender(0, 2);
    (0..100).for_each(|id| client.transfer(Transfer { settled: Some(true), ..whole(0, id) }, b"x"));
    assert_eq!(client.events().len(), 100);
    assert_eq!(client.server.credit(link), 2);
}

#[test]
fn credit_is_raised_and_lowered() {
    let mut client = Client::ready(Config::default());
    let link = client.sender(0, 0);
    assert_eq!(client.server.credit(link), 0);
    client.server.set_credit(link, 10).expect("there");
    assert_eq!(flows(&mut client)[0].link_credit, Some(10));
    client.server.set_credit(link, 1).expect("there");
    assert_eq!(client.said(), [], "what is given stays given");
    let receiver = client.receiver(1, 0);
    assert!(matches!(client.server.set_credit(receiver, 1), Err(CommandError::State(_))));
}

/// Senders that give credit back count on by themselves.
#[test]
fn a_sender_may_give_credit_back() {
    let mut client = Client::ready(Config::default());
    let link = client.sender(0, 10);
    client.say(0, &Performative::Flow(credit_flow(0, 10, 0)));
    assert_eq!(client.server.credit(link), 10, "and gets it anew");
    assert_eq!(flows(&mut client)[0].delivery_count, Some(10));
}

/// Our count has wrapped and the receiver has not seen all of it.
#[test]
fn credit_is_counted_over_the_wrap() {
    let mut client = Client::ready(Config::default());
    let link = client.receiver(0, 3);
    client.server.deliver(link, message(1)).expect("credit");
    client.server.deliver(link, message(1)).expect("credit");
    client.say(0, &Performative::Flow(credit_flow(0, 1, 5)));
    assert_eq!(client.event(), Event::CreditChanged { link, credit: 4, drain: false });
    client.say(0, &Performative::Flow(credit_flow(0, 0, 1)));
    assert_eq!(client.event(), Event::CreditChanged { link, credit: 0, drain: false }, "never below nothing");
    assert_eq!(client.server.deliver(link, message(1)), Err(DeliverError::NoCredit));
    client.say(0, &Performative::Flow(Flow { delivery_count: None, ..credit_flow(0, 0, 5) }));
    assert_eq!(client.event(), Event::CreditChanged { link, credit: 3, drain: false }, "no count is the first one");
}

/// All three clients drain when a timed receive ends.
#[test]
fn a_drain_gives_the_rest_of_the_credit_back() {
    let mut client = Client::ready(Config::default());
    let link = client.receiver(0, 0);
    client.say(0, &Performative::Flow(Flow { drain: true, ..credit_flow(0, 0, 5) }));
    assert_eq!(client.event(), Event::CreditChanged { link, credit: 5, drain: true });
    client.server.deliver(link, message(1)).expect("credit");
    client.server.drained(link).expect("there");
    let frames = client.frames();
    let [(Performative::Transfer(_), _), (Performative::Flow(flow), _)] = frames.as_slice() else {
        panic!("{frames:?}")
    };
    assert_eq!((flow.delivery_count, flow.link_credit, flow.drain), (Some(5), Some(0), true));
    client.server.drained(link).expect("there");
    assert_eq!(client.said(), [], "answered once");
    // A later receive works.
    client.say(0, &Performative::Flow(credit_flow(0, 5, 1)));
    assert_eq!(client.event(), Event::CreditChanged { link, credit: 1, drain: false });
    client.server.deliver(link, message(1)).expect("credit");
}

/// JavaScript drains when it has no credit left, and waits for the answer.
#[test]
fn a_drain_without_credit_is_answered() {
    let mut client = Client::ready(Config::default());
    let link = client.receiver(0, 0);
    client.say(0, &Performative::Flow(Flow { drain: true, ..credit_flow(0, 0, 0) }));
    assert_eq!(client.event(), Event::CreditChanged { link, credit: 0, drain: true });
    client.server.drained(link).expect("there");
    let Performative::Flow(flow) = client.frame() else { panic!() };
    assert_eq!((flow.delivery_count, flow.link_credit, flow.drain), (Some(0), Some(0), true));
}

#[test]
fn an_echo_is_answered() {
    let mut client = Client::ready(Config::default());
    client.receiver(0, 3);
    client.say(0, &Performative::Flow(Flow { echo: true, ..credit_flow(0, 0, 3) }));
    client.events();
    let Performative::Flow(flow) = client.frame() else { panic!() };
    assert_eq!((flow.handle, flow.link_credit, flow.drain), (Some(0), Some(3), false));
    let session = Flow { handle: None, delivery_count: None, link_credit: None, echo: true, ..credit_flow(0, 0, 0) };
    client.say(0, &Performative::Flow(session));
    let Performative::Flow(flow) = client.frame() else { panic!() };
    assert_eq!((flow.handle, flow.incoming_window), (None, 2048));
}

fn blocked(window: u32) -> (Client, LinkKey) {
    let mut client = Client::ready_with(Config::default(), Open { max_frame_size: 512, ..Open::default() });
    let link = client.receiver(0, 10);
    client.say(0, &Performative::Flow(Flow { incoming_window: window, handle: None, ..credit_flow(0, 0, 0) }));
    client.events();
    (client, link)
}

fn window(next: u32, window: u32) -> Performative {
    Performative::Flow(Flow { next_incoming_id: Some(next), incoming_window: window, handle: None, ..Flow::default() })
}

/// A message that is longer than the window goes on when it opens; so does what was sent behind it, a drain included.
#[test]
fn a_shut_window_holds_back_and_keeps_the_order() {
    let (mut client, link) = blocked(2);
    let session = link.session();
    assert_eq!(client.server.deliverable(link), 10);
    client.server.deliver(link, message(1500)).expect("credit");
    assert_eq!(client.server.deliverable(link), 0);
    client.server.deliver(link, message(3)).expect("credit, though no window");
    client.say(
        0,
        &Performative::Flow(Flow {
            drain: true,
            incoming_window: 0,
            next_incoming_id: Some(2),
            ..credit_flow(0, 1, 9)
        }),
    );
    assert_eq!(client.event(), Event::CreditChanged { link, credit: 8, drain: true });
    client.server.drained(link).expect("there");
    assert_eq!(client.frames().len(), 2);

    client.say(0, &window(2, 1));
    assert_eq!((client.events(), client.frames().len()), (vec![], 1));
    client.say(0, &window(3, 100));
    assert_eq!(client.event(), Event::WindowOpened { session });
    let frames = client.frames();
    let [.., (Performative::Transfer(last), payload), (Performative::Flow(flow), _)] = frames.as_slice() else {
        panic!("{frames:?}")
    };
    assert_eq!((last.delivery_id, payload.len(), last.more), (Some(1), 3, false));
    assert_eq!((flow.link_credit, flow.delivery_count, flow.drain), (Some(0), Some(10), true));
    assert_eq!(client.server.deliverable(link), 0);
}

/// What waits for the window has not been seen by the peer, so it is not counted when the peer asks.
#[test]
fn an_echo_does_not_count_what_waits() {
    let (mut client, link) = blocked(1);
    client.server.deliver(link, message(1000)).expect("credit");
    client.server.deliver(link, message(1)).expect("credit");
    client.said();
    let ask = Flow { echo: true, next_incoming_id: Some(1), incoming_window: 0, ..credit_flow(0, 1, 9) };
    client.say(0, &Performative::Flow(ask));
    assert_eq!(client.event(), Event::CreditChanged { link, credit: 8, drain: false });
    let Performative::Flow(flow) = client.frame() else { panic!() };
    assert_eq!((flow.delivery_count, flow.link_credit), (Some(1), Some(9)));
}

/// A peer that drains again and again while its window is shut gets one answer when it opens.
#[test]
fn answers_to_drains_do_not_pile_up() {
    let (mut client, link) = blocked(1);
    client.server.deliver(link, message(1000)).expect("credit");
    client.said();
    for _ in 0..100 {
        let flow = Flow { drain: true, next_incoming_id: Some(1), incoming_window: 0, ..credit_flow(0, 1, 9) };
        client.say(0, &Performative::Flow(flow));
        client.events();
        client.server.drained(link).expect("there");
        assert_eq!(client.server.deliver(link, message(1)), Err(DeliverError::NoCredit), "given back");
    }
    client.say(0, &window(1, 100));
    let flows = flows(&mut client);
    let [flow] = flows.as_slice() else { panic!("{flows:?}") };
    assert_eq!((flow.delivery_count, flow.link_credit, flow.drain), (Some(10), Some(0), true));
}

/// What the peer says of its window may be older than what we have sent since.
#[test]
fn what_is_under_way_counts_against_the_window() {
    let (mut client, link) = blocked(3);
    (0..3).for_each(|_| {
        client.server.deliver(link, message(1)).expect("credit");
    });
    client.say(0, &window(0, 3));
    assert_eq!((client.events(), client.server.deliverable(link)), (vec![], 0));
    client.say(0, &window(2, 3));
    assert_eq!(client.server.deliverable(link), 7);
    client.events();
    (0..2).for_each(|_| {
        client.server.deliver(link, message(1)).expect("credit");
    });
    assert_eq!(client.server.deliverable(link), 0);
}

/// Detaching takes back what waits and lets go what waits behind it.
#[test]
fn detaching_forgets_what_waits() {
    let (mut client, link) = blocked(1);
    client.server.deliver(link, message(2000)).expect("credit");
    client.said();
    client.server.detach(link, None).expect("there");
    client.say(0, &window(1, 100));
    client.events();
    let frames = client.frames();
    assert!(matches!(frames.as_slice(), [(Performative::Detach(_), _)]), "{frames:?}");
}

/// The session's own window is announced again when half of it is used.
#[test]
fn the_incoming_window_is_topped_up() {
    let mut client = Client::ready(Config { incoming_window: 4, ..Config::default() });
    client.sender(0, 100);
    client.transfer(whole(0, 0), b"x");
    assert_eq!(client.said(), []);
    client.transfer(whole(0, 1), b"x");
    let Performative::Flow(flow) = client.frame() else { panic!() };
    assert_eq!((flow.handle, flow.next_incoming_id, flow.incoming_window), (None, Some(2), 4));
    (2..50).for_each(|id| client.transfer(whole(0, id), b"x"));
    assert_eq!(client.events().len(), 50, "and never runs out");
}

/// The Python SDK counts a message of several frames as one transfer: its own word is taken for where it stands.
#[test]
fn a_peer_that_counts_differently_is_followed() {
    let mut client = Client::ready(Config::default());
    client.sender(0, 100);
    client.transfer(Transfer { more: true, ..whole(0, 0) }, b"a");
    client.transfer(Transfer { more: true, ..whole(0, 0) }, b"b");
    client.transfer(whole(0, 0), b"c");
    client.say(0, &Performative::Flow(Flow { next_outgoing_id: 1, echo: true, handle: None, ..credit_flow(0, 0, 0) }));
    let said = client.said();
    let Some(Said::Frame(0, Performative::Flow(flow), _)) = said.last() else { panic!("{said:?}") };
    assert_eq!(flow.next_incoming_id, Some(1));
}

/// One answer for many: a hundred settlements in a row are one frame, and a different one between them is its own.
#[test]
fn settlements_in_a_row_are_one_frame() {
    let mut client = Client::ready(Config::default());
    client.sender(0, 1000);
    (0..300).for_each(|id| client.transfer(whole(0, id), b"x"));
    for event in client.events() {
        let Event::Delivery(delivery) = event else { panic!() };
        let state = if delivery.tag[3] == 77 && delivery.tag[2] == 0 {
            DeliveryState::Released
        } else {
            DeliveryState::Accepted
        };
        client.server.settle_incoming(delivery.key, &state).expect("there");
    }
    let ranges: Vec<_> = client
        .frames()
        .into_iter()
        .map(|(frame, _)| {
            let Performative::Disposition(Disposition {
                role: Role::Receiver, first, last, settled: true, state, ..
            }) = frame
            else {
                panic!("{frame:?}")
            };
            (first, last, state)
        })
        .collect();
    let accepted = Some(DeliveryState::Accepted);
    assert_eq!(
        ranges,
        [(0, Some(76), accepted.clone()), (77, Some(77), Some(DeliveryState::Released)), (78, Some(299), accepted)]
    );
}
