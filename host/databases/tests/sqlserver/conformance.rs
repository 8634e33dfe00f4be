//! The suite that every store passes.

use crate::support::fresh;

sprag_store::store_conformance!(fresh, flavor = "multi_thread");
