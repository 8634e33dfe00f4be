//! What one client does here: its links, the sessions that it holds, and the work that it waits for.
//!
//! A [`Peer`] joins the state machine of the protocol ([`sprag_amqp::connection::Connection`]) and the engine. It waits for nothing: events
//! go in, and what takes time becomes a [`Job`], whose end comes back as [`Done`]. All of it runs in the one task of the connection, which
//! reads and writes the socket ([`super::socket`]).
//!
//! *Invariant:* what was begun for a client that has gone is ended without it: what waits is cancelled and has taken nothing, what writes
//! runs to its end.

mod attach;
mod idle;
mod login;
mod receiving;
mod requests;
mod sending;
mod settling;

use std::{
    collections::{BTreeMap, HashMap},
    pin::Pin,
    sync::Arc,
    time::Instant,
};

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use sprag_amqp::connection::{Connection, Event, IncomingKey, LinkKey, OutgoingKey, SessionKey};
use sprag_broker::client::{ClientSession, Error};
use sprag_core::{ids::SessionId, message::LockToken, time::Timestamp};
use tokio::sync::Notify;

use super::{address::Place, context::Context, failure::Failure, permission::Permissions};
use crate::access::Right;
use idle::Idle;
pub(super) use idle::Limits as IdleLimits;
use receiving::{Receiver, Taken};
use requests::{Answered, Replies};
use sending::Sent;
use settling::Settled;
pub(super) use settling::modified;

/// Bytes that wait to be written above which no message is taken for anybody, and nothing more is read.
const OUTPUT_LIMIT: usize = 1 << 20;
/// Bytes of messages that came and are not in the file yet, above which nothing more is read.
const INPUT_LIMIT: usize = 16 << 20;

pub(super) type Job = Pin<Box<dyn Future<Output = Done> + Send>>;

/// How a job has ended.
pub(super) enum Done {
    Sent(Sent),
    Accepted { link: LinkKey, session: Result<Option<ClientSession>, Error> },
    Taken(Taken),
    Settled(Settled),
    Answered(Box<Answered>),
    SessionLost(LinkKey),
    Released,
    Cancelled,
}

/// Ends a wait. Each has one who waits.
#[derive(Debug, Clone, Default)]
pub(super) struct Cancel(Arc<Notify>);

impl Cancel {
    pub(super) fn cancel(&self) {
        self.0.notify_one();
    }

    pub(super) async fn cancelled(&self) {
        self.0.notified().await;
    }
}

/// A link, and the right that it needs.
struct Link {
    place: Option<Place>,
    right: Option<Right>,
    kind: Kind,
}

enum Kind {
    /// A session is awaited for it.
    Asking {
        attach: Arc<sprag_amqp::performative::Attach>,
        cancel: Cancel,
    },
    Sender(sprag_broker::client::Target),
    Receiver(Box<Receiver>),
    /// On which requests come: to an entity, or with tokens.
    Requests,
    Replies(Replies),
}

pub(super) struct Peer {
    context: Arc<Context>,
    pub(super) amqp: Connection,
    jobs: FuturesUnordered<Job>,
    /// Jobs that write: the broker does not stop before they have ended.
    writing: usize,
    links: BTreeMap<LinkKey, Link>,
    /// Sessions that this connection holds, by entity (small letters) and id.
    held: HashMap<(String, SessionId), Arc<ClientSession>>,
    /// Deliveries that nobody has settled, by their locks.
    locks: HashMap<LockToken, (LinkKey, OutgoingKey)>,
    /// Receivers that wait for the client to read.
    starved: Vec<LinkKey>,
    permissions: Permissions,
    /// What is used, and when it was last.
    idle: Idle<LinkKey>,
    unwritten: usize,
    stopping: bool,
}

impl Peer {
    pub(super) fn new(context: Arc<Context>) -> Self {
        let now = Instant::now();
        Self {
            amqp: Connection::new(Arc::clone(&context.protocol), now),
            idle: Idle::new(context.settings.idle, now),
            permissions: Permissions::new(context.access.clone()),
            context,
            jobs: FuturesUnordered::new(),
            writing: 0,
            links: BTreeMap::new(),
            held: HashMap::new(),
            locks: HashMap::new(),
            starved: Vec::new(),
            unwritten: 0,
            stopping: false,
        }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// Whether more may be read: not while what came before waits to be written into the file, or to the client.
    pub(super) fn reads(&self) -> bool {
        let closing = self.stopping && self.amqp.is_open();
        self.amqp.wants_input() && !closing && self.unwritten < INPUT_LIMIT && self.amqp.output_len() < OUTPUT_LIMIT
    }

    /// Does all that can be done without waiting.
    pub(super) fn advance(&mut self) {
        loop {
            let mut moved = false;
            while let Some(event) = self.amqp.poll_event() {
                self.on_event(event);
                moved = true;
            }
            while let Some(Some(done)) = self.jobs.next().now_or_never() {
                self.finish(done);
                moved = true;
            }
            if !moved {
                break;
            }
        }
        if self.stopping && self.writing == 0 {
            // Gone already is closed already.
            let _ = self.amqp.close(Some(Failure::stopping()));
        }
    }

    pub(super) fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Waits until a job has ended, and deals with it.
    pub(super) async fn next_job(&mut self) -> Option<Done> {
        self.jobs.next().await
    }

    pub(super) fn finish(&mut self, done: Done) {
        match done {
            Done::Sent(sent) => self.sent(sent),
            Done::Accepted { link, session } => self.accepted(link, session),
            Done::Taken(taken) => self.taken(taken),
            Done::Settled(settled) => self.settled(settled),
            Done::Answered(answered) => self.answered(*answered),
            Done::SessionLost(link) => self.session_lost(link),
            Done::Released => self.writing -= 1,
            Done::Cancelled => {}
        }
    }

    /// What was written has reached the socket: who waited for that goes on.
    pub(super) fn drained_output(&mut self) {
        for link in std::mem::take(&mut self.starved) {
            self.pump(link);
        }
    }

    /// The broker stops: nothing new is begun, what writes is waited for, and then the connection is closed.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
        self.cancel_waits();
    }

    /// The time for stopping is over.
    pub(super) fn stop_now(&mut self) {
        // Gone already is closed already.
        let _ = self.amqp.close(Some(Failure::stopping()));
    }

    fn cancel_waits(&mut self) {
        for link in self.links.values() {
            match &link.kind {
                Kind::Asking { cancel, .. } => cancel.cancel(),
                Kind::Receiver(receiver) => receiver.cancel_all(),
                Kind::Sender(_) | Kind::Requests | Kind::Replies(_) => {}
            }
        }
    }

    /// The connection is gone. Runs what has to run to its end.
    pub(super) async fn end(mut self) {
        self.forget_all();
        while let Some(done) = self.jobs.next().await {
            if let Done::Accepted { session: Ok(Some(session)), .. } = done {
                // Dropped, it is given back.
                drop(session);
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::SaslInit { mechanism, response, .. } => self.log_in(mechanism.as_str(), response.as_deref()),
            Event::SaslResponse { response } => self.log_in("PLAIN", Some(&response)),
            Event::Opened { .. } | Event::SessionBegun { .. } => {}
            Event::AttachRequested { link, attach } => self.attach(link, attach),
            Event::Delivery(delivery) => self.received(delivery),
            Event::CreditChanged { link, drain, .. } => self.credit_changed(link, drain),
            Event::WindowOpened { session } => self.window_opened(session),
            Event::Disposition { deliveries, settled, state } => self.disposed(deliveries, settled, state),
            // Sent and withdrawn at once: it is in the file or will be; there is nobody to tell.
            Event::Withdrawn { .. } => {}
            Event::Detached { link, .. } => self.forget(link),
            Event::SessionEnded { session, .. } => self.forget_session(session),
            Event::Closed { error, .. } => {
                if let Some(error) = error {
                    tracing::debug!(condition = %error.condition, text = ?error.description, "a connection was closed");
                }
                self.forget_all();
            }
        }
    }

    /// A link is gone: its waits end, its session is given back. Messages that it had without a session stay locked until their locks lapse.
    fn forget(&mut self, key: LinkKey) {
        let Some(link) = self.links.remove(&key) else { return };
        self.idle.gone(key, Instant::now());
        self.context.counters.links(-1);
        match link.kind {
            Kind::Asking { cancel, .. } => cancel.cancel(),
            Kind::Receiver(receiver) => {
                receiver.cancel_all();
                self.locks.retain(|_, (link, _)| *link != key);
                if let Some(session) = receiver.session() {
                    self.give_back(&session);
                }
            }
            Kind::Sender(_) | Kind::Requests | Kind::Replies(_) => {}
        }
    }

    fn give_back(&mut self, session: &Arc<ClientSession>) {
        self.held.remove(&(session.source().name().as_str().to_ascii_lowercase(), session.id().clone()));
        self.context.counters.sessions(-1);
        let session = Arc::clone(session);
        self.write(async move {
            if let Err(error) = session.release().await {
                // Lost before: it is somebody else's already.
                tracing::debug!(session = %session.id(), %error, "a session was not given back");
            }
            Done::Released
        });
    }

    fn forget_session(&mut self, session: SessionKey) {
        let of_session: Vec<LinkKey> = self.links.keys().filter(|link| link.session() == session).copied().collect();
        of_session.into_iter().for_each(|link| self.forget(link));
    }

    fn forget_all(&mut self) {
        let all: Vec<LinkKey> = self.links.keys().copied().collect();
        all.into_iter().for_each(|link| self.forget(link));
    }

    /// Detaches a link because of a failure. The peer is told; nothing more is heard of the link.
    fn detach(&mut self, link: LinkKey, failure: &Failure) {
        // It may have detached by itself in the meantime.
        let _ = self.amqp.detach(link, Some(&failure.to_error()));
        self.forget(link);
    }

    /// Begins something that ends by itself or is cancelled.
    fn wait(&mut self, job: impl Future<Output = Done> + Send + 'static) {
        self.jobs.push(Box::pin(job));
    }

    /// Begins something that has to run to its end. Its [`Done`] takes it off the count.
    fn write(&mut self, job: impl Future<Output = Done> + Send + 'static) {
        self.writing += 1;
        self.jobs.push(Box::pin(job));
    }

    fn now(&self) -> Timestamp {
        self.context.now()
    }

    /// When a token of this connection ends, the next time.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        let end = self.permissions.next_end()?;
        Some(Instant::now() + end.since(self.now()))
    }

    /// Detaches links whose token has ended without a new one having been shown.
    pub(super) fn expire(&mut self) {
        let now = self.now();
        if !self.permissions.forget_ended(now) {
            return;
        }
        let bare: Vec<LinkKey> =
            self.links.iter().filter(|(_, link)| !self.may_stay(link, now)).map(|(key, _)| *key).collect();
        for link in bare {
            self.detach(link, &Failure::unauthorized("ExpiredToken: the token of this link has ended"));
        }
    }

    fn may_stay(&self, link: &Link, now: Timestamp) -> bool {
        match (&link.place, link.right) {
            (Some(place), Some(right)) => self.permissions.allows(place, right, now),
            (Some(place), None) => self.permissions.allows_some(place, now),
            (None, _) => true,
        }
    }
}

/// A delivery that waits for its answer. None: its sender does not want to hear of it.
type Unanswered = Option<IncomingKey>;
