//! Judges recorded runs again with the present checks. The store of `fenced-lock` is queried during the run itself, so
//! its answer is in the history.

use std::path::{Path, PathBuf};

use super::{archive, settings};
use crate::check::{Check, Verdict, order};
use crate::workload::ExpectedVerdict;

/// Judges each run, named by the directory of its report, and prints its checks. Whether all are valid.
pub fn judge(directories: &[PathBuf]) -> bool {
    let mut passes = true;
    for directory in directories {
        match judged(directory) {
            Ok(checks) => {
                let count = |of: &[Verdict]| checks.iter().filter(|check| of.contains(&check.verdict)).count();
                let (wrong, left) = (count(&[Verdict::Unknown, Verdict::Invalid]), count(&[Verdict::NotChecked]));
                passes &= wrong == 0;
                println!("{}: {} checks, {wrong} not valid, {left} not checked", directory.display(), checks.len());
                checks.iter().for_each(print);
            }
            Err(why) => {
                passes = false;
                println!("{}: {why}", directory.display());
            }
        }
    }
    passes
}

fn print(check: &Check) {
    let Check { name, promises, verdict, detail, counterexample, at_us } = check;
    let at = at_us.map_or(String::new(), |at| format!(" ({at} us)"));
    println!("  {} {name} [{promises}]: {detail}{at}", verdict.words());
    counterexample.iter().for_each(|line| println!("    {line}"));
}

fn judged(directory: &Path) -> Result<Vec<Check>, String> {
    let told = |error: std::io::Error| error.to_string();
    let report = std::fs::read(directory.join("run.json")).map_err(told)?;
    let report: serde_json::Value = serde_json::from_slice(&report).map_err(|error| error.to_string())?;
    let workload = settings::workload(report["workload"].as_str().unwrap_or_default())?;
    let run = archive::load(directory).map_err(told)?;
    let mut checks = workload.check(&run);
    if workload.expected() != ExpectedVerdict::Valid {
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
