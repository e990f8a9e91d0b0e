//! Job control: the foreground process group of the terminal, the only one that can read the keyboard.
//!
//! CMD has a group of its own, so the terminal is handed to it as a shell hands it to a job. Where both standard input
//! and output are the terminal, CMD may be interactive and has the foreground from the start. Otherwise others of
//! lockkeeper's own group, such as a script or a pager, may need it, and CMD gets it when it asks for it: the kernel
//! then stops CMD. lockkeeper itself is never stopped by the terminal, because a stopped lockkeeper renews nothing.

use std::fs::File;
use std::io::{IsTerminal, stdin, stdout};

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The controlling terminal, whatever the standard streams are.
fn controlling() -> Option<File> {
    File::options().read(true).write(true).open("/dev/tty").ok()
}

/// The terminal's foreground group, if there is a terminal.
pub(super) fn foreground() -> Option<Pid> {
    tcgetpgrp(controlling()?).ok()
}

/// Gives the foreground to a group. This process must not be stopped for it; see [`never_stop`].
pub(super) fn set_foreground(group: Pid) {
    if let Some(terminal) = controlling() {
        // Fails only if the terminal or the group is gone.
        let _ = tcsetpgrp(terminal, group);
    }
}

/// Whether CMD has the foreground from the start.
pub(super) fn is_for_command() -> bool {
    stdin().is_terminal() && stdout().is_terminal() && foreground() == Some(getpgrp())
}

fn stops() -> SigSet {
    SigSet::from_iter([Signal::SIGTTIN, Signal::SIGTTOU])
}

/// Blocks the signals by which the terminal stops a background group, in this thread and those that it starts.
pub(crate) fn never_stop() {
    // Fails only for an unknown signal or mask.
    let _ = stops().thread_block();
}

/// The reverse of [`never_stop`].
pub(super) fn may_stop() {
    let _ = stops().thread_unblock();
}
