//! Checks a configuration without running it.

use std::{io::Write as _, sync::Arc};

use serde::Serialize;
use sprag_core::ids::HandlerName;
use sprag_runtime::{
    Registry,
    watch::{self, HandlerEvent, WatchConfig},
};

use sprag_servicebus::topology::Severity;

use crate::{
    cli::CheckArgs,
    config::{Config, sample},
    failure::{Exit, Failure, Outcome},
    host::{
        Board,
        databases::{self, Problem},
        parts,
    },
    namespaces,
    output::{self, BAD, GOOD, WAITING},
};

/// Something that `check` found.
#[derive(Debug, Serialize)]
struct Found {
    /// `error` or `warning`.
    level: &'static str,
    code: Option<&'static str>,
    line: Option<usize>,
    column: Option<usize>,
    text: String,
}

pub(crate) fn check(args: &CheckArgs) -> Outcome {
    if args.print_sample {
        std::io::stdout().write_all(sample().as_bytes()).map_err(|error| Failure::failed(error.to_string()))?;
        return Ok(Exit::Done);
    }
    let (exit, found) = match Config::load(&args.config) {
        Err(wrong) => {
            if !args.json {
                anstream::eprintln!("{wrong}");
            }
            let found = wrong
                .findings
                .into_iter()
                .map(|finding| Found {
                    level: "error",
                    code: Some(finding.code),
                    line: finding.at.map(|at| at.0),
                    column: finding.at.map(|at| at.1),
                    text: finding.text,
                })
                .collect();
            (Exit::Configuration, found)
        }
        Ok(config) => {
            let mut found: Vec<Found> = components(&config)?;
            found.extend(elsewhere(&config)?);
            let failed = found.iter().any(|found| found.level == "error");
            found.extend(config.warnings().into_iter().map(|text| Found {
                level: "warning",
                code: None,
                line: None,
                column: None,
                text,
            }));
            if !args.json {
                for one in &found {
                    let style = if one.level == "error" { BAD } else { WAITING };
                    let code = one.code.map(|code| format!(" [{code}]")).unwrap_or_default();
                    anstream::eprintln!("{style}{}:{style:#} {}{code}", one.level, output::safe(&one.text));
                }
                if !failed {
                    output::line(&format!("{GOOD}ok{GOOD:#} {}", args.config.display()))?;
                }
            }
            (if failed { Exit::Failed } else { Exit::Done }, found)
        }
    };
    if args.json {
        output::json(&found)?;
    }
    Ok(exit)
}

/// Loads every component as a host would, and says what is refused and which handlers are named but not there.
fn components(config: &Config) -> Result<Vec<Found>, Failure> {
    let started = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let started = started.map_err(|error| Failure::failed(format!("cannot start threads: {error}")))?;
    let runtime = started.block_on(parts::runtime(config))?;
    let registry = Registry::new(parts::handlers_of(config));
    let board = Board::new(config.host.handlers.clone(), false);
    let settings = {
        let config = Arc::new(config.clone());
        Arc::new(move |name: &HandlerName| config.handler(name))
    };
    let on_event = {
        let board = Arc::clone(&board);
        Arc::new(move |event: HandlerEvent| board.note(&event))
    };
    watch::load_folder(&runtime, &registry, WatchConfig::new(&config.host.handlers, settings), on_event);
    let error = |text| Found { level: "error", code: Some("SPR0405"), line: None, column: None, text };
    let mut found: Vec<Found> = board
        .refusals()
        .into_iter()
        .map(|(name, text)| error(format!("{}: {text}", config.host.handlers.join(format!("{name}.wasm")).display())))
        .collect();
    for endpoint in &config.endpoints {
        if let Err(why) = registry.ready(&endpoint.name) {
            let folder = config.host.handlers.display();
            found.push(error(format!(
                "endpoint {:?} would take no messages: {why} (handlers are in {folder})",
                endpoint.name.as_str()
            )));
        }
    }
    Ok(found)
}

/// What is not on this machine: whether it can be reached, and whether what endpoints need is there.
fn elsewhere(config: &Config) -> Result<Vec<Found>, Failure> {
    let started = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let started = started.map_err(|error| Failure::failed(format!("cannot start threads: {error}")))?;
    let found = |level, code, text| Found { level, code: Some(code), line: None, column: None, text };
    started.block_on(async {
        let mut all = Vec::new();
        for (name, database) in &config.stores {
            match databases::look(config, name, database).await {
                Ok(()) => {}
                Err(Problem::Schema(text)) if database.auto_create_table => {
                    let text =
                        format!("[store.{name}]: the start of a host makes or updates what it needs; now: {text}");
                    all.push(found("warning", "SPR0504", text));
                }
                Err(problem) => all.push(found("error", "SPR0504", format!("[store.{name}]: {}", problem.text()))),
            }
        }
        for (name, namespace) in &config.servicebus {
            let transport = namespaces::transport(config, name, namespace)?;
            let sources = config
                .endpoints
                .iter()
                .filter(|endpoint| endpoint.remote.as_ref().is_some_and(|remote| remote.transport == *name));
            for endpoint in sources {
                if let Err(error) = transport.settings(&endpoint.source).await {
                    let text = format!("endpoint {:?}: {error}", endpoint.name.as_str());
                    all.push(found("error", "SPR0501", text));
                }
            }
            match namespaces::problems(config, name, namespace).await? {
                Ok(problems) => all.extend(problems.into_iter().map(|problem| {
                    let level = if problem.severity == Severity::Error { "error" } else { "warning" };
                    found(level, "SPR0503", format!("[servicebus.{name}] {problem}"))
                })),
                Err(error) => {
                    let text = format!("[servicebus.{name}]: its entities are not checked: {error}");
                    all.push(found("warning", "SPR0501", text));
                }
            }
        }
        Ok(all)
    })
}
