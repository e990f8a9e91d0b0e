//! The third tier: tests that notice a mutant which neither the simulation nor a run shows for sure. Each runs in a
//! process of its own, of a mutant build, and passes if it saw the defect.

use std::process::Stdio;
use std::time::{Duration, Instant};

use lockkeeper_mutants::{CaughtBy, Mutant};
use tokio::process::Command;

use super::table::{Came, MutantRow, Tier};
use crate::run::programs::Programs;
use crate::verdict::Failed;

/// It may have to be built first.
const LIMIT: Duration = Duration::from_secs(3_600);

/// Runs the test of this mutant, if it has one.
pub(super) async fn hunt(mutant: Mutant, programs: &Programs) -> Result<Option<MutantRow>, Failed> {
    let CaughtBy::Test(arguments) = mutant.caught_by() else { return Ok(None) };
    let begun = Instant::now();
    let mut command = Command::from(programs.mutant_tests(&arguments.split(' ').collect::<Vec<_>>()));
    command.env_remove(super::MUTANT).env("LOCKKEEPER_TEST_SERVERS", "1").stdin(Stdio::null()).kill_on_drop(true);
    let came = match tokio::time::timeout(LIMIT, command.output()).await {
        Ok(output) => {
            let output = output?;
            read(output.status.success(), &String::from_utf8_lossy(&output.stdout), arguments)
        }
        Err(_) => Came::NotRun(format!("not at an end after {LIMIT:?}")),
    };
    Ok(Some(MutantRow::tell(Tier::Tests, Some(mutant), format!("cargo test {arguments}"), came, begun.elapsed())))
}

fn read(success: bool, said: &str, arguments: &str) -> Came {
    let result = said.lines().find(|line| line.starts_with("test result: "));
    match result {
        Some(line) if success && line.contains(" 1 passed") => {
            Came::Caught(arguments.rsplit(' ').next().unwrap_or_default().to_owned())
        }
        Some(line) if line.contains(" 1 failed") => Came::Missed,
        Some(line) => Came::NotRun(line.to_owned()),
        None => Came::NotRun("the test was not built".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_one_test_that_passes_has_caught_something() {
        let read = |success, said: &str| read(success, said, "--lib a_test");
        let ran =
            |passed, failed| format!("running 1 test\ntest result: x. {passed} passed; {failed} failed; 0 ignored");
        assert_eq!(read(true, &ran(1, 0)), Came::Caught("a_test".into()));
        assert_eq!(read(false, &ran(0, 1)), Came::Missed);
        assert!(matches!(read(true, &ran(0, 0)), Came::NotRun(_)), "no test has this name");
        assert!(matches!(read(false, "error: could not compile"), Came::NotRun(_)));
    }
}
