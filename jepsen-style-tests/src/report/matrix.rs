//! The table of every workload under every nemesis: as a page, as Markdown, and as data.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::time::Duration;

use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use super::page;
use super::{OpCounts, Outcome, Provenance, Recovery, Report};
use crate::check::Verdict;

/// A cell that was run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ran {
    /// What it came to.
    pub outcome: Outcome,
    /// Its operations.
    pub counts: OpCounts,
    /// How many faults were put on.
    pub faults: usize,
    /// Checks that are not valid, with what they say.
    pub complaints: Vec<String>,
    /// How many of them were not made.
    #[serde(default)]
    pub not_checked: usize,
    /// After each fault.
    pub recovery: Vec<Recovery>,
    /// Its directory beside the table.
    pub directory: String,
    /// What runs it again.
    pub command: String,
    /// How long it took.
    pub ms: u64,
}

impl Ran {
    /// In short, what a report says.
    pub fn of(report: &Report, directory: &str, took: Duration) -> Self {
        let complaints = report.checks.iter().filter(|check| check.verdict != Verdict::Valid);
        Self {
            outcome: report.outcome,
            counts: report.total(),
            faults: report.faults.len(),
            complaints: complaints.map(|check| format!("{}: {}", check.name, check.detail)).collect(),
            not_checked: report.checks.iter().filter(|check| check.verdict == Verdict::NotChecked).count(),
            recovery: report.recovery.clone(),
            directory: directory.to_owned(),
            command: report.command.clone(),
            ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// What became of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CellResult {
    /// It was run.
    Ran(Box<Ran>),
    /// This machine lacks what its fault needs.
    Skipped(String),
    /// The settings of the table leave its fault out.
    Excluded(String),
    /// The minutes were over.
    NotReached,
    /// The harness failed.
    CouldNotRun(String),
}

/// A workload under a nemesis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// The workload.
    pub workload: String,
    /// The nemesis.
    pub nemesis: String,
    /// What became of it.
    pub fate: CellResult,
}

impl Cell {
    /// For the terminal.
    pub fn line(&self) -> String {
        let what = match &self.fate {
            CellResult::Ran(ran) => {
                let OpCounts { ok, fail, info } = ran.counts;
                let complaints =
                    if ran.outcome == Outcome::CorruptsAsExpected { String::new() } else { ran.complaints.join("; ") };
                format!("{:<8} {ok}/{fail}/{info} in {:.1} s  {complaints}", ran.outcome.words(), ran.ms as f64 / 1e3)
            }
            CellResult::Skipped(why) | CellResult::Excluded(why) => format!("skipped: {why}"),
            CellResult::NotReached => "not reached".into(),
            CellResult::CouldNotRun(why) => format!("COULD NOT RUN: {why}"),
        };
        format!("{:<14} {:<18} {what}", self.workload, self.nemesis)
    }
}

/// The table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrix {
    /// Where and on what.
    pub made: Provenance,
    /// What does it again.
    pub command: String,
    /// Where all chance came from.
    pub seed: u64,
    /// The columns.
    pub workloads: Vec<String>,
    /// The rows.
    pub nemeses: Vec<String>,
    /// In the order in which they were run.
    pub cells: Vec<Cell>,
    /// How long all took.
    pub seconds: u64,
    /// How many nodes each cluster had.
    pub nodes: u64,
    /// The network's backend.
    pub net: String,
    /// Whether it was to be only a part.
    pub slice: bool,
}

impl Matrix {
    fn cell(&self, workload: &str, nemesis: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.workload == workload && cell.nemesis == nemesis)
    }

    fn ran(&self) -> impl Iterator<Item = (&Cell, &Ran)> {
        self.cells.iter().filter_map(|cell| match &cell.fate {
            CellResult::Ran(ran) => Some((cell, ran.as_ref())),
            _ => None,
        })
    }

    /// How many cells came to each end, in words.
    pub fn summary(&self) -> String {
        let ran = |outcome| self.ran().filter(|(_, ran)| ran.outcome == outcome).count();
        let fate = |wanted: fn(&CellResult) -> bool| self.cells.iter().filter(|cell| wanted(&cell.fate)).count();
        let total = self.ran().fold(OpCounts::default(), |sum, (_, ran)| sum.and(ran.counts));
        let faults: usize = self.ran().map(|(_, ran)| ran.faults).sum();
        let not_checked: usize = self.ran().map(|(_, ran)| ran.not_checked).sum();
        let counted = [
            (ran(Outcome::Valid), "valid"),
            (ran(Outcome::CorruptsAsExpected), "corrupted, as expected of the control"),
            (ran(Outcome::Invalid), "INVALID"),
            (ran(Outcome::Unknown), "unknown"),
            (fate(|fate| matches!(fate, CellResult::CouldNotRun(_))), "could not be run"),
            (fate(|fate| matches!(fate, CellResult::Skipped(_) | CellResult::Excluded(_))), "skipped"),
            (fate(|fate| matches!(fate, CellResult::NotReached)), "not reached"),
        ];
        let words: Vec<String> =
            counted.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
        format!(
            "{} cells: {}{}; {faults} faults; {} operations carried out, {} certainly not, {} unknown; {} min",
            self.cells.len(),
            words.join(", "),
            if not_checked == 0 { String::new() } else { format!("; {not_checked} checks not made") },
            total.ok,
            total.fail,
            total.info,
            self.seconds.div_ceil(60)
        )
    }

    /// Why cells were skipped: once for each nemesis.
    fn reasons(&self) -> Vec<(&str, &str)> {
        let skipped = self.cells.iter().filter_map(|cell| match &cell.fate {
            CellResult::Skipped(why) | CellResult::Excluded(why) => Some((cell.nemesis.as_str(), why.as_str())),
            _ => None,
        });
        let mut reasons: Vec<_> = skipped.collect();
        reasons.sort_unstable();
        reasons.dedup();
        reasons
    }

    /// The table as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "Commit {}, {}; {} nodes, {} backend, kernel {}; seed {}.\n\n{}.\n\nA cell: operations carried out / \
                certainly not / unknown, where the run is valid; anything else is said.\n\n",
            self.made.commit,
            self.made.date,
            self.nodes,
            self.net,
            self.made.kernel,
            self.seed,
            self.summary()
        );
        // Writing to a String does not fail.
        let _ = writeln!(text, "| nemesis | {} |", self.workloads.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(self.workloads.len()));
        for nemesis in &self.nemeses {
            let cells: Vec<String> =
                self.workloads.iter().map(|workload| markdown_cell(self.cell(workload, nemesis))).collect();
            let _ = writeln!(text, "| {nemesis} | {} |", cells.join(" | "));
        }
        for (nemesis, why) in self.reasons() {
            let _ = writeln!(text, "\nSkipped: `{nemesis}` ({why}).");
        }
        let rows = page::recovery_rows(self.ran().flat_map(|(_, ran)| &ran.recovery));
        if !rows.is_empty() {
            text += "\nTime to the end of the next operation asked for and carried out, by any client, from when the \
                fault was on and from when it was off:\n\n| nemesis | times | on: p50 | p99 | max | off: p50 | p99 | \
                max |\n|---|---|---|---|---|---|---|---|\n";
            for (nemesis, count, figures) in rows {
                let _ = writeln!(text, "| {nemesis} | {count} | {} |", figures.join(" | "));
            }
        }
        text
    }
}

fn markdown_cell(cell: Option<&Cell>) -> String {
    match cell.map(|cell| &cell.fate) {
        None => String::new(),
        Some(CellResult::NotReached) => "not reached".into(),
        Some(CellResult::Skipped(_) | CellResult::Excluded(_)) => "skipped".into(),
        Some(CellResult::CouldNotRun(_)) => "**could not run**".into(),
        Some(CellResult::Ran(ran)) => {
            let OpCounts { ok, fail, info } = ran.counts;
            match ran.outcome {
                Outcome::Valid => format!("{ok}/{fail}/{info}"),
                Outcome::CorruptsAsExpected => format!("*corrupts, as expected* {ok}/{fail}/{info}"),
                other => format!("**{}** {ok}/{fail}/{info}", other.words()),
            }
        }
    }
}

/// Writes `index.html`, `matrix.md` and `matrix.json`.
pub fn write(dir: &Path, matrix: &Matrix) -> io::Result<()> {
    std::fs::write(dir.join("matrix.md"), matrix.markdown())?;
    std::fs::write(dir.join("matrix.json"), serde_json::to_vec_pretty(matrix).map_err(io::Error::other)?)?;
    std::fs::write(dir.join("index.html"), html_page(matrix))
}

fn html_page(matrix: &Matrix) -> String {
    let rows = page::recovery_rows(matrix.ran().flat_map(|(_, ran)| &ran.recovery));
    let title = if matrix.slice { "A slice of the matrix" } else { "Workloads under nemeses" };
    let inside = html! {
        h1 { (title) }
        p .soft { (matrix.summary()) }
        (facts(matrix))
        h2 { "Matrix" }
        p .soft { "Operations carried out / certainly not / unknown. Each cell that was run leads to its own report." }
        section { (table(matrix)) }
        (complaints(matrix))
        h2 { "Recovery" }
        p .soft {
            "From when the fault was on (and from when it was off) to the end of the first operation that was asked \
                for after that and carried out, by any client, over all cells."
        }
        (page::recovery_table(&rows))
        h2 { "Skipped" }
        @let reasons = matrix.reasons();
        @if reasons.is_empty() { p { "Nothing." } }
        @for (nemesis, why) in reasons { p { (nemesis) ": " (why) } }
        (page::not_promised())
    };
    page::page(title, &inside)
}

fn facts(matrix: &Matrix) -> Markup {
    let made = &matrix.made;
    let facts: [(&str, String); 7] = [
        ("date", made.date.clone()),
        ("commit", made.commit.clone()),
        ("versions", made.versions.join(", ")),
        ("kernel", made.kernel.clone()),
        ("machine", made.machine.clone()),
        ("clusters", format!("{} nodes each, network backend {}", matrix.nodes, matrix.net)),
        ("seed", matrix.seed.to_string()),
    ];
    html! {
        table .facts {
            @for (name, value) in facts { tr { th { (name) } td { (value) } } }
            tr { th { "again" } td { code { (matrix.command) } } }
        }
    }
}

fn table(matrix: &Matrix) -> Markup {
    html! {
        table .matrix {
            tr { th { "nemesis" } @for workload in &matrix.workloads { th .slanted { (workload) } } }
            @for nemesis in &matrix.nemeses {
                tr { th { (nemesis) } @for workload in &matrix.workloads { (cell(matrix.cell(workload, nemesis))) } }
            }
        }
    }
}

fn cell(cell: Option<&Cell>) -> Markup {
    match cell.map(|cell| &cell.fate) {
        None => html! { td .absent { "" } },
        Some(CellResult::NotReached) => html! { td .absent { "not reached" } },
        Some(CellResult::Skipped(why) | CellResult::Excluded(why)) => html! { td .skipped title=(why) { "skipped" } },
        Some(CellResult::CouldNotRun(why)) => html! { td .invalid title=(why) { "could not run" } },
        Some(CellResult::Ran(ran)) => {
            let class = serde_json::to_value(ran.outcome).unwrap_or_default();
            let OpCounts { ok, fail, info } = ran.counts;
            html! {
                td .(class.as_str().unwrap_or_default()) title=(ran.complaints.join("; ")) {
                    a href=(format!("{}/index.html", ran.directory)) {
                        (ran.outcome.words())
                        small { (ok) "/" (fail) "/" (info) }
                    }
                }
            }
        }
    }
}

fn complaints(matrix: &Matrix) -> Markup {
    let bad: Vec<_> = matrix.ran().filter(|(_, ran)| !ran.outcome.passes()).collect();
    let failed = matrix.cells.iter().filter_map(|cell| match &cell.fate {
        CellResult::CouldNotRun(why) => Some((cell, why)),
        _ => None,
    });
    let failed: Vec<_> = failed.collect();
    html! {
        @if !bad.is_empty() || !failed.is_empty() { h2 { "What is not valid" } }
        @for (cell, ran) in bad {
            @let class = if ran.outcome == Outcome::Invalid { "invalid" } else { "unknown" };
            h3 { (cell.workload) " under " (cell.nemesis) " " span .badge .(class) { (ran.outcome.words()) } }
            @for complaint in &ran.complaints { p { (complaint) } }
            pre { (ran.command) }
        }
        @for (cell, why) in failed { h3 { (cell.workload) " under " (cell.nemesis) } p { "could not run: " (why) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(workload: &str, nemesis: &str, outcome: Outcome) -> Cell {
        let ran = Ran {
            outcome,
            counts: OpCounts { ok: 812, fail: 3, info: 4 },
            faults: 1,
            complaints: vec!["tokens rise: token 7 was given twice".into()],
            not_checked: 0,
            recovery: vec![Recovery { nemesis: nemesis.into(), after_on_ms: Some(90), after_off_ms: Some(5) }],
            directory: format!("{workload}-{nemesis}"),
            command: "cargo run".into(),
            ms: 11_000,
        };
        Cell { workload: workload.into(), nemesis: nemesis.into(), fate: CellResult::Ran(Box::new(ran)) }
    }

    fn matrix() -> Matrix {
        let skipped = |workload: &str| Cell {
            workload: workload.into(),
            nemesis: "disk-full".into(),
            fate: CellResult::Skipped("needs root".into()),
        };
        Matrix {
            made: Provenance { commit: "abc".into(), date: "2026-11-21".into(), ..Provenance::default() },
            command: "scripts/jepsen --matrix".into(),
            seed: 1,
            workloads: vec!["lock".into(), "unfenced-lock".into()],
            nemeses: vec!["client-pause".into(), "disk-full".into(), "kill-one".into()],
            cells: vec![
                cell("lock", "client-pause", Outcome::Valid),
                cell("unfenced-lock", "client-pause", Outcome::CorruptsAsExpected),
                skipped("lock"),
                skipped("unfenced-lock"),
                cell("lock", "kill-one", Outcome::Invalid),
                Cell { workload: "unfenced-lock".into(), nemesis: "kill-one".into(), fate: CellResult::NotReached },
            ],
            seconds: 61,
            nodes: 3,
            net: "proxy".into(),
            slice: false,
        }
    }

    #[test]
    fn the_table_says_what_became_of_each_cell() {
        let text = matrix().markdown();
        assert!(text.contains("Commit abc, 2026-11-21"));
        assert!(text.contains("| nemesis | lock | unfenced-lock |"));
        assert!(text.contains("| client-pause | 812/3/4 | *corrupts, as expected* 812/3/4 |"));
        assert!(text.contains("| disk-full | skipped | skipped |"));
        assert!(text.contains("| kill-one | **INVALID** 812/3/4 | not reached |"));
        assert!(text.contains("Skipped: `disk-full` (needs root)."));
        assert!(text.contains(
            "6 cells: 1 valid, 1 corrupted, as expected of the control, 1 INVALID, 2 skipped, 1 not reached"
        ));
        assert!(text.contains("| client-pause | 2 | 90.0 ms |"));
    }

    #[test]
    fn the_page_names_what_is_not_valid_and_how_to_run_it_again() {
        let page = html_page(&matrix());
        assert!(page.contains("corrupts, as expected") && page.contains("title=\"needs root\""));
        assert!(page.contains("What is not valid") && page.contains("token 7 was given twice"));
        assert!(page.contains("lock-kill-one/index.html"));
        assert!(!page.contains("https://"));
    }

    #[test]
    fn a_matrix_is_written_and_read_again() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &matrix()).unwrap();
        let json = std::fs::read(dir.path().join("matrix.json")).unwrap();
        assert_eq!(serde_json::from_slice::<Matrix>(&json).unwrap(), matrix());
        assert!(dir.path().join("index.html").is_file() && dir.path().join("matrix.md").is_file());
    }
}
