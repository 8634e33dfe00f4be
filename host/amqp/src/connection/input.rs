//! What happened outside: bytes, time, the end of the bytes. Takes frames apart and hands them to the rules.

use std::time::Instant;

use bytes::BytesMut;

use super::{
    Connection, Fault, Phase,
    config::{MAX_SASL_FRAME, MIN_IDLE_TIME_OUT},
    event::{EndedBy, Event},
    keys::SessionKey,
    session::Session,
    timer::Timer,
};
use crate::{
    condition,
    decode::{DecodeError, Reader},
    frame::{self, Frame, FrameError, Kind, Layer, MIN_MAX_FRAME_SIZE},
    performative::{AmqpError, Begin, Flow, Open, Performative, Sasl, SaslCode},
};

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Self {
        Self::Connection(AmqpError::new(condition::DECODE_ERROR, error.to_string()))
    }
}

impl From<FrameError> for Fault {
    fn from(error: FrameError) -> Self {
        Self::Connection(AmqpError::new(condition::FRAMING_ERROR, error.to_string()))
    }
}

pub(super) fn not_allowed(text: impl Into<String>) -> Fault {
    Fault::Connection(AmqpError::new(condition::NOT_ALLOWED, text))
}

impl Connection {
    /// Takes all of `input`, whose capacity stays with the caller to read into again. What is not a whole frame yet is kept inside.
    pub fn handle_input(&mut self, input: &mut BytesMut, now: Instant) {
        self.now = now;
        if self.phase == Phase::Finished {
            input.clear();
            return;
        }
        if input.is_empty() {
            return;
        }
        self.timers.heard(now);
        if self.input.is_empty() {
            self.input = input.split();
        } else {
            // Without a copy when the two stand side by side in memory, as they do when the caller reads into the same buffer again.
            self.input.unsplit(input.split());
        }
        self.process();
        if self.input.is_empty() {
            // An empty remainder would keep the caller from using the memory again.
            self.input = BytesMut::new();
        }
    }

    /// The socket has ended, or failed.
    pub fn handle_disconnect(&mut self, now: Instant) {
        self.now = now;
        match self.phase {
            Phase::Finished => {}
            Phase::Closing => self.finish(),
            _ => self.closed(EndedBy::Disconnect, None),
        }
    }

    /// It is [`poll_timeout`](Self::poll_timeout)'s time, or later. Earlier is harmless.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        for timer in self.timers.due(now) {
            match (timer, self.phase) {
                (_, Phase::Finished) => {}
                (Timer::Step, Phase::Closing) => self.finish(),
                (Timer::Step, _) => self.fail(AmqpError::new(condition::RESOURCE_LIMIT_EXCEEDED, "no open in time")),
                (Timer::Silence, _) => {
                    self.fail(AmqpError::new(condition::RESOURCE_LIMIT_EXCEEDED, "nothing was heard in time"));
                }
                (Timer::KeepAlive, _) => {
                    // With frames still waiting to be written, one more would say nothing new.
                    if self.output.len() == 0 {
                        self.output.empty();
                    }
                    self.timers.sent(now);
                }
            }
        }
    }

    /// Goes on with the input until more is needed.
    pub(super) fn process(&mut self) {
        while self.wants_input() {
            let step = match self.phase {
                Phase::Header | Phase::HeaderAfterSasl => {
                    let Some(header) = frame::next_header(&mut self.input) else { return };
                    self.on_header(Layer::of(header));
                    Ok(())
                }
                _ => {
                    let max = match self.phase {
                        Phase::SaslInit | Phase::SaslResponse => MAX_SASL_FRAME.min(self.config.max_frame_size),
                        _ => self.config.max_frame_size,
                    };
                    match frame::next(&mut self.input, max) {
                        Ok(None) => return,
                        Ok(Some(frame)) => self.on_frame(frame),
                        // After our close the peer may send what it likes, but what cannot be told apart ends it.
                        Err(_) if self.phase == Phase::Closing => {
                            self.finish();
                            return;
                        }
                        Err(error) => Err(error.into()),
                    }
                }
            };
            match step {
                Ok(()) => {}
                Err(Fault::Connection(error)) => self.fail(error),
                Err(Fault::Session(channel, error)) => self.end_by_us(channel, Some(error)),
                Err(Fault::Link(link, error)) => self.detach_by_us(link, Some(error)),
            }
        }
        // Only a peer that does not wait for the outcome of its login has sent more than that, and one frame is enough for it.
        if self.phase == Phase::SaslAsked && self.input.len() > self.config.max_frame_size as usize {
            self.fail(AmqpError::new(condition::RESOURCE_LIMIT_EXCEEDED, "too much before the outcome of the login"));
        }
    }

    fn on_header(&mut self, layer: Option<Layer>) {
        match (layer, self.phase) {
            (Some(Layer::Sasl), Phase::Header) => {
                self.output.header(Layer::Sasl);
                self.output.sasl(&Sasl::Mechanisms(self.config.mechanisms.clone()));
                self.phase = Phase::SaslInit;
            }
            (Some(Layer::Amqp), Phase::HeaderAfterSasl) => {
                self.output.header(Layer::Amqp);
                self.phase = Phase::Open;
            }
            (Some(Layer::Amqp), Phase::Header) if self.config.plain_allowed => {
                self.output.header(Layer::Amqp);
                self.phase = Phase::Open;
            }
            (_, phase) => {
                // The standard's answer to a header that does not do: the one that would, and the end.
                self.output.header(if phase == Phase::Header { Layer::Sasl } else { Layer::Amqp });
                self.closed(EndedBy::Us, Some(AmqpError::new(condition::NOT_IMPLEMENTED, "another protocol header")));
            }
        }
    }

    fn on_frame(&mut self, frame: Frame) -> Result<(), Fault> {
        match (self.phase, frame.kind) {
            (Phase::SaslInit | Phase::SaslResponse, Kind::Sasl) => self.on_sasl(&frame),
            (Phase::Open | Phase::Running | Phase::Closing, Kind::Amqp) => {
                if frame.body.is_empty() {
                    return Ok(());
                }
                self.on_amqp(&frame)
            }
            (Phase::Closing, Kind::Sasl) => Ok(()),
            _ => Err(Fault::Connection(AmqpError::new(condition::FRAMING_ERROR, "a frame of the other layer"))),
        }
    }

    fn on_sasl(&mut self, frame: &Frame) -> Result<(), Fault> {
        match (Sasl::read(&mut Reader::new(&frame.body))?, self.phase) {
            (Sasl::Init { mechanism, response, hostname }, Phase::SaslInit) => {
                if !self.config.mechanisms.contains(&mechanism) {
                    self.output.sasl(&Sasl::Outcome { code: SaslCode::Auth, data: None });
                    let error = AmqpError::new(condition::UNAUTHORIZED_ACCESS, "a mechanism that was not offered");
                    self.closed(EndedBy::Us, Some(error));
                    return Ok(());
                }
                self.phase = Phase::SaslAsked;
                self.events.push_back(Event::SaslInit { mechanism, response, hostname });
                Ok(())
            }
            (Sasl::Response(response), Phase::SaslResponse) => {
                self.phase = Phase::SaslAsked;
                self.events.push_back(Event::SaslResponse { response });
                Ok(())
            }
            _ => Err(not_allowed("a SASL frame out of turn")),
        }
    }

    fn on_amqp(&mut self, frame: &Frame) -> Result<(), Fault> {
        let mut reader = Reader::new(&frame.body);
        let performative = match Performative::read(&mut reader) {
            Ok(performative) => performative,
            Err(_) if self.phase == Phase::Closing => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let channel = frame.channel;
        match (self.phase, performative) {
            (Phase::Closing, Performative::Close(_)) => {
                self.finish();
                Ok(())
            }
            (Phase::Closing, _) => Ok(()),
            (Phase::Open, Performative::Open(open)) => self.on_open(open),
            (_, Performative::Close(error)) => {
                if self.phase == Phase::Open {
                    self.write_open();
                }
                self.output.close(None);
                self.closed(EndedBy::Peer, error);
                Ok(())
            }
            (Phase::Open, other) => Err(not_allowed(format!("{} before open", other.name()))),
            (_, Performative::Open(_)) => Err(not_allowed("open for the second time")),
            (_, Performative::Begin(begin)) => self.on_begin(channel, &begin),
            (_, Performative::End(error)) => self.on_end(channel, error),
            (_, performative) => {
                let Some(session) = self.sessions.get(&channel) else {
                    if self.ended.contains(&channel) {
                        return Ok(());
                    }
                    return Err(not_allowed(format!(
                        "{} on channel {channel}, which has no session",
                        performative.name()
                    )));
                };
                if session.ending {
                    return Ok(());
                }
                match performative {
                    Performative::Attach(attach) => self.on_attach(channel, attach),
                    Performative::Flow(flow) => self.on_flow(channel, &flow),
                    Performative::Transfer(transfer) => self.on_transfer(channel, transfer, reader.rest()),
                    Performative::Disposition(disposition) => self.on_disposition(channel, disposition),
                    Performative::Detach(detach) => self.on_detach(channel, detach),
                    Performative::Open(_) | Performative::Begin(_) | Performative::End(_) | Performative::Close(_) => {
                        Ok(())
                    }
                }
            }
        }
    }

    fn on_open(&mut self, open: Box<Open>) -> Result<(), Fault> {
        if open.max_frame_size < MIN_MAX_FRAME_SIZE {
            let text = format!("max-frame-size is {}, and at least {MIN_MAX_FRAME_SIZE}", open.max_frame_size);
            return Err(Fault::Connection(AmqpError::new(condition::INVALID_FIELD, text)));
        }
        self.output.max_frame_size = open.max_frame_size;
        // 0 is how some write that they do not care.
        let idle = open.idle_time_out.filter(|millis| *millis > 0);
        let idle = idle.map(|millis| std::time::Duration::from_millis(millis.into()));
        if idle.is_some_and(|idle| idle < MIN_IDLE_TIME_OUT) {
            return Err(not_allowed(format!("an idle-time-out below {} ms", MIN_IDLE_TIME_OUT.as_millis())));
        }
        self.write_open();
        self.timers.opened(self.now, &self.config, idle);
        self.phase = Phase::Running;
        self.events.push_back(Event::Opened { open });
        Ok(())
    }

    fn write_open(&mut self) {
        let config = &self.config;
        let open = Open {
            container_id: config.container_id.clone(),
            max_frame_size: config.max_frame_size,
            channel_max: config.channel_max,
            idle_time_out: config.idle_time_out.map(|limit| u32::try_from(limit.as_millis()).unwrap_or(u32::MAX)),
            offered_capabilities: config.offered_capabilities.clone(),
            properties: config.properties.clone(),
            ..Open::default()
        };
        if self.output.frame(0, &Performative::Open(Box::new(open.clone()))).is_err() {
            // A peer with the smallest frames gets what it needs to work.
            let open = Open { offered_capabilities: Vec::new(), properties: crate::value::Map::new(), ..open };
            if self.output.frame(0, &Performative::Open(Box::new(open.clone()))).is_err() {
                let open = Open { container_id: "server".to_owned(), ..open };
                self.output.frame(0, &Performative::Open(Box::new(open))).expect("a few numbers fit into 512 bytes");
            }
        }
    }

    fn on_begin(&mut self, channel: u16, begin: &Begin) -> Result<(), Fault> {
        if channel > self.config.channel_max {
            let text = format!("channel {channel} is above {}", self.config.channel_max);
            return Err(Fault::Connection(AmqpError::new(condition::FRAMING_ERROR, text)));
        }
        if begin.remote_channel.is_some() {
            return Err(not_allowed("an answer to a begin that was not sent"));
        }
        if self.sessions.contains_key(&channel) {
            return Err(not_allowed(format!("begin on channel {channel}, which has a session")));
        }
        let key = SessionKey { channel, serial: self.next_serial() };
        let session = Session::new(key, begin, self.config.incoming_window);
        let answer = Performative::Begin(session.answer(self.config.handle_max));
        self.output.frame(channel, &answer).expect("a few numbers fit into 512 bytes");
        self.ended.remove(&channel);
        self.sessions.insert(channel, session);
        self.events.push_back(Event::SessionBegun { session: key });
        Ok(())
    }

    fn on_end(&mut self, channel: u16, error: Option<AmqpError>) -> Result<(), Fault> {
        let Some(session) = self.sessions.remove(&channel) else {
            if self.ended.contains(&channel) {
                return Ok(());
            }
            return Err(not_allowed(format!("end on channel {channel}, which has no session")));
        };
        self.ended.insert(channel);
        if !session.ending {
            self.forget_names(&session);
            self.output.end(channel, None);
            self.events.push_back(Event::SessionEnded { session: session.key, by: EndedBy::Peer, error });
        }
        Ok(())
    }

    /// Ends a session from our side; the peer's end is awaited.
    pub(super) fn end_by_us(&mut self, channel: u16, error: Option<AmqpError>) {
        let Some(session) = self.sessions.remove(&channel) else { return };
        self.forget_names(&session);
        self.output.end(channel, error.as_ref());
        self.events.push_back(Event::SessionEnded { session: session.key, by: EndedBy::Us, error });
        // Its links are gone for everybody; only its channel is still taken.
        let mut ending = Session::new(session.key, &Begin::default(), 0);
        ending.ending = true;
        self.sessions.insert(channel, ending);
    }

    fn forget_names(&mut self, session: &Session) {
        for link in session.links.values() {
            self.forget_name(link);
        }
    }

    fn on_flow(&mut self, channel: u16, flow: &Flow) -> Result<(), Fault> {
        let session = self.sessions.get_mut(&channel).expect("looked up by the caller");
        if session.heard(flow, &mut self.output) {
            self.events.push_back(Event::WindowOpened { session: session.key });
        }
        match flow.handle {
            Some(handle) => self.on_link_flow(channel, handle, flow),
            None => {
                if flow.echo {
                    self.output.flow(channel, &session.flow());
                }
                Ok(())
            }
        }
    }

    /// Closes the connection for what the peer has done.
    pub(super) fn fail(&mut self, error: AmqpError) {
        match self.phase {
            Phase::Finished => {}
            Phase::Closing => self.finish(),
            Phase::Open | Phase::Running => {
                if self.phase == Phase::Open {
                    // A close is only understood after an open.
                    self.write_open();
                }
                self.close_by_us(Some(error));
            }
            // Before that there is no way to say why.
            _ => self.closed(EndedBy::Us, Some(error)),
        }
    }

    pub(super) fn close_by_us(&mut self, error: Option<AmqpError>) {
        self.output.close(error.as_ref());
        self.forget_all();
        self.phase = Phase::Closing;
        self.timers.closing(self.now, &self.config);
        self.events.push_back(Event::Closed { by: EndedBy::Us, error });
    }

    /// Over at once, with the event that says so.
    pub(super) fn closed(&mut self, by: EndedBy, error: Option<AmqpError>) {
        self.events.push_back(Event::Closed { by, error });
        self.finish();
    }

    fn finish(&mut self) {
        self.phase = Phase::Finished;
        self.input = BytesMut::new();
        self.forget_all();
    }

    fn forget_all(&mut self) {
        self.sessions.clear();
        self.ended.clear();
        self.names.clear();
    }
}
