//! Enumerations as the small numbers that stand in the file. They never change: a test holds them.

use sprag_core::{action::ActionKind, effect::HistoryKind, outcome::Outcome};

pub(crate) const COMPLETED: i64 = 1;
pub(crate) const FAILED: i64 = 2;

pub(crate) fn outcome(outcome: Outcome) -> i64 {
    match outcome {
        Outcome::Pending => 0,
        Outcome::Completed => COMPLETED,
        Outcome::Failed => FAILED,
        Outcome::Deferred => 3,
        Outcome::Skipped => 4,
        Outcome::DeadLettered => 5,
        Outcome::Unsupported => 6,
        Outcome::Handoff => 7,
    }
}

pub(crate) fn outcome_of(code: i64) -> Option<Outcome> {
    Outcome::ALL.into_iter().find(|known| outcome(*known) == code)
}

pub(crate) fn history(kind: HistoryKind) -> i64 {
    match kind {
        HistoryKind::Run => 0,
        HistoryKind::Parked => 1,
        HistoryKind::Duplicate => 2,
        HistoryKind::Decided => 3,
        HistoryKind::Action => 4,
        HistoryKind::Transient => 5,
    }
}

pub(crate) fn history_of(code: i64) -> Option<HistoryKind> {
    HistoryKind::ALL.into_iter().find(|known| history(*known) == code)
}

pub(crate) fn action(kind: ActionKind) -> i64 {
    match kind {
        ActionKind::Resubmit => 0,
        ActionKind::Skip => 1,
        ActionKind::HandoffComplete => 2,
        ActionKind::HandoffFail => 3,
        ActionKind::SkipSession => 4,
    }
}

pub(crate) fn action_of(code: i64) -> Option<ActionKind> {
    ActionKind::ALL.into_iter().find(|known| action(*known) == code)
}

/// The outcomes after which nothing but a resubmission changes an event, for SQL.
pub(crate) const FINAL: &str = "(1, 4, 5, 6)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_stay() {
        assert_eq!(Outcome::ALL.map(outcome), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(Outcome::ALL.into_iter().all(|known| outcome_of(outcome(known)) == Some(known)));
        assert_eq!(HistoryKind::ALL.map(history), [0, 1, 2, 3, 4, 5]);
        assert!(HistoryKind::ALL.into_iter().all(|known| history_of(history(known)) == Some(known)));
        assert_eq!(ActionKind::ALL.map(action), [0, 1, 2, 3, 4]);
        assert!(ActionKind::ALL.into_iter().all(|known| action_of(action(known)) == Some(known)));
        let finals: Vec<i64> = Outcome::ALL.into_iter().filter(|known| known.is_final()).map(outcome).collect();
        assert_eq!(FINAL, format!("({})", finals.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")));
    }
}
