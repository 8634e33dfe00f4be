//! TLS with a namespace: rustls, with the platform's authorities.

use std::{io, path::PathBuf, sync::Arc};

use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        self, CertificateError, ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

use crate::{BuildError, config::Config};

pub(crate) struct Tls(TlsConnector);

/// The platform's authorities, and those in these files (PEM). Platforms have some that rustls does not take; the others do.
pub(crate) fn authorities(extra: &[PathBuf]) -> Result<Vec<CertificateDer<'static>>, BuildError> {
    let mut taken = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "some of the platform's certificates cannot be read");
    }
    let mut all: Vec<_> = found.certs.into_iter().filter(|it| taken.add(it.clone()).is_ok()).collect();
    for file in extra {
        let unreadable = |problem: String| BuildError::Roots { file: file.clone(), problem };
        let read = CertificateDer::pem_file_iter(file).map_err(|error| unreadable(error.to_string()))?;
        let before = all.len();
        for certificate in read {
            let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
            taken.add(certificate.clone()).map_err(|error| unreadable(error.to_string()))?;
            all.push(certificate);
        }
        if all.len() == before {
            return Err(unreadable("there is no certificate in it".to_owned()));
        }
    }
    if all.is_empty() { Err(BuildError::NoRoots) } else { Ok(all) }
}

impl Tls {
    pub(crate) fn new(config: &Config) -> Result<Self, BuildError> {
        let mut roots = RootCertStore::empty();
        // Each of them was taken before.
        let (_taken, _passed_over) = roots.add_parsable_certificates(authorities(&config.extra_roots)?);
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| BuildError::Tls(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    pub(crate) async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        self.0.connect(name, stream).await.map_err(|error| match advice(&error) {
            Some(advice) => io::Error::other(format!("{error}: {advice}")),
            None => error,
        })
    }
}

/// What to do about a certificate that is not taken.
fn advice(error: &io::Error) -> Option<&'static str> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    match error {
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => Some("it is for another host than the one in the connection string"),
        rustls::Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => Some("its time is not now, by this machine's clock"),
        // An authority of the same name is no better than none.
        rustls::Error::InvalidCertificate(_) => {
            Some("no authority of this machine's and none of the extra roots has signed it")
        }
        _ => None,
    }
}
