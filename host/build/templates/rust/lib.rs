//! The handler `{{name}}`.

use serde::Deserialize;
use sprag_handler::config; {{config}}
use sprag_handler::sql; {{sql}}
use sprag_handler::state; {{state}}
use sprag_handler::{Failure, Handler, Message, Success, log};

#[derive(Deserialize)]
struct Greeting {
    name: String,
}

struct Greeter;

impl Handler for Greeter {
    const EVENT_TYPES: &[&str] = &["Greeting"];

    fn handle(message: Message) -> Result<Success, Failure> {
        let greeting: Greeting = message.json()?;
        if greeting.name.is_empty() {
            return Err(Failure::failed("no-name", "cannot greet somebody without a name"));
        }
        let key = format!("greeted/{}", greeting.name); {{state}}
        let times = state::get_json::<u64>(&key)?.unwrap_or(0) + 1; {{state}}
        state::set_json(&key, &times)?; {{state}}
        log::info(format_args!("{} was greeted {times} times", greeting.name)); {{state}}
        let database = sql::Database::new("embedded"); {{sql}}
        database.execute("CREATE TABLE IF NOT EXISTS greeted (name TEXT PRIMARY KEY, times INTEGER NOT NULL)", &[])?; {{sql}}
        let count = "INSERT INTO greeted VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET times = times + 1"; {{sql}}
        database.execute(count, &[greeting.name.as_str().into()])?; {{sql}}
        let hello = config::get("greeting").unwrap_or_else(|| "Hello".to_owned()); {{config}}
        log::info(format_args!("{hello}, {}!", greeting.name)); {{config}}
        log::info(format_args!("Hello, {}!", greeting.name)); {{no-config}}
        Ok(Success::Done)
    }
}

sprag_handler::export!(Greeter);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_not_greeted() {
        let message = Message::new("Greeting", r#"{"name": ""}"#);
        assert!(matches!(Greeter::handle(message), Err(Failure::Failed(failed)) if failed.kind == "no-name"));
    }
}
