//! The terminal's foreground process group: only this group can read the keyboard.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// Standard input, and whether it is a terminal with this process in the foreground.
pub(crate) struct Terminal {
    ours: bool,
}

impl Terminal {
    pub(crate) fn find() -> Self {
        let stdin = std::io::stdin();
        Self { ours: stdin.is_terminal() && tcgetpgrp(stdin.as_fd()).is_ok_and(|group| group == getpgrp()) }
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.ours
    }

    pub(crate) fn give_to(&self, group: Pid) {
        if self.ours {
            set_foreground(group);
        }
    }

    pub(crate) fn take_back(&self) {
        self.give_to(getpgrp());
    }
}

/// Blocks SIGTTOU, which would otherwise stop a background process that changes the foreground.
pub(crate) fn set_foreground(group: Pid) {
    let mut stop = SigSet::empty();
    stop.add(Signal::SIGTTOU);
    if stop.thread_block().is_ok() {
        // Fails only if the terminal is gone.
        let _ = tcsetpgrp(std::io::stdin().as_fd(), group);
        let _ = stop.thread_unblock();
    }
}
