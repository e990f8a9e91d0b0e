//! The proofs: one module each, and the table of them, or a row of `scenario`. Each runs real processes, is bounded
//! in time, and ends in a [`ProofResult`]. [`command`] is the program.

mod access;
mod acknowledged;
mod catch_up;
pub mod command;
mod cron;
mod engines;
mod expiry;
mod failover;
mod footprint;
mod frozen;
mod gate;
mod greedy;
mod group_commit;
mod herd;
mod idle_restart;
mod intruder;
mod kill_all;
mod late_answers;
mod lock_cycles;
mod lock_delay;
mod lost_writes;
mod members;
mod minority;
mod one_queue;
mod paused_holder;
mod prelude;
mod recovery;
mod restore;
mod revoke;
mod rollback;
mod rolling_upgrade;
mod rotate;
mod round_trips;
mod scenario;
mod sharing;
mod soak;
mod socket;
mod stop_under_waiters;
mod stream_client;
mod switch_engine;
mod synced;
mod tasks;
mod tenants;
mod tls_cluster;
mod two_clusters;
mod writers;
mod zookeeper_client;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::StdRng;

use self::InGate::{Alone, Beside, Never, Released};
use self::command::ProofOptions;
use self::scenario::rows::{self, LockProof};
use crate::cluster::Cluster;
use crate::log::RunLog;
use crate::polling::Polling;
use crate::verdict::{Failed, ProofResult};

/// What a proof is given.
pub struct Context {
    /// The `lockkeeper` binary.
    pub binary: PathBuf,
    /// That of the release before, if there is one.
    pub previous: Option<PathBuf>,
    /// Where evidence, data and logs go.
    pub dir: PathBuf,
    /// Says what happens.
    pub log: RunLog,
    /// Where all chance comes from.
    pub seed: u64,
    /// What somebody chose of it.
    pub options: ProofOptions,
}

impl Context {
    /// Random numbers of this run; `part` separates independent streams.
    pub fn random(&self, part: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn rounds_or(&self, usual: u32) -> u32 {
        self.options.rounds.unwrap_or(usual)
    }

    fn seconds_or(&self, usual: u64) -> u64 {
        self.options.length_s().unwrap_or(usual)
    }
}

type Running<'a> = Pin<Box<dyn Future<Output = ProofResult> + 'a>>;

/// The build of the server that a proof needs beside that of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerBuild {
    /// None.
    Tests,
    /// A release, instead of it: the proof judges what it measures.
    Release,
    /// The release before.
    Previous,
}

/// How the gate (`scripts/check`) runs a proof, and with which arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InGate {
    /// Beside others, because it mostly waits.
    Beside(&'static str),
    /// The same with a release of the server.
    Released(&'static str),
    /// Alone, because it measures time.
    Alone(&'static str),
    /// Not at all.
    Never,
}

/// A proof.
#[derive(Clone, Copy)]
pub struct Proof {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it would falsify, in a line.
    pub about: &'static str,
    /// What it needs.
    pub build: ServerBuild,
    /// How the gate runs it.
    pub in_gate: InGate,
    trial: ProofTrial,
}

/// What tries it.
#[derive(Clone, Copy)]
enum ProofTrial {
    /// A module.
    Module { limit: fn(&Context) -> Duration, run: for<'a> fn(&'a Context) -> Running<'a> },
    /// The engine of [`scenario`].
    Row(&'static LockProof),
}

impl Proof {
    fn of_row(row: &'static LockProof) -> Self {
        let (name, build) = (row.scenario.name, ServerBuild::Tests);
        Self { name, about: row.about, build, in_gate: row.in_gate, trial: ProofTrial::Row(row) }
    }

    /// No run with these options takes longer.
    pub fn limit(&self, context: &Context) -> Duration {
        match self.trial {
            ProofTrial::Module { limit, .. } => limit(context),
            ProofTrial::Row(row) => (row.limit)(row.scenario.length(context)),
        }
    }

    /// Tries it.
    pub async fn run(&self, context: &Context) -> ProofResult {
        match self.trial {
            ProofTrial::Module { run, .. } => run(context).await,
            ProofTrial::Row(row) => scenario::run(context, &row.scenario).await,
        }
    }

    /// What `scripts/check` reads: how the gate runs it, its name and its arguments.
    pub fn line_for_gate(&self) -> Option<String> {
        let (how, arguments) = match self.in_gate {
            Beside(arguments) => ("beside", arguments),
            Released(arguments) => ("released", arguments),
            Alone(arguments) => ("alone", arguments),
            Never => return None,
        };
        Some(format!("{how} {} {arguments}", self.name).trim_end().to_owned())
    }
}

/// All proofs: the modules in the table below, then the rows of `scenario`.
pub fn all() -> impl Iterator<Item = Proof> {
    MODULES.iter().copied().chain(rows::LOCK_PROOFS.iter().map(Proof::of_row))
}

/// The timeout of the sessions of holders that are killed.
const TTL_MS: u64 = 2_000;

fn minutes(count: u32) -> Duration {
    60 * count * seconds(1)
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Waits until nobody holds these locks or waits for them, for as long as the sessions of killed clients may take to
/// end. A request that is still there then was left behind. Returns how long it took.
async fn queues_empty<S: AsRef<str>>(cluster: &Cluster, locks: &[S], within: Duration) -> Result<Duration, Failed> {
    let wait = Polling::within(within);
    for lock in locks {
        loop {
            match cluster.api(1).lock(lock.as_ref()).await {
                Ok(view) if view.value.holders.is_empty() && view.value.waiting == 0 => break,
                // The directory of a lock that nobody wants is reaped.
                Err(failure) if failure.code().is_some() => break,
                other => {
                    let lock = lock.as_ref();
                    let left = || {
                        format!("orphans stand in the queue of {lock} {within:?} after the last wait ended: {other:?}")
                    };
                    wait.or_broken(left).await?;
                }
            }
        }
    }
    Ok(wait.elapsed())
}

/// Builds the table of proofs that are modules.
macro_rules! proofs {
    ($context:ident => $($name:literal $(needs $build:ident)?, $in_gate:expr,
        $about:literal $(; $n:ident = $count:expr)?, $limit:expr, $run:expr;)*) => {
        const MODULES: &[Proof] = &[$(Proof {
            name: $name,
            about: $about,
            build: build!($($build)?),
            in_gate: $in_gate,
            trial: ProofTrial::Module {
                limit: |$context| {
                    let _ = $context;
                    $(let $n = $count; let _ = $n;)?
                    $limit
                },
                run: |$context| {
                    $(let $n = $count;)?
                    Box::pin($run)
                },
            },
        }),*];
    };
}

macro_rules! build {
    () => {
        ServerBuild::Tests
    };
    ($build:ident) => {
        ServerBuild::$build
    };
}

// The name of each, how the gate runs it, what it would falsify in a line, how long no run takes, and what tries it.
proofs! { context =>
    "kill-all", Released("--rounds 3"),
    "kill -9 of all three nodes under load: nothing acknowledged is lost, tokens rise, replicas agree (P1, P4)";
    n = context.rounds_or(20), minutes(2 + n), kill_all::run(context, n);

    "paused-holder", Released("--rounds 2"),
    "holders paused past their session: the guard says so first, the store refuses the rest; unchecked, it corrupts \
        (P1, P11)";
    n = context.rounds_or(4), minutes(2 + n), paused_holder::run(context, n);

    "intruder", Beside(""),
    "thousands of wrong attempts at every listener, with TLS and access control: none is carried out, no secret shows \
        (P14)",
    minutes(5), intruder::run(context);

    "one-queue", Beside(""),
    "kazoo, Curator and our own clients in one queue, the leader killed midway: no lost update, first come, first \
        served (P1, P2)",
    minutes(15), one_queue::run(context);

    "herd", Beside(""),
    "1,000 waiters on one lock: one notification per release, grants in queue order, also when 300 die (P2, P3)",
    minutes(6), herd::run(context);

    "synced", Beside(""),
    "system-call trace: every acknowledged append and vote was synced first; a missing sync is caught (P4, power loss)";
    n = context.seconds_or(10), minutes(6) + seconds(4 * n), synced::run(context, n);

    "rollback", Beside(""),
    "directories put back from older copies, cloned, wiped: turned away, never ready beside another content (P12)";
    n = context.rounds_or(1), minutes(2 + 4 * n), rollback::run(context, n);

    "minority", Beside("--rounds 2"),
    "the leader cut off: it acknowledges nothing, the others go on, its holder is told first, all agree after (P10, \
        P11)";
    n = context.rounds_or(4), minutes(2 + n), minority::run(context, n);

    "late-answers", Beside("--rounds 2"),
    "answers take a while, then nothing the holder sends arrives: it knows its lock is lost before the next holds \
        (P11)";
    n = context.rounds_or(4), minutes(2 + n), late_answers::run(context, n);

    "members", Alone(""),
    "1 to 3 to 5 to 3 nodes and a lost voter replaced, by the commands of docs/operate.md, under load: no failed \
        request, tokens rise (P1, P10)",
    minutes(6), members::run(context);

    "expiry", Alone(""),
    "1,000 sessions through leader kills and a pause: none expires early, each is gone in time, with its ephemerals \
        (P5, P6)";
    n = context.seconds_or(60), minutes(6) + seconds(n), expiry::run(context, n);

    "failover" needs Release, Alone("--rounds 3 --calm-seconds 20"),
    "leader kill -9, SIGTERM, SIGSTOP: how long until the next grant; no error at survivors; no election in calm";
    n = (context.rounds_or(20), seconds(context.options.calm_seconds.unwrap_or(300))), minutes(3 + n.0 * 2) + 2 * n.1,
    failover::run(context, n.0, n.1);

    "idle-restart" needs Release, Alone("--rounds 1"),
    "nodes of an idle cluster restarted one by one: the first change, the first lease and every call of one client \
        within 100 ms of calm (P10)";
    n = context.rounds_or(5), minutes(3 + n), idle_restart::run(context, n);

    "group-commit" needs Release, Alone(""),
    "64 clients do at least four times the work of one, a lone request waits on no timer, every cycle succeeds";
    n = context.seconds_or(8), minutes(2) + seconds(2 * n), group_commit::run(context, n);

    "round-trips" needs Release, Never,
    "slow links and slow disks: a lone acquire and a hand-over, one right behind another too, wait for as many round \
        trips and syncs as docs/performance.md counts";
    n = context.rounds_or(15), minutes(4) + seconds(3 * u64::from(n)), round_trips::run(context, n);

    "rotate", Beside(""),
    "all certificates and their authority are replaced under load: no failed request, election or lost session; old \
        ones are worthless",
    minutes(3), rotate::run(context);

    "gate", Beside("--rounds 1"),
    "100 concurrent duplicates run an operation once, also as the leader dies; a killed worker frees it in time, not \
        before";
    n = context.rounds_or(3), minutes(4 + n), gate::run(context, n);

    "cron", Beside("--seconds 16"),
    "10 workers with clocks from -10 to +10 minutes, a tick every 2 s, workers killed and stopped, nodes killed: each \
        tick ends once, none is early, no command outlives its session, policies are kept";
    n = context.seconds_or(120), minutes(4) + seconds(n), cron::run(context, seconds(n));

    "revoke", Beside("--rounds 2"),
    "a token is revoked under load: nothing more succeeds by any way, sessions end, locks are free, others go on (P14)";
    n = context.rounds_or(3), minutes(2 + n), revoke::run(context, n);

    "lock-delay", Beside("--rounds 2"),
    "a killed holder's delay is kept, also as the leader dies; release, drop and close have none";
    n = context.rounds_or(4), minutes(3 + n), lock_delay::run(context, n);

    "sharing", Beside("--seconds 1"),
    "64 tasks of a process share a lock: five times the hand-offs at least, and an outsider is served within the cap";
    n = context.seconds_or(3), minutes(3) + seconds(12 * n), sharing::run(context, seconds(n));

    "restore", Beside(""),
    "a backup under load restored to new nodes, and one of three made a cluster: nothing acknowledged is lost, nothing \
        is issued twice (P1)";
    n = context.rounds_or(1), minutes(1 + n), restore::run(context, n);

    "frozen", Beside("--rounds 2"),
    "all nodes frozen for 12 s under load: none takes its own pause for a stuck disk, writes go on, nothing \
        acknowledged is lost (P4, P10)";
    n = context.rounds_or(20), minutes(3) + 3 * n * frozen::FROZEN_FOR, frozen::run(context, n);

    "two-clusters", Beside(""),
    "two clusters of one name behind one list of endpoints, restored and recovered ones among them: no lock that one \
        has granted is granted by the other, and every client says why (P1)",
    minutes(4), two_clusters::run(context);

    "stop-under-waiters", Beside(""),
    "SIGTERM to a node at which lock requests wait: those that nobody can ask for again leave the queue, the others \
        keep their places, the next client has the lock at once (P2)";
    n = context.rounds_or(2), minutes(2 + n), stop_under_waiters::run(context, n);

    "lost-writes", Never,
    "kill -9 of all nodes, and each disk keeps what was synced: nothing acknowledged is lost; without syncs some \
        is (P4)";
    n = context.rounds_or(50), minutes(6 + 2 * n), lost_writes::run(context, n);

    "recovery" needs Release, Never,
    "100 leaders killed, 100 stopped, 100 cut off, 200 holders killed: p50, p99 and max of the time to the next grant";
    n = context.rounds_or(100), minutes(5 + n), recovery::run(context, n);

    "greedy" needs Release, Never,
    "one greedy address takes all of each thing in turn: an honest holder keeps its lock and its pace, memory stays as \
        stated (P13)";
    n = seconds(context.seconds_or(60)), minutes(3) + greedy::classes() * (n + greedy::BESIDES),
    greedy::run(context, n);

    "tenants" needs Release, Never,
    "one namespace floods each of its limits: another's acquires stay within 1.5 times their calm p99, and giving back \
        goes on (P13)";
    n = seconds(context.seconds_or(8)), minutes(3) + 2 * (tenants::classes() + 1) * (n + seconds(10)),
    tenants::run(context, n);

    "catch-up" needs Release, Never,
    "100,000 nodes: a backup is taken and a learner gets the snapshot: p99 of acquires stays within 1.5 times, none \
        fails";
    n = context.rounds_or(8), minutes(4 + n), catch_up::run(context, n);

    "rolling-upgrade" needs Previous, Never,
    "the release before is replaced node by node under load: no failed request; where the feature level rises then, \
        the old program refuses, and where not, it serves again",
    minutes(4), rolling_upgrade::run(context);

    "footprint" needs Release, Never,
    "memory and disk of a node, idle and after lock cycles, a million watches, half a million ephemerals: small, and \
        back";
    n = context.seconds_or(20), minutes(10) + seconds(n), footprint::run(context, n);

    "soak" needs Release, Never,
    "a steady load, a node killed every few minutes: disk, memory, open files and threads stay flat, nothing is lost, \
        no call fails",
    minutes(10) + soak::length(context), soak::run(context);

    "engines" needs Release, Never,
    "Lockkeeper, ZooKeeper, Redis, Redlock, MySQL and PostgreSQL keep one contract and do one work under the same \
        faults: who has two holders, and what it costs";
    n = context.seconds_or(3), minutes(25) + seconds(42 * n), engines::run(context, seconds(n));

    "switch-engine", Never,
    "100 clients in three processes while their lock moves from one engine to another, by call and by rule, the old \
        one alive and killed: no lost update, in drain and both no two holders, no refused holder";
    n = context.rounds_or(1), minutes(15), switch_engine::run(context, n);
}
