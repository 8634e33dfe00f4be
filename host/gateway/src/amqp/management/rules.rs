//! Requests about the rules of a subscription.

use std::collections::BTreeMap;

use sprag_amqp::value::{Map, Value};
use sprag_broker::{Correlation, FilterSpec, FilterValue, RuleSpec, RuleView, SqlText};
use sprag_core::{message::uuid_text, time::Timestamp};

use super::{Answer, Request, body};
use crate::amqp::{context::Context, failure::Failure};

/// Codes of the described lists that rules are listed as.
mod code {
    pub(super) const RULE: u64 = 0x137_0000_0004;
    pub(super) const NO_ACTION: u64 = 0x137_0000_0005;
    pub(super) const SQL_ACTION: u64 = 0x137_0000_0006;
    pub(super) const SQL_FILTER: u64 = 0x13_7000_0006;
    pub(super) const TRUE_FILTER: u64 = 0x13_7000_0007;
    pub(super) const FALSE_FILTER: u64 = 0x13_7000_0008;
    pub(super) const CORRELATION_FILTER: u64 = 0x13_7000_0009;
}

/// The version of the SQL dialect, as Azure gives it.
const SQL_LEVEL: i32 = 20;

pub(super) async fn add(context: &Context, request: &Request) -> Result<Answer, Failure> {
    let name = body::text(&request.body, "rule-name")?;
    let description = body::map(&request.body, "rule-description")?;
    let action = match body::optional(description, "sql-rule-action") {
        Some(Value::Map(action)) => body::optional_text(action, "expression").map(SqlText::from),
        _ => None,
    };
    let rule = RuleSpec { name: name.to_owned(), filter: filter(description)?, action };
    context.engine.add_rule(&request.place.name, rule).await?;
    Ok(Answer::done())
}

fn filter(description: &Map) -> Result<FilterSpec, Failure> {
    let given = |field: &str| body::optional(description, field).map(|value| value.as_map());
    if let Some(Some(sql)) = given("sql-filter") {
        return Ok(FilterSpec::Sql(body::text(sql, "expression")?.to_owned()));
    }
    if let Some(Some(correlation)) = given("correlation-filter") {
        return Ok(FilterSpec::Correlation(Box::new(self::correlation(correlation)?)));
    }
    if given("true-filter").is_some() {
        return Ok(FilterSpec::All);
    }
    if given("false-filter").is_some() {
        return Ok(FilterSpec::Nothing);
    }
    Err(Failure::argument("rule-description: it has neither a sql-filter nor a correlation-filter"))
}

fn correlation(map: &Map) -> Result<Correlation, Failure> {
    let text = |field: &str| body::optional_text(map, field);
    let mut properties = BTreeMap::new();
    if let Some(Value::Map(given)) = body::optional(map, "properties") {
        for (key, value) in given.iter() {
            let key = key.as_str().ok_or_else(|| Failure::argument("properties: a name is no text"))?;
            properties.insert(key.to_owned(), compared(key, value)?);
        }
    }
    Ok(Correlation {
        message_id: text("message-id"),
        session_id: text("session-id"),
        subject: text("label"),
        content_type: text("content-type"),
        correlation_id: text("correlation-id"),
        to: text("to"),
        reply_to: text("reply-to"),
        reply_to_session_id: text("reply-to-session-id"),
        properties,
    })
}

fn compared(key: &str, value: &Value) -> Result<FilterValue, Failure> {
    Ok(match value {
        Value::Null => FilterValue::Null,
        Value::Bool(value) => FilterValue::Bool(*value),
        Value::Float(bits) => FilterValue::Double(f32::from_bits(*bits).into()),
        Value::Double(bits) => FilterValue::Double(f64::from_bits(*bits)),
        Value::Timestamp(time) => FilterValue::Time { time: Timestamp(*time) },
        Value::Uuid(bytes) => FilterValue::Text(uuid_text(bytes)),
        other => match (other.as_i64(), other.as_str()) {
            (Some(number), _) => FilterValue::Int(number),
            (None, Some(text)) => FilterValue::Text(text.to_owned()),
            _ => return Err(Failure::argument(format!("properties: {key} is of a type that filters do not compare"))),
        },
    })
}

pub(super) async fn remove(context: &Context, request: &Request) -> Result<Answer, Failure> {
    context.engine.remove_rule(&request.place.name, body::text(&request.body, "rule-name")?).await?;
    Ok(Answer::done())
}

pub(super) fn list(context: &Context, request: &Request) -> Result<Answer, Failure> {
    let skip = body::count(&request.body, "skip", 0)?;
    let top = body::count(&request.body, "top", usize::MAX)?;
    let rules = context.engine.rules(&request.place.name)?;
    let listed: Vec<Value> = rules.iter().skip(skip).take(top).map(described).collect();
    match listed.is_empty() {
        true => Ok(Answer::nothing()),
        false => Ok(Answer::ok([("rules".to_owned(), Value::List(listed))].into_iter().collect())),
    }
}

fn described(rule: &RuleView) -> Value {
    let RuleSpec { name, filter, action } = &rule.spec;
    let sql =
        |code: u64, text: &str| Value::described(code, Value::List(vec![Value::from(text), Value::Int(SQL_LEVEL)]));
    let filter = match filter {
        // Without fields: .NET's codec has none, and azservicebus reads none.
        FilterSpec::All => Value::described(code::TRUE_FILTER, Value::List(Vec::new())),
        FilterSpec::Nothing => Value::described(code::FALSE_FILTER, Value::List(Vec::new())),
        FilterSpec::Sql(text) => sql(code::SQL_FILTER, text),
        FilterSpec::SqlWith(text) => sql(code::SQL_FILTER, &text.expression),
        FilterSpec::Correlation(filter) => Value::described(code::CORRELATION_FILTER, listed(filter)),
    };
    let action = match action {
        Some(action) => sql(code::SQL_ACTION, &action.expression),
        None => Value::described(code::NO_ACTION, Value::List(Vec::new())),
    };
    let name = Value::from(name.as_str());
    let rule = Value::List(vec![filter, action, name, Value::Timestamp(rule.created_at.0)]);
    let described = Value::described(code::RULE, rule);
    Value::Map([("rule-description".to_owned(), described)].into_iter().collect())
}

fn listed(filter: &Correlation) -> Value {
    let text = |text: &Option<String>| text.as_deref().map_or(Value::Null, Value::from);
    let properties = filter.properties.iter().map(|(key, value)| {
        let value = match value {
            FilterValue::Null => Value::Null,
            FilterValue::Bool(value) => Value::Bool(*value),
            FilterValue::Int(number) => Value::Long(*number),
            FilterValue::Double(number) => Value::Double(number.to_bits()),
            FilterValue::Time { time } => Value::Timestamp(time.0),
            FilterValue::Text(text) => Value::from(text.as_str()),
        };
        (key.clone(), value)
    });
    Value::List(vec![
        text(&filter.correlation_id),
        text(&filter.message_id),
        text(&filter.to),
        text(&filter.reply_to),
        text(&filter.subject),
        text(&filter.session_id),
        text(&filter.reply_to_session_id),
        text(&filter.content_type),
        Value::Map(properties.collect()),
    ])
}
