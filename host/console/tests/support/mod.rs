//! A host whose operations answer from a table, and a client for its API.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::Value;
use sprag_console::{Config, Console};
use sprag_core::{
    action::ActionKind,
    ids::{ActionId, Digest, EndpointName, EntityName, SequenceNumber, SessionId},
    message::{Body, Message},
    operations::{
        Caller, Error, EventAction, EventFilter, GroupAction, InboxFilter, Operations, OutboxResolution, Page, Part,
        PlaceFilter, Result, SkipSession,
        view::{self, Listing},
    },
    outcome::{Failure, Outcome},
    time::Timestamp,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::{mpsc, oneshot},
};

pub(crate) const TOKEN: &str = "a-token";
const AT: Timestamp = Timestamp(1_796_000_461_007);

/// What the fake was asked, in words.
pub(crate) struct Fake(mpsc::UnboundedSender<String>);

impl Fake {
    fn note(&self, text: String) {
        self.0.send(text).expect("the test listens");
    }
}

pub(crate) fn event() -> view::Event {
    view::Event {
        event_id: "order-1".into(),
        message_id: Some("m1".into()),
        endpoint: "billing".into(),
        session: Some("customer-1".into()),
        event_type: "OrderPlaced".into(),
        outcome: Outcome::DeadLettered,
        reason: None,
        error: Some(Failure::new("timeout", "took longer than 5s")),
        attempts: 2,
        handler: Some("payment".into()),
        digest: Some(Digest([0xab; 32]).to_string()),
        enqueued_at: AT.into(),
        updated_at: AT.after(Duration::from_millis(500)).into(),
    }
}

fn action(kind: ActionKind, state: &str) -> view::Action {
    view::Action {
        id: ActionId(7),
        kind,
        endpoint: "billing".into(),
        event_id: Some("order-1".into()),
        session: Some("customer-1".into()),
        reason: None,
        by: "tester".to_owned(),
        at: AT.into(),
        state: state.to_owned(),
        text: (state != "open").then(|| "completed".to_owned()),
        ended_at: (state != "open").then(|| AT.into()),
    }
}

#[async_trait]
impl Operations for Fake {
    async fn events(&self, filter: EventFilter, page: Page) -> Result<Listing<view::Event>> {
        self.note(format!("events {filter:?} {page:?}"));
        Ok(Listing { items: vec![event()], next: Some("c1".to_owned()) })
    }

    async fn event(&self, id: &str, endpoint: Option<&EndpointName>) -> Result<view::EventDetail> {
        match (id, endpoint) {
            ("twice", None) => {
                Err(Error::Ambiguous { id: id.to_owned(), choices: vec!["billing".to_owned(), "shipping".to_owned()] })
            }
            ("gone", _) => Err(Error::NotFound("there is no event \"gone\"".to_owned())),
            _ => {
                let message =
                    Message { message_id: Some("m1".into()), body: Body::Data("{}".into()), ..Message::default() };
                Ok(view::EventDetail {
                    event: event(),
                    source_id: Some("m0".into()),
                    duplicates: 1,
                    group: None,
                    open_action: None,
                    history: vec![view::History {
                        kind: "run".to_owned(),
                        at: AT.into(),
                        message_id: Some("m0".into()),
                        outcome: Some(Outcome::Failed),
                        attempt: 1,
                        started_at: Some(AT.into()),
                        took_ms: Some(5_000),
                        handler: Some("payment".into()),
                        digest: None,
                        reason: None,
                        error: Some(Failure::new("timeout", "took longer than 5s")),
                        by: None,
                    }],
                    message: Some((&message).into()),
                })
            }
        }
    }

    async fn groups(&self, _: EventFilter) -> Result<Listing<view::Group>> {
        Ok(Listing::whole(vec![view::Group {
            key: "3f2a9c01d4e5b677".to_owned(),
            endpoint: "billing".into(),
            event_type: "OrderPlaced".into(),
            kind: "timeout".to_owned(),
            first_line: "took longer than 5s".to_owned(),
            count: 3,
            oldest_at: AT.into(),
            newest_at: AT.into(),
        }]))
    }

    async fn sessions(&self, filter: PlaceFilter, _: Page) -> Result<Listing<view::SessionLine>> {
        self.note(format!("sessions {filter:?}"));
        let line = |session: &str, blocked| view::SessionLine {
            endpoint: "billing".into(),
            session: session.into(),
            blocked_by: blocked,
            parked: 2,
            oldest_parked_at: Some(AT.into()),
        };
        let block = view::BlockedBy { event_id: "order-1".into(), kind: "failure".to_owned(), since: AT.into() };
        Ok(Listing::whole(vec![line("customer-1", Some(block)), line("customer-2", None)]))
    }

    async fn parked(&self, _: PlaceFilter, _: Page) -> Result<Listing<view::ParkedMessage>> {
        Ok(Listing::whole(vec![view::ParkedMessage {
            endpoint: "billing".into(),
            session: Some("customer-1".into()),
            position: Some(0),
            event_id: "order-2".into(),
            message_id: Some("m2".into()),
            event_type: "OrderPlaced".into(),
            sequence_number: SequenceNumber(12),
            enqueued_at: AT.into(),
            parked_at: Some(AT.into()),
        }]))
    }

    async fn scheduled(&self, _: PlaceFilter, _: Page) -> Result<Listing<view::ScheduledMessage>> {
        Ok(Listing::whole(vec![view::ScheduledMessage {
            entity: "orders".into(),
            endpoint: None,
            sequence_number: SequenceNumber(13),
            kind: "retry".to_owned(),
            event_id: "order-1".into(),
            message_id: Some("r1".into()),
            event_type: "OrderPlaced".into(),
            session: Some("customer-1".into()),
            attempt: Some(1),
            due_at: Some(AT.into()),
            enqueued_at: AT.into(),
        }]))
    }

    async fn dead_letters(&self, _: PlaceFilter, _: Page) -> Result<Listing<view::DeadLetter>> {
        Ok(Listing::whole(vec![view::DeadLetter {
            entity: "orders".into(),
            endpoint: Some("billing".into()),
            sequence_number: SequenceNumber(14),
            event_id: "order-3".into(),
            message_id: Some("m3".into()),
            event_type: "OrderPlaced".into(),
            session: None,
            reason: Some("MaxDeliveryCountExceeded".to_owned()),
            description: None,
            delivery_count: 10,
            enqueued_at: AT.into(),
            dead_at: Some(AT.into()),
        }]))
    }

    async fn inbox(&self, _: InboxFilter, _: Page) -> Result<Listing<view::InboxLine>> {
        let record = view::InboxLine {
            endpoint: "billing".into(),
            message_id: "m1".into(),
            recorded_at: AT.into(),
            state: "processed".to_owned(),
            expires_at: None,
            owner: None,
        };
        let lease = view::InboxLine {
            message_id: "m2".into(),
            state: "in-progress".to_owned(),
            expires_at: Some(AT.into()),
            owner: Some("here/7/00000000000000aa/1".to_owned()),
            ..record.clone()
        };
        Ok(Listing::whole(vec![record, lease]))
    }

    async fn audit(&self, _: Page) -> Result<Listing<view::AuditLine>> {
        Ok(Listing::whole(vec![view::AuditLine {
            id: 1,
            at: AT.into(),
            by: "tester".to_owned(),
            verb: "resubmit-group".to_owned(),
            endpoint: Some("billing".into()),
            target: "3f2a9c01d4e5b677".to_owned(),
            reason: None,
            count: 3,
            actions: view::ActionCounts { open: 0, applied: 3, conflict: 0 },
        }]))
    }

    async fn outbox(&self, _: Page) -> Result<Listing<view::OutboxLine>> {
        Ok(Listing::whole(vec![view::OutboxLine {
            id: 4,
            endpoint: "billing".into(),
            entity: "invoices".into(),
            message_id: Some("o1".into()),
            event_id: Some("order-1".into()),
            session: None,
            created_at: AT.into(),
            tries: 3,
            error: Some("there is no entity \"invoices\"".to_owned()),
            poison: true,
        }]))
    }

    async fn handlers(&self) -> Result<Listing<view::Handler>> {
        Ok(Listing::whole(vec![view::Handler {
            name: "payment".into(),
            file: Some("handlers/payment.wasm".to_owned()),
            digest: Some(Digest([0xab; 32]).to_string()),
            event_types: vec!["OrderPlaced".to_owned()],
            endpoints: vec!["billing".into()],
            state: "serving".to_owned(),
            error: None,
            loaded_at: Some(AT.into()),
            isolation: Some("message".to_owned()),
            grants: vec!["state".to_owned()],
        }]))
    }

    async fn endpoints(&self) -> Result<Listing<view::Endpoint>> {
        Ok(Listing::whole(vec![view::Endpoint {
            endpoint: "billing".into(),
            source: "shop/billing".into(),
            state: "paused".to_owned(),
            reasons: vec!["not loaded: payment".to_owned()],
            requires_session: true,
            concurrency: 64,
            handlers: vec!["payment".into()],
            inbox: Some("record".to_owned()),
            active: 1,
            scheduled: 2,
            parked: 3,
            dead_letters: 4,
        }]))
    }

    async fn peek(
        &self,
        entity: &EntityName,
        part: Part,
        _: Option<&SessionId>,
        _: Page,
    ) -> Result<Listing<view::PeekedMessage>> {
        if entity.as_str() == "empty" {
            return Ok(Listing::whole(Vec::new()));
        }
        let message =
            Message { message_id: Some("m1".into()), body: Body::Data(vec![0xff].into()), ..Message::default() };
        Ok(Listing::whole(vec![view::PeekedMessage {
            entity: entity.clone(),
            part,
            sequence_number: SequenceNumber(1),
            enqueued_at: AT.into(),
            due_at: None,
            delivery_count: 0,
            message: (&message).into(),
        }]))
    }

    async fn send(&self, entity: &EntityName, messages: Vec<Message>) -> Result<Vec<view::Sent>> {
        self.note(format!("send {} to {entity}", messages.len()));
        if entity.as_str() == "full" {
            return Err(Error::Full("the disk is full".to_owned()));
        }
        let sent = |(number, message): (usize, &Message)| view::Sent {
            message_id: message.message_id.clone(),
            sequence_number: Some(SequenceNumber(number as i64 + 1)),
        };
        Ok(messages.iter().enumerate().map(sent).collect())
    }

    async fn act(&self, wish: EventAction, caller: &Caller) -> Result<view::Action> {
        self.note(format!(
            "{} {} by {} key {:?} body {:?} again {}",
            wish.kind.name(),
            wish.event,
            caller.name,
            caller.idempotency_key,
            wish.body,
            wish.again
        ));
        match wish.event.as_str() {
            "skipped" => Err(Error::Conflict("event \"skipped\" is skipped since then".to_owned())),
            _ => Ok(action(wish.kind, "open")),
        }
    }

    async fn act_on_group(&self, wish: GroupAction, _: &Caller) -> Result<view::GroupResult> {
        Ok(view::GroupResult {
            group: wish.group,
            kind: wish.kind,
            dry_run: wish.dry_run,
            cut_off: wish.until.unwrap_or(AT).into(),
            count: 2,
            accepted: 1,
            refused: vec![view::Refused { event_id: "order-2".into(), text: "an action is open".to_owned() }],
            events: vec![],
            actions: vec![ActionId(7)],
        })
    }

    async fn skip_session(&self, wish: SkipSession, _: &Caller) -> Result<view::SessionSkip> {
        Ok(view::SessionSkip {
            endpoint: "billing".into(),
            session: wish.session,
            dry_run: wish.dry_run,
            cut_off: AT.into(),
            blocked_by: Some("order-1".into()),
            parked: 40,
            queued: 0,
            action: (!wish.dry_run).then_some(ActionId(8)),
        })
    }

    async fn copy_to(&self, _: &str, _: Option<&EndpointName>, _: &EndpointName, _: &Caller) -> Result<view::Sent> {
        Ok(view::Sent { message_id: Some("copy".into()), sequence_number: None })
    }

    async fn action(&self, id: ActionId, wait: Duration) -> Result<view::Action> {
        self.note(format!("action {id} wait {wait:?}"));
        if id.0 == 9 {
            // Never ends: only the host's stop ends the wait for it.
            tokio::time::sleep(wait).await;
            return Ok(action(ActionKind::Skip, "open"));
        }
        Ok(action(ActionKind::Resubmit, if wait.is_zero() { "open" } else { "applied" }))
    }

    async fn cancel_scheduled(&self, _: &EntityName, _: SequenceNumber, _: &Caller) -> Result<()> {
        Ok(())
    }

    async fn replay_dead_letters(&self, _: &EntityName, sequences: &[SequenceNumber], _: &Caller) -> Result<u64> {
        Ok(sequences.len() as u64)
    }

    async fn resolve_outbox(&self, _: i64, _: OutboxResolution, _: &Caller) -> Result<()> {
        Ok(())
    }

    async fn purge_inbox(&self, _: &EndpointName, _: Timestamp, _: &Caller) -> Result<u64> {
        Ok(5)
    }

    async fn health(&self) -> view::Health {
        view::Health {
            ready: false,
            checks: vec![view::HealthCheck {
                name: "endpoint billing".to_owned(),
                ok: false,
                reason: Some("not loaded: payment".to_owned()),
            }],
        }
    }
}

/// A serving API.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) asked: mpsc::UnboundedReceiver<String>,
    pub(crate) stop: oneshot::Sender<()>,
    pub(crate) served: tokio::task::JoinHandle<()>,
}

pub(crate) async fn serve() -> Served {
    let (note, asked) = mpsc::unbounded_channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let config = Config {
        listen: "127.0.0.1:0".parse().expect("an address"),
        token: TOKEN.to_owned(),
        operator: "tester".to_owned(),
    };
    let console = Console::bind(config).await.expect("a free port");
    let address = console.address();
    let served = tokio::spawn(async move {
        let stop = async {
            let _ = stopped.await;
        };
        console.serve(Arc::new(Fake(note)), stop).await.expect("served");
    });
    Served { address, asked, stop, served }
}

/// An answer of the API.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// By name in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Value,
}

/// One request with the right token and host unless a header says otherwise; an empty header is left out. Over a bare socket, so that a request can be as
/// wrong as a test needs it.
pub(crate) async fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<Vec<u8>>,
) -> Answer {
    let body = body.unwrap_or_default();
    let mut head = format!("{method} {path} HTTP/1.1\r\ncontent-length: {}\r\nconnection: close\r\n", body.len());
    let (host, token) = (address.to_string(), format!("Bearer {TOKEN}"));
    for (name, value) in [("host", host.as_str()), ("authorization", token.as_str())] {
        if !headers.iter().any(|(other, _)| *other == name) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let (mut read, mut write) = TcpStream::connect(address).await.expect("the API listens").into_split();
    let writing = tokio::spawn(async move {
        // An API that has heard enough answers and closes, and the rest cannot be written.
        if write.write_all(head.as_bytes()).await.is_ok() {
            let _ = write.write_all(&body).await;
        }
        write
    });
    let mut answer = Vec::new();
    // What came before a connection that was cut is the answer.
    let _ = read.read_to_end(&mut answer).await;
    drop(writing);
    let text = String::from_utf8(answer).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer with a head");
    let mut lines = head.lines();
    let status =
        lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|status| status.parse().ok()).expect("a status");
    let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    let body = serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned()));
    Answer { status, headers: lines.filter_map(header).collect(), body }
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> Answer {
    ask(address, "GET", path, &[], None).await
}

pub(crate) async fn post(address: SocketAddr, path: &str, body: &Value) -> Answer {
    ask(address, "POST", path, &[], Some(body.to_string().into_bytes())).await
}
