//! Texts with a unit: durations, sizes, secrets.

use std::{path::Path, time::Duration};

/// `30s`, `5m`, `7d`, `1h 30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{text:?} is not a duration such as \"30s\", \"5m\" or \"7d\" ({error})"))
}

/// `64MiB`, `1GB`, `512B`. A number without a unit is refused: nobody should have to guess.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size such as \"64MiB\" or \"1GB\"");
    if !text.ends_with(['B', 'b']) {
        return Err(wrong());
    }
    text.parse::<bytesize::ByteSize>().map(|size| size.as_u64()).map_err(|_| wrong())
}

/// A duration as one would write it.
pub(crate) fn show_duration(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

/// Reads what `env:NAME` or `file:PATH` points to. None when the text is neither.
pub(crate) fn reference(text: &str, base: &Path) -> Option<Result<String, String>> {
    if let Some(name) = text.strip_prefix("env:") {
        return Some(std::env::var(name).map_err(|error| match error {
            std::env::VarError::NotPresent => format!("the environment variable {name} is not set"),
            std::env::VarError::NotUnicode(_) => format!("the environment variable {name} is not UTF-8"),
        }));
    }
    let path = base.join(text.strip_prefix("file:")?);
    Some(
        std::fs::read_to_string(&path)
            .map(|content| content.trim_end_matches(['\r', '\n']).to_owned())
            .map_err(|error| format!("cannot read {}: {error}", path.display())),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_a_unit() {
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("1KB"), Ok(1_000));
        assert_eq!(bytes("0B"), Ok(0));
        for text in ["64", "64M", "MiB", "-1B", "64 Mib!"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5_400)));
        for text in ["30", "-1s", "", "30 parsecs"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
