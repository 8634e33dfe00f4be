//! AMQP values as we hold them: what was read from a frame or a message, and what is to be written.
//!
//! A value keeps its type (a message-id that came as a ulong goes back as a ulong) but not the width it was written in. Binaries share
//! the memory of the frame they came in; text is copied, because it is short and often outlives the frame.

use std::{borrow::Cow, fmt};

use bytes::Bytes;

use crate::codes;

/// A symbol: text from a fixed vocabulary. Ours are constants, so they cost nothing.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(Cow<'static, str>);

impl Symbol {
    pub const fn from_static(text: &'static str) -> Self {
        Self(Cow::Borrowed(text))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Symbol {
    fn from(text: &str) -> Self {
        Self(Cow::Owned(text.to_owned()))
    }
}

impl From<String> for Symbol {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text))
    }
}

impl PartialEq<str> for Symbol {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Symbol {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ":{}", self.as_str())
    }
}

/// What says which type a described value is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Descriptor {
    Code(u64),
    Name(Symbol),
}

/// Any AMQP value. Floating-point numbers are held as their bits, so that equality is equality of what is written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Value {
    #[default]
    Null,
    Bool(bool),
    Ubyte(u8),
    Ushort(u16),
    Uint(u32),
    Ulong(u64),
    Byte(i8),
    Short(i16),
    Int(i32),
    Long(i64),
    Float(u32),
    Double(u64),
    Decimal32([u8; 4]),
    Decimal64([u8; 8]),
    Decimal128([u8; 16]),
    /// A UTF-32 code unit; not checked to be a character, since nobody here looks at it.
    Char(u32),
    /// Milliseconds since 1970, UTC.
    Timestamp(i64),
    Uuid([u8; 16]),
    Binary(Bytes),
    String(String),
    Symbol(Symbol),
    List(Vec<Value>),
    Map(Map),
    Array(Box<Array>),
    Described(Box<Described>),
}

/// A value with a descriptor. The descriptor may be any value; see [`Described::descriptor`] for the two usual forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    pub by: Value,
    pub value: Value,
}

impl Described {
    pub fn descriptor(&self) -> Option<Descriptor> {
        match &self.by {
            Value::Symbol(name) => Some(Descriptor::Name(name.clone())),
            Value::String(name) => Some(Descriptor::Name(Symbol::from(name.as_str()))),
            other => other.as_u64().map(Descriptor::Code),
        }
    }
}

/// Values that share one constructor.
///
/// Made by the functions below or by the decoder, both of which hold the items to the constructor; that is why the fields are closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// Descriptors that every item has, the outermost first. Nearly always none.
    pub(crate) described_by: Vec<Value>,
    /// The widest constructor of the items' type; it also names the type of an empty array.
    pub(crate) code: u8,
    pub(crate) items: Vec<Value>,
}

impl Array {
    pub fn timestamps(items: impl IntoIterator<Item = i64>) -> Value {
        Self::of(codes::TIMESTAMP, items.into_iter().map(Value::Timestamp).collect())
    }

    pub fn longs(items: impl IntoIterator<Item = i64>) -> Value {
        Self::of(codes::LONG, items.into_iter().map(Value::Long).collect())
    }

    pub fn uuids(items: impl IntoIterator<Item = [u8; 16]>) -> Value {
        Self::of(codes::UUID, items.into_iter().map(Value::Uuid).collect())
    }

    pub fn symbols(items: impl IntoIterator<Item = Symbol>) -> Value {
        Self::of(codes::SYMBOL32, items.into_iter().map(Value::Symbol).collect())
    }

    pub fn strings(items: impl IntoIterator<Item = String>) -> Value {
        Self::of(codes::STRING32, items.into_iter().map(Value::String).collect())
    }

    /// Any values of one type, all with the same descriptors or all without. None: they are not. Without items it is an array of nulls.
    pub fn from_items(mut items: Vec<Value>) -> Option<Value> {
        let mut described_by = Vec::new();
        while let Some(Value::Described(first)) = items.first() {
            let by = first.by.clone();
            items = items
                .into_iter()
                .map(|item| match item {
                    Value::Described(described) if described.by == by => Some(described.value),
                    _ => None,
                })
                .collect::<Option<_>>()?;
            described_by.push(by);
        }
        let code = items.first().map_or(codes::NULL, Value::widest_code);
        if items.iter().any(|item| item.widest_code() != code) {
            return None;
        }
        Some(Value::Array(Box::new(Self { described_by, code, items })))
    }

    /// The descriptors of all items, the outermost first.
    pub fn described_by(&self) -> &[Value] {
        &self.described_by
    }

    fn of(code: u8, items: Vec<Value>) -> Value {
        Value::Array(Box::new(Self { described_by: Vec::new(), code, items }))
    }

    pub fn items(&self) -> &[Value] {
        &self.items
    }
}

/// A map in the order it was written in. Maps in frames are short, so looking up is a walk; a key may occur twice and the first one counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Map(pub Vec<(Value, Value)>);

impl Map {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Value, &Value)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// By text, whether the peer wrote the key as a symbol (the standard) or as a string (rhea).
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(k, _)| k.as_str() == Some(key)).map(|(_, value)| value)
    }

    /// Puts a value under a symbol key, instead of what is there.
    pub fn set(&mut self, key: Symbol, value: Value) {
        match self.0.iter_mut().find(|(k, _)| k.as_str() == Some(key.as_str())) {
            Some((_, old)) => *old = value,
            None => self.0.push((Value::Symbol(key), value)),
        }
    }

    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.0.iter().position(|(k, _)| k.as_str() == Some(key))?;
        Some(self.0.remove(at).1)
    }
}

impl FromIterator<(Symbol, Value)> for Map {
    fn from_iter<T: IntoIterator<Item = (Symbol, Value)>>(pairs: T) -> Self {
        Self(pairs.into_iter().map(|(key, value)| (Value::Symbol(key), value)).collect())
    }
}

impl FromIterator<(String, Value)> for Map {
    fn from_iter<T: IntoIterator<Item = (String, Value)>>(pairs: T) -> Self {
        Self(pairs.into_iter().map(|(key, value)| (Value::String(key), value)).collect())
    }
}

impl Value {
    /// The text of a string or a symbol.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            Self::Symbol(text) => Some(text.as_str()),
            _ => None,
        }
    }

    /// An integer of any width that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Ulong(n) => Some(*n),
            _ => self.as_i64().and_then(|n| u64::try_from(n).ok()),
        }
    }

    /// An integer of any width, or a timestamp.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::Ubyte(n) => Some(n.into()),
            Self::Ushort(n) => Some(n.into()),
            Self::Uint(n) => Some(n.into()),
            Self::Ulong(n) => i64::try_from(n).ok(),
            Self::Byte(n) => Some(n.into()),
            Self::Short(n) => Some(n.into()),
            Self::Int(n) => Some(n.into()),
            Self::Long(n) | Self::Timestamp(n) => Some(n),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    pub fn as_uuid(&self) -> Option<[u8; 16]> {
        match self {
            Self::Uuid(bytes) => Some(*bytes),
            _ => None,
        }
    }

    pub fn as_binary(&self) -> Option<&Bytes> {
        match self {
            Self::Binary(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub fn as_map(&self) -> Option<&Map> {
        match self {
            Self::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The items of a list or an array.
    pub fn as_items(&self) -> Option<&[Self]> {
        match self {
            Self::List(items) => Some(items),
            Self::Array(array) => Some(&array.items),
            _ => None,
        }
    }

    /// The constructor that an array of such values has.
    fn widest_code(&self) -> u8 {
        match self {
            Self::Null => codes::NULL,
            Self::Bool(_) => codes::BOOLEAN,
            Self::Ubyte(_) => codes::UBYTE,
            Self::Ushort(_) => codes::USHORT,
            Self::Uint(_) => codes::UINT,
            Self::Ulong(_) => codes::ULONG,
            Self::Byte(_) => codes::BYTE,
            Self::Short(_) => codes::SHORT,
            Self::Int(_) => codes::INT,
            Self::Long(_) => codes::LONG,
            Self::Float(_) => codes::FLOAT,
            Self::Double(_) => codes::DOUBLE,
            Self::Decimal32(_) => codes::DECIMAL32,
            Self::Decimal64(_) => codes::DECIMAL64,
            Self::Decimal128(_) => codes::DECIMAL128,
            Self::Char(_) => codes::CHAR,
            Self::Timestamp(_) => codes::TIMESTAMP,
            Self::Uuid(_) => codes::UUID,
            Self::Binary(_) => codes::BINARY32,
            Self::String(_) => codes::STRING32,
            Self::Symbol(_) => codes::SYMBOL32,
            Self::List(_) => codes::LIST32,
            Self::Map(_) => codes::MAP32,
            Self::Array(_) => codes::ARRAY32,
            Self::Described(_) => codes::DESCRIBED,
        }
    }

    pub fn is_null(&self) -> bool {
        *self == Self::Null
    }

    /// The value without its descriptors: a filter may come plain or described and means the same.
    pub fn undescribed(&self) -> &Self {
        let mut value = self;
        while let Self::Described(described) = value {
            value = &described.value;
        }
        value
    }

    pub fn described(code: u64, value: Self) -> Self {
        Self::Described(Box::new(Described { by: Self::Ulong(code), value }))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<Symbol> for Value {
    fn from(text: Symbol) -> Self {
        Self::Symbol(text)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<Map> for Value {
    fn from(map: Map) -> Self {
        Self::Map(map)
    }
}

impl From<Bytes> for Value {
    fn from(bytes: Bytes) -> Self {
        Self::Binary(bytes)
    }
}
