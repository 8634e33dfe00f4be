//! What a folder holds: which language, under which name, made from which files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::{Doing, Error};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    Rust,
    JavaScript,
    Python,
}

impl Display for Language {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Language::Rust => "rust",
            Language::JavaScript => "javascript",
            Language::Python => "python",
        })
    }
}

impl FromStr for Language {
    type Err = Error;

    fn from_str(text: &str) -> Result<Language, Error> {
        match text {
            "rust" | "rs" => Ok(Language::Rust),
            "javascript" | "js" => Ok(Language::JavaScript),
            "python" | "py" => Ok(Language::Python),
            "c" => Err(Error::Unsupported(
                "handlers in C are not supported by this build yet; there are rust, javascript and python".to_owned(),
            )),
            other => Err(Error::Unsupported(format!(
                "{other:?} is no language of handlers; there are rust, javascript and python"
            ))),
        }
    }
}

/// An import that a new handler asks for, beyond those that every handler has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Import {
    State,
    Sql,
    Config,
}

impl Display for Import {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Import::State => "state",
            Import::Sql => "sql",
            Import::Config => "config",
        })
    }
}

impl FromStr for Import {
    type Err = Error;

    fn from_str(text: &str) -> Result<Import, Error> {
        match text {
            "state" => Ok(Import::State),
            "sql" => Ok(Import::Sql),
            "config" => Ok(Import::Config),
            other => Err(Error::Unsupported(format!(
                "{other:?} is no import of this build; there are state, sql and config"
            ))),
        }
    }
}

/// A handler's source.
#[derive(Debug, Clone)]
pub struct Project {
    /// The component's name: that of the Cargo, npm or Python project, else that of the folder or of the single file.
    pub name: String,
    pub language: Language,
    pub folder: PathBuf,
    /// The module the compiler starts at, relative to the folder. Cargo knows it by itself.
    pub(crate) entry: Option<PathBuf>,
}

/// Folders that hold nothing a component is made from.
const NOT_SOURCE: [&str; 3] = ["target", "node_modules", "__pycache__"];
const JAVASCRIPT_ENTRIES: [&str; 4] = ["handler.js", "handler.mjs", "handler.ts", "index.js"];
const PYTHON_ENTRIES: [&str; 2] = ["handler.py", "app.py"];

impl Project {
    /// The project at this path, or those in the folders directly below it.
    pub fn find(path: &Path) -> Result<Vec<Project>, Error> {
        let path = fs::canonicalize(path).doing(|| format!("looking for a handler in {}", path.display()))?;
        if let Some(project) = Project::at(&path)? {
            return Ok(vec![project]);
        }
        if path.is_file() {
            return Err(Error::NoProject(path));
        }
        let mut below = Vec::new();
        for entry in fs::read_dir(&path).doing(|| format!("reading {}", path.display()))? {
            let entry = entry.doing(|| format!("reading {}", path.display()))?.path();
            if entry.is_dir() && is_source(&entry) {
                below.extend(Project::at(&entry)?);
            }
        }
        below.sort_by(|a, b| a.folder.cmp(&b.folder));
        if below.is_empty() { Err(Error::NoProject(path)) } else { Ok(below) }
    }

    fn at(path: &Path) -> Result<Option<Project>, Error> {
        if path.is_file() {
            let language = match path.extension().and_then(|extension| extension.to_str()) {
                Some("js" | "mjs" | "ts") => Language::JavaScript,
                Some("py") => Language::Python,
                _ => return Ok(None),
            };
            let folder = path.parent().expect("a canonical file lies in a folder").to_owned();
            let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
            let entry = path.file_name().map(PathBuf::from);
            return Ok(Some(Project { name, language, folder, entry }));
        }

        let folder = path.to_owned();
        let folder_name =
            || path.file_name().map_or_else(|| "handler".to_owned(), |name| name.to_string_lossy().into_owned());
        if path.join("Cargo.toml").is_file() {
            // A workspace's manifest has no package; its members are found when they are named.
            let Some(name) = rust_manifest(path)?
                .get("package")
                .and_then(|package| package.get("name")?.as_str().map(str::to_owned))
            else {
                return Ok(None);
            };
            return Ok(Some(Project { name, language: Language::Rust, folder, entry: None }));
        }
        let first = |candidates: &[&str]| candidates.iter().map(PathBuf::from).find(|entry| path.join(entry).is_file());
        if path.join("package.json").is_file() {
            let manifest = path.join("package.json");
            let manifest: serde_json::Value = read(&manifest)
                .and_then(|text| serde_json::from_str(&text).map_err(|error| not_readable(&manifest, &error)))?;
            let entry = manifest["main"].as_str().map(PathBuf::from).or_else(|| first(&JAVASCRIPT_ENTRIES));
            let Some(entry) = entry.filter(|entry| path.join(entry).is_file()) else {
                return Err(Error::NotAHandler {
                    handler: path.display().to_string(),
                    reason: "package.json names no `main` that exists, and there is no handler.js".to_owned(),
                });
            };
            // `@scope/name` is a file called `name`.
            let name = manifest["name"]
                .as_str()
                .and_then(|name| name.rsplit('/').next())
                .map_or_else(folder_name, str::to_owned);
            return Ok(Some(Project { name, language: Language::JavaScript, folder, entry: Some(entry) }));
        }
        if let Some(entry) = first(&JAVASCRIPT_ENTRIES[..3]) {
            return Ok(Some(Project {
                name: folder_name(),
                language: Language::JavaScript,
                folder,
                entry: Some(entry),
            }));
        }
        if let Some(entry) = first(&PYTHON_ENTRIES) {
            let manifest = path.join("pyproject.toml");
            let named = if manifest.is_file() { toml_file(&manifest)? } else { toml::Table::new() };
            let name = named.get("project").and_then(|project| project.get("name")?.as_str()).map(str::to_owned);
            let name = name.unwrap_or_else(folder_name);
            return Ok(Some(Project { name, language: Language::Python, folder, entry: Some(entry) }));
        }
        Ok(None)
    }

    /// `handlers/` beside the nearest `sprag.toml`, from the project upwards; else the project's own folder.
    pub fn default_out(&self) -> PathBuf {
        self.folder
            .ancestors()
            .find(|folder| folder.join("sprag.toml").is_file())
            .map_or_else(|| self.folder.clone(), |folder| folder.join("handlers"))
    }

    /// Changes whenever a source file of the project, the contract or the compiler does. Packages from a registry count through
    /// their lock file, path dependencies of a Rust project by their files.
    pub fn inputs_digest(&self, compiler: &str) -> Result<String, Error> {
        let mut folders = BTreeSet::from([self.folder.clone()]);
        if self.language == Language::Rust {
            add_path_dependencies(&self.folder, &mut folders)?;
        }
        let mut files = BTreeMap::new();
        for folder in &folders {
            collect_files(folder, &mut BTreeSet::new(), &mut files)?;
        }
        let mut hash = Sha256::new();
        for part in [compiler, crate::embedded::CONTRACT, &self.name] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        for (path, file_digest) in files {
            hash.update(path.as_os_str().as_encoded_bytes());
            hash.update([0]);
            hash.update(file_digest);
        }
        Ok(hex(&hash.finalize()))
    }
}

/// Copies a project's sources, links resolved: into a sandbox that a compiler sees nothing outside of.
pub(crate) fn copy_sources(from: &Path, to: &Path) -> Result<(), Error> {
    let mut files = BTreeMap::new();
    collect_files(from, &mut BTreeSet::new(), &mut files)?;
    for file in files.keys() {
        let target = to.join(file.strip_prefix(from).expect("files are collected below the folder"));
        let doing = || format!("copying {}", file.display());
        fs::create_dir_all(target.parent().expect("a file lies in a folder")).doing(doing)?;
        fs::copy(file, target).doing(doing)?;
    }
    Ok(())
}

/// Hexadecimal SHA-256.
pub(crate) fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes every write");
        text
    })
}

fn is_source(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    !name.starts_with('.') && !NOT_SOURCE.contains(&&*name)
}

/// Links are followed: samples link to the SDK. `above` holds the folders on the way here, so that a link upwards ends.
fn collect_files(
    folder: &Path,
    above: &mut BTreeSet<PathBuf>,
    files: &mut BTreeMap<PathBuf, Vec<u8>>,
) -> Result<(), Error> {
    let real = fs::canonicalize(folder).doing(|| format!("reading {}", folder.display()))?;
    if !above.insert(real.clone()) {
        return Ok(());
    }
    for entry in fs::read_dir(folder).doing(|| format!("reading {}", folder.display()))? {
        let path = entry.doing(|| format!("reading {}", folder.display()))?.path();
        if !is_source(&path) {
            continue;
        }
        if path.is_dir() {
            collect_files(&path, above, files)?;
        } else if path.is_file() && path.extension().is_none_or(|extension| extension != "wasm") {
            let content = fs::read(&path).doing(|| format!("reading {}", path.display()))?;
            files.insert(path, Sha256::digest(&content).to_vec());
        }
    }
    above.remove(&real);
    Ok(())
}

fn add_path_dependencies(folder: &Path, folders: &mut BTreeSet<PathBuf>) -> Result<(), Error> {
    let manifest = rust_manifest(folder)?;
    for table in ["dependencies", "build-dependencies"] {
        let dependencies = manifest.get(table).and_then(toml::Value::as_table).into_iter().flatten();
        for path in dependencies.filter_map(|(_, dependency)| dependency.get("path")?.as_str()) {
            // A wrong path is Cargo's to report, with its own good message.
            if let Ok(dependency) = fs::canonicalize(folder.join(path))
                && folders.insert(dependency.clone())
            {
                add_path_dependencies(&dependency, folders)?;
            }
        }
    }
    Ok(())
}

fn rust_manifest(folder: &Path) -> Result<toml::Table, Error> {
    toml_file(&folder.join("Cargo.toml"))
}

fn toml_file(file: &Path) -> Result<toml::Table, Error> {
    read(file).and_then(|text| toml::from_str(&text).map_err(|error| not_readable(file, &error)))
}

fn read(file: &Path) -> Result<String, Error> {
    fs::read_to_string(file).doing(|| format!("reading {}", file.display()))
}

fn not_readable(file: &Path, error: &dyn std::error::Error) -> Error {
    Error::NotAHandler { handler: file.display().to_string(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        folder
    }

    #[test]
    fn a_folder_of_projects_gives_each_language_once_and_skips_what_is_none() {
        let folder = folder(&[
            ("orders/Cargo.toml", "[package]\nname = \"orders\""),
            ("payments/package.json", r#"{"name": "@shop/payments", "main": "pay.js"}"#),
            ("payments/pay.js", ""),
            ("shipping/handler.py", ""),
            ("plain/handler.js", ""),
            ("notes/readme.md", ""),
            ("target/handler.py", ""),
        ]);
        let found: Vec<String> = Project::find(folder.path())
            .unwrap()
            .iter()
            .map(|project| format!("{} {}", project.name, project.language))
            .collect();
        assert_eq!(found, ["orders rust", "payments javascript", "plain javascript", "shipping python"]);
    }

    #[test]
    fn a_single_file_is_a_project_named_after_it() {
        let folder = folder(&[("pay.js", ""), ("notes.txt", "")]);
        let found = Project::find(&folder.path().join("pay.js")).unwrap();
        assert_eq!((found[0].name.as_str(), found[0].language), ("pay", Language::JavaScript));
        let none = Project::find(&folder.path().join("notes.txt")).unwrap_err();
        assert!(none.to_string().contains("there is no handler in"), "{none}");
    }

    #[test]
    fn a_folder_without_a_handler_says_what_was_expected() {
        let folder = folder(&[]);
        let error = Project::find(folder.path()).unwrap_err().to_string();
        assert!(error.contains("expected a folder with Cargo.toml, package.json"), "{error}");
        let gone = Project::find(&folder.path().join("gone")).unwrap_err().to_string();
        assert!(gone.contains("looking for a handler in"), "{gone}");
    }

    #[test]
    fn the_digest_sees_sources_links_and_path_dependencies_and_ignores_what_is_built() {
        let folder = folder(&[
            ("h/Cargo.toml", "[package]\nname = \"h\"\n[dependencies]\nsdk = { path = \"../sdk\" }"),
            ("h/src/lib.rs", "one"),
            ("sdk/Cargo.toml", "[package]\nname = \"sdk\"\n[dependencies]\nh = { path = \"../h\" }"),
            ("sdk/src/lib.rs", "one"),
        ]);
        let project = Project::find(&folder.path().join("h")).unwrap().remove(0);
        let digest = || project.inputs_digest("compiler 1").unwrap();
        let first = digest();
        assert_eq!(digest(), first);

        fs::write(folder.path().join("h/h.wasm"), "built").unwrap();
        fs::create_dir(folder.path().join("h/target")).unwrap();
        fs::write(folder.path().join("h/target/x"), "built").unwrap();
        assert_eq!(digest(), first, "what is built is no source");

        fs::write(folder.path().join("sdk/src/lib.rs"), "two").unwrap();
        let second = digest();
        assert_ne!(second, first, "a path dependency counts");
        std::os::unix::fs::symlink("..", folder.path().join("h/up")).unwrap();
        assert_ne!(digest(), second, "a link is followed, and one upwards ends");
        assert_ne!(project.inputs_digest("compiler 2").unwrap(), digest());
    }

    #[test]
    fn the_default_place_is_handlers_beside_the_nearest_configuration() {
        let folder = folder(&[("sprag.toml", ""), ("src/orders/handler.py", ""), ("src/orders/x", "")]);
        let project = Project::find(&folder.path().join("src/orders")).unwrap().remove(0);
        assert_eq!(project.default_out(), fs::canonicalize(folder.path()).unwrap().join("handlers"));
    }

    #[test]
    fn c_is_refused_with_what_there_is() {
        let error = "c".parse::<Language>().unwrap_err().to_string();
        assert!(error.contains("not supported") && error.contains("rust, javascript and python"), "{error}");
        assert!("cobol".parse::<Language>().unwrap_err().to_string().contains("rust, javascript and python"));
        assert!("http".parse::<Import>().unwrap_err().to_string().contains("state, sql and config"));
    }
}
