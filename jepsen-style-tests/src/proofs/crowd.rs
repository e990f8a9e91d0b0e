//! 200 clients of the library in 4 processes contend for one lock, while a node is killed and started again every 5
//! seconds.
//!
//! Each holder reads a number in a file, waits, writes the number plus one, and appends its token to a second file. The
//! proof judges:
//!
//! - the number: no update was lost; and the order of the tokens in the second file;
//! - what clients were told, on one clock: nobody was granted the lock while another acted on it;
//! - the order of grants against the order of the requests in the log: first come, first served, and nobody was passed
//!   over;
//! - the queue, once all clients have stopped asking and their sessions are still open: no request was left behind;
//! - the servers' count of notifications.
//!
//! A killed server loses its count, so the count is judged twice. Over the whole run, the known part (the last sample
//! of each life, taken right before each kill) must not be *more* than the log owes: one for each waiter that came to
//! hold, and one for each that died waiting. In calm windows between the kills, where samples are exact, it must not be
//! fewer either.

use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper_checkers::lives::Life;
use lockkeeper_checkers::replay::{Replay, replay};

use super::kills::{Kills, calm, kill_one};
use super::{Context, queues_empty};
use crate::cluster::{Cluster, Options};
use crate::judge::{counts, grants};
use crate::ledger::{self, Ledger};
use crate::sampler::Sampler;
use crate::stats::{Summary, millis};
use crate::verdict::{Failed, ProofResult, broken};
use crate::workers::Worker;

pub(super) const SECONDS: u64 = 30;
const PROCESSES: u32 = 4;
const CLIENTS_EACH: u32 = 50;
const TTL: Duration = Duration::from_secs(10);
const KILL_EVERY: Duration = Duration::from_secs(5);
const LOCK: &str = "crowd";

pub(super) async fn run(context: &Context) -> ProofResult {
    let seconds = context.seconds.unwrap_or(SECONDS);
    let mut cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    let ledger = Ledger::open(&cluster).await?;
    let sampler = Sampler::begin(&cluster).await?;
    let (counter, tokens) = (context.dir.join("counter"), context.dir.join("tokens"));
    std::fs::write(&counter, format!("{:020}\n", 0))?;
    std::fs::write(&tokens, "")?;
    let mut workers = start_workers(context, &cluster, seconds, &counter, &tokens)?;
    context.log.say(format!("{} clients in {PROCESSES} processes for {seconds} s", PROCESSES * CLIENTS_EACH));

    let kills = faults(context, &mut cluster, &sampler, Duration::from_secs(seconds)).await?;
    for worker in &mut workers {
        worker.idle(TTL + Duration::from_secs(30)).await?;
    }
    let empty_after = queues_empty(&cluster, &[LOCK], TTL).await?;
    sampler.round().await?;
    let mut told = grants::GrantHistory::default();
    for worker in workers {
        let name = worker.name().to_owned();
        told.take(&name, &worker.finish(Duration::from_secs(20)).await?);
    }
    let seen_us = ledger.seen_us();
    let events = ledger.close(&cluster).await?;
    cluster.agree(Duration::from_secs(20)).await?;

    let judged = judge(&told, &ledger::requests(&events, LOCK)?, &counter, &tokens)?;
    let owed = judged.replay.promotions.len() + judged.replay.went_waiting;
    let counted = sampler.total();
    if counted > owed as f64 {
        return broken(format!("{counted} notifications, the log owes at most {owed}"));
    }
    let windows = sampler.windows(&judged.replay.promotions, &seen_us);
    counts::in_calm(&windows).map_err(Failed::Broken)?;
    let in_calm: f64 = windows.iter().map(|window| window.counted).sum();
    let calm_owed: (usize, usize) =
        windows.iter().fold((0, 0), |sum, window| (sum.0 + window.certain, sum.1 + window.possible));
    context.log.say(format!(
        "{} waiters came to hold and {} went waiting: {counted} notifications known; in {} calm windows {in_calm} for \
         {} to {} owed",
        judged.replay.promotions.len(),
        judged.replay.went_waiting,
        windows.len(),
        calm_owed.0,
        calm_owed.1
    ));
    if kills.nodes == 0 || windows.is_empty() {
        return Err(Failed::CannotRun("no node was killed, or there was no calm window".into()));
    }
    for failure in &told.failures {
        context.log.note(failure);
    }
    Ok(format!(
        "{} clients, {} nodes killed ({} leading): {} grants in queue order, none passed over ({} requests given up), \
         counter {}, wait {}, \
         {} failed calls, {} guards lost; queue empty {} after the end; at most one notification per release \
         ({counted} known of {owed} \
         owed; in calm {in_calm} of {}..{})",
        PROCESSES * CLIENTS_EACH,
        kills.nodes,
        kills.leaders,
        told.grants.len(),
        judged.never,
        judged.counter,
        judged.waits,
        told.failures.len(),
        told.lost,
        millis(empty_after),
        calm_owed.0,
        calm_owed.1
    ))
}

fn start_workers(
    context: &Context,
    cluster: &Cluster,
    seconds: u64,
    counter: &Path,
    tokens: &Path,
) -> Result<Vec<Worker>, Failed> {
    let start = |number| {
        let arguments = format!(
            "--ttl-ms {} --label crowd-{number} contend --lock {LOCK} --clients {CLIENTS_EACH} --seconds {seconds} \
             --counter {} --tokens {}",
            TTL.as_millis(),
            counter.display(),
            tokens.display()
        );
        let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
        Worker::start(&context.dir, &format!("crowd-{number}"), &cluster.endpoints(), &arguments)
    };
    (1..=PROCESSES).map(start).collect()
}

async fn faults(context: &Context, cluster: &mut Cluster, sampler: &Sampler, over: Duration) -> Result<Kills, Failed> {
    let begun = Instant::now();
    let (mut random, mut kills) = (context.random(1), Kills::default());
    // The clients are still coming.
    tokio::time::sleep(Duration::from_secs(2)).await;
    while begun.elapsed() + KILL_EVERY < over {
        calm(sampler, begun + KILL_EVERY * (kills.nodes + 1)).await?;
        kill_one(context, cluster, sampler, &mut random, &mut kills).await?;
    }
    tokio::time::sleep(over.saturating_sub(begun.elapsed())).await;
    Ok(kills)
}

struct Judged {
    counter: u64,
    never: usize,
    waits: String,
    replay: Replay,
}

fn judge(told: &grants::GrantHistory, requests: &[Life], counter: &Path, tokens: &Path) -> Result<Judged, Failed> {
    grants::exclusive(&told.grants, requests).map_err(Failed::Broken)?;
    let never = grants::none_passed_over(&told.grants, requests).map_err(Failed::Broken)?;
    let text = std::fs::read_to_string(counter)?;
    let value: u64 = text.trim().parse().map_err(|_| Failed::Broken(format!("the counter's file holds {text:?}")))?;
    if value != told.writes {
        return broken(format!(
            "{} increments were written and the counter is {value}: updates were lost",
            told.writes
        ));
    }
    let text = std::fs::read_to_string(tokens)?;
    let at_file: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    if at_file.len() as u64 != told.writes {
        return broken(format!("{} increments were written and the file saw {} tokens", told.writes, at_file.len()));
    }
    if let Some(pair) = at_file.windows(2).find(|pair| pair[0] >= pair[1]) {
        return broken(format!("the file saw token {} and then token {}", pair[0], pair[1]));
    }
    let waits: Vec<Duration> =
        told.grants.iter().map(|grant| Duration::from_micros(grant.granted_us - grant.asked_us)).collect();
    let waits = Summary::of(&waits).map_or_else(String::new, |waits| waits.to_string());
    let replay = replay(requests);
    if replay.left > 0 {
        return broken(format!("{} requests stand in the queue at the end of the log", replay.left));
    }
    Ok(Judged { counter: value, never, waits, replay })
}
