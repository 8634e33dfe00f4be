//! TLS with a server, in the modes of libpq.

use std::sync::Arc;

use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use crate::trust::{self, NoTrust, Unchecked};

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
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Unchecked::new(provider)))
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
    trust::roots(&address.roots).map_err(|problem| match problem {
        NoTrust::File { file, problem } => OpenError::Roots { file, problem },
        NoTrust::Nobody => OpenError::NoRoots,
    })
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
