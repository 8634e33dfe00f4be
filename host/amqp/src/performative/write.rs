//! Writing fields that may be null.

use super::{AmqpError, DeliveryState, descriptors};
use crate::{
    encode,
    value::{Array, Map, Symbol},
};

pub(crate) fn or_null<T>(out: &mut Vec<u8>, value: Option<T>, write: impl FnOnce(&mut Vec<u8>, T)) {
    match value {
        Some(value) => write(out, value),
        None => encode::null(out),
    }
}

pub(crate) fn u32(out: &mut Vec<u8>, value: Option<u32>) {
    or_null(out, value, encode::uint);
}

pub(crate) fn boolean(out: &mut Vec<u8>, value: Option<bool>) {
    or_null(out, value, encode::boolean);
}

pub(crate) fn string(out: &mut Vec<u8>, value: Option<&str>) {
    or_null(out, value, encode::string);
}

pub(crate) fn symbol(out: &mut Vec<u8>, value: Option<&Symbol>) {
    or_null(out, value, encode::symbol);
}

pub(crate) fn binary(out: &mut Vec<u8>, value: Option<&[u8]>) {
    or_null(out, value, encode::binary);
}

/// An empty map and no map mean the same everywhere in the protocol; the shorter one is written.
pub(crate) fn map(out: &mut Vec<u8>, value: &Map) {
    or_null(out, (!value.is_empty()).then_some(value), encode::map);
}

pub(crate) fn symbols(out: &mut Vec<u8>, symbols: &[Symbol]) {
    match symbols {
        [] => encode::null(out),
        several => encode::value(out, &Array::symbols(several.iter().cloned())),
    }
}

pub(crate) fn state(out: &mut Vec<u8>, state: Option<&DeliveryState>) {
    or_null(out, state, |out, state| state.write(out));
}

pub(crate) fn error(out: &mut Vec<u8>, error: Option<&AmqpError>) {
    or_null(out, error, |out, error| error.write(out));
}

/// A list of one of the protocol's own types.
pub(crate) fn composite(out: &mut Vec<u8>, code: u64, count: usize, fields: impl FnOnce(&mut Vec<u8>)) {
    encode::descriptor(out, code);
    encode::list(out, count, fields);
}

/// As [`composite`], for outcomes without fields, where list0 is what everybody writes and reads.
pub(crate) fn empty(out: &mut Vec<u8>, code: u64) {
    debug_assert!(matches!(code, descriptors::ACCEPTED | descriptors::RELEASED), "only outcomes are written empty");
    encode::descriptor(out, code);
    out.push(crate::codes::LIST0);
}
