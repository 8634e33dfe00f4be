//! Whose id an id is: cases 12 to 16, A18, A58.

use sprag_core::{effect::StoreWrite, ids::EndpointName, outcome::Outcome};

use super::{
    Subject,
    sample::{self, ask, endpoint, is_recorded, only, outcome, put, record, write},
};
use crate::{
    Written,
    query::{InboxFilter, Page},
};

/// A58: each is stored, found, listed and purged as itself, ids and endpoints alike.
pub async fn odd_characters_are_kept_apart(store: &Subject) {
    let ids = sample::odd_ids();
    for (n, id) in ids.iter().enumerate() {
        assert!(!is_recorded(store, &endpoint(), id).await, "{id:?} is not there before");
        let unit = sprag_core::run::UnitOfWork { writes: vec![put(id, &n.to_string())], ..Default::default() };
        write(store, StoreWrite { outcome: Some(outcome(id, Outcome::Completed)), unit, ..record(&[id]) }).await;
        assert!(is_recorded(store, &endpoint(), id).await, "{id:?} is there");
        assert_eq!(sample::value(store, id).await, sample::text(&n.to_string()), "{id:?}");
        assert_eq!(store.find_events(id).await.expect("events are found").len(), 1, "{id:?}");
        let filter = InboxFilter { endpoint: None, message_id: Some(id.as_ref().into()) };
        let rows = store.inbox(&filter, &Page::default()).await.expect("the inbox is listed").items;
        assert_eq!(rows.len(), 1, "{id:?}");
        assert_eq!(rows[0].message_id.as_str(), id.as_ref());
    }
    for id in ids.iter().filter(|id| id.encode_utf16().count() <= 260) {
        let odd = EndpointName::from(id.as_ref());
        assert!(!is_recorded(store, &odd, "m").await, "endpoint {id:?} knows nothing");
        store.write(&odd, record(&["m"])).await.expect("a write is taken");
        assert!(is_recorded(store, &odd, "m").await);
        let later = sprag_core::time::Timestamp(i64::MAX / 2);
        assert_eq!(store.purge_inbox(&odd, later, 10).await.expect("a purge"), 1, "endpoint {id:?} is purged alone");
    }
    assert!(is_recorded(store, &endpoint(), &ids[0]).await);
}

/// Cases 12 and 13, 125: ids and endpoints that differ by letter case or by a trailing space are different.
pub async fn case_and_trailing_space_matter(store: &Subject) {
    store.write(&"e1".into(), record(&["id"])).await.expect("a write is taken");
    for (endpoint, id) in [("e1", "ID"), ("e1", "id "), ("e1", " id"), ("E1", "id"), ("e1 ", "id"), (" e1", "id")] {
        assert!(!is_recorded(store, &endpoint.into(), id).await, "{endpoint:?} {id:?}");
        let unit = sample::unit("k", "v", "out");
        let written = store.write(&endpoint.into(), StoreWrite { unit, ..record(&[id]) }).await;
        assert_eq!(written.expect("a write is taken"), Written::Done, "{endpoint:?} {id:?}");
    }
}

/// Cases 14, 15 and A18: nothing of one endpoint is seen by another, also where plain concatenation of names would collide.
pub async fn endpoints_do_not_meet(store: &Subject) {
    for ((endpoint, id), (other, other_id)) in
        [(("ab", "c"), ("a", "bc")), (("a", "b"), ("b", "a")), (("a", "1\u{1f}a\u{1f}x"), ("a\u{1f}x", "x"))]
    {
        let (endpoint, other) = (EndpointName::from(endpoint), EndpointName::from(other));
        let whole = StoreWrite {
            finals: vec![id.into()],
            decision: Some(sample::decision(id, Outcome::Completed)),
            outcome: Some(outcome(id, Outcome::Completed)),
            ..record(&[id])
        };
        store.write(&endpoint, whole.clone()).await.expect("a write is taken");
        assert_eq!(ask(store, &other, other_id, None).await, Default::default(), "{other:?} {other_id:?}");
        assert_eq!(ask(store, &other, id, None).await, Default::default(), "{other:?} {id:?}");
        assert_eq!(store.write(&other, whole).await.expect("a write is taken"), Written::Done);
        store.decision_done(&other, &id.into()).await.expect("it is noted");
        assert!(ask(store, &endpoint, id, None).await.decision.is_some(), "the other's decision is not this one's");
    }
}

/// Case 16: within one endpoint an id is an id, whatever the event's type.
pub async fn one_endpoint_one_id_two_event_types(store: &Subject) {
    write(store, StoreWrite { outcome: Some(outcome("event", Outcome::Completed)), ..record(&["m"]) }).await;
    assert!(ask(store, &endpoint(), "m", None).await.own_recorded);
    let other =
        sprag_core::effect::OutcomeWrite { event_type: "another".into(), ..outcome("event", Outcome::Completed) };
    assert_eq!(write(store, only(other)).await, Written::Done);
    assert_eq!(store.find_events("event").await.expect("events are found").len(), 1);
}
