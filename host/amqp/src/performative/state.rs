//! Delivery states and errors.

use bytes::Bytes;

use super::{descriptors, fields, fields::code_of, write};
use crate::{
    decode::{Problem, Reader, Result},
    encode,
    value::{Map, Symbol},
};

/// What went wrong, as it is told to the peer or by the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AmqpError {
    pub condition: Symbol,
    pub description: Option<String>,
    /// The standard says symbol keys; rhea writes strings. [`Map::get`] finds both.
    pub info: Map,
}

impl AmqpError {
    pub fn new(condition: Symbol, description: impl Into<String>) -> Self {
        Self { condition, description: Some(description.into()), info: Map::new() }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        match code_of(reader, "error")? {
            descriptors::ERROR => {}
            _ => return reader.error(Problem::UnknownDescriptor { what: "error" }),
        }
        fields::list(reader, "error", |fields| {
            Ok(Self {
                condition: match fields.symbol("condition")? {
                    Some(condition) => condition,
                    None => return fields.missing("condition"),
                },
                description: fields.string("description")?,
                info: fields.map("info")?,
            })
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        write::composite(out, descriptors::ERROR, 3, |out| {
            encode::symbol(out, &self.condition);
            write::string(out, self.description.as_deref());
            write::map(out, &self.info);
        });
    }
}

/// What has become of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryState {
    Received {
        section_number: u32,
        section_offset: u64,
    },
    Accepted,
    Rejected(Option<AmqpError>),
    Released,
    Modified {
        delivery_failed: bool,
        undeliverable_here: bool,
        message_annotations: Map,
    },
    /// A transaction was declared. Only named, so that it can be refused.
    Declared {
        transaction: Bytes,
    },
    /// Part of a transaction. Only named, so that it can be refused; the outcome in it is not read.
    Transactional {
        transaction: Bytes,
    },
}

impl DeliveryState {
    /// Whether it ends the delivery: all but received.
    pub fn is_terminal(&self) -> bool {
        !matches!(self, Self::Received { .. } | Self::Declared { .. } | Self::Transactional { .. })
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let at = reader.position();
        let code = code_of(reader, "delivery state")?;
        fields::list(reader, "delivery state", |fields| {
            Ok(match code {
                descriptors::RECEIVED => Self::Received {
                    section_number: fields.u32("section-number")?.unwrap_or(0),
                    section_offset: fields.u64("section-offset")?.unwrap_or(0),
                },
                descriptors::ACCEPTED => Self::Accepted,
                descriptors::REJECTED => Self::Rejected(fields.error()?),
                descriptors::RELEASED => Self::Released,
                descriptors::MODIFIED => Self::Modified {
                    delivery_failed: fields.flag("delivery-failed")?,
                    undeliverable_here: fields.flag("undeliverable-here")?,
                    message_annotations: fields.map("message-annotations")?,
                },
                descriptors::DECLARED => Self::Declared { transaction: fields.binary("txn-id")?.unwrap_or_default() },
                descriptors::TRANSACTIONAL => {
                    Self::Transactional { transaction: fields.binary("txn-id")?.unwrap_or_default() }
                }
                _ => {
                    let problem = Problem::UnknownDescriptor { what: "delivery state" };
                    return Err(crate::decode::DecodeError { at, problem });
                }
            })
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Received { section_number, section_offset } => {
                write::composite(out, descriptors::RECEIVED, 2, |out| {
                    encode::uint(out, *section_number);
                    encode::ulong(out, *section_offset);
                });
            }
            Self::Accepted => write::empty(out, descriptors::ACCEPTED),
            Self::Rejected(error) => write::composite(out, descriptors::REJECTED, 1, |out| {
                write::error(out, error.as_ref());
            }),
            Self::Released => write::empty(out, descriptors::RELEASED),
            Self::Modified { delivery_failed, undeliverable_here, message_annotations } => {
                write::composite(out, descriptors::MODIFIED, 3, |out| {
                    encode::boolean(out, *delivery_failed);
                    encode::boolean(out, *undeliverable_here);
                    write::map(out, message_annotations);
                });
            }
            Self::Declared { transaction } => write::composite(out, descriptors::DECLARED, 1, |out| {
                encode::binary(out, transaction);
            }),
            Self::Transactional { transaction } => write::composite(out, descriptors::TRANSACTIONAL, 2, |out| {
                encode::binary(out, transaction);
                encode::null(out);
            }),
        }
    }
}
