//! Operators' actions: one winner per event, ended once, audited (P15, A35 to A39).

use std::sync::Arc;

use sprag_core::{
    action::{ActionKind, ActionState},
    effect::{ActionResult, ActionWrite, StoreWrite},
    ids::{ActionId, EventId, SessionId},
    outcome::Outcome,
};

use super::{
    Subject,
    sample::{self, at, endpoint, failed, only, outcome, write},
};
use crate::{
    ActionRefused, NewAction,
    query::{AuditEntry, Page},
};

fn wish(kind: ActionKind, event: &str, by: &str) -> NewAction {
    NewAction {
        kind,
        endpoint: endpoint(),
        event_id: Some(EventId::from(event)),
        session: Some(SessionId::from("customer-1")),
        reason: Some("checked by hand".into()),
        by: by.into(),
        idempotency_key: None,
        control: sprag_core::message::Message {
            session_id: Some("customer-1".into()),
            ..sample::message(&format!("{by}-{event}"))
        },
        source: None,
    }
}

fn whole_session(session: &str, by: &str) -> NewAction {
    NewAction {
        event_id: None,
        session: Some(session.into()),
        control: sprag_core::message::Message {
            session_id: Some(session.into()),
            ..sample::message(&format!("{by}-{session}"))
        },
        ..wish(ActionKind::SkipSession, "", by)
    }
}

fn entry(verb: &str, target: &str, by: &str) -> AuditEntry {
    AuditEntry {
        at: at(100),
        by: by.into(),
        verb: verb.into(),
        endpoint: Some(endpoint()),
        target: target.into(),
        reason: Some("checked by hand".into()),
        count: 1,
    }
}

async fn create(store: &Subject, wishes: Vec<NewAction>) -> Vec<Result<ActionId, ActionRefused>> {
    let by = wishes[0].by.clone();
    store.create_actions(wishes, entry("test", "target", &by)).await.expect("actions are taken")
}

async fn create_one(store: &Subject, wish: NewAction) -> Result<ActionId, ActionRefused> {
    create(store, vec![wish]).await.pop().expect("an answer for each wish")
}

async fn end(store: &Subject, id: ActionId, result: ActionResult) {
    write(store, StoreWrite { action: Some(ActionWrite { id, result, at: at(200) }), ..StoreWrite::default() }).await;
}

async fn state(store: &Subject, id: ActionId) -> ActionState {
    store.action(id).await.expect("an answer").expect("the action is there").state
}

fn applied(text: &str) -> ActionResult {
    ActionResult::Applied { text: text.into() }
}

/// P15: the first one wins, the second one is told which.
pub async fn one_open_action_per_event(store: &Subject) {
    write(store, only(failed("e1", "trap", "boom"))).await;
    write(store, only(failed("e2", "trap", "boom"))).await;
    let id = create_one(store, wish(ActionKind::Skip, "e1", "ida")).await.expect("the first is accepted");
    let refused = create_one(store, wish(ActionKind::Resubmit, "e1", "otto")).await;
    assert_eq!(refused, Err(ActionRefused::Open { id, kind: ActionKind::Skip, by: "ida".into() }));
    let other =
        create_one(store, wish(ActionKind::Resubmit, "e2", "otto")).await.expect("another event is another matter");
    assert_ne!(id, other);

    let action = store.action(id).await.expect("an answer").expect("the action is there");
    assert_eq!((action.kind, action.event_id, action.by.as_str()), (ActionKind::Skip, Some("e1".into()), "ida"));
    assert_eq!((action.endpoint, action.session), (endpoint(), Some("customer-1".into())));
    assert_eq!((action.reason.as_deref(), action.state), (Some("checked by hand"), ActionState::Open));
    assert_eq!(store.find_events("e1").await.expect("events are found")[0].open_action, Some(id));
    assert_eq!(store.action(ActionId(i64::MAX)).await.expect("an answer"), None);
}

/// P15, A43: one open action on a whole session; its events' own actions are not in its way.
pub async fn one_open_action_per_session(store: &Subject) {
    write(store, only(failed("e1", "trap", "boom"))).await;
    create_one(store, wish(ActionKind::Skip, "e1", "ida")).await.expect("accepted");
    let id = create_one(store, whole_session("customer-1", "ida")).await.expect("accepted");
    let refused = create_one(store, whole_session("customer-1", "otto")).await;
    assert_eq!(refused, Err(ActionRefused::Open { id, kind: ActionKind::SkipSession, by: "ida".into() }));
    create_one(store, whole_session("customer-2", "otto")).await.expect("another session is another matter");
    end(store, id, applied("skipped")).await;
    create_one(store, whole_session("customer-1", "otto")).await.expect("the first has ended");
}

/// Spec 6: exactly one of several competing actions takes effect.
pub async fn concurrent_actions_have_one_winner(store: &Subject) {
    write(store, only(failed("e1", "trap", "boom"))).await;
    let tasks: Vec<_> = (0..12)
        .map(|n| {
            let store = Arc::clone(store);
            tokio::spawn(
                async move { create_one(&store, wish(ActionKind::Skip, "e1", &format!("operator-{n}"))).await },
            )
        })
        .collect();
    let (mut winners, mut named) = (Vec::new(), Vec::new());
    for task in tasks {
        match task.await.expect("no task panics") {
            Ok(id) => winners.push(id),
            Err(ActionRefused::Open { id, .. }) => named.push(id),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((winners.len(), named.len()), (1, 11));
    assert!(named.iter().all(|id| *id == winners[0]));
}

/// Spec 6: a group is accepted where it can be, and each one that cannot says why, in the order given.
pub async fn each_action_on_its_own_merits(store: &Subject) {
    for event in ["e1", "e2", "e3"] {
        write(store, only(failed(event, "trap", "boom"))).await;
    }
    let open = create_one(store, wish(ActionKind::Skip, "e2", "ida")).await.expect("accepted");
    let group = ["e1", "e2", "never seen", "e3", "e3"].map(|event| wish(ActionKind::Resubmit, event, "otto")).to_vec();
    let answers = create(store, group).await;
    assert!(answers[0].is_ok() && answers[3].is_ok());
    assert_eq!(answers[1], Err(ActionRefused::Open { id: open, kind: ActionKind::Skip, by: "ida".into() }));
    assert_eq!(answers[2], Err(ActionRefused::NoSuchEvent));
    assert!(matches!(answers[4], Err(ActionRefused::Open { id, .. }) if Ok(id) == answers[3]), "{answers:?}");
}

/// A39: a request repeated after a lost answer is the same request, also once its action has ended.
pub async fn an_idempotency_key_answers_with_the_first_action(store: &Subject) {
    write(store, only(failed("e1", "trap", "boom"))).await;
    let keyed = |key: &str| NewAction { idempotency_key: Some(key.into()), ..wish(ActionKind::Skip, "e1", "ida") };
    let id = create_one(store, keyed("request-1")).await.expect("accepted");
    assert_eq!(create_one(store, keyed("request-1")).await, Ok(id));
    assert!(matches!(create_one(store, keyed("request-2")).await, Err(ActionRefused::Open { .. })));
    end(store, id, applied("skipped")).await;
    assert_eq!(create_one(store, keyed("request-1")).await, Ok(id));
    assert_eq!(store.action_of_key("request-1").await.expect("looked up"), Some(id));
    assert_eq!(store.action_of_key("request-3").await.expect("looked up"), None);
    let next = create_one(store, keyed("request-2")).await.expect("a refused request left no trace under its key");
    assert_ne!(next, id);
}

/// P15: the first end stays; then the event is free for the next action.
pub async fn an_action_ends_once(store: &Subject) {
    write(store, only(failed("e1", "trap", "boom"))).await;
    let id = create_one(store, wish(ActionKind::Skip, "e1", "ida")).await.expect("accepted");
    end(store, id, applied("skipped")).await;
    end(store, id, ActionResult::Conflict { text: "too late".into() }).await;
    assert_eq!(state(store, id).await, ActionState::Applied { text: "skipped".into(), at: at(200) });
    assert_eq!(store.find_events("e1").await.expect("events are found")[0].open_action, None);
    create_one(store, wish(ActionKind::Resubmit, "e1", "otto")).await.expect("the event is free again");
    end(store, ActionId(i64::MAX), applied("an action that is not there changes nothing")).await;
}

/// P15: the loser reads what took effect.
pub async fn a_conflict_ends_an_action_too(store: &Subject) {
    write(store, only(outcome("e1", Outcome::Handoff))).await;
    let id = create_one(store, wish(ActionKind::HandoffComplete, "e1", "ida")).await.expect("accepted");
    end(store, id, ActionResult::Conflict { text: "the deadline had passed".into() }).await;
    assert_eq!(state(store, id).await, ActionState::Conflict { text: "the deadline had passed".into(), at: at(200) });
    create_one(store, wish(ActionKind::Skip, "e1", "otto")).await.expect("the event is free again");
}

/// Spec 6: who, when, why, and what became of it.
pub async fn audit_shows_who_when_why(store: &Subject) {
    write(store, only(failed("e1", "trap", "boom"))).await;
    let skip = entry("skip", "e1", "ida");
    let answers = store.create_actions(vec![wish(ActionKind::Skip, "e1", "ida")], skip.clone()).await.expect("taken");
    let id = answers[0].clone().expect("accepted");
    let cancel = AuditEntry { endpoint: None, reason: None, count: 3, ..entry("scheduled-cancel", "orders", "otto") };
    store.add_audit(cancel.clone()).await.expect("it is written");
    end(store, id, applied("skipped")).await;

    let rows = store.audit(&Page::default()).await.expect("audit is listed").items;
    let of = |entry: &AuditEntry| rows.iter().filter(|row| row.entry == *entry).collect::<Vec<_>>();
    assert_eq!((rows.len(), of(&skip).len(), of(&cancel).len()), (2, 1, 1), "{rows:?}");
    assert_eq!(of(&cancel)[0].actions, []);
    let actions = &of(&skip)[0].actions;
    assert_eq!(actions.len(), 1);
    assert_eq!((actions[0].id, &actions[0].state), (id, &ActionState::Applied { text: "skipped".into(), at: at(200) }));
}
