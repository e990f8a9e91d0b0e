//! `lockkeeper`: the one binary. It serves a node, runs commands under locks, and shows and changes what a cluster holds.
//!
//! It must never hold state of its own that matters, never print a secret, and never leave a process running that it
//! started to hold a lock.

mod args;
mod commands;
mod failure;
mod hold;
mod output;
mod program;
mod supervise;

use std::process::ExitCode;

/// A node allocates for each message of each peer and client; a fifth of its processor time went into the system's
/// allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    #[cfg(mutants)]
    if let Err(unknown) = lockkeeper_mutants::start("lockkeeper") {
        eprintln!("lockkeeper: {unknown}");
        return ExitCode::from(failure::EXIT_USAGE);
    }
    program::run()
}
