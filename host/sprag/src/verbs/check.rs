//! Checks a configuration without running it.

use std::io::Write as _;

use serde::Serialize;

use crate::{
    cli::CheckArgs,
    config::{Config, sample},
    failure::{Exit, Failure, Outcome},
    output::{self, GOOD, WAITING},
};

/// Something that `check` found.
#[derive(Debug, Serialize)]
struct Found {
    /// `error` or `warning`.
    level: &'static str,
    code: Option<&'static str>,
    line: Option<usize>,
    column: Option<usize>,
    text: String,
}

pub(crate) fn check(args: &CheckArgs) -> Outcome {
    if args.print_sample {
        std::io::stdout().write_all(sample().as_bytes()).map_err(|error| Failure::failed(error.to_string()))?;
        return Ok(Exit::Done);
    }
    let (exit, found) = match Config::load(&args.config) {
        Err(wrong) => {
            if !args.json {
                anstream::eprintln!("{wrong}");
            }
            let found = wrong
                .findings
                .into_iter()
                .map(|finding| Found {
                    level: "error",
                    code: Some(finding.code),
                    line: finding.at.map(|at| at.0),
                    column: finding.at.map(|at| at.1),
                    text: finding.text,
                })
                .collect();
            (Exit::Configuration, found)
        }
        Ok(config) => {
            let found: Vec<Found> =
                config.warnings().into_iter().map(|text| Found { level: "warning", code: None, line: None, column: None, text }).collect();
            if !args.json {
                for one in &found {
                    anstream::eprintln!("{WAITING}warning:{WAITING:#} {}", one.text);
                }
                output::line(&format!("{GOOD}ok{GOOD:#} {}", args.config.display()))?;
            }
            (Exit::Done, found)
        }
    };
    if args.json {
        output::json(&found)?;
    }
    Ok(exit)
}
