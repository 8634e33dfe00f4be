//! How a verb ends.

use std::process::ExitCode;

use sprag_console::problem::Problem;

use crate::output;

/// Exit codes, as spec 9 has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Done = 0,
    /// Findings of `check`, an action that was refused, an unclean stop.
    Failed = 1,
    Usage = 2,
    /// Another process holds the data folder.
    DataHeld = 73,
    /// The host cannot be reached, or it is not done yet: try again.
    TryAgain = 75,
    Configuration = 78,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// Why a verb could not do what it was asked.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub exit: Exit,
    pub text: String,
    pub code: Option<String>,
    /// What to do about it.
    pub help: Option<String>,
}

pub(crate) type Outcome = Result<Exit, Failure>;

impl Failure {
    pub(crate) fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, text: text.into(), code: None, help: None }
    }

    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self::new(Exit::Failed, text)
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(Exit::Usage, text)
    }

    pub(crate) fn code(mut self, code: &str) -> Self {
        self.code = Some(code.to_owned());
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// One message on stderr.
    pub(crate) fn report(&self) {
        let error = output::ERROR;
        let code = self.code.as_ref().map(|code| format!(" [{code}]")).unwrap_or_default();
        anstream::eprintln!("{error}error:{error:#} {}{code}", self.text);
        if let Some(help) = &self.help {
            anstream::eprintln!("  {help}");
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let exit = match problem.status {
            300 | 400 | 422 => Exit::Usage,
            503 => Exit::TryAgain,
            _ => Exit::Failed,
        };
        let help = match problem.status {
            300 => Some(format!("add --endpoint with one of: {}", problem.choices.join(", "))),
            401 => Some("the token comes from .sprag/host.json, --token or SPRAG_TOKEN".to_owned()),
            _ => None,
        };
        Self { exit, text: problem.detail, code: Some(problem.code), help }
    }
}
