//! Queues without sessions: sending, receiving, looking.

use std::time::Duration;

use azservicebus::{CreateMessageBatchOptions, ServiceBusMessageState, ServiceBusReceiverOptions, SubQueue};
use fe2o3_amqp_types::{messaging::ApplicationProperties, primitives::SimpleValue};
use tokio::time::Instant;

use crate::{
    broker::{
        client, deleting, empty, impatient, message, named, nothing_comes, receive, receive_some, receiver, send,
        sender, text, texts, utc,
    },
    scenario::{Outcome, Suite, equal, holds, refused},
};

pub(crate) fn run(suite: &mut Suite) {
    suite.scenario("send one message and complete it", async || -> Outcome {
        let mut client = client().await?;
        send(&mut client, "plain", [named("hello", "m1")?]).await?;
        let mut queue = receiver(&mut client, "plain").await?;
        let message = receive(&mut queue).await?;
        equal((text(&message)?.as_str(), message.message_id().as_deref()), ("hello", Some("m1")))?;
        // It counts from one, where the others count from none.
        equal(message.delivery_count(), Some(1))?;
        holds(message.locked_until() > Some(utc(0.0)), || format!("locked until {:?}", message.locked_until()))?;
        queue.complete_message(&message).await?;
        empty(&mut queue).await?;
        queue.dispose().await?;
        Ok(client.dispose().await?)
    });

    suite.scenario("every field of a message arrives", async || -> Outcome {
        let mut client = client().await?;
        let mut sent = named("body", "id")?;
        sent.set_subject("subject".to_owned());
        sent.set_correlation_id("correlation".to_owned());
        sent.set_content_type("text/plain".to_owned());
        sent.set_to("to".to_owned());
        sent.set_reply_to("reply".to_owned());
        sent.set_reply_to_session_id("reply session".to_owned())?;
        sent.set_partition_key("key".to_owned())?;
        sent.set_time_to_live(Duration::from_secs(300))?;
        let mut properties = ApplicationProperties::default();
        properties.insert("text".into(), "x".into());
        properties.insert("int".into(), 7_i32.into());
        properties.insert("float".into(), 1.5_f64.into());
        properties.insert("yes".into(), true.into());
        properties.insert("none".into(), SimpleValue::Null);
        *sent.application_properties_mut() = Some(properties.clone());
        send(&mut client, "plain", [sent]).await?;

        let mut queue = receiver(&mut client, "plain").await?;
        let got = receive(&mut queue).await?;
        equal((got.subject(), got.correlation_id().as_deref()), (Some("subject"), Some("correlation")))?;
        equal((got.content_type(), got.to(), got.reply_to()), (Some("text/plain"), Some("to"), Some("reply")))?;
        equal((got.reply_to_session_id(), got.partition_key()), (Some("reply session"), Some("key")))?;
        equal(got.time_to_live(), Some(Duration::from_secs(300)))?;
        let came = got.application_properties().ok_or("the properties are gone")?;
        equal(came.len(), properties.len())?;
        for (name, value) in properties.iter() {
            equal(came.get(name), Some(value))?;
        }
        holds(got.enqueued_time() <= utc(1.0) && got.enqueued_time() > utc(-60.0), || got.enqueued_time().to_string())?;
        holds(got.sequence_number() > 0 && got.enqueued_sequence_number() > 0, || "no sequence number".into())?;
        queue.complete_message(&got).await?;
        Ok(queue.dispose().await?)
    });

    suite.scenario("a list is sent as a batch, in order", async || -> Outcome {
        let mut client = client().await?;
        let expected: Vec<_> = (0..50).map(|n| n.to_string()).collect();
        let messages = expected.iter().map(|n| named(n.as_str(), n)).collect::<Result<Vec<_>, _>>()?;
        send(&mut client, "plain", messages).await?;
        let mut queue = receiver(&mut client, "plain").await?;
        let got = receive_some(&mut queue, 50, Duration::from_secs(20)).await?;
        equal(texts(&got)?, expected)?;
        for message in &got {
            queue.complete_message(message).await?;
        }
        empty(&mut queue).await
    });

    suite.scenario("a batch object takes what fits", async || -> Outcome {
        let mut client = client().await?;
        let mut sender = sender(&mut client, "plain").await?;
        // Less than the broker takes, because the batch does not count the bytes around its messages (see `traits`).
        let options = CreateMessageBatchOptions { max_size_in_bytes: Some(1_000_000) };
        let mut batch = sender.create_message_batch(options)?;
        let mut count = 0;
        while count < 5_000 && batch.try_add_message("x".repeat(1_000)).is_ok() {
            count += 1;
        }
        holds(count > 100, || format!("only {count} messages in {} bytes", batch.max_size_in_bytes()))?;
        sender.send_message_batch(batch).await?;
        let mut queue = client.create_receiver_for_queue("plain", deleting(200)).await?;
        receive_some(&mut queue, count, Duration::from_secs(30)).await?;
        empty(&mut queue).await
    });

    suite.scenario("a large message over many frames", async || -> Outcome {
        let mut client = client().await?;
        let large: Vec<u8> = (0..5_000_000_u32).map(|n| (n % 251) as u8).collect();
        send(&mut client, "large", [large.clone()]).await?;
        let mut queue = receiver(&mut client, "large").await?;
        let got = queue.receive_message_with_max_wait_time(Duration::from_secs(20)).await?.ok_or("no message came")?;
        holds(got.body()? == large, || format!("{} other bytes came", got.body().map_or(0, <[u8]>::len)))?;
        queue.complete_message(&got).await?;
        Ok(queue.dispose().await?)
    });

    suite.scenario("a message that is too large is refused, and the sender goes on", async || -> Outcome {
        let mut client = impatient().await?;
        let mut small = sender(&mut client, "small").await?;
        refused(small.send_message("x".repeat(5_000)).await, "MessageSizeExceeded")?;
        small.send_message("x".repeat(100)).await?;
        let mut queue = receiver(&mut client, "small").await?;
        let got = receive(&mut queue).await?;
        equal(got.body()?.len(), 100)?;
        queue.complete_message(&got).await?;
        empty(&mut queue).await
    });

    suite.scenario("peek goes on where it was, and from a number", async || -> Outcome {
        let mut client = client().await?;
        send(&mut client, "plain", (0..5).map(|n| message(n.to_string()))).await?;
        let mut queue = receiver(&mut client, "plain").await?;
        let mut numbers = Vec::new();
        for (many, expected) in [(2, "01"), (9, "234")] {
            let seen = queue.peek_messages(many, None).await?;
            let bodies =
                seen.iter().map(|message| message.body().map(<[u8]>::to_vec)).collect::<Result<Vec<_>, _>>()?;
            equal(String::from_utf8(bodies.concat())?.as_str(), expected)?;
            numbers.extend(seen.iter().map(|message| message.sequence_number()));
            equal(seen.iter().all(|message| message.state() == ServiceBusMessageState::Active), true)?;
        }
        let again = queue.peek_message(Some(numbers[3])).await?.ok_or("nothing is there")?;
        equal(again.body()?, b"3")?;
        for message in receive_some(&mut queue, 5, Duration::from_secs(10)).await? {
            queue.complete_message(&message).await?;
        }
        empty(&mut queue).await
    });

    suite.scenario("receive and delete", async || -> Outcome {
        let mut client = client().await?;
        send(&mut client, "plain", (0..30).map(|n| message(n.to_string()))).await?;
        let mut queue = client.create_receiver_for_queue("plain", deleting(0)).await?;
        receive_some(&mut queue, 30, Duration::from_secs(10)).await?;
        empty(&mut queue).await
    });

    suite.scenario("receive with prefetch", async || -> Outcome {
        let mut client = client().await?;
        send(&mut client, "plain", (0..100).map(|n| message(n.to_string()))).await?;
        let options = ServiceBusReceiverOptions { prefetch_count: 20, ..Default::default() };
        let mut queue = client.create_receiver_for_queue("plain", options).await?;
        let mut count = 0;
        while count < 100 {
            let got = queue.receive_messages(10).await?;
            for message in &got {
                queue.complete_message(message).await?;
            }
            count += got.len();
        }
        equal(count, 100)?;
        empty(&mut queue).await
    });

    suite.scenario("an empty receive ends in time, and the link goes on", async || -> Outcome {
        let mut client = client().await?;
        let mut queue = receiver(&mut client, "plain").await?;
        let began = Instant::now();
        equal(queue.receive_messages_with_max_wait_time(10, Duration::from_secs(1)).await?.len(), 0)?;
        holds(began.elapsed() >= Duration::from_secs(1), || format!("it ended after {:?}", began.elapsed()))?;
        send(&mut client, "plain", ["after"]).await?;
        let got = receive(&mut queue).await?;
        equal(text(&got)?.as_str(), "after")?;
        queue.complete_message(&got).await?;
        Ok(queue.dispose().await?)
    });

    suite.scenario("receives that are cut short leave nothing locked behind (A86)", async || -> Outcome {
        let mut sending = client().await?;
        let mut sender = sender(&mut sending, "plain").await?;
        let trickle = async {
            for n in 0..300 {
                sender.send_message(n.to_string()).await?;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Outcome::Ok(())
        };
        let mut receiving = client().await?;
        let mut queue = receiver(&mut receiving, "plain").await?;
        let poll = async {
            let (mut got, until) = (Vec::new(), Instant::now() + Duration::from_secs(40));
            while got.len() < 300 && Instant::now() < until {
                for message in queue.receive_messages_with_max_wait_time(3, Duration::from_millis(1)).await? {
                    equal(message.delivery_count(), Some(1))?;
                    got.push(text(&message)?);
                    queue.complete_message(&message).await?;
                }
            }
            Outcome::Ok(got)
        };
        // Two clients on one thread; neither call is given up.
        let (sent, got) = tokio::join!(trickle, poll);
        sent?;
        equal(got?, (0..300).map(|n| n.to_string()).collect::<Vec<_>>())?;
        empty(&mut queue).await
    });

    suite.scenario("time to live: of the message, and of the queue into the dead letters", async || -> Outcome {
        let mut client = client().await?;
        let mut brief = message("brief");
        brief.set_time_to_live(Duration::from_millis(200))?;
        send(&mut client, "plain", [brief]).await?;
        tokio::time::sleep(Duration::from_millis(600)).await;
        let mut queue = receiver(&mut client, "plain").await?;
        nothing_comes(&mut queue).await?;
        send(&mut client, "mortal", ["expires"]).await?;
        let mut dead = crate::broker::dead_letters(&mut client, "mortal").await?;
        let letter = receive(&mut dead).await?;
        equal(letter.dead_letter_reason(), Some("TTLExpiredException"))?;
        dead.complete_message(&letter).await?;
        Ok(dead.dispose().await?)
    });

    suite.scenario("duplicates are dropped", async || -> Outcome {
        let mut client = client().await?;
        let mut sender = sender(&mut client, "unique").await?;
        for _ in 0..3 {
            sender.send_message(named("once", "the same")?).await?;
        }
        sender.send_messages([named("once", "the same")?, named("other", "another")?]).await?;
        let mut queue = receiver(&mut client, "unique").await?;
        let got = receive_some(&mut queue, 2, Duration::from_secs(10)).await?;
        equal(texts(&got)?, ["once", "other"])?;
        nothing_comes(&mut queue).await?;
        for message in &got {
            queue.complete_message(message).await?;
        }
        empty(&mut queue).await
    });

    suite.scenario("forwarding", async || -> Outcome {
        let mut client = client().await?;
        send(&mut client, "forwarding", ["passed on"]).await?;
        let mut queue = receiver(&mut client, "plain").await?;
        let got = receive(&mut queue).await?;
        equal(text(&got)?.as_str(), "passed on")?;
        queue.complete_message(&got).await?;
        Ok(queue.dispose().await?)
    });

    suite.scenario("what is not there, and what may not be", async || -> Outcome {
        // One client for each: after a create that failed, it is not to be used (docs/azure-sdk.md).
        let missing = impatient().await?.create_sender("no such queue", Default::default()).await;
        refused(missing, "NotFound")?;
        let missing = impatient().await?.create_receiver_for_queue("no such queue", Default::default()).await;
        refused(missing, "NotFound")?;
        // A session entity is not received from without a session, nor sent to without one.
        let without = impatient().await?.create_receiver_for_queue("sessions", Default::default()).await;
        refused(without, "RemoteClosedWithError")?;
        let mut client = impatient().await?;
        refused(send(&mut client, "sessions", ["no session"]).await, "Rejected")
    });

    suite.scenario("transfer dead letters are there and empty", async || -> Outcome {
        let mut client = client().await?;
        let options = ServiceBusReceiverOptions { sub_queue: SubQueue::TransferDeadLetter, ..Default::default() };
        let mut transfer = client.create_receiver_for_queue("plain", options).await?;
        nothing_comes(&mut transfer).await?;
        empty(&mut transfer).await
    });
}
