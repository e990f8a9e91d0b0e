//! Schedules. Workers of `lockkeeper cron`, whose wall clocks are wrong by −10 to +10 minutes, have a tick every two
//! seconds, while the worker of a tick is killed in the middle of its work, or stopped until another one has begun the
//! tick again, and nodes are killed: each tick comes to one end, none is begun early, no two are worked at together,
//! only the tick of such a worker is begun again, and its command is dead before. One job skips ticks that overlap, the
//! other one lets them wait. Then all workers are killed for a while, and the missed ticks go by the policy of their
//! job.
//!
//! Commands report to a file, with the machine's clock; the wrong clocks are those of the workers' processes, shifted
//! by a preloaded library, and each report shows what its worker took for the time. What the cluster recorded is read
//! from the schedule's node, again and again, and judged against the file (`judge`).

mod fleet;
mod judge;

use lockkeeper_client::recipes::Overlap;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use tokio::time::sleep;

use self::fleet::{Fleet, Run, TickHistory};
use self::judge::{CronTally, JobFault, Policy, Rules};
use crate::process::Process;
use crate::proofs::prelude::*;
use crate::record::wall_ms;

/// Of the job that skips ticks, and of the one that lets them wait.
const WORKERS: usize = 10;
const WORKERS_OF_QUEUE: usize = 3;
/// Seconds between two ticks.
const EVERY_S: u64 = 2;
/// How far the first worker's clock is behind, and the last one's ahead.
const WRONG_BY_S: i64 = 600;
/// Between two faults.
const FAULT_EVERY: Duration = Duration::from_secs(5);
/// So many faults until there was one of each kind for the job that skips, for a node, and for the job that waits.
const FIRST_FAULTS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(30);
/// Without any worker, at least.
const OUTAGE: Duration = Duration::from_secs(12);
/// Seconds between two ticks of the jobs without workers, and how late they may begin. In half of the time, no tick is
/// due in time.
const OUTAGE_EVERY_S: u64 = 4;
const OUTAGE_DEADLINE_S: u64 = 2;
/// A clock that is shown with the precision of a second may be wrong by so much more.
const SLACK_S: i64 = 3;

pub(super) async fn run(context: &Context, length: Duration) -> ProofResult {
    let mut cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    let fleet = Fleet::new(context, &cluster)?;
    let seen = wrong_clocks(context, &mut cluster, &fleet, length).await?;
    let missed = outage(context, &cluster, &fleet).await?;
    cluster.agree(Duration::from_secs(20)).await?;
    let [skip, queue] = &seen.tallies;
    Ok(format!(
        "{} ticks by {WORKERS} workers with clocks from -{WRONG_BY_S} s to +{WRONG_BY_S} s: {} done, {} of them begun \
         again, {} skipped as they overlapped, {} missed; {} more ticks by {WORKERS_OF_QUEUE} workers: {} done, {} of \
         them begun again, {} after they had waited; {} workers killed, {} stopped, {} of whose commands were at work \
         then and none outlived its session; {} nodes killed; begun after {} ms (median), {} ms (p95), {} ms (max), \
         never early; {missed}",
        skip.ticks,
        skip.done,
        skip.begun_again,
        skip.overlapped,
        skip.missed,
        queue.ticks,
        queue.done,
        queue.begun_again,
        queue.waited,
        seen.killed,
        seen.stopped,
        skip.outlasted + queue.outlasted,
        seen.nodes,
        skip.lateness_ms(50),
        skip.lateness_ms(95),
        skip.lateness_ms(100),
    ))
}

/// A job of the first part, its workers, and what happened to them.
struct CronJob<'a> {
    name: &'static str,
    overlap: Overlap,
    fleet: &'a Fleet,
    workers: Vec<Process>,
    history: TickHistory,
    faults: Vec<JobFault>,
}

impl<'a> CronJob<'a> {
    fn start(fleet: &'a Fleet, name: &'static str, overlap: Overlap, workers: usize) -> Result<Self, Failed> {
        let (history, faults) = (TickHistory::of(name), Vec::new());
        let mut job = Self { name, overlap, fleet, workers: Vec::new(), history, faults };
        for number in 0..workers {
            job.workers.push(job.worker(number, workers)?);
        }
        Ok(job)
    }

    fn worker(&self, number: usize, workers: usize) -> Result<Process, Failed> {
        let overlap = if self.overlap == Overlap::Skip { "skip" } else { "queue" };
        let options = format!("--at|*/{EVERY_S} * * * * *|--missed|all|--overlap|{overlap}");
        self.fleet.start(self.name, number, offset(number, workers), &options)
    }

    /// Kills the worker of a tick in the middle of its work, and starts it again; returns whether there was one.
    async fn kill(&mut self, context: &Context) -> Result<bool, Failed> {
        let Some(run) = under_way(context, self.fleet, self.name).await? else { return Ok(false) };
        kill(Pid::from_raw(run.worker), Signal::SIGKILL).map_err(std::io::Error::from)?;
        self.faults.push(JobFault { token: run.token, at_ms: wall_ms() });
        context.log.say(format!("the worker of {} of {} is killed in the middle", run.tick, self.name));
        let at = self.workers.iter().position(|worker| worker.pid() == run.worker);
        let Some(number) = at else { return broken(format!("{run:?} has no worker of the fleet")) };
        self.workers[number] = self.worker(number, self.workers.len())?;
        Ok(true)
    }

    /// Stops the worker of a tick until another one has begun the tick again, or it has come to its end; returns
    /// whether there was one. If the command hangs, only the guard can end it.
    async fn stop(&mut self, context: &Context, cluster: &Cluster, hanging: bool) -> Result<bool, Failed> {
        if hanging {
            self.fleet.set_hanging(self.name, true)?;
        }
        let found = under_way(context, self.fleet, self.name).await;
        if hanging {
            self.fleet.set_hanging(self.name, false)?;
        }
        let Some(run) = found? else { return Ok(false) };
        let worker = Pid::from_raw(run.worker);
        kill(worker, Signal::SIGSTOP).map_err(std::io::Error::from)?;
        self.faults.push(JobFault { token: run.token, at_ms: wall_ms() });
        let work = if hanging { "a command that hangs" } else { "a command" };
        context.log.say(format!("the worker of {} of {} is stopped, with {work}", run.tick, self.name));
        let wait = Polling::within(PATIENCE).every(Duration::from_millis(50));
        loop {
            self.history.read(cluster).await?;
            let is_over = self.history.ended.contains_key(&run.tick);
            if is_over || self.fleet.runs(self.name)?.iter().any(|it| it.tick == run.tick && it.token > run.token) {
                break;
            }
            wait.or_broken(|| format!("nobody began {} again while the worker of {run:?} was stopped", run.tick))
                .await?;
        }
        kill(worker, Signal::SIGCONT).map_err(std::io::Error::from)?;
        Ok(true)
    }

    /// Ends the workers after a tick came to its end in time, and judges what happened.
    async fn end(&mut self, cluster: &Cluster) -> Result<(CronTally, Vec<Run>), Failed> {
        settle(cluster, self.fleet, self.name, &mut self.history).await?;
        for worker in &mut self.workers {
            worker.signal(Signal::SIGTERM);
        }
        for worker in &mut self.workers {
            match worker.wait_end(PATIENCE).await {
                Some(status) if status.code() == Some(0) => {}
                other => return broken(format!("a worker of {} that got SIGTERM ended with {other:?}", self.name)),
            }
        }
        self.history.read(cluster).await?;
        let runs = self.fleet.runs_with_beats(self.name)?;
        let (every_ms, deadline_ms) = (EVERY_S * 1_000, 60_000);
        let rules = Rules { every_ms, deadline_ms, missed: Policy::All, overlap: self.overlap };
        let tally = judge::clocks(rules, &self.history, &runs, &self.faults);
        Ok((tally.or_broken(self.name)?, runs))
    }
}

/// How wrong a worker's clock is, in seconds.
fn offset(number: usize, workers: usize) -> i64 {
    let step = 2 * WRONG_BY_S / i64::try_from(workers - 1).unwrap_or(1);
    i64::try_from(number).unwrap_or_default() * step - WRONG_BY_S
}

/// What the first part saw.
struct CronFindings {
    /// Of the job that skips, and of the one that lets wait.
    tallies: [CronTally; 2],
    killed: usize,
    stopped: usize,
    nodes: usize,
}

async fn wrong_clocks(
    context: &Context,
    cluster: &mut Cluster,
    fleet: &Fleet,
    length: Duration,
) -> Result<CronFindings, Failed> {
    let mut jobs = [
        CronJob::start(fleet, "clocks", Overlap::Skip, WORKERS)?,
        CronJob::start(fleet, "queue", Overlap::Queue, WORKERS_OF_QUEUE)?,
    ];
    let (begun, mut next_fault) = (Instant::now(), Instant::now() + FAULT_EVERY);
    let (mut rng, mut turn, mut killed, mut stopped, mut nodes) = (context.random(1), 0, 0, 0, 0);
    // The jobs and the nodes: each has its first fault, however long the ones before take.
    while begun.elapsed() < length || (turn < FIRST_FAULTS && begun.elapsed() < length + PATIENCE) {
        for job in &mut jobs {
            job.history.read(cluster).await?;
        }
        if Instant::now() < next_fault {
            sleep(Duration::from_millis(50)).await;
            continue;
        }
        let [skip, queue] = &mut jobs;
        let (kind, hit) = match (turn + 1) % 6 {
            1 => (&mut killed, skip.kill(context).await?),
            2 => (&mut stopped, skip.stop(context, cluster, true).await?),
            4 => (&mut killed, queue.kill(context).await?),
            5 => (&mut stopped, queue.stop(context, cluster, rng.random_bool(0.5)).await?),
            _ => {
                kill_node(context, cluster, &mut rng).await?;
                (&mut nodes, true)
            }
        };
        *kind += usize::from(hit);
        // Where no command was at work, the same is tried again.
        turn += usize::from(hit);
        next_fault = Instant::now() + FAULT_EVERY;
    }
    let [skip, queue] = &mut jobs;
    let ((of_skip, runs), (of_queue, runs_of_queue)) = (skip.end(cluster).await?, queue.end(cluster).await?);
    shifted(&runs, |number| offset(number, WORKERS))?;
    shifted(&runs_of_queue, |number| offset(number, WORKERS_OF_QUEUE))?;
    for (what, count) in [
        ("worker was killed", killed),
        ("worker was stopped", stopped),
        ("node was killed", nodes),
        ("tick was skipped as it overlapped", of_skip.overlapped),
        ("tick waited for an earlier one", of_queue.waited),
        ("command was at work while its worker was stopped", of_skip.outlasted),
    ] {
        if count == 0 {
            return cannot_run(format!("no {what}; give more --seconds"));
        }
    }
    Ok(CronFindings { tallies: [of_skip, of_queue], killed, stopped, nodes })
}

async fn kill_node(context: &Context, cluster: &mut Cluster, rng: &mut StdRng) -> Result<(), Failed> {
    let (leader, _) = cluster.leader().await?;
    let ids = cluster.ids();
    let node = if rng.random_bool(0.5) { leader } else { ids[rng.random_range(0..ids.len())] };
    cluster.kill(node).await?;
    context.log.say(format!("node {node} is killed (the leader was {leader})"));
    sleep(Duration::from_secs(1)).await;
    cluster.start_node(node).await?;
    Ok(())
}

/// A tick whose command is at work; `None` if none was seen for a while.
async fn under_way(context: &Context, fleet: &Fleet, job: &str) -> Result<Option<Run>, Failed> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(4 * EVERY_S) {
        // Only one that began just now: it works for a while yet.
        let runs = fleet.runs(job)?;
        let fresh = |run: &&Run| run.ended_ms.is_none() && wall_ms().saturating_sub(run.started_ms) < 200;
        if let Some(run) = runs.iter().rev().find(fresh) {
            return Ok(Some(run.clone()));
        }
        sleep(Duration::from_millis(10)).await;
    }
    context.log.say("no command was seen at work");
    Ok(None)
}

/// Waits until ticks come to their end in time again.
async fn settle(cluster: &Cluster, fleet: &Fleet, job: &str, history: &mut TickHistory) -> Result<(), Failed> {
    let (wait, now_ms) = (Polling::within(PATIENCE).every(Duration::from_millis(100)), wall_ms());
    loop {
        history.read(cluster).await?;
        if fleet.runs(job)?.iter().any(|run| run.ended_ms.is_some_and(|ended| ended > now_ms + 2_000 * EVERY_S)) {
            return Ok(());
        }
        wait.or_broken(|| format!("no tick of {job} came to its end for {PATIENCE:?} after the faults")).await?;
    }
}

/// The wrong clocks were wrong where the work was done.
fn shifted(runs: &[Run], offset: impl Fn(usize) -> i64) -> Result<(), Failed> {
    let mut seen = BTreeSet::new();
    for run in runs {
        let expected = offset(run.number);
        if (run.clock_off_s - expected).abs() > SLACK_S {
            return cannot_run(format!("worker {} is off by {} s", run.number, run.clock_off_s));
        }
        seen.insert(run.number);
    }
    match seen.len() {
        0..3 => cannot_run(format!("only the workers {seen:?} had ticks to do")),
        _ => Ok(()),
    }
}

/// All workers of three jobs are killed, and started again after a while.
async fn outage(context: &Context, cluster: &Cluster, fleet: &Fleet) -> Result<String, Failed> {
    const JOBS: [(&str, Policy); 3] = [("skip", Policy::Skip), ("once", Policy::Once), ("all", Policy::All)];
    let start = |job: &str| {
        let at = format!("--at|*/{OUTAGE_EVERY_S} * * * * *|--deadline|{OUTAGE_DEADLINE_S}s");
        let options = format!("{at}|--missed|{job}|--overlap|queue");
        (0..2).map(|number| fleet.start(job, number, 0, &options)).collect::<Result<Vec<_>, _>>()
    };
    let mut workers = Vec::new();
    for (job, _) in JOBS {
        workers.extend(start(job)?);
    }
    let mut histories = JOBS.map(|(job, _)| TickHistory::of(job));
    until(cluster, &mut histories, |history| history.done() >= 2).await?;
    context.log.say(format!("all workers of three jobs are killed for {OUTAGE:?}"));
    for worker in workers {
        worker.signal(Signal::SIGKILL);
    }
    let killed_ms = wall_ms();
    let mut faults = Vec::new();
    for (job, _) in JOBS {
        // At work, or at their end and perhaps not reported yet.
        let may_be = |run: &Run| run.ended_ms.is_none_or(|ended_ms| ended_ms + 1_500 > killed_ms);
        let unreported = fleet.runs(job)?.into_iter().filter(may_be);
        faults.extend(unreported.map(|run| JobFault { token: run.token, at_ms: killed_ms }));
    }
    sleep(OUTAGE).await;
    // Right after the deadline of a tick, so that none is due in time, and one has to be caught up with.
    let period_ms = OUTAGE_EVERY_S * 1_000;
    while wall_ms() % period_ms < OUTAGE_DEADLINE_S * 1_000 + 100 {
        sleep(Duration::from_millis(10)).await;
    }
    let back_ms = wall_ms();
    let mut workers = Vec::new();
    for (job, _) in JOBS {
        workers.extend(start(job)?);
    }
    // Until ticks that were due after the return have come to their end.
    until(cluster, &mut histories, |history| history.latest_done_ms() > back_ms + period_ms).await?;
    for worker in &mut workers {
        worker.signal(Signal::SIGTERM);
        worker.wait_end(PATIENCE).await;
    }
    let mut said = Vec::new();
    for ((job, missed), history) in JOBS.into_iter().zip(&mut histories) {
        history.read(cluster).await?;
        let (every_ms, deadline_ms) = (period_ms, OUTAGE_DEADLINE_S * 1_000);
        let rules = Rules { every_ms, deadline_ms, missed, overlap: Overlap::Queue };
        let tally = judge::missed(rules, history, &fleet.runs_with_beats(job)?, (killed_ms, back_ms), &faults);
        let tally = tally.or_broken(format!("missed {job}"))?;
        said.push(format!("missed {job}: {} caught up with, {} skipped", tally.caught_up, tally.missed));
    }
    Ok(said.join(", "))
}

async fn until(
    cluster: &Cluster,
    histories: &mut [TickHistory],
    reached: impl Fn(&TickHistory) -> bool,
) -> Result<(), Failed> {
    let wait = Polling::within(PATIENCE).every(Duration::from_millis(50));
    loop {
        for history in histories.iter_mut() {
            history.read(cluster).await?;
        }
        if histories.iter().all(&reached) {
            return Ok(());
        }
        wait.or_broken(|| format!("ticks do not come to their end within {PATIENCE:?}")).await?;
    }
}
