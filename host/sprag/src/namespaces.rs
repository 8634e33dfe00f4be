//! What the configuration says of namespaces of Service Bus: their clients, the entities that endpoints need there (P21), and what is wrong with
//! those that are there.

use std::sync::Arc;

use sprag_servicebus::{
    ServiceBus, TokenSource,
    administration::{self, Administration},
    topology::{self, Problem, Wanted},
};

use sprag_transport::Transport;

use crate::{
    config::{self, Config},
    failure::{Exit, Failure},
};

fn refused(name: &str, error: &impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Configuration, format!("[servicebus.{name}]: {error}")).code("SPR0104")
}

/// The transport of a namespace. It does not connect before it is used.
pub(crate) fn transport(
    config: &Config,
    name: &str,
    namespace: &config::ServiceBus,
) -> Result<Arc<dyn Transport>, Failure> {
    let entities = endpoints(config, name).map(|(endpoint, remote)| sprag_servicebus::EntitySettings {
        name: endpoint.source.clone(),
        requires_session: remote.requires_session,
        lock_duration: remote.lock_duration,
        max_delivery_count: remote.max_delivery_count,
    });
    let options = sprag_servicebus::Config {
        tokens: tokens(name, namespace)?,
        entities: entities.collect(),
        nimbus: endpoints(config, name)
            .filter(|(_, remote)| remote.topology == config::Topology::Nimbus)
            .map(|(endpoint, _)| endpoint.name.clone())
            .collect(),
        settle: namespace.settle,
        operation_timeout: namespace.operation_timeout,
        idle_timeout: namespace.idle_timeout,
        extra_roots: namespace.authorities.clone(),
        ..sprag_servicebus::Config::new(namespace.connection.clone())
    };
    if namespace.by_azservicebus {
        return alternative(name, options);
    }
    match ServiceBus::new(options) {
        Ok(transport) => Ok(Arc::new(transport)),
        Err(error) => Err(refused(name, &error)),
    }
}

#[cfg(feature = "azservicebus")]
fn alternative(name: &str, options: sprag_servicebus::Config) -> Result<Arc<dyn Transport>, Failure> {
    match sprag_servicebus::azservicebus::AzServiceBus::new(options) {
        Ok(transport) => Ok(Arc::new(transport)),
        Err(error) => Err(refused(name, &error)),
    }
}

#[cfg(not(feature = "azservicebus"))]
fn alternative(name: &str, _: sprag_servicebus::Config) -> Result<Arc<dyn Transport>, Failure> {
    let how = "cargo build --release --features azservicebus";
    Err(refused(name, &format!("`client = \"azservicebus\"` needs a build with the feature azservicebus ({how})")))
}

/// The tokens of an identity, where one stands in place of a key.
fn tokens(name: &str, namespace: &config::ServiceBus) -> Result<Option<Arc<dyn TokenSource>>, Failure> {
    let Some(credential) = &namespace.credential else { return Ok(None) };
    #[cfg(feature = "azure-identity")]
    return match sprag_servicebus::Identity::from_name(credential, &namespace.authorities) {
        Ok(identity) => Ok(Some(Arc::new(identity))),
        Err(error) => Err(refused(name, &error)),
    };
    #[cfg(not(feature = "azure-identity"))]
    Err(refused(
        name,
        &format!(
            "`credential = {credential:?}` needs a build with the feature azure-identity (cargo build --release --features azure-identity)"
        ),
    ))
}

/// Its administration.
pub(crate) fn administration(name: &str, namespace: &config::ServiceBus) -> Result<Administration, Failure> {
    let options = administration::Config {
        tokens: tokens(name, namespace)?,
        port: namespace.administration_port,
        extra_roots: namespace.authorities.clone(),
        ..administration::Config::new(namespace.connection.clone())
    };
    Administration::new(options).map_err(|error| refused(name, &error))
}

/// The endpoints that receive from a namespace.
fn endpoints<'c>(
    config: &'c Config,
    name: &'c str,
) -> impl Iterator<Item = (&'c config::Endpoint, &'c config::Remote)> {
    config.endpoints.iter().filter_map(move |endpoint| {
        let remote = endpoint.remote.as_ref().filter(|remote| remote.transport == name)?;
        Some((endpoint, remote))
    })
}

/// The entities that endpoints need on a namespace.
pub(crate) fn wanted(config: &Config, name: &str) -> Vec<Wanted> {
    endpoints(config, name)
        .flat_map(|(endpoint, remote)| {
            if remote.topology == config::Topology::Nimbus {
                return topology::wanted_nimbus(&topology::NimbusEndpoint {
                    name: endpoint.name.clone(),
                    lock_duration: remote.lock_duration,
                    max_delivery_count: remote.max_delivery_count,
                    // Who takes what it publishes is for NimBus's own provisioning.
                    forwards: Vec::new(),
                });
            }
            let source = match &remote.subscription {
                None => topology::Source::Queue(endpoint.source.clone()),
                Some(config::Subscription { topic, name, filter }) => {
                    topology::Source::Topic { topic: topic.clone(), subscription: name.clone(), filter: filter.clone() }
                }
            };
            topology::wanted(&topology::Endpoint {
                name: endpoint.name.clone(),
                source,
                requires_session: remote.requires_session,
                lock_duration: remote.lock_duration,
                max_delivery_count: remote.max_delivery_count,
            })
        })
        .collect()
}

/// What is wrong with the entities of a namespace. An error of the administration says nothing about them.
pub(crate) async fn problems(
    config: &Config,
    name: &str,
    namespace: &config::ServiceBus,
) -> Result<Result<Vec<Problem>, administration::Error>, Failure> {
    let administration = administration(name, namespace)?;
    let wanted = wanted(config, name);
    let current = topology::current(&administration, &wanted).await;
    Ok(current.map(|current| topology::check(&wanted, &current)))
}
