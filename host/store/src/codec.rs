//! A message as bytes: its header and properties in one blob, its body in another.
//!
//! Own and small, because it is on the way of every message, and versioned by its first byte, because files outlive binaries. The session
//! id is not in it: it is a column of its own. Numbers are LEB128, signed ones zigzag; a text is its length and its UTF-8.

use std::{borrow::Cow, sync::Arc, time::Duration};

use bytes::Bytes;
use sprag_core::{
    ids::{EntityName, MessageId, SessionId},
    message::{Body, IdKind, Message, Rare, Value},
    time::Timestamp,
};

/// Version 2 added the rare parts, three kinds of values and one of bodies; the layout of what was there before is the same.
const VERSION: u8 = 2;
const OLDEST: u8 = 1;
/// The bit that says that rare parts follow.
const RARE: u32 = 10;
/// How deep lists and maps may lie in each other.
const MAX_DEPTH: u32 = 32;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("a value has lists or maps more than {MAX_DEPTH} deep")]
    TooDeep,
    #[error("a stored message cannot be read: {0}")]
    Corrupt(&'static str),
}

/// Header and body as they are stored.
pub fn encode(message: &Message) -> Result<(Vec<u8>, Cow<'_, [u8]>), Error> {
    let mut out = Writer(Vec::with_capacity(128));
    out.0.push(VERSION);
    let texts = [
        message.message_id.as_ref().map(MessageId::as_str),
        message.subject.as_deref(),
        message.content_type.as_deref(),
        message.correlation_id.as_deref(),
        message.to.as_deref(),
        message.reply_to.as_deref(),
        message.reply_to_session_id.as_deref(),
        message.partition_key.as_deref(),
    ];
    let mut present = texts.iter().enumerate().fold(0u64, |bits, (n, text)| bits | u64::from(text.is_some()) << n);
    present |= u64::from(message.time_to_live.is_some()) << 8 | u64::from(message.scheduled_for.is_some()) << 9;
    present |= u64::from(message.rare.is_some()) << RARE;
    out.number(present);
    texts.iter().flatten().for_each(|text| out.text(text));
    if let Some(ttl) = message.time_to_live {
        out.number(ttl.as_secs());
        out.number(ttl.subsec_nanos().into());
    }
    if let Some(at) = message.scheduled_for {
        out.signed(at.0);
    }
    out.number(message.properties.len() as u64);
    for (name, value) in &message.properties {
        out.text(name);
        out.value(value, 0)?;
    }
    if let Some(rare) = &message.rare {
        out.rare(rare)?;
    }
    let body = match &message.body {
        Body::None => {
            out.0.push(0);
            Cow::Borrowed(&[][..])
        }
        Body::Data(bytes) => {
            out.0.push(1);
            Cow::Borrowed(&bytes[..])
        }
        Body::Sections(parts) => {
            out.0.push(2);
            out.number(parts.len() as u64);
            parts.iter().for_each(|part| out.number(part.len() as u64));
            Cow::Owned(parts.concat())
        }
        Body::Value(value) => {
            out.0.push(3);
            let mut body = Writer(Vec::new());
            body.value(value, 0)?;
            Cow::Owned(body.0)
        }
        Body::Lists(lists) => {
            out.0.push(4);
            out.number(lists.len() as u64);
            let mut body = Writer(Vec::new());
            for list in lists {
                out.number(list.len() as u64);
                list.iter().try_for_each(|item| body.value(item, 0))?;
            }
            Cow::Owned(body.0)
        }
    };
    Ok((out.0, body))
}

pub fn decode(header: &[u8], body: &[u8], session: Option<&str>) -> Result<Message, Error> {
    let mut input = Reader(header);
    if !(OLDEST..=VERSION).contains(&input.byte()?) {
        return Err(Error::Corrupt("its version is not known"));
    }
    let present = input.number()?;
    let mut text = |n: u32| if present >> n & 1 == 1 { input.text().map(Some) } else { Ok(None) };
    let mut message = Message {
        message_id: text(0)?.map(MessageId::from),
        session_id: session.map(SessionId::from),
        subject: text(1)?.map(Arc::from),
        content_type: text(2)?.map(Arc::from),
        correlation_id: text(3)?.map(Arc::from),
        to: text(4)?.map(Arc::from),
        reply_to: text(5)?.map(Arc::from),
        reply_to_session_id: text(6)?.map(Arc::from),
        partition_key: text(7)?.map(Arc::from),
        ..Message::default()
    };
    if present >> 8 & 1 == 1 {
        let seconds = input.number()?;
        let nanos = u32::try_from(input.number()?).ok().filter(|n| *n < 1_000_000_000);
        message.time_to_live = Some(Duration::new(seconds, nanos.ok_or(Error::Corrupt("time to live"))?));
    }
    if present >> 9 & 1 == 1 {
        message.scheduled_for = Some(Timestamp(input.signed()?));
    }
    for _ in 0..input.number()? {
        let name = Arc::from(input.text()?);
        message.properties.insert(name, input.value(0)?);
    }
    if present >> RARE & 1 == 1 {
        message.rare = Some(Box::new(input.rare()?));
    }
    message.body = match input.byte()? {
        0 => Body::None,
        1 => Body::Data(Bytes::copy_from_slice(body)),
        2 => {
            let lengths = (0..input.number()?).map(|_| input.number()).collect::<Result<Vec<_>, _>>()?;
            let mut rest = Reader(body);
            let part = |len: u64| Ok(Bytes::copy_from_slice(rest.take(len)?));
            Body::Sections(lengths.into_iter().map(part).collect::<Result<_, Error>>()?)
        }
        3 => Body::Value(Reader(body).value(0)?),
        4 => {
            let mut rest = Reader(body);
            let mut list = |len: u64| (0..len).map(|_| rest.value(0)).collect::<Result<Vec<_>, _>>();
            Body::Lists((0..input.number()?).map(|_| list(input.number()?)).collect::<Result<_, Error>>()?)
        }
        _ => return Err(Error::Corrupt("kind of body")),
    };
    Ok(message)
}

fn id_kind(kind: IdKind) -> u8 {
    match kind {
        IdKind::String => 0,
        IdKind::Ulong => 1,
        IdKind::Uuid => 2,
        IdKind::Binary => 3,
    }
}

fn id_kind_of(code: u8) -> Result<IdKind, Error> {
    [IdKind::String, IdKind::Ulong, IdKind::Uuid, IdKind::Binary]
        .into_iter()
        .find(|known| id_kind(*known) == code)
        .ok_or(Error::Corrupt("type of an id"))
}

pub struct Writer(pub Vec<u8>);

impl Writer {
    pub fn number(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    pub fn signed(&mut self, n: i64) {
        self.number((n << 1 ^ n >> 63) as u64);
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn value(&mut self, value: &Value, depth: u32) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::TooDeep);
        }
        let tag = |out: &mut Self, tag: u8| out.0.push(tag);
        match value {
            Value::Null => tag(self, 0),
            Value::Bool(false) => tag(self, 1),
            Value::Bool(true) => tag(self, 2),
            Value::Byte(n) => self.tagged(3, &n.to_le_bytes()),
            Value::Ubyte(n) => self.tagged(4, &n.to_le_bytes()),
            Value::Short(n) => self.tagged(5, &n.to_le_bytes()),
            Value::Ushort(n) => self.tagged(6, &n.to_le_bytes()),
            Value::Int(n) => self.tagged(7, &n.to_le_bytes()),
            Value::Uint(n) => self.tagged(8, &n.to_le_bytes()),
            Value::Long(n) => self.tagged(9, &n.to_le_bytes()),
            Value::Ulong(n) => self.tagged(10, &n.to_le_bytes()),
            Value::Float(n) => self.tagged(11, &n.to_bits().to_le_bytes()),
            Value::Double(n) => self.tagged(12, &n.to_bits().to_le_bytes()),
            Value::Char(c) => self.tagged(13, &u32::from(*c).to_le_bytes()),
            Value::Timestamp(at) => self.tagged(14, &at.0.to_le_bytes()),
            Value::Uuid(bytes) => self.tagged(15, bytes),
            Value::Binary(bytes) => {
                tag(self, 16);
                self.bytes(bytes);
            }
            Value::String(text) => {
                tag(self, 17);
                self.text(text);
            }
            Value::Symbol(text) => {
                tag(self, 18);
                self.text(text);
            }
            Value::List(items) => {
                tag(self, 19);
                self.number(items.len() as u64);
                items.iter().try_for_each(|item| self.value(item, depth + 1))?;
            }
            Value::Map(entries) => {
                tag(self, 20);
                self.entries(entries, depth)?;
            }
            Value::Array(items) => {
                tag(self, 21);
                self.number(items.len() as u64);
                items.iter().try_for_each(|item| self.value(item, depth + 1))?;
            }
            Value::Decimal(bytes) => {
                tag(self, 22);
                self.bytes(bytes);
            }
            Value::Described(described) => {
                tag(self, 23);
                self.value(&described.0, depth + 1)?;
                self.value(&described.1, depth + 1)?;
            }
        }
        Ok(())
    }

    fn entries(&mut self, entries: &[(Value, Value)], depth: u32) -> Result<(), Error> {
        self.number(entries.len() as u64);
        for (key, value) in entries {
            self.value(key, depth + 1)?;
            self.value(value, depth + 1)?;
        }
        Ok(())
    }

    fn rare(&mut self, rare: &Rare) -> Result<(), Error> {
        let Rare {
            user_id,
            content_encoding,
            creation_time,
            absolute_expiry_time,
            group_sequence,
            via_partition_key,
            durable,
            priority,
            message_id_kind,
            correlation_id_kind,
            annotations,
            footer,
            dead_letter_source,
        } = rare;
        let optional = |out: &mut Self, bytes: Option<&[u8]>| match bytes {
            Some(bytes) => {
                out.0.push(1);
                out.bytes(bytes);
            }
            None => out.0.push(0),
        };
        let number = |out: &mut Self, n: Option<i64>| match n {
            Some(n) => {
                out.0.push(1);
                out.signed(n);
            }
            None => out.0.push(0),
        };
        optional(self, user_id.as_deref());
        optional(self, content_encoding.as_deref().map(str::as_bytes));
        optional(self, via_partition_key.as_deref().map(str::as_bytes));
        optional(self, dead_letter_source.as_ref().map(|name| name.as_str().as_bytes()));
        number(self, creation_time.map(|at| at.0));
        number(self, absolute_expiry_time.map(|at| at.0));
        number(self, group_sequence.map(i64::from));
        number(self, durable.map(i64::from));
        number(self, priority.map(i64::from));
        self.0.push(id_kind(*message_id_kind));
        self.0.push(id_kind(*correlation_id_kind));
        self.entries(annotations, 0)?;
        self.entries(footer, 0)
    }

    fn tagged(&mut self, tag: u8, bytes: &[u8]) {
        self.0.push(tag);
        self.0.extend_from_slice(bytes);
    }
}

pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, len: u64) -> Result<&'a [u8], Error> {
        let (taken, rest) = usize::try_from(len)
            .ok()
            .and_then(|len| self.0.split_at_checked(len))
            .ok_or(Error::Corrupt("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn byte(&mut self) -> Result<u8, Error> {
        Ok(self.take(1)?[0])
    }

    pub fn number(&mut self) -> Result<u64, Error> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            n |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(n);
            }
        }
        Err(Error::Corrupt("a number is too long"))
    }

    pub fn signed(&mut self) -> Result<i64, Error> {
        let n = self.number()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Error> {
        let len = self.number()?;
        self.take(len)
    }

    pub fn text(&mut self) -> Result<&'a str, Error> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Error::Corrupt("a text is not UTF-8"))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        Ok(self.take(N as u64)?.try_into().expect("exactly that many were taken"))
    }

    fn value(&mut self, depth: u32) -> Result<Value, Error> {
        if depth > MAX_DEPTH {
            return Err(Error::TooDeep);
        }
        Ok(match self.byte()? {
            0 => Value::Null,
            1 => Value::Bool(false),
            2 => Value::Bool(true),
            3 => Value::Byte(i8::from_le_bytes(self.array()?)),
            4 => Value::Ubyte(u8::from_le_bytes(self.array()?)),
            5 => Value::Short(i16::from_le_bytes(self.array()?)),
            6 => Value::Ushort(u16::from_le_bytes(self.array()?)),
            7 => Value::Int(i32::from_le_bytes(self.array()?)),
            8 => Value::Uint(u32::from_le_bytes(self.array()?)),
            9 => Value::Long(i64::from_le_bytes(self.array()?)),
            10 => Value::Ulong(u64::from_le_bytes(self.array()?)),
            11 => Value::Float(f32::from_bits(u32::from_le_bytes(self.array()?))),
            12 => Value::Double(f64::from_bits(u64::from_le_bytes(self.array()?))),
            13 => Value::Char(char::from_u32(u32::from_le_bytes(self.array()?)).ok_or(Error::Corrupt("character"))?),
            14 => Value::Timestamp(Timestamp(i64::from_le_bytes(self.array()?))),
            15 => Value::Uuid(self.array()?),
            16 => Value::Binary(Bytes::copy_from_slice(self.bytes()?)),
            17 => Value::String(self.text()?.into()),
            18 => Value::Symbol(self.text()?.into()),
            19 => Value::List((0..self.number()?).map(|_| self.value(depth + 1)).collect::<Result<_, _>>()?),
            20 => Value::Map(self.entries(depth)?),
            21 => Value::Array((0..self.number()?).map(|_| self.value(depth + 1)).collect::<Result<_, _>>()?),
            22 => Value::Decimal(Bytes::copy_from_slice(self.bytes()?)),
            23 => Value::Described(Box::new((self.value(depth + 1)?, self.value(depth + 1)?))),
            _ => return Err(Error::Corrupt("kind of value")),
        })
    }

    fn entries(&mut self, depth: u32) -> Result<Vec<(Value, Value)>, Error> {
        (0..self.number()?).map(|_| Ok((self.value(depth + 1)?, self.value(depth + 1)?))).collect()
    }

    fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<Option<T>, Error> {
        if self.byte()? == 0 { Ok(None) } else { read(self).map(Some) }
    }

    fn small<T: TryFrom<i64>>(&mut self) -> Result<Option<T>, Error> {
        let read = |input: &mut Self| T::try_from(input.signed()?).map_err(|_| Error::Corrupt("a number is too large"));
        self.optional(read)
    }

    fn rare(&mut self) -> Result<Rare, Error> {
        let user_id = self.optional(|input| Ok(Bytes::copy_from_slice(input.bytes()?)))?;
        let content_encoding = self.optional(|input| Ok(Arc::from(input.text()?)))?;
        let via_partition_key = self.optional(|input| Ok(Arc::from(input.text()?)))?;
        let dead_letter_source = self.optional(|input| Ok(EntityName::from(input.text()?)))?;
        Ok(Rare {
            user_id,
            content_encoding,
            via_partition_key,
            dead_letter_source,
            creation_time: self.small()?.map(Timestamp),
            absolute_expiry_time: self.small()?.map(Timestamp),
            group_sequence: self.small()?,
            durable: self.small::<i64>()?.map(|n| n != 0),
            priority: self.small()?,
            message_id_kind: id_kind_of(self.byte()?)?,
            correlation_id_kind: id_kind_of(self.byte()?)?,
            annotations: self.entries(0)?,
            footer: self.entries(0)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(message: &Message) {
        let (header, body) = encode(message).unwrap();
        let session = message.session_id.as_ref().map(SessionId::as_str);
        assert_eq!(&decode(&header, &body, session).unwrap(), message);
        // Cut anywhere, it is an error or another message, never a panic.
        for cut in 0..header.len() {
            let _ = decode(&header[..cut], &body, session);
        }
    }

    fn values() -> Vec<Value> {
        vec![
            Value::Null,
            Value::Bool(true),
            Value::Bool(false),
            Value::Byte(i8::MIN),
            Value::Ubyte(u8::MAX),
            Value::Short(i16::MIN),
            Value::Ushort(u16::MAX),
            Value::Int(i32::MIN),
            Value::Uint(u32::MAX),
            Value::Long(i64::MIN),
            Value::Ulong(u64::MAX),
            Value::Float(-0.5),
            Value::Double(f64::MAX),
            Value::Char('😀'),
            Value::Timestamp(Timestamp(-1)),
            Value::Uuid([7; 16]),
            Value::Binary(Bytes::from_static(b"\0\xff")),
            Value::string("Ærø"),
            Value::Symbol("sym".into()),
            Value::List(vec![Value::Null, Value::List(vec![])]),
            Value::Map(vec![(Value::Int(1), Value::string("one")), (Value::string("k"), Value::Map(vec![]))]),
            Value::Array(vec![Value::Uint(1), Value::Uint(2)]),
            Value::Decimal(Bytes::from_static(&[1; 16])),
            Value::Described(Box::new((Value::Symbol("d".into()), Value::List(vec![])))),
        ]
    }

    #[test]
    fn every_kind_of_value_comes_back() {
        let mut message = Message { message_id: Some("m".into()), ..Message::default() };
        for (n, value) in values().into_iter().enumerate() {
            message.set_property(&format!("p{n}"), value.clone());
            round_trip(&Message { body: Body::Value(value), ..Message::default() });
        }
        round_trip(&message);
    }

    /// Case A83: no body, an empty one, two sections and a value are four different things.
    #[test]
    fn every_kind_of_body_comes_back() {
        for body in [
            Body::None,
            Body::Data(Bytes::new()),
            Body::Data(Bytes::from_static(b"{}")),
            Body::Sections(vec![]),
            Body::Sections(vec![Bytes::from_static(b"a"), Bytes::new(), Bytes::from_static(b"bc")]),
            Body::Value(Value::Null),
            Body::Lists(vec![]),
            Body::Lists(vec![vec![], vec![Value::Null, Value::Int(1)]]),
        ] {
            round_trip(&Message { body, ..Message::default() });
        }
    }

    #[test]
    fn every_field_comes_back() {
        let text = |text: &str| Some(Arc::from(text));
        round_trip(&Message {
            message_id: Some("x".repeat(600).into()),
            session_id: Some("s".into()),
            subject: text(""),
            content_type: text("application/json"),
            correlation_id: text("c"),
            to: text("t"),
            reply_to: text("r"),
            reply_to_session_id: text("rs"),
            partition_key: text("pk"),
            time_to_live: Some(Duration::new(u64::MAX, 999_999_999)),
            scheduled_for: Some(Timestamp(i64::MIN)),
            ..Message::default()
        });
        round_trip(&Message::default());
        round_trip(&Message { rare: Some(Box::default()), ..Message::default() });
        let rare = Rare {
            user_id: Some(Bytes::from_static(&[0, 255])),
            content_encoding: text("gzip"),
            creation_time: Some(Timestamp(i64::MIN)),
            absolute_expiry_time: Some(Timestamp(i64::MAX)),
            group_sequence: Some(u32::MAX),
            via_partition_key: text("via"),
            durable: Some(false),
            priority: Some(255),
            message_id_kind: IdKind::Binary,
            correlation_id_kind: IdKind::Uuid,
            annotations: vec![(Value::Symbol("x".into()), Value::Map(vec![]))],
            footer: vec![(Value::Symbol("y".into()), Value::Null)],
            dead_letter_source: Some("orders".into()),
        };
        round_trip(&Message { rare: Some(Box::new(rare)), ..Message::default() });
    }

    /// A row that version 1 wrote, byte by byte: message id "m", subject "s", property n = int 7, body "{}".
    #[test]
    fn rows_of_version_1_are_read() {
        let header = [1, 0b11, 1, b'm', 1, b's', 1, 1, b'n', 7, 7, 0, 0, 0, 1];
        let message = decode(&header, b"{}", Some("c")).unwrap();
        let mut expected = Message {
            message_id: Some("m".into()),
            session_id: Some("c".into()),
            subject: Some("s".into()),
            body: Body::Data(Bytes::from_static(b"{}")),
            ..Message::default()
        };
        expected.set_property("n", Value::Int(7));
        assert_eq!(message, expected);
        assert!(decode(&[VERSION + 1, 0, 0, 0], b"", None).is_err());
    }

    #[test]
    fn depth_is_bounded_both_ways() {
        let nested = (0..40).fold(Value::Null, |inner, _| Value::List(vec![inner]));
        let message = Message { body: Body::Value(nested), ..Message::default() };
        assert_eq!(encode(&message).unwrap_err(), Error::TooDeep);
        let header = encode(&Message { body: Body::Value(Value::Null), ..Message::default() }).unwrap().0;
        let body: Vec<u8> = [19u8, 1].repeat(1_000);
        assert_eq!(decode(&header, &body, None).unwrap_err(), Error::TooDeep);
    }
}
