//! A session as data: windows, links, and the deliveries that are not settled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::{
    event::Outgoing,
    keys::{FIRST_ID, IncomingKey, LinkKey, OutgoingKey, SessionKey, ahead, continued, wire_id},
    link::Link,
    output::Output,
};
use crate::performative::{Begin, Flow, Transfer};

/// Transfers that we might send before the peer says something. It is information only, so there is no reason to give a small one.
pub(super) const OUTGOING_WINDOW: u32 = 0x7fff_ffff;

#[derive(Debug)]
pub(super) struct Session {
    pub(super) key: SessionKey,
    /// We have sent end: everything but the peer's end is passed over.
    pub(super) ending: bool,
    pub(super) links: BTreeMap<u32, Link>,
    /// Handles whose link we detached with an error. What comes for them is an errant link, not an unknown handle.
    pub(super) errant: BTreeSet<u32>,

    next_incoming_id: u32,
    /// Transfers that the peer may still send.
    incoming_window: u32,
    full_window: u32,
    last_incoming: Option<u64>,
    /// The peer's deliveries that we have not answered.
    pub(super) incoming: BTreeMap<u64, LinkKey>,

    next_outgoing_id: u32,
    /// Transfers that we may still send.
    peer_window: u32,
    next_delivery: u64,
    /// Our deliveries that are not settled.
    pub(super) outgoing: BTreeMap<u64, Unsettled>,
    /// What waits for the window, in the order of the commands.
    pending: VecDeque<Pending>,
    /// The window has been shut, and the application not been told yet that it is open again.
    blocked: bool,
}

#[derive(Debug)]
pub(super) struct Unsettled {
    pub(super) link: LinkKey,
    pub(super) tag: Bytes,
}

#[derive(Debug)]
enum Pending {
    Delivery {
        link: LinkKey,
        id: u64,
        message: Outgoing,
        sent: usize,
        begun: bool,
    },
    /// The answer to a drain, behind what was sent before it.
    Drained {
        link: LinkKey,
        delivery_count: u32,
    },
}

impl Pending {
    fn link(&self) -> LinkKey {
        match self {
            Self::Delivery { link, .. } | Self::Drained { link, .. } => *link,
        }
    }
}

/// Why a transfer cannot be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Miscounted {
    WindowViolated,
}

impl Session {
    pub(super) fn new(key: SessionKey, begin: &Begin, window: u32) -> Self {
        Self {
            key,
            ending: false,
            links: BTreeMap::new(),
            errant: BTreeSet::new(),
            next_incoming_id: begin.next_outgoing_id,
            incoming_window: window,
            full_window: window,
            last_incoming: None,
            incoming: BTreeMap::new(),
            next_outgoing_id: 0,
            peer_window: begin.incoming_window,
            next_delivery: FIRST_ID,
            outgoing: BTreeMap::new(),
            pending: VecDeque::new(),
            blocked: begin.incoming_window == 0,
        }
    }

    pub(super) fn answer(&self, handle_max: u32) -> Begin {
        Begin {
            remote_channel: Some(self.key.channel),
            next_outgoing_id: self.next_outgoing_id,
            incoming_window: self.incoming_window,
            outgoing_window: OUTGOING_WINDOW,
            handle_max,
            ..Begin::default()
        }
    }

    /// A flow that says how the session is.
    pub(super) fn flow(&self) -> Flow {
        Flow {
            next_incoming_id: Some(self.next_incoming_id),
            incoming_window: self.incoming_window,
            next_outgoing_id: self.next_outgoing_id,
            outgoing_window: OUTGOING_WINDOW,
            ..Flow::default()
        }
    }

    /// A flow that says how a link is as well. What was taken for sending and has not begun is not counted: the peer has not seen it.
    pub(super) fn link_flow(&self, link: &Link) -> Flow {
        let waits = |pending: &&Pending| match pending {
            Pending::Delivery { link: on, begun: false, .. } => *on == link.key,
            _ => false,
        };
        let waiting = u32::try_from(self.pending.iter().filter(waits).count()).unwrap_or(u32::MAX);
        Flow {
            handle: Some(link.key.handle),
            delivery_count: Some(link.delivery_count.wrapping_sub(waiting)),
            link_credit: Some(link.credit.saturating_add(waiting)),
            ..self.flow()
        }
    }

    /// Takes what the peer says of the session. The answer is whether sending has become possible.
    pub(super) fn heard(&mut self, flow: &Flow, output: &mut Output) -> bool {
        // The peer's own count is taken over: the Python SDK counts a message of several frames once.
        self.next_incoming_id = flow.next_outgoing_id;
        let under_way = ahead(self.next_outgoing_id, flow.next_incoming_id.unwrap_or(0));
        self.peer_window = flow.incoming_window.saturating_sub(under_way);
        self.pump(output);
        self.room() && std::mem::take(&mut self.blocked)
    }

    /// Counts a transfer that has come.
    pub(super) fn count_transfer(&mut self) -> Result<(), Miscounted> {
        if self.incoming_window == 0 {
            return Err(Miscounted::WindowViolated);
        }
        self.incoming_window -= 1;
        self.next_incoming_id = self.next_incoming_id.wrapping_add(1);
        Ok(())
    }

    /// Announces room again once half of it is used.
    pub(super) fn top_up(&mut self, output: &mut Output) {
        if self.incoming_window <= self.full_window / 2 {
            self.incoming_window = self.full_window;
            output.flow(self.key.channel, &self.flow());
        }
    }

    /// The number of a delivery that begins, unless it does not come after the one before. Gaps are allowed, though not by the standard.
    pub(super) fn begin_incoming(&mut self, id: u32) -> Option<IncomingKey> {
        let id = match self.last_incoming {
            None => FIRST_ID + u64::from(id),
            Some(last) => continued(last, id),
        };
        if self.last_incoming.is_some_and(|last| id <= last) {
            return None;
        }
        self.last_incoming = Some(id);
        Some(IncomingKey { session: self.key, id })
    }

    /// The numbers that a disposition of the peer speaks of. `ours` says whose deliveries they are. None when the range runs backwards.
    pub(super) fn range(&self, ours: bool, first: u32, last: Option<u32>) -> Option<std::ops::RangeInclusive<u64>> {
        let near = if ours { self.next_delivery } else { self.last_incoming.unwrap_or(FIRST_ID) };
        let first = continued(near, first);
        let last = last.map_or(first, |last| continued(near, last));
        (first <= last).then_some(first..=last)
    }

    /// Whether a delivery would go out at once. What is pending waits for nothing else, so there is nothing to ask of it.
    pub(super) fn room(&self) -> bool {
        self.peer_window > 0
    }

    /// Takes a message for sending and sends as much of it as the window lets.
    pub(super) fn deliver(&mut self, link: LinkKey, message: Outgoing, output: &mut Output) -> OutgoingKey {
        let id = self.next_delivery;
        self.next_delivery += 1;
        if !message.settled {
            self.outgoing.insert(id, Unsettled { link, tag: message.tag.clone() });
        }
        self.pending.push_back(Pending::Delivery { link, id, message, sent: 0, begun: false });
        self.pump(output);
        OutgoingKey { session: self.key, id }
    }

    /// Answers a drain, behind what waits. `count` is the link's delivery-count with the rest of its credit in it.
    pub(super) fn drained(&mut self, key: LinkKey, count: u32, output: &mut Output) {
        // An answer that waits already becomes this one: a peer that drains again and again with a shut window gets no queue of them.
        match self.pending.iter_mut().rfind(|pending| pending.link() == key) {
            Some(Pending::Drained { delivery_count, .. }) => *delivery_count = count,
            _ => self.pending.push_back(Pending::Drained { link: key, delivery_count: count }),
        }
        self.pump(output);
    }

    fn pump(&mut self, output: &mut Output) {
        while let Some(first) = self.pending.front_mut() {
            match first {
                Pending::Drained { link, delivery_count } => {
                    let flow = Flow {
                        next_incoming_id: Some(self.next_incoming_id),
                        incoming_window: self.incoming_window,
                        next_outgoing_id: self.next_outgoing_id,
                        outgoing_window: OUTGOING_WINDOW,
                        handle: Some(link.handle),
                        delivery_count: Some(*delivery_count),
                        link_credit: Some(0),
                        drain: true,
                        ..Flow::default()
                    };
                    output.flow(self.key.channel, &flow);
                }
                Pending::Delivery { link, id, message, sent, begun } => {
                    if self.peer_window == 0 {
                        self.blocked = true;
                        return;
                    }
                    let mut transfer = Transfer { handle: link.handle, ..Transfer::default() };
                    if !*begun {
                        transfer.delivery_id = Some(wire_id(*id));
                        transfer.delivery_tag = Some(message.tag.clone());
                        transfer.message_format = Some(message.format);
                        *begun = true;
                    }
                    transfer.settled = Some(message.settled);
                    *sent += output.transfer(self.key.channel, &mut transfer, &message.payload[*sent..]);
                    self.peer_window -= 1;
                    self.next_outgoing_id = self.next_outgoing_id.wrapping_add(1);
                    if transfer.more {
                        continue;
                    }
                }
            }
            self.pending.pop_front();
        }
        if self.peer_window == 0 {
            self.blocked = true;
        }
    }

    /// Forgets a link's deliveries, in both directions, and what waits to be sent on it.
    pub(super) fn forget(&mut self, link: LinkKey, output: &mut Output) {
        self.incoming.retain(|_, of| *of != link);
        self.outgoing.retain(|_, unsettled| unsettled.link != link);
        self.pending.retain(|pending| pending.link() != link);
        // What was behind it may go now.
        self.pump(output);
    }
}
