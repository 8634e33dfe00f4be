//! A link on which messages are sent.
//!
//! Everything goes as a batch, one message too: the message-format of Service Bus in which each data section is one encoded message. So the
//! bytes of a message are ours, whatever types it has, and all of a batch is taken or none.

use std::{sync::Arc, time::Duration};

use fe2o3_amqp::Sendable;
use fe2o3_amqp_types::messaging::{
    Batch, Data, Message as AmqpMessage, MessageAnnotations, MessageId, Outcome, Properties,
};
use sprag_amqp::message::BATCH_FORMAT;
use sprag_core::message::Message;
use tokio::sync::{mpsc, oneshot};

use crate::{connection::Connection, fault::Fault, message};

/// Batches that wait to be written.
const QUEUE: usize = 64;

pub(crate) struct Sender {
    jobs: mpsc::Sender<Job>,
    limit: Duration,
}

struct Job {
    batch: AmqpMessage<Batch<Data>>,
    done: oneshot::Sender<Result<(), Fault>>,
}

impl Sender {
    pub(crate) async fn open(connection: &Arc<Connection>, path: &str) -> Result<Self, Fault> {
        let name = connection.client().unique_name("send");
        let (sender, session) = connection
            .attach(async |session| {
                match fe2o3_amqp::Sender::builder().name(&name).target(path).attach(session).await {
                    Ok(sender) => Ok(sender),
                    Err(error) => Err(connection.why(&name, error.into()).await),
                }
            })
            .await?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        tokio::spawn(async move {
            write(sender, queue).await;
            // It ends with the link.
            drop(session);
        });
        Ok(Self { jobs, limit: connection.limit() })
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.jobs.is_closed()
    }

    /// Sends all or none, and answers when the broker has them. Dropped, it has sent all or none.
    pub(crate) async fn send(&self, messages: &[Message]) -> Result<(), Fault> {
        let gone = || Fault::Gone("the link for sending is closed".to_owned());
        let (done, outcome) = oneshot::channel();
        let job = Job { batch: batch(messages), done };
        let sent = async {
            self.jobs.send(job).await.map_err(|_| gone())?;
            outcome.await.map_err(|_| gone())?
        };
        tokio::time::timeout(self.limit, sent).await.map_err(|_| Fault::Timeout(self.limit))?
    }
}

/// The envelope has the id, the session and the key of the first one, as the SDKs write it: partitions are chosen by it.
fn batch(messages: &[Message]) -> AmqpMessage<Batch<Data>> {
    let sections: Vec<_> = messages.iter().map(|one| Data(message::encode(one).into())).collect();
    let mut properties = Properties::new();
    let mut annotations = MessageAnnotations::builder();
    if let Some(first) = messages.first() {
        properties.message_id = first.message_id.as_ref().map(|id| MessageId::String(id.to_string()));
        properties.group_id = first.session_id.as_ref().map(|id| id.to_string());
        if let Some(key) = &first.partition_key {
            let name = fe2o3_amqp_types::primitives::Symbol::from(message::annotations::PARTITION_KEY.as_str());
            annotations = annotations.insert(name, key.to_string());
        }
    }
    AmqpMessage::builder()
        .message_annotations(Some(annotations.build()))
        .properties(Some(properties))
        .body(Batch::new(sections))
        .build()
}

async fn write(mut sender: fe2o3_amqp::Sender, mut queue: mpsc::Receiver<Job>) {
    loop {
        let job = tokio::select! {
            job = queue.recv() => job,
            // A link that the broker closes while nothing is sent (A79) is no link for the next one.
            error = sender.on_detach() => {
                tracing::debug!(%error, "a link for sending is closed");
                return;
            }
        };
        let Some(Job { batch, done }) = job else { break };
        let sendable = Sendable::builder().message(batch).message_format(BATCH_FORMAT).build();
        match sender.send_batchable(sendable).await {
            Ok(outcome) => {
                tokio::spawn(async move {
                    // Who does not wait any more does not hear of it.
                    let _ = done.send(read(outcome.await));
                });
            }
            Err(error) => {
                let over = !error.recovery().link_is_usable();
                let _ = done.send(Err(error.into()));
                if over {
                    return;
                }
            }
        }
    }
    if let Err(error) = sender.close().await {
        tracing::debug!(%error, "a link for sending was not closed in order");
    }
}

fn read(outcome: Result<Outcome, fe2o3_amqp::link::SendError>) -> Result<(), Fault> {
    match outcome? {
        Outcome::Accepted(_) => Ok(()),
        Outcome::Rejected(rejected) => Err(match rejected.error {
            Some(error) => error.into(),
            None => Fault::Refused("the broker rejects the message and does not say why".to_owned()),
        }),
        // Not taken, and no fault of the message.
        Outcome::Released(_) | Outcome::Modified(_) => {
            Err(Fault::Broker { condition: "amqp:released".to_owned(), text: "the broker did not take it".to_owned() })
        }
    }
}
