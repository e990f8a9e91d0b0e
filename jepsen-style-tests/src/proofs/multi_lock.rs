//! 50 clients repeatedly take three of ten locks together, drawn at random; halfway one of their processes is killed.
//!
//! - No deadlock: grants never stop for longer than a bound, and every client gets some.
//! - All or nothing, in the log: a grant's requests are those of its three locks, and they come at one zxid and go at
//!   one zxid, also those of the killed process.
//! - Nobody is told too early: the log records when a client is inside, and at that zxid its requests are the first in
//!   all three queues.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use lockkeeper_api::nodes::Create;
use lockkeeper_checkers::lives::{Life, NodeEvent, lives};
use lockkeeper_checkers::replay::{inside, replay, token_of};

use super::{Context, queues_empty};
use crate::cluster::{Cluster, Options};
use crate::disk_latency::{DiskLatency, Syncs};
use crate::judge::grants;
use crate::ledger::{self, Ledger};
use crate::record::{Record, WorkerEvent, boot_us};
use crate::stats::{Summary, millis};
use crate::verdict::{Failed, ProofResult, broken};
use crate::workers::Worker;

pub(super) const SECONDS: u64 = 20;
const LOCKS: u32 = 10;
/// Clients of each process; the last process is killed.
const CLIENTS: [u32; 3] = [20, 20, 10];
/// Of the sessions of the process that is killed.
const TTL: Duration = Duration::from_secs(3);
/// Of the others': no disk may stall for so long that one counts as lost.
const LASTING_TTL: Duration = Duration::from_secs(10);
/// On top of the session's timeout: what the cluster may take to remove what a killed process left behind.
const GRACE: Duration = Duration::from_secs(2);
const PREFIX: &str = "multi";
const INSIDE: &str = "/multi-inside";
/// With locks to be had all the while, everybody has had a turn by then.
const STARVED_AFTER: Duration = Duration::from_secs(20);
/// Longest time without a grant, not counting while the disk is busy. What a killed process held stays until its
/// session ends.
const STANDSTILL: Duration = Duration::from_secs(1);

pub(super) async fn run(context: &Context) -> ProofResult {
    let seconds = context.seconds.unwrap_or(SECONDS);
    let cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    let parent = cluster.api(1).create(INSIDE, &Create::default(), None).await;
    parent.map_err(|failure| Failed::Broken(format!("with no fault about: {failure}")))?;
    let ledger = Ledger::open(&cluster).await?;
    let disk_latency = DiskLatency::begin(&context.dir)?;
    let mut workers = start_workers(context, &cluster, seconds)?;
    let first_grant = |record: &Record| matches!(record.what, WorkerEvent::Granted { .. }).then_some(record.at_us);
    let mut from_us = u64::MAX;
    for worker in &mut workers {
        from_us = from_us.min(worker.told("its first grant", Duration::from_secs(20), first_grant).await?);
    }
    tokio::time::sleep(Duration::from_secs(seconds / 2)).await;
    let Some(mut victim) = workers.pop() else { return broken("no workers") };
    all_granted(&victim, CLIENTS[CLIENTS.len() - 1]).await?;
    victim.kill().await?;
    let killed_us = boot_us();
    context.log.say(format!("process {} is killed with its {} clients", victim.name(), CLIENTS[CLIENTS.len() - 1]));
    let mut told = grants::GrantHistory::default();
    told.take(victim.name(), &victim.records()?);
    let mut to_us = u64::MAX;
    for worker in &mut workers {
        worker.idle(Duration::from_secs(seconds) + LASTING_TTL + Duration::from_secs(20)).await?;
        // The first to end does so because its time is over.
        to_us = to_us.min(from_us + seconds * 1_000_000 - 500_000);
    }
    let disk = disk_latency.end()?;
    // What the killed process held or waited for goes with its session; until then the log is not at its end.
    let locks: Vec<String> = (0..LOCKS).map(|number| format!("{PREFIX}-{number}")).collect();
    queues_empty(&cluster, &locks, TTL + GRACE).await?;
    for worker in workers {
        let name = worker.name().to_owned();
        told.take(&name, &worker.finish(Duration::from_secs(20)).await?);
    }
    let events = ledger.close(&cluster).await?;
    cluster.agree(Duration::from_secs(20)).await?;
    for failure in &told.failures {
        context.log.note(failure);
    }
    if let Some(failure) = told.failures.first() {
        return broken(format!("{} calls failed though no node did, the first: {failure}", told.failures.len()));
    }
    let insides = judge_log(&told, &events)?;
    let progress = judge_progress(&told, from_us, to_us, killed_us, &disk)?;
    Ok(format!("{insides}; {progress}"))
}

/// On a busy machine half of a short trial may not do for everybody to have had a turn.
async fn all_granted(worker: &Worker, clients: u32) -> Result<(), Failed> {
    let begun = Instant::now();
    loop {
        let granted = |record: Record| matches!(record.what, WorkerEvent::Granted { .. }).then_some(record.client);
        let seen: BTreeSet<u32> = worker.records()?.into_iter().filter_map(granted).collect();
        if seen.len() == clients as usize {
            return Ok(());
        }
        if begun.elapsed() > STARVED_AFTER {
            let name = worker.name();
            return broken(format!("{} of the {clients} clients of {name} were granted anything", seen.len()));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn start_workers(context: &Context, cluster: &Cluster, seconds: u64) -> Result<Vec<Worker>, Failed> {
    let start = |(number, clients): (usize, &u32)| {
        let name = format!("multi-{}", number + 1);
        let seed = context.seed.wrapping_add(number as u64 * 1_000);
        let ttl = if number + 1 == CLIENTS.len() { TTL } else { LASTING_TTL };
        let arguments = format!(
            "--ttl-ms {} --label {name} several --prefix {PREFIX} --locks {LOCKS} --inside {INSIDE} --clients \
             {clients} --seconds \
             {seconds} --seed {seed}",
            ttl.as_millis()
        );
        let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
        Worker::start(&context.dir, &name, &cluster.endpoints(), &arguments)
    };
    CLIENTS.iter().enumerate().map(start).collect()
}

fn judge_log(told: &grants::GrantHistory, events: &BTreeSet<NodeEvent>) -> Result<String, Failed> {
    let mut queues = BTreeMap::new();
    for number in 0..LOCKS {
        let lock = format!("{PREFIX}-{number}");
        queues.insert(lock.clone(), ledger::requests(events, &lock)?);
    }
    grants::together(&told.grants, &queues).map_err(Failed::Broken)?;
    let insides = lives(events, INSIDE).map_err(Failed::Broken)?;
    let mut stood = 0;
    for (lock, requests) in &queues {
        let tokens: BTreeSet<u64> = requests.iter().map(|request| request.token).collect();
        let here: Vec<Life> = insides
            .iter()
            .filter(|life| token_of(&life.name).is_some_and(|token| tokens.contains(&token)))
            .cloned()
            .collect();
        stood += here.len();
        inside(requests, &here, 1).map_err(|what| Failed::Broken(format!("{lock}: {what}")))?;
        let left = replay(requests).left;
        if left > 0 {
            return broken(format!("{left} requests stand in the queue of {lock} at the end of the log"));
        }
    }
    if stood != insides.len() * 3 {
        return broken(format!(
            "{} were inside, under tokens that stand in {stood} queues, not three each",
            insides.len()
        ));
    }
    Ok(format!(
        "{} grants of three locks each, one zxid in and one out, {} stays foremost in all three",
        told.grants.len(),
        insides.len()
    ))
}

fn judge_progress(told: &grants::GrantHistory, from_us: u64, to_us: u64, killed_us: u64, disk: &Syncs) -> ProofResult {
    let mut each: BTreeMap<&str, usize> = BTreeMap::new();
    for grant in &told.grants {
        *each.entry(&grant.who).or_default() += 1;
    }
    let clients: u32 = CLIENTS.iter().sum();
    if each.len() != clients as usize {
        return broken(format!("{} of {clients} clients were ever granted anything", each.len()));
    }
    // What the killed process held stands until its session ends: up to then others may be behind it.
    let back_us = (killed_us + u64::try_from((TTL + Duration::from_secs(1)).as_micros()).unwrap_or(0)).min(to_us);
    let before = grants::standstills(&told.grants, from_us, killed_us);
    let after = grants::standstills(&told.grants, back_us, to_us);
    let both = before.into_iter().chain(after);
    let stood = both.map(|(since, until)| (Duration::from_micros(until - since), disk.within(since, until)));
    let beyond = |(stood, disk): &(Duration, Duration)| stood.saturating_sub(*disk);
    let Some((longest, disk)) = stood.max_by_key(beyond) else {
        return broken("no time in which to look for standstills");
    };
    if beyond(&(longest, disk)) > STANDSTILL {
        return broken(format!(
            "nothing was granted for {longest:?}, and the disk was busy for {disk:?} of it: a deadlock, or as good as \
             one"
        ));
    }
    let waits: Vec<Duration> =
        told.grants.iter().map(|grant| Duration::from_micros(grant.granted_us - grant.asked_us)).collect();
    let Some(waits) = Summary::of(&waits) else { return broken("nobody waited") };
    let least = each.values().min().copied().unwrap_or(0);
    Ok(format!(
        "no standstill longer than {} (the disk was busy for {} of it); each of {clients} clients had at least \
         {least} grants, wait {waits}",
        millis(longest),
        millis(disk)
    ))
}
