//! The page of a run: everything in one file, nothing fetched from anywhere.

use std::collections::BTreeMap;
use std::time::Duration;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::data::{OpCounts, Report};
use super::plot::{self, Axis};
use super::timeline;
use crate::check::{Check, Verdict};
use crate::history::{History, Op};
use crate::stats::{Summary, millis};

/// Said on every page, and so that nobody takes a green one for more than it is.
const NOT_PROMISED: [&str; 4] = [
    "That a holder which was paused and does not check its token cannot act late. No lock service can promise that; \
        the fencing token, checked at the resource, does. The workload unfenced-lock shows the harm, fenced-lock shows \
        the cure.",
    "That the same seed does the same to the microsecond: real processes on a real machine do not. A seed repeats the \
        choice of faults, victims and operations; lockkeeper-sim repeats everything.",
    "Anything about disks that lie about having synced, or about more nodes lost for good than a minority.",
    "That a valid history proves the absence of bugs. It is one history that did not break the promises named beside \
        each check.",
];

/// A whole page.
pub(super) fn page(title: &str, inside: &Markup) -> String {
    let style = PreEscaped(include_str!("style.css"));
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (style) }
            }
            body { main { (inside) } }
        }
    }
    .into_string()
}

/// The page of a run.
pub(super) fn run(report: &Report, history: &History) -> String {
    let ops = history.ops();
    let inside = html! {
        h1 {
            (report.workload) " under " (report.nemesis)
            span .badge .(class_of(report)) { (report.outcome.words()) }
        }
        p .soft { (report.about) }
        (facts(report))
        (checks(&report.checks))
        (anomalies(report, history, &ops))
        (plots(report, &ops))
        (faults(report))
        (counts(&report.counts))
        (recovery(report))
        (skipped(report))
        (not_promised())
        (files())
    };
    page(&format!("{} under {}: {}", report.workload, report.nemesis, report.outcome.words()), &inside)
}

fn class_of(report: &Report) -> String {
    serde_json::to_value(report.outcome).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn facts(report: &Report) -> Markup {
    let seconds = report.second(report.ended_us);
    let facts: [(&str, String); 9] = [
        ("date", report.made.date.clone()),
        ("commit", report.made.commit.clone()),
        ("versions", report.made.versions.join(", ")),
        ("kernel", report.made.kernel.clone()),
        ("machine", report.made.machine.clone()),
        ("cluster", format!("{} nodes, network backend {}", report.nodes, report.net)),
        ("clients", format!("{} at a time, sessions of {} ms", report.clients, report.ttl_ms)),
        ("duration", format!("{seconds:.1} s from the start of the cluster to the verdict")),
        ("seed", report.seed.to_string()),
    ];
    html! {
        table .facts {
            @for (name, value) in facts { tr { th { (name) } td { (value) } } }
            tr { th { "promises" } td { (report.promises) } }
            tr { th { "again" } td { code { (report.command) } } }
        }
    }
}

fn verdict(verdict: Verdict) -> Markup {
    let class = if verdict == Verdict::NotChecked { "skipped" } else { verdict.words() };
    html! { span .badge .(class) { (verdict.words()) } }
}

fn checks(checks: &[Check]) -> Markup {
    html! {
        h2 { "Checks" }
        p .soft { "Unknown is not a pass. What was not checked counts neither way." }
        section { table {
            tr { th { "verdict" } th { "check" } th { "promises" } th { "what it saw" } }
            @for check in checks {
                tr { td { (verdict(check.verdict)) } td { (check.name) } td { (check.promises) } td { (check.detail) } }
            }
        } }
    }
}

fn anomalies(report: &Report, history: &History, ops: &[Op]) -> Markup {
    let broken: Vec<&Check> = report.checks.iter().filter(|check| check.verdict == Verdict::Invalid).collect();
    html! {
        @if !broken.is_empty() { h2 { "Anomalies" } }
        @for check in broken {
            h3 { (check.name) @if !check.promises.is_empty() { " (" (check.promises) ")" } }
            p { (check.detail) }
            @if !check.counterexample.is_empty() {
                p .soft { "The fewest events that show it:" }
                pre { @for line in &check.counterexample { (line) "\n" } }
            }
            section { (timeline::around(report, history, ops, check)) }
        }
    }
}

fn plots(report: &Report, ops: &[Op]) -> Markup {
    let axis = Axis::new(report.began_us, report.ended_us, report.began_us);
    html! {
        h2 { "Over time" }
        (plot::key())
        @if !report.faults.is_empty() {
            h3 { "Faults" }
            section { (plot::faults(report, axis)) }
        }
        h3 { "Latency by the moment of asking" }
        section { (plot::latency(report, ops, axis)) }
        h3 { "Operations ended a second" }
        section { (plot::rate(report, ops, axis)) }
    }
}

fn faults(report: &Report) -> Markup {
    html! {
        h2 { "Faults, and what shows that each bit" }
        @if report.faults.is_empty() { p { "None was put on." } } @else {
            section { table {
                tr {
                    th .number { "from" } th .number { "to" }
                    th { "nemesis" } th { "what was done" } th { "evidence" } th { "bit" }
                }
                @for fault in &report.faults {
                    tr {
                        td .number { (format!("{:.2} s", report.second(fault.began_us))) }
                        td .number { (format!("{:.2} s", report.second(fault.ended_us))) }
                        td { (fault.nemesis) }
                        td { (fault.what) }
                        td { @for evidence in &fault.evidence { div { (evidence) } } }
                        td { @if fault.bit { "yes" } @else { span .badge.unknown { "not shown" } } }
                    }
                }
            } }
        }
    }
}

fn counts(counts: &BTreeMap<String, OpCounts>) -> Markup {
    html! {
        h2 { "Operations" }
        section { table .facts {
            tr {
                th { "operation" }
                th .number { "carried out" } th .number { "certainly not" } th .number { "unknown" }
            }
            @for (name, of) in counts {
                tr { td { (name) } td .number { (of.ok) } td .number { (of.fail) } td .number { (of.info) } }
            }
        } }
    }
}

/// Times to recover, by nemesis: after the fault came, and after it went.
pub(super) fn recovery_rows<'a>(of: impl Iterator<Item = &'a super::Recovery>) -> Vec<(String, usize, [String; 6])> {
    let mut by_nemesis: BTreeMap<String, [Vec<Duration>; 2]> = BTreeMap::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for recovery in of {
        *counts.entry(recovery.nemesis.clone()).or_default() += 1;
        let times = by_nemesis.entry(recovery.nemesis.clone()).or_default();
        for (times, ms) in times.iter_mut().zip([recovery.after_on_ms, recovery.after_off_ms]) {
            times.extend(ms.map(Duration::from_millis));
        }
    }
    let figures = |times: &[Duration]| match Summary::of(times) {
        Some(sum) => [millis(sum.median), millis(sum.p99), millis(sum.max)],
        None => ["–".into(), "–".into(), "–".into()],
    };
    let row = |(nemesis, [on, off]): (String, [Vec<Duration>; 2])| {
        let count = counts.get(&nemesis).copied().unwrap_or(0);
        let ([a, b, c], [d, e, f]) = (figures(&on), figures(&off));
        (nemesis, count, [a, b, c, d, e, f])
    };
    by_nemesis.into_iter().map(row).collect()
}

/// The same as a table.
pub(super) fn recovery_table(rows: &[(String, usize, [String; 6])]) -> Markup {
    html! {
        section { table .facts {
            tr {
                th { "nemesis" } th .number { "times" }
                th .number { "on: p50" } th .number { "p99" } th .number { "max" }
                th .number { "off: p50" } th .number { "p99" } th .number { "max" }
            }
            @for (nemesis, count, figures) in rows {
                tr { td { (nemesis) } td .number { (count) } @for figure in figures { td .number { (figure) } } }
            }
        } }
    }
}

fn recovery(report: &Report) -> Markup {
    let rows = recovery_rows(report.recovery.iter());
    html! {
        @if !rows.is_empty() {
            h2 { "Recovery" }
            p .soft {
                "From when the fault was on (and from when it was off) to the end of the first operation that was \
                    asked for after that and carried out, by any client (an acquire, where the workload has them). \
                    Where a majority is down nothing can be carried out before the fault is off."
            }
            (recovery_table(&rows))
        }
    }
}

fn skipped(report: &Report) -> Markup {
    html! {
        h2 { "Skipped" }
        @if report.skipped.is_empty() { p { "Nothing." } }
        @for skipped in &report.skipped { p { (skipped.nemesis) ": " (skipped.why) } }
    }
}

/// What no report says.
pub(super) fn not_promised() -> Markup {
    html! {
        h2 { "Not promised" }
        ul { @for line in NOT_PROMISED { li { (line) } } }
    }
}

fn files() -> Markup {
    let files = [
        ("history.jsonl", "every event that clients told, by the boot clock"),
        ("faults.jsonl", "every fault with its evidence"),
        ("run.json", "this page as data"),
        ("clients/", "what the client processes complained of"),
        ("shared/", "the stores that the clients shared"),
        ("nodes/", "configuration and log of each node, and its data where something is wrong"),
    ];
    html! {
        h2 { "Beside this page" }
        table .facts { @for (name, what) in files { tr { th { code { (name) } } td { (what) } } } }
    }
}
