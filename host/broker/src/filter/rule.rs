//! A subscription's rules: which messages it gets, and how they are changed on their way in.

use serde::{Deserialize, Serialize};
use sprag_core::{
    message::{Message, Value},
    time::Timestamp,
};

use super::{
    Filter, FilterError, FilterSpec, SqlText, eval,
    sql::{self, Statement},
};

/// The rule that a subscription has when none is given.
pub const DEFAULT_RULE: &str = "$Default";
/// Longest name of a rule, in characters, as on Azure.
const MAX_NAME: usize = 50;
/// Longest text of an expression, in characters, as on Azure.
const MAX_EXPRESSION: usize = 1_024;
/// The property of a copy that a rule's action has made.
const RULE_NAME: &str = "RuleName";

/// A rule, as it is declared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuleSpec {
    pub name: String,
    pub filter: FilterSpec,
    /// `SET name = value` and `REMOVE name`, one after another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<SqlText>,
}

impl RuleSpec {
    pub fn new(name: impl Into<String>, filter: FilterSpec) -> Self {
        Self { name: name.into(), filter, action: None }
    }

    pub fn with_action(self, action: impl Into<SqlText>) -> Self {
        Self { action: Some(action.into()), ..self }
    }

    /// Whether a subscription takes it; or what is wrong with it.
    pub fn validate(&self) -> Result<(), FilterError> {
        self.check()?;
        self.clone().compile(Timestamp(0)).map(drop)
    }

    /// Whether it keeps within what Azure takes. Apart from [`RuleSpec::compile`], so that a file that holds another can be opened.
    pub(crate) fn check(&self) -> Result<(), FilterError> {
        let problem = |problem: String| Err(FilterError { position: 1, problem });
        let length = self.name.chars().count();
        if length == 0 || length > MAX_NAME || self.name.chars().any(|c| c.is_control() || "/\\?#@".contains(c)) {
            return problem(format!(
                "the rule's name {:?} is not one: 1 to {MAX_NAME} characters, none of / \\ ? # @",
                self.name
            ));
        }
        let texts = [self.filter.sql(), self.action.as_ref().map(|action| action.expression.as_str())];
        match texts.into_iter().flatten().map(|text| text.chars().count()).max() {
            Some(length) if length > MAX_EXPRESSION => {
                problem(format!("an expression has {length} characters; at most {MAX_EXPRESSION} are taken"))
            }
            _ => Ok(()),
        }
    }

    /// Compiled, or what is wrong with its expressions.
    pub(crate) fn compile(self, created_at: Timestamp) -> Result<Rule, FilterError> {
        let filter = self.filter.compile()?;
        let action =
            self.action.as_ref().map(|action| sql::parse_action(&action.expression, &action.parameters)).transpose()?;
        Ok(Rule { spec: self, created_at, filter, action })
    }
}

/// A rule, compiled.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) spec: RuleSpec,
    pub(crate) created_at: Timestamp,
    filter: Filter,
    action: Option<Vec<Statement>>,
}

impl Rule {
    pub(crate) fn is(&self, name: &str) -> bool {
        self.spec.name.eq_ignore_ascii_case(name)
    }
}

/// What a subscription gets of a message.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Copies {
    /// The message as it is, once, however many rules without an action let it through.
    pub(crate) plain: bool,
    /// One for each rule with an action.
    pub(crate) changed: Vec<Message>,
}

pub(crate) fn copies(rules: &[Rule], message: &Message) -> Copies {
    let mut copies = Copies::default();
    for rule in rules {
        match &rule.action {
            None if copies.plain => {}
            None => copies.plain = rule.filter.matches(message),
            Some(action) if rule.filter.matches(message) => {
                let mut copy = message.clone();
                eval::carry_out(action, &mut copy);
                copy.set_property(RULE_NAME, Value::string(rule.spec.name.as_str()));
                copies.changed.push(copy);
            }
            Some(_) => {}
        }
    }
    copies
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        let mut message = Message { message_id: Some("m".into()), subject: Some("red".into()), ..Message::default() };
        message.set_property("Quantity", Value::Int(10));
        message.set_property("color", Value::string("red"));
        message
    }

    fn rule(name: &str, filter: &str, action: Option<&str>) -> Rule {
        let spec = RuleSpec::new(name, FilterSpec::Sql(filter.into()));
        let spec = RuleSpec { action: action.map(Into::into), ..spec };
        spec.compile(Timestamp(0)).unwrap_or_else(|error| panic!("{filter} {action:?}: {error}"))
    }

    fn after(action: &str) -> Message {
        copies(&[rule("r", "1=1", Some(action))], &message()).changed.pop().expect("one copy")
    }

    /// As Azure documents it: five rules that match, two of them with actions, make three messages.
    #[test]
    fn rules_with_actions_make_a_copy_each_and_those_without_one_in_all() {
        let rules = [
            rule("a", "color = 'red'", None),
            rule("b", "quantity > 5", None),
            rule("c", "1=1", Some("SET quantity = quantity / 2;")),
            rule("d", "1=1", Some("REMOVE color")),
            rule("e", "sys.Label = 'red'", None),
            rule("f", "color = 'blue'", Some("SET x = 1")),
        ];
        let copies = copies(&rules, &message());
        assert!(copies.plain);
        let names: Vec<_> = copies.changed.iter().map(|it| it.text_property(RULE_NAME).unwrap()).collect();
        assert_eq!(names, ["c", "d"]);
        assert_eq!(copies.changed[0].property("Quantity"), Some(&Value::Int(5)), "of the type that it had");
        assert_eq!(copies.changed[1].property("color"), None);
        assert_eq!(copies.changed[1].property("Quantity"), Some(&Value::Int(10)), "each starts from the message");
    }

    #[test]
    fn statements_follow_each_other() {
        let copy = after(
            "SET a = 1 + 1; SET b = a * 2.5, SET c = 'x' + color SET sys.Label = c; REMOVE quantity; REMOVE sys.To",
        );
        assert_eq!(copy.property("a"), Some(&Value::Long(2)));
        assert_eq!(copy.property("b"), Some(&Value::Double(5.0)));
        assert_eq!((copy.property("c"), copy.subject.as_deref()), (Some(&Value::string("xred")), Some("xred")));
        assert!(copy.property("Quantity").is_none() && copy.to.is_none());
        let copy = after("SET sys.SessionId = 's' SET sys.CorrelationId = newid() SET id = newid() SET gone = missing");
        assert_eq!(copy.session_id, Some("s".into()));
        assert_eq!(copy.correlation_id.as_ref().map(|id| id.len()), Some(36));
        assert!(matches!(copy.property("id"), Some(Value::Uuid(_))) && copy.property("gone") == Some(&Value::Null));
    }

    #[test]
    fn mistakes_in_actions_are_named_with_their_place() {
        for (action, position, part) in [
            ("quantity = 1", 1, "SET or REMOVE"),
            ("SET quantity 1", 14, "\"=\""),
            ("SET sys.SequenceNumber = 1", 5, "cannot be changed"),
            ("REMOVE", 7, "name"),
            ("SET a = 1 = 2", 11, "SET or REMOVE"),
        ] {
            let spec = RuleSpec::new("r", FilterSpec::All).with_action(action);
            let error = spec.compile(Timestamp(0)).unwrap_err();
            assert_eq!(error.position, position, "{action}: {error}");
            assert!(error.problem.contains(part), "{action}: {error}");
        }
        for name in ["", "a/b", &"x".repeat(51)] {
            assert!(RuleSpec::new(name, FilterSpec::All).check().is_err(), "{name:?}");
        }
        let long = RuleSpec::new("r", FilterSpec::Sql(format!("a = '{}'", "x".repeat(1_024))));
        assert!(long.check().unwrap_err().problem.contains("1024"));
    }
}
