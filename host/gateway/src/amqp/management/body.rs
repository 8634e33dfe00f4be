//! Reading the map of a request: each field or the failure that names it.

use sprag_amqp::value::{Map, Value};

use crate::amqp::failure::Failure;

/// None for a field that is not there or null.
pub(super) fn optional<'a>(body: &'a Map, field: &str) -> Option<&'a Value> {
    body.get(field).filter(|value| !value.is_null())
}

fn required<'a, T>(
    body: &'a Map,
    field: &str,
    what: &str,
    read: impl Fn(&'a Value) -> Option<T>,
) -> Result<T, Failure> {
    optional(body, field).and_then(read).ok_or_else(|| Failure::argument(format!("{field}: {what} is required")))
}

pub(super) fn text<'a>(body: &'a Map, field: &str) -> Result<&'a str, Failure> {
    required(body, field, "a text", Value::as_str)
}

pub(super) fn optional_text(body: &Map, field: &str) -> Option<String> {
    optional(body, field).and_then(Value::as_str).map(str::to_owned)
}

pub(super) fn number(body: &Map, field: &str) -> Result<i64, Failure> {
    required(body, field, "a number", Value::as_i64)
}

/// A count that is given, or one that is usual.
pub(super) fn count(body: &Map, field: &str, usual: usize) -> Result<usize, Failure> {
    match optional(body, field) {
        None => Ok(usual),
        Some(value) => {
            let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
            count.ok_or_else(|| Failure::argument(format!("{field}: it is no count")))
        }
    }
}

pub(super) fn map<'a>(body: &'a Map, field: &str) -> Result<&'a Map, Failure> {
    required(body, field, "a map", Value::as_map)
}

pub(super) fn items<'a>(body: &'a Map, field: &str) -> Result<&'a [Value], Failure> {
    required(body, field, "a list", Value::as_items)
}

pub(super) fn numbers(body: &Map, field: &str) -> Result<Vec<i64>, Failure> {
    let numbers: Option<Vec<i64>> = items(body, field)?.iter().map(Value::as_i64).collect();
    numbers.ok_or_else(|| Failure::argument(format!("{field}: numbers are required")))
}
