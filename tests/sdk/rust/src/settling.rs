//! Queues without sessions: what becomes of a message that was received.

use std::time::Duration;

use azservicebus::{ServiceBusMessageState, receiver::DeadLetterOptions};
use serde_amqp::{Value, primitives::OrderedMap};

use crate::{
    broker::{
        client, dead_letters, empty, impatient, message, nothing_comes, receive, receive_some, receiver, send, text,
        utc,
    },
    scenario::{Outcome, Suite, equal, holds, refused},
};

pub(crate) fn because(reason: &str) -> DeadLetterOptions {
    DeadLetterOptions {
        dead_letter_reason: Some(reason.to_owned()),
        dead_letter_error_description: Some("because".to_owned()),
        properties_to_modify: None,
    }
}

pub(crate) fn run(suite: &mut Suite) {
    suite.scenario("abandon: it comes again, counted, with properties modified", async || -> Outcome {
        let mut client = client().await?;
        send(&mut client, "plain", ["again"]).await?;
        let mut queue = receiver(&mut client, "plain").await?;
        let first = receive(&mut queue).await?;
        let mut modified = OrderedMap::new();
        modified.insert("seen".to_owned(), Value::from(1_i32));
        queue.abandon_message(&first, Some(modified)).await?;
        let second = receive(&mut queue).await?;
        equal((text(&second)?.as_str(), second.delivery_count()), ("again", Some(2)))?;
        let seen = second.application_properties().and_then(|properties| properties.get("seen").cloned());
        equal(seen, Some(1_i32.into()))?;
        queue.complete_message(&second).await?;
        empty(&mut queue).await
    });

    suite.scenario("dead-letter with reason and description, and the dead letters received", async || -> Outcome {
        let mut client = client().await?;
        send(&mut client, "plain", ["bad"]).await?;
        let mut queue = receiver(&mut client, "plain").await?;
        let got = receive(&mut queue).await?;
        queue.dead_letter_message(&got, because("why")).await?;
        let mut dead = dead_letters(&mut client, "plain").await?;
        let letter = receive(&mut dead).await?;
        equal((letter.dead_letter_reason(), letter.dead_letter_error_description()), (Some("why"), Some("because")))?;
        let seen = dead.peek_message(Some(1)).await?.ok_or("nothing is seen")?;
        equal(seen.dead_letter_reason(), Some("why"))?;
        dead.complete_message(&letter).await?;
        empty(&mut dead).await?;
        empty(&mut queue).await
    });

    suite.scenario(
        "defer, receive by number, complete, abandon and dead-letter what was deferred",
        async || -> Outcome {
            let mut client = client().await?;
            send(&mut client, "plain", (0..4).map(|n| message(format!("later {n}")))).await?;
            let mut queue = receiver(&mut client, "plain").await?;
            let mut numbers = Vec::new();
            for message in receive_some(&mut queue, 4, Duration::from_secs(10)).await? {
                numbers.push(message.sequence_number());
                queue.defer_message(&message, None).await?;
            }
            nothing_comes(&mut queue).await?;
            let seen = queue.peek_messages(10, Some(1)).await?;
            equal(seen.len(), 4)?;
            holds(seen.iter().all(|message| message.state() == ServiceBusMessageState::Deferred), || "a state".into())?;
            let got = queue.receive_deferred_messages(numbers.clone()).await?;
            let [mut one, two, three, four] = <[_; 4]>::try_from(got).map_err(|got| format!("{} came", got.len()))?;
            equal(text(&one)?.as_str(), "later 0")?;
            queue.renew_message_lock(&mut one).await?;
            holds(one.locked_until() > Some(utc(0.0)), || format!("locked until {:?}", one.locked_until()))?;
            queue.complete_message(&one).await?;
            queue.abandon_message(&two, None).await?;
            let two = queue.receive_deferred_message(numbers[1]).await?.ok_or("what was abandoned is gone")?;
            queue.complete_message(&two).await?;
            queue.dead_letter_message(&three, because("deferred")).await?;
            queue.defer_message(&four, None).await?;
            let four = queue.receive_deferred_message(numbers[3]).await?.ok_or("what was deferred again is gone")?;
            queue.complete_message(&four).await?;
            let mut dead = dead_letters(&mut client, "plain").await?;
            let letter = receive(&mut dead).await?;
            equal(letter.dead_letter_reason(), Some("deferred"))?;
            dead.complete_message(&letter).await?;
            let mut impatient = impatient().await?;
            let mut other = receiver(&mut impatient, "plain").await?;
            refused(other.receive_deferred_message(numbers[0]).await, "404")?;
            empty(&mut queue).await
        },
    );

    suite.scenario("renew a lock beyond its time", async || -> Outcome {
        let mut client = client().await?;
        send(&mut client, "brief", ["held"]).await?;
        let mut queue = receiver(&mut client, "brief").await?;
        let mut got = receive(&mut queue).await?;
        let mut other = receiver(&mut client, "brief").await?;
        for _ in 0..4 {
            nothing_comes(&mut other).await?;
            let before = got.locked_until();
            queue.renew_message_lock(&mut got).await?;
            holds(got.locked_until() > before, || format!("{before:?} and then {:?}", got.locked_until()))?;
        }
        queue.complete_message(&got).await?;
        nothing_comes(&mut other).await?;
        empty(&mut queue).await
    });

    suite.scenario("after too many deliveries it is a dead letter", async || -> Outcome {
        let mut client = client().await?;
        send(&mut client, "brief", ["poison"]).await?;
        let mut queue = receiver(&mut client, "brief").await?;
        for count in 1..=3 {
            let got = receive(&mut queue).await?;
            equal(got.delivery_count(), Some(count))?;
            queue.abandon_message(&got, None).await?;
        }
        nothing_comes(&mut queue).await?;
        let mut dead = dead_letters(&mut client, "brief").await?;
        let letter = receive(&mut dead).await?;
        equal(letter.dead_letter_reason(), Some("MaxDeliveryCountExceeded"))?;
        dead.complete_message(&letter).await?;
        Ok(dead.dispose().await?)
    });
}
