//! Compiled code on disk.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use sprag_core::run::End;
use sprag_runtime::{Handler, HandlerConfig, Runtime, RuntimeConfig};

use crate::support::*;

fn with_cache(folder: &Path) -> Result<Runtime, sprag_runtime::Error> {
    let cache_dir = Some(folder.to_owned());
    Runtime::new(RuntimeConfig { cache_dir, max_instances: 10, max_kept: 0, ..RuntimeConfig::default() })
}

fn load_noop(folder: &Path) -> std::sync::Arc<Handler> {
    load(&with_cache(folder).unwrap(), "noop", HandlerConfig::default())
}

fn entry(folder: &Path, end: &str) -> std::path::PathBuf {
    let mut entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.to_string_lossy().ends_with(end)).expect("an entry")
}

#[tokio::test]
async fn code_is_compiled_once() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("deep").join("cache");
    assert!(!load_noop(&folder).cached());
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    let handler = load_noop(&folder);
    assert!(handler.cached());
    assert_eq!(run(&handler, "").await.end, End::Done);
}

#[tokio::test]
async fn what_is_damaged_is_compiled_again() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("cache");
    load_noop(&folder);
    let log = log();
    let code = entry(&folder, ".cwasm");
    let whole = fs::read(&code).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for (what, bytes) in
        [("a bit", &flipped[..]), ("half", &whole[..whole.len() / 2]), ("nothing", b""), ("text", b"hello")]
    {
        fs::write(&code, bytes).unwrap();
        let handler = load_noop(&folder);
        assert!(!handler.cached(), "{what}");
        assert_eq!(run(&handler, "").await.end, End::Done);
        assert_eq!(fs::read(&code).unwrap().len(), whole.len(), "{what}: written anew");
        assert!(load_noop(&folder).cached(), "{what}");
    }
    assert_eq!(log.lines_with("is not used").len(), 4);
    fs::remove_file(entry(&folder, ".sum")).unwrap();
    assert!(!load_noop(&folder).cached());
}

/// Whoever can write here can run anything in the host's name.
#[test]
fn a_folder_others_can_write_to_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("cache");
    load_noop(&folder);
    for mode in [0o777, 0o720, 0o702] {
        fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
        let Err(error) = with_cache(&folder) else { panic!("mode {mode:o} was accepted") };
        let text = error.to_string();
        assert!(text.contains("others can write") && text.contains("chmod 700"), "{text}");
    }
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    let link = root.path().join("link");
    std::os::unix::fs::symlink(&folder, &link).unwrap();
    assert!(with_cache(&link).is_err(), "a link could be pointed elsewhere");
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(with_cache(&file).is_err());

    // A single file that others can write to is not trusted either.
    fs::set_permissions(entry(&folder, ".cwasm"), fs::Permissions::from_mode(0o666)).unwrap();
    assert!(!load_noop(&folder).cached());
}

#[test]
fn somebody_elses_folder_is_refused() {
    // Only root can make one; without root there is nothing to test.
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("cache");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    if std::os::unix::fs::chown(&folder, Some(12_345), None).is_err() {
        return;
    }
    let Err(error) = with_cache(&folder) else { panic!("it was accepted") };
    assert!(error.to_string().contains("belongs to user 12345"), "{error}");
}
