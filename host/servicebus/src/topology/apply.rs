//! Makes what is there what is wanted, in place.
//!
//! Read, compare, carry out, and look again until nothing is left: so it may be run at any time, by several hosts at once, and again after it was
//! interrupted anywhere. Whoever comes second finds the first one's work (a conflict), and looks again instead of failing.

use std::time::Duration;

use super::{Change, Conflict, Current, Difference, Leftover, Wanted, current, diff};
use crate::administration::{Administration, Error, Path};

/// Enough for hosts that make the same entities at the same time: each of them moves on with every round.
const ROUNDS: u32 = 10;
/// After a conflict, times the round: the other one's work takes its time.
const PAUSE: Duration = Duration::from_millis(200);

/// What happens, as it happens.
#[derive(Debug)]
pub enum Progress<'a> {
    Doing(&'a Change),
    Done(&'a Change),
    /// Somebody else was there first. What is there is looked at again.
    LookingAgain {
        change: &'a Change,
        error: &'a Error,
    },
}

/// What was done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// In this order.
    pub done: Vec<Change>,
    /// Entities that were as they have to be.
    pub untouched: Vec<Path>,
    pub left: Vec<Leftover>,
}

/// Why it was not done. What was done until then is in the report, and stays.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Nothing was changed, unless it came up in between.
    #[error("{} cannot be changed in place: {}", entities(conflicts.len()), list(conflicts))]
    Conflicts { conflicts: Vec<Conflict>, report: Box<Report> },
    #[error("{}{error}", change.as_ref().map_or_else(String::new, |change| format!("{change}: ")))]
    Administration { change: Option<Box<Change>>, error: Error, report: Box<Report> },
    #[error(
        "{change}: the namespace took it, and shows again what was there before: either it does not know the setting, or another host \
         is configured otherwise and applies its own"
    )]
    NotKept { change: Box<Change>, report: Box<Report> },
    #[error(
        "after {ROUNDS} rounds others still change the same entities, and {change} is left: run it again when they are done"
    )]
    Unsettled { change: Box<Change>, report: Box<Report> },
}

impl ApplyError {
    pub fn report(&self) -> &Report {
        match self {
            Self::Conflicts { report, .. }
            | Self::Administration { report, .. }
            | Self::NotKept { report, .. }
            | Self::Unsettled { report, .. } => report,
        }
    }
}

fn entities(count: usize) -> String {
    if count == 1 { "one setting".to_owned() } else { format!("{count} settings") }
}

fn list(conflicts: &[Conflict]) -> String {
    conflicts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Carries out what [`diff`] says. Nothing is deleted. With a conflict nothing is begun.
///
/// Each change is whole when it has been carried out, so it may be dropped at any point and run again.
pub async fn apply(
    administration: &Administration,
    wanted: &[Wanted],
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Result<Report, ApplyError> {
    let mut report = Report::default();
    let mut round = 0;
    loop {
        let now = match current(administration, wanted).await {
            Ok(now) => now,
            Err(error) => return Err(ApplyError::Administration { change: None, error, report: Box::new(report) }),
        };
        let Difference { changes, conflicts, left } = diff(wanted, &now);
        report.left = left;
        if !conflicts.is_empty() {
            return Err(ApplyError::Conflicts { conflicts, report: Box::new(report) });
        }
        let Some(first) = changes.first() else {
            report.untouched = untouched(wanted, &now, &report.done);
            return Ok(report);
        };
        if let Some(again) = changes.iter().find(|change| report.done.contains(change)) {
            return Err(ApplyError::NotKept { change: Box::new(again.clone()), report: Box::new(report) });
        }
        if round == ROUNDS {
            return Err(ApplyError::Unsettled { change: Box::new(first.clone()), report: Box::new(report) });
        }
        round += 1;
        for change in changes {
            progress(Progress::Doing(&change));
            match carry_out(administration, &change).await {
                Ok(()) => {
                    progress(Progress::Done(&change));
                    report.done.push(change);
                }
                // Also when somebody takes away what was just there: the next look says what has to be made.
                Err(error) if error.is_conflict() || error.is_not_found() => {
                    progress(Progress::LookingAgain { change: &change, error: &error });
                    tokio::time::sleep(PAUSE * round).await;
                    break;
                }
                Err(error) => {
                    let change = Some(Box::new(change));
                    return Err(ApplyError::Administration { change, error, report: Box::new(report) });
                }
            }
        }
    }
}

async fn carry_out(administration: &Administration, change: &Change) -> Result<(), Error> {
    match change {
        Change::Create { path, settings, rule } => administration.create(path, settings, rule.as_ref()).await.map(drop),
        Change::Update { path, settings } => {
            let settings: Vec<_> = settings.iter().map(|changed| changed.to.clone()).collect();
            administration.update(path, &settings).await.map(drop)
        }
        Change::CreateRule { path, rule } => administration.create_rule(path, rule).await,
        Change::UpdateRule { path, to, .. } => administration.update_rule(path, to).await,
    }
}

fn untouched(wanted: &[Wanted], now: &Current, done: &[Change]) -> Vec<Path> {
    let mut all: Vec<Path> = Vec::new();
    for Wanted { path, .. } in wanted {
        let touched = done.iter().any(|change| change.path().is(path)) || all.iter().any(|known| known.is(path));
        if !touched && now.get(path).is_some() {
            all.push(path.clone());
        }
    }
    all
}
