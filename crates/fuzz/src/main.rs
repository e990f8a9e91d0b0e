//! `lockkeeper-fuzz`: tries the targets on stable Rust; `scripts/fuzz` builds and runs it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use clap::Parser;
use lockkeeper_fuzz::runner::{self, Found};
use lockkeeper_fuzz::{Target, all};

/// Tries what reads the bytes of others under mutations of true inputs.
#[derive(Parser)]
struct Arguments {
    /// The targets; all of them if none is named. --list explains them.
    targets: Vec<String>,
    /// For how long each target is tried.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Most inputs for each target.
    #[arg(long, default_value_t = u64::MAX)]
    inputs: u64,
    /// Input N of a seed is the same at every run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The first input to try; to see one again, together with --inputs 1.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Targets tried at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Where inputs are kept that break something.
    #[arg(long, default_value = "target/fuzz")]
    out: PathBuf,
    /// Tries the inputs in these files instead, with the one target that is named.
    #[arg(long)]
    input: Vec<PathBuf>,
    /// Writes the true inputs of the one target that is named into this directory and ends.
    #[arg(long)]
    seeds: Option<PathBuf>,
    /// Explains the targets and ends.
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
            eprintln!("there is no target {unknown:?}; --list names them");
            return ExitCode::from(2);
        }
    };
    if !arguments.input.is_empty() {
        return again(&chosen, &arguments.input);
    }
    if let Some(directory) = &arguments.seeds {
        return write_seeds(&chosen, directory);
    }
    runner::silence_panics();
    let (left, sound) = (Mutex::new(chosen), Mutex::new(true));
    let locked = || left.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    locked().reverse();
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let Some(target) = locked().pop() else { break };
                    if !attempt(&target, &arguments) {
                        *sound.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = false;
                    }
                }
            });
        }
    });
    let sound = sound.into_inner().unwrap_or(false);
    println!("{}", if sound { "every target held" } else { "something does not hold" });
    ExitCode::from(u8::from(!sound))
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
    let tell = |found: &Found| {
        let file = arguments.out.join(format!("{name}-{seed}-{}", found.number));
        let kept = std::fs::create_dir_all(&arguments.out).and_then(|()| std::fs::write(&file, &found.input));
        let kept = kept.map_or_else(|error| format!("not kept: {error}"), |()| format!("kept as {}", file.display()));
        println!(
            "{name}: input {} does not hold ({kept}): {}\n  again: scripts/fuzz {name} --seed {seed} --from {} --inputs 1",
            found.number, found.what, found.number
        );
    };
    let stuck = |found| {
        tell(&found);
        std::process::exit(1);
    };
    let time = Duration::from_secs(arguments.seconds);
    let report = runner::run(target, seed, arguments.from, arguments.inputs, time, stuck);
    let per_second = report.inputs as f64 / report.took.as_secs_f64().max(0.001);
    println!("{name}: {} inputs in {:.1} s, {per_second:.0} a second", report.inputs, report.took.as_secs_f64());
    report.found.iter().for_each(tell);
    report.found.is_none()
}

/// Panics as it panics: that is what one wants to see.
fn again(targets: &[Target], files: &[PathBuf]) -> ExitCode {
    let [target] = targets else {
        eprintln!("--input goes with one target");
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
        println!("{} holds", file.display());
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
