//! Where compilers are kept that handlers need and the machine does not have, and how programs are run.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, thread};

use crate::{Doing, Error, Progress, Report, project, replace, rust};

/// The folder for pinned tools, shared build results and stamps. Safe to delete at any time, and to share between processes.
#[derive(Debug, Clone)]
pub struct Toolbox {
    folder: PathBuf,
}

/// `SPRAG_TOOLS`, else `sprag/tools` in the user's cache folder.
pub fn default_tools_folder() -> PathBuf {
    let named = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    named("SPRAG_TOOLS")
        .or_else(|| named("XDG_CACHE_HOME").map(|cache| cache.join("sprag/tools")))
        .or_else(|| named("HOME").map(|home| home.join(".cache/sprag/tools")))
        .unwrap_or_else(|| env::temp_dir().join("sprag-tools"))
}

impl Toolbox {
    pub fn new(folder: impl Into<PathBuf>) -> Result<Toolbox, Error> {
        let folder = folder.into();
        fs::create_dir_all(&folder).doing(|| format!("creating {}", folder.display()))?;
        Ok(Toolbox { folder: fs::canonicalize(&folder).doing(|| format!("opening {}", folder.display()))? })
    }

    pub(crate) fn rust(&self, folder: &Path) -> Result<rust::Toolchain, Error> {
        rust::Toolchain::find(folder)
    }

    /// Rust's build results for every project: what they have in common, the standard library above all, is compiled once.
    pub(crate) fn rust_target(&self) -> PathBuf {
        self.folder.join("rust")
    }

    pub(crate) fn stamp_file(&self, project: &Path, out: &Path) -> PathBuf {
        let key = project::digest(format!("{}\0{}", project.display(), out.display()).as_bytes());
        self.folder.join("built").join(format!("{}.json", &key[..32]))
    }

    /// Waits until no other process uses what `name` stands for.
    pub(crate) fn lock(&self, name: &str) -> Result<File, Error> {
        let path = self.folder.join(format!("{name}.lock"));
        let doing = || format!("locking {}", path.display());
        let file = File::create(&path).doing(doing)?;
        file.lock().doing(doing)?;
        Ok(file)
    }

    /// The folder `name`, filled by `install` if it is not complete yet. One process installs at a time, and what an interrupted
    /// one left is thrown away.
    pub(crate) fn installed(
        &self,
        name: &str,
        install: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<PathBuf, Error> {
        let folder = self.folder.join(name);
        let complete = folder.join(".complete");
        let _one_at_a_time = self.lock(name)?;
        if complete.is_file() {
            return Ok(folder);
        }
        if folder.exists() {
            fs::remove_dir_all(&folder).doing(|| format!("removing {}", folder.display()))?;
        }
        fs::create_dir_all(&folder).doing(|| format!("creating {}", folder.display()))?;
        install(&folder)?;
        replace(&complete, b"")?;
        Ok(folder)
    }
}

/// The program of this name on the `PATH`.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Runs a program to its end and answers what it printed. What it says on stderr is progress, and its error if it fails.
pub(crate) fn run(step: &str, command: &mut Command, report: Report<'_>) -> Result<String, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let starting = || format!("{step}: running {program}");
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().doing(starting)?;
    let mut stdout = child.stdout.take().expect("stdout is piped");
    let stderr = child.stderr.take().expect("stderr is piped");
    // Both pipes are read at once, else a program that fills one while we read the other never ends.
    let printed = thread::spawn(move || -> io::Result<Vec<u8>> {
        let mut printed = Vec::new();
        stdout.read_to_end(&mut printed)?;
        Ok(printed)
    });
    let mut said = String::new();
    for line in BufReader::new(stderr).split(b'\n') {
        let line = line.doing(starting)?;
        let line = String::from_utf8_lossy(&line);
        report(Progress::Detail(line.trim_end()));
        said.push_str(line.trim_end());
        said.push('\n');
    }
    let status = child.wait().doing(starting)?;
    let printed = printed.join().expect("reading a pipe does not panic").doing(starting)?;
    let printed = String::from_utf8_lossy(&printed).into_owned();
    if status.success() {
        return Ok(printed);
    }
    let output = [said.trim(), printed.trim()].join("\n");
    Err(Error::Step { step: step.to_owned(), output: format!("{}\n({program}: {status})", output.trim()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_installation_is_thrown_away_and_a_complete_one_kept() {
        let folder = tempfile::tempdir().unwrap();
        let toolbox = Toolbox::new(folder.path()).unwrap();
        let broken = toolbox.installed("tool", |folder| {
            fs::write(folder.join("half"), "").unwrap();
            Err(Error::Unsupported("the network went away".to_owned()))
        });
        assert!(broken.is_err());
        let tool = toolbox.installed("tool", |folder| {
            assert!(!folder.join("half").exists());
            fs::write(folder.join("whole"), "").doing(|| "writing".to_owned())
        });
        assert!(tool.unwrap().join("whole").exists());
        toolbox.installed("tool", |_| panic!("it is complete")).unwrap();
    }

    #[test]
    fn a_program_that_fails_is_quoted_and_one_that_says_much_does_not_hang() {
        let mut details = Vec::new();
        let mut report = |progress: Progress<'_>| match progress {
            Progress::Step(text) | Progress::Detail(text) => details.push(text.to_owned()),
        };
        let script = "yes out | head -n 50000; yes err | head -n 50000 >&2; echo bad luck >&2; exit 3";
        let error = run("the step", Command::new("sh").args(["-c", script]), &mut report).unwrap_err().to_string();
        assert!(error.starts_with("the step failed\n") && error.contains("bad luck"), "{}", &error[..200]);
        assert!(error.contains("exit status: 3"));
        assert_eq!(details.len(), 50_001);
        assert_eq!(run("s", Command::new("echo").arg("hello"), &mut |_| {}).unwrap(), "hello\n");
        let none = run("the step", &mut Command::new("no-such-program"), &mut |_| {}).unwrap_err().to_string();
        assert!(none.contains("running no-such-program"), "{none}");
    }
}
