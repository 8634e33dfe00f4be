//! What is wrong with the entities that are there, told to an operator. Pure: for `sprag check`, and before a host starts.

use super::{Change, Current, Difference, Leftover, Wanted, diff, reach};
use crate::administration::{Filter, Path, Setting, Status};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing.
    Warning,
    /// An endpoint must not be served so.
    Error,
}

/// One thing that is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub severity: Severity,
    pub path: Path,
    pub text: String,
    pub remedy: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}. {}", self.path, self.text, self.remedy)
    }
}

const APPLY: &str = "Run `sprag topology apply`.";

/// All that is wrong, the worst first. `wanted` is what [`super::wanted`] or [`super::wanted_nimbus`] says of the endpoints.
pub fn check(wanted: &[Wanted], current: &Current) -> Vec<Problem> {
    let Difference { changes, conflicts, left } = diff(wanted, current);
    let mut all = Vec::new();
    for conflict in conflicts {
        let (path, text, remedy) = (conflict.path, conflict.reason, format!("{}.", conflict.remedy));
        all.push(Problem { severity: Severity::Error, path, text, remedy });
    }
    for change in changes {
        of_change(change, &mut all);
    }
    all.extend(wanted.iter().filter_map(|wanted| of_status(&wanted.path, current)));
    let reached = reach::reached(wanted, current);
    let is_told = |left: &Leftover| {
        let named = format!("\"{}\"", left.rule);
        reached.iter().any(|problem| problem.path.is(&left.path) && problem.text.contains(&named))
    };
    all.extend(left.into_iter().filter(|left| !is_told(left)).map(of_leftover));
    all.extend(reached);
    all.sort_by_key(|problem| std::cmp::Reverse(problem.severity));
    let mut told: Vec<Problem> = Vec::new();
    for problem in all {
        if !told.contains(&problem) {
            told.push(problem);
        }
    }
    told
}

fn of_change(change: Change, all: &mut Vec<Problem>) {
    let mut error = |path: Path, text: String| {
        all.push(Problem { severity: Severity::Error, path, text, remedy: APPLY.to_owned() });
    };
    match change {
        Change::Create { path, .. } => {
            let what_for = match &path {
                path if is_parked(path) => ", and without it a blocked session has nowhere to put what waits (P19)",
                Path::Subscription { .. } => ", and without it nothing that is published arrives",
                _ => "",
            };
            error(path, format!("it is not there{what_for}"));
        }
        Change::CreateRule { path, rule } => error(path, format!("it has no rule {} ({})", rule.name, rule.filter)),
        Change::UpdateRule { path, from, to } => {
            error(
                path,
                format!(
                    "its rule says \"{from}\", and it should say \"{to}\": other messages arrive than are meant to"
                ),
            );
        }
        Change::Update { path, settings } => {
            for changed in settings {
                all.push(of_setting(&path, &changed.from, &changed.to));
            }
        }
    }
}

fn of_setting(path: &Path, is: &Setting, wanted: &Setting) -> Problem {
    use Severity::{Error, Warning};
    let differs = format!("{is} on the namespace, {} in the configuration", wanted.value());
    let or_configure =
        format!("Run `sprag topology apply`, or write {} = {} into the configuration.", is.name(), shown(is));
    let (severity, text, remedy) = match (is, wanted) {
        (Setting::ForwardTo(_), Setting::ForwardTo(Some(target))) => (
            Error,
            format!(
                "it does not forward into {target} ({is}): retries and parked messages of the endpoint could reach other subscribers (P21)"
            ),
            APPLY.to_owned(),
        ),
        (Setting::ForwardTo(Some(target)), _) => (
            Error,
            format!("it forwards to {target}, and so holds nothing that its endpoint could receive (P21)"),
            APPLY.to_owned(),
        ),
        // Whoever counts with more than the broker gives loses locks and deliveries that it still believes in.
        (Setting::LockDuration(is), Setting::LockDuration(wanted)) => {
            let severity = if is < wanted { Error } else { Warning };
            (severity, format!("{differs}; locks are renewed by the configured one"), or_configure)
        }
        (Setting::MaxDeliveryCount(is), Setting::MaxDeliveryCount(wanted)) => {
            let severity = if is < wanted { Error } else { Warning };
            let parked = *wanted == super::MOST_DELIVERIES;
            let remedy = if parked { APPLY.to_owned() } else { or_configure };
            (severity, format!("{differs}; the last delivery is told by the configured one (P22)"), remedy)
        }
        // A topic's own holds for whatever comes through it.
        (Setting::TimeToLive(_), _) if is_parked(path) || matches!(path, Path::Topic(_)) => {
            (Error, format!("{is}: parked messages expire before their session is resolved (P19)"), APPLY.to_owned())
        }
        (Setting::TimeToLive(_), _) => (Warning, format!("{is}: what waits that long expires"), APPLY.to_owned()),
        (Setting::DeadLetterOnExpiry(_), _) => {
            (Error, "what expires is dropped, where nobody sees it (P19)".to_owned(), APPLY.to_owned())
        }
        (Setting::AutoDeleteOnIdle(_), _) => {
            (Error, format!("{is}: it is removed with all it holds when nobody uses it for so long"), APPLY.to_owned())
        }
        _ => (Warning, differs, APPLY.to_owned()),
    };
    Problem { severity, path: path.clone(), text, remedy }
}

/// As `sprag.toml` writes it.
fn shown(setting: &Setting) -> String {
    match setting {
        Setting::LockDuration(_) => format!("\"{}\"", setting.value()),
        other => other.value(),
    }
}

fn is_parked(path: &Path) -> bool {
    match path {
        Path::Queue(name) => name.as_str().ends_with(crate::address::PARKED),
        Path::Subscription { name, .. } => name == crate::way::DEFERRED,
        Path::Topic(_) => false,
    }
}

fn of_status(path: &Path, current: &Current) -> Option<Problem> {
    let found = current.get(path).filter(|found| found.entity.path.is(path))?;
    let (severity, what) = match found.entity.status {
        Status::Active => return None,
        Status::Changing => (Severity::Warning, "the namespace is making it or changing it at this moment"),
        Status::Disabled => (Severity::Error, "it is disabled: nothing can be sent to it or received from it"),
        Status::SendDisabled => (Severity::Error, "nothing can be sent to it (its status is SendDisabled)"),
        Status::ReceiveDisabled => (Severity::Error, "nothing can be received from it (its status is ReceiveDisabled)"),
    };
    let remedy = match severity {
        Severity::Warning => "Look again in a minute.",
        // Somebody did that, and had a reason.
        Severity::Error => {
            "Set its status to Active in the portal when that is meant to end; `topology apply` leaves it."
        }
    };
    Some(Problem { severity, path: path.clone(), text: what.to_owned(), remedy: remedy.to_owned() })
}

/// A rule beside ours lets more in. Among parked messages, what lets everything in would be taken for parked.
fn of_leftover(left: Leftover) -> Problem {
    let severity = match left.rule.filter {
        Filter::All if is_parked(&left.path) => Severity::Error,
        _ => Severity::Warning,
    };
    let text = format!("it has the rule \"{}\", which is not of this configuration and lets more in", left.rule);
    let remedy =
        format!("Remove the rule {} in the portal if nobody needs it; `topology apply` leaves it.", left.rule.name);
    Problem { severity, path: left.path, text, remedy }
}

#[cfg(test)]
mod tests;
