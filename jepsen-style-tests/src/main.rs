//! `jepsen-style-tests`: runs workloads under faults against real processes, checks their history and writes a report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser as _;
use jepsen_style_tests::report::Report;
use jepsen_style_tests::run::RunEnd;
use jepsen_style_tests::run::matrix;
use jepsen_style_tests::run::programs::Programs;
use jepsen_style_tests::run::screen::Screen;
use jepsen_style_tests::run::settings::{Arguments, Settings};
use jepsen_style_tests::verdict::{Failed, cannot_run};
use jepsen_style_tests::{mutants, nemesis, run, workload};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        list();
        return ExitCode::SUCCESS;
    }
    if !arguments.judge.is_empty() {
        return if run::archive::judge(&arguments.judge) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let done = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failed::from);
    let done = done.and_then(|runtime| {
        runtime.block_on(async {
            tokio::select! {
                done = tests(&arguments) => done,
                _ = tokio::signal::ctrl_c() => cannot_run("interrupted"),
            }
        })
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failed) => {
            eprintln!("jepsen-style-tests: could not run: {failed}");
            ExitCode::from(2)
        }
    }
}

fn list() {
    println!("Workloads (--workload), and the promises that each can falsify:");
    for workload in workload::all() {
        let workload::Facts { name, about, promises } = workload.facts();
        println!("  {name:<16} {promises:<12} {about}");
    }
    println!("Nemeses (--nemesis):");
    for nemesis in nemesis::all() {
        let (name, about) = nemesis.names();
        println!("  {name:<20} {about}");
    }
    println!("  {:<20} random overlapping combinations of all that this machine can have", "all");
}

/// Whether all went as it must.
async fn tests(arguments: &Arguments) -> Result<bool, Failed> {
    let seed = arguments.seed.unwrap_or_else(rand::random);
    let runs = arguments.settings(seed).map_err(Failed::CannotRun)?;
    let programs = Programs::ready(arguments.binary.as_deref())?;
    let out = arguments.out.clone().unwrap_or_else(|| programs.target().join("jepsen"));
    if arguments.matrix || arguments.slice {
        let plan = arguments.matrix_plan(&runs).map_err(Failed::CannotRun)?;
        return many(&plan, &programs, &out).await;
    }
    if arguments.mutants {
        let dir = fresh(&out, "mutants")?;
        let plan =
            mutants::MutantPlan { only: arguments.only.clone(), without_controls: !arguments.only.is_empty(), seed };
        let table = mutants::run(&plan, &programs, &dir).await?;
        println!("{}\n  table: {}", table.summary(), dir.join("mutants.md").display());
        return Ok(table.passes());
    }
    let mut passes = true;
    for settings in &runs {
        passes &= one(settings, &programs, &out).await?;
    }
    Ok(passes)
}

async fn one(settings: &Settings, programs: &Programs, out: &Path) -> Result<bool, Failed> {
    let dir = fresh(out, &settings.short_name())?;
    println!("{} under {}, seed {}", settings.workload, settings.nemesis(), settings.seed);
    println!("to run it again: {}", settings.command());
    let screen = Screen::new(false);
    let ended = run::run(settings, programs, &dir, &screen).await;
    screen.end();
    match ended? {
        RunEnd::Reported(report) => {
            tell(&report, &dir);
            Ok(report.outcome.passes())
        }
        RunEnd::Lacking(skipped) => {
            let why: Vec<String> = skipped.iter().map(|one| format!("{}: {}", one.nemesis, one.why)).collect();
            cannot_run(format!("skipped, which is not a pass: {}", why.join("; ")))
        }
    }
}

async fn many(plan: &matrix::MatrixPlan, programs: &Programs, out: &Path) -> Result<bool, Failed> {
    let dir = fresh(out, if plan.slice { "slice" } else { "matrix" })?;
    println!("{} workloads and {} nemeses, seed {}", plan.workloads.len(), plan.nemeses.len(), plan.like.seed);
    println!("to run it again: {}", plan.command);
    let screen = Screen::new(true);
    let ended = matrix::run(plan, programs, &dir, &screen).await;
    screen.end();
    let table = ended?;
    println!("{}", table.summary());
    println!("  report: {}\n  table:  {}", dir.join("index.html").display(), dir.join("matrix.md").display());
    Ok(matrix::passes(&table))
}

fn tell(report: &Report, dir: &Path) {
    for skipped in &report.skipped {
        println!("  skipped: {} ({})", skipped.nemesis, skipped.why);
    }
    for check in &report.checks {
        println!("  {:<11} {:<38} {}", check.verdict.words(), check.name, check.detail);
    }
    let total = report.total();
    println!("{}: {} under {}", report.outcome.words(), report.workload, report.nemesis);
    println!(
        "  {} carried out, {} refused, {} unknown; {} faults",
        total.ok,
        total.fail,
        total.info,
        report.faults.len()
    );
    println!("  report: {}", dir.join("index.html").display());
}

/// A directory that was not there, named after now.
fn fresh(out: &Path, name: &str) -> std::io::Result<PathBuf> {
    let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    let now: String = now.chars().filter(char::is_ascii_digit).collect();
    let (day, time) = now.split_at(8.min(now.len()));
    for attempt in 0.. {
        let again = if attempt == 0 { String::new() } else { format!("-{attempt}") };
        let dir = out.join(format!("{day}-{time}-{name}{again}"));
        std::fs::create_dir_all(out)?;
        match std::fs::create_dir(&dir) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => return made.and_then(|()| dir.canonicalize()),
        }
    }
    Err(std::io::Error::other("no name is free"))
}
