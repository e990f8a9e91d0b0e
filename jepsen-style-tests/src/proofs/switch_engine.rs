//! Three processes with 100 clients increment a counter under one lock, while the engine of that lock is switched from
//! an old Lockkeeper of one node to another cluster: by a call and by a rule, with the old engine alive and killed, in
//! each mode; and while a process that holds the lock is paused, or killed in the middle of the switch.
//!
//! Judged are the moments at which the clients held by their own records (until they began to release, or were told of
//! the loss): in *drain* and *both* no two overlap. The counter must have each accepted increment, no holder may be
//! refused as stale, and every process that lives must come to the new engine. *At once* is the control: while the
//! holder's process is paused for less than its lease, the others must be seen to hold, or the proof could not see two
//! holders; the fence must keep the counter right all the same.

use std::collections::VecDeque;

use crate::judge::grants::GrantHistory;
use crate::proofs::prelude::*;
use crate::store::Store;
use crate::workers::Worker;

const PROCESSES: u32 = 3;
const CLIENTS: [u32; 3] = [34, 33, 33];
const LEASE_MS: u64 = 2_000;
const PATIENCE: Duration = Duration::from_secs(60);
/// Writes before the switch, and after it.
const WRITES: usize = 50;
const POLL: Duration = Duration::from_millis(20);
/// A grant that is not older has most of its lease before it.
const FRESH_US: u64 = 300_000;

/// The process that holds the lock is paused for so long, which is less than a lease and a session.
const PAUSE: Duration = Duration::from_secs(1);

/// What happens besides the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SwitchFault {
    /// The holder's process is paused from before the switch.
    PausedHolder,
    /// The holder's process is killed once the others have seen that the switch is under way.
    KilledMember,
    /// The old engine is killed before the switch.
    KilledEngine,
}

/// One trial.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SwitchTrial {
    mode: &'static str,
    fault: SwitchFault,
    /// Whether the group switches by its rule.
    by_rule: bool,
}

const fn by_call(mode: &'static str, fault: SwitchFault) -> SwitchTrial {
    SwitchTrial { mode, fault, by_rule: false }
}

const fn by_rule(mode: &'static str) -> SwitchTrial {
    SwitchTrial { mode, fault: SwitchFault::KilledEngine, by_rule: true }
}

const TRIALS: [SwitchTrial; 11] = [
    by_call("drain", SwitchFault::PausedHolder),
    by_call("drain", SwitchFault::KilledMember),
    by_call("drain", SwitchFault::KilledEngine),
    by_rule("drain"),
    by_call("both", SwitchFault::PausedHolder),
    by_call("both", SwitchFault::KilledMember),
    by_call("both", SwitchFault::KilledEngine),
    by_rule("both"),
    CONTROL,
    by_call(AT_ONCE, SwitchFault::KilledEngine),
    by_rule(AT_ONCE),
];
const AT_ONCE: &str = "at-once";
/// Must show two holders.
const CONTROL: SwitchTrial = by_call(AT_ONCE, SwitchFault::PausedHolder);
/// How often the control is made again if it has shown none.
const MOST_CONTROLS: u32 = 4;

impl SwitchTrial {
    fn name(self) -> String {
        let fault = match self.fault {
            SwitchFault::PausedHolder => "holder paused",
            SwitchFault::KilledMember => "a member killed",
            SwitchFault::KilledEngine => "old engine killed",
        };
        format!("{}, {fault}, {}", self.mode, if self.by_rule { "by the rule" } else { "by call" })
    }
}

/// What one trial showed.
#[derive(Debug, Default)]
struct SwitchFindings {
    increments: i64,
    refused: usize,
    overlaps: usize,
    standstill_us: u64,
}

pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    let cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    context
        .log
        .say(format!("{} clients in {PROCESSES} processes, leases of {LEASE_MS} ms", CLIENTS.iter().sum::<u32>()));
    let mut all = Vec::new();
    let mut trials: VecDeque<SwitchTrial> = std::iter::repeat_n(TRIALS, rounds as usize).flatten().collect();
    let mut controls_left = MOST_CONTROLS;
    let mut number = 0;
    while let Some(trial) = trials.pop_front() {
        number += 1;
        let shown = one(context, &cluster, number, trial).await;
        let shown = shown.map_err(|failed| match failed {
            Failed::Broken(what) => Failed::Broken(format!("{}: {what}", trial.name())),
            other => other,
        })?;
        context.log.say(format!(
            "{:<38} {:>6} increments, 0 lost, {} refused as stale, {} overlaps of holders, longest standstill {} ms",
            trial.name(),
            shown.increments,
            shown.refused,
            shown.overlaps,
            shown.standstill_us / 1_000
        ));
        // On a busy machine nobody else may get the lock while the holder is paused, and then nothing can be seen.
        if trial == CONTROL && shown.overlaps == 0 && controls_left > 0 {
            controls_left -= 1;
            trials.push_front(trial);
        }
        all.push((trial, shown));
    }
    let overlaps = control(&all).map_err(Failed::Broken)?;
    let worst = |mode: &str, fault: SwitchFault| {
        let fits = all.iter().filter(|(trial, _)| trial.mode == mode && trial.fault == fault);
        fits.map(|(_, shown)| shown.standstill_us / 1_000).max().unwrap_or_default()
    };
    let of = |mode| {
        let [paused, member, engine] =
            [SwitchFault::PausedHolder, SwitchFault::KilledMember, SwitchFault::KilledEngine]
                .map(|fault| worst(mode, fault));
        format!("{mode} {paused}/{member}/{engine} ms")
    };
    let increments: i64 = all.iter().map(|(_, shown)| shown.increments).sum();
    Ok(format!(
        "{} switches under {} clients in {PROCESSES} processes, {increments} increments, 0 lost; drain and both: 0 \
         overlaps of holders, 0 refused as stale; longest standstill with the holder paused/a member killed/the old \
         engine killed: {}, {}; at once, the control: {overlaps} overlaps",
        all.len(),
        CLIENTS.iter().sum::<u32>(),
        of("drain"),
        of("both"),
    ))
}

/// How often two held where they may. With the holder paused they must, or nothing here could see it.
fn control(all: &[(SwitchTrial, SwitchFindings)]) -> Result<usize, String> {
    let at_once = all.iter().filter(|(trial, _)| trial.mode == AT_ONCE);
    let seen = |(_, shown): &(SwitchTrial, SwitchFindings)| shown.overlaps;
    let overlaps = at_once.clone().map(seen).sum();
    match at_once.filter(|(trial, _)| trial.fault == SwitchFault::PausedHolder).map(seen).sum::<usize>() {
        0 => Err("no two holders were seen after a switch at once with the holder paused, which must show them".into()),
        _ => Ok(overlaps),
    }
}

async fn one(
    context: &Context,
    cluster: &Cluster,
    number: usize,
    trial: SwitchTrial,
) -> Result<SwitchFindings, Failed> {
    let directory = context.dir.join(format!("old-{number}"));
    let mut old = Cluster::start(&context.binary, &directory, Options { nodes: 1, ..Options::default() }).await?;
    let endpoint = old.endpoints().remove(0);
    let store = Store::File(context.dir.join(format!("counter-{number}")));
    let arguments = |clients: u32, more: &[String]| {
        let text = format!(
            "--ttl-ms {LEASE_MS} engines --lock switch/{number} --group switch-{number} --lease-ms {LEASE_MS} --fence \
             --engine old:{endpoint} --engine lockkeeper --clients {clients} --store"
        );
        let words = text.split_whitespace().map(str::to_owned);
        words.chain([store.to_string()]).chain(more.iter().cloned()).collect::<Vec<String>>()
    };
    let rule = if trial.by_rule { vec!["--degrade".into(), trial.mode.to_owned()] } else { Vec::new() };
    let mut workers = Vec::new();
    for (process, clients) in CLIENTS.into_iter().enumerate() {
        let name = format!("process-{number}-{process}");
        workers.push(Worker::start(&context.dir, &name, &cluster.endpoints(), arguments(clients, &rule))?);
    }
    let mut caller = None;
    if !trial.by_rule {
        let more = ["--switch-to", "lockkeeper", "--mode", trial.mode].map(str::to_owned);
        let name = format!("caller-{number}");
        let mut worker = Worker::start(&context.dir, &name, &cluster.endpoints(), arguments(1, &more))?;
        worker.idle(PATIENCE).await?;
        caller = Some(worker);
    }
    writes_after(&workers, 0, WRITES).await?;
    let mut history = GrantHistory::default();
    let holder = match trial.fault {
        SwitchFault::KilledEngine => None,
        SwitchFault::PausedHolder | SwitchFault::KilledMember => Some(long_holder(&workers).await?),
    };
    match (trial.fault, holder) {
        (SwitchFault::KilledEngine, _) => old.kill(1).await?,
        (SwitchFault::PausedHolder, Some(holder)) => workers[holder].signal(Signal::SIGSTOP),
        _ => {}
    }
    let begun_us = boot_us();
    if let Some(caller) = &caller {
        caller.signal(Signal::SIGUSR1);
    }
    match (trial.fault, holder) {
        (SwitchFault::PausedHolder, Some(holder)) => {
            until_granted_elsewhere(&workers, holder, begun_us, PAUSE).await?;
            workers[holder].signal(Signal::SIGCONT);
        }
        (SwitchFault::KilledMember, Some(holder)) => {
            let mut killed = workers.remove(holder);
            for worker in &mut workers {
                worker.told("the switch to begin", PATIENCE, |record| is_under_way(record).then_some(())).await?;
            }
            killed.kill().await?;
            history.take(killed.name(), &killed.records()?);
        }
        _ => {}
    }
    if let Some(caller) = &mut caller {
        caller.ended(PATIENCE).await?;
    }
    for worker in &mut workers {
        let doing = "the new engine to serve";
        worker.told(doing, PATIENCE, |record| serves(record, "lockkeeper").then_some(())).await?;
    }
    writes_after(&workers, boot_us(), WRITES).await?;
    workers.iter().for_each(|worker| worker.signal(Signal::SIGUSR1));
    let mut refused = 0;
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

/// Waits until client 0 of a process has just got the lock, which it holds for longer than a lease, and returns the
/// process: nobody else is in the middle of a write.
async fn long_holder(workers: &[Worker]) -> Result<usize, Failed> {
    let wait = Polling::within(PATIENCE).every(POLL);
    loop {
        for (place, worker) in workers.iter().enumerate() {
            let records = worker.records()?;
            let last = records.iter().rev().find(|record| record.client == 0);
            if last.is_some_and(|last| {
                matches!(last.what, WorkerEvent::Granted { .. }) && boot_us() - last.at_us < FRESH_US
            }) {
                return Ok(place);
            }
        }
        wait.or_broken(|| format!("no client 0 got the lock within {PATIENCE:?}")).await?;
    }
}

/// Waits until another process than this one has got the lock since then, at most for so long.
async fn until_granted_elsewhere(
    workers: &[Worker],
    besides: usize,
    from_us: u64,
    most: Duration,
) -> Result<(), Failed> {
    let begun = Instant::now();
    let granted = |record: &Record| record.at_us >= from_us && matches!(record.what, WorkerEvent::Granted { .. });
    while begun.elapsed() < most {
        for (_, worker) in workers.iter().enumerate().filter(|(place, _)| *place != besides) {
            if worker.records()?.iter().any(granted) {
                return Ok(());
            }
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Waits until the clients have made so many more increments, counted from that moment.
async fn writes_after(workers: &[Worker], from_us: u64, count: usize) -> Result<(), Failed> {
    let wait = Polling::within(PATIENCE).every(POLL);
    loop {
        let mut made = 0;
        for worker in workers {
            made += worker.records()?.iter().filter(|record| record.at_us >= from_us && is_increment(record)).count();
        }
        if made >= count {
            return Ok(());
        }
        wait.or_broken(|| format!("{made} increments in {PATIENCE:?}, not {count}")).await?;
    }
}

fn is_increment(record: &Record) -> bool {
    matches!(record.what, WorkerEvent::Wrote { accepted: true, .. })
}

fn is_refused(record: &Record) -> bool {
    matches!(record.what, WorkerEvent::Wrote { accepted: false, .. })
}

/// Whether the process saw that a switch is under way.
fn is_under_way(record: &Record) -> bool {
    matches!(&record.what, WorkerEvent::Phase { phase, .. } if phase == "draining" || phase == "both")
}

/// Whether the process saw that engine serve.
fn serves(record: &Record, name: &str) -> bool {
    matches!(&record.what, WorkerEvent::Phase { phase, engine, .. } if phase == "serving" && engine == name)
}

fn judge(
    trial: SwitchTrial,
    history: &GrantHistory,
    values: &[i64],
    refused: usize,
    begun_us: u64,
) -> Result<SwitchFindings, String> {
    let increments = values.last().copied().unwrap_or_default();
    let lost = i64::try_from(history.writes).unwrap_or(i64::MAX) - increments;
    if lost != 0 || values.iter().zip(1..).any(|(value, place)| *value != place) {
        return Err(format!("{} increments were accepted, and the counter is {increments}", history.writes));
    }
    let (mut overlaps, mut standstill_us, mut busy_until_us) = (Vec::new(), 0, 0);
    for grant in &history.grants {
        if grant.granted_us < busy_until_us {
            overlaps.push(grant.who.clone());
        }
        // A process that was killed holds no longer.
        let idle_from_us = busy_until_us.max(begun_us);
        standstill_us = standstill_us.max(grant.granted_us.saturating_sub(idle_from_us));
        busy_until_us = busy_until_us.max(grant.until_us.unwrap_or(grant.granted_us));
    }
    if trial.mode != AT_ONCE && (!overlaps.is_empty() || refused > 0) {
        let who = overlaps.first().cloned().unwrap_or_default();
        return Err(format!(
            "{} grants while another held, first of {who}; {refused} refused as stale",
            overlaps.len()
        ));
    }
    Ok(SwitchFindings { increments, refused, overlaps: overlaps.len(), standstill_us })
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
        let (drain, at_once) =
            (by_call("drain", SwitchFault::PausedHolder), by_call(AT_ONCE, SwitchFault::PausedHolder));
        let apart = history(&[(10, 20), (30, 40), (90, 95)]);
        let shown = judge(drain, &apart, &[1, 2, 3], 0, 15).unwrap();
        assert_eq!((shown.increments, shown.standstill_us), (3, 50));
        let mut killed = history(&[(10, 20), (30, 40), (90, 95)]);
        killed.grants[1].until_us = None;
        assert_eq!(judge(drain, &killed, &[1, 2, 3], 0, 35).unwrap().standstill_us, 55, "from the switch on");
        assert!(judge(drain, &apart, &[1, 2], 0, 15).unwrap_err().contains("the counter is 2"));
        assert!(judge(drain, &apart, &[1, 1, 3], 0, 15).is_err());
        assert!(judge(drain, &apart, &[1, 2, 3], 1, 15).unwrap_err().contains("1 refused"));
        let together = history(&[(10, 50), (30, 40), (45, 60)]);
        assert!(judge(drain, &together, &[1, 2, 3], 0, 15).unwrap_err().contains("2 grants while another held"));
        assert_eq!(judge(at_once, &together, &[1, 2, 3], 5, 15).unwrap().overlaps, 2);
        assert!(judge(at_once, &together, &[1, 2], 5, 15).unwrap_err().contains("the counter is 2"), "the fence holds");
    }

    #[test]
    fn the_control_must_show_two_holders() {
        let shown = |overlaps| SwitchFindings { overlaps, ..SwitchFindings::default() };
        let paused = by_call(AT_ONCE, SwitchFault::PausedHolder);
        assert!(control(&[]).is_err() && control(&[(paused, shown(0)), (by_rule(AT_ONCE), shown(9))]).is_err());
        assert_eq!(control(&[(paused, shown(2)), (by_rule(AT_ONCE), shown(1))]), Ok(3));
        assert!(TRIALS.iter().any(|trial| trial.mode == AT_ONCE && trial.fault == SwitchFault::PausedHolder));
    }
}
