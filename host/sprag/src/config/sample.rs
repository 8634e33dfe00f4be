//! The documented sample, written from the key table so that it cannot say what the reader does not know.

use std::fmt::Write as _;

use super::keys::{self, Key, Kind, Section};

/// The text of `docs/sprag.toml`.
pub(crate) fn sample() -> String {
    let mut text = String::from(
        "# sprag.toml: every key, with its default or an example.\n\
         #\n\
         # Written by `sprag check --print-sample`. A line that starts with `# key =` shows a default or an example of a key that is\n\
         # left out; the others make a configuration that works as it is. Durations need a unit (ms, s, m, h, d), sizes too (B, KiB, MiB, GiB).\n",
    );
    section(&mut text, "[host]", &keys::HOST, &[]);
    // Left out: with it, `run` serves clients, and needs keys.
    section(&mut text, "# [embedded]", &keys::EMBEDDED, &[]);
    inline(&mut text, "tls", &keys::TLS);
    inline(&mut text, "keys", &keys::SHARED_KEY);
    section(&mut text, "[[queue]]", &keys::QUEUE, &["requires_session = true"]);
    section(
        &mut text,
        "[[topic]]",
        &keys::TOPIC,
        &["subscriptions = [{ name = \"billing\", requires_session = true, filter = \"EventTypeId LIKE 'Order%'\" }]"],
    );
    inline(&mut text, "subscriptions", &keys::SUBSCRIPTION);
    inline(&mut text, "subscriptions.rules", &keys::SUBSCRIPTION_RULE);
    inline(&mut text, "subscriptions.filter", &keys::CORRELATION);
    section(&mut text, "# [servicebus.prod]", &keys::SERVICEBUS, &[]);
    section(&mut text, "# [store.main]", &keys::STORE, &[]);
    section(
        &mut text,
        "[[endpoint]]",
        &keys::ENDPOINT,
        &[
            "source = { topic = \"shop\", subscription = \"billing\" }",
            "inbox = { retention = \"7d\" }",
            "retry = { base = \"10s\", max = \"5m\", attempts = 5 }",
        ],
    );
    inline(&mut text, "source", &keys::SOURCE);
    inline(&mut text, "inbox", &keys::INBOX);
    inline(&mut text, "retry", &keys::RETRY);
    inline(&mut text, "retry.rules", &keys::RULE);
    section(&mut text, "[handler.payment]", &keys::HANDLER, &[]);
    inline(&mut text, "limits", &keys::LIMITS);
    inline(&mut text, "folders", &keys::FOLDER);
    text
}

fn section(text: &mut String, header: &str, section: &Section, written: &[&str]) {
    let _ = write!(text, "\n# {}\n{header}\n", section.doc);
    for key in section.keys {
        comment(text, "", key);
        match written.iter().find(|line| line.starts_with(&format!("{} =", key.name))) {
            Some(line) => {
                let _ = writeln!(text, "{line}");
            }
            // In a section that is left out, so is what it needs.
            None if key.required && !header.starts_with('#') => {
                let _ = writeln!(text, "{} = {}", key.name, key.example);
            }
            None => {
                let _ = writeln!(text, "# {} = {}", key.name, shown(key));
            }
        }
    }
}

fn inline(text: &mut String, name: &str, section: &Section) {
    let _ = write!(text, "\n# Keys of `{name}`: {}\n", section.doc);
    for key in section.keys {
        comment(text, "  ", key);
        let _ = writeln!(text, "#   {} = {}", key.name, shown(key));
    }
}

fn comment(text: &mut String, indent: &str, key: &Key) {
    let range = match key.kind {
        Kind::Count(least, most) => format!(" {least} to {most}."),
        Kind::Duration(least, most) | Kind::Bytes(least, most) => format!(" {least} to {most}."),
        Kind::Choice(choices) if choices.len() > 1 => format!(" One of {}.", choices.join(", ")),
        _ => String::new(),
    };
    let _ = writeln!(text, "# {indent}{}{range}", key.doc);
}

fn shown(key: &Key) -> &'static str {
    if key.default.is_empty() { key.example } else { key.default }
}
