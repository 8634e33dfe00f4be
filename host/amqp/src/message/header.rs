//! The header: what concerns the transport of a message.

use crate::{
    decode::{Reader, Result},
    encode,
    performative::{descriptors, fields, write},
};

/// Priority of a message that does not say one.
const DEFAULT_PRIORITY: u8 = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub durable: bool,
    pub priority: u8,
    /// Milliseconds.
    pub ttl: Option<u32>,
    pub first_acquirer: bool,
    /// Earlier deliveries that have failed.
    pub delivery_count: u32,
}

impl Default for Header {
    fn default() -> Self {
        Self { durable: false, priority: DEFAULT_PRIORITY, ttl: None, first_acquirer: false, delivery_count: 0 }
    }
}

impl Header {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        fields::list(reader, "header", |fields| {
            Ok(Self {
                durable: fields.flag("durable")?,
                priority: fields.u8("priority")?.unwrap_or(DEFAULT_PRIORITY),
                ttl: fields.u32("ttl")?,
                first_acquirer: fields.flag("first-acquirer")?,
                delivery_count: fields.u32("delivery-count")?.unwrap_or(0),
            })
        })
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        write::composite(out, descriptors::HEADER, 5, |out| {
            encode::boolean(out, self.durable);
            encode::ubyte(out, self.priority);
            write::u32(out, self.ttl);
            encode::boolean(out, self.first_acquirer);
            encode::uint(out, self.delivery_count);
        });
    }
}
