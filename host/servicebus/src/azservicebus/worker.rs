//! A client of the crate, and the thread it lives on.
//!
//! The thread has a runtime of its own without further threads: on more than one, a send of this client hangs when the broker's answer comes
//! before the client has noted what it sent (fixed in later lines of its AMQP crate, not in the one that it uses). What waits for an answer
//! from such a thread waits on a channel, and may be dropped.

use std::{thread, time::Duration};

use ::azservicebus::{
    ServiceBusClient, ServiceBusClientOptions, ServiceBusRetryOptions,
    authorization::{AzureNamedKeyCredential, AzureSasCredential},
    core::BasicRetryPolicy,
};
use tracing::debug;

use crate::{
    connection_string::{ConnectionString, Credential},
    fault::Fault,
};

use super::{fault::meant, session::Idle};

pub(super) type Client = ServiceBusClient<BasicRetryPolicy>;

const TLS_PORT: u16 = 5671;
/// The crate's calls are futures of many kilobytes within each other, which overflow the usual 2 MiB where nothing is optimised. Only what is
/// touched takes memory.
const STACK: usize = 16 << 20;

/// Makes clients, and keeps those that wait for their next session.
pub(super) struct Clients {
    connection: ConnectionString,
    /// For one call; making a client, a receiver or a sender takes several.
    pub(super) limit: Duration,
    pub(super) idle: Idle,
}

impl Clients {
    pub(super) fn new(connection: ConnectionString, limit: Duration) -> Self {
        Self { connection, limit, idle: Idle::default() }
    }

    /// On the thread that it is to live on.
    pub(super) async fn connect(&self) -> Result<Client, Fault> {
        let ConnectionString { host, port, plain, credential, .. } = &self.connection;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        // Of a connection string it would drop the port.
        let address = if !*plain && *port == TLS_PORT { host } else { format!("{host}:{port}") };
        // It does not retry: a send would be sent twice, and a session's link resumed without the session's lock.
        let retry_options =
            ServiceBusRetryOptions { max_retries: 0, try_timeout: self.limit, ..ServiceBusRetryOptions::default() };
        let options = ServiceBusClientOptions { retry_options, ..ServiceBusClientOptions::default() };
        let connected = async {
            match (credential, plain) {
                (Credential::Key { name, key }, plain) => {
                    let key = AzureNamedKeyCredential::new(name.clone(), key.clone());
                    match plain {
                        true => {
                            ServiceBusClient::unsecured().new_from_named_key_credential(address, key, options).await
                        }
                        false => ServiceBusClient::new_from_named_key_credential(address, key, options).await,
                    }
                }
                (Credential::Signature(text), plain) => {
                    let signature = AzureSasCredential::new(text.clone());
                    match plain {
                        true => {
                            ServiceBusClient::unsecured().new_from_sas_credential(address, signature, options).await
                        }
                        false => ServiceBusClient::new_from_sas_credential(address, signature, options).await,
                    }
                }
            }
        };
        within(self.limit, connected).await
    }
}

/// A call that takes too long is given up, and its client with it: whoever gets this error lets the client go.
pub(super) async fn within<T, E: std::fmt::Debug + std::fmt::Display>(
    limit: Duration,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(limit, call).await {
        Ok(result) => result.map_err(|error| meant(&error)),
        Err(_) => Err(Fault::Timeout(limit)),
    }
}

/// Runs it on a thread of its own. When it ends, everything that it left running ends too, and its connection with it.
pub(super) fn spawn<F: Future<Output = ()>>(what: &'static str, work: impl FnOnce() -> F + Send + 'static) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        // Whoever waits finds the channel closed.
        Err(error) => return tracing::error!(%error, what, "no runtime for a client `azservicebus`"),
    };
    let started = thread::Builder::new().name(what.to_owned()).stack_size(STACK).spawn(move || {
        runtime.block_on(work());
        runtime.shutdown_background();
        debug!(what, "a client `azservicebus` has ended");
    });
    if let Err(error) = started {
        tracing::error!(%error, what, "no thread for a client `azservicebus`");
    }
}

/// What a thread that has ended means to whoever asked it.
pub(super) fn gone() -> Fault {
    Fault::Gone("the client `azservicebus` has ended".to_owned())
}
