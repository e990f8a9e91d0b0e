//! 64 tasks of one process use one lock, alternately with and without sharing it inside the process; then, shared,
//! beside a waiter of another process.
//!
//! The proof measures hand-offs per second of both, in alternating legs. It judges the cap: no grant is handed over
//! more often than allowed, and the outsider is served where its request stands in the log, behind the streak that ran
//! and at most one other.

use std::time::Duration;

use lockkeeper_checkers::lives::Life;

use super::Context;
use crate::cluster::{Cluster, Options};
use crate::judge::grants::GrantHistory;
use crate::judge::streaks::{Fairness, Streak, fair};
use crate::ledger::{self, Ledger};
use crate::record::{Record, WorkerEvent};
use crate::stats::millis;
use crate::verdict::{Failed, ProofResult, broken};
use crate::workers::Worker;

const TASKS: u32 = 64;
const BESIDE: &str = "sharing/beside";
const LEGS: u32 = 6;
pub(super) const SECONDS: u64 = 3;
const MAX_PASSES: u32 = 100;
const MAX_TIME: Duration = Duration::from_millis(200);
const AT_LEAST: f64 = 5.0;
/// One hand may have the lock for so long after the cap's time is over: a task of a busy process on a busy machine.
const LAST_HAND: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn run(context: &Context) -> ProofResult {
    let seconds = context.seconds.unwrap_or(SECONDS);
    let cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    let alone = share(context, &cluster, "alone", "sharing/alone", LEGS, seconds)?;
    let told = finish(alone, Duration::from_secs(seconds * u64::from(LEGS))).await?;
    let (apart, shared) = rates(context, &told)?;
    fair(&streaks(&told), &[], &[], u64::from(MAX_PASSES) + 1).map_err(Failed::Broken)?;

    let ledger = Ledger::open(&cluster).await?;
    let beside = share(context, &cluster, "beside", BESIDE, 2, seconds * 2)?;
    let outsider = outsider(context, &cluster, BESIDE, seconds * 4)?;
    let (beside, outside) = tokio::try_join!(
        finish(beside, Duration::from_secs(seconds * 4)),
        finish(outsider, Duration::from_secs(seconds * 4))
    )?;
    let requests = ledger::requests(&ledger.close(&cluster).await?, BESIDE)?;
    let fairness = judge_beside(&beside, &outside, &requests)?;
    let ratio = shared / apart;
    if ratio < AT_LEAST {
        return broken(format!(
            "{shared:.0} hand-offs/s shared, {apart:.0} not shared: {ratio:.1} times, not {AT_LEAST}"
        ));
    }
    Ok(format!(
        "{TASKS} tasks: {shared:.0} hand-offs/s shared, {apart:.0} not shared ({ratio:.1} times); cap {MAX_PASSES} \
         passes or {}: longest \
         streak {} hands, {}; an outsider waited {} at most, with {} hands before it",
        millis(MAX_TIME),
        fairness.longest,
        millis(Duration::from_micros(fairness.longest_us)),
        millis(Duration::from_micros(fairness.longest_wait_us)),
        fairness.most_before_an_outsider
    ))
}

fn share(
    context: &Context,
    cluster: &Cluster,
    name: &str,
    lock: &str,
    legs: u32,
    seconds: u64,
) -> Result<Worker, Failed> {
    let arguments = format!(
        "share --lock {lock} --tasks {TASKS} --legs {legs} --leg-ms {} --max-passes {MAX_PASSES} --max-time-ms {}",
        seconds * 1_000,
        MAX_TIME.as_millis()
    );
    let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
    Worker::start(&context.dir, name, &cluster.endpoints(), &arguments)
}

/// A process with one client that wants the same lock now and then.
fn outsider(context: &Context, cluster: &Cluster, lock: &str, seconds: u64) -> Result<Worker, Failed> {
    let (counter, tokens) = (context.dir.join("counter"), context.dir.join("tokens"));
    std::fs::write(&counter, format!("{:020}\n", 0))?;
    std::fs::write(&tokens, "")?;
    let arguments = format!(
        "contend --lock {lock} --clients 1 --seconds {seconds} --think-ms 20 --counter {} --tokens {}",
        counter.display(),
        tokens.display()
    );
    let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
    Worker::start(&context.dir, "outsider", &cluster.endpoints(), &arguments)
}

async fn finish(mut worker: Worker, over: Duration) -> Result<Vec<Record>, Failed> {
    worker.idle(over + PATIENCE).await?;
    let told = worker.finish(PATIENCE).await?;
    let failed = told.iter().find_map(|record| match &record.what {
        WorkerEvent::Failed { doing, why } => Some(format!("{doing}: {why}")),
        _ => None,
    });
    match failed {
        Some(what) => broken(format!("with no fault about: {what}")),
        None => Ok(told),
    }
}

/// Hand-offs per second without and with sharing, over all legs.
fn rates(context: &Context, told: &[Record]) -> Result<(f64, f64), Failed> {
    let mut sums = [(0u64, 0u64); 2];
    for record in told {
        if let WorkerEvent::Leg { shared, handoffs, micros } = record.what {
            let sum = &mut sums[usize::from(shared)];
            *sum = (sum.0 + handoffs, sum.1 + micros);
            let how = if shared { "shared" } else { "not shared" };
            context.log.say(format!("{how}: {:.0} hand-offs/s", handoffs as f64 * 1e6 / micros.max(1) as f64));
        }
    }
    if sums.iter().any(|(handoffs, _)| *handoffs == 0) {
        return broken(format!("a kind of leg had no hand-off: {sums:?}"));
    }
    let rate = |(handoffs, micros): (u64, u64)| handoffs as f64 * 1e6 / micros.max(1) as f64;
    Ok((rate(sums[0]), rate(sums[1])))
}

fn streaks(told: &[Record]) -> Vec<Streak> {
    let streak = |record: &Record| match record.what {
        WorkerEvent::Streak { token, holds, first_us, last_us } => Some(Streak { token, holds, first_us, last_us }),
        _ => None,
    };
    told.iter().filter_map(streak).collect()
}

fn judge_beside(beside: &[Record], outside: &[Record], requests: &[Life]) -> Result<Fairness, Failed> {
    // Only while it was shared: from the end of the first leg on.
    let legs: Vec<u64> = beside
        .iter()
        .filter_map(|record| matches!(record.what, WorkerEvent::Leg { .. }).then_some(record.at_us))
        .collect();
    let [apart_until_us, shared_until_us] = legs[..] else { return broken(format!("{} legs", legs.len())) };
    let mut told = GrantHistory::default();
    told.take("outsider", outside);
    let asked =
        |grant: &crate::judge::grants::Grant| grant.asked_us > apart_until_us && grant.granted_us < shared_until_us;
    let grants: Vec<_> = told.grants.iter().filter(|grant| asked(grant)).cloned().collect();
    let streaks = streaks(beside);
    let fairness = fair(&streaks, &grants, requests, u64::from(MAX_PASSES) + 1).map_err(Failed::Broken)?;
    if grants.len() < 20 || fairness.longest < 2 {
        let why = format!(
            "the outsider was granted {} times, the longest streak had {} hands",
            grants.len(),
            fairness.longest
        );
        return broken(why);
    }
    let cap = MAX_TIME + LAST_HAND;
    if u128::from(fairness.longest_us) > cap.as_micros() {
        return broken(format!("a grant stayed in the process for {} us, the cap is {cap:?}", fairness.longest_us));
    }
    Ok(fairness)
}
