//! Messages that clients receive: taken from the engine as far as credit, window and the client's reading let.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use sprag_amqp::connection::{LinkKey, Outgoing, SessionKey};
use sprag_broker::client::{ClientMessage, ClientSession, Error, Mode, Settle, Source};
use sprag_core::message::LockToken;

use super::{Cancel, Done, Kind, Link, OUTPUT_LIMIT, Peer};
use crate::amqp::{
    failure::Failure,
    message::{self, Handed},
};

/// The most messages taken at a time, and about how many bytes of them.
const MAX_TAKE: usize = 256;
const TAKE_BYTES: usize = 1 << 20;
/// What a message is thought to weigh before one was seen.
const FIRST_GUESS: usize = 32 << 10;
/// Deliveries of one link that may be unsettled. A receiver that never settles is given no more than this.
const MAX_UNSETTLED: usize = 20_000;
/// As long as it takes: a wait that the link's end or its credit's ends.
const NO_LIMIT: Duration = Duration::from_secs(86_400 * 365);

/// Where a link's messages come from.
#[derive(Clone)]
pub(super) enum From {
    Plain(Source),
    Session(Arc<ClientSession>),
}

impl From {
    async fn receive(&self, max: usize, wait: Duration) -> Result<Vec<ClientMessage>, Error> {
        match self {
            Self::Plain(source) => source.receive(max, wait, Mode::PeekLock).await,
            Self::Session(session) => session.receive(max, wait, Mode::PeekLock).await,
        }
    }

    pub(super) async fn settle(&self, lock: LockToken, how: Settle) -> Result<(), Error> {
        match self {
            Self::Plain(source) => source.settle(lock, how).await,
            Self::Session(session) => session.settle(lock, how).await,
        }
    }
}

/// A link on which a client receives.
pub(super) struct Receiver {
    pub(super) from: From,
    mode: Mode,
    /// Ends the take that is under way.
    taking: Option<Cancel>,
    /// Ends what watches over the session's lock.
    pub(super) end: Cancel,
    drain: bool,
    /// Deleted from the entity, and the client has taken its credit back since.
    ready: VecDeque<ClientMessage>,
    weight: usize,
    unsettled: usize,
}

impl Receiver {
    pub(super) fn new(from: From, mode: Mode) -> Self {
        Self {
            from,
            mode,
            taking: None,
            end: Cancel::default(),
            drain: false,
            ready: VecDeque::new(),
            weight: FIRST_GUESS,
            unsettled: 0,
        }
    }

    pub(super) fn cancel_all(&self) {
        self.end.cancel();
        if let Some(taking) = &self.taking {
            taking.cancel();
        }
    }

    pub(super) fn session(&self) -> Option<Arc<ClientSession>> {
        match &self.from {
            From::Session(session) => Some(Arc::clone(session)),
            _ => None,
        }
    }

    /// One delivery is over.
    pub(super) fn settled(&mut self) {
        self.unsettled = self.unsettled.saturating_sub(1);
    }
}

/// What a take has brought.
pub(in crate::amqp) struct Taken {
    link: LinkKey,
    from: From,
    messages: Result<Vec<ClientMessage>, Error>,
}

impl Peer {
    fn receiver(&mut self, key: LinkKey) -> Option<&mut Receiver> {
        match self.links.get_mut(&key) {
            Some(Link { kind: Kind::Receiver(receiver), .. }) => Some(receiver),
            _ => None,
        }
    }

    pub(super) fn credit_changed(&mut self, key: LinkKey, drain: bool) {
        if let Some(receiver) = self.receiver(key) {
            receiver.drain = drain;
            // It waits with the credit from before: it looks again with the new one.
            if let Some(taking) = &receiver.taking {
                taking.cancel();
            }
            self.used(key);
            self.pump(key);
        } else if matches!(self.links.get(&key), Some(Link { kind: Kind::Replies(_), .. })) {
            self.reply_credit(key, drain);
        }
    }

    pub(super) fn window_opened(&mut self, session: SessionKey) {
        let of_session: Vec<LinkKey> = self.links.keys().filter(|link| link.session() == session).copied().collect();
        of_session.into_iter().for_each(|link| self.pump(link));
    }

    /// Takes messages for a link, if it wants some and none are under way.
    pub(super) fn pump(&mut self, key: LinkKey) {
        self.deliver_ready(key);
        let deliverable = self.amqp.deliverable(key) as usize;
        let (full, stopping) = (self.amqp.output_len() >= OUTPUT_LIMIT, self.stopping);
        let credit = self.amqp.credit(key);
        let Some(receiver) = self.receiver(key) else { return };
        if receiver.taking.is_some() || stopping {
            return;
        }
        if receiver.drain && credit == 0 {
            return self.drained(key);
        }
        if deliverable == 0 {
            return;
        }
        if full {
            return self.starved.push(key);
        }
        if receiver.unsettled >= MAX_UNSETTLED {
            let text = format!("{MAX_UNSETTLED} messages of this link are not settled; settle before receiving more");
            return self.detach(key, &Failure::too_many(text));
        }
        let max = deliverable.min(MAX_TAKE).min((TAKE_BYTES / receiver.weight.max(1)).max(1));
        let wait = if receiver.drain { Duration::ZERO } else { NO_LIMIT };
        let cancel = Cancel::default();
        receiver.taking = Some(cancel.clone());
        let (from, delete) = (receiver.from.clone(), receiver.mode == Mode::Delete);
        self.wait(async move {
            let messages = tokio::select! {
                biased;
                messages = from.receive(max, wait) => messages,
                () = cancel.cancelled() => Ok(Vec::new()),
            };
            let messages = match messages {
                Ok(messages) if delete => Ok(deleted(&from, messages).await),
                other => other,
            };
            Done::Taken(Taken { link: key, from, messages })
        });
    }

    fn drained(&mut self, key: LinkKey) {
        if let Some(receiver) = self.receiver(key) {
            receiver.drain = false;
        }
        // A link that has gone needs no answer.
        let _ = self.amqp.drained(key);
    }

    pub(super) fn taken(&mut self, taken: Taken) {
        let Taken { link: key, from, messages } = taken;
        let Some(receiver) = self.receiver(key) else {
            // The link has gone in the meantime. A session has given everything back with itself, and what is deleted is deleted.
            if let Ok(messages) = messages
                && matches!(from, From::Plain(_))
            {
                self.release(from, messages.into());
            }
            return;
        };
        receiver.taking = None;
        let messages = match messages {
            Ok(messages) => messages,
            Err(error) => return self.detach(key, &error.into()),
        };
        let found = !messages.is_empty();
        receiver.ready.extend(messages);
        let drain = receiver.drain;
        self.deliver_ready(key);
        if drain && !found && self.amqp.deliverable(key) > 0 {
            return self.drained(key);
        }
        self.pump(key);
    }

    /// Hands over what was taken, as far as the credit reaches; the rest goes back, in order, or waits when it is nowhere else any more.
    fn deliver_ready(&mut self, key: LinkKey) {
        loop {
            let credit = self.amqp.credit(key);
            let Some(receiver) = self.receiver(key) else { return };
            if receiver.ready.is_empty() {
                return;
            }
            if credit == 0 {
                if receiver.mode == Mode::PeekLock {
                    let (from, rest) = (receiver.from.clone(), std::mem::take(&mut receiver.ready));
                    self.release(from, rest);
                }
                return;
            }
            let Some(message) = receiver.ready.pop_front() else { return };
            self.deliver(key, &message);
        }
    }

    fn release(&mut self, from: From, messages: VecDeque<ClientMessage>) {
        self.write(async move {
            for lock in messages.iter().filter_map(|message| message.lock) {
                if let Err(error) = from.settle(lock.token, Settle::Release).await {
                    tracing::debug!(%error, "a message that nobody wanted was not given back");
                }
            }
            Done::Released
        });
    }

    fn deliver(&mut self, key: LinkKey, message: &ClientMessage) {
        let tokens = self.context.tokens;
        let Some(receiver) = self.receiver(key) else { return };
        let settled = receiver.mode == Mode::Delete;
        let lock = message.lock.map(|lock| lock.token).filter(|_| !settled);
        let (tag, handed) = match lock {
            Some(lock) => (tokens.tag(lock), Handed::Locked(tokens.uuid(lock))),
            None => {
                // Nobody settles by it, but the SDKs read it as a UUID.
                let mut tag = [0; 16];
                tag[..8].copy_from_slice(&message.sequence.0.to_be_bytes());
                (tag, Handed::Deleted)
            }
        };
        let mut payload = Vec::with_capacity(message.message.body.len() + 512);
        message::write(&mut payload, message, handed);
        receiver.weight = (receiver.weight * 3 + payload.len()) / 4;
        let outgoing = Outgoing { tag: Bytes::copy_from_slice(&tag), payload: payload.into(), format: 0, settled };
        match (self.amqp.deliver(key, outgoing), lock) {
            (Ok(delivery), Some(lock)) => {
                self.locks.insert(lock, (key, delivery));
                self.used(key);
                if let Some(receiver) = self.receiver(key) {
                    receiver.unsettled += 1;
                }
            }
            (Ok(_), None) => self.used(key),
            (Err(error), lock) => {
                tracing::debug!(%error, sequence = message.sequence.0, "a message could not be handed over");
                if let (Some(lock), Some(receiver)) = (lock, self.receiver(key)) {
                    // The receiver's own limit, or a link that has just gone: for somebody else, and it counts.
                    let from = receiver.from.clone();
                    self.write(async move {
                        if let Err(error) = from.settle(lock, Settle::Abandon { modified: Vec::new() }).await {
                            tracing::debug!(%error, "a message that could not be handed over was not given back");
                        }
                        Done::Released
                    });
                }
            }
        }
    }
}

/// Deletes what was taken. What could not be deleted is not handed over: it comes again when its lock has lapsed.
async fn deleted(from: &From, messages: Vec<ClientMessage>) -> Vec<ClientMessage> {
    let deleting = messages.into_iter().map(|message| async move {
        let lock = message.lock?.token;
        match from.settle(lock, Settle::Complete).await {
            Ok(()) => Some(message),
            Err(error) => {
                tracing::warn!(sequence = message.sequence.0, %error, "a message could not be deleted and is not handed over");
                None
            }
        }
    });
    futures_util::future::join_all(deleting).await.into_iter().flatten().collect()
}
