//! Identities of Microsoft Entra as a source of tokens: a client with a secret, a workload of Kubernetes, a managed identity of the platform.
//!
//! `azure_identity` knows how each asks for its tokens, and keeps them until shortly before they end. What is here says which identity it is, and what
//! the answers mean. It speaks through `http`: the same client and the same TLS as administration.

mod http;
#[cfg(test)]
mod tests;

use std::{env, error::Error as _, fmt, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use azure_core::{
    credentials::{Secret, TokenCredential},
    error::Error as AzureError,
    http::{ClientOptions, HttpClient, StatusCode, Transport},
};
use azure_identity::{
    ClientAssertionCredentialOptions, ClientSecretCredential, ClientSecretCredentialOptions, ManagedIdentityCredential,
    ManagedIdentityCredentialOptions, UserAssignedId, WorkloadIdentityCredential, WorkloadIdentityCredentialOptions,
};
use sprag_core::time::Timestamp;

use crate::{
    BuildError, clock,
    token::{Token, TokenError, TokenSource},
};
use http::Http;

/// What the tokens are for: every namespace.
const SCOPE: &str = "https://servicebus.azure.net/.default";
/// As `$cbs` calls tokens of Entra.
const KIND: &str = "jwt";
/// How long a token may be waited for, with all the tries that its credential makes.
const LIMIT: Duration = Duration::from_secs(60);

const TENANT: &str = "AZURE_TENANT_ID";
const CLIENT: &str = "AZURE_CLIENT_ID";
const SECRET: &str = "AZURE_CLIENT_SECRET";
const TOKEN_FILE: &str = "AZURE_FEDERATED_TOKEN_FILE";

/// Why an identity cannot be used. It never repeats a secret.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("{0:?} is no identity; there are {names}", names = Identity::NAMES.join(", "))]
    NoSuch(String),
    #[error("{variable} is not set, which the identity {identity:?} needs")]
    NotSet { identity: &'static str, variable: &'static str },
    #[error("the identity cannot be used: {0}")]
    Unusable(String),
    #[error(transparent)]
    Tls(#[from] BuildError),
}

/// An identity, as a source of tokens for [`crate::Config::tokens`].
#[derive(Clone)]
pub struct Identity {
    credential: Arc<dyn TokenCredential>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity")
    }
}

impl Identity {
    /// A client (an application) with its secret: `AZURE_TENANT_ID`, `AZURE_CLIENT_ID` and `AZURE_CLIENT_SECRET` of the environment.
    pub const ENVIRONMENT: &str = "environment";
    /// A workload of Kubernetes: `AZURE_TENANT_ID`, `AZURE_CLIENT_ID` and `AZURE_FEDERATED_TOKEN_FILE`, which its cluster sets.
    pub const WORKLOAD: &str = "workload-identity";
    /// What the platform gives this machine or app; with `AZURE_CLIENT_ID`, that one of those assigned to it.
    pub const MANAGED: &str = "managed-identity";
    /// What [`Identity::from_name`] takes.
    pub const NAMES: [&str; 3] = [Self::ENVIRONMENT, Self::WORKLOAD, Self::MANAGED];

    /// The identity that a configuration names. Nothing is asked for yet. The extra roots are as in [`crate::Config::extra_roots`].
    pub fn from_name(name: &str, extra_roots: &[PathBuf]) -> Result<Self, IdentityError> {
        Self::described(name, |variable| env::var(variable).ok(), Arc::new(Http::new(extra_roots)?))
    }

    fn described(
        name: &str,
        environment: impl Fn(&str) -> Option<String>,
        client: Arc<dyn HttpClient>,
    ) -> Result<Self, IdentityError> {
        let set = |variable: &str| environment(variable).filter(|value| !value.trim().is_empty());
        let needed = |identity: &'static str, variable: &'static str| {
            set(variable).ok_or(IdentityError::NotSet { identity, variable })
        };
        let client_options = ClientOptions { transport: Some(Transport::new(client)), ..Default::default() };
        let credential: Result<Arc<dyn TokenCredential>, AzureError> = match name {
            Self::ENVIRONMENT => {
                let needed = |variable| needed(Self::ENVIRONMENT, variable);
                let (tenant, client, secret) = (needed(TENANT)?, needed(CLIENT)?, needed(SECRET)?);
                let options = ClientSecretCredentialOptions { client_options };
                ClientSecretCredential::new(&tenant, client, Secret::new(secret), Some(options)).map(|it| it as _)
            }
            Self::WORKLOAD => {
                let needed = |variable| needed(Self::WORKLOAD, variable);
                let options = WorkloadIdentityCredentialOptions {
                    credential_options: ClientAssertionCredentialOptions { client_options },
                    tenant_id: Some(needed(TENANT)?),
                    client_id: Some(needed(CLIENT)?),
                    token_file_path: Some(needed(TOKEN_FILE)?.into()),
                };
                WorkloadIdentityCredential::new(Some(options)).map(|it| it as _)
            }
            Self::MANAGED => {
                let user_assigned_id = set(CLIENT).map(UserAssignedId::ClientId);
                let options = ManagedIdentityCredentialOptions { user_assigned_id, client_options };
                ManagedIdentityCredential::new(Some(options)).map(|it| it as _)
            }
            other => return Err(IdentityError::NoSuch(other.to_owned())),
        };
        match credential {
            Ok(credential) => Ok(Self { credential }),
            Err(error) => Err(IdentityError::Unusable(told(&error))),
        }
    }
}

#[async_trait]
impl TokenSource for Identity {
    /// One token is good for the whole namespace: the resource does not matter.
    async fn token(&self, _audience: &str) -> Result<Token, TokenError> {
        let asked = tokio::time::timeout(LIMIT, self.credential.get_token(&[SCOPE], None)).await;
        let token = match asked {
            Ok(answer) => answer.map_err(|error| refusal(&error))?,
            Err(_elapsed) => return Err(TokenError::Unavailable(format!("none within {LIMIT:?}"))),
        };
        let expires_at = i64::try_from(token.expires_on.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX);
        let expires_at = Timestamp(expires_at);
        if expires_at <= clock::now() {
            // Shown all the same it would be due again at once.
            let text = format!("the one that was given ended at {expires_at}, by this machine's clock");
            return Err(TokenError::Unavailable(text));
        }
        Ok(Token { text: token.token.secret().to_owned(), kind: KIND, expires_at })
    }
}

/// What Entra refuses it refuses again; what did not reach it may.
fn refusal(error: &AzureError) -> TokenError {
    let text = told(error);
    match status_of(error) {
        Some(StatusCode::BadRequest | StatusCode::Unauthorized | StatusCode::Forbidden) => TokenError::Denied(text),
        _ => TokenError::Unavailable(text),
    }
}

/// The status of an answer, which is below the credential's own error.
fn status_of(error: &AzureError) -> Option<StatusCode> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(status) = error.downcast_ref::<AzureError>().and_then(AzureError::http_status) {
            return Some(status);
        }
        next = error.source();
    }
    None
}

/// What an error and its causes say, in one line: Entra writes several. Credentials repeat their causes at times.
fn told(error: &AzureError) -> String {
    let in_one_line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut all = in_one_line(error.to_string());
    let mut next = error.source();
    while let Some(cause) = next {
        let text = in_one_line(cause.to_string());
        if !all.contains(&text) {
            all = format!("{all}: {text}");
        }
        next = cause.source();
    }
    all
}
