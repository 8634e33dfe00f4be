//! Operator actions: accepted by the host, applied by the session's loop, followed here until they have ended.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sprag_core::{
    ids::ActionId,
    operations::{
        time::Time,
        view::{Action, GroupResult, Sent, SessionSkip},
    },
};

use crate::{
    cli::{FollowArgs, GroupArgs, HandoffArgs, HandoffVerb, PurgeInboxArgs, ResubmitArgs, SkipArgs, SkipSessionArgs},
    client::{Client, encode},
    failure::{Exit, Failure, Outcome},
    output::{self, BAD, GOOD, WAITING},
    verbs::send::body_json,
};

pub(crate) fn resubmit(args: ResubmitArgs) -> Outcome {
    let client = Client::connect(&args.follow.host)?;
    if let Some(group) = &args.group.group {
        return on_group(&client, group, "resubmit", args.reason.as_deref(), &args.group, &args.follow);
    }
    let event = args.event.as_deref().expect("clap asks for an event without a group");
    let mut input =
        json!({ "endpoint": args.follow.endpoint, "reason": args.reason, "again": args.again, "to": args.to });
    if let Some(body) = &args.body {
        let (name, value) = body_json(body, false)?;
        input[name] = value;
    }
    if args.to.is_some() {
        let sent: Sent = client.post(&format!("events/{}/resubmit", encode(event)), &[], &input)?;
        if args.follow.json {
            output::json(&sent)?;
        } else {
            anstream::eprintln!("a copy was sent");
        }
        return Ok(Exit::Done);
    }
    on_event(&client, event, "resubmit", &input, &args.follow)
}

pub(crate) fn skip(args: SkipArgs) -> Outcome {
    let client = Client::connect(&args.follow.host)?;
    if let Some(group) = &args.group.group {
        return on_group(&client, group, "skip", Some(&args.reason), &args.group, &args.follow);
    }
    let event = args.event.as_deref().expect("clap asks for an event without a group");
    on_event(&client, event, "skip", &json!({ "endpoint": args.follow.endpoint, "reason": args.reason }), &args.follow)
}

pub(crate) fn handoff(args: HandoffArgs) -> Outcome {
    let (verb, args) = match args.verb {
        HandoffVerb::Complete(args) => ("handoff/complete", args),
        HandoffVerb::Fail(args) => ("handoff/fail", args),
    };
    let client = Client::connect(&args.follow.host)?;
    on_event(
        &client,
        &args.event,
        verb,
        &json!({ "endpoint": args.follow.endpoint, "reason": args.reason }),
        &args.follow,
    )
}

pub(crate) fn skip_session(args: SkipSessionArgs) -> Outcome {
    let client = Client::connect(&args.follow.host)?;
    let input = json!({ "endpoint": args.follow.endpoint, "reason": args.reason, "dry_run": args.dry_run });
    let skip: SessionSkip = client.post(&format!("sessions/{}/skip", encode(&args.session)), &[], &input)?;
    let blocker = skip
        .blocked_by
        .as_ref()
        .map_or_else(|| "no blocking event".to_owned(), |event| format!("event {event}, which blocks it"));
    let takes = format!("{blocker}, {} parked and {} queued until {}", skip.parked, skip.queued, skip.cut_off);
    let Some(id) = skip.action else {
        if args.follow.json {
            output::json(&skip)?;
        } else {
            output::line(&format!("would skip in session {} of {}: {takes}", skip.session, skip.endpoint))?;
        }
        return Ok(Exit::Done);
    };
    anstream::eprintln!("skipping in session {} of {}: {takes}", skip.session, skip.endpoint);
    if args.follow.no_wait {
        if args.follow.json {
            output::json(&skip)?;
        }
        return Ok(Exit::Done);
    }
    let action = wait(&client, id, deadline(&args.follow))?;
    told(&action, args.follow.json)
}

pub(crate) fn purge_inbox(args: &PurgeInboxArgs) -> Outcome {
    if !args.yes {
        return Err(Failure::usage(format!(
            "this deletes the inbox records of {:?} before {}; a redelivery of one runs again",
            args.endpoint, args.before
        ))
        .help("add --yes to do it"));
    }
    let answer: Value = Client::connect(&args.host)?.post(
        "inbox/purge",
        &[],
        &json!({ "endpoint": args.endpoint, "before": Time(args.before) }),
    )?;
    anstream::eprintln!("deleted: {}", answer["count"]);
    Ok(Exit::Done)
}

fn deadline(follow: &FollowArgs) -> Instant {
    Instant::now() + follow.timeout
}

fn on_event(client: &Client, event: &str, verb: &str, input: &Value, follow: &FollowArgs) -> Outcome {
    let action: Action = client.post(&format!("events/{}/{verb}", encode(event)), &[], input)?;
    if follow.no_wait {
        return told_open(&action, follow.json);
    }
    let action = wait(client, action.id, deadline(follow))?;
    told(&action, follow.json)
}

fn told_open(action: &Action, as_json: bool) -> Outcome {
    if as_json {
        output::json(action)?;
    } else {
        anstream::eprintln!("accepted as action {}", action.id);
    }
    Ok(Exit::Done)
}

fn told(action: &Action, as_json: bool) -> Outcome {
    if as_json {
        output::json(action)?;
    }
    let text = action.text.as_deref().map(output::safe).unwrap_or_default();
    match action.state.as_str() {
        "applied" => {
            anstream::eprintln!("{GOOD}applied{GOOD:#} {text}");
            Ok(Exit::Done)
        }
        "conflict" => {
            anstream::eprintln!("{BAD}conflict{BAD:#} {text}");
            Ok(Exit::Failed)
        }
        _ => {
            anstream::eprintln!(
                "{WAITING}still open:{WAITING:#} action {} is accepted and waits for its session",
                action.id
            );
            Ok(Exit::TryAgain)
        }
    }
}

/// The action when it has ended or the time is over.
fn wait(client: &Client, id: ActionId, deadline: Instant) -> Result<Action, Failure> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(20));
        let action: Action = client.get(&format!("actions/{id}"), &[("wait", format!("{}ms", left.as_millis()))])?;
        if !action.is_open() || left.is_zero() {
            return Ok(action);
        }
    }
}

fn on_group(
    client: &Client,
    key: &str,
    verb: &str,
    reason: Option<&str>,
    group: &GroupArgs,
    follow: &FollowArgs,
) -> Outcome {
    if follow.endpoint.is_some() {
        return Err(Failure::usage("a group belongs to one endpoint already; leave --endpoint out"));
    }
    let input = json!({ "until": group.until.map(Time), "reason": reason, "dry_run": group.dry_run });
    let result: GroupResult = client.post(&format!("groups/{}/{verb}", encode(key)), &[], &input)?;
    if result.dry_run {
        if follow.json {
            output::json(&result)?;
        } else {
            for event in &result.events {
                output::line(&output::one_line(event.as_str()))?;
            }
            anstream::eprintln!("would {verb} {} failures until {}", result.count, result.cut_off);
        }
        return Ok(Exit::Done);
    }
    anstream::eprintln!("{} of {} failures until {} accepted", result.accepted, result.count, result.cut_off);
    for refused in &result.refused {
        anstream::eprintln!("  {}: {}", output::one_line(refused.event_id.as_str()), output::safe(&refused.text));
    }
    if follow.json {
        output::json(&result)?;
    }
    if follow.no_wait {
        return Ok(if result.refused.is_empty() { Exit::Done } else { Exit::Failed });
    }
    let deadline = deadline(follow);
    let (mut applied, mut conflicts, mut open) = (0, 0, 0);
    for id in &result.actions {
        match wait(client, *id, deadline)?.state.as_str() {
            "applied" => applied += 1,
            "conflict" => conflicts += 1,
            _ => open += 1,
        }
    }
    anstream::eprintln!("{GOOD}applied {applied}{GOOD:#}, conflicts {conflicts}, still open {open}");
    Ok(match (conflicts + result.refused.len(), open) {
        (0, 0) => Exit::Done,
        (0, _) => Exit::TryAgain,
        _ => Exit::Failed,
    })
}
