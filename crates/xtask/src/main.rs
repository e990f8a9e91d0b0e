//! `cargo xtask`: what `scripts/check` looks up in the text of the repository and in cargo's messages.
//!
//! It has no dependencies, so that it is built in seconds and with the features of no other crate.

mod citations;
mod monitoring;
mod prose;
mod tree;
mod units;

use std::process::ExitCode;

use tree::Tree;

const USAGE: &str = "usage: cargo xtask check prose        rules of code and pages, and what they cite
       cargo xtask check monitoring   metrics and alerts against the code and docs/monitoring.md
       cargo xtask dashboard-rules    the dashboard's expressions as rules, which promtool can read
       cargo xtask units [--list | --at-most UNITS LINKS] < messages of cargo
                                      counts compilations (scripts/units)
Exit codes: 0 nothing was found, 1 something was, 2 wrong arguments.";

/// What a check looks for, and what it found, one finding a line.
type Check = (&'static str, fn(&Tree) -> Vec<String>);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["check", "prose"] => Tree::of_checkout().map(|tree| found(&tree, &prose::CHECKS)),
        ["check", "monitoring"] => Tree::of_checkout().map(|tree| found(&tree, &monitoring::CHECKS)),
        ["dashboard-rules"] => Tree::of_checkout().map(|tree| {
            print!("{}", monitoring::dashboard_rules(&tree));
            false
        }),
        ["units"] => units::count(false, None),
        ["units", "--list"] => units::count(true, None),
        ["units", "--at-most", units, links] => match (units.parse(), links.parse()) {
            (Ok(units), Ok(links)) => units::count(false, Some((units, links))),
            _ => return usage(),
        },
        _ => return usage(),
    };
    match done {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

/// Prints what the checks find, and whether that was anything.
fn found(tree: &Tree, checks: &[Check]) -> bool {
    let mut any = false;
    for (what, check) in checks {
        let findings = check(tree);
        if !findings.is_empty() {
            any = true;
            eprintln!("== {what}:\n{}", findings.join("\n"));
        }
    }
    any
}
