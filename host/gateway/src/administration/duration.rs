//! Durations as ISO 8601 writes them: `P1DT2H3M4.5S`.
//!
//! .NET's largest time span stands for ever, and is what Azure answers where there is no limit. Clients that keep less than its ten millionths
//! of a second round it; so everything from its whole days on is for ever.

use std::time::Duration;

pub(super) const FOR_EVER: &str = "P10675199DT2H48M5.4775807S";
const FOR_EVER_DAYS: u64 = 10_675_199;

/// None is for ever.
pub(super) fn read(text: &str) -> Result<Option<Duration>, String> {
    let wrong = || format!("{text:?} is no duration as ISO 8601 writes it, such as PT30S");
    let rest = text.trim().strip_prefix('P').ok_or_else(wrong)?;
    let (days, time) = match rest.split_once('T') {
        Some((days, time)) if !time.is_empty() => (days, time),
        None if !rest.is_empty() => (rest, ""),
        _ => return Err(wrong()),
    };
    let mut total = Duration::ZERO;
    for (units, part) in [(&[('W', 604_800), ('D', 86_400)][..], days), (&[('H', 3_600), ('M', 60), ('S', 1)], time)] {
        let mut rest = part;
        for (unit, seconds) in units {
            let Some((number, after)) = rest.split_once(*unit) else { continue };
            total = quantity(number, *seconds).and_then(|it| total.checked_add(it)).ok_or_else(wrong)?;
            rest = after;
        }
        if !rest.is_empty() {
            return Err(wrong());
        }
    }
    Ok((total.as_secs() < FOR_EVER_DAYS * 86_400).then_some(total))
}

fn quantity(number: &str, seconds: u64) -> Option<Duration> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if digits(fraction) && seconds == 1 => (whole, fraction),
        Some(_) => return None,
        None => (number, "0"),
    };
    if !digits(whole) {
        return None;
    }
    let whole = Duration::from_secs(whole.parse::<u64>().ok()?.checked_mul(seconds)?);
    // Nine digits are nanoseconds; more are not told from none.
    let nanos: u64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    whole.checked_add(Duration::from_nanos(nanos))
}

pub(super) fn write(duration: Option<Duration>) -> String {
    let Some(duration) = duration else { return FOR_EVER.to_owned() };
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    let (days, hours, minutes, seconds) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let mut text = "P".to_owned();
    if days > 0 {
        text += &format!("{days}D");
    }
    let mut time = String::new();
    for (number, unit) in [(hours, 'H'), (minutes, 'M')] {
        if number > 0 {
            time += &format!("{number}{unit}");
        }
    }
    if nanos > 0 {
        time += &format!("{seconds}.{}S", format!("{nanos:09}").trim_end_matches('0'));
    } else if seconds > 0 || (time.is_empty() && days == 0) {
        time += &format!("{seconds}S");
    }
    if !time.is_empty() {
        text += "T";
    }
    text + &time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        for (text, millis) in [
            ("PT0S", 0),
            ("PT30S", 30_000),
            ("PT1M30S", 90_000),
            ("P1D", 86_400_000),
            ("P7DT1H", 608_400_000),
            ("PT0.25S", 250),
            ("P14DT3H2M1.001S", 1_220_521_001),
        ] {
            let duration = Duration::from_millis(millis);
            assert_eq!(read(text), Ok(Some(duration)), "{text}");
            assert_eq!(write(Some(duration)), text);
        }
        assert_eq!(read("P1W"), Ok(Some(Duration::from_secs(604_800))));
        assert_eq!(read("PT90S"), read("PT1M30S"));
    }

    #[test]
    fn for_ever_is_what_dotnet_and_those_who_round_it_write() {
        for text in [FOR_EVER, "P10675199DT2H48M5.477581S", "P10675199DT2H48M5.47758S", "P10675199D"] {
            assert_eq!(read(text), Ok(None), "{text}");
        }
        assert_eq!(write(None), FOR_EVER);
        assert!(read("P10675198DT23H").unwrap().is_some());
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in [
            "",
            "30",
            "P",
            "PT",
            "P1",
            "PT1",
            "PTS",
            "-PT1S",
            "PT-1S",
            "P1Y",
            "P1M",
            "PT1.S",
            "PT.5S",
            "P1.5D",
            "PT1S1M",
            "PT1S ",
            "P1DT",
            "PT99999999999999999999S",
        ] {
            let trimmed = text.trim() != text;
            assert_eq!(read(text).is_err(), !trimmed, "{text:?}");
        }
    }
}
