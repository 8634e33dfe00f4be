//! The fields of a list, read one after another, as clients write them rather than as the standard does.
//!
//! A field that is missing at the end is the same as null; a symbol may be a string and the other way round; an integer may have any width;
//! fields that we do not know are not looked at.

use bytes::Bytes;

use super::{AmqpError, DeliveryState, Role, Source, Target};
use crate::{
    codes,
    decode::{DecodeError, Problem, Reader, Result},
    value::{Map, Symbol, Value},
};

/// Where we are in a list. Each reader of a field takes the next one.
#[derive(Debug)]
pub(crate) struct Fields<'r, 'a> {
    reader: &'r mut Reader<'a>,
    left: usize,
}

/// Reads a list by its fields and goes to its end.
pub(crate) fn list<'a, T>(
    reader: &mut Reader<'a>,
    what: &'static str,
    read: impl FnOnce(&mut Fields<'_, 'a>) -> Result<T>,
) -> Result<T> {
    let code = reader.byte()?;
    let compound = match code {
        codes::LIST0 | codes::LIST8 | codes::LIST32 => reader.enter(code)?,
        // Some write an outcome without fields as a described null.
        codes::NULL => reader.enter(codes::LIST0)?,
        found => return reader.error(Problem::Unexpected { field: what, expected: "a list", found }),
    };
    let outer = reader.narrow(compound.end);
    let mut fields = Fields { reader, left: compound.count };
    let read = read(&mut fields);
    reader.leave(outer);
    read
}

impl<'a> Fields<'_, 'a> {
    /// The constructor of the next field, unless it is null or not there.
    fn next(&mut self) -> Result<Option<u8>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        match self.reader.byte()? {
            codes::NULL => Ok(None),
            code => Ok(Some(code)),
        }
    }

    /// The reader at the next field, its constructor not read, unless the field is null or not there.
    fn inner(&mut self) -> Result<Option<&mut Reader<'a>>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        if self.reader.peek()? == codes::NULL {
            self.reader.byte()?;
            return Ok(None);
        }
        Ok(Some(&mut *self.reader))
    }

    fn unexpected<T>(&self, field: &'static str, expected: &'static str, found: u8) -> Result<T> {
        self.reader.error(Problem::Unexpected { field, expected, found })
    }

    pub(crate) fn fail<T>(&self, problem: Problem) -> Result<T> {
        self.reader.error(problem)
    }

    pub(crate) fn missing<T>(&self, field: &'static str) -> Result<T> {
        self.reader.error(Problem::Missing { field })
    }

    fn number<N: TryFrom<i128>>(&mut self, field: &'static str) -> Result<Option<N>> {
        let Some(code) = self.next()? else { return Ok(None) };
        match self.reader.integer(code)? {
            Some(number) => match N::try_from(number) {
                Ok(number) => Ok(Some(number)),
                Err(_) => self.reader.error(Problem::OutOfRange { field }),
            },
            None => self.unexpected(field, "an integer", code),
        }
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<Option<u8>> {
        self.number(field)
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<Option<u16>> {
        self.number(field)
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<Option<u32>> {
        self.number(field)
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<Option<u64>> {
        self.number(field)
    }

    pub(crate) fn i64(&mut self, field: &'static str) -> Result<Option<i64>> {
        self.number(field)
    }

    pub(crate) fn required_u32(&mut self, field: &'static str) -> Result<u32> {
        match self.u32(field)? {
            Some(number) => Ok(number),
            None => self.missing(field),
        }
    }

    pub(crate) fn bool(&mut self, field: &'static str) -> Result<Option<bool>> {
        match self.next()? {
            None => Ok(None),
            Some(codes::TRUE) => Ok(Some(true)),
            Some(codes::FALSE) => Ok(Some(false)),
            Some(codes::BOOLEAN) => Ok(Some(self.reader.byte()? != 0)),
            Some(found) => self.unexpected(field, "a boolean", found),
        }
    }

    /// A boolean whose absence means no.
    pub(crate) fn flag(&mut self, field: &'static str) -> Result<bool> {
        Ok(self.bool(field)?.unwrap_or(false))
    }

    pub(crate) fn text(&mut self, field: &'static str) -> Result<Option<&'a str>> {
        match self.next()? {
            None => Ok(None),
            Some(code @ (codes::STRING8 | codes::STRING32 | codes::SYMBOL8 | codes::SYMBOL32)) => {
                self.reader.text(code).map(Some)
            }
            Some(found) => self.unexpected(field, "a string or a symbol", found),
        }
    }

    pub(crate) fn string(&mut self, field: &'static str) -> Result<Option<String>> {
        Ok(self.text(field)?.map(str::to_owned))
    }

    pub(crate) fn symbol(&mut self, field: &'static str) -> Result<Option<Symbol>> {
        Ok(self.text(field)?.map(Symbol::from))
    }

    pub(crate) fn binary(&mut self, field: &'static str) -> Result<Option<Bytes>> {
        match self.next()? {
            None => Ok(None),
            Some(
                code @ (codes::BINARY8
                | codes::BINARY32
                | codes::STRING8
                | codes::STRING32
                | codes::SYMBOL8
                | codes::SYMBOL32),
            ) => self.reader.binary(code).map(Some),
            Some(found) => self.unexpected(field, "a binary", found),
        }
    }

    pub(crate) fn value(&mut self) -> Result<Option<Value>> {
        match self.inner()? {
            None => Ok(None),
            Some(reader) => reader.value().map(Some),
        }
    }

    /// Passes by a field that means nothing here.
    pub(crate) fn skip(&mut self) -> Result<()> {
        match self.inner()? {
            None => Ok(()),
            Some(reader) => reader.skip(),
        }
    }

    pub(crate) fn map(&mut self, field: &'static str) -> Result<Map> {
        let Some(reader) = self.inner()? else { return Ok(Map::new()) };
        let found = reader.peek()?;
        match reader.value()? {
            Value::Map(map) => Ok(map),
            // An empty list for an empty map is seen in the wild.
            Value::List(items) if items.is_empty() => Ok(Map::new()),
            _ => self.unexpected(field, "a map", found),
        }
    }

    /// Symbols, whether one or an array or a list of them.
    pub(crate) fn symbols(&mut self, field: &'static str) -> Result<Vec<Symbol>> {
        let Some(reader) = self.inner()? else { return Ok(Vec::new()) };
        let found = reader.peek()?;
        let value = reader.value()?;
        let items = match &value {
            Value::List(items) => items.as_slice(),
            Value::Array(array) => array.items(),
            one => std::slice::from_ref(one),
        };
        match items.iter().map(|item| item.as_str().map(Symbol::from)).collect() {
            Some(symbols) => Ok(symbols),
            None => self.unexpected(field, "symbols", found),
        }
    }

    /// True is the receiver.
    pub(crate) fn role(&mut self) -> Result<Role> {
        match self.bool("role")? {
            Some(true) => Ok(Role::Receiver),
            Some(false) => Ok(Role::Sender),
            None => self.missing("role"),
        }
    }

    pub(crate) fn choice<T>(&mut self, field: &'static str, pick: impl FnOnce(u8) -> Option<T>) -> Result<Option<T>> {
        let Some(number) = self.u8(field)? else { return Ok(None) };
        match pick(number) {
            Some(choice) => Ok(Some(choice)),
            None => self.reader.error(Problem::NoSuchChoice { field, value: number.into() }),
        }
    }

    pub(crate) fn state(&mut self) -> Result<Option<DeliveryState>> {
        self.inner()?.map(DeliveryState::read).transpose()
    }

    pub(crate) fn error(&mut self) -> Result<Option<AmqpError>> {
        self.inner()?.map(AmqpError::read).transpose()
    }

    pub(crate) fn source(&mut self) -> Result<Option<Source>> {
        self.inner()?.map(Source::read).transpose()
    }

    pub(crate) fn target(&mut self) -> Result<Option<Target>> {
        self.inner()?.map(Target::read).transpose()
    }
}

/// The code of a descriptor that was read, by number or by the protocol's own name for it.
pub(crate) fn code_of(reader: &mut Reader<'_>, what: &'static str) -> Result<u64> {
    let at = reader.position();
    match reader.descriptor()? {
        crate::value::Descriptor::Code(code) => Ok(code),
        crate::value::Descriptor::Name(name) => match super::descriptors::by_name(name.as_str()) {
            Some(code) => Ok(code),
            None => Err(DecodeError { at, problem: Problem::UnknownDescriptor { what } }),
        },
    }
}
