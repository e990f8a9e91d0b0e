//! Schedules. Ten workers of `lockkeeper cron`, whose wall clocks are wrong by −10 to +10 minutes, have a tick every
//! two seconds, while the worker of a tick is killed in the middle of its work, and nodes are killed: each tick comes
//! to one end, none is begun early, no two are worked at together, and only the tick of a killed worker is begun again.
//! Then all workers are killed for a while, and the missed ticks go by the policy of their job.
//!
//! Commands report to a file, with the machine's clock; the wrong clocks are those of the workers' processes, shifted
//! by a preloaded library, and each report shows what its worker took for the time. What the cluster recorded is read
//! from the schedule's node, again and again, and judged against the file (`judge`).

mod fleet;
mod judge;

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::Rng as _;
use tokio::time::sleep;

use self::fleet::{Fleet, History};
use self::judge::{Kill, Policy, Run, Tally};
use super::Context;
use crate::cluster::{Cluster, Options};
use crate::record::wall_ms;
use crate::verdict::{Failed, ProofResult, broken};

pub(super) const SECONDS: u64 = 120;
const WORKERS: usize = 10;
/// Seconds between two ticks.
const EVERY_S: u64 = 2;
/// How far the first worker's clock is behind, and the last one's ahead.
const WRONG_BY_S: i64 = 600;
/// Between two faults.
const FAULT_EVERY: Duration = Duration::from_secs(6);
const PATIENCE: Duration = Duration::from_secs(30);
/// Without any worker.
const OUTAGE: Duration = Duration::from_secs(9);
/// A clock that is shown with the precision of a second may be wrong by so much more.
const SLACK_S: i64 = 3;

pub(super) async fn run(context: &Context) -> ProofResult {
    let mut cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    let fleet = Fleet::new(context, &cluster)?;
    let (tally, workers, nodes) = wrong_clocks(context, &mut cluster, &fleet).await?;
    let missed = outage(context, &cluster, &fleet).await?;
    cluster.agree(Duration::from_secs(20)).await?;
    Ok(format!(
        "{} ticks by {WORKERS} workers with clocks from -{WRONG_BY_S} s to +{WRONG_BY_S} s: {} done, {} of them begun \
         again after {workers} kills of their workers, {} skipped as they overlapped, {} missed; {nodes} nodes killed; \
         begun after {} ms (median), {} ms (p95), {} ms (max), never early; {missed}",
        tally.ticks,
        tally.done,
        tally.begun_again,
        tally.overlapped,
        tally.missed,
        tally.lateness_ms(50),
        tally.lateness_ms(95),
        tally.lateness_ms(100),
    ))
}

async fn wrong_clocks(
    context: &Context,
    cluster: &mut Cluster,
    fleet: &Fleet,
) -> Result<(Tally, usize, usize), Failed> {
    let job = "clocks";
    let offset = |number: usize| {
        let step = 2 * WRONG_BY_S / i64::try_from(WORKERS - 1).unwrap_or(1);
        i64::try_from(number).unwrap_or_default() * step - WRONG_BY_S
    };
    let options = format!("--at|*/{EVERY_S} * * * * *|--missed|all");
    let start = |number: usize| fleet.start(job, number, offset(number), &options);
    let mut workers = (0..WORKERS).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut history = History::of(job);
    let length = Duration::from_secs(context.seconds.unwrap_or(SECONDS));
    let (begun, mut next_fault) = (Instant::now(), Instant::now() + FAULT_EVERY);
    let (mut rng, mut kills, mut nodes) = (context.random(1), Vec::new(), 0);
    while begun.elapsed() < length {
        history.read(cluster).await?;
        if Instant::now() < next_fault {
            sleep(Duration::from_millis(50)).await;
            continue;
        }
        next_fault = Instant::now() + FAULT_EVERY;
        if kills.len() <= nodes {
            let Some(run) = under_way(context, fleet, job).await? else { continue };
            kill(Pid::from_raw(run.worker), Signal::SIGKILL).map_err(std::io::Error::from)?;
            context.log.say(format!("the worker of {} is killed in the middle", run.tick));
            let at = workers.iter().position(|worker| worker.pid() == run.worker);
            let Some(number) = at else { return broken(format!("{run:?} has no worker of the fleet")) };
            kills.push(Kill { token: run.token, at_ms: wall_ms() });
            workers[number] = start(number)?;
        } else {
            let (leader, _) = cluster.leader().await?;
            let ids = cluster.ids();
            let node = if rng.random_bool(0.5) { leader } else { ids[rng.random_range(0..ids.len())] };
            cluster.kill(node).await?;
            context.log.say(format!("node {node} is killed (the leader was {leader})"));
            sleep(Duration::from_secs(1)).await;
            cluster.spawn(node)?;
            cluster.ready(node).await?;
            nodes += 1;
        }
    }
    settle(cluster, fleet, job, &mut history).await?;
    for worker in &mut workers {
        worker.signal(Signal::SIGTERM);
    }
    for worker in &mut workers {
        match worker.wait_end(PATIENCE).await {
            Some(status) if status.code() == Some(0) => {}
            other => return broken(format!("a worker that got SIGTERM ended with {other:?}")),
        }
    }
    history.read(cluster).await?;
    let runs = fleet.runs(job)?;
    let tally = judge::clocks(EVERY_S, &history, &runs, &kills).map_err(Failed::Broken)?;
    if kills.is_empty() || nodes == 0 {
        return Err(Failed::CannotRun("too short for a kill of a worker and of a node; give more --seconds".into()));
    }
    shifted(&runs, offset)?;
    Ok((tally, kills.len(), nodes))
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
async fn settle(cluster: &Cluster, fleet: &Fleet, job: &str, history: &mut History) -> Result<(), Failed> {
    let (begun, now_ms) = (Instant::now(), wall_ms());
    loop {
        history.read(cluster).await?;
        if fleet.runs(job)?.iter().any(|run| run.ended_ms.is_some_and(|ended| ended > now_ms + 2_000 * EVERY_S)) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return broken(format!("no tick of {job} came to its end for {PATIENCE:?} after the faults"));
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// The wrong clocks were wrong where the work was done.
fn shifted(runs: &[Run], offset: impl Fn(usize) -> i64) -> Result<(), Failed> {
    let mut seen = std::collections::BTreeSet::new();
    for run in runs {
        let expected = offset(run.number);
        if (run.clock_off_s - expected).abs() > SLACK_S {
            return Err(Failed::CannotRun(format!("worker {} is off by {} s", run.number, run.clock_off_s)));
        }
        seen.insert(run.number);
    }
    match seen.len() {
        0..3 => Err(Failed::CannotRun(format!("only the workers {seen:?} had ticks to do"))),
        _ => Ok(()),
    }
}

/// All workers of three jobs are killed, and started again after a while.
async fn outage(context: &Context, cluster: &Cluster, fleet: &Fleet) -> Result<String, Failed> {
    const JOBS: [(&str, Policy); 3] = [("skip", Policy::Skip), ("once", Policy::Once), ("all", Policy::All)];
    let start = |job: &str| {
        let options = format!("--at|*/{EVERY_S} * * * * *|--missed|{job}|--deadline|1s|--overlap|queue");
        (0..2).map(|number| fleet.start(job, number, 0, &options)).collect::<Result<Vec<_>, _>>()
    };
    let mut workers = Vec::new();
    for (job, _) in JOBS {
        workers.extend(start(job)?);
    }
    let mut histories = JOBS.map(|(job, _)| History::of(job));
    until(cluster, &mut histories, |history| history.done() >= 2).await?;
    context.log.say(format!("all workers of three jobs are killed for {OUTAGE:?}"));
    let mut kills = Vec::new();
    for worker in workers {
        worker.signal(Signal::SIGKILL);
    }
    let killed_ms = wall_ms();
    for (job, _) in JOBS {
        // At work, or at their end and perhaps not reported yet.
        let unreported = fleet.runs(job)?.into_iter().filter(|run| run.started_ms + 1_500 > killed_ms);
        kills.extend(unreported.map(|run| Kill { token: run.token, at_ms: killed_ms }));
    }
    sleep(OUTAGE).await;
    let back_ms = wall_ms();
    let mut workers = Vec::new();
    for (job, _) in JOBS {
        workers.extend(start(job)?);
    }
    // Until ticks that were due after the return have come to their end.
    until(cluster, &mut histories, |history| history.latest_done_ms() > back_ms + 2_000 * EVERY_S).await?;
    for worker in &mut workers {
        worker.signal(Signal::SIGTERM);
        worker.wait_end(PATIENCE).await;
    }
    let mut said = Vec::new();
    for ((job, policy), history) in JOBS.into_iter().zip(&mut histories) {
        history.read(cluster).await?;
        let tally = judge::missed(EVERY_S, policy, history, &fleet.runs(job)?, (killed_ms, back_ms), &kills);
        let tally = tally.map_err(|why| Failed::Broken(format!("missed {job}: {why}")))?;
        said.push(format!("missed {job}: {} caught up with, {} skipped", tally.caught_up, tally.missed));
    }
    Ok(said.join(", "))
}

async fn until(cluster: &Cluster, histories: &mut [History], reached: impl Fn(&History) -> bool) -> Result<(), Failed> {
    let begun = Instant::now();
    loop {
        for history in histories.iter_mut() {
            history.read(cluster).await?;
        }
        if histories.iter().all(&reached) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return broken(format!("ticks do not come to their end within {PATIENCE:?}"));
        }
        sleep(Duration::from_millis(50)).await;
    }
}
