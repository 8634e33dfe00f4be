//! A new handler's project, which builds and runs as it is.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::embedded::{self, File};
use crate::{Doing, Error, Import, Language};

const README: &str = include_str!("../templates/README.md");
const SPRAG_TOML: &str = include_str!("../templates/sprag.toml");
const GITIGNORE: &str = "/handlers/*.wasm\n/.sprag\ntarget\nnode_modules\n__pycache__\n.venv\n";

/// Writes a handler's project into the folder `name` under `parent`, and answers that folder.
pub fn new(parent: &Path, name: &str, language: Language, with: &[Import]) -> Result<PathBuf, Error> {
    check_name(name)?;
    let folder = parent.join(name);
    match fs::read_dir(&folder) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                return Err(Error::NotEmpty(folder));
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) if error.kind() == ErrorKind::NotADirectory => return Err(Error::NotEmpty(folder)),
        Err(source) => return Err(Error::Io { doing: format!("looking at {}", folder.display()), source }),
    }

    let with: Vec<Import> = BTreeSet::from_iter(with.iter().copied()).into_iter().collect();
    let write = |path: &str, text: &str| {
        let file = folder.join(path);
        let doing = || format!("writing {}", file.display());
        fs::create_dir_all(file.parent().expect("files lie in the project's folder")).doing(doing)?;
        fs::write(&file, text).doing(doing)
    };
    let sdk =
        |into: &str, files: &[File]| files.iter().try_for_each(|(path, text)| write(&format!("{into}/{path}"), text));
    let fill = |template: &str| fill(template, name, &with);

    match language {
        Language::Rust => {
            write("Cargo.toml", &fill(include_str!("../templates/rust/Cargo.toml")))?;
            write("src/lib.rs", &fill(include_str!("../templates/rust/lib.rs")))?;
            sdk("sprag-handler", embedded::RUST)?;
        }
        Language::JavaScript => {
            write("package.json", &fill(include_str!("../templates/javascript/package.json")))?;
            write("handler.js", &fill(include_str!("../templates/javascript/handler.js")))?;
            sdk("sprag", embedded::JAVASCRIPT)?;
        }
        Language::Python => {
            write("handler.py", &fill(include_str!("../templates/python/handler.py")))?;
            sdk("sprag", embedded::PYTHON)?;
        }
    }
    // The Rust SDK brings its world with it, and its features choose the imports.
    if language != Language::Rust {
        write("wit/world.wit", &embedded::world("guest", name, &with))?;
        write("wit/deps/sprag-handler/handler.wit", embedded::CONTRACT)?;
    }
    write("sprag.toml", &fill(SPRAG_TOML))?;
    write("README.md", &fill(README).replace("{{source}}", source(language)).replace("{{sdk}}", sdk_text(language)))?;
    write(".gitignore", GITIGNORE)?;
    write("handlers/.gitkeep", "")?;
    Ok(folder)
}

fn source(language: Language) -> &'static str {
    match language {
        Language::Rust => "src/lib.rs",
        Language::JavaScript => "handler.js",
        Language::Python => "handler.py",
    }
}

fn sdk_text(language: Language) -> &'static str {
    match language {
        Language::Rust => {
            "`sprag-handler/` is the Rust SDK with the contract in its `wit/`. Its features `state`, `sql` and `config`, in `Cargo.toml`, add those imports."
        }
        Language::JavaScript => {
            "`sprag/` is the JavaScript SDK. `wit/world.wit` names the imports; `wit/deps` holds the contract. Packages that you install with npm are bundled in. `Date`, `Math.random` and `console.log` \
             work; there is no `fetch` and nothing of Node."
        }
        Language::Python => {
            "`sprag/` is the Python SDK. `wit/world.wit` names the imports; `wit/deps` holds the contract. Pure Python packages in the project's `.venv` are found."
        }
    }
}

/// Lines that end in `{{state}}`, `{{sql}}`, `{{config}}`, `{{no-state}}` and so on, or `{{granted}}`, stay only if that fits; the mark goes.
fn fill(template: &str, name: &str, with: &[Import]) -> String {
    let grants: Vec<&str> = [(Import::State, "\"state\""), (Import::Sql, "\"sql:embedded\"")]
        .into_iter()
        .filter_map(|(import, grant)| with.contains(&import).then_some(grant))
        .collect();
    let mut text = String::new();
    'lines: for line in template.lines() {
        let mut line = line.to_owned();
        for import in [Import::State, Import::Sql, Import::Config] {
            for (mark, wanted) in [(format!("{{{{{import}}}}}"), true), (format!("{{{{no-{import}}}}}"), false)] {
                if let Some(rest) = line.strip_suffix(&mark) {
                    if with.contains(&import) != wanted {
                        continue 'lines;
                    }
                    line = rest.trim_end().to_owned();
                }
            }
        }
        if let Some(rest) = line.strip_suffix("{{granted}}") {
            if grants.is_empty() {
                continue;
            }
            line = rest.trim_end().to_owned();
        }
        text.push_str(&line);
        text.push('\n');
    }
    let quoted: Vec<String> = with.iter().map(|import| format!("\"{import}\"")).collect();
    text.replace("{{name}}", name).replace("{{features}}", &quoted.join(", ")).replace("{{grants}}", &grants.join(", "))
}

/// A name that is good as a package, a file, a queue and an endpoint, on every system and in every language.
fn check_name(name: &str) -> Result<(), Error> {
    let refused = |reason| Err(Error::Name { name: name.to_owned(), reason });
    if name.is_empty() || name.len() > 64 {
        return refused("it must have 1 to 64 characters");
    }
    if !name.starts_with(|first: char| first.is_ascii_lowercase()) {
        return refused("it must begin with a lower-case letter, a to z");
    }
    if !name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-') {
        return refused("only a to z, 0 to 9 and hyphens are allowed");
    }
    if name.split('-').any(str::is_empty) {
        return refused("a hyphen must stand between two words");
    }
    if RESERVED.contains(&name) {
        return refused("it is a reserved word or the name of a library");
    }
    Ok(())
}

/// Names that Cargo refuses for a package or that hide a module the handler needs.
const RESERVED: [&str; 62] = [
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "build",
    "con",
    "config",
    "const",
    "continue",
    "core",
    "crate",
    "deps",
    "do",
    "dyn",
    "else",
    "enum",
    "examples",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "incremental",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "nul",
    "override",
    "priv",
    "pub",
    "ref",
    "return",
    "self",
    "serde",
    "sprag",
    "sprag-handler",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "trait",
    "true",
    "try",
    "type",
    "unsafe",
    "use",
    "where",
    "while",
    "yield",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Project;

    #[test]
    fn names_that_break_somewhere_are_refused_with_the_reason() {
        for (name, reason) in [
            ("", "1 to 64"),
            (&*"a".repeat(65), "1 to 64"),
            ("Orders", "lower-case"),
            ("1st", "lower-case"),
            ("../up", "lower-case"),
            ("my orders", "hyphens"),
            ("bestellungen-ä", "hyphens"),
            ("orders--two", "between two words"),
            ("orders-", "between two words"),
            ("test", "reserved"),
        ] {
            let error = check_name(name).unwrap_err().to_string();
            assert!(error.contains(reason), "{name:?}: {error}");
        }
        for name in ["orders", "orders-2", "a"] {
            check_name(name).unwrap();
        }
    }

    #[test]
    fn an_existing_folder_is_refused_unless_it_is_empty() {
        let parent = tempfile::tempdir().unwrap();
        fs::create_dir(parent.path().join("empty")).unwrap();
        new(parent.path(), "empty", Language::Python, &[]).unwrap();
        let again = new(parent.path(), "empty", Language::Python, &[]).unwrap_err().to_string();
        assert!(again.ends_with("empty exists and is not empty"), "{again}");
        fs::write(parent.path().join("file"), "").unwrap();
        assert!(new(parent.path(), "file", Language::Rust, &[]).unwrap_err().to_string().contains("exists"));
    }

    #[test]
    fn a_new_project_is_found_under_its_name_and_has_no_mark_of_a_template_left() {
        for language in [Language::Rust, Language::JavaScript, Language::Python] {
            for with in [
                &[][..],
                &[Import::State],
                &[Import::Sql],
                &[Import::Config, Import::State, Import::Sql, Import::State],
            ] {
                let parent = tempfile::tempdir().unwrap();
                let folder = new(parent.path(), "orders", language, with).unwrap();
                let found = Project::find(&folder).unwrap().remove(0);
                assert_eq!((found.name.as_str(), found.language), ("orders", language));
                assert_eq!(found.default_out().file_name().unwrap(), "handlers");
                for file in ["sprag.toml", "README.md", source(language)] {
                    let text = fs::read_to_string(folder.join(file)).unwrap();
                    assert!(!text.contains("{{"), "{file}: {text}");
                    assert!(text.contains("orders"), "{file} names the handler: {text}");
                }
                let configuration: toml::Table =
                    toml::from_str(&fs::read_to_string(folder.join("sprag.toml")).unwrap()).unwrap();
                let handler = &configuration["handler"]["orders"];
                assert_eq!(handler.get("config").is_some(), with.contains(&Import::Config));
                let granted = with.contains(&Import::State) || with.contains(&Import::Sql);
                assert_eq!(handler.get("grant").is_some(), granted);
                let mode = configuration["endpoint"][0]["inbox"]["mode"].as_str();
                assert_eq!(mode == Some("transaction"), with.contains(&Import::Sql));
            }
        }
    }
}
