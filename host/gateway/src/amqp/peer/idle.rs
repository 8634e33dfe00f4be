//! Links and connections that nobody uses: Azure closes them, and clients must live with that, so this broker does the same (A79).
//!
//! A link to an entity on which nothing is sent, received, settled or asked for is detached after a while (`amqp:link:detach-forced`); a
//! receiver that waits with credit is such a link, too. A connection without a link to an entity is closed a while after the last one has
//! gone (`amqp:connection:forced`), and sooner when it never had one. Links for requests and tokens are not timed on their own: they go
//! with their connection, and a request keeps that.
//!
//! Renewing a lock uses the link that the message, or the session, came by, so that a handler that takes long does not lose it (A80).

use std::{
    collections::HashMap,
    hash::Hash,
    time::{Duration, Instant},
};

use sprag_amqp::{condition, connection::LinkKey, performative::AmqpError, value::Value};
use sprag_core::message::LockToken;

use super::{Kind, Link, Peer};
use crate::amqp::{failure::Failure, management};

/// How long a connection may be without its first link, at most; as on Azure.
const FIRST_LINK: Duration = Duration::from_secs(60);

/// How long something may be left alone. None: for ever.
#[derive(Debug, Clone, Copy)]
pub(in crate::amqp) struct Limits {
    pub(in crate::amqp) link: Option<Duration>,
    pub(in crate::amqp) connection: Option<Duration>,
}

/// When what was last used. It looks at no clock; `K` names a link.
#[derive(Debug)]
pub(super) struct Idle<K> {
    limits: Limits,
    /// Links to entities.
    links: HashMap<K, Instant>,
    /// Since when there has been none of them, and nobody has asked for anything; and for how long that may be.
    alone: Option<(Instant, Duration)>,
    /// No link is due before this. Earlier than that, because using a link does not move it.
    look_at: Option<Instant>,
}

impl<K: Copy + Eq + Hash + Ord> Idle<K> {
    pub(super) fn new(limits: Limits, now: Instant) -> Self {
        let alone = limits.connection.map(|limit| (now, limit.min(FIRST_LINK)));
        Self { limits, links: HashMap::new(), alone, look_at: None }
    }

    pub(super) fn attached(&mut self, link: K, now: Instant) {
        self.alone = None;
        self.links.insert(link, now);
        let due = self.limits.link.map(|limit| now + limit);
        self.look_at = self.look_at.into_iter().chain(due).min();
    }

    pub(super) fn used(&mut self, link: K, now: Instant) {
        if let Some(used) = self.links.get_mut(&link) {
            *used = now;
        }
    }

    pub(super) fn gone(&mut self, link: K, now: Instant) {
        if self.links.remove(&link).is_some() && self.links.is_empty() {
            self.alone = self.limits.connection.map(|limit| (now, limit));
        }
    }

    /// Something was asked for on a link for requests.
    pub(super) fn asked(&mut self, now: Instant) {
        if let Some((since, _)) = &mut self.alone {
            *since = now;
        }
    }

    /// When to look again.
    pub(super) fn next(&self) -> Option<Instant> {
        self.look_at.into_iter().chain(self.alone.map(|(since, limit)| since + limit)).min()
    }

    /// Links that have been left alone for too long, in order. They stay here until they are said to be gone.
    pub(super) fn due_links(&mut self, now: Instant) -> Vec<K> {
        let Some(limit) = self.limits.link.filter(|_| self.look_at.is_some_and(|at| at <= now)) else {
            return Vec::new();
        };
        let mut due: Vec<K> =
            self.links.iter().filter(|(_, used)| **used + limit <= now).map(|(link, _)| *link).collect();
        due.sort_unstable();
        self.look_at = self.links.values().map(|used| *used + limit).filter(|at| *at > now).min();
        due
    }

    /// How long the connection may be alone, if it has been for longer. Told once.
    pub(super) fn due_connection(&mut self, now: Instant) -> Option<Duration> {
        self.alone.take_if(|(since, limit)| *since + *limit <= now).map(|(_, limit)| limit)
    }
}

impl Peer {
    pub(in crate::amqp) fn next_idle(&self) -> Option<Instant> {
        self.idle.next()
    }

    /// Closes what has been left alone for too long.
    pub(in crate::amqp) fn close_idle(&mut self, now: Instant) {
        for link in self.idle.due_links(now) {
            let who = match self.links.get(&link).map(|link| &link.kind) {
                Some(Kind::Sender(_)) => ("publisher", "AmqpMessagePublisher"),
                // It waits for a session, for as long as the client has said.
                Some(Kind::Asking { .. }) => {
                    self.idle.attached(link, now);
                    continue;
                }
                _ => ("consumer", "AmqpMessageConsumer"),
            };
            let limit = self.context.settings.idle.link.unwrap_or_default().as_secs();
            let text = format!(
                "The link is force detached. Code: {}. Details: {}.IdleTimerExpired: Idle timeout: {:02}:{:02}:{:02}.",
                who.0,
                who.1,
                limit / 3_600,
                limit / 60 % 60,
                limit % 60,
            );
            self.detach(link, &Failure::idle(text));
        }
        if let Some(limit) = self.idle.due_connection(now) {
            let text = format!(
                "The connection was closed because it did not have any active links in the past {} milliseconds.",
                limit.as_millis()
            );
            // Gone already is closed already.
            let _ = self.amqp.close(Some(AmqpError::new(condition::CONNECTION_FORCED, text)));
        }
    }

    pub(super) fn used(&mut self, link: LinkKey) {
        self.idle.used(link, Instant::now());
    }

    /// A request about messages or sessions that came by links of this connection.
    pub(super) fn used_by_request(&mut self, request: &management::Request) {
        let now = Instant::now();
        self.idle.asked(now);
        if let Some(tokens) = request.body.get("lock-tokens").and_then(Value::as_items) {
            let bytes = |token: &Value| match token {
                Value::Uuid(bytes) => self.context.tokens.lock(&bytes[..]),
                _ => None,
            };
            let locks: Vec<LockToken> = tokens.iter().filter_map(bytes).collect();
            for lock in locks {
                if let Some((link, _)) = self.locks.get(&lock) {
                    self.idle.used(*link, now);
                }
            }
        }
        let Some(id) = &request.session else { return };
        let holds = |link: &Link| match &link.kind {
            Kind::Receiver(receiver) => receiver.session().is_some_and(|session| session.id() == id),
            _ => false,
        };
        let of_session: Vec<LinkKey> = self.links.iter().filter(|(_, link)| holds(link)).map(|(key, _)| *key).collect();
        of_session.into_iter().for_each(|link| self.idle.used(link, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const LIMITS: Limits = Limits { link: Some(Duration::from_secs(600)), connection: Some(Duration::from_secs(300)) };

    /// Ten minutes after it was last used; each link for itself.
    #[test]
    fn an_idle_link_is_due() {
        let start = Instant::now();
        let mut idle = Idle::new(LIMITS, start);
        idle.attached(1, start);
        idle.attached(2, start + MINUTE);
        assert_eq!(idle.next(), Some(start + 10 * MINUTE));
        idle.used(1, start + 9 * MINUTE);
        assert!(idle.due_links(start + 10 * MINUTE).is_empty(), "it was used");
        assert_eq!(idle.next(), Some(start + 11 * MINUTE));
        assert_eq!(idle.due_links(start + 11 * MINUTE), [2]);
        idle.gone(2, start + 11 * MINUTE);
        assert_eq!(idle.next(), Some(start + 19 * MINUTE));
        assert!(idle.due_links(start + 19 * MINUTE - Duration::from_millis(1)).is_empty());
        assert_eq!(idle.due_links(start + 19 * MINUTE), [1]);
        assert_eq!(idle.due_connection(start + 19 * MINUTE), None);
    }

    /// A minute without a first link; five without another one; requests keep it, and so does any link to an entity.
    #[test]
    fn a_connection_without_links_is_due() {
        let start = Instant::now();
        let mut idle = Idle::new(LIMITS, start);
        assert_eq!(idle.next(), Some(start + MINUTE));
        assert_eq!(idle.due_connection(start + MINUTE - Duration::from_millis(1)), None);
        assert_eq!(Idle::<u8>::new(LIMITS, start).due_connection(start + MINUTE), Some(MINUTE));
        idle.asked(start + MINUTE / 2);
        assert_eq!(idle.due_connection(start + MINUTE), None);
        idle.attached(1, start + MINUTE);
        assert_eq!(idle.due_connection(start + 10 * MINUTE), None);
        idle.gone(1, start + 10 * MINUTE);
        assert_eq!(idle.due_connection(start + 14 * MINUTE), None);
        idle.asked(start + 14 * MINUTE);
        assert_eq!(idle.due_connection(start + 15 * MINUTE), None);
        assert_eq!(idle.due_connection(start + 19 * MINUTE), Some(5 * MINUTE));
        assert!(idle.due_links(start + 19 * MINUTE).is_empty());
        assert_eq!(idle.next(), None, "told once");
    }

    #[test]
    fn without_limits_nothing_is_due() {
        let start = Instant::now();
        let mut idle = Idle::new(Limits { link: None, connection: None }, start);
        idle.attached(1, start);
        assert_eq!((idle.next(), idle.due_links(start + 1_000 * MINUTE)), (None, Vec::new()));
        idle.gone(1, start);
        assert_eq!((idle.next(), idle.due_connection(start + 1_000 * MINUTE)), (None, None));
    }
}
