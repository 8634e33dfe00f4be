//! What a host tells: lines for a person in `dev`, the log in `run`.

use std::{net::SocketAddr, time::Duration};

use sprag_core::outcome::Outcome;
use sprag_gateway::access::Access;
use sprag_runtime::{Mode, Registry, watch::HandlerEvent};
use sprag_worker::signal::{Signal, SignalKind, Signals};
use tokio::{sync::broadcast::error::RecvError, task::JoinHandle};

use super::{Plan, network::Reached};
use crate::{
    config::show_duration,
    output::{self, BAD, FAINT, GOOD, WAITING, one_line},
};

/// What `dev` shows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Show {
    /// A line per message.
    pub messages: bool,
}

/// Ends the following when it is dropped.
pub(super) struct Following(JoinHandle<()>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Writes a line, or a log entry, for what happens to messages.
pub(super) fn follow(signals: &Signals, show: Option<Show>) -> Option<Following> {
    if show.is_some_and(|show| !show.messages) {
        return None;
    }
    let mut signals = signals.subscribe();
    Some(Following(tokio::spawn(async move {
        loop {
            match signals.recv().await {
                Ok(signal) if show.is_some() => anstream::println!("{}", line(&signal)),
                Ok(signal) => log(&signal),
                Err(RecvError::Lagged(missed)) if show.is_some() => {
                    anstream::println!("{FAINT}… {missed} lines left out{FAINT:#}")
                }
                Err(RecvError::Lagged(missed)) => tracing::debug!(missed, "lifecycle signals left out of the log"),
                Err(RecvError::Closed) => break,
            }
        }
    })))
}

fn line(signal: &Signal) -> String {
    let took = signal.took.map(|took| format!(" {FAINT}{}{FAINT:#}", short(took))).unwrap_or_default();
    let session =
        signal.session.as_ref().map_or_else(String::new, |session| format!(" {}", one_line(session.as_str())));
    let handler = signal.handler.as_ref().map_or_else(String::new, |handler| format!(" {FAINT}by{FAINT:#} {handler}"));
    let run = if signal.attempt > 1 { format!(" run {}", signal.attempt) } else { String::new() };
    let (word, style, rest) = match &signal.kind {
        SignalKind::Outcome { outcome, reason, error, retry_in } => {
            let why = match (error, reason) {
                (Some(error), _) => format!(" {}: {}", one_line(&error.kind), one_line(&error.text)),
                (None, Some(reason)) => format!(" {}", one_line(reason)),
                (None, None) => String::new(),
            };
            let next =
                retry_in.map(|delay| format!(" {WAITING}again in {}{WAITING:#}", short(delay))).unwrap_or_default();
            let word = if *outcome == Outcome::Deferred { "parked" } else { outcome.name() };
            (word, output::of_outcome(*outcome), format!("{why}{next}"))
        }
        SignalKind::DuplicateDetected => ("duplicate", FAINT, String::new()),
        SignalKind::PutBack { text, pause } => {
            ("put back", WAITING, format!(" {}; again in {}", one_line(text), short(*pause)))
        }
    };
    let event = one_line(signal.event_id.as_str());
    let event_type = one_line(signal.event_type.as_str());
    format!(
        "{style}{word:<13}{style:#} {}{session} {event} {FAINT}{event_type}{FAINT:#}{handler}{run}{took}{rest}",
        signal.endpoint
    )
}

fn log(signal: &Signal) {
    let Signal { endpoint, event_id, event_type, attempt, .. } = signal;
    let session = signal.session.as_ref().map(AsRef::<str>::as_ref);
    let handler = signal.handler.as_ref().map(AsRef::<str>::as_ref);
    match &signal.kind {
        SignalKind::Outcome { outcome, error: Some(error), .. } => {
            tracing::warn!(%endpoint, session, event = %event_id, r#type = %event_type, handler, attempt, outcome = outcome.name(), kind = error.kind, error = error.text, "event");
        }
        SignalKind::Outcome { outcome, reason, .. } => {
            tracing::info!(%endpoint, session, event = %event_id, r#type = %event_type, handler, attempt, outcome = outcome.name(), reason, "event");
        }
        SignalKind::DuplicateDetected => {
            tracing::info!(%endpoint, session, event = %event_id, r#type = %event_type, "duplicate detected")
        }
        SignalKind::PutBack { text, pause } => {
            tracing::warn!(%endpoint, session, event = %event_id, ?pause, "put back: {text}")
        }
    }
}

fn short(time: Duration) -> String {
    match time {
        time if time < Duration::from_millis(1) => format!("{} µs", time.as_micros()),
        time if time < Duration::from_secs(10) => format!("{:.1} ms", time.as_secs_f64() * 1_000.0),
        time => show_duration(Duration::from_secs(time.as_secs())),
    }
}

/// One line for what happened to a handler's file.
pub(super) fn handler(event: &HandlerEvent) {
    match event {
        HandlerEvent::Compiling { name, bytes } => {
            anstream::println!(
                "{WAITING}compiling{WAITING:#}     {name} ({})",
                bytesize::ByteSize(*bytes as u64).display().iec()
            );
        }
        HandlerEvent::Loaded { name, digest, took, cached } => {
            anstream::println!(
                "{GOOD}loaded{GOOD:#}        {name} {} in {}{}",
                digest.short(),
                short(*took),
                if *cached { ", compiled before" } else { "" }
            );
        }
        HandlerEvent::Replaced { name, before, digest, took, .. } => {
            anstream::println!(
                "{GOOD}reloaded{GOOD:#}      {name} {} (was {}) in {}",
                digest.short(),
                before.short(),
                short(*took)
            );
        }
        HandlerEvent::Refused { name, error, serving } => {
            let rest = if *serving { "; the version before serves on" } else { "" };
            anstream::println!(
                "{BAD}refused{BAD:#}       {name}.wasm: {}{rest} [SPR0405]",
                output::safe(&error.to_string())
            );
        }
        HandlerEvent::Removed { name } => {
            anstream::println!("{WAITING}removed{WAITING:#}       {name}; endpoints that need it wait")
        }
        HandlerEvent::PollingOnly { why } => {
            anstream::eprintln!("changes of handlers are seen once a second only: {why}")
        }
        HandlerEvent::FolderUnreadable { why } => {
            anstream::eprintln!("{BAD}the handlers' folder cannot be read:{BAD:#} {why}")
        }
        HandlerEvent::Unchanged { .. } | HandlerEvent::FirstPass { .. } => {}
    }
}

/// Says where the host is, and how to send the first message.
pub(super) fn ready(
    plan: &Plan,
    address: SocketAddr,
    reached: &Reached,
    registry: &Registry,
    mode: &Mode,
    took: Duration,
) {
    if plan.show.is_none() {
        let shown = |address: Option<SocketAddr>| address.map(|address| address.to_string());
        tracing::info!(%address, amqp = shown(reached.amqp), amqps = shown(reached.tls), administration = shown(reached.administration), data = %plan.config.host.data.display(), instances = %mode, took_ms = took.as_millis() as u64, "host ready");
        return;
    }
    anstream::eprintln!("{GOOD}ready{GOOD:#} in {}", short(took));
    anstream::eprintln!("  API        http://{address} (token in {}/.sprag/host.json)", plan.folder.display());
    if let Some(amqp) = reached.amqp {
        let key = if reached.emulator { Access::EMULATOR_KEY } else { "<key>" };
        anstream::eprintln!(
            "  AMQP       Endpoint=sb://{amqp};SharedAccessKeyName={};SharedAccessKey={key};UseDevelopmentEmulator=true;",
            Access::EMULATOR_NAME
        );
    }
    if let Some(tls) = reached.tls {
        anstream::eprintln!("  AMQP, TLS  {tls}");
    }
    if let Some(administration) = reached.administration {
        anstream::eprintln!("  entities   http://{administration} (administration clients: docs/service-bus.md)");
    }
    anstream::eprintln!(
        "  handlers   {}{}",
        plan.config.host.handlers.display(),
        if plan.watch { ", watched" } else { "" }
    );
    for endpoint in &plan.config.endpoints {
        let state = registry
            .ready(&endpoint.name)
            .err()
            .map(|why| format!(" {WAITING}waits: {why}{WAITING:#}"))
            .unwrap_or_default();
        anstream::eprintln!("  endpoint   {} reads {}{state}", endpoint.name, endpoint.source);
    }
    if let Some(endpoint) = plan.config.endpoints.first() {
        let entity = endpoint.source.as_str().split('/').next().unwrap_or_default();
        let session = plan.config.has_sessions(endpoint);
        let event_type = registry
            .handlers()
            .iter()
            .flat_map(|handler| handler.info().event_types.clone())
            .find(|event_type| event_type.as_str() != "*")
            .map_or_else(|| "OrderPlaced".to_owned(), |event_type| event_type.to_string());
        anstream::eprintln!(
            "  try        sprag send {entity}{} --type {event_type} --body '{{\"total\": 3}}'",
            if session { " --session customer-1" } else { "" }
        );
    }
    for warning in plan.config.warnings() {
        tracing::debug!("{warning}");
    }
}

pub(super) fn stopping(plan: &Plan) {
    let grace = show_duration(plan.config.host.shutdown_grace);
    if plan.show.is_some() {
        anstream::eprintln!("stopping; what runs has {grace} to finish (a second signal ends it at once)");
    } else {
        tracing::info!(grace, "stopping");
    }
}

pub(super) fn stopped(plan: &Plan) {
    if plan.show.is_some() {
        anstream::eprintln!("stopped");
    } else {
        tracing::info!("stopped");
    }
}
