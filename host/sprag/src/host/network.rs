//! The embedded engine's face to the network: AMQP and the administration API, as configured.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use sprag_broker::{Clock, Engine};
use sprag_gateway::{
    access::{Access, Key},
    administration::{BindError, Server},
    amqp::{self, BuildError, Gateway},
};
use sprag_worker::Stop;
use tokio::task::JoinHandle;

use crate::{
    config::{Embedded, Listen},
    failure::{Exit, Failure},
};

/// Ports that are taken and not served yet.
pub(super) struct Network {
    gateway: Option<Gateway>,
    administration: Option<Server>,
    access: Access,
    is_open_to_the_emulators_key: bool,
}

/// Where clients find it.
#[derive(Debug, Clone, Default)]
pub(super) struct Reached {
    pub amqp: Option<SocketAddr>,
    pub tls: Option<SocketAddr>,
    pub administration: Option<SocketAddr>,
    /// The key that `dev` takes, which everybody knows.
    pub emulator: bool,
}

/// What serves; it ends with the host's stop.
pub(super) struct Serving(Vec<JoinHandle<()>>);

impl Network {
    /// `dev` lets Service Bus clients in with the emulator's key when no keys are configured, and goes on without a port that nobody asked for;
    /// `run` serves what is configured, with keys.
    pub(super) async fn bind(config: &Embedded, is_dev: bool, engine: &Engine) -> Result<Self, Failure> {
        let nothing = Self {
            gateway: None,
            administration: None,
            access: Access::emulator(),
            is_open_to_the_emulators_key: false,
        };
        let addresses =
            [config.listen.address, config.administration.address, config.tls.as_ref().map(|tls| tls.listen)];
        if addresses.iter().all(Option::is_none) || (!is_dev && !config.is_written) {
            return Ok(nothing);
        }
        let access = match (config.keys.is_empty(), is_dev) {
            (false, _) => Access::with_keys(config.keys.iter().map(key)),
            (true, true) => Access::emulator(),
            (true, false) => {
                let text = "[embedded] has no `keys`: `run` lets no client in without one";
                return Err(Failure::new(Exit::Configuration, text.to_owned())
                    .code("SPR0105")
                    .help("add [[embedded.keys]], or take [embedded] out when only this host uses its engine"));
            }
        };
        let reachable = [config.listen.address, config.tls.as_ref().map(|tls| tls.listen)];
        if let Some(address) = reachable.into_iter().flatten().find(|address| !address.ip().is_loopback())
            && config.keys.is_empty()
        {
            let text =
                format!("{address} can be reached from other machines, and the emulator's key is known to everybody");
            return Err(Failure::new(Exit::Configuration, text)
                .code("SPR0105")
                .help("add [[embedded.keys]] to sprag.toml"));
        }
        let gateway = match gateway(config, &access, engine).await {
            Ok(gateway) => gateway,
            Err(BuildError::PortTaken(address)) if goes_on_without(config.listen, address, is_dev) => None,
            Err(error) => return Err(refused(error.to_string(), matches!(error, BuildError::PortTaken(_)))),
        };
        let administration = match config.administration.address {
            None => None,
            Some(address) => match Server::bind(address).await {
                Ok(server) => Some(server),
                Err(BindError::PortTaken(_)) if goes_on_without(config.administration, address, is_dev) => None,
                Err(error) => return Err(refused(error.to_string(), matches!(error, BindError::PortTaken(_)))),
            },
        };
        Ok(Self { gateway, administration, access, is_open_to_the_emulators_key: config.keys.is_empty() })
    }

    pub(super) fn reached(&self) -> Reached {
        let handle = self.gateway.as_ref().map(Gateway::handle);
        Reached {
            amqp: handle.as_ref().and_then(amqp::Handle::address),
            tls: handle.as_ref().and_then(amqp::Handle::tls_address),
            administration: self.administration.as_ref().map(Server::address),
            emulator: self.is_open_to_the_emulators_key,
        }
    }

    pub(super) fn serve(self, engine: &Engine, stopped: &Stop) -> Serving {
        let mut tasks = Vec::new();
        if let Some(gateway) = self.gateway {
            let stopped = stopped.clone();
            tasks.push(tokio::spawn(gateway.run(async move { stopped.wait().await })));
        }
        if let Some(server) = self.administration {
            let (engine, stopped) = (engine.clone(), stopped.clone());
            let serving = server.run(engine, self.access, clock(), async move { stopped.wait().await });
            tasks.push(tokio::spawn(async move {
                if let Err(error) = serving.await {
                    tracing::error!(%error, "the administration API has ended");
                }
            }));
        }
        Serving(tasks)
    }
}

impl Serving {
    /// Waits for the connections to be closed, for so long at most.
    pub(super) async fn ended(self, most: Duration) {
        let all = async {
            for task in self.0 {
                if let Err(error) = task.await {
                    tracing::error!(%error, "serving clients ended by a panic");
                }
            }
        };
        if tokio::time::timeout(most, all).await.is_err() {
            tracing::warn!("some clients did not close their connections in time; what they had locked comes again");
        }
    }
}

async fn gateway(config: &Embedded, access: &Access, engine: &Engine) -> Result<Option<Gateway>, BuildError> {
    let tls = config.tls.as_ref().map(|tls| amqp::Tls {
        listen: tls.listen,
        certificate: tls.certificate.clone(),
        key: tls.key.clone(),
    });
    if config.listen.address.is_none() && tls.is_none() {
        return Ok(None);
    }
    let config = amqp::Config {
        listen: config.listen.address,
        tls,
        plain_beyond_loopback: config.plain_beyond_loopback,
        access: access.clone(),
        session_wait: config.session_wait,
        link_idle: Some(config.link_idle),
        connection_idle: Some(config.connection_idle),
        clock: clock(),
        ..amqp::Config::default()
    };
    Gateway::build(config, engine.clone()).await.map(Some)
}

fn clock() -> Clock {
    Arc::new(crate::cli::now)
}

fn key(key: &crate::config::SharedKey) -> Key {
    let made = Key::new(&key.name, &key.key, key.rights.iter().copied().collect());
    let made = match &key.secondary {
        Some(secondary) => made.with_secondary(secondary),
        None => made,
    };
    match &key.entity {
        Some(entity) => made.for_entity(entity),
        None => made,
    }
}

/// A default port that another program has is no reason not to run somebody's handlers.
fn goes_on_without(listen: Listen, address: SocketAddr, is_dev: bool) -> bool {
    let goes_on = is_dev && !listen.is_asked_for && listen.address == Some(address);
    if goes_on {
        tracing::warn!(
            "port {} is taken: no Service Bus clients there; [embedded] in sprag.toml names another",
            address.port()
        );
    }
    goes_on
}

fn refused(text: String, port_taken: bool) -> Failure {
    Failure::failed(text)
        .code(if port_taken { "SPR0402" } else { "SPR0104" })
        .help("another address, or \"off\": [embedded] listen and administration in sprag.toml, or --amqp and --administration")
}
