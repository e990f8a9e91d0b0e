//! Under what each planted bug should be caught: the cheapest run that is to find it.

use lockkeeper_planted::Bug;

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
pub(super) struct Trial {
    pub(super) program: Program,
    pub(super) arguments: &'static [&'static str],
    /// Snapshots so often, and no log behind them, where they are to play a part.
    pub(super) snapshot_every: Option<u32>,
}

impl Trial {
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

const fn run(arguments: &'static [&'static str]) -> Trial {
    Trial { program: Program::Run, arguments, snapshot_every: None }
}

const fn prove(arguments: &'static [&'static str]) -> Trial {
    Trial { program: Program::Prove, arguments, snapshot_every: None }
}

const fn with_snapshots(trial: Trial) -> Trial {
    Trial { snapshot_every: Some(100), ..trial }
}

const LOST_WRITES: Trial = prove(&["lost-writes", "--rounds", "6"]);
const KILL_ALL: Trial = prove(&["kill-all", "--rounds", "6"]);
const KILL_ALL_SNAPSHOTS: Trial = with_snapshots(KILL_ALL);
const MINORITY: Trial = prove(&["minority", "--rounds", "2"]);
const EXPIRY: Trial = prove(&["expiry", "--seconds", "60"]);
const LOCK: Trial = run(&["--workload", "lock", "--nemesis", "none", "--time", "15"]);

/// What should catch a bug; the first that does ends the hunt.
pub(super) fn of(bug: Bug) -> &'static [Trial] {
    match bug {
        Bug::AckBeforeBarrier | Bug::BareFlush => &[LOST_WRITES],
        Bug::VoteNotPersisted => &[KILL_ALL, LOST_WRITES],
        Bug::AcceptRolledBackDirectory => const { &[prove(&["rollback"])] },
        Bug::SkipReadIndex => {
            const { &[run(&["--workload", "register", "--nemesis", "partition-leader", "--time", "20"]), MINORITY] }
        }
        Bug::ReadIndexWithoutQuorum => &[MINORITY],
        Bug::KeepaliveWithoutQuorum => &[MINORITY],
        Bug::ExpireByDeposedLeader => &[EXPIRY],
        Bug::NoGraceForNewLeader => &[EXPIRY],
        Bug::CountSignsFromArrival | Bug::IgnoreReportedAges => &[EXPIRY],
        Bug::ResetTokensAtRestore => &[KILL_ALL_SNAPSHOTS],
        Bug::ForgetRequestsAtSnapshot => {
            const { &[with_snapshots(run(&["--workload", "append", "--nemesis", "kill-all", "--time", "60"]))] }
        }
        Bug::ApplyBatchTwice => const { &[prove(&["failover", "--rounds", "3", "--calm-seconds", "0"])] },
        Bug::EphemeralsOneByOne => {
            const { &[run(&["--workload", "ephemerals", "--nemesis", "client-kill", "--time", "20"])] }
        }
        Bug::WakeAllWaiters => const { &[prove(&["crowd", "--seconds", "20"]), prove(&["herd"])] },
        Bug::TwoHolders | Bug::GrantOutOfOrder => &[LOCK],
        Bug::LeaveWithdrawnInQueue => {
            const { &[LOCK, run(&["--workload", "lock", "--nemesis", "client-pause", "--time", "20"])] }
        }
        Bug::NoLockDelay => const { &[run(&["--workload", "lock-delay", "--nemesis", "client-kill", "--time", "20"])] },
        Bug::GateLetsAllIn => const { &[run(&["--workload", "gate", "--nemesis", "none", "--time", "15"])] },
        Bug::SkipTxnGuards => const { &[run(&["--workload", "register", "--nemesis", "none", "--time", "15"])] },
        Bug::DropWatchAtReconnect => {
            const { &[run(&["--workload", "watches", "--nemesis", "kill-one", "--time", "20"])] }
        }
        Bug::ForgetWatchesAtInstall => {
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
        Bug::BusyWithoutWithdrawal
        | Bug::TrustWallClock
        | Bug::IgnoreHangUp
        | Bug::AbandonIgnoresVersions
        | Bug::LeaveNodesOfLargeSessions
        | Bug::NoEphemeralBound
        | Bug::LoseWakeup
        | Bug::ForeignDeleteBreaksLock
        | Bug::ForeignNamesAllowed
        | Bug::CopyWithoutQuorum
        | Bug::CountForgetfulTables
        | Bug::ExpiredBeforeApplied => &[],
        Bug::LeaseFromAnswer => const { &[prove(&["late-answers", "--rounds", "2"])] },
    }
}

/// Whether a finding is of what this bug does: it names a check that sees it, or says so in a proof's own words.
pub(super) fn is_of(bug: Bug, what: &str) -> bool {
    finds(bug).iter().any(|words| what.contains(words))
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
fn finds(bug: Bug) -> &'static [&'static str] {
    match bug {
        Bug::AckBeforeBarrier | Bug::BareFlush | Bug::VoteNotPersisted | Bug::ResetTokensAtRestore => GONE,
        Bug::AcceptRolledBackDirectory => &["put back still run", "differ at zxid", "both run"],
        Bug::SkipReadIndex => &["linearizable", "replayed from the log", "agree with real time"],
        Bug::ReadIndexWithoutQuorum => &["acknowledged a linearizable read", "the holder was"],
        Bug::KeepaliveWithoutQuorum => &["acknowledged a keepalive", "the holder was"],
        Bug::ExpireByDeposedLeader | Bug::NoGraceForNewLeader => EARLY,
        Bug::CountSignsFromArrival | Bug::IgnoreReportedAges => &["after its last sign of life"],
        Bug::ForgetRequestsAtSnapshot => {
            &["one sequential node for one request id", "nothing lost, nothing twice", "linearizable lists"]
        }
        Bug::ApplyBatchTwice => &["creates were acknowledged"],
        Bug::EphemeralsOneByOne => &["what a session owned goes at one zxid", "locks go with their session"],
        Bug::WakeAllWaiters => &["notifications"],
        Bug::TwoHolders | Bug::GrantOutOfOrder | Bug::LeaveWithdrawnInQueue => QUEUE,
        Bug::NoLockDelay => &["before the delay", "dead holder's place"],
        Bug::GateLetsAllIn => &["one run at a time"],
        Bug::SkipTxnGuards => &["linearizable", "replayed from the log"],
        Bug::DropWatchAtReconnect | Bug::ForgetWatchesAtInstall => &["watches"],
        Bug::LeaseFromAnswer => &["the holder was told"],
        Bug::ExpiredBeforeApplied
        | Bug::TrustWallClock
        | Bug::CopyWithoutQuorum
        | Bug::CountForgetfulTables
        | Bug::BusyWithoutWithdrawal
        | Bug::IgnoreHangUp
        | Bug::AbandonIgnoresVersions
        | Bug::ForeignDeleteBreaksLock
        | Bug::ForeignNamesAllowed
        | Bug::LeaveNodesOfLargeSessions
        | Bug::NoEphemeralBound
        | Bug::LoseWakeup => &[],
    }
}

/// Every run that a hunt for these bugs begins with, once.
pub(super) fn distinct(bugs: &[Bug]) -> Vec<Trial> {
    let mut all: Vec<Trial> = Vec::new();
    for trial in bugs.iter().flat_map(|bug| of(*bug)) {
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
        for bug in Bug::ALL {
            assert_eq!(of(*bug).is_empty(), finds(*bug).is_empty(), "{bug}");
        }
    }

    #[test]
    fn every_trial_names_what_there_is() {
        for trial in distinct(Bug::ALL) {
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
