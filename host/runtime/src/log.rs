//! What a guest says, as lines of the host's log: with the message's ids, within the handler's limit, and never the payload.
//!
//! The last words before a trap are kept too: a panic has no other way to tell its name.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use sprag_core::ids::HandlerName;
use wasmtime_wasi::{
    cli::{IsTerminal, StdoutStream},
    p2::{OutputStream, Pollable, StreamResult},
};

use crate::input::RunInput;

/// Bytes kept of what was said last on the way to a trap.
const LAST_WORDS: usize = 4_096;
/// A line longer than this is written in pieces: a guest that never ends its line must not be remembered for ever.
const LONGEST_LINE: usize = 8_192;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pipe {
    Stdout,
    Stderr,
}

/// Where the lines of one instance go. Shared with its stdout and stderr.
pub(crate) struct Sink {
    handler: HandlerName,
    lines: Mutex<Lines>,
}

struct Lines {
    input: Arc<RunInput>,
    room: usize,
    dropped: u64,
    last_words: String,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Sink {
    pub(crate) fn new(handler: HandlerName, input: Arc<RunInput>, room: usize) -> Arc<Self> {
        let lines =
            Lines { input, room, dropped: 0, last_words: String::new(), stdout: Vec::new(), stderr: Vec::new() };
        Arc::new(Self { handler, lines: Mutex::new(lines) })
    }

    /// For the next run of the same instance.
    pub(crate) fn begin(&self, input: Arc<RunInput>, room: usize) {
        let mut lines = self.lines.lock();
        lines.input = input;
        lines.room = room;
        lines.dropped = 0;
        lines.last_words.clear();
        lines.stdout.clear();
        lines.stderr.clear();
    }

    pub(crate) fn line(&self, level: Level, text: &str) {
        let mut lines = self.lines.lock();
        if level == Level::Error {
            lines.remember(text);
        }
        lines.write(&self.handler, level, text);
    }

    fn bytes(&self, pipe: Pipe, bytes: &[u8]) {
        let mut lines = self.lines.lock();
        if pipe == Pipe::Stderr {
            lines.remember_bytes(bytes);
        }
        let (mut rest, level) = match pipe {
            Pipe::Stdout => (std::mem::take(&mut lines.stdout), Level::Info),
            Pipe::Stderr => (std::mem::take(&mut lines.stderr), Level::Warn),
        };
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            rest.extend_from_slice(piece.strip_suffix(b"\n").unwrap_or(piece));
            if piece.ends_with(b"\n") || rest.len() >= LONGEST_LINE {
                lines.write(&self.handler, level, &String::from_utf8_lossy(&rest));
                rest.clear();
            }
        }
        match pipe {
            Pipe::Stdout => lines.stdout = rest,
            Pipe::Stderr => lines.stderr = rest,
        }
    }

    /// Ends the run: writes what has no line end yet, and says how many lines were dropped.
    pub(crate) fn end(&self) -> u64 {
        let mut lines = self.lines.lock();
        for (rest, level) in
            [(std::mem::take(&mut lines.stdout), Level::Info), (std::mem::take(&mut lines.stderr), Level::Warn)]
        {
            if !rest.is_empty() {
                lines.write(&self.handler, level, &String::from_utf8_lossy(&rest));
            }
        }
        if lines.dropped > 0 {
            let input = &lines.input;
            tracing::warn!(
                target: "sprag::handler",
                handler = %self.handler,
                endpoint = %input.endpoint,
                event_id = %input.event_id,
                dropped = lines.dropped,
                "log lines over the handler's limit (limits.log) were dropped"
            );
        }
        lines.dropped
    }

    /// The panic's message if there was one, else the last lines of stderr and of the log at level error.
    pub(crate) fn last_words(&self) -> Option<String> {
        let lines = self.lines.lock();
        let words = lines.last_words.trim();
        let from = words.rfind("panicked at").unwrap_or(0);
        (!words.is_empty()).then(|| words[from..].to_owned())
    }
}

impl Lines {
    fn write(&mut self, handler: &HandlerName, level: Level, text: &str) {
        let size = text.len().max(1);
        if size > self.room {
            // The rest of the run is dropped too: a log with holes in the middle misleads.
            self.room = 0;
            self.dropped += 1;
            return;
        }
        self.room -= size;
        let input = &self.input;
        macro_rules! event {
            ($level:ident) => {
                tracing::event!(
                    target: "sprag::handler",
                    tracing::Level::$level,
                    handler = %handler,
                    endpoint = %input.endpoint,
                    event_id = %input.event_id,
                    message_id = input.message_id.as_ref().map(tracing::field::display),
                    session = input.session.as_ref().map(tracing::field::display),
                    attempt = input.attempt,
                    "{text}"
                )
            };
        }
        match level {
            Level::Debug => event!(DEBUG),
            Level::Info => event!(INFO),
            Level::Warn => event!(WARN),
            Level::Error => event!(ERROR),
        }
    }

    fn remember_bytes(&mut self, bytes: &[u8]) {
        let from = bytes.len().saturating_sub(LAST_WORDS);
        self.last_words.push_str(&String::from_utf8_lossy(&bytes[from..]));
        self.forget();
    }

    fn remember(&mut self, text: &str) {
        let mut from = text.len().saturating_sub(LAST_WORDS);
        while !text.is_char_boundary(from) {
            from += 1;
        }
        self.last_words.push_str(&text[from..]);
        self.last_words.push('\n');
        self.forget();
    }

    fn forget(&mut self) {
        if self.last_words.len() <= 2 * LAST_WORDS {
            return;
        }
        let mut from = self.last_words.len() - LAST_WORDS;
        while !self.last_words.is_char_boundary(from) {
            from += 1;
        }
        self.last_words.drain(..from);
    }
}

/// One end of a guest's stdout or stderr.
pub(crate) struct Stdio {
    pub(crate) sink: Arc<Sink>,
    pub(crate) pipe: Pipe,
}

impl IsTerminal for Stdio {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Stdio {
    fn async_stream(&self) -> Box<dyn tokio::io::AsyncWrite + Send + Sync> {
        Box::new(Writer { sink: self.sink.clone(), pipe: self.pipe })
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(Writer { sink: self.sink.clone(), pipe: self.pipe })
    }
}

/// Takes everything at once: the sink drops what is over the limit, so nobody has to wait for it.
struct Writer {
    sink: Arc<Sink>,
    pipe: Pipe,
}

#[async_trait::async_trait]
impl Pollable for Writer {
    async fn ready(&mut self) {}
}

impl OutputStream for Writer {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.sink.bytes(self.pipe, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(64 << 10)
    }
}

impl tokio::io::AsyncWrite for Writer {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        self.sink.bytes(self.pipe, bytes);
        std::task::Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}
