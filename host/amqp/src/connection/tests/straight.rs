//! The straight path: what every client does.

use bytes::Bytes;

use super::client::{Client, Said, whole};
use crate::{
    connection::{CommandError, Config, Delivery, Disposed, Event, Outgoing},
    performative::{DeliveryState, Detach, Disposition, Performative, Role},
};

#[test]
fn a_message_comes_in_and_is_settled() {
    let mut client = Client::ready(Config::default());
    let link = client.sender(0, 10);
    client.transfer(whole(0, 0), b"hello");
    let Event::Delivery(Delivery { link: on, key, tag, settled, payload, .. }) = client.event() else { panic!() };
    assert_eq!((on, &tag[..], settled, &payload[..]), (link, &[0, 0, 0, 0][..], false, &b"hello"[..]));
    client.server.settle_incoming(key, &DeliveryState::Accepted).expect("there");
    assert_eq!(
        client.frame(),
        Performative::Disposition(Disposition {
            role: Role::Receiver,
            first: 0,
            last: Some(0),
            settled: true,
            state: Some(DeliveryState::Accepted),
            batchable: false,
        })
    );
    assert_eq!(client.server.settle_incoming(key, &DeliveryState::Accepted), Err(CommandError::Gone));
}

/// The tried wire contract: a receiver that settles second says `settled=false` and waits for ours.
#[test]
fn a_message_goes_out_and_the_receiver_settles_second() {
    let mut client = Client::ready(Config::default());
    let link = client.receiver(0, 1);
    assert_eq!(client.server.deliverable(link), 1);
    let message =
        Outgoing { tag: Bytes::from_static(b"tag"), payload: Bytes::from_static(b"hello"), format: 0, settled: false };
    let key = client.server.deliver(link, message).expect("credit");
    assert_eq!(client.server.deliverable(link), 0);
    let said = client.said();
    let [Said::Frame(0, Performative::Transfer(transfer), payload)] = said.as_slice() else { panic!("{said:?}") };
    assert_eq!((transfer.delivery_id, transfer.delivery_tag.as_deref()), (Some(0), Some(&b"tag"[..])));
    assert_eq!((transfer.settled, transfer.more, &payload[..]), (Some(false), false, &b"hello"[..]));

    let state = Some(DeliveryState::Accepted);
    client.dispose(Disposition {
        role: Role::Receiver,
        first: 0,
        last: None,
        settled: false,
        state: state.clone(),
        batchable: false,
    });
    let disposed = Disposed { link, key, tag: Bytes::from_static(b"tag") };
    let deliveries = vec![disposed];
    assert_eq!(client.event(), Event::Disposition { deliveries, settled: false, state: state.clone() });
    client.server.settle_outgoing(key, state.as_ref()).expect("there");
    let Performative::Disposition(answer) = client.frame() else { panic!() };
    assert_eq!((answer.role, answer.first, answer.settled, answer.state), (Role::Sender, 0, true, state));
    assert_eq!(client.server.settle_outgoing(key, None), Err(CommandError::Gone));
}

#[test]
fn everything_is_closed_in_order() {
    let mut client = Client::ready(Config::default());
    client.receiver(3, 0);
    client.say(0, &Performative::Detach(Detach { handle: 3, closed: true, error: None }));
    assert!(matches!(client.event(), Event::Detached { error: None, .. }));
    assert_eq!(client.frame(), Performative::Detach(Detach { handle: 3, closed: true, error: None }));
    client.say(0, &Performative::End(None));
    assert!(matches!(client.event(), Event::SessionEnded { error: None, .. }));
    assert_eq!(client.frame(), Performative::End(None));
    client.say(0, &Performative::Close(None));
    assert!(matches!(client.event(), Event::Closed { error: None, .. }));
    assert_eq!(client.frame(), Performative::Close(None));
    assert!(client.server.is_finished());
}
