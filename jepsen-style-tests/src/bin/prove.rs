//! `prove NAME`: tries to falsify one of the promises against real processes, and ends in one line.
//!
//! Exit codes: 0 holds, 1 broken, 2 could not be tried (skipped) or wrong usage.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use jepsen_style_tests::log::RunLog;
use jepsen_style_tests::proofs::{Context, PROOFS, Proof, be_greedy};
use jepsen_style_tests::verdict::{Failed, ProofResult, cannot_run};

/// Checks a promise of Lockkeeper against real processes on loopback.
#[derive(Parser)]
#[command(version, about)]
struct ProveArguments {
    /// Which proof; see --list.
    #[arg(required_unless_present_any = ["list", "be_greedy"])]
    name: Option<String>,
    /// Explain each proof in a line.
    #[arg(long)]
    list: bool,
    /// Rounds, for proofs that have them.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: Option<u32>,
    /// Where all chance comes from; drawn and printed where it is left out.
    #[arg(long)]
    seed: Option<u64>,
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
    calm_seconds: Option<u64>,
    /// Only these classes of `greedy`, or engines of `engines`, one or several separated by commas; all where it is
    /// left out.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// What this process is to do for `greedy`, which starts it.
    #[arg(long, hide = true)]
    be_greedy: Option<String>,
    /// Keep data and logs even if the promise holds.
    #[arg(long)]
    keep: bool,
    /// Where data and logs go; must be on a real disk for `synced`. A directory of the proof's own is made in it.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// Where the report of `soak` goes, in a directory of its own.
    #[arg(long, default_value = "target/soak")]
    report: PathBuf,
    /// The server's binary; the one beside this program where it is left out.
    #[arg(long, env = "LOCKKEEPER_BIN")]
    binary: Option<PathBuf>,
    /// The server's binary of the release before, for `rolling-upgrade`.
    #[arg(long, env = "LOCKKEEPER_PREVIOUS_BIN")]
    previous: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = ProveArguments::parse();
    if arguments.list {
        for proof in PROOFS {
            println!("{:<13} {}", proof.name, proof.about);
        }
        return ExitCode::SUCCESS;
    }
    if let Some(task) = &arguments.be_greedy {
        return be_greedy(task);
    }
    let name = arguments.name.clone().unwrap_or_default();
    let Some(proof) = PROOFS.iter().find(|proof| proof.name == name) else {
        eprintln!("prove: there is no proof '{name}'; --list names them");
        return ExitCode::from(2);
    };
    match prove(proof, &arguments) {
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
        let hint = "build it with `cargo build --release`, or give --binary";
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
        rounds: arguments.rounds,
        seconds: arguments.seconds.or(arguments.minutes).or(arguments.hours),
        calm_seconds: arguments.calm_seconds,
        only: arguments.only.clone(),
        report: arguments.report.clone(),
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
    let limit = (proof.limit)(context);
    tokio::select! {
        outcome = (proof.run)(context) => outcome,
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
