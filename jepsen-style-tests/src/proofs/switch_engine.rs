//! Three processes with 100 clients increment a counter under one lock, while the engine of that lock is switched from
//! an old Lockkeeper of one node to another cluster: by a call and by a rule, with the old engine alive and killed, in
//! each mode.
//!
//! Judged are the moments at which the clients held by their own records (until they began to release, or were told of
//! the loss): in *drain* and *both* no two overlap. The counter must have each accepted increment, no holder may be
//! refused as stale, and every process must come to the new engine. *At once* is the control: its two holders are
//! counted, and the fence must keep the counter right.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::Context;
use crate::cluster::{Cluster, Options};
use crate::judge::grants::GrantHistory;
use crate::record::{Record, WorkerEvent, boot_us};
use crate::store::Store;
use crate::verdict::{Failed, ProofResult, broken};
use crate::workers::Worker;

const PROCESSES: u32 = 3;
const CLIENTS: [u32; 3] = [34, 33, 33];
const LEASE_MS: u64 = 2_000;
const PATIENCE: Duration = Duration::from_secs(60);
/// Writes before the switch, and after it.
const WRITES: usize = 50;
const POLL: Duration = Duration::from_millis(20);

/// One trial.
#[derive(Clone, Copy)]
struct Trial {
    mode: &'static str,
    /// Whether the old engine is killed before.
    kill: bool,
    /// Whether the group switches by its rule.
    by_rule: bool,
}

const TRIALS: [Trial; 8] = [
    Trial { mode: "drain", kill: false, by_rule: false },
    Trial { mode: "drain", kill: true, by_rule: false },
    Trial { mode: "drain", kill: true, by_rule: true },
    Trial { mode: "both", kill: false, by_rule: false },
    Trial { mode: "both", kill: true, by_rule: false },
    Trial { mode: "both", kill: true, by_rule: true },
    Trial { mode: "at-once", kill: false, by_rule: false },
    Trial { mode: "at-once", kill: true, by_rule: true },
];

impl Trial {
    fn name(self) -> String {
        let engine = if self.kill { "old engine killed" } else { "old engine alive" };
        let by = if self.by_rule { "by the rule" } else { "by call" };
        format!("{}, {engine}, {by}", self.mode)
    }
}

/// What one trial showed.
#[derive(Debug, Default)]
struct Shown {
    increments: i64,
    refused: usize,
    overlaps: usize,
    standstill_us: u64,
}

pub(super) async fn run(context: &Context) -> ProofResult {
    let cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    context
        .log
        .say(format!("{} clients in {PROCESSES} processes, leases of {LEASE_MS} ms", CLIENTS.iter().sum::<u32>()));
    let mut all = Vec::new();
    for (number, trial) in TRIALS.iter().enumerate() {
        let shown = one(context, &cluster, number, *trial).await;
        let shown = shown.map_err(|failed| match failed {
            Failed::Broken(what) => Failed::Broken(format!("{}: {what}", trial.name())),
            other => other,
        })?;
        context.log.say(format!(
            "{:<40} {:>6} increments, 0 lost, {} refused as stale, {} overlaps of holders, longest standstill {} ms",
            trial.name(),
            shown.increments,
            shown.refused,
            shown.overlaps,
            shown.standstill_us / 1_000
        ));
        all.push((*trial, shown));
    }
    let worst = |mode: &str, kill: bool| {
        let fits = all.iter().filter(|(trial, _)| trial.mode == mode && trial.kill == kill);
        fits.map(|(_, shown)| shown.standstill_us / 1_000).max().unwrap_or_default()
    };
    let increments: i64 = all.iter().map(|(_, shown)| shown.increments).sum();
    let overlaps: usize =
        all.iter().filter(|(trial, _)| trial.mode == "at-once").map(|(_, shown)| shown.overlaps).sum();
    Ok(format!(
        "{} switches under {} clients in {PROCESSES} processes, {increments} increments, 0 lost; drain and both: 0 \
         overlaps of holders, 0 refused as stale; longest standstill with the old engine alive: drain {} ms, both {} \
         ms; killed: drain {} ms, both {} ms; at once: {overlaps} overlaps",
        all.len(),
        CLIENTS.iter().sum::<u32>(),
        worst("drain", false),
        worst("both", false),
        worst("drain", true),
        worst("both", true),
    ))
}

async fn one(context: &Context, cluster: &Cluster, number: usize, trial: Trial) -> Result<Shown, Failed> {
    let directory = context.dir.join(format!("old-{number}"));
    let mut old = Cluster::start(&context.binary, &directory, Options { nodes: 1, ..Options::default() }).await?;
    let endpoint = old.endpoints().remove(0);
    let store = Store::File(context.dir.join(format!("counter-{number}")));
    let arguments = |clients: u32, more: &[String]| {
        let text = format!(
            "--ttl-ms {LEASE_MS} engines --lock switch/{number} --group switch-{number} --lease-ms {LEASE_MS} --fence \
             --engine lockkeeper --clients {clients}"
        );
        let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        // The old engine is the first.
        let place = words.iter().position(|word| word == "--engine").unwrap_or(words.len());
        words.splice(place..place, ["--engine".into(), format!("old:{endpoint}")]);
        words.extend(["--store".into(), store.to_string()]);
        words.extend_from_slice(more);
        words
    };
    let rule = if trial.by_rule { vec!["--degrade".into(), trial.mode.to_owned()] } else { Vec::new() };
    let mut workers = Vec::new();
    for (process, clients) in CLIENTS.into_iter().enumerate() {
        let name = format!("process-{number}-{process}");
        workers.push(Worker::start(&context.dir, &name, &cluster.endpoints(), &arguments(clients, &rule))?);
    }
    let switch_arguments = {
        let mut more: Vec<String> = ["--switch-to", "lockkeeper", "--mode", trial.mode].map(str::to_owned).to_vec();
        more.extend(rule.clone());
        arguments(1, &more)
    };
    writes_after(&workers, 0, WRITES).await?;
    if trial.kill {
        old.kill(1).await?;
    }
    let begun_us = boot_us();
    if !trial.by_rule {
        let name = format!("caller-{number}");
        let mut caller = Worker::start(&context.dir, &name, &cluster.endpoints(), &switch_arguments)?;
        caller.ended(PATIENCE).await?;
    }
    for worker in &mut workers {
        let doing = "the new engine to serve";
        worker.told(doing, PATIENCE, |record| serves(record, "lockkeeper").then_some(())).await?;
    }
    writes_after(&workers, boot_us(), WRITES).await?;
    workers.iter().for_each(|worker| worker.signal(Signal::SIGUSR1));
    let (mut history, mut refused) = (GrantHistory::default(), 0);
    for mut worker in workers {
        worker.idle(PATIENCE).await?;
        let name = worker.name().to_owned();
        let records = worker.finish(PATIENCE).await?;
        history.take(&name, &records);
        refused += records.iter().filter(|record| is_refused(record)).count();
    }
    let taken = store.open(true).await.map_err(Failed::CannotRun)?.taken().await.map_err(Failed::CannotRun)?;
    let values: Vec<i64> = taken.iter().map(|taken| taken.0).collect();
    judge(trial, &history, &values, refused, begun_us).map_err(Failed::Broken)
}

/// Waits until the clients have made so many more increments, counted from that moment.
async fn writes_after(workers: &[Worker], from_us: u64, count: usize) -> Result<(), Failed> {
    let begun = Instant::now();
    loop {
        let mut made = 0;
        for worker in workers {
            made += worker.records()?.iter().filter(|record| record.at_us >= from_us && is_increment(record)).count();
        }
        if made >= count {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return broken(format!("{made} increments in {PATIENCE:?}, not {count}"));
        }
        tokio::time::sleep(POLL).await;
    }
}

fn is_increment(record: &Record) -> bool {
    matches!(record.what, WorkerEvent::Wrote { accepted: true, .. })
}

fn is_refused(record: &Record) -> bool {
    matches!(record.what, WorkerEvent::Wrote { accepted: false, .. })
}

/// Whether the process saw that engine serve.
fn serves(record: &Record, name: &str) -> bool {
    matches!(&record.what, WorkerEvent::Phase { phase, engine, .. } if phase == "serving" && engine == name)
}

fn judge(trial: Trial, history: &GrantHistory, values: &[i64], refused: usize, begun_us: u64) -> Result<Shown, String> {
    let increments = values.last().copied().unwrap_or_default();
    let lost = i64::try_from(history.writes).unwrap_or(i64::MAX) - increments;
    if lost != 0 || values.iter().zip(1..).any(|(value, place)| *value != place) {
        return Err(format!("{} increments were accepted, and the counter is {increments}", history.writes));
    }
    let (mut overlaps, mut standstill_us, mut busy_until_us) = (Vec::new(), 0, 0);
    for grant in &history.grants {
        if grant.granted_us < busy_until_us {
            overlaps.push(grant.who.clone());
        } else if busy_until_us >= begun_us {
            standstill_us = standstill_us.max(grant.granted_us - busy_until_us);
        }
        busy_until_us = busy_until_us.max(grant.until_us.unwrap_or(grant.granted_us));
    }
    if trial.mode != "at-once" && (!overlaps.is_empty() || refused > 0) {
        let who = overlaps.first().cloned().unwrap_or_default();
        return Err(format!(
            "{} grants while another held, first of {who}; {refused} refused as stale",
            overlaps.len()
        ));
    }
    Ok(Shown { increments, refused, overlaps: overlaps.len(), standstill_us })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::grants::Grant;

    fn history(held: &[(u64, u64)]) -> GrantHistory {
        let grant = |(place, (granted_us, until_us)): (usize, &(u64, u64))| Grant {
            who: format!("client {place}"),
            locks: vec!["l".into()],
            token: 0,
            asked_us: 0,
            granted_us: *granted_us,
            until_us: Some(*until_us),
        };
        let grants: Vec<Grant> = held.iter().enumerate().map(grant).collect();
        GrantHistory { writes: grants.len() as u64, grants, ..GrantHistory::default() }
    }

    #[test]
    fn two_holders_and_lost_increments_are_seen() {
        let (drain, at_once) = (TRIALS[0], TRIALS[6]);
        let apart = history(&[(10, 20), (30, 40), (90, 95)]);
        let shown = judge(drain, &apart, &[1, 2, 3], 0, 15).unwrap();
        assert_eq!((shown.increments, shown.standstill_us), (3, 50));
        assert!(judge(drain, &apart, &[1, 2], 0, 15).unwrap_err().contains("the counter is 2"));
        assert!(judge(drain, &apart, &[1, 1, 3], 0, 15).is_err());
        assert!(judge(drain, &apart, &[1, 2, 3], 1, 15).unwrap_err().contains("1 refused"));
        let together = history(&[(10, 50), (30, 40), (45, 60)]);
        assert!(judge(drain, &together, &[1, 2, 3], 0, 15).unwrap_err().contains("2 grants while another held"));
        assert_eq!(judge(at_once, &together, &[1, 2, 3], 5, 15).unwrap().overlaps, 2);
    }
}
