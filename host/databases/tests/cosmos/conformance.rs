//! The suite that every inbox passes, and what is particular to this one, on an account.

use std::sync::Arc;

use sprag_core::{effect::StoreWrite, outcome::Outcome, time::Timestamp};
use sprag_databases::{
    cosmos::{Account, CosmosInbox, OpenError, Options},
    test_server::{Cosmos, cosmos},
};
use sprag_store::{
    Error, Store,
    conformance::sample,
    inbox::{Inbox, InboxBeside},
    memory::MemoryStore,
};

async fn fresh() -> (Arc<CosmosInbox>, Cosmos) {
    let account = cosmos().await;
    let inbox = CosmosInbox::open(account.options()).await.expect("the inbox opens");
    (Arc::new(inbox), account)
}

sprag_store::inbox_conformance!(fresh, flavor = "multi_thread");

/// A second host finds what the first has made, and what it has recorded.
#[tokio::test]
async fn a_container_is_made_once_and_shared() {
    let (first, account) = fresh().await;
    let second = CosmosInbox::open(Options { auto_create_container: false, ..account.options() }).await.unwrap();
    first.record(&sample::endpoint(), &["m".into()]).await.unwrap();
    assert_eq!(second.recorded(&[(sample::endpoint(), "m".into())]).await.unwrap(), [true]);
    let other = Options { container: "another one".into(), auto_create_container: false, ..account.options() };
    let refused = CosmosInbox::open(other.clone()).await;
    assert!(matches!(refused, Err(OpenError::NoContainer { .. })), "{refused:?}");
    let other = CosmosInbox::open(Options { auto_create_container: true, ..other }).await.unwrap();
    assert_eq!(other.recorded(&[(sample::endpoint(), "m".into())]).await.unwrap(), [false]);
}

/// The stand-in checks signatures with another implementation than ours.
#[tokio::test]
async fn a_wrong_key_is_refused_and_not_shown() {
    let account = cosmos().await;
    let endpoint = format!("{:?}", account.options().account);
    let at = endpoint.split('"').nth(1).expect("the address is shown");
    let wrong = Account::parse(&format!("AccountEndpoint={at}/;AccountKey=Z3Vlc3NlZA==")).unwrap();
    let refused = CosmosInbox::open(Options { account: wrong, ..account.options() }).await.unwrap_err();
    assert!(matches!(refused, OpenError::Refused { status: 401 | 403, .. }), "{refused:?}");
    assert!(!format!("{refused} {refused:?}").contains("Z3Vlc3NlZA"), "{refused:?}");
    assert!(refused.to_string().contains("key"), "it says what to look at: {refused}");
}

/// Case 130: what cannot be relied on is not used.
#[tokio::test]
async fn an_account_below_strong_is_refused() {
    let account = cosmos().await;
    if !account.is_stand_in() {
        eprintln!("the account's own consistency is not known: see `answers` for every level");
        return;
    }
    let strict = Options { allow_relaxed_consistency: false, ..account.options() };
    let refused = CosmosInbox::open(strict).await.unwrap_err();
    assert!(matches!(&refused, OpenError::Consistency { found, .. } if found == "Session"), "{refused:?}");
    assert!(refused.to_string().contains("allow_relaxed_consistency"), "{refused}");
}

/// P34, P35: beside a store. The record that a crash has kept out is there before the redelivery's check answers.
#[tokio::test]
async fn beside_a_store_a_missing_record_is_mended() {
    let (inbox, account) = fresh().await;
    let store = Arc::new(MemoryStore::new());
    let unreachable = Options { container: "gone".into(), ..account.options() };
    let success = StoreWrite {
        decision: Some(sample::decision("own", Outcome::Completed)),
        ..sample::record(&["source", "own"])
    };
    let gone = CosmosInbox::open(unreachable).await.unwrap();
    let cut: Arc<dyn Store> = Arc::new(InboxBeside::new(store.clone(), Arc::new(Failing(gone))));
    assert!(matches!(cut.write(&sample::endpoint(), success).await, Err(Error::Unavailable(_))));

    let whole: Arc<dyn Store> = Arc::new(InboxBeside::new(store, inbox.clone()));
    let answer = sample::ask(&whole, &sample::endpoint(), "own", Some("source")).await;
    assert!(answer.own_recorded && answer.source_recorded && answer.decision.is_some());
    let asked = [(sample::endpoint(), "own".into()), (sample::endpoint(), "source".into())];
    assert_eq!(inbox.recorded(&asked).await.unwrap(), [true, true]);
    assert_eq!(whole.purge_inbox(&sample::endpoint(), Timestamp(i64::MAX / 2), 10).await.unwrap(), 2);
}

/// An inbox that answers and takes no record.
struct Failing(CosmosInbox);

#[async_trait::async_trait]
impl Inbox for Failing {
    async fn recorded(
        &self,
        asked: &[(sprag_core::ids::EndpointName, sprag_core::ids::MessageId)],
    ) -> Result<Vec<bool>, Error> {
        self.0.recorded(asked).await
    }

    async fn record(&self, _: &sprag_core::ids::EndpointName, _: &[sprag_core::ids::MessageId]) -> Result<(), Error> {
        Err(Error::Unavailable("planned".into()))
    }

    async fn purge(
        &self,
        endpoint: &sprag_core::ids::EndpointName,
        before: Timestamp,
        limit: u32,
    ) -> Result<u32, Error> {
        self.0.purge(endpoint, before, limit).await
    }

    async fn list(
        &self,
        filter: &sprag_store::query::InboxFilter,
        page: &sprag_store::query::Page,
    ) -> Result<sprag_store::query::Listing<sprag_store::query::InboxRow>, Error> {
        self.0.list(filter, page).await
    }
}
