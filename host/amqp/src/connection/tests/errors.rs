//! What the peer does wrong, and how much of the connection it costs.

use super::client::{Client, Said, attach, begin, credit_flow, whole};
use crate::{
    condition,
    connection::{Config, EndedBy, Event},
    performative::{Begin, Detach, Disposition, Flow, Open, Performative, Role, Transfer},
    value::Symbol,
};

/// The connection was closed with this condition, and goes away when the peer answers.
fn closes(client: &mut Client, expected: &Symbol) {
    let events = client.events();
    let Some(Event::Closed { by: EndedBy::Us, error: Some(error) }) = events.last() else { panic!("{events:?}") };
    assert_eq!(&error.condition, expected, "{error:?}");
    let said = client.said();
    let Some(Said::Frame(0, Performative::Close(Some(told)), _)) = said.last() else { panic!("{said:?}") };
    assert_eq!(told, error);
    assert!(!client.server.is_finished(), "the peer's close is awaited");
    client.say(0, &Performative::Begin(begin()));
    client.say(5, &Performative::Flow(Flow::default()));
    assert_eq!((client.events(), client.said()), (vec![], vec![]), "the rest is passed over");
    client.say(0, &Performative::Close(None));
    assert_eq!((client.events(), client.said()), (vec![], vec![]));
    assert!(client.server.is_finished());
}

/// The session was ended with this condition, the connection goes on, and the channel can be used again.
fn ends(client: &mut Client, expected: &Symbol) {
    let events = client.events();
    let Some(Event::SessionEnded { by: EndedBy::Us, error: Some(error), .. }) = events.last() else {
        panic!("{events:?}")
    };
    assert_eq!(&error.condition, expected, "{error:?}");
    let said = client.said();
    assert!(matches!(said.last(), Some(Said::Frame(0, Performative::End(Some(_)), _))), "{said:?}");
    client.say(0, &attach(Role::Sender, 9));
    client.transfer(whole(9, 0), b"late");
    assert_eq!((client.events(), client.said()), (vec![], vec![]), "what was under way is passed over");
    client.say(0, &Performative::End(None));
    assert_eq!((client.events(), client.said()), (vec![], vec![]));
    client.say(0, &Performative::Begin(begin()));
    assert!(matches!(client.event(), Event::SessionBegun { .. }));
    client.said();
    client.receiver(0, 1);
}

#[test]
fn framing_errors_close_the_connection() {
    for bytes in [[0, 0, 0, 7, 2, 0, 0, 0], [0xff; 8], [0, 0, 0, 16, 1, 0, 0, 0], [0, 0, 0, 16, 2, 9, 0, 0]] {
        let mut client = Client::ready(Config::default());
        client.write(&bytes);
        let events = client.events();
        let [Event::Closed { error: Some(error), .. }] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(error.condition, condition::FRAMING_ERROR);
        assert!(matches!(client.frame(), Performative::Close(Some(_))));
        // The bad bytes were taken out or not: either way more input must not do anything.
        client.write(&bytes);
        assert_eq!(client.events(), []);
    }
    let mut client = Client::ready(Config::default());
    client.say_sasl(&super::client::init("PLAIN"));
    closes(&mut client, &condition::FRAMING_ERROR);
    let mut client = Client::ready(Config { channel_max: 3, ..Config::default() });
    client.say(4, &Performative::Begin(begin()));
    closes(&mut client, &condition::FRAMING_ERROR);
    let mut client = Client::ready(Config { handle_max: 3, ..Config::default() });
    client.say(0, &attach(Role::Sender, 4));
    closes(&mut client, &condition::FRAMING_ERROR);
}

#[test]
fn too_many_links_close_the_connection() {
    let mut client = Client::ready(Config { max_links: 2, ..Config::default() });
    client.receiver(0, 0);
    client.sender(1, 1);
    client.say(0, &attach(Role::Sender, 2));
    closes(&mut client, &condition::RESOURCE_LIMIT_EXCEEDED);
}

#[test]
fn nonsense_in_a_frame_is_a_decode_error() {
    let mut client = Client::ready(Config::default());
    client.write(&[0, 0, 0, 12, 2, 0, 0, 0, 0x00, 0x53, 0x99, 0x45]);
    closes(&mut client, &condition::DECODE_ERROR);
    let mut client = Client::ready(Config::default());
    client.write(&[0, 0, 0, 9, 2, 0, 0, 0, 0x3f]);
    closes(&mut client, &condition::DECODE_ERROR);
}

#[test]
fn frames_out_of_turn_close_the_connection() {
    let wrong = [
        (0, Performative::Open(Box::default())),
        (0, Performative::Begin(begin())),
        (1, Performative::Begin(Begin { remote_channel: Some(0), ..begin() })),
        (1, Performative::End(None)),
        (1, Performative::Flow(Flow::default())),
        (1, attach(Role::Sender, 0)),
        (1, Performative::Transfer(Transfer::default())),
    ];
    for (channel, performative) in wrong {
        let mut client = Client::ready(Config::default());
        client.say(channel, &performative);
        closes(&mut client, &condition::NOT_ALLOWED);
    }
    let mut client = Client::new(Config::default());
    client.login();
    client.say(0, &Performative::Begin(begin()));
    closes(&mut client, &condition::NOT_ALLOWED);
}

/// The Python SDK detaches the links of a session that it has ended. Other sessions of the connection must not suffer for it.
#[test]
fn a_word_after_the_end_is_passed_over() {
    let mut client = Client::ready(Config::default());
    client.receiver(0, 1);
    client.say(0, &Performative::End(None));
    assert!(matches!(client.event(), Event::SessionEnded { by: EndedBy::Peer, .. }));
    assert_eq!(client.frame(), Performative::End(None));
    client.say(0, &Performative::Detach(Detach { handle: 0, closed: true, error: None }));
    client.say(0, &Performative::End(None));
    client.transfer(whole(0, 0), b"x");
    assert_eq!((client.events(), client.said()), (vec![], vec![]));
    client.say(0, &Performative::Begin(begin()));
    assert!(matches!(client.event(), Event::SessionBegun { .. }));
    client.said();
    client.receiver(0, 1);
}

#[test]
fn an_open_that_cannot_be_served_is_refused() {
    for (open, expected) in [
        (Open { max_frame_size: 511, ..Open::default() }, condition::INVALID_FIELD),
        (Open { idle_time_out: Some(1), ..Open::default() }, condition::NOT_ALLOWED),
    ] {
        let mut client = Client::new(Config::default());
        client.login();
        client.say(0, &Performative::Open(Box::new(open)));
        closes(&mut client, &expected);
    }
}

#[test]
fn unknown_handles_end_the_session() {
    let mut client = Client::ready(Config::default());
    client.transfer(whole(7, 0), b"x");
    ends(&mut client, &condition::UNATTACHED_HANDLE);
    let mut client = Client::ready(Config::default());
    client.say(0, &Performative::Flow(credit_flow(7, 0, 1)));
    ends(&mut client, &condition::UNATTACHED_HANDLE);
    let mut client = Client::ready(Config::default());
    client.say(0, &Performative::Detach(Detach { handle: 7, ..Detach::default() }));
    ends(&mut client, &condition::UNATTACHED_HANDLE);
}

/// What is under way when we detach is passed over; what comes after the peer has answered is an errant link.
#[test]
fn a_link_detached_with_an_error_is_errant() {
    let mut client = Client::ready(Config::default());
    client.sender(0, 1);
    client.transfer(whole(0, 0), b"x");
    client.transfer(whole(0, 1), b"without credit");
    client.transfer(whole(0, 2), b"under way");
    let events = client.events();
    let [Event::Delivery(_), Event::Detached { by: EndedBy::Us, error: Some(error), .. }] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!(error.condition, condition::TRANSFER_LIMIT_EXCEEDED);
    assert!(matches!(client.frame(), Performative::Detach(Detach { closed: true, error: Some(_), .. })));
    client.say(0, &Performative::Detach(Detach { handle: 0, closed: true, error: None }));
    assert_eq!((client.events(), client.said()), (vec![], vec![]));
    client.transfer(whole(0, 3), b"errant");
    ends(&mut client, &condition::ERRANT_LINK);
}

#[test]
fn a_handle_in_use_ends_the_session() {
    let mut client = Client::ready(Config::default());
    client.sender(0, 1);
    client.say(0, &attach(Role::Receiver, 0));
    ends(&mut client, &condition::HANDLE_IN_USE);
}

#[test]
fn more_than_the_window_ends_the_session() {
    let mut client = Client::ready(Config { incoming_window: 0, ..Config::default() });
    client.say(0, &attach(Role::Sender, 0));
    client.events();
    client.said();
    client.transfer(whole(0, 0), b"x");
    ends(&mut client, &condition::WINDOW_VIOLATION);
}

#[test]
fn delivery_ids_must_grow() {
    let mut client = Client::ready(Config::default());
    client.sender(0, 10);
    client.transfer(whole(0, 5), b"x");
    client.transfer(whole(0, 5), b"x");
    ends(&mut client, &condition::INVALID_FIELD);
}

#[test]
fn a_disposition_backwards_ends_the_session() {
    let mut client = Client::ready(Config::default());
    client.dispose(Disposition {
        role: Role::Receiver,
        first: 5,
        last: Some(4),
        settled: true,
        state: None,
        batchable: false,
    });
    ends(&mut client, &condition::INVALID_FIELD);
}

/// A range is as wide as the numbers go and costs only what is there.
#[test]
fn the_widest_disposition_is_harmless() {
    let mut client = Client::ready(Config::default());
    client.receiver(0, 1);
    for role in [Role::Receiver, Role::Sender] {
        client.dispose(Disposition {
            role,
            first: 0,
            last: Some(i32::MAX.cast_unsigned()),
            settled: true,
            state: None,
            batchable: false,
        });
    }
    assert_eq!(client.events(), []);
}

#[test]
fn transfers_that_a_link_does_not_take_detach_it() {
    let mut client = Client::ready(Config::default());
    client.receiver(0, 5);
    client.sender(1, 5);
    let wrong = [
        (Transfer { delivery_id: None, ..whole(1, 0) }, condition::INVALID_FIELD),
        (Transfer { resume: true, ..whole(1, 0) }, condition::NOT_IMPLEMENTED),
        (whole(0, 0), condition::NOT_ALLOWED),
    ];
    for (transfer, expected) in wrong {
        let handle = transfer.handle;
        client.transfer(transfer, b"x");
        let Event::Detached { error: Some(error), .. } = client.event() else { panic!("detached") };
        assert_eq!(error.condition, expected);
        client.said();
        client.say(0, &Performative::Detach(Detach { handle, closed: true, error: None }));
        if handle == 1 {
            client.sender(1, 5);
        }
    }
}
