//! What the crate `azservicebus` can do with queues, topics and sessions, and what it does while connections are cut and the broker is killed.
//!
//! `sprag-azservicebus-suite messages [PART OF A NAME]` runs the scenarios against the broker whose connection string is in SPRAG_SERVICEBUS,
//! with the entities of tests/sdk/entities; `sprag-azservicebus-suite soak` is run by tests/sdk/faults.py. Both are started by tests/sdk/run.
//!
//! Start reading at [`scenario`]: it is how everything here is run, because of how this client is (docs/azure-sdk.md, "Rust"): on a runtime of
//! one thread, with no call ever given up and then gone on with, and a new client after one that failed to make a sender or a receiver.
//! The scenarios stand in `plain`, `settling`, `scheduling`, `sessions` and `topics`; `traits` holds what is the client's way and not the
//! broker's, so that a new version of the client that behaves otherwise is noticed.

mod broker;
mod plain;
mod scenario;
mod scheduling;
mod sessions;
mod settling;
mod soak;
mod topics;
mod traits;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("messages") => {
            let mut suite = scenario::Suite::new(arguments.next());
            plain::run(&mut suite);
            settling::run(&mut suite);
            scheduling::run(&mut suite);
            sessions::run(&mut suite);
            topics::run(&mut suite);
            traits::run(&mut suite);
            suite.end()
        }
        Some("soak") => soak::run(),
        _ => {
            eprintln!("sprag-azservicebus-suite messages [PART OF A NAME] | soak");
            ExitCode::from(2)
        }
    }
}
