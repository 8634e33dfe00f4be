//! A server that is stopped and started under load (A52, A57).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use sprag_databases::{
    postgres::PostgresStore,
    test_server::{Server, Setup},
};
use sprag_store::{
    Error, Store, Written,
    query::{InboxFilter, Page},
};

use crate::support::{ask, open, shop, success, until};

/// Handles one delivery as a worker does: no run without a check, and after an error the delivery comes again. Answers how often it did.
async fn deliver(store: &PostgresStore, id: &str, failed: &AtomicU32) -> u32 {
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
    let server = Server::start(Setup::default());
    let store = Arc::new(open(&server.url("postgres")).await);
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
        server.stop();
        until("all wait", async || failed.load(Ordering::Relaxed) > before + 20).await;
        server.start_again();
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
    assert_eq!(count_inbox(&store).await, all, "what was answered is there");
    assert_eq!(count_outbox(&store).await, all, "and took effect once");
}

async fn count_inbox(store: &PostgresStore) -> usize {
    let (mut count, mut page) = (0, Page { after: None, limit: 1_000 });
    loop {
        let part = store.inbox(&InboxFilter::default(), &page).await.expect("the server is back");
        count += part.items.len();
        page.after = part.next;
        if page.after.is_none() {
            return count;
        }
    }
}

async fn count_outbox(store: &PostgresStore) -> usize {
    let (mut count, mut page) = (0, Page { after: None, limit: 1_000 });
    loop {
        let part = store.outbox(&page).await.expect("the server is back");
        count += part.items.len();
        page.after = part.next;
        if page.after.is_none() {
            return count;
        }
    }
}

/// A57: while it lasts, the error names the server and what is wrong, not the pool.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_named() {
    let server = Server::start(Setup::default());
    let store = open(&server.url("postgres")).await;
    server.stop();
    until("the lost connections are gone", async || {
        matches!(ask(&store, "m").await, Err(Error::Unavailable(text)) if text.contains("127.0.0.1:") && text.contains("cannot be reached"))
    })
    .await;
    server.start_again();
    until("it is back", async || ask(&store, "m").await.is_ok()).await;
}
