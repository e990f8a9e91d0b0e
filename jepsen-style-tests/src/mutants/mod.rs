//! Shows that the tiers find defects: activates each mutant (`crates/mutants`) in turn, in the simulation, in the run
//! that should catch it here, and in the test that there is for it.
//!
//! A run under a mutant is a process of its own, this program or `prove`, with the server and the workers of a mutant
//! build, so it is the very run that users make. It catches the mutant if its verdict is *invalid* or *broken*; a run
//! that could not be made, or is unknown, does not. First the same runs are made by the same programs without a mutant
//! and must pass: otherwise nothing follows from the others.

mod simulation;
mod table;
mod trials;
mod unit_tests;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use lockkeeper_mutants::Mutant;
use tokio::process::Command;

pub use table::{Came, MutantRow, Table, Tier};
use trials::{MutantTrial, Program};

use crate::run::programs::Programs;
use crate::verdict::Failed;
use crate::workers;

/// The variable that activates a mutant in the programs of a mutant build.
const MUTANT: &str = "LOCKKEEPER_MUTANT";
/// No trial takes longer.
const LIMIT: Duration = Duration::from_secs(900);
/// How a harness says that a port which it had chosen was taken before a node could.
const PORT_TAKEN: [&str; 2] = ["another process has this port", "Address already in use"];
/// Trials of a mutant with other seeds before it counts as missed.
const ATTEMPTS: u64 = 2;

/// What is to be tried.
#[derive(Clone, Debug, Default)]
pub struct MutantPlan {
    /// These mutants only, by name; all where it is empty.
    pub only: Vec<String>,
    /// Leave out the runs without a mutant.
    pub without_controls: bool,
    /// Where all chance comes from.
    pub seed: u64,
}

/// Tries every mutant, writes what each run said and the table into `dir`, and tells as it goes.
pub async fn run(plan: &MutantPlan, programs: &Programs, dir: &Path) -> Result<Table, Failed> {
    let mutants = chosen(&plan.only)?;
    let built = programs.mutants()?;
    let setup = TrialSetup {
        server: built.server,
        worker: built.worker,
        prove: programs.prove()?,
        itself: std::env::current_exe()?,
        dir: dir.to_path_buf(),
        seed: plan.seed,
    };
    let mut table = Table::default();
    simulation::hunt(&built.simulation, &mutants, &mut table).await?;
    if !plan.without_controls {
        for trial in trials::distinct(&mutants) {
            table.take(setup.control(&trial).await?);
        }
    }
    for mutant in mutants {
        table.take(setup.hunt(mutant).await?);
        if let Some(row) = unit_tests::hunt(mutant, programs).await? {
            table.take(row);
        }
    }
    std::fs::write(dir.join("mutants.md"), table.markdown())?;
    Ok(table)
}

fn chosen(only: &[String]) -> Result<Vec<Mutant>, Failed> {
    let named = |name: &String| {
        let mutant = Mutant::ALL.iter().copied().find(|mutant| mutant.name() == name);
        mutant.ok_or_else(|| {
            let names: Vec<&str> = Mutant::ALL.iter().map(|mutant| mutant.name()).collect();
            Failed::CannotRun(format!("no mutant is called '{name}'; there are: {}", names.join(", ")))
        })
    };
    if only.is_empty() { Ok(Mutant::ALL.to_vec()) } else { only.iter().map(named).collect() }
}

/// With what the trials are made.
struct TrialSetup {
    server: PathBuf,
    worker: PathBuf,
    prove: PathBuf,
    itself: PathBuf,
    dir: PathBuf,
    seed: u64,
}

impl TrialSetup {
    async fn control(&self, trial: &MutantTrial) -> Result<MutantRow, Failed> {
        let begun = Instant::now();
        let said = self.run(trial, None, self.seed, &format!("control-{}", trial.slug())).await?;
        let came = match said {
            MutantTrialResult::Passed => Came::Passed,
            MutantTrialResult::Invalid(what) => Came::Caught(what),
            MutantTrialResult::Nothing(why) => Came::NotRun(why),
        };
        Ok(MutantRow::tell(Tier::Processes, None, trial.words(), came, begun.elapsed()))
    }

    async fn hunt(&self, mutant: Mutant) -> Result<MutantRow, Failed> {
        let begun = Instant::now();
        let trials = trials::of(mutant);
        let mut run = trials.iter().map(MutantTrial::words).collect::<Vec<_>>().join("; ");
        let mut came = if trials.is_empty() { Came::NotThere } else { Came::Missed };
        'hunt: for attempt in 0..ATTEMPTS {
            for trial in trials {
                let name = format!("{mutant}-{}-{attempt}", trial.slug());
                match self.run(trial, Some(mutant), self.seed.wrapping_add(attempt), &name).await? {
                    MutantTrialResult::Invalid(what) => {
                        (run, came) = (trial.words(), Came::Caught(what));
                        break 'hunt;
                    }
                    MutantTrialResult::Passed => came = Came::Missed,
                    MutantTrialResult::Nothing(why) => came = Came::NotRun(why),
                }
            }
        }
        Ok(MutantRow::tell(Tier::Processes, Some(mutant), run, came, begun.elapsed()))
    }

    /// One run, and what it said.
    async fn run(
        &self,
        trial: &MutantTrial,
        mutant: Option<Mutant>,
        seed: u64,
        name: &str,
    ) -> Result<MutantTrialResult, Failed> {
        let out = self.dir.join(name);
        std::fs::create_dir_all(&out)?;
        let mut command = match trial.program {
            Program::Run => Command::new(&self.itself),
            Program::Prove => Command::new(&self.prove),
        };
        command.args(trial.arguments.split(' ')).arg("--seed").arg(seed.to_string()).arg("--binary").arg(&self.server);
        match trial.program {
            Program::Run => command.arg("--out").arg(&out),
            Program::Prove => command.arg("--dir").arg(&out),
        };
        command.env(workers::PROGRAM, &self.worker).env(MUTANT, mutant.map_or("", Mutant::name));
        if let Some(entries) = trial.snapshot_every {
            command.env("LOCKKEEPER_STORAGE__SNAPSHOT_EVERY_ENTRIES", entries.to_string());
            command.env("LOCKKEEPER_STORAGE__KEEP_ENTRIES", "0");
        }
        let log = out.join("said.log");
        command.stdin(Stdio::null()).stdout(std::fs::File::create(&log)?).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let Ok(status) = tokio::time::timeout(LIMIT, child.wait()).await else {
            return Ok(MutantTrialResult::Nothing(format!("not at an end after {LIMIT:?}")));
        };
        let finding = |what: &str| mutant.is_none_or(|mutant| trials::is_of(mutant, what));
        Ok(MutantTrialResult::of(trial.program, status?.code(), &std::fs::read_to_string(&log)?, finding))
    }
}

/// What a run came to.
#[derive(Debug, PartialEq, Eq)]
enum MutantTrialResult {
    Passed,
    /// Something is wrong, and what.
    Invalid(String),
    /// It says nothing, and why.
    Nothing(String),
}

impl MutantTrialResult {
    /// `is_finding` picks what the mutant would be seen by: anything else that went wrong says nothing of it.
    fn of(program: Program, code: Option<i32>, text: &str, is_finding: impl Fn(&str) -> bool) -> Self {
        let last = text.lines().last().unwrap_or("it said nothing").to_owned();
        let wrong = |line: &str| match program {
            // A check and what it found.
            Program::Run => line.strip_prefix("  invalid ").map(one_spaced),
            Program::Prove => line.split_once(": broken (").map(|(_, what)| one_spaced(what)),
        };
        let wrong: Vec<String> = text.lines().filter_map(wrong).collect();
        let finding = wrong.iter().find(|what| is_finding(what));
        match (code, finding, wrong.first()) {
            (Some(0), _, _) => Self::Passed,
            // Somebody else on this machine was faster: no mutant's doing.
            (_, _, Some(what)) if PORT_TAKEN.iter().any(|said| what.contains(said)) => Self::Nothing(what.clone()),
            (Some(1), Some(what), _) => Self::Invalid(what.clone()),
            (Some(1), None, Some(what)) => Self::Nothing(format!("something else went wrong: {what}")),
            (Some(1), None, None) => Self::Nothing(format!("unknown: {last}")),
            _ => Self::Nothing(last),
        }
    }
}

fn one_spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_found_to_be_wrong_counts_as_caught() {
        let any = |_: &str| true;
        let of = |program, code, text| MutantTrialResult::of(program, Some(code), text, any);
        let report =
            "lock under none, seed 1\n  valid    order    fine\n  invalid  exclusion     two  at once\ninvalid: lock\n";
        assert_eq!(of(Program::Run, 1, report), MutantTrialResult::Invalid("exclusion two at once".into()));
        let unknown = "  unknown  final reads   no answer\nunknown: lock under none\n";
        assert_eq!(
            of(Program::Run, 1, unknown),
            MutantTrialResult::Nothing("unknown: unknown: lock under none".into())
        );
        assert_eq!(of(Program::Run, 2, ""), MutantTrialResult::Nothing("it said nothing".into()));
        assert_eq!(of(Program::Run, 0, report), MutantTrialResult::Passed);
        let proof = "[ 1.0] round 1\nherd: broken (three woken; seed 1)\n";
        assert_eq!(of(Program::Prove, 1, proof), MutantTrialResult::Invalid("three woken; seed 1)".into()));
        let taken = "herd: broken (cannot listen on x: another process has this port)";
        assert!(matches!(of(Program::Prove, 1, taken), MutantTrialResult::Nothing(_)));
        assert_eq!(of(Program::Prove, 2, "x: skipped (y)"), MutantTrialResult::Nothing("x: skipped (y)".into()));
    }

    #[test]
    fn what_the_bug_would_not_do_says_nothing_of_it() {
        let report = "  invalid  final reads   no answer\n  invalid  exclusion  two at once\n";
        let finding = |what: &str| what.starts_with("exclusion");
        assert_eq!(
            MutantTrialResult::of(Program::Run, Some(1), report, finding),
            MutantTrialResult::Invalid("exclusion two at once".into())
        );
        let other = MutantTrialResult::of(Program::Run, Some(1), report, |_| false);
        assert_eq!(other, MutantTrialResult::Nothing("something else went wrong: final reads no answer".into()));
    }
}
