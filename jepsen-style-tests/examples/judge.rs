//! Judges recorded runs again, with the checks as they are now: `cargo run -p jepsen-style-tests --example judge -- DIRECTORY…`, each the directory of a
//! report. Prints the checks of its workload that are not valid, with `ALL=1` all of them. The store of `fenced-lock` is asked in the run
//! itself, so its word is in the history.

use std::path::Path;
use std::process::ExitCode;

use jepsen_style_tests::check::{Check, Verdict, order};
use jepsen_style_tests::run::{archive, settings};
use jepsen_style_tests::workload::Expected;

fn main() -> ExitCode {
    let all = std::env::var_os("ALL").is_some();
    let mut passes = true;
    for directory in std::env::args().skip(1) {
        match judged(Path::new(&directory)) {
            Ok(checks) => {
                let wrong = checks.iter().filter(|check| check.verdict != Verdict::Valid).count();
                passes &= wrong == 0;
                println!("{directory}: {} checks, {wrong} not valid", checks.len());
                for check in checks.iter().filter(|check| all || check.verdict != Verdict::Valid) {
                    let Check { name, promises, verdict, detail, counterexample, at_us } = check;
                    println!(
                        "  {verdict:?} {name} [{promises}]: {detail} {}",
                        at_us.map_or(String::new(), |at| format!("({at} us)"))
                    );
                    counterexample.iter().for_each(|line| println!("    {line}"));
                }
            }
            Err(why) => {
                passes = false;
                println!("{directory}: {why}");
            }
        }
    }
    if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn judged(directory: &Path) -> Result<Vec<Check>, String> {
    let told = |error: std::io::Error| error.to_string();
    let report = std::fs::read(directory.join("run.json")).map_err(told)?;
    let report: serde_json::Value = serde_json::from_slice(&report).map_err(|error| error.to_string())?;
    let workload = settings::workload(report["workload"].as_str().unwrap_or_default())?;
    let run = archive::load(directory).map_err(told)?;
    let mut checks = workload.check(&run);
    if workload.expected() != Expected::Valid {
        // What the control shows, it is there to show.
        checks.clear();
    }
    let (ops, can) = (run.history.ops(), workload.promises());
    for check in &checks {
        let beyond: Vec<&str> =
            check.promises.split_whitespace().filter(|one| !can.split(' ').any(|p| p == *one)).collect();
        if !beyond.is_empty() {
            return Err(format!("{} speaks of {beyond:?}, of which the workload says nothing", check.name));
        }
    }
    checks.push(order::is_whole(&run.history));
    if ops.iter().any(|op| op.zxid.is_some()) {
        checks.push(order::agrees(&ops));
    }
    Ok(checks)
}
