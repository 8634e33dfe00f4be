//! Rust: a core module by Cargo, wrapped here.
//!
//! The usual toolchain has a standard library for WebAssembly, by `rustup target add`. Where none can be had (Debian's packages have
//! none; rustup may have no network) the standard library's source is compiled along, which needs its sources and a linker.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::toolbox::{find_program, run};
use crate::{Doing, Error, Progress, Project, Report, Toolbox, component};

/// A Rust toolchain that can compile for WebAssembly.
pub(crate) struct Toolchain {
    /// None: whatever `PATH` and rustup say in the project's folder.
    bin: Option<PathBuf>,
    target: &'static str,
    /// The standard library is compiled along, by this linker unless the toolchain has its own.
    build_std: Option<Option<String>>,
    version: String,
}

const TARGETS: [&str; 2] = ["wasm32-unknown-unknown", "wasm32-wasip2"];
const LINKERS: [&str; 7] =
    ["wasm-ld", "wasm-ld-21", "wasm-ld-20", "wasm-ld-19", "wasm-ld-18", "wasm-ld-17", "wasm-ld-16"];

impl Toolchain {
    pub(crate) fn find(folder: &Path) -> Result<Toolchain, Error> {
        let on_path = find_program("rustc").map(|_| None);
        let debian = Path::new("/usr/bin/rustc").is_file().then(|| Some(PathBuf::from("/usr/bin")));
        let candidates: Vec<Option<PathBuf>> = on_path.into_iter().chain(debian).collect();
        for bin in &candidates {
            for target in TARGETS {
                let Some(library) = rustc(bin.as_deref(), folder, &["--print", "target-libdir", "--target", target])
                else {
                    continue;
                };
                if Path::new(&library).is_dir() {
                    return Ok(Toolchain {
                        version: version(bin.as_deref(), folder),
                        bin: bin.clone(),
                        target,
                        build_std: None,
                    });
                }
            }
        }
        for bin in candidates {
            let Some(sysroot) = rustc(bin.as_deref(), folder, &["--print", "sysroot"]) else { continue };
            let library = Path::new(&sysroot).join("lib/rustlib");
            let sources = library.join("src/rust/library/std/Cargo.toml").is_file();
            let host = rustc(bin.as_deref(), folder, &["--print", "host-tuple"]).unwrap_or_default();
            let own_linker = library.join(host).join("bin/rust-lld").is_file();
            let linker = LINKERS.iter().find(|linker| find_program(linker).is_some());
            if sources && (own_linker || linker.is_some()) {
                let linker = if own_linker { None } else { linker.map(|linker| linker.to_string()) };
                let version = version(bin.as_deref(), folder);
                return Ok(Toolchain { bin, target: TARGETS[0], build_std: Some(linker), version });
            }
        }
        Err(Error::MissingTool {
            tool: "A Rust toolchain that compiles for WebAssembly",
            needed_for: "handlers in Rust",
            get: "Get it by `rustup target add wasm32-unknown-unknown` (rustup is at https://rustup.rs), or on Debian without rustup's \
                  network by `apt-get install --no-install-recommends rustc-web cargo-web rust-web-src lld-19`."
                .to_owned(),
        })
    }

    /// Lets Cargo write the lock file that the first build would write: it is one of the inputs.
    pub(crate) fn lock_versions(&self, project: &Project, report: Report<'_>) -> Result<(), Error> {
        if project.folder.join("Cargo.lock").is_file() {
            return Ok(());
        }
        let mut command = self.cargo(&project.folder);
        command.args(["metadata", "--format-version", "1"]);
        run(&format!("{}: cargo metadata", project.name), &mut command, report).map(drop)
    }

    pub(crate) fn version(&self) -> String {
        format!("{} {} {:?}", self.version, self.target, self.build_std)
    }

    pub(crate) fn compile(&self, project: &Project, toolbox: &Toolbox, report: Report<'_>) -> Result<Vec<u8>, Error> {
        let name = &project.name;
        // Two packages of one name share the place of their result, so one is built and read at a time.
        let _one_at_a_time = toolbox.lock("rust")?;
        let target_folder = toolbox.rust_target();
        let first = self.build_std.is_some() && !target_folder.join(self.target).is_dir();
        let hint = if first { " (with the standard library, this once: some minutes)" } else { "" };
        report(Progress::Step(&format!("{name}: compiling Rust for {}{hint}", self.target)));

        let mut command = self.cargo(&project.folder);
        command.args([
            "build",
            "--release",
            "--lib",
            "--target",
            self.target,
            "--message-format",
            "json-render-diagnostics",
        ]);
        command.arg("--target-dir").arg(&target_folder);
        if let Some(linker) = &self.build_std {
            command.env("RUSTC_BOOTSTRAP", "1").args(["-Z", "build-std=std,panic_abort"]);
            if let Some(linker) = linker {
                command.arg("--config").arg(format!("target.{}.linker={linker:?}", self.target));
            }
        }
        let messages = run(&format!("{name}: cargo build"), &mut command, report)?;
        let Some(artifact) = wasm_artifact(&messages, &project.folder) else {
            return Err(Error::NotAHandler {
                handler: name.clone(),
                reason: "Cargo made no .wasm file: Cargo.toml needs `[lib]` with `crate-type = [\"cdylib\"]`"
                    .to_owned(),
            });
        };
        let module = fs::read(&artifact).doing(|| format!("reading {}", artifact.display()))?;
        remove_artifact(&artifact)?;
        component::wrap(name, module)
    }

    fn cargo(&self, folder: &Path) -> Command {
        let mut command = match &self.bin {
            Some(bin) => {
                let mut command = Command::new(bin.join("cargo"));
                command.env("RUSTC", bin.join("rustc"));
                command
            }
            None => Command::new("cargo"),
        };
        // Flags that are meant for the host (and those of a `cargo test` around us) are not meant for the guest.
        for variable in
            ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET", "CARGO_TARGET_DIR", "RUSTC_WRAPPER"]
        {
            command.env_remove(variable);
        }
        command.current_dir(folder);
        command
    }
}

/// What this `rustc` prints, or none if it cannot.
fn rustc(bin: Option<&Path>, folder: &Path, arguments: &[&str]) -> Option<String> {
    let program = bin.map_or_else(|| PathBuf::from("rustc"), |bin| bin.join("rustc"));
    let output = Command::new(program).args(arguments).current_dir(folder).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn version(bin: Option<&Path>, folder: &Path) -> String {
    rustc(bin, folder, &["--version"]).unwrap_or_default()
}

/// The package's `.wasm` in Cargo's messages: the last one, since it is compiled last.
fn wasm_artifact(messages: &str, folder: &Path) -> Option<PathBuf> {
    let manifest = folder.join("Cargo.toml");
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| {
            message["reason"] == "compiler-artifact"
                && message["manifest_path"].as_str().map(Path::new) == Some(&manifest)
        })
        .flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default())
        .filter_map(|file| file.as_str().map(PathBuf::from))
        .rfind(|file| file.extension().is_some_and(|extension| extension == "wasm"))
}

/// Cargo gives a cdylib no hash in its name: another package of that name would overwrite it, and Cargo would still call it fresh.
/// Without the files it links again, which is quick.
fn remove_artifact(artifact: &Path) -> Result<(), Error> {
    let name = artifact.file_name().expect("an artifact is a file");
    let in_deps = artifact.with_file_name("deps").join(name);
    for file in [artifact, &in_deps] {
        if file.exists() {
            fs::remove_file(file).doing(|| format!("removing {}", file.display()))?;
        }
    }
    Ok(())
}
