//! The command line: runs seeds and reports the results.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::Parser;
use parking_lot::Mutex;

use crate::report::Totals;
use crate::run::{Report, run};
use crate::swarm::Plan;

/// How often it is said how far it has come.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// A run that takes longer is named.
const SLOW: Duration = Duration::from_secs(30);
/// So many runs have every kind of fault among them, or too much was left out.
const ALL_FAULTS_FROM: u64 = 200;

/// Whole Lockkeeper clusters in one thread under a seed, with faults, and everything checked after every step.
///
/// Exits with 0 if every run kept every promise, with 1 if one did not, with 2 if the runs could not be made.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper-sim", version = lockkeeper_mutants::version!())]
struct Args {
    /// How many seeds to run [default: 100, and 1 with --determinism].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run this seed alone.
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// Length of the phase with faults, in simulated seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    time: Option<u64>,
    /// Write the trace of the (first) seed here: one line for each thing that happens.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// How many runs to make at the same time, each on a thread of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    jobs: u64,
    /// Go on after a run that failed.
    #[arg(long)]
    keep_going: bool,
    /// Run each seed twice, and compare the two traces line by line.
    #[arg(long, conflicts_with = "jobs")]
    determinism: bool,
    /// Activate each mutant in turn, and run seeds until it is caught; `--seeds` bounds how many. Needs a mutant build.
    #[arg(long, conflicts_with_all = ["jobs", "determinism", "trace"])]
    mutants: bool,
    /// Activate this mutant, by its name, in place of the one that LOCKKEEPER_MUTANT names. Needs a mutant build.
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
    /// Say what the nodes log: a filter such as `info`.
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

impl Args {
    fn plan(&self, seed: u64) -> Plan {
        let mut plan = self.draw(seed);
        self.adapt(&mut plan);
        plan
    }

    /// With a mutant, the plan that the hunt for it makes of the seed: so each catch can be seen again.
    fn draw(&self, seed: u64) -> Plan {
        #[cfg(mutants)]
        if let Some(mutant) = self.mutant.as_ref().and_then(|name| name.parse().ok()) {
            return crate::mutants::plan(Some(mutant), seed);
        }
        Plan::draw(seed)
    }

    fn adapt(&self, plan: &mut Plan) {
        if let Some(seconds) = self.time {
            plan.fault_phase = Duration::from_secs(seconds);
        }
    }

    fn first(&self) -> u64 {
        self.seed.unwrap_or(self.first)
    }

    fn count(&self) -> u64 {
        if self.seed.is_some() { 1 } else { self.seeds.unwrap_or(if self.determinism { 1 } else { 100 }) }
    }

    /// What to type to see this run again.
    fn again(&self, seed: u64) -> String {
        format!("{} --seed {seed}{} --trace trace.txt", self.program(), self.options())
    }

    fn program(&self) -> String {
        if self.mutant.is_some() { MUTANT_BUILD.into() } else { "cargo run --release -p lockkeeper-sim --".into() }
    }

    fn options(&self) -> String {
        let time = self.time.map(|seconds| format!(" --time {seconds}")).unwrap_or_default();
        let mutant = self.mutant.as_ref().map(|name| format!(" --mutant {name}")).unwrap_or_default();
        time + &mutant
    }
}

/// Runs what the command line asks for.
#[must_use]
pub fn main() -> ExitCode {
    let mut args = Args::parse();
    if let Err(why) = activate(&mut args) {
        eprintln!("lockkeeper-sim: {why}");
        return ExitCode::from(2);
    }
    if let Some(filter) = &args.log {
        tracing_subscriber::fmt().with_env_filter(filter.as_str()).with_writer(std::io::stderr).without_time().init();
    }
    if args.determinism {
        return determinism(&args);
    }
    if args.mutants {
        return mutants(&args);
    }
    seeds(&args)
}

fn seeds(args: &Args) -> ExitCode {
    let count = args.count();
    if args.first().checked_add(count - 1).is_none() {
        eprintln!("there are no {count} seeds from {} on", args.first());
        return ExitCode::from(2);
    }
    let started = Instant::now();
    let mut totals = Totals::default();
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let running = Running::default();
    let mut written = Ok(());
    std::thread::scope(|scope| {
        let (send, reports) = mpsc::channel();
        for _ in 0..args.jobs {
            let (send, next, stop, running) = (send.clone(), &next, &stop, &running);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        break;
                    }
                    let seed = args.first() + number;
                    running.begin(seed);
                    let report = run(&traced(args, seed));
                    running.end(seed);
                    if send.send(report).is_err() {
                        break;
                    }
                }
            });
        }
        drop(send);
        let mut progress_at = Instant::now();
        loop {
            match reports.recv_timeout(PROGRESS_EVERY) {
                Ok(report) => {
                    totals.add(&report);
                    if report.seed == args.first() {
                        written = write_trace(args, &report);
                    }
                    if print_report(args, &report) {
                        stop.store(!args.keep_going, Ordering::Relaxed);
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            if progress_at.elapsed() > PROGRESS_EVERY {
                progress_at = Instant::now();
                eprintln!("{}", totals.progress(count));
                running.print_slow();
            }
        }
    });
    println!("{}", totals.tables(started.elapsed()));
    if let Err(error) = written {
        eprintln!("the trace could not be written: {error}");
        return ExitCode::from(2);
    }
    conclude(args, &totals)
}

fn conclude(args: &Args, totals: &Totals) -> ExitCode {
    if !totals.failed().is_empty() {
        println!("\nFAILED: seeds {:?}", totals.failed());
        for seed in totals.failed() {
            println!("again: {}", args.again(*seed));
        }
        return ExitCode::FAILURE;
    }
    if totals.runs() == 0 {
        println!("\nFAILED: nothing was run");
        return ExitCode::FAILURE;
    }
    let never = totals.never_injected();
    if totals.runs() >= ALL_FAULTS_FROM && args.mutant.is_none() && !never.is_empty() {
        println!("\nFAILED: {} runs without a fault of kind {}", totals.runs(), never.join(", "));
        return ExitCode::FAILURE;
    }
    println!("\nall {} runs kept every promise", totals.runs());
    ExitCode::SUCCESS
}

/// True if the run has broken a promise.
fn print_report(args: &Args, report: &Report) -> bool {
    let Some(violation) = &report.violation else { return false };
    println!("seed {} FAILED after {:.1} simulated seconds", report.seed, report.simulated.as_secs_f64());
    println!("  {violation}");
    println!("  plan: {}", args.plan(report.seed).summary());
    println!("  again: {}", args.again(report.seed));
    true
}

/// Which seeds are being run, so that one that never ends is named.
#[derive(Default)]
struct Running(Mutex<BTreeMap<u64, Instant>>);

impl Running {
    fn begin(&self, seed: u64) {
        self.0.lock().insert(seed, Instant::now());
    }

    fn end(&self, seed: u64) {
        self.0.lock().remove(&seed);
    }

    fn print_slow(&self) {
        for (seed, begun) in self.0.lock().iter().filter(|(_, begun)| begun.elapsed() > SLOW) {
            eprintln!("seed {seed} has been running for {} s", begun.elapsed().as_secs());
        }
    }
}

fn traced(args: &Args, seed: u64) -> Plan {
    let mut plan = args.plan(seed);
    plan.world.keep_trace = args.trace.is_some() && seed == args.first();
    plan
}

fn write_trace(args: &Args, report: &Report) -> std::io::Result<()> {
    let Some(file) = &args.trace else { return Ok(()) };
    let mut text = report.trace.join("\n");
    text.push('\n');
    std::fs::write(file, text)?;
    println!("trace of seed {}: {} lines in {}", report.seed, report.trace.len(), file.display());
    Ok(())
}

/// Whether the same seed gives the same run.
fn determinism(args: &Args) -> ExitCode {
    let seeds = args.first()..args.first().saturating_add(args.count());
    for seed in seeds {
        match same_twice(args, seed) {
            Ok(true) => {}
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => {
                eprintln!("the trace could not be written: {error}");
                return ExitCode::from(2);
            }
        }
    }
    println!("the two traces of each seed are the same, byte by byte, and so is all that was counted");
    ExitCode::SUCCESS
}

/// Whether the runs of a seed are the same, and kept every promise.
fn same_twice(args: &Args, seed: u64) -> std::io::Result<bool> {
    let mut plan = args.plan(seed);
    plan.world.keep_trace = true;
    let (one, two) = (run(&plan), run(&plan));
    if seed == args.first() {
        write_trace(args, &one)?;
    }
    println!(
        "seed {seed}: {} lines, hash {:016x}; again: {} lines, hash {:016x}",
        one.trace.len(),
        one.trace_hash,
        two.trace.len(),
        two.trace_hash
    );
    let same = one.is_same_run_as(&two);
    if let Err(what) = &same {
        println!("the two runs differ in {what}");
        let different = one.trace.iter().zip(&two.trace).position(|(one, two)| one != two);
        let at = different.unwrap_or_else(|| one.trace.len().min(two.trace.len()));
        for (name, report) in [("one", &one), ("two", &two)] {
            for line in report.trace.iter().skip(at.saturating_sub(2)).take(5) {
                println!("  {name}: {line}");
            }
        }
        println!("again: {} --first {seed} --determinism{}", args.program(), args.options());
    }
    Ok(!print_report(args, &one) && same.is_ok())
}

/// What runs the simulation of a mutant build.
const MUTANT_BUILD: &str =
    "cargo run --release -p lockkeeper-sim --config .cargo/mutants.toml --target-dir target/mutants --";

#[cfg(not(mutants))]
fn not_built() -> String {
    format!("this build has no mutants: {MUTANT_BUILD} ...")
}

#[cfg(not(mutants))]
fn activate(args: &mut Args) -> Result<(), String> {
    if args.mutant.is_some() { Err(not_built()) } else { Ok(()) }
}

/// Activates the mutant that the command line or else the environment names, and says so.
#[cfg(mutants)]
fn activate(args: &mut Args) -> Result<(), lockkeeper_mutants::UnknownMutant> {
    match &args.mutant {
        Some(name) => lockkeeper_mutants::activate(Some(name.parse()?)),
        None => lockkeeper_mutants::from_env()?,
    }
    lockkeeper_mutants::announce("lockkeeper-sim");
    args.mutant = lockkeeper_mutants::active().map(|mutant| mutant.name().to_owned());
    Ok(())
}

#[cfg(not(mutants))]
fn mutants(_: &Args) -> ExitCode {
    eprintln!("lockkeeper-sim: {}", not_built());
    ExitCode::from(2)
}

/// Every mutant, and a control without any.
#[cfg(mutants)]
fn mutants(args: &Args) -> ExitCode {
    use lockkeeper_mutants::Mutant;

    use crate::mutants::hunt;
    use crate::report::table;

    let only = args.mutant.as_ref().and_then(|name| name.parse::<Mutant>().ok());
    let mutants = Mutant::ALL.iter().copied().filter(|mutant| only.is_none_or(|only| only == *mutant)).map(Some);
    let mut shown = table(&["mutant", "caught by", "with seed", "seeds tried", "wall time"]);
    let mut good = true;
    for mutant in [None].into_iter().chain(mutants) {
        let most = if mutant.is_none() { args.count().min(20) } else { args.count() };
        let hunted = hunt(mutant, args.first(), most, |plan| args.adapt(plan));
        let name = mutant.map_or("none", Mutant::name);
        let seed = hunted.caught.as_ref().map_or_else(String::new, |(seed, _)| seed.to_string());
        // Read by the fault suite, which shows both tiers side by side.
        let (by, words) = match (&hunted.caught, mutant) {
            (Some((seed, broken)), _) => {
                let check = broken.check.name();
                (check, format!("caught by {check} (seed {seed}: {broken})"))
            }
            (None, None) => ("nothing, as it should be", "passes".to_owned()),
            (None, Some(mutant)) if !mutant.caught_by().is_simulated() => {
                ("not simulated: second tier", "not simulated".to_owned())
            }
            (None, Some(_)) => ("MISSED", "MISSED".to_owned()),
        };
        println!("{name}: {words}");
        good &= match mutant {
            None => hunted.caught.is_none(),
            Some(mutant) => hunted.caught.is_some() || !mutant.caught_by().is_simulated(),
        };
        let wall = format!("{:.1} s", hunted.wall.as_secs_f64());
        shown.add_row([name.to_owned(), by.to_owned(), seed, hunted.tried.to_string(), wall]);
    }
    println!("{shown}");
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
