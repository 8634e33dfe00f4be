//! The listings, and the small changes that belong to one of them.

use std::{collections::HashSet, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use sprag_core::{
    operations::{
        Part,
        time::Time,
        view::{
            AuditLine, DeadLetter, Endpoint, Event, EventDetail, Group, Handler, InboxLine, Listing, OutboxLine,
            ParkedMessage, PeekedMessage, ScheduledMessage, SessionLine,
        },
    },
    outcome::Outcome as EventOutcome,
};

use crate::{
    cli::{
        self, DeadLettersArgs, DeadLettersVerb, EventFilterArgs, EventListArgs, EventsArgs, EventsVerb, InboxArgs,
        OutboxArgs, OutboxVerb, PagedArgs, PeekArgs, PlaceArgs, PlainArgs, ScheduledArgs, ScheduledVerb, TailArgs,
    },
    client::{Client, HostArgs, encode},
    failure::{Exit, Failure, Outcome},
    output::{self, Cell, FAINT, WAITING, cell, time},
};

type Query = Vec<(&'static str, String)>;

fn add(query: &mut Query, name: &'static str, value: Option<impl ToString>) {
    query.extend(value.map(|value| (name, value.to_string())));
}

fn paged(page: &PagedArgs) -> Query {
    let mut query = vec![("limit", page.limit.to_string())];
    add(&mut query, "after", page.after.as_ref());
    query
}

fn filtered(filter: &EventFilterArgs) -> Query {
    let mut query = Query::new();
    add(&mut query, "endpoint", filter.endpoint.as_ref());
    add(&mut query, "session", filter.session.as_ref());
    add(&mut query, "type", filter.event_type.as_ref());
    if !filter.outcome.is_empty() {
        query.push(("outcome", filter.outcome.iter().map(|outcome| outcome.name()).collect::<Vec<_>>().join(",")));
    }
    add(&mut query, "since", filter.since);
    add(&mut query, "until", filter.until);
    add(&mut query, "id", filter.id.as_ref());
    add(&mut query, "error", filter.error.as_ref());
    add(&mut query, "group", filter.group.as_ref());
    query
}

fn placed(place: &PlaceArgs) -> Query {
    let mut query = paged(&place.page);
    add(&mut query, "endpoint", place.endpoint.as_ref());
    add(&mut query, "entity", place.entity.as_ref());
    add(&mut query, "session", place.session.as_ref());
    if place.blocked {
        query.push(("blocked", "true".to_owned()));
    }
    query
}

/// Asks for a listing and writes it.
fn list<T: Serialize + DeserializeOwned>(
    plain: &PlainArgs,
    path: &str,
    query: &Query,
    nothing: &str,
    heads: &'static [&'static str],
    row: impl Fn(&T) -> Vec<Cell>,
) -> Outcome {
    let listing: Listing<T> = Client::connect(&plain.host)?.get(path, query)?;
    output::listing(&listing, plain.json, nothing, heads, row)?;
    Ok(Exit::Done)
}

fn outcome_cell(outcome: EventOutcome) -> Cell {
    Cell(outcome.name().to_owned(), output::of_outcome(outcome))
}

fn why(event: &Event) -> Cell {
    match (&event.error, &event.reason) {
        (Some(error), _) => cell(format!("{}: {}", error.kind, error.text)),
        (None, reason) => Cell::from(reason.as_ref()),
    }
}

pub(crate) fn events(args: EventsArgs) -> Outcome {
    match args.verb {
        None => list_events(&args.list),
        Some(EventsVerb::List(list)) => list_events(&list),
        Some(EventsVerb::Groups(args)) => list(
            &args.page.plain,
            "groups",
            &filtered(&args.filter),
            "no failures",
            &["GROUP", "COUNT", "ENDPOINT", "TYPE", "KIND", "ERROR", "NEWEST"],
            |group: &Group| {
                vec![
                    cell(&group.key),
                    cell(group.count),
                    cell(&group.endpoint),
                    cell(&group.event_type),
                    cell(&group.kind),
                    cell(&group.first_line),
                    time(group.newest_at),
                ]
            },
        ),
        Some(EventsVerb::Show { id, endpoint, plain }) => show(&id, endpoint.as_ref(), &plain),
    }
}

fn list_events(args: &EventListArgs) -> Outcome {
    let mut query = paged(&args.page);
    query.extend(filtered(&args.filter));
    list(
        &args.page.plain,
        "events",
        &query,
        "no events",
        &["EVENT", "ENDPOINT", "SESSION", "TYPE", "OUTCOME", "RUNS", "CHANGED", "WHY"],
        |event: &Event| {
            vec![
                cell(&event.event_id),
                cell(&event.endpoint),
                Cell::from(event.session.as_ref()),
                cell(&event.event_type),
                outcome_cell(event.outcome),
                cell(event.attempts),
                time(event.updated_at),
                why(event),
            ]
        },
    )
}

fn show(id: &str, endpoint: Option<&String>, plain: &PlainArgs) -> Outcome {
    let mut query = Query::new();
    add(&mut query, "endpoint", endpoint);
    let detail: EventDetail = Client::connect(&plain.host)?.get(&format!("events/{}", encode(id)), &query)?;
    if plain.json {
        output::json(&detail)?;
        return Ok(Exit::Done);
    }
    let event = &detail.event;
    let style = output::of_outcome(event.outcome);
    let or_none = |text: Option<String>| text.map_or_else(|| "-".to_owned(), |text| output::safe(&text));
    for (name, value) in [
        ("event", output::safe(event.event_id.as_str())),
        ("endpoint", output::safe(event.endpoint.as_str())),
        ("session", or_none(event.session.as_ref().map(ToString::to_string))),
        ("type", output::safe(event.event_type.as_str())),
        ("outcome", format!("{style}{}{style:#}", event.outcome.name())),
        ("reason", or_none(event.reason.clone())),
        ("error", or_none(event.error.as_ref().map(|error| format!("{}: {}", error.kind, error.text)))),
        ("runs", event.attempts.to_string()),
        ("duplicates", detail.duplicates.to_string()),
        ("handler", or_none(event.handler.as_ref().map(|name| format!("{name} {}", short(event.digest.as_deref()))))),
        ("message id", or_none(event.message_id.as_ref().map(ToString::to_string))),
        ("source id", or_none(detail.source_id.as_ref().map(ToString::to_string))),
        ("group", or_none(detail.group.clone())),
        ("open action", or_none(detail.open_action.map(|id| id.to_string()))),
        ("enqueued", event.enqueued_at.to_string()),
        ("changed", event.updated_at.to_string()),
    ] {
        output::line(&format!("{FAINT}{name:<12}{FAINT:#} {value}"))?;
    }
    output::line("")?;
    let mut table = output::Table::new(&["AT", "WHAT", "RUN", "OUTCOME", "TOOK", "VERSION", "BY", "WHY"]);
    for line in &detail.history {
        table.row(vec![
            time(line.at),
            cell(&line.kind),
            cell(line.attempt),
            line.outcome.map_or_else(|| Cell::from(None::<String>), outcome_cell),
            Cell::from(line.took_ms.map(|ms| format!("{ms} ms"))),
            Cell::from(line.digest.as_deref().map(|digest| short(Some(digest)))),
            Cell::from(line.by.as_ref()),
            match (&line.error, &line.reason) {
                (Some(error), _) => cell(format!("{}: {}", error.kind, error.text)),
                (None, reason) => Cell::from(reason.as_ref()),
            },
        ]);
    }
    let mut text = Vec::new();
    table.write(&mut text).map_err(|error| Failure::failed(error.to_string()))?;
    output::line(String::from_utf8_lossy(&text).trim_end())?;
    if let Some(message) = &detail.message {
        output::line("")?;
        for (name, value) in &message.headers {
            output::line(&format!("{FAINT}{}:{FAINT:#} {}", output::safe(name), output::safe(&value.to_string())))?;
        }
        match (&message.body, &message.body_base64) {
            (Some(body), _) => output::line(&output::safe(body))?,
            (None, Some(_)) => output::line(&format!("({} bytes that are no text; see --json)", message.body_bytes))?,
            (None, None) => output::line("(no body)")?,
        }
    } else {
        anstream::eprintln!("the message is not kept any more");
    }
    Ok(Exit::Done)
}

fn short(digest: Option<&str>) -> String {
    digest.and_then(|digest| digest.get(..12)).unwrap_or_default().to_owned()
}

pub(crate) fn sessions(args: &PlaceArgs) -> Outcome {
    list(
        &args.page.plain,
        "sessions",
        &placed(args),
        "no sessions",
        &["SESSION", "ENDPOINT", "BLOCKED BY", "KIND", "SINCE", "PARKED", "OLDEST"],
        |session: &SessionLine| {
            let block = session.blocked_by.as_ref();
            vec![
                cell(&session.session),
                cell(&session.endpoint),
                block.map_or_else(|| Cell::from(None::<String>), |block| Cell(block.event_id.to_string(), WAITING)),
                Cell::from(block.map(|block| &block.kind)),
                block.map_or_else(|| Cell::from(None::<String>), |block| time(block.since)),
                cell(session.parked),
                session.oldest_parked_at.map_or_else(|| Cell::from(None::<String>), time),
            ]
        },
    )
}

pub(crate) fn parked(args: &PlaceArgs) -> Outcome {
    list(
        &args.page.plain,
        "parked",
        &placed(args),
        "nothing is parked",
        &["EVENT", "ENDPOINT", "SESSION", "PLACE", "TYPE", "PARKED"],
        |message: &ParkedMessage| {
            vec![
                cell(&message.event_id),
                cell(&message.endpoint),
                Cell::from(message.session.as_ref()),
                Cell::from(message.position),
                cell(&message.event_type),
                message.parked_at.map_or_else(|| Cell::from(None::<String>), time),
            ]
        },
    )
}

pub(crate) fn scheduled(args: ScheduledArgs) -> Outcome {
    let args = match args.verb {
        None => args.list,
        Some(ScheduledVerb::List(list)) => list,
        Some(ScheduledVerb::Cancel { entity, sequence_number, host }) => {
            let body = json!({ "entity": entity, "sequence_number": sequence_number });
            let _: serde_json::Value = Client::connect(&host)?.post("scheduled/cancel", &[], &body)?;
            anstream::eprintln!("cancelled");
            return Ok(Exit::Done);
        }
    };
    list(
        &args.page.plain,
        "scheduled",
        &placed(&args),
        "nothing is scheduled",
        &["DUE", "KIND", "EVENT", "ENDPOINT", "SESSION", "TYPE", "RUNS", "ENTITY", "NUMBER"],
        |message: &ScheduledMessage| {
            vec![
                message.due_at.map_or_else(|| Cell::from(None::<String>), time),
                cell(&message.kind),
                cell(&message.event_id),
                Cell::from(message.endpoint.as_ref()),
                Cell::from(message.session.as_ref()),
                cell(&message.event_type),
                Cell::from(message.attempt),
                cell(&message.entity),
                cell(message.sequence_number),
            ]
        },
    )
}

pub(crate) fn dead_letters(args: DeadLettersArgs) -> Outcome {
    let args = match args.verb {
        None => args.list,
        Some(DeadLettersVerb::List(list)) => list,
        Some(DeadLettersVerb::Replay { entity, sequence_numbers, all, host }) => {
            let body = json!({ "entity": entity, "sequence_numbers": sequence_numbers, "all": all });
            let answer: serde_json::Value = Client::connect(&host)?.post("dead-letters/replay", &[], &body)?;
            anstream::eprintln!("put back: {}", answer["count"]);
            return Ok(Exit::Done);
        }
    };
    list(
        &args.page.plain,
        "dead-letters",
        &placed(&args),
        "no dead letters",
        &["DEAD SINCE", "EVENT", "ENTITY", "NUMBER", "SESSION", "TYPE", "REASON", "DESCRIPTION"],
        |letter: &DeadLetter| {
            vec![
                letter.dead_at.map_or_else(|| Cell::from(None::<String>), time),
                cell(&letter.event_id),
                cell(&letter.entity),
                cell(letter.sequence_number),
                Cell::from(letter.session.as_ref()),
                cell(&letter.event_type),
                Cell::from(letter.reason.as_ref()),
                Cell::from(letter.description.as_ref()),
            ]
        },
    )
}

pub(crate) fn inbox(args: &InboxArgs) -> Outcome {
    let mut query = paged(&args.page);
    add(&mut query, "endpoint", args.endpoint.as_ref());
    add(&mut query, "message_id", args.message_id.as_ref());
    list(
        &args.page.plain,
        "inbox",
        &query,
        "the inbox is empty",
        &["MESSAGE", "ENDPOINT", "STATE", "RECORDED", "EXPIRES", "OWNER"],
        |row: &InboxLine| {
            vec![
                cell(&row.message_id),
                cell(&row.endpoint),
                cell(&row.state),
                time(row.recorded_at),
                row.expires_at.map_or_else(|| Cell::from(None::<&str>), time),
                Cell::from(row.owner.as_ref()),
            ]
        },
    )
}

pub(crate) fn handlers(args: &PlainArgs) -> Outcome {
    list(
        args,
        "handlers",
        &Query::new(),
        "no handlers; put a component into the handlers folder",
        &["HANDLER", "STATE", "VERSION", "TYPES", "ENDPOINTS", "LOADED", "ERROR"],
        |handler: &Handler| {
            let style = match handler.state.as_str() {
                "serving" => output::GOOD,
                "refused" => output::BAD,
                _ => WAITING,
            };
            vec![
                cell(&handler.name),
                Cell(handler.state.clone(), style),
                Cell::from(handler.digest.as_deref().map(|digest| short(Some(digest)))),
                cell(handler.event_types.join(" ")),
                cell(handler.endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")),
                handler.loaded_at.map_or_else(|| Cell::from(None::<String>), time),
                Cell::from(handler.error.as_ref()),
            ]
        },
    )
}

pub(crate) fn endpoints(args: &PlainArgs) -> Outcome {
    list(
        args,
        "endpoints",
        &Query::new(),
        "no endpoints",
        &["ENDPOINT", "STATE", "SOURCE", "INBOX", "ACTIVE", "SCHEDULED", "PARKED", "DEAD", "WHY"],
        |endpoint: &Endpoint| {
            let style = if endpoint.state == "running" { output::GOOD } else { WAITING };
            vec![
                cell(&endpoint.endpoint),
                Cell(endpoint.state.clone(), style),
                cell(&endpoint.source),
                Cell::from(endpoint.inbox.as_ref()),
                cell(endpoint.active),
                cell(endpoint.scheduled),
                cell(endpoint.parked),
                cell(endpoint.dead_letters),
                cell(endpoint.reasons.join("; ")),
            ]
        },
    )
}

pub(crate) fn audit(args: &PagedArgs) -> Outcome {
    list(
        &args.plain,
        "audit",
        &paged(args),
        "nobody did anything yet",
        &["AT", "BY", "VERB", "ENDPOINT", "TARGET", "COUNT", "OPEN", "APPLIED", "CONFLICT", "WHY"],
        |row: &AuditLine| {
            vec![
                time(row.at),
                cell(&row.by),
                cell(&row.verb),
                Cell::from(row.endpoint.as_ref()),
                cell(&row.target),
                cell(row.count),
                cell(row.actions.open),
                cell(row.actions.applied),
                cell(row.actions.conflict),
                Cell::from(row.reason.as_ref()),
            ]
        },
    )
}

pub(crate) fn outbox(args: OutboxArgs) -> Outcome {
    let resolve = |id: i64, verb: &str, host: &HostArgs| {
        let _: serde_json::Value = Client::connect(host)?.post(&format!("outbox/{id}/{verb}"), &[], &json!({}))?;
        anstream::eprintln!("done");
        Ok(Exit::Done)
    };
    let args = match args.verb {
        None => args.list,
        Some(OutboxVerb::List(list)) => list,
        Some(OutboxVerb::Retry { id, host }) => return resolve(id, "retry", &host),
        Some(OutboxVerb::Drop { id, host }) => return resolve(id, "drop", &host),
    };
    list(
        &args.plain,
        "outbox",
        &paged(&args),
        "the outbox is empty",
        &["ID", "ENDPOINT", "TO", "MESSAGE", "EVENT", "CREATED", "TRIES", "STATE", "ERROR"],
        |row: &OutboxLine| {
            vec![
                cell(row.id),
                cell(&row.endpoint),
                cell(&row.entity),
                Cell::from(row.message_id.as_ref()),
                Cell::from(row.event_id.as_ref()),
                time(row.created_at),
                cell(row.tries),
                if row.poison { Cell("poison".to_owned(), output::BAD) } else { cell("waiting") },
                Cell::from(row.error.as_ref()),
            ]
        },
    )
}

pub(crate) fn peek(args: &PeekArgs) -> Outcome {
    let mut query = paged(&args.page);
    query.push(("entity", args.entity.clone()));
    let part = serde_json::to_value(Part::from(args.part)).map_err(|error| Failure::failed(error.to_string()))?;
    add(&mut query, "part", part.as_str());
    add(&mut query, "session", args.session.as_ref());
    list(
        &args.page.plain,
        "peek",
        &query,
        "nothing there",
        &["NUMBER", "MESSAGE", "SESSION", "ENQUEUED", "DELIVERIES", "BYTES", "BODY"],
        |peeked: &PeekedMessage| {
            vec![
                cell(peeked.sequence_number),
                Cell::from(peeked.message.message_id.as_ref()),
                Cell::from(peeked.message.session.as_ref()),
                time(peeked.enqueued_at),
                cell(peeked.delivery_count),
                cell(peeked.message.body_bytes),
                Cell::from(peeked.message.body.as_ref()),
            ]
        },
    )
}

/// How often the host is asked for what is new.
const TAIL: Duration = Duration::from_millis(500);

pub(crate) fn tail(args: &TailArgs) -> Outcome {
    let client = Client::connect(&args.plain.host)?;
    let mut since = args.filter.since.unwrap_or_else(cli::now);
    let mut seen = HashSet::new();
    // Nothing is ever sent: a receive with a bound is the wait between two looks.
    let (_never, tick) = std::sync::mpsc::channel::<()>();
    loop {
        let mut query = filtered(&EventFilterArgs { since: Some(since), ..args.filter.clone() });
        query.push(("limit", "1000".to_owned()));
        let mut events = Vec::new();
        loop {
            let listing: Listing<Event> = client.get("events", &query)?;
            events.extend(listing.items);
            query.retain(|(name, _)| *name != "after");
            match listing.next {
                Some(next) => query.push(("after", next)),
                None => break,
            }
        }
        for event in events.iter().rev() {
            if !seen.insert((event.endpoint.clone(), event.event_id.clone(), event.updated_at, event.outcome)) {
                continue;
            }
            if args.plain.json {
                output::line(&serde_json::to_string(event).map_err(|error| Failure::failed(error.to_string()))?)?;
            } else {
                output::line(&event_line(event))?;
            }
        }
        if let Some(newest) = events.iter().map(|event| event.updated_at).max() {
            since = newest.0;
            seen.retain(|(_, _, at, _)| *at == Time(since));
        }
        // A timeout is what we wait for.
        let _ = tick.recv_timeout(TAIL);
    }
}

fn event_line(event: &Event) -> String {
    let style = output::of_outcome(event.outcome);
    format!(
        "{FAINT}{}{FAINT:#} {style}{:<13}{style:#} {} {} {} {}",
        event.updated_at,
        event.outcome.name(),
        output::one_line(event.endpoint.as_str()),
        event.session.as_ref().map_or_else(|| "-".to_owned(), |session| output::one_line(session.as_str())),
        output::one_line(event.event_id.as_str()),
        output::one_line(&why(event).0),
    )
}
