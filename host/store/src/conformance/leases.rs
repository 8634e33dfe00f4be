//! Leases (spec 4, mode `lease`; the faults of `reference/nimbus-barewire.md` 5.2 mended).
//!
//! [`lease_conformance!`](crate::lease_conformance) makes a test of each rule, for stores that have leases.

use std::{collections::HashSet, time::Duration};

use sprag_core::{
    effect::{HistoryKind, LeaseEnd, LeaseEnding, StoreWrite},
    ids::{EndpointName, LeaseOwner, MessageId},
    outcome::Outcome,
    time::Timestamp,
};

use super::{
    Subject,
    sample::{self, endpoint, is_recorded, line, outcome, put, record, text, value, write},
    walk,
};
use crate::{
    Error, Written,
    lease::{Leased, Leases},
    query::{InboxFilter, InboxRow, LeaseRow, Page},
};

const LONG: Duration = Duration::from_secs(3_600);
/// Long enough to be seen held on a busy machine only where a rule does not mind when it is not.
const SHORT: Duration = Duration::from_millis(60);

fn leases(store: &Subject) -> &dyn Leases {
    store.leases().expect("the store has leases")
}

async fn acquire(store: &Subject, id: &str, owner: &str, time: Duration) -> Leased {
    leases(store).acquire(&endpoint(), &id.into(), &owner.into(), time).await.expect("a lease is answered for")
}

async fn renew(store: &Subject, id: &str, owner: &str) -> bool {
    leases(store).renew(&endpoint(), &id.into(), &owner.into(), LONG).await.expect("a renewal is answered")
}

async fn release(store: &Subject, id: &str, owner: &str) {
    leases(store).release(&endpoint(), &id.into(), &owner.into()).await.expect("a release is taken");
}

/// Takes a lease, and waits until the store's clock is past it.
async fn lapsed(store: &Subject, id: &str, owner: &str) {
    assert_eq!(acquire(store, id, owner, SHORT).await, Leased::Acquired);
    tokio::time::sleep(SHORT + Duration::from_millis(20)).await;
}

fn over(id: &str, owner: Option<&str>) -> Option<LeaseEnd> {
    Some(LeaseEnd { id: id.into(), owner: owner.map(LeaseOwner::from), how: LeaseEnding::Over })
}

fn handed_off(id: &str, owner: &str) -> StoreWrite {
    let lease = LeaseEnd { id: id.into(), owner: Some(owner.into()), how: LeaseEnding::HandedOff };
    StoreWrite { lease: Some(lease), outcome: Some(outcome(id, Outcome::Handoff)), ..StoreWrite::default() }
}

/// A success of a run under a lease, with everything that a write can hold.
fn success(id: &str, owner: &str) -> StoreWrite {
    StoreWrite {
        decision: Some(sample::decision(id, Outcome::Completed)),
        outcome: Some(outcome(id, Outcome::Completed)),
        history: Some(line(id, HistoryKind::Run)),
        finals: vec![format!("final-{id}").into()],
        unit: sample::unit(id, owner, &format!("out-{id}")),
        lease: over(id, Some(owner)),
        ..record(&[id])
    }
}

async fn rows(store: &Subject) -> Vec<InboxRow> {
    walk(3, |page| async move { store.inbox(&InboxFilter::default(), &page).await }).await
}

/// Seed 001: of any number at once, one is at the message, and the others hear for how long.
pub async fn of_many_at_once_one_acquires(store: &Subject) {
    for id in ["m1", "m2", "m3"] {
        let tasks: Vec<_> = (0..32)
            .map(|n| {
                let (store, owner) = (store.clone(), format!("owner-{n}"));
                tokio::spawn(async move { acquire(&store, id, &owner, LONG).await })
            })
            .collect();
        let mut acquired = 0;
        for task in tasks {
            match task.await.expect("no call panics") {
                Leased::Acquired => acquired += 1,
                Leased::InProgress { left } => assert!(left > LONG / 2 && left <= LONG, "{left:?}"),
                Leased::HandedOff => panic!("nothing was handed off"),
            }
        }
        assert_eq!(acquired, 1, "{id}");
    }
}

/// An answer may get lost: who asks again with the same token has it, and is not kept out by itself.
pub async fn an_owner_that_asks_again_has_it(store: &Subject) {
    for _ in 0..3 {
        assert_eq!(acquire(store, "m", "a", LONG).await, Leased::Acquired);
    }
    assert!(matches!(acquire(store, "m", "b", LONG).await, Leased::InProgress { .. }));
    assert!(renew(store, "m", "a").await);
}

/// Seed 001: a host that died in the run holds nobody up for longer than its lease; of those who find it lapsed, one takes over.
pub async fn a_lapsed_lease_is_taken_over_by_one(store: &Subject) {
    for id in ["m1", "m2", "m3"] {
        lapsed(store, id, "dead").await;
        let tasks: Vec<_> = (0..16)
            .map(|n| {
                let (store, owner) = (store.clone(), format!("owner-{n}"));
                tokio::spawn(async move { acquire(&store, id, &owner, LONG).await })
            })
            .collect();
        let mut acquired = 0;
        for task in tasks {
            acquired += usize::from(task.await.expect("no call panics") == Leased::Acquired);
        }
        assert_eq!(acquired, 1, "{id}");
    }
}

/// Nobody takes over what has not lapsed: whenever one does, the whole time has passed.
pub async fn a_takeover_comes_after_the_whole_time(store: &Subject) {
    let time = Duration::from_millis(150);
    let began = tokio::time::Instant::now();
    assert_eq!(acquire(store, "m", "a", time).await, Leased::Acquired);
    while acquire(store, "m", "b", LONG).await != Leased::Acquired {
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(began.elapsed() < Duration::from_secs(20), "it never lapses");
    }
    // Stores count in milliseconds.
    assert!(began.elapsed() + Duration::from_millis(2) >= time, "{:?}", began.elapsed());
}

/// A run that takes long keeps its lease for as long as it renews it.
pub async fn a_renewed_lease_is_held(store: &Subject) {
    assert_eq!(acquire(store, "m", "a", SHORT).await, Leased::Acquired);
    assert!(renew(store, "m", "a").await, "also where it lapsed before the call came: nobody had taken it");
    tokio::time::sleep(SHORT * 2).await;
    let Leased::InProgress { left } = acquire(store, "m", "b", LONG).await else { panic!("it is held") };
    assert!(left > LONG / 2, "{left:?}");
}

/// The token fences: whoever was taken over renews nothing and releases nothing of the other's.
pub async fn after_a_takeover_the_first_owner_has_no_say(store: &Subject) {
    lapsed(store, "m", "a").await;
    assert_eq!(acquire(store, "m", "b", LONG).await, Leased::Acquired);
    assert!(!renew(store, "m", "a").await);
    release(store, "m", "a").await;
    assert!(matches!(acquire(store, "m", "c", LONG).await, Leased::InProgress { .. }));
    assert!(renew(store, "m", "b").await);
    assert!(!renew(store, "other", "b").await, "what was never taken");
}

/// Who lost the lease changes nothing, whatever the write holds; the one who has it does.
pub async fn a_write_after_a_takeover_changes_nothing(store: &Subject) {
    lapsed(store, "m", "a").await;
    assert_eq!(acquire(store, "m", "b", LONG).await, Leased::Acquired);
    let late = store.write(&endpoint(), success("m", "a")).await;
    assert!(matches!(late, Err(Error::LeaseLost)), "{late:?}");
    let late = store.write(&endpoint(), handed_off("m", "a")).await;
    assert!(matches!(late, Err(Error::LeaseLost)), "{late:?}");
    let answer = sample::ask(store, &endpoint(), "m", Some("final-m")).await;
    assert_eq!(answer, crate::Answer::default());
    assert_eq!(value(store, "m").await, None);
    assert_eq!(store.history(&endpoint(), &"m".into()).await.expect("an answer"), []);
    assert!(store.outbox(&Page::default()).await.expect("an answer").items.is_empty());
    assert!(matches!(acquire(store, "m", "c", LONG).await, Leased::InProgress { .. }), "it is still the other's");

    assert_eq!(write(store, success("m", "b")).await, Written::Done);
    assert_eq!(value(store, "m").await, text("b"));
    assert!(is_recorded(store, &endpoint(), "m").await);
    let again = store.write(&endpoint(), success("m", "b")).await;
    assert!(matches!(again, Err(Error::LeaseLost)), "a lease ends once: {again:?}");
}

/// A write and a takeover at the same moment: either the write was first and is whole, or it has no effect.
pub async fn a_write_and_a_takeover_at_once(store: &Subject) {
    for n in 0..12 {
        let id = format!("m-{n}");
        lapsed(store, &id, "a").await;
        let (taker, taken) = (store.clone(), id.clone());
        let takeover = tokio::spawn(async move { acquire(&taker, &taken, "b", LONG).await });
        let written = store.write(&endpoint(), success(&id, "a")).await;
        assert_eq!(takeover.await.expect("no call panics"), Leased::Acquired, "lapsed or ended, it is free");
        let done = match written {
            Ok(Written::Done) => true,
            Err(Error::LeaseLost) => false,
            other => panic!("{other:?}"),
        };
        assert_eq!(is_recorded(store, &endpoint(), &id).await, done);
        assert_eq!(value(store, &id).await, if done { text("a") } else { None });
        assert!(renew(store, &id, "b").await);
    }
}

/// What lapsed and was taken over by nobody is its owner's still: a slow run is not thrown away for nothing.
pub async fn a_lapsed_lease_that_nobody_took_commits(store: &Subject) {
    lapsed(store, "m", "a").await;
    assert_eq!(write(store, success("m", "a")).await, Written::Done);
    assert!(is_recorded(store, &endpoint(), "m").await);
}

/// In progress and processed are different answers: the record is there, and the lease is free.
pub async fn a_decision_ends_its_lease(store: &Subject) {
    assert_eq!(acquire(store, "m", "a", LONG).await, Leased::Acquired);
    assert!(!is_recorded(store, &endpoint(), "m").await, "a lease is no record");
    assert_eq!(write(store, success("m", "a")).await, Written::Done);
    assert_eq!(acquire(store, "m", "b", LONG).await, Leased::Acquired);
    assert!(is_recorded(store, &endpoint(), "m").await);
    // A duplicate writes no decision, and its lease is over all the same.
    let duplicate = StoreWrite {
        history: Some(line("m", HistoryKind::Duplicate)),
        lease: over("m", Some("b")),
        ..StoreWrite::default()
    };
    assert_eq!(write(store, duplicate).await, Written::Done);
    assert_eq!(acquire(store, "m", "c", LONG).await, Leased::Acquired);
}

/// P1: the first decision stands, so a handoff that comes second hands nothing off; nobody waits for its settlement.
pub async fn a_write_that_was_decided_before_ends_its_lease(store: &Subject) {
    let first = StoreWrite { decision: Some(sample::decision("m", Outcome::Failed)), ..StoreWrite::default() };
    assert_eq!(write(store, first).await, Written::Done);
    assert_eq!(acquire(store, "m", "a", LONG).await, Leased::Acquired);
    let second = StoreWrite { decision: Some(sample::decision("m", Outcome::Handoff)), ..handed_off("m", "a") };
    assert_eq!(write(store, second).await, Written::AlreadyDecided);
    assert_eq!(acquire(store, "m", "b", LONG).await, Leased::Acquired);
}

/// Issue 4: a failed run lets the next one in at once.
pub async fn a_release_lets_the_next_in(store: &Subject) {
    assert_eq!(acquire(store, "m", "a", LONG).await, Leased::Acquired);
    release(store, "m", "b").await;
    assert!(matches!(acquire(store, "m", "b", LONG).await, Leased::InProgress { .. }), "it was not b's");
    release(store, "m", "a").await;
    assert_eq!(acquire(store, "m", "b", LONG).await, Leased::Acquired);
    release(store, "m", "a").await;
    release(store, "never taken", "a").await;
    assert!(renew(store, "m", "b").await);
}

/// P26: a handoff keeps its lease without an end of time; only its settlement ends it, which need not know who took it.
pub async fn a_handoff_is_kept_until_it_is_settled(store: &Subject) {
    assert_eq!(acquire(store, "m", "a", SHORT).await, Leased::Acquired);
    assert_eq!(write(store, handed_off("m", "a")).await, Written::Done);
    tokio::time::sleep(SHORT * 2).await;
    assert_eq!(acquire(store, "m", "b", LONG).await, Leased::HandedOff);
    assert_eq!(acquire(store, "m", "a", LONG).await, Leased::HandedOff, "nor by who handed it off");
    assert!(!renew(store, "m", "a").await);
    release(store, "m", "a").await;
    assert_eq!(acquire(store, "m", "b", LONG).await, Leased::HandedOff);
    let late = store.write(&endpoint(), success("m", "a")).await;
    assert!(matches!(late, Err(Error::LeaseLost)), "{late:?}");
    for _ in 0..2 {
        let settled = StoreWrite { finals: vec!["m".into()], lease: over("m", None), ..StoreWrite::default() };
        assert_eq!(write(store, settled).await, Written::Done);
    }
    assert_eq!(acquire(store, "m", "b", LONG).await, Leased::Acquired);
    // What somebody has in hand is no handoff.
    write(store, StoreWrite { lease: over("m", None), ..StoreWrite::default() }).await;
    assert!(renew(store, "m", "b").await);
}

/// A state conflict writes nothing, and the run repeats under the same lease (P4).
pub async fn a_state_conflict_leaves_the_lease(store: &Subject) {
    write(store, sample::changes(vec![put("k", "1")], vec![])).await;
    assert_eq!(acquire(store, "m", "a", LONG).await, Leased::Acquired);
    let stale = sample::changes(vec![put("k", "2")], vec![sample::saw("k", Default::default())]);
    let conflict = store.write(&endpoint(), StoreWrite { lease: over("m", Some("a")), ..stale }).await;
    assert!(matches!(conflict, Err(Error::StateConflict)), "{conflict:?}");
    assert!(renew(store, "m", "a").await);
    assert_eq!(write(store, success("m", "a")).await, Written::Done);
}

/// Cases 12 to 14: by bytes, and each endpoint for itself, also where names run together.
pub async fn endpoints_and_ids_are_kept_apart(store: &Subject) {
    let places: [(EndpointName, MessageId); 7] =
        [("shop", "m"), ("shop", "M"), ("shop", "m "), ("Shop", "m"), ("shop ", "m"), ("sho", "pm"), ("shopm", "")]
            .map(|(endpoint, id)| (endpoint.into(), id.into()));
    let owner = LeaseOwner::from("a");
    for (endpoint, id) in &places {
        let leased = leases(store).acquire(endpoint, id, &owner, LONG).await.expect("an answer");
        assert_eq!(leased, Leased::Acquired, "{endpoint:?} {id:?}");
    }
    leases(store).release(&places[0].0, &places[0].1, &owner).await.expect("it is taken");
    for (endpoint, id) in &places[1..] {
        let leased = leases(store).acquire(endpoint, id, &"b".into(), LONG).await.expect("an answer");
        assert!(matches!(leased, Leased::InProgress { .. }), "{endpoint:?} {id:?}");
    }
    for id in sample::odd_ids() {
        assert_eq!(acquire(store, &id, "a", LONG).await, Leased::Acquired, "{id:?}");
    }
}

/// Spec 9: an operator sees who is at what, and until when.
pub async fn leases_are_listed(store: &Subject) {
    for n in 0..4 {
        write(store, record(&[&format!("done-{n}")])).await;
        assert_eq!(acquire(store, &format!("held-{n}"), &format!("owner-{n}"), LONG).await, Leased::Acquired);
    }
    assert_eq!(acquire(store, "off", "a", LONG).await, Leased::Acquired);
    write(store, handed_off("off", "a")).await;
    let all = rows(store).await;
    let ids: HashSet<&str> = all.iter().map(|row| row.message_id.as_str()).collect();
    assert_eq!((all.len(), ids.len()), (9, 9));
    assert!(all.windows(2).all(|pair| pair[0].recorded_at >= pair[1].recorded_at), "newest first");
    for row in &all {
        match row.message_id.as_str().split_once('-') {
            Some(("done", _)) => assert_eq!(row.lease, None),
            Some((_, number)) => {
                let lease = row.lease.as_ref().expect("a lease");
                assert_eq!(lease.owner.as_str(), format!("owner-{number}"));
                let left = lease.expires_at.expect("it lapses").since(row.recorded_at);
                assert!(left >= LONG && left < LONG * 2, "{left:?}");
            }
            None => assert_eq!(row.lease, Some(LeaseRow { owner: "a".into(), expires_at: None })),
        }
    }
    let one = |endpoint: Option<EndpointName>, id: &str| InboxFilter { endpoint, message_id: Some(id.into()) };
    for (filter, found) in [
        (one(None, "held-1"), 1),
        (one(Some(endpoint()), "held-1"), 1),
        (one(Some("other".into()), "held-1"), 0),
        (one(None, "done-1"), 1),
        (InboxFilter { endpoint: Some("other".into()), message_id: None }, 0),
        (InboxFilter { endpoint: Some(endpoint()), message_id: None }, 9),
    ] {
        let listing = store.inbox(&filter, &Page::default()).await.expect("it is listed");
        assert_eq!(listing.items.len(), found, "{filter:?}");
    }
}

/// Leases that lapsed and that nobody came back for go with the endpoint's old records, in the same bounded batches; what is held or handed off stays.
pub async fn old_leases_are_purged(store: &Subject) {
    write(store, record(&["done"])).await;
    for n in 0..5 {
        assert_eq!(acquire(store, &format!("lapsed-{n}"), "a", Duration::from_millis(1)).await, Leased::Acquired);
    }
    assert_eq!(acquire(store, "held", "a", LONG).await, Leased::Acquired);
    assert_eq!(acquire(store, "off", "a", Duration::from_millis(1)).await, Leased::Acquired);
    write(store, handed_off("off", "a")).await;
    leases(store)
        .acquire(&"other".into(), &"lapsed".into(), &"a".into(), Duration::from_millis(1))
        .await
        .expect("an answer");
    let before = rows(store).await.iter().map(|row| row.recorded_at).max().expect("rows");
    let soon: Timestamp = before.after(LONG / 2);
    let purge = async |limit| store.purge_inbox(&endpoint(), soon, limit).await.expect("a purge answers");
    assert_eq!((purge(4).await, purge(4).await, purge(4).await), (4, 2, 0));
    let mut left: Vec<_> = rows(store).await.into_iter().map(|row| row.message_id.to_string()).collect();
    left.sort_unstable();
    assert_eq!(left, ["held", "lapsed", "off"]);
}

/// A call that has begun runs to its end even if the caller stops waiting.
pub async fn a_dropped_caller_does_not_stop_an_acquisition(store: &Subject) {
    {
        let (endpoint, id, owner) = (endpoint(), "m".into(), "a".into());
        let begun = leases(store).acquire(&endpoint, &id, &owner, LONG);
        tokio::select! {
            biased;
            result = begun => { result.expect("it is answered"); }
            () = std::future::ready(()) => {}
        }
    }
    for _ in 0..400 {
        if !rows(store).await.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the lease was lost with its caller");
}
