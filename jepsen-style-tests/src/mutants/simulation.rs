//! The first tier's hunt for the same bugs: `lockkeeper-sim-faulty --mutants`, and what it says of each.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lockkeeper_planted::Bug;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use super::table::{Came, Line, Table, Tier};
use crate::verdict::Failed;

/// No bug takes longer.
const LIMIT: Duration = Duration::from_secs(600);
/// Seeds for each bug before it counts as missed.
const SEEDS: &str = "100";

/// Hunts for these bugs; takes each line as it comes.
pub(super) async fn hunt(program: &Path, bugs: &[Bug], table: &mut Table) -> Result<(), Failed> {
    let all = bugs.len() == Bug::ALL.len();
    let each: Vec<Option<Bug>> = if all { vec![None] } else { bugs.iter().copied().map(Some).collect() };
    for bug in each {
        let mut command = Command::new(program);
        command.args(["--mutants", "--seeds", SEEDS]).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        if let Some(bug) = bug {
            command.args(["--plant", bug.name()]);
        }
        let mut child = command.spawn()?;
        let Some(said) = child.stdout.take() else { return Err(Failed::CannotRun("it has no output".into())) };
        let mut said = BufReader::new(said).lines();
        let (mut begun, mut heard) = (Instant::now(), Vec::new());
        // A bug of which it says nothing, because it hangs or has ended, is one that it was not seen to catch.
        while let Ok(line) = tokio::time::timeout(LIMIT, said.next_line()).await {
            let Some(line) = line? else { break };
            let Some((bug, came)) = read(&line) else { continue };
            heard.extend(bug);
            // The control comes first each time.
            if bug.is_some() || table.has_no_control(Tier::Simulation) {
                table.take(Line::tell(Tier::Simulation, bug, String::new(), came, begun.elapsed()));
            }
            begun = Instant::now();
        }
        child.start_kill()?;
        let status = child.wait().await?;
        for silent in bug.map_or(bugs.to_vec(), |bug| vec![bug]).into_iter().filter(|bug| !heard.contains(bug)) {
            let why = Came::NotRun(format!("the simulation ended ({status}) without a word of it"));
            table.take(Line::tell(Tier::Simulation, Some(silent), String::new(), why, begun.elapsed()));
        }
    }
    Ok(())
}

/// A line that tells of a bug, or of the run without any.
fn read(line: &str) -> Option<(Option<Bug>, Came)> {
    let (name, words) = line.split_once(": ")?;
    let bug = match name {
        "none" => None,
        _ => Some(Bug::ALL.iter().copied().find(|bug| bug.name() == name)?),
    };
    let came = match words {
        "passes" => Came::Passed,
        "MISSED" => Came::Missed,
        "not simulated" => Came::NotThere,
        _ => Came::Caught(words.strip_prefix("caught by ")?.to_owned()),
    };
    Some((bug, came))
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
        assert_eq!(read("two-holders: MISSED"), Some((Some(Bug::TwoHolders), Came::Missed)));
        assert_eq!(read("lease-from-answer: not simulated"), Some((Some(Bug::LeaseFromAnswer), Came::NotThere)));
        for other in ["", "two-holders: perhaps", "no-such-bug: MISSED", "| two-holders | locks |"] {
            assert_eq!(read(other), None, "{other:?}");
        }
    }
}
