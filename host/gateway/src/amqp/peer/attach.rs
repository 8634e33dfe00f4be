//! Links that are asked for: what they lead to, whether they may, and how they are answered.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sprag_amqp::{
    connection::{Accept, LinkKey},
    performative::{Attach, Role, SenderSettle, Target},
    value::{Symbol, Value},
};
use sprag_broker::client::{ClientSession, Error, Mode, Source};

use super::{
    Cancel, Done, Kind, Link, Peer,
    receiving::{From, Receiver},
    requests::Replies,
};
use crate::{
    access::Right,
    amqp::{
        address::{Node, Place, parse},
        failure::Failure,
        permission,
    },
};

const SESSION_FILTER: Symbol = Symbol::from_static("com.microsoft:session-filter");
const LOCKED_UNTIL: Symbol = Symbol::from_static("com.microsoft:locked-until-utc");
const TIMEOUT: &str = "com.microsoft:timeout";

/// The longest that a client may have us wait for a session.
const LONGEST_SESSION_WAIT: Duration = Duration::from_secs(3_600);
/// Requests that may be under way on a link.
const REQUEST_CREDIT: u32 = 100;
/// The longest request, unless the longest message is longer: with what is around a message in a request.
const MAX_REQUEST: u64 = 2 << 20;
const AROUND_MESSAGE: u64 = 64 << 10;

impl Peer {
    pub(super) fn attach(&mut self, link: LinkKey, attach: Arc<Attach>) {
        if let Err(failure) = self.consider(link, &attach) {
            self.refuse(link, &failure);
        }
    }

    fn refuse(&mut self, link: LinkKey, failure: &Failure) {
        tracing::debug!(condition = %failure.condition, text = %failure.text, "a link was refused");
        // It may have detached by itself in the meantime.
        let _ = self.amqp.refuse_attach(link, &failure.to_error());
    }

    fn consider(&mut self, link: LinkKey, attach: &Arc<Attach>) -> Result<(), Failure> {
        if self.stopping {
            return Err(Failure::from(Error::Unavailable("the broker is stopping".to_owned())));
        }
        let address = match (attach.role, &attach.target, &attach.source) {
            (_, Some(Target::Coordinator { .. }), _) => return Err(Failure::transactions()),
            (Role::Sender, Some(Target::Node(node)), _) => node.address.as_deref(),
            (Role::Receiver, _, Some(source)) => source.address.as_deref(),
            _ => None,
        };
        let address = address.ok_or_else(|| Failure::argument("the link has no address"))?;
        match parse(address) {
            None => Err(Failure::not_found(format!("The messaging entity '{address}' could not be found."))),
            Some(Node::Tokens) => self.open_requests(link, attach, None),
            Some(Node::Management(place)) => {
                if !self.permissions.allows_some(&place, self.now()) {
                    return Err(permission::missing(Right::Listen, &place));
                }
                self.exists(&place)?;
                self.open_requests(link, attach, Some(place))
            }
            Some(Node::Entity(place)) => match attach.role {
                Role::Sender => self.open_sender(link, attach, place),
                Role::Receiver => self.open_receiver(link, attach, place),
            },
        }
    }

    fn exists(&self, place: &Place) -> Result<(), Failure> {
        let engine = &self.context.engine;
        match engine.target(&place.name) {
            Err(Error::NoSuchEntity(_)) => engine.source(&place.name).map(drop).map_err(Failure::from),
            // A topic or a subscription is there too, whatever cannot be done with it.
            _ => Ok(()),
        }
    }

    fn put(&mut self, key: LinkKey, place: Option<Place>, right: Option<Right>, kind: Kind) {
        self.context.counters.links(1);
        if !matches!(kind, Kind::Requests | Kind::Replies(_)) {
            self.idle.attached(key, Instant::now());
        }
        self.links.insert(key, Link { place, right, kind });
    }

    /// A link that is taken after all. What the peer may have to say first (a detach) is heard as an event.
    fn take(&mut self, link: LinkKey, accept: Accept) {
        if let Err(error) = self.amqp.accept_attach(link, accept) {
            tracing::debug!(%error, "a link went away before it was answered");
            self.forget(link);
        }
    }

    fn open_requests(&mut self, link: LinkKey, attach: &Attach, place: Option<Place>) -> Result<(), Failure> {
        let kind = match attach.role {
            Role::Sender => Kind::Requests,
            Role::Receiver => {
                let address = attach.target.as_ref().and_then(Target::address).map(str::to_owned);
                Kind::Replies(Replies::new(address))
            }
        };
        let longest = place.as_ref().and_then(|place| self.context.engine.target(&place.name).ok());
        let longest = longest.map_or(0, |target| target.max_message_size() + AROUND_MESSAGE);
        self.put(link, place, None, kind);
        let max_message_size = match attach.role {
            Role::Sender => longest.max(MAX_REQUEST),
            Role::Receiver => u64::MAX,
        };
        self.take(link, Accept { credit: REQUEST_CREDIT, max_message_size, ..Accept::mirror(attach) });
        Ok(())
    }

    fn open_sender(&mut self, link: LinkKey, attach: &Attach, place: Place) -> Result<(), Failure> {
        if !self.permissions.allows(&place, Right::Send, self.now()) {
            return Err(permission::missing(Right::Send, &place));
        }
        let name = &place.name;
        let source_only = name.as_str().ends_with(sprag_broker::DEAD_LETTER_SUFFIX);
        if source_only {
            return Err(Failure::not_allowed("nothing is sent to dead letters"));
        }
        let target = self.context.engine.target(name)?;
        target.check()?;
        let accept = Accept {
            credit: self.context.settings.credit,
            max_message_size: target.max_message_size(),
            ..Accept::mirror(attach)
        };
        self.put(link, Some(place), Some(Right::Send), Kind::Sender(target));
        self.take(link, accept);
        Ok(())
    }

    fn open_receiver(&mut self, link: LinkKey, attach: &Arc<Attach>, place: Place) -> Result<(), Failure> {
        if !self.permissions.allows(&place, Right::Listen, self.now()) {
            return Err(permission::missing(Right::Listen, &place));
        }
        let source = self.context.engine.source(&place.name)?;
        source.check()?;
        let filter = attach.source.as_ref().and_then(|source| source.filter(SESSION_FILTER.as_str()));
        match (source.requires_session(), filter) {
            (false, None) => {
                let receiver = Receiver::new(From::Plain(source), mode(attach));
                self.put(link, Some(place), Some(Right::Listen), Kind::Receiver(Box::new(receiver)));
                self.take(link, to_receive(attach));
                Ok(())
            }
            (false, Some(_)) => Err(Error::NoSessions(source.name().clone()).into()),
            (true, None) => Err(Error::SessionRequired(source.name().clone()).into()),
            (true, Some(wanted)) => {
                let wanted = match wanted {
                    Value::Null => None,
                    Value::String(id) => Some(id.as_str().into()),
                    Value::Symbol(id) => Some(id.as_str().into()),
                    _ => return Err(Failure::argument("the session filter is neither a session id nor null")),
                };
                self.ask_for_session(link, attach, place, source, wanted);
                Ok(())
            }
        }
    }

    fn ask_for_session(
        &mut self,
        link: LinkKey,
        attach: &Arc<Attach>,
        place: Place,
        source: Source,
        wanted: Option<sprag_core::ids::SessionId>,
    ) {
        let asked = attach.properties.get(TIMEOUT).and_then(Value::as_u64).map(Duration::from_millis);
        let wait = asked.unwrap_or(self.context.settings.session_wait).min(LONGEST_SESSION_WAIT);
        let cancel = Cancel::default();
        let kind = Kind::Asking { attach: Arc::clone(attach), cancel: cancel.clone() };
        self.put(link, Some(place), Some(Right::Listen), kind);
        self.wait(async move {
            let accept = async {
                match &wanted {
                    // Held elsewhere is answered at once, as Azure does.
                    Some(id) => source.accept(id, Duration::ZERO).await.map(Some),
                    None => source.accept_next(wait).await,
                }
            };
            tokio::select! {
                biased;
                () = cancel.cancelled() => Done::Cancelled,
                session = accept => Done::Accepted { link, session },
            }
        });
    }

    /// A session has been found for a link, or has not.
    pub(super) fn accepted(&mut self, key: LinkKey, session: Result<Option<ClientSession>, Error>) {
        let attach = match self.links.get(&key) {
            Some(Link { kind: Kind::Asking { attach, .. }, .. }) => Arc::clone(attach),
            // The link has gone. The session, if there is one, is given back as it is dropped.
            _ => return,
        };
        let session = match session {
            Ok(Some(session)) if !self.stopping => Arc::new(session),
            Ok(_) => return self.give_up(key, &Failure::no_session_in_time()),
            Err(error) => return self.give_up(key, &error.into()),
        };
        let mut accept = to_receive(&attach);
        if let Some(source) = &mut accept.source {
            source.filters.set(SESSION_FILTER, Value::String(session.id().to_string()));
        }
        accept.properties.set(LOCKED_UNTIL, Value::Long(ticks(session.locked_until().0)));
        let entity = session.source().name().as_str().to_ascii_lowercase();
        self.held.insert((entity, session.id().clone()), Arc::clone(&session));
        self.context.counters.sessions(1);
        let receiver = Receiver::new(From::Session(Arc::clone(&session)), mode(&attach));
        let lost = receiver.end.clone();
        if let Some(link) = self.links.get_mut(&key) {
            link.kind = Kind::Receiver(Box::new(receiver));
        }
        self.wait(async move {
            loop {
                tokio::select! {
                    biased;
                    () = lost.cancelled() => return Done::Cancelled,
                    // Renewed in the meantime, it is looked at again when that has lapsed.
                    () = tokio::time::sleep(session.remaining() + Duration::from_millis(1)) => {}
                }
                if !session.is_held() {
                    return Done::SessionLost(key);
                }
            }
        });
        self.used(key);
        self.take(key, accept);
    }

    fn give_up(&mut self, key: LinkKey, failure: &Failure) {
        self.refuse(key, failure);
        if self.links.remove(&key).is_some() {
            self.idle.gone(key, Instant::now());
            self.context.counters.links(-1);
        }
    }

    pub(super) fn session_lost(&mut self, key: LinkKey) {
        let Some(Link { kind: Kind::Receiver(receiver), .. }) = self.links.get(&key) else { return };
        let Some(session) = receiver.session() else { return };
        self.detach(key, &Error::SessionLockLost(session.id().clone()).into());
    }
}

/// What a receiver announces as its longest message is not taken at its word: the Python SDK says 1 MiB and takes any, and a message that
/// is held back for it would never come to anybody.
fn to_receive(attach: &Attach) -> Accept {
    Accept { max_message_size: u64::MAX, ..Accept::mirror(attach) }
}

fn mode(attach: &Attach) -> Mode {
    match attach.sender_settle {
        SenderSettle::Settled => Mode::Delete,
        SenderSettle::Unsettled | SenderSettle::Mixed => Mode::PeekLock,
    }
}

/// .NET's: tenths of a microsecond since the year 1.
fn ticks(millis: i64) -> i64 {
    millis.saturating_mul(10_000).saturating_add(621_355_968_000_000_000)
}
