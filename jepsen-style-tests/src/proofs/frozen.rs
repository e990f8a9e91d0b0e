//! All nodes are frozen under load, for longer than a write to the disk may take: none may take its own pause for a
//! stuck disk, or end for another reason, and nothing acknowledged is lost.
//!
//! A stopped process is what a paused virtual machine is to the programs in it. A freeze bites only where it falls
//! between the beginning of a write and its barrier, so the nodes write all the time.

use super::acknowledged;
use super::writers::{Writers, Writing};
use crate::process::Process;
use crate::proofs::prelude::*;

/// Longer than `storage.sync_watchdog_ms` is by default.
pub(super) const FROZEN_FOR: Duration = Duration::from_secs(12);
/// A node that ends after a freeze does it within an eighth of that time.
const OBSERVED_FOR: Duration = Duration::from_millis(2_500);
const GOES_ON_WITHIN: Duration = Duration::from_secs(20);
const AGREE_WITHIN: Duration = Duration::from_secs(30);
const WRITERS_AT_EACH: usize = 8;
const CALL: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// What a node logs when it notices a pause in the middle of a write.
const NOTICED: &str = "this process was not running for a while: the disk";

pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    let mut cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    cluster.make_node("/frozen").await?;
    let writing = Writing { within: CALL, ..Writing::of("/frozen/n-", WRITERS_AT_EACH) };
    let writers = Writers::start(&cluster.apis(), &writing);
    let mut random = context.random(1);
    let mut longest = Duration::ZERO;
    for round in 1..=rounds {
        go_on(&writers, &mut cluster, Instant::now()).await?;
        tokio::time::sleep(Duration::from_millis(random.random_range(0..300))).await;
        let resumed = freeze_all(&mut cluster).await?;
        let after = go_on(&writers, &mut cluster, resumed).await? - resumed;
        longest = longest.max(after);
        while resumed.elapsed() < OBSERVED_FOR {
            all_run(&mut cluster)?;
            tokio::time::sleep(POLL).await;
        }
        context.log.say(format!("round {round} of {rounds}: every node acknowledged writes after {}", millis(after)));
    }
    // What failed, or has an unknown outcome, is not what is looked at here.
    let (written, _) = writers.end().await?;
    cluster.all_ready().await?;
    cluster.agree(AGREE_WITHIN).await?;
    acknowledged::all_there(&cluster, written.iter().map(|write| write.path.as_str())).await?;
    let mut noticed = 0;
    for id in cluster.ids() {
        noticed += std::fs::read_to_string(cluster.directory(id).join("server.log"))?.matches(NOTICED).count();
    }
    Ok(format!(
        "{rounds} times all nodes frozen for {} s under load: none ended, {noticed} times in the middle of a write; \
         writes went on at every node after at most {}; all {} acknowledged are there",
        FROZEN_FOR.as_secs(),
        millis(longest),
        written.len()
    ))
}

/// Stops all processes and lets them run again. When they did.
async fn freeze_all(cluster: &mut Cluster) -> Result<Instant, Failed> {
    for id in cluster.ids() {
        cluster.signal(id, Signal::SIGSTOP);
    }
    tokio::time::sleep(FROZEN_FOR).await;
    let resumed = Instant::now();
    for id in cluster.ids() {
        cluster.signal(id, Signal::SIGCONT);
    }
    all_run(cluster)?;
    Ok(resumed)
}

fn all_run(cluster: &mut Cluster) -> Result<(), Failed> {
    for id in cluster.ids() {
        if let Some(status) = cluster.process(id).and_then(Process::ended) {
            let log = std::fs::read_to_string(cluster.directory(id).join("server.log"))?;
            let last = log.lines().last().unwrap_or_default();
            return broken(format!("node {id} ended ({status}) after it was frozen: {last}"));
        }
    }
    Ok(())
}

/// Waits until each node has acknowledged a write that was sent since then. When the last of them did.
async fn go_on(writers: &Writers, cluster: &mut Cluster, since: Instant) -> Result<Instant, Failed> {
    loop {
        all_run(cluster)?;
        if let Some(last) = writers.all_acknowledge(since) {
            return Ok(last);
        }
        if since.elapsed() > GOES_ON_WITHIN {
            return broken(format!("not every node acknowledges writes within {GOES_ON_WITHIN:?}"));
        }
        tokio::time::sleep(POLL).await;
    }
}
