//! Messages that become visible later (A46, A47).

use std::time::Duration;

use sprag_core::{ids::SequenceNumber, message::Message};
use tokio::time::Instant;

use super::{Bench, entity, id_of, message, next, nothing_next, peeked_ids};
use crate::{Error, Part};

impl Bench {
    fn later(&self, delay: Duration, message: Message) -> Message {
        Message { scheduled_for: Some((self.now)().after(delay)), ..message }
    }
}

const DELAY: Duration = Duration::from_millis(250);
const TOMORROW: Duration = Duration::from_secs(86_400);

/// Not before its time, and then without anybody asking; one whose time has passed comes at once.
pub async fn a_scheduled_message_comes_at_its_time(bench: &Bench) {
    let begun = Instant::now();
    let soon = bench.later(DELAY, message(None, "soon"));
    let past = Message { scheduled_for: Some((bench.now)().before(DELAY)), ..message(None, "past") };
    bench.transport.send(&entity("plain"), vec![soon, past]).await.expect("they are taken");
    assert_eq!(id_of(&bench.take("plain").await), "past");
    bench.nothing_to_take("plain").await;
    let delivery = bench.take("plain").await;
    let elapsed = begun.elapsed();
    assert_eq!(id_of(&delivery), "soon");
    assert!(
        elapsed >= DELAY - Duration::from_millis(20) && elapsed < DELAY + Duration::from_secs(2),
        "after {elapsed:?}"
    );
}

pub async fn a_scheduled_message_wakes_its_session(bench: &Bench) {
    let begun = Instant::now();
    bench
        .transport
        .enqueue(&entity("sessions"), bench.later(DELAY, message(Some("s"), "retry")))
        .await
        .expect("it is taken");
    let session = bench.named("sessions", "s").await;
    nothing_next(&*session).await;
    super::release(&*session).await;
    let session = bench.offered("sessions").await;
    assert!(begun.elapsed() >= DELAY - Duration::from_millis(20), "after {:?}", begun.elapsed());
    assert_eq!(id_of(&next(&*session).await), "retry");
}

/// A46: whoever has forgotten the numbers finds them again.
pub async fn scheduled_messages_can_be_found_and_cancelled(bench: &Bench) {
    let messages = ["1", "2", "3"].map(|id| bench.later(TOMORROW, message(Some("s"), id))).to_vec();
    let numbers = bench.transport.send(&entity("sessions"), messages.clone()).await.expect("they are taken");
    let found = bench.peek("sessions", Part::Scheduled).await;
    assert_eq!(found.iter().map(|it| it.sequence).collect::<Vec<_>>(), numbers);
    assert_eq!(found.iter().map(|it| it.message.clone()).collect::<Vec<_>>(), messages, "with their time");
    assert!(found.iter().all(|it| it.part == Part::Scheduled));
    assert_eq!(bench.transport.describe(&entity("sessions")).await.expect("it is there").scheduled, 3);
    bench.transport.cancel_scheduled(&entity("sessions"), found[1].sequence).await.expect("it is cancelled");
    assert_eq!(peeked_ids(&bench.peek("sessions", Part::Scheduled).await), ["1", "3"]);
    bench.nothing_offered("sessions").await;
}

/// A47: the error repeats the number given, and a message that is not scheduled is not taken away.
pub async fn cancelling_a_wrong_number_names_it(bench: &Bench) {
    let active = bench.numbered("plain", &["m"]).await[0];
    let scheduled = bench
        .transport
        .send(&entity("plain"), vec![bench.later(TOMORROW, message(None, "gone"))])
        .await
        .expect("taken")[0];
    bench.transport.cancel_scheduled(&entity("plain"), scheduled).await.expect("it is cancelled");
    for number in [10_696_049_115_006_452, 1_000_001, -1, active.0, scheduled.0] {
        match bench.transport.cancel_scheduled(&entity("plain"), SequenceNumber(number)).await {
            Err(Error::NoSuchScheduled(named, place)) => assert_eq!((named.0, place), (number, entity("plain"))),
            other => panic!("{number}: {other:?}"),
        }
    }
    assert_eq!(id_of(&bench.take("plain").await), "m");
}

/// P11: resolving an event cancels its retry by id.
pub async fn cancelling_by_id(bench: &Bench) {
    let sessions = entity("sessions");
    bench.transport.enqueue(&sessions, bench.later(TOMORROW, message(Some("s"), "retry"))).await.expect("it is taken");
    bench
        .transport
        .enqueue(&sessions, bench.later(TOMORROW, message(Some("s"), "retry-2")))
        .await
        .expect("it is taken");
    assert!(bench.transport.cancel_scheduled_id(&sessions, &"retry".into()).await.expect("an answer"));
    assert!(!bench.transport.cancel_scheduled_id(&sessions, &"retry".into()).await.expect("an answer"));
    assert_eq!(peeked_ids(&bench.peek("sessions", Part::Scheduled).await), ["retry-2"]);
    bench.send("sessions", Some("s"), &["active"]).await;
    assert!(
        !bench.transport.cancel_scheduled_id(&sessions, &"active".into()).await.expect("an answer"),
        "it is not scheduled"
    );
    assert_eq!(bench.peek("sessions", Part::Active).await.len(), 1);
}
