//! Runs a row: sets the stage, plays the script, gathers the evidence, and lets the checks judge it.

use std::cell::RefCell;

use lockkeeper_checkers::lives::lives;
use lockkeeper_checkers::replay::{Promotion, replay};
use rand::seq::IndexedRandom as _;

use super::{At, Crew, Evidence, LockWork, Scenario, Strike, Strikes, checks};
use crate::judge::grants::GrantHistory;
use crate::ledger::{self, Ledger};
use crate::proofs::prelude::*;
use crate::proofs::queues_empty;
use crate::sampler::Sampler;
use crate::workers::Worker;

/// Until a process of clients has its first session.
const OPEN_WITHIN: Duration = Duration::from_secs(20);
/// The clients are still coming.
const COMING: Duration = Duration::from_secs(2);
/// With locks to be had all the while, everybody has had a turn by then.
const STARVED_AFTER: Duration = Duration::from_secs(20);
/// How long a killed node stays down.
const DOWN_FOR: Duration = Duration::from_secs(1);
/// From when on after a node's return it counts as calm: its clients have found others, nobody is asked twice.
const SETTLED_AFTER: Duration = Duration::from_millis(500);
/// How much later than a session's timeout what a killed process held is free again.
const FREE_AFTER: Duration = Duration::from_secs(1);
/// On top of their sessions' timeout: how long clients may take to give up their last turn.
const IDLE_WITHIN: Duration = Duration::from_secs(30);
/// So long before their time is over clients stop being all at work.
const LAST_TURNS_US: u64 = 500_000;
const FINISH_WITHIN: Duration = Duration::from_secs(20);
const AGREE_WITHIN: Duration = Duration::from_secs(20);

/// Runs a row of the table.
pub(in crate::proofs) async fn run(context: &Context, scenario: &Scenario) -> ProofResult {
    let cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    run_on(context, scenario, cluster, scenario.length(context)).await
}

/// The same on a cluster of the caller's, with a load that goes on for so long.
pub(in crate::proofs) async fn run_on(
    context: &Context,
    scenario: &Scenario,
    cluster: Cluster,
    over: Duration,
) -> ProofResult {
    let mut stage = Stage::set(context, scenario, cluster, over).await?;
    stage.play((scenario.script)(over)).await?;
    judge(context, &stage.end().await?)
}

/// A failed check outweighs a check that had nothing to judge.
fn judge(context: &Context, seen: &Evidence<'_>) -> ProofResult {
    let clients = seen.scenario.clients();
    let mut parts = vec![format!("{clients} clients: {} grants", seen.history.grants.len())];
    let mut lacking = None;
    for check in seen.scenario.checks.iter().chain(checks::EVERY) {
        match check(seen) {
            Ok(part) => {
                context.log.say(&part);
                parts.push(part);
            }
            Err(Failed::CannotRun(why)) => lacking = lacking.or(Some(why)),
            Err(failed) => return Err(failed),
        }
    }
    match lacking {
        Some(why) => Err(Failed::CannotRun(why)),
        None => Ok(parts.join("; ")),
    }
}

/// A row at work.
struct Stage<'a> {
    context: &'a Context,
    scenario: &'a Scenario,
    over: Duration,
    begun: Instant,
    cluster: Cluster,
    ledger: Ledger,
    sampler: Sampler,
    disk_latency: DiskLatency,
    random: StdRng,
    /// The processes that run, the oldest first.
    crews: Vec<(Crew, Worker)>,
    dead: Vec<Worker>,
    started: u32,
    strikes: Strikes,
}

impl<'a> Stage<'a> {
    /// Starts everything, and waits until each process of clients has a session.
    async fn set(
        context: &'a Context,
        scenario: &'a Scenario,
        cluster: Cluster,
        over: Duration,
    ) -> Result<Self, Failed> {
        cluster.make_node(&scenario.inside()).await?;
        std::fs::write(context.dir.join("counter"), format!("{:020}\n", 0))?;
        std::fs::write(context.dir.join("tokens"), "")?;
        let mut stage = Self {
            context,
            scenario,
            over,
            ledger: Ledger::open(&cluster).await?,
            sampler: Sampler::begin(&cluster).await?,
            disk_latency: DiskLatency::begin(&context.dir)?,
            begun: Instant::now(),
            cluster,
            random: context.random(1),
            crews: Vec::new(),
            dead: Vec::new(),
            started: 0,
            strikes: Strikes::default(),
        };
        for crew in scenario.crews {
            stage.start(*crew)?;
        }
        let (clients, processes) = (scenario.clients(), scenario.crews.len());
        context.log.say(format!("{clients} clients in {processes} processes for {} s", over.as_secs()));
        let opened = |record: &Record| matches!(record.what, WorkerEvent::Opened { .. }).then_some(());
        for (_, worker) in &mut stage.crews {
            worker.told("its first session", OPEN_WITHIN, opened).await?;
        }
        Ok(stage)
    }

    /// Starts a process of clients, which begins new turns until the load's time is over.
    fn start(&mut self, crew: Crew) -> Result<(), Failed> {
        self.started += 1;
        let left = self.over.saturating_sub(self.begun.elapsed());
        let (name, number) = (self.scenario.name, self.started);
        let seed = self.context.seed.wrapping_add(u64::from(number) * 1_000);
        let words = self.scenario.words(number, crew, left, &self.context.dir, seed);
        let arguments = format!("--ttl-ms {} --label {name}-{number} {words}", crew.ttl.as_millis());
        let endpoints = self.cluster.endpoints();
        let worker = Worker::start(&self.context.dir, &format!("{name}-{number}"), &endpoints, arguments.split(' '))?;
        self.crews.push((crew, worker));
        Ok(())
    }

    async fn sleep_until(&self, time: Duration) {
        tokio::time::sleep(time.saturating_sub(self.begun.elapsed())).await;
    }

    /// Strikes as the script says, and ends with the load's time.
    async fn play(&mut self, script: Vec<At>) -> Result<(), Failed> {
        if let Some(At(first, _)) = script.first() {
            self.sleep_until((*first / 2).min(COMING)).await;
        }
        for At(time, strike) in script {
            // The death of a process is no fault of the servers: the count stays exact across it.
            self.calm_until(time).await?;
            match strike {
                Strike::Node => self.kill_node().await?,
                Strike::OldestProcess => {
                    let crew = self.kill_process(0).await?;
                    self.start(crew)?;
                }
                Strike::LastProcess => {
                    let last = self.crews.len().saturating_sub(1);
                    self.all_served(last).await?;
                    self.kill_process(last).await?;
                }
            }
        }
        self.sleep_until(self.over).await;
        Ok(())
    }

    /// Nothing happens to any node: samples at both ends.
    async fn calm_until(&self, time: Duration) -> Result<(), Failed> {
        let from = self.sampler.round().await?;
        self.sleep_until(time).await;
        let to = self.sampler.round().await?;
        self.sampler.was_calm(from, to);
        Ok(())
    }

    /// Kills a node, starts it again, and waits until it is ready and its clients have settled.
    async fn kill_node(&mut self) -> Result<(), Failed> {
        let Some(victim) = self.cluster.ids().choose(&mut self.random).copied() else { return broken("no nodes") };
        let (leader, term) = self.cluster.leader().await?;
        // What it counted until now is not to be lost with it.
        self.sampler.round().await?;
        self.cluster.kill(victim).await?;
        self.sampler.killed(victim);
        self.strikes.nodes += 1;
        self.strikes.leaders += u32::from(victim == leader);
        let role = if victim == leader { "the leader" } else { "a follower" };
        let told = format!("node {victim}, {role} of term {term}, is killed, and started again after {DOWN_FOR:?}");
        self.context.log.say(told);
        tokio::time::sleep(DOWN_FOR).await;
        self.cluster.start_node(victim).await?;
        tokio::time::sleep(SETTLED_AFTER).await;
        Ok(())
    }

    async fn kill_process(&mut self, at: usize) -> Result<Crew, Failed> {
        let (crew, mut victim) = self.crews.remove(at);
        victim.kill().await?;
        let killed_us = boot_us();
        let free_after = u64::try_from((crew.ttl + FREE_AFTER).as_micros()).unwrap_or(u64::MAX);
        self.strikes.aftermath_us.push((killed_us, killed_us.saturating_add(free_after)));
        self.strikes.processes += 1;
        self.context.log.say(format!("process {} is killed with its {} clients", victim.name(), crew.clients));
        self.dead.push(victim);
        Ok(crew)
    }

    /// On a busy machine half of a short trial may not do for everybody to have had a turn.
    async fn all_served(&mut self, at: usize) -> Result<(), Failed> {
        let Some((crew, worker)) = self.crews.get_mut(at) else { return broken("no processes") };
        let served: RefCell<BTreeSet<u32>> = RefCell::default();
        let is_last = |record: &Record| {
            let first = matches!(record.what, WorkerEvent::Granted { .. }) && served.borrow_mut().insert(record.client);
            (first && served.borrow().len() == crew.clients as usize).then_some(())
        };
        worker.told("a turn of each of its clients", STARVED_AFTER, is_last).await
    }

    /// Waits until the clients have stopped asking and their queues are empty, and gathers what was seen.
    async fn end(mut self) -> Result<Evidence<'a>, Failed> {
        let Self { context, scenario, .. } = self;
        for (crew, worker) in &mut self.crews {
            worker.idle(crew.ttl + IDLE_WITHIN).await?;
        }
        let disk = self.disk_latency.end()?;
        // What a killed process held or waited for goes with its session; until then the log is not at its end.
        let empty_after = queues_empty(&self.cluster, &scenario.locks(), scenario.left_within).await?;
        self.sampler.round().await?;
        let mut history = GrantHistory::default();
        for worker in &self.dead {
            history.take(worker.name(), &worker.records()?);
        }
        let mut shared = None;
        for (_, worker) in self.crews {
            let name = worker.name().to_owned();
            let records = worker.finish(FINISH_WITHIN).await?;
            history.take(&name, &records);
            shared.get_or_insert(records);
        }
        let seen_us = self.ledger.seen_us();
        let events = self.ledger.close(&self.cluster).await?;
        self.cluster.agree(AGREE_WITHIN).await?;
        for failure in &history.failures {
            context.log.note(failure);
        }
        let mut queues = BTreeMap::new();
        let mut promotions: Vec<Promotion> = Vec::new();
        for lock in scenario.locks() {
            let requests = ledger::requests(&events, &lock)?;
            let replay = replay(&requests);
            promotions.extend_from_slice(&replay.promotions);
            queues.insert(lock, (requests, replay));
        }
        let from_us = history.grants.first().map_or(0, |grant| grant.granted_us);
        let over_us = u64::try_from(self.over.as_micros()).unwrap_or(u64::MAX);
        Ok(Evidence {
            scenario,
            dir: &context.dir,
            history,
            shared: shared.filter(|_| matches!(scenario.work, LockWork::Shared(_))).unwrap_or_default(),
            queues,
            insides: lives(&events, &scenario.inside()).map_err(Failed::Broken)?,
            counted: self.sampler.total(),
            windows: self.sampler.windows(&promotions, &seen_us),
            disk,
            strikes: self.strikes,
            at_work_us: (from_us, from_us + over_us.saturating_sub(LAST_TURNS_US)),
            empty_after,
        })
    }
}
