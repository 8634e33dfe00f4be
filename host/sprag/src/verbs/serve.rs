//! `dev` and `run`.

use std::path::Path;

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::{
    cli::{AddressOrOff, DevArgs, LogFormat, RunArgs},
    config::{self, Config, Listen, StoreRef},
    failure::{Exit, Failure, Outcome},
    host::{self, Plan, Show},
};

pub(crate) fn dev(args: &DevArgs) -> Outcome {
    start_log(LogFormat::Human, "warn")?;
    if !args.dir.is_dir() {
        return Err(Failure::usage(format!("{} is no folder", args.dir.display())));
    }
    let file = args.dir.join(config::FILE);
    let mut config = if file.exists() { load(&file)? } else { Config::for_folder(&args.dir) };
    if let Some(console) = args.console {
        config.host.console = console;
    }
    for (given, configured) in
        [(args.amqp, &mut config.embedded.listen), (args.administration, &mut config.embedded.administration)]
    {
        if let Some(AddressOrOff(address)) = given {
            *configured = Listen { address, is_asked_for: true };
        }
    }
    let builder = args.build.then(|| super::project::watch(&args.dir, &config.host.handlers)).transpose()?;
    let outcome =
        host::serve(Plan { config, folder: args.dir.clone(), watch: true, show: Some(Show { messages: !args.quiet }) });
    drop(builder);
    outcome
}

pub(crate) fn run(args: &RunArgs) -> Outcome {
    let config = load(&args.config)?;
    if let Some(endpoint) = config.endpoints.iter().find(|endpoint| endpoint.store == StoreRef::Memory) {
        let text = format!(
            "endpoint {:?}: `store = \"memory\"` forgets everything at the end of the process; it is for `dev` and tests",
            endpoint.name.as_str()
        );
        return Err(Failure::new(Exit::Configuration, text).code("SPR0104"));
    }
    start_log(args.log, "info")?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    let folder = args.config.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new(".")).to_owned();
    let watch = config.host.watch;
    host::serve(Plan { config, folder, watch, show: None })
}

pub(super) fn load(file: &Path) -> Result<Config, Failure> {
    Config::load(file).map_err(|wrong| {
        let code = wrong.findings.first().map_or("SPR0101", |finding| finding.code);
        Failure::new(Exit::Configuration, wrong.to_string()).help(format!("sprag explain {code}"))
    })
}

/// To stderr; `SPRAG_LOG` says how much.
fn start_log(format: LogFormat, otherwise: &str) -> Result<(), Failure> {
    let filter = match std::env::var("SPRAG_LOG") {
        Ok(wanted) if !wanted.is_empty() => {
            EnvFilter::try_new(&wanted).map_err(|error| Failure::usage(format!("SPRAG_LOG: {error}")))?
        }
        _ => EnvFilter::new(format!("{otherwise},wasmtime=warn,cranelift=warn")),
    };
    let registry = tracing_subscriber::registry().with(filter);
    let colours = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
    let started = match format {
        LogFormat::Human => {
            registry.with(fmt::layer().with_writer(std::io::stderr).with_ansi(colours).with_target(false)).try_init()
        }
        LogFormat::Json => {
            registry.with(fmt::layer().json().flatten_event(true).with_writer(std::io::stderr)).try_init()
        }
    };
    started.map_err(|error| Failure::failed(format!("the log cannot be started: {error}")))
}
