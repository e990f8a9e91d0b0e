//! `lockkeeper-fuzz`: fuzzes the targets on stable Rust; `scripts/fuzz` builds and runs it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use clap::Parser;
use lockkeeper_fuzz::runner::{self, Found};
use lockkeeper_fuzz::{Target, all};

/// Fuzzes everything that reads untrusted bytes with mutations of valid inputs.
#[derive(Parser)]
struct Arguments {
    /// Targets to fuzz [default: all]; --list describes them.
    targets: Vec<String>,
    /// How long to fuzz each target, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Most inputs per target.
    #[arg(long, default_value_t = u64::MAX)]
    inputs: u64,
    /// Seed of the mutations. Input N of a seed is the same in every run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of the first input. Use with --inputs 1 to repeat one.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Targets to fuzz at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Directory for failing inputs.
    #[arg(long, default_value = "target/fuzz")]
    out: PathBuf,
    /// Try only the inputs in these files, with a single named target.
    #[arg(long)]
    input: Vec<PathBuf>,
    /// Write the seeds of the named target into this directory and exit.
    #[arg(long)]
    seeds: Option<PathBuf>,
    /// Describe the targets and exit.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        for Target { name, about, .. } in all() {
            println!("{name:<16} {about}");
        }
        return ExitCode::SUCCESS;
    }
    let chosen: Vec<Target> = match choose(&arguments.targets) {
        Ok(chosen) => chosen,
        Err(unknown) => {
            eprintln!("unknown target {unknown:?}; --list shows the targets");
            return ExitCode::from(2);
        }
    };
    if !arguments.input.is_empty() {
        return try_files(&chosen, &arguments.input);
    }
    if let Some(directory) = &arguments.seeds {
        return write_seeds(&chosen, directory);
    }
    runner::silence_panics();
    let (left, passed) = (Mutex::new(chosen), Mutex::new(true));
    let locked = || left.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    locked().reverse();
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let Some(target) = locked().pop() else { break };
                    if !attempt(&target, &arguments) {
                        *passed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = false;
                    }
                }
            });
        }
    });
    let passed = passed.into_inner().unwrap_or(false);
    println!("{}", if passed { "every target passed" } else { "a target failed" });
    ExitCode::from(u8::from(!passed))
}

fn choose(names: &[String]) -> Result<Vec<Target>, String> {
    if names.is_empty() {
        return Ok(all().to_vec());
    }
    let find = |name: &String| all().into_iter().find(|target| target.name == name).ok_or_else(|| name.clone());
    names.iter().map(find).collect()
}

fn attempt(target: &Target, arguments: &Arguments) -> bool {
    let (name, seed) = (target.name, arguments.seed);
    let report_failure = |found: &Found| {
        let file = arguments.out.join(format!("{name}-{seed}-{}", found.number));
        let kept = std::fs::create_dir_all(&arguments.out).and_then(|()| std::fs::write(&file, &found.input));
        let kept = kept.map_or_else(|error| format!("not kept: {error}"), |()| format!("kept as {}", file.display()));
        println!(
            "{name}: input {} failed ({kept}): {}\n  repeat: scripts/fuzz {name} --seed {seed} --from {} --inputs 1",
            found.number, found.what, found.number
        );
    };
    let stuck = |found| {
        report_failure(&found);
        std::process::exit(1);
    };
    let time = Duration::from_secs(arguments.seconds);
    let report = runner::run(target, seed, arguments.from, arguments.inputs, time, stuck);
    let per_second = report.inputs as f64 / report.took.as_secs_f64().max(0.001);
    println!("{name}: {} inputs in {:.1} s, {per_second:.0} a second", report.inputs, report.took.as_secs_f64());
    report.found.iter().for_each(report_failure);
    report.found.is_none()
}

/// Tries the inputs in files. A panic is not caught, so that its message shows.
fn try_files(targets: &[Target], files: &[PathBuf]) -> ExitCode {
    let [target] = targets else {
        eprintln!("--input needs exactly one target");
        return ExitCode::from(2);
    };
    for file in files {
        match read(file) {
            Ok(input) => (target.examine)(&input),
            Err(why) => {
                eprintln!("{why}");
                return ExitCode::from(2);
            }
        }
        println!("{} passed", file.display());
    }
    ExitCode::SUCCESS
}

fn write_seeds(targets: &[Target], directory: &Path) -> ExitCode {
    for (target, number) in targets.iter().flat_map(|target| (target.seeds)()).zip(0..) {
        if let Err(error) = std::fs::write(directory.join(format!("seed-{number}")), target) {
            eprintln!("cannot write into {}: {error}", directory.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
}
