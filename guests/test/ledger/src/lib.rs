//! A handler that leaves traces, so that a test can say afterwards which runs counted: at endpoint `work` it keeps books in `state` and
//! publishes one message per run to the queue `tally`; at endpoint `tally` it counts what came.
//!
//! The body's first word is how the run ends; `+N` after it makes it last N milliseconds. The books are written before the run ends badly, so
//! that a run that failed and left something behind is seen.

use std::hint::black_box;

wit_bindgen::generate!({
    inline: "
        package sprag:ledger;
        world ledger {
            include sprag:handler/handler@0.1.0;
            import sprag:handler/state@0.1.0;
        }
    ",
    path: "../../../wit",
    generate_all,
});

use sprag::handler::{
    context,
    outgoing::{self, OutgoingMessage},
    state,
    types::{DeadLetter, Failed},
};

struct Ledger;

fn read(key: &str) -> String {
    let value = state::get(key).expect("state can be read").unwrap_or_default();
    String::from_utf8(value).expect("only this handler writes here")
}

fn write(key: &str, value: &str) {
    state::set(key, value.as_bytes()).expect("state takes this");
}

fn add_one(key: &str) {
    let count: u64 = read(key).parse().unwrap_or(0);
    write(key, &(count + 1).to_string());
}

fn append(key: &str, line: &str) {
    let mut text = read(key);
    text.push_str(line);
    text.push('\n');
    write(key, &text);
}

/// There is no clock in a plain module; what is left of the run's time is one.
fn last(millis: u64) {
    let until = context::remaining().saturating_sub(millis);
    while black_box(context::remaining()) > until {}
}

impl Guest for Ledger {
    fn describe() -> HandlerInfo {
        HandlerInfo { event_types: vec!["*".into()] }
    }

    fn handle(message: Message) -> Result<Success, Failure> {
        let session = message.session_id.clone().unwrap_or_else(|| "-".into());
        let text = String::from_utf8(message.body).unwrap_or_default();
        if context::endpoint() == "tally" {
            add_one(&format!("got/{text}"));
            append(&format!("log/{session}"), &text);
            return Ok(Success::Done);
        }
        let event = message.event_id;
        add_one(&format!("event/{event}"));
        append(&format!("log/{session}"), &event);
        let sent = OutgoingMessage {
            entity: "tally".into(),
            event_type: "Tally".into(),
            message_id: None,
            session_id: None,
            correlation_id: None,
            content_type: None,
            properties: Vec::new(),
            body: event.into_bytes(),
        };
        outgoing::publish(&sent).expect("tally may be sent to");
        let (how, time) = text.split_once('+').unwrap_or((&text, "0"));
        last(time.parse().unwrap_or(0));
        // The one key that all sessions share. Last, so that few runs meet at it.
        add_one("count");
        let failed =
            |text: &str| Err(Failure::Failed(Failed { kind: how.into(), text: text.into(), retry_after: None }));
        match how {
            "once" if context::attempt() == 1 => failed("the first run fails"),
            "ok" | "once" => Ok(Success::Done),
            "never" => failed("as it is, this event fails"),
            "discard" => Ok(Success::Discard("nothing to do".into())),
            "dead" => Err(Failure::DeadLetter(DeadLetter { reason: "never".into(), text: "cannot be handled".into() })),
            other => failed(&format!("no such end: {other:?}")),
        }
    }
}

export!(Ledger);
