//! Checks, decisions, records, outcomes and history (P1, P2, P8, P35).

use std::{sync::Arc, time::Duration};

use sprag_core::{
    effect::{Decision, Effect, HistoryKind, HistoryLine, OutcomeGuard, OutcomeWrite, StoreWrite},
    ids::{Digest, EventId, MessageId},
    message::{Message, Value},
    outcome::{Failure, Outcome},
    session_state::{Block, BlockKind, SessionState},
    time::Timestamp,
};

use super::{
    Subject,
    sample::{self, ask, at, decision, endpoint, is_recorded, line, only, outcome, record, text, value, write},
};
use crate::{Answer, Question, StoredOutcome, Written, query::Page};

async fn stored(store: &Subject, event: &str) -> Option<StoredOutcome> {
    let (endpoint, event_id) = (endpoint(), EventId::from(event));
    let question = Question {
        endpoint: &endpoint,
        message_id: None,
        source_id: None,
        event_id: &event_id,
        inbox: true,
        outcome: true,
    };
    store.check(question).await.expect("a check answers").outcome
}

async fn outbox_len(store: &Subject) -> usize {
    store.outbox(&Page::default()).await.expect("the outbox is listed").items.len()
}

/// P35: record, finality, decision, outcome, history, state and outgoing messages commit together.
pub async fn all_parts_of_a_write_are_there_together(store: &Subject) {
    let whole = StoreWrite {
        record: vec!["source".into(), "own".into()],
        finals: vec!["source".into()],
        decision: Some(decision("own", Outcome::Completed)),
        outcome: Some(outcome("event", Outcome::Completed)),
        history: Some(line("event", HistoryKind::Run)),
        unit: sample::unit("stock", "7", "out-1"),
        action: None,
        lease: None,
    };
    assert_eq!(write(store, whole).await, Written::Done);

    let answer = ask(store, &endpoint(), "own", Some("source")).await;
    assert!(answer.own_recorded && answer.source_recorded && answer.is_final);
    assert_eq!(answer.decision, Some(decision("own", Outcome::Completed)));
    assert_eq!(stored(store, "event").await, Some(StoredOutcome { outcome: Outcome::Completed, attempts: 1 }));
    assert_eq!(value(store, "stock").await, text("7"));
    assert_eq!(store.history(&endpoint(), &"event".into()).await.expect("history"), [line("event", HistoryKind::Run)]);
    let outbox = store.outbox(&Page::default()).await.expect("the outbox is listed").items;
    assert_eq!(outbox.len(), 1);
    assert_eq!(outbox[0].message_id, Some("out-1".into()));
    assert_eq!(outbox[0].event_id, Some("event".into()));
}

/// Case 1: what was never seen is not recorded, not final, not decided, and has no outcome.
pub async fn a_fresh_delivery_is_unknown(store: &Subject) {
    assert_eq!(ask(store, &endpoint(), "new", Some("source")).await, Answer::default());
}

/// Case 127: recording again is no error and the first time stays.
pub async fn recording_again_keeps_the_first_time(store: &Subject) {
    write(store, record(&["m"])).await;
    let first = store.inbox(&Default::default(), &Page::default()).await.expect("the inbox is listed").items;
    tokio::time::sleep(Duration::from_millis(20)).await;
    write(store, record(&["m"])).await;
    let second = store.inbox(&Default::default(), &Page::default()).await.expect("the inbox is listed").items;
    assert_eq!(first.len(), 1);
    assert_eq!(first, second);
}

/// Case 17, A23: none fails, one row is there, and one of the units of work took effect.
pub async fn thirty_two_concurrent_records_of_one_key(store: &Subject) {
    let tasks: Vec<_> = (0..32)
        .map(|n| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                let unit = sample::unit(&format!("key-{n}"), "written", &format!("out-{n}"));
                store.write(&endpoint(), StoreWrite { unit, ..record(&["one"]) }).await
            })
        })
        .collect();
    let mut done = 0;
    for task in tasks {
        match task.await.expect("no task panics").expect("no record fails") {
            Written::Done => done += 1,
            Written::AlreadyDecided => {}
        }
    }
    assert_eq!(done, 1, "one unit of work takes effect");
    assert_eq!(store.inbox(&Default::default(), &Page::default()).await.expect("the inbox").items.len(), 1);
    assert_eq!(outbox_len(store).await, 1);
    assert_eq!(store.state_scan(&endpoint(), "key-", None, 100).await.expect("a scan").len(), 1);
}

/// P1: decisions and finality exist with the inbox off; records are not asked for.
pub async fn with_the_inbox_off_records_are_not_asked(store: &Subject) {
    let first =
        StoreWrite { decision: Some(decision("m", Outcome::Failed)), finals: vec!["m".into()], ..record(&["m"]) };
    write(store, first).await;
    let (endpoint, id, event_id) = (endpoint(), MessageId::from("m"), EventId::from("m"));
    let question = Question {
        endpoint: &endpoint,
        message_id: Some(&id),
        source_id: None,
        event_id: &event_id,
        inbox: false,
        outcome: false,
    };
    let answer = store.check(question).await.expect("a check answers");
    assert!(!answer.own_recorded && !answer.source_recorded);
    assert!(answer.is_final);
    assert_eq!(answer.decision, Some(decision("m", Outcome::Failed)));
    assert_eq!(answer.outcome, None);
}

/// P1: the first decision is kept; the second one's unit of work, outcome and records are dropped, its history line is added.
pub async fn the_first_decision_wins(store: &Subject) {
    let first = StoreWrite {
        decision: Some(decision("m", Outcome::Completed)),
        outcome: Some(outcome("m", Outcome::Completed)),
        history: Some(line("m", HistoryKind::Run)),
        unit: sample::unit("k", "first", "out-first"),
        ..StoreWrite::default()
    };
    let second = StoreWrite {
        decision: Some(Decision { rest: vec![Effect::Complete], ..decision("m", Outcome::Failed) }),
        outcome: Some(OutcomeWrite { attempts: 2, ..outcome("m", Outcome::Failed) }),
        unit: sample::unit("k", "second", "out-second"),
        ..first.clone()
    };
    assert_eq!(write(store, first).await, Written::Done);
    assert_eq!(write(store, second).await, Written::AlreadyDecided);
    assert_eq!(value(store, "k").await, text("first"));
    assert_eq!(outbox_len(store).await, 1);
    assert_eq!(ask(store, &endpoint(), "m", None).await.decision, Some(decision("m", Outcome::Completed)));
    assert_eq!(stored(store, "m").await.map(|stored| stored.outcome), Some(Outcome::Completed));
    assert_eq!(store.history(&endpoint(), &"m".into()).await.expect("history").len(), 2);
}

/// P1: side by side as well as one after another.
pub async fn concurrent_decisions_have_one_winner(store: &Subject) {
    let tasks: Vec<_> = (0..16)
        .map(|n| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                let write = StoreWrite {
                    decision: Some(decision("m", Outcome::Completed)),
                    unit: sample::unit("k", &n.to_string(), &format!("out-{n}")),
                    ..StoreWrite::default()
                };
                store.write(&endpoint(), write).await
            })
        })
        .collect();
    let mut done = 0;
    for task in tasks {
        done += usize::from(task.await.expect("no task panics").expect("no write fails") == Written::Done);
    }
    assert_eq!(done, 1);
    assert_eq!(outbox_len(store).await, 1);
}

/// P1: were the ids of a late success recorded, the retry of the failure that was decided first would be taken for a duplicate.
pub async fn a_late_success_cannot_record_what_failed_first(store: &Subject) {
    let failure = StoreWrite {
        decision: Some(decision("m", Outcome::Failed)),
        outcome: Some(outcome("m", Outcome::Failed)),
        ..StoreWrite::default()
    };
    let success = StoreWrite {
        decision: Some(decision("m", Outcome::Completed)),
        outcome: Some(outcome("m", Outcome::Completed)),
        finals: vec!["m".into()],
        ..record(&["m"])
    };
    write(store, failure).await;
    assert_eq!(write(store, success).await, Written::AlreadyDecided);
    let answer = ask(store, &endpoint(), "m", None).await;
    assert!(!answer.own_recorded, "not recorded");
    assert!(!answer.is_final, "not final");
    assert_eq!(answer.decision, Some(decision("m", Outcome::Failed)));
    assert_eq!(answer.outcome.map(|stored| stored.outcome), Some(Outcome::Failed));
}

/// P35: a stand-in whose source is recorded already changes nothing again, but its own id is recorded and its decision is carried out.
pub async fn an_existing_record_drops_the_unit_of_work(store: &Subject) {
    write(store, StoreWrite { unit: sample::unit("k", "first", "out-first"), ..record(&["source"]) }).await;
    let again = StoreWrite {
        decision: Some(decision("own", Outcome::Completed)),
        outcome: Some(outcome("event", Outcome::Completed)),
        unit: sample::unit("k", "second", "out-second"),
        ..record(&["source", "own"])
    };
    assert_eq!(write(store, again).await, Written::AlreadyDecided);
    assert_eq!(value(store, "k").await, text("first"));
    assert_eq!(outbox_len(store).await, 1);
    assert!(is_recorded(store, &endpoint(), "own").await);
    assert_eq!(ask(store, &endpoint(), "own", None).await.decision, Some(decision("own", Outcome::Completed)));
    assert_eq!(stored(store, "event").await.map(|stored| stored.outcome), Some(Outcome::Completed));
}

/// P1: what is left to do is read back exactly, every kind of effect.
pub async fn a_decision_comes_back_as_it_was(store: &Subject) {
    let mut state = SessionState {
        block: Some(Block {
            event_id: "event".into(),
            source_id: Some("source".into()),
            kind: BlockKind::Failure,
            attempt: 3,
            since_attempt: 1,
            since: at(5),
        }),
        parked: 4,
        next_sequence: 9,
        ..SessionState::default()
    };
    state.unknown.insert("Theirs".into(), "kept".into());
    let full = Decision {
        message_id: "m".into(),
        outcome: Outcome::Failed,
        attempt: 7,
        rest: vec![
            // What an inbox beside the store has still to record (`inbox`).
            Effect::Store(Box::new(record(&["source", "own"]))),
            Effect::Enqueue(Box::new(Message { scheduled_for: Some(at(60)), ..sample::full_message("retry-1") })),
            Effect::CancelScheduled("retry-0".into()),
            Effect::SetState(state),
            Effect::Park { sequence: 8, copy: Box::new(sample::full_message("parked")) },
            Effect::DeadLetter { reason: "Why".into(), description: "because\nof \"this\"".into() },
            Effect::Complete,
        ],
    };
    write(store, StoreWrite { decision: Some(full.clone()), ..StoreWrite::default() }).await;
    assert_eq!(ask(store, &endpoint(), "m", None).await.decision, Some(full));
}

/// P1: done is done; and with the inbox off a second message under the same id is a message like any other.
pub async fn a_decision_that_is_done_is_forgotten(store: &Subject) {
    let decided = StoreWrite { decision: Some(decision("m", Outcome::Completed)), ..StoreWrite::default() };
    write(store, StoreWrite { unit: sample::unit("k", "1", "out-1"), ..decided.clone() }).await;
    store.decision_done(&endpoint(), &"m".into()).await.expect("it is noted");
    assert_eq!(ask(store, &endpoint(), "m", None).await.decision, None);
    store.decision_done(&endpoint(), &"m".into()).await.expect("noting it again is no error");
    assert_eq!(write(store, StoreWrite { unit: sample::unit("k", "2", "out-2"), ..decided }).await, Written::Done);
    assert_eq!(value(store, "k").await, text("2"));
}

/// P2: the check looks up the delivery's own id and its source.
pub async fn final_ids_are_found_by_own_and_source_id(store: &Subject) {
    write(store, StoreWrite { finals: vec!["source".into()], ..StoreWrite::default() }).await;
    assert!(ask(store, &endpoint(), "source", None).await.is_final);
    assert!(ask(store, &endpoint(), "retry-7", Some("source")).await.is_final);
    let answer = ask(store, &endpoint(), "source", None).await;
    assert!(!answer.own_recorded, "final is not recorded");
    assert!(!ask(store, &endpoint(), "other", Some("another")).await.is_final);
}

/// P8: whatever comes late, a final outcome stays.
pub async fn a_final_outcome_is_not_overwritten(store: &Subject) {
    for last in Outcome::ALL.into_iter().filter(|outcome| outcome.is_final()) {
        let event = format!("event-{}", last.name());
        write(store, only(outcome(&event, last))).await;
        for late in Outcome::ALL {
            write(store, only(OutcomeWrite { attempts: 9, ..outcome(&event, late) })).await;
            assert_eq!(stored(store, &event).await.map(|stored| stored.outcome), Some(last), "{last:?} then {late:?}");
        }
    }
}

/// Spec 6: a late or stale write never overwrites a newer one.
pub async fn fewer_attempts_do_not_overwrite_more(store: &Subject) {
    write(store, only(OutcomeWrite { attempts: 3, ..outcome("event", Outcome::Failed) })).await;
    write(store, only(OutcomeWrite { attempts: 2, ..outcome("event", Outcome::Completed) })).await;
    assert_eq!(stored(store, "event").await, Some(StoredOutcome { outcome: Outcome::Failed, attempts: 3 }));
    write(store, only(OutcomeWrite { attempts: 3, ..outcome("event", Outcome::Handoff) })).await;
    assert_eq!(stored(store, "event").await, Some(StoredOutcome { outcome: Outcome::Handoff, attempts: 3 }));
    write(store, only(OutcomeWrite { attempts: 4, ..outcome("event", Outcome::Completed) })).await;
    assert_eq!(stored(store, "event").await, Some(StoredOutcome { outcome: Outcome::Completed, attempts: 4 }));
}

/// P8: a duplicate is Skipped only where no outcome exists, final or not.
pub async fn if_absent_writes_only_where_nothing_is(store: &Subject) {
    let skip = |event| OutcomeWrite { guard: OutcomeGuard::IfAbsent, attempts: 9, ..outcome(event, Outcome::Skipped) };
    write(store, only(outcome("there", Outcome::Deferred))).await;
    write(store, only(skip("there"))).await;
    write(store, only(skip("not-there"))).await;
    assert_eq!(stored(store, "there").await.map(|stored| stored.outcome), Some(Outcome::Deferred));
    assert_eq!(stored(store, "not-there").await.map(|stored| stored.outcome), Some(Outcome::Skipped));
}

/// P13: an operator's resubmission runs a final event again, and its outcome counts whatever the stored attempts.
pub async fn a_resubmission_writes_over_a_final_outcome(store: &Subject) {
    write(store, only(OutcomeWrite { attempts: 5, ..outcome("event", Outcome::DeadLettered) })).await;
    let again = OutcomeWrite { guard: OutcomeGuard::Resubmitted, attempts: 1, ..outcome("event", Outcome::Failed) };
    write(store, only(again)).await;
    assert_eq!(stored(store, "event").await, Some(StoredOutcome { outcome: Outcome::Failed, attempts: 1 }));
}

/// `OutcomeWrite`: what is none, empty or zero leaves what is stored; the end itself is always written.
pub async fn what_an_outcome_does_not_say_stays(store: &Subject) {
    let first = OutcomeWrite {
        message_id: Some("own".into()),
        source_id: Some("source".into()),
        reason: Some("why".into()),
        ..sample::failed("event", "trap", "boom")
    };
    write(store, only(first.clone())).await;
    let short = OutcomeWrite {
        event_id: "event".into(),
        message_id: None,
        source_id: None,
        session: None,
        event_type: "".into(),
        outcome: Outcome::Skipped,
        guard: OutcomeGuard::Newer,
        reason: None,
        error: None,
        attempts: 2,
        handler: None,
        digest: None,
        enqueued_at: Timestamp::default(),
        at: at(50),
        keep: None,
    };
    write(store, only(short)).await;
    let row = store.find_events("event").await.expect("events are found").remove(0);
    let expected =
        OutcomeWrite { outcome: Outcome::Skipped, reason: None, error: None, attempts: 2, at: at(50), ..first };
    assert_eq!(row.outcome, expected);
}

/// P8: a duplicate is an entry in the history and a count; the outcome stays.
pub async fn a_duplicate_adds_a_line_and_a_count(store: &Subject) {
    write(
        store,
        StoreWrite { history: Some(line("event", HistoryKind::Run)), ..only(outcome("event", Outcome::Completed)) },
    )
    .await;
    for _ in 0..3 {
        let skip = OutcomeWrite { guard: OutcomeGuard::IfAbsent, ..outcome("event", Outcome::Skipped) };
        write(store, StoreWrite { history: Some(line("event", HistoryKind::Duplicate)), ..only(skip) }).await;
    }
    let rows = store.find_events("event").await.expect("events are found");
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].duplicates, 3);
    assert_eq!(rows[0].outcome.outcome, Outcome::Completed);
    assert_eq!(store.history(&endpoint(), &"event".into()).await.expect("history").len(), 4);
}

/// Spec 6: the history of attempts with times, version, kind and text, in the order of writing.
pub async fn history_keeps_every_line_in_order(store: &Subject) {
    let mut lines = Vec::new();
    for (n, kind) in HistoryKind::ALL.into_iter().enumerate() {
        let attempt = u32::try_from(n).expect("few kinds");
        lines.push(HistoryLine {
            event_id: "event".into(),
            kind,
            at: at(10),
            message_id: Some(format!("m-{n}").into()),
            outcome: Some(Outcome::ALL[n]),
            attempt,
            started_at: Some(at(9)),
            took: Some(Duration::from_millis(1_234)),
            handler: Some("orders".into()),
            digest: Some(Digest::of(kind.name().as_bytes())),
            reason: Some("a reason".into()),
            error: Some(Failure::new("trap", "unreachable\nat orders.wasm")),
            by: Some("ida".into()),
        });
    }
    lines.push(line("event", HistoryKind::Run));
    for entry in &lines {
        write(store, StoreWrite { history: Some(entry.clone()), ..StoreWrite::default() }).await;
    }
    write(store, StoreWrite { history: Some(line("other", HistoryKind::Run)), ..StoreWrite::default() }).await;
    assert_eq!(store.history(&endpoint(), &"event".into()).await.expect("history"), lines);
    assert_eq!(store.history(&"elsewhere".into(), &"event".into()).await.expect("history"), []);
}

/// P38: the message of an unresolved event can be resubmitted as it was, every kind of body and value.
pub async fn a_kept_message_survives_whole(store: &Subject) {
    for (name, body) in sample::every_body() {
        let mut message = Message { body, scheduled_for: Some(at(9)), ..sample::full_message(name) };
        message.set_property("Shape", Value::string(name));
        let keep = OutcomeWrite { keep: Some(Box::new(message.clone())), ..outcome(name, Outcome::Failed) };
        write(store, only(keep)).await;
        assert_eq!(store.kept_message(&endpoint(), &name.into()).await.expect("an answer"), Some(message), "{name}");
    }
    assert_eq!(store.kept_message(&endpoint(), &"never seen".into()).await.expect("an answer"), None);
}

/// P38: an outcome without a message keeps the one that is there; a refused outcome does not bring its own.
pub async fn a_kept_message_stays_until_another_is_kept(store: &Subject) {
    let keeps = |id: &str| Some(Box::new(sample::message(id)));
    write(store, only(OutcomeWrite { keep: keeps("first"), attempts: 2, ..outcome("event", Outcome::Failed) })).await;
    write(store, only(OutcomeWrite { attempts: 3, ..outcome("event", Outcome::Failed) })).await;
    write(store, only(OutcomeWrite { keep: keeps("stale"), attempts: 1, ..outcome("event", Outcome::Failed) })).await;
    let kept = || async { store.kept_message(&endpoint(), &"event".into()).await.expect("an answer") };
    assert_eq!(kept().await, Some(sample::message("first")));
    let row = &store.find_events("event").await.expect("events are found")[0];
    assert!(row.has_message);
    assert_eq!(row.outcome.keep, None, "rows do not carry bodies");
    write(store, only(OutcomeWrite { keep: keeps("second"), attempts: 4, ..outcome("event", Outcome::Failed) })).await;
    assert_eq!(kept().await, Some(sample::message("second")));
}

/// Trait rule: a call that has begun runs to its end even if the caller stops waiting.
pub async fn a_dropped_caller_does_not_stop_a_write(store: &Subject) {
    {
        let endpoint = endpoint();
        let begun = store.write(&endpoint, record(&["m"]));
        tokio::select! {
            biased;
            result = begun => { result.expect("a write is taken"); }
            () = std::future::ready(()) => {}
        }
    }
    for _ in 0..400 {
        if is_recorded(store, &endpoint(), "m").await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the record was lost with its caller");
}
