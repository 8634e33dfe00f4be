//! Rules: filters and actions, from and to XML.
//!
//! JavaScript reads the type of a parameter's value from `i:type` behind a prefix of four letters, so both are written just so.

use std::collections::BTreeMap;

use sprag_broker::{Correlation, FilterSpec, FilterValue, RuleSpec, RuleView, SqlText};
use sprag_core::time::Timestamp;

use super::{atom::Entry, refusal::Refusal, xml::Element};

const SCHEMA: &str = "http://www.w3.org/2001/XMLSchema";
const PAIR: &str = "KeyValueOfstringanyType";
/// Of the language of filters and actions; what Azure answers.
const COMPATIBILITY_LEVEL: u32 = 20;
/// What true and false filters stand for.
const TRUE: &str = "1=1";
const FALSE: &str = "1=0";

/// `name` is the one that the description has to have, if any.
pub(super) fn read(description: &Element, name: Option<&str>) -> Result<RuleSpec, Refusal> {
    let stated = description.child("Name").map(|it| it.text.as_str()).filter(|it| !it.is_empty());
    let name = match (name, stated) {
        (Some(name), Some(stated)) if !name.eq_ignore_ascii_case(stated) => {
            return Err(Refusal::bad(format!(
                "the rule is named {name:?} in the address and {stated:?} in the description"
            )));
        }
        (Some(name), _) | (None, Some(name)) => name,
        (None, None) => sprag_broker::DEFAULT_RULE,
    };
    let filter = description.child("Filter").map_or(Ok(FilterSpec::All), filter)?;
    let action = description.child("Action").map_or(Ok(None), action)?;
    Ok(RuleSpec { action, ..RuleSpec::new(name, filter) })
}

fn filter(element: &Element) -> Result<FilterSpec, Refusal> {
    Ok(match element.type_name() {
        Some("TrueFilter") => FilterSpec::All,
        Some("FalseFilter") => FilterSpec::Nothing,
        Some("SqlFilter") => {
            let text = sql(element)?;
            match text.parameters.is_empty() {
                true => FilterSpec::Sql(text.expression),
                false => FilterSpec::SqlWith(Box::new(text)),
            }
        }
        Some("CorrelationFilter") => FilterSpec::Correlation(Box::new(correlation(element)?)),
        other => return Err(Refusal::bad(format!("{:?} is no kind of filter", other.unwrap_or_default()))),
    })
}

fn action(element: &Element) -> Result<Option<SqlText>, Refusal> {
    match element.type_name() {
        None | Some("EmptyRuleAction") => Ok(None),
        Some("SqlRuleAction") => sql(element).map(Some),
        Some(other) => Err(Refusal::bad(format!("{other:?} is no kind of action"))),
    }
}

fn sql(element: &Element) -> Result<SqlText, Refusal> {
    let expression = element.child("SqlExpression").map(|it| it.text.clone());
    let expression = expression.ok_or_else(|| Refusal::bad(format!("{} has no SqlExpression", element.name)))?;
    let parameters = element.child("Parameters").map_or(Ok(BTreeMap::new()), pairs)?;
    Ok(SqlText { expression, parameters })
}

fn correlation(element: &Element) -> Result<Correlation, Refusal> {
    let mut filter = Correlation::default();
    for field in &element.children {
        let place = match field.name.as_ref() {
            "CorrelationId" => &mut filter.correlation_id,
            "MessageId" => &mut filter.message_id,
            "To" => &mut filter.to,
            "ReplyTo" => &mut filter.reply_to,
            "Label" => &mut filter.subject,
            "SessionId" => &mut filter.session_id,
            "ReplyToSessionId" => &mut filter.reply_to_session_id,
            "ContentType" => &mut filter.content_type,
            "Properties" => {
                filter.properties = pairs(field)?;
                continue;
            }
            other => return Err(Refusal::bad(format!("a correlation filter has no {other}"))),
        };
        *place = (field.attribute("nil") != Some("true")).then(|| field.text.clone());
    }
    Ok(filter)
}

fn pairs(element: &Element) -> Result<BTreeMap<String, FilterValue>, Refusal> {
    let mut all = BTreeMap::new();
    for pair in element.children.iter().filter(|pair| pair.name == PAIR) {
        let (Some(key), Some(found)) = (pair.child("Key"), pair.child("Value")) else {
            return Err(Refusal::bad(format!("a pair of {} has no Key or no Value", element.name)));
        };
        if all.insert(key.text.clone(), value(&key.text, found)?).is_some() {
            return Err(Refusal::bad(format!("{:?} is there twice in {}", key.text, element.name)));
        }
    }
    Ok(all)
}

fn value(key: &str, element: &Element) -> Result<FilterValue, Refusal> {
    if element.attribute("nil") == Some("true") {
        return Ok(FilterValue::Null);
    }
    let (kind, text) = (element.type_name().unwrap_or("string"), element.text.trim());
    let read = match kind {
        "string" | "guid" | "char" | "anyURI" => Some(FilterValue::Text(element.text.clone())),
        "int" | "long" | "short" | "byte" | "unsignedInt" | "unsignedShort" | "unsignedByte" => {
            text.parse().ok().map(FilterValue::Int)
        }
        "double" | "float" | "decimal" => {
            text.parse().ok().filter(|number: &f64| number.is_finite()).map(FilterValue::Double)
        }
        "boolean" => text.to_ascii_lowercase().parse().ok().map(FilterValue::Bool),
        "dateTime" => date(text).map(|time| FilterValue::Time { time }),
        other => return Err(Refusal::bad(format!("the value of {key:?} has the type {other:?}, which is not taken"))),
    };
    read.ok_or_else(|| Refusal::bad(format!("the value of {key:?} is {text:?}, no {kind}")))
}

/// In UTC, to the millisecond; another offset is refused.
fn date(text: &str) -> Option<Timestamp> {
    let text = text.strip_suffix("+00:00").unwrap_or(text);
    let at = humantime::parse_rfc3339_weak(text).ok()?;
    let since = at.duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_millis()).ok().map(Timestamp)
}

pub(super) fn entry(topic: &str, subscription: &str, rule: &RuleView) -> Entry {
    let action = match &rule.spec.action {
        None => Element::new("Action").with("i:type", "EmptyRuleAction"),
        Some(text) => written("Action", "SqlRuleAction", text),
    };
    let name = rule.spec.name.as_str();
    Entry {
        path: format!("{topic}/Subscriptions/{subscription}/Rules/{name}"),
        title: name.to_owned(),
        created_at: rule.created_at,
        updated_at: rule.created_at,
        description: Element::new("RuleDescription").containing([
            filter_element(&rule.spec.filter),
            action,
            Element::text("CreatedAt", rule.created_at),
            Element::text("Name", name),
        ]),
    }
}

fn filter_element(filter: &FilterSpec) -> Element {
    match filter {
        FilterSpec::All => written("Filter", "TrueFilter", &TRUE.into()),
        FilterSpec::Nothing => written("Filter", "FalseFilter", &FALSE.into()),
        FilterSpec::Sql(text) => written("Filter", "SqlFilter", &text.as_str().into()),
        FilterSpec::SqlWith(text) => written("Filter", "SqlFilter", text),
        FilterSpec::Correlation(filter) => {
            let fields = [
                ("CorrelationId", &filter.correlation_id),
                ("MessageId", &filter.message_id),
                ("To", &filter.to),
                ("ReplyTo", &filter.reply_to),
                ("Label", &filter.subject),
                ("SessionId", &filter.session_id),
                ("ReplyToSessionId", &filter.reply_to_session_id),
                ("ContentType", &filter.content_type),
            ];
            let given = fields.into_iter().filter_map(|(name, text)| Some(Element::text(name, text.as_ref()?)));
            Element::new("Filter")
                .with("i:type", "CorrelationFilter")
                .containing(given)
                .containing(written_pairs("Properties", &filter.properties))
        }
    }
}

fn written(name: &'static str, kind: &'static str, text: &SqlText) -> Element {
    Element::new(name)
        .with("i:type", kind)
        .containing([
            Element::text("SqlExpression", &text.expression),
            Element::text("CompatibilityLevel", COMPATIBILITY_LEVEL),
        ])
        .containing(written_pairs("Parameters", &text.parameters))
}

/// None when there are none: JavaScript takes an element that is there for one that has some.
fn written_pairs(name: &'static str, pairs: &BTreeMap<String, FilterValue>) -> Option<Element> {
    let pair = |(key, value): (&String, &FilterValue)| {
        Element::new(PAIR).containing([Element::text("Key", key), written_value(value)])
    };
    (!pairs.is_empty()).then(|| Element::new(name).containing(pairs.iter().map(pair)))
}

fn written_value(value: &FilterValue) -> Element {
    let (kind, text) = match value {
        FilterValue::Null => return Element::new("Value").with("i:nil", "true"),
        FilterValue::Bool(value) => ("boolean", value.to_string()),
        FilterValue::Int(n) if i32::try_from(*n).is_ok() => ("int", n.to_string()),
        FilterValue::Int(n) => ("long", n.to_string()),
        FilterValue::Double(n) => ("double", n.to_string()),
        FilterValue::Time { time } => ("dateTime", time.to_string()),
        FilterValue::Text(text) => ("string", text.clone()),
    };
    Element::text("Value", text).with("xmlns:d6p1", SCHEMA).with("i:type", format!("d6p1:{kind}"))
}
