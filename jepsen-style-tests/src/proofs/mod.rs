//! The proofs: one module each, and the table of them. Each runs real processes, is bounded in time, and ends in an
//! [`ProofResult`].

mod access;
mod acknowledged;
mod catch_up;
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
mod lock_load;
mod lost_writes;
mod members;
mod minority;
mod one_queue;
mod paused_holder;
mod recovery;
mod restore;
mod revoke;
mod rollback;
mod rolling_upgrade;
mod rotate;
mod scenario;
mod sharing;
mod soak;
mod socket;
mod steady_clients;
mod stop_under_waiters;
mod stream_client;
mod switch_engine;
mod synced;
mod tenants;
mod tls_cluster;
mod two_clusters;
mod zookeeper_client;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::rngs::StdRng;

use self::scenario::rows;
use crate::cluster::Cluster;
use crate::log::RunLog;
use crate::verdict::{Failed, ProofResult, broken};

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
    /// Rounds, where the proof has them and somebody chose.
    pub rounds: Option<u32>,
    /// Seconds of the main phase, where the proof has one and somebody chose.
    pub seconds: Option<u64>,
    /// Seconds of each calm phase of `failover`, where somebody chose.
    pub calm_seconds: Option<u64>,
    /// Classes of `greedy`, or engines of `engines`; all where it is empty.
    pub only: Vec<String>,
    /// Where the report goes, of a proof that writes one.
    pub report: PathBuf,
}

impl Context {
    /// Random numbers of this run; `part` separates independent streams.
    pub fn random(&self, part: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

type Running<'a> = Pin<Box<dyn Future<Output = ProofResult> + 'a>>;

/// The process of `greedy`'s greedy clients: does as told until its standard input is closed.
pub fn be_greedy(task: &str) -> std::process::ExitCode {
    greedy::be_greedy(task)
}

/// A proof.
pub struct Proof {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it would falsify, in a line.
    pub about: &'static str,
    /// No run with these options takes longer.
    pub limit: fn(&Context) -> Duration,
    /// Tries it.
    pub run: for<'a> fn(&'a Context) -> Running<'a>,
}

/// The timeout of the sessions of holders that are killed.
const TTL_MS: u64 = 2_000;

fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

/// Waits until nobody holds these locks or waits for them, for as long as the sessions of killed clients may take to
/// end. A request that is still there then was left behind. Returns how long it took.
async fn queues_empty<S: AsRef<str>>(cluster: &Cluster, locks: &[S], within: Duration) -> Result<Duration, Failed> {
    let begun = Instant::now();
    for lock in locks {
        loop {
            match cluster.api(1).lock(lock.as_ref()).await {
                Ok(view) if view.value.holders.is_empty() && view.value.waiting == 0 => break,
                // The directory of a lock that nobody wants is reaped.
                Err(failure) if failure.code().is_some() => break,
                other if begun.elapsed() > within => {
                    return broken(format!(
                        "orphans stand in the queue of {} {within:?} after the last wait ended: {other:?}",
                        lock.as_ref()
                    ));
                }
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
    Ok(begun.elapsed())
}

/// All of them.
pub const PROOFS: &[Proof] = &[
    Proof {
        name: "kill-all",
        about: "kill -9 of all three nodes under load: nothing acknowledged is lost, tokens rise, replicas agree (P1, \
            P4)",
        limit: |context| minutes(2 + u64::from(context.rounds.unwrap_or(kill_all::ROUNDS))),
        run: |context| Box::pin(kill_all::run(context)),
    },
    Proof {
        name: "lost-writes",
        about: "kill -9 of all nodes, and each disk keeps what was synced: nothing acknowledged is lost; with flush() \
            alone some is (P4)",
        limit: |context| minutes(6 + 2 * u64::from(context.rounds.unwrap_or(lost_writes::ROUNDS))),
        run: |context| Box::pin(lost_writes::run(context)),
    },
    Proof {
        name: "synced",
        about: "system-call trace: every acknowledged append and vote was synced first; flush() alone is caught (P4, \
            power loss)",
        limit: |context| minutes(6) + Duration::from_secs(4 * context.seconds.unwrap_or(synced::SECONDS)),
        run: |context| Box::pin(synced::run(context)),
    },
    Proof {
        name: "herd",
        about: "1,000 waiters on one lock: one notification per release, grants in queue order, also when 300 die \
            (P2, P3)",
        limit: |_| minutes(6),
        run: |context| Box::pin(herd::run(context)),
    },
    Proof {
        name: "minority",
        about: "the leader cut off: it acknowledges nothing, the others go on, its holder is told first, all agree \
            after (P10, P11)",
        limit: |context| minutes(2 + u64::from(context.rounds.unwrap_or(minority::ROUNDS))),
        run: |context| Box::pin(minority::run(context)),
    },
    Proof {
        name: "frozen",
        about: "all nodes frozen for 12 s under load: none takes its own pause for a stuck disk, writes go on, nothing \
            acknowledged is lost (P4, P10)",
        limit: |context| minutes(3) + 3 * context.rounds.unwrap_or(frozen::ROUNDS) * frozen::FROZEN_FOR,
        run: |context| Box::pin(frozen::run(context)),
    },
    Proof {
        name: "idle-restart",
        about: "nodes of an idle cluster restarted one by one: the first change, the first lease and every call of one \
            client within 100 ms of calm (P10)",
        limit: |context| minutes(3 + u64::from(context.rounds.unwrap_or(idle_restart::ROUNDS))),
        run: |context| Box::pin(idle_restart::run(context)),
    },
    Proof {
        name: "late-answers",
        about: "answers take a while, then nothing the holder sends arrives: it knows its lock is lost before the \
            next holds (P11)",
        limit: |context| minutes(2 + u64::from(context.rounds.unwrap_or(late_answers::ROUNDS))),
        run: |context| Box::pin(late_answers::run(context)),
    },
    Proof {
        name: "restore",
        about: "a backup under load restored to new nodes, and one of three made a cluster: nothing acknowledged is \
            lost, nothing is issued twice (P1)",
        limit: |context| minutes(1 + u64::from(context.rounds.unwrap_or(restore::ROUNDS))),
        run: |context| Box::pin(restore::run(context)),
    },
    Proof {
        name: "two-clusters",
        about: "two clusters of one name behind one list of endpoints, restored and recovered ones among them: no \
            lock that one has granted is granted by the other, and every client says why (P1)",
        limit: |_| minutes(4),
        run: |context| Box::pin(two_clusters::run(context)),
    },
    Proof {
        name: "expiry",
        about: "1,000 sessions through leader kills and a pause: none expires early, each is gone in time, with its \
            ephemerals (P5, P6)",
        limit: |context| minutes(6) + Duration::from_secs(context.seconds.unwrap_or(expiry::SECONDS)),
        run: |context| Box::pin(expiry::run(context)),
    },
    Proof {
        name: "failover",
        about: "leader kill -9, SIGTERM, SIGSTOP: how long until the next grant; no error at survivors; no election \
            in calm",
        limit: |context| {
            let rounds = u64::from(context.rounds.unwrap_or(failover::ROUNDS));
            let calm = context.calm_seconds.unwrap_or(failover::CALM_SECONDS);
            minutes(3 + rounds * 2) + Duration::from_secs(2 * calm)
        },
        run: |context| Box::pin(failover::run(context)),
    },
    Proof {
        name: "recovery",
        about: "100 leaders killed, 100 stopped, 100 cut off, 200 holders killed: p50, p99 and max of the time to the \
            next grant",
        limit: |context| minutes(5 + u64::from(context.rounds.unwrap_or(recovery::ROUNDS))),
        run: |context| Box::pin(recovery::run(context)),
    },
    Proof {
        name: "rollback",
        about: "directories put back from older copies, cloned, wiped: turned away, never ready beside another \
            content (P12)",
        limit: |context| minutes(2 + 4 * u64::from(context.rounds.unwrap_or(rollback::ROUNDS))),
        run: |context| Box::pin(rollback::run(context)),
    },
    Proof {
        name: "group-commit",
        about: "64 clients do at least four times the work of one, a lone request waits on no timer, every cycle \
            succeeds",
        limit: |context| minutes(2) + Duration::from_secs(2 * context.seconds.unwrap_or(group_commit::SECONDS)),
        run: |context| Box::pin(group_commit::run(context)),
    },
    Proof {
        name: "paused-holder",
        about: "holders paused past their session: the guard says so first, the store refuses the rest; unchecked, it \
            corrupts (P1, P11)",
        limit: |context| minutes(2 + u64::from(context.rounds.unwrap_or(paused_holder::ROUNDS))),
        run: |context| Box::pin(paused_holder::run(context)),
    },
    Proof {
        name: "crowd",
        about: "200 clients in 4 processes on one lock, a node killed every 5 s: nothing lost, in order, no orphan, \
            one wake each (P1-P3)",
        limit: |context| minutes(4) + Duration::from_secs(context.seconds.unwrap_or(rows::CROWD.seconds)),
        run: |context| Box::pin(scenario::run(context, &rows::CROWD)),
    },
    Proof {
        name: "semaphore",
        about: "5 permits, 50 contenders, processes and nodes killed: never more than 5 inside by zxid, one wake per \
            freed permit",
        limit: |context| minutes(4) + Duration::from_secs(context.seconds.unwrap_or(rows::SEMAPHORE.seconds)),
        run: |context| Box::pin(scenario::run(context, &rows::SEMAPHORE)),
    },
    Proof {
        name: "multi-lock",
        about: "50 clients on random triples of 10 locks, a process killed: no deadlock, all or nothing under one zxid",
        limit: |context| minutes(3) + Duration::from_secs(2 * context.seconds.unwrap_or(rows::MULTI_LOCK.seconds)),
        run: |context| Box::pin(scenario::run(context, &rows::MULTI_LOCK)),
    },
    Proof {
        name: "sharing",
        about: "64 tasks of a process share a lock: five times the hand-offs at least, and an outsider is served \
            within the cap",
        limit: |context| minutes(3) + Duration::from_secs(12 * context.seconds.unwrap_or(sharing::SECONDS)),
        run: |context| Box::pin(sharing::run(context)),
    },
    Proof {
        name: "gate",
        about: "100 concurrent duplicates run an operation once, also as the leader dies; a killed worker frees it in \
            time, not before",
        limit: |context| minutes(4 + u64::from(context.rounds.unwrap_or(gate::ROUNDS))),
        run: |context| Box::pin(gate::run(context)),
    },
    Proof {
        name: "cron",
        about: "10 workers with clocks from -10 to +10 minutes, a tick every 2 s, workers killed and stopped, nodes \
            killed: each tick ends once, none is early, no command outlives its session, policies are kept",
        limit: |context| minutes(4) + Duration::from_secs(context.seconds.unwrap_or(cron::SECONDS)),
        run: |context| Box::pin(cron::run(context)),
    },
    Proof {
        name: "lock-delay",
        about: "a killed holder's delay is kept, also as the leader dies; release, drop and close have none",
        limit: |context| minutes(3 + u64::from(context.rounds.unwrap_or(lock_delay::ROUNDS))),
        run: |context| Box::pin(lock_delay::run(context)),
    },
    Proof {
        name: "stop-under-waiters",
        about: "SIGTERM to a node at which lock requests wait: those that nobody can ask for again leave the queue, \
            the others keep their places, the next client has the lock at once (P2)",
        limit: |context| minutes(2 + u64::from(context.rounds.unwrap_or(stop_under_waiters::ROUNDS))),
        run: |context| Box::pin(stop_under_waiters::run(context)),
    },
    Proof {
        name: "greedy",
        about: "one greedy address takes all of each thing in turn: an honest holder keeps its lock and its pace, \
            memory stays as stated (P13)",
        limit: |context| {
            let class = context.seconds.unwrap_or(greedy::SECONDS) + greedy::BESIDES.as_secs();
            minutes(3) + Duration::from_secs(greedy::classes() * class)
        },
        run: |context| Box::pin(greedy::run(context)),
    },
    Proof {
        name: "tenants",
        about: "one namespace floods each of its limits: another's acquires stay within 1.5 times their calm p99, and \
            giving back goes on (P13)",
        limit: |context| {
            let window = context.seconds.unwrap_or(tenants::SECONDS);
            minutes(3) + Duration::from_secs(2 * (tenants::classes() + 1) * (window + 10))
        },
        run: |context| Box::pin(tenants::run(context)),
    },
    Proof {
        name: "intruder",
        about: "thousands of wrong attempts at every listener, with TLS and access control: none is carried out, no \
            secret shows (P14)",
        limit: |_| minutes(5),
        run: |context| Box::pin(intruder::run(context)),
    },
    Proof {
        name: "revoke",
        about: "a token is revoked under load: nothing more succeeds by any way, sessions end, locks are free, others \
            go on (P14)",
        limit: |context| minutes(2 + u64::from(context.rounds.unwrap_or(revoke::ROUNDS))),
        run: |context| Box::pin(revoke::run(context)),
    },
    Proof {
        name: "rotate",
        about: "all certificates and their authority are replaced under load: no failed request, election or lost \
            session; old ones are worthless",
        limit: |_| minutes(3),
        run: |context| Box::pin(rotate::run(context)),
    },
    Proof {
        name: "members",
        about: "1 to 3 to 5 to 3 nodes and a lost voter replaced, by the commands of docs/operate.md, under load: no \
            failed request, tokens rise (P1, P10)",
        limit: |_| minutes(6),
        run: |context| Box::pin(members::run(context)),
    },
    Proof {
        name: "catch-up",
        about: "100,000 nodes: a backup is taken and a learner gets the snapshot: p99 of acquires stays within 1.5 \
            times, none fails",
        limit: |context| minutes(4 + u64::from(context.rounds.unwrap_or(catch_up::ROUNDS))),
        run: |context| Box::pin(catch_up::run(context)),
    },
    Proof {
        name: "rolling-upgrade",
        about: "the release before is replaced node by node under load: no failed request; where the feature level \
            rises then, the old program refuses, and where not, it serves again",
        limit: |_| minutes(4),
        run: |context| Box::pin(rolling_upgrade::run(context)),
    },
    Proof {
        name: "footprint",
        about: "memory and disk of a node, idle and after lock cycles, a million watches, half a million ephemerals: \
            small, and back",
        limit: |context| minutes(10) + Duration::from_secs(context.seconds.unwrap_or(footprint::SECONDS)),
        run: |context| Box::pin(footprint::run(context)),
    },
    Proof {
        name: "soak",
        about: "a steady load, a node killed every few minutes: disk, memory, open files and threads stay flat, \
            nothing is lost, no call fails",
        limit: |context| minutes(10) + soak::length(context),
        run: |context| Box::pin(soak::run(context)),
    },
    Proof {
        name: "engines",
        about: "Lockkeeper, ZooKeeper, Redis, Redlock, MySQL and PostgreSQL keep one contract and do one work under \
            the same faults: who has two holders, and what it costs",
        limit: |context| minutes(25) + Duration::from_secs(42 * context.seconds.unwrap_or(engines::SECONDS)),
        run: |context| Box::pin(engines::run(context)),
    },
    Proof {
        name: "one-queue",
        about: "kazoo, Curator and our own clients in one queue, the leader killed midway: no lost update, first \
            come, first served (P1, P2)",
        limit: |_| minutes(15),
        run: |context| Box::pin(one_queue::run(context)),
    },
    Proof {
        name: "switch-engine",
        about: "100 clients in three processes while their lock moves from one engine to another, by call and by \
            rule, the old one alive and killed: no lost update, in drain and both no two holders, no refused holder",
        limit: |_| minutes(15),
        run: |context| Box::pin(switch_engine::run(context)),
    },
];
