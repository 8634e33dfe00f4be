//! What an error code means: the pages of `docs/errors`, compiled in.

use crate::{
    cli::ExplainArgs,
    config::nearest,
    failure::{Exit, Failure, Outcome},
    output,
};

macro_rules! pages {
    ($($code:literal),* $(,)?) => {
        /// Every code with its page, in order.
        pub(crate) const PAGES: &[(&str, &str)] = &[$(($code, include_str!(concat!("../../../../docs/errors/", $code, ".md")))),*];
    };
}

pages!(
    "SPR0101", "SPR0102", "SPR0103", "SPR0104", "SPR0105", "SPR0106", "SPR0107", "SPR0108", "SPR0201", "SPR0202",
    "SPR0203", "SPR0204", "SPR0205", "SPR0206", "SPR0210", "SPR0211", "SPR0212", "SPR0213", "SPR0214", "SPR0215",
    "SPR0216", "SPR0217", "SPR0299", "SPR0301", "SPR0302", "SPR0303", "SPR0401", "SPR0402", "SPR0403", "SPR0404",
    "SPR0405", "SPR0406", "SPR0501", "SPR0502", "SPR0503", "SPR0504",
);

pub(crate) fn explain(args: &ExplainArgs) -> Outcome {
    let Some(code) = &args.code else {
        for (code, page) in PAGES {
            output::line(&format!("{code}  {}", title(page)))?;
        }
        return Ok(Exit::Done);
    };
    let code = code.trim_matches(['[', ']']).to_ascii_uppercase();
    match PAGES.iter().find(|(known, _)| *known == code) {
        Some((_, page)) => {
            output::line(page.trim_end())?;
            Ok(Exit::Done)
        }
        None => {
            let near = nearest(&code, PAGES.iter().map(|(code, _)| *code))
                .map(|near| format!("; did you mean {near}?"))
                .unwrap_or_default();
            Err(Failure::usage(format!("there is no code {code}{near}")).help("`sprag explain` lists them"))
        }
    }
}

fn title(page: &str) -> &str {
    let first = page.lines().next().unwrap_or_default();
    first.split_once(": ").map_or(first, |(_, title)| title)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    /// Every code that the program's sources mention has a page, and every page begins with its code.
    #[test]
    fn every_code_has_a_page() {
        let mut codes = BTreeSet::new();
        find(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut codes);
        for code in &codes {
            assert!(PAGES.iter().any(|(known, _)| known == code), "{code} has no page in docs/errors");
        }
        for (code, page) in PAGES {
            assert!(page.starts_with(&format!("# {code}: ")), "{code}");
            assert!(page.lines().count() > 3, "{code}: a title is no explanation");
        }
    }

    fn find(folder: &Path, codes: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                find(&path, codes);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source");
                for (at, _) in text.match_indices("\"SPR") {
                    let code = &text[at + 1..(at + 8).min(text.len())];
                    if code.len() == 7 && code[3..].bytes().all(|byte| byte.is_ascii_digit()) {
                        codes.insert(code.to_owned());
                    }
                }
            }
        }
    }
}
