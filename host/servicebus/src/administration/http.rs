//! One request and its answer, over HTTP. Blocking: it runs where that is allowed.

use std::{sync::Arc, time::Duration};

use tokio_rustls::rustls::crypto::ring;
use ureq::{
    Agent,
    http::{self, header},
    tls::{Certificate, RootCerts, TlsConfig, TlsProvider},
};

use super::{Config, error::Error};
use crate::{BuildError, tls};

/// A page of a hundred descriptions is some hundred kilobytes; this is against being made to hold anything.
const MOST_BYTES: u64 = 16 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Put,
}

/// No `Debug`: it has tokens in it.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) method: Method,
    /// Behind the host, encoded, with its query.
    pub(super) target: String,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: String,
}

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) retry_after: Option<Duration>,
    pub(super) body: String,
}

pub(super) struct Http {
    agent: Agent,
    base: String,
    limit: Duration,
}

impl Http {
    pub(super) fn new(config: &Config) -> Result<Self, BuildError> {
        let connection = &config.connection;
        let (scheme, port) = if connection.plain { ("http", PLAIN_PORT) } else { ("https", TLS_PORT) };
        let port = config.port.unwrap_or(port);
        // An address of IPv6 stands in brackets.
        let base = match connection.host.contains(':') {
            true => format!("{scheme}://[{}]:{port}", connection.host),
            false => format!("{scheme}://{}:{port}", connection.host),
        };
        let mut builder = Agent::config_builder()
            .http_status_as_error(false)
            // Nothing is shown to whoever an answer names.
            .max_redirects(0)
            .user_agent("sprag")
            .timeout_global(Some(config.request_timeout));
        builder = match connection.plain {
            // A development broker is on this machine or beside it.
            true => builder.proxy(None),
            false => builder.https_only(true).tls_config(tls_config(config)?),
        };
        Ok(Self { agent: builder.build().new_agent(), base, limit: config.request_timeout })
    }

    pub(super) fn run(&self, request: Request) -> Result<Answer, Error> {
        let failed = |error: ureq::Error| match error {
            ureq::Error::Timeout(_) => Error::Timeout { address: self.base.clone(), limit: self.limit },
            other => Error::Unreachable { address: self.base.clone(), problem: other.to_string() },
        };
        let method = match request.method {
            Method::Get => http::Method::GET,
            Method::Put => http::Method::PUT,
        };
        let mut built = http::Request::builder().method(method).uri(format!("{}{}", self.base, request.target));
        for (name, value) in &request.headers {
            built = built.header(*name, value);
        }
        let unbuilt = |_: http::Error| {
            let problem =
                "the request cannot be written: a name or the credential has characters that HTTP does not take";
            Error::Unreachable { address: self.base.clone(), problem: problem.to_owned() }
        };
        let mut response = match request.method {
            Method::Get => self.agent.run(built.body(()).map_err(unbuilt)?),
            Method::Put => self.agent.run(built.body(request.body).map_err(unbuilt)?),
        }
        .map_err(failed)?;
        let retry_after = response.headers().get(header::RETRY_AFTER).and_then(|it| it.to_str().ok());
        // A date instead of seconds is rare, and then the usual pause does.
        let retry_after = retry_after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(MOST_BYTES).read_to_string().map_err(failed)?;
        Ok(Answer { status, retry_after, body })
    }
}

/// The port of the real service, and the emulator's.
const TLS_PORT: u16 = 443;
const PLAIN_PORT: u16 = 5300;

fn tls_config(config: &Config) -> Result<TlsConfig, BuildError> {
    let authorities = tls::authorities(&config.extra_roots)?;
    let certificates: Vec<_> = authorities.iter().map(|it| Certificate::from_der(it).to_owned()).collect();
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::new_with_certs(&certificates))
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .build())
}
