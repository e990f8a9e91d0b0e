//! Runs a command in a process group of its own and ensures that the whole group is dead by the deadline.
//!
//! Three mechanisms ensure it: this process signals the group; the parent-death signal kills CMD when this process is
//! killed; and a guard process kills the group when this process is gone, frozen or late.

pub(crate) mod helpers;
mod terminal;

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use lockkeeper_client::Moment;
use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};
use tokio::time::{Instant, sleep};

use crate::failure::{EXIT_INTERNAL, Failure, print_error};
use terminal::Terminal;

/// Interval at which a killed group is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A running command.
pub(crate) struct Supervised {
    /// The lockkeeper command, for messages.
    of: &'static str,
    /// CMD's process, the leader of its group.
    leader: Pid,
    ended: Option<u8>,
    /// Its standard output, if it is piped.
    pub(crate) stdout: Option<ChildStdout>,
    guard: Child,
    terminal: Terminal,
}

impl Supervised {
    /// Runs `command` in a group of its own with these environment variables; those without a value are unset. Call
    /// this from a thread that lives as long as the process: the parent-death signal follows the thread. Without a
    /// deadline the guard kills the group only when this process is gone.
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
        // Adopt orphans of the group, so that this process can wait for all of them.
        set_child_subreaper(true).map_err(|e| failed("adopt orphans")(e.into()))?;
        let itself = std::env::current_exe().map_err(failed("find the lockkeeper binary"))?;
        let terminal = Terminal::find();
        let mut exec = Command::new(&itself);
        exec.args(["__exec", "--of", of, "--parent", &getpid().to_string()]);
        if terminal.is_ours() {
            exec.arg("--foreground");
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
        let guard = Command::new(&itself)
            .args(["__guard", &leader.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let guard = match guard {
            Ok(guard) => guard,
            Err(e) => {
                let _ = killpg(leader, Signal::SIGKILL);
                return Err(failed("start the guard process")(e));
            }
        };
        let mut supervised = Self { of, stdout: child.stdout.take(), leader, ended: None, guard, terminal };
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
            print_error(&format!(
                "lockkeeper {}: the guard process is gone; if lockkeeper is killed now, only CMD itself dies with it",
                self.of
            ));
        }
    }

    /// Sends a signal to the whole group.
    pub(crate) fn signal(&self, signal: Signal) {
        // ESRCH: the group has ended, which `reap` will notice.
        let _ = killpg(self.leader, signal);
    }

    /// Reaps ended children. Returns CMD's exit code once it has ended.
    pub(crate) fn reap(&mut self) -> Option<u8> {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == self.leader => {
                    self.ended = Some(u8::try_from(code).unwrap_or(u8::MAX));
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == self.leader => {
                    self.ended = Some(code_of(signal));
                }
                Ok(WaitStatus::Stopped(pid, Signal::SIGTSTP)) if pid == self.leader && self.terminal.is_ours() => {
                    print_error(&format!(
                        "lockkeeper {}: CMD is continued, because a suspended command would lose its lock",
                        self.of
                    ));
                    self.terminal.give_to(self.leader);
                    self.signal(Signal::SIGCONT);
                }
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return self.ended,
                Err(Errno::EINTR) | Ok(_) => {}
                Err(_) => return self.ended,
            }
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
            print_error(&format!("lockkeeper {}: a killed process of CMD's group has not ended yet", self.of));
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
        self.terminal.take_back();
        self.write_guard("done");
        self.guard.stdin = None;
        let guard = Pid::from_raw(i32::try_from(self.guard.id()).unwrap_or(i32::MAX));
        // The guard exits on "done", but a stopped one would not.
        let _ = kill(guard, Signal::SIGCONT);
    }
}

/// The exit code that a shell reports for a process killed by a signal.
pub(crate) fn code_of(signal: Signal) -> u8 {
    u8::try_from(128 + signal as i32).unwrap_or(u8::MAX)
}
