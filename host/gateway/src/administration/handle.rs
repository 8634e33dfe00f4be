//! What each method does with each resource.

use axum::{
    body::Body,
    extract::{Query, State},
    http::{HeaderMap, Method, Request, StatusCode, header},
    response::{IntoResponse, Response},
};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use sprag_broker::{DeclareError, EntityKind, EntitySpec, EntityView, RuleSpec};
use sprag_core::{ids::EntityName, time::Timestamp};

use super::{
    Administration,
    atom::{Entry, Frame},
    describe,
    path::Resource,
    refusal::Refusal,
    rules,
    settings::{self, Kind},
    xml::Element,
};
use crate::access::{Grant, Right};

/// Far above what a description can have; Azure's own limit is not written down.
const MAX_BODY: usize = 256 * 1024;
/// The most entries of a page, as on Azure; the rest is behind `rel="next"`.
const MAX_PAGE: usize = 100;
/// Longest name of a subscription, in characters, as on Azure.
const MAX_SUBSCRIPTION: usize = 50;

#[derive(Debug, Deserialize)]
struct Asked {
    #[serde(rename = "api-version", default = "version")]
    api_version: String,
    #[serde(rename = "$skip", default)]
    skip: usize,
    #[serde(rename = "$top")]
    top: Option<usize>,
}

fn version() -> String {
    "2021-05".to_owned()
}

/// What is known of a request before its body is read.
struct Call<'a> {
    administration: &'a Administration,
    frame: Frame<'a>,
    asked: &'a Asked,
    headers: &'a HeaderMap,
    path: &'a str,
    grant: Grant,
    now: Timestamp,
}

pub(super) async fn handle(State(administration): State<Administration>, request: Request<Body>) -> Response {
    answer(&administration, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn answer(administration: &Administration, request: Request<Body>) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let now = (administration.clock)();
    let path = parts.uri.path();
    let grant = authorized(administration, &parts.headers, path, now)?;
    let Query(asked) = Query::<Asked>::try_from_uri(&parts.uri).map_err(|error| Refusal::bad(error.to_string()))?;
    let resource = Resource::of(path).ok_or_else(|| Refusal::NotFound(format!("{path:?} names nothing")))?;
    let host = text(&parts.headers, header::HOST.as_str()).unwrap_or("localhost");
    let frame = Frame { host, api_version: &asked.api_version };
    let call = Call { administration, frame, asked: &asked, headers: &parts.headers, path, grant, now };
    match parts.method {
        Method::GET => call.get(&resource),
        Method::PUT => {
            let read = axum::body::to_bytes(body, MAX_BODY).await;
            let body =
                read.map_err(|error| Refusal::TooLarge(format!("{error}; at most {MAX_BODY} bytes are taken")))?;
            let text = std::str::from_utf8(&body).map_err(|_| Refusal::bad("The body is not UTF-8"))?;
            call.put(&resource, described(&Element::read(text)?)?).await
        }
        Method::DELETE => call.delete(&resource).await,
        other => Err(Refusal::MethodNotAllowed(format!("{other} is not GET, PUT or DELETE"))),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// All of it is for who may manage, reading too, as on Azure. A path counts as it was sent, as the JavaScript client signs it, and as it reads.
fn authorized(
    administration: &Administration,
    headers: &HeaderMap,
    path: &str,
    now: Timestamp,
) -> Result<Grant, Refusal> {
    let grant = match text(headers, header::AUTHORIZATION.as_str()) {
        Some(token) => administration.access.check(token, now),
        None => {
            return administration.access.anonymous().ok_or_else(|| Refusal::Unauthorized("There is no token.".into()));
        }
    };
    let grant = grant.map_err(|denied| Refusal::Unauthorized(denied.to_string()))?;
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    match grant.allows(path, Right::Manage, now) || grant.allows(&decoded, Right::Manage, now) {
        true => Ok(grant),
        false => Err(Refusal::Unauthorized("Manage,EntityRead claims required for this operation.".into())),
    }
}

/// The description inside an entry.
fn described(entry: &Element) -> Result<&Element, Refusal> {
    let content = (entry.name == "entry").then(|| entry.child("content")).flatten();
    let description = content.and_then(|content| content.children.first());
    description.ok_or_else(|| Refusal::bad("The body is no entry with a description as its content"))
}

impl Call<'_> {
    fn get(&self, resource: &Resource) -> Result<Response, Refusal> {
        match resource {
            Resource::Namespace => Ok(self.frame.entry(StatusCode::OK, self.namespace())),
            Resource::Queues => Ok(self.all(&EntityKind::Queue)),
            Resource::Topics => Ok(self.all(&EntityKind::Topic)),
            Resource::Entity(name) => Ok(self.entity(StatusCode::OK, &self.top_level(name)?)),
            Resource::Subscriptions { topic } => {
                // One that goes in between is not there any more, and no error.
                let entity = |name| self.administration.engine.entity(name).ok();
                Ok(self.entities(self.topic(topic)?.subscriptions.iter().filter_map(entity).collect()))
            }
            Resource::Subscription { topic, name } => {
                Ok(self.entity(StatusCode::OK, &self.subscription(topic, name)?.1))
            }
            Resource::Rules { topic, subscription } => {
                let view = self.subscription(topic, subscription)?.1;
                let all = self.administration.engine.rules(&view.spec.name)?;
                Ok(self.page(all, |rule| rules::entry(topic, subscription, rule)))
            }
            Resource::Rule { topic, subscription, name } => {
                let view = self.subscription(topic, subscription)?.1;
                let all = self.administration.engine.rules(&view.spec.name)?;
                let found = all.iter().find(|rule| rule.spec.name.eq_ignore_ascii_case(name));
                let missing = || DeclareError::NoSuchRule { entity: view.spec.name.clone(), rule: name.clone() };
                let rule = found.ok_or_else(missing)?;
                Ok(self.frame.entry(StatusCode::OK, rules::entry(topic, subscription, rule)))
            }
        }
    }

    async fn put(&self, resource: &Resource, description: &Element) -> Result<Response, Refusal> {
        let changes = match text(self.headers, header::IF_MATCH.as_str()) {
            None => false,
            Some("*") => true,
            Some(other) => {
                return Err(Refusal::PreconditionFailed(format!("If-Match is {other:?}; only * is taken")));
            }
        };
        let engine = &self.administration.engine;
        let kind = match description.name.as_ref() {
            "QueueDescription" => Some(Kind::Queue),
            "TopicDescription" => Some(Kind::Topic),
            "SubscriptionDescription" => Some(Kind::Subscription),
            _ => None,
        };
        match (resource, kind) {
            (Resource::Entity(name), Some(kind @ (Kind::Queue | Kind::Topic))) if changes => {
                let now = self.top_level(name)?.spec;
                self.change(kind, description, &now).await
            }
            (Resource::Entity(name), Some(kind @ (Kind::Queue | Kind::Topic))) => {
                check_name(name)?;
                self.create(settings::read(name.as_str().into(), kind, description, None)?, Vec::new()).await
            }
            (Resource::Subscription { topic, name }, Some(kind @ Kind::Subscription)) if changes => {
                let now = self.subscription(topic, name)?.1.spec;
                self.change(kind, description, &now).await
            }
            (Resource::Subscription { topic, name }, Some(kind @ Kind::Subscription)) => {
                let topic = self.topic(topic)?.spec.name;
                check_name(name)?;
                if name.chars().count() > MAX_SUBSCRIPTION {
                    return Err(Refusal::bad(format!(
                        "the name of a subscription has at most {MAX_SUBSCRIPTION} characters"
                    )));
                }
                let given =
                    description.child("DefaultRuleDescription").map(|rule| rules::read(rule, None)).transpose()?;
                let spec = settings::read(format!("{topic}/{name}").into(), kind, description, None)?;
                self.create(spec, given.into_iter().collect()).await
            }
            (Resource::Rule { topic, subscription, name }, None) if description.name == "RuleDescription" => {
                let to = self.subscription(topic, subscription)?.1.spec.name;
                let rule = rules::read(description, Some(name))?;
                let (status, rule) = match changes {
                    true => (StatusCode::OK, engine.update_rule(&to, rule).await?),
                    false => (StatusCode::CREATED, engine.add_rule(&to, rule).await?),
                };
                Ok(self.frame.entry(status, rules::entry(topic, subscription, &rule)))
            }
            (_, _) => {
                let name = &description.name;
                Err(Refusal::bad(format!("{:?} cannot be described by {name}", self.path)))
            }
        }
    }

    async fn create(&self, spec: EntitySpec, rules: Vec<RuleSpec>) -> Result<Response, Refusal> {
        self.may_forward(&spec)?;
        let view = self.administration.engine.create_entity(spec, rules).await?;
        Ok(self.entity(StatusCode::CREATED, &view))
    }

    async fn change(&self, kind: Kind, description: &Element, now: &EntitySpec) -> Result<Response, Refusal> {
        if Kind::of(now) != kind {
            return Err(Refusal::bad(format!("{} is no {kind}", now.name)));
        }
        let spec = settings::read(now.name.clone(), kind, description, Some(now))?;
        self.may_forward(&spec)?;
        let view = self.administration.engine.update_entity(spec).await?;
        Ok(self.entity(StatusCode::OK, &view))
    }

    async fn delete(&self, resource: &Resource) -> Result<Response, Refusal> {
        let engine = &self.administration.engine;
        match resource {
            Resource::Entity(name) => engine.remove_entity(&self.top_level(name)?.spec.name).await?,
            Resource::Subscription { topic, name } => {
                engine.remove_entity(&self.subscription(topic, name)?.1.spec.name).await?;
            }
            Resource::Rule { topic, subscription, name } => {
                engine.remove_rule(&self.subscription(topic, subscription)?.1.spec.name, name).await?;
            }
            _ => return Err(Refusal::MethodNotAllowed(format!("{:?} cannot be deleted", self.path))),
        }
        Ok(StatusCode::OK.into_response())
    }

    /// Who makes messages go on must be allowed to send to where they go: by the token of the request, or by one beside it.
    fn may_forward(&self, spec: &EntitySpec) -> Result<(), Refusal> {
        let ways = [
            (&spec.forward_to, "ServiceBusSupplementaryAuthorization"),
            (&spec.forward_dead_letters_to, "ServiceBusDlqSupplementaryAuthorization"),
        ];
        for (target, proof) in ways {
            let Some(target) = target else { continue };
            if self.grant.allows(target.as_str(), Right::Send, self.now) {
                continue;
            }
            let Some(token) = text(self.headers, proof) else {
                return Err(Refusal::Unauthorized(format!("Send claims for {target} are required in {proof}.")));
            };
            let grant = self.administration.access.check_at(token, self.frame.host, self.now);
            let grant = grant.map_err(|denied| Refusal::Unauthorized(format!("{proof}: {denied}")))?;
            if !grant.allows(target.as_str(), Right::Send, self.now) {
                return Err(Refusal::Unauthorized(format!("{proof} does not allow to send to {target}.")));
            }
        }
        Ok(())
    }

    /// A queue or a topic. The engine's name of a subscription, `topic/subscription`, is none of a queue.
    fn top_level(&self, name: &str) -> Result<EntityView, Refusal> {
        let name = EntityName::from(name);
        let view = self.administration.engine.entity(&name)?;
        match view.spec.kind {
            EntityKind::Queue | EntityKind::Topic => Ok(view),
            EntityKind::Subscription(_) => Err(DeclareError::NoSuchEntity(name).into()),
        }
    }

    fn topic(&self, name: &str) -> Result<EntityView, Refusal> {
        let view = self.top_level(name)?;
        match view.spec.kind {
            EntityKind::Topic => Ok(view),
            _ => Err(Refusal::NotFound(format!("{name} is no topic"))),
        }
    }

    /// With its topic.
    fn subscription(&self, topic: &str, name: &str) -> Result<(EntityView, EntityView), Refusal> {
        let topic = self.topic(topic)?;
        let wanted = EntityName::from(format!("{}/{name}", topic.spec.name));
        let view = self.administration.engine.entity(&wanted)?;
        match view.spec.kind {
            EntityKind::Subscription(_) => Ok((topic, view)),
            _ => Err(DeclareError::NoSuchEntity(wanted).into()),
        }
    }

    fn entity(&self, status: StatusCode, view: &EntityView) -> Response {
        self.frame.entry(status, describe::entity(view, self.frame.host))
    }

    fn all(&self, kind: &EntityKind) -> Response {
        let all = self.administration.engine.all_entities();
        self.entities(all.into_iter().filter(|view| view.spec.kind == *kind).collect())
    }

    /// In the order of their names.
    fn entities(&self, mut all: Vec<EntityView>) -> Response {
        all.sort_by_cached_key(|view| view.spec.name.as_str().to_lowercase());
        self.page(all, |view| describe::entity(view, self.frame.host))
    }

    fn page<T>(&self, all: Vec<T>, entry: impl Fn(&T) -> Entry) -> Response {
        let top = self.asked.top.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
        let end = self.asked.skip.saturating_add(top);
        let next = (end < all.len()).then_some((end, top));
        let entries = all.iter().skip(self.asked.skip).take(top).map(entry).collect();
        self.frame.feed(self.path.trim_matches('/'), self.now, entries, next)
    }

    fn namespace(&self) -> Entry {
        let host = self.frame.host;
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let all = self.administration.engine.all_entities();
        let created_at = all.iter().map(|view| view.created_at).min().unwrap_or(self.now);
        let updated_at = all.iter().map(|view| view.updated_at).max().unwrap_or(self.now);
        // Premium is what has neither partitions nor express entities of its own, and takes large messages.
        let description = Element::new("NamespaceInfo").containing([
            Element::text("CreatedTime", created_at),
            Element::text("MessagingSKU", "Premium"),
            Element::text("MessagingUnits", 1),
            Element::text("ModifiedTime", updated_at),
            Element::text("Name", name),
            Element::text("NamespaceType", "Messaging"),
        ]);
        Entry { path: "$namespaceinfo".to_owned(), title: name.to_owned(), created_at, updated_at, description }
    }
}

/// What can be reached by an address of any client. Azure takes fewer names still.
fn check_name(name: &str) -> Result<(), Refusal> {
    let fits =
        |segment: &str| !segment.is_empty() && segment.chars().all(|c| c.is_alphanumeric() || "._-~".contains(c));
    match name.split('/').all(fits) {
        true => Ok(()),
        false => {
            Err(Refusal::bad(format!("the name {name:?} has characters other than letters, digits and . _ - ~ /")))
        }
    }
}
