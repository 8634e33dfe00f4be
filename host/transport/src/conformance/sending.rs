//! What is sent arrives, whole, once, or is refused.

use std::time::Duration;

use sprag_core::{
    ids::EntityName,
    message::{Body, Message},
};
use sprag_store::conformance::sample;

use super::{Bench, EVENTUALLY, SOON, complete, entity, id_of, message, next};
use crate::{Error, Part};

/// Every field and every type of property survives, with and without sessions.
pub async fn what_is_sent_is_received_whole(bench: &Bench) {
    let full = bench.full_message("full");
    bench.transport.send(&entity("sessions"), vec![full.clone()]).await.expect("it is taken");
    let session = bench.offered("sessions").await;
    assert_eq!(session.id().as_str(), "customer-1");
    let delivery = next(&*session).await;
    assert_eq!(*delivery.message, full);
    assert_eq!((delivery.delivery_count, delivery.max_delivery_count, delivery.id_assigned), (1, 10, false));
    complete(&*session, &delivery).await;

    let plain = Message { session_id: None, ..full };
    bench.transport.send(&entity("plain"), vec![plain.clone()]).await.expect("it is taken");
    assert_eq!(*bench.take("plain").await.message, plain);
}

/// A83: no bytes, no body, a value, several sections: none is taken for another.
pub async fn every_kind_of_body_arrives_as_what_it_is(bench: &Bench) {
    for (name, body) in sample::every_body() {
        let sent = Message { body, ..message(None, name) };
        bench.transport.send(&entity("plain"), vec![sent.clone()]).await.expect("it is taken");
        let got = bench.take("plain").await;
        assert_eq!(*got.message, sent, "{name}");
        bench.transport.settle(&entity("plain"), got.lock, crate::Settlement::Complete).await.expect("it is completed");
    }
    let large = Message { body: Body::Data(vec![7_u8; 200_000].into()), ..message(None, "large") };
    bench.transport.send(&entity("plain"), vec![large.clone()]).await.expect("it is taken");
    assert_eq!(*bench.take("plain").await.message, large);
}

pub async fn numbers_rise(bench: &Bench) {
    let mut numbers = bench.numbered("plain", &["1", "2", "3"]).await;
    numbers.extend(bench.numbered("plain", &["4"]).await);
    assert_eq!(numbers.len(), 4);
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
    let got = bench.transport.receive(&entity("plain"), 10, EVENTUALLY).await.expect("receiving works");
    assert_eq!(got.iter().map(|it| it.sequence).collect::<Vec<_>>(), numbers, "and name the deliveries");
    assert_eq!(got.iter().map(id_of).collect::<Vec<_>>(), ["1", "2", "3", "4"]);
    assert_eq!(bench.transport.send(&entity("plain"), vec![]).await.expect("nothing is no error"), []);
}

pub async fn a_batch_goes_whole_or_not_at_all(bench: &Bench) {
    let batch = vec![message(Some("s"), "1"), message(None, "no session"), message(Some("s"), "2")];
    let refused = bench.transport.send(&entity("sessions"), batch).await;
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    assert!(bench.peek("sessions", Part::Active).await.is_empty());
}

pub async fn an_entity_that_is_not_there(bench: &Bench) {
    let nowhere = entity("nowhere");
    let is_named = |error: Error| match error {
        Error::NoSuchEntity(name) => assert_eq!(name, nowhere),
        other => panic!("{other:?}"),
    };
    is_named(bench.transport.send(&nowhere, vec![message(None, "m")]).await.expect_err("it is not there"));
    is_named(bench.transport.enqueue(&nowhere, message(None, "m")).await.expect_err("it is not there"));
    is_named(bench.transport.receive(&nowhere, 1, SOON).await.expect_err("it is not there"));
    is_named(bench.transport.accept_next(&nowhere, SOON).await.err().expect("it is not there"));
    is_named(bench.transport.accept(&nowhere, &"s".into(), SOON).await.err().expect("it is not there"));
    is_named(bench.transport.describe(&nowhere).await.expect_err("it is not there"));
    let peeked = bench.transport.peek(&nowhere, Part::Active, None, sprag_core::ids::SequenceNumber(0), 1).await;
    is_named(peeked.expect_err("it is not there"));
    is_named(bench.transport.sessions(&nowhere, None, 1).await.expect_err("it is not there"));
    let names: Vec<_> =
        bench.transport.entities().await.expect("a listing").into_iter().map(|info| info.name).collect();
    for spec in super::entities() {
        assert!(names.contains(&entity(spec.name)), "{} is listed", spec.name);
    }
    let sorted = |mut names: Vec<EntityName>| {
        names.sort();
        names
    };
    assert_eq!(sorted(bench.transport.names().await.expect("names")), sorted(names), "by name alone it is the same");
}

/// A75: refused, and the transport stays usable.
pub async fn a_session_entity_refuses_a_message_without_session(bench: &Bench) {
    let refused = bench.transport.send(&entity("sessions"), vec![message(None, "m")]).await;
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    let refused = bench.transport.enqueue(&entity("sessions"), message(None, "m")).await;
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    bench.send("sessions", Some("s"), &["after"]).await;
    assert_eq!(id_of(&next(&*bench.offered("sessions").await).await), "after");
}

/// P29: an id that the transport gave itself is marked.
pub async fn a_message_without_an_id_is_delivered(bench: &Bench) {
    let sent = Message { message_id: None, ..message(None, "") };
    bench.transport.send(&entity("plain"), vec![sent.clone(), sent.clone()]).await.expect("it is taken");
    let got = bench.transport.receive(&entity("plain"), 10, EVENTUALLY).await.expect("receiving works");
    assert_eq!(got.len(), 2);
    for delivery in got {
        assert_eq!(delivery.message.body, sent.body);
        assert!(delivery.message.message_id.is_none() || delivery.id_assigned);
    }
}

/// Protocol P1: a step that is carried out again adds nothing.
pub async fn enqueueing_an_id_twice_adds_nothing(bench: &Bench) {
    for _ in 0..3 {
        bench.transport.enqueue(&entity("sessions"), message(Some("s"), "trigger")).await.expect("no error");
    }
    assert_eq!(super::peeked_ids(&bench.peek("sessions", Part::Active).await), ["trigger"]);
    let session = bench.offered("sessions").await;
    let delivery = next(&*session).await;
    bench.transport.enqueue(&entity("sessions"), message(Some("s"), "trigger")).await.expect("no error");
    assert_eq!(bench.peek("sessions", Part::Active).await.len(), 1, "one that is locked is there, too");
    complete(&*session, &delivery).await;
    super::nothing_next(&*session).await;
}

/// The same for a retry that is scheduled.
pub async fn enqueueing_a_scheduled_id_twice_adds_nothing(bench: &Bench) {
    let retry =
        Message { scheduled_for: Some((bench.now)().after(Duration::from_secs(3_600))), ..message(Some("s"), "retry") };
    for _ in 0..2 {
        bench.transport.enqueue(&entity("sessions"), retry.clone()).await.expect("no error");
    }
    assert_eq!(super::peeked_ids(&bench.peek("sessions", Part::Scheduled).await), ["retry"]);
    bench.nothing_offered("sessions").await;
}

/// A sender that stops waiting has sent all of its batch or nothing of it.
pub async fn a_dropped_sender_leaves_all_or_nothing(bench: &Bench) {
    {
        let to = entity("plain");
        let sending = bench.transport.send(&to, vec![message(None, "1"), message(None, "2")]);
        tokio::select! {
            biased;
            sent = sending => { sent.expect("it is taken"); }
            () = std::future::ready(()) => {}
        }
    }
    bench.send("plain", None, &["3"]).await;
    let mut ids = Vec::new();
    while ids.last().is_none_or(|id| id != "3") {
        let delivery = bench.take("plain").await;
        ids.push(id_of(&delivery).to_owned());
    }
    assert!(ids == ["3"] || ids == ["1", "2", "3"], "{ids:?}");
}
