//! Idempotency gates. 100 callers in four processes begin one operation at the same time, also while the leader is
//! killed: the body runs once, and the 99 others get its result or are told that it is in progress. A worker that is
//! killed midway frees the gate when its session ends, or, if it has none, when its pending time is over; and not
//! before.
//!
//! A file that bodies append to tells how often a body ran. "Not before" is judged by the last expiry that the killed
//! worker's session reported, and by the pending time that the worker was told, on the same clocks.

use crate::judge::gates::{GateTally, once};
use crate::judge::{Due, Lateness};
use crate::proofs::prelude::*;
use crate::record::{Standing, wall_ms};
use crate::work::result_of;
use crate::workers::Worker;

const PROCESSES: u32 = 4;
const CALLERS_EACH: u32 = 25;
/// Operations, one after the other; the leader is killed halfway.
const KEYS: u32 = 20;
const EVERY: Duration = Duration::from_millis(300);
const PAIRS: u32 = 1_000;
const TTL_MS: u64 = 2_000;
/// Long enough for the next to ask meanwhile.
const PENDING_MS: u64 = 4_000;
/// How much later than it may the next be let in, not counting while the disk is busy.
const GRACE_MS: u64 = 1_500;
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    let mut cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    let pair = pairs(context, &cluster).await?;
    context.log.say(format!("begin + finish: {} on average", millis(pair)));
    let tally = duplicates(context, &mut cluster).await?;
    context.log.say(format!(
        "{KEYS} operations by {} callers each: {} ran, {} got the result, {} heard that it is in progress",
        PROCESSES * CALLERS_EACH,
        tally.bodies,
        tally.done,
        tally.in_progress
    ));
    if tally.done == 0 || tally.in_progress == 0 {
        return cannot_run("not both kinds of answer came up");
    }
    let (mut by_session, mut by_time) = (Lateness::default(), Lateness::default());
    for round in 1..=rounds {
        for (latest, session) in [(&mut by_session, true), (&mut by_time, false)] {
            *latest = latest.worst(killed_midway(context, &cluster, round, session).await?);
        }
    }
    let (after_session, after_time) = (by_session.late_ms, by_time.late_ms);
    let busiest = by_session.worst(by_time).busy_ms;
    cluster.agree(Duration::from_secs(20)).await?;
    Ok(format!(
        "{KEYS} operations by {} concurrent callers, the leader killed amid: each body ran once, of the others {} got \
         the result and {} heard in progress; {rounds} workers killed midway: the next let in at most {after_session} \
         ms after the session's end, {after_time} ms after the pending time, never before (the disk was busy for at \
         most {busiest} ms of it); begin + finish {} on average",
        PROCESSES * CALLERS_EACH,
        tally.done,
        tally.in_progress,
        millis(pair)
    ))
}

fn start(context: &Context, cluster: &Cluster, name: &str, words: &str) -> Result<Worker, Failed> {
    let bodies = context.dir.join("bodies");
    let arguments = format!("--ttl-ms {TTL_MS} --label {name} gate {words} --bodies {}", bodies.display());
    Worker::start(&context.dir, name, &cluster.endpoints(), arguments.split(' '))
}

async fn pairs(context: &Context, cluster: &Cluster) -> Result<Duration, Failed> {
    let mut worker = start(context, cluster, "pairs", &format!("--role pairs --prefix pair --keys {PAIRS}"))?;
    worker.idle(PATIENCE * 2).await?;
    let told = worker.finish(PATIENCE).await?;
    let mean = told.iter().find_map(|record| match record.what {
        WorkerEvent::Pairs { count, micros } => Some(Duration::from_micros(micros / count.max(1))),
        _ => None,
    });
    mean.ok_or_else(|| Failed::Broken("no pairs were told".into()))
}

async fn duplicates(context: &Context, cluster: &mut Cluster) -> Result<GateTally, Failed> {
    // All sessions are open by then, or its callers come late to the first operations.
    let start_us = boot_us() + 3_000_000;
    let words = format!(
        "--role callers --prefix operation --keys {KEYS} --callers {CALLERS_EACH} --start-us {start_us} --every-ms {} \
         --spread-ms 60 --body-ms 30",
        EVERY.as_millis()
    );
    let mut workers = Vec::new();
    for number in 1..=PROCESSES {
        workers.push(start(context, cluster, &format!("callers-{number}"), &words)?);
    }
    let half_us = start_us + u64::try_from((EVERY * (KEYS / 2)).as_micros()).unwrap_or(0) + 30_000;
    tokio::time::sleep(Duration::from_micros(half_us.saturating_sub(boot_us()))).await;
    let (leader, term) = cluster.leader().await?;
    cluster.kill(leader).await?;
    context.log.say(format!("node {leader}, the leader of term {term}, is killed amid the callers"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.spawn(leader)?;
    let mut told = Vec::new();
    for mut worker in workers {
        worker.idle(EVERY * KEYS + PATIENCE).await?;
        told.extend(worker.finish(PATIENCE).await?);
    }
    cluster.all_ready().await?;
    let mut sum = GateTally::default();
    for number in 0..KEYS {
        let key = format!("operation-{number}");
        let callers = (PROCESSES * CALLERS_EACH) as usize;
        let tally = once(&key, &told, callers, result_of).map_err(Failed::Broken)?;
        ran(context, &key, 1)?;
        sum.bodies += tally.bodies;
        sum.done += tally.done;
        sum.in_progress += tally.in_progress;
    }
    Ok(sum)
}

/// The file's word on how often a body ran.
fn ran(context: &Context, key: &str, times: usize) -> Result<(), Failed> {
    let bodies = std::fs::read_to_string(context.dir.join("bodies"))?;
    let seen = bodies.lines().filter(|line| line.split(' ').next() == Some(key)).count();
    if seen == times { Ok(()) } else { broken(format!("the body of {key} ran {seen} times, not {times}")) }
}

/// A worker is killed midway; gives how late the next was let in.
async fn killed_midway(context: &Context, cluster: &Cluster, round: u32, session: bool) -> Result<Lateness, Failed> {
    let kind = if session { "session" } else { "time" };
    let key = format!("stuck-{kind}-{round}");
    let mut words = format!("--prefix {key}");
    if !session {
        words = format!("{words} --without-session --pending-ms {PENDING_MS}");
    }
    let mut stuck = start(context, cluster, &format!("stuck-{kind}-{round}"), &format!("--role stuck {words}"))?;
    let proceeds = |record: &Record| match record.what {
        WorkerEvent::Gate { standing: Standing::Proceed { until_ms, .. }, .. } => Some((record.at_us, until_ms)),
        _ => None,
    };
    let (_, pending_until_ms) = stuck.told("to proceed", PATIENCE, proceeds).await?;
    let body = |record: &Record| matches!(record.what, WorkerEvent::Body { .. }).then_some(());
    stuck.told("its body", PATIENCE, body).await?;
    let mut next = start(context, cluster, &format!("next-{kind}-{round}"), &format!("--role next {words}"))?;
    let waits = |record: &Record| match record.what {
        WorkerEvent::Gate { standing: Standing::InProgress { .. }, .. } => Some(()),
        _ => None,
    };
    next.told("that it is in progress", PATIENCE, waits).await?;
    let disk_latency = DiskLatency::begin(&context.dir)?;
    let begun = Instant::now();
    stuck.kill().await?;
    let (let_in_us, _) = next.told("to proceed", PATIENCE, proceeds).await?;
    let sure_ms = stuck.records()?.iter().filter_map(Record::sure_until_ms).max();
    // The session's end is on the boot clock, as the killed worker last knew it; the pending time on the wall clock, as
    // the cluster said.
    let to_wall = wall_ms() - boot_us() / 1_000;
    let earliest_ms = if session { sure_ms.unwrap_or(0) } else { pending_until_ms.saturating_sub(to_wall) };
    let (what, latest_ms) = (format!("{key}: the next one's turn"), earliest_ms + GRACE_MS);
    let due = Due { what: &what, earliest_ms, latest_ms, since_us: earliest_ms * 1_000 };
    let lateness = due.judge(let_in_us, &disk_latency.end()?)?;
    next.idle(PATIENCE).await?;
    next.finish(PATIENCE).await?;
    ran(context, &format!("{key}-0"), 2)?;
    context.log.say(format!(
        "a worker with {kind} killed midway: the next was let in {} after, {} ms after it might have been \
         (the disk was busy for {} ms)",
        millis(begun.elapsed()),
        lateness.late_ms,
        lateness.busy_ms
    ));
    Ok(lateness)
}
