//! A server that is stopped and started under load (A52, A57).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use sprag_databases::sqlserver::SqlServerStore;
use sprag_store::{
    Error, Store, Written,
    query::{InboxFilter, Page},
};

use crate::support::{ask, fake, shop, success, until};

/// Handles one delivery as a worker does: no run without a check, and after an error the delivery comes again. Answers how often it did.
async fn deliver(store: &SqlServerStore, id: &str, failed: &AtomicU32) -> u32 {
    for again in 0.. {
        let tried = async {
            let answer = ask(store, id).await?;
            assert!(again > 0 || !answer.own_recorded, "{id} is new, whatever happens to the server");
            if answer.own_recorded { Ok(Written::AlreadyDecided) } else { store.write(&shop(), success(id)).await }
        };
        match tried.await {
            Ok(written) => {
                assert!(again > 0 || written == Written::Done, "{id} is new");
                return again;
            }
            Err(Error::Unavailable(_)) => {
                failed.fetch_add(1, Ordering::Relaxed);
                // The back-off.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(other) => panic!("an outage is unavailable and nothing else: {other:?}"),
        }
    }
    unreachable!("it goes on until it is answered")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_no_answer_and_ends_by_itself() {
    let (store, fake) = fake().await;
    let (stop, answered, failed) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
            let (answered, failed) = (Arc::clone(&answered), Arc::clone(&failed));
            tokio::spawn(async move {
                let (mut done, mut again) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    again += deliver(&store, &format!("{writer}-{done}"), &failed).await;
                    answered.fetch_add(1, Ordering::Relaxed);
                    done += 1;
                }
                (done, again)
            })
        })
        .collect();
    for _ in 0..2 {
        let before = answered.load(Ordering::Relaxed);
        until("deliveries are answered", async || answered.load(Ordering::Relaxed) > before + 50).await;
        let before = failed.load(Ordering::Relaxed);
        let connections = fake.connections();
        let begun = Instant::now();
        fake.go_down();
        until("all wait", async || failed.load(Ordering::Relaxed) > before + 100).await;
        let (tries, most) = (fake.connections() - connections, 25 + 20 * (begun.elapsed().as_secs() + 1));
        assert!(tries <= most, "{tries} connections were tried in {:?}: a back-off bounds them", begun.elapsed());
        fake.come_up();
    }
    let before = answered.load(Ordering::Relaxed);
    until("deliveries are answered again", async || answered.load(Ordering::Relaxed) > before + 50).await;
    stop.store(true, Ordering::Relaxed);

    let (mut all, mut redeliveries) = (0, 0);
    for writer in writers {
        let (done, again) = writer.await.unwrap();
        all += done;
        redeliveries += again;
    }
    assert!(redeliveries > 0);
    let (mut recorded, mut sent) = (0, 0);
    let (mut page, mut outbox) = (Page { after: None, limit: 1_000 }, Page { after: None, limit: 1_000 });
    loop {
        let part = store.inbox(&InboxFilter::default(), &page).await.expect("the server is back");
        recorded += part.items.len();
        let Some(next) = part.next else { break };
        page.after = Some(next);
    }
    loop {
        let part = store.outbox(&outbox).await.expect("the server is back");
        sent += part.items.len();
        let Some(next) = part.next else { break };
        outbox.after = Some(next);
    }
    assert_eq!((recorded, sent), (all, all), "what was answered is there, and took effect once");
}

/// A57: while it lasts, the error names the server and what is wrong, not the pool. Connections that the server has closed are not lent.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_named() {
    let (store, fake) = fake().await;
    ask(&store, "m").await.unwrap();
    fake.go_down();
    until("the lost connections are gone", async || {
        matches!(ask(&store, "m").await, Err(Error::Unavailable(text)) if text.contains("localhost:") && text.contains("cannot be reached"))
    })
    .await;
    fake.come_up();
    until("it is back", async || ask(&store, "m").await.is_ok()).await;
}
