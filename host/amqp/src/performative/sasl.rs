//! The frames of the SASL layer.

use bytes::Bytes;

use super::{descriptors, fields, fields::code_of, write};
use crate::{
    decode::{DecodeError, Problem, Reader, Result},
    encode,
    value::Symbol,
};

/// How a login ended, as the wire has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaslCode {
    Ok,
    /// The credentials are not good.
    Auth,
    /// A failure of ours that will not go away.
    Sys,
    /// A failure of ours that another attempt will not change.
    SysPerm,
    /// A failure of ours; trying again may help.
    SysTemp,
}

impl SaslCode {
    fn number(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Auth => 1,
            Self::Sys => 2,
            Self::SysPerm => 3,
            Self::SysTemp => 4,
        }
    }

    fn of(number: u8) -> Option<Self> {
        [Self::Ok, Self::Auth, Self::Sys, Self::SysPerm, Self::SysTemp].into_iter().find(|code| code.number() == number)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sasl {
    Mechanisms(Vec<Symbol>),
    Init { mechanism: Symbol, response: Option<Bytes>, hostname: Option<String> },
    Challenge(Bytes),
    Response(Bytes),
    Outcome { code: SaslCode, data: Option<Bytes> },
}

impl Sasl {
    pub fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let at = reader.position();
        let code = code_of(reader, "SASL frame")?;
        fields::list(reader, "SASL frame", |fields| {
            Ok(match code {
                descriptors::SASL_MECHANISMS => Self::Mechanisms(fields.symbols("sasl-server-mechanisms")?),
                descriptors::SASL_INIT => Self::Init {
                    mechanism: match fields.symbol("mechanism")? {
                        Some(mechanism) => mechanism,
                        None => return fields.missing("mechanism"),
                    },
                    response: fields.binary("initial-response")?,
                    hostname: fields.string("hostname")?,
                },
                descriptors::SASL_CHALLENGE => Self::Challenge(fields.binary("challenge")?.unwrap_or_default()),
                descriptors::SASL_RESPONSE => Self::Response(fields.binary("response")?.unwrap_or_default()),
                descriptors::SASL_OUTCOME => Self::Outcome {
                    code: match fields.choice("code", SaslCode::of)? {
                        Some(code) => code,
                        None => return fields.missing("code"),
                    },
                    data: fields.binary("additional-data")?,
                },
                _ => {
                    return Err(DecodeError { at, problem: Problem::UnknownDescriptor { what: "SASL frame" } });
                }
            })
        })
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Mechanisms(mechanisms) => write::composite(out, descriptors::SASL_MECHANISMS, 1, |out| {
                write::symbols(out, mechanisms);
            }),
            Self::Init { mechanism, response, hostname } => {
                write::composite(out, descriptors::SASL_INIT, 3, |out| {
                    encode::symbol(out, mechanism);
                    write::binary(out, response.as_deref());
                    write::string(out, hostname.as_deref());
                });
            }
            Self::Challenge(bytes) => write::composite(out, descriptors::SASL_CHALLENGE, 1, |out| {
                encode::binary(out, bytes);
            }),
            Self::Response(bytes) => write::composite(out, descriptors::SASL_RESPONSE, 1, |out| {
                encode::binary(out, bytes);
            }),
            Self::Outcome { code, data } => write::composite(out, descriptors::SASL_OUTCOME, 2, |out| {
                encode::ubyte(out, code.number());
                write::binary(out, data.as_deref());
            }),
        }
    }
}
