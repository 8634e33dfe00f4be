//! Writes AMQP values, strictly and in the shortest form, to the end of one output buffer.
//!
//! Lists of the protocol are written with all their fields, nulls at the end included: releases of the Python SDK read fields by position
//! and expect every one to be there, and list0 for an empty performative breaks them.

use crate::{
    codes,
    value::{Array, Map, Symbol, Value},
};

/// Writes one value.
pub fn value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => null(out),
        Value::Bool(value) => boolean(out, *value),
        Value::Ubyte(n) => ubyte(out, *n),
        Value::Ushort(n) => ushort(out, *n),
        Value::Uint(n) => uint(out, *n),
        Value::Ulong(n) => ulong(out, *n),
        Value::Byte(n) => fixed(out, codes::BYTE, n.to_be_bytes()),
        Value::Short(n) => fixed(out, codes::SHORT, n.to_be_bytes()),
        Value::Int(n) => match i8::try_from(*n) {
            Ok(small) => fixed(out, codes::SMALL_INT, small.to_be_bytes()),
            Err(_) => fixed(out, codes::INT, n.to_be_bytes()),
        },
        Value::Long(n) => match i8::try_from(*n) {
            Ok(small) => fixed(out, codes::SMALL_LONG, small.to_be_bytes()),
            Err(_) => fixed(out, codes::LONG, n.to_be_bytes()),
        },
        Value::Float(bits) => fixed(out, codes::FLOAT, bits.to_be_bytes()),
        Value::Double(bits) => fixed(out, codes::DOUBLE, bits.to_be_bytes()),
        Value::Decimal32(bytes) => fixed(out, codes::DECIMAL32, *bytes),
        Value::Decimal64(bytes) => fixed(out, codes::DECIMAL64, *bytes),
        Value::Decimal128(bytes) => fixed(out, codes::DECIMAL128, *bytes),
        Value::Char(unit) => fixed(out, codes::CHAR, unit.to_be_bytes()),
        Value::Timestamp(n) => timestamp(out, *n),
        Value::Uuid(bytes) => fixed(out, codes::UUID, *bytes),
        Value::Binary(bytes) => binary(out, bytes),
        Value::String(text) => string(out, text),
        Value::Symbol(text) => symbol(out, text),
        Value::List(items) => list(out, items.len(), |out| items.iter().for_each(|item| self::value(out, item))),
        Value::Map(pairs) => map(out, pairs),
        Value::Array(items) => array(out, items),
        Value::Described(described) => {
            out.push(codes::DESCRIBED);
            self::value(out, &described.by);
            self::value(out, &described.value);
        }
    }
}

fn fixed<const N: usize>(out: &mut Vec<u8>, code: u8, bytes: [u8; N]) {
    out.push(code);
    out.extend_from_slice(&bytes);
}

pub(crate) fn null(out: &mut Vec<u8>) {
    out.push(codes::NULL);
}

pub(crate) fn boolean(out: &mut Vec<u8>, value: bool) {
    out.push(if value { codes::TRUE } else { codes::FALSE });
}

pub(crate) fn ubyte(out: &mut Vec<u8>, n: u8) {
    fixed(out, codes::UBYTE, [n]);
}

pub(crate) fn ushort(out: &mut Vec<u8>, n: u16) {
    fixed(out, codes::USHORT, n.to_be_bytes());
}

pub(crate) fn uint(out: &mut Vec<u8>, n: u32) {
    match u8::try_from(n) {
        Ok(0) => out.push(codes::UINT0),
        Ok(small) => fixed(out, codes::SMALL_UINT, [small]),
        Err(_) => fixed(out, codes::UINT, n.to_be_bytes()),
    }
}

pub(crate) fn ulong(out: &mut Vec<u8>, n: u64) {
    match u8::try_from(n) {
        Ok(0) => out.push(codes::ULONG0),
        Ok(small) => fixed(out, codes::SMALL_ULONG, [small]),
        Err(_) => fixed(out, codes::ULONG, n.to_be_bytes()),
    }
}

pub(crate) fn timestamp(out: &mut Vec<u8>, n: i64) {
    fixed(out, codes::TIMESTAMP, n.to_be_bytes());
}

/// A size or count as the wire has it. What we write comes from messages and frames that are far below 4 GiB.
fn wire(len: usize) -> u32 {
    u32::try_from(len).expect("what is written is bounded by the largest message, which is below 4 GiB")
}

fn variable(out: &mut Vec<u8>, small: u8, large: u8, bytes: &[u8]) {
    match u8::try_from(bytes.len()) {
        Ok(len) => fixed(out, small, [len]),
        Err(_) => fixed(out, large, wire(bytes.len()).to_be_bytes()),
    }
    out.extend_from_slice(bytes);
}

pub(crate) fn binary(out: &mut Vec<u8>, bytes: &[u8]) {
    variable(out, codes::BINARY8, codes::BINARY32, bytes);
}

pub(crate) fn string(out: &mut Vec<u8>, text: &str) {
    variable(out, codes::STRING8, codes::STRING32, text.as_bytes());
}

pub(crate) fn symbol(out: &mut Vec<u8>, text: &Symbol) {
    variable(out, codes::SYMBOL8, codes::SYMBOL32, text.as_str().as_bytes());
}

/// The descriptor of one of the protocol's own types.
pub(crate) fn descriptor(out: &mut Vec<u8>, code: u64) {
    out.push(codes::DESCRIBED);
    ulong(out, code);
}

/// A list of `count` items that `items` writes. Never list0: see the head of the file.
pub(crate) fn list(out: &mut Vec<u8>, count: usize, items: impl FnOnce(&mut Vec<u8>)) {
    compound(out, codes::LIST8, codes::LIST32, count, items);
}

pub(crate) fn map(out: &mut Vec<u8>, pairs: &Map) {
    compound(out, codes::MAP8, codes::MAP32, pairs.len() * 2, |out| {
        for (key, item) in pairs.iter() {
            value(out, key);
            value(out, item);
        }
    });
}

fn compound(out: &mut Vec<u8>, small: u8, large: u8, count: usize, items: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    // Written as if it were short; made wide afterwards when it was not, which is rare.
    out.extend_from_slice(&[small, 0, 0]);
    items(out);
    let body = out.len() - start - 3;
    match (u8::try_from(body + 1), u8::try_from(count)) {
        (Ok(size), Ok(count)) => {
            out[start + 1] = size;
            out[start + 2] = count;
        }
        _ => {
            out.extend_from_slice(&[0; 6]);
            out.copy_within(start + 3..start + 3 + body, start + 9);
            out[start] = large;
            out[start + 1..start + 5].copy_from_slice(&wire(body + 4).to_be_bytes());
            out[start + 5..start + 9].copy_from_slice(&wire(count).to_be_bytes());
        }
    }
}

fn array(out: &mut Vec<u8>, array: &Array) {
    // Text and binaries of up to 255 bytes, which is nearly all, take the short constructor when it suits every item.
    let short = |len: usize| len <= usize::from(u8::MAX);
    let all_short = array.items.iter().all(|item| match item {
        Value::Binary(bytes) => short(bytes.len()),
        Value::String(text) => short(text.len()),
        Value::Symbol(text) => short(text.as_str().len()),
        _ => false,
    });
    let code = match array.code {
        codes::BINARY32 | codes::STRING32 | codes::SYMBOL32 if all_short => array.code & !0x10,
        code => code,
    };
    compound(out, codes::ARRAY8, codes::ARRAY32, array.items.len(), |out| {
        for by in &array.described_by {
            out.push(codes::DESCRIBED);
            value(out, by);
        }
        out.push(code);
        for item in &array.items {
            array_item(out, code, item);
        }
    });
}

/// The bytes of an item without its constructor, in the width that the array's constructor says.
fn array_item(out: &mut Vec<u8>, code: u8, item: &Value) {
    let small = code & 0x10 == 0;
    let sized = |out: &mut Vec<u8>, bytes: &[u8]| {
        match u8::try_from(bytes.len()) {
            Ok(len) if small => out.push(len),
            _ => out.extend_from_slice(&wire(bytes.len()).to_be_bytes()),
        }
        out.extend_from_slice(bytes);
    };
    match item {
        Value::Bool(value) => out.push((*value).into()),
        Value::Uint(n) => out.extend_from_slice(&n.to_be_bytes()),
        Value::Ulong(n) => out.extend_from_slice(&n.to_be_bytes()),
        Value::Int(n) => out.extend_from_slice(&n.to_be_bytes()),
        Value::Long(n) => out.extend_from_slice(&n.to_be_bytes()),
        Value::Binary(bytes) => sized(out, bytes),
        Value::String(text) => sized(out, text.as_bytes()),
        Value::Symbol(text) => sized(out, text.as_str().as_bytes()),
        Value::List(items) => wide(out, items.len(), |out| items.iter().for_each(|item| value(out, item))),
        Value::Map(pairs) => wide(out, pairs.len() * 2, |out| {
            for (key, item) in pairs.iter() {
                value(out, key);
                value(out, item);
            }
        }),
        Value::Array(inner) => {
            let start = out.len();
            self::array(out, inner);
            if out[start] == codes::ARRAY8 {
                let count = out[start + 2];
                let body = out.len() - start - 3;
                out.extend_from_slice(&[0; 5]);
                out.copy_within(start + 3..start + 3 + body, start + 8);
                out[start..start + 4].copy_from_slice(&wire(body + 4).to_be_bytes());
                out[start + 4..start + 8].copy_from_slice(&u32::from(count).to_be_bytes());
            } else {
                out.remove(start);
            }
        }
        // All others have one constructor only, so what follows it is the same as outside an array.
        other => {
            let start = out.len();
            value(out, other);
            out.remove(start);
        }
    }
}

/// Size and count of four bytes each, then the items.
fn wide(out: &mut Vec<u8>, count: usize, items: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    items(out);
    let size = out.len() - start - 4;
    out[start..start + 4].copy_from_slice(&wire(size).to_be_bytes());
    out[start + 4..start + 8].copy_from_slice(&wire(count).to_be_bytes());
}
