//! Messages for later.

use std::time::Duration;

use azservicebus::ServiceBusMessageState;
use tokio::time::Instant;

use crate::{
    broker::{client, empty, impatient, message, receive, receiver, sender, text, utc},
    scenario::{Outcome, Suite, equal, holds, refused},
};

pub(crate) fn run(suite: &mut Suite) {
    suite.scenario("schedule, peek as scheduled, receive when it is due", async || -> Outcome {
        let mut client = client().await?;
        let mut queue = receiver(&mut client, "plain").await?;
        let (began, due) = (Instant::now(), utc(2.0));
        let mut sender = sender(&mut client, "plain").await?;
        let number = sender.schedule_message("due", due).await?;
        let seen = queue.peek_message(Some(1)).await?.ok_or("nothing is seen")?;
        equal((seen.state(), seen.sequence_number()), (ServiceBusMessageState::Scheduled, number))?;
        let got = receive(&mut queue).await?;
        holds(began.elapsed() > Duration::from_millis(1_500), || format!("it came after {:?}", began.elapsed()))?;
        equal((text(&got)?.as_str(), got.state()), ("due", ServiceBusMessageState::Active))?;
        equal(got.enqueued_sequence_number(), number)?;
        queue.complete_message(&got).await?;
        Ok(queue.dispose().await?)
    });

    suite.scenario("schedule by the message's own property, several at once, and cancel", async || -> Outcome {
        let mut client = client().await?;
        let mut sender = sender(&mut client, "plain").await?;
        let mut own = message("own");
        own.set_scheduled_enqueue_time(utc(60.0));
        sender.send_message(own).await?;
        let numbers = sender.schedule_messages([message("a"), message("b")], utc(60.0)).await?;
        let mut queue = receiver(&mut client, "plain").await?;
        let seen = queue.peek_messages(5, Some(1)).await?;
        let bodies = seen.iter().map(|message| message.body().map(<[u8]>::to_vec)).collect::<Result<Vec<_>, _>>()?;
        equal(bodies, [b"own".to_vec(), b"a".to_vec(), b"b".to_vec()])?;
        sender.cancel_scheduled_messages(numbers.clone()).await?;
        sender.cancel_scheduled_message(seen[0].sequence_number()).await?;
        let mut impatient = impatient().await?;
        let mut other = crate::broker::sender(&mut impatient, "plain").await?;
        refused(other.cancel_scheduled_message(numbers[0]).await, "404")?;
        empty(&mut queue).await
    });
}
