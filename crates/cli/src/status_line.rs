//! One line on the terminal of standard error that is drawn over itself.
//!
//! Only while this process is in the terminal's foreground: a line of a background process would destroy the prompt.

use std::io::{IsTerminal, Write, stderr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use lockkeeper_api::text::printable;
use nix::unistd::{getpgrp, tcgetpgrp};
use terminal_size::{Width, terminal_size_of};

/// Moves to the line's beginning and erases the line.
const ERASE: &str = "\r\x1b[K";

/// Whether the line is on the screen, for all that prints there.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// The line; erased when dropped.
#[derive(Default)]
pub(crate) struct StatusLine(());

impl StatusLine {
    /// Draws the text, cut to the terminal's width; false if there is no terminal for it.
    pub(crate) fn draw(&mut self, text: &str) -> bool {
        let terminal = stderr();
        let is_dumb = std::env::var_os("TERM").is_none_or(|name| name == "dumb");
        let is_ours = || tcgetpgrp(terminal.as_fd()).is_ok_and(|group| group == getpgrp());
        if is_dumb || !terminal.is_terminal() || !is_ours() {
            return false;
        }
        let columns = terminal_size_of(&terminal).map_or(80, |(Width(columns), _)| usize::from(columns));
        let cut: String = printable(text).chars().take(columns.saturating_sub(1)).collect();
        IS_SHOWN.store(true, Ordering::Relaxed);
        // The terminal may be gone.
        let _ = write!(&terminal, "{ERASE}{cut}");
        true
    }

    /// Erases the line.
    pub(crate) fn clear(&mut self) {
        erase();
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        erase();
    }
}

/// Makes room for another text on standard error.
pub(crate) fn erase() {
    if IS_SHOWN.swap(false, Ordering::Relaxed) {
        let _ = write!(stderr(), "{ERASE}");
    }
}
