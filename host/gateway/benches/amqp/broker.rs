//! The broker that is measured: a process of its own, which is this program once more.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use sprag_broker::{Engine, EntitySpec, Options};
use sprag_gateway::amqp::{Config, Gateway};
use tokio::net::TcpStream;

use super::support::Client;

/// A queue, and one with sessions.
pub(crate) const QUEUE: &str = "queue";
pub(crate) const SESSIONS: &str = "sessions";

/// The argument that makes this program the broker.
pub(crate) const ARGUMENT: &str = "--broker-child";

/// Serves in `folder` until the input ends.
pub(crate) async fn serve(folder: &Path) {
    let engine = Engine::open(Options::new(folder)).expect("a folder for the broker");
    let long = Duration::from_secs(300);
    let specs = [EntitySpec::queue(QUEUE), EntitySpec::queue(SESSIONS).with_sessions()];
    let specs = specs.map(|spec| EntitySpec { lock_duration: long, ..spec });
    engine.declare(specs.into()).await.expect("declared");
    let config = Config { listen: Some(([127, 0, 0, 1], 0).into()), ..Config::default() };
    let gateway = Gateway::build(config, engine.clone()).await.expect("a port");
    println!("{}", gateway.handle().address().expect("it listens"));
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    // A thread, because reading the input cannot be interrupted.
    std::thread::spawn(move || {
        let read = std::io::stdin().read_to_end(&mut Vec::new());
        drop((read, ended));
    });
    gateway
        .run(async {
            // It is never sent, only dropped.
            let _ = end.await;
        })
        .await;
    engine.close().await;
}

pub(crate) struct Broker {
    child: Child,
    address: SocketAddr,
}

impl Broker {
    pub(crate) fn start(folder: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .arg(ARGUMENT)
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the broker starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("it is a pipe");
        BufReader::new(output).read_line(&mut line).expect("the broker says where it listens");
        Self { child, address: line.trim().parse().expect("an address") }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A client that has a session of the protocol.
    pub(crate) async fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).await.expect("connected");
        stream.set_nodelay(true).expect("a socket option");
        let mut client = Client::over(stream);
        client.log_in("ANONYMOUS", None).await.expect("everybody may");
        client.open().await;
        client
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Its input ends, and so does it.
        drop(self.child.stdin.take());
        let ended = self.child.wait().expect("the broker can be waited for");
        assert!(ended.success() || std::thread::panicking(), "the broker ended with {ended}");
    }
}
