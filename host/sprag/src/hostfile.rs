//! `.sprag/host.json`: where a running host can be reached, for the other verbs. Only its owner can read it.

use std::{
    fs, io,
    io::Write as _,
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

const FOLDER: &str = ".sprag";
const FILE: &str = "host.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostFile {
    /// `http://127.0.0.1:8080`.
    pub address: String,
    pub token: String,
    pub pid: u32,
    /// Where Service Bus clients find it: AMQP in the clear, and the administration API.
    #[serde(default)]
    pub amqp: Option<SocketAddr>,
    #[serde(default)]
    pub administration: Option<SocketAddr>,
}

/// A written file; it goes away with this value unless another host has written its own meanwhile.
#[derive(Debug)]
pub(crate) struct Written {
    path: PathBuf,
    content: HostFile,
}

impl HostFile {
    /// Writes the file for a host that runs `folder`, whole or not at all.
    pub(crate) fn write(self, folder: &Path) -> io::Result<Written> {
        let folder = folder.join(FOLDER);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let mut file = tempfile::Builder::new()
            .prefix(".host.")
            .permissions(fs::Permissions::from_mode(0o600))
            .tempfile_in(&folder)?;
        let text = serde_json::to_string_pretty(&self).map_err(io::Error::other)?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        let path = folder.join(FILE);
        file.persist(&path).map_err(|error| error.error)?;
        Ok(Written { path, content: self })
    }

    /// The file of the nearest folder upwards that has one.
    pub(crate) fn find(from: &Path) -> io::Result<Option<(PathBuf, Self)>> {
        let from = from.canonicalize()?;
        for folder in from.ancestors() {
            let path = folder.join(FOLDER).join(FILE);
            match fs::read_to_string(&path) {
                Ok(text) => {
                    let file = serde_json::from_str(&text).map_err(|error| {
                        io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()))
                    })?;
                    return Ok(Some((path, file)));
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
            }
        }
        Ok(None)
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let ours = fs::read_to_string(&self.path)
            .ok()
            .and_then(|text| serde_json::from_str::<HostFile>(&text).ok())
            .is_some_and(|file| file == self.content);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            anstream::eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Random bytes in hex: tokens and message ids.
pub(crate) fn random_hex(bytes: usize) -> String {
    use std::fmt::Write as _;
    let mut buffer = vec![0; bytes];
    getrandom::fill(&mut buffer).expect("the system gives random bytes");
    buffer.iter().fold(String::with_capacity(bytes * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(token: &str) -> HostFile {
        HostFile {
            address: "http://127.0.0.1:1".to_owned(),
            token: token.to_owned(),
            pid: 1,
            amqp: None,
            administration: None,
        }
    }

    #[test]
    fn only_the_owner_can_read_it_and_it_is_found_from_below() {
        let folder = tempfile::tempdir().expect("a folder");
        let below = folder.path().join("a/b");
        fs::create_dir_all(&below).expect("folders");
        let written = file("t").write(folder.path()).expect("written");
        let mode = fs::metadata(&written.path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let (_, found) = HostFile::find(&below).expect("readable").expect("there");
        assert_eq!(found, file("t"));
        drop(written);
        assert!(HostFile::find(&below).expect("readable").is_none(), "gone after a clean exit");
    }

    #[test]
    fn another_hosts_file_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = file("first").write(folder.path()).expect("written");
        let _second = file("second").write(folder.path()).expect("written");
        drop(first);
        let (_, found) = HostFile::find(folder.path()).expect("readable").expect("there");
        assert_eq!(found.token, "second");
    }
}
