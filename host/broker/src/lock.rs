//! One process per data folder.
//!
//! The lock is the kernel's (`flock`), held by an open file: it goes with its process however that ends, so nothing has to be cleaned up
//! after a `SIGKILL`, and it sits on the file itself, so a second way to the same folder (a symlink, a shared volume) meets it too. The
//! text inside only serves the message to the one who comes second.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read as _, Seek as _, Write as _},
    path::{Path, PathBuf},
};

use sprag_core::time::Timestamp;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{holder}")]
    Held { holder: String },
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

/// Held until it is dropped.
#[derive(Debug)]
pub(crate) struct FolderLock {
    _file: File,
}

impl FolderLock {
    pub(crate) fn take(folder: &Path, now: Timestamp) -> Result<Self, Error> {
        let path = folder.join("engine.lock");
        let io = |source| Error::Io { path: path.clone(), source };
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // Without its text the holder is still a holder; it may be between taking the lock and writing its name.
                let _ = file.read_to_string(&mut holder);
                let holder = holder.trim();
                let holder = if holder.is_empty() { "a process that has just started" } else { holder };
                return Err(Error::Held { holder: holder.to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        let name = format!("process {} (started {now})\n", std::process::id());
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(name.as_bytes())).map_err(io)?;
        Ok(Self { _file: file })
    }
}
