//! What operators see of the maps.

use std::collections::BTreeMap;

use sprag_core::{
    effect::{HistoryKind, HistoryLine},
    ids::{EndpointName, EventId},
    message::Message,
    outcome::Outcome,
    time::Timestamp,
};

use super::tables::{Event, Standing, Tables};
use crate::{
    Error,
    query::{
        AuditRow, EventFilter, EventRow, FailureGroup, InboxFilter, InboxRow, LeaseRow, Listing, OutboxListRow, Page,
    },
};

impl Tables {
    pub(super) fn list_events(&self, filter: &EventFilter, page: &Page) -> Result<Listing<EventRow>, Error> {
        let after = page.after.as_deref().map(parse_place).transpose()?;
        let mut places: Vec<_> = self
            .matching(filter)
            .map(|(endpoint, event)| (std::cmp::Reverse(event.outcome.at), endpoint, &event.outcome.event_id))
            .filter(|(at, endpoint, event_id)| {
                after
                    .as_ref()
                    .is_none_or(|(a, e, i)| (at, endpoint.as_str(), event_id.as_str()) > (a, e.as_str(), i.as_str()))
            })
            .collect();
        places.sort_unstable();
        cut(places, page, |(at, endpoint, event_id)| {
            format!("{}:{}:{endpoint}{event_id}", at.0.0, endpoint.as_str().len())
        })
        .map(|part| Listing {
            items: part.items.into_iter().map(|(_, endpoint, id)| self.row(endpoint, id)).collect(),
            next: part.next,
        })
    }

    pub(super) fn find_events(&self, id: &str) -> Vec<EventRow> {
        self.all_events()
            .filter(|(_, event)| {
                let outcome = &event.outcome;
                outcome.event_id.as_str() == id
                    || [&outcome.message_id, &outcome.source_id].into_iter().flatten().any(|found| found.as_str() == id)
            })
            .map(|(endpoint, event)| self.row(endpoint, &event.outcome.event_id))
            .collect()
    }

    pub(super) fn history(&self, endpoint: &EndpointName, event_id: &EventId) -> Vec<HistoryLine> {
        self.endpoints.get(endpoint).and_then(|it| it.history.get(event_id)).cloned().unwrap_or_default()
    }

    pub(super) fn kept_message(&self, endpoint: &EndpointName, event_id: &EventId) -> Option<Message> {
        self.endpoints.get(endpoint)?.events.get(event_id)?.message.clone()
    }

    pub(super) fn failure_groups(&self, filter: &EventFilter) -> Vec<FailureGroup> {
        let mut groups: BTreeMap<String, FailureGroup> = BTreeMap::new();
        for (endpoint, event) in self.matching(filter).filter(|(_, event)| event.outcome.outcome == Outcome::Failed) {
            let (kind, text) = failure_of(event);
            let key = group_of(endpoint, event);
            let at = event.outcome.at;
            let group = groups.entry(key.clone()).or_insert_with(|| FailureGroup {
                key,
                endpoint: endpoint.clone(),
                event_type: event.outcome.event_type.clone(),
                kind: kind.to_owned(),
                first_line: FailureGroup::first_line_of(text).to_owned(),
                count: 0,
                oldest: at,
                newest: at,
            });
            group.count += 1;
            group.oldest = group.oldest.min(at);
            group.newest = group.newest.max(at);
        }
        let mut groups: Vec<_> = groups.into_values().collect();
        groups.sort_by_key(|group| std::cmp::Reverse((group.newest, group.count)));
        groups
    }

    pub(super) fn list_inbox(&self, filter: &InboxFilter, page: &Page) -> Result<Listing<InboxRow>, Error> {
        let below = after_number(page)?;
        let mut rows: Vec<_> = self
            .endpoints
            .iter()
            .filter(|(name, _)| filter.endpoint.as_ref().is_none_or(|wanted| wanted == *name))
            .flat_map(|(name, endpoint)| {
                let records = endpoint.inbox.iter().map(move |(id, record)| (record.number, name, id, record.at, None));
                let leases = endpoint.leases.iter().map(move |(id, lease)| {
                    let row = LeaseRow { owner: lease.owner.clone(), expires_at: lease.until };
                    (lease.number, name, id, lease.at, Some(row))
                });
                records.chain(leases)
            })
            .filter(|(number, _, id, _, _)| {
                below.is_none_or(|below| *number < below)
                    && filter.message_id.as_ref().is_none_or(|wanted| wanted == *id)
            })
            .collect();
        rows.sort_unstable_by_key(|(number, ..)| std::cmp::Reverse(*number));
        let part = cut(rows, page, |(number, ..)| number.to_string())?;
        let items = part
            .items
            .into_iter()
            .map(|(_, endpoint, id, at, lease)| InboxRow {
                endpoint: endpoint.clone(),
                message_id: id.clone(),
                recorded_at: at,
                lease,
            })
            .collect();
        Ok(Listing { items, next: part.next })
    }

    pub(super) fn list_audit(&self, page: &Page) -> Result<Listing<AuditRow>, Error> {
        let below = after_number(page)?;
        let rows = self.audit.iter().rev().filter(|(id, _)| below.is_none_or(|below| **id < below)).map(
            |(id, (entry, actions))| AuditRow {
                id: *id,
                entry: entry.clone(),
                actions: actions.iter().filter_map(|id| self.action(*id)).collect(),
            },
        );
        cut(rows.collect(), page, |row| row.id.to_string())
    }

    pub(super) fn list_outbox(&self, page: &Page) -> Result<Listing<OutboxListRow>, Error> {
        let above = after_number(page)?;
        let rows = self.outbox.iter().filter(|(id, _)| above.is_none_or(|above| **id > above)).map(|(id, row)| {
            OutboxListRow {
                id: *id,
                endpoint: row.endpoint.clone(),
                entity: row.entity.clone(),
                message_id: row.message.message_id.clone(),
                session: row.message.session_id.clone(),
                created_at: row.created_at,
                tries: row.tries,
                error: row.error.clone(),
                poison: row.standing == Standing::Poison,
                event_id: row.event_id.clone(),
            }
        });
        cut(rows.collect(), page, |row| row.id.to_string())
    }

    fn all_events(&self) -> impl Iterator<Item = (&EndpointName, &Event)> {
        self.endpoints.iter().flat_map(|(name, endpoint)| endpoint.events.values().map(move |event| (name, event)))
    }

    fn matching<'a>(&'a self, filter: &'a EventFilter) -> impl Iterator<Item = (&'a EndpointName, &'a Event)> {
        self.all_events().filter(|(endpoint, event)| matches(filter, endpoint, event))
    }

    fn row(&self, endpoint: &EndpointName, event_id: &EventId) -> EventRow {
        let tables = &self.endpoints[endpoint];
        let event = &tables.events[event_id];
        let lines = tables.history.get(event_id).map(Vec::as_slice).unwrap_or_default();
        let duplicates = lines.iter().filter(|line| line.kind == HistoryKind::Duplicate).count();
        EventRow {
            endpoint: endpoint.clone(),
            outcome: event.outcome.clone(),
            duplicates: u32::try_from(duplicates).unwrap_or(u32::MAX),
            has_message: event.message.is_some(),
            open_action: self.open_action_on_event(endpoint, event_id).map(|action| action.id),
        }
    }
}

fn matches(filter: &EventFilter, endpoint: &EndpointName, event: &Event) -> bool {
    let outcome = &event.outcome;
    filter.endpoint.as_ref().is_none_or(|wanted| wanted == endpoint)
        && filter.session.as_ref().is_none_or(|wanted| outcome.session.as_ref() == Some(wanted))
        && filter.event_type.as_ref().is_none_or(|wanted| *wanted == outcome.event_type)
        && (filter.outcomes.is_empty() || filter.outcomes.contains(&outcome.outcome))
        && filter.since.is_none_or(|since| outcome.at >= since)
        && filter.until.is_none_or(|until| outcome.at < until)
        && filter.id_prefix.as_ref().is_none_or(|prefix| outcome.event_id.as_str().starts_with(prefix))
        && filter.error_text.as_ref().is_none_or(|part| {
            outcome.error.as_ref().is_some_and(|error| error.text.to_lowercase().contains(&part.to_lowercase()))
        })
        && filter
            .group
            .as_ref()
            .is_none_or(|key| outcome.outcome == Outcome::Failed && group_of(endpoint, event) == *key)
}

fn failure_of(event: &Event) -> (&str, &str) {
    event.outcome.error.as_ref().map(|error| (error.kind.as_str(), error.text.as_str())).unwrap_or_default()
}

fn group_of(endpoint: &EndpointName, event: &Event) -> String {
    let (kind, text) = failure_of(event);
    FailureGroup::key_of(endpoint.as_str(), event.outcome.event_type.as_str(), kind, text)
}

/// The first of what is left, as many as the page may hold, and where the next part begins.
fn cut<T>(mut rest: Vec<T>, page: &Page, cursor: impl Fn(&T) -> String) -> Result<Listing<T>, Error> {
    if !(1..=1_000).contains(&page.limit) {
        return Err(Error::Invalid(format!("a listing takes 1 to 1000 at a time, not {}", page.limit)));
    }
    let limit = page.limit as usize;
    let more = rest.len() > limit;
    rest.truncate(limit);
    let next = rest.last().filter(|_| more).map(cursor);
    Ok(Listing { items: rest, next })
}

fn strange(cursor: &str) -> Error {
    Error::Invalid(format!("{cursor:?} is not where a listing goes on"))
}

fn after_number(page: &Page) -> Result<Option<i64>, Error> {
    page.after.as_deref().map(|cursor| cursor.parse().map_err(|_| strange(cursor))).transpose()
}

/// The time, the endpoint and the event of an event's cursor.
fn parse_place(cursor: &str) -> Result<(std::cmp::Reverse<Timestamp>, String, String), Error> {
    let parse = || {
        let (at, rest) = cursor.split_once(':')?;
        let (len, rest) = rest.split_once(':')?;
        let (endpoint, event_id) = rest.split_at_checked(len.parse().ok()?)?;
        Some((std::cmp::Reverse(Timestamp(at.parse().ok()?)), endpoint.to_owned(), event_id.to_owned()))
    };
    parse().ok_or_else(|| strange(cursor))
}
