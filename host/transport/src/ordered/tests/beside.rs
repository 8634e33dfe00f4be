//! The inbox in another place than the store (P34, P35): cut after every effect, and between the two writes of the first.

use sprag_store::inbox::{Inbox as _, InboxBeside, InboxOf};

use super::*;

struct Beside {
    world: World,
    /// What the world's committer asks and writes.
    whole: Arc<dyn Store>,
    other: Arc<MemoryStore>,
}

impl Beside {
    async fn with_delivery() -> (Self, Arc<dyn Session>, Delivery) {
        let (mut world, session, delivery) = World::with_delivery().await;
        let other = Arc::new(MemoryStore::new());
        let whole: Arc<dyn Store> =
            Arc::new(InboxBeside::new(world.store.clone(), Arc::new(InboxOf::new(other.clone()))));
        world.ordered = Ordered::new(whole.clone(), world.transport.clone());
        (Self { world, whole, other }, session, delivery)
    }

    /// What a worker does with the delivery when it comes again.
    async fn redeliver(&self) -> Result<Written, CommitError> {
        let (session, delivery) = self.world.redeliver().await;
        let answer = sample::ask(&self.whole, &sample::endpoint(), "m", None).await;
        let commit = match answer.decision {
            // Carried out is only what a decision says, and it says nothing of records.
            Some(decision) => Commit { endpoint: sample::endpoint(), effects: decision.rest },
            None if answer.own_recorded => Commit { endpoint: sample::endpoint(), effects: vec![Effect::Complete] },
            None => success(),
        };
        self.world.commit(&session, &delivery, commit).await
    }

    async fn check_the_end(&self, point: &str) {
        assert_eq!(self.world.ids(Part::Active).await, [""; 0], "{point}");
        let inbox = InboxOf::new(self.other.clone());
        let asked = [(sample::endpoint(), "source".into()), (sample::endpoint(), "m".into())];
        assert_eq!(inbox.recorded(&asked).await.unwrap(), [true, true], "{point}");
        let here = self.world.store.inbox(&Default::default(), &Default::default()).await.unwrap();
        assert_eq!(here.items, [], "{point}: no record in the store's own inbox");
        assert_eq!(self.world.store.outbox(&Default::default()).await.unwrap().items.len(), 1, "{point}: applied once");
        assert_eq!(self.world.decision().await, None, "{point}");
        let answer = sample::ask(&self.whole, &sample::endpoint(), "m", None).await;
        assert!(answer.own_recorded, "{point}: a second copy is a duplicate");
    }
}

/// Unit of work, records, completion.
fn success() -> Commit {
    let rest = vec![Effect::SetState(SessionState { next_sequence: 1, ..SessionState::default() }), Effect::Complete];
    let write = StoreWrite {
        decision: Some(Decision { rest: rest.clone(), ..sample::decision("m", Outcome::Completed) }),
        outcome: Some(sample::outcome("m", Outcome::Completed)),
        unit: sample::sends(&[("orders", Some("s"), "out")]).unit,
        ..sample::record(&["source", "m"])
    };
    let effects = std::iter::once(Effect::Store(Box::new(write))).chain(rest).collect();
    Commit { endpoint: sample::endpoint(), effects }
}

/// P1, P35: wherever the process dies, the redelivery ends with one unit of work and every record.
#[tokio::test(start_paused = true)]
async fn a_crash_after_any_effect_ends_recorded_and_applied_once() {
    let effects = success().effects.len();
    for cut in 0..=effects {
        let (beside, session, delivery) = Beside::with_delivery().await;
        beside.world.ordered.crash_after(Some(cut));
        let result = beside.world.commit(&session, &delivery, success()).await;
        assert_eq!(result.is_ok(), cut == effects, "{cut}: {result:?}");
        beside.world.transport.lose_all();
        beside.world.ordered.crash_after(None);
        if cut < effects {
            beside.redeliver().await.unwrap();
        } else {
            // The last to be cut off: that the decision is done. Nobody comes for it any more.
            assert!(beside.world.decision().await.is_some());
            beside.world.store.decision_done(&sample::endpoint(), &"m".into()).await.unwrap();
        }
        beside.check_the_end(&format!("cut {cut}")).await;
    }
}

/// The record fails after the store's write: the delivery is not settled, and comes again under a name that promises nothing (P5).
#[tokio::test(start_paused = true)]
async fn a_failed_record_brings_the_delivery_back() {
    for failure in [
        sprag_store::Error::Unavailable("down".into()),
        sprag_store::Error::StateConflict,
        sprag_store::Error::Invalid("odd".into()),
    ] {
        let (beside, session, delivery) = Beside::with_delivery().await;
        beside.other.faults().fail(sprag_store::memory::Call::Write, 1, failure.clone());
        let result = beside.world.commit(&session, &delivery, success()).await;
        assert!(matches!(result, Err(CommitError::Unavailable(_))), "{failure:?}: {result:?}");
        assert_eq!(beside.world.ids(Part::Active).await.iter().filter(|id| *id == "m").count(), 1, "not settled");
        beside.world.transport.lose_all();

        // While the inbox is down the check has no answer, so nothing is carried out and nothing runs.
        beside.other.faults().outage(Some(failure.clone()));
        let (endpoint, id, event_id) = (sample::endpoint(), MessageId::from("m"), "m".into());
        let question = Question {
            endpoint: &endpoint,
            message_id: Some(&id),
            source_id: None,
            event_id: &event_id,
            inbox: true,
            outcome: false,
        };
        assert!(beside.whole.check(question).await.is_err(), "{failure:?}");
        beside.other.faults().outage(None);
        beside.redeliver().await.unwrap();
        beside.check_the_end(&format!("{failure:?}")).await;
    }
}
