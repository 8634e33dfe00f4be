//! Reads AMQP values, leniently where clients are known to differ, and within limits everywhere.
//!
//! Start at [`Reader`]. It walks over a [`Bytes`] and hands out slices of it, so a payload is never copied here. [`Reader::value`] builds a
//! [`Value`]; [`Reader::skip`] steps over one by its constructor byte alone; [`Fields`](crate::performative) reads the lists of the
//! protocol itself.
//!
//! *Invariant:* whatever the input says about sizes and counts, memory taken is at most a fixed factor of the input's own length.

use bytes::Bytes;

use crate::{
    codes,
    value::{Array, Described, Descriptor, Map, Symbol, Value},
};

/// Compounds and descriptors within each other. The deepest the protocol itself needs is about 8 (a filter in a source in an attach); the
/// limit keeps both the decoder's and a value's own recursion small.
pub const MAX_DEPTH: usize = 32;

/// Values that take no bytes of the input which one decoder may build. Only items of an array can be so (`[null; 4294967295]` is 10 bytes
/// long); every other value is at least one byte, so bytes bound them.
pub const MAX_ITEMS_WITHOUT_BYTES: usize = 1024;

/// Why a value could not be read, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}, at byte {at}")]
pub struct DecodeError {
    pub at: usize,
    pub problem: Problem,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("{needed} more bytes were announced than there are")]
    Truncated { needed: usize },
    #[error("0x{0:02x} is not a constructor of AMQP 1.0")]
    UnknownConstructor(u8),
    #[error("{field}: {expected} expected, constructor 0x{found:02x} found")]
    Unexpected { field: &'static str, expected: &'static str, found: u8 },
    #[error("{field}: the number is out of range")]
    OutOfRange { field: &'static str },
    #[error("{field} is required")]
    Missing { field: &'static str },
    #[error("{field}: {value} is not one of its values")]
    NoSuchChoice { field: &'static str, value: u64 },
    #[error("{what}: unknown descriptor")]
    UnknownDescriptor { what: &'static str },
    #[error("text is not UTF-8")]
    NotUtf8,
    #[error("a map has a key without a value")]
    OddMap,
    #[error("a list, map or array does not end where its size says")]
    SizeMismatch,
    #[error("more than {MAX_DEPTH} values within each other")]
    TooDeep,
    #[error("more values than its bytes can justify")]
    TooManyValues,
    #[error("section {0} of a message is out of order or there twice")]
    SectionOrder(&'static str),
    #[error("no part of a message")]
    EmptyMessage,
}

pub(crate) type Result<T> = std::result::Result<T, DecodeError>;

/// A compound's extent: what [`Reader::enter`] found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compound {
    pub(crate) end: usize,
    pub(crate) count: usize,
}

/// A position in some bytes.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a Bytes,
    at: usize,
    end: usize,
    depth: usize,
    /// Items without bytes that may still be built.
    without_bytes: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a Bytes) -> Self {
        Self::at(bytes, 0)
    }

    /// From a position on; errors name positions in the whole.
    pub fn at(bytes: &'a Bytes, at: usize) -> Self {
        let end = bytes.len();
        Self { bytes, at: at.min(end), end, depth: 0, without_bytes: MAX_ITEMS_WITHOUT_BYTES }
    }

    pub fn position(&self) -> usize {
        self.at
    }

    pub fn is_empty(&self) -> bool {
        self.at >= self.end
    }

    /// What has not been read, sharing memory.
    pub fn rest(&self) -> Bytes {
        self.bytes.slice(self.at..self.end)
    }

    pub(crate) fn error<T>(&self, problem: Problem) -> Result<T> {
        Err(DecodeError { at: self.at, problem })
    }

    /// Narrows what may be read to a compound's extent; the answer is what to give to [`Reader::leave`].
    pub(crate) fn narrow(&mut self, end: usize) -> usize {
        std::mem::replace(&mut self.end, end)
    }

    /// Goes to the end of the compound entered last, whatever of it was read.
    pub(crate) fn leave(&mut self, outer: usize) {
        self.at = self.end;
        self.end = outer;
    }

    pub(crate) fn peek(&self) -> Result<u8> {
        if self.at < self.end {
            return Ok(self.bytes[self.at]);
        }
        self.error(Problem::Truncated { needed: 1 })
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Ok(byte)
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let left = self.end - self.at;
        if len > left {
            return self.error(Problem::Truncated { needed: len - left });
        }
        let from = self.at;
        self.at += len;
        Ok(&self.bytes[from..self.at])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("take gives as many as asked for"))
    }

    fn size(&mut self, code: u8) -> Result<usize> {
        // Bit 4 of the constructor tells the 4-byte sizes (b, d, f) from the 1-byte ones (a, c, e).
        match code & 0x10 {
            0 => Ok(self.byte()?.into()),
            _ => usize::try_from(u32::from_be_bytes(self.array()?))
                .or_else(|_| self.error(Problem::Truncated { needed: usize::MAX })),
        }
    }

    /// The bytes of a variable-width value.
    pub(crate) fn variable(&mut self, code: u8) -> Result<&'a [u8]> {
        let len = self.size(code)?;
        self.take(len)
    }

    fn shared(&mut self, code: u8) -> Result<Bytes> {
        let len = self.variable(code)?.len();
        Ok(self.bytes.slice(self.at - len..self.at))
    }

    pub(crate) fn text(&mut self, code: u8) -> Result<&'a str> {
        let from = self.at;
        std::str::from_utf8(self.variable(code)?).map_err(|_| DecodeError { at: from, problem: Problem::NotUtf8 })
    }

    pub(crate) fn binary(&mut self, code: u8) -> Result<Bytes> {
        self.shared(code)
    }

    /// Reads size and count of a list, map or array.
    pub(crate) fn enter(&mut self, code: u8) -> Result<Compound> {
        if code == codes::LIST0 {
            return Ok(Compound { end: self.at, count: 0 });
        }
        let size = self.size(code)?;
        if size > self.end - self.at {
            return self.error(Problem::Truncated { needed: size - (self.end - self.at) });
        }
        let end = self.at + size;
        let outer = self.narrow(end);
        let count = self.size(code);
        self.end = outer;
        Ok(Compound { end, count: count? })
    }

    /// Steps over one value without building it. Knows nothing but widths, so it also steps over constructors that do not exist yet.
    pub fn skip(&mut self) -> Result<()> {
        let mut left = 1_usize;
        while left > 0 {
            left -= 1;
            let at = self.at;
            let code = self.byte()?;
            let len = match code >> 4 {
                0x0 if code == codes::DESCRIBED => {
                    left += 2;
                    0
                }
                0x4 => 0,
                0x5 => 1,
                0x6 => 2,
                0x7 => 4,
                0x8 => 8,
                0x9 => 16,
                0xa..=0xf => self.size(code)?,
                _ => return Err(DecodeError { at, problem: Problem::UnknownConstructor(code) }),
            };
            self.take(len)?;
        }
        Ok(())
    }

    /// Reads the descriptor of a described value; the value comes next.
    pub fn descriptor(&mut self) -> Result<Descriptor> {
        match self.byte()? {
            codes::DESCRIBED => {}
            found => {
                self.at -= 1;
                return self.error(Problem::Unexpected { field: "descriptor", expected: "a described value", found });
            }
        }
        let code = self.byte()?;
        match code {
            codes::SYMBOL8 | codes::SYMBOL32 | codes::STRING8 | codes::STRING32 => {
                Ok(Descriptor::Name(Symbol::from(self.text(code)?)))
            }
            _ => match self.integer(code)? {
                Some(number) => match u64::try_from(number) {
                    Ok(number) => Ok(Descriptor::Code(number)),
                    Err(_) => self.error(Problem::OutOfRange { field: "descriptor" }),
                },
                None => {
                    self.at -= 1;
                    self.error(Problem::Unexpected { field: "descriptor", expected: "ulong or symbol", found: code })
                }
            },
        }
    }

    /// An integer (or timestamp) of any width; nothing read and `None` when the constructor is of another type.
    pub(crate) fn integer(&mut self, code: u8) -> Result<Option<i128>> {
        Ok(Some(match code {
            codes::UINT0 | codes::ULONG0 => 0,
            codes::UBYTE | codes::SMALL_UINT | codes::SMALL_ULONG => self.byte()?.into(),
            codes::BYTE | codes::SMALL_INT | codes::SMALL_LONG => i8::from_be_bytes(self.array()?).into(),
            codes::USHORT => u16::from_be_bytes(self.array()?).into(),
            codes::SHORT => i16::from_be_bytes(self.array()?).into(),
            codes::UINT => u32::from_be_bytes(self.array()?).into(),
            codes::INT => i32::from_be_bytes(self.array()?).into(),
            codes::ULONG => u64::from_be_bytes(self.array()?).into(),
            codes::LONG | codes::TIMESTAMP => i64::from_be_bytes(self.array()?).into(),
            _ => return Ok(None),
        }))
    }

    /// Builds one value.
    pub fn value(&mut self) -> Result<Value> {
        let code = self.byte()?;
        self.value_of(code)
    }

    fn value_of(&mut self, code: u8) -> Result<Value> {
        Ok(match code {
            codes::NULL => Value::Null,
            codes::TRUE => Value::Bool(true),
            codes::FALSE => Value::Bool(false),
            // The standard knows 0 and 1; any other octet is read as true.
            codes::BOOLEAN => Value::Bool(self.byte()? != 0),
            codes::UINT0 => Value::Uint(0),
            codes::ULONG0 => Value::Ulong(0),
            codes::UBYTE => Value::Ubyte(self.byte()?),
            codes::BYTE => Value::Byte(i8::from_be_bytes(self.array()?)),
            codes::SMALL_UINT => Value::Uint(self.byte()?.into()),
            codes::SMALL_ULONG => Value::Ulong(self.byte()?.into()),
            codes::SMALL_INT => Value::Int(i8::from_be_bytes(self.array()?).into()),
            codes::SMALL_LONG => Value::Long(i8::from_be_bytes(self.array()?).into()),
            codes::USHORT => Value::Ushort(u16::from_be_bytes(self.array()?)),
            codes::SHORT => Value::Short(i16::from_be_bytes(self.array()?)),
            codes::UINT => Value::Uint(u32::from_be_bytes(self.array()?)),
            codes::INT => Value::Int(i32::from_be_bytes(self.array()?)),
            codes::FLOAT => Value::Float(u32::from_be_bytes(self.array()?)),
            codes::CHAR => Value::Char(u32::from_be_bytes(self.array()?)),
            codes::DECIMAL32 => Value::Decimal32(self.array()?),
            codes::ULONG => Value::Ulong(u64::from_be_bytes(self.array()?)),
            codes::LONG => Value::Long(i64::from_be_bytes(self.array()?)),
            codes::DOUBLE => Value::Double(u64::from_be_bytes(self.array()?)),
            codes::TIMESTAMP => Value::Timestamp(i64::from_be_bytes(self.array()?)),
            codes::DECIMAL64 => Value::Decimal64(self.array()?),
            codes::DECIMAL128 => Value::Decimal128(self.array()?),
            codes::UUID => Value::Uuid(self.array()?),
            codes::BINARY8 | codes::BINARY32 => Value::Binary(self.shared(code)?),
            codes::STRING8 | codes::STRING32 => Value::String(self.text(code)?.to_owned()),
            codes::SYMBOL8 | codes::SYMBOL32 => Value::Symbol(Symbol::from(self.text(code)?)),
            codes::DESCRIBED
            | codes::LIST0
            | codes::LIST8
            | codes::LIST32
            | codes::MAP8
            | codes::MAP32
            | codes::ARRAY8
            | codes::ARRAY32 => {
                if self.depth == MAX_DEPTH {
                    return self.error(Problem::TooDeep);
                }
                self.depth += 1;
                let value = self.nested(code);
                self.depth -= 1;
                value?
            }
            other => {
                self.at -= 1;
                return self.error(Problem::UnknownConstructor(other));
            }
        })
    }

    fn nested(&mut self, code: u8) -> Result<Value> {
        if code == codes::DESCRIBED {
            let by = self.value()?;
            let value = self.value()?;
            return Ok(Value::Described(Box::new(Described { by, value })));
        }
        let Compound { end, count } = self.enter(code)?;
        let outer = self.narrow(end);
        let value = match code {
            codes::MAP8 | codes::MAP32 => self.map_pairs(count).map(Value::Map),
            codes::ARRAY8 | codes::ARRAY32 => self.array_items(count),
            _ => self.items(count, Self::value).map(Value::List),
        };
        let ended = self.at == end;
        self.end = outer;
        let value = value?;
        if !ended {
            return self.error(Problem::SizeMismatch);
        }
        Ok(value)
    }

    fn items(&mut self, count: usize, mut item: impl FnMut(&mut Self) -> Result<Value>) -> Result<Vec<Value>> {
        // Room only for as many as there are bytes left; items without bytes grow the vector as they come.
        let mut items = Vec::with_capacity(count.min(self.end - self.at));
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn map_pairs(&mut self, count: usize) -> Result<Map> {
        if !count.is_multiple_of(2) {
            return self.error(Problem::OddMap);
        }
        let mut pairs = Vec::with_capacity((count / 2).min((self.end - self.at) / 2));
        for _ in 0..count / 2 {
            pairs.push((self.value()?, self.value()?));
        }
        Ok(Map(pairs))
    }

    fn array_items(&mut self, count: usize) -> Result<Value> {
        let mut described_by = Vec::new();
        let mut code = self.byte()?;
        while code == codes::DESCRIBED {
            if described_by.len() == MAX_DEPTH {
                return self.error(Problem::TooDeep);
            }
            described_by.push(self.value()?);
            code = self.byte()?;
        }
        if !known(code) {
            self.at -= 1;
            return self.error(Problem::UnknownConstructor(code));
        }
        if code >> 4 == codes::NULL >> 4 {
            match self.without_bytes.checked_sub(count) {
                Some(left) => self.without_bytes = left,
                None => return self.error(Problem::TooManyValues),
            }
        }
        let items = self.items(count, |reader| reader.value_of(code))?;
        Ok(Value::Array(Box::new(Array { described_by, code: codes::widest(code), items })))
    }
}

/// Whether [`Reader::value`] reads such a constructor. Asked for arrays, whose constructor may stand there without any item.
fn known(code: u8) -> bool {
    matches!(
        code,
        codes::NULL..=codes::LIST0
            | codes::UBYTE..=codes::BOOLEAN
            | codes::USHORT
            | codes::SHORT
            | codes::UINT..=codes::DECIMAL32
            | codes::ULONG..=codes::DECIMAL64
            | codes::DECIMAL128
            | codes::UUID
            | codes::BINARY8
            | codes::STRING8
            | codes::SYMBOL8
            | codes::BINARY32
            | codes::STRING32
            | codes::SYMBOL32
            | codes::LIST8
            | codes::MAP8
            | codes::LIST32
            | codes::MAP32
            | codes::ARRAY8
            | codes::ARRAY32
    )
}

#[cfg(test)]
mod tests;
