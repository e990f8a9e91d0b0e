//! The step between lockkeeper and CMD: this process has its own group already; it ties its life to lockkeeper's, takes the
//! terminal if there is one, and becomes CMD.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid};

use super::terminal::set_foreground;
use crate::args::Exec;
use crate::failure::{EXIT_INTERNAL, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, Failure};

/// Becomes the command; returns only if that fails.
pub(crate) fn run(exec: &Exec) -> Failure {
    if let Err(e) = set_pdeathsig(Signal::SIGKILL) {
        return Failure::new(EXIT_INTERNAL, format!("cannot tie CMD to lockkeeper: {e}"));
    }
    // It may have died before the line above.
    if getppid().as_raw() != exec.parent {
        return Failure::silent(EXIT_INTERNAL);
    }
    if exec.foreground {
        set_foreground(getpid());
    }
    let Some((program, arguments)) = exec.command.split_first() else {
        return Failure::new(EXIT_INTERNAL, "no command given");
    };
    let error = Command::new(program).args(arguments).exec();
    let name = program.to_string_lossy();
    match error.kind() {
        ErrorKind::NotFound => Failure::new(EXIT_NOT_FOUND, format!("command not found: {name}")),
        _ => Failure::new(EXIT_NOT_EXECUTABLE, format!("cannot execute {name}: {error}")),
    }
}
