//! The commands, as JSON has them.

use serde::Deserialize;
use serde_json::{Value, json};
use sprag_handler::{Failure, Outgoing, Property, PropertyValue};

#[derive(Deserialize)]
pub(crate) struct Command {
    #[serde(default)]
    pub(crate) steps: Vec<Step>,
    pub(crate) report: Option<String>,
    #[serde(default)]
    pub(crate) end: End,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub(crate) enum Step {
    Echo,
    Context,
    Log {
        level: Level,
        text: String,
    },
    Publish(Publish),
    Schedule {
        #[serde(flatten)]
        message: Publish,
        at: u64,
    },
    StateGet {
        key: String,
    },
    StateSet {
        key: String,
        value: String,
    },
    StateDelete {
        key: String,
    },
    StateCas {
        key: String,
        expected: Option<String>,
        value: Option<String>,
    },
    StateScan {
        prefix: String,
        after: Option<String>,
        limit: u32,
    },
    ConfigGet {
        key: String,
    },
    ConfigAll,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

#[derive(Deserialize, Default)]
#[serde(tag = "as", rename_all = "kebab-case")]
pub(crate) enum End {
    #[default]
    Done,
    Discard {
        reason: String,
    },
    Handoff {
        reason: String,
        external_id: Option<String>,
        expected_by: Option<u64>,
    },
    Transient {
        text: String,
        retry_after: Option<u64>,
    },
    Failed {
        kind: String,
        text: String,
        retry_after: Option<u64>,
    },
    DeadLetter {
        reason: String,
        text: String,
    },
    Exception {
        text: String,
    },
}

#[derive(Deserialize)]
pub(crate) struct Publish {
    entity: String,
    event_type: String,
    message_id: Option<String>,
    session_id: Option<String>,
    correlation_id: Option<String>,
    content_type: Option<String>,
    #[serde(default)]
    properties: Vec<TypedProperty>,
    #[serde(default)]
    body: String,
}

#[derive(Deserialize)]
struct TypedProperty {
    name: String,
    r#type: String,
    #[serde(default)]
    value: Value,
}

impl Publish {
    pub(crate) fn into_outgoing(self) -> Result<Outgoing, Failure> {
        let mut message = Outgoing::new(self.entity, self.event_type);
        if let Some(id) = self.message_id {
            message = message.message_id(id);
        }
        if let Some(id) = self.session_id {
            message = message.session(id);
        }
        if let Some(id) = self.correlation_id {
            message = message.correlation(id);
        }
        message = match self.content_type {
            Some(content_type) => message.body(self.body, content_type),
            None => message.bytes(self.body),
        };
        for property in self.properties {
            let value = read_value(&property).ok_or_else(|| {
                Failure::dead_letter("bad-body", format!("property {} is no {}", property.name, property.r#type))
            })?;
            message = message.property(property.name, value);
        }
        Ok(message)
    }
}

fn read_value(property: &TypedProperty) -> Option<PropertyValue> {
    let value = &property.value;
    Some(match property.r#type.as_str() {
        "null" => PropertyValue::Null,
        "boolean" => PropertyValue::Boolean(value.as_bool()?),
        "integer" => PropertyValue::Integer(value.as_str()?.parse().ok()?),
        "unsigned" => PropertyValue::Unsigned(value.as_str()?.parse().ok()?),
        "float" => PropertyValue::Float(value.as_f64()?),
        "text" => PropertyValue::Text(value.as_str()?.to_owned()),
        "bytes" => PropertyValue::Bytes(unhex(value.as_str()?)?),
        "timestamp" => PropertyValue::Timestamp(value.as_str()?.parse().ok()?),
        "uuid" => PropertyValue::Uuid(value.as_str()?.to_owned()),
        _ => return None,
    })
}

pub(crate) fn show_property(property: &Property) -> Value {
    let (kind, value) = match &property.value {
        PropertyValue::Null => ("null", Value::Null),
        PropertyValue::Boolean(value) => ("boolean", json!(value)),
        PropertyValue::Integer(value) => ("integer", json!(value.to_string())),
        PropertyValue::Unsigned(value) => ("unsigned", json!(value.to_string())),
        PropertyValue::Float(value) => ("float", json!(value)),
        PropertyValue::Text(value) => ("text", json!(value)),
        PropertyValue::Bytes(value) => ("bytes", json!(hex(value))),
        PropertyValue::Timestamp(value) => ("timestamp", json!(value.to_string())),
        PropertyValue::Uuid(value) => ("uuid", json!(value)),
    };
    json!({ "name": property.name, "type": kind, "value": value })
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
