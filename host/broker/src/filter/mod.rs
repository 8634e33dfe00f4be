//! Which messages of a topic a subscription gets.
//!
//! A filter is compiled when its subscription is declared, so that a wrong one is an error with a position then and there, and not a
//! message that silently goes nowhere later. [`sql`] reads an expression, [`eval`] answers it for a message; [`rule`] puts filters and
//! actions together.

mod eval;
mod rule;
mod sql;
mod tokens;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sprag_core::{
    message::{Message, Value, uuid_text},
    time::Timestamp,
};

pub use rule::{DEFAULT_RULE, RuleSpec};
pub(crate) use rule::{Rule, copies};

/// A subscription's filter, as it is declared.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FilterSpec {
    /// Every message.
    #[default]
    All,
    /// Messages whose properties are exactly these.
    Correlation(Box<Correlation>),
    /// Messages for which the expression is true; unknown is not true.
    Sql(String),
    /// The same with values for its parameters.
    SqlWith(Box<SqlText>),
    /// No message.
    Nothing,
}

/// An expression or an action, with values for the `@names` in it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SqlText {
    pub expression: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, FilterValue>,
}

impl<T: Into<String>> From<T> for SqlText {
    fn from(expression: T) -> Self {
        Self { expression: expression.into(), parameters: BTreeMap::new() }
    }
}

/// A value that a filter compares with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FilterValue {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    /// A field, so that it is written as `{"time": …}` and not as a number.
    Time {
        time: Timestamp,
    },
    Text(String),
}

impl<T: Into<String>> From<T> for FilterValue {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}

/// All that is given must be equal, byte by byte.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Correlation {
    pub message_id: Option<String>,
    pub session_id: Option<String>,
    pub subject: Option<String>,
    pub content_type: Option<String>,
    pub correlation_id: Option<String>,
    pub to: Option<String>,
    pub reply_to: Option<String>,
    pub reply_to_session_id: Option<String>,
    /// Application properties. A text also equals what is written like it: a whole number in decimal, a UUID with hyphens, `true`.
    pub properties: BTreeMap<String, FilterValue>,
}

/// Where an expression is wrong and how.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("filter, at character {position}: {problem}")]
pub struct FilterError {
    /// Counted from 1.
    pub position: usize,
    pub problem: String,
}

/// A filter, compiled.
#[derive(Debug, Clone)]
pub(crate) enum Filter {
    All,
    Nothing,
    Correlation(Box<Correlation>),
    Sql(sql::Expression),
}

impl FilterSpec {
    pub(crate) fn compile(&self) -> Result<Filter, FilterError> {
        Ok(match self {
            Self::All => Filter::All,
            Self::Correlation(correlation) => Filter::Correlation(correlation.clone()),
            Self::Sql(text) => Filter::Sql(sql::parse(text, &BTreeMap::new())?),
            Self::SqlWith(text) => Filter::Sql(sql::parse(&text.expression, &text.parameters)?),
            Self::Nothing => Filter::Nothing,
        })
    }

    fn sql(&self) -> Option<&str> {
        match self {
            Self::Sql(text) => Some(text),
            Self::SqlWith(text) => Some(&text.expression),
            _ => None,
        }
    }
}

impl Filter {
    pub(crate) fn matches(&self, message: &Message) -> bool {
        match self {
            Self::All => true,
            Self::Nothing => false,
            Self::Correlation(correlation) => correlation.matches(message),
            Self::Sql(expression) => eval::is_true(expression, message),
        }
    }
}

impl Correlation {
    fn matches(&self, message: &Message) -> bool {
        let fields = [
            (&self.message_id, message.message_id.as_ref().map(|id| id.as_str())),
            (&self.session_id, message.session_id.as_ref().map(|id| id.as_str())),
            (&self.subject, message.subject.as_deref()),
            (&self.content_type, message.content_type.as_deref()),
            (&self.correlation_id, message.correlation_id.as_deref()),
            (&self.to, message.to.as_deref()),
            (&self.reply_to, message.reply_to.as_deref()),
            (&self.reply_to_session_id, message.reply_to_session_id.as_deref()),
        ];
        fields.iter().all(|(wanted, found)| wanted.is_none() || wanted.as_deref() == *found)
            && self
                .properties
                .iter()
                .all(|(name, wanted)| message.property(name).is_some_and(|found| wanted.equals(found)))
    }
}

impl FilterValue {
    fn equals(&self, found: &Value) -> bool {
        match (self, found) {
            (Self::Null, Value::Null) => true,
            (Self::Bool(wanted), Value::Bool(found)) => wanted == found,
            (Self::Double(wanted), Value::Double(found)) => wanted == found,
            (Self::Double(wanted), Value::Float(found)) => *wanted == f64::from(*found),
            // The JavaScript client writes every number of a filter as a double.
            (Self::Double(_), Value::String(_)) => false,
            (Self::Double(wanted), found) => found.as_i64().is_some_and(|n| n as f64 == *wanted),
            (Self::Time { time }, Value::Timestamp(found)) => time == found,
            (Self::Int(wanted), Value::Timestamp(found)) => *wanted == found.0,
            (Self::Int(wanted), Value::Double(found)) => *wanted as f64 == *found,
            (Self::Int(_), Value::String(_)) => false,
            (Self::Int(wanted), found) => found.as_i64() == Some(*wanted),
            (Self::Text(wanted), Value::String(found) | Value::Symbol(found)) => **found == **wanted,
            (Self::Text(wanted), Value::Bool(found)) => wanted == if *found { "true" } else { "false" },
            (Self::Text(wanted), Value::Uuid(found)) => wanted.eq_ignore_ascii_case(&uuid_text(found)),
            (Self::Text(wanted), found) => found.as_i64().is_some_and(|n| n.to_string() == *wanted),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        let mut message = Message {
            message_id: Some("m1".into()),
            session_id: Some("s1".into()),
            subject: Some("Order".into()),
            ..Message::default()
        };
        message.set_property("EventTypeId", Value::string("OrderPlaced"));
        message.set_property("amount", Value::Int(7));
        message.set_property("price", Value::Double(2.5));
        message.set_property("gold", Value::Bool(true));
        message.set_property("odd name", Value::string("x"));
        message.set_property("subject", Value::string("x"));
        message.set_property("id", Value::Uuid(std::array::from_fn(|n| n as u8)));
        message.time_to_live = Some(std::time::Duration::from_secs(5));
        message.set_property("nothing", Value::Null);
        message
    }

    fn check(text: &str) -> bool {
        let filter = FilterSpec::Sql(text.into()).compile().unwrap_or_else(|error| panic!("{text}: {error}"));
        filter.matches(&message())
    }

    #[test]
    fn expressions_that_hold() {
        for text in [
            "EventTypeId LIKE 'Order%'",
            "user.EventTypeId = 'OrderPlaced'",
            "eventtypeid = 'OrderPlaced' AND EXISTS(EVENTTYPEID)",
            "property('event' + 'typeid') LIKE '%' + 'Placed' AND p('amount') = 7",
            "'50%' LIKE '50' + '!%' ESCAPE '!' AND EventTypeId NOT LIKE subject + '%x'",
            "newid() <> newid() AND newid() IS NOT NULL",
            "id = '00010203-0405-0607-0809-0A0B0C0D0E0F'",
            "sys.SequenceNumber IS NULL AND sys.TimeToLive = 5000",
            "newid IS NULL AND p IS NULL",
            "amount-1=6 AND amount -1 = amount+-1 AND [odd-name] IS NULL",
            "sys.Label = 'Order' and SYS.SESSIONID = 's1'",
            "sys.MessageId <> 'm2'",
            "EventTypeId LIKE 'Order_laced'",
            "EventTypeId NOT LIKE 'order%'",
            "'50%' LIKE '50!%' ESCAPE '!'",
            "amount IN (1, 3 + 4, 9)",
            "amount NOT IN (1, 2)",
            "amount * 2 - 4 = 10 AND -amount < 0",
            "amount / 2 = 3 AND amount % 2 = 1 AND amount / 2.0 = 3.5",
            "price > 2 AND price <= 2.5",
            "gold",
            "gold = TRUE AND NOT gold = false",
            "EXISTS(amount) AND NOT EXISTS(other) AND EXISTS(nothing)",
            "[odd name] = 'x' AND \"odd name\" = 'x'",
            "nothing IS NULL AND amount IS NOT NULL",
            "other IS NULL OR other = 3",
            "missing = 1 OR amount = 7",
            "'it''s' = 'it''s'",
            "1=0 OR (amount >= 7 AND (price < 3))",
            "0x10 = 16 AND 1e2 = 100",
        ] {
            assert!(check(text), "{text}");
        }
    }

    /// Unknown is not true, and not is not either.
    #[test]
    fn expressions_that_do_not_hold() {
        for text in [
            "missing = 1",
            "NOT missing = 1",
            "missing <> 1",
            "missing IN (1)",
            "missing NOT IN (1)",
            "amount NOT IN (1, missing)",
            "missing LIKE '%'",
            "amount = 'seven'",
            "amount / 0 = 1",
            "amount % 0 = 1",
            "9223372036854775807 + 1 > 0",
            "EventTypeId",
            "missing = 1 AND amount = 7",
            "EventTypeId LIKE 'Order'",
            "EventTypeId LIKE missing",
            "EventTypeId LIKE 'x' + '!' ESCAPE '!' + '!'",
            "property(amount) = 7",
        ] {
            assert!(!check(text), "{text}");
        }
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, position, part) in [
            ("", 1, "ends"),
            ("EventTypeId LIKE", 17, "ends"),
            ("EventTypeId == 'x'", 14, "="),
            ("a = 'x", 5, "quote"),
            ("a = 1 b", 7, "\"b\""),
            ("(a = 1", 7, "\")\""),
            ("a LIKE 1", 8, "text"),
            ("a LIKE 'x' ESCAPE 'ab'", 19, "one character"),
            ("a LIKE 'x!' ESCAPE '!'", 8, "escape"),
            ("sys.Nonsense = 1", 5, "Nonsense"),
            ("a ? 1", 3, "?"),
            ("a IN ()", 7, "\")\""),
            ("[a = 1", 1, "]"),
            ("é = § 1", 5, "§"),
        ] {
            let error = FilterSpec::Sql(text.into()).compile().expect_err(text);
            assert_eq!(error.position, position, "{text}: {error}");
            assert!(error.problem.contains(part), "{text}: {error}");
        }
        let deep = format!("{}1=1{}", "(".repeat(5_000), ")".repeat(5_000));
        assert!(FilterSpec::Sql(deep).compile().unwrap_err().problem.contains("deep"));
        let nots = format!("{} gold", "NOT ".repeat(5_000));
        assert!(FilterSpec::Sql(nots).compile().unwrap_err().problem.contains("deep"));
    }

    /// The documented example: `source = @stringParam`.
    #[test]
    fn parameters_stand_for_values() {
        let text = |expression: &str| SqlText {
            expression: expression.into(),
            parameters: [
                ("@type".to_owned(), "OrderPlaced".into()),
                ("n".into(), FilterValue::Int(7)),
                ("@none".into(), FilterValue::Null),
            ]
            .into(),
        };
        let filter = FilterSpec::SqlWith(Box::new(text("EventTypeId = @type AND amount IN (@n) AND @none IS NULL")));
        assert!(filter.compile().unwrap().matches(&message()));
        let json = serde_json::to_string(&filter).unwrap();
        assert_eq!(serde_json::from_str::<FilterSpec>(&json).unwrap(), filter);
        let error = FilterSpec::SqlWith(Box::new(text("a = @other"))).compile().unwrap_err();
        assert_eq!((error.position, error.problem.contains("@other")), (5, true));
        assert!(!FilterSpec::Nothing.compile().unwrap().matches(&message()));
    }

    #[test]
    fn correlation_compares_all_that_is_given() {
        let mut correlation = Box::new(Correlation { subject: Some("Order".into()), ..Correlation::default() });
        correlation.properties = [("amount".to_owned(), "7".into()), ("gold".into(), "true".into())].into();
        assert!(Filter::Correlation(correlation.clone()).matches(&message()));
        correlation.session_id = Some("s2".into());
        assert!(!Filter::Correlation(correlation.clone()).matches(&message()));
        correlation.session_id = None;
        correlation.properties =
            [("amount".to_owned(), FilterValue::Int(7)), ("price".into(), FilterValue::Double(2.5))].into();
        assert!(Filter::Correlation(correlation.clone()).matches(&message()));
        correlation.properties =
            [("amount".to_owned(), FilterValue::Double(7.0)), ("at".into(), FilterValue::Time { time: Timestamp(5) })]
                .into();
        let mut timed = message();
        timed.set_property("at", Value::Timestamp(Timestamp(5)));
        assert!(
            Filter::Correlation(correlation.clone()).matches(&timed),
            "numbers compare by value, times by their own kind"
        );
        let json = serde_json::to_string(&correlation).unwrap();
        assert_eq!(serde_json::from_str::<Correlation>(&json).unwrap(), *correlation);
        correlation.properties = [("EventTypeId".to_owned(), "orderplaced".into())].into();
        assert!(!Filter::Correlation(correlation).matches(&message()), "texts compare with case");
    }

    /// A pattern with many stars must not take exponential time.
    #[test]
    fn patterns_are_matched_in_bounded_time() {
        let mut message = Message::default();
        message.set_property("a", Value::string("a".repeat(2_000)));
        let text = format!("a LIKE '{}b'", "%a".repeat(40));
        assert!(!FilterSpec::Sql(text).compile().unwrap().matches(&message));
    }
}
