//! A broker in a folder, and a client that says what no SDK would.

#![allow(dead_code, reason = "each test program uses some of it")]
#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the answer")]

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{Bytes, BytesMut};
use hmac::{Hmac, Mac as _};
use sprag_amqp::{
    decode::Reader,
    frame::{self, HEADER, Kind, Layer},
    message::{MessageId, Properties, Sections, write_application_properties, write_data, write_value},
    performative::{
        AmqpError, Attach, Begin, DeliveryState, Detach, Disposition, Flow, Open, Performative, ReceiverSettle, Role,
        Sasl, SaslCode, SenderSettle, Source, Target, Transfer,
    },
    value::{Map, Symbol, Value},
};
use sprag_broker::{Engine, EntitySpec, Options};
use sprag_gateway::amqp::{Config, Gateway, Handle};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
};

/// As long as anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const SESSION_FILTER: Symbol = Symbol::from_static("com.microsoft:session-filter");

pub(crate) struct Broker {
    pub(crate) engine: Engine,
    pub(crate) handle: Handle,
    pub(crate) dir: TempDir,
    stop: Option<oneshot::Sender<()>>,
    running: Option<JoinHandle<()>>,
}

impl Broker {
    pub(crate) async fn start(specs: Vec<EntitySpec>) -> Self {
        Self::with(specs, Config::default()).await
    }

    pub(crate) async fn with(specs: Vec<EntitySpec>, config: Config) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::open(Options::new(dir.path())).unwrap();
        engine.declare(specs).await.unwrap();
        let config = Config { listen: Some(([127, 0, 0, 1], 0).into()), ..config };
        let gateway = Gateway::build(config, engine.clone()).await.unwrap();
        let handle = gateway.handle();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(gateway.run(async move {
            let _ = stopped.await;
        }));
        Self { engine, handle, dir, stop: Some(stop), running: Some(running) }
    }

    pub(crate) fn begin_stop(&mut self) {
        self.stop.take();
    }

    pub(crate) async fn stopped(&mut self) {
        tokio::time::timeout(PATIENCE, self.running.take().unwrap()).await.expect("stops in time").unwrap();
    }

    /// A client that has got as far as a session.
    pub(crate) async fn client(&self) -> Client {
        let mut client = self.connect().await;
        client.log_in("ANONYMOUS", None).await.unwrap();
        client.open().await;
        client
    }

    pub(crate) async fn connect(&self) -> Client {
        Client::over(TcpStream::connect(self.handle.address().unwrap()).await.unwrap())
    }
}

/// One connection, with one session on channel 0.
pub(crate) struct Client<S = TcpStream> {
    stream: S,
    input: BytesMut,
    waiting: VecDeque<(u16, Performative, Bytes)>,
    next_handle: u32,
    next_delivery: u32,
}

/// A message that came.
pub(crate) struct Received {
    pub(crate) id: u32,
    pub(crate) tag: Bytes,
    pub(crate) settled: bool,
    pub(crate) sections: Sections,
}

impl Received {
    pub(crate) fn body(&self) -> Bytes {
        self.sections.data().unwrap().concat().into()
    }

    pub(crate) fn annotation(&self, name: &str) -> Option<Value> {
        self.sections.message_annotations().unwrap().get(name).cloned()
    }

    pub(crate) fn lock_token(&self) -> Value {
        self.sections.delivery_annotations().unwrap().get("x-opt-lock-token").cloned().unwrap()
    }
}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> Client<S> {
    pub(crate) fn over(stream: S) -> Self {
        Self { stream, input: BytesMut::new(), waiting: VecDeque::new(), next_handle: 0, next_delivery: 0 }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub(crate) async fn say(&mut self, performative: Performative) {
        self.say_with(performative, b"").await;
    }

    pub(crate) async fn say_with(&mut self, performative: Performative, payload: &[u8]) {
        let mut out = Vec::new();
        frame::write_amqp(&mut out, 0, &performative, payload);
        self.write(&out).await;
    }

    pub(crate) async fn say_on(&mut self, channel: u16, performative: Performative) {
        let mut out = Vec::new();
        frame::write_amqp(&mut out, channel, &performative, b"");
        self.write(&out).await;
    }

    /// Reads more. False: there is no more.
    async fn fill(&mut self) -> bool {
        // Otherwise a buffer that is split again and again is read into by the 64 bytes that it grows by.
        self.input.reserve(4_096);
        let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.input)).await;
        matches!(read.expect("the broker says something in time"), Ok(len) if len > 0)
    }

    async fn header(&mut self) -> [u8; HEADER] {
        loop {
            if let Some(header) = frame::next_header(&mut self.input) {
                return header;
            }
            assert!(self.fill().await, "closed");
        }
    }

    /// The header that comes, and then the end.
    pub(crate) async fn closed_with_header(&mut self) -> [u8; HEADER] {
        let header = self.header().await;
        while self.fill().await {}
        header
    }

    async fn frame(&mut self) -> Option<frame::Frame> {
        loop {
            if let Some(frame) = frame::next(&mut self.input, u32::MAX).unwrap() {
                return Some(frame);
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    async fn sasl(&mut self) -> Sasl {
        let frame = self.frame().await.expect("a SASL frame");
        assert_eq!(frame.kind, Kind::Sasl);
        Sasl::read(&mut Reader::new(&frame.body)).unwrap()
    }

    /// What the outcome was, when it was not good.
    pub(crate) async fn log_in(&mut self, mechanism: &str, response: Option<&[u8]>) -> Result<(), SaslCode> {
        self.write(&Layer::Sasl.header()).await;
        self.header().await;
        assert!(matches!(self.sasl().await, Sasl::Mechanisms(_)));
        let mut out = Vec::new();
        let response = response.map(Bytes::copy_from_slice);
        frame::write_sasl(&mut out, &Sasl::Init { mechanism: mechanism.into(), response, hostname: None });
        self.write(&out).await;
        match self.sasl().await {
            Sasl::Outcome { code: SaslCode::Ok, .. } => Ok(()),
            Sasl::Outcome { code, .. } => Err(code),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn open(&mut self) {
        self.open_with(Open { container_id: "test".into(), ..Open::default() }).await;
    }

    pub(crate) async fn open_with(&mut self, open: Open) {
        self.open_and_begin(open, 5_000).await;
    }

    pub(crate) async fn open_and_begin(&mut self, open: Open, incoming_window: u32) {
        self.write(&Layer::Amqp.header()).await;
        self.say(Performative::Open(Box::new(open))).await;
        self.say(Performative::Begin(Begin { incoming_window, outgoing_window: 5_000, ..Begin::default() })).await;
        self.header().await;
        assert!(matches!(self.next().await, Performative::Open(_)));
        assert!(matches!(self.next().await, Performative::Begin(_)));
    }

    /// The next performative that comes. None: the connection is closed.
    async fn heard(&mut self) -> Option<(Performative, Bytes)> {
        loop {
            let frame = self.frame().await?;
            if frame.body.is_empty() {
                continue;
            }
            let mut reader = Reader::new(&frame.body);
            let performative = Performative::read(&mut reader).unwrap();
            return Some((performative, reader.rest()));
        }
    }

    pub(crate) async fn next(&mut self) -> Performative {
        match self.waiting.pop_front() {
            Some((_, performative, _)) => performative,
            None => self.heard().await.expect("the connection is there").0,
        }
    }

    /// The first that is wanted; others wait for whoever wants them.
    pub(crate) async fn wanted<T>(&mut self, mut want: impl FnMut(&Performative, &Bytes) -> Option<T>) -> T {
        for at in 0..self.waiting.len() {
            let (_, performative, payload) = &self.waiting[at];
            if let Some(found) = want(performative, payload) {
                self.waiting.remove(at);
                return found;
            }
        }
        loop {
            let (performative, payload) = self.heard().await.expect("the connection is there");
            if let Some(found) = want(&performative, &payload) {
                return found;
            }
            self.waiting.push_back((0, performative, payload));
        }
    }

    /// Waits for the end of the connection, and gives the error of the close that came before it.
    pub(crate) async fn closed(&mut self) -> Option<AmqpError> {
        let mut error = None;
        while let Some((performative, _)) = self.heard().await {
            if let Performative::Close(said) = performative {
                error = said;
                self.say(Performative::Close(None)).await;
            }
        }
        error
    }

    /// Asks for a link. The answer is its handle, or the error of the detach that follows a refusal.
    pub(crate) async fn attach(&mut self, mut attach: Attach) -> Result<(u32, Attach), AmqpError> {
        let handle = self.next_handle;
        self.next_handle += 1;
        attach.handle = handle;
        if attach.name.is_empty() {
            attach.name = format!("link-{handle}");
        }
        let role = attach.role;
        if role == Role::Sender {
            attach.initial_delivery_count = Some(0);
        }
        self.say(Performative::Attach(Box::new(attach))).await;
        let answer = self
            .wanted(|said, _| match said {
                Performative::Attach(answer) if answer.handle == handle => Some((**answer).clone()),
                _ => None,
            })
            .await;
        let refused = match role {
            Role::Sender => answer.target.is_none(),
            Role::Receiver => answer.source.is_none(),
        };
        if refused { Err(self.detached(handle).await.expect("a refusal says why")) } else { Ok((handle, answer)) }
    }

    pub(crate) async fn sender(&mut self, address: &str) -> Result<u32, AmqpError> {
        let attach = Attach { target: Some(Target::at(address)), ..Attach::new("", 0, Role::Sender) };
        let handle = self.attach(Attach { source: Some(Source::at("me")), ..attach }).await?.0;
        self.credit(handle).await;
        Ok(handle)
    }

    pub(crate) async fn credit(&mut self, handle: u32) -> u32 {
        self.wanted(|said, _| match said {
            Performative::Flow(flow) if flow.handle == Some(handle) => flow.link_credit,
            _ => None,
        })
        .await
    }

    pub(crate) fn receiving(address: &str) -> Attach {
        Attach {
            source: Some(Source::at(address)),
            target: Some(Target::at("me")),
            receiver_settle: ReceiverSettle::Second,
            sender_settle: SenderSettle::Unsettled,
            ..Attach::new("", 0, Role::Receiver)
        }
    }

    pub(crate) async fn receiver(&mut self, address: &str, credit: u32) -> Result<u32, AmqpError> {
        let handle = self.attach(Self::receiving(address)).await?.0;
        self.give(handle, 0, credit, false).await;
        Ok(handle)
    }

    /// Of a session; None: the next one, awaited for as long as is said.
    pub(crate) fn of_session(address: &str, session: Option<&str>, wait: Option<Duration>) -> Attach {
        let mut attach = Self::receiving(address);
        let source = attach.source.as_mut().unwrap();
        source.filters.set(SESSION_FILTER, session.map_or(Value::Null, Value::from));
        if let Some(wait) = wait {
            let millis = u32::try_from(wait.as_millis()).unwrap();
            attach.properties.set(Symbol::from_static("com.microsoft:timeout"), Value::Uint(millis));
        }
        attach
    }

    pub(crate) async fn give(&mut self, handle: u32, delivery_count: u32, credit: u32, drain: bool) {
        if credit == 0 && !drain {
            return;
        }
        let flow = Flow {
            next_incoming_id: Some(0),
            incoming_window: 100_000,
            outgoing_window: 100_000,
            handle: Some(handle),
            delivery_count: Some(delivery_count),
            link_credit: Some(credit),
            drain,
            ..Flow::default()
        };
        self.say(Performative::Flow(flow)).await;
    }

    /// Credit of a client that has counted the transfers that have come.
    pub(crate) async fn give_after(&mut self, handle: u32, delivery_count: u32, credit: u32, transfers: u32) {
        let flow = Flow {
            next_incoming_id: Some(transfers),
            incoming_window: 1_000,
            outgoing_window: 100_000,
            handle: Some(handle),
            delivery_count: Some(delivery_count),
            link_credit: Some(credit),
            ..Flow::default()
        };
        self.say(Performative::Flow(flow)).await;
    }

    /// What has come and nobody has wanted is of no interest.
    pub(crate) fn forget_said(&mut self) {
        self.waiting.clear();
    }

    /// Sends without waiting for the answer.
    pub(crate) async fn transfer(&mut self, handle: u32, payload: &[u8], settled: bool) -> u32 {
        self.transfer_as(0, handle, payload, settled).await
    }

    pub(crate) async fn transfer_as(&mut self, format: u32, handle: u32, payload: &[u8], settled: bool) -> u32 {
        let id = self.next_delivery;
        self.next_delivery += 1;
        let transfer = Transfer {
            handle,
            delivery_id: Some(id),
            delivery_tag: Some(Bytes::copy_from_slice(&id.to_be_bytes())),
            message_format: Some(format),
            settled: Some(settled),
            ..Transfer::default()
        };
        let pieces: Vec<&[u8]> = payload.chunks(60_000).collect();
        for (n, piece) in pieces.iter().enumerate() {
            let more = n + 1 < pieces.len();
            self.say_with(Performative::Transfer(Transfer { more, ..transfer.clone() }), piece).await;
        }
        id
    }

    /// What the broker says of a delivery of ours.
    pub(crate) async fn outcome(&mut self, id: u32) -> DeliveryState {
        self.answer(Role::Receiver, id).await
    }

    async fn answer(&mut self, role: Role, id: u32) -> DeliveryState {
        let said = self.wanted(|said, _| match said {
            Performative::Disposition(said)
                if said.role == role && (said.first..=said.last.unwrap_or(said.first)).contains(&id) =>
            {
                Some(said.clone())
            }
            _ => None,
        });
        let said = said.await;
        assert!(said.settled, "{said:?}");
        // The others of a range may be asked for as well.
        if said.last.is_some_and(|last| last > said.first) {
            self.waiting.push_back((0, Performative::Disposition(said.clone()), Bytes::new()));
        }
        said.state.expect("an outcome")
    }

    pub(crate) async fn send(&mut self, handle: u32, payload: &[u8]) -> DeliveryState {
        let id = self.transfer(handle, payload, false).await;
        self.outcome(id).await
    }

    /// The next message on a link.
    pub(crate) async fn receive(&mut self, handle: u32) -> Received {
        let mut together = BytesMut::new();
        let mut first = None;
        loop {
            let (transfer, payload) = self
                .wanted(|said, payload| match said {
                    Performative::Transfer(transfer) if transfer.handle == handle => {
                        Some((transfer.clone(), payload.clone()))
                    }
                    _ => None,
                })
                .await;
            together.extend_from_slice(&payload);
            let more = transfer.more;
            let first = first.get_or_insert(transfer);
            if !more {
                return Received {
                    id: first.delivery_id.unwrap(),
                    tag: first.delivery_tag.clone().unwrap(),
                    settled: first.settled.unwrap_or(false),
                    sections: Sections::find(together.freeze()).unwrap(),
                };
            }
        }
    }

    /// Settles, and gives the broker's answer.
    pub(crate) async fn settle(&mut self, id: u32, state: DeliveryState) -> DeliveryState {
        self.dispose(id, id, state, false).await;
        self.answer(Role::Sender, id).await
    }

    pub(crate) async fn dispose(&mut self, first: u32, last: u32, state: DeliveryState, settled: bool) {
        let disposition = Disposition {
            role: Role::Receiver,
            first,
            last: Some(last),
            settled,
            state: Some(state),
            batchable: false,
        };
        self.say(Performative::Disposition(disposition)).await;
    }

    pub(crate) async fn detached(&mut self, handle: u32) -> Option<AmqpError> {
        let error = self.wanted(|said, _| match said {
            Performative::Detach(detach) if detach.handle == handle => Some(detach.error.clone()),
            _ => None,
        });
        let error = error.await;
        self.say(Performative::Detach(Detach { handle, closed: true, error: None })).await;
        error
    }

    /// Whether a link has been detached by what has come so far, and with which error.
    pub(crate) fn has_detached(&mut self, handle: u32) -> Option<Option<AmqpError>> {
        self.waiting.iter().find_map(|(_, said, _)| match said {
            Performative::Detach(detach) if detach.handle == handle => Some(detach.error.clone()),
            _ => None,
        })
    }

    /// Detaches, and waits for the answer.
    pub(crate) async fn detach(&mut self, handle: u32) {
        self.say(Performative::Detach(Detach { handle, closed: true, error: None })).await;
        self.wanted(|said, _| match said {
            Performative::Detach(detach) if detach.handle == handle => Some(()),
            _ => None,
        })
        .await;
    }

    /// A pair of links for requests to a node.
    pub(crate) async fn requests(&mut self, node: &str) -> Result<Requests, AmqpError> {
        self.requests_at(node, "my-answers").await
    }

    /// The same, with an address for the answers.
    pub(crate) async fn requests_at(&mut self, node: &str, address: &'static str) -> Result<Requests, AmqpError> {
        let sender = self.sender(node).await?;
        let mut attach = Self::receiving(node);
        attach.target = Some(Target::at(address));
        attach.receiver_settle = ReceiverSettle::First;
        let receiver = self.attach(attach).await?.0;
        self.give(receiver, 0, 100, false).await;
        Ok(Requests { sender, receiver, address })
    }

    /// A request, and its answer: properties and body.
    pub(crate) async fn ask(&mut self, on: &Requests, operation: &str, body: Value) -> (Map, Value) {
        let mut out = Vec::new();
        let id = MessageId::Ulong(self.next_delivery.into());
        let properties =
            Properties { message_id: Some(id.clone()), reply_to: Some(on.address.into()), ..Properties::default() };
        properties.write(&mut out);
        let operation = [("operation".to_owned(), Value::from(operation))];
        write_application_properties(&mut out, &operation.into_iter().collect());
        write_value(&mut out, &body);
        self.send(on.sender, &out).await;
        let answer = self.receive(on.receiver).await;
        assert_eq!(answer.sections.properties().unwrap().unwrap().correlation_id, Some(id));
        (answer.sections.application_properties().unwrap(), answer.sections.value().unwrap().unwrap_or_default())
    }

    /// The status of a request to an entity, its error condition, and the body.
    pub(crate) async fn manage(&mut self, on: &Requests, operation: &str, body: Map) -> (i64, Option<String>, Map) {
        let (properties, body) = self.ask(on, &format!("com.microsoft:{operation}"), Value::Map(body)).await;
        let status = properties.get("statusCode").and_then(Value::as_i64).unwrap();
        let condition = properties.get("errorCondition").and_then(Value::as_str).map(str::to_owned);
        (status, condition, body.as_map().cloned().unwrap_or_default())
    }

    pub(crate) async fn put_token(&mut self, token: &str) -> i64 {
        let requests = self.requests("$cbs").await.unwrap();
        let (properties, _) = self.ask(&requests, "put-token", Value::from(token)).await;
        self.detach(requests.sender).await;
        self.detach(requests.receiver).await;
        properties.get("status-code").and_then(Value::as_i64).unwrap()
    }
}

pub(crate) struct Requests {
    pub(crate) sender: u32,
    pub(crate) receiver: u32,
    pub(crate) address: &'static str,
}

static MESSAGES: AtomicU32 = AtomicU32::new(0);

/// An encoded message with a body of text.
pub(crate) fn message(body: &str) -> Vec<u8> {
    encoded(body.as_bytes(), None)
}

pub(crate) fn in_session(session: &str, body: &str) -> Vec<u8> {
    encoded(body.as_bytes(), Some(session))
}

fn encoded(body: &[u8], session: Option<&str>) -> Vec<u8> {
    let mut out = Vec::new();
    let properties = Properties {
        message_id: Some(MessageId::String(format!("m-{}", MESSAGES.fetch_add(1, Relaxed)))),
        group_id: session.map(str::to_owned),
        ..Properties::default()
    };
    properties.write(&mut out);
    write_data(&mut out, body);
    out
}

pub(crate) fn map(pairs: impl IntoIterator<Item = (&'static str, Value)>) -> Map {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A token as the SDKs make it.
pub(crate) fn token(resource: &str, name: &str, key: &str, expires: i64) -> String {
    let encode =
        |text: &str| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
    let resource = encode(resource);
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(key.as_bytes()).unwrap();
    mac.update(format!("{resource}\n{expires}").as_bytes());
    let signature = encode(&STANDARD.encode(mac.finalize().into_bytes()));
    format!("SharedAccessSignature sr={resource}&sig={signature}&se={expires}&skn={}", encode(name))
}

/// Waits for what happens by itself.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..4_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: not within twenty seconds");
}

pub(crate) fn condition(state: &DeliveryState) -> String {
    match state {
        DeliveryState::Rejected(Some(error)) => error.condition.to_string(),
        other => format!("{other:?}"),
    }
}

/// A clock that the test sets, in seconds since 1970.
pub(crate) fn clock() -> (Arc<std::sync::atomic::AtomicI64>, sprag_broker::Clock) {
    let shown = Arc::new(std::sync::atomic::AtomicI64::new(1_796_000_000));
    let read = Arc::clone(&shown);
    (shown, Arc::new(move || sprag_core::time::Timestamp(read.load(Relaxed) * 1_000)))
}
