//! Certificates.

use std::{path::Path, sync::Arc};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig, crypto,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};

use super::config::{BuildError, Tls};

pub(super) fn acceptor(tls: &Tls) -> Result<TlsAcceptor, BuildError> {
    let problem = |file: &Path, problem: String| BuildError::Tls { file: file.to_owned(), problem };
    let certificates = CertificateDer::pem_file_iter(&tls.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| problem(&tls.certificate, error.to_string()))?;
    if certificates.is_empty() {
        return Err(problem(&tls.certificate, "there is no certificate in it".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|error| problem(&tls.key, error.to_string()))?;
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, key))
        .map_err(|error| problem(&tls.certificate, error.to_string()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
