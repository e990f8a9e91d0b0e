//! Lock delay. A holder that asked for a delay is killed. Nobody may be granted the lock before its session has expired
//! *and* the delay has passed; soon after that, the next client must be. In every other round the leader is killed
//! during the delay. A release, a dropped guard and a closed session have no delay: the next client is granted the lock
//! at once. The negative control asks for no delay: the same judge must find its grant too early for one.
//!
//! The delay is measured twice: on the replicated clock, by the end of the delay in the lock's view; and on the
//! machine's clock, from the last expiry that the killed holder's session reported.

use lockkeeper_api::locks::Request;

use super::TTL_MS;
use super::scenario::hand_over::{HandOver, HandOverOptions, PATIENCE};
use crate::judge::{Due, Lateness, in_time};
use crate::ledger::Ledger;
use crate::proofs::prelude::*;
use crate::record::wall_ms;

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

pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    let mut cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    let ledger = Ledger::open(&cluster).await?;
    let (mut killed, mut at_once, mut kills) = (Lateness::default(), Lateness::default(), 0);
    for round in 1..=rounds {
        let amid = round % 2 == 0;
        killed = killed.worst(killed_holder(context, &mut cluster, &ledger, round, amid).await?);
        kills += u32::from(amid);
    }
    let (early, control_busy) = control(context, &cluster).await?;
    for how in ["release", "drop", "close"] {
        at_once = at_once.worst(let_go(context, &cluster, how).await?);
    }
    let (latest, after) = (killed.late_ms, at_once.late_ms);
    let busiest = killed.busy_ms.max(control_busy).max(at_once.busy_ms);
    ledger.close(&cluster).await?;
    cluster.agree(Duration::from_secs(20)).await?;
    Ok(format!(
        "{rounds} holders killed ({kills} times the leader during the delay): nobody granted before the session's end \
         and {DELAY_MS} ms, the next at most {latest} ms after; release, drop and close: the next within {after} ms; \
         without a delay the next came {early} ms before one would have ended; the disk was busy for at most {busiest} \
         ms of any of these waits"
    ))
}

async fn start(context: &Context, cluster: &Cluster, name: &str, words: &str) -> Result<HandOver, Failed> {
    let asked = HandOverOptions { family: "lock-delay", name, ttl_ms: TTL_MS, words, holder_at: None };
    asked.start(context, cluster).await
}

/// How late the next is granted the lock after the end of the delay.
async fn killed_holder(
    context: &Context,
    cluster: &mut Cluster,
    ledger: &Ledger,
    round: u32,
    amid: bool,
) -> Result<Lateness, Failed> {
    let words = format!(" --delay-ms {DELAY_MS}");
    let mut pair = start(context, cluster, &format!("killed-{round}"), &words).await?;
    let lock = pair.lock.clone();
    let disk_latency = DiskLatency::begin(&context.dir)?;
    let sure_ms = pair.kill_holder().await?;
    let place = delayed_place(cluster, &lock).await?;
    still_kept(cluster, &lock, pair.token, &place).await?;
    let kept_us = boot_us();
    if amid {
        let (leader, term) = cluster.leader().await?;
        cluster.kill(leader).await?;
        context.log.say(format!("node {leader}, the leader of term {term}, is killed during the delay"));
        cluster.spawn(leader)?;
    }
    let granted_us = pair.next_granted_us().await?;
    let (to_wall, granted_ms) = (wall_ms() - boot_us() / 1_000, granted_us / 1_000);
    let what = format!("round {round}: the grant to the next");
    in_time(&what, granted_ms, sure_ms + DELAY_MS, u64::MAX).map_err(Failed::Broken)?;
    // The end of the delay on the replicated clock.
    let until_ms = place.delayed_until_ms.unwrap_or_default().saturating_sub(to_wall);
    // An election takes the disk too.
    let (since_us, grace) = if amid { (kept_us, GRACE_AMID_MS) } else { (until_ms * 1_000, GRACE_MS) };
    let due = Due { what: &what, earliest_ms: until_ms, latest_ms: until_ms + grace, since_us };
    let lateness = due.judge(granted_us, &disk_latency.end()?)?;
    // One transaction took the dead holder's request and put the kept place there.
    let went = ledger.wait_for("the end of the dead holder's request", PATIENCE, |event| {
        !event.created && event.path.starts_with(&format!("/locks/{lock}/")) && event.zxid == place.token
    });
    went.await?;
    pair.end().await?;
    cluster.all_ready().await?;
    let (Lateness { late_ms, busy_ms }, after_sure) = (lateness, granted_ms - sure_ms);
    context.log.say(format!(
        "round {round}: granted {late_ms} ms after the end of the delay on the replicated clock, {after_sure} ms after \
         the holder's keeper was last sure (delay {DELAY_MS} ms); the disk was busy for {busy_ms} ms"
    ));
    Ok(lateness)
}

/// Waits until the session has expired and the place is kept.
async fn delayed_place(cluster: &Cluster, lock: &str) -> Result<Request, Failed> {
    let wait = Polling::within(Duration::from_millis(TTL_MS * 2 + DELAY_MS)).every(Duration::from_millis(5));
    loop {
        if let Ok(view) = cluster.api(1).lock(lock).await
            && let Some(place) =
                view.value.holders.iter().chain(&view.value.queue).find(|r| r.delayed_until_ms.is_some())
        {
            return Ok(place.clone());
        }
        wait.or_broken(|| "the dead holder's place was never seen to be kept").await?;
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

/// The same without a delay: the judge of `killed_holder` must find it early. Gives by how much, and for how long the
/// disk was busy, in milliseconds.
async fn control(context: &Context, cluster: &Cluster) -> Result<(u64, u64), Failed> {
    let mut pair = start(context, cluster, "control", "").await?;
    let disk_latency = DiskLatency::begin(&context.dir)?;
    let sure_ms = pair.kill_holder().await?;
    let granted_us = pair.next_granted_us().await?;
    let due = Due {
        what: "the grant to the next, without a delay",
        earliest_ms: sure_ms,
        latest_ms: sure_ms + EXPIRY_MS,
        since_us: sure_ms * 1_000,
    };
    let lateness = due.judge(granted_us, &disk_latency.end()?)?;
    if in_time("control", granted_us / 1_000, sure_ms + DELAY_MS, u64::MAX).is_ok() {
        return cannot_run("without a delay the grant came as late as with one: nothing is shown");
    }
    pair.end().await?;
    Ok((DELAY_MS - lateness.late_ms, lateness.busy_ms))
}

/// The holder lets go by itself; gives how long after that the next was granted.
async fn let_go(context: &Context, cluster: &Cluster, how: &str) -> Result<Lateness, Failed> {
    let words = format!(" --delay-ms {DELAY_MS} --let-go {how}");
    let mut pair = start(context, cluster, how, &words).await?;
    let disk_latency = DiskLatency::begin(&context.dir)?;
    pair.holder.signal(Signal::SIGUSR1);
    let letting = |record: &Record| matches!(record.what, WorkerEvent::Letting { .. }).then_some(record.at_us);
    let letting_us = pair.holder.told("that it lets go", PATIENCE, letting).await?;
    let granted_us = pair.next_granted_us().await?;
    let (what, from_ms) = (format!("after {how}: the grant to the next"), letting_us / 1_000);
    let latest_ms = from_ms + AT_ONCE_MS;
    let due = Due { what: &what, earliest_ms: from_ms, latest_ms, since_us: letting_us };
    let lateness = due.judge(granted_us, &disk_latency.end()?)?;
    pair.end_both().await?;
    Ok(lateness)
}
