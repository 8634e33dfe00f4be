//! The entities that endpoints need on Service Bus: shown, compared with what is there, and made (P21).

use serde_json::{Map, Value};
use sprag_servicebus::{
    administration,
    topology::{self, ApplyError, Progress, view},
};

use crate::{
    cli::{TopologyArgs, TopologyVerb},
    config::{self, Config},
    failure::{Exit, Failure, Outcome},
    namespaces,
    output::{self, GOOD, WAITING},
};

pub(crate) fn topology(verb: &TopologyVerb) -> Outcome {
    let (TopologyVerb::Show(args) | TopologyVerb::Diff(args) | TopologyVerb::Apply(args)) = verb;
    let config = super::serve::load(&args.config)?;
    let chosen = chosen(&config, args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(format!("cannot start threads: {error}")))?;
    let mut all = Map::new();
    let mut exit = Exit::Done;
    for (name, namespace) in chosen {
        let administration = namespaces::administration(name, namespace)?;
        let wanted = namespaces::wanted(&config, name);
        if !args.json {
            anstream::eprintln!("[servicebus.{name}] at {}", administration.host());
        }
        let one = match verb {
            TopologyVerb::Show(_) => {
                let current = runtime.block_on(topology::current(&administration, &wanted)).map_err(unreached)?;
                let entities = view::show(&wanted, &current);
                said(args, &view::show_text(&entities))?;
                serde_json::to_value(entities)
            }
            TopologyVerb::Diff(_) => {
                let current = runtime.block_on(topology::current(&administration, &wanted)).map_err(unreached)?;
                let steps = view::steps(&topology::diff(&wanted, &current));
                if !(steps.changes.is_empty() && steps.conflicts.is_empty()) {
                    exit = Exit::Failed;
                }
                said(args, &view::steps_text(&steps))?;
                serde_json::to_value(steps)
            }
            TopologyVerb::Apply(_) => {
                let mut progress = |progress: Progress<'_>| {
                    if !args.json {
                        tell(&progress);
                    }
                };
                let report = runtime
                    .block_on(topology::apply(&administration, &wanted, &mut progress))
                    .map_err(|error| not_applied(error, args))?;
                let applied = view::applied(&report);
                said(args, &view::applied_text(&applied))?;
                serde_json::to_value(applied)
            }
        };
        all.insert(name.to_owned(), one.map_err(|error| Failure::failed(error.to_string()))?);
    }
    if args.json {
        output::json(&Value::Object(all))?;
    }
    Ok(exit)
}

fn chosen<'c>(config: &'c Config, args: &TopologyArgs) -> Result<Vec<(&'c str, &'c config::ServiceBus)>, Failure> {
    let all = config.servicebus.iter().map(|(name, namespace)| (name.as_str(), namespace));
    let Some(wanted) = &args.transport else {
        let all: Vec<_> = all.collect();
        if all.is_empty() {
            let text = format!("{} has no [servicebus.NAME]: there is no namespace to look at", args.config.display());
            return Err(Failure::new(Exit::Configuration, text)
                .code("SPR0106")
                .help("entities of the embedded engine are made by [[queue]] and [[topic]] at the start of a host"));
        }
        return Ok(all);
    };
    let found: Vec<_> = all.clone().filter(|(name, _)| name == wanted).collect();
    if found.is_empty() {
        let known: Vec<&str> = all.map(|(name, _)| name).collect();
        return Err(Failure::usage(format!("there is no [servicebus.{wanted}]; there are: {}", known.join(", "))));
    }
    Ok(found)
}

fn said(args: &TopologyArgs, text: &str) -> Result<(), Failure> {
    if args.json { Ok(()) } else { output::line(text.trim_end()) }
}

fn tell(progress: &Progress<'_>) {
    match progress {
        Progress::Doing(change) => anstream::eprintln!("  {WAITING}…{WAITING:#} {change}"),
        Progress::Done(change) => anstream::eprintln!("  {GOOD}done{GOOD:#} {change}"),
        Progress::LookingAgain { change, error } => {
            anstream::eprintln!("  {WAITING}again{WAITING:#} {change}: somebody else was there first ({error})");
        }
    }
}

fn unreached(error: administration::Error) -> Failure {
    let exit = match &error {
        administration::Error::Unreachable { .. }
        | administration::Error::Timeout { .. }
        | administration::Error::Busy { .. } => Exit::TryAgain,
        _ => Exit::Failed,
    };
    Failure::new(exit, error.to_string()).code("SPR0501").help("sprag explain SPR0501")
}

fn not_applied(error: ApplyError, args: &TopologyArgs) -> Failure {
    let applied = view::applied(error.report());
    if !args.json && !applied.done.is_empty() {
        anstream::eprintln!("{}", view::applied_text(&applied).trim_end());
    }
    match error {
        ApplyError::Administration { error, change, .. } => {
            let failure = unreached(error);
            let place = change.map(|change| format!("{change}: ")).unwrap_or_default();
            Failure { text: format!("{place}{}", failure.text), ..failure }
        }
        error => Failure::failed(error.to_string()).code("SPR0502").help("sprag explain SPR0502"),
    }
}
