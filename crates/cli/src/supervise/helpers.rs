//! The two helper processes of a supervised command, both this same binary.
//!
//! `__exec` is CMD before it becomes CMD: it has its own group, ties its life to lockkeeper's, asks for the terminal if
//! there is one, and executes CMD. `__guard` runs beside lockkeeper and kills CMD's group when lockkeeper is gone, or
//! frozen past the latest deadline. The guard reads lines: a deadline on the machine's clock in milliseconds, or
//! `done`. End of input without `done` means that lockkeeper was killed. A second guard, without deadlines, is a member
//! of CMD's group while CMD has the terminal; see `Supervised::signal_probe`.

use std::io::{BufRead, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};

use lockkeeper_client::Moment;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getpid, getppid};

use super::{MAX_SLEEP, terminal};
use crate::args::Exec;
use crate::failure::{EXIT_INTERNAL, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_OK, Failure};

/// `__exec`: executes the command; returns only if that fails.
pub(crate) fn exec(exec: &Exec) -> Failure {
    if let Err(e) = set_pdeathsig(Signal::SIGKILL) {
        return Failure::new(EXIT_INTERNAL, format!("cannot tie CMD to lockkeeper: {e}"));
    }
    // lockkeeper may have died before the call above.
    if getppid().as_raw() != exec.parent {
        return Failure::silent(EXIT_INTERNAL);
    }
    terminal::may_stop();
    if exec.foreground {
        // Stops this process until lockkeeper has given it; see `Supervised::offer_terminal`.
        terminal::set_foreground(getpid());
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

/// `__guard`: waits for `done`, or kills the group.
pub(crate) fn guard(group: i32) -> Result<u8, Failure> {
    // 0 means the caller's own group, and 1 is init.
    if group <= 1 {
        return Err(Failure::usage("not a valid process group"));
    }
    let (sender, lines) = mpsc::sync_channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let mut deadline = None;
    loop {
        let left = deadline.map(|deadline| Moment::now().until(deadline));
        if left.is_some_and(|left| left.is_zero()) {
            break;
        }
        match lines.recv_timeout(left.unwrap_or(MAX_SLEEP).min(MAX_SLEEP)) {
            Ok(line) if line == "done" => return Ok(EXIT_OK),
            Ok(line) => deadline = line.parse().ok().map(Moment::from_millis).or(deadline),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    // ESRCH: the group has ended.
    let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    Ok(EXIT_OK)
}
