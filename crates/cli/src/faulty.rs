//! `lockkeeper-faulty`: the same program with a bug planted in it (`LOCKKEEPER_PLANTED`), for the fault suites to find.
//!
//! Built only with the feature `planted`. It must never be installed anywhere, and never stand where `lockkeeper` is looked for.

mod args;
mod commands;
mod failure;
mod hold;
mod output;
mod program;
mod supervise;

use std::process::ExitCode;

/// As the program that it stands in for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match lockkeeper_planted::from_env() {
        Ok(Some(bug)) => eprintln!("lockkeeper-faulty: planted {bug}"),
        Ok(None) => {}
        Err(unknown) => {
            eprintln!("lockkeeper-faulty: {unknown}");
            return ExitCode::from(failure::EXIT_USAGE);
        }
    }
    program::run()
}
