//! A session that this host holds, and the thread that holds it.
//!
//! The receiver takes one call at a time, so the thread does what it is asked one after another. A receive that waits is made of short waits,
//! between which the rest gets its turn: a renewal does not wait until a message comes.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ::azservicebus::{
    ServiceBusReceivedMessage, ServiceBusSessionReceiver, ServiceBusSessionReceiverOptions, receiver::DeadLetterOptions,
};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use sprag_core::{
    ids::{EntityName, SessionId},
    message::{Delivery, LockToken, Message, Origin},
};
use sprag_transport::{Error, Parked, Session, Settlement};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tracing::{debug, warn};

use crate::{
    address,
    config::EntitySettings,
    fault::{Fault, condition},
    message::Received,
    parked::ParkedSide,
    settle::Hands,
    transport::Shared,
};

use super::{
    fault::{is_null_state, meant},
    message::from_crate,
    worker::{self, Client, Clients, gone, within},
};

/// One wait of a receive. What else is asked waits for it to end, so it is short; each ends with a question to the broker, so not too short.
pub(super) const SLICE: Duration = Duration::from_millis(50);
/// Making a receiver takes some questions and answers, which a shorter wait for a session would never outlast.
const SHORTEST_WAIT: Duration = Duration::from_millis(250);
/// How long a client waits for its next session.
const IDLE: Duration = Duration::from_secs(60);
/// While a session is held back after its release, its lock is renewed when this part of it is left.
const RENEW_AT: u32 = 3;
/// The beginning of a lock is known well enough if it is known to this part of its duration.
const KNOWN_WITHIN: u32 = 8;

pub(super) enum Wanted {
    /// Whichever is next, for so long.
    Next(Duration),
    Named(SessionId),
}

/// What the thread is asked to do.
enum Command {
    Receive {
        until: Instant,
        answer: oneshot::Sender<Result<Option<(Received, LockToken)>, Fault>>,
    },
    Settle {
        lock: LockToken,
        how: Settlement,
        answer: oneshot::Sender<Result<(), Fault>>,
    },
    Renew {
        answer: oneshot::Sender<Result<(), Fault>>,
    },
    State {
        answer: oneshot::Sender<Result<Option<Bytes>, Fault>>,
    },
    SetState {
        state: Option<Bytes>,
        answer: oneshot::Sender<Result<(), Fault>>,
    },
    /// Gives the session back at this moment, and answers at once if that has come.
    Release {
        at: Instant,
        answer: oneshot::Sender<()>,
    },
}

/// A session that was asked for.
struct Asked {
    path: String,
    wanted: Wanted,
    lock_duration: Duration,
    granted: oneshot::Sender<Result<Granted, Fault>>,
}

pub(super) struct Granted {
    id: SessionId,
    /// A moment before the lock began.
    since: Instant,
    commands: mpsc::UnboundedSender<Command>,
}

/// Clients that have given their session back and wait for the next one.
#[derive(Default)]
pub(super) struct Idle(Mutex<Vec<oneshot::Sender<Asked>>>);

impl Idle {
    fn give(&self, mut asked: Asked) -> Result<(), Asked> {
        loop {
            let Some(client) = self.0.lock().pop() else { return Err(asked) };
            match client.send(asked) {
                Ok(()) => return Ok(()),
                // It has ended in the meantime.
                Err(back) => asked = back,
            }
        }
    }
}

pub(super) async fn accept(
    clients: &Arc<Clients>,
    source: &EntityName,
    wanted: Wanted,
    lock_duration: Duration,
) -> Result<Granted, Fault> {
    let (granted, outcome) = oneshot::channel();
    let asked = Asked { path: address::path(source), wanted, lock_duration, granted };
    if let Err(asked) = clients.idle.give(asked) {
        let clients = Arc::clone(clients);
        worker::spawn("azservicebus-session", move || serve(clients, asked));
    }
    outcome.await.map_err(|_| gone())?
}

/// One session after another, as long as the client is good.
async fn serve(clients: Arc<Clients>, mut asked: Asked) {
    let mut client = None;
    while let Some(kept) = one(&clients, client.take(), asked).await {
        let (offer, taken) = oneshot::channel();
        clients.idle.0.lock().push(offer);
        match tokio::time::timeout(IDLE, taken).await {
            Ok(Ok(next)) => asked = next,
            _ => return,
        }
        client = Some(kept);
    }
}

/// Accepts, holds and gives back. Answers the client if it can be used again.
async fn one(clients: &Clients, kept: Option<Client>, asked: Asked) -> Option<Client> {
    let Asked { path, wanted, lock_duration, mut granted } = asked;
    let accepting = async {
        if let Some(mut client) = kept {
            match accepted(clients, &mut client, &path, &wanted).await {
                // The connection may have ended while the client was idle, and a client that failed is not used again.
                Err(Fault::Gone(_)) => {}
                result => return result.map(|(receiver, since)| (client, receiver, since)),
            }
        }
        let mut client = clients.connect().await?;
        accepted(clients, &mut client, &path, &wanted).await.map(|(receiver, since)| (client, receiver, since))
    };
    let result = tokio::select! {
        result = accepting => result,
        // Nobody waits any more: the client ends with its thread, and the broker sees its connection end.
        () = granted.closed() => return None,
    };
    let (client, mut receiver, mut since) = match result {
        Ok(accepted) => accepted,
        Err(fault) => {
            drop(granted.send(Err(fault)));
            return None;
        }
    };
    // After a long wait it is not known when the broker granted.
    if since.elapsed() > lock_duration / KNOWN_WITHIN {
        since = Instant::now();
        if let Err(fault) = within(clients.limit * 2, receiver.renew_session_lock()).await {
            drop(granted.send(Err(fault)));
            return None;
        }
    }
    let (commands, queue) = mpsc::unbounded_channel();
    let id = SessionId::from(receiver.session_id());
    // If nobody waits any more, the commands end at once.
    drop(granted.send(Ok(Granted { id, since, commands })));
    let mut held = Holding {
        receiver,
        hands: HashMap::new(),
        spare: None,
        next: 0,
        ended: false,
        broken: false,
        lock_duration,
        limit: clients.limit * 2,
    };
    let told = held.serve(queue).await;
    let good = match held.broken {
        true => false,
        false => match within(clients.limit, held.receiver.dispose()).await {
            Ok(()) => true,
            Err(fault) => {
                debug!(%path, %fault, "a session is given back by the end of its connection");
                false
            }
        },
    };
    if let Some(told) = told {
        // Who released it may be gone.
        let _either_way = told.send(());
    }
    good.then_some(client)
}

/// The receiver, and a moment before it was asked for.
async fn accepted(
    clients: &Clients,
    client: &mut Client,
    path: &str,
    wanted: &Wanted,
) -> Result<(ServiceBusSessionReceiver, Instant), Fault> {
    let options = ServiceBusSessionReceiverOptions::default();
    let since = Instant::now();
    let receiver = match wanted {
        // A named session is there or held: the broker answers at once.
        Wanted::Named(id) => within(clients.limit, client.accept_session_for_queue(path, id.as_str(), options)).await?,
        Wanted::Next(wait) => {
            let next = client.accept_next_session_for_queue(path, options);
            match within(SHORTEST_WAIT.max(*wait), next).await {
                // The client does not say how long to wait; so we end the wait by ending the client.
                Err(Fault::Timeout(_)) => {
                    let text = "no session has come".to_owned();
                    return Err(Fault::Broker { condition: condition::TIMEOUT.to_owned(), text });
                }
                result => result?,
            }
        }
    };
    Ok((receiver, since))
}

/// What the thread knows of its session.
struct Holding {
    receiver: ServiceBusSessionReceiver,
    hands: HashMap<LockToken, ServiceBusReceivedMessage>,
    /// It came for a receive that nobody waited for any more.
    spare: Option<ServiceBusReceivedMessage>,
    next: u64,
    /// The lock is lost, or something was released, which this client can only do by ending the link.
    ended: bool,
    /// A call failed or was given up: its answer may come to the next one, so there is none.
    broken: bool,
    lock_duration: Duration,
    /// For one call.
    limit: Duration,
}

type Waiting = (Instant, oneshot::Sender<Result<Option<(Received, LockToken)>, Fault>>);

impl Holding {
    /// Until the session is to be given back. Answers who is to be told when it is.
    async fn serve(&mut self, mut queue: mpsc::UnboundedReceiver<Command>) -> Option<oneshot::Sender<()>> {
        let mut waiting: Option<Waiting> = None;
        loop {
            waiting = waiting.filter(|(_, answer)| !answer.is_closed());
            let in_hand = !self.hands.is_empty() && !self.ended;
            let command = match waiting.take() {
                None => queue.recv().await,
                // The next one is not asked for while one is in hand (A05).
                Some((until, answer)) if in_hand => match tokio::time::timeout_at(until, queue.recv()).await {
                    Ok(command) => {
                        waiting = Some((until, answer));
                        command
                    }
                    Err(_) => {
                        drop(answer.send(Ok(None)));
                        continue;
                    }
                },
                Some((until, answer)) => match queue.try_recv() {
                    Err(mpsc::error::TryRecvError::Empty) => {
                        waiting = self.wait_a_little(until, answer).await;
                        continue;
                    }
                    command => {
                        waiting = Some((until, answer));
                        command.ok()
                    }
                },
            };
            // Who asked may be gone, whatever the answer.
            match command? {
                Command::Receive { until, answer } => waiting = Some((until, answer)),
                Command::Settle { lock, how, answer } => drop(answer.send(self.settle(lock, how).await)),
                Command::Renew { answer } => drop(answer.send(self.renew().await)),
                Command::State { answer } => drop(answer.send(self.state().await)),
                Command::SetState { state, answer } => drop(answer.send(self.set_state(state).await)),
                Command::Release { at, answer } if at > Instant::now() => {
                    let _either_way = answer.send(());
                    self.hold_back(at).await;
                    return None;
                }
                Command::Release { answer, .. } => return Some(answer),
            }
        }
    }

    fn lost() -> Fault {
        Fault::Broker { condition: condition::SESSION_LOCK_LOST.to_owned(), text: "the session is lost".to_owned() }
    }

    /// What an error says about the rest of the session: anything but the broker's word on this one thing ends it.
    fn failed(&mut self, fault: Fault) -> Fault {
        self.broken |= !matches!(fault, Fault::Broker { .. });
        self.ended |= self.broken || fault.is_lock_lost();
        match fault.is(condition::MESSAGE_LOCK_LOST) {
            true => Self::lost(),
            false => fault,
        }
    }

    /// One wait of a receive. Answers what still waits.
    async fn wait_a_little(
        &mut self,
        until: Instant,
        answer: oneshot::Sender<Result<Option<(Received, LockToken)>, Fault>>,
    ) -> Option<Waiting> {
        if self.ended {
            drop(answer.send(Err(Self::lost())));
            return None;
        }
        let came = match self.spare.take() {
            Some(spare) => Ok(Some(spare)),
            None => {
                let left = until.saturating_duration_since(Instant::now()).clamp(Duration::from_millis(1), SLICE);
                self.receiver.receive_message_with_max_wait_time(left).await
            }
        };
        match came {
            Ok(Some(message)) if answer.is_closed() => {
                self.spare = Some(message);
                None
            }
            Ok(Some(message)) => {
                let received = from_crate(&message);
                self.next += 1;
                let lock = LockToken(self.next);
                self.hands.insert(lock, message);
                drop(answer.send(received.map(|received| Some((received, lock)))));
                None
            }
            Ok(None) if Instant::now() >= until => {
                drop(answer.send(Ok(None)));
                None
            }
            Ok(None) => Some((until, answer)),
            Err(error) => {
                debug!(session = self.receiver.session_id(), %error, "the link of a session has ended");
                (self.ended, self.broken) = (true, true);
                drop(answer.send(Err(Self::lost())));
                None
            }
        }
    }

    async fn renew(&mut self) -> Result<(), Fault> {
        if self.ended {
            return Err(Self::lost());
        }
        let renewed = within(self.limit, self.receiver.renew_session_lock()).await;
        renewed.map_err(|fault| self.failed(fault))
    }

    /// The renewal tells whether the lock holds; the settlement itself is sent and not answered. A lock that is lost between the two is found out
    /// by the redelivery (P1).
    async fn settle(&mut self, lock: LockToken, how: Settlement) -> Result<(), Fault> {
        let Self { receiver, hands, .. } = self;
        let Some(message) = hands.get(&lock) else { return Err(Self::lost()) };
        if how == Settlement::Release {
            // There is no word for it here, and abandoning counts: the link's end gives it back uncounted. Until then nothing may overtake it.
            self.ended = true;
            return Ok(());
        }
        if self.ended {
            return Err(Self::lost());
        }
        let settled = async {
            receiver.renew_session_lock().await?;
            match how {
                Settlement::Complete => receiver.complete_message(message).await,
                Settlement::Abandon => receiver.abandon_message(message, None).await,
                Settlement::DeadLetter { reason, description } => {
                    receiver.dead_letter_message(message, dead(reason, description)).await
                }
                Settlement::Release => Ok(()),
            }
        };
        let result = within(self.limit, settled).await;
        match result {
            Ok(()) => {
                self.hands.remove(&lock);
                Ok(())
            }
            Err(fault) => Err(self.failed(fault)),
        }
    }

    async fn state(&mut self) -> Result<Option<Bytes>, Fault> {
        if self.ended {
            return Err(Self::lost());
        }
        let read = tokio::time::timeout(self.limit, self.receiver.session_state()).await;
        match read {
            Ok(Ok(state)) => Ok(Some(Bytes::from(state)).filter(|state| !state.is_empty())),
            Ok(Err(error)) if is_null_state(&error) => Ok(None),
            Ok(Err(error)) => Err(self.failed(meant(&error))),
            Err(_) => Err(self.failed(Fault::Timeout(self.limit))),
        }
    }

    /// Null cannot be said: no bytes are, which read as no state, too (P32).
    async fn set_state(&mut self, state: Option<Bytes>) -> Result<(), Fault> {
        if self.ended {
            return Err(Self::lost());
        }
        let state = state.map(|state| state.to_vec()).unwrap_or_default();
        let written = within(self.limit, self.receiver.set_session_state(state)).await;
        written.map_err(|fault| self.failed(fault))
    }

    /// Nobody may have the session before this moment, and the broker cannot do that: it is held until then.
    async fn hold_back(&mut self, at: Instant) {
        while Instant::now() < at {
            if let Err(fault) = self.renew().await {
                let session = self.receiver.session_id();
                debug!(session, %fault, "a session that is held back is lost before its pause is over");
                return;
            }
            let renew_at = Instant::now() + (self.lock_duration - self.lock_duration / RENEW_AT);
            tokio::time::sleep_until(renew_at.min(at)).await;
        }
    }
}

pub(super) fn dead(reason: String, description: String) -> DeadLetterOptions {
    DeadLetterOptions {
        dead_letter_reason: Some(reason),
        dead_letter_error_description: Some(description),
        properties_to_modify: None,
    }
}

/// The session as the host sees it.
pub(super) struct HeldSession {
    shared: Arc<Shared>,
    source: EntityName,
    settings: EntitySettings,
    id: SessionId,
    lock: LockToken,
    commands: mpsc::UnboundedSender<Command>,
    /// Our numbers and the thread's, of what is in hand.
    main: Mutex<HashMap<LockToken, LockToken>>,
    parked: ParkedSide,
    parked_hands: Hands,
    /// Until when the lock holds, counted from before it was asked for. In the past once it is lost or given back.
    until: Mutex<Instant>,
}

impl HeldSession {
    pub(super) fn new(shared: Arc<Shared>, source: EntityName, settings: EntitySettings, granted: Granted) -> Self {
        Self {
            lock: shared.locks.next(),
            parked: ParkedSide::new(Arc::clone(&shared), source.clone(), granted.id.clone()),
            until: Mutex::new(granted.since + settings.lock_duration),
            shared,
            source,
            settings,
            id: granted.id,
            commands: granted.commands,
            main: Mutex::default(),
            parked_hands: Hands::default(),
        }
    }

    fn check(&self) -> Result<(), Error> {
        match self.remaining().is_zero() {
            true => Err(Error::LockLost),
            false => Ok(()),
        }
    }

    fn lost(&self) -> Error {
        *self.until.lock() = Instant::now();
        self.main.lock().clear();
        Error::LockLost
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<Result<T, Fault>>) -> Command) -> Result<T, Error> {
        let (answer, outcome) = oneshot::channel();
        // A thread that has ended has given its session back.
        if self.commands.send(command(answer)).is_err() {
            return Err(self.lost());
        }
        match outcome.await {
            Ok(result) => result.map_err(|fault| match fault {
                // This session's link or connection has ended; so has the lock.
                Fault::Gone(_) => self.lost(),
                fault if fault.is_lock_lost() => self.lost(),
                fault => fault.about(&self.source),
            }),
            Err(_) => Err(self.lost()),
        }
    }
}

#[async_trait]
impl Session for HeldSession {
    fn id(&self) -> &SessionId {
        &self.id
    }

    fn lock(&self) -> LockToken {
        self.lock
    }

    fn remaining(&self) -> Duration {
        self.until.lock().saturating_duration_since(Instant::now())
    }

    /// Both locks, if the parked side is held (P17). Without either, both are given up (P18).
    async fn renew(&self) -> Result<Duration, Error> {
        self.check()?;
        let asked = Instant::now();
        self.ask(|answer| Command::Renew { answer }).await?;
        {
            let mut until = self.until.lock();
            *until = (asked + self.settings.lock_duration).max(*until);
        }
        if let Err(error) = self.parked.renew().await {
            if matches!(error, Error::LockLost) {
                warn!(source = %self.source, session = %self.id, "the lock on a session's parked messages is lost");
                self.release(Duration::ZERO).await?;
                return Err(Error::LockLost);
            }
            return Err(error);
        }
        Ok(self.remaining())
    }

    async fn state(&self) -> Result<Option<Bytes>, Error> {
        self.check()?;
        self.ask(|answer| Command::State { answer }).await
    }

    async fn set_state(&self, state: Option<Bytes>) -> Result<(), Error> {
        self.check()?;
        self.ask(|answer| Command::SetState { state, answer }).await
    }

    async fn receive(&self, wait: Duration) -> Result<Option<Delivery>, Error> {
        self.check()?;
        let until = (Instant::now() + wait).min(*self.until.lock());
        let Some((received, theirs)) = self.ask(|answer| Command::Receive { until, answer }).await? else {
            self.check()?;
            return Ok(None);
        };
        let lock = self.shared.locks.next();
        self.main.lock().insert(lock, theirs);
        Ok(Some(delivery(received, lock, &self.settings)))
    }

    async fn receive_parked(&self) -> Result<Parked, Error> {
        self.check()?;
        self.parked.receive(&self.parked_hands).await
    }

    async fn park(&self, delivery: &Delivery, _sequence: u32, copy: &Message) -> Result<(), Error> {
        self.check()?;
        if delivery.origin == Origin::Parked {
            return Err(Error::Refused("what is parked is not parked again".into()));
        }
        self.parked.park(copy).await
    }

    async fn settle(&self, lock: LockToken, settlement: Settlement) -> Result<(), Error> {
        if let Some(hand) = self.parked_hands.get(lock) {
            self.check()?;
            return self.parked.settle(&self.parked_hands, lock, &hand, settlement).await;
        }
        let theirs = self.main.lock().get(&lock).copied();
        let Some(theirs) = theirs else { return Err(Error::LockLost) };
        self.check()?;
        self.ask(|answer| Command::Settle { lock: theirs, how: settlement, answer }).await?;
        self.main.lock().remove(&lock);
        Ok(())
    }

    async fn release(&self, pause: Duration) -> Result<(), Error> {
        self.parked.close().await;
        self.parked_hands.forget(Origin::Parked);
        self.lost();
        let (answer, done) = oneshot::channel();
        let at = Instant::now() + pause;
        if self.commands.send(Command::Release { at, answer }).is_ok() {
            // The thread has ended or has heard: either way the session goes back.
            let _either_way = done.await;
        }
        Ok(())
    }
}

pub(super) fn delivery(received: Received, lock: LockToken, settings: &EntitySettings) -> Delivery {
    Delivery {
        sequence: received.sequence,
        origin: Origin::Main,
        lock,
        // The header counts earlier ones.
        delivery_count: received.delivery_count.saturating_add(1),
        max_delivery_count: settings.max_delivery_count,
        enqueued_at: received.enqueued_at,
        parked_as: None,
        id_assigned: received.id_assigned,
        message: Arc::new(received.message),
    }
}
