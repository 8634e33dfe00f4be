//! Python: made a component by componentize-py, pinned, in a virtual environment of its own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::project::copy_sources;
use crate::toolbox::{find_program, run};
use crate::{Doing, Error, Progress, Project, Report, Toolbox, component};

const PINNED: &str = "componentize-py==0.25.1";

pub(crate) struct Componentizer {
    python: PathBuf,
}

impl Componentizer {
    pub(crate) fn find() -> Result<Componentizer, Error> {
        let python = find_program("python3").or_else(|| find_program("python")).ok_or_else(|| Error::MissingTool {
            tool: "Python",
            needed_for: "handlers in Python",
            get: "Get it from https://python.org (3.10 or newer), or on Debian by `apt-get install python3-venv`."
                .to_owned(),
        })?;
        Ok(Componentizer { python })
    }

    pub(crate) fn version(&self) -> String {
        PINNED.to_owned()
    }

    pub(crate) fn compile(&self, project: &Project, toolbox: &Toolbox, report: Report<'_>) -> Result<Vec<u8>, Error> {
        let tools = toolbox.installed(&PINNED.replace("==", "-"), |folder| {
            report(Progress::Step(&format!("fetching {PINNED}, this once (PyPI)")));
            run("python -m venv", Command::new(&self.python).args(["-m", "venv"]).arg(folder), report).map_err(
                |error| {
                    match error {
                        // Debian ships Python without it.
                        Error::Step { output, .. } if output.contains("ensurepip") => Error::MissingTool {
                            tool: "Python's venv module",
                            needed_for: "handlers in Python",
                            get: "Get it on Debian by `apt-get install python3-venv`.".to_owned(),
                        },
                        other => other,
                    }
                },
            )?;
            let mut pip = Command::new(folder.join("bin/python"));
            pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input", PINNED]);
            run("pip install", &mut pip, report).map(drop)
        })?;

        let name = &project.name;
        report(Progress::Step(&format!("{name}: making a component of Python (about 20 seconds)")));
        let scratch = tempfile::tempdir().doing(|| "creating a temporary folder".to_owned())?;
        let wit = component::prepare_wit(project, scratch.path())?;
        let out = scratch.path().join("component.wasm");
        let entry = project.entry.as_ref().expect("a Python project has an entry");
        let module = entry.file_stem().expect("an entry is a file").to_string_lossy().into_owned();
        let mut command = Command::new(tools.join("bin/componentize-py"));
        command.arg("-d").arg(&wit.folder).args(["-w", &wit.world, "componentize", &module]);
        // componentize-py runs the module in a sandbox that follows no link out of its folders.
        let sources = scratch.path().join("sources");
        copy_sources(&project.folder, &sources)?;
        command.arg("-p").arg(&sources).arg("-o").arg(&out);
        // The project's own packages, if it has some; never those that happen to be installed on this machine.
        let own_packages = project.folder.join(".venv");
        command.env("VIRTUAL_ENV", if own_packages.is_dir() { own_packages } else { tools.clone() });
        command.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(scratch.path());
        run(&format!("{name}: componentize-py"), &mut command, report).map_err(without_backtrace)?;
        fs::read(&out).doing(|| format!("reading {}", out.display()))
    }
}

/// componentize-py adds the stack of its own native code to every error, which says nothing about the handler.
fn without_backtrace(error: Error) -> Error {
    match error {
        Error::Step { step, output } => {
            let told = output.split("Stack backtrace:").next().unwrap_or_default().trim_end().to_owned();
            Error::Step { step, output: told }
        }
        other => other,
    }
}
