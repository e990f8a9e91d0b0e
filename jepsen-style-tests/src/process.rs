//! One real process: started, signalled by its pid, and never left behind.
//!
//! Children are asked of the kernel to die with us (`setpriv --pdeathsig`, where it is there), since a proof that is
//! killed itself runs no destructor. Dropping a [`Process`] kills and reaps it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use lockkeeper_checkers::skip::has_programs;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::verdict::{Failed, broken};

/// A running child.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pid: Pid,
}

impl Process {
    /// Starts `argv` with `environment` added and both its outputs appended to `log`.
    pub fn start(argv: &[String], environment: &[(String, String)], log: &Path) -> io::Result<Self> {
        Self::start_telling(argv, environment, log, log)
    }

    /// As [`start`](Self::start), with standard output and standard error in files of their own.
    pub fn start_telling(
        argv: &[String],
        environment: &[(String, String)],
        output: &Path,
        log: &Path,
    ) -> io::Result<Self> {
        let append = |path: &Path| File::options().create(true).append(true).open(path);
        let mut words: Vec<&str> = Vec::new();
        if has_programs(&["setpriv"]) {
            words.extend(["setpriv", "--pdeathsig", "KILL", "--"]);
        }
        words.extend(argv.iter().map(String::as_str));
        let Some((program, arguments)) = words.split_first() else {
            return Err(io::Error::other("nothing to start"));
        };
        let child = Command::new(program)
            .args(arguments)
            .envs(environment.iter().map(|(name, value)| (name.as_str(), value.as_str())))
            .stdin(Stdio::null())
            .stdout(append(output)?)
            .stderr(append(log)?)
            .spawn()
            .map_err(|error| io::Error::other(format!("cannot start {program}: {error}")))?;
        let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
        Ok(Self { child, pid })
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Sends a signal; a process that is gone already is not an error.
    pub fn signal(&self, signal: Signal) {
        let _ = kill(self.pid, signal);
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until it has ended.
    pub async fn wait_end(&mut self, within: Duration) -> Option<ExitStatus> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if begun.elapsed() > within {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.signal(Signal::SIGKILL);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The kernel's state of a process. None if there is no such process.
pub(crate) fn state_of(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, which comes before, is in parentheses and may hold anything.
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Runs a program to its end, which must be a success.
pub(crate) async fn run_command(program: &Path, arguments: &[&str]) -> Result<(), Failed> {
    let words = arguments.join(" ");
    let mut command = Command::new(program);
    command.args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output()).await.map_err(io::Error::other)??;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    broken(format!("{} {words} fails: {}", program.display(), why.trim()))
}

/// The directory of this program and of the others of its build.
pub(crate) fn own_directory() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let mut directory = program.parent().unwrap_or(Path::new("."));
    // Tests are one deeper.
    if directory.ends_with("deps") {
        directory = directory.parent().unwrap_or(directory);
    }
    Ok(directory.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn signals_reach_it_and_drop_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let start = || Process::start(&["sleep".into(), "60".into()], &[], &dir.path().join("log")).unwrap();
        let mut process = start();
        assert!(process.ended().is_none());
        process.signal(Signal::SIGTERM);
        assert!(process.wait_end(Duration::from_secs(10)).await.is_some());
        let dropped = start();
        let pid = Pid::from_raw(dropped.pid());
        drop(dropped);
        assert!(kill(pid, None).is_err());
    }
}
