//! Worker processes (`worker`, see [`crate::work`]): starts them, follows their records, and ends them by their pid.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::polling::Polling;
use crate::process::{Process, own_directory};
use crate::record::{self, Record, WorkerEvent};
use crate::verdict::{Failed, broken, cannot_run};

/// The variable that names another program than the `worker` beside this one: that of a mutant build.
pub(crate) const PROGRAM: &str = "LOCKKEEPER_WORKER";
const POLL: Duration = Duration::from_millis(5);

/// One process with clients of the library in it.
#[derive(Debug)]
pub struct Worker {
    name: String,
    process: Process,
    history: PathBuf,
    complaints: PathBuf,
}

impl Worker {
    /// Starts `worker ARGUMENTS`; its records go to `<dir>/<name>.jsonl`, its standard error to `<dir>/<name>.log`.
    pub fn start<W: Into<String>>(
        dir: &Path,
        name: &str,
        endpoints: &[String],
        arguments: impl IntoIterator<Item = W>,
    ) -> Result<Self, Failed> {
        let program = match std::env::var_os(PROGRAM) {
            Some(named) => PathBuf::from(named),
            None => own_directory()?.join("worker"),
        };
        if !program.is_file() {
            let missing = format!("no worker at {}: build the package's binaries", program.display());
            return cannot_run(missing);
        }
        let (history, complaints) = (dir.join(format!("{name}.jsonl")), dir.join(format!("{name}.log")));
        let mut argv = vec![program.display().to_string(), "--endpoints".into(), endpoints.join(",")];
        argv.extend(arguments.into_iter().map(Into::<String>::into));
        let process = Process::start_telling(&argv, &[], &history, &complaints)?;
        Ok(Self { name: name.to_owned(), process, history, complaints })
    }

    /// Its name in the evidence.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Its records so far.
    pub fn records(&self) -> Result<Vec<Record>, Failed> {
        Ok(record::read(&self.history)?)
    }

    /// The events that clients of a workload have recorded so far.
    pub fn events(&self) -> Result<Vec<crate::history::Event>, Failed> {
        Ok(record::read(&self.history)?)
    }

    /// Waits for the first record that `wanted` accepts, and gives what `wanted` made of it.
    pub async fn told<T>(
        &mut self,
        doing: &str,
        within: Duration,
        wanted: impl Fn(&Record) -> Option<T>,
    ) -> Result<T, Failed> {
        let wait = Polling::within(within).every(POLL);
        let mut place = 0;
        loop {
            let ended = self.process.ended();
            let (records, next) = record::read_from(&self.history, place)?;
            place = next;
            if let Some(found) = records.iter().find_map(&wanted) {
                return Ok(found);
            }
            if let Some(status) = ended {
                return broken(format!("worker {} ended ({status}) before {doing}: {}", self.name, self.last_words()));
            }
            wait.or_broken(|| format!("worker {}: {doing} did not come within {within:?}", self.name)).await?;
        }
    }

    /// Waits until its work is over.
    pub async fn idle(&mut self, within: Duration) -> Result<(), Failed> {
        self.told("the end of its work", within, |record| (record.what == WorkerEvent::Idle).then_some(())).await
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// `kill -9`, and reaps.
    pub async fn kill(&mut self) -> Result<(), Failed> {
        self.signal(Signal::SIGKILL);
        match self.process.wait_end(Duration::from_secs(10)).await {
            Some(_) => Ok(()),
            None => broken(format!("worker {} did not end when killed", self.name)),
        }
    }

    /// Asks it to end (SIGTERM), waits, and gives all its records.
    pub async fn finish(mut self, within: Duration) -> Result<Vec<Record>, Failed> {
        self.signal(Signal::SIGTERM);
        match self.process.wait_end(within).await {
            Some(status) if status.success() => self.records(),
            Some(status) => broken(format!("worker {} ended with {status}: {}", self.name, self.last_words())),
            None => broken(format!("worker {} did not end within {within:?} when told to", self.name)),
        }
    }

    /// How it ended, if it has ended already.
    pub fn ended_early(&mut self) -> Option<String> {
        let status = self.process.ended()?;
        Some(format!("worker {} had ended by itself ({status}): {}", self.name, self.last_words()))
    }

    /// Asks it to end (SIGTERM) and does not wait. If it had ended before, says how.
    pub fn tell_to_end(&mut self) -> Option<String> {
        if let Some(early) = self.ended_early() {
            return Some(early);
        }
        self.signal(Signal::SIGTERM);
        None
    }

    /// Waits until it has ended with success.
    pub async fn ended(&mut self, within: Duration) -> Result<(), Failed> {
        match self.process.wait_end(within).await {
            Some(status) if status.success() => Ok(()),
            Some(status) => broken(format!("worker {} ended with {status}: {}", self.name, self.last_words())),
            None => broken(format!("worker {} did not end within {within:?}", self.name)),
        }
    }

    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.complaints).unwrap_or_default();
        log.lines().last().unwrap_or("it said nothing").to_owned()
    }
}
