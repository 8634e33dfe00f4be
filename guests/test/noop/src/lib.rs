//! The smallest handler: takes any event, does nothing. Benches measure the host with it. It is written with the SDK, as users' handlers are.

use sprag_handler::{Failure, Handler, Message, Success};

struct Noop;

impl Handler for Noop {
    const EVENT_TYPES: &[&str] = &["*"];

    fn handle(_message: Message) -> Result<Success, Failure> {
        Ok(Success::Done)
    }
}

sprag_handler::export!(Noop);
