//! Job control: the foreground process group of the terminal, the only one that can read the keyboard.
//!
//! CMD has a group of its own, so the terminal is handed to it as a shell hands it to a job. Where both standard input
//! and output are the terminal, CMD may be interactive and has the foreground from the start. Otherwise others of
//! lockkeeper's own group, such as a script or a pager, may need it, and CMD gets it when it asks for it: the kernel
//! then stops CMD. In the same way they get it back when they ask for it. lockkeeper itself is never stopped by the
//! terminal, because a stopped lockkeeper renews nothing.

use std::fs::File;
use std::io::{self, IsTerminal, stdin, stdout};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::unistd::{Pid, getpgid, getpgrp, getppid, tcgetpgrp, tcsetpgrp};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::time::sleep;

/// Least time between two returns of the terminal, and between looks at who has it: two programs that ask in turns must
/// not keep a processor busy.
const BETWEEN_RETURNS: Duration = Duration::from_millis(50);
/// After Ctrl-Z, pauses between the signals that continue the others: one that handles the key, as pagers do, stops
/// itself a little later, and no process but its parent learns when.
const BETWEEN_CONTINUES: [Duration; 3] =
    [Duration::from_millis(20), Duration::from_millis(100), Duration::from_millis(500)];

/// The controlling terminal, whatever the standard streams are.
fn controlling() -> Option<File> {
    File::options().read(true).write(true).open("/dev/tty").ok()
}

/// The terminal's foreground group, if there is a terminal.
pub(super) fn foreground() -> Option<Pid> {
    tcgetpgrp(controlling()?).ok()
}

/// Gives the foreground to a group. In the background the kernel stops the caller, unless by [`never_stop`].
pub(super) fn set_foreground(group: Pid) {
    if let Some(terminal) = controlling() {
        // Fails only if the terminal or the group is gone.
        let _ = tcsetpgrp(terminal, group);
    }
}

/// Whether CMD asks for the foreground before it starts.
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

/// Gives the foreground to this process's own group, and continues those of the group that were stopped for it.
pub(super) fn reclaim() {
    set_foreground(getpgrp());
    continue_group();
}

fn continue_group() {
    // This process is of the group, so it exists.
    let _ = killpg(getpgrp(), Signal::SIGCONT);
}

/// The requests of this process's own group for the terminal. When one of the group uses the terminal from the
/// background, the kernel sends SIGTTIN or SIGTTOU to the whole group: the others stop, and here the signal is pending.
pub(super) fn requests() -> io::Result<Receiver> {
    let requests = SignalFd::with_flags(&stops(), SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    // It is read as a pipe is.
    Receiver::from_owned_fd_unchecked(requests.into())
}

/// Takes the terminal back from CMD's group whenever one of this process's own group asks for it. Ends only by an
/// error.
pub(super) async fn return_on(mut requests: Receiver, leader: Pid) -> io::Result<()> {
    let mut signals = [0; 2 * size_of::<siginfo>()];
    while requests.read(&mut signals).await? > 0 {
        // A third group may be that of another job of the shell around, or of a job of CMD. The own group has the
        // foreground if it was given back just then.
        while foreground().is_some_and(|group| group != leader && group != getpgrp()) {
            sleep(BETWEEN_RETURNS).await;
        }
        reclaim();
        sleep(BETWEEN_RETURNS).await;
    }
    Ok(())
}

/// After Ctrl-Z, which this process has refused: continues the others of a pipeline. The shell around waits for all of
/// its processes, so nobody else would. A script around is stopped too, which the shell sees: it takes the terminal,
/// and `fg` continues all.
pub(crate) async fn continue_pipeline() {
    if getpgid(Some(getppid())) == Ok(getpgrp()) {
        return;
    }
    continue_group();
    for pause in BETWEEN_CONTINUES {
        sleep(pause).await;
        continue_group();
    }
}
