//! The `sprag` command: everything that a person or a script does with Sprag.
//!
//! Start reading at [`cli`]: the verbs and their arguments. [`verbs`] has a module for each family of them; [`client`] speaks to a running
//! host; [`config`] is `sprag.toml`. Results go to stdout and everything else to stderr; how a verb ended is its exit code
//! ([`failure::Exit`]).

mod cli;
mod client;
mod config;
mod failure;
mod host;
mod hostfile;
mod namespaces;
mod output;
mod verbs;

use std::process::ExitCode;

use clap::Parser as _;

/// Messages are made by one thread and dropped by another: glibc's allocator pays for that with locks and fragments (a sixth of the throughput of
/// `./x bench`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match verbs::run(cli) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            failure.report();
            failure.exit.into()
        }
    }
}
