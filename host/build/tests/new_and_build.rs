//! `new` and `build` with the real compilers: what a user gets who types the two commands.

#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the answer")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use sprag_build::{Built, Error, Import, Language, Progress, Toolbox, build, new};
use wit_component::DecodedWasm;
use wit_parser::{WorldItem, WorldKey};

/// The tools that `./x` fetches; a bare `cargo test` shares them.
fn toolbox() -> Toolbox {
    let folder = env::var_os("SPRAG_TOOLS").map(PathBuf::from);
    Toolbox::new(folder.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.work/tools"))).unwrap()
}

fn build_one(folder: &Path) -> Result<(Built, Vec<String>), Error> {
    let mut steps = Vec::new();
    let mut report = |progress: Progress<'_>| {
        if let Progress::Step(text) = progress {
            steps.push(text.to_owned());
        }
    };
    let built = build(&[folder.to_owned()], None, &toolbox(), &mut report)?.remove(0);
    Ok((built, steps))
}

/// Makes a project and builds it twice. Answers the Sprag interfaces that it imports.
fn new_builds(name: &str, language: Language, with: &[Import]) -> BTreeSet<String> {
    let parent = tempfile::tempdir().unwrap();
    let folder = new(parent.path(), name, language, with).unwrap();

    let (first, _) = build_one(&folder).unwrap_or_else(|error| panic!("{error}"));
    let file = fs::canonicalize(&folder).unwrap().join(format!("handlers/{name}.wasm"));
    assert_eq!((first.name.as_str(), &first.file, first.unchanged), (name, &file, false));
    assert_eq!(first.bytes, fs::metadata(&file).unwrap().len());
    let files: Vec<_> =
        fs::read_dir(folder.join("handlers")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files.iter().filter(|name| *name != ".gitkeep").count(), 1, "nothing else lies beside it: {files:?}");
    assert_exports(&file);

    let (again, steps) = build_one(&folder).unwrap();
    assert!(again.unchanged, "{steps:?}");
    assert_eq!(again.imports, first.imports);

    first.imports.into_iter().filter(|import| import.starts_with("sprag:")).collect()
}

fn assert_exports(file: &Path) {
    let DecodedWasm::Component(resolve, world) = wit_component::decode(&fs::read(file).unwrap()).unwrap() else {
        panic!("{} is no component", file.display());
    };
    for (export, parameters) in [("describe", 0), ("handle", 1)] {
        match resolve.worlds[world].exports.get(&WorldKey::Name(export.to_owned())) {
            Some(WorldItem::Function(function)) => assert_eq!(function.params.len(), parameters, "{export}"),
            other => panic!("{export}: {other:?}"),
        }
    }
}

fn interfaces(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| format!("sprag:handler/{name}@0.1.0")).collect()
}

/// A Rust component imports what it calls: the template logs, and the SDK's world names more than that.
#[test]
fn rust() {
    assert_eq!(new_builds("greeter-plain", Language::Rust, &[]), interfaces(&["log", "types"]));
    let with = new_builds("greeter-with", Language::Rust, &[Import::State, Import::Config]);
    assert_eq!(with, interfaces(&["config", "log", "state", "types"]));
}

#[test]
fn javascript() {
    let with = new_builds("greeter-js", Language::JavaScript, &[Import::State]);
    assert_eq!(with, interfaces(&["context", "log", "outgoing", "state", "types"]));
}

#[test]
fn python() {
    let with = new_builds("greeter-py", Language::Python, &[Import::Config]);
    assert_eq!(with, interfaces(&["config", "context", "log", "outgoing", "types"]));
}

/// Two packages of one name share Cargo's result files; each must get its own component.
#[test]
fn two_rust_handlers_of_one_name_do_not_get_each_others_component() {
    let parent = tempfile::tempdir().unwrap();
    let make = |place: &str, event_type: &str| {
        let folder = new(&parent.path().join(place), "twin", Language::Rust, &[]).unwrap();
        let source = folder.join("src/lib.rs");
        fs::write(&source, fs::read_to_string(&source).unwrap().replace("\"Greeting\"", &format!("\"{event_type}\"")))
            .unwrap();
        folder
    };
    let (a, b) = (make("a", "EventThatOnlyTheFirstTakes"), make("b", "EventThatOnlyTheSecondTakes"));
    let content = |folder: &Path| {
        let bytes = fs::read(build_one(folder).unwrap().0.file).unwrap();
        let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        (has("EventThatOnlyTheFirstTakes"), has("EventThatOnlyTheSecondTakes"))
    };
    assert_eq!(content(&a), (true, false));
    assert_eq!(content(&b), (false, true));
    assert!(build_one(&a).unwrap().0.unchanged);
    fs::write(a.join("src/more.rs"), "").unwrap();
    assert_eq!(content(&a), (true, false), "Cargo has nothing to compile for it, and the file there is the other's");
}

#[test]
fn an_error_in_the_source_is_shown_with_its_place_and_the_old_component_stays() {
    let parent = tempfile::tempdir().unwrap();
    for (language, source, broken, place) in [
        (Language::Rust, "src/lib.rs", "fn broken( {", "src/lib.rs:"),
        (Language::JavaScript, "handler.js", "const broken = ;", "handler.js:"),
        (Language::Python, "handler.py", "import no_such_module", "no_such_module"),
    ] {
        let folder = new(parent.path(), &format!("broken-{language}"), language, &[]).unwrap();
        let old = folder.join(format!("handlers/broken-{language}.wasm"));
        fs::write(&old, "old").unwrap();
        let text = fs::read_to_string(folder.join(source)).unwrap();
        fs::write(folder.join(source), format!("{text}\n{broken}\n")).unwrap();
        let error = build_one(&folder).unwrap_err();
        assert!(matches!(error, Error::Step { .. }), "{error}");
        assert!(error.to_string().contains(place), "{error}");
        assert_eq!(fs::read_to_string(&old).unwrap(), "old");
    }
}

#[test]
fn a_rust_library_that_exports_no_handler_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let folder = new(parent.path(), "nothing", Language::Rust, &[]).unwrap();
    fs::write(folder.join("src/lib.rs"), "//! Nothing.\n").unwrap();
    let error = build_one(&folder).unwrap_err().to_string();
    assert!(error.starts_with("nothing is no handler: "), "{error}");
}

/// The child of the next test: builds with a `PATH` on which nothing is.
#[test]
fn without_tools_child() {
    let Some(folder) = env::var_os("SPRAG_BUILD_WITHOUT_TOOLS") else { return };
    println!("the error: {}", build_one(Path::new(&folder)).unwrap_err());
}

#[test]
fn a_missing_tool_is_named_with_the_way_to_get_it() {
    let parent = tempfile::tempdir().unwrap();
    for (language, tool, way) in [
        (Language::JavaScript, "Node.js is missing", "https://nodejs.org"),
        (Language::Python, "Python is missing", "apt-get install python3-venv"),
    ] {
        let folder = new(parent.path(), &format!("lonely-{language}"), language, &[]).unwrap();
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "without_tools_child", "--nocapture"])
            .env("SPRAG_BUILD_WITHOUT_TOOLS", &folder)
            .env("PATH", parent.path())
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&child.stdout);
        let error =
            printed.lines().find_map(|line| line.split("the error: ").nth(1)).unwrap_or_else(|| panic!("{printed}"));
        assert!(error.starts_with(tool) && error.contains(way), "{error}");
    }
}
