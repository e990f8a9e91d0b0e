//! Runs a command in a process group of its own and ensures that the whole group is dead by the deadline.
//!
//! Three mechanisms ensure it: this process signals the group; the parent-death signal kills CMD when this process is
//! killed; and a guard process kills the group when this process is gone, frozen or late.

pub(crate) mod helpers;
pub(crate) mod terminal;

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use lockkeeper_client::Moment;
use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, killpg};
use nix::unistd::{Pid, getpgrp, getpid};
use rustix::process::{WaitOptions, WaitStatus, wait};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::failure::{EXIT_INTERNAL, Failure, exit_code_of_signal, print_error, wants_json};
use crate::signals::is_pending;
use terminal::{foreground, set_foreground};

/// Interval at which a killed group is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Longest sleep between looks at the clock and at CMD: timers do not count the time that a machine is suspended.
const MAX_SLEEP: Duration = Duration::from_millis(500);
/// The same while CMD waits for the terminal: nothing reports that lockkeeper's group got it.
const MAX_SLEEP_FOR_TERMINAL: Duration = Duration::from_millis(50);

/// A running command.
pub(crate) struct Supervised {
    /// The lockkeeper command, for messages.
    of: &'static str,
    /// CMD's process, the leader of its group.
    leader: Pid,
    ended: Option<Exit>,
    /// Its standard output, if it is piped.
    pub(crate) stdout: Option<ChildStdout>,
    guard: Child,
    terminal: TerminalUse,
    /// Takes the terminal back for lockkeeper's own group.
    returning: AbortHandle,
    /// A member of CMD's group since CMD has had the terminal. It has all signals blocked, so that what the keyboard
    /// sends to the group stays pending in it, and what CMD sends to itself alone does not.
    signal_probe: Option<Child>,
}

/// What CMD has to do with the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TerminalUse {
    /// It has not asked for it.
    None,
    /// It was stopped, because it asked from the background; `reported` to the user.
    Awaited { reported: bool },
    /// It has got it.
    Given,
}

/// How CMD ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exit {
    /// Its exit code, as a shell reports it.
    pub(crate) code: u8,
    /// The signal that killed it; it may be a real-time signal.
    pub(crate) signal: Option<i32>,
    /// The signal came from the keyboard, which sends it to CMD's whole group, and not to lockkeeper's.
    pub(crate) from_keyboard: bool,
}

impl Supervised {
    /// Runs `command` in a group of its own with these environment variables; those without a value are unset. Call
    /// this from a thread that lives as long as the process: the parent-death signal follows the thread. Without a
    /// deadline the guard kills the group only when this process is gone. Call it in a runtime.
    pub(crate) fn start(
        of: &'static str,
        command: &[OsString],
        variables: &[(&str, Option<String>)],
        deadline: Option<Moment>,
        stdout: Stdio,
    ) -> Result<Self, Failure> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |e: std::io::Error| Failure::new(EXIT_INTERNAL, format!("cannot {what}: {e}"))
        };
        let requests = terminal::requests().map_err(failed("receive the signals of the terminal"))?;
        // Adopt orphans of the group, so that this process can wait for all of them.
        set_child_subreaper(true).map_err(|e| failed("adopt orphans")(e.into()))?;
        let mut exec = itself();
        exec.args(["__exec", "--of", of, "--parent", &getpid().to_string()]);
        let mut terminal = TerminalUse::None;
        if terminal::is_for_command() {
            exec.arg("--foreground");
            terminal = TerminalUse::Given;
        }
        if wants_json() {
            exec.arg("--json");
        }
        exec.arg("--").args(command).process_group(0).stdout(stdout);
        for (name, value) in variables {
            match value {
                Some(value) => exec.env(name, value),
                None => exec.env_remove(name),
            };
        }
        let mut child = exec.spawn().map_err(failed("start a process"))?;
        let leader = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
        let guard = match guard(leader).process_group(0).spawn() {
            Ok(guard) => guard,
            Err(e) => {
                let _ = killpg(leader, Signal::SIGKILL);
                return Err(failed("start the guard process")(e));
            }
        };
        let returning = tokio::spawn(terminal::return_on(requests, leader)).abort_handle();
        let stdout = child.stdout.take();
        let mut supervised = Self { of, stdout, leader, ended: None, guard, terminal, returning, signal_probe: None };
        if let Some(deadline) = deadline {
            supervised.set_guard_deadline(deadline);
        }
        Ok(supervised)
    }

    /// Tells the guard until when the group may run without another message.
    pub(crate) fn set_guard_deadline(&mut self, deadline: Moment) {
        self.write_guard(&deadline.as_millis().to_string());
    }

    fn write_guard(&mut self, line: &str) {
        let written = self.guard.stdin.as_mut().map(|stdin| writeln!(stdin, "{line}"));
        if let Some(Err(_)) = written {
            self.guard.stdin = None;
            self.report("the guard process is gone; if lockkeeper is killed now, only CMD itself dies with it");
        }
    }

    /// Sends a signal to the whole group.
    pub(crate) fn signal(&self, signal: Signal) {
        // ESRCH: the group has ended, which `reap` will notice.
        let _ = killpg(self.leader, signal);
        // A stopped process ends only once it runs again.
        if matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT) {
            let _ = killpg(self.leader, Signal::SIGCONT);
        }
    }

    /// Reaps ended children and looks after CMD's need of the terminal. Returns how CMD ended once it has.
    pub(crate) fn reap(&mut self) -> Option<Exit> {
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == self.leader.as_raw() => self.note(status),
                // Its number may be another process's soon.
                Ok(Some((pid, status))) if !status.stopped() => {
                    self.signal_probe.take_if(|probe| i64::from(probe.id()) == i64::from(pid.as_raw_nonzero().get()));
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => break,
                // CMD is no child any more, so it has ended; how it did is lost.
                Err(_) => {
                    self.ended.get_or_insert(Exit { code: EXIT_INTERNAL, signal: None, from_keyboard: false });
                    break;
                }
            }
        }
        if let TerminalUse::Awaited { reported } = self.terminal {
            self.offer_terminal(reported);
        }
        self.ended
    }

    fn note(&mut self, status: WaitStatus) {
        if let Some(signal) = status.terminating_signal() {
            let from_keyboard = self.was_typed(signal);
            self.end(Exit { code: exit_code_of_signal(signal), signal: Some(signal), from_keyboard });
        } else if let Some(code) = status.exit_status() {
            let code = u8::try_from(code).unwrap_or(u8::MAX);
            self.end(Exit { code, signal: None, from_keyboard: false });
        } else if let Some(signal) = status.stopping_signal() {
            self.note_stop(signal);
        }
    }

    fn end(&mut self, exit: Exit) {
        self.ended = Some(exit);
        // It must not be taken for a process that CMD left running.
        if let Some(mut probe) = self.signal_probe.take() {
            let _ = probe.kill();
        }
    }

    /// Whether the keyboard sent CMD this signal. The kernel signals all of a group before CMD can be seen to end.
    fn was_typed(&self, signal: i32) -> bool {
        let typed = [Signal::SIGINT, Signal::SIGQUIT].into_iter().find(|typed| *typed as i32 == signal);
        typed.is_some_and(|signal| match &self.signal_probe {
            Some(probe) => is_pending(probe.id(), signal),
            // CMD has taken the terminal without being given it.
            None => foreground() == Some(self.leader),
        })
    }

    fn note_stop(&mut self, signal: i32) {
        if [Signal::SIGTTIN as i32, Signal::SIGTTOU as i32].contains(&signal) {
            self.terminal = TerminalUse::Awaited { reported: false };
        } else if signal == Signal::SIGTSTP as i32 && foreground() == Some(self.leader) {
            self.report("CMD is continued, because a suspended command would lose its lock");
            self.signal(Signal::SIGCONT);
        }
    }

    /// Continues a CMD that was stopped for the terminal, as soon as lockkeeper's own group has it to give.
    fn offer_terminal(&mut self, reported: bool) {
        match foreground() {
            Some(group) if group == getpgrp() || group == self.leader => {
                // Before CMD can get anything from the keyboard.
                self.signal_probe = self.signal_probe.take().or_else(|| signal_probe(self.leader));
                set_foreground(self.leader);
                self.terminal = TerminalUse::Given;
                self.signal(Signal::SIGCONT);
            }
            _ if reported => {}
            _ => {
                self.terminal = TerminalUse::Awaited { reported: true };
                self.report(
                    "CMD is stopped, because it asks for the terminal in the background; bring it to the foreground \
                     with fg, or end it. What it holds is kept",
                );
            }
        }
    }

    fn report(&self, what: &str) {
        print_error(&format!("lockkeeper {}: {what}", self.of));
    }

    /// Longest time until the next look at CMD.
    pub(crate) fn max_sleep(&self) -> Duration {
        match self.terminal {
            TerminalUse::Awaited { .. } => MAX_SLEEP_FOR_TERMINAL,
            TerminalUse::None | TerminalUse::Given => MAX_SLEEP,
        }
    }

    /// Whether any process of the group is left.
    fn group_lives(&mut self) -> bool {
        self.reap();
        !matches!(killpg(self.leader, None), Err(Errno::ESRCH))
    }

    /// Waits until the group has ended; returns false if it has not at `until`.
    async fn gone_by(&mut self, until: Instant) -> bool {
        while self.group_lives() {
            if Instant::now() >= until {
                return false;
            }
            sleep(POLL_INTERVAL).await;
        }
        true
    }

    /// Kills the group and waits until it has ended.
    pub(crate) async fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        // A process in an uninterruptible system call dies when the call returns.
        if !self.gone_by(Instant::now() + Duration::from_secs(5)).await {
            self.report("a killed process of CMD's group has not ended yet");
        }
    }

    /// Ends the processes that CMD left running: SIGTERM, then SIGKILL after `grace`.
    pub(crate) async fn end_rest(&mut self, grace: Duration) {
        if self.group_lives() {
            self.signal(Signal::SIGTERM);
            if !self.gone_by(Instant::now() + grace).await {
                self.kill().await;
            }
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        if self.group_lives() {
            self.signal(Signal::SIGKILL);
        }
        // A shell around may have taken the terminal meanwhile.
        if self.terminal == TerminalUse::Given
            && foreground().is_some_and(|group| group == self.leader || killpg(group, None) == Err(Errno::ESRCH))
        {
            terminal::reclaim();
        }
        self.returning.abort();
        self.write_guard("done");
        self.guard.stdin = None;
        let guard = Pid::from_raw(i32::try_from(self.guard.id()).unwrap_or(i32::MAX));
        // The guard exits on "done", but a stopped one would not.
        let _ = kill(guard, Signal::SIGCONT);
    }
}

/// A process that kills the group once this process is gone.
fn guard(group: Pid) -> Command {
    let mut guard = itself();
    guard.args(["__guard", &group.to_string()]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    guard
}

/// See [`Supervised::signal_probe`]; `None` if no process can be started.
fn signal_probe(group: Pid) -> Option<Child> {
    // It inherits the mask.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok()?;
    let probe = guard(group).process_group(group.as_raw()).spawn();
    let _ = before.thread_set_mask();
    probe.ok()
}

/// This very program, even if another one has taken its place on the disk, as an upgrade does.
pub(crate) fn itself() -> Command {
    // Not the path that this link shows: that may be gone.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("lockkeeper");
    command
}
