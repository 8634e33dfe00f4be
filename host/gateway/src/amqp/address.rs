//! What an address names. Clients write the same one in many ways: with a scheme and a host (`amqps://host/q`, `sb://host/q`) or without,
//! with slashes at the ends, in any case.

use sprag_broker::{DEAD_LETTER_SUFFIX, TRANSFER_DEAD_LETTER_SUFFIX};
use sprag_core::ids::EntityName;

/// A place that links lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    /// Where tokens are put.
    Tokens,
    /// Where an entity is asked for what links cannot do.
    Management(Place),
    Entity(Place),
}

/// An entity or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// As access is checked: small letters, no slashes at the ends.
    pub(crate) path: String,
    /// The entity itself or dead letters of it, as the engine names them.
    pub(crate) name: EntityName,
}

const TOKENS: &str = "$cbs";
const MANAGEMENT: &str = "$management";
const DEAD_LETTERS: &str = "$deadletterqueue";
const TRANSFER: &str = "$transfer";
const SUBSCRIPTIONS: &str = "subscriptions";

/// The path in an address: without scheme and host, without slashes at the ends.
pub(crate) fn path_of(address: &str) -> &str {
    let path = match address.split_once("://") {
        Some((_, rest)) => rest.split_once('/').map_or("", |(_, path)| path),
        None => address,
    };
    path.trim_matches('/')
}

/// None: it names nothing.
pub(crate) fn parse(address: &str) -> Option<Node> {
    let path = path_of(address);
    let mut parts: Vec<&str> = path.split('/').collect();
    let last_is = |parts: &[&str], name: &str| parts.last().is_some_and(|part| part.eq_ignore_ascii_case(name));
    if parts.len() == 1 && last_is(&parts, TOKENS) {
        return Some(Node::Tokens);
    }
    let management = last_is(&parts, MANAGEMENT);
    if management {
        parts.pop();
    }
    if parts.iter().any(|part| part.is_empty()) {
        return None;
    }
    let mut whole = parts.join("/");
    whole.make_ascii_lowercase();
    let dead = last_is(&parts, DEAD_LETTERS);
    if dead {
        parts.pop();
    }
    let transfer = dead && last_is(&parts, TRANSFER);
    if transfer {
        parts.pop();
    }
    // Topics may have slashes in their names, so the word is looked for from the end.
    if parts.len() >= 3 && parts[parts.len() - 2].eq_ignore_ascii_case(SUBSCRIPTIONS) {
        parts.remove(parts.len() - 2);
    }
    if parts.is_empty() {
        return None;
    }
    let name = parts.join("/");
    let suffix = match (transfer, dead) {
        (true, _) => TRANSFER_DEAD_LETTER_SUFFIX,
        (false, true) => DEAD_LETTER_SUFFIX,
        (false, false) => "",
    };
    let place = Place { path: whole, name: format!("{name}{suffix}").into() };
    Some(if management { Node::Management(place) } else { Node::Entity(place) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entity(path: &str, name: &str) -> Option<Node> {
        Some(Node::Entity(Place { path: path.into(), name: name.into() }))
    }

    /// The same queue, as the three clients name it.
    #[test]
    fn scheme_host_slashes_and_case_do_not_matter() {
        for address in ["q1", "/q1/", "amqp://127.0.0.1/q1", "amqps://h.example:5671/q1", "sb://h/q1/"] {
            assert_eq!(parse(address), entity("q1", "q1"), "{address}");
        }
        assert_eq!(parse("Orders"), entity("orders", "Orders"));
        for address in ["$cbs", "$CBS", "amqp://h/$cbs"] {
            assert_eq!(parse(address), Some(Node::Tokens));
        }
    }

    #[test]
    fn parts_of_entities() {
        assert_eq!(parse("q/$DeadLetterQueue"), entity("q/$deadletterqueue", "q/$DeadLetterQueue"));
        assert_eq!(parse("q/$deadletterqueue"), entity("q/$deadletterqueue", "q/$DeadLetterQueue"));
        assert_eq!(parse("a/b/Subscriptions/s"), entity("a/b/subscriptions/s", "a/b/s"));
        assert_eq!(
            parse("t/subscriptions/s/$DeadLetterQueue"),
            entity("t/subscriptions/s/$deadletterqueue", "t/s/$DeadLetterQueue")
        );
        assert_eq!(
            parse("q/$transfer/$deadletterqueue"),
            entity("q/$transfer/$deadletterqueue", "q/$Transfer/$DeadLetterQueue")
        );
        let place = Place { path: "t/subscriptions/s".into(), name: "t/s".into() };
        assert_eq!(parse("t/Subscriptions/s/$management"), Some(Node::Management(place)));
    }

    #[test]
    fn what_names_nothing() {
        for address in ["", "/", "amqp://host", "amqp://host/", "$management", "a//b", "$DeadLetterQueue"] {
            assert_eq!(parse(address), None, "{address}");
        }
    }
}
