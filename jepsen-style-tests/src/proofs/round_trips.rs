//! How many round trips and syncs a lock waits for, counted in [`model`], against a cluster whose links are slow by a
//! known time, and another one whose disks are. A slower program changes the times without delays, which are compared
//! with; one that waits once more changes what the delays add.
//!
//! A release right behind another one must not wait out that one's round: the hand-over would take up to R + S more. At
//! a follower it may take R more: the leader holds back the answer to the second release's append until the notice of
//! the first one's commit is answered (`append_pipeline.rs` in `consensus`).

mod model;

use lockkeeper_client::locks::Lock;
use lockkeeper_client::{Client, Error, Guard, Options as ClientOptions, Session, SessionOptions};

use self::model::{COUNTED, CountedRow, CountedSystem, Delays};
use crate::disk::tracer_works;
use crate::http::new_client;
use crate::net::{Endpoint, LinkFault, Listener};
use crate::proofs::prelude::*;

/// Long beside the machine's own times, and so short that no commit notice becomes due on its own between two releases.
const ROUND_TRIPS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(10)];
/// By such a part of a round trip a release comes behind another one.
const BEHIND_PART: u32 = 6;
/// Each sync takes 10 ms more. The tracer is a grandchild (`-D`), as in `synced`.
const SLOW_DISK: [&str; 9] =
    ["strace", "-D", "-f", "--seccomp-bpf", "-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=10000", "-qq"];
const QUEUED_WITHIN: Duration = Duration::from_secs(10);

pub(super) async fn run(context: &Context, rounds: u32) -> ProofResult {
    tracer_works(&SLOW_DISK, &context.dir).await?;
    let mut cluster = TimedCluster::start(context, "slow-links", &[]).await?;
    let base = cluster.leg(rounds, Duration::ZERO).await?;
    let mut figures = Vec::new();
    for round_trip in ROUND_TRIPS {
        figures.push(judge(context, &base, &cluster.leg(rounds, round_trip).await?)?);
    }
    drop(cluster);
    let mut cluster =
        TimedCluster::start(context, "slow-disks", &[&SLOW_DISK[..], &["-o", "/dev/null"]].concat()).await?;
    figures.push(judge(context, &base, &cluster.leg(rounds, Duration::ZERO).await?)?);
    Ok(figures.join("; "))
}

/// Compares a leg with the one without delays; gives its figures.
fn judge(context: &Context, base: &Leg, leg: &Leg) -> ProofResult {
    let added = Delays {
        round_trip: leg.delays.round_trip.saturating_sub(base.delays.round_trip),
        sync: leg.delays.sync.saturating_sub(base.delays.sync),
    };
    let delays = format!("{} a round trip and {} a sync more", millis(added.round_trip), millis(added.sync));
    let mut figures = Vec::new();
    for (row, (without, with)) in over_stream().zip(base.medians.iter().zip(&leg.medians)) {
        // The disk may be busy with the sync of the release before. At a follower, see the module's text.
        let behind = leg.delays.sync + if row.at_leader { Duration::ZERO } else { leg.delays.round_trip };
        let compared = [
            ("acquire", row.acquire, without[0], with[0], Duration::ZERO),
            ("hand-over", row.hand_over, without[1], with[1], Duration::ZERO),
            ("hand-over right behind another", row.hand_over, without[1], with[2], behind),
        ];
        for (what, path, without, with, more) in compared {
            // None is right behind another one without delays.
            let (Some(without), Some(with)) = (without, with) else { continue };
            let line = format!("{what} of {row}: {} (without {}; {path})", millis(with), millis(without));
            context.log.say(format!("{delays}: {line}"));
            let wrong = |why| Failed::Broken(format!("{what} of {row}, {delays}: {why}"));
            path.check(without, with, added, more).map_err(wrong)?;
            figures.push(line);
        }
    }
    Ok(format!("{delays}: {}", figures.join(", ")))
}

fn over_stream() -> impl Iterator<Item = &'static CountedRow> {
    COUNTED.iter().filter(|row| row.system == CountedSystem::Stream)
}

/// What was measured under some delays.
struct Leg {
    /// What an answer that needs no other server takes, and a sync on average.
    delays: Delays,
    /// Of each of [`over_stream`].
    medians: Vec<Medians>,
}

/// Of acquires, hand-overs, and hand-overs right behind another one.
type Medians = [Option<Duration>; 3];

struct TimedCluster {
    cluster: Cluster,
    leader: (u64, u64),
    parties: Vec<Party>,
}

impl TimedCluster {
    async fn start(context: &Context, name: &str, wrap: &[&str]) -> Result<Self, Failed> {
        let wrap = wrap.iter().map(ToString::to_string).collect();
        let options = Options { wrap, ..Options::behind_proxies(3).await? };
        let cluster = Cluster::start(&context.binary, &context.dir.join(name), options).await?;
        let leader = cluster.leader().await?;
        let Some(follower) = cluster.others(leader.0).first().copied() else { return broken("there is one node") };
        let mut parties = Vec::new();
        for row in over_stream() {
            parties.push(Party::join(&cluster, if row.at_leader { leader.0 } else { follower }).await?);
        }
        Ok(Self { cluster, leader, parties })
    }

    async fn leg(&mut self, rounds: u32, round_trip: Duration) -> Result<Leg, Failed> {
        let (net, delay) = (self.cluster.net(), round_trip / 2);
        let slow = LinkFault::Slow { delay, jitter: Duration::ZERO, bytes_per_s: 0 };
        let fault = if delay.is_zero() { LinkFault::None } else { slow };
        for node in self.cluster.ids() {
            net.set(Endpoint::Clients, node, fault).await?;
            net.set_answers(node, fault).await?;
            for other in self.cluster.others(node) {
                net.set(Endpoint::Node(node), other, fault).await?;
            }
        }
        let (before, round_trip_seen) = (self.syncs().await?, self.round_trip(rounds).await?);
        let mut medians = Vec::new();
        for party in &mut self.parties {
            medians.push(party.measure(rounds, round_trip / BEHIND_PART).await?);
        }
        let (seconds, count) = self.syncs().await?;
        if self.cluster.leader().await? != self.leader {
            return cannot_run("the leader changed meanwhile");
        }
        let sync = Duration::from_secs_f64((seconds - before.0) / (count - before.1).max(1.0));
        Ok(Leg { delays: Delays { round_trip: round_trip_seen, sync }, medians })
    }

    /// How long all syncs took together, in seconds, and their count.
    async fn syncs(&self) -> Result<(f64, f64), Failed> {
        let seconds = self.cluster.counter("lockkeeper_store_sync_seconds_sum").await?;
        Ok((seconds, self.cluster.counter("lockkeeper_store_sync_seconds_count").await?))
    }

    /// A round trip as it is: a delay also takes the wake-up of two tasks of the proxy.
    async fn round_trip(&self, rounds: u32) -> Result<Duration, Failed> {
        let address = self.cluster.net().address(Endpoint::Clients, self.leader.0, Listener::Client);
        let (client, mut took) = (new_client()?, Vec::new());
        // The first one makes the connection. The node asks no other one for this answer.
        for _ in 0..rounds.max(5) {
            let sent = Instant::now();
            let answered = client.get(format!("http://{address}/healthz")).send().await.map_err(unanswered)?;
            // To its end, or the next one makes a connection too.
            answered.bytes().await.map_err(unanswered)?;
            took.push(sent.elapsed());
        }
        Ok(median(&took).unwrap_or_default())
    }
}

fn unanswered(error: reqwest::Error) -> Failed {
    Failed::Broken(format!("the leader does not answer /healthz: {error}"))
}

fn median(took: &[Duration]) -> Option<Duration> {
    Summary::of(took).map(|summary| summary.median)
}

/// The clients of one row, all at one node.
struct Party {
    api: Api,
    lone: Lock,
    pairs: [Pair; 2],
}

impl Party {
    async fn join(cluster: &Cluster, node: u64) -> Result<Self, Failed> {
        let endpoint = format!("http://{}", cluster.net().address(Endpoint::Clients, node, Listener::Client));
        // With one endpoint they stay there.
        let client = Client::new([endpoint], ClientOptions::default()).map_err(without_fault)?;
        let lone = lock(&client, format!("lone-{node}")).await?;
        let first = Pair::join(&client, format!("first-{node}")).await?;
        let behind = Pair::join(&client, format!("behind-{node}")).await?;
        Ok(Self { api: cluster.api(node), lone, pairs: [first, behind] })
    }

    /// `after`: how long after a release the next one follows.
    async fn measure(&mut self, rounds: u32, after: Duration) -> Result<Medians, Failed> {
        let mut took = [const { Vec::new() }; 3];
        let [first, second] = &mut self.pairs;
        for _ in 0..rounds {
            let sent = Instant::now();
            let guard = self.lone.lock().await.map_err(without_fault)?;
            took[0].push(sent.elapsed());
            guard.release().await.map_err(without_fault)?;
            let waits = first.queue(&self.api).await?;
            if after.is_zero() {
                took[1].push(first.hand_over(waits, after).await?);
                continue;
            }
            let second_waits = second.queue(&self.api).await?;
            let both = tokio::try_join!(first.hand_over(waits, Duration::ZERO), second.hand_over(second_waits, after))?;
            took[1].push(both.0);
            took[2].push(both.1);
        }
        Ok(took.map(|took| median(&took)))
    }
}

/// A lock in a session of its own, over the session's stream.
async fn lock(client: &Client, name: String) -> Result<Lock, Failed> {
    let session = Session::open(client, &SessionOptions::default()).await.map_err(without_fault)?;
    Ok(session.lock(name))
}

/// The next holder, and since when.
type NextHolder = JoinHandle<Result<(Guard, Instant), Error>>;

/// Two clients that hand a lock to each other.
struct Pair {
    name: String,
    clients: [Lock; 2],
    holder: usize,
    held: Option<Guard>,
}

impl Pair {
    async fn join(client: &Client, name: String) -> Result<Self, Failed> {
        let clients = [lock(client, name.clone()).await?, lock(client, name.clone()).await?];
        let held = clients[0].lock().await.map_err(without_fault)?;
        Ok(Self { name, clients, holder: 0, held: Some(held) })
    }

    /// The other one asks for the lock, and comes to wait for it.
    async fn queue(&self, api: &Api) -> Result<NextHolder, Failed> {
        let next = self.clients[1 - self.holder].clone();
        let waits = tokio::spawn(async move { next.lock().await.map(|held| (held, Instant::now())) });
        let polling = Polling::within(QUEUED_WITHIN);
        // The node that is asked is that of the client: once it shows the request, it would notice a release.
        while api.lock(&self.name).await.map_err(without_fault)?.value.waiting == 0 {
            polling.or_broken(|| format!("nobody comes to wait for {}", self.name)).await?;
        }
        Ok(waits)
    }

    /// From the release until the next one holds.
    async fn hand_over(&mut self, waits: NextHolder, after: Duration) -> Result<Duration, Failed> {
        let Some(held) = self.held.take() else { return broken(format!("nobody holds {}", self.name)) };
        tokio::time::sleep(after).await;
        let sent = Instant::now();
        let (released, granted) = tokio::join!(held.release(), waits);
        released.map_err(without_fault)?;
        let (held, since) = granted.map_err(std::io::Error::other)?.map_err(without_fault)?;
        (self.held, self.holder) = (Some(held), 1 - self.holder);
        Ok(since - sent)
    }
}
