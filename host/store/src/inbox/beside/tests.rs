//! Every point at which the two writes can part.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use sprag_core::outcome::Outcome;

use super::*;
use crate::{
    conformance::sample,
    inbox::InboxOf,
    memory::{Call, MemoryStore},
};

/// An inbox that takes so many more records and then fails, as if cut off.
#[derive(Default)]
struct Cut {
    recorded: Mutex<BTreeSet<(EndpointName, MessageId)>>,
    left: AtomicUsize,
    calls: AtomicUsize,
}

impl Cut {
    fn ids(&self) -> Vec<String> {
        self.recorded.lock().iter().map(|(_, id)| id.to_string()).collect()
    }
}

#[async_trait]
impl Inbox for Cut {
    async fn recorded(&self, asked: &[(EndpointName, MessageId)]) -> Result<Vec<bool>, Error> {
        let recorded = self.recorded.lock();
        Ok(asked.iter().map(|key| recorded.contains(key)).collect())
    }

    async fn record(&self, endpoint: &EndpointName, ids: &[MessageId]) -> Result<(), Error> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        for id in ids {
            let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            // What a store would say of a run's own conflict must not be said of a record.
            taken.map_err(|_| Error::StateConflict)?;
            self.recorded.lock().insert((endpoint.clone(), id.clone()));
        }
        Ok(())
    }

    async fn purge(&self, _: &EndpointName, _: Timestamp, _: u32) -> Result<u32, Error> {
        Ok(0)
    }

    async fn list(&self, _: &query::InboxFilter, _: &Page) -> Result<Listing<query::InboxRow>, Error> {
        Ok(Listing { items: Vec::new(), next: None })
    }
}

struct World {
    store: Arc<MemoryStore>,
    inbox: Arc<Cut>,
    beside: Arc<dyn Store>,
}

fn world(records: usize) -> World {
    let (store, inbox) = (Arc::new(MemoryStore::new()), Arc::new(Cut::default()));
    inbox.left.store(records, Ordering::Relaxed);
    let beside = Arc::new(InboxBeside::new(store.clone(), inbox.clone()));
    World { store, inbox, beside }
}

impl World {
    fn mend(&self) {
        self.inbox.left.store(usize::MAX, Ordering::Relaxed);
    }

    async fn write(&self, write: StoreWrite) -> Result<Written, Error> {
        self.beside.write(&sample::endpoint(), write).await
    }

    async fn ask(&self, own: &str, source: Option<&str>) -> Result<Answer, Error> {
        let (endpoint, own, source) = (sample::endpoint(), MessageId::from(own), source.map(MessageId::from));
        let event_id = EventId::from("event");
        let question = Question {
            endpoint: &endpoint,
            message_id: Some(&own),
            source_id: source.as_ref(),
            event_id: &event_id,
            inbox: true,
            outcome: true,
        };
        self.beside.check(question).await
    }

    async fn value(&self) -> Option<bytes::Bytes> {
        sample::value(&self.beside, "k").await
    }
}

fn success(value: &str) -> StoreWrite {
    StoreWrite {
        decision: Some(sample::decision("own", Outcome::Completed)),
        outcome: Some(sample::outcome("event", Outcome::Completed)),
        unit: sample::unit("k", value, "out"),
        ..sample::record(&["source", "own"])
    }
}

/// P1, P35: cut before the store's write, between the writes, between two records, and after both. What a redelivery finds leads to the same end.
#[tokio::test]
async fn a_crash_at_any_point_is_mended_by_the_redelivery() {
    for (records, found) in [(0, &[][..]), (1, &["source"]), (2, &["own", "source"])] {
        let world = world(records);
        let written = world.write(success("1")).await;
        assert_eq!(written.is_ok(), records == 2, "{records}: {written:?}");
        assert_eq!(world.inbox.ids(), found, "the source id first (seed 000)");
        assert_eq!(world.value().await, sample::text("1"), "the unit of work is there before the record");

        // While the inbox cannot be written, there is no answer: the delivery waits.
        if records < 2 {
            let asked = world.ask("own", Some("source")).await;
            assert!(matches!(asked, Err(Error::Unavailable(_))), "{records}: {asked:?}");
        }
        world.mend();
        let answer = world.ask("own", Some("source")).await.unwrap();
        assert!(answer.own_recorded && answer.source_recorded, "{records}");
        assert_eq!(answer.decision, Some(sample::decision("own", Outcome::Completed)), "as it was made");
        assert_eq!(world.inbox.ids(), ["own", "source"]);

        world.beside.decision_done(&sample::endpoint(), &"own".into()).await.unwrap();
        let answer = world.ask("own", None).await.unwrap();
        assert!(answer.own_recorded && answer.decision.is_none(), "a second copy is a duplicate");
        let answer = world.ask("another retry", Some("source")).await.unwrap();
        assert!(answer.source_recorded && !answer.own_recorded);
    }

    let world = world(usize::MAX);
    world.store.faults().fail(Call::Write, 1, Error::Unavailable("planned".into()));
    assert!(world.write(success("1")).await.is_err());
    assert_eq!(world.inbox.ids(), [""; 0], "no record without its unit of work");
    assert_eq!(world.ask("own", Some("source")).await.unwrap(), Answer::default());
}

/// Ids that the redelivery does not name itself are recorded too: the source of the block that a resubmission resolved.
#[tokio::test]
async fn every_id_is_recorded_not_only_those_that_are_asked_about() {
    let world = world(0);
    let success = StoreWrite { record: vec!["blocked source".into(), "own".into()], ..success("1") };
    assert!(world.write(success).await.is_err());
    world.mend();
    world.ask("own", None).await.unwrap();
    assert_eq!(world.inbox.ids(), ["blocked source", "own"]);
}

/// A failed record is not one of the run's failures: a conflict would be repeated under the same lock (P4).
#[tokio::test]
async fn a_failed_record_is_not_available_whatever_the_inbox_says() {
    let world = world(0);
    let written = world.write(success("1")).await;
    assert!(matches!(&written, Err(Error::Unavailable(text)) if text.contains("inbox")), "{written:?}");
    world.store.faults().fail(Call::Write, 1, Error::StateConflict);
    let conflict = StoreWrite { decision: Some(sample::decision("b", Outcome::Completed)), ..sample::record(&["b"]) };
    let written = world.write(conflict).await;
    assert!(matches!(written, Err(Error::StateConflict)), "the store's own is the run's: {written:?}");
}

/// P1: the first decision wins. What the loser had to record is dropped, and what the winner had to is made sure of, whoever goes on with it.
#[tokio::test]
async fn the_loser_records_what_the_winner_had_to() {
    // The same decision again, after the first holder died before its record.
    let world = world(0);
    assert!(world.write(success("1")).await.is_err());
    world.mend();
    assert_eq!(world.write(success("2")).await.unwrap(), Written::AlreadyDecided);
    assert_eq!(world.value().await, sample::text("1"));
    assert_eq!(world.inbox.ids(), ["own", "source"]);

    // A late success behind a failure records nothing: the retry of the failure would be a duplicate.
    let world = self::world(usize::MAX);
    let failure = StoreWrite {
        decision: Some(sample::decision("own", Outcome::Failed)),
        outcome: Some(sample::outcome("event", Outcome::Failed)),
        ..StoreWrite::default()
    };
    assert_eq!(world.write(failure).await.unwrap(), Written::Done);
    assert_eq!(world.write(success("1")).await.unwrap(), Written::AlreadyDecided);
    assert_eq!(world.inbox.ids(), [""; 0]);
    assert_eq!(world.value().await, None);
    let answer = world.ask("own", Some("source")).await.unwrap();
    assert_eq!((answer.own_recorded, answer.source_recorded), (false, false));

    // A late failure behind a success whose record is missing.
    let world = self::world(0);
    assert!(world.write(success("1")).await.is_err());
    world.mend();
    let late = StoreWrite { decision: Some(sample::decision("own", Outcome::Failed)), ..sample::record(&["own"]) };
    assert_eq!(world.write(late).await.unwrap(), Written::AlreadyDecided);
    assert_eq!(world.inbox.ids(), ["own", "source"]);
}

/// Without a decision there is nothing to mend by; the record comes after the write all the same.
#[tokio::test]
async fn a_write_without_a_decision_records_last() {
    let world = world(0);
    let plain = StoreWrite { unit: sample::unit("k", "1", "out"), ..sample::record(&["m"]) };
    assert!(world.write(plain.clone()).await.is_err());
    assert_eq!(world.value().await, sample::text("1"));
    world.mend();
    assert!(!world.ask("m", None).await.unwrap().own_recorded, "lost: the message runs again");
    assert_eq!(world.write(plain).await.unwrap(), Written::Done);
    assert!(world.ask("m", None).await.unwrap().own_recorded);
}

/// The price of mending is paid by redeliveries that need it.
#[tokio::test]
async fn an_inbox_that_knows_is_not_written_again() {
    let world = world(usize::MAX);
    world.write(success("1")).await.unwrap();
    let calls = || world.inbox.calls.load(Ordering::Relaxed);
    assert_eq!(calls(), 1);
    world.ask("own", Some("source")).await.unwrap();
    assert_eq!(calls(), 1, "both are known to be there");
    world.ask("own", None).await.unwrap();
    assert_eq!(calls(), 2, "the source was not asked about");
    let history = StoreWrite {
        history: Some(sample::line("event", sprag_core::effect::HistoryKind::Duplicate)),
        ..StoreWrite::default()
    };
    world.write(history).await.unwrap();
    assert_eq!(calls(), 2, "nothing to record");
}

/// Spec 4: a failure of either place is never an answer, and with the inbox off it is not asked.
#[tokio::test]
async fn a_failure_of_either_place_is_no_answer() {
    let (store, other) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
    let beside: Arc<dyn Store> = Arc::new(InboxBeside::new(store.clone(), Arc::new(InboxOf::new(other.clone()))));
    let endpoint = sample::endpoint();
    let (id, event_id) = (MessageId::from("m"), EventId::from("m"));
    let question = |inbox| Question {
        endpoint: &endpoint,
        message_id: Some(&id),
        source_id: None,
        event_id: &event_id,
        inbox,
        outcome: true,
    };
    for (down, inbox, answers) in
        [(&store, true, false), (&other, true, false), (&store, false, false), (&other, false, true)]
    {
        down.faults().outage(Some(Error::Unavailable("down".into())));
        assert_eq!(beside.check(question(inbox)).await.is_ok(), answers);
        down.faults().outage(None);
    }
    assert!(beside.sql().is_none(), "P35");
    beside.write(&endpoint, StoreWrite { finals: vec!["m".into()], ..sample::record(&["m"]) }).await.unwrap();
    let rows =
        async |of: &Arc<MemoryStore>| of.inbox(&Default::default(), &Default::default()).await.unwrap().items.len();
    assert_eq!((rows(&store).await, rows(&other).await), (0, 1));
    assert!(beside.check(question(true)).await.unwrap().is_final);
    assert_eq!(beside.inbox(&Default::default(), &Default::default()).await.unwrap().items.len(), 1);
    assert_eq!(beside.purge_inbox(&endpoint, Timestamp(i64::MAX / 2), 10).await.unwrap(), 1);
    assert_eq!(rows(&other).await, 0);
}

async fn fresh() -> (Arc<InboxBeside>, ()) {
    let inbox = InboxOf::new(Arc::new(MemoryStore::new()));
    (Arc::new(InboxBeside::new(Arc::new(MemoryStore::new()), Arc::new(inbox))), ())
}

mod as_a_store {
    use super::fresh;

    // All that a store promises and that has to do with records, but for an existing record that drops a unit of work: that needs one transaction.
    crate::store_conformance!(@rules fresh, (start_paused = true),
        writes::all_parts_of_a_write_are_there_together
        writes::a_fresh_delivery_is_unknown
        writes::recording_again_keeps_the_first_time
        writes::with_the_inbox_off_records_are_not_asked
        writes::the_first_decision_wins
        writes::concurrent_decisions_have_one_winner
        writes::a_late_success_cannot_record_what_failed_first
        writes::a_decision_that_is_done_is_forgotten
        writes::final_ids_are_found_by_own_and_source_id
        writes::a_dropped_caller_does_not_stop_a_write
        identity::odd_characters_are_kept_apart
        identity::case_and_trailing_space_matter
        identity::endpoints_do_not_meet
        identity::one_endpoint_one_id_two_event_types
        listings::inbox_rows_without_loss_or_repeat
        listings::a_strange_cursor_is_refused
        listings::empty_listings
        purge::the_inbox_is_purged_in_bounded_batches
        purge::the_inbox_is_purged_per_endpoint
        purge::age_counts_from_the_first_record
    );
}
