//! Cut after every effect, and what each failure is called. What every committer must do is in [`crate::conformance::commits`].

mod beside;

use std::time::Duration;

use sprag_core::{
    effect::HistoryKind,
    message::Message,
    outcome::Outcome,
    session_state::{Block, BlockKind, SessionState},
};
use sprag_store::{conformance::sample, memory::MemoryStore};

use super::*;
use crate::{
    Part,
    conformance::{entity, id_of, message, next, peeked_ids},
    memory::{Call, EntityConfig, MemoryTransport},
};

struct World {
    store: Arc<MemoryStore>,
    transport: Arc<MemoryTransport>,
    ordered: Ordered,
}

impl World {
    fn new() -> Self {
        let store = Arc::new(MemoryStore::new());
        let transport =
            Arc::new(MemoryTransport::new([EntityConfig::sessions("orders"), EntityConfig::plain("plain")]));
        let ordered = Ordered::new(store.clone(), transport.clone());
        Self { store, transport, ordered }
    }

    /// A world with one message in hand.
    async fn with_delivery() -> (Self, Arc<dyn Session>, Delivery) {
        let world = Self::new();
        world.transport.send(&entity("orders"), vec![message(Some("s"), "m")]).await.unwrap();
        let (session, delivery) = world.redeliver().await;
        (world, session, delivery)
    }

    async fn redeliver(&self) -> (Arc<dyn Session>, Delivery) {
        let session =
            self.transport.accept_next(&entity("orders"), Duration::ZERO).await.unwrap().expect("it comes again");
        let delivery = next(&*session).await;
        (session, delivery)
    }

    async fn commit(
        &self,
        session: &Arc<dyn Session>,
        delivery: &Delivery,
        commit: Commit,
    ) -> Result<Written, CommitError> {
        self.ordered.commit(Held { source: &entity("orders"), session: Some(session), delivery }, commit).await
    }

    async fn decision(&self) -> Option<Decision> {
        let store: Arc<dyn Store> = self.store.clone();
        sample::ask(&store, &sample::endpoint(), "m", None).await.decision
    }

    async fn ids(&self, part: Part) -> Vec<String> {
        let seen =
            self.transport.peek(&entity("orders"), part, None, sprag_core::ids::SequenceNumber(0), 100).await.unwrap();
        peeked_ids(&seen).into_iter().map(str::to_owned).collect()
    }
}

fn blocked() -> SessionState {
    let block = Block {
        event_id: "m".into(),
        source_id: Some("m".into()),
        kind: BlockKind::Failure,
        attempt: 1,
        since_attempt: 0,
        since: sample::T0,
    };
    SessionState { block: Some(block), ..SessionState::default() }
}

/// Outcome, retry, block, completion.
fn failure() -> Commit {
    let due = sprag_store::clock::now().after(Duration::from_secs(3_600));
    let retry = Message { scheduled_for: Some(due), ..message(Some("s"), "retry-1") };
    let rest = vec![Effect::Enqueue(Box::new(retry)), Effect::SetState(blocked()), Effect::Complete];
    let write = StoreWrite {
        decision: Some(Decision { rest: rest.clone(), ..sample::decision("m", Outcome::Failed) }),
        outcome: Some(sample::failed("m", "trap", "boom")),
        history: Some(sample::line("m", HistoryKind::Run)),
        ..StoreWrite::default()
    };
    let effects = std::iter::once(Effect::Store(Box::new(write))).chain(rest).collect();
    Commit { endpoint: sample::endpoint(), effects }
}

/// P1: wherever the process dies, the redelivery ends where an undisturbed commit ends.
#[tokio::test(start_paused = true)]
async fn a_crash_after_any_effect_is_mended_by_the_redelivery() {
    let effects = failure().effects.len();
    for cut in 0..=effects {
        let (world, session, delivery) = World::with_delivery().await;
        world.ordered.crash_after(Some(cut));
        let result = world.commit(&session, &delivery, failure()).await;
        match (cut, &result) {
            (0, Err(CommitError::Unavailable(_))) => assert_eq!(world.decision().await, None),
            (cut, Ok(Written::Done)) if cut == effects => {}
            (_, Err(CommitError::Partial(_))) => {}
            other => panic!("{other:?}"),
        }
        world.transport.lose_all();
        world.ordered.crash_after(None);
        if cut < effects {
            let (session, delivery) = world.redeliver().await;
            let again = match world.decision().await {
                Some(decision) => Commit { endpoint: sample::endpoint(), effects: decision.rest },
                None => failure(),
            };
            assert_eq!(world.commit(&session, &delivery, again).await.unwrap(), Written::Done);
            assert_eq!(world.decision().await, None, "cut {cut}");
        }
        assert_eq!(world.ids(Part::Active).await, [""; 0], "cut {cut}");
        assert_eq!(world.ids(Part::Scheduled).await, ["retry-1"], "cut {cut}");
        world.transport.lose_all();
        let session = world.transport.accept(&entity("orders"), &"s".into(), Duration::ZERO).await.unwrap();
        let state = session.state().await.unwrap();
        assert_eq!(SessionState::from_bytes(state.as_deref()).unwrap(), blocked(), "cut {cut}");
        let history = world.store.history(&sample::endpoint(), &"m".into()).await.unwrap();
        assert_eq!(history.len(), 1, "cut {cut}");
    }
}

/// P5: before the first effect nothing was changed; after it, the rest is left to the redelivery.
#[tokio::test(start_paused = true)]
async fn each_failure_has_its_name() {
    let lost = Error::LockLost;
    for call in [Call::Enqueue, Call::SetState, Call::Settle] {
        let (world, session, delivery) = World::with_delivery().await;
        world.transport.faults().fail(call, 1, lost.clone());
        let result = world.commit(&session, &delivery, failure()).await;
        assert!(matches!(result, Err(CommitError::Partial(_))), "{call:?}: {result:?}");
        assert!(world.decision().await.is_some(), "{call:?}");
        assert_eq!(
            world.ids(Part::Active).await.iter().filter(|id| *id == "m").count(),
            1,
            "{call:?}: the delivery is not settled"
        );
    }
    let (world, session, delivery) = World::with_delivery().await;
    world.store.faults().outage(Some(sprag_store::Error::Unavailable("down".into())));
    let result = world.commit(&session, &delivery, failure()).await;
    assert!(matches!(&result, Err(CommitError::Unavailable(text)) if text.contains("down")), "{result:?}");
    assert_eq!(world.ids(Part::Scheduled).await, [""; 0]);
    world.store.faults().outage(None);
    world.transport.lose_session(&entity("orders"), &"s".into());
    let complete = Commit { endpoint: sample::endpoint(), effects: vec![Effect::Complete] };
    let result = world.commit(&session, &delivery, complete).await;
    assert!(matches!(result, Err(CommitError::LockLost)), "{result:?}");
}

/// P1: a holder that lost its lock without noticing decides late. Its rest must not be carried out over the first decision's.
#[tokio::test(start_paused = true)]
async fn the_rest_of_a_late_decision_is_not_carried_out() {
    let (world, late, delivery) = World::with_delivery().await;
    world.transport.lose_session(&entity("orders"), &"s".into());
    let (session, again) = world.redeliver().await;
    world.transport.faults().fail(Call::Settle, 1, Error::Unavailable("planned".into()));
    let success = {
        let rest = vec![Effect::Complete];
        let write = StoreWrite {
            decision: Some(Decision { rest: rest.clone(), ..sample::decision("m", Outcome::Completed) }),
            outcome: Some(sample::outcome("m", Outcome::Completed)),
            ..sample::record(&["m"])
        };
        Commit { endpoint: sample::endpoint(), effects: vec![Effect::Store(Box::new(write)), Effect::Complete] }
    };
    let result = world.commit(&session, &again, success.clone()).await;
    assert!(matches!(result, Err(CommitError::Partial(_))), "{result:?}");

    let result = world.commit(&late, &delivery, failure()).await;
    assert!(matches!(result, Err(CommitError::Partial(_))), "{result:?}");
    assert_eq!(world.ids(Part::Scheduled).await, [""; 0], "no retry of what is completed");
    assert_eq!(session.state().await.unwrap(), None, "no block by what is completed");

    // The same decision once more, after a commit whose answer was lost, goes on where it stopped.
    assert_eq!(world.commit(&session, &again, success).await.unwrap(), Written::AlreadyDecided);
    assert_eq!(world.ids(Part::Active).await, [""; 0]);
    assert_eq!(world.decision().await, None);
}

/// P11: taking a retry back is best effort.
#[tokio::test(start_paused = true)]
async fn a_retry_that_cannot_be_taken_back_stops_nothing() {
    let (world, session, delivery) = World::with_delivery().await;
    world.transport.faults().fail(Call::Cancel, 1, Error::Unavailable("planned".into()));
    let effects = vec![Effect::CancelScheduled("retry-1".into()), Effect::Complete];
    let commit = Commit { endpoint: sample::endpoint(), effects };
    world.commit(&session, &delivery, commit).await.unwrap();
    assert_eq!(world.ids(Part::Active).await, [""; 0]);
}

/// P5: a commit that hangs in the transport goes on after its caller has gone.
#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_does_not_cut_the_commit() {
    let (world, session, delivery) = World::with_delivery().await;
    world.transport.freeze();
    let waiting = tokio::time::timeout(Duration::from_secs(1), world.commit(&session, &delivery, failure())).await;
    assert!(waiting.is_err(), "it hangs");
    assert!(world.decision().await.is_some(), "it has begun");
    world.transport.thaw();
    while world.decision().await.is_some() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(world.ids(Part::Active).await, [""; 0]);
    assert_eq!(world.ids(Part::Scheduled).await, ["retry-1"]);
}

/// P18: what ran from its parked place is completed there, and parking it again is no effect.
#[tokio::test(start_paused = true)]
async fn a_parked_copy_is_not_parked_again() {
    let (world, session, delivery) = World::with_delivery().await;
    let copy = Box::new(crate::conformance::parked_copy(&delivery, 3));
    let park = |sequence| Effect::Park { sequence, copy: copy.clone() };
    let commit = |effects| Commit { endpoint: sample::endpoint(), effects };
    world.commit(&session, &delivery, commit(vec![park(3), Effect::Complete])).await.unwrap();
    let parked = crate::conformance::parked(&*session).await;
    assert_eq!(id_of(&parked), "m");
    world.commit(&session, &parked, commit(vec![park(4)])).await.unwrap();
    assert_eq!(world.ids(Part::Parked).await, ["m"]);
}
