//! Headers and logins.

use bytes::Bytes;

use super::client::{Client, Said, begin, init};
use crate::{
    condition,
    connection::{CommandError, Config, EndedBy, Event},
    frame::{self, Layer},
    performative::{Open, Performative, Sasl, SaslCode},
};

fn open_bytes() -> Vec<u8> {
    let mut bytes = Layer::Amqp.header().to_vec();
    let open = Open { container_id: "c".to_owned(), ..Open::default() };
    frame::write_amqp(&mut bytes, 0, &Performative::Open(Box::new(open)), b"");
    frame::write_amqp(&mut bytes, 0, &Performative::Begin(begin()), b"");
    bytes
}

fn closed(client: &mut Client) -> crate::value::Symbol {
    let events = client.events();
    let Some(Event::Closed { by: EndedBy::Us, error: Some(error) }) = events.last() else { panic!("{events:?}") };
    error.condition.clone()
}

/// A85: a client with a wrong key that goes on as if nothing had happened can do nothing, sent before or after the outcome.
#[test]
fn after_a_refused_login_nothing_is_listened_to() {
    for pipelined in [true, false] {
        let mut client = Client::new(Config::default());
        client.write(&Layer::Sasl.header());
        client.say_sasl(&init("PLAIN"));
        if pipelined {
            client.write(&open_bytes());
        }
        assert!(matches!(client.event(), Event::SaslInit { .. }), "and no open yet");
        client.server.sasl_refuse(SaslCode::Auth).expect("a login waits");
        if !pipelined {
            client.write(&open_bytes());
        }
        assert_eq!(closed(&mut client), condition::UNAUTHORIZED_ACCESS);
        let said = client.said();
        let outcome = Said::Sasl(Sasl::Outcome { code: SaslCode::Auth, data: None });
        assert_eq!(said.last(), Some(&outcome), "and nothing behind it");
        assert!(client.server.is_finished());
        client.write(&open_bytes());
        assert_eq!((client.events(), client.said()), (vec![], vec![]));
        assert_eq!(client.server.sasl_accept(), Err(CommandError::Gone));
        assert_eq!(client.server.poll_timeout(), None);
    }
}

/// A refusal with the code for success would be understood as one.
#[test]
fn a_refusal_never_says_ok() {
    let mut client = Client::new(Config::default());
    client.write(&Layer::Sasl.header());
    client.say_sasl(&init("PLAIN"));
    client.server.sasl_refuse(SaslCode::Ok).expect("a login waits");
    assert_eq!(client.said().last(), Some(&Said::Sasl(Sasl::Outcome { code: SaslCode::Auth, data: None })));
}

/// Clients send everything up to their begin without waiting for an answer.
#[test]
fn a_whole_start_in_one_read_is_taken_in_order() {
    let mut client = Client::new(Config::default());
    let mut bytes = Layer::Sasl.header().to_vec();
    frame::write_sasl(&mut bytes, &init("ANONYMOUS"));
    bytes.extend(open_bytes());
    client.write(&bytes);
    assert!(matches!(client.event(), Event::SaslInit { .. }));
    assert!(!client.server.wants_input());
    client.server.sasl_accept().expect("a login waits");
    assert!(client.server.wants_input());
    assert!(matches!(client.events().as_slice(), [Event::Opened { .. }, Event::SessionBegun { .. }]));
    assert!(client.server.is_open());
    assert_eq!(client.said().len(), 6, "header, mechanisms, outcome, header, open, begin");
}

#[test]
fn a_mechanism_that_was_not_offered_is_refused() {
    let mut client = Client::new(Config::default());
    client.write(&Layer::Sasl.header());
    client.say_sasl(&init("GSSAPI"));
    assert_eq!(closed(&mut client), condition::UNAUTHORIZED_ACCESS);
    assert!(client.server.is_finished());
}

#[test]
fn a_challenge_is_answered() {
    let mut client = Client::new(Config::default());
    client.write(&Layer::Sasl.header());
    client.say_sasl(&init("PLAIN"));
    client.event();
    client.server.sasl_challenge(Bytes::new()).expect("a login waits");
    client.say_sasl(&Sasl::Response(Bytes::from_static(b"\0user\0key")));
    assert_eq!(client.event(), Event::SaslResponse { response: Bytes::from_static(b"\0user\0key") });
    client.server.sasl_accept().expect("a login waits");
}

#[test]
fn nothing_but_a_login_is_possible_before_one() {
    // AMQP frames within the SASL layer.
    let mut client = Client::new(Config::default());
    client.write(&Layer::Sasl.header());
    client.say(0, &Performative::Open(Box::default()));
    assert_eq!(closed(&mut client), condition::FRAMING_ERROR);
    // Out of turn.
    let mut client = Client::new(Config::default());
    client.write(&Layer::Sasl.header());
    client.say_sasl(&Sasl::Response(Bytes::new()));
    assert_eq!(closed(&mut client), condition::NOT_ALLOWED);
    // Without the layer, unless it is allowed.
    let mut client = Client::new(Config::default());
    client.write(&open_bytes());
    assert_eq!(closed(&mut client), condition::NOT_IMPLEMENTED);
    assert_eq!(client.said(), [Said::Header(Layer::Sasl.header())], "the header that would do");
    let mut client = Client::new(Config { plain_allowed: true, ..Config::default() });
    client.write(&open_bytes());
    assert!(matches!(client.events().as_slice(), [Event::Opened { .. }, Event::SessionBegun { .. }]));
}

#[test]
fn other_headers_are_answered_with_ours() {
    for header in [Layer::Tls.header(), *b"AMQP\x00\x00\x09\x01", *b"GET / HT"] {
        let mut client = Client::new(Config { plain_allowed: true, ..Config::default() });
        client.write(&header);
        assert_eq!(client.said(), [Said::Header(Layer::Sasl.header())]);
        assert!(client.server.is_finished());
    }
    let mut client = Client::new(Config::default());
    client.write(&Layer::Sasl.header());
    client.say_sasl(&init("ANONYMOUS"));
    client.server.sasl_accept().expect("a login waits");
    client.write(&Layer::Sasl.header());
    assert_eq!(client.said().last(), Some(&Said::Header(Layer::Amqp.header())), "one login is enough");
    assert!(client.server.is_finished());
}

/// What waits for the answer to a login is bounded.
#[test]
fn a_flood_before_the_outcome_ends_it() {
    let mut client = Client::new(Config { max_frame_size: 1024, ..Config::default() });
    client.write(&Layer::Sasl.header());
    client.say_sasl(&init("ANONYMOUS"));
    client.event();
    client.write(&[0; 1024]);
    assert_eq!(client.events(), []);
    client.write(&[0]);
    assert_eq!(closed(&mut client), condition::RESOURCE_LIMIT_EXCEEDED);
    assert!(client.server.is_finished());
}

#[test]
fn a_disconnect_is_told_once() {
    let mut client = Client::ready(Config::default());
    client.server.handle_disconnect(client.now);
    client.server.handle_disconnect(client.now);
    assert_eq!(client.event(), Event::Closed { by: EndedBy::Disconnect, error: None });
    assert!(client.server.is_finished());
}
