//! Deliveries of entities without sessions: for each entity a client with one receiver.
//!
//! As in `session`, what is asked is done one after another, and a receive that waits is made of short waits. What comes for a receive that
//! nobody waits for any more is given back by our own client, which knows how to without counting it.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use ::azservicebus::{ServiceBusReceivedMessage, ServiceBusReceiver, ServiceBusReceiverOptions};
use sprag_core::{
    ids::EntityName,
    message::{Delivery, LockToken},
};
use sprag_transport::Settlement;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::Instant,
};
use tracing::debug;

use crate::{
    address,
    config::EntitySettings,
    fault::{Fault, condition},
    management::Management,
    transport::Shared,
};

use super::{
    message::from_crate,
    session::{SLICE, dead, delivery},
    worker::{self, Client, Clients, gone, within},
};

/// After the first message: how long the next ones may take that are there already.
const NEXT: Duration = Duration::from_millis(10);
/// A receiver that nobody uses is closed after this long, if nothing of it is in hand.
const IDLE: Duration = Duration::from_secs(60);

enum Command {
    Receive(Waiting),
    Settle { lock: LockToken, how: Settlement, answer: oneshot::Sender<Result<(), Fault>> },
    Renew { lock: LockToken, answer: oneshot::Sender<Result<Duration, Fault>> },
}

struct Waiting {
    max: usize,
    until: Instant,
    answer: oneshot::Sender<Result<Vec<Delivery>, Fault>>,
}

#[derive(Clone)]
pub(super) struct Receiver {
    commands: mpsc::UnboundedSender<Command>,
}

impl Receiver {
    pub(super) fn start(clients: &Arc<Clients>, shared: &Arc<Shared>, source: &EntityName) -> Self {
        let (commands, queue) = mpsc::unbounded_channel();
        let (clients, shared, source) = (Arc::clone(clients), Arc::clone(shared), source.clone());
        // Our own client lives on the runtime of whoever asks.
        let home = Handle::current();
        worker::spawn("azservicebus-receive", move || serve(clients, shared, source, home, queue));
        Self { commands }
    }

    pub(super) fn lives(&self) -> bool {
        !self.commands.is_closed()
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, Fault>>) -> Command,
        otherwise: impl Fn() -> Fault,
    ) -> Result<T, Fault> {
        let (answer, outcome) = oneshot::channel();
        self.commands.send(command(answer)).map_err(|_| otherwise())?;
        outcome.await.map_err(|_| otherwise())?
    }

    pub(super) async fn receive(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>, Fault> {
        let until = Instant::now() + wait;
        self.ask(|answer| Command::Receive(Waiting { max, until, answer }), gone).await
    }

    /// A receiver that has ended has nothing in hand: what it had comes again when its lock lapses.
    pub(super) async fn renew(&self, lock: LockToken) -> Result<Duration, Fault> {
        self.ask(|answer| Command::Renew { lock, answer }, lost).await
    }

    pub(super) async fn settle(&self, lock: LockToken, how: Settlement) -> Result<(), Fault> {
        self.ask(|answer| Command::Settle { lock, how, answer }, lost).await
    }
}

fn lost() -> Fault {
    Fault::Broker { condition: condition::MESSAGE_LOCK_LOST.to_owned(), text: "the lock is lost".to_owned() }
}

async fn serve(
    clients: Arc<Clients>,
    shared: Arc<Shared>,
    source: EntityName,
    home: Handle,
    queue: mpsc::UnboundedReceiver<Command>,
) {
    let opened = async {
        let mut client = clients.connect().await?;
        let options = ServiceBusReceiverOptions::default();
        let receiver = client.create_receiver_for_queue(address::path(&source), options);
        let receiver = within(clients.limit, receiver).await?;
        Ok::<(Client, ServiceBusReceiver), Fault>((client, receiver))
    };
    let mut queue = queue;
    match opened.await {
        Ok((_client, receiver)) => {
            let settings = shared.settings(&source, false);
            let hands = HashMap::new();
            let limit = clients.limit * 2;
            let mut taking = Taking { receiver, hands, shared, source, settings, home, limit };
            let why = taking.serve(&mut queue).await;
            refuse(queue, &why);
        }
        Err(fault) => refuse(queue, &fault),
    }
}

/// Whoever asked is told, and nobody asks any more.
fn refuse(mut queue: mpsc::UnboundedReceiver<Command>, fault: &Fault) {
    queue.close();
    while let Ok(command) = queue.try_recv() {
        match command {
            Command::Receive(waiting) => drop(waiting.answer.send(Err(fault.clone()))),
            Command::Settle { answer, .. } => drop(answer.send(Err(lost()))),
            Command::Renew { answer, .. } => drop(answer.send(Err(lost()))),
        }
    }
}

struct InHand {
    message: ServiceBusReceivedMessage,
    /// A moment before its lock began, or was last renewed.
    since: Instant,
}

/// What the thread knows of its receiver.
struct Taking {
    receiver: ServiceBusReceiver,
    hands: HashMap<LockToken, InHand>,
    shared: Arc<Shared>,
    source: EntityName,
    settings: EntitySettings,
    home: Handle,
    /// For one call.
    limit: Duration,
}

impl Taking {
    /// Until nobody asks any more, or the client is not to be used any more. Answers why.
    async fn serve(&mut self, queue: &mut mpsc::UnboundedReceiver<Command>) -> Fault {
        let mut waiting: VecDeque<Waiting> = VecDeque::new();
        loop {
            waiting.retain(|one| !one.answer.is_closed());
            while let Some(over) = waiting.iter().position(|one| one.until <= Instant::now()) {
                let over = waiting.remove(over).expect("it was just found");
                drop(over.answer.send(Ok(Vec::new())));
            }
            let command = match waiting.is_empty() {
                true => match tokio::time::timeout(IDLE, queue.recv()).await {
                    Ok(Some(command)) => command,
                    Ok(None) => return gone(),
                    Err(_) if self.forget_lapsed() => return gone(),
                    Err(_) => continue,
                },
                false => match queue.try_recv() {
                    Ok(command) => command,
                    Err(mpsc::error::TryRecvError::Disconnected) => return gone(),
                    Err(mpsc::error::TryRecvError::Empty) => {
                        if let Err(fault) = self.wait_a_little(&mut waiting).await {
                            for one in waiting {
                                drop(one.answer.send(Err(fault.clone())));
                            }
                            return fault;
                        }
                        continue;
                    }
                },
            };
            let broken = match command {
                Command::Receive(one) => {
                    // Also one that does not want to wait gets what is there.
                    let until = one.until.max(Instant::now() + NEXT);
                    waiting.push_back(Waiting { until, ..one });
                    None
                }
                Command::Settle { lock, how, answer } => {
                    let result = self.settle(lock, how).await;
                    let broken = result.as_ref().err().filter(|fault| !matches!(fault, Fault::Broker { .. })).cloned();
                    drop(answer.send(result));
                    broken
                }
                Command::Renew { lock, answer } => {
                    let result = self.renew(lock).await;
                    let broken = result.as_ref().err().filter(|fault| !matches!(fault, Fault::Broker { .. })).cloned();
                    drop(answer.send(result));
                    broken
                }
            };
            if let Some(fault) = broken {
                for one in waiting {
                    drop(one.answer.send(Err(fault.clone())));
                }
                return fault;
            }
        }
    }

    /// What was never settled is not kept for ever: its lock has lapsed. Answers whether nothing is in hand.
    fn forget_lapsed(&mut self) -> bool {
        let lapsed = self.settings.lock_duration * 4;
        self.hands.retain(|_, hand| hand.since.elapsed() < lapsed);
        self.hands.is_empty()
    }

    /// One wait for the first who waits; and what else is there, for the same one.
    async fn wait_a_little(&mut self, waiting: &mut VecDeque<Waiting>) -> Result<(), Fault> {
        let Some(first) = waiting.front() else { return Ok(()) };
        let left = first.until.saturating_duration_since(Instant::now()).clamp(Duration::from_millis(1), SLICE);
        let more = u32::try_from(first.max - 1).unwrap_or(u32::MAX);
        let since = Instant::now();
        let failed = |error| {
            debug!(%error, "a link of the client `azservicebus` has ended under a receive");
            super::fault::meant(&error)
        };
        // Asked for several, it waits until it has all of them, or its time is over.
        let mut came = self.receiver.receive_messages_with_max_wait_time(1, left).await.map_err(failed)?;
        if came.is_empty() {
            return Ok(());
        }
        if more > 0 {
            match self.receiver.receive_messages_with_max_wait_time(more.min(1_000), NEXT).await {
                Ok(rest) => came.extend(rest),
                Err(error) => debug!(%error, "a link has ended under a receive: the next one finds out"),
            }
        }
        self.forget_lapsed();
        let first = waiting.pop_front().expect("it is still there");
        let mut deliveries = Vec::with_capacity(came.len());
        for message in came {
            match from_crate(&message) {
                Ok(received) => {
                    let lock = self.shared.locks.next();
                    self.hands.insert(lock, InHand { message, since });
                    deliveries.push(delivery(received, lock, &self.settings));
                }
                Err(fault) => debug!(source = %self.source, %fault, "a message comes again when its lock has lapsed"),
            }
        }
        if let Err(Ok(unwanted)) = first.answer.send(Ok(deliveries)) {
            for delivery in unwanted {
                if let Some(hand) = self.hands.remove(&delivery.lock) {
                    self.give_back(&hand.message, None);
                }
            }
        }
        Ok(())
    }

    /// By our own client: here there is no word for giving back uncounted.
    fn give_back(&self, message: &ServiceBusReceivedMessage, answer: Option<oneshot::Sender<Result<(), Fault>>>) {
        let lock = message.lock_token().clone().into_inner();
        let management = Management::of(&self.shared.client, &self.source);
        let source = self.source.clone();
        self.home.spawn(async move {
            let result = management.settle(None, [lock], &Settlement::Release).await;
            match (answer, result) {
                (Some(answer), result) => drop(answer.send(result)),
                (None, Err(fault)) => debug!(%source, %fault, "a message comes again when its lock has lapsed"),
                (None, Ok(())) => {}
            }
        });
    }

    /// The renewal tells whether the lock holds; the settlement itself is sent and not answered. A lock that is lost between the two is found out
    /// by the redelivery (P1).
    async fn settle(&mut self, lock: LockToken, how: Settlement) -> Result<(), Fault> {
        if how == Settlement::Release {
            let Some(hand) = self.hands.remove(&lock) else { return Err(lost()) };
            let (answer, outcome) = oneshot::channel();
            self.give_back(&hand.message, Some(answer));
            return outcome.await.map_err(|_| lost())?;
        }
        let Some(mut hand) = self.hands.remove(&lock) else { return Err(lost()) };
        let receiver = &mut self.receiver;
        let settled = async {
            receiver.renew_message_lock(&mut hand.message).await?;
            match how {
                Settlement::Complete => receiver.complete_message(&hand.message).await,
                Settlement::Abandon => receiver.abandon_message(&hand.message, None).await,
                Settlement::DeadLetter { reason, description } => {
                    receiver.dead_letter_message(&hand.message, dead(reason, description)).await
                }
                Settlement::Release => Ok(()),
            }
        };
        within(self.limit, settled).await
    }

    async fn renew(&mut self, lock: LockToken) -> Result<Duration, Fault> {
        let Some(hand) = self.hands.get_mut(&lock) else { return Err(lost()) };
        let asked = Instant::now();
        match within(self.limit, self.receiver.renew_message_lock(&mut hand.message)).await {
            Ok(()) => {
                hand.since = asked;
                Ok(self.settings.lock_duration.saturating_sub(asked.elapsed()))
            }
            Err(fault) => {
                if fault.is_lock_lost() {
                    self.hands.remove(&lock);
                }
                Err(fault)
            }
        }
    }
}
