//! Whose certificates are trusted.

use std::{path::PathBuf, sync::Arc};

use tokio_rustls::rustls::{
    self, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};

/// Why there are no authorities to trust.
#[derive(Debug)]
pub(crate) enum NoTrust {
    File { file: PathBuf, problem: String },
    Nobody,
}

/// The platform's authorities and those that were named.
pub(crate) fn roots(files: &[PathBuf]) -> Result<RootCertStore, NoTrust> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "some of the platform's certificates cannot be read");
    }
    // Platforms have some that rustls does not take; the others do.
    let (_taken, _passed_over) = roots.add_parsable_certificates(found.certs);
    for file in files {
        let unreadable = |problem: String| NoTrust::File { file: file.clone(), problem };
        let mut any = false;
        for certificate in CertificateDer::pem_file_iter(file).map_err(|error| unreadable(error.to_string()))? {
            let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
            roots.add(certificate).map_err(|error| unreadable(error.to_string()))?;
            any = true;
        }
        if !any {
            return Err(unreadable("there is no certificate in it".to_owned()));
        }
    }
    if roots.is_empty() { Err(NoTrust::Nobody) } else { Ok(roots) }
}

/// Takes any certificate, for modes that only ask for encryption. Signatures of the handshake are checked all the same.
#[derive(Debug)]
pub(crate) struct Unchecked(Arc<CryptoProvider>);

impl Unchecked {
    pub(crate) fn new(provider: Arc<CryptoProvider>) -> Self {
        Self(provider)
    }
}

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
