//! Serves the administration API alone, on loopback, for the suites in `tests/sdk`.
//!
//! `administration FOLDER [PORT [KEY]]`: the engine's folder; the port (0, the default, takes a free one); the key of
//! `RootManageSharedAccessKey`, the emulator's when none is given. Prints `ready PORT`, and serves until it is killed.

use std::{env, sync::Arc, time::SystemTime};

use sprag_broker::{Engine, Options};
use sprag_core::time::Timestamp;
use sprag_gateway::{
    access::{Access, Key, Rights},
    administration,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = env::args().skip(1);
    let folder = arguments.next().ok_or("usage: administration FOLDER [PORT [KEY]]")?;
    let port: u16 = arguments.next().map_or(Ok(0), |port| port.parse())?;
    let access = match arguments.next() {
        Some(key) => Access::with_keys([Key::new(Access::EMULATOR_NAME, key, Rights::ALL)]),
        None => Access::emulator(),
    };
    let engine = Engine::open(Options::new(folder))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
        println!("ready {}", listener.local_addr()?.port());
        axum::serve(listener, administration::router(engine, access, Arc::new(now))).await
    })?;
    Ok(())
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
