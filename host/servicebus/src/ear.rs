//! Listens to what the broker says, on its way to the client library.
//!
//! A link is refused in two frames: an attach that leads nowhere, and a detach that says why. The library answers the first, and when it is quick the
//! second finds no link any more and why is lost. It is the word that everything hangs on (no such entity, no session in time, held by another), so it is
//! read here as well. And a settlement on a link is answered in a disposition, which the library keeps to itself: a lost lock is said there and
//! nowhere else (A30). Nothing is changed on the way, and nothing but those three frames is taken apart.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf as _, BytesMut};
use parking_lot::Mutex;
use sprag_amqp::{
    decode::Reader,
    frame,
    performative::{AmqpError, Attach, DeliveryState, Detach, Disposition, Performative, Role},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{Notify, oneshot},
};

use crate::fault::Fault;

/// Reasons that nobody asked for are forgotten, the oldest first.
const KEPT: usize = 256;
/// How long the second frame may take after the first.
const SECOND_FRAME: Duration = Duration::from_secs(2);
/// Descriptors of the frames that are of interest.
const ATTACH: u8 = 0x12;
const DISPOSITION: u8 = 0x15;
const DETACH: u8 = 0x16;
/// A frame is not this long for any reason of ours: the connection is the library's to close.
const MAX_FRAME: u32 = 1 << 20;

/// What was heard on a connection.
#[derive(Default)]
pub(crate) struct Heard {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// Links that lead nowhere and of which nobody has said why yet, by channel and handle.
    nowhere: HashMap<(u16, u32), String>,
    why: VecDeque<(String, Fault)>,
    /// Links on which messages come, by name: the broker's channel.
    channels: HashMap<String, u16>,
    /// Settlements that are to be answered, by channel and delivery.
    asked: BTreeMap<(u16, u32), oneshot::Sender<Result<(), Fault>>>,
}

impl Heard {
    /// Why a link could not be attached: the broker's word, if it has said one, else what the library says.
    pub(crate) async fn why(&self, link: &str, library: Fault) -> Fault {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                {
                    let mut state = self.state.lock();
                    if let Some(at) = state.why.iter().position(|(name, _)| name == link) {
                        return state.why.remove(at).map(|(_, fault)| fault);
                    }
                    if matches!(library, Fault::Broker { .. }) || !state.nowhere.values().any(|name| name == link) {
                        return None;
                    }
                }
                changed.await;
            }
        };
        tokio::time::timeout(SECOND_FRAME, wait).await.ok().flatten().unwrap_or(library)
    }

    fn attach(&self, channel: u16, attach: Attach) {
        let leads_nowhere = match attach.role {
            Role::Sender => attach.source.is_none(),
            Role::Receiver => attach.target.is_none(),
        };
        let mut state = self.state.lock();
        if attach.role == Role::Sender && !leads_nowhere {
            state.channels.insert(attach.name.clone(), channel);
        }
        match leads_nowhere {
            true => drop(state.nowhere.insert((channel, attach.handle), attach.name)),
            // The handle is in use for another one now.
            false => drop(state.nowhere.remove(&(channel, attach.handle))),
        }
    }

    /// What the broker will say of a settlement on this link. None when it has not heard of the link.
    pub(crate) fn answer(&self, link: &str, delivery: u32) -> Option<oneshot::Receiver<Result<(), Fault>>> {
        let mut state = self.state.lock();
        let channel = *state.channels.get(link)?;
        let (give, answer) = oneshot::channel();
        state.asked.insert((channel, delivery), give);
        Some(answer)
    }

    /// The link has ended: nothing more is said of its deliveries. Its AMQP session was its own, so its channel is another's from now on.
    pub(crate) fn forget(&self, link: &str) {
        let mut state = self.state.lock();
        if let Some(channel) = state.channels.remove(link) {
            state.asked.retain(|(asked, _), _| *asked != channel);
        }
    }

    fn disposition(&self, channel: u16, disposition: Disposition) {
        if disposition.role != Role::Sender || !disposition.settled {
            return;
        }
        let (first, last) = (disposition.first, disposition.last.unwrap_or(disposition.first));
        let mut state = self.state.lock();
        // Numbers wrap around in the end; then each is looked for by itself.
        let answered: Vec<_> = match first <= last {
            true => state.asked.range((channel, first)..=(channel, last)).map(|(key, _)| *key).collect(),
            false => state
                .asked
                .keys()
                .filter(|key| key.0 == channel && (key.1 >= first || key.1 <= last))
                .copied()
                .collect(),
        };
        for key in answered {
            let Some(give) = state.asked.remove(&key) else { continue };
            let result = match &disposition.state {
                Some(DeliveryState::Rejected(Some(error))) => Err(said(error.clone())),
                _ => Ok(()),
            };
            // Who does not wait any more does not hear of it.
            let _ = give.send(result);
        }
    }

    fn detach(&self, channel: u16, detach: Detach) {
        let mut state = self.state.lock();
        let Some(name) = state.nowhere.remove(&(channel, detach.handle)) else { return };
        if let Some(error) = detach.error {
            state.why.push_back((name, said(error)));
            if state.why.len() > KEPT {
                state.why.pop_front();
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }
}

/// The broker's word.
fn said(error: AmqpError) -> Fault {
    let condition = error.condition.as_str().to_owned();
    let text = error.description.unwrap_or_else(|| condition.clone());
    Fault::Broker { condition, text }
}

/// Finds the frames in what comes.
#[derive(Default)]
struct Frames {
    pending: BytesMut,
    /// Bytes of a frame that is of no interest, still to come.
    skip: usize,
}

impl Frames {
    fn feed(&mut self, mut bytes: &[u8], heard: &Heard) {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        bytes.advance(skipped);
        self.pending.extend_from_slice(bytes);
        while self.step(heard) {}
    }

    /// Takes one unit. False: more has to come.
    fn step(&mut self, heard: &Heard) -> bool {
        let Some(header) = self.pending.first_chunk::<{ frame::HEADER }>().copied() else { return false };
        if header.starts_with(b"AMQP") {
            self.pending.advance(frame::HEADER);
            return true;
        }
        let size = u32::from_be_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let body = usize::from(header[4]) * 4;
        // A descriptor is three bytes, or ten.
        if self.pending.len() < size.min(body + 10) {
            return false;
        }
        let code = match self.pending.get(body..size.min(body + 10)) {
            Some([0, 0x53, code, ..]) | Some([0, 0x80, _, _, _, _, _, _, _, code]) => Some(*code),
            _ => None,
        };
        if !matches!(code, Some(ATTACH | DISPOSITION | DETACH)) || size < frame::HEADER {
            let there = size.max(frame::HEADER).min(self.pending.len());
            self.pending.advance(there);
            self.skip = size.saturating_sub(there);
            return true;
        }
        match frame::next(&mut self.pending, MAX_FRAME) {
            Ok(None) => false,
            Ok(Some(frame)) => {
                match Performative::read(&mut Reader::new(&frame.body)) {
                    Ok(Performative::Attach(attach)) => heard.attach(frame.channel, *attach),
                    Ok(Performative::Disposition(disposition)) => heard.disposition(frame.channel, disposition),
                    Ok(Performative::Detach(detach)) => heard.detach(frame.channel, detach),
                    Ok(_) => {}
                    Err(error) => tracing::debug!(%error, "a frame cannot be read"),
                }
                true
            }
            Err(error) => {
                tracing::debug!(%error, "a frame cannot be read");
                self.pending.clear();
                false
            }
        }
    }
}

/// A stream that is listened to.
pub(crate) struct Listening<Io> {
    io: Io,
    heard: Arc<Heard>,
    frames: Frames,
}

impl<Io> Listening<Io> {
    pub(crate) fn new(io: Io, heard: Arc<Heard>) -> Self {
        Self { io, heard, frames: Frames::default() }
    }
}

impl<Io> std::fmt::Debug for Listening<Io> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listening")
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Listening<Io> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let this = &mut *self;
        let polled = Pin::new(&mut this.io).poll_read(cx, buf);
        this.frames.feed(&buf.filled()[before..], &this.heard);
        polled
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Listening<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use sprag_amqp::{performative::AmqpError, value::Symbol};

    use super::*;

    fn refusal(name: &str, handle: u32) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&frame::Layer::Amqp.header());
        frame::write_empty(&mut out);
        let attach = Attach::new(name, handle, Role::Sender);
        frame::write_amqp(&mut out, 3, &Performative::Attach(Box::new(attach)), &[]);
        let error = AmqpError::new(Symbol::from_static("com.microsoft:timeout"), "none in time");
        let detach = Detach { handle, closed: true, error: Some(error) };
        frame::write_amqp(&mut out, 3, &Performative::Detach(detach), &[]);
        out
    }

    /// However the bytes are cut, the word is heard.
    #[tokio::test]
    async fn why_a_link_was_refused() {
        let bytes = refusal("link-1", 7);
        for size in [1, 3, 8, 9, 50, bytes.len()] {
            let (heard, mut frames) = (Heard::default(), Frames::default());
            bytes.chunks(size).for_each(|part| frames.feed(part, &heard));
            let library = || Fault::Gone("illegal state".to_owned());
            assert!(heard.why("link-2", library()).await.to_string().contains("illegal"), "of another link");
            assert!(heard.why("link-1", library()).await.is("com.microsoft:timeout"), "in parts of {size}");
            assert!(!heard.why("link-1", library()).await.is("com.microsoft:timeout"), "said once");
        }
    }

    fn link(name: &str, channel: u16) -> Vec<u8> {
        let mut out = Vec::new();
        let mut attach = Attach::new(name, 0, Role::Sender);
        attach.source = Some(sprag_amqp::performative::Source::default());
        frame::write_amqp(&mut out, channel, &Performative::Attach(Box::new(attach)), &[]);
        out
    }

    fn answers(channel: u16, first: u32, last: Option<u32>, state: DeliveryState) -> Vec<u8> {
        let mut out = Vec::new();
        let (role, state) = (Role::Sender, Some(state));
        let disposition = Disposition { role, first, last, settled: true, state, batchable: false };
        frame::write_amqp(&mut out, channel, &Performative::Disposition(disposition), &[]);
        out
    }

    /// Each settlement hears its own answer, whatever range it is said in, and a link's end answers none.
    #[tokio::test]
    async fn what_is_said_of_a_settlement() {
        let (heard, mut frames) = (Heard::default(), Frames::default());
        assert!(heard.answer("a", 0).is_none(), "nothing is known of it yet");
        frames.feed(&link("a", 1), &heard);
        frames.feed(&link("b", 2), &heard);
        let ask = |link: &str, delivery| heard.answer(link, delivery).expect("it was heard of");
        let (one, two, wrapped) = (ask("a", 1), ask("a", 2), ask("a", u32::MAX));
        let (other, mut never) = (ask("b", 1), ask("b", 9));
        let lost = AmqpError::new(Symbol::from_static("com.microsoft:message-lock-lost"), "lost");
        frames.feed(&answers(2, 1, None, DeliveryState::Rejected(Some(lost))), &heard);
        frames.feed(&answers(1, 0, Some(2), DeliveryState::Accepted), &heard);
        frames.feed(&answers(1, u32::MAX - 1, Some(0), DeliveryState::Rejected(None)), &heard);
        for done in [one, two, wrapped] {
            assert!(done.await.expect("it is answered").is_ok());
        }
        assert!(other.await.expect("it is answered").is_err_and(|fault| fault.is_lock_lost()));
        assert!(never.try_recv().is_err());
        heard.forget("b");
        assert!(never.await.is_err());
    }

    /// Payloads are passed over, in whatever parts they come.
    #[tokio::test]
    async fn what_is_between_is_passed_over() {
        let mut bytes = Vec::new();
        let transfer = vec![0_u8; 5_000];
        let flow = Performative::Detach(Detach { handle: 1, closed: false, error: None });
        frame::write_amqp(&mut bytes, 1, &flow, &[]);
        // Type, channel and a body that begins with no descriptor of ours.
        frame::write(&mut bytes, frame::Kind::Amqp, 1, |out| {
            out.extend_from_slice(&[0, 0x53, 0x14]);
            out.extend_from_slice(&transfer);
        });
        bytes.extend(refusal("link", 1));
        for size in [7, 1_000, 6_000] {
            let (heard, mut frames) = (Heard::default(), Frames::default());
            bytes.chunks(size).for_each(|part| frames.feed(part, &heard));
            assert!(heard.why("link", Fault::Gone(String::new())).await.is("com.microsoft:timeout"));
        }
    }
}
