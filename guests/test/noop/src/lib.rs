//! The smallest handler: takes any event, does nothing. Benches measure the host with it.

wit_bindgen::generate!({ world: "handler", path: "../../../wit" });

struct Noop;

impl Guest for Noop {
    fn describe() -> HandlerInfo {
        HandlerInfo { event_types: vec!["*".into()] }
    }

    fn handle(_message: Message) -> Result<Success, Failure> {
        Ok(Success::Done)
    }
}

export!(Noop);
