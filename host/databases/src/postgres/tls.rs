//! TLS with a server, in the modes of libpq.

use std::sync::Arc;

use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};

use super::{
    address::{Address, TlsMode},
    options::OpenError,
};

/// What opens connections in the address's mode. For [`TlsMode::Disable`] too: the driver wants one, and then does not use it.
pub(crate) fn connector(address: &Address) -> Result<MakeRustlsConnect, OpenError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| OpenError::Options(error.to_string()))?;
    let config = match address.mode {
        TlsMode::Disable | TlsMode::Prefer | TlsMode::Require => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Unchecked(provider)))
        }
        TlsMode::VerifyCa => {
            let whole = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(address)?), provider)
                .build()
                .map_err(|error| OpenError::Options(error.to_string()))?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyName(whole)))
        }
        TlsMode::VerifyFull => builder.with_root_certificates(roots(address)?),
    };
    Ok(MakeRustlsConnect::new(config.with_no_client_auth()))
}

/// The platform's authorities and those that were named.
fn roots(address: &Address) -> Result<RootCertStore, OpenError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "some of the platform's certificates cannot be read");
    }
    // Platforms have some that rustls does not take; the others do.
    let (_taken, _passed_over) = roots.add_parsable_certificates(found.certs);
    for file in &address.roots {
        let unreadable = |problem: String| OpenError::Roots { file: file.clone(), problem };
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
    if roots.is_empty() { Err(OpenError::NoRoots) } else { Ok(roots) }
}

/// Takes any certificate, as libpq does in modes that only ask for encryption. Signatures of the handshake are checked all the same.
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

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

/// Checks where a certificate comes from, and not whose it is.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // The name is looked at last: whoever is told that it does not fit has passed the rest.
        match self.0.verify_server_cert(certificate, between, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
