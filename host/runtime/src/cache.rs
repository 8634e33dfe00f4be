//! Compiled code on disk, so that a component is compiled once per machine and engine.
//!
//! Compiled code is native code: whoever can write here can run anything in the host's name. So the folder must belong to the host's
//! user and be closed to all others, and that is looked at through the open folder itself, not through its name.

use std::{
    fs::File,
    hash::{Hash as _, Hasher as _},
    io::{self, Read as _, Write as _},
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};
use sprag_core::ids::Digest;
use wasmtime::{Engine, component::Component};

/// Why a folder cannot hold compiled code.
#[derive(Debug, thiserror::Error)]
#[error("compiled code cannot be kept in {}: {why}", path.display())]
pub struct FolderError {
    pub path: PathBuf,
    pub why: String,
}

/// The folder, open.
pub(crate) struct Cache {
    path: PathBuf,
    folder: OwnedFd,
}

impl Cache {
    pub(crate) fn open(path: &Path) -> Result<Self, FolderError> {
        let refuse = |why: String| FolderError { path: path.to_owned(), why };
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|error| refuse(error.to_string()))?;
        }
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(refuse(error.to_string())),
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR => refuse("it is not a folder itself (a symlink or a file)".into()),
            error => refuse(error.to_string()),
        })?;
        let stat = rustix::fs::fstat(&folder).map_err(|error| refuse(error.to_string()))?;
        trusted(&stat)
            .map_err(|why| refuse(format!("{why}; give it to the host's user alone (chmod 700) or choose another")))?;
        Ok(Self { path: path.to_owned(), folder })
    }

    /// The compiled code of the component with this digest, if it is here and whole.
    pub(crate) fn load(&self, engine: &Engine, digest: Digest) -> Option<Component> {
        let name = entry_name(engine, digest);
        let file = match self.open_file(&name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => return self.distrust(&name, &error.to_string()),
        };
        match self.sum_of(&name) {
            Ok(expected) => match sum(&file) {
                Ok(found) if found == expected => {}
                Ok(_) => return self.distrust(&name, "it is not what was written"),
                Err(error) => return self.distrust(&name, &error.to_string()),
            },
            Err(error) => return self.distrust(&name, &format!("its checksum cannot be read: {error}")),
        }
        // By descriptor: the very file that was looked at, whatever has become of its name.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        #[expect(unsafe_code, reason = "compiled code is loaded from the host's own folder only; the argument follows")]
        // SAFETY: `deserialize_file` runs what the file says as native code and needs it to come from `Component::serialize` of a
        // compatible engine, unchanged. Only `store` below writes into this folder, by rename of a file it has written whole; the
        // folder and the file belong to this process's user and no other user can write to either (checked through the open
        // descriptors, by `open` and `open_file`); the checksum catches what accidents leave behind; and wasmtime itself checks
        // version and settings, which are part of the name as well. Somebody who acts as this user can replace the host anyway.
        let loaded = unsafe { Component::deserialize_file(engine, &path) };
        match loaded {
            Ok(component) => Some(component),
            Err(error) => self.distrust(&name, &format!("{error:#}")),
        }
    }

    /// Keeps compiled code. A failure costs the next start a compilation and nothing else.
    pub(crate) fn store(&self, engine: &Engine, digest: Digest, component: &Component) {
        let name = entry_name(engine, digest);
        let write = || -> Result<(), String> {
            let code = component.serialize().map_err(|error| error.to_string())?;
            let mut sums = Sums::default();
            sums.add(&code);
            // The sum first: an entry without its sum is not trusted, a sum without its entry does no harm.
            self.replace(&format!("{name}.sum"), sums.finish().to_string().as_bytes())
                .map_err(|error| error.to_string())?;
            self.replace(&name, &code).map_err(|error| error.to_string())
        };
        if let Err(error) = write() {
            tracing::warn!("compiled code was not kept in {}: {error}", self.path.display());
        }
    }

    fn open_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.folder, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("not a file"));
        }
        trusted(&stat).map_err(io::Error::other)?;
        Ok(File::from(file))
    }

    fn sum_of(&self, name: &str) -> io::Result<u64> {
        let mut text = String::new();
        self.open_file(&format!("{name}.sum"))?.take(64).read_to_string(&mut text)?;
        text.trim().parse().map_err(io::Error::other)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = format!("{name}.{}.{:?}.tmp", std::process::id(), std::thread::current().id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&self.folder, &temporary, flags, Mode::RUSR | Mode::WUSR)?);
        let written = file.write_all(bytes);
        let renamed = written.and_then(|()| Ok(rustix::fs::renameat(&self.folder, &temporary, &self.folder, name)?));
        if renamed.is_err() {
            // Best effort: what counts is the error that led here.
            _ = rustix::fs::unlinkat(&self.folder, &temporary, AtFlags::empty());
        }
        renamed
    }

    fn distrust(&self, name: &str, why: &str) -> Option<Component> {
        tracing::warn!("compiled code {name} in {} is not used: {why}; compiling again", self.path.display());
        None
    }
}

fn trusted(stat: &rustix::fs::Stat) -> Result<(), String> {
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(format!("it belongs to user {}", stat.st_uid));
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(format!("others can write to it (mode {:o})", stat.st_mode & 0o7777));
    }
    Ok(())
}

fn entry_name(engine: &Engine, digest: Digest) -> String {
    let mut hash = Fnv::default();
    engine.precompile_compatibility_hash().hash(&mut hash);
    format!("{digest}-{:016x}.cwasm", hash.finish())
}

/// FNV-1a: the same in every build of the host, which the standard library's hasher does not promise.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl std::hash::Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

fn sum(file: &File) -> io::Result<u64> {
    let mut reader = file;
    let (mut sums, mut buffer) = (Sums::default(), vec![0; 1 << 18]);
    loop {
        // Whole buffers but for the last, so that the sum does not depend on how the reads fall.
        let mut filled = 0;
        while filled < buffer.len() {
            match reader.read(&mut buffer[filled..])? {
                0 => break,
                read => filled += read,
            }
        }
        sums.add(&buffer[..filled]);
        if filled < buffer.len() {
            return Ok(sums.finish());
        }
    }
}

/// Against accidents (a full disk, a torn write), not against attackers: several gigabytes a second, since Python's code alone has 35 MB.
#[derive(Default)]
struct Sums {
    lanes: [u64; 4],
    len: u64,
}

impl Sums {
    fn add(&mut self, bytes: &[u8]) {
        const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;
        self.len += bytes.len() as u64;
        let mut blocks = bytes.chunks_exact(32);
        for block in &mut blocks {
            for (lane, word) in self.lanes.iter_mut().zip(block.chunks_exact(8)) {
                let word = u64::from_le_bytes(word.try_into().expect("eight bytes make a word"));
                *lane = (*lane ^ word).wrapping_mul(PRIME).rotate_left(29);
            }
        }
        for byte in blocks.remainder() {
            self.lanes[0] = (self.lanes[0] ^ u64::from(*byte)).wrapping_mul(PRIME).rotate_left(29);
        }
    }

    fn finish(&self) -> u64 {
        let mut all = Fnv::default();
        for lane in self.lanes {
            all.write(&lane.to_le_bytes());
        }
        all.write(&self.len.to_le_bytes());
        all.finish()
    }
}
