//! What a committer must do with a decision (P1, P4, P5, P16, P35).

use std::{sync::Arc, time::Duration};

use sprag_core::{
    effect::{Commit, Effect, HistoryKind, StoreWrite},
    ids::SequenceNumber,
    message::{Delivery, LockToken, Message},
    outcome::Outcome,
    run::{Outgoing, UnitOfWork, Version},
    session_state::{Block, BlockKind, SessionState},
};
use sprag_store::{Written, conformance::sample};

use super::{
    Bench, entity, id_of, message, next, nothing_next, nothing_parked, parked, parked_as, parked_copy, peeked_ids,
    release,
};
use crate::{CommitError, Held, Part, Session, Settlement};

fn endpoint() -> sprag_core::ids::EndpointName {
    sample::endpoint()
}

fn blocked_by(event: &str, parked: u32) -> SessionState {
    SessionState {
        block: Some(Block {
            event_id: event.into(),
            source_id: Some(event.into()),
            kind: BlockKind::Failure,
            attempt: 1,
            since_attempt: 0,
            since: sample::T0,
        }),
        parked,
        next_sequence: parked + 1,
        ..SessionState::default()
    }
}

/// A decided commit: the store's transaction with the decision in it, then `rest`.
fn decided(id: &str, outcome: Outcome, mut write: StoreWrite, rest: Vec<Effect>) -> Commit {
    write.decision = Some(sprag_core::effect::Decision { rest: rest.clone(), ..sample::decision(id, outcome) });
    write.outcome.get_or_insert_with(|| sample::outcome(id, outcome));
    write.history.get_or_insert_with(|| sample::line(id, HistoryKind::Run));
    let effects = std::iter::once(Effect::Store(Box::new(write))).chain(rest).collect();
    Commit { endpoint: endpoint(), effects }
}

fn success(id: &str) -> Commit {
    let write = StoreWrite {
        unit: UnitOfWork { writes: vec![sample::put("k", id)], ..UnitOfWork::default() },
        ..sample::record(&[id])
    };
    decided(id, Outcome::Completed, write, vec![Effect::Complete])
}

impl Bench {
    async fn commit(
        &self,
        source: &str,
        session: &Arc<dyn Session>,
        delivery: &Delivery,
        commit: Commit,
    ) -> Result<Written, CommitError> {
        self.committer.commit(Held { source: &entity(source), session: Some(session), delivery }, commit).await
    }

    async fn commit_plain(&self, source: &str, delivery: &Delivery, commit: Commit) -> Result<Written, CommitError> {
        self.committer.commit(Held { source: &entity(source), session: None, delivery }, commit).await
    }

    /// That the store knows nothing of the id.
    async fn is_unknown(&self, id: &str) {
        assert_eq!(sample::ask(&self.store, &endpoint(), id, None).await, Default::default(), "{id}");
        assert!(self.store.history(&endpoint(), &id.into()).await.expect("history").is_empty(), "{id}");
        assert_ne!(sample::value(&self.store, "k").await, sample::text(id), "{id}");
    }

    async fn outcome_of(&self, id: &str) -> Option<Outcome> {
        sample::ask(&self.store, &endpoint(), id, None).await.outcome.map(|stored| stored.outcome)
    }

    /// Sends what the outbox holds, as the relay does where a commit cannot put it onto its entity itself.
    async fn relay(&self) {
        loop {
            let rows = self.store.outbox_claim(&[endpoint()], 100, Duration::from_secs(60)).await.expect("a claim");
            if rows.is_empty() {
                return;
            }
            for row in rows {
                self.transport.send(&row.entity, vec![row.message]).await.expect("it is taken");
                self.store.outbox_sent(&[row.id]).await.expect("it is noted");
            }
        }
    }
}

/// P35: record, state, outcome, history and completion.
pub async fn success_is_visible_together(bench: &Bench) {
    bench.send("sessions", Some("s"), &["m", "after"]).await;
    let session = bench.offered("sessions").await;
    let delivery = next(&*session).await;
    assert_eq!(bench.commit("sessions", &session, &delivery, success("m")).await.expect("it commits"), Written::Done);
    let answer = sample::ask(&bench.store, &endpoint(), "m", None).await;
    assert!(answer.own_recorded);
    assert_eq!(answer.decision, None, "what is carried out is done");
    assert_eq!(bench.outcome_of("m").await, Some(Outcome::Completed));
    assert_eq!(sample::value(&bench.store, "k").await, sample::text("m"));
    assert_eq!(bench.store.history(&endpoint(), &"m".into()).await.expect("history").len(), 1);
    assert_eq!(peeked_ids(&bench.peek("sessions", Part::Active).await), ["after"]);
    assert_eq!(id_of(&next(&*session).await), "after", "the session goes on under the same lock");
    let late = session.settle(delivery.lock, Settlement::Complete).await;
    assert!(matches!(late, Err(crate::Error::LockLost)), "the delivery is settled: {late:?}");
}

/// Spec 3, step 6: outcome, retry, block, completion.
pub async fn a_failure_schedules_blocks_and_completes(bench: &Bench) {
    bench.send("sessions", Some("s"), &["m"]).await;
    let session = bench.offered("sessions").await;
    let delivery = next(&*session).await;
    let due = (bench.now)().after(Duration::from_secs(3_600));
    let retry = Message { scheduled_for: Some(due), ..message(Some("s"), "retry-1") };
    let write = StoreWrite {
        outcome: Some(sprag_core::effect::OutcomeWrite {
            keep: Some(Box::new(message(Some("s"), "m"))),
            ..sample::failed("m", "trap", "boom")
        }),
        ..StoreWrite::default()
    };
    let rest = vec![Effect::Enqueue(Box::new(retry.clone())), Effect::SetState(blocked_by("m", 0)), Effect::Complete];
    let written = bench.commit("sessions", &session, &delivery, decided("m", Outcome::Failed, write, rest)).await;
    assert_eq!(written.expect("it commits"), Written::Done);
    assert_eq!(bench.outcome_of("m").await, Some(Outcome::Failed));
    let scheduled = bench.peek("sessions", Part::Scheduled).await;
    assert_eq!((scheduled.len(), &scheduled[0].message), (1, &retry));
    let state = session.state().await.expect("state is read");
    assert_eq!(SessionState::from_bytes(state.as_deref()).expect("it is ours"), blocked_by("m", 0));
    assert!(bench.peek("sessions", Part::Active).await.is_empty());
    let answer = sample::ask(&bench.store, &endpoint(), "m", None).await;
    assert!(!answer.own_recorded && answer.decision.is_none());
    assert_eq!(
        bench.store.kept_message(&endpoint(), &"m".into()).await.expect("an answer"),
        Some(message(Some("s"), "m"))
    );
}

/// P32: an idle session's state is null.
pub async fn an_idle_state_is_written_as_none(bench: &Bench) {
    bench.send("sessions", Some("s"), &["m"]).await;
    let session = bench.offered("sessions").await;
    let blocked = blocked_by("m", 0).to_bytes().expect("a block is not idle");
    session.set_state(Some(blocked.into())).await.expect("state is written");
    let delivery = next(&*session).await;
    let rest = vec![Effect::SetState(SessionState::default()), Effect::Complete];
    bench
        .commit("sessions", &session, &delivery, decided("m", Outcome::Completed, sample::record(&["m"]), rest))
        .await
        .expect("it commits");
    assert_eq!(session.state().await.expect("state is read"), None);
}

/// P16: outcome Deferred, state, copy, completion.
pub async fn parking_moves_the_message(bench: &Bench) {
    bench.send("sessions", Some("s"), &["m", "n"]).await;
    let session = bench.offered("sessions").await;
    for (sequence, id) in [(1, "m"), (2, "n")] {
        let delivery = next(&*session).await;
        assert_eq!(id_of(&delivery), id);
        let write = StoreWrite {
            history: Some(sample::line(id, HistoryKind::Parked)),
            ..sample::only(sample::outcome(id, Outcome::Deferred))
        };
        let effects = vec![
            Effect::Store(Box::new(write)),
            Effect::SetState(blocked_by("x", sequence)),
            Effect::Park { sequence, copy: Box::new(parked_copy(&delivery, sequence)) },
            Effect::Complete,
        ];
        let commit = Commit { endpoint: endpoint(), effects };
        assert_eq!(bench.commit("sessions", &session, &delivery, commit).await.expect("it commits"), Written::Done);
        assert_eq!(bench.outcome_of(id).await, Some(Outcome::Deferred));
    }
    nothing_next(&*session).await;
    let seen = bench.peek("sessions", Part::Parked).await;
    assert_eq!(seen.iter().map(|it| it.parked_as).collect::<Vec<_>>(), [Some(1), Some(2)]);
    let state = session.state().await.expect("state is read");
    assert_eq!(SessionState::from_bytes(state.as_deref()).expect("it is ours").parked, 2);
    assert_eq!(parked_as(&parked(&*session).await), Some(1));
}

/// P18: what ran from its parked place is completed there.
pub async fn a_parked_copy_is_completed(bench: &Bench) {
    bench.send("sessions", Some("s"), &["m", "later"]).await;
    let session = bench.offered("sessions").await;
    let delivery = next(&*session).await;
    let park = Commit {
        endpoint: endpoint(),
        effects: vec![Effect::Park { sequence: 1, copy: Box::new(parked_copy(&delivery, 1)) }, Effect::Complete],
    };
    bench.commit("sessions", &session, &delivery, park).await.expect("it commits");
    let copy = parked(&*session).await;
    assert_eq!(bench.commit("sessions", &session, &copy, success("m")).await.expect("it commits"), Written::Done);
    nothing_parked(&*session).await;
    assert!(sample::is_recorded(&bench.store, &endpoint(), "m").await);
    assert_eq!(peeked_ids(&bench.peek("sessions", Part::Active).await), ["later"]);
}

pub async fn a_dead_letter_carries_its_reason(bench: &Bench) {
    bench.send("sessions", Some("s"), &["m"]).await;
    let session = bench.offered("sessions").await;
    let delivery = next(&*session).await;
    let write = StoreWrite { finals: vec!["m".into()], ..StoreWrite::default() };
    let rest = vec![Effect::DeadLetter { reason: "Invalid".into(), description: "no total".into() }];
    bench
        .commit("sessions", &session, &delivery, decided("m", Outcome::DeadLettered, write, rest))
        .await
        .expect("it commits");
    let dead = bench.peek("sessions", Part::DeadLetters).await;
    assert_eq!((dead.len(), dead[0].dead_letter_reason.as_deref()), (1, Some("Invalid")));
    assert_eq!(dead[0].dead_letter_description.as_deref(), Some("no total"));
    assert!(sample::ask(&bench.store, &endpoint(), "m", None).await.is_final);
    nothing_next(&*session).await;
}

/// P11: resolving an event takes its retry back.
pub async fn a_scheduled_retry_is_cancelled(bench: &Bench) {
    let due = (bench.now)().after(Duration::from_secs(3_600));
    let retry = Message { scheduled_for: Some(due), ..message(Some("s"), "retry-1") };
    bench.transport.enqueue(&entity("sessions"), retry).await.expect("it is taken");
    bench.send("sessions", Some("s"), &["m"]).await;
    let session = bench.offered("sessions").await;
    let delivery = next(&*session).await;
    let rest = vec![Effect::CancelScheduled("retry-1".into()), Effect::Complete];
    bench
        .commit("sessions", &session, &delivery, decided("m", Outcome::Completed, sample::record(&["m"]), rest))
        .await
        .expect("it commits");
    assert!(bench.peek("sessions", Part::Scheduled).await.is_empty());
}

pub async fn cancelling_what_is_gone_is_no_error(bench: &Bench) {
    bench.send("sessions", Some("s"), &["m"]).await;
    let session = bench.offered("sessions").await;
    let delivery = next(&*session).await;
    let rest = vec![Effect::CancelScheduled("never there".into()), Effect::Complete];
    bench
        .commit("sessions", &session, &delivery, decided("m", Outcome::Completed, sample::record(&["m"]), rest))
        .await
        .expect("it commits");
    assert!(bench.peek("sessions", Part::Active).await.is_empty());
}

pub async fn a_plain_delivery_is_completed(bench: &Bench) {
    bench.send("plain", None, &["m", "n"]).await;
    let (first, second) = (bench.take("plain").await, bench.take("plain").await);
    assert_eq!(bench.commit_plain("plain", &second, success("n")).await.expect("it commits"), Written::Done);
    assert_eq!(bench.commit_plain("plain", &first, success("m")).await.expect("it commits"), Written::Done);
    assert!(bench.peek("plain", Part::Active).await.is_empty());
    assert!(
        sample::is_recorded(&bench.store, &endpoint(), "m").await
            && sample::is_recorded(&bench.store, &endpoint(), "n").await
    );
}

/// P33: what a run published arrives, once here, as it was published; what the host enqueues is not enqueued twice.
pub async fn enqueued_and_outgoing_messages_arrive_once(bench: &Bench) {
    bench.send("sessions", Some("s"), &["m"]).await;
    bench.transport.enqueue(&entity("sessions"), message(Some("s"), "trigger")).await.expect("it is taken");
    let session = bench.offered("sessions").await;
    let delivery = next(&*session).await;
    let full = Message { session_id: None, ..bench.full_message("out-1") };
    let outgoing = vec![
        Outgoing { entity: "elsewhere".into(), message: full.clone() },
        Outgoing { entity: "elsewhere".into(), message: message(None, "out-2") },
        Outgoing { entity: "sessions".into(), message: message(Some("t"), "out-3") },
    ];
    let write = StoreWrite { unit: UnitOfWork { outgoing, ..UnitOfWork::default() }, ..sample::record(&["m"]) };
    let rest = vec![Effect::Enqueue(Box::new(message(Some("s"), "trigger"))), Effect::Complete];
    bench
        .commit("sessions", &session, &delivery, decided("m", Outcome::Completed, write, rest))
        .await
        .expect("it commits");
    bench.relay().await;
    let arrived = bench.peek("elsewhere", Part::Active).await;
    assert_eq!(peeked_ids(&arrived), ["out-1", "out-2"]);
    assert_eq!(arrived[0].message, full);
    assert_eq!(peeked_ids(&bench.peek("sessions", Part::Active).await), ["trigger", "out-3"]);
}

/// P5: without the lock nothing is written, nothing is sent, and the delivery comes again.
pub async fn a_lost_session_drops_all(bench: &Bench) {
    bench.send("sessions-short", Some("s"), &["m"]).await;
    let session = bench.offered("sessions-short").await;
    let delivery = next(&*session).await;
    bench.let_locks_lapse("sessions-short").await;
    let write = StoreWrite {
        unit: UnitOfWork { writes: vec![sample::put("k", "m")], ..UnitOfWork::default() },
        ..sample::record(&["m"])
    };
    let rest = vec![
        Effect::Enqueue(Box::new(message(Some("s"), "late"))),
        Effect::SetState(blocked_by("m", 0)),
        Effect::Complete,
    ];
    let result =
        bench.commit("sessions-short", &session, &delivery, decided("m", Outcome::Completed, write, rest)).await;
    assert!(matches!(result, Err(CommitError::LockLost)), "{result:?}");
    bench.is_unknown("m").await;
    assert_eq!(peeked_ids(&bench.peek("sessions-short", Part::Active).await), ["m"]);
    let session = bench.offered("sessions-short").await;
    assert_eq!(session.state().await.expect("state is read"), None);
    assert_eq!(next(&*session).await.delivery_count, 2);
}

pub async fn a_lost_delivery_drops_all(bench: &Bench) {
    bench.send("plain", None, &["m"]).await;
    let delivery = bench.take("plain").await;
    bench.transport.settle(&entity("plain"), delivery.lock, Settlement::Release).await.expect("it is given back");
    let result = bench.commit_plain("plain", &delivery, success("m")).await;
    assert!(matches!(result, Err(CommitError::LockLost)), "{result:?}");
    let strange = Delivery { lock: LockToken(u64::MAX / 2), ..delivery };
    let result = bench.commit_plain("plain", &strange, success("m")).await;
    assert!(matches!(result, Err(CommitError::LockLost)), "{result:?}");
    bench.is_unknown("m").await;
    assert_eq!(id_of(&bench.take("plain").await), "m");
}

/// P4: nothing commits, and the run can be repeated under the same lock.
pub async fn a_state_conflict_drops_all_and_the_lock_stays(bench: &Bench) {
    bench.send("sessions", Some("s"), &["m"]).await;
    sample::write(&bench.store, sample::changes(vec![sample::put("stock", "7")], vec![])).await;
    let session = bench.offered("sessions").await;
    let delivery = next(&*session).await;
    let commit = |version| {
        let unit = UnitOfWork {
            writes: vec![sample::put("stock", "6")],
            reads: vec![sample::saw("stock", version)],
            outgoing: vec![Outgoing { entity: "elsewhere".into(), message: message(None, "out") }],
            ..UnitOfWork::default()
        };
        let rest = vec![
            Effect::Enqueue(Box::new(message(Some("s"), "trigger"))),
            Effect::SetState(blocked_by("x", 0)),
            Effect::Complete,
        ];
        decided("m", Outcome::Completed, StoreWrite { unit, ..sample::record(&["m"]) }, rest)
    };
    let result = bench.commit("sessions", &session, &delivery, commit(Version(0))).await;
    assert!(matches!(result, Err(CommitError::StateConflict)), "{result:?}");
    bench.is_unknown("m").await;
    bench.relay().await;
    assert!(bench.peek("elsewhere", Part::Active).await.is_empty());
    assert_eq!(peeked_ids(&bench.peek("sessions", Part::Active).await), ["m"]);
    assert_eq!(session.state().await.expect("state is read"), None);
    let seen = bench.store.state_get(&endpoint(), "stock").await.expect("state is read").expect("it is there").version;
    assert_eq!(bench.commit("sessions", &session, &delivery, commit(seen)).await.expect("it commits"), Written::Done);
    assert_eq!(sample::value(&bench.store, "stock").await, sample::text("6"));
    assert_eq!(peeked_ids(&bench.peek("sessions", Part::Active).await), ["trigger"]);
}

/// Spec 5: a message that no entity takes fails its run before anything is changed.
pub async fn an_outgoing_message_to_nowhere_is_refused(bench: &Bench) {
    bench.send("sessions", Some("s"), &["m"]).await;
    let session = bench.offered("sessions").await;
    let delivery = next(&*session).await;
    let outgoing = vec![
        Outgoing { entity: "elsewhere".into(), message: message(None, "out-1") },
        Outgoing { entity: "nowhere".into(), message: message(None, "out-2") },
    ];
    let unit = UnitOfWork { outgoing, writes: vec![sample::put("k", "m")], ..UnitOfWork::default() };
    let commit =
        decided("m", Outcome::Completed, StoreWrite { unit, ..sample::record(&["m"]) }, vec![Effect::Complete]);
    match bench.commit("sessions", &session, &delivery, commit).await {
        Err(CommitError::Refused(text)) => assert!(text.contains("nowhere"), "it names the entity: {text}"),
        other => panic!("{other:?}"),
    }
    bench.is_unknown("m").await;
    bench.relay().await;
    assert!(bench.peek("elsewhere", Part::Active).await.is_empty());
    assert_eq!(
        bench.commit("sessions", &session, &delivery, success("m")).await.expect("the lock is still held"),
        Written::Done
    );
}

/// P35: recorded by another route meanwhile: the unit of work is dropped, the delivery is settled.
pub async fn a_recorded_delivery_is_settled_and_changes_nothing_more(bench: &Bench) {
    bench.send("sessions", Some("s"), &["m"]).await;
    let session = bench.offered("sessions").await;
    let delivery = next(&*session).await;
    sample::write(&bench.store, sample::record(&["m"])).await;
    assert_eq!(
        bench.commit("sessions", &session, &delivery, success("m")).await.expect("it commits"),
        Written::AlreadyDecided
    );
    assert_eq!(sample::value(&bench.store, "k").await, None);
    assert!(bench.peek("sessions", Part::Active).await.is_empty());
    assert_eq!(sample::ask(&bench.store, &endpoint(), "m", None).await.decision, None);
}

/// P1: a redelivery finds a decision and carries out what is left; then the decision is done.
pub async fn what_an_earlier_decision_left_is_carried_out(bench: &Bench) {
    bench.send("sessions", Some("s"), &["m"]).await;
    let session = bench.offered("sessions").await;
    let delivery = next(&*session).await;
    let rest = vec![
        Effect::Enqueue(Box::new(message(Some("s"), "trigger"))),
        Effect::SetState(blocked_by("m", 0)),
        Effect::Complete,
    ];
    let decision = sprag_core::effect::Decision { rest: rest.clone(), ..sample::decision("m", Outcome::Failed) };
    sample::write(&bench.store, StoreWrite { decision: Some(decision), ..StoreWrite::default() }).await;
    let commit = Commit { endpoint: endpoint(), effects: rest };
    assert_eq!(bench.commit("sessions", &session, &delivery, commit).await.expect("it commits"), Written::Done);
    assert_eq!(sample::ask(&bench.store, &endpoint(), "m", None).await.decision, None);
    assert_eq!(peeked_ids(&bench.peek("sessions", Part::Active).await), ["trigger"]);
    assert!(session.state().await.expect("state is read").is_some());
}

/// P5: once begun, a commit runs to its end without its caller.
pub async fn a_dropped_caller_does_not_stop_a_commit(bench: &Bench) {
    bench.send("sessions", Some("s"), &["m"]).await;
    let session = bench.offered("sessions").await;
    let delivery = next(&*session).await;
    let rest = vec![
        Effect::Enqueue(Box::new(message(Some("s"), "trigger"))),
        Effect::SetState(blocked_by("m", 0)),
        Effect::Complete,
    ];
    {
        let source = entity("sessions");
        let held = Held { source: &source, session: Some(&session), delivery: &delivery };
        let begun = bench.committer.commit(held, decided("m", Outcome::Failed, StoreWrite::default(), rest));
        tokio::select! {
            biased;
            result = begun => { result.expect("it commits"); }
            () = std::future::ready(()) => {}
        }
    }
    for _ in 0..400 {
        let active = bench
            .transport
            .peek(&entity("sessions"), Part::Active, None, SequenceNumber(0), 10)
            .await
            .expect("peeking works");
        if peeked_ids(&active) == ["trigger"] {
            assert!(session.state().await.expect("state is read").is_some());
            assert_eq!(bench.outcome_of("m").await, Some(Outcome::Failed));
            release(&*session).await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the commit stopped with its caller");
}
