//! What all connections of a gateway share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use sprag_broker::{Clock, Engine};
use sprag_core::time::Timestamp;

use super::{peer::IdleLimits, token::Tokens};
use crate::access::Access;

pub(super) struct Context {
    pub(super) engine: Engine,
    pub(super) access: Access,
    pub(super) tokens: Tokens,
    pub(super) protocol: Arc<sprag_amqp::connection::Config>,
    pub(super) settings: Settings,
    pub(super) counters: Counters,
    pub(super) clock: Clock,
}

pub(super) struct Settings {
    pub(super) session_wait: Duration,
    pub(super) credit: u32,
    pub(super) stop_grace: Duration,
    pub(super) idle: IdleLimits,
}

impl Context {
    pub(super) fn now(&self) -> Timestamp {
        (self.clock)()
    }
}

/// What there is at the moment.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: AtomicI64,
    links: AtomicI64,
    sessions: AtomicI64,
}

impl Counters {
    pub(super) fn links(&self, by: i64) {
        self.links.fetch_add(by, Relaxed);
    }

    pub(super) fn sessions(&self, by: i64) {
        self.sessions.fetch_add(by, Relaxed);
    }

    /// Connections, links, sessions.
    pub(super) fn all(&self) -> [u64; 3] {
        [&self.connections, &self.links, &self.sessions]
            .map(|counter| u64::try_from(counter.load(Relaxed)).unwrap_or(0))
    }
}
