//! Speaks to a running host over its API.

use std::{path::PathBuf, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use sprag_console::problem::Problem;

use crate::{
    failure::{Exit, Failure},
    hostfile::{self, HostFile},
};

/// Which host to speak to.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct HostArgs {
    /// Address of the host, such as 127.0.0.1:8080 [default: from .sprag/host.json, here or above]
    #[arg(long, env = "SPRAG_HOST", value_name = "ADDRESS", help_heading = "Host")]
    pub host: Option<String>,
    /// Token of the host [default: from .sprag/host.json]. Better in SPRAG_TOKEN than here, where others can see it
    #[arg(long, env = "SPRAG_TOKEN", value_name = "TOKEN", hide_env_values = true, help_heading = "Host")]
    pub token: Option<String>,
    /// Folder from which .sprag/host.json is looked for, upwards
    #[arg(long, value_name = "DIR", default_value = ".", help_heading = "Host")]
    pub dir: PathBuf,
}

pub(crate) struct Client {
    agent: ureq::Agent,
    base: String,
    token: String,
    /// For messages: where the address comes from.
    from: String,
}

/// Longer than any answer takes; a long poll asks for at most a minute.
const TIMEOUT: Duration = Duration::from_secs(90);
/// Largest answer that is read.
const LARGEST: u64 = 256 << 20;

impl Client {
    pub(crate) fn connect(args: &HostArgs) -> Result<Self, Failure> {
        let found = HostFile::find(&args.dir);
        let (base, from) = match (&args.host, &found) {
            (Some(host), _) => (url(host), "--host".to_owned()),
            (None, Ok(Some((path, file)))) => (file.address.clone(), path.display().to_string()),
            (None, Ok(None)) => {
                return Err(Failure::new(
                    Exit::TryAgain,
                    "no host runs here: there is no .sprag/host.json in this folder or above",
                )
                .code("SPR0301")
                .help("start one with `sprag dev`, go to its folder, or name it with --host"));
            }
            (None, Err(error)) => {
                return Err(
                    Failure::new(Exit::TryAgain, format!("cannot read where the host is: {error}")).code("SPR0301")
                );
            }
        };
        let token = match (&args.token, found) {
            (Some(token), _) => token.clone(),
            (None, Ok(Some((_, file)))) if file.address == base => file.token,
            (None, _) => {
                return Err(Failure::usage(format!("there is no token for {base}"))
                    .code("SPR0302")
                    .help("set SPRAG_TOKEN, or go to the host's folder, where .sprag/host.json has it"));
            }
        };
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            .proxy(None)
            .build()
            .into();
        Ok(Self { agent, base, token, from })
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, String)]) -> Result<T, Failure> {
        let request = self.agent.get(self.url(path, query)).header("authorization", format!("Bearer {}", self.token));
        self.answer(request.call())
    }

    pub(crate) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        let request = self
            .agent
            .post(self.url(path, query))
            .header("authorization", format!("Bearer {}", self.token))
            .header("idempotency-key", hostfile::random_hex(16));
        self.answer(request.send_json(body))
    }

    fn answer<T: DeserializeOwned>(
        &self,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<T, Failure> {
        let mut response = answer.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        let text = response
            .body_mut()
            .with_config()
            .limit(LARGEST)
            .read_to_string()
            .map_err(|error| self.unreachable(&error))?;
        if status.is_success() {
            return serde_json::from_str(&text).map_err(|error| {
                Failure::failed(format!(
                    "the host at {} answers what this version does not understand: {error}",
                    self.base
                ))
                .code("SPR0303")
            });
        }
        match serde_json::from_str::<Problem>(&text) {
            Ok(problem) => Err(problem.into()),
            Err(_) => Err(Failure::failed(format!("what answers at {} is not a Sprag host ({status})", self.base))
                .code("SPR0303")),
        }
    }

    fn unreachable(&self, error: &ureq::Error) -> Failure {
        let text = format!("no host answers at {} (from {}): {error}", self.base, self.from);
        Failure::new(Exit::TryAgain, text).code("SPR0301").help("is it running? `sprag dev` starts one")
    }

    fn url(&self, path: &str, query: &[(&str, String)]) -> String {
        let mut url = format!("{}/api/{path}", self.base);
        for (index, (name, value)) in query.iter().enumerate() {
            url.push(if index == 0 { '?' } else { '&' });
            url.push_str(name);
            url.push('=');
            url.push_str(&encode(value));
        }
        url
    }
}

fn url(host: &str) -> String {
    let host = host.trim_end_matches('/');
    if host.contains("://") { host.to_owned() } else { format!("http://{host}") }
}

/// A text as one part of a path or query.
pub(crate) fn encode(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::with_capacity(text.len()), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
        encoded
    })
}
