//! What a connection tells its application, what the application answers with, and why a command may fail.

use std::sync::Arc;

use bytes::Bytes;

use super::keys::{IncomingKey, LinkKey, OutgoingKey, SessionKey};
use crate::{
    performative::{AmqpError, Attach, DeliveryState, Open, ReceiverSettle, SenderSettle, Source, Target},
    value::{Map, Symbol},
};

/// Who ended something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedBy {
    Peer,
    /// We did: a command, an error of the peer against the protocol, or a time-out.
    Us,
    /// The bytes ended without a word.
    Disconnect,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A login. Answer with `sasl_accept`, `sasl_refuse` or `sasl_challenge`; until then the connection reads nothing.
    SaslInit { mechanism: Symbol, response: Option<Bytes>, hostname: Option<String> },
    /// What the peer says to a challenge. Answer as to a login.
    SaslResponse { response: Bytes },
    /// The connection is open. Nothing to answer.
    Opened { open: Box<Open> },
    /// A session is there. Nothing to answer.
    SessionBegun { session: SessionKey },
    /// The peer wants a link. Answer with `accept_attach` or `refuse_attach`, at any time.
    ///
    /// `attach.role` is the peer's: a receiver wants to be sent messages.
    AttachRequested { link: LinkKey, attach: Arc<Attach> },
    /// A whole message. When it is not settled, answer with `settle_incoming`.
    Delivery(Delivery),
    /// The peer, as a receiver, has changed what it wants to be sent. With `drain`, send what is there now and then call `drained`.
    CreditChanged { link: LinkKey, credit: u32, drain: bool },
    /// A session has room again after [`deliverable`](super::Connection::deliverable) was 0 for its sake.
    WindowOpened { session: SessionKey },
    /// The peer, as a receiver, says what has become of deliveries, in the order of their ids. When it has not settled them, answer with
    /// `settle_outgoing` for each; when it has, they are forgotten.
    Disposition { deliveries: Vec<Disposed>, settled: bool, state: Option<DeliveryState> },
    /// The peer, as a sender, has settled deliveries that we had not answered. They are forgotten.
    Withdrawn { deliveries: Vec<IncomingKey> },
    /// A link is gone, and all its deliveries with it.
    Detached { link: LinkKey, by: EndedBy, error: Option<AmqpError> },
    /// A session is gone, and all its links with it, of which nothing more is said.
    SessionEnded { session: SessionKey, by: EndedBy, error: Option<AmqpError> },
    /// The connection is over, and all its sessions with it. The last event. Bytes may still have to be written: see
    /// [`is_finished`](super::Connection::is_finished).
    Closed { by: EndedBy, error: Option<AmqpError> },
}

/// A message that the peer sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    pub link: LinkKey,
    pub key: IncomingKey,
    pub tag: Bytes,
    /// The sender does not want to hear of it.
    pub settled: bool,
    pub format: u32,
    /// Shares memory with what was read from the socket; copy it where it is kept for long.
    pub payload: Bytes,
    /// What the sender says of it already; a transactional state is to be refused.
    pub state: Option<DeliveryState>,
}

/// One of our deliveries that the peer speaks of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disposed {
    pub link: LinkKey,
    pub key: OutgoingKey,
    pub tag: Bytes,
}

/// How a link is accepted.
#[derive(Debug, Clone, Default)]
pub struct Accept {
    pub source: Option<Source>,
    pub target: Option<Target>,
    /// As the peer asked, when none is given.
    pub sender_settle: Option<SenderSettle>,
    pub receiver_settle: Option<ReceiverSettle>,
    pub properties: Map,
    pub offered_capabilities: Vec<Symbol>,
    /// When the peer sends: the longest message, in bytes of its encoding. Must be given, since on the wire 0 means that there is no limit.
    /// When the peer receives: the longest message that it is sent, whatever it has announced; 0 takes it at its word. The Python SDK
    /// announces 1 MiB and takes any.
    pub max_message_size: u64,
    /// When the peer sends: messages that may be under way or unanswered at a time. Topped up by itself; see
    /// [`set_credit`](super::Connection::set_credit).
    pub credit: u32,
}

impl Accept {
    /// With source and target as the peer named them.
    pub fn mirror(attach: &Attach) -> Self {
        Self { source: attach.source.clone(), target: attach.target.clone(), ..Self::default() }
    }
}

/// A message to send.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// At most [`MAX_DELIVERY_TAG`](super::MAX_DELIVERY_TAG) bytes, unique among the link's unsettled deliveries.
    pub tag: Bytes,
    pub payload: Bytes,
    pub format: u32,
    pub settled: bool,
}

/// Why a command was not carried out. Nothing has changed then, unless the variant says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Usual: the peer may end anything at any time.
    #[error("what the key names is gone")]
    Gone,
    /// A mistake of the caller.
    #[error("not possible now: {0}")]
    State(&'static str),
    /// The link has been refused in its place.
    #[error("the answer does not fit into the peer's max-frame-size")]
    FrameTooLarge,
}

/// Why a message was not taken for sending. Nothing has changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DeliverError {
    #[error("the link is gone")]
    Gone,
    #[error("the link is not one to send on, or not accepted yet")]
    NotSending,
    #[error("the receiver has given no credit")]
    NoCredit,
    #[error("a delivery-tag of {0} bytes")]
    TagTooLong(usize),
    #[error("the receiver takes messages of up to {max} bytes")]
    TooLarge { max: u64 },
}
