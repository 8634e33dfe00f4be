//! The bytes of one connection: read, handed to the peer, written together.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::watch,
};

use super::peer::Peer;

/// What is read at a time, at first and for a client that sends more than that.
const READ: usize = 8 << 10;
const LARGE_READ: usize = 64 << 10;
/// An output buffer that is larger is given back when it is written: a thousand quiet connections should not hold what each needed once.
const KEPT_OUTPUT: usize = 16 << 10;
/// How long the last bytes may take to be written, and the socket to be closed.
const LAST_WRITE: Duration = Duration::from_secs(5);
/// Longer than any connection lives.
const FAR: Duration = Duration::from_secs(86_400 * 365);

/// Serves one connection until it has ended.
pub(super) async fn run<S: AsyncRead + AsyncWrite>(stream: S, mut peer: Peer, mut stop: watch::Receiver<bool>) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (mut input, mut read_size) = (BytesMut::new(), READ);
    let (mut output, mut written) = (Vec::new(), 0);
    let (mut give_up, mut stopping): (Option<Instant>, bool) = (None, false);
    let timer = tokio::time::sleep(FAR);
    tokio::pin!(timer);
    loop {
        peer.advance();
        if written == output.len() {
            output.clear();
            written = 0;
            if output.capacity() > KEPT_OUTPUT {
                output = Vec::new();
            }
            peer.amqp.poll_output(&mut output, Instant::now());
            peer.drained_output();
            if output.is_empty() {
                peer.amqp.poll_output(&mut output, Instant::now());
            }
        }
        let now = Instant::now();
        if peer.amqp.is_finished() {
            if output.is_empty() {
                break;
            }
            give_up.get_or_insert(now + LAST_WRITE);
        }
        let due = [peer.amqp.poll_timeout(), peer.next_expiry(), peer.next_idle(), give_up].into_iter().flatten().min();
        let due = tokio::time::Instant::from_std(due.unwrap_or(now + FAR));
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        tokio::select! {
            read = async {
                input.reserve(read_size);
                reader.read_buf(&mut input).await
            }, if peer.reads() => match read {
                Ok(0) => peer.amqp.handle_disconnect(Instant::now()),
                Ok(len) => {
                    read_size = if len >= read_size { LARGE_READ } else { READ };
                    peer.amqp.handle_input(&mut input, Instant::now());
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection broke");
                    peer.amqp.handle_disconnect(Instant::now());
                }
            },
            wrote = writer.write(&output[written..]), if written < output.len() => match wrote {
                Ok(len) if len > 0 => written += len,
                Ok(_) | Err(_) => {
                    peer.amqp.handle_disconnect(Instant::now());
                    peer.advance();
                    break;
                }
            },
            Some(done) = peer.next_job(), if peer.has_jobs() => peer.finish(done),
            () = &mut timer => {
                let now = Instant::now();
                if give_up.is_some_and(|at| at <= now) {
                    if peer.amqp.is_finished() {
                        break;
                    }
                    give_up = None;
                    peer.stop_now();
                } else {
                    peer.amqp.handle_timeout(now);
                    peer.expire();
                    peer.close_idle(now);
                }
            }
            changed = stop.changed(), if !stopping => {
                // A sender that is gone has nothing to say but that.
                let _ = changed;
                stopping = true;
                give_up = Some(Instant::now() + peer.context().settings.stop_grace);
                peer.stop();
            }
        }
    }
    peer.end().await;
    // The client may have closed it already.
    let _ = tokio::time::timeout(LAST_WRITE, writer.shutdown()).await;
}
