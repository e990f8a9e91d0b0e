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
    /// Separated by spaces.
    pub(super) arguments: &'static str,
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
        format!("{program}{}", self.arguments)
    }

    /// A name for a directory.
    pub(super) fn slug(&self) -> String {
        let words = self.arguments.split(' ').filter(|word| !word.starts_with("--"));
        let slug = words.collect::<Vec<_>>().join("-").replace(',', "+");
        if self.snapshot_every.is_some() { format!("{slug}-snapshots") } else { slug }
    }
}

const fn run(arguments: &'static str) -> MutantTrial {
    MutantTrial { program: Program::Run, arguments, snapshot_every: None }
}

const fn prove(arguments: &'static str) -> MutantTrial {
    MutantTrial { program: Program::Prove, arguments, snapshot_every: None }
}

const fn with_snapshots(trial: MutantTrial) -> MutantTrial {
    MutantTrial { snapshot_every: Some(100), ..trial }
}

const LOST_WRITES: MutantTrial = prove("lost-writes --rounds 6");
const KILL_ALL: MutantTrial = prove("kill-all --rounds 6");
const KILL_ALL_SNAPSHOTS: MutantTrial = with_snapshots(KILL_ALL);
const MINORITY: MutantTrial = prove("minority --rounds 2");
const EXPIRY: MutantTrial = prove("expiry --seconds 60");
const LOCK: MutantTrial = run("--workload lock --nemesis none --time 15");

/// Something acknowledged is gone, or was never agreed on.
const GONE: &[&str] = &[
    "was acknowledged and is not on",
    "acknowledged was",
    "acknowledged up to frame",
    "is damaged or missing, yet frame",
    "votes were forgotten",
    "token",
    "replicas",
    "does not accept this node",
];
const EARLY: &[&str] = &["early", "expired"];
const LATE: &[&str] = &["after its last sign of life"];
const QUEUE: &[&str] =
    &["as a black box", "no more holders than allowed", "order of the log", "releases in the log", "no standstill"];

/// What should catch a mutant, the cheapest first, and the words of a finding of what it does; nothing for one that
/// another tier must catch.
struct Hunt(&'static [MutantTrial], &'static [&'static str]);

fn hunt(mutant: Mutant) -> Hunt {
    match mutant {
        Mutant::AckBeforeBarrier | Mutant::BareFlush => Hunt(&[LOST_WRITES], GONE),
        Mutant::VoteNotPersisted => Hunt(&[KILL_ALL, LOST_WRITES], GONE),
        Mutant::AcceptRolledBackDirectory => {
            Hunt(const { &[prove("rollback")] }, &["put back still run", "differ at zxid", "both run"])
        }
        Mutant::SkipReadIndex => Hunt(
            const { &[run("--workload register --nemesis partition-leader --time 20"), MINORITY] },
            &["linearizable", "replayed from the log", "agree with real time"],
        ),
        Mutant::ReadIndexWithoutQuorum => Hunt(&[MINORITY], &["acknowledged a linearizable read", "the holder was"]),
        Mutant::KeepaliveWithoutQuorum => Hunt(&[MINORITY], &["acknowledged a keepalive", "the holder was"]),
        Mutant::ExpireByDeposedLeader | Mutant::NoGraceForNewLeader => Hunt(&[EXPIRY], EARLY),
        Mutant::CountSignsFromArrival | Mutant::IgnoreReportedAges => Hunt(&[EXPIRY], LATE),
        Mutant::ResetTokensAtRestore => Hunt(&[KILL_ALL_SNAPSHOTS], GONE),
        Mutant::NoGapInNewCluster => Hunt(const { &[prove("restore")] }, &["was issued again"]),
        Mutant::ForgetRequestsAtSnapshot => Hunt(
            const { &[with_snapshots(run("--workload append --nemesis kill-all --time 60"))] },
            &["one sequential node for one request id", "nothing lost, nothing twice", "linearizable lists"],
        ),
        Mutant::ApplyBatchTwice => {
            Hunt(const { &[prove("failover --rounds 3 --calm-seconds 0")] }, &["creates were acknowledged"])
        }
        Mutant::EphemeralsOneByOne => Hunt(
            const { &[run("--workload ephemerals --nemesis client-kill --time 20")] },
            &["what a session owned goes at one zxid", "locks go with their session"],
        ),
        Mutant::WakeAllWaiters => Hunt(
            const { &[LOCK, prove("crowd --seconds 20"), prove("herd")] },
            &["wakes its successor alone", "notifications"],
        ),
        Mutant::TwoHolders | Mutant::GrantOutOfOrder => Hunt(&[LOCK], QUEUE),
        Mutant::LeaveWithdrawnInQueue => {
            Hunt(const { &[LOCK, run("--workload lock --nemesis client-pause --time 20")] }, QUEUE)
        }
        Mutant::NoLockDelay => Hunt(
            const { &[run("--workload lock-delay --nemesis client-kill --time 20")] },
            &["before the delay", "dead holder's place"],
        ),
        Mutant::GateLetsAllIn => {
            Hunt(const { &[run("--workload gate --nemesis none --time 15")] }, &["one run at a time"])
        }
        Mutant::SkipTxnGuards => Hunt(
            const { &[run("--workload register --nemesis none --time 15")] },
            &["linearizable", "replayed from the log"],
        ),
        Mutant::DropWatchAtReconnect => {
            Hunt(const { &[run("--workload watches --nemesis kill-one --time 20")] }, &["watches"])
        }
        Mutant::ForgetWatchesAtInstall => Hunt(
            const { &[with_snapshots(run("--workload watches --nemesis partition-one,pause-one --time 40"))] },
            &["watches"],
        ),
        Mutant::NoNamespaceBound => Hunt(const { &[prove("tenants --seconds 2")] }, &["beyond its limit"]),
        Mutant::AllowEverything => Hunt(const { &[prove("intruder")] }, &["carried out"]),
        Mutant::RevokedSessionLives => Hunt(const { &[prove("revoke")] }, &["is open"]),
        Mutant::LeaseFromAnswer => Hunt(const { &[prove("late-answers --rounds 2")] }, &["the holder was told"]),
        _ => Hunt(&[], &[]),
    }
}

/// What should catch a mutant; the first that does ends the hunt.
pub(super) fn of(mutant: Mutant) -> &'static [MutantTrial] {
    hunt(mutant).0
}

/// Whether a finding is of what this mutant does: it names a check that sees it, or says so in a proof's own words.
pub(super) fn is_of(mutant: Mutant, what: &str) -> bool {
    hunt(mutant).1.iter().any(|words| what.contains(words))
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
            let (Hunt(trials, words), has_run) = (hunt(*mutant), mutant.caught_by().has_run());
            assert_eq!((!trials.is_empty(), !words.is_empty()), (has_run, has_run), "{mutant}");
        }
    }

    #[test]
    fn every_trial_names_what_there_is() {
        for trial in distinct(Mutant::ALL) {
            let words: Vec<&str> = trial.arguments.split(' ').collect();
            if trial.program == Program::Prove {
                let name = words[0];
                assert!(crate::proofs::all().any(|proof| proof.name == name), "{name}");
                continue;
            }
            let value = |of: &str| {
                let at = words.iter().position(|word| *word == of).unwrap();
                words[at + 1]
            };
            let workload = value("--workload");
            assert!(crate::workload::all().iter().any(|known| known.name() == workload), "{workload}");
            for nemesis in value("--nemesis").split(',').filter(|nemesis| *nemesis != "none") {
                assert!(crate::nemesis::all().iter().any(|known| known.name() == nemesis), "{nemesis}");
            }
        }
    }
}
