//! Workers of `lockkeeper cron` with shifted wall clocks, what their commands report, and the schedule's history.

use std::path::PathBuf;
use std::process::Command;

use lockkeeper_checkers::skip::has_programs;
use lockkeeper_client::recipes::{EndedTick, OpenTick, ScheduleState, Tick, TickOutcome};

use crate::process::Process;
use crate::proofs::prelude::*;

/// Shifts what a process takes for the time of the day.
const SHIM: &str = include_str!("../../../../crates/cli/tests/it/support/stepped_clock.c");
/// A command shows a sign of life each 50 ms. So many are its work, or that of one that hangs.
const BEATS: u32 = 8;
const BEATS_OF_HANGING: u32 = 400;
/// The workers' `--ttl`, after which at the latest a command must be dead if its worker does not live.
pub(super) const TTL_MS: u64 = 3_000;
const READ_WITHIN: Duration = Duration::from_secs(2);

/// Starts workers.
pub(super) struct Fleet {
    binary: PathBuf,
    dir: PathBuf,
    shim: PathBuf,
    endpoints: String,
}

impl Fleet {
    pub(super) fn new(context: &Context, cluster: &Cluster) -> Result<Self, Failed> {
        if !has_programs(&["cc"]) {
            return cannot_run("needs cc, to make clocks wrong");
        }
        let (source, shim) = (context.dir.join("stepped_clock.c"), context.dir.join("stepped_clock.so"));
        std::fs::write(&source, SHIM)?;
        let compiled = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&shim).arg(&source).output()?;
        if !compiled.status.success() {
            let why = String::from_utf8_lossy(&compiled.stderr).into_owned();
            return cannot_run(format!("cc does not compile the clock: {why}"));
        }
        let endpoints = cluster.endpoints().join(",");
        Ok(Self { binary: context.binary.clone(), dir: context.dir.clone(), shim, endpoints })
    }

    fn reports(&self, job: &str) -> PathBuf {
        self.dir.join(format!("runs-{job}"))
    }

    fn beats(&self, job: &str) -> PathBuf {
        self.dir.join(format!("beats-{job}"))
    }

    /// Whether commands of this job that begin from now on hang.
    pub(super) fn set_hanging(&self, job: &str, hanging: bool) -> Result<(), Failed> {
        let file = self.hang(job);
        if hanging {
            std::fs::write(&file, "")?
        } else {
            std::fs::remove_file(&file)?
        };
        Ok(())
    }

    fn hang(&self, job: &str) -> PathBuf {
        self.dir.join(format!("hang-{job}"))
    }

    /// Starts a worker, whose wall clock is off by so many seconds. Its options are separated by `|`.
    pub(super) fn start(&self, job: &str, number: usize, off_s: i64, options: &str) -> Result<Process, Failed> {
        let step = self.dir.join(format!("step-{job}-{number}"));
        std::fs::write(&step, off_s.to_string())?;
        // Short lines, each written at once. The machine's own clock is that without the library.
        let script = format!(
            "r={}; b={}; n='env -u LD_PRELOAD date +%s%3N'; i=\"$LOCKKEEPER_TICK $LOCKKEEPER_TOKEN\"; left={BEATS}; \
             [ ! -e {} ] || left={BEATS_OF_HANGING}; \
             echo \"start $i $($n) $(date +%s) {number} $PPID $LOCKKEEPER_ATTEMPT\" >>$r; \
             while [ $left -gt 0 ]; do sleep 0.05; echo \"$LOCKKEEPER_TOKEN $($n)\" >>$b; left=$((left - 1)); done; \
             echo \"end $i $($n)\" >>$r",
            self.reports(job).display(),
            self.beats(job).display(),
            self.hang(job).display()
        );
        let binary = self.binary.display().to_string();
        let label = format!("worker {number}");
        let ttl = format!("{TTL_MS}ms");
        let mut argv: Vec<&str> = vec![&binary, "--endpoints", &self.endpoints, "cron", job, "--ttl", &ttl];
        argv.extend(["--label", &label]);
        argv.extend(options.split('|'));
        argv.extend(["--", "sh", "-c", &script]);
        let argv: Vec<String> = argv.into_iter().map(str::to_owned).collect();
        let environment = [
            ("LD_PRELOAD", self.shim.display().to_string()),
            ("LOCKKEEPER_TEST_CLOCK", "wall".into()),
            ("LOCKKEEPER_TEST_STEP", step.display().to_string()),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value));
        Ok(Process::start(&argv, &environment, &self.dir.join(format!("{job}-{number}.log")))?)
    }

    /// The same with the last sign of life of each.
    pub(super) fn runs_with_beats(&self, job: &str) -> Result<Vec<Run>, Failed> {
        let mut runs = self.runs(job)?;
        let mut latest: BTreeMap<u64, u64> = BTreeMap::new();
        for line in std::fs::read_to_string(self.beats(job)).unwrap_or_default().lines() {
            let words = line.split_once(' ').and_then(|(token, at)| Some((token.parse().ok()?, at.parse().ok()?)));
            let Some((token, at_ms)) = words else { return broken(format!("a command's sign of life is {line:?}")) };
            latest.insert(token, at_ms);
        }
        for run in &mut runs {
            run.last_seen_ms = latest.get(&run.token).copied().unwrap_or_default().max(run.started_ms);
        }
        Ok(runs)
    }

    /// What the commands of a job have reported, in the order of their starts.
    pub(super) fn runs(&self, job: &str) -> Result<Vec<Run>, Failed> {
        let text = std::fs::read_to_string(self.reports(job)).unwrap_or_default();
        let mut runs: Vec<Run> = Vec::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let known = match words[..] {
                ["start", tick, token, at_ms, clock_s, number, worker, attempt] => {
                    started(tick, token, [at_ms, clock_s, number, worker, attempt]).map(|run| runs.push(run))
                }
                ["end", tick, token, at_ms] => {
                    let run =
                        runs.iter_mut().rfind(|run| run.tick.to_string() == tick && run.token.to_string() == token);
                    run.zip(at_ms.parse().ok()).map(|(run, at_ms)| run.ended_ms = Some(at_ms))
                }
                _ => None,
            };
            if known.is_none() {
                return broken(format!("a command reported {line:?}"));
            }
        }
        Ok(runs)
    }
}

fn started(tick: &str, token: &str, [at_ms, clock_s, number, worker, attempt]: [&str; 5]) -> Option<Run> {
    let started_ms: u64 = at_ms.parse().ok()?;
    let clock_s: i64 = clock_s.parse().ok()?;
    Some(Run {
        tick: Tick::try_from(tick.to_owned()).ok()?,
        token: token.parse().ok()?,
        started_ms,
        ended_ms: None,
        last_seen_ms: started_ms,
        clock_off_s: clock_s - i64::try_from(started_ms / 1_000).ok()?,
        number: number.parse().ok()?,
        worker: worker.parse().ok()?,
        attempt: attempt.parse().ok()?,
    })
}

/// One run of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) tick: Tick,
    pub(super) token: u64,
    /// By the machine's clock.
    pub(super) started_ms: u64,
    pub(super) ended_ms: Option<u64>,
    /// When it gave the latest sign of life.
    pub(super) last_seen_ms: u64,
    /// The worker's clock against the machine's.
    pub(super) clock_off_s: i64,
    /// Which worker of the fleet.
    pub(super) number: usize,
    /// Its pid.
    pub(super) worker: i32,
    pub(super) attempt: u32,
}

/// All that the schedule's node has ever said.
pub(super) struct TickHistory {
    job: String,
    /// By the first tick of each entry.
    pub(super) ended: BTreeMap<Tick, EndedTick>,
    pub(super) open: Vec<OpenTick>,
    /// What the node said that cannot be.
    pub(super) contradiction: Option<String>,
}

impl TickHistory {
    pub(super) fn of(job: &str) -> Self {
        Self { job: job.into(), ended: BTreeMap::new(), open: Vec::new(), contradiction: None }
    }

    /// Reads the node; while no node of the cluster serves, nothing is added.
    pub(super) async fn read(&mut self, cluster: &Cluster) -> Result<(), Failed> {
        let path = format!("/cron/{}", self.job);
        for (_, api) in cluster.apis() {
            let node = match api.get(&path, READ_WITHIN).await {
                Ok(node) => node.value,
                Err(failure) if failure.code() == Some(Code::NoNode) => return Ok(()),
                Err(_) => continue,
            };
            let bytes = node.data.to_bytes().map_err(Failed::Broken)?;
            let state = ScheduleState::read(&path, &bytes).map_err(|e| Failed::Broken(e.to_string()))?;
            return self.add(state);
        }
        Ok(())
    }

    fn add(&mut self, state: ScheduleState) -> Result<(), Failed> {
        self.open = state.open.into();
        for ended in state.history {
            let before = self.ended.insert(ended.tick, ended.clone());
            let grown = |before: &EndedTick| {
                let skipped = before.worker.is_none() && ended.worker.is_none() && before.outcome == ended.outcome;
                *before == ended
                    || skipped && before.through.unwrap_or(before.tick) <= ended.through.unwrap_or(ended.tick)
            };
            if before.as_ref().is_some_and(|before| !grown(before)) {
                self.contradiction = Some(format!("{before:?} became {ended:?}"));
            }
        }
        Ok(())
    }

    /// The entries of ticks that were done.
    pub(super) fn done_entries(&self) -> impl Iterator<Item = &EndedTick> {
        self.ended.values().filter(|ended| matches!(ended.outcome, TickOutcome::Done | TickOutcome::Failed))
    }

    pub(super) fn done(&self) -> usize {
        self.done_entries().count()
    }

    /// When the latest tick that was done was due.
    pub(super) fn latest_done_ms(&self) -> u64 {
        self.done_entries().last().map_or(0, |ended| ended.tick.as_millis())
    }
}
