//! How long clients wait after a fault, over enough faults to show the tail: the time to the next acknowledged acquire.
//!
//! There are two questions. *The leader's end*: the leader is killed, stopped, or cut off from the others, with clients
//! at work at the others. The time is counted from the fault to the end of the longest time without a grant, as in
//! `failover`, whose rounds and checks these are. *The holder's end*: a process that holds a lock is killed, alone or
//! together with the leader, while another process waits for that lock. The time is counted from the kill to the grant
//! of the waiting process. It includes the rest of the dead session's timeout, which nobody may shorten, so it is also
//! counted from the end of that session by the dead client's own reckoning.

use super::TTL_MS;
use super::failover::{self, LeaderFault};
use super::scenario::hand_over::{HandOver, HandOverOptions, PATIENCE};
use crate::proofs::prelude::*;

/// For faults that are taken off again: longer than an election.
const LASTING: Duration = Duration::from_millis(2_500);
/// Holders that die in one round: each has a process, and so has the one behind it.
const HOLDERS: u32 = 10;

pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    let mut random = context.random(1);
    // Nothing stands between the nodes: that a peer's process has ended is told by its sockets.
    let mut cluster = Cluster::start(&context.binary, &context.dir.join("direct"), Options::default()).await?;
    let mut figures = Vec::new();
    leaders(
        context,
        &mut cluster,
        &[LeaderFault::Kill, LeaderFault::Pause(LASTING)],
        rounds,
        &mut random,
        &mut figures,
    )
    .await?;
    for with_leader in [false, true] {
        let what = if with_leader { "holder killed with the leader" } else { "holder killed" };
        let waits = holders(context, &mut cluster, rounds, with_leader, &mut random).await?;
        let (from_death, from_end): (Vec<_>, Vec<_>) = waits.into_iter().unzip();
        figures.extend(tell(context, what, &from_death));
        figures.extend(tell(context, &format!("{what}, from its session's end"), &from_end));
    }
    drop(cluster);
    let options = Options::behind_proxies(3).await?;
    let mut cluster = Cluster::start(&context.binary, &context.dir.join("proxied"), options).await?;
    leaders(context, &mut cluster, &[LeaderFault::CutOff(LASTING)], rounds, &mut random, &mut figures).await?;
    Ok(figures.join("; "))
}

async fn leaders(
    context: &Context,
    cluster: &mut Cluster,
    faults: &[LeaderFault],
    rounds: u32,
    random: &mut StdRng,
    figures: &mut Vec<String>,
) -> Result<(), Failed> {
    failover::make_parent(cluster).await?;
    for fault in faults {
        let outages = failover::rounds(context, cluster, *fault, rounds, random).await?.outages;
        figures.extend(tell(context, &format!("leader {}", fault.name()), &outages));
    }
    Ok(())
}

fn tell(context: &Context, what: &str, waits: &[Duration]) -> Option<String> {
    let summary = Summary::of(waits)?;
    let line = format!("{what}: {summary} of {}", summary.count);
    context.log.say(&line);
    Some(line)
}

/// How long the next waited after each death, and after the end of the dead one's session.
async fn holders(
    context: &Context,
    cluster: &mut Cluster,
    count: u32,
    with_leader: bool,
    random: &mut StdRng,
) -> Result<Vec<(Duration, Duration)>, Failed> {
    let mut waits = Vec::new();
    for first in (0..count).step_by(HOLDERS as usize) {
        let mut pairs = Vec::new();
        for number in first..count.min(first + HOLDERS) {
            let name = format!("{}-{number}", if with_leader { "both" } else { "alone" });
            let asked = HandOverOptions { family: "recovery", name: &name, ttl_ms: TTL_MS, words: "", holder_at: None };
            pairs.push(asked.start(context, cluster).await?);
        }
        // Anywhere between two signs of life.
        tokio::time::sleep(Duration::from_millis(random.random_range(0..TTL_MS / 3))).await;
        let leader = cluster.leader().await?.0;
        let struck_us = boot_us();
        if with_leader {
            cluster.signal(leader, Signal::SIGKILL);
        }
        pairs.iter().for_each(|pair| pair.holder.signal(Signal::SIGKILL));
        for pair in pairs {
            waits.push(next_after(pair, struck_us).await?);
        }
        if with_leader {
            cluster.ended(leader, PATIENCE).await?;
            cluster.spawn(leader)?;
        }
        cluster.all_ready().await?;
    }
    Ok(waits)
}

async fn next_after(mut pair: HandOver, struck_us: u64) -> Result<(Duration, Duration), Failed> {
    let sure_ms = pair.kill_holder().await?;
    let granted_us = pair.next_granted_us().await?;
    pair.end().await?;
    if granted_us < sure_ms * 1_000 {
        let early = sure_ms * 1_000 - granted_us;
        return Err(Failed::Broken(format!("granted {early} µs before the dead holder's session could end (P5)")));
    }
    Ok((Duration::from_micros(granted_us - struck_us), Duration::from_micros(granted_us - sure_ms * 1_000)))
}
