//! `new` and `build`, and the building that `dev --build` does beside the host.

use std::{
    collections::HashMap,
    io::IsTerminal as _,
    path::{Path, PathBuf},
    sync::mpsc,
    thread::JoinHandle,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sprag_build::{Import, Progress, Project, Toolbox, default_tools_folder};

use crate::{
    cli::{BuildArgs, Language, NewArgs},
    failure::{Exit, Failure, Outcome},
    output::{self, BAD, FAINT, GOOD},
};

pub(crate) fn new(args: &NewArgs) -> Outcome {
    let language = match args.lang {
        Language::Rust => sprag_build::Language::Rust,
        Language::Javascript => sprag_build::Language::JavaScript,
        Language::Python => sprag_build::Language::Python,
    };
    let with: Vec<Import> = args.with.iter().map(|name| name.parse()).collect::<Result<_, _>>().map_err(refused)?;
    let folder = sprag_build::new(&args.dir, &args.name, language, &with).map_err(refused)?;
    output::line(&folder.display().to_string())?;
    anstream::eprintln!("next:\n  cd {}\n  sprag build\n  sprag dev", folder.display());
    Ok(Exit::Done)
}

pub(crate) fn build(args: &BuildArgs) -> Outcome {
    let toolbox = Toolbox::new(default_tools_folder()).map_err(refused)?;
    let shown = Shown::new();
    let mut built = Vec::new();
    for path in &args.paths {
        for project in Project::find(path).map_err(refused)? {
            let mut report = |progress: Progress<'_>| shown.show(progress);
            let one = sprag_build::build_project(&project, args.out.as_deref(), &toolbox, &mut report);
            built.push(one.inspect_err(|_| shown.end()).map_err(refused)?);
        }
    }
    shown.end();
    for one in built {
        let imports = if one.imports.is_empty() {
            String::new()
        } else {
            format!(" {FAINT}imports {}{FAINT:#}", one.imports.join(", "))
        };
        let size = bytesize::ByteSize(one.bytes);
        anstream::eprintln!(
            "{GOOD}{}{GOOD:#} {} in {:.1} s{imports}",
            if one.unchanged { "unchanged" } else { "built" },
            size.display().iec(),
            one.took.as_secs_f64()
        );
        output::line(&one.file.display().to_string())?;
    }
    Ok(Exit::Done)
}

fn refused(error: sprag_build::Error) -> Failure {
    use sprag_build::Error::{MissingTool, Name, NoProject, NotEmpty, Unsupported};
    match error {
        error @ (NoProject(_) | Name { .. } | NotEmpty(_) | Unsupported(_)) => Failure::usage(error.to_string()),
        error @ MissingTool { .. } => Failure::failed(error.to_string()).help("`sprag doctor` lists what is there"),
        error => Failure::failed(error.to_string()),
    }
}

/// A spinner with the newest step on a terminal, a line per step elsewhere.
struct Shown {
    spinner: ProgressBar,
    terminal: bool,
}

impl Shown {
    fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        let spinner = ProgressBar::new_spinner().with_style(
            ProgressStyle::with_template("{spinner} {prefix} {wide_msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        spinner.set_draw_target(if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() });
        Self { spinner, terminal }
    }

    fn show(&self, progress: Progress<'_>) {
        match progress {
            Progress::Step(step) if self.terminal => {
                self.spinner.set_prefix(output::one_line(step));
                self.spinner.set_message("");
                self.spinner.enable_steady_tick(Duration::from_millis(120));
            }
            Progress::Step(step) => anstream::eprintln!("{}", output::one_line(step)),
            Progress::Detail(detail) => self.spinner.set_message(output::one_line(detail)),
        }
    }

    fn end(&self) {
        self.spinner.finish_and_clear();
    }
}

/// How often the sources are looked at.
const LOOK: Duration = Duration::from_millis(300);

/// Builds what changes; ends when it is dropped.
pub(crate) struct Builder {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Builder {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            anstream::eprintln!("the builder has panicked");
        }
    }
}

/// Builds the projects of a folder now and whenever their sources change.
pub(crate) fn watch(folder: &Path, out: &Path) -> Result<Builder, Failure> {
    let toolbox = Toolbox::new(default_tools_folder()).map_err(refused)?;
    let (folder, out) = (folder.to_owned(), out.to_owned());
    let (stop, stopped) = mpsc::channel();
    let thread = std::thread::Builder::new()
        .name("sprag-build".to_owned())
        .spawn(move || {
            let mut seen = HashMap::new();
            loop {
                look(&folder, &out, &toolbox, &mut seen);
                // Disconnected means that the host has stopped; a timeout is the wait between two looks.
                if stopped.recv_timeout(LOOK) != Err(mpsc::RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })
        .map_err(|error| Failure::failed(format!("cannot start the builder: {error}")))?;
    Ok(Builder { stop: Some(stop), thread: Some(thread) })
}

/// Each project's sources when it was last built, whatever came of it.
fn look(folder: &Path, out: &Path, toolbox: &Toolbox, seen: &mut HashMap<PathBuf, String>) {
    // A folder without projects is no mistake here.
    let Ok(projects) = Project::find(folder) else { return };
    for project in projects {
        // Sources that are just being written are seen at the next look.
        let Ok(digest) = project.inputs_digest("") else { continue };
        if seen.insert(project.folder.join(&project.name), digest.clone()) == Some(digest) {
            continue;
        }
        match sprag_build::build_project(&project, Some(out), toolbox, &mut |_| {}) {
            Ok(built) if built.unchanged => {}
            Ok(built) => {
                anstream::println!("{GOOD}built{GOOD:#}         {} in {:.1} s", built.name, built.took.as_secs_f64())
            }
            Err(error) => {
                anstream::println!("{BAD}not built{BAD:#}     {}: {}", project.name, output::safe(&error.to_string()))
            }
        }
    }
}
