//! The HTTP administration API: entities and rules as Atom XML, as the administration clients of Azure's SDKs speak it.
//!
//! Start reading at [`router`]. A request goes `path` (what it names) → [`access`](crate::access) (who asks) → `handle` → the engine;
//! `settings` and `rules` read what the body says, `describe` and `rules` write what there is, in the frame of `atom`.
//!
//! *Invariant:* the engine decides; nothing about entities is kept here. What a client asks for is done, or kept because it changes nothing that
//! a client could see, or refused by name:
//!
//! | asked for | answer |
//! |---|---|
//! | `EnableBatchedOperations`, `EnableExpress`, `SupportOrdering`, `DeadLetteringOnFilterEvaluationExceptions` | kept and given back, without effect |
//! | `EnablePartitioning` | kept and given back; there is one partition, which keeps all orders that several would |
//! | `DuplicateDetectionHistoryTimeWindow` without duplicate detection | kept and given back |
//! | `AutoDeleteOnIdle` other than for ever | refused (400) |
//! | `AuthorizationRules` other than none | refused (400) |
//! | `IsAnonymousAccessible`, `FilteringMessagesBeforePublishing`, `EnableSubscriptionPartitioning`: `true` | refused (400) |
//! | `DefaultRuleDescription` in a change | not looked at, as on Azure: rules have their own requests |
//! | a setting that the kind of entity has not | refused (400) |
//! | `If-Match` with another tag than `*` | refused (412) |
//!
//! TLS is not done here: serve the router behind it, or on loopback, as [`Server`] does.

mod atom;
mod describe;
mod duration;
mod handle;
mod path;
mod refusal;
mod rules;
mod server;
mod settings;
mod xml;

pub use server::{BindError, Server};

use axum::Router;
use sprag_broker::{Clock, Engine};

use crate::access::Access;

/// What all requests share.
#[derive(Clone)]
struct Administration {
    engine: Engine,
    access: Access,
    clock: Clock,
}

/// The API, to be served on a port of its own. `clock` tells which tokens have ended.
pub fn router(engine: Engine, access: Access, clock: Clock) -> Router {
    Router::new().fallback(handle::handle).with_state(Administration { engine, access, clock })
}
