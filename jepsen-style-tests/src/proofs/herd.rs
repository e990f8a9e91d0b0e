//! P2 and P3: 1,000 waiters on one lock over three nodes. Each release wakes exactly one; grants follow the queue;
//! waiters that die in the middle wake at most their successor, and no grant is lost.
//!
//! The servers count what they wake (`lockkeeper_lock_notifications_total`). The order of grants, and that every waiter
//! gets one, is observed from outside. A waiter dies in two ways: its session is closed, or its connection breaks.

use futures::future::join_all;
use rand::seq::SliceRandom as _;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::queues_empty;
use crate::cluster::LOCK_NOTIFICATIONS;
use crate::http::session_id;
use crate::proofs::prelude::*;

const WAITERS: usize = 1_000;
const DYING: usize = 300;
const WAIT: Duration = Duration::from_secs(240);
const SESSION_MS: u32 = 120_000;
/// Until the queue is empty once the last waiter has released.
const EMPTY_WITHIN: Duration = Duration::from_secs(10);

struct Waiter {
    api: Api,
    credential: String,
}

#[derive(Debug)]
struct HerdGrant {
    waiter: usize,
    token: u64,
    sequence: u64,
    after_release: Option<Duration>,
}

enum WaiterReport {
    Granted(HerdGrant),
    Failed(usize, Failure),
}

pub(super) async fn run(context: &Context) -> ProofResult {
    let log = &context.log;
    let cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    let figures = all_released_in_turn(context, &cluster).await?;
    log.say(format!("in turn: {figures}"));
    let deaths = some_die(context, &cluster).await?;
    log.say(format!("with deaths: {deaths}"));
    cluster.agree(Duration::from_secs(20)).await?;
    Ok(format!("{figures}; {deaths}"))
}

async fn all_released_in_turn(context: &Context, cluster: &Cluster) -> ProofResult {
    let mut queue = Queue::fill(context, cluster, "herd").await?;
    let before = cluster.counter(LOCK_NOTIFICATIONS).await?;
    context.log.say("releasing one after the other");
    let begun = Instant::now();
    queue.release_holder().await?;
    let mut handoffs = Vec::new();
    for turn in 0..WAITERS {
        let granted = queue.next(turn, WAITERS).await?;
        handoffs.extend(granted.after_release);
    }
    let took = begun.elapsed();
    let woken = cluster.counter(LOCK_NOTIFICATIONS).await? - before;
    queues_empty(cluster, &[queue.lock], EMPTY_WITHIN).await?;
    // The holder before them and each of them but the last released to somebody.
    if woken != WAITERS as f64 {
        return broken(format!("{woken} notifications for {WAITERS} releases with a successor"));
    }
    let handoff = Summary::of(&handoffs).map_or_else(String::new, |summary| format!(", hand-off {summary}"));
    Ok(format!(
        "{WAITERS} releases, {woken} notifications, grants in queue order in {:.1} s{handoff}",
        took.as_secs_f64()
    ))
}

async fn some_die(context: &Context, cluster: &Cluster) -> ProofResult {
    let mut queue = Queue::fill(context, cluster, "herd-deaths").await?;
    let mut order: Vec<usize> = (0..WAITERS).collect();
    order.shuffle(&mut context.random(2));
    let (quiet, rest) = order.split_at(DYING / 2);
    let amid = DYING - quiet.len();
    let before = cluster.counter(LOCK_NOTIFICATIONS).await?;
    context.log.say(format!("{} waiters die while the holder holds", quiet.len()));
    for waiter in quiet {
        queue.die(*waiter).await?;
    }
    queue.wait_for_waiting(cluster, (WAITERS - quiet.len()) as u64).await?;
    let woken_quiet = cluster.counter(LOCK_NOTIFICATIONS).await? - before;
    if woken_quiet > quiet.len() as f64 {
        return broken(format!("{woken_quiet} notifications for {} deaths in the queue", quiet.len()));
    }
    context.log.say(format!("they woke {woken_quiet}; {amid} more die while the others are released in turn"));
    let mut dying = rest.iter().copied();
    queue.release_holder().await?;
    let mut granted = 0;
    // A waiter may get its grant just before it dies: it counts as granted then, and has released.
    while granted + queue.dead.len() < WAITERS {
        queue.next(granted, WAITERS).await?;
        granted += 1;
        if granted % 2 == 0
            && queue.dead.len() < DYING
            && let (holder, waiting) = queue.seen_now(cluster).await?
            && let Some(waiter) = dying.find(|waiter| !queue.had.contains(waiter) && queue.session(*waiter) != holder)
        {
            queue.die(waiter).await?;
            // A session is closed while the next releases happen. A connection breaks before them, or a grant could be
            // answered into it.
            if queue.dead.contains(&waiter) && !closes_its_session(waiter) {
                queue.wait_for_waiting(cluster, waiting.saturating_sub(1)).await?;
            }
        }
    }
    queue.closed().await?;
    queues_empty(cluster, &[queue.lock], EMPTY_WITHIN).await?;
    let woken = cluster.counter(LOCK_NOTIFICATIONS).await? - before;
    let (releases, deaths) = (granted + 1, queue.dead.len());
    if woken > (releases + deaths) as f64 {
        return broken(format!("{woken} notifications for {releases} releases and {deaths} deaths"));
    }
    Ok(format!(
        "{deaths} died in the queue: {woken} notifications for {releases} releases and {deaths} deaths, no grant lost"
    ))
}

/// The waiters of one lock, and what they reported.
struct Queue {
    lock: &'static str,
    holder: (Api, String, u64),
    waiters: Vec<Waiter>,
    tasks: Vec<JoinHandle<()>>,
    reports: mpsc::UnboundedReceiver<WaiterReport>,
    /// A report taken out of turn, by [`Self::look`].
    pending: Option<WaiterReport>,
    /// Sessions that the dying close.
    closing: JoinSet<Result<(), Failure>>,
    last_sequence: Option<u64>,
    last_token: u64,
    had: BTreeSet<usize>,
    dead: BTreeSet<usize>,
    released: Option<Instant>,
}

impl Queue {
    async fn fill(context: &Context, cluster: &Cluster, lock: &'static str) -> Result<Self, Failed> {
        let apis = cluster.apis();
        let (_, first) = apis.first().cloned().ok_or_else(|| Failed::Broken("no nodes".into()))?;
        let session = first.open_session(SESSION_MS, "holder").await.map_err(without_fault)?.value;
        let held = first
            .acquire(&session.credential, lock, &request(Duration::ZERO), Duration::from_secs(10))
            .await
            .map_err(without_fault)?
            .value;
        context.log.say(format!("opening {WAITERS} sessions over {} nodes", apis.len()));
        let opened = join_all((0..WAITERS).map(|number| {
            let (_, api) = apis[number % apis.len()].clone();
            async move {
                let session = api.open_session(SESSION_MS, &format!("waiter {number}")).await?;
                Ok::<_, Failure>(Waiter { api, credential: session.value.credential })
            }
        }))
        .await;
        let waiters = opened.into_iter().collect::<Result<Vec<_>, _>>().map_err(without_fault)?;
        let (sender, reports) = mpsc::unbounded_channel();
        let tasks = (0..).zip(&waiters).map(|(number, waiter)| wait_in_queue(number, lock, waiter, &sender)).collect();
        let mut queue = Self {
            lock,
            holder: (first, session.credential, held.token),
            waiters,
            tasks,
            reports,
            pending: None,
            closing: JoinSet::new(),
            last_sequence: None,
            last_token: held.token,
            had: Default::default(),
            dead: Default::default(),
            released: None,
        };
        queue.wait_for_waiting(cluster, WAITERS as u64).await?;
        context.log.say(format!("{WAITERS} wait for {lock}, one holds it"));
        Ok(queue)
    }

    async fn release_holder(&mut self) -> Result<(), Failed> {
        let (api, credential, token) = &self.holder;
        api.release(credential, self.lock, *token).await.map_err(without_fault)?;
        self.released = Some(Instant::now());
        Ok(())
    }

    /// Takes the next grant, checks that it is in order and alone, and releases it.
    async fn next(&mut self, turn: usize, of: usize) -> Result<HerdGrant, Failed> {
        let mut granted = match self.report().await {
            Some(WaiterReport::Granted(granted)) => granted,
            Some(WaiterReport::Failed(waiter, failure)) => return broken(format!("waiter {waiter}: {failure}")),
            None => return broken(format!("no grant within 30 s after {turn} of {of}: a grant was lost")),
        };
        if self.dead.contains(&granted.waiter) {
            return broken(format!("waiter {} got a grant after its death was acknowledged", granted.waiter));
        }
        if self.last_sequence.is_some_and(|last| granted.sequence <= last) || granted.token <= self.last_token {
            return broken(format!(
                "grant of sequence {} and token {} came after sequence {:?} and token {}",
                granted.sequence, granted.token, self.last_sequence, self.last_token
            ));
        }
        if let Ok(WaiterReport::Granted(other)) = self.reports.try_recv() {
            return broken(format!("waiters {} and {} were granted one release", granted.waiter, other.waiter));
        }
        granted.after_release = self.released.map(|released| released.elapsed());
        (self.last_sequence, self.last_token) = (Some(granted.sequence), granted.token);
        self.had.insert(granted.waiter);
        let waiter = &self.waiters[granted.waiter];
        let released = waiter.api.release(&waiter.credential, self.lock, granted.token).await;
        released.or_broken(format!("release by waiter {}", granted.waiter))?;
        self.released = Some(Instant::now());
        Ok(granted)
    }

    /// A waiter dies: every other one also closes its session, the others only drop their connection. One that turns
    /// out to have its grant already stays alive.
    async fn die(&mut self, waiter: usize) -> Result<(), Failed> {
        let task = std::mem::replace(&mut self.tasks[waiter], tokio::spawn(async {}));
        task.abort();
        let _ = task.await;
        self.look();
        if matches!(&self.pending, Some(WaiterReport::Granted(granted)) if granted.waiter == waiter) {
            return Ok(());
        }
        if closes_its_session(waiter) {
            let (api, credential) = (self.waiters[waiter].api.clone(), self.waiters[waiter].credential.clone());
            self.closing.spawn(async move { api.close_session(&credential).await.map(drop) });
        }
        self.dead.insert(waiter);
        Ok(())
    }

    /// The session that holds the lock and the number of waiters, once nobody is dying any more. The holder must not
    /// die, because its grant may be on its way. No other grant can be on its way before this one is released.
    ///
    /// Before holders were spared, one of three runs at seed 9419741452050784728 called a grant lost; not reproduced
    /// since. The likely cause, read from the code and not proven: a grant answered into a connection that goes at that
    /// moment is freed by nothing but the session's end.
    async fn seen_now(&mut self, cluster: &Cluster) -> Result<(Option<u64>, u64), Failed> {
        self.closed().await?;
        let view = cluster.api(1).lock(self.lock).await.map_err(without_fault)?.value;
        Ok((view.holders.first().and_then(|holder| holder.session_id), view.waiting))
    }

    /// Waits until the dying have closed their sessions.
    async fn closed(&mut self) -> Result<(), Failed> {
        while let Some(closed) = self.closing.join_next().await {
            closed.map_err(std::io::Error::other)?.map_err(without_fault)?;
        }
        Ok(())
    }

    fn session(&self, waiter: usize) -> Option<u64> {
        session_id(&self.waiters[waiter].credential).parse().ok()
    }

    /// Takes a report, if there is one, and leaves it for its turn.
    fn look(&mut self) {
        if self.pending.is_none() {
            self.pending = self.reports.try_recv().ok();
        }
    }

    async fn report(&mut self) -> Option<WaiterReport> {
        match self.pending.take() {
            Some(report) => Some(report),
            None => tokio::time::timeout(Duration::from_secs(30), self.reports.recv()).await.ok().flatten(),
        }
    }

    async fn wait_for_waiting(&mut self, cluster: &Cluster, expected: u64) -> Result<(), Failed> {
        let wait = Polling::within(Duration::from_secs(60)).every(Duration::from_millis(20));
        loop {
            let seen = cluster.api(1).lock(self.lock).await.map_err(without_fault)?.value.waiting;
            if seen == expected {
                return Ok(());
            }
            self.look();
            if let Some(WaiterReport::Failed(waiter, failure)) = &self.pending {
                return broken(format!("waiter {waiter}: {failure}"));
            }
            wait.or_broken(|| format!("{seen} waiters stand in the queue after 60 s, not {expected}")).await?;
        }
    }
}

fn wait_in_queue(
    number: usize,
    lock: &'static str,
    waiter: &Waiter,
    reports: &mpsc::UnboundedSender<WaiterReport>,
) -> JoinHandle<()> {
    let (api, credential, reports) = (waiter.api.clone(), waiter.credential.clone(), reports.clone());
    tokio::spawn(async move {
        let report = match api.acquire(&credential, lock, &request(WAIT), WAIT + Duration::from_secs(10)).await {
            Ok(answer) => {
                let sequence = sequence_of(&answer.value.path);
                WaiterReport::Granted(HerdGrant {
                    waiter: number,
                    token: answer.value.token,
                    sequence,
                    after_release: None,
                })
            }
            Err(failure) => WaiterReport::Failed(number, failure),
        };
        let _ = reports.send(report);
    })
}

fn request(wait: Duration) -> Acquire {
    Acquire {
        wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
        request_id: Some(Uuid::new_v4()),
        ..Acquire::default()
    }
}

/// The ten digits at the end of a request's path.
fn sequence_of(path: &str) -> u64 {
    path.rsplit('-').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// How a waiter dies.
fn closes_its_session(waiter: usize) -> bool {
    waiter.is_multiple_of(2)
}
