//! Messages over several frames, in both directions, and what is said about them.

use bytes::Bytes;

use super::client::{Client, whole};
use crate::{
    condition,
    connection::{Accept, CommandError, Config, DeliverError, EndedBy, Event, MAX_DELIVERY_TAG, Outgoing},
    frame::HEADER,
    performative::{AmqpError, DeliveryState, Disposition, Open, Performative, Role, Transfer},
};

fn delivered(client: &mut Client) -> crate::connection::Delivery {
    match client.event() {
        Event::Delivery(delivery) => delivery,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_over_many_frames_is_put_together() {
    let mut client = Client::ready(Config::default());
    client.sender(0, 10);
    client.transfer(Transfer { more: true, settled: None, message_format: Some(9), ..whole(0, 0) }, b"one ");
    let next = Transfer { handle: 0, more: true, ..Transfer::default() };
    client.transfer(next.clone(), b"two ");
    // Between them, another link's message: only those of one link come one after another.
    client.sender(1, 10);
    client.transfer(whole(1, 1), b"other");
    assert_eq!(&delivered(&mut client).payload[..], b"other");
    client.transfer(next.clone(), b"");
    client.transfer(Transfer { more: false, ..next }, b"three");
    let delivery = delivered(&mut client);
    assert_eq!((&delivery.payload[..], delivery.settled, delivery.format), (&b"one two three"[..], false, 9));
    assert_eq!(&delivery.tag[..], [0; 4]);
}

/// The frames of the Python SDK all carry the id, and its ids have gaps.
#[test]
fn ids_may_be_repeated_within_a_message_and_leave_gaps() {
    let mut client = Client::ready(Config::default());
    client.sender(0, 10);
    client.transfer(Transfer { more: true, ..whole(0, u32::MAX - 1) }, b"a");
    client.transfer(whole(0, u32::MAX - 1), b"b");
    assert_eq!(&delivered(&mut client).payload[..], b"ab");
    client.transfer(whole(0, 3), b"c");
    let after = delivered(&mut client);
    client.server.settle_incoming(after.key, &DeliveryState::Accepted).expect("there");
    let Performative::Disposition(disposition) = client.frame() else { panic!() };
    assert_eq!(disposition.first, 3, "over the wrap");
}

/// fe2o3-amqp 0.14 (azservicebus 0.25.1) splits what is longer than the link takes at that length, and gives the last frame a number of its own. What
/// it is to be told is that the message is too long: it waits for ever for an answer to the link.
#[test]
fn a_new_number_with_the_same_tag_goes_on_with_the_message() {
    let mut client = Client::ready(Config::default());
    client.sender(0, 10);
    let first = Transfer { more: true, ..whole(0, 0) };
    let last = Transfer { delivery_tag: first.delivery_tag.clone(), ..whole(0, 1) };
    client.transfer(first, b"a");
    client.transfer(last, b"b");
    let delivery = delivered(&mut client);
    assert_eq!(&delivery.payload[..], b"ab");
    client.server.settle_incoming(delivery.key, &DeliveryState::Accepted).expect("there");
    let Performative::Disposition(disposition) = client.frame() else { panic!() };
    assert_eq!(disposition.first, 0, "the number that it began with");
    client.transfer(whole(0, 2), b"c");
    assert_eq!(&delivered(&mut client).payload[..], b"c");
}

#[test]
fn a_message_within_a_message_detaches_the_link() {
    let mut client = Client::ready(Config::default());
    client.sender(0, 10);
    client.transfer(Transfer { more: true, ..whole(0, 0) }, b"a");
    client.transfer(whole(0, 1), b"b");
    let Event::Detached { by: EndedBy::Us, error: Some(error), .. } = client.event() else { panic!() };
    assert_eq!(error.condition, condition::NOT_ALLOWED);
}

#[test]
fn an_aborted_message_is_forgotten_and_its_credit_comes_back() {
    let mut client = Client::ready(Config::default());
    let link = client.sender(0, 1);
    client.transfer(Transfer { more: true, ..whole(0, 0) }, b"a");
    assert_eq!(client.server.credit(link), 0);
    client.transfer(Transfer { handle: 0, aborted: true, ..Transfer::default() }, b"");
    assert_eq!((client.events(), client.server.credit(link)), (vec![], 1));
    client.transfer(whole(0, 1), b"b");
    assert_eq!(&delivered(&mut client).payload[..], b"b");
}

/// In one frame or in many: the longest message is as long as was said. A longer one is rejected and the link lives; one that is settled
/// cannot be, and detaches the link.
#[test]
fn too_long_a_message_is_refused() {
    for (frames, settled) in [(1_u32, false), (5, false), (1, true), (5, true)] {
        for excess in [0, 1, 2000] {
            let mut client = Client::ready(Config::default());
            client.say(0, &super::client::attach(Role::Sender, 0));
            let Event::AttachRequested { link, attach } = client.event() else { panic!() };
            let accept = Accept { credit: 10, max_message_size: 1000, ..Accept::mirror(&attach) };
            client.server.accept_attach(link, accept).expect("there");
            let said = client.frames();
            let (Performative::Attach(answer), _) = &said[0] else { panic!() };
            assert_eq!(answer.max_message_size, Some(1000));
            let part = vec![7; ((1000 + excess) / frames) as usize];
            let rest = vec![7; (1000 + excess) as usize - part.len() * (frames as usize - 1)];
            for n in 1..=frames {
                let payload = if n == frames { &rest } else { &part };
                client.transfer(Transfer { more: n < frames, settled: Some(settled), ..whole(0, 0) }, payload);
            }
            match (excess, settled) {
                (0, _) => {
                    let Event::Delivery(delivery) = client.event() else { panic!("taken") };
                    assert_eq!(delivery.payload.len(), 1000);
                }
                (_, true) => {
                    let Event::Detached { error: Some(error), .. } = client.event() else { panic!("detached") };
                    assert_eq!(error.condition, condition::MESSAGE_SIZE_EXCEEDED);
                }
                (_, false) => {
                    assert_eq!(client.events(), []);
                    let Performative::Disposition(said) = client.frame() else { panic!("an answer") };
                    let Some(DeliveryState::Rejected(Some(error))) = said.state else { panic!("{:?}", said.state) };
                    assert_eq!((said.settled, error.condition), (true, condition::MESSAGE_SIZE_EXCEEDED));
                    client.transfer(whole(0, 1), b"short");
                    let Event::Delivery(delivery) = client.event() else { panic!("the link lives") };
                    assert_eq!(&delivery.payload[..], b"short");
                }
            }
        }
    }
}

/// Any max-frame-size: frames are never longer, all but the last are full, and together they are the message.
#[test]
fn a_long_message_is_cut_at_the_peers_frame_size() {
    for max in [512_u32, 513, 1000, 65536] {
        let mut client = Client::ready_with(Config::default(), Open { max_frame_size: max, ..Open::default() });
        let link = client.receiver(0, 300);
        for len in [0, 1, max as usize - 60, max as usize - 59, max as usize - 40, max as usize * 3 + 1] {
            let payload: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            let tag = Bytes::from(vec![9; MAX_DELIVERY_TAG]);
            let message =
                Outgoing { tag: tag.clone(), payload: Bytes::from(payload.clone()), format: 7, settled: true };
            client.server.deliver(link, message).expect("credit");
            let before = client.server.output_len();
            let frames = client.frames();
            let mut together = Vec::new();
            for (n, (frame, part)) in frames.iter().enumerate() {
                let Performative::Transfer(transfer) = frame else { panic!("{frame:?}") };
                assert_eq!(transfer.more, n + 1 < frames.len());
                assert_eq!(transfer.delivery_tag.as_ref(), (n == 0).then_some(&tag), "on the first only");
                assert_eq!(transfer.message_format, (n == 0).then_some(7));
                assert_eq!(transfer.settled, Some(true));
                let mut head = Vec::new();
                frame.write(&mut head);
                let size = HEADER + head.len() + part.len();
                assert!(size <= max as usize, "{size} of {max}");
                assert!(!transfer.more || size == max as usize, "only the last is not full: {size} of {max}");
                together.extend_from_slice(part);
            }
            assert_eq!(together, payload);
            assert!(before >= payload.len());
        }
    }
}

/// On the wire 0 would be no limit at all.
#[test]
fn a_limit_must_be_given() {
    let mut client = Client::ready(Config::default());
    client.say(0, &super::client::attach(Role::Sender, 0));
    let Event::AttachRequested { link, attach } = client.event() else { panic!() };
    let accept = Accept { credit: 10, ..Accept::mirror(&attach) };
    assert!(matches!(client.server.accept_attach(link, accept.clone()), Err(CommandError::State(_))));
    client.server.accept_attach(link, Accept { max_message_size: 1, ..accept }).expect("still asked for");
}

/// The caller's buffer is free again when everything in it was whole and nobody keeps a payload.
#[test]
fn a_read_buffer_can_be_used_again() {
    let mut client = Client::ready(Config::default());
    client.sender(0, 1000);
    let mut bytes = Vec::new();
    crate::frame::write_amqp(
        &mut bytes,
        0,
        &Performative::Transfer(Transfer { settled: Some(true), ..whole(0, 0) }),
        &[7; 900],
    );
    let mut input = bytes::BytesMut::with_capacity(1024);
    input.extend_from_slice(&bytes);
    let place = input.as_ptr();
    client.server.handle_input(&mut input, client.now);
    drop(client.events());
    input.reserve(1024);
    assert_eq!((input.as_ptr(), input.capacity() >= 1024), (place, true));
}

#[test]
fn what_cannot_be_sent_is_said() {
    let mut client = Client::ready(Config::default());
    let Performative::Attach(mut wanted) = super::client::attach(Role::Receiver, 0) else { panic!() };
    wanted.max_message_size = Some(10);
    client.say(0, &Performative::Attach(wanted));
    let Event::AttachRequested { link, attach } = client.event() else { panic!() };
    client.server.accept_attach(link, Accept::mirror(&attach)).expect("there");
    client.say(0, &Performative::Flow(super::client::credit_flow(0, 0, 5)));
    client.events();
    client.said();
    let message = |tag: usize, len: usize| Outgoing {
        tag: Bytes::from(vec![0; tag]),
        payload: Bytes::from(vec![0; len]),
        format: 0,
        settled: false,
    };
    assert_eq!(client.server.deliver(link, message(33, 1)), Err(DeliverError::TagTooLong(33)));
    assert_eq!(client.server.deliver(link, message(16, 11)), Err(DeliverError::TooLarge { max: 10 }));
    assert_eq!(client.server.credit(link), 5, "nothing has changed");
    let sender = client.sender(1, 1);
    assert_eq!(client.server.deliver(sender, message(16, 1)), Err(DeliverError::NotSending));
    client.server.deliver(link, message(16, 10)).expect("fits");
}

/// One disposition for many: all of them, in one event, in order; those of other links that lie between them too.
#[test]
fn a_disposition_speaks_of_a_range() {
    let mut client = Client::ready(Config::default());
    let links = [client.receiver(0, 10), client.receiver(1, 10)];
    let keys: Vec<_> = (0..6_u8)
        .map(|n| {
            let tag = Bytes::from(vec![n]);
            let message = Outgoing { tag, payload: Bytes::from_static(b"x"), format: 0, settled: false };
            client.server.deliver(links[usize::from(n % 2)], message).expect("credit")
        })
        .collect();
    client.said();
    let said = Disposition {
        role: Role::Receiver,
        first: 1,
        last: Some(4),
        settled: true,
        state: Some(DeliveryState::Released),
        batchable: false,
    };
    client.dispose(said.clone());
    let Event::Disposition { deliveries, settled: true, state: Some(DeliveryState::Released) } = client.event() else {
        panic!()
    };
    let told: Vec<_> = deliveries.iter().map(|disposed| (disposed.key, disposed.link, disposed.tag[0])).collect();
    let expected: Vec<_> = (1..=4_u8).map(|n| (keys[usize::from(n)], links[usize::from(n % 2)], n)).collect();
    assert_eq!(told, expected);
    client.dispose(said.clone());
    assert_eq!(client.events(), [], "settled is settled");
    client.dispose(Disposition { first: 0, last: Some(5), ..said });
    let Event::Disposition { deliveries, .. } = client.event() else { panic!() };
    assert_eq!(deliveries.len(), 2);
    assert!(keys.iter().all(|key| client.server.settle_outgoing(*key, None).is_err()));
}

/// The outcome that is answered is the application's: a lost lock is told as rejected, whatever the receiver has said.
#[test]
fn the_answer_to_a_receiver_is_the_applications() {
    let mut client = Client::ready(Config::default());
    let link = client.receiver(0, 10);
    let message =
        Outgoing { tag: Bytes::from_static(b"t"), payload: Bytes::from_static(b"x"), format: 0, settled: false };
    let key = client.server.deliver(link, message).expect("credit");
    client.said();
    let error = AmqpError::new(crate::value::Symbol::from_static("com.microsoft:message-lock-lost"), "too late");
    let state = DeliveryState::Rejected(Some(error));
    client.server.settle_outgoing(key, Some(&state)).expect("there");
    let Performative::Disposition(told) = client.frame() else { panic!() };
    assert_eq!((told.role, told.settled, told.state), (Role::Sender, true, Some(state)));
}

/// A sender may settle what we have not answered; then there is nothing left to answer.
#[test]
fn a_sender_may_settle_first() {
    let mut client = Client::ready(Config::default());
    let link = client.sender(0, 1);
    client.transfer(whole(0, 0), b"x");
    let delivery = delivered(&mut client);
    let said = Disposition {
        role: Role::Sender,
        first: 0,
        last: None,
        settled: false,
        state: Some(DeliveryState::Accepted),
        batchable: false,
    };
    client.dispose(said.clone());
    assert_eq!(client.events(), []);
    client.dispose(Disposition { settled: true, ..said });
    assert_eq!(client.event(), Event::Withdrawn { deliveries: vec![delivery.key] });
    assert!(client.server.settle_incoming(delivery.key, &DeliveryState::Accepted).is_err());
    assert_eq!(client.server.credit(link), 1);
}

/// Not to copy what comes in is what makes receiving cheap.
#[test]
fn a_message_in_one_frame_is_not_copied() {
    let mut client = Client::ready(Config::default());
    client.sender(0, 10);
    let mut bytes = Vec::new();
    crate::frame::write_amqp(&mut bytes, 0, &Performative::Transfer(whole(0, 0)), &[7; 1000]);
    let mut input = bytes::BytesMut::from(&bytes[..]);
    let place = input.as_ptr() as usize..input.as_ptr() as usize + input.len();
    client.server.handle_input(&mut input, client.now);
    let delivery = delivered(&mut client);
    assert!(place.contains(&(delivery.payload.as_ptr() as usize)));
    assert!(place.contains(&(delivery.tag.as_ptr() as usize)));
}
