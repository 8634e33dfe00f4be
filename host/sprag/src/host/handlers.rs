//! The handlers of a host: loaded by the runtime, served to the worker, shown to operators.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use sprag_core::{
    ids::{EndpointName, HandlerName},
    operations::view,
    time::Timestamp,
};
use sprag_runtime::{
    Registry, Runtime,
    watch::{self, HandlerEvent, WatchConfig, Watcher},
};
use sprag_worker::operations::HandlerListing;
use tokio::sync::watch as notice;

use super::{Plan, say};
use crate::{config::Config, failure::Failure};

/// What is known of each file beside what serves.
#[derive(Debug, Clone, Default)]
struct Note {
    state: Option<&'static str>,
    error: Option<String>,
    loaded_at: Option<Timestamp>,
}

/// Remembers what happened to the handlers' files, and tells it.
pub(crate) struct Board {
    folder: PathBuf,
    /// `dev`: a line each. Else the log.
    lines: bool,
    notes: Mutex<BTreeMap<HandlerName, Note>>,
    looked: notice::Sender<bool>,
}

impl Board {
    pub(crate) fn new(folder: PathBuf, lines: bool) -> Arc<Self> {
        Arc::new(Self { folder, lines, notes: Mutex::default(), looked: notice::Sender::new(false) })
    }

    pub(crate) fn note(&self, event: &HandlerEvent) {
        {
            let mut notes = self.notes.lock();
            match event {
                HandlerEvent::Compiling { name, .. } => notes.entry(name.clone()).or_default().state = Some("loading"),
                HandlerEvent::Loaded { name, .. } | HandlerEvent::Replaced { name, .. } => {
                    notes.insert(name.clone(), Note { loaded_at: Some(crate::cli::now()), ..Note::default() });
                }
                HandlerEvent::Refused { name, error, .. } => {
                    let note = notes.entry(name.clone()).or_default();
                    note.state = Some("refused");
                    note.error = Some(error.to_string());
                }
                HandlerEvent::Removed { name } => {
                    notes.remove(name);
                }
                HandlerEvent::FirstPass { .. } => {
                    self.looked.send_replace(true);
                }
                // What serves is what the file holds again: an earlier refusal is over.
                HandlerEvent::Unchanged { name } => {
                    if let Some(note) = notes.get_mut(name) {
                        note.state = None;
                        note.error = None;
                    }
                }
                HandlerEvent::PollingOnly { .. } | HandlerEvent::FolderUnreadable { .. } => {}
            }
        }
        if self.lines {
            say::handler(event);
        } else {
            watch::log_event(event);
        }
    }

    /// Waits until everything that was in the folder at start is loaded or refused.
    pub(super) async fn first_pass(&self) {
        let mut looked = self.looked.subscribe();
        // The sender lives as long as this value.
        let _ = looked.wait_for(|looked| *looked).await;
    }

    /// Every refusal, for `check`.
    pub(crate) fn refusals(&self) -> Vec<(HandlerName, String)> {
        self.notes.lock().iter().filter_map(|(name, note)| Some((name.clone(), note.error.clone()?))).collect()
    }
}

/// What keeps the handlers up to date; dropping it ends that.
pub(super) enum Watched {
    Watching { _watcher: Watcher },
    Loaded,
}

pub(super) fn start(
    runtime: &Runtime,
    registry: &Arc<Registry>,
    plan: &Plan,
    configs: watch::Configs,
    board: &Arc<Board>,
) -> Result<Watched, Failure> {
    let folder = &plan.config.host.handlers;
    if plan.watch
        && let Err(error) = std::fs::create_dir_all(folder)
    {
        return Err(Failure::failed(format!("the handlers' folder {} cannot be made: {error}", folder.display()))
            .code("SPR0403"));
    }
    let config = WatchConfig::new(folder, configs);
    let on_event: watch::OnEvent = {
        let board = Arc::clone(board);
        Arc::new(move |event| board.note(&event))
    };
    if plan.watch {
        let watcher = Watcher::start(runtime, registry, config, on_event);
        return match watcher {
            Ok(watcher) => Ok(Watched::Watching { _watcher: watcher }),
            Err(error) => Err(Failure::failed(format!("cannot watch {}: {error}", folder.display()))),
        };
    }
    let (runtime, registry) = (runtime.clone(), Arc::clone(registry));
    // Endpoints wait for their handlers by themselves, so the host does not wait for the compiler.
    tokio::task::spawn_blocking(move || watch::load_folder(&runtime, &registry, config, on_event));
    Ok(Watched::Loaded)
}

/// The endpoints of a folder without a file, by what its handlers claim (P28).
pub(super) fn endpoints_for(folder: &Path, config: Config, registry: &Registry) -> Config {
    let handlers = registry.handlers();
    let claims = |handler: &sprag_runtime::Handler, other: &sprag_runtime::Handler| {
        handler.name() != other.name()
            && handler.info().event_types.iter().any(|event_type| other.info().event_types.contains(event_type))
    };
    let (conflicting, rest): (Vec<_>, Vec<_>) =
        handlers.iter().partition(|handler| handlers.iter().any(|other| claims(handler, other)));
    if conflicting.is_empty() {
        return config;
    }
    let names = |handlers: Vec<&Arc<sprag_runtime::Handler>>| {
        handlers.iter().map(|handler| handler.name().clone()).collect::<Vec<_>>()
    };
    let made = Config::for_folder_with_conflicts(folder, &names(conflicting), &names(rest));
    Config { host: config.host, ..made }
}

/// What operators see of the handlers.
pub(super) struct Listing {
    pub registry: Arc<Registry>,
    pub board: Arc<Board>,
}

impl Listing {
    fn endpoints_of(&self, name: &HandlerName) -> Vec<EndpointName> {
        let takes = |handlers: &Option<Vec<HandlerName>>| handlers.as_ref().is_none_or(|names| names.contains(name));
        self.registry
            .endpoints()
            .into_iter()
            .filter(|endpoint| takes(&endpoint.handlers))
            .map(|endpoint| endpoint.endpoint)
            .collect()
    }
}

impl HandlerListing for Listing {
    fn handlers(&self) -> Vec<view::Handler> {
        let notes = self.board.notes.lock().clone();
        let mut names: std::collections::BTreeSet<HandlerName> = notes.keys().cloned().collect();
        names.extend(self.registry.handlers().iter().map(|handler| handler.name().clone()));
        names.extend(self.registry.endpoints().into_iter().filter_map(|endpoint| endpoint.handlers).flatten());
        names
            .into_iter()
            .map(|name| {
                let note = notes.get(&name).cloned().unwrap_or_default();
                let serving = self.registry.get(&name);
                let state = match (&note.state, &serving) {
                    (Some(state), _) => state,
                    (None, Some(_)) => "serving",
                    (None, None) => "missing",
                };
                let endpoints = self.endpoints_of(&name);
                let known = note.state.is_some() || serving.is_some();
                view::Handler {
                    file: known.then(|| self.board.folder.join(format!("{name}.wasm")).display().to_string()),
                    digest: serving.as_ref().map(|handler| handler.digest().to_string()),
                    event_types: serving
                        .iter()
                        .flat_map(|handler| &handler.info().event_types)
                        .map(ToString::to_string)
                        .collect(),
                    endpoints,
                    state: state.to_owned(),
                    error: note.error,
                    loaded_at: note.loaded_at.map(Into::into),
                    isolation: serving.as_ref().map(|handler| handler.config().isolation.name().to_owned()),
                    grants: serving.iter().flat_map(|handler| handler.config().grant.clone()).collect(),
                    name,
                }
            })
            .collect()
    }

    fn of_endpoint(&self, endpoint: &EndpointName) -> Vec<HandlerName> {
        let named =
            self.registry.endpoints().into_iter().find(|it| it.endpoint == *endpoint).and_then(|it| it.handlers);
        named.unwrap_or_else(|| self.registry.handlers().iter().map(|handler| handler.name().clone()).collect())
    }

    fn reasons(&self, endpoint: &EndpointName) -> Vec<String> {
        let Err(why) = self.registry.ready(endpoint) else { return Vec::new() };
        let refused =
            self.board.refusals().into_iter().map(|(name, error)| format!("{name}.wasm was refused: {error}"));
        std::iter::once(why.to_string()).chain(refused).collect()
    }
}
