//! A way to the broker that can be cut and stopped.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::any_port;

/// Passes bytes on between a client and a broker.
pub struct Way {
    pub address: SocketAddr,
    cut: watch::Sender<u32>,
    stopped: Arc<AtomicBool>,
}

impl Way {
    pub async fn to(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind(any_port()).await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (cut, cuts) = watch::channel(0);
        let stopped = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stopped);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (mut cuts, stops) = (cuts.clone(), Arc::clone(&stops));
                cuts.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(broker).await else { return };
                    let (client_in, client_out) = client.into_split();
                    let (server_in, server_out) = server.into_split();
                    tokio::select! {
                        () = pass(client_in, server_out, &stops) => {}
                        () = pass(server_in, client_out, &stops) => {}
                        _cut = cuts.changed() => {}
                    }
                });
            }
        });
        Self { address, cut, stopped }
    }

    /// Every connection ends.
    pub fn cut(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
    }

    /// Nothing gets through, and nothing is closed.
    pub fn stop(&self, stopped: bool) {
        self.stopped.store(stopped, SeqCst);
    }
}

async fn pass(
    mut from: impl tokio::io::AsyncRead + Unpin,
    mut to: impl tokio::io::AsyncWrite + Unpin,
    stopped: &AtomicBool,
) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            // What comes meanwhile is lost, as on a way that is broken.
            Ok(_) if stopped.load(SeqCst) => {}
            Ok(len) => {
                if to.write_all(&buffer[..len]).await.is_err() {
                    return;
                }
            }
        }
    }
}
