//! The way to an entity and back: which place has its parked messages, and where what the host sends to it goes (P21).
//!
//! A queue of an endpoint's own is its own way, and [`Way::Own`] changes nothing. On NimBus's topology (reference 1.6) nothing can be sent to the
//! subscription `E` of topic `E` itself: it goes to the topic, where rules decide by the application properties `To` and `From` who gets it.
//! Whatever the host sends to itself says `To = 'Retry'`, for which one rule of one subscription waits: `retry` of `E`, which writes `To = 'E'`
//! and `From = 'Retry'`. `To = 'E'` would do as well for `E`, but the subscription `Resolver` of the same topic waits for that too, to know of
//! what is addressed to the endpoint. A parked copy says `To = 'Deferred'` and `OriginalSessionId`. And all of it has a `From`: who forwards
//! to consumers takes only what has none.
//!
//! Both properties may be the sender's own, and a handler may read them. So what they were stands in properties of ours, as does the name of the
//! rule that the broker had written into the event, and comes back on receipt: a retry looks to its handler as the event did. Whoever forges these has gained nothing, for `To` and `From` were theirs to write, and
//! the machine believes neither: what makes a message a stand-in is under the hosts' seal (P31).

use std::borrow::Cow;

use sprag_core::{
    ids::{EndpointName, EntityName, SessionId},
    message::{Message, Origin, Value, property},
};

use crate::address;

const TO: &str = "To";
const FROM: &str = "From";
/// Whom the rule `retry` of an endpoint's subscription waits for.
pub(crate) const RETRY: &str = "Retry";
/// Another such rule, `continuation`: nothing of ours is sent to it.
pub(crate) const CONTINUATION: &str = "Continuation";
/// Whom the subscription of parked messages waits for, and its name.
pub(crate) const DEFERRED: &str = "Deferred";
/// Where the broker writes which rule with an action has let a message in.
const RULE: &str = "RuleName";
/// What these were. The first is there on all that went this way, empty where there was none.
const FROM_BEFORE: &str = "SpragFrom";
const TO_BEFORE: &str = "SpragTo";
const RULE_BEFORE: &str = "SpragRuleName";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Way {
    /// A queue, with its parked messages on one beside it; or whatever else is sent to.
    Own,
    /// The subscription of an endpoint on NimBus's topology.
    Nimbus(EndpointName),
}

/// The subscription from which an endpoint on NimBus's topology receives.
pub(crate) fn nimbus_source(endpoint: &EndpointName) -> EntityName {
    format!("{endpoint}/{endpoint}").into()
}

impl Way {
    /// Of an entity, where these endpoints are on NimBus's topology.
    pub(crate) fn of(entity: &EntityName, nimbus: &[EndpointName]) -> Self {
        let endpoint = nimbus.iter().find(|endpoint| nimbus_source(endpoint) == *entity);
        endpoint.map_or(Self::Own, |endpoint| Self::Nimbus(endpoint.clone()))
    }

    /// Where the parked messages of `source` are.
    pub(crate) fn parked(&self, source: &EntityName) -> EntityName {
        match self {
            Self::Own => address::parked(source),
            Self::Nimbus(endpoint) => format!("{endpoint}/{DEFERRED}").into(),
        }
    }

    /// Where what is sent to `entity` goes, and waits for its time when it has one.
    pub(crate) fn entry(&self, entity: &EntityName) -> EntityName {
        match self {
            Self::Own => entity.clone(),
            Self::Nimbus(endpoint) => endpoint.as_str().into(),
        }
    }

    /// Where a parked copy is sent to be there.
    pub(crate) fn parked_entry(&self, source: &EntityName) -> EntityName {
        match self {
            Self::Own => self.parked(source),
            Self::Nimbus(_) => self.entry(source),
        }
    }

    /// The messages as they are sent to the endpoint, and to nobody else.
    pub(crate) fn addressed<'m>(&self, messages: &'m [Message]) -> Cow<'m, [Message]> {
        match self {
            Self::Own => Cow::Borrowed(messages),
            Self::Nimbus(_) => Cow::Owned(messages.iter().map(|message| addressed(message, RETRY)).collect()),
        }
    }

    /// A parked copy as it is sent. It stays in its session, without an end (P19).
    pub(crate) fn parked_copy(&self, copy: &Message, session: &SessionId) -> Message {
        let mut copy = match self {
            Self::Own => copy.clone(),
            Self::Nimbus(_) => {
                let mut copy = addressed(copy, DEFERRED);
                copy.set_property(property::ORIGINAL_SESSION_ID, Value::string(session.as_str()));
                copy
            }
        };
        (copy.session_id, copy.scheduled_for, copy.time_to_live) = (Some(session.clone()), None, None);
        copy
    }

    /// What was found among the dead letters of one side, as it is sent there again.
    pub(crate) fn again(&self, mut message: Message, side: Origin) -> Message {
        if *self == Self::Own {
            return message;
        }
        self.read(&mut message);
        match (side, message.session_id.clone()) {
            (Origin::Parked, Some(session)) => self.parked_copy(&message, &session),
            _ => addressed(&message, RETRY),
        }
    }

    /// A message as it was before it went this way.
    pub(crate) fn read(&self, message: &mut Message) {
        let Self::Nimbus(_) = self else { return };
        // What went another way is as it came.
        let Some(from) = message.properties.remove(FROM_BEFORE) else { return };
        let mut before = |name: &str| message.properties.remove(name);
        for (name, before) in [(FROM, Some(from)), (TO, before(TO_BEFORE)), (RULE, before(RULE_BEFORE))] {
            match before.filter(|value| value.as_str() != Some("")) {
                Some(value) => message.set_property(name, value),
                None => drop(message.properties.remove(name)),
            }
        }
    }

    /// Whether what waits at the entry for its time will come to the endpoint. A queue has nothing of anybody else's.
    pub(crate) fn leads_here(&self, message: &Message) -> bool {
        match self {
            Self::Own => true,
            Self::Nimbus(endpoint) => {
                message.text_property(TO).is_some_and(|to| [RETRY, CONTINUATION, endpoint.as_str()].contains(&to))
            }
        }
    }
}

fn addressed(message: &Message, to: &str) -> Message {
    let mut message = message.clone();
    let from = taken(&mut message, FROM).unwrap_or_else(|| Value::string(""));
    // NimBus, should it ever take over, reads in a parked copy from whom it came.
    let kept = from.as_str().filter(|text| to == DEFERRED && !text.is_empty()).map(str::to_owned);
    message.set_property(FROM, Value::string(kept.as_deref().unwrap_or(to)));
    message.set_property(FROM_BEFORE, from);
    for (name, its_before) in [(TO, TO_BEFORE), (RULE, RULE_BEFORE)] {
        if let Some(before) = taken(&mut message, name) {
            message.set_property(its_before, before);
        }
    }
    message.set_property(TO, Value::string(to));
    message
}

/// A property, however it is written: rules compare names without case, and would read one that differs in case only. A null is none.
fn taken(message: &mut Message, name: &str) -> Option<Value> {
    let exact = message.properties.remove(name);
    let alike: Vec<_> = message.properties.keys().filter(|key| key.eq_ignore_ascii_case(name)).cloned().collect();
    let others = alike.into_iter().filter_map(|key| message.properties.remove(&key));
    let all: Vec<_> = exact.into_iter().chain(others).collect();
    all.into_iter().find(|value| *value != Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(properties: &[(&str, Value)]) -> Message {
        let mut message = Message { session_id: Some("s".into()), ..Message::default() };
        for (name, value) in properties {
            message.set_property(name, value.clone());
        }
        message
    }

    fn text<'m>(message: &'m Message, name: &str) -> Option<&'m str> {
        message.text_property(name)
    }

    fn nimbus() -> Way {
        Way::of(&"billing/billing".into(), &["crm".into(), "billing".into()])
    }

    #[test]
    fn places() {
        let way = nimbus();
        assert_eq!(way, Way::Nimbus("billing".into()));
        let source = nimbus_source(&"billing".into());
        assert_eq!((way.parked(&source).as_str(), way.entry(&source).as_str()), ("billing/Deferred", "billing"));
        for other in ["billing", "billing/crm", "billing/Deferred", "shop/shop"] {
            assert_eq!(Way::of(&other.into(), &["crm".into(), "billing".into()]), Way::Own, "{other}");
        }
        assert_eq!(Way::Own.parked(&"orders".into()).as_str(), "orders.deferred");
        let message = with(&[("To", Value::string("x"))]);
        let (sent, same) = (std::slice::from_ref(&message), std::slice::from_ref(&message));
        assert_eq!(&*Way::Own.addressed(sent), same);
    }

    /// P21: one rule of one subscription takes a stand-in, and no forwarder does, whatever the event said of itself.
    #[test]
    fn a_stand_in_is_addressed_and_comes_back_as_it_was() {
        let way = nimbus();
        for properties in [
            vec![],
            vec![("To", Value::string("billing")), ("From", Value::string("shop"))],
            vec![("To", Value::Int(7)), ("RuleName", Value::string("OrderPlaced"))],
            vec![("From", Value::Bool(true)), ("a", Value::Null)],
        ] {
            let message = with(&properties);
            let mut sent = way.addressed(std::slice::from_ref(&message)).into_owned().remove(0);
            assert_eq!((text(&sent, "To"), text(&sent, "From")), (Some("Retry"), Some("Retry")));
            assert!(way.leads_here(&sent));
            // What the rule does.
            sent.set_property("To", Value::string("billing"));
            sent.set_property("RuleName", Value::string("retry"));
            way.read(&mut sent);
            assert_eq!(sent, message);
            way.read(&mut sent);
            assert_eq!(sent, message, "what did not go this way is left alone");
        }
    }

    /// Rules read names without case, and a null as nothing: neither leads anywhere else.
    #[test]
    fn what_is_written_otherwise_does_not_lead_elsewhere() {
        let message = with(&[("TO", Value::string("crm")), ("from", Value::Null), ("From", Value::Null)]);
        let sent = nimbus().addressed(std::slice::from_ref(&message)).into_owned().remove(0);
        let alike = |name: &str| sent.properties.keys().filter(|key| key.eq_ignore_ascii_case(name)).count();
        assert_eq!((alike("to"), alike("from")), (1, 1));
        assert_eq!((text(&sent, "To"), text(&sent, "From")), (Some("Retry"), Some("Retry")));
    }

    #[test]
    fn a_parked_copy_keeps_from_whom_it_came() {
        let way = nimbus();
        let message = Message { time_to_live: Some(std::time::Duration::from_secs(1)), ..with(&[]) };
        let copy = way.parked_copy(&message, &"s".into());
        assert_eq!((text(&copy, "To"), text(&copy, "From")), (Some("Deferred"), Some("Deferred")));
        assert_eq!((text(&copy, property::ORIGINAL_SESSION_ID), copy.time_to_live), (Some("s"), None));
        let copy = way.parked_copy(&with(&[("From", Value::string("shop"))]), &"s".into());
        assert_eq!((text(&copy, "To"), text(&copy, "From")), (Some("Deferred"), Some("shop")));
        let mut back = copy;
        way.read(&mut back);
        assert_eq!((text(&back, "To"), text(&back, "From")), (None, Some("shop")));
    }
}
