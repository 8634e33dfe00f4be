//! One connection of a server: bytes in, events out; commands in, bytes out. No socket and no clock.
//!
//! Start at [`Connection`]; then [`Event`] is what it tells and `command` what it is told. Inside, `input` takes frames apart and sends
//! them on, `links` and `transfers` hold the rules of the standard, `session` and `link` the counters, `output` the bytes to be written.

#[cfg(any(test, feature = "fuzzing"))]
mod bounds;
mod command;
mod config;
mod event;
mod input;
mod keys;
mod link;
mod links;
mod output;
mod session;
mod timer;
mod transfers;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use bytes::BytesMut;

use crate::performative::{AmqpError, Role};
pub use config::{Config, MAX_DELIVERY_TAG, MAX_SASL_FRAME, MIN_IDLE_TIME_OUT, SILENCE_FACTOR};
pub use event::{Accept, CommandError, DeliverError, Delivery, Disposed, EndedBy, Event, Outgoing};
pub use keys::{IncomingKey, LinkKey, OutgoingKey, SessionKey};
use output::Output;
use session::Session;
use timer::Timers;

/// The state of one connection, from its first byte on.
///
/// - `handle_input`, `handle_timeout`, `handle_disconnect`: something has happened.
/// - Commands (`accept_attach`, `deliver`, `settle_outgoing`, …): the application wants something. They take effect at once and never wait.
/// - After either: [`poll_event`](Self::poll_event) until it gives nothing, then [`poll_output`](Self::poll_output) and write that to the
///   socket, then [`poll_timeout`](Self::poll_timeout) and call `handle_timeout` no later than that. When
///   [`is_finished`](Self::is_finished) and all output is written, close the socket.
/// - Getters change nothing.
///
/// `now` must not go backwards. What a peer can make this hold is bounded by `Config` and by the credit that the application gives, but for
/// the output: while the peer does not read, the application must look at [`output_len`](Self::output_len) and stop both taking messages to
/// send and reading from the socket, since answers are output too.
///
/// *Invariants:* nothing that a peer sends makes it panic; until a login has succeeded nothing but a login is listened to; how the input
/// is cut into pieces changes nothing.
#[derive(Debug)]
pub struct Connection {
    config: Arc<Config>,
    phase: Phase,
    now: Instant,
    timers: Timers,
    input: BytesMut,
    output: Output,
    events: VecDeque<Event>,
    sessions: BTreeMap<u16, Session>,
    /// Channels whose session the peer has ended. The Python SDK says a word or two on them afterwards.
    ended: BTreeSet<u16>,
    /// Which link has a name. The same name in the same direction is the same link, wherever on the connection it is attached.
    names: HashMap<(Role, Arc<str>), LinkKey>,
    serial: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing but the first protocol header is expected.
    Header,
    /// Mechanisms were offered.
    SaslInit,
    /// The application is asked about a login; nothing is read.
    SaslAsked,
    /// A challenge was sent.
    SaslResponse,
    /// The login has succeeded: the protocol header comes once more.
    HeaderAfterSasl,
    /// The headers were exchanged.
    Open,
    Running,
    /// We have sent close: everything but the peer's close is passed over.
    Closing,
    Finished,
}

/// What the peer has done wrong, by how much of the connection it costs.
#[derive(Debug)]
enum Fault {
    Connection(AmqpError),
    Session(u16, AmqpError),
    Link(LinkKey, AmqpError),
}

impl Connection {
    pub fn new(config: Arc<Config>, now: Instant) -> Self {
        Self {
            timers: Timers::new(now, &config),
            config,
            phase: Phase::Header,
            now,
            input: BytesMut::new(),
            output: Output::new(),
            events: VecDeque::new(),
            sessions: BTreeMap::new(),
            ended: BTreeSet::new(),
            names: HashMap::new(),
            serial: 0,
        }
    }

    /// What the application should know next.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Moves what is to be written to the end of `into`; the answer is how many bytes that were. An empty `into` is exchanged for the
    /// buffer itself, so that nothing is copied.
    pub fn poll_output(&mut self, into: &mut Vec<u8>, now: Instant) -> usize {
        self.now = now;
        let len = self.output.take(into);
        if len > 0 {
            self.timers.sent(now);
        }
        len
    }

    /// Bytes that wait for [`poll_output`](Self::poll_output).
    pub fn output_len(&self) -> usize {
        self.output.len()
    }

    /// When to call `handle_timeout` at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Finished => None,
            _ => self.timers.next(),
        }
    }

    /// Whether input would be read now. It is not while the application is asked about a login, and never again at the end.
    pub fn wants_input(&self) -> bool {
        !matches!(self.phase, Phase::SaslAsked | Phase::Finished)
    }

    /// Nothing more will come and nothing more can be done: write the output that is left and close the socket.
    pub fn is_finished(&self) -> bool {
        self.phase == Phase::Finished
    }

    /// Whether the peer and we have opened it and neither has closed it.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Running
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn session(&self, key: SessionKey) -> Option<&Session> {
        self.sessions.get(&key.channel).filter(|session| session.key == key && !session.ending)
    }

    fn session_mut(&mut self, key: SessionKey) -> Option<&mut Session> {
        self.sessions.get_mut(&key.channel).filter(|session| session.key == key && !session.ending)
    }

    fn link(&self, key: LinkKey) -> Option<&link::Link> {
        self.session(key.session)?.links.get(&key.handle).filter(|link| link.key == key)
    }
}

#[cfg(test)]
pub(crate) mod tests;
