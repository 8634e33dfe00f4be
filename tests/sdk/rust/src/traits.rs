//! What is this client's way, not the broker's. Each stands in docs/azure-sdk.md with what to do about it; when one of these fails, a new
//! version of the client is better (or worse) than the text says.

use std::time::Duration;

use azservicebus::{CreateMessageBatchOptions, ServiceBusMessage};

use crate::{
    broker::{
        client, deleting, empty, impatient, in_session, message, nothing_comes, receive, receive_in, receiver, send,
        session, text,
    },
    scenario::{Outcome, Suite, equal, holds, refused},
};

pub(crate) fn run(suite: &mut Suite) {
    suite.scenario(
        "its way: a batch object that is full is too large, because it does not count what is around its messages",
        async || -> Outcome {
            let mut client = impatient().await?;
            let mut sender = crate::broker::sender(&mut client, "plain").await?;
            let mut batch = sender.create_message_batch(CreateMessageBatchOptions::default())?;
            while batch.try_add_message("x".repeat(1_000)).is_ok() {}
            refused(sender.send_message_batch(batch).await, "MessageSizeExceeded")?;
            sender.send_message("and the sender goes on").await?;
            let mut queue = receiver(&mut client, "plain").await?;
            let got = receive(&mut queue).await?;
            queue.complete_message(&got).await?;
            empty(&mut queue).await
        },
    );

    suite.scenario(
        "its way: a deferred message that is received and deleted is lost, because it looks for a lock in the answer",
        async || -> Outcome {
            let mut client = impatient().await?;
            send(&mut client, "plain", ["once"]).await?;
            let mut queue = receiver(&mut client, "plain").await?;
            let got = receive(&mut queue).await?;
            queue.defer_message(&got, None).await?;
            nothing_comes(&mut queue).await?;
            let mut deleting = client.create_receiver_for_queue("plain", deleting(0)).await?;
            refused(deleting.receive_deferred_message(got.sequence_number()).await, "Decode")?;
            empty(&mut queue).await
        },
    );

    suite.scenario(
        "its way: a lock that lapsed is completed without a word, and only a renewal tells",
        async || -> Outcome {
            let mut client = impatient().await?;
            send(&mut client, "brief", ["slow"]).await?;
            let mut queue = receiver(&mut client, "brief").await?;
            let mut got = receive(&mut queue).await?;
            tokio::time::sleep(Duration::from_millis(2_500)).await;
            refused(queue.renew_message_lock(&mut got).await, "410")?;
            queue.complete_message(&got).await?;
            let again = receive(&mut queue).await?;
            equal((text(&again)?.as_str(), again.delivery_count()), ("slow", Some(2)))?;
            queue.complete_message(&again).await?;
            empty(&mut queue).await
        },
    );

    suite.scenario(
        "its way: a session that was lost is completed in without a word, and only a renewal tells",
        async || -> Outcome {
            let mut one = impatient().await?;
            send(&mut one, "brief-sessions", [in_session("x", "L")?]).await?;
            let mut first = session(&mut one, "brief-sessions", "L").await?;
            let got = receive_in(&mut first).await?;
            tokio::time::sleep(Duration::from_millis(2_500)).await;
            let mut other = client().await?;
            let mut second = session(&mut other, "brief-sessions", "L").await?;
            refused(first.renew_session_lock().await, "410")?;
            first.complete_message(&got).await?;
            let again = receive_in(&mut second).await?;
            equal(text(&again)?.as_str(), "x")?;
            second.complete_message(&again).await?;
            Ok(second.dispose().await?)
        },
    );

    suite.scenario(
        "its way: the state of a session that has none cannot be read, and the link goes on",
        async || -> Outcome {
            let mut client = impatient().await?;
            send(&mut client, "sessions", [in_session("x", "new")?]).await?;
            let mut held = session(&mut client, "sessions", "new").await?;
            // The broker answers null, as Azure does.
            refused(held.session_state().await, "Decode")?;
            held.set_session_state(b"set".to_vec()).await?;
            equal(held.session_state().await?, b"set")?;
            held.set_session_state(Vec::new()).await?;
            let got = receive_in(&mut held).await?;
            held.complete_message(&got).await?;
            Ok(held.dispose().await?)
        },
    );

    suite.scenario(
        "its way: a message id is at most 128 bytes, and says so before it is sent (A86)",
        async || -> Outcome {
            let mut long = message("x");
            refused(long.set_message_id("é".repeat(65)), "128")?;
            long.set_message_id("é".repeat(64))?;
            let mut client = client().await?;
            send(&mut client, "plain", [long]).await?;
            let mut queue = receiver(&mut client, "plain").await?;
            let got = receive(&mut queue).await?;
            equal(got.message_id().as_deref(), Some("é".repeat(64).as_str()))?;
            queue.complete_message(&got).await?;
            Ok(queue.dispose().await?)
        },
    );

    suite.scenario("its way: message ids that are no text are read as text (A86)", async || -> Outcome {
        use fe2o3_amqp_types::{
            messaging::{Message, MessageId, Properties},
            primitives::{Binary, Uuid},
        };
        let mut client = client().await?;
        let mut queue = receiver(&mut client, "plain").await?;
        for (id, shown) in [
            (MessageId::Ulong(1), "1"),
            (MessageId::String("1".into()), "1"),
            (MessageId::Uuid(Uuid::from([7; 16])), "07070707-0707-0707-0707-070707070707"),
            (MessageId::Binary(Binary::from(b"ab".to_vec())), "6162"),
        ] {
            let properties = Properties::builder().message_id(id).build();
            let raw = Message::builder().properties(properties).data(Binary::from(b"x".to_vec())).build();
            let sent = ServiceBusMessage::from_raw_amqp_message(raw);
            send(&mut client, "plain", [sent]).await?;
            let got = receive(&mut queue).await?;
            let read = got.message_id().map(|id| id.to_lowercase());
            holds(read.as_deref() == Some(shown), || format!("{read:?} instead of {shown}"))?;
            queue.complete_message(&got).await?;
        }
        empty(&mut queue).await
    });
}
