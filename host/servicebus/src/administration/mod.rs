//! The administration of a namespace: its queues, topics, subscriptions and rules, over the HTTP API that Azure's SDKs use (Atom XML).
//!
//! Start reading at [`Administration`]. A call goes [`path`] (what it names) → `http` (one request, with its tries) → `atom` (the frame of the
//! answer) → [`entity`] or [`rule`] (what it says); `error` says why not.
//!
//! *Invariants:* nothing is ever deleted here; an update sends back all that it read, what nobody here knows included; every wait and every
//! number of tries has a bound; no key and no token is in an error, a `Debug` text or a log.

mod atom;
mod duration;
mod entity;
mod error;
mod http;
mod path;
mod rule;
mod setting;
#[cfg(test)]
mod tests;
mod xml;

use std::{num::NonZeroU32, path::PathBuf, sync::Arc, time::Duration};

use sprag_core::ids::EntityName;
use tracing::debug;

pub use entity::{Entity, Status};
pub use error::Error;
pub use path::Path;
pub use rule::{DEFAULT as DEFAULT_RULE, Filter, OtherFilter, Rule};
pub use setting::Setting;

use crate::{
    BuildError, clock,
    connection_string::ConnectionString,
    token::{Token, TokenSource},
};
use atom::Entry;
use http::{Answer, Http, Method, Request};

const API_VERSION: &str = "2021-05";
/// The most entries of a page that the service takes.
const PAGE: usize = 100;
/// A token that ends sooner is not used any more.
const TOKEN_MARGIN: Duration = Duration::from_secs(60);
const MANAGE: &str = "the right Manage (a key with it, or the role \"Azure Service Bus Data Owner\")";
const MANAGE_AND_SEND: &str =
    "the right Manage on it and Send on what it forwards to (or the role \"Azure Service Bus Data Owner\")";

/// How a namespace is administered. Its `Debug` text holds no secret.
#[derive(Clone)]
pub struct Config {
    pub connection: ConnectionString,
    /// In place of the connection string's credential.
    pub tokens: Option<Arc<dyn TokenSource>>,
    /// Of the HTTP API. The connection string's port is the one of AMQP. Default: 443, and the emulator's 5300 without TLS.
    pub port: Option<u16>,
    /// How long one request may take. Default 60 s.
    pub request_timeout: Duration,
    /// How often a request is sent at most while the namespace is busy (429, 5xx). Default 5.
    pub tries: NonZeroU32,
    /// Between two tries when the service does not say how long, at first and at most. Default 1 s and 30 s.
    pub backoff: (Duration, Duration),
    /// Who is asked to wait longer than this gives up. Default 60 s.
    pub longest_wait: Duration,
    /// Certificates (PEM) of authorities beside the platform's.
    pub extra_roots: Vec<PathBuf>,
}

impl Config {
    pub fn new(connection: ConnectionString) -> Self {
        Self {
            connection,
            tokens: None,
            port: None,
            request_timeout: Duration::from_secs(60),
            tries: NonZeroU32::new(5).expect("five is not zero"),
            backoff: (Duration::from_secs(1), Duration::from_secs(30)),
            longest_wait: Duration::from_secs(60),
            extra_roots: Vec::new(),
        }
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = f.debug_struct("Config");
        text.field("connection", &self.connection).field("port", &self.port).finish_non_exhaustive()
    }
}

/// A client of a namespace's administration. Cheap to clone.
#[derive(Clone)]
pub struct Administration {
    shared: Arc<Shared>,
}

struct Shared {
    config: Config,
    http: Http,
    tokens: Arc<dyn TokenSource>,
    token: tokio::sync::Mutex<Option<Token>>,
}

/// A request before it is authorized.
struct Call<'a> {
    /// As errors name it.
    what: &'a str,
    method: Method,
    target: String,
    body: String,
    /// In place of what is there.
    replaces: bool,
    /// Where the described entity forwards to, and its dead letters.
    forwards: [Option<EntityName>; 2],
}

impl<'a> Call<'a> {
    fn get(what: &'a str, target: String) -> Self {
        Self { what, method: Method::Get, target, body: String::new(), replaces: false, forwards: [None, None] }
    }

    fn put(what: &'a str, target: String, body: String, replaces: bool) -> Self {
        Self { method: Method::Put, body, replaces, ..Self::get(what, target) }
    }
}

impl Administration {
    /// Does not connect: the first call does.
    pub fn new(config: Config) -> Result<Self, BuildError> {
        let http = Http::new(&config)?;
        let tokens = config.tokens.clone().unwrap_or_else(|| Arc::new(config.connection.credential.clone()));
        let shared = Shared { config, http, tokens, token: tokio::sync::Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The host of the namespace.
    pub fn host(&self) -> &str {
        &self.shared.config.connection.host
    }

    /// The entity, or [`Error::NotFound`]. Queues and topics share their names: [`Entity::path`] says what it is.
    pub async fn get(&self, path: &Path) -> Result<Entity, Error> {
        let what = path.to_string();
        let entry = self.entry(&what, &path.encoded()).await?;
        read_entity(&what, topic_of(path), entry)
    }

    /// The same, with none for one that is not there.
    pub async fn find(&self, path: &Path) -> Result<Option<Entity>, Error> {
        match self.get(path).await {
            Ok(entity) => Ok(Some(entity)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether there is an entity of this name and this kind.
    pub async fn exists(&self, path: &Path) -> Result<bool, Error> {
        Ok(self.find(path).await?.is_some_and(|entity| entity.path.is(path)))
    }

    pub async fn queues(&self) -> Result<Vec<Entity>, Error> {
        let what = "the list of queues";
        let entries = self.list(what, "$Resources/queues").await?;
        entries.into_iter().map(|entry| read_entity(what, None, entry)).collect()
    }

    pub async fn topics(&self) -> Result<Vec<Entity>, Error> {
        let what = "the list of topics";
        let entries = self.list(what, "$Resources/topics").await?;
        entries.into_iter().map(|entry| read_entity(what, None, entry)).collect()
    }

    pub async fn subscriptions(&self, topic: &EntityName) -> Result<Vec<Entity>, Error> {
        let what = format!("the subscriptions of topic {topic}");
        let entries = self.list(&what, &format!("{}/Subscriptions", path::encode(topic.as_str()))).await?;
        entries.into_iter().map(|entry| read_entity(&what, Some(topic), entry)).collect()
    }

    /// Makes an entity; a subscription with this rule in place of the one that lets in everything. A setting that is not named gets the
    /// service's default. [`Error::Conflict`] when it is there.
    pub async fn create(&self, path: &Path, settings: &[Setting], rule: Option<&Rule>) -> Result<Entity, Error> {
        let mut description = entity::new(path, settings, self.host());
        if let Some(rule) = rule.filter(|_| matches!(path, Path::Subscription { .. })) {
            entity::place(&mut description, rule.write(entity::DEFAULT_RULE));
        }
        self.put(path, description, false).await
    }

    /// Changes these settings and leaves all others as they are at this moment.
    pub async fn update(&self, path: &Path, settings: &[Setting]) -> Result<Entity, Error> {
        let entity = self.get(path).await?;
        if !entity.path.is(path) {
            return Err(Error::NotFound { what: path.to_string(), detail: format!("{} is there", entity.path) });
        }
        self.put(path, entity.changed(settings, self.host()), true).await
    }

    pub async fn rules(&self, subscription: &Path) -> Result<Vec<Rule>, Error> {
        let what = format!("the rules of {subscription}");
        let entries = self.list(&what, &format!("{}/Rules", subscription.encoded())).await?;
        entries.iter().map(|entry| read_rule(&what, entry)).collect()
    }

    pub async fn rule(&self, subscription: &Path, name: &str) -> Result<Rule, Error> {
        let what = format!("rule {name} of {subscription}");
        read_rule(&what, &self.entry(&what, &rule_path(subscription, name)).await?)
    }

    /// [`Error::Conflict`] when there is one of that name.
    pub async fn create_rule(&self, subscription: &Path, rule: &Rule) -> Result<(), Error> {
        let what = format!("rule {} of {subscription}", rule.name);
        let target = addressed(&rule_path(subscription, &rule.name), "");
        let call = Call::put(&what, target, atom::write(rule.describe()), false);
        self.carried_out(&call, MANAGE).await.map(drop)
    }

    pub async fn update_rule(&self, subscription: &Path, rule: &Rule) -> Result<(), Error> {
        let what = format!("rule {} of {subscription}", rule.name);
        let path = rule_path(subscription, &rule.name);
        let entry = self.entry(&what, &path).await?;
        let call = Call::put(&what, addressed(&path, ""), atom::write(rule.changed(entry.description)), true);
        self.carried_out(&call, MANAGE).await.map(drop)
    }

    async fn put(&self, path: &Path, description: xml::Element, replaces: bool) -> Result<Entity, Error> {
        let what = path.to_string();
        let malformed = |problem| Error::Malformed { what: what.clone(), problem };
        // One that was there before is authorized too.
        let forwards = entity::forwards(&description);
        let right = if forwards == [None, None] { MANAGE } else { MANAGE_AND_SEND };
        let call = Call::put(&what, addressed(&path.encoded(), ""), atom::write(description), replaces);
        let call = Call { forwards, ..call };
        let answer = self.carried_out(&call, right).await?;
        match atom::read(&answer.body).map_err(malformed)? {
            atom::Answer::Entry(entry) => read_entity(&what, topic_of(path), entry),
            atom::Answer::List { .. } => Err(malformed("a list answers a change".to_owned())),
        }
    }

    async fn entry(&self, what: &str, path: &str) -> Result<Entry, Error> {
        let answer = self.carried_out(&Call::get(what, addressed(path, "")), MANAGE).await?;
        let read = atom::read(&answer.body);
        match read.map_err(|problem| Error::Malformed { what: what.to_owned(), problem })? {
            atom::Answer::Entry(entry) => Ok(entry),
            // So the service answers for an entity that is not there.
            atom::Answer::List { .. } => Err(Error::NotFound { what: what.to_owned(), detail: String::new() }),
        }
    }

    /// All pages. What is made or removed meanwhile may be in it or not; nothing is in it twice.
    async fn list(&self, what: &str, path: &str) -> Result<Vec<Entry>, Error> {
        let mut all: Vec<Entry> = Vec::new();
        let mut skip = 0;
        loop {
            let query = format!("&$skip={skip}&$top={PAGE}");
            let answer = self.carried_out(&Call::get(what, addressed(path, &query)), MANAGE).await?;
            let malformed = |problem| Error::Malformed { what: what.to_owned(), problem };
            let atom::Answer::List { entries, more } = atom::read(&answer.body).map_err(malformed)? else {
                return Err(malformed("an entry answers for a list".to_owned()));
            };
            let count = entries.len();
            skip += count;
            for entry in entries {
                if !all.iter().any(|known| known.title == entry.title) {
                    all.push(entry);
                }
            }
            if count == 0 || (count < PAGE && !more) {
                return Ok(all);
            }
        }
    }

    /// The answer of a request that was carried out.
    async fn carried_out(&self, call: &Call<'_>, right: &str) -> Result<Answer, Error> {
        let (mut tries, mut pause) = (0, self.shared.config.backoff.0);
        loop {
            let (answer, shown) = self.once(call).await?;
            tries += 1;
            let (what, status) = (call.what.to_owned(), answer.status);
            let detail = || error::detail(&answer.body, &shown);
            return match status {
                200..=299 => Ok(answer),
                401 | 403 => Err(Error::Unauthorized { what, right: right.to_owned(), detail: detail() }),
                404 => Err(Error::NotFound { what, detail: detail() }),
                409 => Err(Error::Conflict { what, detail: detail() }),
                429 | 500 | 502 | 503 | 504 => {
                    let wait = answer.retry_after.unwrap_or(pause);
                    if tries >= self.shared.config.tries.get() || wait > self.shared.config.longest_wait {
                        let retry_after = answer.retry_after;
                        return Err(Error::Busy { what, status, tries, retry_after, detail: detail() });
                    }
                    debug!(what, status, ?wait, "the namespace is busy; it is asked again");
                    tokio::time::sleep(wait).await;
                    pause = (pause * 2).min(self.shared.config.backoff.1);
                    continue;
                }
                _ => Err(Error::Refused { what, status, detail: detail() }),
            };
        }
    }

    /// The answer, and what was shown to get it. A request that nobody waits for any more ends by itself.
    async fn once(&self, call: &Call<'_>) -> Result<(Answer, Vec<String>), Error> {
        let mut shown = vec![header_of(&self.token().await?)];
        let mut headers = vec![("Authorization", shown[0].clone())];
        if call.method == Method::Put {
            headers.push(("Content-Type", "application/atom+xml;type=entry;charset=utf-8".to_owned()));
        }
        if call.replaces {
            headers.push(("If-Match", "*".to_owned()));
        }
        let proofs = ["ServiceBusSupplementaryAuthorization", "ServiceBusDlqSupplementaryAuthorization"];
        for (target, name) in call.forwards.iter().zip(proofs) {
            let Some(target) = target else { continue };
            let token = header_of(&self.shared.tokens.token(&format!("sb://{}/{target}", self.host())).await?);
            headers.push((name, token.clone()));
            shown.push(token);
        }
        let request = Request { method: call.method, target: call.target.clone(), headers, body: call.body.clone() };
        let shared = Arc::clone(&self.shared);
        match tokio::task::spawn_blocking(move || shared.http.run(request)).await {
            Ok(answer) => Ok((answer?, shown)),
            Err(error) => {
                let address = self.host().to_owned();
                Err(Error::Unreachable { address, problem: format!("the request did not end: {error}") })
            }
        }
    }

    /// For the whole namespace, or for the one entity that the credential is for. Kept until it ends.
    async fn token(&self) -> Result<Token, Error> {
        let mut kept = self.shared.token.lock().await;
        if let Some(token) = kept.as_ref().filter(|token| token.expires_at > clock::now().after(TOKEN_MARGIN)) {
            return Ok(token.clone());
        }
        let entity = self.shared.config.connection.entity.as_ref().map_or("", |entity| entity.as_str());
        let token = self.shared.tokens.token(&format!("sb://{}/{entity}", self.host())).await?;
        *kept = Some(token.clone());
        Ok(token)
    }
}

/// What a shared access signature starts with, and what the types of such tokens end with.
const SIGNATURE: &str = "SharedAccessSignature ";
const SIGNATURE_KIND: &str = ":sastoken";

/// A signature says itself what it is; the token of an identity does not.
fn header_of(token: &Token) -> String {
    match token.kind.ends_with(SIGNATURE_KIND) {
        true if token.text.starts_with(SIGNATURE) => token.text.clone(),
        true => format!("{SIGNATURE}{}", token.text),
        false => format!("Bearer {}", token.text),
    }
}

fn addressed(path: &str, query: &str) -> String {
    format!("/{path}?api-version={API_VERSION}{query}")
}

fn rule_path(subscription: &Path, name: &str) -> String {
    format!("{}/Rules/{}", subscription.encoded(), path::encode(name))
}

fn topic_of(path: &Path) -> Option<&EntityName> {
    match path {
        Path::Subscription { topic, .. } => Some(topic),
        _ => None,
    }
}

fn read_entity(what: &str, topic: Option<&EntityName>, entry: Entry) -> Result<Entity, Error> {
    let read = Entity::read(&entry.title, topic, entry.description);
    read.map_err(|problem| Error::Malformed { what: what.to_owned(), problem })
}

fn read_rule(what: &str, entry: &Entry) -> Result<Rule, Error> {
    let read = Rule::read(&entry.title, &entry.description);
    read.map_err(|problem| Error::Malformed { what: what.to_owned(), problem })
}
