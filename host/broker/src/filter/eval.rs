//! Answers an expression for a message, in the logic of three values: what is not known is neither true nor false. Carries out actions.

use std::{borrow::Cow, cmp::Ordering, sync::Arc};

use sprag_core::{
    message::{Message, Value, uuid_text},
    time::Timestamp,
};

use super::sql::{Calculate, Compare, Expression, Literal, Name, Pattern, Piece, Statement, System, escape_of, pieces};

#[derive(Debug, Clone, PartialEq)]
enum Operand<'a> {
    Unknown,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(Cow<'a, str>),
    Uuid([u8; 16]),
}

pub(super) fn is_true(expression: &Expression, message: &Message) -> bool {
    eval(expression, message) == Operand::Bool(true)
}

/// Changes the message as the statements say, one after another.
pub(super) fn carry_out(statements: &[Statement], message: &mut Message) {
    for statement in statements {
        match statement {
            Statement::Set(Name::Application(name), expression) => {
                let key = stored_name(message, name);
                let value = into_value(eval(expression, message), message.properties.get(&key));
                message.properties.insert(key, value);
            }
            Statement::Set(Name::System(system), expression) => {
                let text = match eval(expression, message) {
                    Operand::Unknown => None,
                    Operand::Bool(value) => Some(value.to_string()),
                    Operand::Int(n) => Some(n.to_string()),
                    Operand::Double(n) => Some(n.to_string()),
                    Operand::Text(text) => Some(text.into_owned()),
                    Operand::Uuid(bytes) => Some(uuid_text(&bytes)),
                };
                set_system(message, *system, text);
            }
            Statement::Remove(Name::Application(name)) => {
                let key = stored_name(message, name);
                message.properties.remove(&key);
            }
            Statement::Remove(Name::System(system)) => set_system(message, *system, None),
        }
    }
}

/// The property's name as the message has it, for names compare without case.
fn stored_name(message: &Message, name: &str) -> Arc<str> {
    let stored = message.properties.get_key_value(name).map(|(key, _)| key);
    let stored = stored.or_else(|| message.properties.keys().find(|key| key.eq_ignore_ascii_case(name)));
    stored.cloned().unwrap_or_else(|| name.into())
}

fn application<'a>(message: &'a Message, name: &str) -> Option<&'a Value> {
    message
        .property(name)
        .or_else(|| message.properties.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value))
}

/// The value of an assignment; of the type that the property had, where the value fits it.
fn into_value(operand: Operand<'_>, old: Option<&Value>) -> Value {
    match operand {
        Operand::Unknown => Value::Null,
        Operand::Bool(value) => Value::Bool(value),
        Operand::Int(n) => {
            let same = match old {
                Some(Value::Byte(_)) => n.try_into().ok().map(Value::Byte),
                Some(Value::Ubyte(_)) => n.try_into().ok().map(Value::Ubyte),
                Some(Value::Short(_)) => n.try_into().ok().map(Value::Short),
                Some(Value::Ushort(_)) => n.try_into().ok().map(Value::Ushort),
                Some(Value::Int(_)) => n.try_into().ok().map(Value::Int),
                Some(Value::Uint(_)) => n.try_into().ok().map(Value::Uint),
                Some(Value::Ulong(_)) => n.try_into().ok().map(Value::Ulong),
                Some(Value::Float(_)) => Some(Value::Float(n as f32)),
                Some(Value::Double(_)) => Some(Value::Double(n as f64)),
                Some(Value::Timestamp(_)) => Some(Value::Timestamp(Timestamp(n))),
                Some(Value::String(_)) => Some(Value::string(n.to_string())),
                _ => None,
            };
            same.unwrap_or(Value::Long(n))
        }
        Operand::Double(n) => match old {
            Some(Value::Float(_)) => Value::Float(n as f32),
            Some(Value::String(_)) => Value::string(n.to_string()),
            _ => Value::Double(n),
        },
        Operand::Text(text) => match old {
            Some(Value::Symbol(_)) => Value::Symbol(text.into()),
            _ => Value::string(text),
        },
        Operand::Uuid(bytes) => match old {
            Some(Value::String(_)) => Value::string(uuid_text(&bytes)),
            _ => Value::Uuid(bytes),
        },
    }
}

fn set_system(message: &mut Message, system: System, text: Option<String>) {
    let shared = text.as_deref().map(Arc::from);
    match system {
        // A message always has an id.
        System::MessageId => message.message_id = text.map(Into::into).or(message.message_id.take()),
        System::SessionId => message.session_id = text.map(Into::into),
        System::Subject => message.subject = shared,
        System::ContentType => message.content_type = shared,
        System::CorrelationId => message.correlation_id = shared,
        System::To => message.to = shared,
        System::ReplyTo => message.reply_to = shared,
        System::ReplyToSessionId => message.reply_to_session_id = shared,
        System::PartitionKey => message.partition_key = shared,
        System::ViaPartitionKey if shared.is_none() && message.rare.is_none() => {}
        System::ViaPartitionKey => message.rare_mut().via_partition_key = shared,
        // Refused when the action is read.
        System::TimeToLive | System::ScheduledEnqueueTime | System::Later => {}
    }
}

fn eval<'a>(expression: &'a Expression, message: &'a Message) -> Operand<'a> {
    match expression {
        Expression::Literal(literal) => match literal {
            Literal::Null => Operand::Unknown,
            Literal::Bool(value) => Operand::Bool(*value),
            Literal::Int(n) => Operand::Int(*n),
            Literal::Double(n) => Operand::Double(*n),
            Literal::Text(text) => Operand::Text(text.into()),
        },
        Expression::Name(name) => property(name, message),
        Expression::NewId => new_id().map_or(Operand::Unknown, Operand::Uuid),
        Expression::Property(name) => match eval(name, message) {
            Operand::Text(name) => operand(application(message, &name)),
            _ => Operand::Unknown,
        },
        Expression::Exists(Name::Application(name)) => Operand::Bool(application(message, name).is_some()),
        Expression::Exists(name) => Operand::Bool(property(name, message) != Operand::Unknown),
        Expression::Not(inner) => truth(condition(inner, message).map(|value| !value)),
        Expression::Minus(inner) => match eval(inner, message) {
            Operand::Int(n) => n.checked_neg().map_or(Operand::Unknown, Operand::Int),
            Operand::Double(n) => Operand::Double(-n),
            _ => Operand::Unknown,
        },
        Expression::And(left, right) => truth(match (condition(left, message), condition(right, message)) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        }),
        Expression::Or(left, right) => truth(match (condition(left, message), condition(right, message)) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        }),
        Expression::Compare(compare, left, right) => {
            let order = order(&eval(left, message), &eval(right, message));
            truth(order.map(|order| match compare {
                Compare::Equal => order.is_eq(),
                Compare::NotEqual => order.is_ne(),
                Compare::Less => order.is_lt(),
                Compare::LessOrEqual => order.is_le(),
                Compare::Greater => order.is_gt(),
                Compare::GreaterOrEqual => order.is_ge(),
            }))
        }
        Expression::Calculate(calculate, left, right) => result(*calculate, eval(left, message), eval(right, message)),
        Expression::Like { text, pattern, not } => match eval(text, message) {
            Operand::Text(text) => truth(likes(&text, pattern, message).map(|likes| likes != *not)),
            _ => Operand::Unknown,
        },
        Expression::In { value, list, not } => {
            let value = eval(value, message);
            let mut found = Some(false);
            for item in list {
                match order(&value, &eval(item, message)) {
                    Some(Ordering::Equal) => return Operand::Bool(!not),
                    Some(_) => {}
                    None => found = None,
                }
            }
            truth(found.map(|found| found != *not))
        }
        Expression::IsNull { value, not } => Operand::Bool((eval(value, message) == Operand::Unknown) != *not),
    }
}

fn condition(expression: &Expression, message: &Message) -> Option<bool> {
    match eval(expression, message) {
        Operand::Bool(value) => Some(value),
        _ => None,
    }
}

fn truth<'a>(value: Option<bool>) -> Operand<'a> {
    value.map_or(Operand::Unknown, Operand::Bool)
}

/// A UUID of version 4. None where the system gives no random numbers.
fn new_id() -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Some(bytes)
}

fn operand(value: Option<&Value>) -> Operand<'_> {
    match value {
        Some(Value::Bool(value)) => Operand::Bool(*value),
        Some(Value::Float(n)) => Operand::Double((*n).into()),
        Some(Value::Double(n)) => Operand::Double(*n),
        Some(Value::String(text) | Value::Symbol(text)) => Operand::Text((&**text).into()),
        Some(Value::Char(c)) => Operand::Text(c.to_string().into()),
        Some(Value::Timestamp(at)) => Operand::Int(at.0),
        Some(Value::Uuid(bytes)) => Operand::Uuid(*bytes),
        Some(value) => value.as_i64().map_or(Operand::Unknown, Operand::Int),
        None => Operand::Unknown,
    }
}

fn property<'a>(name: &Name, message: &'a Message) -> Operand<'a> {
    let millis = |n: i64| Operand::Int(n);
    let text = |text: Option<&'a str>| text.map_or(Operand::Unknown, |text| Operand::Text(text.into()));
    match name {
        Name::Application(name) => operand(application(message, name)),
        Name::System(system) => text(match system {
            System::MessageId => message.message_id.as_ref().map(|id| id.as_str()),
            System::SessionId => message.session_id.as_ref().map(|id| id.as_str()),
            System::Subject => message.subject.as_deref(),
            System::ContentType => message.content_type.as_deref(),
            System::CorrelationId => message.correlation_id.as_deref(),
            System::To => message.to.as_deref(),
            System::ReplyTo => message.reply_to.as_deref(),
            System::ReplyToSessionId => message.reply_to_session_id.as_deref(),
            System::PartitionKey => message.partition_key.as_deref(),
            System::ViaPartitionKey => message.rare.as_ref().and_then(|rare| rare.via_partition_key.as_deref()),
            System::TimeToLive => {
                let ttl = message.time_to_live.and_then(|ttl| i64::try_from(ttl.as_millis()).ok());
                return ttl.map_or(Operand::Unknown, millis);
            }
            System::ScheduledEnqueueTime => {
                return message.scheduled_for.map_or(Operand::Unknown, |at| millis(at.0));
            }
            System::Later => None,
        }),
    }
}

/// None where one is unknown or the two are of different kinds.
fn order(left: &Operand<'_>, right: &Operand<'_>) -> Option<Ordering> {
    match (left, right) {
        (Operand::Int(a), Operand::Int(b)) => Some(a.cmp(b)),
        (Operand::Int(a), Operand::Double(b)) => (*a as f64).partial_cmp(b),
        (Operand::Double(a), Operand::Int(b)) => a.partial_cmp(&(*b as f64)),
        (Operand::Double(a), Operand::Double(b)) => a.partial_cmp(b),
        (Operand::Text(a), Operand::Text(b)) => Some(a.cmp(b)),
        (Operand::Bool(a), Operand::Bool(b)) => Some(a.cmp(b)),
        (Operand::Uuid(a), Operand::Uuid(b)) => Some(a.cmp(b)),
        (Operand::Uuid(a), Operand::Text(b)) => Some(uuid_text(a).as_str().cmp(&b.to_ascii_lowercase())),
        (Operand::Text(a), Operand::Uuid(b)) => Some(a.to_ascii_lowercase().as_str().cmp(&uuid_text(b))),
        _ => None,
    }
}

/// Unknown where the numbers end: an overflow, a division by zero. Texts can be joined with a plus.
fn result<'a>(calculate: Calculate, left: Operand<'a>, right: Operand<'a>) -> Operand<'a> {
    let (a, b) = match (left, right) {
        (Operand::Int(a), Operand::Int(b)) => {
            let whole = match calculate {
                Calculate::Add => a.checked_add(b),
                Calculate::Subtract => a.checked_sub(b),
                Calculate::Multiply => a.checked_mul(b),
                Calculate::Divide => a.checked_div(b),
                Calculate::Remainder => a.checked_rem(b),
            };
            return whole.map_or(Operand::Unknown, Operand::Int);
        }
        (Operand::Text(a), Operand::Text(b)) if calculate == Calculate::Add => return Operand::Text(a + b),
        (Operand::Int(a), Operand::Double(b)) => (a as f64, b),
        (Operand::Double(a), Operand::Int(b)) => (a, b as f64),
        (Operand::Double(a), Operand::Double(b)) => (a, b),
        _ => return Operand::Unknown,
    };
    let value = match calculate {
        Calculate::Add => a + b,
        Calculate::Subtract => a - b,
        Calculate::Multiply => a * b,
        Calculate::Divide => a / b,
        Calculate::Remainder => a % b,
    };
    if value.is_finite() { Operand::Double(value) } else { Operand::Unknown }
}

/// None: the pattern is not known, or none.
fn likes(text: &str, pattern: &Pattern, message: &Message) -> Option<bool> {
    let (pattern, escape) = match pattern {
        Pattern::Fixed(pieces) => return Some(like(text, pieces)),
        Pattern::Computed { pattern, escape } => (pattern, escape),
    };
    let Operand::Text(pattern) = eval(pattern, message) else { return None };
    let escape = match escape.as_ref().map(|escape| eval(escape, message)) {
        Some(Operand::Text(text)) => Some(escape_of(&text)?),
        Some(_) => return None,
        None => None,
    };
    Some(like(text, &pieces(&pattern, escape)?))
}

/// Goes back to the last `%` only, which is enough for patterns of this kind and keeps the time to text times pattern.
fn like(text: &str, pattern: &[Piece]) -> bool {
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut piece) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while at < text.len() {
        match pattern.get(piece) {
            Some(Piece::Any) => {
                back = Some((piece, at));
                piece += 1;
            }
            Some(Piece::One) => {
                at += 1;
                piece += 1;
            }
            Some(Piece::Is(c)) if *c == text[at] => {
                at += 1;
                piece += 1;
            }
            _ => {
                let Some((any, from)) = back else { return false };
                back = Some((any, from + 1));
                at = from + 1;
                piece = any + 1;
            }
        }
    }
    pattern[piece..].iter().all(|piece| *piece == Piece::Any)
}
