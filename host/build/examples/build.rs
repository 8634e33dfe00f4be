//! `sprag build` without the rest of the command: `cargo run --release -p sprag-build --example build -- PATH... --out DIR`.
//! It builds the guests for tests while the engine is still being compiled.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sprag_build::{Progress, Toolbox, build, default_tools_folder};

fn main() -> ExitCode {
    let mut arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let out =
        arguments.iter().position(|argument| argument == Path::new("--out")).map(|at| arguments.drain(at..).nth(1));
    let Some(Some(out)) = out.filter(|_| !arguments.is_empty()) else {
        eprintln!("usage: build PATH... --out DIR");
        return ExitCode::from(2);
    };
    let mut report = |progress: Progress<'_>| match progress {
        Progress::Step(text) => eprintln!("  {text}"),
        Progress::Detail(_) => {}
    };
    let built =
        Toolbox::new(default_tools_folder()).and_then(|toolbox| build(&arguments, Some(&out), &toolbox, &mut report));
    match built {
        Ok(built) => {
            for one in built.iter().filter(|one| !one.unchanged) {
                eprintln!("  {}: {} KiB in {:.1?}", one.file.display(), one.bytes / 1024, one.took);
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
