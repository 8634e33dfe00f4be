//! A namespace of a test's own: a broker with both of its faces, AMQP and the administration API; and a fake of the latter.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::{
    collections::VecDeque,
    net::SocketAddr,
    num::NonZeroU32,
    path::{Path as FilePath, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use sprag_gateway::{access::Access, administration::Server};
use sprag_servicebus::administration::{Administration, Config};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
    sync::oneshot,
    task::JoinHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};

use super::support::{Broker, any_port, connection_string};

pub struct Namespace {
    pub broker: Broker,
    pub administration: Administration,
    pub port: u16,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl Namespace {
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let broker = Broker::start(dir.path(), Vec::new(), any_port()).await;
        let server = Server::bind(any_port()).await.expect("a free port");
        let port = server.address().port();
        let (stop, stopped) = oneshot::channel::<()>();
        let (engine, clock) = (broker.engine.clone(), Arc::new(sprag_store::clock::now));
        let served = tokio::spawn(async move {
            let until = async {
                let _either_way = stopped.await;
            };
            server.run(engine, Access::emulator(), clock, until).await.expect("it serves");
        });
        let administration = Administration::new(config(port)).expect("it needs nothing");
        Self { broker, administration, port, stop: Some(stop), served: Some(served), _dir: dir }
    }

    /// The administration is gone; the broker stays.
    pub async fn stop_administration(&mut self) {
        drop(self.stop.take());
        if let Some(served) = self.served.take() {
            served.await.expect("the server does not panic");
        }
    }
}

/// Of the emulator's key, with short pauses.
pub fn config(port: u16) -> Config {
    Config {
        port: Some(port),
        request_timeout: Duration::from_secs(20),
        tries: NonZeroU32::new(4).expect("not zero"),
        backoff: (Duration::from_millis(1), Duration::from_millis(5)),
        ..Config::new(connection_string(([127, 0, 0, 1], port).into()))
    }
}

/// Of `localhost`, by nobody but itself.
pub fn certificate() -> PathBuf {
    tls("certificate.pem")
}

fn tls(name: &str) -> PathBuf {
    FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../gateway/tests/tls").join(name)
}

/// A request as the fake got it.
#[derive(Debug, Clone)]
pub struct Got {
    /// `GET /orders?api-version=…`
    pub line: String,
    /// As they came, without the first line.
    pub head: String,
    pub body: String,
}

/// A server that says what it is told to, in turn; the last answer again and again.
pub struct Fake {
    pub address: SocketAddr,
    got: Arc<Mutex<Vec<Got>>>,
}

impl Fake {
    /// Each answer is a status with further headers (`429 Too Many Requests\r\nRetry-After: 1`) and a body,
    /// in which `{head}` stands for what the request had in its head.
    pub async fn start(answers: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        Self::serve(answers, None).await
    }

    /// The same behind TLS, as `localhost`, with the certificate of [`certificate`].
    pub async fn start_tls(answers: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        let chain = vec![CertificateDer::from_pem_file(certificate()).expect("it is a certificate")];
        let key = PrivateKeyDer::from_pem_file(tls("key.pem")).expect("it is a key");
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("they belong together");
        Self::serve(answers, Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn serve(answers: impl IntoIterator<Item = (&'static str, String)>, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind(any_port()).await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let got: Arc<Mutex<Vec<Got>>> = Arc::default();
        let answers: Arc<Mutex<VecDeque<_>>> = Arc::new(Mutex::new(answers.into_iter().collect()));
        let kept = Arc::clone(&got);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (kept, answers, tls) = (Arc::clone(&kept), Arc::clone(&answers), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => answer(stream, kept, answers).await,
                        Some(tls) => {
                            // A client that does not trust the certificate is gone.
                            let Ok(stream) = tls.accept(stream).await else { return };
                            answer(stream, kept, answers).await;
                        }
                    }
                });
            }
        });
        Self { address, got }
    }

    pub fn client(&self) -> Administration {
        Administration::new(config(self.address.port())).expect("it needs nothing")
    }

    pub fn got(&self) -> Vec<Got> {
        self.got.lock().clone()
    }
}

type Answers = VecDeque<(&'static str, String)>;

async fn answer(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    got: Arc<Mutex<Vec<Got>>>,
    answers: Arc<Mutex<Answers>>,
) {
    let mut read = Vec::new();
    loop {
        let Some(request) = request(&mut stream, &mut read).await else { return };
        let head = request.head.replace('&', "&amp;");
        got.lock().push(request);
        let (status, body) = {
            let mut answers = answers.lock();
            let next = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
            next.expect("there is an answer")
        };
        let body = body.replace("{head}", &head);
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn request(stream: &mut (impl AsyncRead + Unpin), read: &mut Vec<u8>) -> Option<Got> {
    loop {
        if let Some(end) = read.windows(4).position(|it| it == b"\r\n\r\n") {
            let text = String::from_utf8(read[..end].to_vec()).expect("text");
            let length = text.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().expect("a number"))
            });
            let whole = end + 4 + length.unwrap_or_default();
            if read.len() >= whole {
                let body = String::from_utf8(read[end + 4..whole].to_vec()).expect("text");
                read.drain(..whole);
                let (line, head) = text.split_once("\r\n").expect("headers");
                return Some(Got { line: line.to_owned(), head: head.to_owned(), body });
            }
        }
        if stream.read_buf(read).await.ok()? == 0 {
            return None;
        }
    }
}
