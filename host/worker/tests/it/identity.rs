//! Which deliveries are the same message, and which are not.

use sprag_core::{message::Message, outcome::Outcome, run::End};

use crate::world::{Bench, Setup, World, event, fails, on_every_bench, until};

on_every_bench! {
    one_id_is_one_message_whatever_it_looks_like
    unusable_ids_are_never_duplicates
    a_duplicate_behind_a_block_is_skipped_and_not_parked
    the_same_event_under_two_ids_is_two_messages
}

fn with_id(id: Option<&str>) -> Message {
    Message { message_id: id.map(Into::into), ..plain() }
}

fn plain() -> Message {
    let mut message = event("s", "E");
    message.properties.remove("EventId");
    message
}

/// A19: the all-zero id is an id like any other: three times, one run, two duplicates.
async fn one_id_is_one_message_whatever_it_looks_like(bench: Bench) {
    const ZERO: &str = "00000000-0000-0000-0000-000000000000";
    let world = World::start(bench, Setup::default(), |_, _| End::Done).await;
    world.send(vec![with_id(Some(ZERO)); 3]).await;
    until("two duplicates", async || world.count(|counters| &counters.duplicates) == 2).await;
    assert_eq!(world.script.began(), [ZERO]);
    let row = world.row(ZERO).await.expect("it is known");
    assert_eq!((row.outcome.outcome, row.duplicates), (Outcome::Completed, 2));
    world.until_idle().await;
    world.end().await;
}

/// A19: a missing, blank or overlong id tells nothing apart: all of them run, and each is counted.
async fn unusable_ids_are_never_duplicates(bench: Bench) {
    let world = World::start(bench, Setup::default(), |_, _| End::Done).await;
    let long = "x".repeat(513);
    let ids = [None, Some("   "), Some(long.as_str())];
    for id in ids {
        world.send(vec![with_id(id); 2]).await;
    }
    until("all six ran", async || world.count(|counters| &counters.completed) == 6).await;
    world.until_idle().await;
    assert_eq!(world.count(|counters| &counters.bypasses), 6);
    assert_eq!(world.count(|counters| &counters.duplicates), 0);
    world.end().await;
}

/// 5, P8: what is done already is skipped at once, also while another event blocks the session.
async fn a_duplicate_behind_a_block_is_skipped_and_not_parked(bench: Bench) {
    let world =
        World::start(
            bench,
            Setup::default(),
            |input, _| if input.event_id.as_str() == "E2" { fails("no") } else { End::Done },
        )
        .await;
    world.send_events("s", &["E1", "E2", "E1", "E3"]).await;
    world.until_outcome("E3", Outcome::Deferred).await;
    assert_eq!(world.count(|counters| &counters.duplicates), 1);
    assert_eq!(world.state("s").await.parked, 1, "only E3 is parked");
    assert_eq!(world.outcome("E1").await, Some(Outcome::Completed));
    assert_eq!(world.script.began(), ["E1", "E2"]);
    world.end().await;
}

/// Spec 4: the key is the message id; an event sent again under another id runs again.
async fn the_same_event_under_two_ids_is_two_messages(bench: Bench) {
    let world = World::start(bench, Setup::default(), |_, _| End::Done).await;
    let second = Message { message_id: Some("other".into()), ..event("s", "E1") };
    world.send(vec![event("s", "E1"), second]).await;
    until("both ran", async || world.script.runs_of("E1") == 2).await;
    world.until_idle().await;
    world.end().await;
}
