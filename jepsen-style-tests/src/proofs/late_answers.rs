//! P11 where it is easiest to get wrong: answers reach the holder late, and then the holder's keepalives reach nobody.
//!
//! Everything that the holder's node sends takes longer than a third of the session timeout, for long enough that
//! keepalives are acknowledged late; then nothing that the holder sends arrives any more. A client that counts its
//! lease from the *arrival* of the last acknowledgement trusts the lease for too long, until after the next client
//! holds. The holder must report *lost* first. Both moments are read from one clock.

use rand::seq::IndexedRandom as _;

use super::scenario::hand_over::{HandOverOptions, PATIENCE, lost, told_first};
use crate::net::{Endpoint, LinkFault};
use crate::proofs::prelude::*;

const TTL_MS: u64 = 15_000;
/// How long an answer takes. At least 6 s: more than an expiry can be late (a third of the timeout, the client's second
/// way to ask, and the time to notice) plus the client's margin, or a wrong client is not caught. At most 9.5 s: less
/// than two thirds of the timeout without that margin, or a right client gives up before a keepalive is acknowledged.
/// The slack on either side is for a disk that stalls and a process that is late.
const LATE: Duration = Duration::from_millis(7_500);
/// Late acknowledgements before the cut.
const ACKNOWLEDGED: usize = 2;

pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    let cluster = Cluster::start(&context.binary, &context.dir, Options::behind_proxies(3).await?).await?;
    let mut random = context.random(1);
    let mut leads = Vec::new();
    for round in 1..=rounds {
        let Some(node) = cluster.ids().choose(&mut random).copied() else { return broken("there are no nodes") };
        // Anywhere between two signs of life.
        let phase = Duration::from_millis(random.random_range(0..TTL_MS / 3));
        let lead = one_round(context, &cluster, round, node, phase).await;
        cluster.net().heal().await?;
        leads.push(lead.map_err(|failed| match failed {
            Failed::Broken(what) => Failed::Broken(format!("round {round}, holder at node {node}: {what}")),
            other => other,
        })?);
    }
    let least = leads.iter().min().copied().unwrap_or_default();
    Ok(format!(
        "{rounds} holders cut off after answers that took {}: each knew that its lock was lost at least {} before the \
         next grant",
        millis(LATE),
        millis(least)
    ))
}

/// Gives how long before the next grant the holder was told.
async fn one_round(
    context: &Context,
    cluster: &Cluster,
    round: u32,
    node: u64,
    phase: Duration,
) -> Result<Duration, Failed> {
    let name = format!("round-{round}");
    let asked =
        HandOverOptions { family: "late-answers", name: &name, ttl_ms: TTL_MS, words: "", holder_at: Some(node) };
    let mut pair = asked.start(context, cluster).await?;
    let sure = |records: &[Record]| records.iter().filter_map(Record::sure_until_ms).count();
    cluster.net().set_answers(node, LinkFault::Slow { delay: LATE, jitter: Duration::ZERO, bytes_per_s: 0 }).await?;
    // What was on its way before does not count.
    tokio::time::sleep(LATE).await;
    let before = sure(&pair.holder.records()?);
    let wait = Polling::within(PATIENCE).every(Duration::from_millis(5));
    while sure(&pair.holder.records()?) < before + ACKNOWLEDGED {
        wait.or_broken(|| {
            format!("no keepalive was acknowledged within {PATIENCE:?} while answers took {}", millis(LATE))
        })
        .await?;
    }
    tokio::time::sleep(phase).await;
    cluster.net().set(Endpoint::Clients, node, LinkFault::Cut).await?;
    let granted_us = pair.next_granted_us().await?;
    let lost_us = pair.holder.told("that its lock is lost", PATIENCE, lost).await?;
    cluster.net().heal().await?;
    pair.end().await?;
    let lead = told_first(lost_us, granted_us)?;
    context
        .log
        .say(format!("round {round}: the holder at node {node} was told {} before the next grant", millis(lead)));
    Ok(lead)
}
