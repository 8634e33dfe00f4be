//! Durations as the service writes them, in ISO 8601: `P1DT2H3M4.5S`.
//!
//! .NET's largest time span stands for ever. Who rounds its ten millionths of a second still means for ever, so everything from its whole days
//! on does.

use std::time::Duration;

const FOR_EVER_DAYS: u64 = 10_675_199;
const DAY: u64 = 86_400;

/// `Some(None)` is for ever; none is no duration.
#[expect(clippy::option_option, reason = "for ever is a duration, and no duration is none")]
pub(crate) fn read(text: &str) -> Option<Option<Duration>> {
    let rest = text.trim().strip_prefix('P')?;
    let (days, time) = match rest.split_once('T') {
        Some((days, time)) if !time.is_empty() => (days, time),
        None if !rest.is_empty() => (rest, ""),
        _ => return None,
    };
    let mut total = Duration::ZERO;
    for (units, part) in [(&[('D', DAY)][..], days), (&[('H', 3_600), ('M', 60), ('S', 1)], time)] {
        let mut rest = part;
        for (unit, seconds) in units {
            let Some((number, after)) = rest.split_once(*unit) else { continue };
            total = total.checked_add(quantity(number, *seconds)?)?;
            rest = after;
        }
        if !rest.is_empty() {
            return None;
        }
    }
    Some((total.as_secs() < FOR_EVER_DAYS * DAY).then_some(total))
}

fn quantity(number: &str, seconds: u64) -> Option<Duration> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if !digits(whole) || !digits(fraction) || (number.contains('.') && seconds != 1) {
        return None;
    }
    let whole = Duration::from_secs(whole.parse::<u64>().ok()?.checked_mul(seconds)?);
    // Nine digits are nanoseconds; the service has seven.
    let nanos = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    whole.checked_add(Duration::from_nanos(nanos))
}

pub(crate) fn write(duration: Duration) -> String {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    let (days, seconds) = (seconds / DAY, seconds % DAY);
    let days = if days > 0 { format!("{days}D") } else { String::new() };
    match (seconds, nanos) {
        (0, 0) if !days.is_empty() => format!("P{days}"),
        (seconds, 0) => format!("P{days}T{seconds}S"),
        (seconds, nanos) => format!("P{days}T{seconds}.{}S", format!("{nanos:09}").trim_end_matches('0')),
    }
}

/// As configuration writes it: `30s`, `5m`, `14d`.
pub(crate) fn plain(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    match () {
        () if millis > 0 => format!("{}ms", duration.as_millis()),
        () if seconds > 0 && seconds.is_multiple_of(DAY) => format!("{}d", seconds / DAY),
        () if seconds > 0 && seconds.is_multiple_of(3_600) => format!("{}h", seconds / 3_600),
        () if seconds > 0 && seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        () => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        for (text, millis, written, shown) in [
            ("PT0S", 0, "PT0S", "0s"),
            ("PT30S", 30_000, "PT30S", "30s"),
            ("PT1M30S", 90_000, "PT90S", "90s"),
            ("PT5M", 300_000, "PT300S", "5m"),
            ("P1D", 86_400_000, "P1D", "1d"),
            ("P7DT1H", 608_400_000, "P7DT3600S", "169h"),
            ("PT0.25S", 250, "PT0.25S", "250ms"),
        ] {
            let duration = Duration::from_millis(millis);
            assert_eq!(read(text), Some(Some(duration)), "{text}");
            assert_eq!((write(duration).as_str(), plain(duration).as_str()), (written, shown));
            assert_eq!(read(written), Some(Some(duration)), "{written}");
        }
    }

    #[test]
    fn for_ever_is_what_dotnet_and_those_who_round_it_write() {
        for text in ["P10675199DT2H48M5.4775807S", "P10675199DT2H48M5.477581S", "P10675199D"] {
            assert_eq!(read(text), Some(None), "{text}");
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in ["", "30", "P", "PT", "PT1", "PTS", "-PT1S", "P1Y", "PT1.S", "P1.5D", "PT1S1M", "P1DT", "PT9e9S"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
