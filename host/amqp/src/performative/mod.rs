//! The frames' bodies: what peers say to each other.
//!
//! Read leniently (`fields`), written strictly: all fields, each in its own type (`write`). The types mirror the standard's, with its
//! defaults filled in where a default exists. Transfers are read here without their payload, which is what is left in the frame.

pub(crate) mod descriptors;
pub(crate) mod fields;
mod sasl;
mod state;
mod terminus;
pub(crate) mod write;

use bytes::Bytes;

use crate::{
    decode::{DecodeError, Problem, Reader, Result},
    encode,
    value::{Map, Symbol},
};
use fields::code_of;
pub use sasl::{Sasl, SaslCode};
pub use state::{AmqpError, DeliveryState};
pub use terminus::{Source, Target, TargetNode};

/// Which end of a link somebody is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    Sender,
    Receiver,
}

impl Role {
    pub fn other(self) -> Self {
        match self {
            Self::Sender => Self::Receiver,
            Self::Receiver => Self::Sender,
        }
    }
}

/// Whether a sender settles before it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SenderSettle {
    Unsettled,
    Settled,
    #[default]
    Mixed,
}

/// Whether a receiver settles by itself (first) or waits for the sender to do so (second).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReceiverSettle {
    #[default]
    First,
    Second,
}

impl SenderSettle {
    fn number(self) -> u8 {
        match self {
            Self::Unsettled => 0,
            Self::Settled => 1,
            Self::Mixed => 2,
        }
    }

    fn of(number: u8) -> Option<Self> {
        [Self::Unsettled, Self::Settled, Self::Mixed].into_iter().find(|mode| mode.number() == number)
    }
}

impl ReceiverSettle {
    fn number(self) -> u8 {
        match self {
            Self::First => 0,
            Self::Second => 1,
        }
    }

    fn of(number: u8) -> Option<Self> {
        [Self::First, Self::Second].into_iter().find(|mode| mode.number() == number)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    pub container_id: String,
    pub hostname: Option<String>,
    pub max_frame_size: u32,
    pub channel_max: u16,
    /// Milliseconds.
    pub idle_time_out: Option<u32>,
    pub offered_capabilities: Vec<Symbol>,
    pub desired_capabilities: Vec<Symbol>,
    pub properties: Map,
}

impl Default for Open {
    fn default() -> Self {
        Self {
            container_id: String::new(),
            hostname: None,
            max_frame_size: u32::MAX,
            channel_max: u16::MAX,
            idle_time_out: None,
            offered_capabilities: Vec::new(),
            desired_capabilities: Vec::new(),
            properties: Map::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    pub remote_channel: Option<u16>,
    pub next_outgoing_id: u32,
    pub incoming_window: u32,
    pub outgoing_window: u32,
    pub handle_max: u32,
    pub offered_capabilities: Vec<Symbol>,
    pub desired_capabilities: Vec<Symbol>,
    pub properties: Map,
}

impl Default for Begin {
    fn default() -> Self {
        Self {
            remote_channel: None,
            next_outgoing_id: 0,
            incoming_window: 0,
            outgoing_window: 0,
            handle_max: u32::MAX,
            offered_capabilities: Vec::new(),
            desired_capabilities: Vec::new(),
            properties: Map::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attach {
    pub name: String,
    pub handle: u32,
    /// Of the one who writes the frame.
    pub role: Role,
    pub sender_settle: SenderSettle,
    pub receiver_settle: ReceiverSettle,
    pub source: Option<Source>,
    pub target: Option<Target>,
    pub unsettled: Map,
    pub incomplete_unsettled: bool,
    pub initial_delivery_count: Option<u32>,
    /// None and 0 both mean that there is no limit.
    pub max_message_size: Option<u64>,
    pub offered_capabilities: Vec<Symbol>,
    pub desired_capabilities: Vec<Symbol>,
    pub properties: Map,
}

impl Attach {
    pub fn new(name: impl Into<String>, handle: u32, role: Role) -> Self {
        Self {
            name: name.into(),
            handle,
            role,
            sender_settle: SenderSettle::default(),
            receiver_settle: ReceiverSettle::default(),
            source: None,
            target: None,
            unsettled: Map::new(),
            incomplete_unsettled: false,
            initial_delivery_count: None,
            max_message_size: None,
            offered_capabilities: Vec::new(),
            desired_capabilities: Vec::new(),
            properties: Map::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flow {
    pub next_incoming_id: Option<u32>,
    pub incoming_window: u32,
    pub next_outgoing_id: u32,
    pub outgoing_window: u32,
    pub handle: Option<u32>,
    pub delivery_count: Option<u32>,
    pub link_credit: Option<u32>,
    pub available: Option<u32>,
    pub drain: bool,
    pub echo: bool,
    pub properties: Map,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transfer {
    pub handle: u32,
    pub delivery_id: Option<u32>,
    pub delivery_tag: Option<Bytes>,
    pub message_format: Option<u32>,
    pub settled: Option<bool>,
    pub more: bool,
    pub receiver_settle: Option<ReceiverSettle>,
    pub state: Option<DeliveryState>,
    pub resume: bool,
    pub aborted: bool,
    pub batchable: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disposition {
    /// Of the one who writes the frame.
    pub role: Role,
    pub first: u32,
    pub last: Option<u32>,
    pub settled: bool,
    pub state: Option<DeliveryState>,
    pub batchable: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Detach {
    pub handle: u32,
    pub closed: bool,
    pub error: Option<AmqpError>,
}

/// One frame's body, without the payload that may follow it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Performative {
    /// Boxed, as is [`Performative::Attach`]: rare and large beside a transfer.
    Open(Box<Open>),
    Begin(Begin),
    Attach(Box<Attach>),
    Flow(Flow),
    Transfer(Transfer),
    Disposition(Disposition),
    Detach(Detach),
    End(Option<AmqpError>),
    Close(Option<AmqpError>),
}

impl Performative {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Open(_) => "open",
            Self::Begin(_) => "begin",
            Self::Attach(_) => "attach",
            Self::Flow(_) => "flow",
            Self::Transfer(_) => "transfer",
            Self::Disposition(_) => "disposition",
            Self::Detach(_) => "detach",
            Self::End(_) => "end",
            Self::Close(_) => "close",
        }
    }

    /// Reads one; the reader is at the payload then.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let at = reader.position();
        let code = code_of(reader, "frame")?;
        fields::list(reader, "frame", |fields| {
            Ok(match code {
                descriptors::OPEN => Self::Open(Box::new(Open {
                    container_id: fields.string("container-id")?.unwrap_or_default(),
                    hostname: fields.string("hostname")?,
                    max_frame_size: fields.u32("max-frame-size")?.unwrap_or(u32::MAX),
                    channel_max: fields.u16("channel-max")?.unwrap_or(u16::MAX),
                    idle_time_out: fields.u32("idle-time-out")?,
                    offered_capabilities: {
                        // Locales are between the peer and its users.
                        fields.skip()?;
                        fields.skip()?;
                        fields.symbols("offered-capabilities")?
                    },
                    desired_capabilities: fields.symbols("desired-capabilities")?,
                    properties: fields.map("properties")?,
                })),
                descriptors::BEGIN => Self::Begin(Begin {
                    remote_channel: fields.u16("remote-channel")?,
                    next_outgoing_id: fields.required_u32("next-outgoing-id")?,
                    incoming_window: fields.required_u32("incoming-window")?,
                    outgoing_window: fields.required_u32("outgoing-window")?,
                    handle_max: fields.u32("handle-max")?.unwrap_or(u32::MAX),
                    offered_capabilities: fields.symbols("offered-capabilities")?,
                    desired_capabilities: fields.symbols("desired-capabilities")?,
                    properties: fields.map("properties")?,
                }),
                descriptors::ATTACH => Self::Attach(Box::new(Attach {
                    name: match fields.string("name")? {
                        Some(name) => name,
                        None => return fields.missing("name"),
                    },
                    handle: fields.required_u32("handle")?,
                    role: fields.role()?,
                    sender_settle: fields.choice("snd-settle-mode", SenderSettle::of)?.unwrap_or_default(),
                    receiver_settle: fields.choice("rcv-settle-mode", ReceiverSettle::of)?.unwrap_or_default(),
                    source: fields.source()?,
                    target: fields.target()?,
                    unsettled: fields.map("unsettled")?,
                    incomplete_unsettled: fields.flag("incomplete-unsettled")?,
                    initial_delivery_count: fields.u32("initial-delivery-count")?,
                    max_message_size: fields.u64("max-message-size")?,
                    offered_capabilities: fields.symbols("offered-capabilities")?,
                    desired_capabilities: fields.symbols("desired-capabilities")?,
                    properties: fields.map("properties")?,
                })),
                descriptors::FLOW => Self::Flow(Flow {
                    next_incoming_id: fields.u32("next-incoming-id")?,
                    incoming_window: fields.required_u32("incoming-window")?,
                    next_outgoing_id: fields.required_u32("next-outgoing-id")?,
                    outgoing_window: fields.required_u32("outgoing-window")?,
                    handle: fields.u32("handle")?,
                    delivery_count: fields.u32("delivery-count")?,
                    link_credit: fields.u32("link-credit")?,
                    available: fields.u32("available")?,
                    drain: fields.flag("drain")?,
                    echo: fields.flag("echo")?,
                    properties: fields.map("properties")?,
                }),
                descriptors::TRANSFER => Self::Transfer(Transfer {
                    handle: fields.required_u32("handle")?,
                    delivery_id: fields.u32("delivery-id")?,
                    delivery_tag: fields.binary("delivery-tag")?,
                    message_format: fields.u32("message-format")?,
                    settled: fields.bool("settled")?,
                    more: fields.flag("more")?,
                    receiver_settle: fields.choice("rcv-settle-mode", ReceiverSettle::of)?,
                    state: fields.state()?,
                    resume: fields.flag("resume")?,
                    aborted: fields.flag("aborted")?,
                    batchable: fields.flag("batchable")?,
                }),
                descriptors::DISPOSITION => Self::Disposition(Disposition {
                    role: fields.role()?,
                    first: fields.required_u32("first")?,
                    last: fields.u32("last")?,
                    settled: fields.flag("settled")?,
                    state: fields.state()?,
                    batchable: fields.flag("batchable")?,
                }),
                descriptors::DETACH => Self::Detach(Detach {
                    handle: fields.required_u32("handle")?,
                    closed: fields.flag("closed")?,
                    error: fields.error()?,
                }),
                descriptors::END => Self::End(fields.error()?),
                descriptors::CLOSE => Self::Close(fields.error()?),
                _ => return Err(DecodeError { at, problem: Problem::UnknownDescriptor { what: "frame" } }),
            })
        })
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Open(open) => write::composite(out, descriptors::OPEN, 10, |out| {
                encode::string(out, &open.container_id);
                write::string(out, open.hostname.as_deref());
                encode::uint(out, open.max_frame_size);
                encode::ushort(out, open.channel_max);
                write::u32(out, open.idle_time_out);
                encode::null(out);
                encode::null(out);
                write::symbols(out, &open.offered_capabilities);
                write::symbols(out, &open.desired_capabilities);
                write::map(out, &open.properties);
            }),
            Self::Begin(begin) => write::composite(out, descriptors::BEGIN, 8, |out| {
                write::or_null(out, begin.remote_channel, encode::ushort);
                encode::uint(out, begin.next_outgoing_id);
                encode::uint(out, begin.incoming_window);
                encode::uint(out, begin.outgoing_window);
                encode::uint(out, begin.handle_max);
                write::symbols(out, &begin.offered_capabilities);
                write::symbols(out, &begin.desired_capabilities);
                write::map(out, &begin.properties);
            }),
            Self::Attach(attach) => write::composite(out, descriptors::ATTACH, 14, |out| {
                encode::string(out, &attach.name);
                encode::uint(out, attach.handle);
                encode::boolean(out, attach.role == Role::Receiver);
                encode::ubyte(out, attach.sender_settle.number());
                encode::ubyte(out, attach.receiver_settle.number());
                write::or_null(out, attach.source.as_ref(), |out, source| source.write(out));
                write::or_null(out, attach.target.as_ref(), |out, target| target.write(out));
                write::map(out, &attach.unsettled);
                encode::boolean(out, attach.incomplete_unsettled);
                write::u32(out, attach.initial_delivery_count);
                write::or_null(out, attach.max_message_size, encode::ulong);
                write::symbols(out, &attach.offered_capabilities);
                write::symbols(out, &attach.desired_capabilities);
                write::map(out, &attach.properties);
            }),
            Self::Flow(flow) => flow.write(out),
            Self::Transfer(transfer) => transfer.write(out),
            Self::Disposition(disposition) => disposition.write(out),
            Self::Detach(detach) => write::composite(out, descriptors::DETACH, 3, |out| {
                encode::uint(out, detach.handle);
                encode::boolean(out, detach.closed);
                write::error(out, detach.error.as_ref());
            }),
            Self::End(error) => write::composite(out, descriptors::END, 1, |out| write::error(out, error.as_ref())),
            Self::Close(error) => {
                write::composite(out, descriptors::CLOSE, 1, |out| write::error(out, error.as_ref()));
            }
        }
    }
}

impl Flow {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        write::composite(out, descriptors::FLOW, 11, |out| {
            write::u32(out, self.next_incoming_id);
            encode::uint(out, self.incoming_window);
            encode::uint(out, self.next_outgoing_id);
            encode::uint(out, self.outgoing_window);
            write::u32(out, self.handle);
            write::u32(out, self.delivery_count);
            write::u32(out, self.link_credit);
            write::u32(out, self.available);
            encode::boolean(out, self.drain);
            encode::boolean(out, self.echo);
            write::map(out, &self.properties);
        });
    }
}

impl Transfer {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        write::composite(out, descriptors::TRANSFER, 11, |out| {
            encode::uint(out, self.handle);
            write::u32(out, self.delivery_id);
            write::binary(out, self.delivery_tag.as_deref());
            write::u32(out, self.message_format);
            write::boolean(out, self.settled);
            encode::boolean(out, self.more);
            write::or_null(out, self.receiver_settle, |out, mode| encode::ubyte(out, mode.number()));
            write::state(out, self.state.as_ref());
            encode::boolean(out, self.resume);
            encode::boolean(out, self.aborted);
            encode::boolean(out, self.batchable);
        });
    }
}

impl Disposition {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        write::composite(out, descriptors::DISPOSITION, 6, |out| {
            encode::boolean(out, self.role == Role::Receiver);
            encode::uint(out, self.first);
            write::u32(out, self.last);
            encode::boolean(out, self.settled);
            write::state(out, self.state.as_ref());
            encode::boolean(out, self.batchable);
        });
    }
}

#[cfg(test)]
mod tests;
