//! The contract and the SDKs, carried in the binary: nothing is published anywhere, so what a new project needs comes from here.

/// `wit/handler.wit`.
pub(crate) const CONTRACT: &str = include_str!("../../../wit/handler.wit");

/// A file of an SDK: its path in the SDK's folder, and its text.
pub(crate) type File = (&'static str, &'static str);

macro_rules! files {
    ($folder:literal: $($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../../guests/", $folder, "/", $path)))),*]
    };
}

pub(crate) const RUST: &[File] = files!("rust":
    "Cargo.toml", "src/lib.rs", "src/message.rs", "src/outcome.rs", "src/outgoing.rs", "src/context.rs", "src/log.rs", "src/config.rs",
    "src/memory.rs", "src/sql.rs",
    "src/state.rs", "wit/handler.wit",
);

pub(crate) const JAVASCRIPT: &[File] = files!("javascript/sprag":
    "index.js", "index.d.ts", "sql.js", "sql.d.ts", "state.js", "state.d.ts", "config.js", "config.d.ts",
);

pub(crate) const PYTHON: &[File] = files!("python/sprag":
    "__init__.py", "context.py", "log.py", "config.py", "sql.py", "state.py",
);

/// A world of its own: the handler's, and these imports.
pub(crate) fn world(world: &str, package: &str, imports: &[crate::Import]) -> String {
    let imports: String = imports.iter().map(|import| format!("  import sprag:handler/{import}@0.1.0;\n")).collect();
    format!(
        "package handlers:{};\n\nworld {world} {{\n  include sprag:handler/handler@0.1.0;\n{imports}}}\n",
        wit_name(package)
    )
}

/// WIT wants words that begin with a letter, joined by single hyphens. Names of folders may be anything.
fn wit_name(name: &str) -> String {
    let words: Vec<String> = name
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| word.starts_with(|first: char| first.is_ascii_alphabetic()))
        .map(str::to_ascii_lowercase)
        .collect();
    // The `%` lets a word be a keyword.
    if words.is_empty() { "unnamed".to_owned() } else { format!("%{}", words.join("-")) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Every file of the SDKs is carried: a forgotten one would only be missed by a user of `sprag new`.
    #[test]
    fn every_file_of_the_sdks_is_embedded() {
        let guests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests");
        for (folder, embedded) in
            [("rust/src", RUST), ("rust/wit", RUST), ("javascript/sprag", JAVASCRIPT), ("python/sprag", PYTHON)]
        {
            let prefix = folder.strip_prefix("rust/").map(|folder| format!("{folder}/")).unwrap_or_default();
            let there: BTreeSet<String> = fs::read_dir(guests.join(folder))
                .unwrap()
                .map(|entry| entry.unwrap())
                .filter(|entry| entry.path().is_file())
                .map(|entry| format!("{prefix}{}", entry.file_name().to_string_lossy()))
                .collect();
            let carried = embedded.iter().map(|(path, _)| (*path).to_owned());
            let carried: BTreeSet<String> = carried
                .filter(|path| path.starts_with(&prefix) && (!prefix.is_empty() || !path.contains('/')))
                .collect();
            assert_eq!(carried, there, "{folder}");
        }
    }

    #[test]
    fn a_world_is_named_whatever_the_folder_is_called() {
        for name in ["orders", "My Orders 2", "interface", "2024", "a--b_c"] {
            let text = world("guest", name, &[crate::Import::State]);
            let mut resolve = wit_parser::Resolve::default();
            resolve.push_str("handler.wit", CONTRACT).unwrap();
            resolve.push_str("world.wit", &text).unwrap_or_else(|error| panic!("{name}: {error:#}\n{text}"));
        }
    }
}
