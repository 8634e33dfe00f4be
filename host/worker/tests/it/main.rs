//! The worker, whole: from a message on a queue to its outcome, with scripted handlers instead of components.
//!
//! [`world`] is the fixture. Every scenario named in a `both!` list runs on two benches: in memory, where effects happen one after another as
//! with a remote broker, and on the embedded engine, where a commit is one transaction. Nothing waits for a time to pass; everything waits
//! for what must come, and gives up after 20 s.

mod blocking;
mod crash;
mod ends;
mod handoff;
mod identity;
mod order;
mod outage;
mod outgoing;
mod parking;
mod plain;
mod resubmission;
mod retries;
mod scale;
mod stopping;
mod world;
