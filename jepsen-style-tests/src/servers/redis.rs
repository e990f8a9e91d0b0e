//! Real Redis servers, with the faults that lose locks: a restart without the data, a failover to a replica that had
//! not got the write, a jump of the clock.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lockkeeper_checkers::skip::has_programs;
use nix::sys::signal::Signal;

use crate::polling::Polling;
use crate::ports;
use crate::process::Process;
use crate::verdict::{Failed, cannot_run, ended_early};

const READY_WITHIN: Duration = Duration::from_secs(20);
const PROGRAM: &str = "redis-server";
const CLOCK_JUMP: &str = include_str!("clock_jump.c");

/// A server; dropping it kills it.
#[derive(Debug)]
pub struct Redis {
    dir: PathBuf,
    port: u16,
    settings: Vec<String>,
    environment: Vec<(String, String)>,
    process: Option<Process>,
}

/// The package of Debian.
pub const PACKAGES: &str = "redis-server";

/// Whether there is a `redis-server`.
pub fn installed() -> bool {
    has_programs(&[PROGRAM])
}

impl Redis {
    /// Starts a server that keeps nothing, with its log below `dir`.
    pub async fn start(dir: &Path, name: &str) -> Result<Self, Failed> {
        Self::start_with(dir, name, &[]).await
    }

    /// The same with further settings, such as `["--maxclients", "20"]`.
    pub async fn start_with(dir: &Path, name: &str, settings: &[&str]) -> Result<Self, Failed> {
        let mut server = Self::laid_out(dir, name, settings)?;
        server.restart().await?;
        Ok(server)
    }

    /// The same with a clock that [`jump`](Self::jump) can set. Needs a C compiler.
    pub async fn start_with_clock(dir: &Path, name: &str) -> Result<Self, Failed> {
        let mut server = Self::laid_out(dir, name, &[])?;
        let (source, library) = (server.dir.join("clock_jump.c"), server.dir.join("clock_jump.so"));
        std::fs::write(&source, CLOCK_JUMP)?;
        let compiled = Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).output();
        match compiled {
            Ok(done) if done.status.success() => {}
            other => return cannot_run(format!("a C compiler (cc) for the jump of a clock: {other:?}")),
        }
        std::fs::write(server.clock_file(), "0")?;
        let environment = [("LD_PRELOAD", library), ("CLOCK_JUMP_FILE", server.clock_file())];
        server.environment = environment.map(|(name, path)| (name.to_owned(), path.display().to_string())).to_vec();
        server.restart().await?;
        Ok(server)
    }

    fn laid_out(dir: &Path, name: &str, settings: &[&str]) -> Result<Self, Failed> {
        let dir = dir.join(name);
        std::fs::create_dir_all(&dir)?;
        let port = ports::free(1)?.first().copied().unwrap_or_default();
        let settings = settings.iter().map(|word| (*word).to_owned()).collect();
        Ok(Self { dir, port, settings, environment: Vec::new(), process: None })
    }

    fn clock_file(&self) -> PathBuf {
        self.dir.join("clock")
    }

    /// Starts a server that was killed again, at its old address and without its data.
    pub async fn restart(&mut self) -> Result<(), Failed> {
        let log = self.dir.join("redis.log");
        let mut argv: Vec<String> =
            [PROGRAM, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"].map(str::to_owned).to_vec();
        argv.extend([self.port.to_string(), "--dir".into(), self.dir.display().to_string()]);
        argv.extend(["--repl-diskless-sync-delay".into(), "0".into()]);
        argv.extend(self.settings.iter().cloned());
        self.process = None;
        self.process = Some(Process::start(&argv, &self.environment, &log)?);
        let wait = Polling::within(READY_WITHIN);
        while self.command(&["PING"]).await.is_err() {
            if self.process.as_mut().is_none_or(|process| process.ended().is_some()) {
                return Err(ended_early("redis-server ended", &log));
            }
            wait.or_broken(|| format!("redis-server does not answer after {READY_WITHIN:?}, see {}", log.display()))
                .await?;
        }
        Ok(())
    }

    /// Where clients connect.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The pid of the process, while there is one.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().and_then(|process| u32::try_from(process.pid()).ok())
    }

    /// Ends the process by SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Stops the process by SIGSTOP.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets a stopped process go on.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    /// Sets the clock forward by so many seconds against the machine's.
    pub fn jump(&self, seconds: u32) -> Result<(), Failed> {
        if self.environment.is_empty() {
            return cannot_run("this Redis has the machine's clock");
        }
        std::fs::write(self.clock_file(), seconds.to_string())?;
        Ok(())
    }

    /// A command over a connection of its own.
    pub async fn command(&self, words: &[&str]) -> Result<String, String> {
        let client = ::redis::Client::open(self.url()).map_err(|error| error.to_string())?;
        let mut connection = client.get_multiplexed_async_connection().await.map_err(|error| error.to_string())?;
        let mut command = ::redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        let answer: ::redis::Value = command.query_async(&mut connection).await.map_err(|error| error.to_string())?;
        Ok(match answer {
            ::redis::Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            ::redis::Value::SimpleString(text) => text,
            other => format!("{other:?}"),
        })
    }

    /// Makes this server a replica of `primary` and waits until it has its data.
    pub async fn replicate(&self, primary: &Self) -> Result<(), Failed> {
        self.command(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]).await.map_err(Failed::CannotRun)?;
        let wait = Polling::within(READY_WITHIN);
        loop {
            let state = self.command(&["INFO", "replication"]).await.unwrap_or_default();
            if state.contains("master_link_status:up") {
                return Ok(());
            }
            wait.or_broken(|| format!("a replica has no link to its primary after {READY_WITHIN:?}: {state}")).await?;
        }
    }

    /// Cuts the replica off from its primary: it keeps what it has, and gets no further write.
    pub async fn cut_off(&self) -> Result<(), Failed> {
        // Nothing listens on port 1.
        self.command(&["REPLICAOF", "127.0.0.1", "1"]).await.map(drop).map_err(Failed::CannotRun)
    }

    /// Makes a replica a primary.
    pub async fn promote(&self) -> Result<(), Failed> {
        self.command(&["REPLICAOF", "NO", "ONE"]).await.map(drop).map_err(Failed::CannotRun)
    }
}
