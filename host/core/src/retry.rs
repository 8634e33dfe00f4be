//! Whether and when a failed event is tried again by itself (spec 9, `retry`).

use std::time::Duration;

use crate::outcome::{Failure, kind};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// `base` each time.
    #[default]
    Fixed,
    /// `base` × n before the n-th retry.
    Linear,
    /// `base` × 2^(n−1) before the n-th retry.
    Exponential,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Jitter {
    #[default]
    None,
    /// Up to a quarter shorter or longer.
    Bounded,
    /// Anything from zero to the delay.
    Full,
}

/// How often, and after how long.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    pub strategy: Strategy,
    pub base: Duration,
    /// No delay is longer, after jitter and after a `retry-after`.
    pub max: Option<Duration>,
    /// Runs, the first included: 5 means at most four retries. 1 or 0: none.
    pub attempts: u32,
    pub jitter: Jitter,
}

/// Another schedule for failures that match everything given here. No schedule: never retried.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rule {
    pub kind: Option<String>,
    /// Part of the error's text, in any case.
    pub text: Option<String>,
    pub event_type: Option<String>,
    pub schedule: Option<Schedule>,
}

/// An endpoint's retry policy.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    pub schedule: Schedule,
    /// Kinds that are retried; empty means all but `handoff-expired` and `handoff-failed`, which must be named (P14).
    pub on: Vec<String>,
    /// A rule on the text goes before one on the kind, that before one on the event type, and any rule before the schedule.
    pub rules: Vec<Rule>,
}

/// What a policy is asked about.
#[derive(Debug, Clone, Copy)]
pub struct Failed<'a> {
    pub failure: &'a Failure,
    pub event_type: &'a str,
    /// Runs since the last operator action, the failed one included.
    pub runs: u32,
    /// The guest's wish. Zero is none.
    pub retry_after: Option<Duration>,
    /// Uniform in 0..1; the caller's dice, so that this stays a function.
    pub random: f64,
}

impl RetryPolicy {
    /// The delay before the next try, or none when it is not tried again.
    pub fn delay(&self, failed: Failed<'_>) -> Option<Duration> {
        let schedule = self.schedule_for(failed)?;
        (failed.runs < schedule.attempts).then(|| schedule.delay(failed))
    }

    fn schedule_for(&self, failed: Failed<'_>) -> Option<&Schedule> {
        let rule = self
            .rules
            .iter()
            .filter(|rule| rule.matches(failed))
            .reduce(|best, rule| if rule.rank() > best.rank() { rule } else { best });
        if let Some(rule) = rule {
            return rule.schedule.as_ref();
        }
        let kind = failed.failure.kind.as_str();
        let named = self.on.iter().any(|on| on == kind);
        let wanted =
            if self.on.is_empty() { kind != kind::HANDOFF_EXPIRED && kind != kind::HANDOFF_FAILED } else { named };
        wanted.then_some(&self.schedule)
    }
}

impl Rule {
    fn matches(&self, failed: Failed<'_>) -> bool {
        self.kind.as_ref().is_none_or(|kind| *kind == failed.failure.kind)
            && self.text.as_ref().is_none_or(|text| failed.failure.text.to_lowercase().contains(&text.to_lowercase()))
            && self.event_type.as_ref().is_none_or(|event_type| event_type.eq_ignore_ascii_case(failed.event_type))
    }

    fn rank(&self) -> u8 {
        u8::from(self.text.is_some()) * 4 + u8::from(self.kind.is_some()) * 2 + u8::from(self.event_type.is_some())
    }
}

impl Schedule {
    fn delay(&self, failed: Failed<'_>) -> Duration {
        let retry = failed.runs.max(1);
        let plain = match self.strategy {
            Strategy::Fixed => self.base,
            Strategy::Linear => self.base.saturating_mul(retry),
            Strategy::Exponential => self.base.saturating_mul(2_u32.saturating_pow(retry - 1)),
        };
        let cap = self.max.unwrap_or(LONGEST);
        // The cap comes first as well, so that the arithmetic below cannot overflow.
        let plain = plain.min(LONGEST);
        let shaken = match self.jitter {
            Jitter::None => plain,
            Jitter::Bounded => plain.mul_f64(0.75 + failed.random.clamp(0.0, 1.0) * 0.5),
            Jitter::Full => plain.mul_f64(failed.random.clamp(0.0, 1.0)),
        };
        shaken.max(failed.retry_after.unwrap_or_default()).min(cap)
    }
}

/// A year: no wait is longer, whatever the arithmetic says.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn policy(strategy: Strategy, jitter: Jitter) -> RetryPolicy {
        RetryPolicy {
            schedule: Schedule { strategy, base: SECOND, max: Some(10 * SECOND), attempts: 5, jitter },
            on: vec![],
            rules: vec![],
        }
    }

    fn delay(
        policy: &RetryPolicy,
        kind: &str,
        text: &str,
        runs: u32,
        retry_after: Option<Duration>,
        random: f64,
    ) -> Option<Duration> {
        policy.delay(Failed {
            failure: &Failure::new(kind, text),
            event_type: "OrderPlaced",
            runs,
            retry_after,
            random,
        })
    }

    #[test]
    fn strategies() {
        for (strategy, delays) in
            [(Strategy::Fixed, [1, 1, 1, 1]), (Strategy::Linear, [1, 2, 3, 4]), (Strategy::Exponential, [1, 2, 4, 8])]
        {
            let policy = policy(strategy, Jitter::None);
            for (runs, seconds) in (1..).zip(delays) {
                assert_eq!(delay(&policy, "x", "", runs, None, 0.5), Some(seconds * SECOND), "{strategy:?} {runs}");
            }
            assert_eq!(delay(&policy, "x", "", 5, Some(SECOND), 0.5), None, "attempts used up (case 80, 86)");
        }
    }

    /// Cases 82 and 83: no overflow, and the cap comes after the jitter.
    #[test]
    fn cap_applies_last() {
        let mut many = policy(Strategy::Exponential, Jitter::Bounded);
        many.schedule.attempts = u32::MAX;
        assert_eq!(delay(&many, "x", "", 4_000_000_000, None, 0.99), Some(10 * SECOND));
        many.schedule.max = None;
        assert!(delay(&many, "x", "", 4_000_000_000, None, 0.99).is_some());
    }

    #[test]
    fn jitter_stays_in_its_bounds() {
        let full = policy(Strategy::Fixed, Jitter::Full);
        let bounded = policy(Strategy::Fixed, Jitter::Bounded);
        for random in [0.0, 0.3, 0.999] {
            let within = |delay: Duration, low: f64, high: f64| (low..=high).contains(&delay.as_secs_f64());
            assert!(within(delay(&full, "x", "", 1, None, random).expect("a retry"), 0.0, 1.0));
            assert!(within(delay(&bounded, "x", "", 1, None, random).expect("a retry"), 0.75, 1.25));
        }
    }

    /// Case 81: delays are not rounded.
    #[test]
    fn odd_delays_stay_odd() {
        let mut odd = policy(Strategy::Fixed, Jitter::None);
        odd.schedule.base = Duration::from_millis(1_500);
        assert_eq!(delay(&odd, "x", "", 1, None, 0.0), Some(Duration::from_millis(1_500)));
    }

    /// Case 86: a hint of 0 / shorter / longer / beyond the cap is ignored / ignored / used / capped.
    #[test]
    fn retry_after_only_lengthens() {
        let policy = policy(Strategy::Fixed, Jitter::None);
        for (hint, seconds) in [(0, 1), (1, 1), (3, 3), (60, 10)] {
            assert_eq!(delay(&policy, "x", "", 1, Some(hint * SECOND), 0.0), Some(seconds * SECOND));
        }
    }

    /// Case 84: the text's rule wins over the kind's, that over the event type's, any over the default.
    #[test]
    fn the_most_telling_rule_wins() {
        let schedule = |seconds: u32| Schedule {
            base: seconds * SECOND,
            max: None,
            ..policy(Strategy::Fixed, Jitter::None).schedule
        };
        let mut policy = policy(Strategy::Fixed, Jitter::None);
        policy.rules = vec![
            Rule { event_type: Some("orderplaced".into()), schedule: Some(schedule(20)), ..Default::default() },
            Rule { kind: Some("busy".into()), schedule: Some(schedule(30)), ..Default::default() },
            Rule { text: Some("DEADLOCK".into()), schedule: Some(schedule(40)), ..Default::default() },
            Rule { kind: Some("never".into()), schedule: None, ..Default::default() },
        ];
        assert_eq!(delay(&policy, "x", "", 1, None, 0.0), Some(20 * SECOND));
        assert_eq!(delay(&policy, "busy", "", 1, None, 0.0), Some(30 * SECOND));
        assert_eq!(delay(&policy, "busy", "a deadlock\nthere", 1, None, 0.0), Some(40 * SECOND));
        assert_eq!(delay(&policy, "never", "", 1, None, 0.0), None);
    }

    #[test]
    fn on_narrows_and_handoff_ends_must_be_named() {
        let mut policy = policy(Strategy::Fixed, Jitter::None);
        assert!(delay(&policy, "timeout", "", 1, None, 0.0).is_some());
        assert!(delay(&policy, kind::HANDOFF_EXPIRED, "", 1, None, 0.0).is_none());
        policy.on = vec!["timeout".into(), kind::HANDOFF_EXPIRED.into()];
        assert!(delay(&policy, "timeout", "", 1, None, 0.0).is_some());
        assert!(delay(&policy, "trap", "", 1, None, 0.0).is_none());
        assert!(delay(&policy, kind::HANDOFF_EXPIRED, "", 1, None, 0.0).is_some());
    }
}
