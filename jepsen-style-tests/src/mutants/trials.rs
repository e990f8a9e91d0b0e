//! Which run should catch which mutant, the cheapest first.

use lockkeeper_mutants::Mutant;

/// Which program makes a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// `jepsen-style-tests`.
    Run,
    /// `prove`.
    Prove,
}

/// A run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MutantTrial {
    pub(super) program: Program,
    pub(super) arguments: &'static [&'static str],
    /// Snapshots so often, and no log behind them, where they are to play a part.
    pub(super) snapshot_every: Option<u32>,
}

impl MutantTrial {
    /// The command line, for people.
    pub(super) fn words(&self) -> String {
        let program = match self.program {
            Program::Run => "",
            Program::Prove => "prove ",
        };
        format!("{program}{}", self.arguments.join(" "))
    }

    /// A name for a directory.
    pub(super) fn slug(&self) -> String {
        let words = self.arguments.iter().filter(|word| !word.starts_with("--"));
        let slug = words.copied().collect::<Vec<_>>().join("-").replace(',', "+");
        if self.snapshot_every.is_some() { format!("{slug}-snapshots") } else { slug }
    }
}

const fn run(arguments: &'static [&'static str]) -> MutantTrial {
    MutantTrial { program: Program::Run, arguments, snapshot_every: None }
}

const fn prove(arguments: &'static [&'static str]) -> MutantTrial {
    MutantTrial { program: Program::Prove, arguments, snapshot_every: None }
}

const fn with_snapshots(trial: MutantTrial) -> MutantTrial {
    MutantTrial { snapshot_every: Some(100), ..trial }
}

const LOST_WRITES: MutantTrial = prove(&["lost-writes", "--rounds", "6"]);
const KILL_ALL: MutantTrial = prove(&["kill-all", "--rounds", "6"]);
const KILL_ALL_SNAPSHOTS: MutantTrial = with_snapshots(KILL_ALL);
const MINORITY: MutantTrial = prove(&["minority", "--rounds", "2"]);
const EXPIRY: MutantTrial = prove(&["expiry", "--seconds", "60"]);
const LOCK: MutantTrial = run(&["--workload", "lock", "--nemesis", "none", "--time", "15"]);

/// What should catch a mutant; the first that does ends the hunt.
pub(super) fn of(mutant: Mutant) -> &'static [MutantTrial] {
    match mutant {
        Mutant::AckBeforeBarrier | Mutant::BareFlush => &[LOST_WRITES],
        Mutant::VoteNotPersisted => &[KILL_ALL, LOST_WRITES],
        Mutant::AcceptRolledBackDirectory => const { &[prove(&["rollback"])] },
        Mutant::SkipReadIndex => {
            const { &[run(&["--workload", "register", "--nemesis", "partition-leader", "--time", "20"]), MINORITY] }
        }
        Mutant::ReadIndexWithoutQuorum => &[MINORITY],
        Mutant::KeepaliveWithoutQuorum => &[MINORITY],
        Mutant::ExpireByDeposedLeader => &[EXPIRY],
        Mutant::NoGraceForNewLeader => &[EXPIRY],
        Mutant::CountSignsFromArrival | Mutant::IgnoreReportedAges => &[EXPIRY],
        Mutant::ResetTokensAtRestore => &[KILL_ALL_SNAPSHOTS],
        Mutant::NoGapInNewCluster => const { &[prove(&["restore"])] },
        Mutant::ForgetRequestsAtSnapshot => {
            const { &[with_snapshots(run(&["--workload", "append", "--nemesis", "kill-all", "--time", "60"]))] }
        }
        Mutant::ApplyBatchTwice => const { &[prove(&["failover", "--rounds", "3", "--calm-seconds", "0"])] },
        Mutant::EphemeralsOneByOne => {
            const { &[run(&["--workload", "ephemerals", "--nemesis", "client-kill", "--time", "20"])] }
        }
        Mutant::WakeAllWaiters => {
            const {
                &[
                    run(&["--workload", "lock", "--nemesis", "none", "--time", "15"]),
                    prove(&["crowd", "--seconds", "20"]),
                    prove(&["herd"]),
                ]
            }
        }
        Mutant::TwoHolders | Mutant::GrantOutOfOrder => &[LOCK],
        Mutant::LeaveWithdrawnInQueue => {
            const { &[LOCK, run(&["--workload", "lock", "--nemesis", "client-pause", "--time", "20"])] }
        }
        Mutant::NoLockDelay => {
            const { &[run(&["--workload", "lock-delay", "--nemesis", "client-kill", "--time", "20"])] }
        }
        Mutant::GateLetsAllIn => const { &[run(&["--workload", "gate", "--nemesis", "none", "--time", "15"])] },
        Mutant::SkipTxnGuards => const { &[run(&["--workload", "register", "--nemesis", "none", "--time", "15"])] },
        Mutant::DropWatchAtReconnect => {
            const { &[run(&["--workload", "watches", "--nemesis", "kill-one", "--time", "20"])] }
        }
        Mutant::ForgetWatchesAtInstall => {
            const {
                &[with_snapshots(run(&[
                    "--workload",
                    "watches",
                    "--nemesis",
                    "partition-one,pause-one",
                    "--time",
                    "40",
                ]))]
            }
        }
        // Not looked for here: the simulation catches them.
        Mutant::BusyWithoutWithdrawal
        | Mutant::ReleaseAllHolds
        | Mutant::ForgetHoldsAtSnapshot
        | Mutant::RefillTwice
        | Mutant::HandOutLeaseAgain
        | Mutant::TrustWallClock
        | Mutant::IgnoreHangUp
        | Mutant::AbandonIgnoresVersions
        | Mutant::LeaveNodesOfLargeSessions
        | Mutant::NoEphemeralBound
        | Mutant::LoseWakeup
        | Mutant::ForeignDeleteBreaksLock
        | Mutant::ForeignNamesAllowed
        | Mutant::CopyWithoutQuorum
        | Mutant::ApplyOutOfSequence
        | Mutant::SwapReturnedBatches
        | Mutant::CreditAppendEarly
        | Mutant::RegisterWaiterLate
        | Mutant::CountForgetfulTables
        | Mutant::ExpiredBeforeApplied => &[],
        Mutant::NoNamespaceBound => const { &[prove(&["tenants", "--seconds", "2"])] },
        Mutant::AllowEverything => const { &[prove(&["intruder"])] },
        Mutant::RevokedSessionLives => const { &[prove(&["revoke"])] },
        Mutant::LeaseFromAnswer => const { &[prove(&["late-answers", "--rounds", "2"])] },
    }
}

/// Whether a finding is of what this mutant does: it names a check that sees it, or says so in a proof's own words.
pub(super) fn is_of(mutant: Mutant, what: &str) -> bool {
    finds(mutant).iter().any(|words| what.contains(words))
}

/// Something acknowledged is gone, or was never agreed on.
const GONE: &[&str] = &[
    "was acknowledged and is not on",
    "acknowledged was",
    "votes were forgotten",
    "token",
    "replicas",
    "does not accept this node",
];
const EARLY: &[&str] = &["early", "expired"];
const QUEUE: &[&str] =
    &["as a black box", "no more holders than allowed", "order of the log", "releases in the log", "no standstill"];

/// Nothing for those that the simulation alone looks for.
fn finds(mutant: Mutant) -> &'static [&'static str] {
    match mutant {
        Mutant::AckBeforeBarrier | Mutant::BareFlush | Mutant::VoteNotPersisted | Mutant::ResetTokensAtRestore => GONE,
        Mutant::AcceptRolledBackDirectory => &["put back still run", "differ at zxid", "both run"],
        Mutant::SkipReadIndex => &["linearizable", "replayed from the log", "agree with real time"],
        Mutant::ReadIndexWithoutQuorum => &["acknowledged a linearizable read", "the holder was"],
        Mutant::KeepaliveWithoutQuorum => &["acknowledged a keepalive", "the holder was"],
        Mutant::NoGapInNewCluster => &["was issued again"],
        Mutant::ExpireByDeposedLeader | Mutant::NoGraceForNewLeader => EARLY,
        Mutant::CountSignsFromArrival | Mutant::IgnoreReportedAges => &["after its last sign of life"],
        Mutant::ForgetRequestsAtSnapshot => {
            &["one sequential node for one request id", "nothing lost, nothing twice", "linearizable lists"]
        }
        Mutant::ApplyBatchTwice => &["creates were acknowledged"],
        Mutant::EphemeralsOneByOne => &["what a session owned goes at one zxid", "locks go with their session"],
        Mutant::WakeAllWaiters => &["wakes its successor alone", "notifications"],
        Mutant::TwoHolders | Mutant::GrantOutOfOrder | Mutant::LeaveWithdrawnInQueue => QUEUE,
        Mutant::NoLockDelay => &["before the delay", "dead holder's place"],
        Mutant::GateLetsAllIn => &["one run at a time"],
        Mutant::SkipTxnGuards => &["linearizable", "replayed from the log"],
        Mutant::DropWatchAtReconnect | Mutant::ForgetWatchesAtInstall => &["watches"],
        Mutant::LeaseFromAnswer => &["the holder was told"],
        Mutant::NoNamespaceBound => &["beyond its limit"],
        Mutant::AllowEverything => &["carried out"],
        Mutant::RevokedSessionLives => &["is open"],
        Mutant::ExpiredBeforeApplied
        | Mutant::ReleaseAllHolds
        | Mutant::ForgetHoldsAtSnapshot
        | Mutant::RefillTwice
        | Mutant::HandOutLeaseAgain
        | Mutant::TrustWallClock
        | Mutant::CopyWithoutQuorum
        | Mutant::ApplyOutOfSequence
        | Mutant::SwapReturnedBatches
        | Mutant::CreditAppendEarly
        | Mutant::RegisterWaiterLate
        | Mutant::CountForgetfulTables
        | Mutant::BusyWithoutWithdrawal
        | Mutant::IgnoreHangUp
        | Mutant::AbandonIgnoresVersions
        | Mutant::ForeignDeleteBreaksLock
        | Mutant::ForeignNamesAllowed
        | Mutant::LeaveNodesOfLargeSessions
        | Mutant::NoEphemeralBound
        | Mutant::LoseWakeup => &[],
    }
}

/// Every run that a hunt for these mutants begins with, once.
pub(super) fn distinct(mutants: &[Mutant]) -> Vec<MutantTrial> {
    let mut all: Vec<MutantTrial> = Vec::new();
    for trial in mutants.iter().flat_map(|mutant| of(*mutant)) {
        if !all.contains(trial) {
            all.push(*trial);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looked_for_can_be_found() {
        for mutant in Mutant::ALL {
            assert_eq!(of(*mutant).is_empty(), finds(*mutant).is_empty(), "{mutant}");
        }
    }

    #[test]
    fn every_trial_names_what_there_is() {
        for trial in distinct(Mutant::ALL) {
            if trial.program == Program::Prove {
                let name = trial.arguments[0];
                assert!(crate::proofs::PROOFS.iter().any(|proof| proof.name == name), "{name}");
                continue;
            }
            let value = |of: &str| {
                let at = trial.arguments.iter().position(|word| *word == of).unwrap();
                trial.arguments[at + 1]
            };
            let workload = value("--workload");
            assert!(crate::workload::all().iter().any(|known| known.name() == workload), "{workload}");
            for nemesis in value("--nemesis").split(',').filter(|nemesis| *nemesis != "none") {
                assert!(crate::nemesis::all().iter().any(|known| known.name() == nemesis), "{nemesis}");
            }
        }
    }
}
