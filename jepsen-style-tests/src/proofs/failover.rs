//! How long the end of a leader keeps the clients of the other nodes waiting; and that waiting is all they notice.
//!
//! Clients of the two survivors acquire and release locks of their own, and create sequential nodes, all the time. The
//! proof measures the longest time after the fault in which no acquire was acknowledged. That is not shorter than
//! "fault to next acknowledged acquire", and a leader that still answers while it hands over does not improve it. None
//! of the clients' requests may fail or end unknown, and exactly the acknowledged nodes exist, so each batch was
//! applied once.

use super::lock_cycles::{AT_EACH_PAUSE, LockCycles};
use super::writers::{Writers, Writing};
use crate::net::LinkFault;
use crate::proofs::prelude::*;
use crate::stats::gaps;

const LOCKERS_PER_NODE: usize = 4;
const PAUSED_FOR: Duration = Duration::from_secs(5);
const ELECTIONS: &str = "lockkeeper_elections_total";

/// What happens to the leader.
#[derive(Clone, Copy, Debug)]
pub(super) enum LeaderFault {
    Kill,
    Terminate,
    /// Stopped for so long.
    Pause(Duration),
    /// Cut off from the others for so long; the network must be able to.
    CutOff(Duration),
}

const FAULTS: [LeaderFault; 3] = [LeaderFault::Kill, LeaderFault::Terminate, LeaderFault::Pause(PAUSED_FOR)];

impl LeaderFault {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill -9",
            Self::Terminate => "SIGTERM",
            Self::Pause(_) => "SIGSTOP",
            Self::CutOff(_) => "cut off",
        }
    }

    fn slug(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Terminate => "terminate",
            Self::Pause(_) => "pause",
            Self::CutOff(_) => "cut-off",
        }
    }

    async fn strike(self, cluster: &Cluster, leader: u64) -> Result<(), Failed> {
        match self {
            Self::Kill => cluster.signal(leader, Signal::SIGKILL),
            Self::Terminate => cluster.signal(leader, Signal::SIGTERM),
            Self::Pause(_) => cluster.signal(leader, Signal::SIGSTOP),
            Self::CutOff(_) => return cluster.set_links_of(leader, LinkFault::Cut).await,
        }
        Ok(())
    }

    /// What is promised, for the median.
    fn target(self) -> Duration {
        match self {
            Self::Kill => Duration::from_millis(150),
            Self::Terminate => Duration::from_millis(100),
            Self::Pause(_) | Self::CutOff(_) => Duration::from_millis(1_500),
        }
    }
}

pub(super) async fn run(context: &Context, count: u32, calm: Duration) -> ProofResult {
    let mut random = context.random(1);
    let mut cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    make_parent(&cluster).await?;
    let (mut figures, mut missed) = (Vec::new(), Vec::new());
    let mut requests = 0;
    for fault in FAULTS {
        let measured = rounds(context, &mut cluster, fault, count, &mut random).await?;
        requests += measured.requests;
        let Some(summary) = Summary::of(&measured.outages) else { continue };
        context.log.say(format!("{}: {summary}", fault.name()));
        if summary.median > fault.target() {
            missed.push(format!(
                "{} median {} exceeds {}",
                fault.name(),
                millis(summary.median),
                millis(fault.target())
            ));
        }
        figures.push(format!("{} {summary}", fault.name()));
    }
    figures.push(format!("{requests} requests at survivors without an error"));
    if !calm.is_zero() {
        calm_phase(context, &mut cluster, "idle", calm, 0).await?;
        calm_phase(context, &mut cluster, "loaded", calm, LOCKERS_PER_NODE).await?;
        figures.push(format!("no election in {} s idle and {} s loaded", calm.as_secs(), calm.as_secs()));
    }
    if missed.is_empty() {
        Ok(figures.join("; "))
    } else {
        broken(format!("{}; {}", missed.join("; "), figures.join("; ")))
    }
}

/// Where the rounds put what they create.
pub(super) async fn make_parent(cluster: &Cluster) -> Result<(), Failed> {
    cluster.make_node("/failover").await.map(drop)
}

/// What rounds of a fault came to.
pub(super) struct Rounds {
    pub(super) outages: Vec<Duration>,
    requests: usize,
}

/// The same fault over and over.
pub(super) async fn rounds(
    context: &Context,
    cluster: &mut Cluster,
    fault: LeaderFault,
    count: u32,
    random: &mut StdRng,
) -> Result<Rounds, Failed> {
    let mut all = Rounds { outages: Vec::new(), requests: 0 };
    for round in 1..=count {
        let measured =
            one_round(cluster, fault, round, random).await.or_broken(format!("{} round {round}", fault.name()))?;
        all.requests += measured.requests;
        all.outages.push(measured.outage);
        context.log.say(format!(
            "{} round {round} of {count}: node {} led; next grant after {}; {} requests at the survivors, all \
             acknowledged",
            fault.name(),
            measured.leader,
            millis(measured.outage),
            measured.requests
        ));
    }
    Ok(all)
}

struct Measured {
    leader: u64,
    outage: Duration,
    requests: usize,
}

async fn one_round(
    cluster: &mut Cluster,
    fault: LeaderFault,
    round: u32,
    random: &mut StdRng,
) -> Result<Measured, Failed> {
    let (leader, _) = cluster.leader().await?;
    let survivors = cluster.others(leader);
    let parent = format!("/failover/{}-{round}", fault.slug());
    cluster.make_node(&parent).await?;
    let load = FailoverLoad::start(cluster, &survivors, LOCKERS_PER_NODE, Some(&parent)).await?;
    load.warm(Instant::now()).await?;
    tokio::time::sleep(Duration::from_millis(random.random_range(0..300))).await;

    let struck = Instant::now();
    fault.strike(cluster, leader).await?;
    load.warm(struck).await?;
    cluster.leader_among(&survivors, Duration::from_secs(10)).await?;
    load.warm(Instant::now()).await?;
    match fault {
        LeaderFault::Kill => drop(cluster.ended(leader, Duration::from_secs(10)).await?),
        LeaderFault::Terminate => {
            let code = cluster.ended(leader, Duration::from_secs(20)).await?;
            if code != Some(0) {
                return broken(format!("the old leader ended with {code:?} after SIGTERM, not with 0"));
            }
        }
        LeaderFault::Pause(lasting) | LeaderFault::CutOff(lasting) => {
            tokio::time::sleep(lasting.saturating_sub(struck.elapsed())).await;
            match fault {
                LeaderFault::CutOff(_) => cluster.set_links_of(leader, LinkFault::None).await?,
                _ => cluster.signal(leader, Signal::SIGCONT),
            }
            // The old leader finds out that it no longer leads, and its return must not disturb anyone.
            cluster.ready(leader).await?;
            load.warm(Instant::now()).await?;
        }
    }
    let done = load.stop().await?;
    if matches!(fault, LeaderFault::Kill | LeaderFault::Terminate) {
        cluster.spawn(leader)?;
    }
    cluster.all_ready().await?;
    cluster.agree(Duration::from_secs(20)).await?;
    for (id, api) in cluster.apis() {
        let (names, _) = api.children_stale(&parent).await.or_broken("with all nodes ready")?;
        if names.len() != done.created {
            return broken(format!("{} creates were acknowledged, node {id} has {}", done.created, names.len()));
        }
    }
    Ok(Measured { leader, outage: longest_gap(struck, &done.grants), requests: done.requests })
}

/// The longest time from `struck` on without a grant.
fn longest_gap(struck: Instant, grants: &[Instant]) -> Duration {
    let last = grants.iter().copied().fold(struck, Instant::max);
    let gaps = gaps(grants.iter().copied(), struck, last);
    gaps.into_iter().map(|(from, to)| to - from).max().unwrap_or_default()
}

/// Nothing happens to the cluster, and nothing may happen in it.
async fn calm_phase(
    context: &Context,
    cluster: &mut Cluster,
    how: &str,
    calm: Duration,
    lockers: usize,
) -> Result<(), Failed> {
    let elected = cluster.counter(ELECTIONS).await?;
    if elected == 0.0 {
        return broken(format!("{ELECTIONS} is 0 although somebody leads: elections are not counted"));
    }
    let before = cluster.leader().await?;
    context.log.say(format!("{how} for {} s: node {} leads term {}", calm.as_secs(), before.0, before.1));
    let ids = cluster.ids();
    let load = if lockers > 0 { Some(FailoverLoad::start(cluster, &ids, lockers, None).await?) } else { None };
    tokio::time::sleep(calm).await;
    let requests = match load {
        Some(load) => load.stop().await?.requests,
        None => 0,
    };
    let after = cluster.leader().await?;
    let elections = cluster.counter(ELECTIONS).await? - elected;
    if after != before || elections != 0.0 {
        return broken(format!(
            "{elections} elections in {} {how} seconds without a fault: node {} term {} then, node {} term {} now",
            calm.as_secs(),
            before.0,
            before.1,
            after.0,
            after.1
        ));
    }
    context.log.say(format!("{how}: no election, {requests} requests"));
    Ok(())
}

/// Clients at work.
struct FailoverLoad {
    cycles: LockCycles,
    writers: Writers,
}

struct Done {
    grants: Vec<Instant>,
    requests: usize,
    created: usize,
}

impl FailoverLoad {
    async fn start(cluster: &Cluster, nodes: &[u64], lockers: usize, parent: Option<&str>) -> Result<Self, Failed> {
        let nodes: Vec<(u64, Api)> = nodes.iter().map(|node| (*node, cluster.api(*node))).collect();
        let cycles = LockCycles::at_each(&nodes, lockers, "failover").await?;
        let writers = parent.map(|parent| {
            Writers::start(&nodes, &Writing { every: AT_EACH_PAUSE, ..Writing::of(&format!("{parent}/n-"), 1) })
        });
        let writers = writers.unwrap_or_default();
        Ok(Self { cycles, writers })
    }

    /// Waits until every client had an acknowledgement of something it sent after `since`.
    async fn warm(&self, since: Instant) -> Result<(), Failed> {
        let wait = Polling::within(Duration::from_secs(20)).every(Duration::from_millis(2));
        loop {
            none_failed([self.cycles.failures(), self.writers.failures()].concat())?;
            if self.cycles.all_answered(since) && self.writers.all_acknowledge(since).is_some() {
                return Ok(());
            }
            wait.or_broken(|| "a client of a surviving node got no answer for 20 s").await?;
        }
    }

    async fn stop(self) -> Result<Done, Failed> {
        let (work, (written, failures)) = (self.cycles.end().await, self.writers.end().await?);
        none_failed([work.failures, failures].concat())?;
        // Each cycle is two.
        let (requests, created) = (2 * work.grants.len() + written.len(), written.len());
        Ok(Done { grants: work.grants.into_iter().map(|grant| grant.granted).collect(), requests, created })
    }
}

fn none_failed(failures: Vec<String>) -> Result<(), Failed> {
    match failures.first() {
        Some(first) => broken(format!("{} requests failed; the first: {first}", failures.len())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_counts_from_the_fault_on() {
        let base = Instant::now();
        let at = |ms| base + Duration::from_millis(ms);
        assert_eq!(longest_gap(at(100), &[at(0), at(90), at(105), at(180), at(185)]), Duration::from_millis(75));
        assert_eq!(longest_gap(at(100), &[at(0), at(150), at(151)]), Duration::from_millis(50));
        assert_eq!(longest_gap(at(100), &[]), Duration::ZERO);
    }
}
