//! How entities are addressed, and which ones belong to another.

use sprag_core::ids::EntityName;

const DEAD_LETTERS: &str = "/$DeadLetterQueue";
pub(crate) const PARKED: &str = ".deferred";

/// The path of an entity. Here a subscription is `topic/subscription`, on the wire `topic/Subscriptions/subscription`.
pub(crate) fn path(entity: &EntityName) -> String {
    let name = entity.as_str();
    let (name, dead) = match name.strip_suffix(DEAD_LETTERS) {
        Some(rest) => (rest, DEAD_LETTERS),
        None => (name, ""),
    };
    let is_named_so = name.split('/').rev().nth(1).is_some_and(|part| part.eq_ignore_ascii_case("subscriptions"));
    match name.rsplit_once('/').filter(|_| !is_named_so) {
        Some((topic, subscription)) => format!("{topic}/Subscriptions/{subscription}{dead}"),
        None => format!("{name}{dead}"),
    }
}

pub(crate) fn dead_letters(entity: &EntityName) -> EntityName {
    format!("{entity}{DEAD_LETTERS}").into()
}

/// The queue beside an endpoint's own on which its parked messages are (P21).
pub(crate) fn parked(entity: &EntityName) -> EntityName {
    format!("{entity}{PARKED}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entities_have_paths() {
        for (name, wanted) in [
            ("orders", "orders"),
            ("orders/$DeadLetterQueue", "orders/$DeadLetterQueue"),
            ("shop/billing", "shop/Subscriptions/billing"),
            ("shop/billing/$DeadLetterQueue", "shop/Subscriptions/billing/$DeadLetterQueue"),
            ("shop/subscriptions/billing", "shop/subscriptions/billing"),
        ] {
            assert_eq!(path(&name.into()), wanted);
        }
        assert_eq!(parked(&"orders".into()).as_str(), "orders.deferred");
    }
}
