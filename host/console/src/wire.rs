//! A message as a sender writes it in JSON: our own shape, or a CloudEvent.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use sprag_core::{
    identity,
    message::{Body, Message, MessageType, Value, property},
    operations::{
        time::Time,
        view::{base64, base64_decode},
    },
};

/// Our own shape. A body that is no text is sent as JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewMessage {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// Not visible to receivers before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// Milliseconds until it expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

impl NewMessage {
    /// One line of a file: our own shape, or a CloudEvent (told by `specversion`).
    pub fn from_line(line: &str) -> Result<Self, String> {
        let json: Json = serde_json::from_str(line).map_err(|error| format!("not JSON: {error}"))?;
        let Json::Object(object) = json else { return Err("not a JSON object".to_owned()) };
        if object.contains_key("specversion") {
            return cloud_event(object);
        }
        serde_json::from_value(Json::Object(object)).map_err(|error| error.to_string())
    }

    /// Text as text, anything else as base64.
    pub fn set_body(&mut self, bytes: Vec<u8>) {
        match String::from_utf8(bytes) {
            Ok(text) => self.body = Some(Json::String(text)),
            Err(error) => self.body_base64 = Some(base64(error.as_bytes())),
        }
    }

    /// The message, or what is wrong with it.
    pub fn into_message(self) -> Result<Message, String> {
        let mut message = Message {
            message_id: self.id.map(|id| checked("id", &id).map(|()| id.into())).transpose()?,
            session_id: self
                .session
                .map(|session| checked("session", &session).map(|()| session.into()))
                .transpose()?,
            subject: self.subject.map(Arc::from),
            content_type: self.content_type.map(Arc::from),
            correlation_id: self.correlation_id.map(Arc::from),
            reply_to: self.reply_to.map(Arc::from),
            scheduled_for: self.at.map(|at| at.0),
            time_to_live: self.ttl_ms.map(Duration::from_millis),
            ..Message::default()
        };
        if message.time_to_live == Some(Duration::ZERO) {
            return Err("`ttl_ms` is 0: the message would be expired at once".to_owned());
        }
        message.body = match (self.body, self.body_base64) {
            (Some(_), Some(_)) => return Err("a message has `body` or `body_base64`, not both".to_owned()),
            (None, None) | (Some(Json::Null), None) => Body::None,
            (Some(Json::String(text)), None) => Body::Data(text.into()),
            (Some(json), None) => {
                message.content_type.get_or_insert_with(|| "application/json".into());
                Body::Data(json.to_string().into())
            }
            (None, Some(text)) => Body::Data(base64_decode(&text).ok_or("`body_base64` is not base64")?.into()),
        };
        for (name, json) in self.headers {
            may_be_sent(&name, json.as_str())?;
            let value = header_value(&json).ok_or_else(|| {
                format!("header {name:?} is a list or an object; a header is a text, a number or true or false")
            })?;
            message.properties.insert(name.into(), value);
        }
        if let Some(event_type) = self.event_type {
            checked("type", &event_type)?;
            message.set_property(property::EVENT_TYPE_ID, Value::string(event_type));
        }
        Ok(message)
    }
}

/// Whether a sender may set an application property (P31).
pub fn may_be_sent(name: &str, value: Option<&str>) -> Result<(), String> {
    if name.is_empty() || name.chars().any(char::is_control) {
        return Err(format!("the header name {name:?} is empty or has control characters"));
    }
    let reserved = property::RESERVED.contains(&name)
        || (name == property::MESSAGE_TYPE && value != Some(MessageType::Event.name()));
    if reserved { Err(format!("header {name:?} is reserved for the host")) } else { Ok(()) }
}

fn checked(what: &str, text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err(format!("`{what}` is blank"));
    }
    if text.chars().any(char::is_control) {
        return Err(format!("`{what}` {text:?} has control characters"));
    }
    match identity::utf16_len(text) {
        units if units > identity::MAX_MESSAGE_ID => {
            Err(format!("`{what}` has {units} UTF-16 units; at most {} are allowed", identity::MAX_MESSAGE_ID))
        }
        _ => Ok(()),
    }
}

fn header_value(json: &Json) -> Option<Value> {
    Some(match json {
        Json::Null => Value::Null,
        Json::Bool(flag) => Value::Bool(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(n), _) => Value::Long(n),
            (None, Some(n)) => Value::Ulong(n),
            (None, None) => Value::Double(number.as_f64()?),
        },
        Json::String(text) => Value::string(text.as_str()),
        Json::Array(_) | Json::Object(_) => return None,
    })
}

/// Attributes become `cloudEvents:` headers as in the AMQP binding; the type also becomes the event type, so that filters see it. The
/// session is the extension `sessionid`, else the subject.
fn cloud_event(mut object: serde_json::Map<String, Json>) -> Result<NewMessage, String> {
    let text = |name: &str, needed: bool| match object.get(name) {
        Some(Json::String(text)) if !text.is_empty() => Ok(Some(text.clone())),
        None | Some(Json::Null) if !needed => Ok(None),
        None | Some(Json::Null) => Err(format!("a CloudEvent needs `{name}`")),
        Some(_) => Err(format!("`{name}` of a CloudEvent is a text that is not empty")),
    };
    match text("specversion", true)?.as_deref() {
        Some("1.0") => {}
        other => return Err(format!("CloudEvents {} is not supported; 1.0 is", other.unwrap_or_default())),
    }
    let id = text("id", true)?;
    let event_type = text("type", true)?;
    text("source", true)?;
    let subject = text("subject", false)?;
    let content_type = text("datacontenttype", false)?;
    let body_base64 = text("data_base64", false)?;
    let session = match object.remove("sessionid") {
        None | Some(Json::Null) => subject,
        Some(Json::String(session)) => Some(session),
        Some(Json::Number(session)) => Some(session.to_string()),
        Some(_) => return Err("`sessionid` is a text".to_owned()),
    };
    let body = object.remove("data");
    object.remove("data_base64");
    object.remove("datacontenttype");
    let body = match body {
        // JSON data stays JSON, even when it is a text, unless its content type says that it is something else.
        Some(Json::String(text)) if content_type.as_deref().is_none_or(is_json) => {
            Some(Json::String(Json::String(text).to_string()))
        }
        other => other,
    };
    let content_type =
        content_type.or_else(|| (body.is_some() && body_base64.is_none()).then(|| "application/json".to_owned()));
    let mut headers = BTreeMap::new();
    for (name, value) in object {
        let name = match name.as_str() {
            property::TRACEPARENT | property::TRACESTATE => name,
            _ => format!("cloudEvents:{name}"),
        };
        headers.insert(name, value);
    }
    Ok(NewMessage { event_type, id, session, body, body_base64, headers, content_type, ..NewMessage::default() })
}

fn is_json(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media.ends_with("/json") || media.ends_with("+json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(line: &str) -> Message {
        NewMessage::from_line(line).and_then(NewMessage::into_message).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    fn wrong(line: &str) -> String {
        NewMessage::from_line(line).and_then(NewMessage::into_message).expect_err(line)
    }

    #[test]
    fn our_own_shape() {
        let sent = message(
            r#"{"type":"OrderPlaced","id":"o1","session":"c1","body":{"total":3},"headers":{"n":1,"big":18446744073709551615,"x":1.5,"ok":true,"t":"a"}}"#,
        );
        assert_eq!(sent.message_id, Some("o1".into()));
        assert_eq!(sent.session_id, Some("c1".into()));
        assert_eq!(sent.event_type().as_str(), "OrderPlaced");
        assert_eq!(sent.body, Body::Data(r#"{"total":3}"#.into()));
        assert_eq!(sent.content_type.as_deref(), Some("application/json"));
        assert_eq!(sent.property("n"), Some(&Value::Long(1)));
        assert_eq!(sent.property("big"), Some(&Value::Ulong(u64::MAX)));
        assert_eq!(sent.property("x"), Some(&Value::Double(1.5)));
        assert_eq!(message(r#"{"body":"plain"}"#).body, Body::Data("plain".into()));
        assert_eq!(message("{}").body, Body::None);
    }

    #[test]
    fn a_cloud_event() {
        let sent = message(
            r#"{"specversion":"1.0","type":"shop.order.placed","source":"/shop","id":"e1","subject":"order-7","sessionid":"customer-3","time":"2026-11-29T00:00:00Z","traceparent":"00-a-b-01","data":{"total":3}}"#,
        );
        assert_eq!(sent.message_id, Some("e1".into()));
        assert_eq!(sent.session_id, Some("customer-3".into()));
        assert_eq!(sent.event_type().as_str(), "shop.order.placed");
        assert_eq!(sent.text_property("cloudEvents:source"), Some("/shop"));
        assert_eq!(sent.text_property("cloudEvents:subject"), Some("order-7"));
        assert_eq!(sent.text_property(property::TRACEPARENT), Some("00-a-b-01"));
        assert_eq!(sent.body, Body::Data(r#"{"total":3}"#.into()));
        assert_eq!(sent.content_type.as_deref(), Some("application/json"));
        let by_subject = message(r#"{"specversion":"1.0","type":"t","source":"s","id":"e","subject":"order-7"}"#);
        assert_eq!(by_subject.session_id, Some("order-7".into()), "without sessionid the subject is the session");
        let text = message(
            r#"{"specversion":"1.0","type":"t","source":"s","id":"e","datacontenttype":"text/plain","data":"hello"}"#,
        );
        assert_eq!(text.body, Body::Data("hello".into()));
        let json_text = message(r#"{"specversion":"1.0","type":"t","source":"s","id":"e","data":"hello"}"#);
        assert_eq!(json_text.body, Body::Data("\"hello\"".into()));
    }

    /// Rule P31, and ids that nobody could find again.
    #[test]
    fn what_may_not_be_sent() {
        for (line, expected) in [
            ("nonsense", "not JSON"),
            ("[1]", "not a JSON object"),
            (r#"{"sesion":"x"}"#, "unknown field `sesion`"),
            (r#"{"headers":{"InboxMessageId":"m1"}}"#, "\"InboxMessageId\" is reserved"),
            (r#"{"headers":{"MessageType":"RetryRequest"}}"#, "\"MessageType\" is reserved"),
            (r#"{"headers":{"a":[1]}}"#, "is a list or an object"),
            (r#"{"id":"a\u0000b"}"#, "has control characters"),
            (r#"{"id":" "}"#, "`id` is blank"),
            (r#"{"body":"a","body_base64":"YQ=="}"#, "not both"),
            (r#"{"body_base64":"!"}"#, "is not base64"),
            (r#"{"at":"tomorrow"}"#, "is not a time like"),
            (r#"{"specversion":"1.0","type":"t","source":"s"}"#, "needs `id`"),
            (r#"{"specversion":"0.3","type":"t","source":"s","id":"1"}"#, "0.3 is not supported"),
        ] {
            let got = wrong(line);
            assert!(got.contains(expected), "{line}: {got}");
        }
        assert!(wrong(&format!(r#"{{"id":"{}"}}"#, "x".repeat(600))).contains("has 600 UTF-16 units; at most 512"));
        message(r#"{"headers":{"MessageType":"EventRequest"}}"#);
    }
}
