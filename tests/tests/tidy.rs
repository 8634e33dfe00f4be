//! What keeps the repository readable, as far as a program can tell.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
}

/// Files below a folder, without what is built or installed.
fn files(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("readable").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("our names are UTF-8");
            match path.is_dir() {
                true if name.starts_with('.')
                    || ["target", "node_modules", "dist", "out", "__pycache__"].contains(&name) => {}
                true => folders.push(path),
                false => found.push(path),
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no files below {folder}");
    found
}

fn named(path: &Path) -> String {
    path.strip_prefix(root()).expect("below the root").display().to_string()
}

fn ends_with(path: &Path, endings: &[&str]) -> bool {
    path.extension().and_then(|ending| ending.to_str()).is_some_and(|ending| endings.contains(&ending))
}

/// Our crates in a section of a manifest.
fn ours(manifest: &str, section: &str) -> BTreeSet<String> {
    let mut within = false;
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            within = line.trim() == section;
        } else if within && let Some(rest) = line.strip_prefix("sprag-") {
            found.insert(rest.split(['.', ' ', '=']).next().expect("split gives one").to_owned());
        }
    }
    found
}

/// `ARCHITECTURE.md`: knowledge goes one way. An edge that is not here does not come in without being written down there.
#[test]
fn crates_know_only_what_the_architecture_says() {
    let may: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("amqp", &[][..]),
        ("core", &[][..]),
        ("store", &["core"]),
        ("databases", &["core", "store"]),
        ("transport", &["core", "store"]),
        ("broker", &["core", "store", "transport"]),
        ("messages", &["amqp", "core"]),
        ("gateway", &["core", "broker", "amqp", "messages"]),
        ("servicebus", &["amqp", "core", "messages", "transport"]),
        ("runtime", &["core"]),
        ("worker", &["core", "store", "transport", "runtime"]),
        ("console", &["core"]),
        ("build", &[]),
        (
            "sprag",
            &[
                "core",
                "store",
                "transport",
                "broker",
                "gateway",
                "runtime",
                "worker",
                "console",
                "build",
                "servicebus",
                "databases",
            ],
        ),
    ]);
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("readable");
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(root().join("host")).expect("readable") {
        let path = entry.expect("readable").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_owned();
        let Ok(manifest) = fs::read_to_string(path.join("Cargo.toml")) else { continue };
        let allowed = may
            .get(name.as_str())
            .unwrap_or_else(|| panic!("host/{name} is new: say here and in ARCHITECTURE.md what it may know"));
        assert!(architecture.contains(&format!("`host/{name}`")), "ARCHITECTURE.md does not name host/{name}");
        for other in ours(&manifest, "[dependencies]") {
            assert!(allowed.contains(&other.as_str()), "host/{name} must not know host/{other}");
        }
        seen.insert(name);
    }
    assert_eq!(seen.len(), may.len(), "a crate of the table is not there: {seen:?}");
}

/// Long files, each with the reason why it is one.
const LONG: [(&str, &str); 0] = [];

#[test]
fn no_file_is_longer_than_800_lines() {
    for folder in ["host", "guests/rust", "guests/test", "guests/conformance", "tests"] {
        for path in files(folder) {
            if !ends_with(&path, &["rs", "js", "py"]) || LONG.iter().any(|(name, _)| *name == named(&path)) {
                continue;
            }
            let lines = fs::read_to_string(&path).expect("readable").lines().count();
            assert!(lines <= 800, "{} has {lines} lines: cut it, or list it with a reason", named(&path));
        }
    }
}

#[test]
fn nothing_is_left_for_later() {
    // Written in two parts, so that this file does not find itself.
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("to", "do!("),
        concat!("unimplemented", "!("),
        concat!("#[ig", "nore"),
    ];
    for folder in [
        "host",
        "guests/rust",
        "guests/javascript",
        "guests/python",
        "guests/test",
        "guests/conformance",
        "samples",
        "tests",
        "wit",
        "docs",
    ] {
        for path in files(folder) {
            if !ends_with(&path, &["rs", "js", "py", "md", "toml", "wit", "sql"]) {
                continue;
            }
            // The rules of the suite that another's client cannot keep, each ignored by name and with its reason.
            if named(&path) == "host/servicebus/tests/azservicebus.rs" {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            for (number, line) in text.lines().enumerate() {
                let found = marks.iter().find(|mark| line.contains(**mark));
                assert_eq!(found, None, "{}:{}: {line}", named(&path), number + 1);
            }
        }
    }
}

/// Targets of `[text](target)` in Markdown.
fn links(text: &str) -> Vec<&str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect()
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let mut documents = files("docs");
    documents.extend(files("samples"));
    documents.extend(files("guests/conformance"));
    documents.extend(["README.md", "ARCHITECTURE.md"].map(|name| root().join(name)));
    let mut checked = 0;
    for path in documents.iter().filter(|path| ends_with(path, &["md"])) {
        let text = fs::read_to_string(path).expect("readable");
        for link in links(&text).into_iter().filter(|link| !link.contains("://") && !link.starts_with('#')) {
            let target =
                path.parent().expect("a file has a folder").join(link.split('#').next().expect("split gives one"));
            assert!(target.exists(), "{} links to {link}, which is not there", named(path));
            checked += 1;
        }
    }
    assert!(checked >= 8, "the links were looked at: {checked}");
}

/// Paths of this repository that the texts name in backquotes exist.
#[test]
fn files_that_the_documents_name_exist() {
    for document in ["README.md", "ARCHITECTURE.md", "docs/protocol.md"] {
        let text = fs::read_to_string(root().join(document)).expect("readable");
        for (n, piece) in text.split('`').enumerate() {
            let path = n % 2 == 1
                && ["host/", "tests/", "guests/", "docs/", "samples/", "wit/"]
                    .iter()
                    .any(|start| piece.starts_with(start));
            if path && !piece.contains(['{', '*', ' ', '$']) {
                assert!(root().join(piece).exists(), "{document} names {piece}, which is not there");
            }
        }
    }
}

/// Each error that the host can name has its page, and each page says something.
#[test]
fn every_error_code_has_a_page() {
    let pages: BTreeSet<String> =
        files("docs/errors").iter().filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    for path in files("host").iter().filter(|path| ends_with(path, &["rs"])) {
        let text = fs::read_to_string(path).expect("readable");
        for piece in text.split("SPR0").skip(1) {
            let digits: String = piece.chars().take(3).collect();
            if digits.len() == 3 && digits.chars().all(|digit| digit.is_ascii_digit()) {
                let code = format!("SPR0{digits}");
                assert!(pages.contains(&code), "{} names {code}, which has no page in docs/errors", named(path));
            }
        }
    }
}

/// `docs/promises.md` names tests that are there.
#[test]
fn every_promise_names_tests_that_exist() {
    let text = fs::read_to_string(root().join("docs/promises.md")).expect("readable");
    let mut file = String::new();
    let mut checked = 0;
    for (n, piece) in text.split('`').enumerate().filter(|(n, _)| n % 2 == 1) {
        if piece.ends_with(".rs") {
            file = fs::read_to_string(root().join(piece))
                .unwrap_or_else(|error| panic!("docs/promises.md names {piece}: {error}"));
        } else if piece.contains('_') {
            assert!(
                file.contains(&format!("fn {piece}(")),
                "docs/promises.md names the test {piece} (piece {n}), which is not in the file named before it"
            );
            checked += 1;
        }
    }
    assert!(checked > 15, "the names were looked at: {checked}");
}
