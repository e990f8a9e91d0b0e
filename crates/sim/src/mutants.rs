//! The proof that the checks find something: each planted bug in turn, seeds until one is caught. A bug that no seed shows is reported as
//! missed, which is a defect of this simulation, or as one of a part that is not simulated.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockkeeper_planted::{Bug, plant};

use crate::checks::Violation;
use crate::faults::FaultKind;
use crate::run::run;
use crate::swarm::{Plan, Work, quiet_links, steady_disk};

/// What became of one bug.
#[derive(Debug)]
pub struct Hunt {
    /// Which; none for the control, where nothing is planted.
    pub bug: Option<Bug>,
    /// With which seed it was caught, and by what.
    pub caught: Option<(u64, Violation)>,
    /// Seeds that were tried.
    pub tried: u64,
    /// How long that took.
    pub wall: Duration,
}

/// Whether this bug sits in a part that takes part in the simulation. The client library does not.
pub fn is_simulated(bug: Bug) -> bool {
    !matches!(bug, Bug::DropWatchAtReconnect | Bug::LeaseFromAnswer)
}

/// Tries seeds from `first` on until the bug is caught, `most` at most. `adapt` has the last word on each plan.
pub fn hunt(bug: Option<Bug>, first: u64, most: u64, adapt: impl Fn(&mut Plan)) -> Hunt {
    plant(bug);
    let started = Instant::now();
    let mut caught = None;
    let mut tried = 0;
    for seed in (0..most).map_while(|number| first.checked_add(number)).take_while(|_| bug.is_none_or(is_simulated)) {
        tried += 1;
        let mut plan = plan(bug, seed);
        adapt(&mut plan);
        let report = run(&plan);
        if let Some(violation) = report.violation {
            caught = Some((seed, violation));
            break;
        }
    }
    plant(None);
    Hunt { bug, caught, tried, wall: started.elapsed() }
}

/// The swarm's plan for a seed, with what this bug needs to show itself among its faults and work.
pub fn plan(bug: Option<Bug>, seed: u64) -> Plan {
    let mut plan = Plan::draw(seed);
    let Some(bug) = bug else { return plan };
    use FaultKind as F;
    let (faults, work): (&[FaultKind], &[Work]) = match bug {
        Bug::AckBeforeBarrier | Bug::BareFlush | Bug::VoteNotPersisted => {
            (&[F::PowerAll, F::PowerMajority, F::PowerLeader, F::PartitionHalves], &[Work::Data])
        }
        Bug::AcceptRolledBackDirectory => (&[F::Rollback, F::KillOne, F::KillLeader], &[Work::Data]),
        Bug::SkipReadIndex | Bug::ReadIndexWithoutQuorum => {
            (&[F::PartitionLeader, F::PartitionOne, F::PauseLeader], &[Work::Data])
        }
        Bug::BusyWithoutWithdrawal | Bug::LoseWakeup => (&[], &[Work::Lock, Work::ReadWrite]),
        Bug::IgnoreHangUp => (&[], &[Work::Lock]),
        Bug::AbandonIgnoresVersions => (&[F::PauseOne, F::PartitionClients, F::BadLinks], &[Work::Lock]),
        Bug::ExpiredBeforeApplied => (&[F::BadLinks, F::SlowDisk], &[Work::Ephemeral]),
        Bug::KeepaliveWithoutQuorum | Bug::ExpireByDeposedLeader | Bug::NoGraceForNewLeader => {
            (&[F::PartitionLeader, F::OneWay, F::PauseLeader, F::KillLeader], &[Work::Lock])
        }
        Bug::CountSignsFromArrival => (&[], &[Work::Lock, Work::Data]),
        Bug::IgnoreReportedAges => (&[F::KillLeader], &[Work::Lock, Work::Data]),
        Bug::CopyWithoutQuorum => (&[F::KillLeader, F::PartitionLeader, F::OneWay, F::BadLinks], &[Work::Lock]),
        Bug::CountForgetfulTables => (&[], &[Work::Lock]),
        Bug::ResetTokensAtRestore | Bug::ForgetRequestsAtSnapshot => {
            (&[F::Snapshot, F::KillOne, F::PartitionOne], &[Work::Lock, Work::Data])
        }
        Bug::ApplyBatchTwice => (&[F::PartitionLeader, F::KillLeader, F::BadLinks], &[Work::Data]),
        Bug::LeaveNodesOfLargeSessions | Bug::NoEphemeralBound => (&[], &[Work::Many]),
        Bug::EphemeralsOneByOne => (&[], &[Work::Ephemeral]),
        Bug::WakeAllWaiters | Bug::TwoHolders | Bug::GrantOutOfOrder | Bug::LeaveWithdrawnInQueue => {
            (&[], &[Work::Lock])
        }
        Bug::NoLockDelay => (&[F::PauseClients], &[Work::Delay]),
        Bug::GateLetsAllIn => (&[], &[Work::Gate]),
        Bug::ForeignDeleteBreaksLock | Bug::ForeignNamesAllowed => (&[], &[Work::Lock, Work::ByHand]),
        Bug::TrustWallClock => (&[F::ClockYears], &[Work::Data]),
        Bug::SkipTxnGuards => (&[F::PauseClients], &[Work::Lock, Work::Data]),
        Bug::ForgetWatchesAtInstall => (&[F::Snapshot, F::PartitionOne, F::PauseOne], &[Work::Data]),
        Bug::DropWatchAtReconnect | Bug::LeaseFromAnswer => (&[], &[]),
    };
    for fault in faults {
        plan.faults.insert(*fault, 4);
    }
    for work in work {
        plan.work.insert(*work, 6);
    }
    if matches!(bug, Bug::CountSignsFromArrival | Bug::IgnoreReportedAges) {
        // Only where the world is right, or soon right again, is anything late; and it is late by a share of the timeout.
        (plan.world.links, plan.world.disk) = (quiet_links(), steady_disk());
        plan.faults.retain(|kind, _| *kind == F::KillLeader);
        (plan.fault_every_ms, plan.fault_lasts_ms, plan.session_timeout_ms) = (4_000, 1_000, 8_000);
    }
    if bug == Bug::CountForgetfulTables {
        // A node that was cut off has an old table, the two that had a newer one lose it before they can pass it on,
        // and the clients are not there to say that they live.
        (plan.world.links, plan.world.disk, plan.world.nodes) = (quiet_links(), steady_disk(), 3);
        plan.faults = BTreeMap::from([(F::PartitionOne, 2), (F::PowerMajority, 1), (F::PauseClients, 1)]);
        (plan.fault_every_ms, plan.fault_lasts_ms, plan.session_timeout_ms) = (900, 4_000, 4_000);
        plan.fault_phase = Duration::from_secs(300);
        // What a node replays from its log counts as a sign of life.
        plan.world.node.consensus.snapshot_every_entries = 10;
        (plan.clients, plan.pause_ms) = (8, 1_500);
    }
    match bug {
        Bug::LeaveNodesOfLargeSessions => plan.own_many(100_000, 100_000),
        Bug::NoEphemeralBound => plan.own_many(100_000, 10_000),
        _ => {}
    }
    if bug == Bug::ForgetWatchesAtInstall {
        plan.watchers = plan.watchers.max(2);
        plan.world.node.consensus.snapshot_every_entries = 50;
        plan.world.node.consensus.keep_entries = 10;
    }
    if matches!(bug, Bug::ResetTokensAtRestore | Bug::ForgetRequestsAtSnapshot) {
        plan.world.node.consensus.snapshot_every_entries = 50;
    }
    plan
}
