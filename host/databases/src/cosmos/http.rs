//! One request and its answer, over HTTP. Blocking: it runs where that is allowed.

use std::{path::PathBuf, sync::Arc};

use tokio_rustls::rustls::{
    RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use ureq::{
    Agent,
    http::{self, Uri},
    tls::{Certificate, RootCerts, TlsConfig, TlsProvider},
};

use super::options::{OpenError, Options};

/// A page of a thousand records is some hundred kilobytes; this is against being made to hold anything.
const MOST_BYTES: u64 = 16 << 20;

/// As it goes out. No `Debug`: it has a signature in it.
pub(crate) struct Sent {
    pub(crate) method: http::Method,
    pub(crate) uri: Uri,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Option<Vec<u8>>,
}

pub(crate) struct Received {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Vec<u8>,
}

#[derive(Clone)]
pub(crate) struct Http {
    agent: Agent,
}

impl Http {
    pub(crate) fn new(options: &Options) -> Result<Self, OpenError> {
        let mut builder = Agent::config_builder()
            .http_status_as_error(false)
            // Nothing is shown to whoever an answer names.
            .max_redirects(0)
            .user_agent("sprag")
            // Every request at the same time keeps its connection for the next.
            .max_idle_connections(options.concurrency)
            .max_idle_connections_per_host(options.concurrency)
            .timeout_global(Some(options.request_timeout));
        builder = match options.account.plain {
            // An emulator is on this machine, where no proxy leads.
            true => builder.proxy(None),
            false => builder.https_only(true).tls_config(tls(&options.extra_roots)?),
        };
        Ok(Self { agent: builder.build().new_agent() })
    }

    pub(crate) fn run(&self, sent: Sent) -> Result<Received, ureq::Error> {
        let mut built = http::Request::builder().method(sent.method).uri(sent.uri);
        for (name, value) in &sent.headers {
            built = built.header(*name, value);
        }
        let mut response = match sent.body {
            Some(body) => self.agent.run(built.body(body)?)?,
            None => self.agent.run(built.body(())?)?,
        };
        let body = response.body_mut().with_config().limit(MOST_BYTES).read_to_vec()?;
        Ok(Received { status: response.status().as_u16(), headers: response.headers().clone(), body })
    }
}

fn tls(extra_roots: &[PathBuf]) -> Result<TlsConfig, OpenError> {
    let certificates: Vec<_> =
        authorities(extra_roots)?.iter().map(|it| Certificate::from_der(it).to_owned()).collect();
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::new_with_certs(&certificates))
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .build())
}

/// The platform's authorities, and those in these files (PEM). Platforms have some that rustls does not take; the others do.
fn authorities(extra: &[PathBuf]) -> Result<Vec<CertificateDer<'static>>, OpenError> {
    let mut taken = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "some of the platform's certificates cannot be read");
    }
    let mut all: Vec<_> = found.certs.into_iter().filter(|it| taken.add(it.clone()).is_ok()).collect();
    for file in extra {
        let unreadable = |problem: String| OpenError::Roots { file: file.clone(), problem };
        let before = all.len();
        for certificate in CertificateDer::pem_file_iter(file).map_err(|error| unreadable(error.to_string()))? {
            let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
            taken.add(certificate.clone()).map_err(|error| unreadable(error.to_string()))?;
            all.push(certificate);
        }
        if all.len() == before {
            return Err(unreadable("there is no certificate in it".to_owned()));
        }
    }
    if all.is_empty() { Err(OpenError::NoRoots) } else { Ok(all) }
}
