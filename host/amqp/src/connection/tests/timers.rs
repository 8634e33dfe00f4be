//! Time that passes.

use std::time::Duration;

use super::client::{Client, Said};
use crate::{
    condition,
    connection::{Config, EndedBy, Event},
    performative::{Open, Performative},
};

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn who_does_not_open_in_time_is_left() {
    let mut client = Client::new(Config::default());
    client.write(&crate::frame::Layer::Sasl.header());
    assert_eq!(client.server.poll_timeout(), Some(client.now + seconds(30)));
    client.wait(seconds(29));
    assert_eq!(client.events(), []);
    client.wait(seconds(1));
    assert!(matches!(client.event(), Event::Closed { by: EndedBy::Us, error: Some(_) }));
    assert!(client.server.is_finished());
    assert_eq!(client.server.poll_timeout(), None);
}

/// A79: azservicebus asks for a frame every 30 s.
#[test]
fn a_peer_that_asks_for_it_hears_from_us() {
    let open = Open { idle_time_out: Some(30_000), ..Open::default() };
    let mut client = Client::ready_with(Config { idle_time_out: None, ..Config::default() }, open);
    for _ in 0..3 {
        assert_eq!(client.server.poll_timeout(), Some(client.now + seconds(15)));
        client.wait(seconds(14));
        assert_eq!(client.said(), []);
        client.wait(seconds(1));
        assert_eq!(client.said(), [Said::Empty]);
    }
    // What is said anyway counts.
    client.wait(seconds(10));
    client.receiver(0, 0);
    assert_eq!(client.server.poll_timeout(), Some(client.now + seconds(15)));
}

/// To a peer that does not read, nothing is piled up.
#[test]
fn empty_frames_do_not_pile_up() {
    let open = Open { idle_time_out: Some(1000), ..Open::default() };
    let mut client = Client::ready_with(Config { idle_time_out: None, ..Config::default() }, open);
    (0..100).for_each(|_| client.wait(seconds(1)));
    assert_eq!(client.said(), [Said::Empty]);
}

#[test]
fn a_silent_peer_is_closed_on() {
    let mut client = Client::ready(Config::default());
    client.wait(seconds(119));
    assert_eq!(client.events(), []);
    client.write(&[0, 0, 0, 8, 2, 0, 0, 0]);
    client.wait(seconds(119));
    assert_eq!(client.events(), [], "an empty frame is enough");
    client.wait(seconds(1));
    let Event::Closed { by: EndedBy::Us, error: Some(error) } = client.event() else { panic!() };
    assert_eq!(error.condition, condition::RESOURCE_LIMIT_EXCEEDED);
    assert!(matches!(client.frame(), Performative::Close(Some(_))));
    assert!(!client.server.is_finished());
    client.wait(seconds(5));
    assert!(client.server.is_finished(), "nor does it answer the close");
    assert_eq!(client.events(), []);
}

#[test]
fn without_time_outs_there_is_nothing_to_wait_for() {
    let open = Open { idle_time_out: Some(0), ..Open::default() };
    let client = Client::ready_with(Config { idle_time_out: None, ..Config::default() }, open);
    assert_eq!(client.server.poll_timeout(), None);
}
