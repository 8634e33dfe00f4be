//! Entities without sessions.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Bench, EVENTUALLY, SOON, entity, id_of};
use crate::{Error, Settlement};

pub async fn a_receiver_takes_what_it_asked_for(bench: &Bench) {
    bench.send("plain", None, &["1", "2", "3", "4", "5"]).await;
    let some = bench.transport.receive(&entity("plain"), 3, EVENTUALLY).await.expect("receiving works");
    assert_eq!(some.iter().map(id_of).collect::<Vec<_>>(), ["1", "2", "3"]);
    let rest = bench.transport.receive(&entity("plain"), 100, EVENTUALLY).await.expect("receiving works");
    assert_eq!(rest.iter().map(id_of).collect::<Vec<_>>(), ["4", "5"], "what is there comes without waiting for more");
    bench.nothing_to_take("plain").await;
}

pub async fn two_receivers_never_get_the_same_message(bench: &Bench) {
    const ALL: usize = 200;
    let ids: Vec<String> = (0..ALL).map(|n| n.to_string()).collect();
    bench.send("plain", None, &ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let transport = Arc::clone(&bench.transport);
            tokio::spawn(async move {
                let mut mine = Vec::new();
                loop {
                    let got = transport.receive(&entity("plain"), 7, SOON).await.expect("receiving works");
                    if got.is_empty() {
                        return mine;
                    }
                    for delivery in got {
                        mine.push(id_of(&delivery).to_owned());
                        tokio::task::yield_now().await;
                        transport
                            .settle(&entity("plain"), delivery.lock, Settlement::Complete)
                            .await
                            .expect("it is completed");
                    }
                }
            })
        })
        .collect();
    let mut seen = HashSet::new();
    for task in tasks {
        for id in task.await.expect("no panic") {
            assert!(seen.insert(id.clone()), "{id} was handed over twice");
        }
    }
    assert_eq!(seen.len(), ALL);
}

pub async fn a_plain_receiver_wakes_up(bench: &Bench) {
    let transport = Arc::clone(&bench.transport);
    let waiting = tokio::spawn(async move { transport.receive(&entity("plain"), 5, EVENTUALLY).await });
    tokio::time::sleep(SOON).await;
    let begun = Instant::now();
    bench.send("plain", None, &["1"]).await;
    assert_eq!(waiting.await.expect("no panic").expect("receiving works").len(), 1);
    assert!(begun.elapsed() < Duration::from_secs(2), "it came after {:?}", begun.elapsed());
}

/// A receiver that stops waiting leaves no message locked by nobody.
pub async fn a_dropped_receiver_takes_nothing(bench: &Bench) {
    for _ in 0..5 {
        let source = entity("plain");
        let gone =
            tokio::time::timeout(Duration::from_millis(5), bench.transport.receive(&source, 5, EVENTUALLY)).await;
        assert!(gone.is_err(), "nothing is there yet");
    }
    bench.send("plain", None, &["1"]).await;
    let delivery = bench.take("plain").await;
    assert_eq!((id_of(&delivery), delivery.delivery_count), ("1", 1));
}

/// Abandoning counts, releasing does not.
pub async fn what_is_given_back_comes_again(bench: &Bench) {
    bench.send("plain", None, &["1"]).await;
    for (settlement, count) in
        [(Settlement::Release, 1), (Settlement::Abandon, 1), (Settlement::Release, 2), (Settlement::Complete, 2)]
    {
        let delivery = bench.take("plain").await;
        assert_eq!((id_of(&delivery), delivery.delivery_count), ("1", count), "before {settlement:?}");
        bench.transport.settle(&entity("plain"), delivery.lock, settlement).await.expect("it is settled");
    }
    bench.nothing_to_take("plain").await;
}

/// Sessions of an entity without sessions, and the other way round: a clear word instead of a wait.
pub async fn a_session_call_on_a_plain_entity_is_refused(bench: &Bench) {
    let refused = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Refused(_))), "{result:?}");
    refused(bench.transport.accept_next(&entity("plain"), SOON).await.map(|_| ()));
    refused(bench.transport.accept(&entity("plain"), &"s".into(), SOON).await.map(|_| ()));
    refused(bench.transport.receive(&entity("sessions"), 1, SOON).await.map(|_| ()));
}
