//! Clients of kazoo, of Apache Curator and of our own library contend for one lock, over both protocols, while the
//! leader is killed and started again. Behind the lock stands a counter that checks tokens and keeps a log of its own.
//!
//! By the counter's log, on its one clock: no update is lost; tokens rise from grant to grant, which is first come,
//! first served, because a token is the zxid at which the request entered the log; and nobody is told while another
//! acts. By the log of the tree: nobody is passed over, and nothing is left in the queue. Every kind of client has a
//! share.
//!
//! The control is a documented misuse: kazoo's lock with its own node names, which Curator does not see, in a cluster
//! that is configured to allow them (`locks.foreign_names`). The same counter must show harm there; otherwise the proof
//! shows nothing.

mod contenders;
mod counter;
mod judge;

use lockkeeper_checkers::lives::Life;
use lockkeeper_checkers::replay::replay;

use self::contenders::{ContenderTask, Contenders, Libraries, TTL};
use self::counter::{ContenderAct, ContenderKind, Counter, CounterEntry};
use super::queues_empty;
use crate::judge::grants;
use crate::ledger::{self, Ledger};
use crate::proofs::prelude::*;

const INCREMENTS: u64 = 1_500;
const EACH: u32 = 10;
const LOCK: &str = "one-queue";
const HOLD: Duration = Duration::from_millis(1);
/// How long the killed leader stays down.
const DOWN_FOR: Duration = Duration::from_secs(1);

const CONTROL_LOCK: &str = "one-queue-control";
const CONTROL_INCREMENTS: u64 = 150;
/// Longer, so that contenders that do not see each other overlap.
const CONTROL_HOLD: Duration = Duration::from_millis(5);

/// Until all contenders are connected, and until they have ended.
const PATIENCE: Duration = Duration::from_secs(90);
/// Nobody may wait longer for the next increment.
const STANDSTILL: Duration = Duration::from_secs(30);

pub(super) async fn run(context: &Context) -> ProofResult {
    let libraries = Libraries::install(&context.dir).await?;
    context.log.say(format!("{}; {EACH} contenders of each and {EACH} native", libraries.versions()));
    let mut cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    let ledger = Ledger::open(&cluster).await?;
    let counter = Counter::start(INCREMENTS, context.seed).await?;
    let task = ContenderTask { lock: LOCK, each: EACH, hold: HOLD, kazoo_names: "curator" };
    let mut contenders = Contenders::start(&libraries, &cluster, &context.dir, &counter, &task, &ContenderKind::ALL)?;
    begin(&counter, &mut contenders, EACH as usize * ContenderKind::ALL.len()).await?;
    let begun = Instant::now();
    increments(&counter, &mut contenders, INCREMENTS / 2).await?;
    let killed_after = kill_the_leader(context, &mut cluster, &counter).await?;
    increments(&counter, &mut contenders, INCREMENTS).await?;
    let took = begun.elapsed();
    contenders.finish(PATIENCE).await?;
    let empty_after = queues_empty(&cluster, &[LOCK], TTL).await?;
    let seen_us = ledger.seen_us();
    let events = ledger.close(&cluster).await?;
    cluster.agree(Duration::from_secs(20)).await?;

    let (log, value) = counter.log();
    note(context, &log);
    let judged = judge_queue(&log, value, &ledger::requests(&events, LOCK)?, &seen_us)?;
    context.log.say(format!("{judged}; {:.1} s", took.as_secs_f64()));
    drop(cluster);
    let harm = control(context, &libraries).await?;
    Ok(format!(
        "{judged}; leader killed after {killed_after}; queue empty {} after the end; control with kazoo's own names: \
         {} lost updates and {} refused writes in {CONTROL_INCREMENTS}",
        millis(empty_after),
        harm.lost_updates,
        harm.refused
    ))
}

/// Waits until all are connected, and lets them begin.
async fn begin(counter: &Counter, contenders: &mut Contenders, expected: usize) -> Result<(), Failed> {
    let wait = Polling::within(PATIENCE).every(Duration::from_millis(20));
    while counter.here() < expected {
        contenders.ended_early()?;
        wait.or_broken(|| format!("{} of {expected} contenders are connected after {PATIENCE:?}", counter.here()))
            .await?;
    }
    counter.open();
    Ok(())
}

/// Waits for so many increments in all.
async fn increments(counter: &Counter, contenders: &mut Contenders, wanted: u64) -> Result<(), Failed> {
    let (mut last, mut since) = (counter.taken(), Instant::now());
    while last < wanted {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let now = counter.taken();
        if now > last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > STANDSTILL {
            return broken(format!("after {last} increments none follows within {STANDSTILL:?}"));
        }
        if now < wanted {
            contenders.ended_early()?;
        }
    }
    Ok(())
}

/// Gives how many increments there were by then.
async fn kill_the_leader(context: &Context, cluster: &mut Cluster, counter: &Counter) -> Result<u64, Failed> {
    let (leader, term) = cluster.leader().await?;
    cluster.kill(leader).await?;
    let after = counter.taken();
    context.log.say(format!("node {leader}, the leader of term {term}, is killed after {after} increments"));
    tokio::time::sleep(DOWN_FOR).await;
    cluster.start_node(leader).await?;
    context.log.say(format!("node {leader} is back after {} increments", counter.taken()));
    Ok(after)
}

/// The counter's log, as evidence.
fn note(context: &Context, log: &[CounterEntry]) {
    for entry in log {
        context.log.note(format!("{} {} {:?}", entry.at_us, entry.who, entry.what));
    }
}

fn judge_queue(
    log: &[CounterEntry],
    value: u64,
    requests: &[Life],
    seen_us: &BTreeMap<u64, u64>,
) -> Result<String, Failed> {
    let by_kind = judge::increments(log, value).map_err(Failed::Broken)?;
    judge::shares(&by_kind).map_err(Failed::Broken)?;
    let refused = judge::refusals(log, requests, seen_us).map_err(Failed::Broken)?;
    let granted = judge::grants(log, LOCK);
    grants::exclusive(&granted, requests).map_err(Failed::Broken)?;
    let never = grants::none_passed_over(&granted, requests).map_err(Failed::Broken)?;
    let replay = replay(requests);
    if replay.left > 0 {
        return broken(format!("{} requests stand in the queue at the end of the log", replay.left));
    }
    let suspended = judge::suspended(log);
    if suspended == 0 {
        return cannot_run("no contender had its connection at the leader: the kill met nobody");
    }
    let count = |wanted: fn(&ContenderAct) -> bool| log.iter().filter(|entry| wanted(&entry.what)).count();
    let (lost, failed) = (
        count(|what| matches!(what, ContenderAct::Lost { .. })),
        count(|what| matches!(what, ContenderAct::Failed { .. })),
    );
    let waits: Vec<Duration> =
        granted.iter().map(|grant| Duration::from_micros(grant.granted_us - grant.asked_us)).collect();
    let waits = Summary::of(&waits).map_or_else(String::new, |waits| waits.to_string());
    let (from, to) = (granted.first().map_or(0, |grant| grant.granted_us), granted.last().map_or(0, |g| g.granted_us));
    let longest = Duration::from_micros(grants::longest_standstill_us(&granted, from, to));
    let kinds: Vec<String> = by_kind.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let (changes, hand_overs) = judge::changes_of_kind(log);
    Ok(format!(
        "{value} increments ({}), none lost; {} grants in queue order, {changes} of {hand_overs} hand-overs to another \
         kind, nobody passed over ({never} requests never granted), wait {waits}, longest pause between grants {}; \
         {suspended} of kazoo's and Curator's lost their connection and went on; {refused} refused, {lost} told lost, \
         {failed} failed calls",
        kinds.join(", "),
        granted.len(),
        millis(longest)
    ))
}

/// kazoo with its own node names beside Curator, in one directory: they do not see each other.
async fn control(context: &Context, libraries: &Libraries) -> Result<judge::Harm, Failed> {
    let environment = vec![("LOCKKEEPER_LOCKS__FOREIGN_NAMES".to_owned(), "allow".to_owned())];
    let options = Options { environment, ..Options::default() };
    let cluster = Cluster::start(&context.binary, &context.dir.join("control"), options).await?;
    let counter = Counter::start(CONTROL_INCREMENTS, context.seed).await?;
    let task = ContenderTask { lock: CONTROL_LOCK, each: EACH, hold: CONTROL_HOLD, kazoo_names: "own" };
    let kinds = [ContenderKind::Kazoo, ContenderKind::Curator];
    let mut contenders = Contenders::start(libraries, &cluster, &context.dir, &counter, &task, &kinds)?;
    begin(&counter, &mut contenders, EACH as usize * kinds.len()).await?;
    increments(&counter, &mut contenders, CONTROL_INCREMENTS).await?;
    contenders.finish(PATIENCE).await?;
    let (log, value) = counter.log();
    note(context, &log);
    let harm = judge::harm(&log);
    let caught = judge::increments(&log, value);
    match caught {
        Err(what) if harm.lost_updates > 0 => {
            context.log.say(format!("the control, kazoo with its own node names beside Curator: {what}"));
            Ok(harm)
        }
        _ => broken(format!("the control shows no lost update ({harm:?}): this proof would not see one")),
    }
}
