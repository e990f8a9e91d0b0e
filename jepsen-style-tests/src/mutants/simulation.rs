//! The simulation's hunt for the same mutants: runs `lockkeeper-sim-mutant --mutants` and reads its result for each.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lockkeeper_mutants::Mutant;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use super::table::{Came, MutantRow, Table, Tier};
use crate::verdict::{Failed, cannot_run};

/// No mutant takes longer.
const LIMIT: Duration = Duration::from_secs(600);
/// Seeds for each mutant before it counts as missed.
const SEEDS: &str = "100";

/// Hunts for these mutants; takes each line as it comes.
pub(super) async fn hunt(program: &Path, mutants: &[Mutant], table: &mut Table) -> Result<(), Failed> {
    let all = mutants.len() == Mutant::ALL.len();
    let each: Vec<Option<Mutant>> = if all { vec![None] } else { mutants.iter().copied().map(Some).collect() };
    for mutant in each {
        let mut command = Command::new(program);
        command.args(["--mutants", "--seeds", SEEDS]).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        command.env_remove(super::MUTANT);
        if let Some(mutant) = mutant {
            command.args(["--mutant", mutant.name()]);
        }
        let mut child = command.spawn()?;
        let Some(said) = child.stdout.take() else { return cannot_run("it has no output") };
        let mut said = BufReader::new(said).lines();
        let (mut begun, mut heard) = (Instant::now(), Vec::new());
        // A mutant of which it says nothing, because it hangs or has ended, is one that it was not seen to catch.
        while let Ok(line) = tokio::time::timeout(LIMIT, said.next_line()).await {
            let Some(line) = line? else { break };
            let Some((mutant, came)) = read(&line) else { continue };
            heard.extend(mutant);
            // The control comes first each time.
            if mutant.is_some() || table.has_no_control(Tier::Simulation) {
                table.take(MutantRow::tell(Tier::Simulation, mutant, String::new(), came, begun.elapsed()));
            }
            begun = Instant::now();
        }
        child.start_kill()?;
        let status = child.wait().await?;
        let asked = mutant.map_or(mutants.to_vec(), |mutant| vec![mutant]);
        for silent in asked.into_iter().filter(|mutant| !heard.contains(mutant)) {
            let why = Came::NotRun(format!("the simulation ended ({status}) without a word of it"));
            table.take(MutantRow::tell(Tier::Simulation, Some(silent), String::new(), why, begun.elapsed()));
        }
    }
    Ok(())
}

/// A line that tells of a mutant, or of the run without any.
fn read(line: &str) -> Option<(Option<Mutant>, Came)> {
    let (name, words) = line.split_once(": ")?;
    let mutant = match name {
        "none" => None,
        _ => Some(Mutant::ALL.iter().copied().find(|mutant| mutant.name() == name)?),
    };
    let came = match words {
        "passes" => Came::Passed,
        "MISSED" => Came::Missed,
        "not simulated" => Came::NotThere,
        _ => Came::Caught(words.strip_prefix("caught by ")?.to_owned()),
    };
    Some((mutant, came))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ending_is_told_apart() {
        assert_eq!(read("none: passes"), Some((None, Came::Passed)));
        assert_eq!(
            read("none: caught by locks (seed 3: two)"),
            Some((None, Came::Caught("locks (seed 3: two)".into())))
        );
        assert_eq!(read("two-holders: MISSED"), Some((Some(Mutant::TwoHolders), Came::Missed)));
        assert_eq!(read("lease-from-answer: not simulated"), Some((Some(Mutant::LeaseFromAnswer), Came::NotThere)));
        for other in ["", "two-holders: perhaps", "no-such-mutant: MISSED", "| two-holders | locks |"] {
            assert_eq!(read(other), None, "{other:?}");
        }
    }
}
