//! Requests to the service: signed, bounded in number and time, and sent again where the service asks for it.
//!
//! Every request of an inbox may be sent twice: a record that is there already is as good as a new one, and a deletion that finds nothing deletes
//! nothing. So what got no answer is sent again, too, within the call's time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::{Serialize, de::DeserializeOwned};
use sprag_core::time::Timestamp;
use tokio::{sync::Semaphore, time::Instant};
use tracing::debug;
use ureq::http;

use super::{
    account::{Account, Credential},
    document::{Document, Key},
    fault::Fault,
    http::{Http, Received, Sent},
    options::{OpenError, Options},
    signature,
};

/// Of the interface. Newer ones add what an inbox has no use for.
const VERSION: &str = "2018-12-31";
/// Tries of a request that got no answer, or one that says it may work again.
const MOST_TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Where the service says that there are too many requests and does not say how long to wait.
const PAUSE_WITHOUT_A_HINT: Duration = Duration::from_millis(100);
/// What is encoded in the path: the names may hold spaces and other letters.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%').add(b'<').add(b'>').add(b'`').add(b'{').add(b'}');

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum On {
    Account,
    Databases,
    #[cfg(feature = "test-server")]
    Database,
    Containers,
    Container,
    Ranges,
    Documents,
    Document(String),
}

#[derive(Debug, Clone)]
pub(crate) struct Request {
    method: http::Method,
    on: On,
    headers: Vec<(&'static str, String)>,
    body: Option<Vec<u8>>,
}

impl Request {
    pub(crate) fn get(on: On) -> Self {
        Self { method: http::Method::GET, on, headers: Vec::new(), body: None }
    }

    pub(crate) fn post(on: On, body: &impl Serialize) -> Result<Self, Fault> {
        let body = serde_json::to_vec(body).map_err(|error| Fault::Invalid(error.to_string()))?;
        let headers = vec![("content-type", "application/json".to_owned())];
        Ok(Self { method: http::Method::POST, on, headers, body: Some(body) })
    }

    pub(crate) fn read(key: &Key) -> Self {
        Self::get(On::Document(key.as_str().to_owned())).in_partition(key.as_str())
    }

    pub(crate) fn create(document: &Document) -> Result<Self, Fault> {
        Ok(Self::post(On::Documents, document)?.in_partition(&document.id))
    }

    /// Only what is still as it was found.
    pub(crate) fn delete(id: &str, etag: &str) -> Self {
        let request = Self { method: http::Method::DELETE, ..Self::get(On::Document(id.to_owned())) };
        request.with("if-match", etag.to_owned()).in_partition(id)
    }

    #[cfg(feature = "test-server")]
    pub(crate) fn drop_database() -> Self {
        Self { method: http::Method::DELETE, ..Self::get(On::Database) }
    }

    pub(crate) fn with(mut self, name: &'static str, value: String) -> Self {
        self.headers.retain(|(other, _)| *other != name);
        self.headers.push((name, value));
        self
    }

    /// Ids here are hex: nothing in them has a meaning in JSON.
    fn in_partition(self, id: &str) -> Self {
        self.with("x-ms-documentdb-partitionkey", format!("[\"{id}\"]"))
    }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Zero where none is said.
    pub(crate) substatus: u32,
    pub(crate) continuation: Option<String>,
    body: Vec<u8>,
}

impl Answer {
    fn of(received: Received) -> Self {
        let text = |name: &str| received.headers.get(name).and_then(|it| it.to_str().ok()).map(str::to_owned);
        Self {
            status: received.status,
            substatus: text("x-ms-substatus").and_then(|text| text.trim().parse().ok()).unwrap_or(0),
            continuation: text("x-ms-continuation").filter(|text| !text.is_empty()),
            body: received.body,
        }
    }

    pub(crate) fn refused(&self) -> Fault {
        // What the service says may hold names and statements; it is cut, and for the debug log only.
        let said = String::from_utf8_lossy(&self.body[..self.body.len().min(1_000)]).into_owned();
        debug!(status = self.status, substatus = self.substatus, said, "the account of an inbox refused a request");
        Fault::Refused { status: self.status, substatus: self.substatus }
    }

    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        serde_json::from_slice(&self.body).map_err(|error| {
            debug!(%error, "an answer of the account of an inbox cannot be read");
            Fault::Unreadable("it is not the JSON that was asked for".to_owned())
        })
    }
}

/// Whom the requests go to, for errors.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) at: String,
    pub(crate) database: String,
    pub(crate) container: String,
}

pub(crate) struct Client {
    http: Http,
    account: Account,
    place: Place,
    room: Arc<Semaphore>,
    time_limit: Duration,
    throttled: AtomicU64,
}

/// What to do about an answer.
enum Next {
    Take(Answer),
    Again { pause: Duration, because: Fault },
}

impl Client {
    pub(crate) fn new(options: &Options) -> Result<Self, OpenError> {
        options.check()?;
        Ok(Self {
            http: Http::new(options)?,
            account: options.account.clone(),
            place: Place {
                at: options.account.base.clone(),
                database: options.database.clone(),
                container: options.container.clone(),
            },
            room: Arc::new(Semaphore::new(options.concurrency)),
            time_limit: options.time_limit,
            throttled: AtomicU64::new(0),
        })
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn throttled(&self) -> u64 {
        self.throttled.load(Ordering::Relaxed)
    }

    /// An answer that says something about the request: what is only not possible now was tried again.
    pub(crate) async fn call(&self, request: Request) -> Result<Answer, Fault> {
        let begun = Instant::now();
        let mut tries = 0;
        loop {
            let (pause, because) = match self.attempt(&request, tries).await? {
                Next::Take(answer) => return Ok(answer),
                Next::Again { pause, because } => (pause, because),
            };
            // Being told to wait is no failed try: it is bounded by the time alone.
            tries += u32::from(!matches!(because, Fault::Throttled(_)));
            if tries >= MOST_TRIES || begun.elapsed() + pause > self.time_limit {
                return Err(match because {
                    Fault::Throttled(_) => Fault::Throttled(begun.elapsed()),
                    other => other,
                });
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn attempt(&self, request: &Request, tries: u32) -> Result<Next, Fault> {
        let sent = self.signed(request).await?;
        let closed = || Fault::NoAnswer("the host ends".to_owned());
        let permit = Arc::clone(&self.room).acquire_owned().await.map_err(|_| closed())?;
        let http = self.http.clone();
        let received = tokio::task::spawn_blocking(move || {
            let received = http.run(sent);
            drop(permit);
            received
        });
        let back_off = FIRST_PAUSE * (1 << tries.min(4));
        Ok(match received.await {
            Err(_) => return Err(closed()),
            Ok(Err(error)) => Next::Again { pause: back_off, because: Fault::NoAnswer(error.to_string()) },
            Ok(Ok(received)) if received.status == 429 => {
                self.throttled.fetch_add(1, Ordering::Relaxed);
                Next::Again { pause: hint(&received), because: Fault::Throttled(Duration::ZERO) }
            }
            Ok(Ok(received)) => {
                let pause = if received.headers.contains_key(HINT) { hint(&received) } else { back_off };
                let answer = Answer::of(received);
                // Timed out there, moving, changed by others at this moment, not available.
                match answer.status {
                    408 | 410 | 449 | 502 | 503 | 504 => Next::Again { pause, because: answer.refused() },
                    _ => Next::Take(answer),
                }
            }
        })
    }

    async fn signed(&self, request: &Request) -> Result<Sent, Fault> {
        let (kind, link, path) = self.named(&request.on);
        let date = signature::date(now());
        let authorization = match &self.account.credential {
            Credential::Key(key) => signature::with_key(key, request.method.as_str(), kind, &link, &date),
            Credential::Tokens(tokens) => {
                let token = tokens.token(&self.account.scope()).await.map_err(Fault::NoToken)?;
                signature::with_token(&token)
            }
        };
        let mut headers = request.headers.clone();
        headers.extend([
            ("authorization", authorization),
            ("x-ms-date", date),
            ("x-ms-version", VERSION.to_owned()),
            ("accept", "application/json".to_owned()),
        ]);
        let path = utf8_percent_encode(&path, ENCODED);
        // The library's error could repeat what it does not take.
        let uri = format!("{}{path}", self.place.at).parse();
        let uri = uri.map_err(|_| Fault::Invalid("the address of a document cannot be written".to_owned()))?;
        Ok(Sent { method: request.method.clone(), uri, headers, body: request.body.clone() })
    }

    /// The kind of resource and the link, as they are signed, and the path.
    fn named(&self, on: &On) -> (&'static str, String, String) {
        let Place { database, container, .. } = &self.place;
        let of_database = format!("dbs/{database}");
        let of_container = format!("{of_database}/colls/{container}");
        match on {
            On::Account => ("", String::new(), "/".to_owned()),
            On::Databases => ("dbs", String::new(), "/dbs".to_owned()),
            #[cfg(feature = "test-server")]
            On::Database => ("dbs", of_database.clone(), format!("/{of_database}")),
            On::Containers => ("colls", of_database.clone(), format!("/{of_database}/colls")),
            On::Container => ("colls", of_container.clone(), format!("/{of_container}")),
            On::Ranges => ("pkranges", of_container.clone(), format!("/{of_container}/pkranges")),
            On::Documents => ("docs", of_container.clone(), format!("/{of_container}/docs")),
            On::Document(id) => ("docs", format!("{of_container}/docs/{id}"), format!("/{of_container}/docs/{id}")),
        }
    }
}

const HINT: &str = "x-ms-retry-after-ms";

/// How long the service asks to wait. Some of its answers have a fraction.
fn hint(received: &Received) -> Duration {
    let millis = received.headers.get(HINT).and_then(|it| it.to_str().ok()?.trim().parse::<f64>().ok());
    let millis = millis.filter(|it| it.is_finite() && (0.0..=3_600_000.0).contains(it));
    millis.map_or(PAUSE_WITHOUT_A_HINT, |it| Duration::from_secs_f64(it / 1_000.0))
}

/// The wall time now: the service takes no request whose date is far from its own.
pub(crate) fn now() -> Timestamp {
    Timestamp::default().after(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO))
}
