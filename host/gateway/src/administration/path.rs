//! What the path of a request names.
//!
//! Names of queues and topics may have slashes, which Python encodes and JavaScript does not; so the path is decoded first and taken apart
//! from its end. Words of the protocol are found in any case: Python writes `subscriptions`, JavaScript `Subscriptions`.

use percent_encoding::percent_decode_str;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Resource {
    Namespace,
    Queues,
    Topics,
    /// A queue or a topic.
    Entity(String),
    Subscriptions {
        topic: String,
    },
    Subscription {
        topic: String,
        name: String,
    },
    Rules {
        topic: String,
        subscription: String,
    },
    Rule {
        topic: String,
        subscription: String,
        name: String,
    },
}

impl Resource {
    /// Of a path as it stands in the request; none when it names nothing that can be.
    pub(super) fn of(path: &str) -> Option<Self> {
        let path = percent_decode_str(path).decode_utf8().ok()?;
        let path = path.trim_matches('/');
        match path.to_ascii_lowercase().as_str() {
            "" => return None,
            "$namespaceinfo" => return Some(Self::Namespace),
            "$resources/queues" => return Some(Self::Queues),
            "$resources/topics" => return Some(Self::Topics),
            _ => {}
        }
        let segments: Vec<&str> = path.split('/').collect();
        let is = |at: Option<&&str>, word: &str| at.is_some_and(|it| it.eq_ignore_ascii_case(word));
        let nth = |from_end: usize| segments.len().checked_sub(from_end).and_then(|at| segments.get(at));
        let topic = |segments: usize| self::topic(path, segments);
        Some(match () {
            () if is(nth(4), "subscriptions") && is(nth(2), "rules") => {
                Self::Rule { topic: topic(4)?, subscription: (*nth(3)?).to_owned(), name: (*nth(1)?).to_owned() }
            }
            () if is(nth(3), "subscriptions") && is(nth(1), "rules") => {
                Self::Rules { topic: topic(3)?, subscription: (*nth(2)?).to_owned() }
            }
            () if is(nth(2), "subscriptions") => Self::Subscription { topic: topic(2)?, name: (*nth(1)?).to_owned() },
            () if is(nth(1), "subscriptions") => Self::Subscriptions { topic: topic(1)? },
            () => Self::Entity(path.to_owned()),
        })
    }
}

/// What is before so many segments; none if there is nothing.
fn topic(path: &str, segments: usize) -> Option<String> {
    let (at, _) = path.rmatch_indices('/').nth(segments - 1)?;
    (at > 0).then(|| path[..at].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_resources() {
        let entity = |name: &str| Some(Resource::Entity(name.into()));
        let subscription =
            |topic: &str, name: &str| Some(Resource::Subscription { topic: topic.into(), name: name.into() });
        let rule = |topic: &str, subscription: &str, name: &str| {
            Some(Resource::Rule { topic: topic.into(), subscription: subscription.into(), name: name.into() })
        };
        for (path, expected) in [
            ("/", None),
            ("/%FF", None),
            ("/$namespaceinfo", Some(Resource::Namespace)),
            ("/$Resources/queues", Some(Resource::Queues)),
            ("/%24Resources/Topics", Some(Resource::Topics)),
            ("/orders", entity("orders")),
            ("/a/b/", entity("a/b")),
            ("/a%2Fb", entity("a/b")),
            ("/a%20b%C3%BC", entity("a bü")),
            ("/t/subscriptions", Some(Resource::Subscriptions { topic: "t".into() })),
            ("/a/t/Subscriptions/", Some(Resource::Subscriptions { topic: "a/t".into() })),
            ("/subscriptions", None),
            ("/t/Subscriptions/s", subscription("t", "s")),
            ("/a%2Ft/subscriptions/s", subscription("a/t", "s")),
            ("/t/subscriptions/s/rules", Some(Resource::Rules { topic: "t".into(), subscription: "s".into() })),
            ("/t/Subscriptions/s/Rules/%24Default", rule("t", "s", "$Default")),
            ("/a/t/Subscriptions/rules/Rules/r", rule("a/t", "rules", "r")),
        ] {
            assert_eq!(Resource::of(path), expected, "{path}");
        }
    }
}
