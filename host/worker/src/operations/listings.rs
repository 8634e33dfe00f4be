//! Everything that only reads.

use std::{sync::Arc, time::Duration};

use sprag_core::{
    ids::{EndpointName, EntityName, SequenceNumber, SessionId},
    operations::{Error, EventFilter, InboxFilter, Page, Part, PlaceFilter, Result, view},
    session_state::SessionState,
};
use sprag_store::query;
use sprag_transport::{Peeked, Transport};

use super::{Host, convert};
use crate::config::{EndpointConfig, InboxConfig};

/// A listing over several places: the cursor says which place and, after a colon, where in it.
struct Cursor {
    place: usize,
    within: Option<String>,
}

fn cursor(page: &Page) -> Result<Cursor> {
    let Some(text) = &page.after else { return Ok(Cursor { place: 0, within: None }) };
    let wrong = || Error::Invalid(format!("{text:?} is no cursor of this listing"));
    let (place, within) = text.split_once(':').ok_or_else(wrong)?;
    Ok(Cursor { place: place.parse().map_err(|_| wrong())?, within: (!within.is_empty()).then(|| within.to_owned()) })
}

fn number(within: Option<&str>) -> Result<i64> {
    match within {
        None => Ok(0),
        Some(text) => text.parse().map_err(|_| Error::Invalid(format!("{text:?} is no cursor of this listing"))),
    }
}

/// Asks one store after another, and gives what fills the page.
macro_rules! across_stores {
    ($host:expr, $page:expr, $method:ident($($filter:expr),*), |$index:ident, $row:ident| $convert:expr) => {{
        let from = cursor(&$page)?;
        let mut items = Vec::new();
        let mut next = None;
        let mut within = from.within;
        for ($index, store) in $host.stores.iter().enumerate().skip(from.place) {
            let left = $page.limit - u32::try_from(items.len()).unwrap_or($page.limit);
            if left == 0 {
                next = Some(format!("{}:", $index));
                break;
            }
            let page = convert::store_page(&Page { after: within.take(), limit: left });
            let listing = store.$method($($filter,)* &page).await.map_err(convert::store_error)?;
            items.extend(listing.items.into_iter().map(|$row| $convert));
            if let Some(inner) = listing.next {
                next = Some(format!("{}:{inner}", $index));
                break;
            }
        }
        Ok(view::Listing { items, next })
    }};
}

pub(super) async fn events(host: &Host, filter: EventFilter, page: Page) -> Result<view::Listing<view::Event>> {
    if let Some(name) = &filter.endpoint {
        host.endpoint(name)?;
    }
    let filter = convert::store_filter(filter);
    across_stores!(host, page, events(&filter), |_index, row| convert::event(row))
}

pub(super) async fn inbox(host: &Host, filter: InboxFilter, page: Page) -> Result<view::Listing<view::InboxLine>> {
    if let Some(name) = &filter.endpoint {
        host.endpoint(name)?;
    }
    let filter = query::InboxFilter { endpoint: filter.endpoint, message_id: filter.message_id };
    across_stores!(host, page, inbox(&filter), |_index, row| convert::inbox(row))
}

pub(super) async fn audit(host: &Host, page: Page) -> Result<view::Listing<view::AuditLine>> {
    across_stores!(host, page, audit(), |index, row| {
        let id = host.public_id(index, row.id);
        convert::audit(row, id)
    })
}

pub(super) async fn outbox(host: &Host, page: Page) -> Result<view::Listing<view::OutboxLine>> {
    across_stores!(host, page, outbox(), |index, row| {
        let id = host.public_id(index, row.id);
        convert::outbox(row, id)
    })
}

pub(super) async fn groups(host: &Host, filter: EventFilter) -> Result<view::Listing<view::Group>> {
    let filter = convert::store_filter(filter);
    let mut groups = Vec::new();
    for store in &host.stores {
        groups
            .extend(store.failure_groups(&filter).await.map_err(convert::store_error)?.into_iter().map(convert::group));
    }
    groups.sort_by(|left, right| right.count.cmp(&left.count).then_with(|| left.key.cmp(&right.key)));
    Ok(view::Listing::whole(groups))
}

/// The one event that an id names (P29): by event id first, else by the id of a message that carried it.
pub(super) async fn find(host: &Host, id: &str, endpoint: Option<&EndpointName>) -> Result<(usize, query::EventRow)> {
    if let Some(name) = endpoint {
        host.endpoint(name)?;
    }
    let mut found = Vec::new();
    for (index, store) in host.stores.iter().enumerate() {
        let rows = store.find_events(id).await.map_err(convert::store_error)?;
        found.extend(
            rows.into_iter().filter(|row| endpoint.is_none_or(|name| row.endpoint == *name)).map(|row| (index, row)),
        );
    }
    if found.iter().any(|(_, row)| row.outcome.event_id.as_str() == id) {
        found.retain(|(_, row)| row.outcome.event_id.as_str() == id);
    }
    if found.len() > 1 {
        let mut choices: Vec<String> = found.iter().map(|(_, row)| row.endpoint.to_string()).collect();
        choices.sort();
        choices.dedup();
        if choices.len() == 1 {
            let ids = found.iter().map(|(_, row)| row.outcome.event_id.to_string()).collect::<Vec<_>>().join(", ");
            return Err(Error::Conflict(format!(
                "the message id {id:?} carried several events; name one of them: {ids}"
            )));
        }
        return Err(Error::Ambiguous { id: id.to_owned(), choices });
    }
    found.pop().ok_or_else(|| {
        let place = endpoint.map(|name| format!(" at endpoint {:?}", name.as_str())).unwrap_or_default();
        Error::NotFound(format!("there is no event {id:?}{place}"))
    })
}

pub(super) async fn event(host: &Host, id: &str, endpoint: Option<&EndpointName>) -> Result<view::EventDetail> {
    let (index, row) = find(host, id, endpoint).await?;
    let store = &host.stores[index];
    let history = store.history(&row.endpoint, &row.outcome.event_id).await.map_err(convert::store_error)?;
    let message = store.kept_message(&row.endpoint, &row.outcome.event_id).await.map_err(convert::store_error)?;
    Ok(view::EventDetail {
        source_id: row.outcome.source_id.clone(),
        duplicates: row.duplicates,
        group: convert::group_of(&row),
        open_action: row.open_action.map(|id| sprag_core::ids::ActionId(host.public_id(index, id.0))),
        history: history.into_iter().map(Into::into).collect(),
        message: message.as_ref().map(Into::into),
        event: convert::event(row),
    })
}

/// An entity to look at, where it is, and the endpoint that reads it.
struct Place<'h> {
    transport: &'h Arc<dyn Transport>,
    entity: EntityName,
    endpoint: Option<EndpointName>,
}

impl<'h> Place<'h> {
    fn of(endpoint: &'h EndpointConfig) -> Self {
        Self { transport: &endpoint.transport, entity: endpoint.source.clone(), endpoint: Some(endpoint.name.clone()) }
    }
}

/// The entities that a filter means: those of its endpoint, the one it names, or every endpoint's source. With `all`, every entity there is.
async fn places<'h>(host: &'h Host, filter: &PlaceFilter, all: bool) -> Result<Vec<Place<'h>>> {
    if let Some(name) = &filter.endpoint {
        let endpoint = host.endpoint(name)?;
        if filter.entity.as_ref().is_some_and(|entity| *entity != endpoint.source) {
            return Ok(Vec::new());
        }
        return Ok(vec![Place::of(endpoint)]);
    }
    if let Some(entity) = &filter.entity {
        let place = match host.reader_of(entity) {
            Some(endpoint) => Place::of(endpoint),
            None => Place { transport: host.transport_of(entity).await?, entity: entity.clone(), endpoint: None },
        };
        return Ok(vec![place]);
    }
    let mut places: Vec<Place<'h>> = host.config.endpoints.iter().map(Place::of).collect();
    if all {
        for transport in &host.config.transports {
            for entity in transport.names().await.map_err(convert::transport_error)? {
                let is_there = |place: &Place<'_>| place.entity == entity && Arc::ptr_eq(place.transport, transport);
                if !places.iter().any(is_there) {
                    places.push(Place { transport, entity, endpoint: None });
                }
            }
        }
        places.sort_by(|left, right| left.entity.cmp(&right.entity));
    }
    Ok(places)
}

/// Messages of a part of several entities, in order of their numbers.
async fn peek_places<T>(
    host: &Host,
    filter: &PlaceFilter,
    all: bool,
    part: Part,
    page: Page,
    make: impl Fn(&EntityName, Option<&EndpointName>, Peeked) -> Option<T>,
) -> Result<view::Listing<T>> {
    let from = cursor(&page)?;
    let limit = page.limit as usize;
    let mut items = Vec::new();
    let mut start = number(from.within.as_deref())?;
    for (place, at) in places(host, filter, all).await?.iter().enumerate().skip(from.place) {
        let Place { transport, entity, endpoint } = at;
        loop {
            let left = limit - items.len();
            if left == 0 {
                return Ok(view::Listing { items, next: Some(format!("{place}:{start}")) });
            }
            let peeked = transport
                .peek(entity, convert::part(part), filter.session.as_ref(), SequenceNumber(start), left)
                .await
                .map_err(convert::transport_error)?;
            let whole = peeked.len() < left;
            if let Some(last) = peeked.iter().map(|message| message.sequence.0).max() {
                start = last.saturating_add(1);
            }
            items.extend(peeked.into_iter().filter_map(|message| make(entity, endpoint.as_ref(), message)));
            if whole {
                break;
            }
        }
        start = 0;
    }
    Ok(view::Listing { items, next: None })
}

/// Most parked messages of one session that are looked at in their order.
const MOST_IN_SESSION: usize = 100_000;

pub(super) async fn parked(
    host: &Host,
    filter: &PlaceFilter,
    page: Page,
) -> Result<view::Listing<view::ParkedMessage>> {
    let line = |entity: &EntityName, endpoint: Option<&EndpointName>, peeked: Peeked| {
        Some(view::ParkedMessage {
            endpoint: endpoint?.clone(),
            session: peeked.message.session_id.clone(),
            position: peeked.parked_as,
            event_id: convert::event_id(entity, &peeked),
            message_id: peeked.message.message_id.clone(),
            event_type: peeked.message.event_type(),
            sequence_number: peeked.sequence,
            enqueued_at: peeked.enqueued_at.into(),
            parked_at: peeked.moved_at.map(Into::into),
        })
    };
    if filter.session.is_none() {
        return peek_places(host, filter, false, Part::Parked, page, line).await;
    }
    // One session comes in parking order, which is not the order of numbers: page by position.
    let from = cursor(&page)?;
    let skip = usize::try_from(number(from.within.as_deref())?).unwrap_or(0);
    let mut items = Vec::new();
    for Place { transport, entity, endpoint } in places(host, filter, false).await? {
        let peeked = transport
            .peek(&entity, sprag_transport::Part::Parked, filter.session.as_ref(), SequenceNumber(0), MOST_IN_SESSION)
            .await
            .map_err(convert::transport_error)?;
        items.extend(peeked.into_iter().filter_map(|message| line(&entity, endpoint.as_ref(), message)));
    }
    let limit = page.limit as usize;
    let next = (items.len() > skip + limit).then(|| format!("0:{}", skip + limit));
    Ok(view::Listing { items: items.into_iter().skip(skip).take(limit).collect(), next })
}

pub(super) async fn scheduled(
    host: &Host,
    filter: &PlaceFilter,
    page: Page,
) -> Result<view::Listing<view::ScheduledMessage>> {
    peek_places(host, filter, true, Part::Scheduled, page, |entity, endpoint, peeked| {
        Some(view::ScheduledMessage {
            entity: entity.clone(),
            endpoint: endpoint.cloned(),
            sequence_number: peeked.sequence,
            kind: convert::scheduled_kind(&peeked.message).to_owned(),
            event_id: convert::event_id(entity, &peeked),
            message_id: peeked.message.message_id.clone(),
            event_type: peeked.message.event_type(),
            session: peeked.message.session_id.clone(),
            attempt: convert::attempt(&peeked.message),
            due_at: peeked.message.scheduled_for.map(Into::into),
            enqueued_at: peeked.enqueued_at.into(),
        })
    })
    .await
}

pub(super) async fn dead_letters(
    host: &Host,
    filter: &PlaceFilter,
    page: Page,
) -> Result<view::Listing<view::DeadLetter>> {
    peek_places(host, filter, true, Part::DeadLetters, page, |entity, endpoint, peeked| {
        Some(view::DeadLetter {
            entity: entity.clone(),
            endpoint: endpoint.cloned(),
            sequence_number: peeked.sequence,
            event_id: convert::event_id(entity, &peeked),
            message_id: peeked.message.message_id.clone(),
            event_type: peeked.message.event_type(),
            session: peeked.message.session_id.clone(),
            reason: peeked.dead_letter_reason,
            description: peeked.dead_letter_description,
            delivery_count: peeked.delivery_count,
            enqueued_at: peeked.enqueued_at.into(),
            dead_at: peeked.moved_at.map(Into::into),
        })
    })
    .await
}

pub(super) async fn peek(
    host: &Host,
    entity: &EntityName,
    part: Part,
    session: Option<&SessionId>,
    page: Page,
) -> Result<view::Listing<view::PeekedMessage>> {
    let filter = PlaceFilter { entity: Some(entity.clone()), session: session.cloned(), ..PlaceFilter::default() };
    peek_places(host, &filter, false, part, page, |entity, _, peeked| {
        Some(view::PeekedMessage {
            entity: entity.clone(),
            part,
            sequence_number: peeked.sequence,
            enqueued_at: peeked.enqueued_at.into(),
            due_at: peeked.message.scheduled_for.map(Into::into),
            delivery_count: peeked.delivery_count,
            message: (&peeked.message).into(),
        })
    })
    .await
}

/// How many sessions are asked for at once when most of them are left out.
const SESSIONS_AT_ONCE: usize = 1_000;

pub(super) async fn sessions(
    host: &Host,
    filter: &PlaceFilter,
    page: Page,
) -> Result<view::Listing<view::SessionLine>> {
    let from = cursor(&page)?;
    let limit = page.limit as usize;
    let mut items = Vec::new();
    let mut after = from.within.map(SessionId::from);
    for (place, at) in places(host, filter, false).await?.into_iter().enumerate().skip(from.place) {
        let Place { transport, entity, endpoint: Some(endpoint) } = at else { continue };
        // An entity without sessions has none to list.
        if !transport.settings(&entity).await.map_err(convert::transport_error)?.requires_session {
            continue;
        }
        loop {
            let found = transport
                .sessions(&entity, after.as_ref(), SESSIONS_AT_ONCE)
                .await
                .map_err(convert::transport_error)?;
            let whole = found.len() < SESSIONS_AT_ONCE;
            for info in found {
                if items.len() == limit {
                    let last = after.as_ref().map(ToString::to_string).unwrap_or_default();
                    return Ok(view::Listing { items, next: Some(format!("{place}:{last}")) });
                }
                after = Some(info.session.clone());
                if filter.session.as_ref().is_some_and(|session| *session != info.session) {
                    continue;
                }
                let line = session_line(endpoint.clone(), info)?;
                if !filter.blocked || line.blocked_by.is_some() {
                    items.push(line);
                }
            }
            if whole {
                break;
            }
        }
        after = None;
    }
    Ok(view::Listing { items, next: None })
}

pub(super) fn session_line(endpoint: EndpointName, info: sprag_transport::SessionInfo) -> Result<view::SessionLine> {
    let state = SessionState::from_bytes(info.state.as_deref()).map_err(|error| {
        Error::Conflict(format!("session {:?} of endpoint {:?}: {error}", info.session.as_str(), endpoint.as_str()))
    })?;
    Ok(view::SessionLine {
        endpoint,
        session: info.session,
        blocked_by: state.block.map(|block| view::BlockedBy {
            event_id: block.event_id,
            kind: block.kind.name().to_owned(),
            since: block.since.into(),
        }),
        parked: info.parked,
        oldest_parked_at: info.oldest_parked_at.map(Into::into),
    })
}

pub(super) async fn endpoints(host: &Host) -> Result<view::Listing<view::Endpoint>> {
    let mut items = Vec::with_capacity(host.config.endpoints.len());
    for endpoint in &host.config.endpoints {
        let info = endpoint.transport.describe(&endpoint.source).await.map_err(convert::transport_error)?;
        let reasons = host.config.listing.reasons(&endpoint.name);
        let ready = host.config.handlers.is_ready(&endpoint.name);
        items.push(view::Endpoint {
            endpoint: endpoint.name.clone(),
            source: endpoint.source.clone(),
            state: if ready { "running" } else { "paused" }.to_owned(),
            reasons: if ready { Vec::new() } else { reasons },
            requires_session: info.requires_session,
            concurrency: u32::try_from(endpoint.concurrency).unwrap_or(u32::MAX),
            handlers: host.config.listing.of_endpoint(&endpoint.name),
            inbox: endpoint.inbox.as_ref().map(|inbox| mode(endpoint, inbox).to_owned()),
            active: info.active,
            scheduled: info.scheduled,
            parked: info.parked,
            dead_letters: info.dead_letters,
        });
    }
    Ok(view::Listing::whole(items))
}

/// How long a check may take before it counts as failed.
const CHECK: Duration = Duration::from_secs(5);

pub(super) async fn health(host: &Host) -> view::Health {
    let mut checks = Vec::new();
    let mut note =
        |name: String, reason: Option<String>| checks.push(view::HealthCheck { name, ok: reason.is_none(), reason });
    let late = || Some(format!("no answer within {} s", CHECK.as_secs()));
    for endpoint in &host.config.endpoints {
        note(
            format!("source {}", endpoint.source),
            match tokio::time::timeout(CHECK, endpoint.transport.settings(&endpoint.source)).await {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => late(),
            },
        );
    }
    for (index, store) in host.stores.iter().enumerate() {
        let name = if host.stores.len() == 1 { "store".to_owned() } else { format!("store {index}") };
        let page = query::Page { after: None, limit: 1 };
        note(
            name,
            match tokio::time::timeout(CHECK, store.outbox(&page)).await {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => late(),
            },
        );
    }
    for endpoint in &host.config.endpoints {
        let reason = (!host.config.handlers.is_ready(&endpoint.name)).then(|| {
            let reasons = host.config.listing.reasons(&endpoint.name);
            if reasons.is_empty() { "its handlers are not loaded".to_owned() } else { reasons.join("; ") }
        });
        note(format!("endpoint {}", endpoint.name), reason);
    }
    view::Health { ready: checks.iter().all(|check| check.ok), checks }
}

/// The mode of an endpoint's inbox, as configuration names it.
fn mode(endpoint: &EndpointConfig, inbox: &InboxConfig) -> &'static str {
    match (inbox.lease, &endpoint.sql) {
        (Some(_), _) => "lease",
        (None, Some(_)) => "transaction",
        (None, None) => "record",
    }
}
