//! P1 and P11 where they matter: a holder is paused (SIGSTOP) between reading and writing, for longer than its session
//! lives. Another client gets the lock and writes. What does the first one do when it continues?
//!
//! There are three cases. *Guard*: the holder is stopped before it checks its guard; the guard must report that the
//! lock is lost, and nothing is sent. *Fence*: the holder is stopped after the check, where no check can help; the
//! write is sent, and the store must refuse it by its token. *Neither*, the negative control: the same pause without
//! guard and fence must corrupt the number. The holder stops itself, so that every pause hits exactly that place. Stale
//! writes are counted in the store's own log of accepted writes.

use crate::judge::Due;
use crate::judge::pauses::{ExpectedProtection, PauseTrial, shows};
use crate::postgres::{self, Postgres};
use crate::process::state_of;
use crate::proofs::prelude::*;
use crate::store::Store;
use crate::workers::Worker;

/// Of the holder's session.
const TTL_MS: u64 = 2_000;
/// Of the other's, which must not count as lost while it waits.
const RIVAL_TTL_MS: u64 = 10_000;
const RIVAL_TIMES: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(30);
/// Until the kernel says that the holder is stopped.
const STOPS_WITHIN: Duration = Duration::from_secs(10);
/// How much later than its session's end the lock may go to the other, not counting while the disk is busy.
const GRACE_MS: u64 = 2_000;

struct Protection {
    name: &'static str,
    /// In odd rounds and in even ones.
    holder: [&'static [&'static str]; 2],
    rival: &'static [&'static str],
    expected: ExpectedProtection,
}

const WAYS: [Protection; 3] = [
    Protection {
        name: "guard and fence",
        holder: [
            &["--look", "ask", "--stop", "before-look", "--fence"],
            &["--look", "run", "--stop", "before-look", "--fence"],
        ],
        rival: &["--fence"],
        expected: ExpectedProtection::Stopped,
    },
    Protection {
        name: "paused after the look",
        holder: [&["--look", "ask", "--stop", "after-look", "--fence"]; 2],
        rival: &["--fence"],
        expected: ExpectedProtection::Refused,
    },
    Protection {
        name: "neither guard nor fence",
        holder: [&["--look", "no", "--stop", "before-look"]; 2],
        rival: &["--look", "no"],
        expected: ExpectedProtection::Corrupted,
    },
];

pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    let cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    let (store, server) = a_store(context).await?;
    let which = if server.is_some() { "PostgreSQL" } else { "a file (PostgreSQL is not installed)" };
    context.log.say(format!("the store is {which}; sessions of {TTL_MS} ms; {rounds} pauses each way"));
    let (mut rows, mut busiest) = (Vec::new(), 0);
    for way in &WAYS {
        let mut pauses = Vec::new();
        for round in 1..=rounds {
            let (pause, busy) = one_pause(context, &cluster, &store, way, round).await?;
            busiest = busiest.max(busy);
            shows(&pause, way.expected).or_broken(format!("{}, round {round}", way.name))?;
            pauses.push(pause);
        }
        rows.push((way.name, pauses));
    }
    context
        .log
        .say("                         pauses  told before writing  sent late  stale taken  increments  in the number");
    for (name, pauses) in &rows {
        context.log.say(row(name, pauses));
    }
    let stale = |at: usize| rows[at].1.iter().map(|pause| pause.stale_taken).sum::<u64>();
    let lost: i64 = rows[2].1.iter().map(PauseTrial::lost_updates).sum();
    Ok(format!(
        "{which}: {rounds} pauses longer than the {TTL_MS} ms session: the guard said lost before every write; \
         {rounds} late writes sent past the guard, {} taken; without the checks {} stale writes taken and {lost} \
         updates lost; the disk was busy for at most {busiest} ms before the lock went on",
        stale(0) + stale(1),
        stale(2)
    ))
}

fn row(name: &str, pauses: &[PauseTrial]) -> String {
    let count = |what: fn(&PauseTrial) -> bool| pauses.iter().filter(|pause| what(pause)).count();
    let (told, late) = (count(|pause| pause.told_before_writing), count(|pause| pause.wrote_late));
    let stale: u64 = pauses.iter().map(|pause| pause.stale_taken).sum();
    let increments: i64 = pauses.iter().map(|pause| pause.increments).sum();
    let value: i64 = pauses.iter().map(|pause| pause.value).sum();
    format!("{name:<24} {:>6} {told:>20} {late:>10} {stale:>12} {increments:>11} {value:>14}", pauses.len())
}

async fn a_store(context: &Context) -> Result<(Store, Option<Postgres>), Failed> {
    match postgres::installed() {
        Some(programs) => {
            let server = Postgres::start(&programs, &context.dir).await?;
            Ok((Store::Postgres(server.url()), Some(server)))
        }
        None => Ok((Store::File(context.dir.join("number")), None)),
    }
}

/// Gives also for how many milliseconds the disk was busy before the lock went on.
async fn one_pause(
    context: &Context,
    cluster: &Cluster,
    store: &Store,
    way: &Protection,
    round: u32,
) -> Result<(PauseTrial, u64), Failed> {
    let own = store.open(way.expected != ExpectedProtection::Corrupted).await.map_err(Failed::CannotRun)?;
    own.reset().await.map_err(Failed::CannotRun)?;
    let lock = format!("paused-holder/{}-{round}", way.expected as u8);
    let start = |role: &str, ttl_ms: u64, words: &[&str], extra: &[String]| {
        let mut arguments =
            vec!["--ttl-ms".into(), ttl_ms.to_string(), "--label".into(), role.to_owned(), "hold".into()];
        arguments.extend(["--lock".into(), lock.clone(), "--store".into(), store.to_string()]);
        arguments.extend(words.iter().map(|word| (*word).to_owned()));
        arguments.extend_from_slice(extra);
        let name = format!("{role}-{}-{round}", way.expected as u8);
        Worker::start(&context.dir, &name, &cluster.endpoints(), &arguments)
    };
    let disk_latency = DiskLatency::begin(&context.dir)?;
    let mut holder = start("holder", TTL_MS, way.holder[(round as usize + 1) % 2], &[])?;
    let read = |record: &Record| matches!(record.what, WorkerEvent::Read { .. }).then_some(());
    holder.told("its grant and its reading", PATIENCE, read).await?;
    let wait = Polling::within(STOPS_WITHIN).every(Duration::from_millis(2));
    while state_of(holder.pid()) != Some('T') {
        wait.or_cannot_run(|| "the holder did not stop").await?;
    }
    let paused_us = boot_us();

    let mut rival = start("rival", RIVAL_TTL_MS, way.rival, &["--times".into(), RIVAL_TIMES.to_string()])?;
    rival.idle(PATIENCE).await?;
    let rivals = rival.finish(PATIENCE).await?;
    // Stopped before that was seen, its session may be over in less than its timeout from then.
    let left_us = (paused_us + TTL_MS * 1_000).saturating_sub(boot_us());
    tokio::time::sleep(Duration::from_micros(left_us)).await;
    let continued_us = boot_us();
    holder.signal(Signal::SIGCONT);
    holder.idle(PATIENCE).await?;
    let held = holder.records()?;
    // Its session is over: nothing is to be learnt from how it ends.
    holder.kill().await?;

    let granted_us =
        rivals.iter().find_map(|record| matches!(record.what, WorkerEvent::Granted { .. }).then_some(record.at_us));
    let sure_ms = held
        .iter()
        .take_while(|record| !matches!(record.what, WorkerEvent::Read { .. }))
        .filter_map(Record::sure_until_ms)
        .max();
    let (Some(granted_us), Some(sure_ms)) = (granted_us, sure_ms) else {
        return broken(format!("{}: the other holder was not granted the lock", way.name));
    };
    let due = Due {
        what: "the grant to the other",
        earliest_ms: sure_ms,
        latest_ms: paused_us / 1_000 + TTL_MS + GRACE_MS,
        since_us: paused_us,
    };
    let busy = due.judge(granted_us, &disk_latency.end()?)?.busy_ms;
    let taken = own.taken().await.map_err(Failed::CannotRun)?;
    let pause = PauseTrial::of(&held, &taken);
    context.log.note(format!(
        "{} round {round}: paused {} ms, the disk was busy for {busy} ms before the lock went on: {pause:?}",
        way.name,
        (continued_us - paused_us) / 1_000
    ));
    Ok((pause, busy))
}
