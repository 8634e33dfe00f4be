//! A service that answers as it is told: what no stand-in does is shown by answers as the service documents them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use sprag_databases::cosmos::{Account, CosmosInbox, Options};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};

pub(crate) const KEY: &str = "Z2VoZWlt";

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// `GET /dbs`
    pub(crate) what: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Value,
    pub(crate) at: Instant,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(String::as_str).unwrap_or_default()
    }
}

/// An answer: status, headers, body.
#[derive(Debug, Clone)]
pub(crate) struct Reply(pub(crate) u16, pub(crate) Vec<(&'static str, String)>, pub(crate) Value);

pub(crate) fn reply(status: u16, body: Value) -> Reply {
    Reply(status, Vec::new(), body)
}

pub(crate) fn account(level: &str) -> Reply {
    reply(200, json!({ "id": "shop", "userConsistencyPolicy": { "defaultConsistencyLevel": level } }))
}

pub(crate) fn container() -> Reply {
    reply(200, json!({ "id": "inbox", "partitionKey": { "paths": ["/id"], "kind": "Hash" } }))
}

pub(crate) fn ranges(ids: &[&str]) -> Reply {
    let ranges: Vec<_> = ids.iter().map(|id| json!({ "id": id })).collect();
    reply(200, json!({ "PartitionKeyRanges": ranges, "_count": ranges.len() }))
}

type Script = dyn Fn(&Seen) -> Reply + Send + Sync;

/// The service. It ends when this is dropped.
pub(crate) struct Service {
    port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    most_at_once: Arc<AtomicUsize>,
    accepting: AbortHandle,
}

const CONTAINER: &str = "/dbs/MessageDatabase/colls/inbox";

impl Service {
    /// An account that is Strong and has its container; everything else is for the script.
    pub(crate) async fn usual(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(move |seen| match seen.what.as_str() {
            "GET /" => account("Strong"),
            what if what == format!("GET {CONTAINER}") => container(),
            _ => script(seen),
        })
        .await
    }

    pub(crate) async fn start(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (seen, most_at_once) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
        let (log, most, at_once) = (Arc::clone(&seen), Arc::clone(&most_at_once), Arc::new(AtomicUsize::new(0)));
        let script: Arc<Script> = Arc::new(script);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (script, log, most, at_once) =
                    (Arc::clone(&script), Arc::clone(&log), Arc::clone(&most), Arc::clone(&at_once));
                tokio::spawn(async move {
                    let now = at_once.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    // A client that goes away ends its connection.
                    let _ = serve(stream, &*script, &log, &at_once).await;
                });
            }
        });
        Self { port, seen, most_at_once, accepting: accepting.abort_handle() }
    }

    pub(crate) fn options(&self) -> Options {
        let text = format!("AccountEndpoint=http://127.0.0.1:{}/;AccountKey={KEY}", self.port);
        Options::new(Account::parse(&text).expect("it is a connection string"))
    }

    pub(crate) async fn open(&self) -> CosmosInbox {
        CosmosInbox::open(self.options()).await.expect("it opens")
    }

    /// The requests behind the opening.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        let of_opening = ["GET /".to_owned(), format!("GET {CONTAINER}")];
        self.all().into_iter().filter(|it| !of_opening.contains(&it.what)).collect()
    }

    pub(crate) fn all(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    pub(crate) fn most_at_once(&self) -> usize {
        self.most_at_once.load(Ordering::SeqCst)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// One request on each connection.
async fn serve(
    mut stream: TcpStream,
    script: &Script,
    log: &Mutex<Vec<Seen>>,
    at_once: &AtomicUsize,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(&mut stream);
    let mut line = String::new();
    reader.read_line(&mut line).await?;
    let what = line.rsplit_once(" HTTP/").map(|(what, _)| what.to_owned()).unwrap_or_default();
    let mut headers = BTreeMap::new();
    loop {
        line.clear();
        reader.read_line(&mut line).await?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|it| it.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let seen = Seen { what, headers, body, at: Instant::now() };
    log.lock().push(seen.clone());
    // Long enough for those that come at the same time to be seen together.
    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    let Reply(status, headers, body) = script(&seen);
    let body = if status == 204 { String::new() } else { body.to_string() };
    let mut text = format!("HTTP/1.1 {status} Whatever\r\ncontent-length: {}\r\nconnection: close\r\n", body.len());
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    at_once.fetch_sub(1, Ordering::SeqCst);
    stream.write_all(format!("{text}\r\n{body}").as_bytes()).await?;
    stream.shutdown().await
}
