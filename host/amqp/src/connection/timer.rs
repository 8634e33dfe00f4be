//! What has to happen by itself after a time.

use std::time::{Duration, Instant};

use super::config::{Config, SILENCE_FACTOR};

/// The three things a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timer {
    /// The peer has not got as far as its open, or has not answered our close.
    Step,
    /// The peer has been silent for too long.
    Silence,
    /// The peer wants to hear from us.
    KeepAlive,
}

#[derive(Debug)]
pub(super) struct Timers {
    step: Option<Instant>,
    silence_limit: Option<Duration>,
    heard: Instant,
    keep_alive_every: Option<Duration>,
    sent: Instant,
}

impl Timers {
    pub(super) fn new(now: Instant, config: &Config) -> Self {
        Self {
            step: Some(now + config.handshake_time_out),
            silence_limit: None,
            heard: now,
            keep_alive_every: None,
            sent: now,
        }
    }

    /// The peer's open has come. Frames are sent at twice the rate that it asks for, so that one may be late.
    pub(super) fn opened(&mut self, now: Instant, config: &Config, peer: Option<Duration>) {
        self.step = None;
        self.silence_limit = config.idle_time_out.map(|limit| limit * SILENCE_FACTOR);
        self.keep_alive_every = peer.map(|limit| limit / 2);
        self.heard = now;
        self.sent = now;
    }

    pub(super) fn closing(&mut self, now: Instant, config: &Config) {
        self.step = Some(now + config.close_time_out);
        self.silence_limit = None;
        self.keep_alive_every = None;
    }

    pub(super) fn heard(&mut self, now: Instant) {
        self.heard = now;
    }

    pub(super) fn sent(&mut self, now: Instant) {
        self.sent = now;
    }

    fn all(&self) -> impl Iterator<Item = (Instant, Timer)> {
        [
            (self.step, Timer::Step),
            (self.silence_limit.map(|limit| self.heard + limit), Timer::Silence),
            (self.keep_alive_every.map(|every| self.sent + every), Timer::KeepAlive),
        ]
        .into_iter()
        .filter_map(|(at, timer)| Some((at?, timer)))
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.all().map(|(at, _)| at).min()
    }

    /// Those that are due, in the order of the enum.
    pub(super) fn due(&self, now: Instant) -> impl Iterator<Item = Timer> + use<> {
        let due: [Option<Timer>; 3] = {
            let mut all = self.all().filter(|(at, _)| *at <= now).map(|(_, timer)| timer);
            [all.next(), all.next(), all.next()]
        };
        due.into_iter().flatten()
    }
}
