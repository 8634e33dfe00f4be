//! TLS with a server, as the address asks for it.

use std::sync::Arc;

use tokio_rustls::rustls::{ClientConfig, crypto::ring, pki_types::ServerName, version::TLS12};

use crate::trust::{self, NoTrust, Unchecked};

use super::{address::Address, options::OpenError, wire::Tls};

/// None: nothing is encrypted.
pub(crate) fn of(address: &Address) -> Result<Option<Tls>, OpenError> {
    if !address.encrypt {
        return Ok(None);
    }
    let options = |error: &dyn std::fmt::Display| OpenError::Options(error.to_string());
    let provider = Arc::new(ring::default_provider());
    // The handshake inside the greeting's packets is TLS 1.2: 1.3 sends more after its end, which neither side would know how to wrap.
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS12])
        .map_err(|error| options(&error))?;
    let builder = if address.trust_any {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Unchecked::new(provider)))
    } else {
        builder.with_root_certificates(trust::roots(&address.roots).map_err(|problem| match problem {
            NoTrust::File { file, problem } => OpenError::Roots { file, problem },
            NoTrust::Nobody => OpenError::NoRoots,
        })?)
    };
    let name = address.certificate_name.clone().unwrap_or_else(|| address.host.clone());
    let name = ServerName::try_from(name).map_err(|_| {
        OpenError::Options("the server's name in the address cannot be that of a certificate".to_owned())
    })?;
    Ok(Some(Tls { config: Arc::new(builder.with_no_client_auth()), name }))
}
