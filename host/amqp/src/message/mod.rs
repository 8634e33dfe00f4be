//! Encoded messages: where their sections are, and the few of them that a broker reads or writes itself.
//!
//! Start at [`Sections`]. What the sender wrote for the receiver (properties, application properties, body, footer) stays the bytes that it
//! was, so that every client's encoding survives; header and annotations are the broker's to rebuild ([`write()`]). A batch is taken apart
//! by [`batch()`].

mod batch;
mod header;
mod properties;
mod sections;

pub use batch::{BATCH_FORMAT, Batch, batch};
pub use header::Header;
pub use properties::{MessageId, Properties};
pub use sections::{BodyKind, Sections};

use crate::{
    codes,
    decode::{Problem, Reader, Result},
    encode,
    performative::descriptors,
    value::{Map, Value},
};

/// Writes a message for a receiver: sections that are given, then the bytes of the bare message as they are. Maps that are empty are left
/// out.
pub fn write(
    out: &mut Vec<u8>,
    header: Option<&Header>,
    delivery_annotations: &Map,
    message_annotations: &Map,
    bare: &[u8],
) {
    if let Some(header) = header {
        header.write(out);
    }
    write_map(out, descriptors::DELIVERY_ANNOTATIONS, delivery_annotations);
    write_map(out, descriptors::MESSAGE_ANNOTATIONS, message_annotations);
    out.extend_from_slice(bare);
}

/// Writes application properties, unless there are none.
pub fn write_application_properties(out: &mut Vec<u8>, properties: &Map) {
    write_map(out, descriptors::APPLICATION_PROPERTIES, properties);
}

/// Writes a body of one data section.
pub fn write_data(out: &mut Vec<u8>, bytes: &[u8]) {
    encode::descriptor(out, descriptors::DATA);
    encode::binary(out, bytes);
}

/// Writes a body of one value.
pub fn write_value(out: &mut Vec<u8>, value: &Value) {
    encode::descriptor(out, descriptors::VALUE);
    encode::value(out, value);
}

/// Writes one sequence of a body; the value has to be a list.
pub fn write_sequence(out: &mut Vec<u8>, list: &Value) {
    encode::descriptor(out, descriptors::SEQUENCE);
    encode::value(out, list);
}

/// Writes a footer, unless it is empty.
pub fn write_footer(out: &mut Vec<u8>, footer: &Map) {
    write_map(out, descriptors::FOOTER, footer);
}

fn write_map(out: &mut Vec<u8>, code: u64, map: &Map) {
    if !map.is_empty() {
        encode::descriptor(out, code);
        encode::map(out, map);
    }
}

/// A map as a section's value; null is empty.
fn read_map(reader: &mut Reader<'_>, field: &'static str) -> Result<Map> {
    let found = reader.peek()?;
    match reader.value()? {
        Value::Map(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        Value::List(items) if items.is_empty() => Ok(Map::new()),
        _ => reader.error(Problem::Unexpected { field, expected: "a map", found }),
    }
}

/// A binary as a section's value, sharing memory. Text is taken for its bytes.
fn read_binary(reader: &mut Reader<'_>, field: &'static str) -> Result<bytes::Bytes> {
    match reader.byte()? {
        code @ (codes::BINARY8
        | codes::BINARY32
        | codes::STRING8
        | codes::STRING32
        | codes::SYMBOL8
        | codes::SYMBOL32) => reader.binary(code),
        codes::NULL => Ok(bytes::Bytes::new()),
        found => reader.error(Problem::Unexpected { field, expected: "a binary", found }),
    }
}

#[cfg(test)]
mod tests;
