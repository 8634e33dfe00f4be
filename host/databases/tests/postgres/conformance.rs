//! The suite that every store passes.

use std::sync::Arc;

use sprag_databases::test_server::Database;
use sprag_store::inbox::InboxOf;

use crate::support::fresh;

sprag_store::store_conformance!(fresh, flavor = "multi_thread");
sprag_store::lease_conformance!(fresh, flavor = "multi_thread");

mod as_an_inbox {
    use super::*;

    async fn fresh() -> (Arc<InboxOf>, Database) {
        let (store, database) = super::fresh().await;
        (Arc::new(InboxOf::new(store)), database)
    }

    sprag_store::inbox_conformance!(fresh, flavor = "multi_thread");
}
