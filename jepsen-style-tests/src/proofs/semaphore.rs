//! 50 clients in 5 processes contend for 5 permits, while processes and nodes are killed in turn.
//!
//! The log records who is inside, independently of the semaphore: each client creates an ephemeral node after it was
//! granted a permit and deletes it before it gives the permit back; a killed process's nodes go with its session. By
//! the zxids from the watches of all nodes, never more than 5 are inside, and each of them is among the first 5 of the
//! queue. A freed permit wakes one waiter: the servers' count is compared with the waiters that came to hold, as in
//! `crowd`. A waiter's death wakes nobody.

use std::time::{Duration, Instant};

use lockkeeper_api::nodes::Create;
use lockkeeper_checkers::lives::lives;
use lockkeeper_checkers::replay::{inside, replay};

use super::kills::{Kills, calm, kill_one};
use super::{Context, queues_empty};
use crate::cluster::{Cluster, Options};
use crate::judge::{counts, grants};
use crate::ledger::{self, Ledger};
use crate::sampler::Sampler;
use crate::stats::millis;
use crate::verdict::{Failed, ProofResult, broken};
use crate::workers::Worker;

pub(super) const SECONDS: u64 = 30;
const PERMITS: u16 = 5;
const PROCESSES: u32 = 5;
const CLIENTS_EACH: u32 = 10;
const TTL: Duration = Duration::from_secs(3);
/// A process or a node, in turn; sooner in a short trial, which is to see both.
const KILL_EVERY: Duration = Duration::from_secs(4);
const LOCK: &str = "semaphore";
const INSIDE: &str = "/semaphore-inside";
/// On top of the session's timeout: what the cluster may take to remove what a killed process left behind.
const GRACE: Duration = Duration::from_secs(2);

pub(super) async fn run(context: &Context) -> ProofResult {
    let seconds = context.seconds.unwrap_or(SECONDS);
    let over = Duration::from_secs(seconds);
    let mut cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    let parent = cluster.api(1).create(INSIDE, &Create::default(), None).await;
    parent.map_err(|failure| Failed::Broken(format!("with no fault about: {failure}")))?;
    let ledger = Ledger::open(&cluster).await?;
    let sampler = Sampler::begin(&cluster).await?;
    let begun = Instant::now();
    let mut crew = Crew { workers: Vec::new(), dead: Vec::new(), started: 0, ends: begun + over };
    for _ in 0..PROCESSES {
        crew.add(context, &cluster)?;
    }
    context.log.say(format!("{} contenders in {PROCESSES} processes for {PERMITS} permits", PROCESSES * CLIENTS_EACH));
    let kills = faults(context, &mut cluster, &sampler, &mut crew, over).await?;
    for worker in &mut crew.workers {
        worker.idle(TTL + Duration::from_secs(30)).await?;
    }
    let empty_after = queues_empty(&cluster, &[LOCK], TTL + GRACE).await?;
    sampler.round().await?;
    let mut told = grants::GrantHistory::default();
    let killed_processes = crew.dead.len();
    for worker in &crew.dead {
        told.take(worker.name(), &worker.records()?);
    }
    for worker in crew.workers {
        let name = worker.name().to_owned();
        told.take(&name, &worker.finish(Duration::from_secs(20)).await?);
    }
    let seen_us = ledger.seen_us();
    let events = ledger.close(&cluster).await?;
    cluster.agree(Duration::from_secs(20)).await?;

    let requests = ledger::requests(&events, LOCK)?;
    let insides = lives(&events, INSIDE).map_err(Failed::Broken)?;
    let most = inside(&requests, &insides, usize::from(PERMITS)).map_err(Failed::Broken)?;
    let replay = replay(&requests);
    if replay.left > 0 {
        return broken(format!("{} requests stand in the queue at the end of the log", replay.left));
    }
    let (counted, owed) = (sampler.total(), replay.promotions.len());
    if counted > owed as f64 {
        return broken(format!("{counted} notifications, and {owed} waiters came to hold a freed permit"));
    }
    let windows = sampler.windows(&replay.promotions, &seen_us);
    counts::in_calm(&windows).map_err(Failed::Broken)?;
    let in_calm: f64 = windows.iter().map(|window| window.counted).sum();
    let (certain, possible) =
        windows.iter().fold((0, 0), |sum, window| (sum.0 + window.certain, sum.1 + window.possible));
    for failure in &told.failures {
        context.log.note(failure);
    }
    if most < usize::from(PERMITS) || kills.nodes == 0 || killed_processes == 0 || windows.is_empty() {
        let why = format!("{most} inside at most, {} nodes and {killed_processes} processes killed", kills.nodes);
        return Err(Failed::CannotRun(format!("the trial did not bite: {why}")));
    }
    Ok(format!(
        "{} contenders, {} nodes ({} leading) and {killed_processes} processes killed: {} grants, {} stays, at most \
         {most} inside by zxid; \
         {} failed calls; queue empty {} after the end; one wake per freed permit ({counted} known of {owed} owed; in \
         calm {in_calm} of \
         {certain}..{possible})",
        PROCESSES * CLIENTS_EACH,
        kills.nodes,
        kills.leaders,
        told.grants.len(),
        insides.len(),
        told.failures.len(),
        millis(empty_after)
    ))
}

/// The processes, of which always as many run.
struct Crew {
    workers: Vec<Worker>,
    dead: Vec<Worker>,
    started: u32,
    ends: Instant,
}

impl Crew {
    fn add(&mut self, context: &Context, cluster: &Cluster) -> Result<(), Failed> {
        self.started += 1;
        let seconds = self.ends.saturating_duration_since(Instant::now()).as_secs();
        let name = format!("semaphore-{}", self.started);
        let arguments = format!(
            "--ttl-ms {} --label {name} permits --lock {LOCK} --permits {PERMITS} --inside {INSIDE} --clients \
             {CLIENTS_EACH} \
             --seconds {seconds}",
            TTL.as_millis()
        );
        let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
        self.workers.push(Worker::start(&context.dir, &name, &cluster.endpoints(), &arguments)?);
        Ok(())
    }

    async fn kill_one(&mut self, context: &Context, cluster: &Cluster) -> Result<(), Failed> {
        let mut victim = self.workers.remove(0);
        victim.kill().await?;
        context.log.say(format!("process {} is killed, and another started", victim.name()));
        self.dead.push(victim);
        self.add(context, cluster)
    }
}

async fn faults(
    context: &Context,
    cluster: &mut Cluster,
    sampler: &Sampler,
    crew: &mut Crew,
    over: Duration,
) -> Result<Kills, Failed> {
    let (begun, every) = (Instant::now(), KILL_EVERY.min(over / 4));
    let (mut random, mut kills, mut beat) = (context.random(1), Kills::default(), 0);
    tokio::time::sleep(every / 2).await;
    while begun.elapsed() + every < over {
        beat += 1;
        // The death of a process is no fault of the servers: the count stays exact across it.
        calm(sampler, begun + every * beat).await?;
        if beat % 2 == 1 {
            crew.kill_one(context, cluster).await?;
        } else {
            kill_one(context, cluster, sampler, &mut random, &mut kills).await?;
        }
    }
    tokio::time::sleep(over.saturating_sub(begun.elapsed())).await;
    Ok(kills)
}
