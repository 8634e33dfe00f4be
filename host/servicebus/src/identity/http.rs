//! The HTTP client of the credentials.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use azure_core::{
    error::{Error, ErrorKind},
    http::{AsyncRawResponse, Body, HttpClient, Method, Request, StatusCode, headers::Headers},
};
use tokio_rustls::rustls::crypto::ring;
use ureq::{
    Agent, http,
    tls::{Certificate, RootCerts, TlsConfig, TlsProvider},
};

use crate::{BuildError, tls};

/// How long one request for a token may take.
const LIMIT: Duration = Duration::from_secs(30);
/// An answer with a token has some kilobytes.
const MOST_BYTES: u64 = 1 << 20;

pub(super) struct Http {
    agent: Agent,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Http")
    }
}

impl Http {
    pub(super) fn new(extra_roots: &[PathBuf]) -> Result<Self, BuildError> {
        let authorities = tls::authorities(extra_roots)?;
        let certificates: Vec<_> = authorities.iter().map(|it| Certificate::from_der(it).to_owned()).collect();
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .root_certs(RootCerts::new_with_certs(&certificates))
            .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
            .build();
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            // Nothing is shown to whoever an answer names.
            .max_redirects(0)
            .user_agent("sprag")
            .timeout_global(Some(LIMIT))
            .tls_config(tls)
            .build()
            .new_agent();
        Ok(Self { agent })
    }
}

#[async_trait]
impl HttpClient for Http {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
        let built = built(request)?;
        let agent = self.agent.clone();
        let answered = tokio::task::spawn_blocking(move || {
            // Only a managed identity is asked in the clear: on this machine or beside it, where no proxy leads.
            let built = match built.uri().scheme_str() {
                Some("http") => agent.configure_request(built).proxy(None).build(),
                _ => built,
            };
            let mut response = agent.run(built)?;
            let body = response.body_mut().with_config().limit(MOST_BYTES).read_to_vec()?;
            Ok::<_, ureq::Error>((response.status().as_u16(), response.headers().clone(), body))
        });
        let failed = |text: String| Error::with_message(ErrorKind::Io, text);
        let (status, headers, body) = answered
            .await
            .map_err(|error| failed(format!("the request for a token did not end: {error}")))?
            .map_err(|error| failed(format!("no answer to the request for a token: {error}")))?;
        let mut all = Headers::new();
        for (name, value) in &headers {
            // What is no text is of no use to a credential.
            if let Ok(value) = value.to_str() {
                all.insert(name.as_str().to_owned(), value.to_owned());
            }
        }
        Ok(AsyncRawResponse::from_bytes(StatusCode::from(status), all, body))
    }
}

fn built(request: &Request) -> azure_core::Result<http::Request<Vec<u8>>> {
    let unwritten = |text: &'static str| Error::with_message(ErrorKind::Other, text);
    let method = match request.method() {
        Method::Get => http::Method::GET,
        Method::Post => http::Method::POST,
        _ => return Err(unwritten("tokens are asked for with GET and POST only")),
    };
    let Body::Bytes(body) = request.body() else {
        return Err(unwritten("a request for a token has a body of bytes"));
    };
    let mut built = http::Request::builder().method(method).uri(request.url().as_str());
    for (name, value) in request.headers().iter() {
        built = built.header(name.as_str(), value.as_str());
    }
    // The library's error could repeat what it does not take, which may be a secret.
    let built = built.body(body.to_vec());
    built.map_err(|_| unwritten("the request for a token has characters that HTTP does not take"))
}
