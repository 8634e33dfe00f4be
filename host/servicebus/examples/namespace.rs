//! A namespace on this machine: the embedded broker with AMQP and the administration API on loopback, in a temporary folder. The suites of
//! `tests/conformance.rs` run against it as against one of Azure's.
//!
//! Prints the variables that they read, and serves until its input ends.

#[path = "../tests/support/namespace.rs"]
mod namespace;
#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{self, Read as _};

use sprag_gateway::access::Access;

#[tokio::main]
async fn main() -> io::Result<()> {
    let namespace = namespace::Namespace::start().await;
    println!(
        "SPRAG_TEST_SERVICEBUS='Endpoint=sb://{};SharedAccessKeyName={};SharedAccessKey={};UseDevelopmentEmulator=true'",
        namespace.broker.address(),
        Access::EMULATOR_NAME,
        Access::EMULATOR_KEY
    );
    println!("SPRAG_TEST_SERVICEBUS_ADMINISTRATION_PORT={}", namespace.port);
    // Whoever started it holds the other end.
    tokio::task::spawn_blocking(|| io::stdin().read_to_end(&mut Vec::new())).await.map_err(io::Error::other)??;
    namespace.broker.stop().await;
    Ok(())
}
