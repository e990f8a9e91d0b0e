//! Lock delay. A holder that asked for a delay is killed. Nobody may be granted the lock before its session has expired
//! *and* the delay has passed; soon after that, the next client must be. In every other round the leader is killed
//! during the delay. A release, a dropped guard and a closed session have no delay: the next client is granted the lock
//! at once. The negative control asks for no delay: the same judge must find its grant too early for one.
//!
//! The delay is measured twice: on the replicated clock, by the end of the delay in the lock's view; and on the
//! machine's clock, from the last expiry that the killed holder's session reported.

use std::time::{Duration, Instant};

use lockkeeper_api::locks::Request;
use nix::sys::signal::Signal;

use super::pair::{HolderAndWaiter, PATIENCE, PairOptions, granted, sure_until_ms};
use super::{Context, TTL_MS};
use crate::cluster::{Cluster, Options};
use crate::disk_latency::DiskLatency;
use crate::judge::in_time;
use crate::ledger::Ledger;
use crate::record::{Record, WorkerEvent, boot_us, wall_ms};
use crate::verdict::{Failed, ProofResult, broken};

pub(super) const ROUNDS: u32 = 4;
/// Long enough for the kept place to be seen although the disk stalls meanwhile.
const DELAY_MS: u64 = 4_000;
/// How much later than the delay's end the next may be granted: what a timer and a hand-over take. Like the other
/// bounds from above, not counting while the disk is busy.
const GRACE_MS: u64 = 500;
/// How long after its last reported expiry a session may end: a node passes a sign of life on within a third of the
/// timeout, and the leader takes the rest to notice. Less than the delay, or the control could show nothing.
const EXPIRY_MS: u64 = TTL_MS / 3 + 500;
/// The same when the leader dies amid: a new one is elected, and the keeper's clock starts anew.
const GRACE_AMID_MS: u64 = 4_000;
/// "At once".
const AT_ONCE_MS: u64 = 300;

pub(super) async fn run(context: &Context) -> ProofResult {
    let rounds = context.rounds.unwrap_or(ROUNDS);
    let mut cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    let ledger = Ledger::open(&cluster).await?;
    let (mut latest, mut kills, mut busiest) = (0, 0, 0);
    for round in 1..=rounds {
        let amid = round % 2 == 0;
        let (late, busy) = killed(context, &mut cluster, &ledger, round, amid).await?;
        (latest, busiest) = (latest.max(late), busiest.max(busy));
        kills += u32::from(amid);
    }
    let (early, busy) = control(context, &cluster).await?;
    busiest = busiest.max(busy);
    let mut at_once = 0;
    for how in ["release", "drop", "close"] {
        let (after, busy) = let_go(context, &cluster, how).await?;
        (at_once, busiest) = (at_once.max(after), busiest.max(busy));
    }
    ledger.close(&cluster).await?;
    cluster.agree(Duration::from_secs(20)).await?;
    Ok(format!(
        "{rounds} holders killed ({kills} times the leader during the delay): nobody granted before the session's end \
         and {DELAY_MS} ms, \
         the next at most {latest} ms after; release, drop and close: the next within {at_once} ms; without a delay \
         the next came \
         {early} ms before one would have ended; the disk was busy for at most {busiest} ms of any of these waits"
    ))
}

async fn pair(context: &Context, cluster: &Cluster, name: &str, words: &str) -> Result<HolderAndWaiter, Failed> {
    let asked = PairOptions { family: "lock-delay", name, ttl_ms: TTL_MS, words, holder_at: None };
    asked.start(context, cluster).await
}

/// Gives how late the next was granted, in milliseconds after the end of the delay, and for how many the disk was busy.
async fn killed(
    context: &Context,
    cluster: &mut Cluster,
    ledger: &Ledger,
    round: u32,
    amid: bool,
) -> Result<(u64, u64), Failed> {
    let HolderAndWaiter { lock, mut holder, mut waiter, token } =
        pair(context, cluster, &format!("killed-{round}"), &format!(" --delay-ms {DELAY_MS}")).await?;
    let disk_latency = DiskLatency::begin(&context.dir)?;
    holder.kill().await?;
    let sure_ms = sure_until_ms(&holder)?;
    let place = delayed_place(cluster, &lock).await?;
    let until_ms = place.delayed_until_ms.unwrap_or_default();
    still_kept(cluster, &lock, token, &place).await?;
    let kept_us = boot_us();
    if amid {
        let (leader, term) = cluster.leader().await?;
        cluster.kill(leader).await?;
        context.log.say(format!("node {leader}, the leader of term {term}, is killed during the delay"));
        cluster.spawn(leader)?;
    }
    let (_, granted_us) = waiter.told("its grant", PATIENCE, granted).await?;
    let to_wall = wall_ms() - boot_us() / 1_000;
    let granted_ms = granted_us / 1_000;
    let what = format!("round {round}: the grant to the next");
    // An election takes the disk too.
    let (from_us, grace) =
        if amid { (kept_us, GRACE_AMID_MS) } else { (until_ms.saturating_sub(to_wall) * 1_000, GRACE_MS) };
    let busy = disk_latency.end()?.ms_within(from_us, granted_us);
    in_time(&what, granted_ms, sure_ms + DELAY_MS, u64::MAX).map_err(Failed::Broken)?;
    in_time(&what, granted_ms + to_wall, until_ms, until_ms + grace + busy).map_err(Failed::Broken)?;
    // One transaction took the dead holder's request and put the kept place there.
    let went = ledger.wait_for("the end of the dead holder's request", PATIENCE, |event| {
        !event.created && event.path.starts_with(&format!("/locks/{lock}/")) && event.zxid == place.token
    });
    went.await?;
    waiter.signal(Signal::SIGUSR1);
    waiter.idle(PATIENCE).await?;
    waiter.finish(PATIENCE).await?;
    cluster.all_ready().await?;
    let (late, after_sure) = (granted_ms + to_wall - until_ms, granted_ms - sure_ms);
    context.log.say(format!(
        "round {round}: granted {late} ms after the end of the delay on the replicated clock, {after_sure} ms after \
         the holder's keeper was \
         last sure (delay {DELAY_MS} ms); the disk was busy for {busy} ms"
    ));
    Ok((late, busy))
}

/// Waits until the session has expired and the place is kept.
async fn delayed_place(cluster: &Cluster, lock: &str) -> Result<Request, Failed> {
    let begun = Instant::now();
    loop {
        if let Ok(view) = cluster.api(1).lock(lock).await
            && let Some(place) =
                view.value.holders.iter().chain(&view.value.queue).find(|r| r.delayed_until_ms.is_some())
        {
            return Ok(place.clone());
        }
        if begun.elapsed() > Duration::from_millis(TTL_MS * 2 + DELAY_MS) {
            return broken("the dead holder's place was never seen to be kept");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// While the place is kept: it is kept for as long as was asked for, and the dead holder's token does not verify.
async fn still_kept(cluster: &Cluster, lock: &str, token: u64, place: &Request) -> Result<(), Failed> {
    let until_ms = place.delayed_until_ms.unwrap_or_default();
    if until_ms != place.since_ms + DELAY_MS {
        return broken(format!("the place is kept from {} until {until_ms}, not for {DELAY_MS} ms", place.since_ms));
    }
    let verified = cluster.api(2).verify(lock, token, PATIENCE).await;
    let verified = verified.map_err(|failure| Failed::Broken(failure.to_string()))?.value;
    if verified.held {
        return broken(format!("the dead holder's token {token} still verifies during the delay"));
    }
    Ok(())
}

/// The same without a delay: the judge of `killed` must find it early. Gives by how much, and for how long the disk was
/// busy.
async fn control(context: &Context, cluster: &Cluster) -> Result<(u64, u64), Failed> {
    let HolderAndWaiter { mut holder, mut waiter, .. } = pair(context, cluster, "control", "").await?;
    let disk_latency = DiskLatency::begin(&context.dir)?;
    holder.kill().await?;
    let sure_ms = sure_until_ms(&holder)?;
    let (_, granted_us) = waiter.told("its grant", PATIENCE, granted).await?;
    let granted_ms = granted_us / 1_000;
    let busy = disk_latency.end()?.ms_within(sure_ms * 1_000, granted_us);
    in_time("the grant to the next, without a delay", granted_ms, sure_ms, sure_ms + EXPIRY_MS + busy)
        .map_err(Failed::Broken)?;
    if in_time("control", granted_ms, sure_ms + DELAY_MS, u64::MAX).is_ok() {
        return Err(Failed::CannotRun("without a delay the grant came as late as with one: nothing is shown".into()));
    }
    waiter.signal(Signal::SIGUSR1);
    waiter.idle(PATIENCE).await?;
    waiter.finish(PATIENCE).await?;
    Ok((sure_ms + DELAY_MS - granted_ms, busy))
}

/// The holder lets go by itself; gives how long after that the next was granted, in milliseconds, and for how many of
/// them the disk was busy.
async fn let_go(context: &Context, cluster: &Cluster, how: &str) -> Result<(u64, u64), Failed> {
    let words = format!(" --delay-ms {DELAY_MS} --let-go {how}");
    let HolderAndWaiter { mut holder, mut waiter, .. } = pair(context, cluster, how, &words).await?;
    let disk_latency = DiskLatency::begin(&context.dir)?;
    holder.signal(Signal::SIGUSR1);
    let letting = |record: &Record| matches!(record.what, WorkerEvent::Letting { .. }).then_some(record.at_us);
    let letting_us = holder.told("that it lets go", PATIENCE, letting).await?;
    let (_, granted_us) = waiter.told("its grant", PATIENCE, granted).await?;
    let (from, at) = (letting_us / 1_000, granted_us / 1_000);
    let busy = disk_latency.end()?.ms_within(letting_us, granted_us);
    in_time(&format!("after {how}: the grant to the next"), at, from, from + AT_ONCE_MS + busy)
        .map_err(Failed::Broken)?;
    waiter.signal(Signal::SIGUSR1);
    for mut worker in [holder, waiter] {
        worker.idle(PATIENCE).await?;
        worker.finish(PATIENCE).await?;
    }
    Ok((at - from, busy))
}
