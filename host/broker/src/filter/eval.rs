//! Answers an expression for a message, in the logic of three values: what is not known is neither true nor false.

use std::cmp::Ordering;

use sprag_core::message::{Message, Value};

use super::sql::{Calculate, Compare, Expression, Literal, Name, Piece, System};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Operand<'a> {
    Unknown,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(&'a str),
}

pub(super) fn is_true(expression: &Expression, message: &Message) -> bool {
    eval(expression, message) == Operand::Bool(true)
}

fn eval<'a>(expression: &'a Expression, message: &'a Message) -> Operand<'a> {
    match expression {
        Expression::Literal(literal) => match literal {
            Literal::Null => Operand::Unknown,
            Literal::Bool(value) => Operand::Bool(*value),
            Literal::Int(n) => Operand::Int(*n),
            Literal::Double(n) => Operand::Double(*n),
            Literal::Text(text) => Operand::Text(text),
        },
        Expression::Name(name) => property(name, message),
        Expression::Exists(Name::Application(name)) => Operand::Bool(message.property(name).is_some()),
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
            let order = order(eval(left, message), eval(right, message));
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
            Operand::Text(text) => Operand::Bool(like(text, pattern) != *not),
            _ => Operand::Unknown,
        },
        Expression::In { value, list, not } => {
            let value = eval(value, message);
            let mut found = Some(false);
            for item in list {
                match order(value, eval(item, message)) {
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

fn property<'a>(name: &Name, message: &'a Message) -> Operand<'a> {
    let text = |text: Option<&'a str>| text.map_or(Operand::Unknown, Operand::Text);
    match name {
        Name::Application(name) => match message.property(name) {
            Some(Value::Bool(value)) => Operand::Bool(*value),
            Some(Value::Float(n)) => Operand::Double((*n).into()),
            Some(Value::Double(n)) => Operand::Double(*n),
            Some(Value::String(text) | Value::Symbol(text)) => Operand::Text(text),
            Some(Value::Timestamp(at)) => Operand::Int(at.0),
            Some(value) => value.as_i64().map_or(Operand::Unknown, Operand::Int),
            None => Operand::Unknown,
        },
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
        }),
    }
}

/// None where one is unknown or the two are of different kinds.
fn order(left: Operand<'_>, right: Operand<'_>) -> Option<Ordering> {
    match (left, right) {
        (Operand::Int(a), Operand::Int(b)) => Some(a.cmp(&b)),
        (Operand::Int(a), Operand::Double(b)) => (a as f64).partial_cmp(&b),
        (Operand::Double(a), Operand::Int(b)) => a.partial_cmp(&(b as f64)),
        (Operand::Double(a), Operand::Double(b)) => a.partial_cmp(&b),
        (Operand::Text(a), Operand::Text(b)) => Some(a.cmp(b)),
        (Operand::Bool(a), Operand::Bool(b)) => Some(a.cmp(&b)),
        _ => None,
    }
}

/// Unknown where the numbers end: an overflow, a division by zero.
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
