//! Mutation testing of the checks: activates each mutant in turn and runs seeds until it is caught. A mutant that no
//! seed catches is reported as missed, which is a defect of this simulation, or as belonging to a part that is not
//! simulated.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockkeeper_mutants::{Mutant, activate};

use crate::checks::Violation;
use crate::fault_kind::FaultKind;
use crate::run::run;
use crate::swarm::{Plan, Work, quiet_links, steady_disk};

/// What became of one mutant.
#[derive(Debug)]
pub struct Hunt {
    /// Which; none for the control, where no mutant is active.
    pub mutant: Option<Mutant>,
    /// With which seed it was caught, and by what.
    pub caught: Option<(u64, Violation)>,
    /// Seeds that were tried.
    pub tried: u64,
    /// How long that took.
    pub wall: Duration,
}

/// Tries seeds from `first` on until the mutant is caught, `most` at most. `adapt` has the last word on each plan.
pub fn hunt(mutant: Option<Mutant>, first: u64, most: u64, adapt: impl Fn(&mut Plan)) -> Hunt {
    activate(mutant);
    let started = Instant::now();
    let mut caught = None;
    let mut tried = 0;
    for seed in (0..most)
        .map_while(|number| first.checked_add(number))
        .take_while(|_| mutant.is_none_or(|mutant| mutant.caught_by().is_simulated()))
    {
        tried += 1;
        let mut plan = plan(mutant, seed);
        adapt(&mut plan);
        let report = run(&plan);
        if let Some(violation) = report.violation {
            caught = Some((seed, violation));
            break;
        }
    }
    activate(None);
    Hunt { mutant, caught, tried, wall: started.elapsed() }
}

/// The faults and the work that a mutant needs to show itself; nothing for one that another tier must catch.
const fn needs(mutant: Mutant) -> Option<(&'static [FaultKind], &'static [Work])> {
    use FaultKind as F;
    Some(match mutant {
        Mutant::AckBeforeBarrier | Mutant::BareFlush | Mutant::VoteNotPersisted => {
            (&[F::PowerAll, F::PowerMajority, F::PowerLeader, F::PartitionHalves], &[Work::Data])
        }
        Mutant::AcceptRolledBackDirectory => (&[F::Rollback, F::KillOne, F::KillLeader], &[Work::Data]),
        Mutant::SkipReadIndex | Mutant::ReadIndexWithoutQuorum => {
            (&[F::PartitionLeader, F::PartitionOne, F::PauseLeader], &[Work::Data])
        }
        Mutant::BusyWithoutWithdrawal | Mutant::LoseWakeup | Mutant::RegisterWaiterLate => {
            (&[], &[Work::Lock, Work::ReadWrite])
        }
        Mutant::IgnoreHangUp => (&[], &[Work::Lock]),
        Mutant::AbandonIgnoresVersions => (&[F::PauseOne, F::PartitionClients, F::BadLinks], &[Work::Lock]),
        Mutant::ExpiredBeforeApplied => (&[F::BadLinks, F::SlowDisk], &[Work::Ephemeral]),
        Mutant::KeepaliveWithoutQuorum | Mutant::ExpireByDeposedLeader | Mutant::NoGraceForNewLeader => {
            (&[F::PartitionLeader, F::OneWay, F::PauseLeader, F::KillLeader], &[Work::Lock])
        }
        Mutant::CountSignsFromArrival => (&[], &[Work::Lock, Work::Data]),
        Mutant::IgnoreReportedAges => (&[F::KillLeader], &[Work::Lock, Work::Data]),
        Mutant::CopyWithoutQuorum => (&[F::KillLeader, F::PartitionLeader, F::OneWay, F::BadLinks], &[Work::Lock]),
        Mutant::CountForgetfulTables => (&[], &[Work::Lock]),
        Mutant::ResetTokensAtRestore | Mutant::ForgetRequestsAtSnapshot => {
            (&[F::Snapshot, F::KillOne, F::PartitionOne], &[Work::Lock, Work::Data])
        }
        Mutant::ApplyBatchTwice | Mutant::ApplyOutOfSequence => {
            (&[F::PartitionLeader, F::KillLeader, F::BadLinks], &[Work::Data])
        }
        Mutant::LeaveNodesOfLargeSessions | Mutant::NoEphemeralBound => (&[], &[Work::Many]),
        Mutant::EphemeralsOneByOne => (&[], &[Work::Ephemeral]),
        Mutant::WakeAllWaiters | Mutant::TwoHolders | Mutant::GrantOutOfOrder | Mutant::LeaveWithdrawnInQueue => {
            (&[], &[Work::Lock])
        }
        Mutant::NoLockDelay => (&[F::PauseClients], &[Work::Delay]),
        Mutant::GateLetsAllIn => (&[], &[Work::Gate]),
        Mutant::ReleaseAllHolds => (&[], &[Work::Reentry]),
        Mutant::ForgetHoldsAtSnapshot => (&[F::Snapshot, F::PartitionOne, F::KillOne], &[Work::Reentry]),
        Mutant::RefillTwice | Mutant::HandOutLeaseAgain => (&[], &[Work::Rate]),
        Mutant::ForeignDeleteBreaksLock | Mutant::ForeignNamesAllowed => (&[], &[Work::Lock, Work::ByHand]),
        Mutant::TrustWallClock => (&[F::ClockYears], &[Work::Data]),
        Mutant::SkipTxnGuards => (&[F::PauseClients], &[Work::Lock, Work::Data]),
        Mutant::ForgetWatchesAtInstall => (&[F::Snapshot, F::PartitionOne, F::PauseOne], &[Work::Data]),
        Mutant::NoNamespaceBound => (&[], &[Work::Namespace]),
        Mutant::AllowEverything | Mutant::RevokedSessionLives => (&[], &[Work::Guest]),
        _ => return None,
    })
}

/// This does not compile if the table of the mutants and [`needs`] disagree about one.
const _: () = {
    let mut mutants = Mutant::ALL;
    while let [mutant, others @ ..] = mutants {
        assert!(needs(*mutant).is_some() == mutant.caught_by().is_simulated(), "{}", mutant.name());
        mutants = others;
    }
};

/// The swarm's plan for a seed, with what this mutant needs to show itself among its faults and work.
pub fn plan(mutant: Option<Mutant>, seed: u64) -> Plan {
    use FaultKind as F;
    let mut plan = Plan::draw(seed);
    let Some(mutant) = mutant else { return plan };
    let (faults, work) = needs(mutant).unwrap_or_default();
    for fault in faults {
        plan.faults.insert(*fault, 4);
    }
    for work in work {
        plan.work.insert(*work, 6);
    }
    if matches!(mutant, Mutant::CountSignsFromArrival | Mutant::IgnoreReportedAges) {
        // Lateness is judged only where the world is right or soon right again, and it is a share of the timeout.
        (plan.world.links, plan.world.disk) = (quiet_links(), steady_disk());
        plan.faults.retain(|kind, _| *kind == F::KillLeader);
        (plan.fault_every_ms, plan.fault_lasts_ms, plan.session_timeout_ms) = (4_000, 1_000, 8_000);
    }
    if mutant == Mutant::CountForgetfulTables {
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
    match mutant {
        Mutant::LeaveNodesOfLargeSessions => plan.own_many(100_000, 100_000),
        Mutant::NoEphemeralBound => plan.own_many(100_000, 10_000),
        _ => {}
    }
    if mutant == Mutant::ForgetWatchesAtInstall {
        plan.watchers = plan.watchers.max(2);
        plan.world.node.consensus.snapshot_every_entries = 50;
        plan.world.node.consensus.keep_entries = 10;
    }
    if matches!(mutant, Mutant::ResetTokensAtRestore | Mutant::ForgetRequestsAtSnapshot) {
        plan.world.node.consensus.snapshot_every_entries = 50;
    }
    plan
}
