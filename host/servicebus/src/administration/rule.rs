//! Rules of subscriptions: which messages they let in, and what they change in those.

use super::{
    entity::{INSTANCE, SERVICE_BUS},
    xml::Element,
};

/// The rule that a subscription has when nobody names one.
pub const DEFAULT: &str = "$Default";
/// Of the language of filters and actions, as all official clients write it.
const COMPATIBILITY_LEVEL: u32 = 20;
const DESCRIPTION: &str = "RuleDescription";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub name: String,
    pub filter: Filter,
    /// SQL that changes the message on its way in.
    pub action: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    All,
    Nothing,
    Sql(String),
    Other(OtherFilter),
}

/// Nothing that Sprag makes: a correlation filter, or SQL with parameters. Shown, and written as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherFilter {
    /// As the service calls it: `CorrelationFilter`.
    pub kind: String,
    /// What it asks for, to be read by people.
    pub text: String,
    element: Element,
}

impl Rule {
    pub fn new(name: impl Into<String>, filter: Filter) -> Self {
        Self { name: name.into(), filter, action: None }
    }

    /// With SQL, or with all messages when there is none.
    pub fn of(name: impl Into<String>, sql: Option<&str>) -> Self {
        Self::new(name, sql.map_or(Filter::All, |sql| Filter::Sql(sql.to_owned())))
    }

    #[must_use]
    pub fn with_action(self, sql: impl Into<String>) -> Self {
        Self { action: Some(sql.into()), ..self }
    }

    /// Whether both are named alike, as the service sees it.
    pub fn is_named(&self, name: &str) -> bool {
        self.name.to_lowercase() == name.to_lowercase()
    }

    /// Whether both do the same, whatever they are called.
    pub fn agrees_with(&self, other: &Self) -> bool {
        self.filter == other.filter && normal(self.action.as_deref()) == normal(other.action.as_deref())
    }

    pub(crate) fn read(title: &str, description: &Element) -> Result<Self, String> {
        if description.local() != DESCRIPTION {
            return Err(format!("a {} is not what was asked for", description.name));
        }
        let filter = match description.child("Filter") {
            None => Filter::All,
            Some(filter) => read_filter(filter, description)?,
        };
        let action = description.child("Action").filter(|action| action.type_name() == Some("SqlRuleAction"));
        let action = action.and_then(|action| action.said("SqlExpression")).map(str::to_owned);
        Ok(Self { name: description.said("Name").unwrap_or(title).to_owned(), filter, action })
    }

    /// As a description of its own, or inside a new subscription's.
    pub(crate) fn write(&self, name: &str) -> Element {
        let filter = match &self.filter {
            Filter::All => statement("Filter", "TrueFilter", "1=1"),
            Filter::Nothing => statement("Filter", "FalseFilter", "1=0"),
            Filter::Sql(sql) => statement("Filter", "SqlFilter", sql),
            Filter::Other(other) => other.element.clone(),
        };
        let action = match &self.action {
            None => typed("Action", "EmptyRuleAction"),
            Some(sql) => statement("Action", "SqlRuleAction", sql),
        };
        Element::new(name).with("xmlns", SERVICE_BUS).with("xmlns:i", INSTANCE).containing([
            filter,
            action,
            Element::with_text("Name", &self.name),
        ])
    }

    pub(crate) fn describe(&self) -> Element {
        self.write(DESCRIPTION)
    }

    /// The description to send for a change: this filter and action, and everything else as it is.
    pub(crate) fn changed(&self, mut description: Element) -> Element {
        let written = self.describe();
        description.children.retain(|child| child.local() != "CreatedAt");
        for name in ["Action", "Filter"] {
            let new = written.child(name).expect("it was just written").clone().within(&description);
            match description.children.iter_mut().find(|child| child.local() == name) {
                Some(there) => *there = new,
                None => description.children.insert(0, new),
            }
        }
        description
    }
}

fn read_filter(filter: &Element, around: &Element) -> Result<Filter, String> {
    let sql = filter.said("SqlExpression").unwrap_or_default().to_owned();
    Ok(match filter.type_name() {
        Some("TrueFilter") => Filter::All,
        Some("FalseFilter") => Filter::Nothing,
        // What true and false filters were written as once.
        Some("SqlFilter") if sql == "1=1" => Filter::All,
        Some("SqlFilter") if sql == "1=0" => Filter::Nothing,
        Some("SqlFilter") if filter.child("Parameters").is_none_or(|it| it.children.is_empty()) => Filter::Sql(sql),
        Some(kind) => {
            let text = |field: &Element| match field.children.as_slice() {
                [] => format!("{}={}", field.local(), field.text.trim()),
                pairs => pairs.iter().map(pair).collect::<Vec<_>>().join(", "),
            };
            let said = filter.children.iter().filter(|field| field.local() != "CompatibilityLevel");
            let mut element = filter.clone();
            element.declare(around);
            Filter::Other(OtherFilter {
                kind: kind.to_owned(),
                text: said.map(text).collect::<Vec<_>>().join(", "),
                element,
            })
        }
        None => return Err("a rule's filter does not say what kind it is".to_owned()),
    })
}

fn pair(pair: &Element) -> String {
    format!("{}={}", pair.said("Key").unwrap_or_default(), pair.said("Value").unwrap_or_default())
}

/// The service may write a statement's end differently from how it was sent.
fn normal(action: Option<&str>) -> Option<&str> {
    action.map(|sql| sql.trim().trim_end_matches(';').trim_end()).filter(|sql| !sql.is_empty())
}

fn typed(name: &str, kind: &str) -> Element {
    // Declared here too, so that it can be put into a description that names the namespace otherwise.
    Element::new(name).with("xmlns:i", INSTANCE).with("i:type", kind)
}

fn statement(name: &str, kind: &str, sql: &str) -> Element {
    typed(name, kind).containing([
        Element::with_text("SqlExpression", sql),
        Element::with_text("CompatibilityLevel", COMPATIBILITY_LEVEL),
    ])
}

impl std::fmt::Display for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => f.write_str("all messages"),
            Self::Nothing => f.write_str("no messages"),
            Self::Sql(sql) => f.write_str(sql),
            Self::Other(other) => write!(f, "{} {}", other.kind, other.text),
        }
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.name, self.filter)?;
        self.action.as_ref().map_or(Ok(()), |action| write!(f, ", then {action}"))
    }
}
