//! The two ends of a link.

use super::{DeliveryState, descriptors, fields, fields::code_of, write};
use crate::{
    decode::{DecodeError, Problem, Reader, Result},
    encode,
    value::{Map, Symbol, Value},
};

/// Where messages of a link come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Source {
    pub address: Option<String>,
    pub durable: u32,
    pub expiry_policy: Option<Symbol>,
    pub timeout: u32,
    pub dynamic: bool,
    pub dynamic_node_properties: Map,
    pub distribution_mode: Option<Symbol>,
    /// Filters by name. A value may come described or plain: [`Source::filter`] looks through the description.
    pub filters: Map,
    pub default_outcome: Option<DeliveryState>,
    pub outcomes: Vec<Symbol>,
    pub capabilities: Vec<Symbol>,
}

impl Source {
    pub fn at(address: impl Into<String>) -> Self {
        Self { address: Some(address.into()), ..Self::default() }
    }

    /// The value of a filter without its description. `Some(Null)` is a filter that is there and null: the next session, whichever it is.
    pub fn filter(&self, name: &str) -> Option<&Value> {
        self.filters.get(name).map(Value::undescribed)
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let at = reader.position();
        if code_of(reader, "source")? != descriptors::SOURCE {
            return Err(DecodeError { at, problem: Problem::UnknownDescriptor { what: "source" } });
        }
        fields::list(reader, "source", |fields| {
            Ok(Self {
                address: fields.string("address")?,
                durable: fields.u32("durable")?.unwrap_or(0),
                expiry_policy: fields.symbol("expiry-policy")?,
                timeout: fields.u32("timeout")?.unwrap_or(0),
                dynamic: fields.flag("dynamic")?,
                dynamic_node_properties: fields.map("dynamic-node-properties")?,
                distribution_mode: fields.symbol("distribution-mode")?,
                filters: fields.map("filter")?,
                default_outcome: fields.state()?,
                outcomes: fields.symbols("outcomes")?,
                capabilities: fields.symbols("capabilities")?,
            })
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        write::composite(out, descriptors::SOURCE, 11, |out| {
            write::string(out, self.address.as_deref());
            encode::uint(out, self.durable);
            write::symbol(out, self.expiry_policy.as_ref());
            encode::uint(out, self.timeout);
            encode::boolean(out, self.dynamic);
            write::map(out, &self.dynamic_node_properties);
            write::symbol(out, self.distribution_mode.as_ref());
            write::map(out, &self.filters);
            write::state(out, self.default_outcome.as_ref());
            write::symbols(out, &self.outcomes);
            write::symbols(out, &self.capabilities);
        });
    }
}

/// Where messages of a link go to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Node(TargetNode),
    /// The link is for controlling transactions.
    Coordinator {
        capabilities: Vec<Symbol>,
    },
}

/// A target that is a place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetNode {
    pub address: Option<String>,
    pub durable: u32,
    pub expiry_policy: Option<Symbol>,
    pub timeout: u32,
    pub dynamic: bool,
    pub dynamic_node_properties: Map,
    pub capabilities: Vec<Symbol>,
}

impl Target {
    pub fn at(address: impl Into<String>) -> Self {
        Self::Node(TargetNode { address: Some(address.into()), ..TargetNode::default() })
    }

    pub fn address(&self) -> Option<&str> {
        match self {
            Self::Node(node) => node.address.as_deref(),
            Self::Coordinator { .. } => None,
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let at = reader.position();
        match code_of(reader, "target")? {
            descriptors::TARGET => fields::list(reader, "target", |fields| {
                Ok(Self::Node(TargetNode {
                    address: fields.string("address")?,
                    durable: fields.u32("durable")?.unwrap_or(0),
                    expiry_policy: fields.symbol("expiry-policy")?,
                    timeout: fields.u32("timeout")?.unwrap_or(0),
                    dynamic: fields.flag("dynamic")?,
                    dynamic_node_properties: fields.map("dynamic-node-properties")?,
                    capabilities: fields.symbols("capabilities")?,
                }))
            }),
            descriptors::COORDINATOR => fields::list(reader, "coordinator", |fields| {
                Ok(Self::Coordinator { capabilities: fields.symbols("capabilities")? })
            }),
            _ => Err(DecodeError { at, problem: Problem::UnknownDescriptor { what: "target" } }),
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Node(node) => write::composite(out, descriptors::TARGET, 7, |out| {
                write::string(out, node.address.as_deref());
                encode::uint(out, node.durable);
                write::symbol(out, node.expiry_policy.as_ref());
                encode::uint(out, node.timeout);
                encode::boolean(out, node.dynamic);
                write::map(out, &node.dynamic_node_properties);
                write::symbols(out, &node.capabilities);
            }),
            Self::Coordinator { capabilities } => write::composite(out, descriptors::COORDINATOR, 1, |out| {
                write::symbols(out, capabilities);
            }),
        }
    }
}
