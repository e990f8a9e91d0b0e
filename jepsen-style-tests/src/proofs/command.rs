//! The program `prove`: tries to falsify one of the promises against real processes, and ends in one line. It also
//! tells scripts what they need to know of the proofs.
//!
//! Exit codes: 0 holds, 1 broken, 2 could not be tried (skipped) or wrong usage.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser};

use super::{Context, Proof, ServerBuild, all, greedy};
use crate::log::RunLog;
use crate::verdict::{Failed, ProofResult, cannot_run};

/// Checks a promise of Lockkeeper against real processes on loopback.
#[derive(Parser)]
#[command(version, about)]
struct ProveArguments {
    /// Which proof; see --list.
    #[arg(required_unless_present_any = ["list", "gate", "be_greedy"])]
    name: Option<String>,
    /// Explain each proof in a line.
    #[arg(long)]
    list: bool,
    /// Print how the gate runs the proofs: a line each for scripts/check.
    #[arg(long, hide = true)]
    gate: bool,
    /// Print which build of the server the proof needs beside that of the tests: `release`, `previous` or nothing. For
    /// scripts/prove.
    #[arg(long, hide = true)]
    needs: bool,
    #[command(flatten)]
    options: ProofOptions,
    /// Where all chance comes from; drawn and printed where it is left out.
    #[arg(long)]
    seed: Option<u64>,
    /// What this process is to do for `greedy`, which starts it.
    #[arg(long, hide = true)]
    be_greedy: Option<String>,
    /// Keep data and logs even if the promise holds.
    #[arg(long)]
    keep: bool,
    /// Where data and logs go; must be on a real disk for `synced`. A directory of the proof's own is made in it.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// The server's binary; the one beside this program where it is left out.
    #[arg(long, env = "LOCKKEEPER_BIN")]
    binary: Option<PathBuf>,
    /// The server's binary of the release before, for `rolling-upgrade`.
    #[arg(long, env = "LOCKKEEPER_PREVIOUS_BIN")]
    previous: Option<PathBuf>,
}

/// What somebody may choose of a proof, where it has that.
#[derive(Args, Clone)]
pub struct ProofOptions {
    /// Rounds, for proofs that have them.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: Option<u32>,
    /// Seconds of the main phase, for proofs that have one.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=86_400), group = "length")]
    seconds: Option<u64>,
    /// The same in minutes, such as 2.5.
    #[arg(long, value_parser = |text: &str| seconds_of(text, 60.0), value_name = "N", group = "length")]
    minutes: Option<u64>,
    /// The same in hours, such as 0.5, up to 31 days.
    #[arg(long, value_parser = |text: &str| seconds_of(text, 3_600.0), value_name = "N", group = "length")]
    hours: Option<u64>,
    /// Seconds of each of the two calm phases of `failover` (0 leaves them out).
    #[arg(long, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub calm_seconds: Option<u64>,
    /// Only these classes of `greedy`, or engines of `engines`, one or several separated by commas; all where it is
    /// left out.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Where the report of `soak` goes, in a directory of its own.
    #[arg(long, default_value = "target/soak")]
    pub report: PathBuf,
}

impl ProofOptions {
    /// For how long the main phase goes on, where somebody chose.
    pub(super) fn length_s(&self) -> Option<u64> {
        self.seconds.or(self.minutes).or(self.hours)
    }
}

/// The whole program.
pub fn main() -> ExitCode {
    let arguments = ProveArguments::parse();
    if arguments.list {
        all().for_each(|proof| println!("{:<18} {}", proof.name, proof.about));
        return ExitCode::SUCCESS;
    }
    if arguments.gate {
        all().filter_map(|proof| proof.line_for_gate()).for_each(|line| println!("{line}"));
        return ExitCode::SUCCESS;
    }
    if let Some(task) = &arguments.be_greedy {
        return greedy::be_greedy(task);
    }
    let name = arguments.name.clone().unwrap_or_default();
    let Some(proof) = all().find(|proof| proof.name == name) else {
        eprintln!("prove: there is no proof '{name}'; --list names them");
        return ExitCode::from(2);
    };
    if arguments.needs {
        match proof.build {
            ServerBuild::Tests => {}
            ServerBuild::Release => println!("release"),
            ServerBuild::Previous => println!("previous"),
        }
        return ExitCode::SUCCESS;
    }
    match prove(&proof, &arguments) {
        Ok(code) => code,
        Err(error) => {
            println!("{name}: skipped ({error})");
            ExitCode::from(2)
        }
    }
}

fn prove(proof: &Proof, arguments: &ProveArguments) -> std::io::Result<ExitCode> {
    let binary = arguments.binary.clone().map_or_else(binary_beside_us, Ok)?;
    if !binary.is_file() {
        let hint = "build it with `scripts/build`, or give --binary";
        return Err(std::io::Error::other(format!("no server binary at {}: {hint}", binary.display())));
    }
    let evidence =
        tempfile::Builder::new().prefix(&format!("lockkeeper-{}-", proof.name)).tempdir_in(&arguments.dir)?;
    let seed = arguments.seed.unwrap_or_else(rand::random);
    let context = Context {
        binary: binary.canonicalize()?,
        previous: arguments.previous.as_ref().map(|path| path.canonicalize()).transpose()?,
        dir: evidence.path().to_path_buf(),
        log: RunLog::begin(evidence.path())?,
        seed,
        options: arguments.options.clone(),
    };
    context.log.say(format!("{}: {}", proof.name, proof.about));
    context.log.say(format!("seed {seed}, data and logs in {}", context.dir.display()));
    let outcome = tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(bounded(proof, &context));
    let kept = arguments.keep || matches!(outcome, Err(Failed::Broken(_)));
    let dir = if kept { evidence.keep() } else { evidence.path().to_path_buf() };
    let (line, code) = match outcome {
        Ok(figures) => (format!("{}: holds ({figures}; seed {seed})", proof.name), ExitCode::SUCCESS),
        Err(Failed::Broken(what)) => {
            (format!("{}: broken ({what}; seed {seed}; evidence in {})", proof.name, dir.display()), ExitCode::FAILURE)
        }
        Err(Failed::CannotRun(why)) => (format!("{}: skipped ({why})", proof.name), ExitCode::from(2)),
    };
    context.log.note(&line);
    println!("{}", line.replace('\n', " "));
    Ok(code)
}

async fn bounded(proof: &Proof, context: &Context) -> ProofResult {
    let limit = proof.limit(context);
    tokio::select! {
        outcome = proof.run(context) => outcome,
        () = tokio::time::sleep(limit) => Err(Failed::Broken(format!("did not come to an end within {limit:?}"))),
        _ = tokio::signal::ctrl_c() => cannot_run("interrupted"),
    }
}

/// A length of time in this unit, which may be a fraction.
fn seconds_of(text: &str, unit_s: f64) -> Result<u64, String> {
    const MOST_S: f64 = 31.0 * 86_400.0;
    let seconds = text.parse::<f64>().map_err(|_| "give a number, such as 0.5".to_owned())? * unit_s;
    // NaN is within no bounds.
    if !(1.0..=MOST_S).contains(&seconds) {
        return Err("give at least a second and at most 31 days".into());
    }
    // Within these bounds.
    Ok(seconds.round() as u64)
}

fn binary_beside_us() -> std::io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("lockkeeper"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_differ() {
        let names: BTreeSet<&str> = all().map(|proof| proof.name).collect();
        assert_eq!(names.len(), all().count());
    }

    #[test]
    fn what_the_gate_runs_is_a_command_line_and_scripts_check_takes_each_kind() {
        let script = include_str!("../../../scripts/check");
        let mut kinds = BTreeSet::new();
        for line in all().filter_map(|proof| proof.line_for_gate()) {
            let (kind, words) = line.split_once(' ').unwrap();
            let arguments = ProveArguments::try_parse_from(["prove"].into_iter().chain(words.split(' ')));
            let name = arguments.unwrap().name.unwrap();
            assert!(all().any(|proof| proof.name == name), "{line}");
            kinds.insert(kind.to_owned());
        }
        assert_eq!(kinds.len(), 3, "{kinds:?}");
        for kind in kinds {
            assert!(script.contains(&format!("gate_runs {kind}\n")), "scripts/check leaves out the runs {kind}");
        }
    }
}
