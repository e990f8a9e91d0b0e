//! Kills nodes one after the other, in a fixed rhythm, starts them again, and records what the judges need to know
//! about it.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use super::Context;
use crate::cluster::Cluster;
use crate::sampler::Sampler;
use crate::verdict::{Failed, broken};

/// How long a killed node stays down.
const DOWN_FOR: Duration = Duration::from_secs(1);
/// From when on after a node's return it counts as calm: its clients have found others, nobody is asked twice.
const SETTLED_AFTER: Duration = Duration::from_millis(500);

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kills {
    /// Nodes killed.
    pub(super) nodes: u32,
    /// How many of them led.
    pub(super) leaders: u32,
}

/// Between two kills: samples at both ends, and nothing happens to any node in between.
pub(super) async fn calm(sampler: &Sampler, until: Instant) -> Result<(), Failed> {
    let from = sampler.round().await?;
    tokio::time::sleep(until.saturating_duration_since(Instant::now())).await;
    let to = sampler.round().await?;
    sampler.was_calm(from, to);
    Ok(())
}

/// Kills a node, starts it again, and waits until it is ready and the dust has settled.
pub(super) async fn kill_one(
    context: &Context,
    cluster: &mut Cluster,
    sampler: &Sampler,
    random: &mut StdRng,
    kills: &mut Kills,
) -> Result<(), Failed> {
    let ids = cluster.ids();
    let Some(victim) = ids.choose(random).copied() else { return broken("no nodes") };
    let (leader, term) = cluster.leader().await?;
    // What it counted until now is not to be lost with it.
    sampler.round().await?;
    cluster.kill(victim).await?;
    sampler.killed(victim);
    kills.nodes += 1;
    kills.leaders += u32::from(victim == leader);
    let role = if victim == leader { "the leader" } else { "a follower" };
    context.log.say(format!("node {victim}, {role} of term {term}, is killed, and started again after {DOWN_FOR:?}"));
    tokio::time::sleep(DOWN_FOR).await;
    cluster.spawn(victim)?;
    cluster.ready(victim).await?;
    tokio::time::sleep(SETTLED_AFTER).await;
    Ok(())
}
