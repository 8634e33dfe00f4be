//! Compiles handlers of any supported language into components, and writes the project that a new handler starts from.
//!
//! A handler's author should need their own language and nothing else: no flags, no adapter, no idea of what a component is.
//! So this crate finds out what a folder holds ([`Project`]), brings the pinned compiler for JavaScript or Python into a cache folder,
//! finds the Rust toolchain that can compile for WebAssembly here, and says in one line what is missing and how to get it.
//!
//! Start reading at [`build`] and [`new`].
//!
//! *Invariant:* this crate knows the contract in `wit/` and the guests' SDKs, and nothing of the host that runs what it makes.

mod component;
mod embedded;
mod javascript;
mod project;
mod python;
mod rust;
mod scaffold;
mod toolbox;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use serde::{Deserialize, Serialize};

pub use project::{Import, Language, Project};
pub use scaffold::new;
pub use toolbox::{Toolbox, default_tools_folder};

/// Why there is no component, or no project.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "there is no handler in {0}: expected a folder with Cargo.toml, package.json, handler.js or handler.py, or a .js or .py file"
    )]
    NoProject(PathBuf),
    /// The whole text a user needs: what is missing, what for, how to get it.
    #[error("{tool} is missing, which {needed_for} need. {get}")]
    MissingTool { tool: &'static str, needed_for: &'static str, get: String },
    #[error("{step} failed\n{output}")]
    Step { step: String, output: String },
    #[error("{handler} is no handler: {reason}")]
    NotAHandler { handler: String, reason: String },
    #[error("{0}")]
    Unsupported(String),
    #[error("{name:?} cannot be a handler's name: {reason}")]
    Name { name: String, reason: &'static str },
    #[error("{0} exists and is not empty")]
    NotEmpty(PathBuf),
    #[error("{doing}: {source}")]
    Io { doing: String, source: io::Error },
}

/// Adds what was being done to an I/O error.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Io { doing: what(), source })
    }
}

/// What a build says while it runs.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// A step begins: worth a line of its own.
    Step(&'a str),
    /// A tool said something meanwhile: worth showing while it is the newest.
    Detail(&'a str),
}

/// Where to report progress to.
pub type Report<'a> = &'a mut dyn FnMut(Progress<'_>);

/// A component that is up to date.
#[derive(Debug, Clone)]
pub struct Built {
    pub name: String,
    pub language: Language,
    /// The component's file.
    pub file: PathBuf,
    pub bytes: u64,
    /// The interfaces it imports, as `sprag:handler/state@0.1.0`: what the endpoint's configuration must grant.
    pub imports: Vec<String>,
    /// Nothing had changed, so nothing was compiled.
    pub unchanged: bool,
    pub took: Duration,
}

/// Compiles every handler at `paths` (each a project's folder, a folder of projects, or a `.js` or `.py` file) and puts `NAME.wasm`
/// into `out`. Without `out` it goes into `handlers/` beside the nearest `sprag.toml` upwards, else into the project's folder.
///
/// A file in `out` is replaced as a whole or not at all. Stops at the first handler that does not build.
pub fn build(
    paths: &[PathBuf],
    out: Option<&Path>,
    toolbox: &Toolbox,
    report: Report<'_>,
) -> Result<Vec<Built>, Error> {
    let mut projects = Vec::new();
    for path in paths {
        projects.extend(Project::find(path)?);
    }
    projects.iter().map(|project| build_project(project, out, toolbox, report)).collect()
}

/// Compiles one handler. See [`build`].
pub fn build_project(
    project: &Project,
    out: Option<&Path>,
    toolbox: &Toolbox,
    report: Report<'_>,
) -> Result<Built, Error> {
    let started = Instant::now();
    let out = out.map_or_else(|| project.default_out(), Path::to_owned);
    let file = out.join(format!("{}.wasm", project.name));
    let compiler = Compiler::find(project, toolbox)?;
    if let Compiler::Rust(toolchain) = &compiler {
        toolchain.lock_versions(project, report)?;
    }
    let inputs = project.inputs_digest(&compiler.version())?;

    let stamp_file = toolbox.stamp_file(&project.folder, &file);
    if let Some(stamp) = Stamp::read(&stamp_file).filter(|stamp| stamp.inputs == inputs)
        && let Ok(bytes) = fs::read(&file)
        && project::digest(&bytes) == stamp.output
    {
        report(Progress::Step(&format!("{}: unchanged", project.name)));
        return Ok(Built {
            name: project.name.clone(),
            language: project.language,
            file,
            bytes: bytes.len() as u64,
            imports: stamp.imports,
            unchanged: true,
            took: started.elapsed(),
        });
    }

    let component = compiler.compile(project, toolbox, report)?;
    let imports = component::check(&project.name, &component)?;
    fs::create_dir_all(&out).doing(|| format!("creating {}", out.display()))?;
    replace(&file, &component)?;
    Stamp { inputs, output: project::digest(&component), imports: imports.clone() }.write(&stamp_file)?;
    Ok(Built {
        name: project.name.clone(),
        language: project.language,
        file,
        bytes: component.len() as u64,
        imports,
        unchanged: false,
        took: started.elapsed(),
    })
}

enum Compiler {
    Rust(rust::Toolchain),
    JavaScript(javascript::Componentizer),
    Python(python::Componentizer),
}

impl Compiler {
    fn find(project: &Project, toolbox: &Toolbox) -> Result<Compiler, Error> {
        Ok(match project.language {
            Language::Rust => Compiler::Rust(toolbox.rust(&project.folder)?),
            Language::JavaScript => Compiler::JavaScript(javascript::Componentizer::find()?),
            Language::Python => Compiler::Python(python::Componentizer::find()?),
        })
    }

    /// Everything about the compiler that may change what it makes.
    fn version(&self) -> String {
        match self {
            Compiler::Rust(toolchain) => toolchain.version(),
            Compiler::JavaScript(componentizer) => componentizer.version(),
            Compiler::Python(componentizer) => componentizer.version(),
        }
    }

    fn compile(&self, project: &Project, toolbox: &Toolbox, report: Report<'_>) -> Result<Vec<u8>, Error> {
        match self {
            Compiler::Rust(toolchain) => toolchain.compile(project, toolbox, report),
            Compiler::JavaScript(componentizer) => componentizer.compile(project, toolbox, report),
            Compiler::Python(componentizer) => componentizer.compile(project, toolbox, report),
        }
    }
}

/// What a component was built from. Kept in the toolbox, so that `handlers/` holds handlers only.
#[derive(Serialize, Deserialize)]
struct Stamp {
    inputs: String,
    output: String,
    imports: Vec<String>,
}

impl Stamp {
    /// A stamp that cannot be read only costs a build.
    fn read(file: &Path) -> Option<Stamp> {
        serde_json::from_slice(&fs::read(file).ok()?).ok()
    }

    fn write(&self, file: &Path) -> Result<(), Error> {
        let folder = file.parent().expect("stamp files lie in the toolbox");
        fs::create_dir_all(folder).doing(|| format!("creating {}", folder.display()))?;
        replace(file, &serde_json::to_vec(self).expect("a stamp is plain data"))
    }
}

/// Writes beside the file and renames, so that whoever watches it sees the old content or the new, never a part.
fn replace(file: &Path, content: &[u8]) -> Result<(), Error> {
    let name = file.file_name().expect("a file's path ends in its name").to_string_lossy();
    let beside = file.with_file_name(format!(".{name}.{}.part", std::process::id()));
    let written = fs::File::create(&beside)
        .and_then(|mut part| part.write_all(content).and_then(|()| part.sync_all()))
        .and_then(|()| fs::rename(&beside, file));
    if written.is_err() {
        // The first error is the one to tell; a part that stays behind is hidden and harmless.
        drop(fs::remove_file(&beside));
    }
    written.doing(|| format!("writing {}", file.display()))
}
