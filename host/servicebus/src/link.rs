//! A link on which messages are received, and the task that owns it.
//!
//! Credit is given one by one: the broker hands over a message when somebody asked for one, and what came for one who no longer waits is kept
//! for the next who asks. Nothing else ever sits here locked.
//!
//! *Invariant:* asking, waiting and attaching may be dropped at any point. The task ends with its [`Link`], and gives back what it held.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use fe2o3_amqp::{
    Receiver,
    link::{RecvError, delivery::DeliveryInfo, receiver::CreditMode},
    session::SessionHandle,
};
use fe2o3_amqp_types::{
    definitions::{Error as AmqpError, ErrorCondition, Fields, ReceiverSettleMode, SenderSettleMode},
    messaging::{Body, Message, Modified, Rejected, Source, message::__private::Serializable},
    primitives::{LazyValue, OrderedMap, Symbol, Value},
};
use parking_lot::Mutex;
use sprag_core::ids::SessionId;
use sprag_transport::Settlement;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::Instant,
};
use tracing::{debug, warn};

use crate::{
    connection::{Client, Connection, Room},
    ear::Heard,
    fault::{Fault, condition},
    message::Received,
};

const SESSION_FILTER: &str = "com.microsoft:session-filter";
/// How long the broker's answer to our goodbye is awaited.
const GOODBYE: Duration = Duration::from_secs(5);
const DEAD_LETTER: &str = "com.microsoft:dead-letter";

/// What a link is to receive.
#[derive(Debug, Clone)]
pub(crate) enum From {
    Plain,
    Session(SessionId),
    /// The next free session; the broker is told how long to look for one.
    NextSession(Duration),
}

/// A message in hand.
#[derive(Clone)]
pub(crate) struct Arrival {
    pub(crate) received: Received,
    /// The lock token, in network order.
    pub(crate) lock: [u8; 16],
    pub(crate) info: DeliveryInfo,
    pub(crate) at: Instant,
}

pub(crate) struct Link {
    pub(crate) connection: Arc<Connection>,
    name: String,
    session: Option<SessionId>,
    shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<Command>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Arrival>,
    end: Option<Fault>,
}

enum Command {
    Want,
    Settle { info: Box<DeliveryInfo>, settlement: Settlement, done: oneshot::Sender<Result<(), Fault>> },
    Close(oneshot::Sender<()>),
}

impl Link {
    /// Attaches. Dropped, it leaves nothing: an attach that is under way is taken back with the session that is its own.
    pub(crate) async fn open(client: &Arc<Client>, path: &str, from: From) -> Result<Self, Fault> {
        let (connection, room) = client.with_room().await?;
        connection.authorize(path).await?;
        let (give, opened) = oneshot::channel();
        let (alive, gone) = oneshot::channel::<()>();
        let path = path.to_owned();
        tokio::spawn(async move {
            // An error here means that nobody waits any more: then the link is dropped, which closes it.
            let _ = give.send(attach(connection, room, &path, from, gone).await);
        });
        let result = opened.await.map_err(|_| Fault::Gone("the task that attaches has ended".to_owned()));
        drop(alive);
        result?
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The session that was granted.
    pub(crate) fn session(&self) -> Option<&SessionId> {
        self.session.as_ref()
    }

    pub(crate) fn end(&self) -> Option<Fault> {
        self.shared.state.lock().end.clone()
    }

    /// Once the link has ended.
    pub(crate) async fn ended(&self) {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.shared.state.lock().end.is_some() {
                return;
            }
            changed.await;
        }
    }

    /// The next message, once there is one; none after `until`.
    pub(crate) async fn receive(&self, until: Instant) -> Result<Option<Arrival>, Fault> {
        let mut asked = false;
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.shared.state.lock();
                if let Some(fault) = &state.end {
                    return Err(fault.clone());
                }
                if let Some(arrival) = state.ready.pop_front() {
                    return Ok(Some(arrival));
                }
            }
            if !asked {
                asked = true;
                // When the task has ended, the state says why.
                let _ = self.commands.send(Command::Want);
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(until) => return Ok(self.shared.state.lock().ready.pop_front()),
            }
        }
    }

    /// Waits, without asking for anything, until a message has come or the link has ended: true. Or until a moment: false.
    pub(crate) async fn arrived(&self, until: Instant) -> bool {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.shared.state.lock();
                if state.end.is_some() || !state.ready.is_empty() {
                    return true;
                }
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(until) => return false,
            }
        }
    }

    /// What came and nobody took.
    pub(crate) fn left_over(&self) -> Vec<Arrival> {
        self.shared.state.lock().ready.drain(..).collect()
    }

    /// Settles by a disposition, and answers what the broker says of it.
    pub(crate) async fn settle(&self, info: DeliveryInfo, settlement: Settlement) -> Result<(), Fault> {
        let (done, result) = oneshot::channel();
        let gone = || self.end().unwrap_or_else(|| Fault::Gone("the link is closed".to_owned()));
        self.commands.send(Command::Settle { info: Box::new(info), settlement, done }).map_err(|_| gone())?;
        result.await.map_err(|_| gone())?
    }

    /// Closes, and waits until the broker has heard of it. No error: a link that has ended is closed.
    pub(crate) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.commands.send(Command::Close(done)).is_ok() {
            // An error: it ended by itself meanwhile.
            let _ = closed.await;
        }
    }
}

async fn attach(
    connection: Arc<Connection>,
    room: Room,
    path: &str,
    from: From,
    gone: oneshot::Receiver<()>,
) -> Result<Link, Fault> {
    let mut session = connection.begin().await?;
    let (name, limit) = (connection.client().unique_name("receive"), connection.limit());
    let limit = match from {
        From::NextSession(wait) => limit + wait,
        _ => limit,
    };
    let attached = tokio::select! {
        attached = tokio::time::timeout(limit, receiver(&mut session, &name, path, &from)) => {
            attached.unwrap_or(Err(Fault::Timeout(limit)))
        }
        _dropped = gone => Err(Fault::Gone("nobody waits for the link any more".to_owned())),
    };
    let mut receiver = match attached {
        Ok(receiver) => receiver,
        Err(fault) => {
            let fault = connection.why(&name, fault).await;
            say_goodbye(None, session).await;
            return Err(fault);
        }
    };
    let granted = granted(&mut receiver);
    if granted.is_none() && !matches!(from, From::Plain) {
        say_goodbye(Some(receiver), session).await;
        return Err(Fault::Gone("the broker grants a session and does not say which".to_owned()));
    }
    let shared = Arc::new(Shared::default());
    let (commands, queue) = mpsc::unbounded_channel();
    let answers = Answers { heard: Arc::clone(connection.heard()), link: name.clone(), limit: connection.limit() };
    let task = run(receiver, session, Arc::clone(&shared), queue, answers);
    tokio::spawn(async move {
        task.await;
        drop(room);
    });
    Ok(Link { connection, name, session: granted, shared, commands })
}

async fn receiver(session: &mut SessionHandle<()>, name: &str, path: &str, from: &From) -> Result<Receiver, Fault> {
    let mut source = Source::builder().address(path);
    let mut properties = Fields::new();
    let filter = match from {
        From::Plain => None,
        From::Session(id) => Some(Value::String(id.to_string())),
        From::NextSession(wait) => {
            let wait = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
            properties.insert(Symbol::from(condition::TIMEOUT), Value::Uint(wait));
            Some(Value::Null)
        }
    };
    if let Some(filter) = filter {
        let mut filters = OrderedMap::new();
        filters.insert(Symbol::from(SESSION_FILTER), filter);
        source = source.filter(filters);
    }
    let attached = Receiver::builder()
        .name(name)
        .source(source.build())
        .sender_settle_mode(SenderSettleMode::Unsettled)
        .receiver_settle_mode(ReceiverSettleMode::Second)
        .credit_mode(CreditMode::Manual)
        .properties(properties)
        .attach(session)
        .await;
    Ok(attached?)
}

/// The id of the session, as the broker writes it into the filter of its answer.
fn granted(receiver: &mut Receiver) -> Option<SessionId> {
    let filter = receiver.source().as_ref()?.filter.as_ref()?.get(&Symbol::from(SESSION_FILTER))?;
    match filter {
        Value::String(id) => Some(id.as_str().into()),
        Value::Described(described) => match &described.value {
            Value::String(id) => Some(id.as_str().into()),
            _ => None,
        },
        _ => None,
    }
}

async fn run(
    mut receiver: Receiver,
    session: SessionHandle<()>,
    shared: Arc<Shared>,
    mut queue: mpsc::UnboundedReceiver<Command>,
    answers: Answers,
) {
    let mut armed = false;
    let (fault, closed) = loop {
        tokio::select! {
            command = queue.recv() => match command {
                None => break (closed(), None),
                Some(Command::Close(done)) => break (closed(), Some(done)),
                Some(Command::Want) => {
                    if armed || !shared.state.lock().ready.is_empty() {
                        continue;
                    }
                    if let Err(error) = receiver.set_credit(1).await {
                        break (Fault::Gone(error.to_string()), None);
                    }
                    armed = true;
                }
                Some(Command::Settle { info, settlement, done }) => {
                    let answer = answers.to(&info);
                    let sent = dispose(&receiver, *info, settlement).await;
                    tokio::spawn(async move {
                        let result = match sent {
                            Ok(()) => answer.await,
                            Err(fault) => Err(fault),
                        };
                        // Who does not wait any more does not hear of it.
                        let _ = done.send(result);
                    });
                }
            },
            delivery = receiver.recv::<Body<LazyValue>>() => match delivery {
                Ok(delivery) => {
                    let (tag, (info, message)) = (delivery.delivery_tag().to_vec(), delivery.into_parts());
                    match arrival(&tag, info.clone(), message) {
                        Ok(arrival) => {
                            armed = false;
                            shared.state.lock().ready.push_back(arrival);
                            shared.changed.notify_waiters();
                        }
                        Err(problem) => {
                            if let Err(fault) = set_aside(&mut receiver, info, &problem).await {
                                break (fault, None);
                            }
                        }
                    }
                }
                Err(RecvError::MessageDecode(error)) => {
                    let problem = error.source.to_string();
                    if let Err(fault) = set_aside(&mut receiver, error.info, &problem).await {
                        break (fault, None);
                    }
                }
                Err(error) => break (error.into(), None),
            },
        }
    };
    answers.heard.forget(&answers.link);
    shared.state.lock().end = Some(fault);
    shared.changed.notify_waiters();
    say_goodbye(Some(receiver), session).await;
    if let Some(done) = closed {
        // Who does not wait any more does not hear of it.
        let _ = done.send(());
    }
}

/// What the broker says of settlements on a link, overheard.
struct Answers {
    heard: Arc<Heard>,
    link: String,
    limit: Duration,
}

impl Answers {
    fn to(&self, info: &DeliveryInfo) -> impl Future<Output = Result<(), Fault>> + Send + use<> {
        let (answer, limit) = (self.heard.answer(&self.link, info.delivery_id()), self.limit);
        async move {
            let gone =
                || Fault::Gone("the link has ended, and it is not known whether the message is settled".to_owned());
            let answer = answer.ok_or_else(gone)?;
            tokio::time::timeout(limit, answer).await.map_err(|_| Fault::Timeout(limit))?.map_err(|_| gone())?
        }
    }
}

fn closed() -> Fault {
    Fault::Gone("the link was closed".to_owned())
}

/// A message that the client library cannot decode can never be handled, and it would stand before all others of its session for ever: it goes to the
/// dead letters, under a name of its own. Whoever waits goes on waiting.
async fn set_aside(receiver: &mut Receiver, info: DeliveryInfo, problem: &str) -> Result<(), Fault> {
    warn!(problem, "a message cannot be decoded and goes to the dead letters");
    let why = Settlement::DeadLetter { reason: "UndecodableMessage".to_owned(), description: problem.to_owned() };
    dispose(receiver, info, why).await?;
    receiver.set_credit(1).await.map_err(|error| Fault::Gone(error.to_string()))
}

async fn dispose(receiver: &Receiver, info: DeliveryInfo, settlement: Settlement) -> Result<(), Fault> {
    let done = match settlement {
        Settlement::Complete => receiver.accept(info).await,
        Settlement::Release => receiver.release(info).await,
        Settlement::Abandon => {
            let modified =
                Modified { delivery_failed: Some(true), undeliverable_here: Some(false), message_annotations: None };
            receiver.modify(info, modified).await
        }
        Settlement::DeadLetter { reason, description } => {
            let mut why = Fields::new();
            why.insert(Symbol::from("DeadLetterReason"), Value::String(reason));
            why.insert(Symbol::from("DeadLetterErrorDescription"), Value::String(description));
            let error = AmqpError::new(ErrorCondition::Custom(Symbol::from(DEAD_LETTER)), None, Some(why));
            receiver.reject(info, Rejected { error: Some(error) }.error).await
        }
    };
    done.map_err(|error| Fault::Gone(error.to_string()))
}

/// The library's message, in our own reader's hands: what it decoded is encoded again, which loses nothing.
fn arrival(tag: &[u8], info: DeliveryInfo, mut message: Message<Body<LazyValue>>) -> Result<Arrival, String> {
    let at = Instant::now();
    let unwritten = |error: serde_amqp::Error| error.to_string();
    let footer = message.footer.take();
    let no_body = message.body.is_empty();
    let mut bytes = serde_amqp::to_vec(&Serializable(message)).map_err(unwritten)?;
    if no_body {
        // The library writes a null in place of a body that is not there (A83).
        bytes.truncate(bytes.strip_suffix(&NULL_BODY).ok_or("the library writes no null for no body")?.len());
    }
    if let Some(footer) = footer {
        bytes.extend(serde_amqp::to_vec(&footer).map_err(unwritten)?);
    }
    let received = Received::read(Bytes::from(bytes)).map_err(|error| error.to_string())?;
    let lock = lock_of(tag).ok_or("its tag is no lock token")?;
    Ok(Arrival { received, lock, info, at })
}

/// A section that is a value, and null.
const NULL_BODY: [u8; 4] = [0, 0x53, 0x77, 0x40];

/// A tag is the token in .NET's order of bytes, the first three fields swapped (A11).
fn lock_of(tag: &[u8]) -> Option<[u8; 16]> {
    let mut token: [u8; 16] = tag.try_into().ok()?;
    token[..4].reverse();
    token[4..6].reverse();
    token[6..8].reverse();
    Some(token)
}

async fn say_goodbye(receiver: Option<Receiver>, mut session: SessionHandle<()>) {
    let goodbye = async {
        if let Some(receiver) = receiver
            && let Err(error) = receiver.close().await
        {
            debug!(%error, "a link for receiving was not closed in order");
        }
        if let Err(error) = session.end().await {
            debug!(%error, "a session of the protocol was not ended in order");
        }
    };
    if tokio::time::timeout(GOODBYE, goodbye).await.is_err() {
        debug!("the broker does not answer to the end of a link");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A11: a known tag and the token that it stands for, 00010203-0405-0607-0809-0a0b0c0d0e0f.
    #[test]
    fn a_tag_is_a_token_with_three_fields_swapped() {
        let tag = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
        assert_eq!(lock_of(&tag), Some(std::array::from_fn(|n| n as u8)));
        assert_eq!(lock_of(b"short"), None);
    }
}
