//! Order within a session, one holder, fair offers, state (A01 to A06, A27, A44, A84).

use std::{collections::HashSet, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{Bench, EVENTUALLY, SOON, complete, entity, id_of, next, nothing_next, release};
use crate::{Error, Session, Settlement};

fn text(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from_static(text.as_bytes()))
}

async fn take_all(session: &dyn Session, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let delivery = next(session).await;
        ids.push(id_of(&delivery).to_owned());
        complete(session, &delivery).await;
    }
    ids
}

pub async fn messages_come_in_order(bench: &Bench) {
    let ids: Vec<String> = (0..50).map(|n| format!("m-{n}")).collect();
    for chunk in ids.chunks(7) {
        bench.send("sessions", Some("s"), &chunk.iter().map(String::as_str).collect::<Vec<_>>()).await;
        bench.send("sessions", Some("other"), &["between"]).await;
    }
    let session = bench.named("sessions", "s").await;
    assert_eq!(take_all(&*session, 50).await, ids);
    nothing_next(&*session).await;
}

/// A05: the second message is not handed over while the first is in hand.
pub async fn the_next_comes_after_the_one_before(bench: &Bench) {
    bench.send("sessions", Some("s"), &["1", "2"]).await;
    let session = bench.offered("sessions").await;
    let first = next(&*session).await;
    nothing_next(&*session).await;
    complete(&*session, &first).await;
    assert_eq!(id_of(&next(&*session).await), "2");
}

/// A02: 1, 2, 3, 4, 4, 4, 5, .. and never 5 before 4 is done. What is abandoned counts, what is released does not.
pub async fn nothing_overtakes_what_was_given_back(bench: &Bench) {
    let ids: Vec<String> = (1..=10).map(|n| n.to_string()).collect();
    bench.send("sessions", Some("s"), &ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut session = bench.offered("sessions").await;
    let mut seen = Vec::new();
    let mut given_back = 0;
    while seen.len() < 12 {
        let delivery = next(&*session).await;
        seen.push(format!("{}/{}", id_of(&delivery), delivery.delivery_count));
        if id_of(&delivery) == "4" && given_back < 2 {
            given_back += 1;
            let settlement = if given_back == 1 { Settlement::Abandon } else { Settlement::Release };
            session.settle(delivery.lock, settlement).await.expect("it is given back");
            release(&*session).await;
            session = bench.offered("sessions").await;
        } else {
            complete(&*session, &delivery).await;
        }
    }
    assert_eq!(seen, ["1/1", "2/1", "3/1", "4/1", "4/2", "4/2", "5/1", "6/1", "7/1", "8/1", "9/1", "10/1"]);
}

pub async fn a_session_has_one_holder(bench: &Bench) {
    bench.send("sessions", Some("s"), &["1"]).await;
    let session = bench.offered("sessions").await;
    bench.nothing_offered("sessions").await;
    match bench.transport.accept(&entity("sessions"), &"s".into(), SOON).await {
        Err(Error::SessionHeld(id)) => assert_eq!(id.as_str(), "s"),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("the session has two holders"),
    }
    bench.send("sessions", Some("s"), &["2"]).await;
    bench.nothing_offered("sessions").await;
    assert_eq!(take_all(&*session, 2).await, ["1", "2"]);
    release(&*session).await;
    bench.nothing_offered("sessions").await;
    bench.named("sessions", "s").await;
}

pub async fn a_named_session_is_waited_for(bench: &Bench) {
    let session = bench.named("sessions", "s").await;
    let transport = Arc::clone(&bench.transport);
    let waiting = tokio::spawn(async move {
        transport.accept(&entity("sessions"), &"s".into(), EVENTUALLY).await.map(|it| it.id().clone())
    });
    tokio::time::sleep(SOON).await;
    let begun = Instant::now();
    release(&*session).await;
    assert_eq!(waiting.await.expect("no panic").expect("it is accepted").as_str(), "s");
    assert!(begun.elapsed() < Duration::from_secs(2), "it came after {:?}", begun.elapsed());
}

pub async fn a_named_session_need_not_have_messages(bench: &Bench) {
    let session = bench.named("sessions", "quiet").await;
    assert_eq!(session.id().as_str(), "quiet");
    assert_eq!(session.state().await.expect("state is read"), None, "no state is no error");
    assert!(session.remaining() > Duration::from_secs(20) && session.remaining() <= Duration::from_secs(30));
    nothing_next(&*session).await;
    bench.send("sessions", Some("quiet"), &["1"]).await;
    assert_eq!(id_of(&next(&*session).await), "1");
}

/// A28: a session that was just served waits behind those that were not.
pub async fn accepting_goes_round(bench: &Bench) {
    for session in ["a", "b", "c"] {
        bench.send("sessions", Some(session), &[&format!("{session}1"), &format!("{session}2")]).await;
    }
    let mut seen = Vec::new();
    for _ in 0..6 {
        let session = bench.offered("sessions").await;
        seen.extend(take_all(&*session, 1).await);
        release(&*session).await;
    }
    assert_eq!(seen, ["a1", "b1", "c1", "a2", "b2", "c2"]);
    bench.nothing_offered("sessions").await;
}

pub async fn acceptors_share_no_session(bench: &Bench) {
    for n in 0..8 {
        bench.send("sessions", Some(&format!("s-{n}")), &["1", "2"]).await;
    }
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let transport = Arc::clone(&bench.transport);
            tokio::spawn(async move { transport.accept_next(&entity("sessions"), EVENTUALLY).await })
        })
        .collect();
    let mut held = Vec::new();
    for task in tasks {
        held.push(task.await.expect("no panic").expect("accepting works").expect("there is one for each"));
    }
    let ids: HashSet<_> = held.iter().map(|session| session.id().clone()).collect();
    assert_eq!(ids.len(), 8);
}

/// No polling: what waits is woken.
pub async fn an_acceptor_wakes_up_when_a_message_comes(bench: &Bench) {
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let transport = Arc::clone(&bench.transport);
            tokio::spawn(async move { transport.accept_next(&entity("sessions"), EVENTUALLY).await })
        })
        .collect();
    tokio::time::sleep(SOON).await;
    let begun = Instant::now();
    for session in ["a", "b", "c"] {
        bench.send("sessions", Some(session), &["1"]).await;
    }
    // Kept, because one that is dropped may be offered again at once.
    let mut held = Vec::new();
    for waiter in waiters {
        held.push(waiter.await.expect("no panic").expect("accepting works").expect("one for each"));
    }
    let mut seen: Vec<_> = held.iter().map(|session| session.id().to_string()).collect();
    seen.sort_unstable();
    assert_eq!(seen, ["a", "b", "c"]);
    assert!(begun.elapsed() < Duration::from_secs(2), "they came after {:?}", begun.elapsed());
}

pub async fn a_receiver_wakes_up_when_a_message_comes(bench: &Bench) {
    let session = bench.named("sessions", "s").await;
    let receiver = Arc::clone(&session);
    let waiting = tokio::spawn(async move { receiver.receive(EVENTUALLY).await });
    tokio::time::sleep(SOON).await;
    let begun = Instant::now();
    bench.send("sessions", Some("s"), &["1"]).await;
    let delivery = waiting.await.expect("no panic").expect("receiving works").expect("a message comes");
    assert_eq!(id_of(&delivery), "1");
    assert!(begun.elapsed() < Duration::from_secs(2), "it came after {:?}", begun.elapsed());
}

/// An acceptor that stops waiting leaves no session held by nobody.
pub async fn a_dropped_acceptor_takes_nothing(bench: &Bench) {
    for _ in 0..5 {
        let source = entity("sessions");
        let waiting = bench.transport.accept_next(&source, EVENTUALLY);
        let gone = tokio::time::timeout(Duration::from_millis(5), waiting).await;
        assert!(gone.is_err(), "nothing is there yet");
    }
    bench.send("sessions", Some("s"), &["1"]).await;
    let session = bench.offered("sessions").await;
    assert_eq!(take_all(&*session, 1).await, ["1"]);
    for _ in 0..5 {
        let gone = tokio::time::timeout(Duration::from_millis(5), session.receive(EVENTUALLY)).await;
        assert!(gone.is_err(), "nothing is there");
    }
    bench.send("sessions", Some("s"), &["2"]).await;
    assert_eq!(take_all(&*session, 1).await, ["2"]);
}

/// A84: eight sessions are served side by side, not one after another.
pub async fn eight_sessions_side_by_side(bench: &Bench) {
    const SESSIONS: usize = 8;
    const EACH: usize = 10;
    for n in 0..SESSIONS {
        let ids: Vec<String> = (0..EACH).map(|k| format!("{n}-{k}")).collect();
        bench.send("sessions", Some(&format!("s-{n}")), &ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    let together = Arc::new(tokio::sync::Barrier::new(SESSIONS));
    let tasks: Vec<_> = (0..SESSIONS)
        .map(|_| {
            let (transport, together) = (Arc::clone(&bench.transport), Arc::clone(&together));
            tokio::spawn(async move {
                let session = transport
                    .accept_next(&entity("sessions"), EVENTUALLY)
                    .await
                    .expect("accepting works")
                    .expect("one each");
                for k in 0..EACH {
                    let delivery = next(&*session).await;
                    // Nobody passes before all eight have a message in hand.
                    tokio::time::timeout(EVENTUALLY, together.wait()).await.expect("all are served at once");
                    assert!(id_of(&delivery).ends_with(&format!("-{k}")), "{} is out of order", id_of(&delivery));
                    complete(&*session, &delivery).await;
                }
                release(&*session).await;
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task fails");
    }
    bench.nothing_offered("sessions").await;
}

/// A44, P32: state survives its holder; null and no bytes both read as none.
pub async fn state_is_kept_and_null_is_empty(bench: &Bench) {
    let session = bench.named("sessions", "s").await;
    assert_eq!(session.state().await.expect("state is read"), None);
    session.set_state(text("{\"a\":1}")).await.expect("state is written");
    assert_eq!(session.state().await.expect("state is read"), text("{\"a\":1}"));
    release(&*session).await;
    let session = bench.named("sessions", "s").await;
    assert_eq!(session.state().await.expect("state is read"), text("{\"a\":1}"));
    for empty in [text(""), None] {
        session.set_state(text("x")).await.expect("state is written");
        session.set_state(empty).await.expect("state is written");
        assert_eq!(session.state().await.expect("state is read"), None);
    }
    assert_eq!(bench.named("sessions", "other").await.state().await.expect("state is read"), None);
    release(&*session).await;
    let left = bench.transport.sessions(&entity("sessions"), None, 10).await.expect("a listing");
    assert!(left.iter().all(|info| info.session.as_str() != "s"), "an idle session leaves nothing behind: {left:?}");
}

/// A27: a session given back with a pause comes again after it, also when a message comes meanwhile.
pub async fn a_pause_keeps_the_session_from_being_offered(bench: &Bench) {
    bench.send("sessions", Some("s"), &["1"]).await;
    let session = bench.offered("sessions").await;
    let delivery = next(&*session).await;
    session.settle(delivery.lock, Settlement::Release).await.expect("it is given back");
    let pause = Duration::from_millis(300);
    let begun = Instant::now();
    session.release(pause).await.expect("the session is released");
    bench.send("sessions", Some("s"), &["2"]).await;
    bench.nothing_offered("sessions").await;
    let session = bench.offered("sessions").await;
    let elapsed = begun.elapsed();
    assert!(elapsed >= pause - Duration::from_millis(20), "it came after {elapsed:?}");
    assert!(elapsed < pause + Duration::from_secs(2), "it came after {elapsed:?}");
    assert_eq!(take_all(&*session, 2).await, ["1", "2"]);
}

/// What was in hand is not lost with the session, and the session is not usable any more.
pub async fn a_released_session_gives_its_messages_back(bench: &Bench) {
    bench.send("sessions", Some("s"), &["1", "2"]).await;
    let session = bench.offered("sessions").await;
    let delivery = next(&*session).await;
    release(&*session).await;
    let late = session.settle(delivery.lock, Settlement::Complete).await;
    assert!(matches!(late, Err(Error::LockLost)), "{late:?}");
    let late = session.receive(SOON).await;
    assert!(matches!(late, Err(Error::LockLost)), "{late:?}");
    let session = bench.offered("sessions").await;
    assert_eq!(take_all(&*session, 2).await, ["1", "2"]);
}

/// Sessions with messages, state or a holder, in order of their ids, in parts.
pub async fn sessions_are_listed(bench: &Bench) {
    bench.send("sessions", Some("b"), &["1", "2"]).await;
    bench.send("sessions", Some("a"), &["3"]).await;
    let held = bench.named("sessions", "d").await;
    let stateful = bench.named("sessions", "c").await;
    stateful.set_state(text("blocked")).await.expect("state is written");
    release(&*stateful).await;
    let part = |after: Option<&'static str>, max| async move {
        bench.transport.sessions(&entity("sessions"), after.map(Into::into).as_ref(), max).await.expect("a listing")
    };
    let all = part(None, 10).await;
    // A broker that is not near does not list a session for its holder alone.
    let listed = if bench.far { 3 } else { 4 };
    assert_eq!(all.iter().map(|info| info.session.as_str()).collect::<Vec<_>>(), ["a", "b", "c", "d"][..listed]);
    assert_eq!(all.iter().map(|info| info.active).collect::<Vec<_>>(), [1, 2, 0, 0][..listed]);
    assert_eq!(all.iter().map(|info| info.locked).collect::<Vec<_>>(), [false, false, false, true][..listed]);
    assert_eq!((all[2].state.clone(), all[0].state.clone()), (text("blocked"), None));
    let ids =
        |infos: Vec<crate::SessionInfo>| infos.into_iter().map(|info| info.session.to_string()).collect::<Vec<_>>();
    assert_eq!(ids(part(None, 2).await), ["a", "b"]);
    assert_eq!(ids(part(Some("b"), 2).await), ["c", "d"][..listed - 2]);
    assert_eq!(ids(part(Some("d"), 2).await), [""; 0]);
    drop(held);
}
