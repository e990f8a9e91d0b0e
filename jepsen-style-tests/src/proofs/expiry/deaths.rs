//! How long dead sessions stay: 1,000 of all kinds in a quiet cluster, and 1,000 whose clients die before three leaders
//! in a row are killed.

use lockkeeper_api::watch::ChangeKind;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::kinds::{self, ActivityKind, Death, SessionHome};
use super::{GRACE, SESSIONS};
use crate::disk_latency::Syncs;
use crate::http::metric_sum;
use crate::proofs::prelude::*;
use crate::sse::{self, StreamItem};

const TIMEOUT: Duration = Duration::from_secs(6);
/// Three leaders are killed and restarted within it.
const TIMEOUT_OF_KILLS: Duration = Duration::from_secs(40);
/// For an end that is late, so that it can be said how late.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the clients live once they have their ephemeral.
const LIFE: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(8));
const KILLS: usize = 3;

/// Sessions of all kinds die one by one in a quiet cluster.
pub(super) async fn calm_deaths(context: &Context, cluster: &Cluster, random: &mut StdRng) -> Result<String, Failed> {
    let mut trial = DeathTrial::set(cluster, "/deaths", "deaths", TIMEOUT).await?;
    context
        .log
        .say(format!("{SESSIONS} sessions of {TIMEOUT:?} keep alive, read, write, wait and watch, and die one by one"));
    let disk_latency = DiskLatency::begin(&context.dir)?;
    let deaths = trial.live(cluster, || random.random_range(LIFE.0..LIFE.1)).await?;
    let ends = trial.ends(&deaths).await?;
    let lateness = judge_all(&deaths, &ends, GRACE, &disk_latency.end()?, |_| true)?;
    Ok(format!("{} sessions of all kinds, quiet: {}", deaths.len(), told(&lateness)?))
}

/// All die, and then three leaders, one after the other, each as soon as the one before is back and knows what the
/// others know.
pub(super) async fn deaths_before_kills(context: &Context, cluster: &mut Cluster) -> Result<String, Failed> {
    let mut trial = DeathTrial::set(cluster, "/deaths-and-kills", "deaths-and-kills", TIMEOUT_OF_KILLS).await?;
    let deaths = trial.live(cluster, || LIFE.0).await?;
    let first = deaths.iter().map(|death| death.sent).min().unwrap_or_else(Instant::now);
    context.log.say(format!("{} clients are dead; now {KILLS} leaders are killed", deaths.len()));
    let disk_latency = DiskLatency::begin(&context.dir)?;
    let mut leaderless = Duration::ZERO;
    for _ in 0..KILLS {
        leaderless += kill_the_leader(context, cluster).await?;
    }
    if first.elapsed() > TIMEOUT_OF_KILLS {
        return cannot_run(format!("{KILLS} kills took longer than {TIMEOUT_OF_KILLS:?}"));
    }
    let ends = trial.ends(&deaths).await?;
    // What a node has not passed on goes down with it, unless it has been acknowledged as a keepalive.
    let strictly = |death: &Death| death.kind == ActivityKind::Keep;
    let lateness = judge_all(&deaths, &ends, GRACE + leaderless, &disk_latency.end()?, strictly)?;
    Ok(format!(
        "{} before {KILLS} leader kills ({} without a leader): {}",
        deaths.len(),
        millis(leaderless),
        told(&lateness)?
    ))
}

/// Kills the leader and restarts it at once; gives how long nobody led. Returns when it is back and knows what the
/// others know.
async fn kill_the_leader(context: &Context, cluster: &mut Cluster) -> Result<Duration, Failed> {
    let (leader, term) = cluster.leader().await?;
    context.log.say(format!("node {leader} (leader of term {term}) is killed"));
    let killed = Instant::now();
    cluster.kill(leader).await?;
    cluster.spawn(leader)?;
    let led = loop {
        let statuses = cluster.statuses(false).await;
        if statuses.iter().any(|status| status.leading && status.term > term) {
            break Instant::now();
        }
        sleep(Duration::from_millis(5)).await;
    };
    cluster.ready(leader).await?;
    let all = cluster.ids().len() as f64;
    let wait = Polling::within(Duration::from_secs(20)).every(Duration::from_millis(20));
    loop {
        let (now, _) = cluster.leader().await?;
        let text = cluster.api(now).metrics().await.unwrap_or_default();
        if metric_sum(&text, "lockkeeper_whole_session_tables") == Some(all) {
            return Ok(led - killed);
        }
        wait.or_broken(|| format!("node {leader} was not told of the sessions within 20 s")).await?;
    }
}

/// A lock that is held, a parent for ephemerals, and watches of it at all nodes.
struct DeathTrial {
    parent: &'static str,
    lock: &'static str,
    timeout: Duration,
    watches: mpsc::UnboundedReceiver<(u64, Instant)>,
    holder: JoinHandle<()>,
}

impl DeathTrial {
    async fn set(
        cluster: &Cluster,
        parent: &'static str,
        lock: &'static str,
        timeout: Duration,
    ) -> Result<Self, Failed> {
        let zxid = cluster.make_node(parent).await?;
        let (seen, watches) = mpsc::unbounded_channel();
        for (_, api) in cluster.apis() {
            let (mut followed, seen) = (sse::follow(api, parent.into(), zxid), seen.clone());
            tokio::spawn(async move {
                while let Some(StreamItem::Change(change, here)) = followed.recv().await {
                    let session = change.path.strip_prefix(parent).and_then(|name| name.strip_suffix("-e"));
                    if change.kind == ChangeKind::Deleted
                        && let Some(session) = session.and_then(|name| name.trim_start_matches('/').parse().ok())
                        && seen.send((session, here)).is_err()
                    {
                        return;
                    }
                }
            });
        }
        let apis: Vec<Api> = cluster.apis().into_iter().map(|(_, api)| api).collect();
        let opened = apis[0].open_session(60_000, "holder").await.map_err(without_fault)?;
        let credential = opened.value.credential;
        apis[0]
            .acquire(&credential, lock, &Acquire::default(), Duration::from_secs(10))
            .await
            .map_err(without_fault)?;
        let holder = tokio::spawn(async move {
            for api in apis.iter().cycle() {
                let _ = api.keepalive(&credential, Duration::from_secs(5)).await;
                sleep(Duration::from_secs(2)).await;
            }
        });
        Ok(Self { parent, lock, timeout, watches, holder })
    }

    /// All clients live until they die.
    async fn live(&self, cluster: &Cluster, mut life: impl FnMut() -> Duration) -> Result<Vec<Death>, Failed> {
        let (apis, zookeepers) = (cluster.apis(), cluster.zookeepers());
        let living: Vec<_> = (0..SESSIONS)
            .map(|number| {
                let node = number % apis.len();
                let place = SessionHome {
                    api: apis[node].1.clone(),
                    zookeeper: zookeepers[node].clone(),
                    parent: self.parent,
                    lock: self.lock,
                    timeout: self.timeout,
                };
                let kind = ActivityKind::ALL[number / apis.len() % ActivityKind::ALL.len()];
                tokio::spawn(kinds::live(kind, place, life()))
            })
            .collect();
        let mut deaths = Vec::new();
        for life in living {
            deaths.push(life.await.map_err(std::io::Error::other)??);
        }
        Ok(deaths)
    }

    /// When each session was first reported gone, by any node.
    async fn ends(&mut self, deaths: &[Death]) -> Result<BTreeMap<u64, Instant>, Failed> {
        let mut ends = BTreeMap::new();
        while deaths.iter().any(|death| !ends.contains_key(&death.session)) {
            match timeout(self.timeout + PATIENCE, self.watches.recv()).await {
                Ok(Some((session, here))) => drop(ends.entry(session).or_insert(here)),
                Ok(None) | Err(_) => break,
            }
        }
        Ok(ends)
    }
}

impl Drop for DeathTrial {
    fn drop(&mut self) {
        self.holder.abort();
    }
}

/// How late each was. Beside the grace it is granted the time in which the disk was busy while it was due.
fn judge_all(
    deaths: &[Death],
    ends: &BTreeMap<u64, Instant>,
    grace: Duration,
    disk: &Syncs,
    strictly: impl Fn(&Death) -> bool,
) -> Result<Vec<Duration>, Failed> {
    let (now, now_us) = (Instant::now(), boot_us());
    let us = |at: Instant| {
        let ago = now.saturating_duration_since(at).as_micros();
        now_us.saturating_sub(u64::try_from(ago).unwrap_or(u64::MAX))
    };
    let judged = deaths.iter().map(|death| {
        let end = ends.get(&death.session);
        let busy = end.map_or(Duration::ZERO, |end| disk.within(us(death.last + death.timeout), us(*end)));
        judge(death, end, grace + busy, strictly(death))
    });
    judged.collect()
}

/// How long after its timeout, counted from its last sign of life, the session ended.
fn judge(death: &Death, end: Option<&Instant>, grace: Duration, strictly: bool) -> Result<Duration, Failed> {
    let Death { session, kind, timeout, sent, last } = death;
    let Some(end) = end else { return broken(format!("no node reported the end of session {session} ({kind:?})")) };
    if strictly && *end < *sent + *timeout {
        let early = millis(*sent + *timeout - *end);
        return broken(format!("session {session} ({kind:?}) expired {early} early"));
    }
    let lateness = end.saturating_duration_since(*last);
    if lateness > *timeout + grace {
        let (late, granted) = (millis(lateness), millis(*timeout + grace));
        return broken(format!(
            "session {session} ({kind:?}) was gone only {late} after its last sign of life; granted were {granted}"
        ));
    }
    Ok(lateness.saturating_sub(*timeout))
}

fn told(lateness: &[Duration]) -> Result<String, Failed> {
    let summary = Summary::of(lateness).ok_or_else(|| Failed::CannotRun("no sessions".into()))?;
    Ok(format!("gone {} (median) to {} (all) after their timeout", millis(summary.median), millis(summary.max)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_and_late_ends_are_caught() {
        let sent = Instant::now();
        let (ms, timeout) = (Duration::from_millis, Duration::from_secs(6));
        let death = Death { session: 7, kind: ActivityKind::Write, timeout, sent, last: sent + ms(100) };
        let judged = |after, strictly| {
            let lateness = judge(&death, Some(&(sent + after)), GRACE, strictly);
            lateness.map_or_else(|failed| failed.to_string(), millis)
        };
        assert_eq!(judged(ms(6_350), true), millis(ms(250)));
        assert!(judged(ms(5_990), true).contains("early"));
        assert_eq!(judged(ms(5_990), false), millis(Duration::ZERO));
        assert!(judged(ms(7_101), true).contains("gone only"));
        assert!(judge(&death, None, GRACE, true).unwrap_err().to_string().contains("no node reported"));
    }
}
