//! A peer that says whatever a test wants, and reads what the connection answers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};

use crate::{
    connection::{Accept, Config, Connection, Event, LinkKey},
    decode::Reader,
    frame::{self, Kind, Layer},
    performative::{
        Attach, Begin, Disposition, Flow, Open, Performative, ReceiverSettle, Role, Sasl, Source, Target, Transfer,
    },
    value::Symbol,
};

/// What came from the server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Said {
    Header([u8; 8]),
    Sasl(Sasl),
    Frame(u16, Performative, Bytes),
    Empty,
}

pub(crate) struct Client {
    pub(crate) server: Connection,
    pub(crate) now: Instant,
    /// Bytes of the server that were not read.
    heard: BytesMut,
    headers: usize,
}

impl Client {
    pub(crate) fn new(config: Config) -> Self {
        let now = Instant::now();
        Self { server: Connection::new(Arc::new(config), now), now, heard: BytesMut::new(), headers: 0 }
    }

    /// Logged in as anonymous, open, with one session on channel 0.
    pub(crate) fn ready(config: Config) -> Self {
        Self::ready_with(config, Open { container_id: "client".to_owned(), ..Open::default() })
    }

    pub(crate) fn ready_with(config: Config, open: Open) -> Self {
        let mut client = Self::new(config);
        client.login();
        client.say(0, &Performative::Open(Box::new(open)));
        client.say(0, &Performative::Begin(begin()));
        let events = client.events();
        assert!(matches!(events.as_slice(), [Event::Opened { .. }, Event::SessionBegun { .. }]), "{events:?}");
        let said = client.said();
        assert!(
            matches!(
                said.as_slice(),
                [Said::Frame(0, Performative::Open(_), _), Said::Frame(0, Performative::Begin(_), _)]
            ),
            "{said:?}"
        );
        client
    }

    pub(crate) fn login(&mut self) {
        self.write(&Layer::Sasl.header());
        self.say_sasl(&init("ANONYMOUS"));
        assert!(matches!(self.events().as_slice(), [Event::SaslInit { .. }]));
        self.server.sasl_accept().expect("a login waits");
        self.write(&Layer::Amqp.header());
        let said = self.said();
        assert!(
            matches!(
                said.as_slice(),
                [Said::Header(_), Said::Sasl(Sasl::Mechanisms(_)), Said::Sasl(Sasl::Outcome { .. }), Said::Header(_)]
            ),
            "{said:?}"
        );
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.server.handle_input(&mut BytesMut::from(bytes), self.now);
    }

    pub(crate) fn say_sasl(&mut self, sasl: &Sasl) {
        let mut out = Vec::new();
        frame::write_sasl(&mut out, sasl);
        self.write(&out);
    }

    pub(crate) fn say(&mut self, channel: u16, performative: &Performative) {
        self.say_with(channel, performative, b"");
    }

    pub(crate) fn say_with(&mut self, channel: u16, performative: &Performative, payload: &[u8]) {
        let mut out = Vec::new();
        frame::write_amqp(&mut out, channel, performative, payload);
        self.write(&out);
    }

    pub(crate) fn transfer(&mut self, transfer: Transfer, payload: &[u8]) {
        self.say_with(0, &Performative::Transfer(transfer), payload);
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.server.poll_event()).collect()
    }

    /// The one event that is there.
    pub(crate) fn event(&mut self) -> Event {
        let mut events = self.events();
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    /// Everything that the server has written since the last time.
    pub(crate) fn said(&mut self) -> Vec<Said> {
        let mut out = Vec::new();
        self.server.poll_output(&mut out, self.now);
        self.heard.extend_from_slice(&out);
        let mut said = Vec::new();
        loop {
            if self.heard.starts_with(b"AMQP") {
                said.push(Said::Header(frame::next_header(&mut self.heard).expect("whole headers are written")));
                self.headers += 1;
                continue;
            }
            let Some(frame) = frame::next(&mut self.heard, u32::MAX).expect("sound frames are written") else { break };
            let mut reader = Reader::new(&frame.body);
            said.push(match frame.kind {
                _ if frame.body.is_empty() => Said::Empty,
                Kind::Sasl => Said::Sasl(Sasl::read(&mut reader).expect("readable")),
                Kind::Amqp => {
                    let performative = Performative::read(&mut reader).expect("readable");
                    Said::Frame(frame.channel, performative, reader.rest())
                }
            });
        }
        assert!(self.heard.is_empty(), "whole frames are written");
        said
    }

    /// The one frame that the server has written.
    pub(crate) fn frame(&mut self) -> Performative {
        let mut said = self.said();
        assert_eq!(said.len(), 1, "{said:?}");
        match said.remove(0) {
            Said::Frame(_, performative, _) => performative,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn frames(&mut self) -> Vec<(Performative, Bytes)> {
        self.said()
            .into_iter()
            .map(|said| match said {
                Said::Frame(_, performative, payload) => (performative, payload),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    /// A link on which the client sends; taken with so much credit, and messages of up to 1 MiB.
    pub(crate) fn sender(&mut self, handle: u32, credit: u32) -> LinkKey {
        self.say(0, &attach(Role::Sender, handle));
        let Event::AttachRequested { link, attach } = self.event() else { panic!("an attach") };
        let accept = Accept { credit, max_message_size: 1 << 20, ..Accept::mirror(&attach) };
        self.server.accept_attach(link, accept).expect("there");
        self.said();
        link
    }

    /// A link on which the client receives, settling second.
    pub(crate) fn receiver(&mut self, handle: u32, credit: u32) -> LinkKey {
        self.say(0, &attach(Role::Receiver, handle));
        let Event::AttachRequested { link, attach } = self.event() else { panic!("an attach") };
        self.server.accept_attach(link, Accept::mirror(&attach)).expect("there");
        if credit > 0 {
            self.say(0, &Performative::Flow(credit_flow(handle, 0, credit)));
            assert_eq!(self.event(), Event::CreditChanged { link, credit, drain: false });
        }
        self.said();
        link
    }

    pub(crate) fn dispose(&mut self, disposition: Disposition) {
        self.say(0, &Performative::Disposition(disposition));
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        self.now += time;
        self.server.handle_timeout(self.now);
    }
}

pub(crate) fn init(mechanism: &'static str) -> Sasl {
    Sasl::Init { mechanism: Symbol::from_static(mechanism), response: None, hostname: Some("localhost".to_owned()) }
}

pub(crate) fn begin() -> Begin {
    Begin { incoming_window: 1000, outgoing_window: 1000, ..Begin::default() }
}

pub(crate) fn attach(role: Role, handle: u32) -> Performative {
    let mut attach = Attach::new(format!("{role:?}-{handle}"), handle, role);
    attach.source = Some(Source::at("q"));
    attach.target = Some(Target::at("q"));
    match role {
        Role::Sender => attach.initial_delivery_count = Some(0),
        Role::Receiver => attach.receiver_settle = ReceiverSettle::Second,
    }
    Performative::Attach(Box::new(attach))
}

pub(crate) fn credit_flow(handle: u32, delivery_count: u32, credit: u32) -> Flow {
    Flow {
        next_incoming_id: Some(0),
        incoming_window: 1000,
        outgoing_window: 1000,
        handle: Some(handle),
        delivery_count: Some(delivery_count),
        link_credit: Some(credit),
        ..Flow::default()
    }
}

pub(crate) fn whole(handle: u32, id: u32) -> Transfer {
    Transfer {
        handle,
        delivery_id: Some(id),
        delivery_tag: Some(Bytes::copy_from_slice(&id.to_be_bytes())),
        message_format: Some(0),
        settled: Some(false),
        ..Transfer::default()
    }
}
