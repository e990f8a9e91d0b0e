//! The terminal's foreground: a command in a group of its own can read the keyboard only if its group has it.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// Standard input, if it is a terminal whose foreground this process has.
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

/// A process in the background that changes the foreground is stopped with SIGTTOU unless it blocks that.
pub(crate) fn set_foreground(group: Pid) {
    let mut stop = SigSet::empty();
    stop.add(Signal::SIGTTOU);
    if stop.thread_block().is_ok() {
        // A terminal that has gone needs no foreground.
        let _ = tcsetpgrp(std::io::stdin().as_fd(), group);
        let _ = stop.thread_unblock();
    }
}
