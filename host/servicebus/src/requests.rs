//! Requests and their answers, on `$cbs` and on `entity/$management`.
//!
//! Each request has an id that no other has, and its answer is found by it: who stops waiting leaves nothing behind, and a late answer is
//! nobody's (azservicebus hands it to the next one who asks).

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use fe2o3_amqp::{Receiver, Sendable, Sender, link::receiver::CreditMode};
use fe2o3_amqp_types::{
    definitions::{ReceiverSettleMode, SenderSettleMode},
    messaging::{AmqpValue, ApplicationProperties, Body, Message, MessageId, Properties, Target},
    primitives::{LazyValue, SimpleValue},
};
use parking_lot::Mutex;
use serde_amqp::read::SliceReader;
use sprag_amqp::{
    decode::Reader,
    encode,
    value::{Map, Value},
};
use tokio::sync::{mpsc, oneshot};
use tracing::debug;

use crate::{connection::Connection, fault::Fault, token::Token};

/// Answers that the broker may have under way.
const CREDIT: u32 = 100;
/// Requests that wait to be written. More have to wait to be taken.
const QUEUE: usize = 64;

/// A pair of links.
pub(crate) struct Requests {
    jobs: mpsc::Sender<Message<AmqpValue<LazyValue>>>,
    waiting: Arc<Waiting>,
    reply_to: String,
    limit: Duration,
}

/// Who waits for which answer. Closed when no answer can come any more.
#[derive(Default)]
struct Waiting {
    next: AtomicU64,
    by_id: Mutex<Option<HashMap<String, oneshot::Sender<Answer>>>>,
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: i32,
    pub(crate) body: Map,
    text: String,
    condition: Option<String>,
}

/// Takes a request off the list when nobody waits for it any more.
struct Guard<'a> {
    waiting: &'a Waiting,
    id: String,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(all) = self.waiting.by_id.lock().as_mut() {
            all.remove(&self.id);
        }
    }
}

impl Requests {
    pub(crate) async fn open(connection: &Arc<Connection>, address: &str) -> Result<Self, Fault> {
        let client = connection.client();
        let reply_to = client.unique_name("reply");
        let (sender_name, receiver_name) = (client.unique_name("ask"), client.unique_name("answer"));
        let target = Target::builder().address(reply_to.clone()).build();
        let ((sender, mut receiver), session) = connection
            .attach(async |session| {
                let sender = match Sender::builder().name(&sender_name).target(address).attach(session).await {
                    Ok(sender) => sender,
                    Err(error) => return Err(connection.why(&sender_name, error.into()).await),
                };
                let receiver = Receiver::builder()
                    .name(&receiver_name)
                    .source(address)
                    .target(target)
                    .sender_settle_mode(SenderSettleMode::Settled)
                    .receiver_settle_mode(ReceiverSettleMode::First)
                    .credit_mode(CreditMode::Manual)
                    .attach(session)
                    .await;
                match receiver {
                    Ok(receiver) => Ok((sender, receiver)),
                    Err(error) => Err(connection.why(&receiver_name, error.into()).await),
                }
            })
            .await?;
        receiver.set_credit(CREDIT).await.map_err(|error| Fault::Gone(error.to_string()))?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        let waiting = Arc::new(Waiting { next: AtomicU64::new(1), by_id: Mutex::new(Some(HashMap::new())) });
        let (writing, written) = oneshot::channel::<()>();
        tokio::spawn(async move {
            write(sender, queue).await;
            drop(writing);
        });
        let answers = Arc::clone(&waiting);
        tokio::spawn(async move {
            let closed = async {
                // An error: the writer has ended, which is what this waits for.
                let _ = written.await;
            };
            read(receiver, answers, closed).await;
            // It ends with the links.
            drop(session);
        });
        Ok(Self { jobs, waiting, reply_to, limit: connection.limit() })
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.jobs.is_closed() && self.waiting.by_id.lock().is_some()
    }

    /// Asks an entity. An answer other than a success is a fault. May be dropped at any time.
    pub(crate) async fn ask(&self, operation: &str, link: Option<&str>, body: Map) -> Result<Answer, Fault> {
        let mut properties = ApplicationProperties::builder()
            .insert("operation", format!("com.microsoft:{operation}"))
            // A little less than we wait, so that the broker gives up before we do.
            .insert(
                "com.microsoft:server-timeout",
                u32::try_from((self.limit * 9 / 10).as_millis()).unwrap_or(u32::MAX),
            );
        if let Some(link) = link {
            properties = properties.insert("associated-link-name", link);
        }
        self.exchange(properties.build(), &Value::Map(body)).await
    }

    pub(crate) async fn put_token(&self, audience: &str, token: &Token) -> Result<(), Fault> {
        let properties = ApplicationProperties::builder()
            .insert("operation", "put-token")
            .insert("type", token.kind)
            .insert("name", audience)
            .insert("expiration", SimpleValue::Timestamp(token.expires_at.0.into()));
        match self.exchange(properties.build(), &Value::String(token.text.clone())).await {
            Err(Fault::Broker { text, .. }) => Err(Fault::Unauthorized(text)),
            other => other.map(drop),
        }
    }

    async fn exchange(&self, properties: ApplicationProperties, body: &Value) -> Result<Answer, Fault> {
        let id = format!("{}-{}", self.reply_to, self.waiting.next.fetch_add(1, Relaxed));
        let message = Message::builder()
            .properties(
                Properties::builder().message_id(MessageId::String(id.clone())).reply_to(self.reply_to.clone()).build(),
            )
            .application_properties(properties)
            .body(AmqpValue(lazy(body)?))
            .build();
        let gone = || Fault::Gone("the link for requests is closed".to_owned());
        let (give, answer) = oneshot::channel();
        self.waiting.by_id.lock().as_mut().ok_or_else(gone)?.insert(id.clone(), give);
        let _guard = Guard { waiting: &self.waiting, id };
        let exchange = async {
            self.jobs.send(message).await.map_err(|_| gone())?;
            answer.await.map_err(|_| gone())
        };
        let answer = tokio::time::timeout(self.limit, exchange).await.map_err(|_| Fault::Timeout(self.limit))??;
        match answer.status {
            200..300 => Ok(answer),
            status => {
                let condition = answer.condition.unwrap_or_else(|| match status {
                    401 => "amqp:unauthorized-access".to_owned(),
                    404 => crate::fault::condition::NOT_FOUND.to_owned(),
                    410 => crate::fault::condition::MESSAGE_LOCK_LOST.to_owned(),
                    503 => "com.microsoft:server-busy".to_owned(),
                    status => format!("status {status}"),
                });
                Err(Fault::Broker { condition, text: answer.text })
            }
        }
    }
}

/// A value of ours for the library to send as it is.
fn lazy(value: &Value) -> Result<LazyValue, Fault> {
    let mut bytes = Vec::new();
    encode::value(&mut bytes, value);
    LazyValue::from_reader(&mut SliceReader::new(&bytes)).map_err(|error| Fault::Refused(error.to_string()))
}

async fn write(mut sender: Sender, mut queue: mpsc::Receiver<Message<AmqpValue<LazyValue>>>) {
    while let Some(message) = queue.recv().await {
        let sendable = Sendable::builder().message(message).settled(true).build();
        if let Err(error) = sender.send_batchable(sendable).await {
            debug!(%error, "a request could not be sent");
            return;
        }
    }
}

async fn read(mut receiver: Receiver, waiting: Arc<Waiting>, closed: impl Future<Output = ()>) {
    tokio::pin!(closed);
    let mut since = 0;
    let why = loop {
        let delivery = tokio::select! {
            // Whoever asked has gone, or the other half of the pair.
            () = &mut closed => break Fault::Gone("requests cannot be sent any more".to_owned()),
            delivery = receiver.recv::<Body<LazyValue>>() => delivery,
        };
        let delivery = match delivery {
            Ok(delivery) => delivery,
            Err(fe2o3_amqp::link::RecvError::MessageDecode(error)) => {
                debug!(%error, "an answer cannot be read");
                continue;
            }
            Err(error) => break error.into(),
        };
        // Does nothing to one that is settled already, as they are.
        if let Err(error) = receiver.accept(&delivery).await {
            break Fault::Gone(error.to_string());
        }
        since += 1;
        if since == CREDIT / 2 {
            since = 0;
            if let Err(error) = receiver.set_credit(CREDIT).await {
                break Fault::Gone(error.to_string());
            }
        }
        answered(&waiting, delivery.into_message());
    };
    debug!(%why, "a link for answers is closed");
    // Dropped, they tell who waits.
    *waiting.by_id.lock() = None;
}

fn answered(waiting: &Waiting, message: Message<Body<LazyValue>>) {
    let id = match message.properties.as_ref().and_then(|properties| properties.correlation_id.as_ref()) {
        Some(MessageId::String(id)) => id.clone(),
        other => return debug!(?other, "an answer to nobody"),
    };
    let Some(give) = waiting.by_id.lock().as_mut().and_then(|all| all.remove(&id)) else {
        return debug!(id, "an answer that nobody waits for any more");
    };
    match read_answer(message) {
        Ok(answer) => drop(give.send(answer)),
        // Who waits hears that the link is closed, which it is not, but there is no answer.
        Err(problem) => debug!(id, problem, "an answer cannot be read"),
    }
}

fn read_answer(message: Message<Body<LazyValue>>) -> Result<Answer, String> {
    let properties = message.application_properties.unwrap_or_default().0;
    let find = |names: [&str; 2]| names.iter().find_map(|name| properties.get(*name));
    let text = |value: &SimpleValue| match value {
        SimpleValue::String(text) => Some(text.clone()),
        SimpleValue::Symbol(text) => Some(text.to_string()),
        _ => None,
    };
    let status = match find(["statusCode", "status-code"]) {
        Some(SimpleValue::Int(status)) => *status,
        Some(SimpleValue::Long(status)) => i32::try_from(*status).map_err(|error| error.to_string())?,
        other => return Err(format!("its status is {other:?}")),
    };
    let body = match message.body {
        Body::Value(AmqpValue(value)) => {
            let bytes: Bytes = value.into_bytes();
            match Reader::new(&bytes).value().map_err(|error| error.to_string())? {
                Value::Map(map) => map,
                _ => Map::new(),
            }
        }
        _ => Map::new(),
    };
    Ok(Answer {
        status,
        body,
        text: find(["statusDescription", "status-description"]).and_then(text).unwrap_or_default(),
        condition: find(["errorCondition", "error-condition"]).and_then(text),
    })
}
