//! One handler with many behaviours: the first word of the body says which, the rest of it is the argument.
//! It imports `state` and `config`, so a host must grant both.

use std::hint::black_box;

wit_bindgen::generate!({
    inline: "
        package sprag:probe;
        world probe {
            include sprag:handler/handler@0.1.0;
            import sprag:handler/state@0.1.0;
            import sprag:handler/config@0.1.0;
        }
    ",
    path: "../../../wit",
    generate_all,
});

use sprag::handler::{
    config, context, log,
    outgoing::{self, OutgoingMessage, PublishError},
    state,
    types::{DeadLetter, Failed, Handoff, Property, PropertyValue, Transient},
};

struct Probe;

/// Counts the runs of this instance: 1 in a fresh one.
static RUNS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

type Handled = Result<Success, Failure>;

fn done() -> Handled {
    Ok(Success::Done)
}

/// Hands a text to the test, which reads it as the reason of a discard.
fn say(text: impl ToString) -> Handled {
    Ok(Success::Discard(text.to_string()))
}

fn failed(kind: &str, text: impl ToString) -> Handled {
    Err(Failure::Failed(Failed { kind: kind.into(), text: text.to_string(), retry_after: None }))
}

fn outgoing(entity: &str, body: Vec<u8>) -> OutgoingMessage {
    OutgoingMessage {
        entity: entity.into(),
        event_type: "probe.sent".into(),
        message_id: None,
        session_id: None,
        correlation_id: None,
        content_type: None,
        properties: Vec::new(),
        body,
    }
}

fn publish_error(error: PublishError) -> Handled {
    match error {
        PublishError::NotAllowed(text) => failed("not-allowed", text),
        PublishError::Invalid(text) => failed("invalid", text),
        PublishError::TooMuch(text) => failed("too-much", text),
    }
}

/// For tests: written out the way the test expects it.
fn shown(value: &PropertyValue) -> String {
    match value {
        PropertyValue::Null => "null".into(),
        PropertyValue::Boolean(it) => format!("bool {it}"),
        PropertyValue::Integer(it) => format!("int {it}"),
        PropertyValue::Unsigned(it) => format!("uint {it}"),
        PropertyValue::Float(it) => format!("float {it}"),
        PropertyValue::Text(it) => format!("text {it}"),
        PropertyValue::Bytes(it) => format!("bytes {it:?}"),
        PropertyValue::Timestamp(it) => format!("time {it}"),
        PropertyValue::Uuid(it) => format!("uuid {it}"),
    }
}

#[inline(never)]
fn recurse(depth: u64) -> u64 {
    let room = black_box([depth; 64]);
    if depth == u64::MAX { 0 } else { recurse(depth + 1) + room[(depth % 64) as usize] }
}

/// Takes nothing of the stack that the guest keeps in its own memory.
#[inline(never)]
fn recurse_lightly(depth: u64) -> u64 {
    if depth == 0 { 1 } else { recurse_lightly(depth - 1).wrapping_mul(3) ^ depth.rotate_left(7) }
}

fn spin() -> ! {
    let mut count = 0_u64;
    loop {
        count = black_box(count.wrapping_add(1));
    }
}

impl Guest for Probe {
    fn describe() -> HandlerInfo {
        // A panic has no other way out of a plain wasm module than the log.
        std::panic::set_hook(Box::new(|panic| log::write(log::Level::Error, &panic.to_string())));
        HandlerInfo { event_types: vec!["probe".into(), "probe.other".into()] }
    }

    fn handle(message: Message) -> Handled {
        std::panic::set_hook(Box::new(|panic| log::write(log::Level::Error, &panic.to_string())));
        let runs = RUNS.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        let text = String::from_utf8_lossy(&message.body).into_owned();
        let (mode, rest) = text.split_once(' ').unwrap_or((&text, ""));
        let number = || rest.parse::<u64>().expect("a number as argument");
        match mode {
            "ok" => done(),
            "runs" => say(runs),
            // The good and the bad ends a handler can choose.
            "discard" => say(rest),
            "handoff" => Ok(Success::Handoff(Handoff {
                reason: rest.into(),
                external_id: Some("job-1".into()),
                expected_by: Some(4_102_444_800_000),
            })),
            "transient" => Err(Failure::Transient(Transient { text: rest.into(), retry_after: Some(1_500) })),
            "failed" => Err(Failure::Failed(Failed {
                kind: "card-declined".into(),
                text: rest.into(),
                retry_after: Some(2_000),
            })),
            "failed-no-kind" => failed("", rest),
            "dead-letter" => Err(Failure::DeadLetter(DeadLetter { reason: "never".into(), text: rest.into() })),
            "dead-letter-long" => {
                Err(Failure::DeadLetter(DeadLetter { reason: "é".repeat(5_000), text: "é".repeat(100_000) }))
            }
            // Hostile ones.
            "spin" => spin(),
            "panic" => panic!("boom: {rest}"),
            "unreachable" => core::arch::wasm32::unreachable(),
            "recurse" => say(recurse(0)),
            "recurse-lightly" => say(recurse_lightly(rest.parse().unwrap_or(u64::MAX)) % 2),
            "divide" => say(100 / black_box(number())),
            // Takes the megabytes given, and touches them.
            "alloc" => say(black_box(vec![1_u8; number() as usize * 1_048_576]).len()),
            // Is denied the memory, and then does not stop.
            "alloc-then-spin" => {
                let pages = (number() * 16) as usize;
                if core::arch::wasm32::memory_grow::<0>(pages) == usize::MAX { spin() } else { done() }
            }
            // Is denied the memory, and copes.
            "alloc-and-cope" => {
                let pages = (number() * 16) as usize;
                say(if core::arch::wasm32::memory_grow::<0>(pages) == usize::MAX { "denied" } else { "given" })
            }
            "alloc-then-fail" => {
                let pages = (number() * 16) as usize;
                _ = core::arch::wasm32::memory_grow::<0>(pages);
                failed("", "out of memory")
            }
            "publish-many" => {
                for _ in 0..number() {
                    // Goes on whatever the host says, as a broken handler would.
                    _ = outgoing::publish(&outgoing("out", Vec::new()));
                }
                done()
            }
            "publish-huge" => {
                _ = outgoing::publish(&outgoing("out", vec![b'x'; number() as usize]));
                done()
            }
            "publish-properties" => {
                let mut message = outgoing("out", Vec::new());
                message.properties = (0..number())
                    .map(|n| Property { name: format!("p{n}"), value: PropertyValue::Text("x".repeat(100)) })
                    .collect();
                _ = outgoing::publish(&message);
                done()
            }
            "log-flood" => {
                let line = "x".repeat(1_000);
                (0..number()).for_each(|_| log::write(log::Level::Info, &line));
                done()
            }
            "bad-utf8" => {
                // SAFETY: none. It breaks the promise of `String` on purpose, to see what the host makes of it.
                say(unsafe { String::from_utf8_unchecked(vec![0xff, 0xfe, b'x']) })
            }
            "publish-bad-utf8" => {
                // SAFETY: none, as above.
                let entity = unsafe { String::from_utf8_unchecked(vec![0xff, 0xfe]) };
                _ = outgoing::publish(&outgoing(&entity, Vec::new()));
                done()
            }
            // Outgoing.
            "publish" => match outgoing::publish(&outgoing(rest, b"hello".to_vec())) {
                Ok(id) => say(id),
                Err(error) => publish_error(error),
            },
            "publish-done" => {
                for word in rest.split(' ') {
                    if let Err(error) = outgoing::publish(&outgoing(word, b"hello".to_vec())) {
                        return publish_error(error);
                    }
                }
                done()
            }
            "publish-and-fail" => {
                _ = outgoing::publish(&outgoing(rest, b"hello".to_vec()));
                failed("after-publish", "it went wrong")
            }
            "publish-hide" => {
                // Lets nobody know what the host answered.
                _ = outgoing::publish(&outgoing(rest, b"hello".to_vec()));
                done()
            }
            "publish-property" => {
                let (name, value) = rest.split_once('=').expect("name=value");
                let mut message = outgoing("out", Vec::new());
                message.properties.push(Property { name: name.into(), value: PropertyValue::Text(value.into()) });
                match outgoing::publish(&message) {
                    Ok(_) => done(),
                    Err(error) => publish_error(error),
                }
            }
            "publish-id" => {
                let mut message = outgoing("out", Vec::new());
                message.message_id = Some(rest.into());
                match outgoing::publish(&message) {
                    Ok(_) => done(),
                    Err(error) => publish_error(error),
                }
            }
            "schedule" => match outgoing::schedule(&outgoing("out", b"later".to_vec()), 4_102_444_800_000) {
                Ok(_) => done(),
                Err(error) => publish_error(error),
            },
            "publish-full" => {
                let message = OutgoingMessage {
                    message_id: Some("mine".into()),
                    session_id: Some("other".into()),
                    correlation_id: Some("c".into()),
                    content_type: Some("text/plain".into()),
                    properties: message.properties,
                    ..outgoing("out", b"full".to_vec())
                };
                match outgoing::publish(&message) {
                    Ok(_) => done(),
                    Err(error) => publish_error(error),
                }
            }
            // State.
            "get" => match state::get(rest) {
                Ok(Some(value)) => say(String::from_utf8_lossy(&value)),
                Ok(None) => say("(none)"),
                Err(error) => failed("state", format!("{error:?}")),
            },
            // Swallows the store's failure.
            "get-hide" => {
                _ = state::get(rest);
                done()
            }
            "set" => {
                let (key, value) = rest.split_once('=').expect("key=value");
                match state::set(key, value.as_bytes()) {
                    Ok(()) => done(),
                    Err(error) => failed("state", format!("{error:?}")),
                }
            }
            "set-size" => match state::set("k", &vec![0; number() as usize]) {
                Ok(()) => done(),
                Err(error) => failed("state", format!("{error:?}")),
            },
            "set-many" => {
                for n in 0..number() {
                    _ = state::set(&n.to_string(), &[0; 1_000]);
                }
                done()
            }
            "get-many" => {
                for n in 0..number() {
                    _ = state::get(&n.to_string());
                }
                done()
            }
            // Several steps that see one another: `+key=value`, `-key`, `?key`, `*prefix`, `~key=old>new`.
            "state" => {
                let mut seen = Vec::new();
                for step in rest.split(' ') {
                    let (what, step) = step.split_at(1);
                    match what {
                        "+" => {
                            let (key, value) = step.split_once('=').expect("key=value");
                            state::set(key, value.as_bytes()).expect("set");
                        }
                        "-" => state::delete(step).expect("delete"),
                        "?" => seen.push(match state::get(step).expect("get") {
                            Some(value) => format!("{step}={}", String::from_utf8_lossy(&value)),
                            None => format!("{step}:none"),
                        }),
                        "~" => {
                            let (key, values) = step.split_once('=').expect("key=old>new");
                            let (old, new) = values.split_once('>').expect("old>new");
                            let some = |text: &str| (!text.is_empty()).then(|| text.as_bytes().to_vec());
                            let (old, new) = (some(old), some(new));
                            seen.push(
                                state::compare_and_set(key, old.as_deref(), new.as_deref()).expect("cas").to_string(),
                            );
                        }
                        "*" => {
                            let (prefix, limit) = step.split_once(':').unwrap_or((step, "1000"));
                            let (prefix, after) = prefix.split_once('>').unwrap_or((prefix, ""));
                            let after = (!after.is_empty()).then_some(after);
                            let found = state::scan(prefix, after, limit.parse().expect("a limit")).expect("scan");
                            let found: Vec<_> = found
                                .into_iter()
                                .map(|entry| format!("{}={}", entry.key, String::from_utf8_lossy(&entry.value)))
                                .collect();
                            seen.push(format!("[{}]", found.join(",")));
                        }
                        other => panic!("no such step: {other}"),
                    }
                }
                if seen.is_empty() { done() } else { say(seen.join(" ")) }
            }
            "scan-limit" => match state::scan("", None, number() as u32) {
                Ok(found) => say(found.len()),
                Err(error) => failed("state", format!("{error:?}")),
            },
            "scan-done" => {
                _ = state::scan(rest, None, 1_000);
                done()
            }
            // What the host tells.
            "context" => say(format!(
                "endpoint={} handler={} attempt={} remaining={} trace={:?}",
                context::endpoint(),
                context::handler(),
                context::attempt(),
                context::remaining(),
                context::trace().map(|trace| (trace.traceparent, trace.tracestate)),
            )),
            "config" => say(config::get(rest).unwrap_or_else(|| "(none)".into())),
            "config-all" => say(format!("{:?}", config::all())),
            "log" => {
                log::write(log::Level::Warn, rest);
                done()
            }
            "message" => say(format!(
                "id={:?} event={} type={} session={:?} correlation={:?} content={:?} subject={:?} reply={:?} enqueued={} kind={:?}",
                message.message_id,
                message.event_id,
                message.event_type,
                message.session_id,
                message.correlation_id,
                message.content_type,
                message.subject,
                message.reply_to,
                message.enqueued_at,
                message.body_kind,
            )),
            "properties" => say(message
                .properties
                .iter()
                .map(|it| format!("{}={}", it.name, shown(&it.value)))
                .collect::<Vec<_>>()
                .join("; ")),
            // Anything else is told back, as it came.
            _ => say(format!("{:?} {text}", message.body_kind)),
        }
    }
}

export!(Probe);
