//! Links that are asked for, refused, held back, detached, and asked for again.

use bytes::Bytes;

use super::client::{Client, attach, credit_flow, whole};
use crate::{
    condition,
    connection::{Accept, CommandError, Config, DeliverError, EndedBy, Event, LinkKey, Outgoing},
    performative::{AmqpError, Attach, DeliveryState, Detach, Open, Performative, Role, Source, Target},
    value::{Symbol, Value},
};

fn requested(client: &mut Client, performative: &Performative) -> LinkKey {
    client.say(0, performative);
    match client.event() {
        Event::AttachRequested { link, .. } => link,
        other => panic!("{other:?}"),
    }
}

fn message() -> Outgoing {
    Outgoing { tag: Bytes::from_static(b"t"), payload: Bytes::from_static(b"p"), format: 0, settled: false }
}

/// The way in which a session that is held elsewhere, or that does not come in time, is refused.
#[test]
fn a_refused_receiver_gets_no_source_and_a_reason() {
    let mut client = Client::ready(Config::default());
    let link = requested(&mut client, &attach(Role::Receiver, 0));
    let error = AmqpError::new(Symbol::from_static("com.microsoft:timeout"), "no session");
    client.server.refuse_attach(link, &error).expect("asked for");
    let frames = client.frames();
    let [(Performative::Attach(answer), _), (Performative::Detach(detach), _)] = frames.as_slice() else {
        panic!("{frames:?}")
    };
    assert_eq!((answer.role, &answer.source, &answer.target), (Role::Sender, &None, &Some(Target::at("q"))));
    assert_eq!(detach, &Detach { handle: 0, closed: true, error: Some(error) });
    assert_eq!(client.server.accept_attach(link, Accept::default()), Err(CommandError::Gone));
    client.say(0, &Performative::Detach(Detach { handle: 0, closed: true, error: None }));
    assert_eq!((client.events(), client.said()), (vec![], vec![]));
}

#[test]
fn a_refused_sender_gets_no_target() {
    let mut client = Client::ready(Config::default());
    let link = requested(&mut client, &attach(Role::Sender, 0));
    client.server.refuse_attach(link, &AmqpError::new(condition::NOT_FOUND, "no q")).expect("asked for");
    let frames = client.frames();
    let (Performative::Attach(answer), _) = &frames[0] else { panic!("{frames:?}") };
    assert_eq!((answer.role, &answer.source, &answer.target), (Role::Receiver, &Some(Source::at("q")), &None));
}

/// A client asks for transactions with a target of its own kind; the application sees which.
#[test]
fn a_coordinator_is_told_apart() {
    let mut client = Client::ready(Config::default());
    let mut wanted = Attach::new("tx", 0, Role::Sender);
    wanted.target = Some(Target::Coordinator { capabilities: vec![] });
    client.say(0, &Performative::Attach(Box::new(wanted)));
    let Event::AttachRequested { link, attach } = client.event() else { panic!() };
    assert!(matches!(attach.target, Some(Target::Coordinator { .. })));
    client.server.refuse_attach(link, &AmqpError::new(condition::NOT_IMPLEMENTED, "no transactions")).expect("there");
    let frames = client.frames();
    assert!(matches!(frames[1].0, Performative::Detach(Detach { closed: true, error: Some(_), .. })));
}

/// Session accept: the answer comes when a session is free; credit that was given in the meantime is not lost.
#[test]
fn an_answer_may_be_held_back() {
    let mut client = Client::ready(Config::default());
    let link = requested(&mut client, &attach(Role::Receiver, 0));
    client.say(0, &Performative::Flow(credit_flow(0, 0, 5)));
    client.sender(1, 1);
    assert_eq!(client.server.deliverable(link), 0);
    assert_eq!(client.server.deliver(link, message()), Err(DeliverError::NotSending));
    let mut source = Source::at("q");
    source.filters.set(Symbol::from_static("com.microsoft:session-filter"), Value::from("s1"));
    let properties = [(Symbol::from_static("com.microsoft:locked-until-utc"), Value::Long(1))].into_iter().collect();
    let accept = Accept { source: Some(source.clone()), properties, ..Accept::default() };
    client.server.accept_attach(link, accept).expect("asked for");
    assert_eq!(client.event(), Event::CreditChanged { link, credit: 5, drain: false });
    let Performative::Attach(answer) = client.frame() else { panic!() };
    assert_eq!((answer.role, answer.handle, answer.initial_delivery_count), (Role::Sender, 0, Some(0)));
    assert_eq!((answer.source, answer.receiver_settle), (Some(source), crate::performative::ReceiverSettle::Second));
    assert_eq!(answer.properties.get("com.microsoft:locked-until-utc"), Some(&Value::Long(1)));
    client.server.deliver(link, message()).expect("credit");
}

/// A client that gives up waiting gets an answer that it understands, and a grant that comes later finds nobody.
#[test]
fn a_client_may_give_up_waiting() {
    let mut client = Client::ready(Config::default());
    let link = requested(&mut client, &attach(Role::Receiver, 0));
    client.say(0, &Performative::Detach(Detach { handle: 0, closed: true, error: None }));
    assert_eq!(client.event(), Event::Detached { link, by: EndedBy::Peer, error: None });
    let frames = client.frames();
    let [(Performative::Attach(answer), _), (Performative::Detach(_), _)] = frames.as_slice() else {
        panic!("{frames:?}")
    };
    assert_eq!(answer.source, None);
    assert_eq!(client.server.accept_attach(link, Accept::default()), Err(CommandError::Gone));
}

/// A87: a link that comes back under its old number knows nothing of the old one's deliveries.
#[test]
fn a_handle_that_is_used_again_is_another_link() {
    let mut client = Client::ready(Config::default());
    let old = client.receiver(0, 5);
    let delivery = client.server.deliver(old, message()).expect("credit");
    client.say(0, &Performative::Detach(Detach { handle: 0, closed: true, error: None }));
    client.events();
    client.said();
    let new = client.receiver(0, 5);
    assert_ne!(old, new);
    assert_eq!(client.server.settle_outgoing(delivery, Some(&DeliveryState::Accepted)), Err(CommandError::Gone));
    assert_eq!(client.server.deliver(old, message()), Err(DeliverError::Gone));
    assert_eq!(client.server.detach(old, None), Err(CommandError::Gone));
    assert_eq!(client.server.deliverable(old), 0);
    client.server.deliver(new, message()).expect("credit");
}

/// The same for a session whose channel is used again.
#[test]
fn a_channel_that_is_used_again_is_another_session() {
    let mut client = Client::ready(Config::default());
    let link = client.sender(0, 5);
    client.transfer(whole(0, 0), b"x");
    let Event::Delivery(delivery) = client.event() else { panic!() };
    client.say(0, &Performative::End(None));
    client.say(0, &Performative::Begin(super::client::begin()));
    client.events();
    client.said();
    let again = client.sender(0, 5);
    assert_ne!(link.session(), again.session());
    assert_eq!(client.server.settle_incoming(delivery.key, &DeliveryState::Accepted), Err(CommandError::Gone));
    assert_eq!(client.server.set_credit(link, 9), Err(CommandError::Gone));
}

/// The same name in the same direction is the same link: the newer one has it.
#[test]
fn a_link_attached_again_is_taken_from_the_older() {
    let mut client = Client::ready(Config::default());
    let older = client.receiver(0, 5);
    let Performative::Attach(mut again) = attach(Role::Receiver, 0) else { panic!() };
    again.handle = 1;
    client.say(0, &Performative::Attach(again.clone()));
    let events = client.events();
    let [Event::Detached { link, by: EndedBy::Us, error: Some(error) }, Event::AttachRequested { .. }] =
        events.as_slice()
    else {
        panic!("{events:?}")
    };
    assert_eq!((*link, &error.condition), (older, &condition::STOLEN));
    client.said();
    // In the other direction it is another link.
    again.role = Role::Sender;
    again.handle = 2;
    client.say(0, &Performative::Attach(again));
    assert!(matches!(client.event(), Event::AttachRequested { .. }));
}

/// Not every client answers a detach before it uses the handle again.
#[test]
fn a_detach_need_not_be_answered() {
    let mut client = Client::ready(Config::default());
    let old = client.receiver(0, 5);
    client.server.detach(old, None).expect("attached");
    client.said();
    client.receiver(0, 5);
}

#[test]
fn both_sides_may_detach_at_once() {
    let mut client = Client::ready(Config::default());
    let link = client.receiver(0, 5);
    client.server.detach(link, None).expect("attached");
    client.say(0, &Performative::Detach(Detach { handle: 0, closed: true, error: None }));
    assert_eq!(client.events(), []);
    assert_eq!(client.frames().len(), 1, "ours is the answer to theirs");
}

/// A link that is put aside and not closed gets the same answer; nothing of it is kept.
#[test]
fn a_detach_without_close_is_answered_alike() {
    let mut client = Client::ready(Config::default());
    client.receiver(0, 5);
    client.say(0, &Performative::Detach(Detach { handle: 0, closed: false, error: None }));
    assert_eq!(client.frame(), Performative::Detach(Detach { handle: 0, closed: false, error: None }));
}

#[test]
fn a_session_is_ended_and_the_connection_closed_by_us() {
    let mut client = Client::ready(Config::default());
    let link = client.receiver(0, 5);
    let error = AmqpError::new(condition::INTERNAL_ERROR, "x");
    client.server.end(link.session(), Some(error.clone())).expect("there");
    assert_eq!(client.frame(), Performative::End(Some(error.clone())));
    assert!(matches!(client.event(), Event::SessionEnded { by: EndedBy::Us, .. }));
    assert_eq!(client.server.end(link.session(), None), Err(CommandError::Gone));
    client.server.close(Some(error.clone())).expect("open");
    assert_eq!(client.frame(), Performative::Close(Some(error)));
    assert!(matches!(client.event(), Event::Closed { by: EndedBy::Us, .. }));
    assert_eq!(client.server.close(None), Err(CommandError::Gone));
}

/// A name that fills the peer's frames cannot be answered at all; it costs the session, however the link is refused.
#[test]
fn a_name_that_cannot_be_answered_ends_the_session() {
    for given_up in [true, false] {
        let open = Open { max_frame_size: 512, ..Open::default() };
        let mut client = Client::ready_with(Config::default(), open);
        let link =
            requested(&mut client, &Performative::Attach(Box::new(Attach::new("n".repeat(600), 0, Role::Sender))));
        if given_up {
            client.say(0, &Performative::Detach(Detach { handle: 0, closed: true, error: None }));
        } else {
            client.server.refuse_attach(link, &AmqpError::new(condition::NOT_FOUND, "no q")).expect("asked for");
        }
        let Event::SessionEnded { by: EndedBy::Us, error: Some(error), .. } = client.event() else { panic!() };
        assert_eq!(error.condition, condition::FRAME_SIZE_TOO_SMALL);
        assert!(matches!(client.frame(), Performative::End(Some(_))));
        client.server.assert_bounded(0, 0);
    }
}

/// An error is told in the smallest frames too, if need be without its description.
#[test]
fn small_frames_get_short_errors() {
    let open = Open { max_frame_size: 512, ..Open::default() };
    let mut client = Client::ready_with(Config::default(), open);
    let link = client.receiver(0, 5);
    let error = AmqpError::new(condition::INTERNAL_ERROR, "x".repeat(600));
    client.server.detach(link, Some(&error)).expect("there");
    let Performative::Detach(Detach { error: Some(told), .. }) = client.frame() else { panic!() };
    assert_eq!((told.condition, told.description), (condition::INTERNAL_ERROR, None));

    let link = requested(&mut client, &attach(Role::Receiver, 1));
    let accept = Accept { source: Some(Source::at("x".repeat(600))), ..Accept::default() };
    assert_eq!(client.server.accept_attach(link, accept), Err(CommandError::FrameTooLarge));
    let frames = client.frames();
    let (Performative::Detach(Detach { error: Some(told), .. }), _) = &frames[1] else { panic!("{frames:?}") };
    assert_eq!(told.condition, condition::FRAME_SIZE_TOO_SMALL);

    let link = client.sender(2, 5);
    client.transfer(whole(2, 0), b"x");
    let Event::Delivery(delivery) = client.event() else { panic!() };
    assert_eq!(delivery.link, link);
    client.server.settle_incoming(delivery.key, &DeliveryState::Rejected(Some(error))).expect("there");
    let Performative::Disposition(told) = client.frame() else { panic!() };
    let Some(DeliveryState::Rejected(Some(told))) = told.state else { panic!("{told:?}") };
    assert_eq!((told.condition, told.description), (condition::INTERNAL_ERROR, None));
}
