//! Values on the wire and values of the engine. They know the same types, so that nothing that a sender writes is lost.

use std::sync::Arc;

use bytes::Bytes;
use sprag_amqp::value::{Array, Described, Map, Symbol, Value as Wire};
use sprag_core::{
    message::{Properties, Value},
    time::Timestamp,
};

use crate::Unreadable;

/// A value as the engine keeps it.
pub fn from_wire(value: Wire) -> Result<Value, Unreadable> {
    Ok(match value {
        Wire::Null => Value::Null,
        Wire::Bool(value) => Value::Bool(value),
        Wire::Ubyte(n) => Value::Ubyte(n),
        Wire::Ushort(n) => Value::Ushort(n),
        Wire::Uint(n) => Value::Uint(n),
        Wire::Ulong(n) => Value::Ulong(n),
        Wire::Byte(n) => Value::Byte(n),
        Wire::Short(n) => Value::Short(n),
        Wire::Int(n) => Value::Int(n),
        Wire::Long(n) => Value::Long(n),
        Wire::Float(bits) => Value::Float(f32::from_bits(bits)),
        Wire::Double(bits) => Value::Double(f64::from_bits(bits)),
        Wire::Decimal32(bytes) => Value::Decimal(Bytes::copy_from_slice(&bytes)),
        Wire::Decimal64(bytes) => Value::Decimal(Bytes::copy_from_slice(&bytes)),
        Wire::Decimal128(bytes) => Value::Decimal(Bytes::copy_from_slice(&bytes)),
        Wire::Char(unit) => Value::Char(char::from_u32(unit).ok_or(Unreadable::NoCharacter(unit))?),
        Wire::Timestamp(at) => Value::Timestamp(Timestamp(at)),
        Wire::Uuid(bytes) => Value::Uuid(bytes),
        Wire::Binary(bytes) => Value::Binary(bytes),
        Wire::String(text) => Value::String(text.into()),
        Wire::Symbol(text) => Value::Symbol(text.as_str().into()),
        Wire::List(items) => Value::List(all_from_wire(items)?),
        Wire::Map(map) => Value::Map(pairs_from_wire(map)?),
        Wire::Array(array) => {
            let descriptors =
                array.described_by().iter().rev().cloned().map(from_wire).collect::<Result<Vec<_>, _>>()?;
            let items = array.items().iter().cloned().map(|item| {
                let described = |item, by: &Value| Value::Described(Box::new((by.clone(), item)));
                from_wire(item).map(|item| descriptors.iter().fold(item, described))
            });
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        Wire::Described(described) => {
            let Described { by, value } = *described;
            Value::Described(Box::new((from_wire(by)?, from_wire(value)?)))
        }
    })
}

pub(crate) fn all_from_wire(items: Vec<Wire>) -> Result<Vec<Value>, Unreadable> {
    items.into_iter().map(from_wire).collect()
}

pub(crate) fn pairs_from_wire(map: Map) -> Result<Vec<(Value, Value)>, Unreadable> {
    map.0.into_iter().map(|(key, value)| Ok((from_wire(key)?, from_wire(value)?))).collect()
}

/// Application properties: keys are texts. Symbols are taken for texts; anything else is refused, since it would have no name.
pub(crate) fn properties_from_wire(map: Map) -> Result<Properties, Unreadable> {
    let pairs = map.0.into_iter().map(|(key, value)| {
        let key: Arc<str> = key.as_str().ok_or(Unreadable::NamelessProperty)?.into();
        Ok((key, from_wire(value)?))
    });
    pairs.collect()
}

/// A value as it goes onto the wire.
pub(crate) fn to_wire(value: &Value) -> Wire {
    match value {
        Value::Null => Wire::Null,
        Value::Bool(value) => Wire::Bool(*value),
        Value::Byte(n) => Wire::Byte(*n),
        Value::Ubyte(n) => Wire::Ubyte(*n),
        Value::Short(n) => Wire::Short(*n),
        Value::Ushort(n) => Wire::Ushort(*n),
        Value::Int(n) => Wire::Int(*n),
        Value::Uint(n) => Wire::Uint(*n),
        Value::Long(n) => Wire::Long(*n),
        Value::Ulong(n) => Wire::Ulong(*n),
        Value::Float(n) => Wire::Float(n.to_bits()),
        Value::Double(n) => Wire::Double(n.to_bits()),
        Value::Char(c) => Wire::Char(u32::from(*c)),
        Value::Timestamp(at) => Wire::Timestamp(at.0),
        Value::Uuid(bytes) => Wire::Uuid(*bytes),
        Value::Binary(bytes) => Wire::Binary(bytes.clone()),
        Value::String(text) => Wire::String(text.to_string()),
        Value::Symbol(text) => Wire::Symbol(Symbol::from(&**text)),
        Value::List(items) => Wire::List(items.iter().map(to_wire).collect()),
        Value::Map(pairs) => Wire::Map(pairs_to_wire(pairs)),
        Value::Array(items) => {
            let items: Vec<Wire> = items.iter().map(to_wire).collect();
            // The engine does not hold its arrays to one type; a mixed one was not made from the wire, and a list carries it.
            Array::from_items(items.clone()).unwrap_or(Wire::List(items))
        }
        Value::Decimal(bytes) => match bytes.len() {
            4 => Wire::Decimal32(bytes[..].try_into().expect("the length was looked at")),
            8 => Wire::Decimal64(bytes[..].try_into().expect("the length was looked at")),
            16 => Wire::Decimal128(bytes[..].try_into().expect("the length was looked at")),
            _ => Wire::Binary(bytes.clone()),
        },
        Value::Described(described) => {
            Wire::Described(Box::new(Described { by: to_wire(&described.0), value: to_wire(&described.1) }))
        }
    }
}

pub(crate) fn pairs_to_wire(pairs: &[(Value, Value)]) -> Map {
    Map(pairs.iter().map(|(key, value)| (to_wire(key), to_wire(value))).collect())
}

pub(crate) fn properties_to_wire(properties: &Properties) -> Map {
    Map(properties.iter().map(|(key, value)| (Wire::String(key.to_string()), to_wire(value))).collect())
}
