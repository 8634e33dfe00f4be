//! The bytes of TDS 7.4, from the server's side: as much of it as the store's driver uses.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_postgres::{
    Column, Row,
    types::{ToSql, Type},
};

use crate::sqlserver::wire::{ANSWER, HEADER, LAST};

pub(super) const BATCH: u8 = 1;
pub(super) const RPC: u8 = 3;
pub(super) const ATTENTION: u8 = 6;
pub(super) const LOGIN: u8 = 0x10;

const PACKET: usize = 4_096;
/// A message of a test is not longer.
const MOST: usize = 64 << 20;

const MORE: u16 = 1;
const ERROR: u16 = 2;
const COUNT: u16 = 0x10;
const ATTENDED: u16 = 0x20;

/// From the year 1 to 1970, in days.
const DAYS_TO_1970: i64 = 719_162;
const DAY: u64 = 86_400;

type Result<T> = std::result::Result<T, String>;

/// A message: its type, and what its packets hold.
pub(super) async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<(u8, Vec<u8>)> {
    let mut message = Vec::new();
    loop {
        let mut header = [0; HEADER];
        stream.read_exact(&mut header).await?;
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let start = message.len();
        if length < HEADER || start + length > MOST {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        message.resize(start + length - HEADER, 0);
        stream.read_exact(&mut message[start..]).await?;
        if header[1] & LAST != 0 {
            return Ok((header[0], message));
        }
    }
}

pub(super) async fn write_message(stream: &mut (impl AsyncWrite + Unpin), body: &[u8]) -> std::io::Result<()> {
    let parts = body.chunks(PACKET - HEADER);
    let last = parts.len().saturating_sub(1);
    for (n, part) in parts.enumerate() {
        let length = (HEADER + part.len()) as u16;
        let status = if n == last { LAST } else { 0 };
        let mut packet = vec![ANSWER, status, 0, 0, 0, 0, (n % 255) as u8, 0];
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        packet.extend_from_slice(part);
        stream.write_all(&packet).await?;
    }
    stream.flush().await
}

/// Reads what a client sent.
pub(super) struct Reader<'b>(pub(super) &'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, count: usize) -> Result<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or("a message is cut off")?;
        self.0 = rest;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.take(2)?.try_into().map_err(|_| "two bytes")?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().map_err(|_| "four bytes")?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| "eight bytes")?))
    }

    fn text(&mut self, characters: usize) -> Result<String> {
        utf16(self.take(characters * 2)?)
    }

    /// The headers of a request: which transaction it belongs to.
    pub(super) fn transaction(&mut self) -> Result<u64> {
        let length = self.u32()? as usize;
        let mut headers = Reader(self.take(length.checked_sub(4).ok_or("headers are too short")?)?);
        headers.u32()?;
        if headers.u16()? != 2 {
            return Err("a header is not that of a transaction".to_owned());
        }
        headers.u64()
    }

    /// The rest as a text.
    pub(super) fn rest(&mut self) -> Result<String> {
        let length = self.0.len();
        utf16(self.take(length)?)
    }
}

fn utf16(bytes: &[u8]) -> Result<String> {
    let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    String::from_utf16(&units).map_err(|_| "a text is not UTF-16".to_owned())
}

#[derive(Debug)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: String,
    pub(super) database: String,
}

pub(super) fn read_login(message: &[u8]) -> Result<Login> {
    let part = |at: usize| {
        let mut place = Reader(message.get(at..at + 4).ok_or("a login is cut off")?);
        let (offset, length) = (usize::from(place.u16()?), usize::from(place.u16()?) * 2);
        message.get(offset..offset + length).ok_or_else(|| "a login is cut off".to_owned())
    };
    let password: Vec<u8> = part(44)?.iter().map(|byte| (byte ^ 0xa5).rotate_left(4)).collect();
    Ok(Login { user: utf16(part(40)?)?, password: utf16(&password)?, database: utf16(part(68)?)? })
}

/// A value of a call. None is null, whatever it is declared as.
pub(super) enum Value {
    Number(i64),
    Text(String),
    Bytes(Vec<u8>),
    Time(SystemTime),
}

/// A call of `sp_executesql`.
pub(super) struct Call {
    pub(super) text: String,
    pub(super) types: Vec<String>,
    pub(super) values: Vec<Option<Value>>,
}

pub(super) fn read_call(reader: &mut Reader<'_>) -> Result<Call> {
    if reader.u16()? != 0xffff || reader.u16()? != 10 {
        return Err("only sp_executesql can be called".to_owned());
    }
    reader.u16()?;
    let mut values = Vec::new();
    while !reader.0.is_empty() {
        let length = usize::from(reader.u8()?);
        reader.text(length)?;
        reader.u8()?;
        values.push(read_value(reader)?);
    }
    let mut values = values.into_iter();
    let (Some(Some(Value::Text(text))), declared) = (values.next(), values.next()) else {
        return Err("a call has a statement".to_owned());
    };
    let types = match declared {
        Some(Some(Value::Text(declared))) => read_types(&declared)?,
        _ => Vec::new(),
    };
    let values: Vec<_> = values.collect();
    if values.len() != types.len() {
        return Err("a call has as many values as it declares".to_owned());
    }
    Ok(Call { text, types, values })
}

/// `@P1 bigint,@P2 nvarchar(4000)`.
fn read_types(declared: &str) -> Result<Vec<String>> {
    let part = |(n, part): (usize, &str)| {
        let name = format!("@P{} ", n + 1);
        part.strip_prefix(&name).map(str::to_owned).ok_or_else(|| format!("{part:?} is not the type of {name}"))
    };
    declared.split(',').filter(|part| !part.is_empty()).enumerate().map(part).collect()
}

fn read_value(reader: &mut Reader<'_>) -> Result<Option<Value>> {
    match reader.u8()? {
        // A null of no type.
        0x1f => Ok(None),
        0x26 => {
            reader.u8()?;
            Ok(match reader.u8()? {
                0 => None,
                4 => Some(Value::Number(i64::from(reader.u32()? as i32))),
                8 => Some(Value::Number(reader.u64()? as i64)),
                other => return Err(format!("a number of {other} bytes")),
            })
        }
        0xe7 => {
            let most = reader.u16()?;
            reader.take(5)?;
            read_long(reader, most)?.map(|bytes| utf16(&bytes).map(Value::Text)).transpose()
        }
        0xa5 => {
            let most = reader.u16()?;
            Ok(read_long(reader, most)?.map(Value::Bytes))
        }
        0x2a => {
            let scale = reader.u8()?;
            if reader.u8()? != 8 || scale != 7 {
                return Err("a time is not of DATETIME2(7)".to_owned());
            }
            let ticks = u64::from(reader.u32()?) | (u64::from(reader.u8()?) << 32);
            let days = i64::from(reader.u16()?) | (i64::from(reader.u8()?) << 16);
            let part = Duration::from_nanos(ticks * 100);
            let days = days - DAYS_TO_1970;
            let away = Duration::from_secs(days.unsigned_abs() * DAY);
            let day = if days < 0 { UNIX_EPOCH - away } else { UNIX_EPOCH + away };
            Ok(Some(Value::Time(day + part)))
        }
        other => Err(format!("a value of type {other:#x}")),
    }
}

/// Bytes in one part, or in several where the type has no limit.
fn read_long(reader: &mut Reader<'_>, most: u16) -> Result<Option<Vec<u8>>> {
    if most != 0xffff {
        let length = reader.u16()?;
        return if length == 0xffff { Ok(None) } else { Ok(Some(reader.take(usize::from(length))?.to_vec())) };
    }
    if reader.u64()? == u64::MAX {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    loop {
        match reader.u32()? {
            0 => return Ok(Some(bytes)),
            length => bytes.extend_from_slice(reader.take(length as usize)?),
        }
    }
}

/// Writes what the server says.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    fn u16(&mut self, number: u16) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn short_text(&mut self, text: &str) {
        let units: Vec<u16> = text.encode_utf16().collect();
        self.0.push(units.len() as u8);
        units.into_iter().for_each(|unit| self.u16(unit));
    }

    /// A token whose length stands before it.
    fn sized(&mut self, token: u8, write: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        write(&mut inner);
        self.0.push(token);
        self.u16(inner.0.len() as u16);
        self.0.extend(inner.0);
    }

    pub(super) fn error(&mut self, number: u32, text: &str) {
        self.sized(0xaa, |inner| {
            inner.u32(number);
            inner.0.extend_from_slice(&[1, 16]);
            let units: Vec<u16> = text.encode_utf16().collect();
            inner.u16(units.len() as u16);
            units.into_iter().for_each(|unit| inner.u16(unit));
            inner.short_text("fake");
            inner.short_text("");
            inner.u32(1);
        });
    }

    pub(super) fn login_ack(&mut self) {
        self.sized(0xad, |inner| {
            inner.0.push(1);
            inner.0.extend_from_slice(&0x7400_0004_u32.to_be_bytes());
            inner.short_text("a fake");
            inner.u32(14);
        });
    }

    /// A transaction has begun (8), been committed (9) or been rolled back (10).
    pub(super) fn transaction(&mut self, what: u8, descriptor: u64) {
        self.sized(0xe3, |inner| {
            inner.0.push(what);
            let number = descriptor.to_le_bytes();
            let (new, old): (&[u8], &[u8]) = if what == 8 { (&number, &[]) } else { (&[], &number) };
            for part in [new, old] {
                inner.0.push(part.len() as u8);
                inner.0.extend_from_slice(part);
            }
        });
    }

    fn done_token(&mut self, token: u8, status: u16, count: u64) {
        self.0.push(token);
        self.u16(status);
        self.u16(0);
        self.0.extend_from_slice(&count.to_le_bytes());
    }

    /// The end of one of several statements of a call.
    pub(super) fn done_in_call(&mut self, count: u64) {
        self.done_token(0xff, MORE | COUNT, count);
    }

    pub(super) fn done_call(&mut self, failed: bool) {
        self.0.push(0x79);
        self.u32(0);
        self.done_token(0xfe, if failed { ERROR } else { 0 }, 0);
    }

    pub(super) fn done(&mut self, failed: bool) {
        self.done_token(0xfd, if failed { ERROR } else { 0 }, 0);
    }

    pub(super) fn attended(&mut self) {
        self.done_token(0xfd, ATTENDED, 0);
    }

    pub(super) fn columns(&mut self, columns: &[Column]) -> Result<()> {
        self.0.push(0x81);
        self.u16(columns.len() as u16);
        for column in columns {
            self.u32(0);
            self.u16(1);
            match kind(column.type_())? {
                Kind::Number => self.0.extend_from_slice(&[0x26, 8]),
                Kind::Text => self.0.extend_from_slice(&[0xe7, 0xff, 0xff, 0, 0, 0, 0, 0]),
                Kind::Bytes => self.0.extend_from_slice(&[0xa5, 0xff, 0xff]),
                Kind::Time => self.0.extend_from_slice(&[0x2a, 7]),
            }
            self.short_text(column.name());
        }
        Ok(())
    }

    pub(super) fn row(&mut self, row: &Row) -> Result<()> {
        self.0.push(0xd1);
        for (n, column) in row.columns().iter().enumerate() {
            let wrong = |error: tokio_postgres::Error| error.to_string();
            match kind(column.type_())? {
                Kind::Number => {
                    let number = match *column.type_() {
                        Type::INT8 => row.try_get::<_, Option<i64>>(n).map_err(wrong)?,
                        _ => row.try_get::<_, Option<i32>>(n).map_err(wrong)?.map(i64::from),
                    };
                    self.0.push(if number.is_some() { 8 } else { 0 });
                    self.0.extend(number.iter().flat_map(|number| number.to_le_bytes()));
                }
                Kind::Text => {
                    let text = row.try_get::<_, Option<&str>>(n).map_err(wrong)?;
                    let units = text.map(|text| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>());
                    self.long(units.as_deref());
                }
                Kind::Bytes => self.long(row.try_get::<_, Option<&[u8]>>(n).map_err(wrong)?),
                Kind::Time => self.time(row.try_get::<_, Option<SystemTime>>(n).map_err(wrong)?),
            }
        }
        Ok(())
    }

    fn long(&mut self, bytes: Option<&[u8]>) {
        let Some(bytes) = bytes else { return self.0.extend_from_slice(&u64::MAX.to_le_bytes()) };
        self.0.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        if !bytes.is_empty() {
            self.u32(bytes.len() as u32);
            self.0.extend_from_slice(bytes);
        }
        self.u32(0);
    }

    fn time(&mut self, time: Option<SystemTime>) {
        let Some(time) = time else { return self.0.push(0) };
        // Times of tests are after 1970.
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let ticks = (u128::from(since.as_secs() % DAY) * 1_000_000_000 + u128::from(since.subsec_nanos())) / 100;
        let days = DAYS_TO_1970 + (since.as_secs() / DAY) as i64;
        self.0.push(8);
        self.0.extend_from_slice(&(ticks as u64).to_le_bytes()[..5]);
        self.0.extend_from_slice(&(days as u32).to_le_bytes()[..3]);
    }
}

enum Kind {
    Number,
    Text,
    Bytes,
    Time,
}

fn kind(found: &Type) -> Result<Kind> {
    Ok(match *found {
        Type::INT4 | Type::INT8 => Kind::Number,
        Type::TEXT | Type::VARCHAR | Type::NAME => Kind::Text,
        Type::BYTEA => Kind::Bytes,
        Type::TIMESTAMP => Kind::Time,
        _ => return Err(format!("an answer of type {found}")),
    })
}

/// A declared type as PostgreSQL's.
pub(super) fn type_of(declared: &str) -> Result<Type> {
    Ok(match declared.split('(').next().unwrap_or_default() {
        "bigint" => Type::INT8,
        "nvarchar" => Type::TEXT,
        "varbinary" => Type::BYTEA,
        "datetime2" => Type::TIMESTAMP,
        _ => return Err(format!("a value of type {declared}")),
    })
}

/// A value as the database's driver takes it.
pub(super) fn bound<'v>(value: &'v Option<Value>, of: &Type) -> Box<dyn ToSql + Sync + Send + 'v> {
    match value {
        Some(Value::Number(number)) => Box::new(number),
        Some(Value::Text(text)) => Box::new(text),
        Some(Value::Bytes(bytes)) => Box::new(bytes),
        Some(Value::Time(time)) => Box::new(time),
        None => match *of {
            Type::INT8 => Box::new(None::<i64>),
            Type::BYTEA => Box::new(None::<Vec<u8>>),
            Type::TIMESTAMP => Box::new(None::<SystemTime>),
            _ => Box::new(None::<String>),
        },
    }
}
