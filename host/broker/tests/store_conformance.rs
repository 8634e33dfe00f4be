//! The suite that every store passes, on the embedded engine.

use std::sync::Arc;

use sprag_broker::{Engine, Options};
use tempfile::TempDir;

async fn fresh() -> (Arc<Engine>, TempDir) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let engine = Engine::open(Options::new(dir.path())).expect("an empty folder opens");
    (Arc::new(engine), dir)
}

sprag_store::store_conformance!(fresh);
