//! P5 and P6: sessions that are kept alive through leader kills and a pause do not expire; abandoned sessions expire in
//! time and as a whole.
//!
//! "Early" is judged by the client's clock alone: a session that is gone although less than its timeout has passed
//! since the client sent a keepalive that was acknowledged. Resumable watches on all three nodes follow the deletions
//! of the sessions' ephemeral nodes. Meanwhile each node's sessions and ephemeral nodes are listed: no listing may show
//! an ephemeral node whose session is gone, and both ephemeral nodes of a session go in one transaction. Then come
//! sessions of all kinds of clients, in `deaths`.

mod deaths;
mod kinds;

use futures::StreamExt as _;
use lockkeeper_api::nodes::Kind;
use lockkeeper_api::watch::ChangeKind;
use tokio::sync::mpsc;

use crate::proofs::prelude::*;
use crate::sse::{self, StreamItem};

const SESSIONS: usize = 1_000;
const TIMEOUT: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_millis(600);
/// How long one node is asked before the next.
const ATTEMPT: Duration = Duration::from_millis(500);
const PAUSED_FOR: Duration = Duration::from_secs(5);
const DOWN_FOR: Duration = Duration::from_secs(2);
/// On top of the timeout: what the cluster may take to notice and remove, not counting while the disk is busy.
const GRACE: Duration = Duration::from_secs(1);
const EPHEMERALS: [&str; 2] = ["a", "b"];

#[derive(Debug)]
struct LiveSession {
    id: u64,
    credential: String,
    /// When the latest acknowledged sign of life was sent.
    last_sent: Instant,
    /// When its client stopped.
    stopped: Option<Instant>,
    longest_silence: Duration,
    /// When the cluster told its client that it is gone.
    told_gone: Option<Instant>,
}

/// When a node's watch told of the end of a session's ephemerals: instants and zxids.
type SessionEnds = BTreeMap<u64, Vec<(Instant, u64)>>;

pub(super) async fn run(context: &Context, seconds: u64) -> ProofResult {
    let mut random = context.random(1);
    // Over ZooKeeper's protocol sessions have timeouts of 2 to 20 ticks; here it is to give those of `deaths`, of 6 s
    // and of 40 s.
    let environment = vec![("LOCKKEEPER_ZOOKEEPER__TICK_MS".into(), "2000".into())];
    let options = Options { environment, ..Options::default() };
    let mut cluster = Cluster::start(&context.binary, &context.dir, options).await?;
    let zxid = cluster.make_node("/expiry").await?;
    let watches: Vec<_> =
        cluster.apis().into_iter().map(|(id, api)| (id, sse::follow(api, "/expiry".into(), zxid))).collect();
    context.log.say(format!("opening {SESSIONS} sessions of {TIMEOUT:?}, each with {} ephemerals", EPHEMERALS.len()));
    let stop = Arc::new(AtomicBool::new(false));
    let alive = start_sessions(&cluster, &stop, &mut random).await?;
    let acknowledged = &alive.acknowledged;
    faults(context, &mut cluster, Duration::from_secs(seconds)).await?;
    let kept = acknowledged.load(Ordering::SeqCst);
    let term_at_stop = cluster.leader().await?.1;
    context.log.say(format!("{kept} keepalives acknowledged; now all clients stop"));
    let disk_latency = DiskLatency::begin(&context.dir)?;
    stop.store(true, Ordering::SeqCst);
    let lives = alive.join().await?;
    none_gone_while_kept(&lives)?;

    let all_stopped = Instant::now();
    let elections = watch_elections(&cluster, term_at_stop);
    let listings = Arc::new(AtomicU64::new(0));
    let orphans = watch_for_orphans(&cluster, &listings);
    let mut ends = Vec::new();
    for (id, watch) in watches {
        ends.push((id, collect_ends(id, watch, all_stopped + TIMEOUT + Duration::from_secs(20)).await?));
    }
    if let Some(orphan) = orphans.end().await?.into_iter().flatten().next() {
        return broken(orphan);
    }
    elections.watching.abort();
    let elected = *elections.last.lock();
    let disk = disk_latency.end()?.within(0, u64::MAX);
    let lateness = check_ends(&lives, &ends, elected, GRACE + disk)?;
    told_and_gone(&cluster, &lives).await?;
    cluster.agree(Duration::from_secs(20)).await?;
    let calm_deaths = deaths::calm_deaths(context, &cluster, &mut random).await?;
    let before_kills = deaths::deaths_before_kills(context, &mut cluster).await?;
    cluster.agree(Duration::from_secs(20)).await?;
    let silence = lives.iter().map(|life| life.longest_silence).max().unwrap_or_default();
    Ok(format!(
        "{SESSIONS} sessions of {TIMEOUT:?} over {seconds} s: {kept} keepalives, none expired early, none lost \
         (longest time without an acknowledgement {}); after the stop gone within {} to {} of the last sign of life \
         (the disk was busy for {}); {} listings without an orphan; {calm_deaths}; {before_kills}",
        millis(silence),
        millis(lateness.median),
        millis(lateness.max),
        millis(disk),
        listings.load(Ordering::SeqCst)
    ))
}

/// Two leader kills with a restart and one leader pause between them.
async fn faults(context: &Context, cluster: &mut Cluster, over: Duration) -> Result<(), Failed> {
    let begun = Instant::now();
    for (at, pause) in [(0.17, false), (0.45, true), (0.75, false)] {
        tokio::time::sleep(over.mul_f64(at).saturating_sub(begun.elapsed())).await;
        let (leader, term) = cluster.leader().await?;
        if pause {
            context.log.say(format!("node {leader} (leader of term {term}) is paused for {PAUSED_FOR:?}"));
            cluster.signal(leader, Signal::SIGSTOP);
            tokio::time::sleep(PAUSED_FOR).await;
            cluster.signal(leader, Signal::SIGCONT);
        } else {
            context
                .log
                .say(format!("node {leader} (leader of term {term}) is killed, and restarted after {DOWN_FOR:?}"));
            cluster.kill(leader).await?;
            tokio::time::sleep(DOWN_FOR).await;
            cluster.spawn(leader)?;
        }
        cluster.ready(leader).await?;
        let now = cluster.leader().await?;
        if now.1 == term {
            return cannot_run(format!("the fault did not bite: node {leader} still leads term {term}"));
        }
        context.log.say(format!("node {} leads term {}", now.0, now.1));
    }
    tokio::time::sleep(over.saturating_sub(begun.elapsed())).await;
    Ok(())
}

/// Clients that keep their sessions alive.
struct Alive {
    tasks: Vec<JoinHandle<Result<LiveSession, Failed>>>,
    acknowledged: Arc<AtomicU64>,
}

impl Alive {
    async fn join(self) -> Result<Vec<LiveSession>, Failed> {
        let mut lives = Vec::new();
        for task in self.tasks {
            lives.push(task.await.map_err(std::io::Error::other)??);
        }
        Ok(lives)
    }
}

async fn start_sessions(cluster: &Cluster, stop: &Arc<AtomicBool>, random: &mut StdRng) -> Result<Alive, Failed> {
    let apis: Vec<Api> = cluster.apis().into_iter().map(|(_, api)| api).collect();
    let acknowledged = Arc::new(AtomicU64::new(0));
    let starting = (0..SESSIONS).map(|number| {
        let (apis, stop, acknowledged) = (apis.clone(), Arc::clone(stop), Arc::clone(&acknowledged));
        let phase = random.random_range(Duration::ZERO..EVERY);
        async move {
            let life = begin(&apis[number % apis.len()], number).await?;
            Ok::<_, Failed>(tokio::spawn(keep(apis, number, life, phase, stop, acknowledged)))
        }
    });
    let started: Vec<_> = futures::stream::iter(starting).buffer_unordered(64).collect().await;
    Ok(Alive { tasks: started.into_iter().collect::<Result<_, _>>()?, acknowledged })
}

async fn begin(api: &Api, number: usize) -> Result<LiveSession, Failed> {
    let timeout_ms = u32::try_from(TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    let opened = api.open_session(timeout_ms, &format!("expiry {number}")).await.map_err(without_fault)?;
    let (id, credential) = (opened.value.session_id, opened.value.credential);
    let mut last_sent = opened.sent;
    for name in EPHEMERALS {
        let body = Create { kind: Kind::Ephemeral, ..Create::default() };
        let created =
            api.create(&format!("/expiry/{id}-{name}"), &body, Some(&credential)).await.map_err(without_fault)?;
        last_sent = created.sent;
    }
    Ok(LiveSession { id, credential, last_sent, stopped: None, longest_silence: Duration::ZERO, told_gone: None })
}

async fn keep(
    apis: Vec<Api>,
    number: usize,
    mut life: LiveSession,
    phase: Duration,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
) -> Result<LiveSession, Failed> {
    let mut node = number;
    tokio::time::sleep(phase).await;
    while !stop.load(Ordering::SeqCst) {
        let begun = Instant::now();
        match apis[node % apis.len()].keepalive(&life.credential, ATTEMPT).await {
            Ok(answer) => {
                life.longest_silence = life.longest_silence.max(answer.received - life.last_sent);
                life.last_sent = answer.sent;
                acknowledged.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(EVERY.saturating_sub(begun.elapsed())).await;
            }
            Err(Failure::Refused(problem)) if problem.code == Code::SessionExpired => {
                life.told_gone = Some(Instant::now());
                break;
            }
            Err(Failure::Refused(problem)) => return broken(format!("keepalive of session {}: {problem}", life.id)),
            Err(Failure::NotDone(_) | Failure::Unknown(_)) => {
                node += 1;
                tokio::time::sleep(Duration::from_millis(50 + (number as u64 * 37) % 100)).await;
            }
        }
    }
    life.stopped = Some(Instant::now());
    Ok(life)
}

fn none_gone_while_kept(lives: &[LiveSession]) -> Result<(), Failed> {
    let early = lives.iter().filter(|life| life.told_gone.is_some_and(|told| told < life.last_sent + TIMEOUT)).count();
    let lost = lives.iter().filter(|life| life.told_gone.is_some()).count();
    if early > 0 {
        return broken(format!(
            "{early} sessions expired less than {TIMEOUT:?} after an acknowledged keepalive was sent"
        ));
    }
    if lost > 0 {
        return broken(format!(
            "{lost} sessions were lost: for longer than {TIMEOUT:?} no node acknowledged their keepalives, though a \
             majority lived"
        ));
    }
    Ok(())
}

/// Notes when a new leader was last seen.
struct ElectionObserver {
    last: Arc<Mutex<Option<Instant>>>,
    watching: JoinHandle<()>,
}

fn watch_elections(cluster: &Cluster, mut term: u64) -> ElectionObserver {
    let (apis, last) = (cluster.apis(), Arc::new(Mutex::new(None)));
    let noted = Arc::clone(&last);
    let watching = tokio::spawn(async move {
        loop {
            for (_, api) in &apis {
                let led =
                    api.status(false).await.ok().filter(|answer| answer.value.leading && answer.value.term > term);
                if let Some(answer) = led {
                    (term, *noted.lock()) = (answer.value.term, Some(answer.received));
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    ElectionObserver { last, watching }
}

/// Takes what a node's watch tells until all ephemerals of all sessions are gone.
async fn collect_ends(
    node: u64,
    mut watch: mpsc::UnboundedReceiver<StreamItem>,
    until: Instant,
) -> Result<SessionEnds, Failed> {
    let mut ends = SessionEnds::new();
    let mut paths = BTreeSet::new();
    while paths.len() < SESSIONS * EPHEMERALS.len() {
        let left = until.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left, watch.recv()).await {
            Ok(Some(StreamItem::Change(change, here))) => {
                if change.kind == ChangeKind::Deleted
                    && let Some(session) = owner(&change.path)
                    && paths.insert(change.path.clone())
                {
                    ends.entry(session).or_default().push((here, change.zxid));
                }
            }
            Ok(Some(StreamItem::Compacted(why))) => {
                return broken(format!("node {node} could not resume the watch: {why}"));
            }
            Ok(None) => return broken(format!("the watch at node {node} ended")),
            Err(_) => {
                let missing = SESSIONS * EPHEMERALS.len() - paths.len();
                return broken(format!("{missing} ephemerals were not reported gone by node {node} in time"));
            }
        }
    }
    Ok(ends)
}

/// The session in an ephemeral's path.
fn owner(path: &str) -> Option<u64> {
    path.strip_prefix("/expiry/")?.split('-').next()?.parse().ok()
}

fn check_ends(
    lives: &[LiveSession],
    all: &[(u64, SessionEnds)],
    elected: Option<Instant>,
    grace: Duration,
) -> Result<Summary, Failed> {
    let mut lateness = Vec::new();
    let mut zxids: BTreeMap<u64, u64> = BTreeMap::new();
    for (node, ends) in all {
        for life in lives {
            let seen = ends.get(&life.id).map(Vec::as_slice).unwrap_or_default();
            let (Some((_, zxid)), Some(first), Some(last)) =
                (seen.first(), seen.iter().map(|end| end.0).min(), seen.iter().map(|end| end.0).max())
            else {
                return broken(format!("node {node} reported no end of session {}", life.id));
            };
            if seen.len() != EPHEMERALS.len() || seen.iter().any(|end| end.1 != *zxid) {
                return broken(format!(
                    "node {node} removed the ephemerals of session {} one by one: {seen:?}",
                    life.id
                ));
            }
            if *zxids.entry(life.id).or_insert(*zxid) != *zxid {
                return broken(format!("session {} ended at different zxids on different nodes", life.id));
            }
            if first < life.last_sent + TIMEOUT {
                let early = millis(life.last_sent + TIMEOUT - first);
                return broken(format!("session {} expired {early} early, seen at node {node}", life.id));
            }
            let stopped = life.stopped.unwrap_or(life.last_sent);
            // A new leader that does not know what was heard restarts every timer.
            let counted_from = elected.map_or(stopped, |elected| stopped.max(elected));
            if last > counted_from + TIMEOUT + grace {
                let late = millis(last - stopped);
                return broken(format!(
                    "session {} was gone only {late} after its client stopped, at node {node}; granted were {}",
                    life.id,
                    millis(TIMEOUT + grace)
                ));
            }
            lateness.push(last - life.last_sent);
        }
    }
    Summary::of(&lateness).ok_or_else(|| Failed::CannotRun("no sessions".into()))
}

/// Lists sessions, then ephemerals, on each node over and over. Each gives the first orphan that it has seen.
fn watch_for_orphans(cluster: &Cluster, listings: &Arc<AtomicU64>) -> Tasks<Option<String>> {
    let mut watching = Tasks::default();
    for (id, api) in cluster.apis() {
        let listings = Arc::clone(listings);
        watching.start(|stop| async move {
            let mut found = None;
            while !stop.is_cancelled() {
                match orphan(&api).await {
                    Ok(None) => drop(listings.fetch_add(1, Ordering::SeqCst)),
                    Ok(Some(what)) => {
                        found.get_or_insert(format!("node {id} shows {what}"));
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
            found
        });
    }
    watching
}

/// No session is opened meanwhile, so an ephemeral listed after the sessions must have its owner among them.
async fn orphan(api: &Api) -> Result<Option<String>, Failure> {
    let (sessions, _) = api.all_sessions().await?;
    let open: BTreeSet<u64> = sessions.into_iter().map(|session| session.session_id).collect();
    let (children, zxid) = api.children_stale("/expiry").await?;
    let orphan = children.iter().find(|name| {
        let session = name.split('-').next().and_then(|id| id.parse().ok());
        session.is_none_or(|id| !open.contains(&id))
    });
    Ok(orphan.map(|name| format!("ephemeral {name} at zxid {zxid}, and its session was gone before")))
}

/// Each session is told that it is gone, and the node that says so no longer has its ephemerals.
async fn told_and_gone(cluster: &Cluster, lives: &[LiveSession]) -> Result<(), Failed> {
    let apis = cluster.apis();
    let checks = lives.iter().enumerate().map(|(number, life)| {
        let (id, api) = apis[number % apis.len()].clone();
        async move {
            match api.keepalive(&life.credential, Duration::from_secs(10)).await {
                Err(failure) if failure.code() == Some(Code::SessionExpired) => {}
                other => return broken(format!("node {id} about the ended session {}: {other:?}", life.id)),
            }
            match api.get_stale(&format!("/expiry/{}-{}", life.id, EPHEMERALS[0])).await {
                Err(failure) if failure.code() == Some(Code::NoNode) => Ok(()),
                other => broken(format!("node {id} said session expired and still has its ephemeral: {other:?}")),
            }
        }
    });
    let results: Vec<Result<(), Failed>> = futures::stream::iter(checks).buffer_unordered(32).collect().await;
    results.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Instant {
        static BASE: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *BASE.get_or_init(Instant::now)
    }

    fn at(ms: u64) -> Instant {
        base() + Duration::from_millis(ms)
    }

    fn life(told_gone: Option<u64>) -> LiveSession {
        LiveSession {
            id: 7,
            credential: String::new(),
            last_sent: at(1_000),
            stopped: Some(at(1_400)),
            longest_silence: Duration::ZERO,
            told_gone: told_gone.map(at),
        }
    }

    fn ended(node: u64, ends: [(u64, u64); 2]) -> (u64, SessionEnds) {
        (node, SessionEnds::from([(7, ends.map(|(ms, zxid)| (at(ms), zxid)).to_vec())]))
    }

    fn judged(all: &[(u64, SessionEnds)], elected: Option<u64>) -> String {
        check_ends(&[life(None)], all, elected.map(at), GRACE)
            .map_or_else(|failed| failed.to_string(), |_| String::new())
    }

    #[test]
    fn ends_in_time_and_whole_are_fine() {
        let good = ended(1, [(3_100, 50), (3_110, 50)]);
        assert_eq!(judged(&[good.clone(), ended(2, [(3_300, 50), (3_300, 50)])], None), "");
        assert!(none_gone_while_kept(&[life(None)]).is_ok());
    }

    #[test]
    fn early_late_and_piecemeal_ends_are_caught() {
        let good = ended(1, [(3_100, 50), (3_110, 50)]);
        assert!(judged(&[ended(1, [(2_990, 50), (3_100, 50)])], None).contains("early"));
        assert!(judged(&[ended(1, [(3_100, 50), (4_500, 50)])], None).contains("gone only"));
        assert_eq!(judged(&[ended(1, [(4_500, 50), (4_500, 50)])], Some(1_600)), "", "counted from the election");
        assert!(judged(&[ended(1, [(3_100, 50), (3_100, 51)])], None).contains("one by one"));
        assert!(judged(&[good, ended(2, [(3_100, 51), (3_100, 51)])], None).contains("different zxids"));
        assert!(judged(&[(1, SessionEnds::new())], None).contains("no end"));
        assert!(none_gone_while_kept(&[life(Some(2_900))]).unwrap_err().to_string().contains("expired less than"));
        assert!(none_gone_while_kept(&[life(Some(3_500))]).unwrap_err().to_string().contains("were lost"));
    }
}
