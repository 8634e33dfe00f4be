//! The worker, whole: from a message on a queue to its outcome, with scripted handlers instead of components.
//!
//! [`world`] is the fixture. Every scenario named in a `on_every_bench!` list runs on three benches: in memory, where effects happen one after
//! another, on the embedded engine, where a commit is one transaction, and over AMQP with a broker that is somewhere else. Nothing waits for a time to pass; everything waits
//! for what must come, and gives up after 20 s.

mod bench;
mod blocking;
mod crash;
mod crash_table;
mod ends;
mod far;
mod handoff;
mod identity;
mod lease;
mod order;
mod outage;
mod outgoing;
mod parking;
mod plain;
mod resubmission;
mod retries;
mod scale;
mod sql;
mod stopping;
mod world;
