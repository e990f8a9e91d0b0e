//! 64 tasks of one process use one lock, alternately with and without sharing it inside the process; then, shared,
//! beside a waiter of another process, which is a row of [`scenario`].
//!
//! The proof measures hand-offs per second of both, in alternating legs.

use super::scenario::{self, rows};
use crate::judge::streaks::{fair, streaks};
use crate::proofs::prelude::*;
use crate::workers::Worker;

const LEGS: u32 = 6;
const AT_LEAST: f64 = 5.0;
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn run(context: &Context, leg: Duration) -> ProofResult {
    let cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    let told = alone(context, &cluster, leg).await?;
    let (apart, shared) = rates(context, &told)?;
    fair(&streaks(&told), &[], &[], u64::from(rows::SHARE.max_passes) + 1).map_err(Failed::Broken)?;
    let beside = scenario::run_on(context, &rows::SHARING, cluster, leg * 4).await?;
    let (tasks, ratio) = (rows::SHARE.tasks, shared / apart);
    if ratio < AT_LEAST {
        return broken(format!(
            "{shared:.0} hand-offs/s shared, {apart:.0} not shared: {ratio:.1} times, not {AT_LEAST}"
        ));
    }
    Ok(format!(
        "{tasks} tasks: {shared:.0} hand-offs/s shared, {apart:.0} not shared ({ratio:.1} times); beside an outsider: \
         {beside}"
    ))
}

/// What the tasks told of their legs, with nobody beside them.
async fn alone(context: &Context, cluster: &Cluster, leg: Duration) -> Result<Vec<Record>, Failed> {
    let words = rows::SHARE.words("sharing-alone", LEGS, leg);
    let mut worker = Worker::start(&context.dir, "alone", &cluster.endpoints(), words.split(' '))?;
    worker.idle(leg * LEGS + PATIENCE).await?;
    let told = worker.finish(PATIENCE).await?;
    let failed = told.iter().find_map(|record| match &record.what {
        WorkerEvent::Failed { doing, why } => Some(format!("{doing}: {why}")),
        _ => None,
    });
    match failed {
        Some(what) => Err(without_fault(what)),
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
