//! The bytes between the driver and a server.
//!
//! TLS is done here and not by the driver, whose own feature for it brings a second crypto provider (A56). The greeting of the protocol says
//! whether there is to be encryption, so the greeting is done here too, and the handshake in its packets after it. The driver then believes
//! that it speaks plain text: its own greeting goes no further than this file and is answered with what the server said to ours.
//!
//! *Invariant:* where encryption is asked for nothing but the greeting leaves in plain text.

use std::{
    io::{self, ErrorKind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, pki_types::ServerName},
};

/// Of a packet: type, status, length (two bytes, with the header), process, number, window.
pub(crate) const HEADER: usize = 8;
pub(crate) const GREETING: u8 = 0x12;
pub(crate) const ANSWER: u8 = 0x04;
pub(crate) const LAST: u8 = 0x01;
/// Longer than any greeting.
const MOST_GREETING: usize = 4_096;

pub(crate) const ENCRYPT_OFF: u8 = 0;
pub(crate) const ENCRYPT_ON: u8 = 1;
pub(crate) const ENCRYPT_NOT_SUPPORTED: u8 = 2;
pub(crate) const ENCRYPT_REQUIRED: u8 = 3;

/// What a connection is opened with.
pub(crate) struct Tls {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Tls(String),
}

/// A TCP connection that the pool can look at while the driver has it.
pub(crate) struct Socket(Arc<TcpStream>);

impl Socket {
    pub(crate) fn new(tcp: Arc<TcpStream>) -> Self {
        Self(tcp)
    }
}

/// Looks at a connection that nobody uses.
pub(crate) struct Pulse(Arc<TcpStream>);

impl Pulse {
    /// Nothing has come and nobody has hung up.
    pub(crate) fn beats(&self) -> bool {
        matches!(self.0.try_read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    }
}

/// Greets the server. With `tls` the rest of the conversation is encrypted or there is none.
pub(crate) async fn open(host: &str, port: u16, tls: Option<&Tls>) -> Result<(Wire, Pulse), Error> {
    let tcp = TcpStream::connect((host, port)).await?;
    tcp.set_nodelay(true)?;
    let tcp = Arc::new(tcp);
    let pulse = Pulse(Arc::clone(&tcp));
    let mut socket = Socket(tcp);
    let wanted = if tls.is_some() { ENCRYPT_ON } else { ENCRYPT_NOT_SUPPORTED };
    socket.write_all(&greeting(GREETING, wanted)).await?;
    socket.flush().await?;
    let answer = read_greeting(&mut socket).await?;
    let inner = match (tls, offered(&answer)?) {
        (Some(tls), ENCRYPT_ON | ENCRYPT_REQUIRED) => Inner::Tls(Box::new(handshake(socket, tls).await?)),
        (Some(_), _) => return Err(Error::Tls("the server offers no encryption, and Encrypt asks for it".to_owned())),
        (None, ENCRYPT_OFF | ENCRYPT_NOT_SUPPORTED) => Inner::Plain(socket),
        (None, _) => return Err(Error::Tls("the server demands encryption, and Encrypt is false".to_owned())),
    };
    Ok((Wire { inner, greeting: Vec::new(), answer, answered: 0, greeted: false }, pulse))
}

/// Version, encryption, no instance, no thread, one conversation.
pub(crate) fn greeting(kind: u8, encryption: u8) -> Vec<u8> {
    const OPTIONS: [(u8, &[u8]); 5] = [(0, &[0; 6]), (1, &[0]), (2, &[0]), (3, &[0; 4]), (4, &[0])];
    let mut body = Vec::new();
    let mut offset = OPTIONS.len() * 5 + 1;
    for (token, value) in OPTIONS {
        body.push(token);
        body.extend_from_slice(&(offset as u16).to_be_bytes());
        body.extend_from_slice(&(value.len() as u16).to_be_bytes());
        offset += value.len();
    }
    body.push(0xff);
    for (token, value) in OPTIONS {
        body.extend_from_slice(if token == 1 { std::slice::from_ref(&encryption) } else { value });
    }
    packet(kind, &body)
}

pub(crate) fn packet(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (HEADER + body.len()) as u16;
    let mut packet = vec![kind, LAST, 0, 0, 0, 0, 1, 0];
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet.extend_from_slice(body);
    packet
}

fn strange(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("it does not speak TDS: {what}"))
}

/// The server's greeting as a whole packet.
async fn read_greeting(socket: &mut Socket) -> io::Result<Vec<u8>> {
    let mut answer = vec![0; HEADER];
    socket.read_exact(&mut answer).await?;
    let length = usize::from(u16::from_be_bytes([answer[2], answer[3]]));
    // Engines answer as one answers, or as one greets.
    if !matches!(answer[0], ANSWER | GREETING) || answer[1] & LAST == 0 || !(HEADER..=MOST_GREETING).contains(&length) {
        return Err(strange("its greeting is none"));
    }
    answer.resize(length, 0);
    socket.read_exact(&mut answer[HEADER..]).await?;
    Ok(answer)
}

/// What a greeting says of encryption.
pub(crate) fn offered(packet: &[u8]) -> io::Result<u8> {
    let body = &packet[HEADER..];
    let mut at = 0;
    loop {
        match body.get(at..at + 5) {
            Some(&[1, high, low, ..]) => {
                let offset = usize::from(u16::from_be_bytes([high, low]));
                return body.get(offset).copied().ok_or_else(|| strange("its greeting is cut off"));
            }
            Some(&[0xff, ..]) | None => return Err(strange("its greeting does not speak of encryption")),
            Some(_) => at += 5,
        }
    }
}

async fn handshake(socket: Socket, tls: &Tls) -> Result<TlsStream<InPackets>, Error> {
    let io = InPackets::new(socket);
    let connector = TlsConnector::from(Arc::clone(&tls.config));
    match connector.connect(tls.name.clone(), io).await {
        Ok(mut stream) => {
            stream.get_mut().0.end();
            Ok(stream)
        }
        // The network's own troubles keep their name.
        Err(error) if error.get_ref().is_none() => Err(Error::Io(error)),
        Err(error) => Err(Error::Tls(error.to_string())),
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(context))?;
            match self.0.try_read(buf.initialize_unfilled()) {
                Ok(count) => {
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match self.0.try_write(buf) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The connection is closed when it is dropped.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Until the handshake is done its bytes travel in packets of the greeting; after that, as they are.
pub(crate) struct InPackets {
    socket: Socket,
    done: bool,
    header: [u8; HEADER],
    /// Bytes of the header that have come.
    read: usize,
    /// Bytes of the packet that have not come yet.
    left: usize,
    out: Vec<u8>,
}

impl InPackets {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, done: false, header: [0; HEADER], read: 0, left: 0, out: Vec::new() }
    }

    /// The handshake is over.
    pub(crate) fn end(&mut self) {
        self.done = true;
    }

    fn poll_out(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.out.is_empty() {
            let count = ready!(Pin::new(&mut self.socket).poll_write(context, &self.out))?;
            if count == 0 {
                return Poll::Ready(Err(ErrorKind::WriteZero.into()));
            }
            self.out.drain(..count);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for InPackets {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.done && this.left == 0 {
            return Pin::new(&mut this.socket).poll_read(context, buf);
        }
        while this.left == 0 {
            let mut rest = ReadBuf::new(&mut this.header[this.read..]);
            ready!(Pin::new(&mut this.socket).poll_read(context, &mut rest))?;
            if rest.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.read += rest.filled().len();
            if this.read == HEADER {
                let length = usize::from(u16::from_be_bytes([this.header[2], this.header[3]]));
                if !matches!(this.header[0], GREETING | ANSWER) || length < HEADER {
                    return Poll::Ready(Err(strange("a packet of the handshake is none")));
                }
                (this.read, this.left) = (0, length - HEADER);
            }
        }
        let most = this.left.min(buf.remaining());
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(most));
        ready!(Pin::new(&mut this.socket).poll_read(context, &mut part))?;
        let count = part.filled().len();
        this.left -= count;
        buf.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for InPackets {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_out(context))?;
        if this.done {
            return Pin::new(&mut this.socket).poll_write(context, buf);
        }
        let part = &buf[..buf.len().min(MOST_GREETING - HEADER)];
        this.out = packet(GREETING, part);
        Poll::Ready(Ok(part.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_out(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

enum Inner {
    Plain(Socket),
    Tls(Box<TlsStream<InPackets>>),
}

/// What the driver reads and writes.
pub(crate) struct Wire {
    inner: Inner,
    /// The driver's greeting, as far as it has written it.
    greeting: Vec<u8>,
    /// What the server answered to ours, and how much of it the driver has read.
    answer: Vec<u8>,
    answered: usize,
    greeted: bool,
}

impl Wire {
    /// How many of the bytes are the driver's greeting, which goes nowhere.
    fn swallow(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let wanted = |greeting: &[u8]| match greeting {
            [_, _, high, low, ..] if greeting.len() >= HEADER => usize::from(u16::from_be_bytes([*high, *low])),
            _ => HEADER,
        };
        let mut taken = 0;
        while self.greeting.len() < wanted(&self.greeting) && taken < bytes.len() {
            self.greeting.push(bytes[taken]);
            taken += 1;
        }
        self.greeted = self.greeting.len() >= HEADER && self.greeting.len() == wanted(&self.greeting);
        if self.greeted && self.greeting[0] != GREETING {
            return Err(strange("the driver does not greet"));
        }
        Ok(taken)
    }
}

impl futures_util::io::AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.greeted && this.answered < this.answer.len() {
            let count = buf.len().min(this.answer.len() - this.answered);
            buf[..count].copy_from_slice(&this.answer[this.answered..this.answered + count]);
            this.answered += count;
            return Poll::Ready(Ok(count));
        }
        let mut buf = ReadBuf::new(buf);
        ready!(match &mut this.inner {
            Inner::Plain(socket) => Pin::new(socket).poll_read(context, &mut buf),
            Inner::Tls(stream) => Pin::new(stream).poll_read(context, &mut buf),
        })?;
        Poll::Ready(Ok(buf.filled().len()))
    }
}

impl futures_util::io::AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if !this.greeted {
            return Poll::Ready(this.swallow(buf));
        }
        match &mut this.inner {
            Inner::Plain(socket) => Pin::new(socket).poll_write(context, buf),
            Inner::Tls(stream) => Pin::new(stream).poll_write(context, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().inner {
            Inner::Plain(socket) => Pin::new(socket).poll_flush(context),
            Inner::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().inner {
            Inner::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Inner::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
