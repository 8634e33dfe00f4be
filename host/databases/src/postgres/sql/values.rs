//! Values between handlers and PostgreSQL. Parameters go as text, so that the server reads them as whatever its statement needs; results come in the
//! driver's binary form.

use std::error::Error;

use bytes::{BufMut as _, Bytes, BytesMut};
use sprag_core::sql::Value;
use tokio_postgres::{
    Row,
    types::{Format, FromSql, IsNull, ToSql, Type, to_sql_checked},
};

type Failure = Box<dyn Error + Sync + Send>;

/// Microseconds from 1970 to 2000, where PostgreSQL's time begins.
const EPOCH: i64 = 946_684_800_000_000;

/// A parameter.
#[derive(Debug)]
pub(crate) struct Parameter<'a>(pub(crate) &'a Value);

impl ToSql for Parameter<'_> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Failure> {
        match self.0 {
            Value::Null => return Ok(IsNull::Yes),
            Value::Boolean(it) => out.put_slice(if *it { b"true" } else { b"false" }),
            Value::Integer(it) => out.put_slice(it.to_string().as_bytes()),
            Value::Float(it) => out.put_slice(float_text(*it).as_bytes()),
            Value::Text(text) | Value::Decimal(text) | Value::Uuid(text) | Value::Json(text) => {
                out.put_slice(text.as_bytes());
            }
            Value::Bytes(bytes) if *kind == Type::BYTEA => out.put_slice(bytes),
            Value::Bytes(_) => return Err(format!("bytes are given where the statement needs {kind}").into()),
            Value::Timestamp(it) => out.put_slice(Value::time_text(*it).as_bytes()),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        match self.0 {
            Value::Bytes(_) => Format::Binary,
            _ => Format::Text,
        }
    }

    to_sql_checked!();
}

fn float_text(it: f64) -> String {
    if it.is_nan() {
        "NaN".to_owned()
    } else if it.is_infinite() {
        (if it > 0.0 { "Infinity" } else { "-Infinity" }).to_owned()
    } else {
        format!("{it:?}")
    }
}

/// The values of a row, or why one has no counterpart.
pub(crate) fn row(row: &Row) -> Result<Vec<Value>, String> {
    let value = |(i, column): (usize, &tokio_postgres::Column)| {
        row.try_get::<_, Cell>(i).map(|cell| cell.0).map_err(|_| {
            format!(
                "column {:?} is of type {}, which handlers do not know: cast it, for instance to text or jsonb",
                column.name(),
                column.type_()
            )
        })
    };
    row.columns().iter().enumerate().map(value).collect()
}

struct Cell(Value);

impl<'a> FromSql<'a> for Cell {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Failure> {
        let integer = |raw: &[u8]| -> Result<i64, Failure> {
            Ok(match raw.len() {
                2 => i64::from(i16::from_be_bytes(raw.try_into()?)),
                4 => i64::from(i32::from_be_bytes(raw.try_into()?)),
                _ => i64::from_be_bytes(raw.try_into()?),
            })
        };
        Ok(Self(match *kind {
            Type::BOOL => Value::Boolean(bool::from_sql(kind, raw)?),
            Type::INT2 | Type::INT4 | Type::INT8 => Value::Integer(integer(raw)?),
            Type::OID => Value::Integer(u32::from_be_bytes(raw.try_into()?).into()),
            Type::FLOAT4 => Value::Float(f32::from_sql(kind, raw)?.into()),
            Type::FLOAT8 => Value::Float(f64::from_sql(kind, raw)?),
            Type::NUMERIC => Value::Decimal(decimal(raw).ok_or("a decimal cannot be read")?),
            Type::BYTEA => Value::Bytes(Bytes::copy_from_slice(raw)),
            Type::TIMESTAMP | Type::TIMESTAMPTZ => match integer(raw)? {
                i64::MAX | i64::MIN => return Err("infinity is no time".into()),
                time => Value::Timestamp(time.checked_add(EPOCH).ok_or("the time is out of range")?),
            },
            Type::DATE => Value::Text(date(i32::from_be_bytes(raw.try_into()?))),
            Type::UUID => Value::Uuid(uuid(raw).ok_or("a UUID cannot be read")?),
            Type::JSON => Value::Json(std::str::from_utf8(raw)?.to_owned()),
            // A version number comes first.
            Type::JSONB => Value::Json(std::str::from_utf8(raw.get(1..).unwrap_or_default())?.to_owned()),
            Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN => {
                Value::Text(std::str::from_utf8(raw)?.to_owned())
            }
            _ if matches!(kind.kind(), tokio_postgres::types::Kind::Enum(_)) => {
                Value::Text(std::str::from_utf8(raw)?.to_owned())
            }
            // A SELECT of a function without a result.
            Type::VOID => Value::Null,
            _ => return Err("a type without counterpart".into()),
        }))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Failure> {
        Ok(Self(Value::Null))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

fn uuid(raw: &[u8]) -> Option<String> {
    if raw.len() != 16 {
        return None;
    }
    let hex: String = raw.iter().map(|byte| format!("{byte:02x}")).collect();
    Some([&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}

/// Days since 2000-01-01 as `YYYY-MM-DD`.
fn date(days: i32) -> String {
    match days {
        i32::MAX => "infinity".to_owned(),
        i32::MIN => "-infinity".to_owned(),
        days => {
            let micros = i64::from(days) * 86_400_000_000 + EPOCH;
            Value::time_text(micros).split('T').next().unwrap_or_default().to_owned()
        }
    }
}

/// PostgreSQL's decimals: digits in base 10,000, the weight of the first, a sign and how many decimals are shown.
fn decimal(raw: &[u8]) -> Option<String> {
    let word = |i: usize| raw.get(2 * i..2 * i + 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    let (count, weight, sign, scale) = (word(0)?, word(1)?.cast_signed(), word(2)?, word(3)?);
    match sign {
        0xC000 => return Some("NaN".to_owned()),
        0xD000 => return Some("Infinity".to_owned()),
        0xF000 => return Some("-Infinity".to_owned()),
        _ => {}
    }
    // The digit of weight `w`; those that are not there are zero.
    let digit = |w: i32| -> Option<u16> {
        let i = i32::from(weight) - w;
        if i < 0 || i >= i32::from(count) { Some(0) } else { word(4 + usize::try_from(i).ok()?) }
    };
    let mut whole = String::new();
    for w in (0..=i32::from(weight).max(0)).rev() {
        whole.push_str(&format!("{:04}", digit(w)?));
    }
    let whole = whole.trim_start_matches('0');
    let mut fraction = String::new();
    let groups = i32::from(scale).div_euclid(4) + 1;
    for w in 1..=groups {
        fraction.push_str(&format!("{:04}", digit(-w)?));
    }
    fraction.truncate(usize::from(scale));
    let minus = if sign == 0x4000 { "-" } else { "" };
    let whole = if whole.is_empty() { "0" } else { whole };
    Some(if fraction.is_empty() { format!("{minus}{whole}") } else { format!("{minus}{whole}.{fraction}") })
}
