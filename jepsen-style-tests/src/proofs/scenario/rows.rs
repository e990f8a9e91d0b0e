//! The rows. Each is a proof of its own, except that of `sharing`.

use std::time::Duration;

use super::{At, Crew, LockWork, ProcessShare, Scenario, Strike, checks, in_turn};
use crate::proofs::{InGate, minutes, seconds};

/// A proof that is a row, and all that there is to it.
pub(in crate::proofs) struct LockProof {
    /// What it would falsify, in a line.
    pub(in crate::proofs) about: &'static str,
    /// How the gate runs it.
    pub(in crate::proofs) in_gate: InGate,
    /// How long no run with a load of this length takes.
    pub(in crate::proofs) limit: fn(Duration) -> Duration,
    pub(in crate::proofs) scenario: Scenario,
}

const fn crew(clients: u32, ttl_s: u64) -> Crew {
    Crew { clients, ttl: Duration::from_secs(ttl_s) }
}

/// All of them.
pub(in crate::proofs) const LOCK_PROOFS: &[LockProof] = &[
    // 200 clients in 4 processes contend for one lock, while a node is killed and started again every 5 seconds.
    //
    // Each holder reads a number in a file, waits, writes the number plus one, and appends its token to a second file,
    // the resource's own record. No update is lost there, and tokens rise. On one clock nobody is granted the lock
    // while another acts on it. Against the log grants are first come, first served, and nobody is passed over.
    LockProof {
        about: "200 clients in 4 processes on one lock, a node killed every 5 s: nothing lost, in order, no orphan, \
                one wake each (P1-P3)",
        in_gate: InGate::Alone("--seconds 15"),
        limit: |over| minutes(4) + over,
        scenario: Scenario {
            name: "crowd",
            seconds: 30,
            crews: &[crew(50, 10); 4],
            work: LockWork::Counter,
            script: |over| in_turn(seconds(5), over, &[Strike::Node]),
            // Whatever a client of a killed node left behind goes with its session at the latest.
            standstill: Duration::from_secs(12),
            left_within: Duration::from_secs(10),
            checks: &[checks::first_come_first_served, checks::no_update_lost],
        },
    },
    // 50 clients in 5 processes contend for 5 permits, while processes and nodes are killed in turn, sooner in a short
    // trial, which is to see both.
    //
    // The log records who is inside, independently of the semaphore: each client creates an ephemeral node after it was
    // granted a permit and deletes it before it gives the permit back; a killed process's nodes go with its session. By
    // the zxids never more than 5 are inside, and each of them is among the first 5 of the queue.
    LockProof {
        about: "5 permits, 50 contenders, processes and nodes killed: never more than 5 inside by zxid, one wake per \
                freed permit",
        in_gate: InGate::Beside("--seconds 14"),
        limit: |over| minutes(4) + over,
        scenario: Scenario {
            name: "semaphore",
            seconds: 30,
            crews: &[crew(10, 3); 5],
            work: LockWork::Permits(5),
            script: |over| in_turn(seconds(4).min(over / 4), over, &[Strike::OldestProcess, Strike::Node]),
            // A new leader restarts the timers of the sessions that a killed process had.
            standstill: Duration::from_secs(5),
            left_within: Duration::from_secs(5),
            checks: &[checks::permits_kept],
        },
    },
    // 50 clients repeatedly take three of ten locks together, drawn at random; halfway one of their processes is
    // killed.
    //
    // - No deadlock: grants never stop for longer than a bound, and every client gets some.
    // - All or nothing, in the log: a grant's requests are those of its three locks, and they come at one zxid and go
    //   at one zxid, also those of the killed process.
    // - Nobody is told too early: the log records when a client is inside, and at that zxid its requests are the first
    //   in all three queues.
    LockProof {
        about: "50 clients on random triples of 10 locks, a process killed: no deadlock, all or nothing under one zxid",
        in_gate: InGate::Beside("--seconds 10"),
        limit: |over| minutes(3) + 2 * over,
        scenario: Scenario {
            name: "multi-lock",
            seconds: 20,
            // No disk may stall for so long that a session of those that live counts as lost.
            crews: &[crew(20, 10), crew(20, 10), crew(10, 3)],
            work: LockWork::Several(10),
            script: |over| vec![At(over / 2, Strike::LastProcess)],
            standstill: Duration::from_secs(1),
            left_within: Duration::from_secs(5),
            checks: &[checks::all_or_nothing, checks::everybody_served],
        },
    },
];

/// How the tasks of `sharing` share.
pub(in crate::proofs) const SHARE: ProcessShare =
    ProcessShare { tasks: 64, max_passes: 100, max_time: Duration::from_millis(200) };

/// 64 tasks of one process use one lock, beside a waiter of another process. See `sharing`, which is also of how much
/// it helps.
pub(in crate::proofs) const SHARING: Scenario = Scenario {
    name: "sharing",
    seconds: 12,
    crews: &[crew(SHARE.tasks, 10), crew(1, 10)],
    work: LockWork::Shared(SHARE),
    script: |_| Vec::new(),
    standstill: Duration::from_secs(12),
    left_within: Duration::from_secs(10),
    checks: &[checks::fair_to_outsiders],
};
