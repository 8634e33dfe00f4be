//! The embedded engine: a durable broker, the inbox, handler state, outbox and tracking in one SQLite file, so that a step of the worker is
//! one transaction.
//!
//! Start reading at [`Engine`]. It is three things at once: a [`sprag_transport::Transport`] (`broker`, `session`), what network clients need beyond that (`client`, `admin`), a [`sprag_store::Store`]
//! (`store`, `tracking`, `listings`) and the [`sprag_transport::Committer`] that carries out a decision of the session machine (`commit`).
//! Under them: one `writer` thread that commits what waits together, the `index` in memory that knows who is next, and the rows (`messages`,
//! `schema`).
//!
//! *Invariant:* what somebody was told is done is in the file; the index knows only what is in the file; nobody but the writer writes.

mod actions;
mod admin;
mod broker;
mod cache;
pub mod client;
mod codes;
mod commit;
mod counters;
mod engine;
mod entity;
mod filter;
mod index;
mod known;
mod leases;
mod listings;
mod lock;
mod messages;
mod options;
mod outbox;
mod posts;
mod purge;
mod route;
mod schema;
mod session;
mod shared;
mod sql;
mod state;
mod stats;
mod store;
mod topology;
mod tracking;
mod writer;

// The rows' bytes are the same in every store that keeps them.
use sprag_store::{codec, decision};

pub use admin::{EntityCounts, EntityView, RuleView};
pub use engine::{Engine, FILE};
pub use entity::{
    DEAD_LETTER_SUFFIX, DeclareError, EntityKind, EntitySpec, EntityStatus, MAX_HOPS, MAX_MESSAGE_ID, MAX_MESSAGE_SIZE,
    MAX_SESSION_ID, TRANSFER_DEAD_LETTER_SUFFIX,
};
pub use filter::{Correlation, DEFAULT_RULE, FilterError, FilterSpec, FilterValue, RuleSpec, SqlText};
pub use options::{Clock, OpenError, Options};
pub use schema::VERSION as SCHEMA_VERSION;
pub use stats::Stats;
