//! What operators see: filters, order, cursors.

use std::collections::HashSet;

use sprag_core::{
    effect::{OutcomeWrite, StoreWrite},
    ids::MessageId,
    outcome::Outcome,
};

use super::{
    Subject,
    sample::{at, endpoint, failed, only, outcome, record, sends, write},
    walk,
};
use crate::{
    Error,
    query::{AuditEntry, EventFilter, EventRow, FailureGroup, InboxFilter, Page},
};

async fn events(store: &Subject, filter: EventFilter) -> Vec<EventRow> {
    walk(1_000, |page| store_events(store, filter.clone(), page)).await
}

async fn store_events(
    store: &Subject,
    filter: EventFilter,
    page: Page,
) -> Result<crate::query::Listing<EventRow>, Error> {
    store.events(&filter, &page).await
}

fn names(rows: &[EventRow]) -> Vec<&str> {
    let mut names: Vec<_> = rows.iter().map(|row| row.outcome.event_id.as_str()).collect();
    names.sort_unstable();
    names
}

/// A listing walked in parts shows each row once, also where many rows changed at the same moment and others change meanwhile.
pub async fn two_thousand_five_hundred_events_without_loss_or_repeat(store: &Subject) {
    for n in 0..2_500_u64 {
        write(store, only(OutcomeWrite { at: at(n / 400), ..outcome(&format!("e-{n}"), Outcome::Completed) })).await;
    }
    let mut touched = 0;
    let rows = walk(300, |page| {
        touched += 1;
        let newer = OutcomeWrite { at: at(10_000 + touched), ..outcome(&format!("new-{touched}"), Outcome::Completed) };
        async move {
            write(store, only(newer)).await;
            store.events(&EventFilter { id_prefix: Some("e-".into()), ..EventFilter::default() }, &page).await
        }
    })
    .await;
    let seen: HashSet<_> = rows.iter().map(|row| row.outcome.event_id.clone()).collect();
    assert_eq!((rows.len(), seen.len()), (2_500, 2_500));
    assert!(rows.windows(2).all(|pair| pair[0].outcome.at >= pair[1].outcome.at), "newest change first");
}

/// Newest change first; a row is what was written, without its body.
pub async fn events_come_newest_first(store: &Subject) {
    let writes = [("a", 3), ("b", 1), ("c", 2)].map(|(id, n)| OutcomeWrite { at: at(n), ..failed(id, "trap", "boom") });
    for entry in &writes {
        write(store, only(entry.clone())).await;
    }
    let order = |rows: &[EventRow]| rows.iter().map(|row| row.outcome.event_id.to_string()).collect::<Vec<_>>();
    let rows = events(store, EventFilter::default()).await;
    assert_eq!(order(&rows), ["a", "c", "b"]);
    assert_eq!((&rows[0].outcome, &rows[0].endpoint), (&writes[0], &endpoint()));
    assert_eq!((rows[0].duplicates, rows[0].has_message, rows[0].open_action), (0, false, None));
    write(
        store,
        only(OutcomeWrite { at: at(9), attempts: 2, reason: Some("why".into()), ..outcome("b", Outcome::Skipped) }),
    )
    .await;
    let rows = events(store, EventFilter::default()).await;
    assert_eq!(order(&rows), ["b", "a", "c"]);
    assert_eq!((rows[0].outcome.reason.as_deref(), &rows[0].outcome.error), (Some("why"), &None));
}

/// Each member of the filter narrows; together they narrow further.
pub async fn events_are_filtered(store: &Subject) {
    let put = |endpoint: &'static str, entry: OutcomeWrite| async move {
        store.write(&endpoint.into(), only(entry)).await.expect("a write is taken");
    };
    put("shop", OutcomeWrite { at: at(10), ..outcome("order-1", Outcome::Completed) }).await;
    put("shop", OutcomeWrite { at: at(20), ..failed("order-2", "trap", "Boom 100% on LINE_7\nsecond line") }).await;
    put(
        "shop",
        OutcomeWrite { at: at(30), session: Some("customer-2".into()), ..failed("order_3", "timeout", "too slow") },
    )
    .await;
    put(
        "shop",
        OutcomeWrite { at: at(40), event_type: "paid".into(), session: None, ..outcome("pay-1", Outcome::Deferred) },
    )
    .await;
    put("bank", OutcomeWrite { at: at(50), ..failed("order-1", "trap", "Boom 100% on LINE_7\nother second line") })
        .await;

    let all = EventFilter::default;
    let shop = || EventFilter { endpoint: Some(endpoint()), ..all() };
    let group = FailureGroup::key_of("shop", "order-placed", "trap", "Boom 100% on LINE_7");
    for (what, filter, expected) in [
        ("all", all(), vec!["order-1", "order-1", "order-2", "order_3", "pay-1"]),
        ("endpoint", shop(), vec!["order-1", "order-2", "order_3", "pay-1"]),
        ("no such endpoint", EventFilter { endpoint: Some("Shop".into()), ..all() }, vec![]),
        ("session", EventFilter { session: Some("customer-2".into()), ..all() }, vec!["order_3"]),
        ("type", EventFilter { event_type: Some("paid".into()), ..all() }, vec!["pay-1"]),
        ("outcome", EventFilter { outcomes: vec![Outcome::Failed], ..shop() }, vec!["order-2", "order_3"]),
        (
            "two outcomes",
            EventFilter { outcomes: vec![Outcome::Deferred, Outcome::Completed], ..all() },
            vec!["order-1", "pay-1"],
        ),
        ("since", EventFilter { since: Some(at(35)), ..all() }, vec!["order-1", "pay-1"]),
        ("until", EventFilter { until: Some(at(25)), ..all() }, vec!["order-1", "order-2"]),
        ("prefix", EventFilter { id_prefix: Some("order-".into()), ..shop() }, vec!["order-1", "order-2"]),
        ("prefix is text", EventFilter { id_prefix: Some("order_".into()), ..all() }, vec!["order_3"]),
        ("prefix in its case", EventFilter { id_prefix: Some("Order".into()), ..all() }, vec![]),
        ("text in any case", EventFilter { error_text: Some("bOOM 100% on".into()), ..shop() }, vec!["order-2"]),
        ("text is text", EventFilter { error_text: Some("%slow".into()), ..all() }, vec![]),
        ("later line of the text", EventFilter { error_text: Some("other second".into()), ..all() }, vec!["order-1"]),
        ("group", EventFilter { group: Some(group.clone()), ..all() }, vec!["order-2"]),
        ("no such group", EventFilter { group: Some("0123456789abcdef".into()), ..all() }, vec![]),
        (
            "all at once",
            EventFilter {
                session: Some("customer-1".into()),
                event_type: Some("order-placed".into()),
                outcomes: vec![Outcome::Failed],
                since: Some(at(15)),
                until: Some(at(25)),
                id_prefix: Some("order".into()),
                error_text: Some("boom".into()),
                group: Some(group),
                ..shop()
            },
            vec!["order-2"],
        ),
    ] {
        assert_eq!(names(&events(store, filter).await), expected, "{what}");
    }
}

/// P29: every endpoint's row, by event id, message id or source id.
pub async fn find_events_knows_every_id(store: &Subject) {
    let ids = OutcomeWrite {
        message_id: Some("own".into()),
        source_id: Some("source".into()),
        ..outcome("event", Outcome::Completed)
    };
    write(store, only(ids.clone())).await;
    store
        .write(&"bank".into(), only(OutcomeWrite { message_id: None, source_id: None, ..ids }))
        .await
        .expect("a write is taken");
    let mut endpoints: Vec<_> =
        store.find_events("event").await.expect("found").into_iter().map(|row| row.endpoint.to_string()).collect();
    endpoints.sort_unstable();
    assert_eq!(endpoints, ["bank", "shop"]);
    for id in ["own", "source"] {
        let rows = store.find_events(id).await.expect("found");
        assert_eq!(rows.len(), 1, "{id}");
        assert_eq!(rows[0].endpoint, endpoint());
    }
    assert_eq!(store.find_events("Event").await.expect("an answer"), []);
}

/// Spec 9: kind, first line, type and endpoint make a group; what is resolved leaves it.
pub async fn failure_groups_count_alike_failures(store: &Subject) {
    for (n, text) in ["boom\nat 1", "boom\nat 2", "boom", "bang"].into_iter().enumerate() {
        write(store, only(OutcomeWrite { at: at(10 + n as u64), ..failed(&format!("e-{n}"), "trap", text) })).await;
    }
    write(store, only(failed("e-4", "timeout", "boom"))).await;
    write(store, only(OutcomeWrite { event_type: "paid".into(), ..failed("e-5", "trap", "boom") })).await;
    store.write(&"bank".into(), only(failed("e-6", "trap", "boom"))).await.expect("a write is taken");
    write(store, only(failed("e-7", "trap", "boom"))).await;
    write(store, only(OutcomeWrite { attempts: 2, ..outcome("e-7", Outcome::Completed) })).await;

    let groups = store.failure_groups(&EventFilter::default()).await.expect("groups are listed");
    assert_eq!(groups.len(), 5, "{groups:#?}");
    let key = FailureGroup::key_of("shop", "order-placed", "trap", "boom\nwhatever");
    let group = groups.iter().find(|group| group.key == key).expect("the group is there");
    let expected = FailureGroup {
        key,
        endpoint: endpoint(),
        event_type: "order-placed".into(),
        kind: "trap".into(),
        first_line: "boom".into(),
        count: 3,
        oldest: at(10),
        newest: at(12),
    };
    assert_eq!(*group, expected);
    let cut_off = EventFilter {
        until: Some(at(11)),
        endpoint: Some(endpoint()),
        group: Some(expected.key),
        ..EventFilter::default()
    };
    let groups = store.failure_groups(&cut_off).await.expect("groups are listed");
    assert_eq!(groups.len(), 1);
    assert_eq!(
        (groups[0].count, groups[0].oldest, groups[0].newest),
        (1, at(10), at(10)),
        "those after the cut-off do not count"
    );
}

pub async fn inbox_rows_without_loss_or_repeat(store: &Subject) {
    for chunk in 0..25 {
        let ids: Vec<MessageId> = (0..100).map(|n| format!("m-{chunk}-{n}").into()).collect();
        write(store, StoreWrite { record: ids, ..StoreWrite::default() }).await;
    }
    store.write(&"bank".into(), record(&["m-0-0"])).await.expect("a write is taken");
    let list = |filter: InboxFilter| async move {
        walk(700, |page| {
            let filter = filter.clone();
            async move { store.inbox(&filter, &page).await }
        })
        .await
    };
    let rows = list(InboxFilter::default()).await;
    let seen: HashSet<_> = rows.iter().map(|row| (row.endpoint.clone(), row.message_id.clone())).collect();
    assert_eq!((rows.len(), seen.len()), (2_501, 2_501));
    assert_eq!(list(InboxFilter { endpoint: Some(endpoint()), message_id: None }).await.len(), 2_500);
    assert_eq!(list(InboxFilter { endpoint: None, message_id: Some("m-0-0".into()) }).await.len(), 2);
    let one = list(InboxFilter { endpoint: Some("bank".into()), message_id: Some("m-0-0".into()) }).await;
    assert_eq!(one.len(), 1);
    assert_eq!((one[0].endpoint.as_str(), one[0].message_id.as_str()), ("bank", "m-0-0"));
}

/// Spec 5: what keeps failing is shown, with its error.
pub async fn outbox_rows_show_their_trouble(store: &Subject) {
    let ids: Vec<String> = (0..250).map(|n| format!("m-{n}")).collect();
    let messages: Vec<_> = ids.iter().map(|id| ("q", Some("s"), id.as_str())).collect();
    write(store, sends(&messages)).await;
    let first = store.outbox_claim(&[endpoint()], 1, std::time::Duration::from_secs(60)).await.expect("a claim");
    store.outbox_failed(first[0].id, "no such queue", None).await.expect("it is noted");
    let rows = walk(60, |page| async move { store.outbox(&page).await }).await;
    let seen: HashSet<_> = rows.iter().map(|row| row.id).collect();
    assert_eq!((rows.len(), seen.len()), (250, 250));
    let poison: Vec<_> = rows.iter().filter(|row| row.poison).collect();
    assert_eq!(poison.len(), 1);
    assert_eq!((poison[0].id, poison[0].tries, poison[0].error.as_deref()), (first[0].id, 1, Some("no such queue")));
    assert_eq!((poison[0].entity.as_str(), &poison[0].session), ("q", &Some("s".into())));
    assert_eq!(poison[0].message_id, Some("m-0".into()));
    assert!(rows.iter().all(|row| row.poison || (row.tries == 0 && row.error.is_none())));
}

pub async fn audit_without_loss_or_repeat(store: &Subject) {
    for n in 0..250_u64 {
        let entry = AuditEntry {
            at: at(n / 40),
            by: "ida".into(),
            verb: "skip".into(),
            endpoint: None,
            target: format!("e-{n}"),
            reason: None,
            count: n,
        };
        store.add_audit(entry).await.expect("it is written");
    }
    let rows = walk(60, |page| async move { store.audit(&page).await }).await;
    let seen: HashSet<_> = rows.iter().map(|row| row.entry.target.clone()).collect();
    assert_eq!((rows.len(), seen.len()), (250, 250));
    assert_eq!(rows.iter().map(|row| row.id).collect::<HashSet<_>>().len(), 250);
}

/// Bad input gets an error that is about the input, not an outage and not the first page.
pub async fn a_strange_cursor_is_refused(store: &Subject) {
    write(store, only(outcome("event", Outcome::Completed))).await;
    for cursor in ["", "nonsense", "-1:9:9", "𝄞"] {
        let page = Page { after: Some(cursor.into()), limit: 10 };
        let result = store.events(&EventFilter::default(), &page).await;
        assert!(matches!(result, Err(Error::Invalid(_))), "{cursor:?}: {result:?}");
    }
    for limit in [0, 1_001] {
        let result = store.events(&EventFilter::default(), &Page { after: None, limit }).await;
        assert!(matches!(result, Err(Error::Invalid(_))), "{limit}: {result:?}");
    }
}

pub async fn empty_listings(store: &Subject) {
    let page = Page::default();
    let events = store.events(&EventFilter::default(), &page).await.expect("an answer");
    assert_eq!((events.items.len(), events.next), (0, None));
    let inbox = store.inbox(&InboxFilter::default(), &page).await.expect("an answer");
    assert_eq!((inbox.items.len(), inbox.next), (0, None));
    let audit = store.audit(&page).await.expect("an answer");
    assert_eq!((audit.items.len(), audit.next), (0, None));
    let outbox = store.outbox(&page).await.expect("an answer");
    assert_eq!((outbox.items.len(), outbox.next), (0, None));
    assert_eq!(store.failure_groups(&EventFilter::default()).await.expect("an answer"), []);
    assert_eq!(store.find_events("nothing").await.expect("an answer"), []);
}
