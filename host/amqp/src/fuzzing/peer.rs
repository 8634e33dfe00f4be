//! Connections that hear anything.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};

use crate::{
    connection::{Accept, Config, Connection, Event, LinkKey, Outgoing},
    decode::Reader,
    frame::{self, Kind, Layer},
    performative::{
        AmqpError, Attach, Begin, DeliveryState, Flow, Open, Performative, ReceiverSettle, Role, Sasl, Source, Target,
    },
    value::Symbol,
};

/// Small, so that random input reaches the limits.
fn config() -> Arc<Config> {
    Arc::new(Config {
        max_frame_size: 4096,
        channel_max: 3,
        handle_max: 7,
        max_links: 12,
        incoming_window: 8,
        ..Config::default()
    })
}

const MAX_MESSAGE: u64 = 2048;
const CREDIT: u32 = 4;

/// Everything that a client writes up to two attached links, the first of which sends.
fn start() -> Vec<u8> {
    let mut out = Layer::Sasl.header().to_vec();
    let init = Sasl::Init { mechanism: Symbol::from_static("ANONYMOUS"), response: None, hostname: None };
    frame::write_sasl(&mut out, &init);
    out.extend_from_slice(&Layer::Amqp.header());
    let open = Open { container_id: "c".to_owned(), max_frame_size: 512, ..Open::default() };
    let begin = Begin { incoming_window: 5, outgoing_window: 5, ..Begin::default() };
    let mut say = |performative: &Performative| {
        frame::write_amqp(&mut out, 0, performative, b"");
    };
    say(&Performative::Open(Box::new(open)));
    say(&Performative::Begin(begin));
    for (handle, role) in [(0, Role::Sender), (1, Role::Receiver)] {
        let mut attach = Attach::new(format!("link-{handle}"), handle, role);
        attach.source = Some(Source::at("q"));
        attach.target = Some(Target::at("q"));
        attach.receiver_settle = ReceiverSettle::Second;
        say(&Performative::Attach(Box::new(attach)));
    }
    let flow = Flow { incoming_window: 5, handle: Some(1), link_credit: Some(9), ..Flow::default() };
    say(&Performative::Flow(flow));
    out
}

/// An application that takes everything and answers at once, and checks what it is told.
struct Application {
    server: Connection,
    now: Instant,
    receivers: Vec<LinkKey>,
    over: bool,
    written: BytesMut,
}

impl Application {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            server: Connection::new(config(), now),
            now,
            receivers: Vec::new(),
            over: false,
            written: BytesMut::new(),
        }
    }

    fn hear(&mut self, bytes: &[u8]) {
        self.server.handle_input(&mut BytesMut::from(bytes), self.now);
        self.check();
    }

    /// Whatever is answered to an event may fail, since the event may be older than what the peer has said since; nothing else may happen.
    fn answer(&mut self) {
        while let Some(event) = self.server.poll_event() {
            assert!(!self.over, "nothing is told after the end: {event:?}");
            match event {
                Event::SaslInit { .. } | Event::SaslResponse { .. } => self.server.sasl_accept().expect("asked"),
                Event::AttachRequested { link, attach } => {
                    if attach.properties.len() % 3 == 2 {
                        let error = AmqpError::new(Symbol::from_static("x"), "no");
                        let _may_be_gone = self.server.refuse_attach(link, &error);
                        continue;
                    }
                    let accept = Accept { credit: CREDIT, max_message_size: MAX_MESSAGE, ..Accept::mirror(&attach) };
                    if self.server.accept_attach(link, accept).is_ok() && attach.role == Role::Receiver {
                        self.receivers.push(link);
                    }
                }
                Event::Delivery(delivery) => {
                    assert!(delivery.payload.len() as u64 <= MAX_MESSAGE);
                    if !delivery.settled && delivery.payload.len() % 4 != 3 {
                        let _may_be_gone = self.server.settle_incoming(delivery.key, &DeliveryState::Accepted);
                    }
                }
                Event::CreditChanged { link, credit, drain } => {
                    for n in 0..credit.min(3) {
                        self.deliver(link, n as usize * 700);
                    }
                    if drain {
                        let _may_be_gone = self.server.drained(link);
                    }
                }
                Event::WindowOpened { .. } => {
                    self.receivers.clone().into_iter().for_each(|link| self.deliver(link, 10));
                }
                Event::Disposition { deliveries, settled, state } => {
                    assert!(!deliveries.is_empty());
                    for disposed in deliveries {
                        let answered = self.server.settle_outgoing(disposed.key, state.as_ref());
                        assert!(answered.is_err() || !settled, "what is settled is forgotten");
                    }
                }
                Event::Closed { .. } => self.over = true,
                Event::Opened { .. }
                | Event::SessionBegun { .. }
                | Event::Withdrawn { .. }
                | Event::Detached { .. }
                | Event::SessionEnded { .. } => {}
            }
        }
        self.check();
    }

    fn deliver(&mut self, link: LinkKey, len: usize) {
        let tag = Bytes::from_static(b"tag");
        let message = Outgoing { tag, payload: Bytes::from(vec![1; len]), format: 0, settled: len == 10 };
        let could = self.server.deliverable(link);
        let delivered = self.server.deliver(link, message);
        assert!(delivered.is_ok() || could == 0, "{delivered:?}");
    }

    fn check(&mut self) {
        self.server.assert_bounded(CREDIT, MAX_MESSAGE);
        let mut out = Vec::new();
        self.server.poll_output(&mut out, self.now);
        self.written.extend_from_slice(&out);
    }

    /// All that was written are whole frames that can be read, none larger than the peer takes.
    fn check_written(&mut self) {
        loop {
            if self.written.starts_with(b"AMQP") {
                frame::next_header(&mut self.written);
                continue;
            }
            let Some(frame) = frame::next(&mut self.written, u32::MAX).expect("sound") else { break };
            let mut reader = Reader::new(&frame.body);
            match frame.kind {
                _ if frame.body.is_empty() => {}
                Kind::Sasl => drop(Sasl::read(&mut reader).expect("readable")),
                Kind::Amqp => drop(Performative::read(&mut reader).expect("readable")),
            }
        }
        assert!(self.written.is_empty(), "whole frames");
    }
}

/// Any input in any pieces, with an application that answers everything. The first byte says how the conversation begins: as any bytes at
/// all, or after a start that gets everything open.
pub fn conversation(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let mut application = Application::new();
    if first & 1 == 0 {
        application.hear(&start());
        application.answer();
        application.answer();
        assert_eq!(application.receivers.len(), 1, "everything is open");
    }
    let piece = usize::from(first >> 1).max(1);
    for bytes in rest.chunks(piece) {
        application.hear(bytes);
        application.answer();
        application.now += Duration::from_millis(1);
        application.server.handle_timeout(application.now);
    }
    application.answer();
    application.now += Duration::from_secs(1000);
    application.server.handle_timeout(application.now);
    application.answer();
    application.server.handle_disconnect(application.now);
    application.answer();
    assert!(application.over && application.server.is_finished(), "the end is told");
    application.check_written();
}

/// The same input in other pieces gives the same events and the same output. The first byte says how large the pieces are.
pub fn pieces(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let run = |piece: usize| {
        let mut application = Application::new();
        application.hear(&start());
        application.answer();
        application.answer();
        let before = application.written.len();
        let mut events = Vec::new();
        for bytes in rest.chunks(piece.max(1)) {
            application.hear(bytes);
            events.extend(std::iter::from_fn(|| application.server.poll_event()));
        }
        (events, application.written.split_off(before))
    };
    let whole = run(rest.len());
    let cut = run(usize::from(*first % 64));
    assert_eq!(whole, cut);
}
