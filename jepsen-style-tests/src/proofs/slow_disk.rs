//! The disk of one node stalls under load, the leader's and then that of a follower, which syncs inline. A tracer that
//! is attached to the node holds up the next sync of each of its threads.
//!
//! - While the leader's disk stalls, clients of all nodes are answered, and it goes on leading.
//! - A follower stands still while its disk does. Clients of the other nodes are answered meanwhile, the leader leads,
//!   and the follower goes on when its disk does.
//! - No session ends, whichever node its client asks to keep it alive.
//!
//! The control: a leader that syncs inline as well loses the leadership, so a stall is one.

use super::writers::{Writers, Writing};
use crate::disk::{INLINE_SYNCS, tracer_works};
use crate::process::Process;
use crate::proofs::prelude::*;

/// Longer than an election takes.
const STALL: Duration = Duration::from_secs(3);
/// Clients are answered so long before the stall is over.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
const TRACER: [&str; 6] =
    ["strace", "-f", "-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=3000000:when=1"];
/// What the tracer says on its standard error when it is there, and in its output of a call that it held up.
const ATTACHED: &str = "attached";
const HELD_UP: &str = "(DELAYED)";
const SETTLED_WITHIN: Duration = Duration::from_secs(30);
const AGREE_WITHIN: Duration = Duration::from_secs(30);
const CALL: Duration = Duration::from_secs(10);
const WRITERS_AT_EACH: usize = 4;
/// Longer than two stalls, one after the other.
const SESSION_MS: u32 = 12_000;
const KEPT_ALIVE_EVERY: Duration = Duration::from_secs(1);
const PREFIX: &str = "/stalled/n-";
const INLINE_SYNC: &str = "LOCKKEEPER_STORAGE__INLINE_SYNC";

pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    tracer_works(&TRACER, &context.dir).await?;
    let mut cluster = started(context, "following").await?;
    let writers = Writers::start(&cluster.apis(), &writing());
    let sessions = Sessions::open(&cluster).await?;
    let leading = cluster.leader().await?;
    let followers = cluster.others(leading.0);
    let mut held = Vec::new();
    for round in 0..rounds {
        let follower = followers[round as usize % followers.len()];
        await_inline_syncs(&cluster, follower).await?;
        for stalled in [leading.0, follower] {
            held.push(one_stall(context, &mut cluster, stalled, leading).await?);
            goes_on(&writers, stalled).await?;
        }
    }
    let left = sessions.end(&cluster).await?;
    let (written, _) = writers.end().await?;
    cluster.agree(AGREE_WITHIN).await?;
    super::acknowledged::all_there(&cluster, written.iter().map(|write| write.path.as_str())).await?;
    drop(cluster);
    let seen = control(context).await?;
    Ok(format!(
        "{} stalls of {} s, leader and followers in turn: others were answered after at most {}, the leader stayed, \
         {left} sessions live, all {} acknowledged writes are there; {seen}",
        held.len(),
        STALL.as_secs(),
        millis(held.into_iter().max().unwrap_or_default()),
        written.len()
    ))
}

fn writing() -> Writing {
    Writing { within: CALL, ..Writing::of(PREFIX, WRITERS_AT_EACH) }
}

async fn started(context: &Context, inline_sync: &str) -> Result<Cluster, Failed> {
    let environment = vec![(INLINE_SYNCS.into(), "true".into()), (INLINE_SYNC.into(), inline_sync.into())];
    let options = Options { environment, ..Options::default() };
    let cluster = Cluster::start(&context.binary, &context.dir.join(inline_sync), options).await?;
    cluster.make_node("/stalled").await?;
    Ok(cluster)
}

/// Waits until a node syncs inline.
async fn await_inline_syncs(cluster: &Cluster, id: u64) -> Result<(), Failed> {
    let wait = Polling::within(SETTLED_WITHIN);
    let mut counts = BTreeSet::new();
    while counts.len() < 3 {
        let metrics = cluster.api(id).metrics().await.or_cannot_run("a node gives no metrics")?;
        let count = crate::http::metric_sum(&metrics, "lockkeeper_store_inline_syncs_total").unwrap_or(0.0);
        if count > 0.0 {
            counts.insert(count as u64);
        }
        wait.or_cannot_run(|| format!("node {id} syncs nothing inline")).await?;
    }
    Ok(())
}

/// Holds up the disk of a node. How soon after its beginning each of the nodes that must go on has acknowledged a write
/// that was sent since.
async fn one_stall(
    context: &Context,
    cluster: &mut Cluster,
    stalled: u64,
    leading: (u64, u64),
) -> Result<Duration, Failed> {
    let go_on: Vec<_> = cluster.apis().into_iter().filter(|(id, _)| *id != stalled || stalled == leading.0).collect();
    let tracer = Tracer::attach(cluster, stalled).await?;
    let begun = Instant::now();
    // Their own, so that none waits for a call from before.
    let writers = Writers::start(&go_on, &writing());
    let wait = Polling::within(ANSWERED_WITHIN);
    let answered = loop {
        if let Some(last) = writers.all_acknowledge(begun) {
            break last - begun;
        }
        wait.or_broken(|| format!("with the disk of node {stalled} held up, not every other node answers")).await?;
    };
    tokio::time::sleep(STALL.saturating_sub(begun.elapsed())).await;
    writers.end().await?;
    let held_up = tracer.end().await?;
    let pid = cluster.process(stalled).map(|process| process.pid().to_string()).unwrap_or_default();
    let is_inline = held_up.lines().any(|line| line.contains(HELD_UP) && line.starts_with(&pid));
    if stalled == leading.0 && is_inline {
        return broken("the leader synced inline");
    }
    if stalled != leading.0 && !is_inline {
        return cannot_run(format!("no inline sync of node {stalled} was held up"));
    }
    let now = cluster.leader().await?;
    if now != leading {
        return broken(format!("leader and term were {leading:?}, and are {now:?} after a stall at node {stalled}"));
    }
    context.log.say(format!("node {stalled} held up, others answered after {}", millis(answered)));
    Ok(answered)
}

/// Waits until all nodes acknowledge writes again.
async fn goes_on(writers: &Writers, stalled: u64) -> Result<(), Failed> {
    let (since, wait) = (Instant::now(), Polling::within(SETTLED_WITHIN));
    while writers.all_acknowledge(since).is_none() {
        wait.or_broken(|| format!("after the stall at node {stalled} not every node acknowledges writes")).await?;
    }
    Ok(())
}

async fn control(context: &Context) -> Result<String, Failed> {
    let mut cluster = started(context, "always").await?;
    let writers = Writers::start(&cluster.apis(), &writing());
    let leading = cluster.leader().await?;
    await_inline_syncs(&cluster, leading.0).await?;
    let tracer = Tracer::attach(&mut cluster, leading.0).await?;
    let (others, wait) = (cluster.others(leading.0), Polling::within(SETTLED_WITHIN));
    let next = loop {
        let next = cluster.leader_among(&others, SETTLED_WITHIN).await?;
        if next.1 > leading.1 {
            break next;
        }
        wait.or_cannot_run(|| "a leader that syncs inline keeps the leadership: the stalls show nothing").await?;
    };
    tracer.end().await?;
    writers.end().await?;
    if cluster.process(leading.0).and_then(Process::ended).is_some() {
        return broken("the leader that was held up has ended");
    }
    Ok(format!("one that syncs inline while it leads was followed by node {} in term {}", next.0, next.1))
}

/// The tracer of one node.
struct Tracer {
    process: Process,
    output: std::path::PathBuf,
}

impl Tracer {
    /// Returns when it is there: the next sync of each thread is held up.
    async fn attach(cluster: &mut Cluster, id: u64) -> Result<Self, Failed> {
        let directory = cluster.directory(id).to_path_buf();
        let Some(pid) = cluster.process(id).map(|process| process.pid()) else {
            return cannot_run(format!("node {id} does not run"));
        };
        let (output, log) = (directory.join("stalls"), directory.join("stalls.log"));
        for file in [&output, &log] {
            std::fs::write(file, "")?;
        }
        let mut argv: Vec<String> = TRACER.map(str::to_owned).into();
        argv.extend(["-o".into(), output.display().to_string(), "-p".into(), pid.to_string()]);
        let process = Process::start(&argv, &[], &log)?;
        let wait = Polling::within(SETTLED_WITHIN);
        while !std::fs::read_to_string(&log)?.contains(ATTACHED) {
            wait.or_cannot_run(|| format!("strace does not attach to node {id}; {} says why", log.display())).await?;
        }
        Ok(Self { process, output })
    }

    /// Lets the node go; gives the calls that were seen.
    async fn end(mut self) -> Result<String, Failed> {
        self.process.signal(Signal::SIGINT);
        if self.process.wait_end(SETTLED_WITHIN).await.is_none() {
            return cannot_run("strace does not let the node go");
        }
        Ok(std::fs::read_to_string(&self.output)?)
    }
}

/// One session at each node, whose client asks that node alone.
struct Sessions {
    ids: Vec<u64>,
    clients: Tasks<()>,
}

impl Sessions {
    async fn open(cluster: &Cluster) -> Result<Self, Failed> {
        let mut sessions = Self { ids: Vec::new(), clients: Tasks::default() };
        for (_, api) in cluster.apis() {
            let opened = api.open_session(SESSION_MS, "slow-disk").await.map_err(without_fault)?.value;
            sessions.ids.push(opened.session_id);
            sessions.clients.start(|stop| async move {
                while !stop.is_cancelled() {
                    // One that comes late, or not at all, is what the timeout is for.
                    let _ = api.keepalive(&opened.credential, CALL).await;
                    tokio::time::sleep(KEPT_ALIVE_EVERY).await;
                }
            });
        }
        Ok(sessions)
    }

    /// How many there are. All of them must be there.
    async fn end(self, cluster: &Cluster) -> Result<usize, Failed> {
        let (leader, _) = cluster.leader().await?;
        for id in &self.ids {
            cluster.api(leader).session(*id).await.or_broken(format!("session {id}, kept alive all the time"))?;
        }
        self.clients.end().await?;
        Ok(self.ids.len())
    }
}
