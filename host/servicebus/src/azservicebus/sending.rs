//! Sending: for each entity a client, which sends one thing after another.

use std::{sync::Arc, time::Duration};

use ::azservicebus::{ServiceBusMessage, ServiceBusSenderOptions};
use sprag_core::ids::EntityName;
use tokio::sync::{mpsc, oneshot};

use crate::{address, fault::Fault};

use super::worker::{self, Clients, gone, within};

/// A sender that nobody uses is closed after this long.
const IDLE: Duration = Duration::from_secs(300);
/// Sends that wait their turn; who comes later waits to be let in.
const QUEUE: usize = 64;

struct Job {
    messages: Vec<ServiceBusMessage>,
    done: oneshot::Sender<Result<(), Fault>>,
}

#[derive(Clone)]
pub(super) struct Sender {
    jobs: mpsc::Sender<Job>,
}

impl Sender {
    pub(super) fn start(clients: &Arc<Clients>, entity: &EntityName) -> Self {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let (clients, path) = (Arc::clone(clients), address::path(entity));
        worker::spawn("azservicebus-send", move || serve(clients, path, queue));
        Self { jobs }
    }

    pub(super) fn lives(&self) -> bool {
        !self.jobs.is_closed()
    }

    /// Sends all or none. Dropped, it has sent all or none. After an error that is not the broker's refusal, it is not known which.
    pub(super) async fn send(&self, messages: Vec<ServiceBusMessage>) -> Result<(), Fault> {
        let (done, outcome) = oneshot::channel();
        self.jobs.send(Job { messages, done }).await.map_err(|_| gone())?;
        outcome.await.map_err(|_| gone())?
    }
}

async fn serve(clients: Arc<Clients>, path: String, mut queue: mpsc::Receiver<Job>) {
    let opened = async {
        let mut client = clients.connect().await?;
        let sender = within(clients.limit, client.create_sender(&path, ServiceBusSenderOptions::default())).await?;
        Ok((client, sender))
    };
    let (_client, mut sender) = match opened.await {
        Ok(opened) => opened,
        Err(fault) => return refuse(queue, &fault).await,
    };
    while let Ok(Some(Job { messages, done })) = tokio::time::timeout(IDLE, queue.recv()).await {
        let result = within(clients.limit * 2, sender.send_messages(messages)).await;
        // What the broker refuses leaves the link as it is; after anything else this client is not used again.
        let ended = result.as_ref().err().filter(|fault| !matches!(fault, Fault::Broker { .. })).cloned();
        // Who asked may be gone.
        drop(done.send(result));
        if let Some(fault) = ended {
            return refuse(queue, &fault).await;
        }
    }
    // Between the last look and the end of the queue somebody may have come.
    refuse(queue, &gone()).await;
}

/// Nothing of this was sent.
async fn refuse(mut queue: mpsc::Receiver<Job>, fault: &Fault) {
    queue.close();
    while let Some(job) = queue.recv().await {
        drop(job.done.send(Err(fault.clone())));
    }
}
